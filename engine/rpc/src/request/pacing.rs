//! When a transfer may start beside others with the same client.
//!
//! Within a node the provider copies in the thread that starts a transfer. There, starting several at once gains nothing, and
//! the replies to all of them come together at the end: the client asks for nothing new until then, and the server has nothing
//! to do for a round trip. One after another, each reply is on its way while the next one moves, and no more lies in the
//! system's buffers than what the processor's cache holds: four MiB at once take half as long again. Small messages that come
//! meanwhile go between two of them.
//!
//! Where a provider has one stream to each peer, transfers stand in one line with messages, in both directions. So no more
//! moves at once than what keeps the line full: a small message that comes meanwhile waits until what was started before it is
//! out.

use crate::admission::{Leave, Pace};
use crate::context::Context;
use crate::wire::Caller;
use core::pin::pin;
use core::time::Duration;
use weir_fabric::{Access, Wait};
use weir_runtime::Instant;

/// Longest wait while none of the client's transfers begins: twice what a piece takes on a slow provider within a node. A client
/// that has stopped reading holds up its own transfers by this much each, and nobody else's.
const PACE_MAX: Duration = Duration::from_micros(500);

/// How often who is to copy lets others run before: small requests begin, and their answers go out.
const GIVES_WAY_MAX: usize = 4;

impl Context {
    /// How transfers in this direction are started.
    pub(crate) fn pace_of(&self, access: Access) -> Pace {
        let capabilities = self.endpoint.capabilities();
        if capabilities.wait == Wait::Doorbell {
            Pace::ByTurns
        } else if capabilities.ordered_writes {
            Pace::ByRoom(access)
        } else {
            Pace::Free
        }
    }

    /// Waits until the client's transfers before have ended, or left room: for a turn as long as others have theirs, since a
    /// client that has stopped reading is nobody to wait for.
    pub(crate) async fn pace(&self, client: Caller, next: (Pace, usize), deadline: Instant) -> Leave {
        if let Some(leave) = self.try_pace(client, next) {
            return leave;
        }
        let awaited = {
            let clients = self.clients.borrow();
            let place = clients.paces(client).and_then(|paces| paces.of(next.0, next.1));
            place.map(|(semaphore, count)| semaphore.acquire_many(count))
        };
        let Some(awaited) = awaited else { return Leave(None) };
        let mut awaited = pin!(awaited);
        let permit = loop {
            let begun = self.begun_by_turns(client);
            let patience = if next.0 == Pace::ByTurns { self.rt.now() + PACE_MAX } else { deadline };
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
        Leave(permit)
    }

    /// Lets small messages that are here go before a transfer which this thread will copy. Returns whether there were any.
    pub(crate) async fn give_way(&self, pace: Pace) -> bool {
        for given in 0..GIVES_WAY_MAX {
            if pace != Pace::ByTurns || !self.backlog.has_small() && self.outbox.is_empty() {
                return given > 0;
            }
            self.rt.yield_now().await;
        }
        true
    }

    fn begun_by_turns(&self, client: Caller) -> u64 {
        self.clients.borrow().paces(client).map_or(0, |paces| paces.begun())
    }

    /// The same without waiting; `None`: there is something to wait for.
    pub(crate) fn try_pace(&self, client: Caller, (pace, bytes): (Pace, usize)) -> Option<Leave> {
        if pace == Pace::Free {
            return Some(Leave(None));
        }
        let clients = self.clients.borrow();
        let line = clients.paces(client).and_then(|paces| Some((paces, paces.of(pace, bytes)?)));
        // There is nobody to wait for.
        let Some((paces, (semaphore, count))) = line else { return Some(Leave(None)) };
        let permit = semaphore.try_acquire_many(count)?;
        paces.note(pace);
        Some(Leave(Some(permit)))
    }
}
