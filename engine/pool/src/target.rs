//! One pool on one target: its containers, and what the pool service says of them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use weir_group::{Engines, Refusal};
use weir_proto::limits::HANDLE_LEASE_NS;
use weir_proto::pool::{GrantRequest, PoolMap, TargetContainerState, TargetContainerUsage, TargetPoolSpace};
use weir_proto::{Capability, Clock, ContainerId, Der, Epoch, PoolId, Rank, Rights, TargetIndex, opcode};
use weir_runtime::sync::Semaphore;
use weir_store::{Shard, UpdateError};

use crate::container::TargetContainer;
use crate::error::{Failed, capability_der};
use crate::record::{self, NAME_POOL, PoolRecord, SCOPE_LABEL, SCOPE_TARGET};
use crate::service::PoolService;
use crate::shelter::MapShelter;

/// Longest wait for the pool service when a target learns of a container or asks for quota: within a client's
/// patience for one request, and longer than a restart of the service's engine takes to be noticed.
const SERVICE_LIMIT: Duration = Duration::from_secs(5);

/// After a refused grant, writers are refused without asking again for this long: quota that is freed is found
/// soon, and a full container costs the service two requests a second.
const REFUSAL_PAUSE: Duration = Duration::from_millis(500);

/// Room asked for beyond a payload: keys, index and log of one request.
const OVERHEAD: u64 = 64 * 1024;

/// A container that is being learned of or forgotten.
struct Learning {
    /// One request at a time; destroying the container waits for it.
    turn: Semaphore,
    /// Counts what the service said meanwhile: an answer from before that is out of date.
    told: Cell<u64>,
    /// Why asking the service has failed last.
    failed: RefCell<Option<Failed>>,
}

/// One pool on one target.
pub struct TargetPool {
    pub(crate) record: RefCell<PoolRecord>,
    pub(crate) shard: Shard,
    engines: Rc<Engines>,
    clock: Rc<Clock>,
    containers: RefCell<HashMap<ContainerId, Rc<TargetContainer>>>,
    learning: RefCell<HashMap<ContainerId, Rc<Learning>>>,
    pub(crate) service: RefCell<Option<Rc<PoolService>>>,
    /// Whether the list of pools is known to have it. A pool that was here when the engine started may have been
    /// destroyed while the engine was away.
    pub(crate) is_listed: Cell<bool>,
    /// The record is stored whole, by one change at a time, so that none takes another one back.
    recording: Semaphore,
    /// Where the map is kept while the device can't take it, when the pool's service runs here.
    shelter: Option<Rc<dyn MapShelter>>,
}

impl TargetPool {
    /// `shelter` keeps the map while the device can't, when the pool's service runs here.
    pub(crate) fn new(
        record: PoolRecord,
        shard: Shard,
        engines: Rc<Engines>,
        clock: Rc<Clock>,
        shelter: Option<Rc<dyn MapShelter>>,
    ) -> Rc<Self> {
        Rc::new(Self {
            record: RefCell::new(record),
            shard,
            engines,
            clock,
            containers: RefCell::default(),
            learning: RefCell::default(),
            service: RefCell::new(None),
            is_listed: Cell::new(false),
            recording: Semaphore::new(1),
            shelter,
        })
    }

    /// Identity of the pool.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.record.borrow().pool
    }

    /// Label of the pool.
    #[must_use]
    pub fn label(&self) -> String {
        self.record.borrow().label.clone()
    }

    /// Its part of the store.
    #[must_use]
    pub const fn shard(&self) -> &Shard {
        &self.shard
    }

    /// The pool's service, when it runs here.
    #[must_use]
    pub fn service(&self) -> Option<Rc<PoolService>> {
        self.service.borrow().clone()
    }

    /// Containers that this target knows.
    #[must_use]
    pub fn containers(&self) -> Vec<Rc<TargetContainer>> {
        self.containers.borrow().values().map(Rc::clone).collect()
    }

    /// Checks a container handle. One keyed hash of less than a block (about 100 ns) costs no more than a lookup
    /// in a cache of verified handles would.
    ///
    /// # Errors
    /// When the seal is wrong, a right is missing, or the handle is one of a pool.
    pub fn authorize(&self, capability: &Capability, needed: Rights) -> Result<ContainerId, Refusal> {
        let refuse = |der, message| Refusal { der, object: format!("pool {}", self.label()), message };
        capability
            .check(&self.record.borrow().secret, needed)
            .map_err(|error| refuse(capability_der(&error), error.to_string()))?;
        capability.container.ok_or_else(|| {
            let message =
                "a pool handle does not open objects; open a container and use its handle".to_owned();
            refuse(Der::NO_HDL, message)
        })
    }

    /// Refuses requests that were placed with an older pool map.
    ///
    /// # Errors
    /// When the client's map is older than the target's.
    pub fn check_map(&self, version: u32) -> Result<(), Refusal> {
        let record = self.record.borrow();
        let known = record.map.version;
        if version >= known {
            return Ok(());
        }
        let label = &record.label;
        Err(Refusal {
            der: Der::STALE,
            object: format!("pool {label}"),
            message: format!(
                "the client's map of pool {label} has version {version}, now it is {known}; fetch it again"
            ),
        })
    }

    /// Whether a target is one of the pool's. A pool has those that it was made with for life, in every version of its
    /// map.
    #[must_use]
    pub fn has_target(&self, place: (Rank, TargetIndex)) -> bool {
        let record = self.record.borrow();
        record.map.targets.iter().any(|target| (target.rank, target.index) == place)
    }

    /// Takes over a newer pool map.
    ///
    /// # Errors
    /// When it can't be stored. On a device that is out of use it goes by the map all the same, once the shelter has it
    /// when the pool's service runs here: nobody else can tell which versions were given out.
    pub(crate) async fn set_map(&self, map: PoolMap) -> Result<(), Failed> {
        let _permit = self.recording.acquire().await;
        let mut record = self.record.borrow().clone();
        if map.version <= record.map.version {
            return Ok(());
        }
        record.map = map;
        let own = (self.engines.own_rank(), self.engines.own_index());
        let is_down = record.map.down().any(|target| (target.rank, target.index) == own);
        match self.store_record(&record).await {
            Err(error) if !is_down => return Err(error),
            Err(error) => {
                tracing::warn!(pool = record.label, %error, "a pool map could not be stored");
                self.take_shelter(&record)?;
            }
            Ok(()) => self.leave_shelter(),
        }
        tracing::info!(pool = record.label, version = record.map.version, "a newer pool map is used");
        self.record.borrow_mut().map = record.map;
        Ok(())
    }

    fn take_shelter(&self, record: &PoolRecord) -> Result<(), Failed> {
        let Some(shelter) = &self.shelter else { return Ok(()) };
        shelter.keep(record.pool, &record::encode(&record.map)).map_err(|error| Failed::Shelter {
            pool: record.pool,
            what: "written to",
            reason: error.to_string(),
        })
    }

    fn leave_shelter(&self) {
        let Some(shelter) = &self.shelter else { return };
        // What is left there is older than what the device has from now on, and counts no more.
        if let Err(error) = shelter.forget(self.id()) {
            tracing::warn!(pool = self.label(), %error, "an old pool map can't be removed from the data directory");
        }
    }

    /// Takes note of a new size.
    ///
    /// # Errors
    /// When it can't be stored.
    pub(crate) async fn set_size(&self, size: u64) -> Result<(), Failed> {
        let _permit = self.recording.acquire().await;
        let record = PoolRecord { size, ..self.record.borrow().clone() };
        self.store_record(&record).await?;
        self.record.borrow_mut().size = size;
        Ok(())
    }

    async fn store_record(&self, record: &PoolRecord) -> Result<(), Failed> {
        let change = record::change(SCOPE_TARGET, NAME_POOL, Some(record::encode(record)));
        Ok(self.shard.change_attributes(&[change]).await?)
    }

    /// A container of the pool. One that this target doesn't know is asked for at the pool service, and created.
    ///
    /// # Errors
    /// When the container doesn't exist, or isn't known and the service doesn't answer.
    pub async fn container(&self, id: ContainerId) -> Result<Rc<TargetContainer>, Failed> {
        if let Some(known) = self.containers.borrow().get(&id) {
            return Ok(Rc::clone(known));
        }
        let learning = self.learning(id);
        let is_asked = learning.turn.available() == 0;
        let result = {
            let _permit = learning.turn.acquire().await;
            let known = self.containers.borrow().get(&id).map(Rc::clone);
            // Of many that come at once the last would else wait for as many questions in vain.
            let failed = learning.failed.borrow().clone().filter(|_| is_asked);
            match (known, failed) {
                (Some(known), _) => Ok(known),
                (None, Some(failed)) => Err(failed),
                (None, None) => {
                    let learned = self.learn(id, &learning).await;
                    learning.failed.replace(learned.as_ref().err().cloned());
                    learned
                }
            }
        };
        self.leave_learning(id, &learning);
        result
    }

    fn learning(&self, id: ContainerId) -> Rc<Learning> {
        let new =
            || Rc::new(Learning { turn: Semaphore::new(1), told: Cell::new(0), failed: RefCell::default() });
        Rc::clone(self.learning.borrow_mut().entry(id).or_insert_with(new))
    }

    fn leave_learning(&self, id: ContainerId, learning: &Learning) {
        if learning.turn.waiting() == 0 && learning.turn.available() == 1 {
            self.learning.borrow_mut().remove(&id);
        }
    }

    async fn learn(&self, id: ContainerId, learning: &Learning) -> Result<Rc<TargetContainer>, Failed> {
        loop {
            let told = learning.told.get();
            let state = self.ask_grant(id, self.used(id), 0).await?;
            self.shard.create_container(id).await?;
            self.observe(&state)?;
            self.shard.set_snapshots(id, &state.snapshots).await?;
            self.shard.set_quota(id, quota_of(state.grant)).await?;
            let label = state.label.clone().into_bytes();
            self.shard
                .change_attributes(&[record::change(SCOPE_LABEL, id.0.as_bytes(), Some(label))])
                .await?;
            if learning.told.get() == told {
                let known = Rc::new(TargetContainer::new(id, state.label, state.grant));
                self.containers.borrow_mut().insert(id, Rc::clone(&known));
                return Ok(known);
            }
        }
    }

    async fn ask_grant(
        &self,
        id: ContainerId,
        used: u64,
        wanted: u64,
    ) -> Result<TargetContainerState, Failed> {
        let (pool, service) = {
            let record = self.record.borrow();
            (record.pool, record.service)
        };
        let request = GrantRequest { pool, container: id, index: self.engines.own_index(), used, wanted };
        let asked = self
            .engines
            .ask(service, TargetIndex(0), opcode::TARGET_CONTAINER_GRANT, &request, SERVICE_LIMIT)
            .await;
        asked.map_err(|error| {
            let object = format!("container {id} of pool {}", self.label());
            match Failed::asking(object, "asking the pool service about it", error) {
                Failed::Target { der: Der::CONT_NONEXIST | Der::NONEXIST, .. } => {
                    Failed::Destroyed { pool: self.label(), container: id }
                }
                other => other,
            }
        })
    }

    /// Gets a greater share of a container's quota for `wanted` more bytes. `Ok(false)`: the quota is used up.
    ///
    /// # Errors
    /// When the container is gone or the service doesn't answer.
    pub async fn enlarge(&self, container: &TargetContainer, wanted: u64) -> Result<bool, Failed> {
        let before = container.grant.get();
        let _permit = container.asking.acquire().await;
        if container.grant.get() != before {
            return Ok(true);
        }
        let now = self.engines.runtime().now();
        if container.refused_until.get().is_some_and(|until| now < until) {
            return Ok(false);
        }
        let told = container.told.get();
        let used = self.used(container.id);
        match self.ask_grant(container.id, used, wanted.saturating_add(OVERHEAD)).await {
            Ok(state) => {
                let _turn = container.setting.acquire().await;
                if container.told.get() != told {
                    // The service changed the grant while its answer was under way: which came first is not known.
                    return Ok(true);
                }
                let larger = state.grant.is_none() || state.grant > before;
                self.set_grant(container, state.grant).await?;
                Ok(larger)
            }
            Err(Failed::Target { der: Der::NOSPACE, .. }) => {
                container.refused_until.set(Some(now + REFUSAL_PAUSE));
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether an update of so many bytes, for which the store has no room, may find some soon: what was overwritten or
    /// deleted when such were first refused is not all gone yet. An update as large that has found room begins that anew.
    pub fn may_regain_room(&self, container: &TargetContainer, bytes: u64, refusal: &UpdateError) -> bool {
        let rt = self.engines.runtime();
        let since = container.note_shortage(bytes, (rt.now(), Epoch(rt.wall_ns())));
        let may = self.shard.may_regain_room(refusal, since);
        if !may {
            container.end_shortage();
        }
        may
    }

    async fn set_grant(&self, container: &TargetContainer, grant: Option<u64>) -> Result<(), Failed> {
        self.shard.set_quota(container.id, quota_of(grant)).await?;
        container.grant.set(grant);
        Ok(())
    }

    fn used(&self, id: ContainerId) -> u64 {
        let summaries = self.shard.containers();
        summaries.iter().find(|summary| summary.container == id).map_or(0, |summary| summary.counted)
    }

    fn observe(&self, state: &TargetContainerState) -> Result<(), Failed> {
        let wall = self.engines.runtime().wall_ns();
        for epoch in &state.snapshots {
            self.clock.observe(*epoch, wall)?;
        }
        Ok(())
    }

    /// Takes note of what the service says of a container. A target that doesn't know it has nothing to do.
    pub(crate) async fn set_container(
        &self,
        state: TargetContainerState,
    ) -> Result<TargetContainerUsage, Failed> {
        let known = self.containers.borrow().get(&state.container).map(Rc::clone);
        self.observe(&state)?;
        if let Some(learning) = self.learning.borrow().get(&state.container) {
            learning.told.set(learning.told.get() + 1);
        }
        if let Some(container) = known {
            container.told.set(container.told.get() + 1);
            let _turn = container.setting.acquire().await;
            let grant = state.grant.map(|grant| grant.max(self.used(state.container)));
            self.set_grant(&container, grant).await?;
            if self.shard.snapshots(state.container)? != state.snapshots {
                self.shard.set_snapshots(state.container, &state.snapshots).await?;
            }
        }
        let now = self.clock.now(self.engines.runtime().wall_ns());
        Ok(TargetContainerUsage { used: self.used(state.container), now })
    }

    pub(crate) async fn destroy_container(&self, id: ContainerId) -> Result<(), Failed> {
        let learning = self.learning(id);
        let result = {
            let _permit = learning.turn.acquire().await;
            self.containers.borrow_mut().remove(&id);
            self.forget(id).await
        };
        self.leave_learning(id, &learning);
        result
    }

    async fn forget(&self, id: ContainerId) -> Result<(), Failed> {
        self.shard.destroy_container(id).await?;
        self.shard.change_attributes(&[record::change(SCOPE_LABEL, id.0.as_bytes(), None)]).await?;
        Ok(())
    }

    pub(crate) fn space(&self) -> TargetPoolSpace {
        let space = self.shard.space();
        let live = space.containers.iter().filter(|summary| !summary.destroying);
        TargetPoolSpace {
            total: space.total,
            free: space.free,
            containers: live.map(|summary| (summary.container, summary.counted)).collect(),
            active: self.active(),
        }
    }

    /// Containers that clients have used of late.
    fn active(&self) -> Vec<ContainerId> {
        let now = self.engines.runtime().now();
        let lease = Duration::from_nanos(HANDLE_LEASE_NS);
        let fresh = |at| now.saturating_duration_since(at) < lease;
        let known = self.containers.borrow();
        known.values().filter(|one| one.used_at.get().is_some_and(fresh)).map(|one| one.id).collect()
    }

    /// Loads the containers that were known before a restart.
    pub(crate) fn load_containers(&self) -> Result<(), Failed> {
        let pool = self.id();
        let summaries = self.shard.containers();
        for (name, label) in record::load_scope(&self.shard, SCOPE_LABEL) {
            let id = record::container_of(pool, &name)?;
            let live = summaries.iter().find(|summary| summary.container == id && !summary.destroying);
            if let Some(summary) = live {
                let grant = (summary.quota > 0).then_some(summary.quota);
                let label = String::from_utf8_lossy(&label).into_owned();
                self.containers.borrow_mut().insert(id, Rc::new(TargetContainer::new(id, label, grant)));
            }
        }
        Ok(())
    }
}

/// A grant as the store takes it, to which 0 is "no limit".
fn quota_of(grant: Option<u64>) -> u64 {
    grant.map_or(0, |bytes| bytes.max(1))
}

#[cfg(test)]
pub(crate) mod tests {
    use core::task::{Context, Waker};

    use weir_fabric::sim::Fabric;
    use weir_media::memory::MemoryDevice;
    use weir_proto::capability::{PoolSecret, SystemKey};
    use weir_proto::group::EngineInfo;
    use weir_proto::{Epoch, TenantId};
    use weir_rpc::{Rpc, RpcConfig};
    use weir_runtime::sim::{Node, World};
    use weir_runtime::{Handle, LocalBoxFuture, join_all};
    use weir_store::{FormatOptions, Owner, Store, StoreConfig};

    use super::*;

    pub(crate) const POOL: PoolId = PoolId(uuid::Uuid::from_u128(7));
    pub(crate) const SECRET: PoolSecret = PoolSecret([3; 32]);

    async fn store(rt: &Handle) -> Rc<Store> {
        let owner = Owner { system: "weir".to_owned(), rank: Rank(0), target: TargetIndex(0) };
        let device: Rc<dyn weir_media::Device> = Rc::new(MemoryDevice::new(64 << 20));
        let options = FormatOptions { owner: owner.clone(), log_bytes: None };
        Store::format(rt, &device, &options).await.expect("an empty device");
        Store::open(rt, device, &owner, StoreConfig::default()).await.expect("it was formatted")
    }

    /// A pool of no targets on the only engine that there is.
    pub(crate) fn lone_pool(world: &World, node: &Node) -> (Rc<Store>, Rc<Engines>, Rc<TargetPool>) {
        let (endpoint, rt) = (Fabric::new(world).endpoint(node, Some(100)), node.handle());
        world.block_on(node, async move {
            let rpc = Rpc::new(rt.clone(), endpoint, RpcConfig::default());
            let info = EngineInfo {
                rank: Rank(0),
                host: "engine".to_owned(),
                fabric_port: 100,
                targets: 1,
                management: String::new(),
            };
            let own = (Rank(0), TargetIndex(0));
            let engines = Engines::new(rt.clone(), rpc, SystemKey([1; 32]), own, vec![info].into());
            let engines = engines.expect("a good list");
            let record = PoolRecord {
                pool: POOL,
                label: "tank".to_owned(),
                secret: SECRET,
                size: 16 << 20,
                service: Rank(0),
                map: PoolMap { version: 1, targets: Vec::new() },
                object_class: "SX".to_owned(),
                tenant: TenantId::SYSTEM,
            };
            let store = store(&rt).await;
            let shard = store.create_pool(POOL, 16 << 20).await.expect("there is room");
            let pool = TargetPool::new(record, shard, Rc::clone(&engines), Rc::default(), None);
            (store, engines, pool)
        })
    }

    #[test]
    fn what_a_service_says_later_counts_though_what_it_said_before_is_held_up() {
        const CONTAINER: ContainerId = ContainerId(uuid::Uuid::from_u128(9));
        let world = World::new(1);
        let node = world.node("engine");
        let (_store, engines, pool) = lone_pool(&world, &node);
        world.block_on(&node, async move {
            pool.shard.create_container(CONTAINER).await.expect("there is none");
            let known = Rc::new(TargetContainer::new(CONTAINER, "box".to_owned(), None));
            pool.containers.borrow_mut().insert(CONTAINER, known);
            let state = |snapshots: &[u64]| TargetContainerState {
                pool: POOL,
                container: CONTAINER,
                label: "box".to_owned(),
                grant: None,
                snapshots: snapshots.iter().copied().map(Epoch).collect(),
            };
            let context = &mut Context::from_waker(Waker::noop());
            // So much waits for the log that changes are held up.
            let value = Some(vec![7; 500_000]);
            let long = |name: u8| [record::change(b"long", &[name], value.clone())];
            let many: Vec<_> = (0..12).map(long).collect();
            let mut many: Vec<_> =
                many.iter().map(|one| Box::pin(pool.shard.change_attributes(one))).collect();
            assert!(many.iter_mut().all(|one| one.as_mut().poll(context).is_pending()));
            let mut earlier = Box::pin(pool.set_container(state(&[1])));
            assert!(earlier.as_mut().poll(context).is_pending());
            engines.runtime().sleep(Duration::from_secs(1)).await;
            let later = Box::pin(pool.set_container(state(&[1, 2])));
            assert!(join_all([later, earlier]).await.iter().all(Result::is_ok));
            assert_eq!(pool.shard.snapshots(CONTAINER).expect("it is there"), [Epoch(1), Epoch(2)]);
        });
    }

    #[test]
    fn a_map_and_a_size_that_come_together_are_both_stored() {
        let world = World::new(1);
        let node = world.node("engine");
        let (_store, _engines, pool) = lone_pool(&world, &node);
        world.block_on(&node, async move {
            let map = PoolMap { version: 2, targets: Vec::new() };
            let changes: [LocalBoxFuture<'_, _>; 2] =
                [Box::pin(pool.set_map(map)), Box::pin(pool.set_size(32 << 20))];
            assert!(join_all(changes).await.iter().all(Result::is_ok));
            let stored = pool.shard.attribute(SCOPE_TARGET, NAME_POOL).expect("the record");
            let stored: PoolRecord = record::decode(POOL, "the record", &stored).expect("it is whole");
            assert_eq!((stored.map.version, stored.size), (2, 32 << 20));
            assert_eq!(stored, *pool.record.borrow());
        });
    }
}
