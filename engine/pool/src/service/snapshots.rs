//! Snapshots: epochs whose state is kept.

use std::time::Duration;

use weir_proto::pool::{SnapshotChange, SnapshotRequest, TargetContainerUsage};
use weir_proto::{Epoch, Rights, opcode};
use weir_runtime::join_all;

use super::{Container, PoolService};
use crate::error::Failed;

/// Longest wait for one target.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(5);

/// Most snapshots of one container: their epochs travel in one message.
const SNAPSHOTS_MAX: usize = 1024;

impl PoolService {
    /// Lists, takes or removes snapshots; returns those there are then, oldest first.
    ///
    /// # Errors
    /// When the handle doesn't allow it, the snapshot doesn't exist, or an engine that holds data doesn't answer.
    pub async fn snapshot(&self, request: &SnapshotRequest) -> Result<Vec<Epoch>, Failed> {
        let writes = request.change != SnapshotChange::List;
        let needed = if writes { Rights::WRITE } else { Rights::READ };
        let container = self.authorize_container(&request.capability, needed)?;
        let _permit = container.turn.acquire().await;
        match request.change {
            SnapshotChange::List => {}
            SnapshotChange::Create => self.take_snapshot(&container).await?,
            SnapshotChange::Destroy(epoch) => self.remove_snapshot(&container, epoch).await?,
        }
        let snapshots = container.record.borrow().snapshots.clone();
        Ok(snapshots)
    }

    /// The epoch must lie after everything that has been acknowledged and before everything that begins later, on
    /// every target. So first all clocks are asked, then all are told an epoch that none has passed.
    async fn take_snapshot(&self, container: &Container) -> Result<(), Failed> {
        let mut record = container.record.borrow().clone();
        if record.snapshots.len() >= SNAPSHOTS_MAX {
            return Err(Failed::Invalid {
                object: self.object(&record.properties.label),
                reason: format!("a container has at most {SNAPSHOTS_MAX} snapshots; destroy one first"),
            });
        }
        self.tell(container, &record.snapshots).await?;
        // Every reply moved this clock past the clock of its sender.
        let epoch = self.clock.now(self.engines.runtime().wall_ns());
        record.snapshots.push(epoch);
        // Durable first: a snapshot that targets keep and nobody knows would hold space for ever.
        let before = container.record.borrow().clone();
        self.commit_record(container, record.clone()).await?;
        if let Err(error) = self.tell(container, &record.snapshots).await {
            // Those that took note of it may forget it; whoever can't be told now is with the next snapshot.
            if let Err(error) = self.tell(container, &before.snapshots).await {
                tracing::debug!(container = %container.id, %error, "a snapshot was taken back in part");
            }
            self.commit_record(container, before).await?;
            return Err(error);
        }
        Ok(())
    }

    async fn remove_snapshot(&self, container: &Container, epoch: Epoch) -> Result<(), Failed> {
        let mut record = container.record.borrow().clone();
        let object = self.object(&record.properties.label);
        let Some(at) = record.snapshots.iter().position(|known| *known == epoch) else {
            return Err(Failed::NoSnapshot { object, epoch });
        };
        record.snapshots.remove(at);
        // Targets first: the list still names what some of them may keep.
        self.tell(container, &record.snapshots).await?;
        self.commit_record(container, record).await
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
            async move {
                let opcode = opcode::TARGET_CONTAINER_SET;
                let engines = &self.engines;
                engines
                    .ask::<_, TargetContainerUsage>(target.rank, target.index, opcode, &state, SNAPSHOT_LIMIT)
                    .await
            }
        }));
        for answer in answers.await {
            let usage =
                answer.map_err(|error| error.within(self.object(&container.label()), "a snapshot"))?;
            self.clock.observe(usage.now, self.engines.runtime().wall_ns())?;
        }
        Ok(())
    }
}
