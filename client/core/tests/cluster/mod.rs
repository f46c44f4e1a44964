//! A whole system in one process: engines, disks, network and clients in virtual time, from one seed.
#![allow(dead_code, reason = "each test program uses a part of it")]

#[path = "../unmarked/mod.rs"]
mod unmarked;

use core::cell::RefCell;
use core::time::Duration;
use std::rc::Rc;

use prost::Message;
use weir_client::{
    Attach, Container, ContainerProperties, ContainerType, Context, ContextOptions, EngineAddress, Pool,
    Rights,
};
use weir_daemon::target::{SwimConfig, Target, TargetContext};
use weir_fabric::Addressing;
use weir_fabric::sim::Fabric;
use weir_management::v1;
use weir_media::sim::{CrashKeeps, SimDisk, SimDiskOptions};
use weir_proto::capability::{EngineKey, SystemKey};
use weir_proto::group::EngineInfo;
use weir_proto::{Rank, TargetIndex};
use weir_runtime::sim::{Node, World};
use weir_store::{FormatOptions, Owner, Store, StoreConfig};

use unmarked::Unmarked;

pub const FABRIC_PORT: u16 = 10_100;
pub const DISK_BYTES: u64 = 96 << 20;
pub const KEY: SystemKey = SystemKey([42; 32]);
pub const ENGINE_KEY: EngineKey = EngineKey([43; 32]);
pub const POOL: &str = "tank";

struct Engine {
    node: Node,
    disks: Vec<SimDisk>,
    targets: Rc<RefCell<Vec<Rc<Target>>>>,
}

/// The simulated system.
pub struct Cluster {
    pub world: World,
    pub fabric: Fabric,
    pub client: Node,
    engines: Vec<Engine>,
    targets: u32,
    store: StoreConfig,
}

impl Cluster {
    /// Engines that serve, with a pool over all of them.
    pub fn start(seed: u64, engines: u32, targets: u32) -> Self {
        Self::start_with(seed, engines, targets, StoreConfig::default())
    }

    /// Engines whose stores behave like this.
    pub fn start_with(seed: u64, engines: u32, targets: u32, store: StoreConfig) -> Self {
        let cluster = Self::start_empty(seed, engines, targets, store);
        let size_bytes = u64::from(engines) * u64::from(targets) * (DISK_BYTES / 2);
        cluster.create_pool(POOL, size_bytes, Vec::new());
        cluster
    }

    /// The same without a pool.
    pub fn start_empty(seed: u64, engines: u32, targets: u32, store: StoreConfig) -> Self {
        let world = World::new(seed);
        let fabric = Fabric::new(&world);
        let client = world.node("client");
        let made = (0..engines)
            .map(|rank| {
                let node = world.node(&format!("engine-{rank}"));
                let disks = (0..targets)
                    .map(|target| {
                        let salt = u64::from(rank * 100 + target);
                        let name = format!("disk-{rank}-{target}");
                        SimDisk::new(&name, DISK_BYTES, seed ^ (salt << 32), SimDiskOptions::default())
                    })
                    .collect();
                Engine { node, disks, targets: Rc::default() }
            })
            .collect();
        let cluster = Self { world, fabric, client, engines: made, targets, store };
        for rank in 0..engines {
            cluster.format(rank);
        }
        for rank in 0..engines {
            cluster.boot(rank);
        }
        cluster
    }

    fn owner(rank: u32, target: u32) -> Owner {
        Owner { system: "weir".into(), rank: Rank(rank), target: TargetIndex(target) }
    }

    fn format(&self, rank: u32) {
        let engine = &self.engines[rank as usize];
        for (target, disk) in (0..).zip(&engine.disks) {
            let handle = engine.node.handle();
            let device = disk.attach(&handle);
            let options = FormatOptions { owner: Self::owner(rank, target), log_bytes: None };
            self.world.block_on(&engine.node, async move {
                Store::format(&handle, &device, &options).await.expect("formats");
            });
        }
    }

    /// Every engine.
    pub fn infos(&self) -> Vec<EngineInfo> {
        (0..)
            .zip(&self.engines)
            .map(|(rank, engine)| EngineInfo {
                rank: Rank(rank),
                host: engine.node.name(),
                fabric_port: FABRIC_PORT,
                targets: self.targets,
                management: String::new(),
            })
            .collect()
    }

    /// Starts an engine's targets, and returns when they serve.
    pub fn boot(&self, rank: u32) {
        let engine = &self.engines[rank as usize];
        for (target, disk) in (0..).zip(&engine.disks) {
            let rt = engine.node.handle();
            let port = FABRIC_PORT + u16::try_from(target).expect("few targets");
            let context = TargetContext {
                device: Ok(disk.attach(&rt)),
                endpoint: self.fabric.endpoint(&engine.node, Some(port)),
                rt,
                fault_record: Rc::new(Unmarked),
                last_seen: Rc::new(Unmarked),
                map_backup: Rc::new(Unmarked),
                tenants: Rc::new(Unmarked),
                owner: Self::owner(rank, target),
                store: self.store.clone(),
                engines: self.infos().into(),
                membership: SwimConfig::default(),
                keys: weir_daemon::target::EngineKeys { system: KEY, engines: ENGINE_KEY },
                provider: "sim".into(),
                started: 0,
            };
            let targets = Rc::clone(&engine.targets);
            self.world.block_on(&engine.node, async move {
                let target = Target::start(context).await.expect("the target starts");
                targets.borrow_mut().push(target);
            });
        }
    }

    /// Power failure of an engine: what was not flushed is kept, lost or torn as the seed says.
    pub fn crash(&self, rank: u32) {
        let engine = &self.engines[rank as usize];
        self.world.crash(&engine.node);
        engine.targets.borrow_mut().clear();
        for disk in &engine.disks {
            disk.crash(CrashKeeps::Any);
        }
        self.world.restart(&engine.node);
    }

    /// Crashes an engine after a while and boots it again after another one, while the world runs.
    pub fn schedule_crash(self: &Rc<Self>, rank: u32, after: Duration, down: Duration) {
        let cluster = Rc::clone(self);
        self.world.schedule(after, move || {
            cluster.crash(rank);
            let again = Rc::clone(&cluster);
            cluster.world.schedule(down, move || again.boot_detached(rank));
        });
    }

    /// Starts an engine's targets in the background.
    fn boot_detached(&self, rank: u32) {
        let engine = &self.engines[rank as usize];
        for (target, disk) in (0..).zip(&engine.disks) {
            let rt = engine.node.handle();
            let port = FABRIC_PORT + u16::try_from(target).expect("few targets");
            let context = TargetContext {
                device: Ok(disk.attach(&rt)),
                endpoint: self.fabric.endpoint(&engine.node, Some(port)),
                rt: rt.clone(),
                fault_record: Rc::new(Unmarked),
                last_seen: Rc::new(Unmarked),
                map_backup: Rc::new(Unmarked),
                tenants: Rc::new(Unmarked),
                owner: Self::owner(rank, target),
                store: self.store.clone(),
                engines: self.infos().into(),
                membership: SwimConfig::default(),
                keys: weir_daemon::target::EngineKeys { system: KEY, engines: ENGINE_KEY },
                provider: "sim".into(),
                started: 0,
            };
            let targets = Rc::clone(&engine.targets);
            rt.spawn(async move {
                let target = Target::start(context).await.expect("the target starts again");
                targets.borrow_mut().push(target);
            });
        }
    }

    /// Creates a pool on some engines; none: on all of them.
    pub fn create_pool(&self, label: &str, size_bytes: u64, ranks: Vec<u32>) {
        let label = label.into();
        self.create_pool_by(v1::PoolCreateRequest { label, size_bytes, ranks, ..Default::default() });
    }

    fn create_pool_by(&self, request: v1::PoolCreateRequest) {
        let engine = &self.engines[0];
        let target = Rc::clone(&engine.targets.borrow()[0]);
        self.world.block_on(&engine.node, async move {
            let management = Rc::clone(target.management().expect("target 0 has it"));
            management.call("Pools/Create", &request.encode_to_vec()).await.expect("the pool is created");
        });
    }

    /// Creates a pool over all engines with a redundancy factor.
    pub fn create_redundant_pool(&self, label: &str, redundancy_factor: u32) {
        let size_bytes = self.engines.len() as u64 * u64::from(self.targets) * (DISK_BYTES / 2);
        self.create_pool_by(v1::PoolCreateRequest {
            label: label.into(),
            size_bytes,
            redundancy_factor,
            ..Default::default()
        });
    }

    /// An engine's node.
    pub fn engine(&self, rank: u32) -> &Node {
        &self.engines[rank as usize].node
    }

    /// The disk of a target of an engine.
    pub fn disk(&self, (rank, target): (usize, usize)) -> SimDisk {
        self.engines[rank].disks[target].clone()
    }

    /// The targets of an engine that serve.
    pub fn targets(&self, rank: u32) -> Vec<Rc<Target>> {
        self.engines[rank as usize].targets.borrow().clone()
    }

    pub fn attach(&self) -> Attach {
        let engines = self.infos().into_iter().map(|info| EngineAddress {
            rank: info.rank.0,
            host: info.host,
            fabric_port: info.fabric_port,
            targets: info.targets,
            management: String::new(),
        });
        Attach {
            system: "weir".into(),
            provider: "sim".into(),
            engines: engines.collect(),
            key: KEY.tenant(weir_proto::TenantId::SYSTEM),
            auth_key: None,
            device: None,
            addressing: Addressing::ByProvider,
        }
    }

    /// A context on the client's node.
    pub fn context(&self, deadline: Duration) -> Context {
        self.context_on(&self.client, deadline)
    }

    /// A context on some node.
    pub fn context_on(&self, node: &Node, deadline: Duration) -> Context {
        let options = ContextOptions { deadline, uid: 1000, gid: 1000, node: None };
        Context::sim(node.handle(), self.fabric.endpoint(node, None), &self.attach(), options)
    }

    /// Runs a client operation to its end.
    pub fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        self.world.block_on(&self.client, future)
    }
}

/// Properties of a test container.
pub fn properties(label: &str, kind: ContainerType) -> ContainerProperties {
    ContainerProperties {
        label: label.into(),
        kind,
        quota: 0,
        object_class: "SX".into(),
        chunk_size: 1 << 20,
        uid: 1000,
        gid: 1000,
        mode: 0o755,
        attributes: std::collections::BTreeMap::new(),
    }
}

pub const ALL: Rights = Rights(15);

/// Creates and opens a container.
pub async fn open_container(context: &Context, properties: ContainerProperties) -> Container {
    let pool = Pool::connect(context, POOL, ALL).await.expect("connects");
    let label = properties.label.clone();
    Container::create(context, &pool, properties, false).await.expect("creates");
    let rights = Rights::READ.union(Rights::WRITE);
    Container::open(context, &pool, &label, rights).await.expect("opens")
}
