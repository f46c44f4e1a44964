//! The pools that a target holds shards of, the services that run on it, and what it answers to other engines. The room calls
//! both, and the backup for maps that the device can't take. Requests of clients, the directory, the I/O service and the daemon
//! call it.

mod leading;
mod leases;
mod lookup;
mod notice;
mod shares;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use weir_group::{Engines, Spread};
use weir_proto::lease::{HindranceNotice, ProgressNotice, RebuiltNotice, ReturnedNotice};
use weir_proto::pool::{
    ContainerStateByLeader, DeviceNotice, GrantRequest, PoolExtension, PoolMap,
    TargetContainer as ContainerName, TargetContainerState, TargetPool as PoolName, TargetPoolCreate,
    TargetPoolDestroy, TargetPoolMap, TargetPoolResize,
};
use weir_proto::quota::ShareOrder;
use weir_proto::{Clock, PoolId, Rank, opcode};
use weir_raft::Replicas;
use weir_runtime::sync::{Notify, Semaphore};
use weir_store::{Shard, Store};

use crate::error::Failed;
use crate::record::{self, NAME_POOL, PoolRecord, SCOPE_TARGET, SYSTEM_POOL};
use crate::service::PoolService;
use crate::target::{MapBackup, TargetPool};

/// The pools of one target.
pub struct TargetPools {
    store: Rc<Store>,
    engines: Rc<Engines>,
    spread: Rc<Spread>,
    clock: Rc<Clock>,
    map_backup: Rc<dyn MapBackup>,
    /// Why what the target held is not on its device, if so. The store is an empty one then, which takes nothing.
    lost: Option<String>,
    pools: RefCell<HashMap<PoolId, Rc<TargetPool>>>,
    /// Services of those whose service runs here.
    services: RefCell<HashMap<PoolId, Rc<PoolService>>>,
    /// This engine's replicas of pool services; those of an engine are on its first target.
    replicas: Option<Rc<Replicas>>,
    /// One pool is created at a time.
    creating: Semaphore,
    /// Pools that count on this target, which has nothing of them.
    missed: RefCell<BTreeSet<PoolId>>,
    /// Pools whose services have shown a map that can't be right, and were not told so yet.
    contradicted: RefCell<BTreeSet<PoolId>>,
    /// Engines that are being told that this target is back.
    telling: RefCell<BTreeSet<Rank>>,
    /// There is a lease to ask for.
    leasing: Notify,
    /// How often others than the replicas of a service were asked for leases.
    strayed: Cell<usize>,
    /// Who answered for the list of pools last.
    keeper: Cell<Option<Rank>>,
}

impl TargetPools {
    /// Loads the pools of a store, starts the services that belong here, and answers the other engines. `map_backup` keeps
    /// what the device can't. `lost`: why the store only stands in for what the target held.
    ///
    /// # Errors
    /// When a pool's state can't be read.
    pub async fn open(
        store: Rc<Store>,
        engines: Rc<Engines>,
        spread: Rc<Spread>,
        clock: Rc<Clock>,
        map_backup: Rc<dyn MapBackup>,
        lost: Option<String>,
    ) -> Result<Rc<Self>, Failed> {
        let replicas = (engines.own_index().0 == 0).then(|| Replicas::serve(&engines));
        let pools = Rc::new(Self {
            store,
            engines,
            spread,
            clock,
            map_backup,
            lost,
            pools: RefCell::default(),
            services: RefCell::default(),
            replicas,
            creating: Semaphore::new(1),
            missed: RefCell::default(),
            contradicted: RefCell::default(),
            telling: RefCell::default(),
            leasing: Notify::new(),
            strayed: Cell::new(0),
            keeper: Cell::new(None),
        });
        for summary in pools.store.pools() {
            let Some(shard) = pools.store.pool(summary.pool) else { continue };
            if summary.pool == SYSTEM_POOL {
                continue;
            }
            // A shard without a record: the engine stopped in the middle of its creation, which the directory
            // takes up again or takes back.
            let Some(bytes) = shard.attribute(SCOPE_TARGET, NAME_POOL) else { continue };
            let mut record: PoolRecord = record::decode(summary.pool, &bytes)?;
            // A resize that stopped between store and record.
            record.size = summary.size;
            pools.start(record, shard).await?;
        }
        pools.answer_engines();
        leases::start(&pools);
        leading::start(&pools);
        Ok(pools)
    }

    /// The store.
    #[must_use]
    pub const fn store(&self) -> &Rc<Store> {
        &self.store
    }

    /// The other engines.
    #[must_use]
    pub const fn engines(&self) -> &Rc<Engines> {
        &self.engines
    }

    /// This engine's replicas, of pool services and of the list of pools; those of an engine are on its first target.
    pub(crate) const fn replicas(&self) -> Option<&Rc<Replicas>> {
        self.replicas.as_ref()
    }

    /// The target's clock.
    #[must_use]
    pub const fn clock(&self) -> &Rc<Clock> {
        &self.clock
    }

    /// Every pool of the target.
    #[must_use]
    pub fn all(&self) -> Vec<Rc<TargetPool>> {
        self.pools.borrow().values().map(Rc::clone).collect()
    }

    /// A pool of the target.
    ///
    /// # Errors
    /// When the target holds no shard of it, or can't tell because its device isn't used.
    pub fn get(&self, pool: PoolId) -> Result<Rc<TargetPool>, Failed> {
        let known = self.pools.borrow().get(&pool).map(Rc::clone);
        known.ok_or_else(|| self.absence_of(pool))
    }

    /// Why a pool isn't here.
    fn absence_of(&self, pool: PoolId) -> Failed {
        if let Some(failed) = self.out_of_service() {
            return failed;
        }
        if self.missed.borrow().contains(&pool) {
            let (rank, index) = (self.engines.own_rank(), self.engines.own_index());
            return Failed::LostShard { pool, rank, index };
        }
        Failed::NoPool(pool.to_string())
    }

    /// A pool by label or UUID text. What is left of a destroyed one can have the label of another.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Rc<TargetPool>> {
        let pools = self.pools.borrow();
        if let Ok(uuid) = uuid::Uuid::try_parse(name) {
            return pools.get(&PoolId(uuid)).map(Rc::clone);
        }
        let named = pools.values().filter(|pool| pool.record.borrow().label == name);
        named.max_by_key(|pool| pool.is_listed.get()).map(Rc::clone)
    }

    /// The service of a pool, when it runs here.
    ///
    /// # Errors
    /// When the pool is not known here or its service runs elsewhere.
    pub fn service(&self, pool: PoolId) -> Result<Rc<PoolService>, Failed> {
        let known = self.get(pool)?;
        let elsewhere = || match self.service_rank(&known) {
            Some(service) if service != self.engines.own_rank() => Failed::Elsewhere { pool, service },
            _ => Failed::Leaderless(pool),
        };
        self.own_service(pool).ok_or_else(elsewhere)
    }

    /// The service of a pool, when it runs here.
    #[must_use]
    pub fn own_service(&self, pool: PoolId) -> Option<Rc<PoolService>> {
        self.services.borrow().get(&pool).map(Rc::clone)
    }

    async fn start(self: &Rc<Self>, mut record: PoolRecord, shard: Shard) -> Result<Rc<TargetPool>, Failed> {
        let replica = self.open_replica(&record, &shard).await?;
        let is_alone = record.replicas() == [self.engines.own_rank()] && !weir_raft::is_prepared(&shard);
        let here = is_alone && self.engines.own_index().0 == 0;
        let map_backup = here.then(|| Rc::clone(&self.map_backup));
        // Of two maps of one version, the device has the one whose write failed.
        if here
            && let Some(map) = self.sheltered(record.pool)?
            && map.version >= record.map.version
        {
            record.map = map;
        }
        let (engines, clock) = (Rc::clone(&self.engines), Rc::clone(&self.clock));
        let pool = TargetPool::new(record, shard, engines, clock, map_backup);
        pool.load_containers()?;
        if here {
            let (engines, spread) = (Rc::clone(&self.engines), Rc::clone(&self.spread));
            let service = PoolService::open(&pool, engines, spread, Rc::clone(&self.clock), None)?;
            self.services.borrow_mut().insert(pool.id(), service);
        }
        self.pools.borrow_mut().insert(pool.id(), Rc::clone(&pool));
        self.leasing.notify_one();
        if let Some(replica) = replica {
            self.attend(&pool, &replica);
        }
        Ok(pool)
    }

    /// The map of a pool that the device could not take.
    fn sheltered(&self, pool: PoolId) -> Result<Option<PoolMap>, Failed> {
        let kept = self.map_backup.read(pool).map_err(|error| Failed::MapBackup {
            pool,
            what: "read from",
            reason: error.to_string(),
        })?;
        kept.map(|map| record::decode(pool, &map)).transpose()
    }

    /// Why nothing that the target holds, or held, can be used, if so.
    #[must_use]
    pub fn out_of_service(&self) -> Option<Failed> {
        let (rank, index) = (self.engines.own_rank(), self.engines.own_index());
        if let Some(reason) = self.lost.clone() {
            return Some(Failed::Lost { rank, index, reason });
        }
        self.store.device_fault().map(|reason| Failed::OutOfService { rank, index, reason })
    }

    /// Why what the target held is not on its device, if so.
    #[must_use]
    pub fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// What pool services are told when the target's device isn't used.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let lost = self.lost.as_ref().map(|reason| format!("what was on it is lost: {reason}"));
        lost.or_else(|| self.store.device_fault())
    }

    /// Refuses changes of pools on a device that is not used any more: they would be lost with it, or come back with it.
    fn in_service(&self) -> Result<(), Failed> {
        self.out_of_service().map_or(Ok(()), Err)
    }

    async fn create(self: &Rc<Self>, record: PoolRecord) -> Result<(), Failed> {
        self.in_service()?;
        let _turn = self.creating.acquire().await;
        // What is asked again after a newer map has come is done.
        if let Some(known) = self.pools.borrow().get(&record.pool)
            && known.record.borrow().has_all_of(&record)
        {
            return Ok(());
        }
        let shard = self.store.create_pool(record.pool, record.size).await?;
        self.prepare_replica(&record, &shard).await?;
        let stored = record::encode(&record);
        shard.change_attributes(&[record::change(SCOPE_TARGET, NAME_POOL, Some(stored))]).await?;
        if self.pools.borrow().contains_key(&record.pool) {
            return Ok(());
        }
        self.missed.borrow_mut().remove(&record.pool);
        tracing::info!(pool = %record.pool, label = record.label, size = record.size, "pool shard created");
        let pool = self.start(record, shard).await?;
        pool.is_listed.set(true);
        pool.is_whole.set(true);
        Ok(())
    }

    async fn destroy(&self, request: TargetPoolDestroy) -> Result<(), Failed> {
        self.in_service()?;
        let known = self.pools.borrow().get(&request.pool).map(Rc::clone);
        if let Some(pool) = known {
            if request.only_if_empty && self.replica(request.pool).is_some() {
                self.service(request.pool)?.confirm().await?;
            }
            if let Some(service) = self.own_service(request.pool) {
                service.stop(request.only_if_empty)?;
            }
            self.services.borrow_mut().remove(&request.pool);
            if let Some(replicas) = &self.replicas {
                replicas.close(request.pool);
            }
            self.pools.borrow_mut().remove(&request.pool);
            tracing::info!(pool = %request.pool, label = pool.label(), "pool shard destroyed");
        }
        self.missed.borrow_mut().remove(&request.pool);
        self.store.destroy_pool(request.pool).await?;
        // Nobody asks for it any more.
        if let Err(error) = self.map_backup.forget(request.pool) {
            tracing::warn!(pool = %request.pool, %error, "the map of a destroyed pool is left in the data directory");
        }
        Ok(())
    }

    async fn resize(&self, request: TargetPoolResize) -> Result<(), Failed> {
        self.in_service()?;
        let pool = self.get(request.pool)?;
        if pool.record.borrow().size == request.size && pool.shard.space().total == request.size {
            return Ok(());
        }
        self.store.resize_pool(request.pool, request.size).await?;
        pool.set_size(request.size).await
    }

    /// Answers what the pool service and the directory ask of this target, and targets ask of services here.
    fn answer_engines(self: &Rc<Self>) {
        if self.engines.own_index().0 == 0 {
            self.serve_leases();
            self.serve_services();
        }
        macro_rules! answer {
            ($opcode:ident, |$pools:ident, $from:pat_param, $request:ident: $kind:ty| $body:expr) => {{
                let pools = Rc::downgrade(self);
                self.engines.serve(opcode::$opcode, move |$from: Rank, $request: $kind| {
                    let pools = pools.upgrade();
                    async move {
                        let $pools =
                            pools.ok_or_else(|| Failed::NoPool("of a stopping engine".to_owned()))?;
                        let answer: Result<_, Failed> = $body;
                        answer
                    }
                });
            }};
        }
        answer!(TARGET_POOL_CREATE, |pools, _, request: TargetPoolCreate| pools.create(request.into()).await);
        answer!(TARGET_POOL_DESTROY, |pools, _, request: TargetPoolDestroy| pools.destroy(request).await);
        answer!(TARGET_POOL_QUERY, |pools, _, request: PoolName| Ok(pools.get(request.pool)?.space()));
        answer!(TARGET_POOL_RESIZE, |pools, _, request: TargetPoolResize| pools.resize(request).await);
        answer!(TARGET_POOL_MAP, |pools, _, request: TargetPoolMap| pools.take_map(request).await);
        answer!(POOL_EXTEND, |pools, _, request: PoolExtension| {
            let service = pools.service(request.pool)?;
            service.confirm().await?;
            service.extend(&request).await
        });
        answer!(TARGET_REBUILT, |pools, from, notice: RebuiltNotice| {
            pools.service(notice.pool)?.take_in(from, &notice).await
        });
        answer!(TARGET_FILL_PROGRESS, |pools, from, notice: ProgressNotice| {
            pools.service(notice.pool)?.note_progress(from, &notice);
            Ok(())
        });
        answer!(TARGET_FILL_HINDERED, |pools, from, notice: HindranceNotice| {
            pools.service(notice.pool)?.note_hindrance(from, notice);
            Ok(())
        });
        answer!(TARGET_RETURNED, |pools, from, notice: ReturnedNotice| pools.readmit(from, notice).await);
        answer!(TARGET_DEVICE, |pools, from, notice: DeviceNotice| pools.judge_device(from, notice).await);
        answer!(TARGET_CONTAINER_CREATE, |pools, _, request: ContainerName| {
            pools.get(request.pool)?.container(request.container).await.map(drop)
        });
        answer!(TARGET_CONTAINER_DESTROY, |pools, _, request: ContainerName| {
            match pools.get(request.pool) {
                Ok(pool) => pool.destroy_container(request.container).await,
                // A target without a shard of the pool has nothing of the container, unless its device can't be read: then
                // it is asked again when the device is back.
                Err(_) => pools.in_service(),
            }
        });
        answer!(TARGET_CONTAINER_SET, |pools, _, request: TargetContainerState| {
            pools.get(request.pool)?.set_container(request).await
        });
        answer!(TARGET_CONTAINER_SET_BY_LEADER, |pools, _, request: ContainerStateByLeader| {
            pools.get(request.state.pool)?.set_container_by_leader(request).await
        });
        answer!(POOL_LEADER, |pools, _, request: PoolName| pools.confirm_leader(request.pool).await);
        answer!(TARGET_CONTAINER_GRANT, |pools, from, request: GrantRequest| {
            pools.grant(from, &request).await
        });
        answer!(POOL_SHARE, |pools, _, request: ShareOrder| {
            let service = pools.service(request.pool)?;
            service.confirm().await?;
            service.order_share(&request).await
        });
    }
}
