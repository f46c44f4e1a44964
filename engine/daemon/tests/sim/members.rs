//! Pools with a redundancy factor: engines go out of the map by themselves and come back, and what is read and written meanwhile is
//! linearizable.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use weir_client::{Conditions, ObjectClass, kind};
use weir_media::sim::CrashKeeps;
use weir_object::PlantedBug;
use weir_proto::pool::{PoolMap, TargetState};
use weir_runtime::sim::Node;

use crate::cluster::{Cluster, Shape};
use crate::history::History;
use crate::replicas::{below, other_engine, plant};
use crate::snapshots::service_rank;
use crate::workload::{self, Mix, Run};

pub const SHAPE: Shape = Shape { engines: 3, targets: 2, clients: 3 };

/// Longest time from the loss of an engine until every target and client goes by a map without it.
const KNOWN_MAX: Duration = Duration::from_secs(8);

/// Longest time from the beginning of a run until something happens.
const MOMENT_MAX_US: u64 = 3_000_000;

/// How far the monotonic clock of an engine is off, at most: two of them less than a tenth.
const RATE_MAX_PPM: u64 = 45_000;

/// A cluster with a pool that outlasts the loss of an engine, whose clocks run at different rates.
pub fn start(seed: u64) -> Cluster {
    let cluster = Cluster::start_drifting(seed, SHAPE, RATE_MAX_PPM);
    cluster.create_redundant_pool("tank", 1);
    cluster
}

pub fn class() -> ObjectClass {
    "RP_2G2".parse().expect("a registered name")
}

fn node(cluster: &Cluster, rank: u32) -> &Node {
    &cluster.engines[rank as usize].node
}

/// The map that a target goes by.
fn map_of(cluster: &Cluster, rank: u32, index: usize) -> PoolMap {
    let pools = cluster.target(rank, index).pools().clone();
    pools.find("tank").expect("the pool").with_map(Clone::clone)
}

/// The states of an engine's targets, as a target has them.
fn states(map: &PoolMap, rank: u32) -> Vec<TargetState> {
    map.targets.iter().filter(|target| target.rank.0 == rank).map(|target| target.state).collect()
}

/// Checks that every target of the other engines goes by a map without an engine.
#[track_caller]
fn assert_out(cluster: &Cluster, victim: u32) {
    for rank in (0..SHAPE.engines).filter(|rank| *rank != victim) {
        for index in 0..SHAPE.targets as usize {
            let found = states(&map_of(cluster, rank, index), victim);
            assert_eq!(
                found,
                [TargetState::Down; 2],
                "seed {}: target {index} of {rank}",
                cluster.world.seed()
            );
        }
    }
}

pub fn begin(cluster: &Cluster, mix: Mix) -> (u32, Run) {
    let service = service_rank(cluster, "tank");
    // Each target has a lease.
    cluster.world.run_for(Duration::from_secs(2));
    let run = workload::start_in(cluster, "tank", mix, Some(class()));
    cluster.world.run_for(below(cluster, MOMENT_MAX_US));
    (service, run)
}

/// An engine is lost for good, and nobody says so.
pub fn lose_an_engine(cluster: &Cluster) -> History {
    let (service, run) = begin(cluster, Mix::Slow);
    let victim = other_engine(cluster, service);
    cluster.crash(victim, CrashKeeps::Any);
    cluster.world.run_for(KNOWN_MAX);
    assert_out(cluster, victim);
    run.finish(cluster)
}

/// An engine can't reach the service, or no engine at all, and its clients reach it. It is taken out, and is back when it reaches the
/// others.
pub fn cut_an_engine_off(cluster: &Cluster) -> History {
    let (service, run) = begin(cluster, Mix::Slow);
    let victim = other_engine(cluster, service);
    let last = SHAPE.engines - service - victim;
    match cluster.world.rng().below(3) {
        0 => cluster.fabric.partition(&[node(cluster, victim)], &[node(cluster, service)]),
        1 => cluster.fabric.partition_one_way(node(cluster, service), node(cluster, victim)),
        _ => {
            let others = [node(cluster, service), node(cluster, last)];
            cluster.fabric.partition(&[node(cluster, victim)], &others);
        }
    }
    cluster.world.run_for(Duration::from_secs(12));
    assert_out(cluster, victim);
    cluster.fabric.heal();
    cluster.world.run_for(Duration::from_secs(10));
    let found = states(&map_of(cluster, service, 0), victim);
    let is_back = |state: &TargetState| matches!(state, TargetState::Up | TargetState::UpIn);
    assert!(found.iter().all(is_back), "seed {}: {found:?}", cluster.world.seed());
    run.finish(cluster)
}

/// Whether a history shows that an engine which is cut off serves although its lease has ended.
pub fn shows_ignored_leases(cluster: &Cluster) -> bool {
    plant(cluster, PlantedBug::IgnoredLease);
    let (service, run) = begin(cluster, Mix::Apart);
    let victim = other_engine(cluster, service);
    let last = SHAPE.engines - service - victim;
    let others = [node(cluster, service), node(cluster, last)];
    cluster.fabric.partition(&[node(cluster, victim)], &others);
    // Who reads learns nothing of the map that the writers go by.
    cluster.fabric.partition(&[&cluster.clients[0]], &others);
    cluster.world.run_for(Duration::from_secs(15));
    cluster.fabric.heal();
    !run.finish(cluster).is_linearizable()
}

/// An engine is lost with all that it has, before or after the others have noticed, and returns empty.
pub fn return_empty(cluster: &Cluster) -> History {
    let (service, run) = begin(cluster, Mix::Slow);
    // The other one that isn't the first, which has the list of pools.
    let victim = (1..SHAPE.engines).find(|rank| *rank != service).expect("three engines");
    cluster.crash(victim, CrashKeeps::Any);
    cluster.world.run_for(below(cluster, 12_000_000));
    cluster.return_empty(victim);
    cluster.settle();
    cluster.world.run_for(Duration::from_secs(20));
    let seed = cluster.world.seed();
    for index in 0..SHAPE.targets as usize {
        let found = states(&map_of(cluster, victim, index), victim);
        let takes_writes = |state: &TargetState| state.takes_writes();
        assert!(found.iter().all(takes_writes), "seed {seed}: target {index} has {found:?}");
    }
    run.finish(cluster)
}

/// Two of three engines are away: not both are taken out of the map. It goes on when they are back.
pub fn wait_for_engines(cluster: &Cluster) -> History {
    let (service, run) = begin(cluster, Mix::Slow);
    let first = other_engine(cluster, service);
    let last = SHAPE.engines - service - first;
    for victim in [first, last] {
        cluster.crash(victim, CrashKeeps::Everything);
    }
    cluster.world.run_for(Duration::from_secs(20));
    let seed = cluster.world.seed();
    let map = map_of(cluster, service, 0);
    // One goes when it is noticed before the other.
    assert_eq!(
        map.in_service().count(),
        if map.down().next().is_some() { 2 } else { 3 },
        "seed {seed}: {map:?}"
    );
    let pools = cluster.target(service, 0).pools().clone();
    let pool = pools.find("tank").expect("the pool").id();
    // One replica of three can't lead: it would have to know what the others have.
    assert!(pools.own_service(pool).is_none(), "seed {seed}");
    cluster.restart(first);
    cluster.settle();
    cluster.world.run_for(Duration::from_secs(10));
    cluster.restart(last);
    cluster.settle();
    cluster.world.run_for(Duration::from_secs(10));
    run.finish(cluster)
}

/// Some engines crash one after another, and start again in that order.
pub fn crash_and_restart(cluster: &Cluster, victims: &[u32]) {
    for victim in victims {
        cluster.crash(*victim, CrashKeeps::Any);
        cluster.world.run_for(below(cluster, 30_000));
    }
    for victim in victims {
        cluster.world.run_for(below(cluster, 1_000_000));
        cluster.restart(*victim);
    }
    cluster.settle();
}

/// Engines stop and start again, one, two, or all of them.
pub fn restart_engines(cluster: &Cluster) -> History {
    let (service, run) = begin(cluster, Mix::Slow);
    let random = cluster.world.rng();
    let victims: Vec<u32> = match random.below(3) {
        0 => vec![other_engine(cluster, service)],
        1 => vec![service, other_engine(cluster, service)],
        _ => (0..SHAPE.engines).collect(),
    };
    crash_and_restart(cluster, &victims);
    cluster.world.run_for(Duration::from_secs(10));
    run.finish(cluster)
}

/// Longest time that one operation takes while an engine is lost, as its client sees it.
const READ_MAX: Duration = Duration::from_secs(2);
const WRITE_MAX: Duration = Duration::from_secs(10);

/// Keys that are written again and again, and as many that are only read.
const KEYS: u64 = 16;

/// Clients read and write again and again while an engine is lost: nothing fails, and none waits for long.
pub fn wait_for_the_map_alone(cluster: &Cluster) {
    let service = service_rank(cluster, "tank");
    cluster.world.run_for(Duration::from_secs(2));
    let context = cluster.context(cluster.admin(), Duration::from_secs(30));
    let (container, oid) = cluster.world.block_on(cluster.admin(), async move {
        let container = workload::make_container(&context, "tank", "box", 0).await.expect("no faults yet");
        let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("no faults yet");
        let oid = class().encode(oid, kind::KV_HASHED);
        let kv = workload::open(&container, oid);
        for key in KEYS..2 * KEYS {
            kv.put(&context, &key.to_le_bytes(), &[7; 100], Conditions::NONE).await.expect("no faults yet");
        }
        (container, oid)
    });
    let longest: Rc<Cell<[Duration; 2]>> = Rc::default();
    let counts: Rc<Cell<[u64; SHAPE.clients]>> = Rc::default();
    for (client, node) in cluster.clients.iter().enumerate() {
        let (context, longest) = (cluster.context(node, Duration::from_secs(30)), Rc::clone(&longest));
        let counts = Rc::clone(&counts);
        let kv = workload::open(&container, oid);
        node.handle().spawn(async move {
            for number in 0_u64.. {
                let is_write = usize::from(client > 0);
                let key = if is_write == 1 { number % KEYS } else { KEYS + number % KEYS }.to_le_bytes();
                let began = context.runtime().now();
                let done = if is_write == 1 {
                    kv.put(&context, &key, &[7; 100], Conditions::NONE).await
                } else {
                    kv.get(&context, &key).await.map(drop)
                };
                done.expect("one engine of three is lost");
                let mut all = longest.get();
                all[is_write] = all[is_write].max(context.runtime().now() - began);
                longest.set(all);
                let mut done = counts.get();
                done[client] += 1;
                counts.set(done);
                context.runtime().sleep(Duration::from_millis(20)).await;
            }
        });
    }
    cluster.world.run_for(below(cluster, MOMENT_MAX_US));
    let before = longest.replace(Default::default());
    cluster.crash(other_engine(cluster, service), CrashKeeps::Any);
    cluster.world.run_for(Duration::from_secs(20));
    let [read, write] = longest.get();
    let before_the_end = counts.get();
    cluster.world.run_for(Duration::from_secs(1));
    let goes_on = counts.get().iter().zip(before_the_end).all(|(now, before)| *now > before);
    assert!(goes_on, "seed {}: a client waits", cluster.world.seed());
    let seed = cluster.world.seed();
    assert!(read <= READ_MAX && write <= WRITE_MAX, "seed {seed}: {read:?} and {write:?}");
    assert!(write > before[1], "seed {seed}: nobody waited");
}
