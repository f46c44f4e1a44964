//! Reads of objects with replicas, which show only what all members of a group have.

use std::time::Duration;

use weir_proto::{Der, Epoch, Key, ObjectId, ReaderId};
use weir_rpc::{Request, Status};
use weir_store::FetchError;

use super::Operations;
use crate::admission::Access;
use crate::groups;

/// Longest wait of a read until what it found is settled: behind it the client is told, and comes again.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// How long a read waits for what isn't settled before it shows what was there before, where it may: far longer than members
/// take that are there.
const WAIT_FOR_NEW: Duration = Duration::from_millis(100);

/// How far back a read may go: stores keep history of five seconds.
const HISTORY: Duration = Duration::from_secs(4);

impl Operations {
    /// Refuses a transaction's read that has to be noted by the leader of a group of replicas, which isn't this target.
    pub(super) fn check_reader(
        &self,
        reader: Option<ReaderId>,
        access: &Access,
        read: (ObjectId, Option<&Key>),
    ) -> Result<(), Status> {
        if reader.is_none() {
            return Ok(());
        }
        let engines = self.admission.pools.engines();
        groups::check_reader(&access.pool, (engines.own_rank(), engines.own_index()), read)
    }

    /// Reads a dkey, or more of the object, at an epoch, and shows nothing that isn't settled. What may have been found of that is
    /// waited for, and nothing that comes later, so that a read ends however much is written. The newest state is the one without what
    /// isn't settled, where that takes long and is known here.
    pub(super) async fn when_settled<T>(
        &self,
        request: &Request,
        access: &Access,
        (what, reader, epoch): ((ObjectId, Option<&Key>), Option<ReaderId>, Epoch),
        read: impl AsyncFn(Epoch) -> Result<T, FetchError>,
    ) -> Result<Result<T, FetchError>, Status> {
        let engines = self.admission.pools.engines();
        let (own, version) =
            ((engines.own_rank(), engines.own_index()), access.pool.with_map(|map| map.version));
        let is_replicated = groups::is_replicated(what.0);
        if is_replicated {
            groups::check_read(&access.pool, own, what)?;
        }
        if reader.is_some() {
            // What former leaders have left would appear in what the transaction has read already.
            let name = (access.pool.id(), access.container.id, what.0);
            let until = (self.admission.rt.now() + WAIT_MAX).min(request.deadline());
            let (rt, dkeys) = (&self.admission.rt, what.1.map(core::slice::from_ref));
            let what = (&name, dkeys);
            self.succession.ready(rt, &self.unsettled, (&access.pool, own), what, until).await?;
        }
        let found = self.when_decided(request, epoch, &read).await;
        if is_replicated && access.pool.with_map(|map| map.version) != version {
            groups::check_still_read(&access.pool, own, what)?;
        }
        let name = (access.pool.id(), access.container.id, what.0);
        if !self.unsettled.has(&name) {
            return Ok(found);
        }
        // Boxed, since it is rare and part of every read's future.
        let is_newest = epoch == Epoch::MAX && reader.is_none();
        let settled = Box::pin(self.settle_or_go_back(request, access, (what, epoch), is_newest)).await?;
        match settled {
            None => Ok(found),
            Some(before) => {
                let found = Box::pin(self.when_decided(request, before, &read)).await;
                groups::check_still_read(&access.pool, own, what)?;
                Ok(found)
            }
        }
    }

    /// Waits until all is settled that a read may have found. Returns an epoch before that if it takes long and the read may go
    /// back there.
    async fn settle_or_go_back(
        &self,
        request: &Request,
        access: &Access,
        ((object, dkey), epoch): ((ObjectId, Option<&Key>), Epoch),
        is_newest: bool,
    ) -> Result<Option<Epoch>, Status> {
        let name = (access.pool.id(), access.container.id, object);
        let (rt, engines) = (&self.admission.rt, self.admission.pools.engines());
        let own = (engines.own_rank(), engines.own_index());
        let until = (rt.now() + WAIT_MAX).min(request.deadline());
        // The state of this moment, at which this target may serve: what is settled later comes behind this read.
        let oldest = self.admission.epoch().0.saturating_sub(weir_runtime::nanos(HISTORY));
        let before = self.unsettled.before(own, &name, dkey).filter(|before| before.0 >= oldest);
        let before = before.filter(|_| is_newest && self.admission.may_serve(&access.pool));
        let soon = if before.is_some() { until.min(rt.now() + WAIT_FOR_NEW) } else { until };
        if self.unsettled.wait(rt, (&*access.pool, own), &name, (dkey, epoch), soon).await {
            return Ok(None);
        }
        if before.is_some() {
            return Ok(before);
        }
        let message = format!("object {object:?} has changes that are not stored at all of its replicas yet");
        Err(Status::new(Der::INPROGRESS, message))
    }
}
