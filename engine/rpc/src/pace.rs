//! When a transfer may start beside others with the same client.
//!
//! Within a node the provider copies in the thread that starts a transfer, and where writes are ordered each stands before
//! all that is sent later. There, starting several at once gains nothing, and the replies to all of them come together
//! at the end: the client asks for nothing new until then, and the server has nothing to do for a round trip. One after
//! another, each reply is on its way while the next one moves, and no more lies in the system's buffers than what the
//! processor's cache holds: four MiB at once take half as long again.

use crate::Inner;
use crate::wire::ClientId;
use core::time::Duration;
use weir_fabric::{Access, Wait};
use weir_runtime::Instant;
use weir_runtime::sync::Permit;

/// Longest wait for the transfer before: twice what a piece takes on a slow provider within a node. A client that has
/// stopped reading holds up its own transfers by this much, and nobody else's.
const PACE_MAX: Duration = Duration::from_micros(500);

impl Inner {
    /// Whether transfers in this direction are started one after another.
    pub(crate) fn is_paced(&self, access: Access) -> bool {
        let capabilities = self.endpoint.capabilities();
        capabilities.wait == Wait::Doorbell || access == Access::Write && capabilities.ordered_writes
    }

    /// Waits until the client's transfer before has ended, but not for long. Nothing, where there is nobody to wait for.
    pub(crate) async fn pace(&self, client: ClientId, deadline: Instant) -> Option<Permit> {
        let pace = self.clients.borrow().pace(client)?;
        if let Some(permit) = pace.try_acquire() {
            return Some(permit);
        }
        let until = deadline.min(self.rt.now() + PACE_MAX);
        self.rt.timeout_at(until, pace.acquire()).await.ok()?.ok()
    }

    /// The same without waiting.
    pub(crate) fn try_pace(&self, client: ClientId) -> Option<Permit> {
        self.clients.borrow().pace(client)?.try_acquire()
    }
}
