//! Snapshots: epochs whose state is kept.
//!
//! What is listed is kept by every target that holds data of the container. So a new snapshot is listed when all of them
//! have it, and one that goes is off the list before the first of them forgets it. A service that stops in between leaves
//! targets that keep more than is listed. A durable mark from before the first target is told says so, and it stays until
//! all of them were told the list.

use std::rc::Rc;
use std::time::Duration;

use weir_proto::pool::{SnapshotChange, SnapshotRequest};
use weir_proto::{ContainerId, Epoch, Rights};
use weir_raft::CommandId;
use weir_runtime::join_all;
use weir_store::AttributeChange;

use super::{Container, PoolService, background, is_in_doubt};
use crate::error::Failed;
use crate::record::{self, ContainerRecord, SCOPE_CONTAINER, SCOPE_UNTOLD};

/// Longest wait for one target.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(2);

/// Longest time from asking the first clock until every target keeps the epoch. Aggregation leaves the last five seconds
/// alone ([`weir_store::StoreConfig::retention`]), so until then it has not passed the epoch anywhere.
const TAKING_LIMIT: Duration = Duration::from_secs(4);

/// Most snapshots of one container: their epochs travel in one message.
const SNAPSHOTS_MAX: usize = 1024;

impl PoolService {
    /// Lists, takes or removes snapshots; returns those there are then, oldest first.
    ///
    /// # Errors
    /// When the handle doesn't allow it, the snapshot doesn't exist, one is taken and an engine that holds data doesn't
    /// answer in time, or the store has failed in a change before.
    pub async fn snapshot(
        &self,
        request: &SnapshotRequest,
        id: Option<CommandId>,
    ) -> Result<Vec<Epoch>, Failed> {
        let writes = request.change != SnapshotChange::List;
        let needed = if writes { Rights::WRITE } else { Rights::READ };
        let container = self.authorize_container(&request.capability, needed)?;
        let _turn = self.turn_of(&container).await?;
        if container.unsettled.get() {
            let object = self.object(&container.label());
            return Err(Failed::Unsettled { object, what: "snapshots" });
        }
        match request.change {
            _ if self.has_done(id) => {}
            SnapshotChange::List => {}
            SnapshotChange::Create => self.take_snapshot(&container, id).await?,
            SnapshotChange::Destroy(epoch) => self.remove_snapshot(&container, epoch, id).await?,
        }
        let snapshots = container.record.borrow().snapshots.clone();
        Ok(snapshots)
    }

    /// The epoch must lie after everything that has been acknowledged and before everything that begins later, on
    /// every target. So first all clocks are asked, then all are told an epoch that none has passed.
    async fn take_snapshot(&self, container: &Container, id: Option<CommandId>) -> Result<(), Failed> {
        let mut record = container.record.borrow().clone();
        if record.snapshots.len() >= SNAPSHOTS_MAX {
            return Err(Failed::Invalid {
                object: self.object(&record.properties.label),
                reason: format!("a container has at most {SNAPSHOTS_MAX} snapshots; destroy one first"),
            });
        }
        self.commit(&[mark(container.id, true)]).await?;
        let before = record.snapshots.clone();
        let rt = self.engines.runtime();
        let began = rt.now();
        let told = async {
            self.tell(container, &before).await?;
            // Every reply moved this clock past the clock of its sender.
            record.snapshots.push(self.clock.now(rt.wall_ns()));
            self.tell(container, &record.snapshots).await?;
            if rt.now().saturating_duration_since(began) > TAKING_LIMIT {
                return Err(Failed::Late(self.object(&container.label())));
            }
            self.commit_snapshots(container, record, false, id).await
        };
        if let Err(error) = told.await {
            // One that may be listed stays where it is; the mark tells whether it is, too.
            if !container.unsettled.get() {
                self.take_back(container, &before).await?;
            }
            return Err(error);
        }
        Ok(())
    }

    /// Has targets forget what not all of them know. Those that can't be told now are told in the background.
    async fn take_back(&self, container: &Container, snapshots: &[Epoch]) -> Result<(), Failed> {
        match self.tell(container, snapshots).await {
            Ok(()) => self.commit(&[mark(container.id, false)]).await,
            Err(error) => {
                tracing::debug!(container = %container.id, %error, "a snapshot was taken back in part");
                self.untold.notify_one();
                Ok(())
            }
        }
    }

    /// It is off the list at once. Targets that are down give its space back when they are here again.
    async fn remove_snapshot(
        &self,
        container: &Container,
        epoch: Epoch,
        id: Option<CommandId>,
    ) -> Result<(), Failed> {
        let mut record = container.record.borrow().clone();
        let object = self.object(&record.properties.label);
        let Some(at) = record.snapshots.iter().position(|known| *known == epoch) else {
            return Err(Failed::NoSnapshot { object, epoch });
        };
        record.snapshots.remove(at);
        let left = record.snapshots.clone();
        self.commit_snapshots(container, record, true, id).await?;
        self.take_back(container, &left).await
    }

    /// Makes a new list of snapshots durable along with whether some targets have another one, then visible. When the
    /// store fails meanwhile, the device decides which list there is. Until it is read again there is none: otherwise a
    /// client that was told that a snapshot isn't there would see it come.
    async fn commit_snapshots(
        &self,
        container: &Container,
        record: ContainerRecord,
        is_untold: bool,
        id: Option<CommandId>,
    ) -> Result<(), Failed> {
        let listed =
            record::change(SCOPE_CONTAINER, container.id.0.as_bytes(), Some(record::encode(&record)));
        let committed = self.commit_once(id, &[listed, mark(container.id, is_untold)]).await;
        container.unsettled.set(container.unsettled.get() || is_in_doubt(&committed));
        committed?;
        *container.record.borrow_mut() = record;
        Ok(())
    }

    /// Tells the snapshots to every target that holds data of the container.
    async fn tell(&self, container: &Container, snapshots: &[Epoch]) -> Result<(), Failed> {
        let pool = self.pool()?;
        let grants = container.record.borrow().grants.clone();
        let holders: Vec<_> =
            pool.map.targets.iter().filter(|target| grants.contains_key(&target.id)).collect();
        let answers = join_all(holders.iter().map(|target| {
            let grant = grants.get(&target.id).copied().flatten();
            let mut state = container.state(pool.pool, grant);
            state.snapshots = snapshots.to_vec();
            self.tell_target(target, state, SNAPSHOT_LIMIT)
        }));
        for answer in answers.await {
            let usage = answer
                .map_err(|error| Failed::asking(self.object(&container.label()), "a snapshot", error))?;
            self.clock.observe(usage.now, self.engines.runtime().wall_ns())?;
        }
        Ok(())
    }

    /// Tells the list of one container to all of its targets. `false`: not all of them were told.
    async fn tell_again(&self, id: ContainerId) -> Result<bool, Failed> {
        let known = self.containers.borrow().get(&id).map(Rc::clone);
        let Some(container) = known else { return Ok(true) };
        let _permit = container.turn.acquire().await;
        // Destroying a container has all targets forget all of it.
        if container.is_doomed() || self.shard.attribute(SCOPE_UNTOLD, id.0.as_bytes()).is_none() {
            return Ok(true);
        }
        let listed = container.record.borrow().snapshots.clone();
        if let Err(error) = self.tell(&container, &listed).await {
            tracing::debug!(container = %id, %error, "not all targets know the snapshots");
            return Ok(false);
        }
        self.commit(&[mark(id, false)]).await?;
        Ok(true)
    }
}

/// Whether targets of a container may keep other snapshots than are listed.
fn mark(container: ContainerId, is_untold: bool) -> AttributeChange {
    record::change(SCOPE_UNTOLD, container.0.as_bytes(), is_untold.then(Vec::new))
}

/// Starts to tell lists of snapshots in the background.
pub(super) fn start(service: &Rc<PoolService>) {
    background::start(
        service,
        |service| &service.untold,
        async |service: &PoolService| {
            let mut left = false;
            for (name, _) in record::load_scope(&service.shard, SCOPE_UNTOLD) {
                // A value that isn't a container's name belongs to no container: the service writes no other.
                let Ok(id) = record::container_of(service.shard.id(), &name) else { continue };
                match service.tell_again(id).await {
                    Ok(done) => left |= !done,
                    Err(error) => {
                        tracing::warn!(container = %id, %error, "not all targets know the snapshots");
                        left = true;
                    }
                }
            }
            left
        },
    );
}
