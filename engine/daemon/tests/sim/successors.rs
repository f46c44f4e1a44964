//! Engines that take the place of others in the pool's service and in the list of pools: what has grown goes on with a full service when
//! those are lost that it was made with, one after another.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use weir_client::{Container, Pool, Rights};
use weir_management::v1;
use weir_media::sim::CrashKeeps;
use weir_pool::Condition;
use weir_proto::Rank;
use weir_proto::pool::TargetState;

use crate::cluster::{Cluster, SHARE_BYTES, Shape};
use crate::heirs::{HEALED_MAX, OUT_MAX, condition, service, wait_for};
use crate::moving::ask;
use crate::replicas::below;
use crate::services::properties;

/// Engines that pool and list begin with.
const ORIGINAL: u32 = 3;

const SHAPE: Shape = Shape { engines: 6, targets: 1, clients: 1 };

/// Longest time until an engine crashes at the change of the replicas, and until it is back.
const MOMENT_MAX_US: u64 = 2_000_000;

/// Until everybody has heard of new engines: some periods of the membership protocol.
const HEARD: Duration = Duration::from_secs(10);

/// How long an engine that keeps the list is waited for.
const LIST_PATIENCE: Duration = Duration::from_mins(10);

fn create(cluster: &Cluster, engines: u32) {
    let request = v1::PoolCreateRequest {
        label: "tank".to_owned(),
        size_bytes: u64::from(engines * cluster.shape.targets) * SHARE_BYTES,
        ranks: (0..engines).collect(),
        redundancy_factor: 1,
        ..v1::PoolCreateRequest::default()
    };
    let _: v1::PoolCreateResponse = cluster.manage(0, "Pools/Create", &request).expect("room for a pool");
}

/// Engines are added to the system, and join the pool if there is one.
fn add(cluster: &Cluster, from: u32) {
    cluster.list(cluster.shape.engines);
    for rank in from..cluster.shape.engines {
        cluster.boot(rank);
    }
    cluster.settle();
    cluster.world.run_for(HEARD);
}

fn extend(cluster: &Cluster, from: u32) {
    let ranks = (from..cluster.shape.engines).collect();
    let request = v1::PoolExtendRequest { pool: "tank".to_owned(), ranks, ..Default::default() };
    let _: v1::PoolExtendResponse = cluster.manage(1, "Pools/Extend", &request).expect("room on each");
    wait_healthy(cluster);
}

fn wait_healthy(cluster: &Cluster) {
    wait_for(cluster, 2 * HEALED_MAX, "it doesn't get healthy", || {
        condition(cluster) == Some(Condition::Healthy) && all_in_or_out(cluster)
    });
}

/// Whether each target serves, or is out and others have its places.
fn all_in_or_out(cluster: &Cluster) -> bool {
    let record = service(cluster).and_then(|(_, service)| service.pool().ok());
    record.is_some_and(|record| {
        let is_settled = |state| matches!(state, TargetState::UpIn | TargetState::DownOut);
        record.map.targets.iter().all(|target| is_settled(target.state))
    })
}

fn query(cluster: &Cluster) -> v1::PoolInfo {
    let asked = (0..cluster.shape.engines).find(|rank| cluster.is_up(*rank)).expect("most are up");
    let request = v1::PoolQueryRequest { pool: "tank".to_owned() };
    let answer: v1::PoolQueryResponse = cluster.manage(asked, "Pools/Query", &request).expect("it is led");
    answer.pool.expect("an answer")
}

/// The ranks of the pool's service, as `weir pool query` shows them, ascending.
fn service_ranks(cluster: &Cluster) -> Vec<u32> {
    let mut ranks = query(cluster).service_ranks;
    ranks.sort_unstable();
    ranks
}

/// The ranks that keep the list of pools, as `weir system query` shows them, ascending.
fn list_ranks(cluster: &Cluster) -> Vec<u32> {
    let asked = (0..cluster.shape.engines).find(|rank| cluster.is_up(*rank)).expect("most are up");
    let answer: v1::SystemQueryResponse =
        cluster.manage(asked, "System/Query", &v1::SystemQueryRequest {}).expect("it is up");
    let mut ranks = answer.list_ranks;
    ranks.sort_unstable();
    ranks
}

/// How many more failure domains may fail, by the pool's service.
fn survived(cluster: &Cluster) -> Option<u32> {
    let (_, service) = service(cluster)?;
    service.health().ok().flatten().map(|health| health.survives)
}

/// Has a client make containers all the time. Nothing fails, and all are there in the end.
struct Making {
    made: Rc<RefCell<BTreeSet<String>>>,
    goes_on: Rc<Cell<bool>>,
    is_running: Rc<Cell<bool>>,
}

impl Making {
    /// `reconnects`: for each container, as programs do that start one after another.
    fn start(cluster: &Cluster, reconnects: bool) -> Self {
        let making = Self {
            made: Rc::default(),
            goes_on: Rc::new(Cell::new(true)),
            is_running: Rc::new(Cell::new(true)),
        };
        let context = cluster.context(&cluster.clients[0], Duration::from_mins(2));
        let (made, goes_on, is_running) =
            (Rc::clone(&making.made), Rc::clone(&making.goes_on), Rc::clone(&making.is_running));
        cluster.clients[0].handle().spawn(async move {
            let rights = Rights::READ.union(Rights::WRITE).union(Rights::CREATE_CONTAINER);
            let mut pool = Pool::connect(&context, "tank", rights).await.expect("all are up");
            for number in 0_u64.. {
                if !goes_on.get() {
                    break;
                }
                if reconnects {
                    pool = Pool::connect(&context, "tank", rights).await.expect("the service is there");
                }
                let label = format!("box-{number}");
                Container::create(&context, &pool, properties(&label), true).await.expect("a replica leads");
                made.borrow_mut().insert(label);
                context.runtime().sleep(Duration::from_millis(500)).await;
            }
            is_running.set(false);
        });
        making
    }

    fn finish(self, cluster: &Cluster) {
        let seed = cluster.world.seed();
        self.goes_on.set(false);
        wait_for(cluster, Duration::from_mins(2), "the client doesn't end", || !self.is_running.get());
        let context = cluster.context(cluster.admin(), Duration::from_mins(1));
        let listed: BTreeSet<String> = cluster.world.block_on(cluster.admin(), async move {
            let pool = Pool::connect(&context, "tank", Rights::READ).await.expect("a replica leads");
            let found = pool.containers(&context).await.expect("a replica leads");
            found.into_iter().map(|info| info.properties.label).collect()
        });
        assert_eq!(listed, *self.made.borrow(), "seed {seed}");
    }
}

/// The engine that leads the service is lost, and another one leads. The first comes back.
fn lose_the_leader(cluster: &Cluster) {
    let (leader, _) = service(cluster).expect("one leads");
    cluster.crash(leader, CrashKeeps::Any);
    wait_for(cluster, OUT_MAX, "nobody else leads", || {
        service(cluster).is_some_and(|(other, _)| other != leader)
    });
    start_again(cluster, leader);
    wait_healthy(cluster);
}

/// Brings an engine back, and waits until the service knows.
fn start_again(cluster: &Cluster, rank: u32) {
    cluster.restart(rank);
    cluster.settle();
    cluster.world.run_for(HEARD);
}

/// Loses an engine for good. In two of three runs another one that lives crashes at the change of the replicas, often the one that leads.
fn give_up(cluster: &Cluster, victim: u32) {
    cluster.crash(victim, CrashKeeps::Any);
    let is_down = || {
        let record = service(cluster).and_then(|(_, service)| service.pool().ok());
        record.is_some_and(|record| {
            let mut own = record.map.targets.iter().filter(|target| target.rank == Rank(victim));
            own.all(|target| target.state.is_lost())
        })
    };
    wait_for(cluster, OUT_MAX + Duration::from_secs(5), "it stays in the map", is_down);
    ask(cluster, async move |service| service.expel(Rank(victim)).await);
    if cluster.world.rng().below(3) > 0 {
        cluster.world.run_for(below(cluster, MOMENT_MAX_US));
        let leader = service(cluster).map(|(leader, _)| leader);
        let any = u32::try_from(cluster.world.rng().below(u64::from(SHAPE.engines))).expect("few engines");
        let other = leader.filter(|_| cluster.world.rng().below(2) == 0).unwrap_or(any);
        if cluster.is_up(other) {
            cluster.crash(other, CrashKeeps::Any);
            cluster.world.run_for(below(cluster, 2 * MOMENT_MAX_US));
            start_again(cluster, other);
        }
    }
    wait_healthy(cluster);
}

/// A pool and a list that have grown from three engines to six lose two of the first three for good, one after another, and go on with a
/// full service. Who is back learns where that is, and takes no part.
pub fn stand_in_for_the_first_ones(seed: u64) {
    let cluster = Cluster::start_some_drifting(seed, SHAPE, 45_000, ORIGINAL);
    create(&cluster, ORIGINAL);
    let making = Making::start(&cluster, false);
    add(&cluster, ORIGINAL);
    extend(&cluster, ORIGINAL);
    assert_eq!(service_ranks(&cluster), [0, 1, 2], "seed {seed}: nobody is lost");
    let first = u32::try_from(cluster.world.rng().below(3)).expect("small");
    let second = (first + 1 + u32::try_from(cluster.world.rng().below(2)).expect("small")) % ORIGINAL;
    for (lost, victim) in [(1, first), (2, second)] {
        give_up(&cluster, victim);
        let is_full = || {
            let ranks = service_ranks(&cluster);
            ranks.len() == 3 && ranks.iter().all(|rank| cluster.is_up(*rank)) && survived(&cluster) == Some(1)
        };
        wait_for(&cluster, HEALED_MAX, "the service isn't full again", is_full);
        assert_eq!(query(&cluster).service_ranks.len(), 3, "seed {seed}: {lost} are lost");
    }
    // What is full can do without the next one.
    lose_the_leader(&cluster);
    making.finish(&cluster);
    returns(&cluster, first);
    let listed_by = list_ranks(&cluster);
    assert_eq!(listed_by.len(), 5, "seed {seed}: {listed_by:?}");
    cluster.world.run_for(LIST_PATIENCE + Duration::from_mins(1));
    let listed_by = list_ranks(&cluster);
    let living = (0..SHAPE.engines).filter(|rank| cluster.is_up(*rank)).collect::<Vec<_>>();
    assert_eq!(listed_by, living, "seed {seed}: the list is kept by those that live");
}

/// An engine that was given up is back, with what it had: it knows who runs the service, and replicates it no more.
fn returns(cluster: &Cluster, rank: u32) {
    cluster.restart(rank);
    cluster.settle();
    let knows = || {
        let pools = cluster.target(rank, 0).pools().clone();
        let Some(pool) = pools.find("tank") else { return false };
        let newest =
            service(cluster).and_then(|(_, service)| service.pool().ok()).map(|record| record.map.version);
        Some(pool.with_map(|map| map.version)) == newest && pools.replica(pool.id()).is_none()
    };
    wait_for(cluster, HEALED_MAX, "it goes by an old map", knows);
    let request = v1::PoolQueryRequest { pool: "tank".to_owned() };
    let answer: v1::PoolQueryResponse =
        cluster.manage(rank, "Pools/Query", &request).expect("it knows where");
    assert_eq!(answer.pool.expect("an answer").service_ranks.len(), 3);
}

/// The engine that leads the service is drained: another one leads, and a third one takes its place, before it is out.
pub fn stand_in_for_who_is_drained(seed: u64) {
    let shape = Shape { engines: 4, ..SHAPE };
    let cluster = Cluster::start(seed, shape);
    create(&cluster, 4);
    let making = Making::start(&cluster, false);
    cluster.world.run_for(Duration::from_secs(2));
    let (leader, _) = service(&cluster).expect("all are up");
    ask(&cluster, async move |service| service.drain(Rank(leader)).await);
    wait_for(&cluster, HEALED_MAX, "it stays a replica", || {
        service(&cluster).is_some() && {
            let ranks = service_ranks(&cluster);
            ranks.len() == 3 && !ranks.contains(&leader)
        }
    });
    wait_healthy(&cluster);
    wait_for(&cluster, HEALED_MAX, "the service isn't full again", || survived(&cluster) == Some(1));
    cluster.world.run_for(Duration::from_secs(2));
    let pools = cluster.target(leader, 0).pools().clone();
    let pool = pools.find("tank").expect("it has a part").id();
    assert!(pools.replica(pool).is_none(), "seed {seed}: it takes part");
    making.finish(&cluster);
}

/// A pool that was made on two engines has its service run by one. When a third one joins it, the service has three replicas; whoever
/// crashes in the middle.
pub fn stand_beside_the_only_one(seed: u64) {
    let shape = Shape { engines: 3, ..SHAPE };
    let cluster = Cluster::start_some_drifting(seed, shape, 45_000, 2);
    create(&cluster, 2);
    let making = Making::start(&cluster, true);
    add(&cluster, 2);
    assert_eq!((service_ranks(&cluster).len(), survived(&cluster)), (1, Some(0)), "seed {seed}");
    if cluster.world.rng().below(2) == 0 {
        let victim = u32::try_from(cluster.world.rng().below(3)).expect("small");
        let (other, delay) = (cluster.clone(), below(&cluster, 2 * MOMENT_MAX_US));
        cluster.world.schedule(delay, move || other.crash(victim, CrashKeeps::Any));
        let back = cluster.clone();
        cluster.world.schedule(delay + below(&cluster, MOMENT_MAX_US), move || back.restart(victim));
    }
    for _ in 0..30 {
        let request = v1::PoolExtendRequest { pool: "tank".to_owned(), ranks: vec![2], ..Default::default() };
        let asked =
            (0..3).find(|rank| cluster.is_up(*rank) && cluster.is_serving(*rank)).expect("one is lost");
        if cluster.manage::<_, v1::PoolExtendResponse>(asked, "Pools/Extend", &request).is_ok() {
            break;
        }
        cluster.world.run_for(Duration::from_secs(1));
    }
    cluster.world.run_for(Duration::from_micros(3 * MOMENT_MAX_US));
    cluster.settle();
    wait_for(&cluster, HEALED_MAX, "one engine runs the service", || {
        service(&cluster).is_some() && service_ranks(&cluster) == [0, 1, 2] && survived(&cluster) == Some(1)
    });
    wait_healthy(&cluster);
    lose_the_leader(&cluster);
    making.finish(&cluster);
}

/// The list of pools of a system that began with one engine is kept by three when there are three.
pub fn keep_the_list_of_a_system_that_grows(seed: u64) {
    let shape = Shape { engines: 3, ..SHAPE };
    let cluster = Cluster::start_some(seed, shape, 1);
    cluster.world.run_for(Duration::from_secs(5));
    assert_eq!(list_ranks(&cluster), [0], "seed {seed}");
    add(&cluster, 1);
    wait_for(&cluster, HEALED_MAX, "one engine keeps the list", || list_ranks(&cluster) == [0, 1, 2]);
    create(&cluster, 3);
    cluster.crash(0, CrashKeeps::Any);
    cluster.world.run_for(Duration::from_secs(5));
    let listed: v1::PoolListResponse =
        cluster.manage(1, "Pools/List", &v1::PoolListRequest {}).expect("two of three keep it");
    assert_eq!(listed.pools.len(), 1, "seed {seed}");
}
