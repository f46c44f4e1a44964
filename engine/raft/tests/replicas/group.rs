//! Engines with a replica each, on simulated network and disks.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use weir_fabric::sim::Fabric;
use weir_group::{EngineKeys, Engines};
use weir_media::sim::{CrashKeeps, SimDisk, SimDiskOptions};
use weir_proto::capability::{EngineKey, SystemKey};
use weir_proto::group::EngineInfo;
use weir_proto::{PoolId, Rank, TargetIndex};
use weir_raft::{Leadership, Replica, Replicas};
use weir_rpc::{Rpc, RpcConfig};
use weir_runtime::sim::{Node, World};
use weir_store::{FormatOptions, Owner, Shard, Store, StoreConfig};

/// The group.
pub const GROUP: PoolId = PoolId(uuid::Uuid::from_u128(7));

/// Scope of what commands change.
pub const STATE: &[u8] = b"state";

/// A new leader serves within this time.
pub const ELECTED: Duration = Duration::from_secs(2);

const PORT: u16 = 100;
const DISK_BYTES: u64 = 128 << 20;
const STEP: Duration = Duration::from_millis(10);

struct Engine {
    node: Node,
    disk: RefCell<SimDisk>,
    /// Its first disk was lost.
    is_second: Cell<bool>,
    /// Alive as long as the engine's tasks.
    replica: RefCell<Weak<Replica>>,
    shard: RefCell<Option<Shard>>,
}

/// The group. Cheap to clone.
#[derive(Clone)]
pub struct Group {
    pub world: World,
    pub fabric: Fabric,
    pub clients: Node,
    engines: Rc<Vec<Engine>>,
}

fn owner(rank: usize) -> Owner {
    let rank = Rank(u32::try_from(rank).expect("few engines"));
    Owner { system: "sim".to_owned(), rank, target: TargetIndex(0) }
}

fn empty_disk(world: &World, node: &Node, rank: usize, drawn: u64) -> SimDisk {
    let disk = SimDisk::new(&format!("disk-{rank}"), DISK_BYTES, drawn, SimDiskOptions::default());
    let (rt, device) = (node.handle(), disk.attach(&node.handle()));
    world.block_on(node, async move {
        let options = FormatOptions { owner: owner(rank), log_bytes: Some(16 << 20) };
        Store::format(&rt, &device, &options).await.expect("an empty disk");
    });
    disk
}

impl Group {
    /// Formats disks and starts the replicas.
    pub fn start(seed: u64, members: usize) -> Self {
        let world = World::new(seed);
        let fabric = Fabric::new(&world);
        let engine = |rank: usize| {
            let node = world.node(&format!("engine-{rank}"));
            let disk = RefCell::new(empty_disk(&world, &node, rank, seed ^ (rank as u64) << 8));
            let (is_second, replica, shard) = (Cell::new(false), RefCell::default(), RefCell::default());
            Engine { node, disk, is_second, replica, shard }
        };
        let engines = Rc::new((0..members).map(engine).collect::<Vec<_>>());
        let clients = world.node("clients");
        let group = Self { world, fabric, clients, engines };
        for rank in 0..members {
            group.boot(rank);
        }
        group
    }

    pub fn members(&self) -> usize {
        self.engines.len()
    }

    pub fn node(&self, rank: usize) -> &Node {
        &self.engines[rank].node
    }

    fn boot(&self, rank: usize) {
        let engine = &self.engines[rank];
        let (rt, device) = (engine.node.handle(), engine.disk.borrow().attach(&engine.node.handle()));
        let endpoint = self.fabric.endpoint(&engine.node, Some(PORT));
        let info = |rank: usize| EngineInfo {
            rank: owner(rank).rank,
            host: format!("engine-{rank}"),
            fabric_port: PORT,
            targets: 1,
            management: String::new(),
        };
        let infos: Vec<EngineInfo> = (0..self.members()).map(info).collect();
        let members: Vec<Rank> = infos.iter().map(|info| info.rank).collect();
        let engines = Rc::clone(&self.engines);
        rt.clone().spawn(async move {
            let rpc = Rpc::new(rt.clone(), endpoint, RpcConfig::default());
            let own = (owner(rank).rank, TargetIndex(0));
            let keys = EngineKeys { system: SystemKey([1; 32]), engines: EngineKey([2; 32]) };
            let known = Engines::new(rt.clone(), rpc, keys, own, infos.into());
            let known = known.expect("a good list");
            let store = Store::open(&rt, device, &owner(rank), StoreConfig::default()).await;
            let store = store.expect("it was formatted");
            let shard = match store.pool(GROUP) {
                Some(shard) => shard,
                None => store.create_pool(GROUP, 64 << 20).await.expect("there is room"),
            };
            let replicas = Replicas::serve(&known);
            let scopes: weir_raft::Scopes = Rc::new(|_| vec![STATE.to_vec()]);
            if engines[rank].is_second.get() {
                weir_raft::prepare_again(&shard, &members).await.expect("there is room");
            } else {
                weir_raft::prepare(&shard, &members).await.expect("there is room");
            }
            let replica = replicas.open(shard.clone(), scopes).await.expect("what it stored");
            *engines[rank].replica.borrow_mut() = Rc::downgrade(&replica);
            *engines[rank].shard.borrow_mut() = Some(shard);
            drop(replica);
            core::future::pending::<()>().await;
            drop(replicas);
        });
    }

    pub fn is_up(&self, rank: usize) -> bool {
        self.engines[rank].node.is_up()
    }

    /// Power failure of an engine.
    pub fn crash(&self, rank: usize) {
        let engine = &self.engines[rank];
        *engine.replica.borrow_mut() = Weak::new();
        engine.shard.borrow_mut().take();
        self.world.crash(&engine.node);
        engine.disk.borrow().crash(CrashKeeps::Any);
    }

    /// Has an engine that is down, and takes part no more, start with an empty disk.
    pub fn return_empty(&self, rank: usize) {
        let engine = &self.engines[rank];
        self.world.restart(&engine.node);
        engine.is_second.set(true);
        let disk = empty_disk(&self.world, &engine.node, rank, self.world.rng().below(u64::MAX));
        engine.disk.replace(disk);
        self.boot(rank);
    }

    /// Has the leader change the members, until that has taken effect.
    pub fn change_member(&self, rank: usize, takes_part: bool) {
        let changed = owner(rank).rank;
        loop {
            self.await_leader(&[]);
            let (_, replica, leadership) = self.leader().expect("there is one");
            if replica.members().contains(&changed) == takes_part {
                return;
            }
            // One that was deposed meanwhile leaves it to the next.
            drop(self.world.try_block_on(&self.clients, Duration::from_secs(10), async move {
                replica.change_member(leadership.term, changed, takes_part).await
            }));
        }
    }

    pub fn restart(&self, rank: usize) {
        if !self.is_up(rank) {
            self.world.restart(&self.engines[rank].node);
            self.boot(rank);
        }
    }

    pub fn replica(&self, rank: usize) -> Option<Rc<Replica>> {
        self.engines[rank].replica.borrow().upgrade()
    }

    /// The replica that leads in the latest term of those that believe that they lead.
    pub fn leader(&self) -> Option<(usize, Rc<Replica>, Leadership)> {
        let leading = (0..self.members()).filter_map(|rank| {
            let replica = self.replica(rank)?;
            let leadership = replica.leadership()?;
            Some((rank, replica, leadership))
        });
        leading.max_by_key(|(_, _, leadership)| leadership.term)
    }

    /// Lets a leader come up that is none of `but`. Returns how long that took.
    pub fn await_leader(&self, but: &[usize]) -> Duration {
        let began = self.world.now();
        loop {
            if self.leader().is_some_and(|(rank, ..)| !but.contains(&rank)) {
                return self.world.now().saturating_duration_since(began);
            }
            self.world.run_for(STEP);
            let waited = self.world.now().saturating_duration_since(began);
            assert!(waited < Duration::from_mins(1), "seed {}: there is no leader", self.world.seed());
        }
    }

    /// What a replica's state is.
    pub fn state(&self, rank: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        let shard = self.engines[rank].shard.borrow().clone().expect("it is up");
        weir_raft::load_scope(&shard, STATE)
    }

    /// Brings everything back and waits until all replicas have the same state.
    pub fn bring_back(&self) {
        self.fabric.heal();
        self.fabric.configure(|config| {
            config.loss = 0.0;
            config.duplicate = 0.0;
        });
        for rank in 0..self.members() {
            self.restart(rank);
        }
        for _ in 0..600 {
            self.world.run_for(Duration::from_millis(100));
            let up = (0..self.members()).all(|rank| self.replica(rank).is_some());
            if up
                && self.leader().is_some()
                && (1..self.members()).all(|rank| self.state(rank) == self.state(0))
            {
                return;
            }
        }
        panic!("seed {}: replicas differ", self.world.seed());
    }
}
