//! What a target says of its device to pool services, and how it finds out that it has to say it again.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use weir_proto::lease::{FillProgress, HindranceNotice, ProgressNotice, RebuiltNotice, ReturnedNotice};
use weir_proto::pool::{DeviceNotice, PoolMap, TargetPoolMap, TargetState};
use weir_proto::{PoolId, Rank, TargetIndex, opcode};
use weir_runtime::join_all;

use super::TargetPools;
use crate::error::Failed;

/// Longest wait for a pool service to take note of a device: it writes its map down and does not wait for others.
const NOTICE_LIMIT: Duration = Duration::from_secs(5);

impl TargetPools {
    /// A pool counts on this target, which has nothing of it. Its service is told.
    pub(crate) fn miss(&self, pool: PoolId) {
        if self.missed.borrow_mut().insert(pool) {
            let (rank, index) = (self.engines().own_rank(), self.engines().own_index());
            tracing::error!(%pool, %rank, target = %index, "a pool counts on this target, which has nothing of it: it is lost to the pool");
        }
        self.contradicted.borrow_mut().insert(pool);
    }

    /// Ranks that are told of this target's device. A device that can't be read, or is in the place of another one, doesn't tell
    /// which pools count on it, and so neither where their services are.
    #[must_use]
    pub fn every_rank(&self) -> BTreeSet<Rank> {
        self.engines().all().iter().map(|info| info.rank).collect()
    }

    /// Ranks with services that must be told once more of this target's device: the map known here doesn't have it as it is, or
    /// a map that came since the last question was as wrong, or older than the one known here. Costs no message.
    #[must_use]
    pub fn misinformed(&self) -> BTreeSet<Rank> {
        let mut ranks = BTreeSet::new();
        for pool in self.all() {
            let record = pool.record.borrow();
            if self.shown(&record.map).is_some_and(|shown| self.is_wrong(shown)) {
                ranks.extend(record.replicas());
            }
        }
        for pool in self.contradicted.take() {
            match self.get(pool) {
                Ok(known) => ranks.extend(known.record.borrow().replicas()),
                // Which service it has was on the device.
                Err(_) => ranks.extend(self.every_rank()),
            }
        }
        ranks
    }

    /// What a map should have of this target.
    fn state(&self) -> TargetState {
        if self.out_of_service().is_some() { TargetState::Down } else { TargetState::UpIn }
    }

    /// Whether a map that shows this state of this target is wrong. What takes part in the pool has several states.
    fn is_wrong(&self, shown: TargetState) -> bool {
        shown.is_lost() != self.out_of_service().is_some()
    }

    /// What a map has of this target; `None`: it isn't the pool's.
    fn shown(&self, map: &PoolMap) -> Option<TargetState> {
        let own = (self.engines().own_rank(), self.engines().own_index());
        map.targets.iter().find(|target| (target.rank, target.index) == own).map(|target| target.state)
    }

    /// Takes over what a service says is the map of a pool, and remembers when it can't be right.
    pub(crate) async fn take_map(&self, TargetPoolMap { pool, map }: TargetPoolMap) -> Result<(), Failed> {
        let known = self.get(pool).ok();
        let newest = known.as_ref().map_or(0, |known| known.record.borrow().map.version);
        let differs = self.shown(&map).is_some_and(|shown| self.is_wrong(shown));
        // A device in place of one that failed has nothing of the pool: it stays down.
        let is_concerned = known.is_some() || self.state() == TargetState::Down;
        if map.version < newest || (differs && is_concerned) {
            self.contradicted.borrow_mut().insert(pool);
        }
        let Some(known) = known else {
            // All shards of a pool are made before its map is told.
            if self.state() == TargetState::UpIn && self.shown(&map) == Some(TargetState::UpIn) {
                self.miss(pool);
            }
            // Without a shard there is nothing to place.
            return Ok(());
        };
        known.set_map(map).await
    }

    /// Says to the pool services of some ranks whether this target's device can be used, and takes over the newer maps that they
    /// answer with. Returns those that have not heard.
    pub async fn tell_of_device(&self, ranks: BTreeSet<Rank>, fault: Option<String>) -> BTreeSet<Rank> {
        let versions = self.all().into_iter().map(|pool| (pool.id(), pool.record.borrow().map.version));
        let notice = DeviceNotice { index: self.engines().own_index(), fault, pools: versions.collect() };
        let asked = join_all(ranks.iter().map(|rank| {
            self.engines().ask(*rank, TargetIndex(0), opcode::TARGET_DEVICE, &notice, NOTICE_LIMIT)
        }));
        let answers: Vec<Result<Vec<TargetPoolMap>, _>> = asked.await;
        let mut left = BTreeSet::new();
        for (rank, answer) in ranks.into_iter().zip(answers) {
            match answer {
                Ok(newer) => self.take_maps(newer).await,
                Err(error) => {
                    tracing::debug!(%error, "a pool service has not heard of the device's state");
                    left.insert(rank);
                }
            }
        }
        left
    }

    /// Says to a pool's service that this target has all that it lacked: one that is up, all that its groups have settled, since the
    /// version of the map that brought its state [`TargetState::Up`]. By the map that is used then it serves reads, unless it was taken
    /// out meanwhile. One that gets places of others has filled them, in the move of data since that version; or has nothing unsettled of
    /// what is handed over since that version.
    ///
    /// # Errors
    /// When the service doesn't answer; it is to be told again.
    pub async fn tell_rebuilt(&self, pool: PoolId, since: u32) -> Result<(), Failed> {
        let known = self.get(pool)?;
        // One that serves has got places of others: what it has forgotten of its own it doesn't know again.
        if matches!(known.with_map(|map| self.shown(map)), Some(TargetState::Up | TargetState::New)) {
            known.is_whole.set(true);
        }
        let notice = RebuiltNotice { index: self.engines().own_index(), pool, since };
        let asked = known.ask_service(opcode::TARGET_REBUILT, &notice, NOTICE_LIMIT);
        let told: TargetPoolMap = asked.await.map_err(|error| {
            Failed::asking(format!("pool {}", known.label()), "saying that a target has caught up", error)
        })?;
        self.take_map(told).await
    }

    /// Says to a pool's service how far this target is with the data that it gets.
    ///
    /// # Errors
    /// When the service doesn't answer.
    pub async fn tell_progress(&self, pool: PoolId, progress: FillProgress) -> Result<(), Failed> {
        let known = self.get(pool)?;
        let notice = ProgressNotice { index: self.engines().own_index(), pool, progress };
        let asked = known.ask_service(opcode::TARGET_FILL_PROGRESS, &notice, NOTICE_LIMIT);
        asked.await.map_err(|error| {
            Failed::asking(format!("pool {}", known.label()), "saying how far a target is", error)
        })
    }

    /// Says to a pool's service why this target can't go on with the data that it gets.
    ///
    /// # Errors
    /// When the service doesn't answer.
    pub async fn tell_hindrance(&self, pool: PoolId, reason: String) -> Result<(), Failed> {
        let known = self.get(pool)?;
        let notice = HindranceNotice { index: self.engines().own_index(), pool, reason };
        let asked = known.ask_service(opcode::TARGET_FILL_HINDERED, &notice, NOTICE_LIMIT);
        asked.await.map_err(|error| {
            Failed::asking(format!("pool {}", known.label()), "saying why a target can't go on", error)
        })
    }

    /// Pools with replicas whose maps don't have this target as it is: they have it out though it is well, or take it for one that
    /// knows which changes are settled, which it has forgotten since it started; or may do so soon, since it may have caught up
    /// before it started.
    fn returned(&self) -> BTreeMap<Rank, Vec<(PoolId, u32)>> {
        let mut returned = BTreeMap::new();
        if self.out_of_service().is_some() {
            return returned;
        }
        for pool in self.all().into_iter().filter(|pool| pool.is_leased()) {
            let record = pool.record.borrow();
            let own = (self.engines().own_rank(), self.engines().own_index());
            let shown = record.map.targets.iter().find(|target| (target.rank, target.index) == own);
            let is_out = shown.is_some_and(|target| !target.takes_part());
            if is_out || pool.lacks_knowledge() || pool.may_have_caught_up() {
                // Of several replicas the one that leads listens.
                for rank in record.replicas() {
                    let known: &mut Vec<_> = returned.entry(rank).or_default();
                    known.push((record.pool, record.map.version));
                }
            }
        }
        returned
    }

    /// Says to pool services that this target is back, where their maps don't have it so, and takes over the maps that they answer
    /// with. Waits for none of them: a replica that doesn't answer must not hold up the renewal of leases, nor the other replicas.
    pub(super) fn tell_returned(self: &Rc<Self>) {
        for (rank, pools) in self.returned() {
            if self.telling.borrow_mut().insert(rank) {
                let told = Rc::clone(self);
                self.engines().runtime().spawn(async move {
                    told.tell_returned_to(rank, pools).await;
                    told.telling.borrow_mut().remove(&rank);
                });
            }
        }
    }

    async fn tell_returned_to(&self, rank: Rank, pools: Vec<(PoolId, u32)>) {
        let notice = ReturnedNotice { index: self.engines().own_index(), pools };
        let asked = self.engines().ask(rank, TargetIndex(0), opcode::TARGET_RETURNED, &notice, NOTICE_LIMIT);
        match asked.await {
            Ok(maps) => self.take_maps(maps).await,
            Err(error) => tracing::debug!(%error, "a pool service has not heard that a target is back"),
        }
    }

    async fn take_maps(&self, maps: Vec<TargetPoolMap>) {
        for one in maps {
            let pool = one.pool;
            if let Err(error) = self.take_map(one).await {
                tracing::warn!(%pool, %error, "a newer pool map can't be used");
            }
        }
    }

    /// Tells services that run here that a target is back.
    pub(super) async fn readmit(
        &self,
        rank: Rank,
        notice: ReturnedNotice,
    ) -> Result<Vec<TargetPoolMap>, Failed> {
        let mut maps = Vec::new();
        for (pool, known) in notice.pools {
            let Some(service) = self.own_service(pool) else { continue };
            // The target asks again; the other pools' services must not wait for this one.
            match service.readmit(rank, notice.index, known).await {
                Ok(told) => maps.push(told),
                Err(error) => tracing::warn!(%pool, %error, "a target that is back is not taken in"),
            }
        }
        Ok(maps)
    }

    /// Tells every pool's service that runs here what a target says of its device. The answer has the maps that are newer than
    /// the target's.
    pub(crate) async fn judge_device(
        &self,
        rank: Rank,
        notice: DeviceNotice,
    ) -> Result<Vec<TargetPoolMap>, Failed> {
        let (mut newer, mut refused) = (Vec::new(), None);
        for pool in self.all() {
            let Some(service) = self.own_service(pool.id()) else { continue };
            // The target asks again; the other pools' services must not wait for this one.
            if let Err(error) = service.judge_device(rank, &notice).await {
                refused.get_or_insert(error);
                continue;
            }
            let (id, map) = (pool.id(), pool.record.borrow().map.clone());
            if notice.version_of(id).is_some_and(|version| version < map.version) {
                newer.push(TargetPoolMap { pool: id, map });
            }
        }
        refused.map_or(Ok(newer), Err)
    }
}
