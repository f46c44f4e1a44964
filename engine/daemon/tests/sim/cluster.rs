//! Engines and clients in a simulated world.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use prost::Message;
use weir_client::{Attach, Context, ContextOptions, EngineAddress};
use weir_daemon::fault_record::FaultRecord;
use weir_daemon::last_seen::{LastSeen, LastSeenRecord};
use weir_daemon::target::{EngineKeys, SwimConfig, Target, TargetContext};
use weir_daemon::tenants::TenantRecord;
use weir_fabric::sim::Fabric;
use weir_fabric::{Addressing, AuthKey, Endpoint};
use weir_management::{Failure, v1};
use weir_media::health::MonitoredDevice;
use weir_media::sim::{CrashKeeps, SimDisk, SimDiskOptions};
use weir_pool::MapBackup;
use weir_proto::capability::{EngineKey, SystemKey};
use weir_proto::group::EngineInfo;
use weir_proto::{Der, PoolId, Rank, TargetIndex};
use weir_runtime::sim::{Node, World};
use weir_store::{FormatOptions, Mark, Owner, Store, StoreConfig};

/// Bytes of a simulated disk: a pool share of the least size, and what the store needs itself.
const DISK_BYTES: u64 = 160 << 20;

/// Bytes of a pool on each target.
pub const SHARE_BYTES: u64 = 32 << 20;

/// Port of target 0 on every engine.
const PORT: u16 = 10_100;

pub const KEY: SystemKey = SystemKey([5; 32]);

/// How many of what.
#[derive(Clone, Copy)]
pub struct Shape {
    pub engines: u32,
    pub targets: u32,
    pub clients: usize,
}

pub struct Engine {
    pub node: Node,
    disks: RefCell<Vec<SimDisk>>,
    /// Alive as long as the engine's tasks.
    targets: RefCell<Vec<Option<Weak<Target>>>>,
}

/// The cluster. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    pub world: World,
    pub fabric: Fabric,
    pub shape: Shape,
    pub engines: Rc<Vec<Engine>>,
    pub clients: Rc<Vec<Node>>,
    admin: Node,
    /// Virtual networks of the engines; none: the one without a key.
    networks: Rc<Vec<AuthKey>>,
    /// What is remembered of devices: rank and target of those that are marked as faulty.
    verdicts: Rc<RefCell<BTreeMap<(u32, u32), String>>>,
    /// What is remembered of stores, by rank and target.
    witnesses: Rc<RefCell<BTreeMap<(u32, u32), LastSeen>>>,
    /// What stands in for the data directories' maps of pools.
    stored_maps: Rc<StoredMaps>,
    /// How many engines the configuration lists that is read now.
    listed: Rc<Cell<u32>>,
}

fn host(rank: u32) -> String {
    format!("engine-{rank}")
}

fn owner(rank: u32, target: u32) -> Owner {
    Owner { system: "sim".to_owned(), rank: Rank(rank), target: TargetIndex(target) }
}

/// A new disk of a target, with an empty store.
fn formatted_disk(world: &World, node: &Node, (rank, target): (u32, u32)) -> SimDisk {
    let name = format!("engine-{rank}/target-{target}");
    let seed = world.seed() ^ u64::from(rank << 8 | target);
    let disk = SimDisk::new(&name, DISK_BYTES, seed, SimDiskOptions::default());
    let (rt, device) = (node.handle(), disk.attach(&node.handle()));
    world.block_on(node, async move {
        let options = FormatOptions { owner: owner(rank, target), log_bytes: Some(4 << 20) };
        Store::format(&rt, &device, &options).await.expect("an empty disk");
    });
    disk
}

/// What is remembered of a device, in the place of a file of the data directory.
struct Remembered {
    all: Rc<RefCell<BTreeMap<(u32, u32), String>>>,
    target: (u32, u32),
}

impl FaultRecord for Remembered {
    fn read(&self) -> Option<String> {
        self.all.borrow().get(&self.target).cloned()
    }

    fn set(&self, reason: &str) -> std::io::Result<()> {
        self.all.borrow_mut().insert(self.target, reason.to_owned());
        Ok(())
    }

    fn clear(&self) -> std::io::Result<bool> {
        Ok(self.all.borrow_mut().remove(&self.target).is_some())
    }
}

/// What is remembered of a store, in the place of a file of the data directory.
struct Remembering {
    all: Rc<RefCell<BTreeMap<(u32, u32), LastSeen>>>,
    target: (u32, u32),
}

impl LastSeenRecord for Remembering {
    fn read(&self) -> LastSeen {
        self.all.borrow().get(&self.target).copied().unwrap_or(LastSeen::Nothing)
    }

    fn keep(&self, mark: &Mark) {
        self.all.borrow_mut().insert(self.target, LastSeen::Store(*mark));
    }

    fn keep_last(&self, mark: &Mark) {
        self.keep(mark);
    }

    fn give_up(&self) -> std::io::Result<()> {
        self.all.borrow_mut().insert(self.target, LastSeen::GivenUp);
        Ok(())
    }
}

/// What data directories have of the maps of pools, by rank and target, and of tenants, by rank.
#[derive(Default)]
struct StoredMaps {
    maps: RefCell<BTreeMap<(u32, u32, PoolId), Vec<u8>>>,
    tenants: RefCell<BTreeMap<u32, Vec<u8>>>,
    is_full: Cell<bool>,
}

/// The maps in the data directory beside a target's device, in the place of files.
struct MapBackups {
    all: Rc<StoredMaps>,
    target: (u32, u32),
}

impl MapBackup for MapBackups {
    fn read(&self, pool: PoolId) -> std::io::Result<Option<Vec<u8>>> {
        Ok(self.all.maps.borrow().get(&(self.target.0, self.target.1, pool)).cloned())
    }

    fn keep(&self, pool: PoolId, map: &[u8]) -> std::io::Result<()> {
        if self.all.is_full.get() {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.all.maps.borrow_mut().insert((self.target.0, self.target.1, pool), map.to_vec());
        Ok(())
    }

    fn forget(&self, pool: PoolId) -> std::io::Result<()> {
        self.all.maps.borrow_mut().remove(&(self.target.0, self.target.1, pool));
        Ok(())
    }
}

impl TenantRecord for MapBackups {
    fn read(&self) -> std::io::Result<Option<Vec<u8>>> {
        Ok(self.all.tenants.borrow().get(&self.target.0).cloned())
    }

    fn keep(&self, table: &[u8]) -> std::io::Result<()> {
        self.all.tenants.borrow_mut().insert(self.target.0, table.to_vec());
        Ok(())
    }
}

impl Cluster {
    /// Formats disks and starts all engines.
    pub fn start(seed: u64, shape: Shape) -> Self {
        Self::start_on(seed, shape, Vec::new(), false)
    }

    /// The same with engines on some virtual networks, and perhaps with addresses that the provider chooses, other ones
    /// after each restart.
    pub fn start_on(seed: u64, shape: Shape, networks: Vec<AuthKey>, published: bool) -> Self {
        let cluster = Self::assemble(seed, shape, networks);
        cluster.fabric.configure(|config| config.published = published);
        for rank in 0..shape.engines {
            cluster.boot(rank);
        }
        cluster.settle();
        cluster
    }

    /// The same with engines whose monotonic clocks run faster or slower than the world's, by so many millionths at most.
    pub fn start_drifting(seed: u64, shape: Shape, most_ppm: u64) -> Self {
        Self::start_some_drifting(seed, shape, most_ppm, shape.engines)
    }

    /// The same with only so many of the engines, which know of no others.
    pub fn start_some_drifting(seed: u64, shape: Shape, most_ppm: u64, some: u32) -> Self {
        let cluster = Self::assemble(seed, shape, Vec::new());
        let most = i64::try_from(most_ppm).expect("a small number");
        for engine in cluster.engines.iter() {
            let drawn = cluster.world.rng().below(2 * most_ppm);
            engine.node.set_clock_rate(i64::try_from(drawn).expect("a small number") - most);
        }
        cluster.boot_some(some)
    }

    /// The same with clocks that don't drift.
    pub fn start_some(seed: u64, shape: Shape, some: u32) -> Self {
        Self::assemble(seed, shape, Vec::new()).boot_some(some)
    }

    fn boot_some(self, some: u32) -> Self {
        self.listed.set(some);
        for rank in 0..some {
            self.boot(rank);
        }
        self.settle();
        self
    }

    /// Whether data directories have no room from now on.
    pub fn fill_map_backup(&self, is_full: bool) {
        self.stored_maps.is_full.set(is_full);
    }

    /// How many maps of pools the data directories have.
    pub fn backed_up(&self) -> usize {
        self.stored_maps.maps.borrow().len()
    }

    /// Forgets what an engine's data directory has beside its devices.
    pub fn lose_data_directory(&self, rank: u32) {
        self.verdicts.borrow_mut().retain(|(of, _), _| *of != rank);
        self.witnesses.borrow_mut().retain(|(of, _), _| *of != rank);
        self.stored_maps.maps.borrow_mut().retain(|(of, _, _), _| *of != rank);
    }

    /// From now on engines that start read a configuration that lists so many.
    pub fn list(&self, engines: u32) {
        self.listed.set(engines);
    }

    fn assemble(seed: u64, shape: Shape, networks: Vec<AuthKey>) -> Self {
        let world = World::new(seed);
        let fabric = Fabric::new(&world);
        let engines = (0..shape.engines).map(|rank| {
            let node = world.node(&host(rank));
            let disks: Vec<SimDisk> =
                (0..shape.targets).map(|target| formatted_disk(&world, &node, (rank, target))).collect();
            Engine { disks: RefCell::new(disks), targets: RefCell::default(), node }
        });
        let engines = Rc::new(engines.collect::<Vec<_>>());
        let clients = (0..shape.clients).map(|index| world.node(&format!("client-{index}")));
        let clients = Rc::new(clients.collect());
        let admin = world.node("admin");
        let networks = Rc::new(networks);
        let (verdicts, witnesses, stored_maps) = (Rc::default(), Rc::default(), Rc::default());
        let listed = Rc::new(Cell::new(shape.engines));
        Self {
            world,
            fabric,
            shape,
            engines,
            clients,
            admin,
            networks,
            verdicts,
            witnesses,
            stored_maps,
            listed,
        }
    }

    fn infos(&self) -> Vec<EngineInfo> {
        let info = |rank| EngineInfo {
            rank: Rank(rank),
            host: host(rank),
            fabric_port: PORT,
            targets: self.shape.targets,
            management: String::new(),
        };
        (0..self.shape.engines).map(info).collect()
    }

    fn endpoint(&self, node: &Node, port: u16) -> Rc<dyn Endpoint> {
        if self.networks.is_empty() {
            return self.fabric.endpoint(node, Some(port));
        }
        self.fabric.endpoint_with_keys(node, Some(port), &self.networks)
    }

    /// Starts the targets of an engine whose node is up.
    pub fn boot(&self, rank: u32) {
        let engine = &self.engines[rank as usize];
        *engine.targets.borrow_mut() = vec![None; self.shape.targets as usize];
        for (target, disk) in (0..).zip(engine.disks.borrow().iter()) {
            let rt = engine.node.handle();
            let context = TargetContext {
                rt: rt.clone(),
                endpoint: self.endpoint(&engine.node, PORT + target),
                device: Ok(Rc::new(MonitoredDevice::new(&rt, disk.attach(&rt)))),
                fault_record: Rc::new(Remembered {
                    all: Rc::clone(&self.verdicts),
                    target: (rank, u32::from(target)),
                }),
                last_seen: Rc::new(Remembering {
                    all: Rc::clone(&self.witnesses),
                    target: (rank, u32::from(target)),
                }),
                map_backup: Rc::new(MapBackups {
                    all: Rc::clone(&self.stored_maps),
                    target: (rank, u32::from(target)),
                }),
                tenants: Rc::new(MapBackups {
                    all: Rc::clone(&self.stored_maps),
                    target: (rank, u32::from(target)),
                }),
                owner: owner(rank, u32::from(target)),
                store: StoreConfig::default(),
                engines: self.infos()[..self.listed.get() as usize].to_vec().into(),
                membership: SwimConfig::default(),
                keys: EngineKeys { system: KEY, engines: EngineKey([2; 32]) },
                provider: "sim".to_owned(),
                started: 0,
            };
            let (engines, index) = (Rc::clone(&self.engines), usize::from(target));
            let seed = self.world.seed();
            let work = async move {
                let served = Target::start(context).await;
                let served =
                    served.unwrap_or_else(|error| panic!("seed {seed}: target does not recover: {error}"));
                engines[rank as usize].targets.borrow_mut()[index] = Some(Rc::downgrade(&served));
                // The target lives until its node crashes.
                core::future::pending::<()>().await;
                drop(served);
            };
            rt.spawn(work);
        }
    }

    /// Whether every target of an engine serves.
    pub fn is_serving(&self, rank: u32) -> bool {
        let targets = self.engines[rank as usize].targets.borrow();
        !targets.is_empty()
            && targets.iter().all(|target| target.as_ref().is_some_and(|weak| weak.upgrade().is_some()))
    }

    pub fn is_up(&self, rank: u32) -> bool {
        self.engines[rank as usize].node.is_up()
    }

    /// The disk of a target of an engine.
    pub fn disk(&self, (rank, target): (u32, u32)) -> SimDisk {
        self.engines[rank as usize].disks.borrow()[target as usize].clone()
    }

    /// Whether it is written down that the device of a target of an engine is faulty.
    pub fn is_marked(&self, target: (u32, u32)) -> bool {
        self.verdicts.borrow().contains_key(&target)
    }

    /// Power failure of an engine.
    pub fn crash(&self, rank: u32, keeps: CrashKeeps) {
        let engine = &self.engines[rank as usize];
        self.world.crash(&engine.node);
        for disk in engine.disks.borrow().iter() {
            disk.crash(keeps);
        }
    }

    /// Brings a crashed engine back with new disks and nothing in its data directory.
    pub fn return_empty(&self, rank: u32) {
        self.lose_data_directory(rank);
        let engine = &self.engines[rank as usize];
        self.world.restart(&engine.node);
        let fresh = |target| formatted_disk(&self.world, &engine.node, (rank, target));
        engine.disks.replace((0..self.shape.targets).map(fresh).collect());
        self.boot(rank);
    }

    /// Brings a crashed engine back.
    pub fn restart(&self, rank: u32) {
        self.world.restart(&self.engines[rank as usize].node);
        self.boot(rank);
    }

    /// Waits until every target of every engine that is up serves.
    pub fn settle(&self) {
        for _ in 0..1000 {
            let ready = |engine: &Engine| {
                let live = |target: &Option<Weak<Target>>| {
                    target.as_ref().is_some_and(|weak| weak.upgrade().is_some())
                };
                !engine.node.is_up() || engine.targets.borrow().iter().all(live)
            };
            if self.engines.iter().all(ready) {
                return;
            }
            self.world.run_for(Duration::from_millis(10));
        }
        panic!("seed {}: engines don't start", self.world.seed());
    }

    pub fn skew_clocks(&self, most: Duration) {
        let most = i64::try_from(most.as_nanos()).expect("a small skew");
        for engine in self.engines.iter() {
            let drawn = self.world.rng().below(2 * most.unsigned_abs());
            engine.node.set_clock_skew(i64::try_from(drawn).expect("small") - most);
        }
    }

    /// A target that serves.
    pub fn target(&self, rank: u32, index: usize) -> Rc<Target> {
        let target = self.engines[rank as usize].targets.borrow().get(index).cloned().flatten();
        target.and_then(|weak| weak.upgrade()).expect("it serves")
    }

    /// From now on an engine's disks behave like this.
    pub fn set_disks(&self, rank: u32, options: &SimDiskOptions) {
        for disk in self.engines[rank as usize].disks.borrow().iter() {
            disk.set_options(options.clone());
        }
    }

    /// What clients are told: of the engines that the configuration lists.
    pub fn attach(&self) -> Attach {
        let listed = self.infos().into_iter().take(self.listed.get() as usize);
        let engines = listed.map(|info| EngineAddress {
            rank: info.rank.0,
            host: info.host,
            fabric_port: info.fabric_port,
            targets: info.targets,
            management: info.management,
        });
        Attach {
            system: "sim".to_owned(),
            provider: "sim".to_owned(),
            engines: engines.collect(),
            key: KEY.tenant(weir_proto::TenantId::SYSTEM),
            auth_key: None,
            device: None,
            addressing: Addressing::ByProvider,
        }
    }

    /// A client on a node, which gives operations up after `deadline`.
    pub fn context(&self, node: &Node, deadline: Duration) -> Context {
        let endpoint = self.fabric.endpoint(node, None);
        let options = ContextOptions { deadline, uid: 1000, gid: 1000, node: None };
        Context::sim(node.handle(), endpoint, &self.attach(), options)
    }

    /// A node for work beside the clients'.
    pub const fn admin(&self) -> &Node {
        &self.admin
    }

    /// Sends a management request to an engine.
    pub fn manage<Req: Message, Rep: Message + Default>(
        &self,
        rank: u32,
        method: &'static str,
        request: &Req,
    ) -> Result<Rep, Failure> {
        let engine = &self.engines[rank as usize];
        let target = engine.targets.borrow().first().cloned().flatten().and_then(|weak| weak.upgrade());
        let Some(target) = target else { return Err(Failure::new(Der::UNREACH, "", "the engine is down")) };
        let bytes = request.encode_to_vec();
        let answer = self.world.try_block_on(&engine.node, Duration::from_mins(2), async move {
            let management = target.management().map(Rc::clone).expect("target 0 has it");
            management.call(method, &bytes).await
        });
        match answer {
            Ok(answer) => answer.map(|bytes| Rep::decode(bytes.as_slice()).expect("an answer decodes")),
            Err(error) => Err(Failure::new(Der::UNREACH, "", error.to_string())),
        }
    }

    pub fn pool_request(&self, label: &str) -> v1::PoolCreateRequest {
        let targets = u64::from(self.shape.engines * self.shape.targets);
        v1::PoolCreateRequest {
            label: label.to_owned(),
            size_bytes: targets * SHARE_BYTES,
            ..v1::PoolCreateRequest::default()
        }
    }

    pub fn create_pool(&self, label: &str) {
        self.create_pool_by(&self.pool_request(label));
    }

    /// Creates a pool with a redundancy factor.
    pub fn create_redundant_pool(&self, label: &str, factor: u32) {
        self.create_pool_by(&v1::PoolCreateRequest { redundancy_factor: factor, ..self.pool_request(label) });
    }

    fn create_pool_by(&self, request: &v1::PoolCreateRequest) {
        let last = self.shape.engines - 1;
        let created: v1::PoolCreateResponse =
            self.manage(last, "Pools/Create", request).expect("room for a pool");
        let pool = created.pool.expect("an answer");
        assert_eq!(pool.state(), v1::PoolState::Ready);
        assert_eq!(pool.ranks.len(), self.shape.engines as usize);
    }

    /// Creates and destroys a pool while engines crash; in the end there is exactly one, or none.
    pub fn create_and_destroy_under_faults(&self) {
        let seed = self.world.seed();
        for round in 0..3 {
            let victim = u32::try_from(self.world.rng().below(u64::from(self.shape.engines))).expect("small");
            let (other, delay) = (self.clone(), Duration::from_micros(self.world.rng().below(8_000)));
            self.world.schedule(delay, move || other.crash(victim, CrashKeeps::Any));
            let asked = (victim + 1) % self.shape.engines;
            let created =
                self.manage::<_, v1::PoolCreateResponse>(asked, "Pools/Create", &self.pool_request("p"));
            self.world.run_for(Duration::from_millis(20));
            self.restart(victim);
            self.settle();
            // Whatever became of the first attempt, it can be repeated.
            let again = self.create_repeatedly("p");
            if let Ok(created) = created {
                assert_eq!(
                    created.pool.map(|pool| pool.uuid),
                    Some(again.clone()),
                    "seed {seed}, round {round}"
                );
            }
            let listed: v1::PoolListResponse =
                self.manage(asked, "Pools/List", &v1::PoolListRequest {}).expect("all engines are up");
            let uuids: Vec<_> = listed.pools.into_iter().map(|pool| pool.uuid).collect();
            assert_eq!(uuids, [again], "seed {seed}, round {round}");
            let destroy = v1::PoolDestroyRequest { pool: "p".to_owned(), force: false };
            let _: v1::PoolDestroyResponse =
                self.manage(asked, "Pools/Destroy", &destroy).expect("an empty pool goes");
        }
        let query: v1::SystemQueryResponse =
            self.manage(0, "System/Query", &v1::SystemQueryRequest {}).expect("all engines are up");
        for engine in query.engines {
            assert_eq!(engine.health(), v1::EngineHealth::Up);
            let kept = engine.capacity_bytes - engine.free_bytes;
            assert!(
                kept <= SHARE_BYTES,
                "seed {seed}: rank {} still gives {kept} bytes to pools",
                engine.rank
            );
        }
    }

    fn create_repeatedly(&self, label: &str) -> String {
        for _ in 0..20 {
            match self.manage::<_, v1::PoolCreateResponse>(0, "Pools/Create", &self.pool_request(label)) {
                Ok(created) => return created.pool.expect("an answer").uuid,
                Err(error) if error.der == Der::INPROGRESS => self.world.run_for(Duration::from_secs(1)),
                Err(error) => panic!("seed {}: {error}", self.world.seed()),
            }
        }
        panic!("seed {}: the pool is never created", self.world.seed());
    }
}
