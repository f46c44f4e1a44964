//! When a transfer may start beside others with the same client.
//!
//! Within a node, the provider copies in the thread that starts a transfer. Concurrent transfers gain nothing
//! there, and their replies all come at the end: the client asks for nothing new until then, and the server is
//! idle for a round trip. So transfers run one after another. Each reply is sent while the next transfer moves,
//! and no more than the processor's cache holds is in the system's buffers: four MiB at once take half as long
//! again. Small messages go between two transfers.
//!
//! Where a provider has one stream to each peer, transfers and messages share it in both directions. So only as
//! much is in flight as fills the link: a small message waits until what was started before it is out.

use crate::admission::{Pacing, TransferPacing, TransferPermit};
use crate::context::Context;
use crate::wire::Caller;
use core::pin::pin;
use core::time::Duration;
use weir_fabric::{Access, Wait};
use weir_runtime::Instant;

/// Longest wait while none of the client's transfers begins: twice the time of a fragment on a slow provider within a
/// node. A client that has stopped reading delays only its own transfers by this much each.
const SERIAL_WAIT_MAX: Duration = Duration::from_micros(500);

/// How often a thread that is about to copy yields to small requests and their answers.
const GIVES_WAY_MAX: usize = 4;

impl Context {
    /// How transfers in this direction are paced.
    pub(crate) fn pace_of(&self, access: Access) -> Pacing {
        let capabilities = self.endpoint.capabilities();
        if capabilities.wait == Wait::Doorbell {
            Pacing::Serial
        } else if capabilities.ordered_writes {
            Pacing::Windowed(access)
        } else {
            Pacing::Free
        }
    }

    /// Waits for a pacing permit. Serial transfers wait only while others of the client begin, because a client
    /// that has stopped reading is not worth waiting for.
    pub(crate) async fn pace(
        &self,
        client: Caller,
        next: (Pacing, usize),
        deadline: Instant,
    ) -> TransferPermit {
        if let Some(leave) = self.try_pace(client, next) {
            return leave;
        }
        let awaited = {
            let clients = self.clients.borrow();
            let place = clients.paces(client).and_then(|paces| paces.of(next.0, next.1));
            place.map(|(semaphore, count)| semaphore.acquire_many(count))
        };
        let Some(awaited) = awaited else { return TransferPermit(None) };
        let mut awaited = pin!(awaited);
        let permit = loop {
            let begun = self.begun_by_turns(client);
            let patience = if next.0 == Pacing::Serial { self.rt.now() + SERIAL_WAIT_MAX } else { deadline };
            if let Ok(permit) = self.rt.timeout_at(deadline.min(patience), &mut awaited).await {
                break permit.ok();
            }
            if self.rt.now() >= deadline || self.begun_by_turns(client) == begun {
                break None;
            }
        };
        if let Some(paces) = self.clients.borrow().paces(client) {
            paces.note(next.0);
        }
        TransferPermit(permit)
    }

    /// Yields to small messages before a transfer that this thread copies. Returns whether there were any.
    pub(crate) async fn give_way(&self, pace: Pacing) -> bool {
        for given in 0..GIVES_WAY_MAX {
            if pace != Pacing::Serial || !self.backlog.has_small() && self.coalescer.is_empty() {
                return given > 0;
            }
            self.rt.yield_now().await;
        }
        true
    }

    fn begun_by_turns(&self, client: Caller) -> u64 {
        self.clients.borrow().paces(client).map_or(0, TransferPacing::begun)
    }

    /// The same without waiting. `None`: a permit has to be waited for.
    pub(crate) fn try_pace(&self, client: Caller, (pace, bytes): (Pacing, usize)) -> Option<TransferPermit> {
        if pace == Pacing::Free {
            return Some(TransferPermit(None));
        }
        let clients = self.clients.borrow();
        let line = clients.paces(client).and_then(|paces| Some((paces, paces.of(pace, bytes)?)));
        // There is nothing to wait for.
        let Some((paces, (semaphore, count))) = line else { return Some(TransferPermit(None)) };
        let permit = semaphore.try_acquire_many(count)?;
        paces.note(pace);
        Some(TransferPermit(Some(permit)))
    }
}
