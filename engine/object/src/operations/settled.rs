//! Reads of objects with replicas, which show only what all members of a group have.

use std::time::Duration;

use weir_proto::{Der, Epoch, Key, ObjectId, ReaderId};
use weir_rpc::{Request, Status};

use super::Operations;
use crate::admission::Access;
use crate::groups;

/// Longest wait of a read until what it found is settled: behind it the client is told, and comes again.
const WAIT_MAX: Duration = Duration::from_secs(1);

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

    /// Waits until all is settled that a read of this epoch may have found of a dkey, or of the object. Nothing that comes later is
    /// waited for, so that a read ends however much is written.
    pub(super) async fn when_settled(
        &self,
        request: &Request,
        access: &Access,
        (object, dkey): (ObjectId, Option<&Key>),
        epoch: Epoch,
    ) -> Result<(), Status> {
        let name = (access.pool.id(), access.container.id, object);
        if !self.unsettled.has(&name) {
            return Ok(());
        }
        let (rt, engines) = (&self.admission.rt, self.admission.pools.engines());
        let here = (&*access.pool, (engines.own_rank(), engines.own_index()));
        let until = (rt.now() + WAIT_MAX).min(request.deadline());
        // Boxed, since it is rare and part of every read's future.
        if Box::pin(self.unsettled.wait(rt, here, &name, (dkey, epoch), until)).await {
            return Ok(());
        }
        let message = format!("object {object:?} has changes that are not stored at all of its replicas yet");
        Err(Status::new(Der::INPROGRESS, message))
    }
}
