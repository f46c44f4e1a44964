//! Targets whose devices can't be used: out of the map, and back in it.

use std::rc::Rc;
use std::time::Duration;

use weir_proto::pool::{DeviceNotice, TargetPool, TargetPoolMap, TargetPoolSpace, TargetState};
use weir_proto::{Der, Rank, TargetIndex, opcode};

use super::{PoolService, background};
use crate::error::Failed;

/// Longest wait for all targets to take a map over: a write to the log of each.
const MAP_LIMIT: Duration = Duration::from_secs(5);

/// Longest wait for a target to say whether it has a shard: no more than a look at what it has in memory.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

impl PoolService {
    /// Takes note of what a target says of its device. One that can't be used is down in a new version of the map; one that
    /// can, and has its shard, is up again. The map is durable before the target is answered, unless the device of
    /// the service's own target is what fails; all others are told in the background. When the target knows a newer map than the
    /// service, which has lost it, the version grows past that one: none is given out twice.
    pub(crate) async fn judge_device(&self, rank: Rank, notice: &DeviceNotice) -> Result<(), Failed> {
        let Ok(record) = self.pool() else { return Ok(()) };
        let known = notice.version_of(record.pool);
        // What the notice was made of may be older than the target's shard.
        let is_lost = notice.fault.is_none() && known.is_none() && self.has_lost(rank, notice.index).await;
        if record.redundancy > 0 && is_lost {
            return self.replace_shard(rank, notice.index).await.map(drop);
        }
        self.judge_with(rank, notice, (known, is_lost), record.redundancy > 0).await?;
        // Under the same rule as one that has started again.
        if record.redundancy > 0
            && notice.fault.is_none()
            && let Some(known) = known
            && self.is_out(rank, notice.index)
        {
            self.readmit(rank, notice.index, known).await?;
        }
        Ok(())
    }

    /// Whether the map has a target that is out of service.
    fn is_out(&self, rank: Rank, index: TargetIndex) -> bool {
        let named = |rank_and_index| rank_and_index == (rank, index);
        self.pool().is_ok_and(|record| record.map.down().any(|target| named((target.rank, target.index))))
    }

    async fn judge_with(
        &self,
        rank: Rank,
        notice: &DeviceNotice,
        (known, is_lost): (Option<u32>, bool),
        has_replicas: bool,
    ) -> Result<(), Failed> {
        let _permit = self.mapping.acquire().await;
        let Some(pool) = self.pool.upgrade() else { return Ok(()) };
        let mut map = pool.record.borrow().map.clone();
        let said = if notice.fault.is_some() { TargetState::Down } else { TargetState::UpIn };
        let named = |rank_and_index| rank_and_index == (rank, notice.index);
        let Some(target) = map.targets.iter_mut().find(|target| named((target.rank, target.index))) else {
            return Ok(());
        };
        let newest = known.unwrap_or(0).max(map.version);
        // A device in place of the one that had the pool's data.
        let judged = match said {
            TargetState::UpIn if is_lost => TargetState::Down,
            TargetState::UpIn if known.is_none() || has_replicas => target.state,
            said => said,
        };
        let version = newest.saturating_add(1);
        let changes = target.enter(judged, version);
        if !changes && newest == map.version {
            return Ok(());
        }
        map.version = version;
        let label = pool.label();
        self.put_map(&pool, map).await?;
        let reason = notice.fault.as_deref().unwrap_or("it has nothing of the pool, its data is lost");
        if !changes {
            tracing::warn!(pool = label, %rank, target = %notice.index, version, "a target has a newer pool map than the service");
        } else if judged == TargetState::Down {
            let what = "a target is out of the pool map, its data is unavailable";
            tracing::error!(pool = label, %rank, target = %notice.index, version, reason, "{what}");
        } else {
            tracing::info!(pool = label, %rank, target = %notice.index, version, "a target is back in the pool map");
        }
        self.gathered.borrow_mut().take();
        self.mapped.notify_one();
        Ok(())
    }

    /// Takes the targets of an engine out of the map, since it doesn't answer. The map is durable before this returns, and told in
    /// the background. In a pool with replicas engines go by themselves, when their leases have ended.
    ///
    /// # Errors
    /// When the map can't be stored.
    pub async fn exclude(&self, rank: Rank) -> Result<(), Failed> {
        self.take_out(&[rank].into()).await
    }

    /// Whether a target says that it has no shard of the pool.
    pub(super) async fn has_lost(&self, rank: Rank, index: TargetIndex) -> bool {
        let request = TargetPool { pool: self.shard.id() };
        let asked = self.engines.ask::<_, TargetPoolSpace>(
            rank,
            index,
            opcode::TARGET_POOL_QUERY,
            &request,
            LOOK_LIMIT,
        );
        asked.await.is_err_and(|error| matches!(error.der(), Der::NONEXIST | Der::NVME_IO))
    }

    /// Tells all targets of the map. Whether every engine has heard.
    async fn spread_map(&self) -> Result<bool, Failed> {
        let record = self.pool()?;
        let ranks = record.map.ranks();
        let request = TargetPoolMap { pool: record.pool, map: record.map };
        let left = self.spread.tell(&ranks, opcode::TARGET_POOL_MAP, &request, MAP_LIMIT).await;
        for error in &left {
            tracing::debug!(pool = record.label, %error, "an engine has an old pool map");
        }
        Ok(left.is_empty())
    }
}

/// Starts to tell maps in the background. A map may not have reached all targets before a restart. A target that knows
/// a newer one, since the service has lost a map, says so.
pub(super) fn start(service: &Rc<PoolService>) {
    background::start(
        service,
        |service| &service.mapped,
        async |service: &PoolService| !service.spread_map().await.unwrap_or(false),
    );
}
