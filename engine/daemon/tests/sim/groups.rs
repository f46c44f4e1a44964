//! Lists of engines that differ, and what goes over a tree of engines.

use std::time::Duration;

use weir_management::v1;
use weir_media::sim::CrashKeeps;
use weir_proto::group::MemberState;

use crate::cluster::{Cluster, SHARE_BYTES, Shape};

/// Until everybody has heard of a new list: some periods of the membership protocol.
const HEARD: Duration = Duration::from_secs(10);

fn versions(cluster: &Cluster, ranks: &[u32]) -> Vec<u64> {
    let version = |rank: &u32| {
        let target = cluster.target(*rank, 0);
        target.roster().version()
    };
    ranks.iter().map(version).collect()
}

fn alive_at(cluster: &Cluster, rank: u32) -> usize {
    let target = cluster.target(rank, 0);
    let members = target.membership().expect("target 0 takes part").members();
    members.iter().filter(|member| member.state == MemberState::Alive).count()
}

/// Three engines that know of each other, and a fourth that knows of all: everybody gets to know of it, without a restart, and
/// pools are made on it.
pub fn grow(seed: u64) {
    let cluster = Cluster::start_some(seed, Shape { engines: 4, targets: 2, clients: 1 }, 3);
    let first: v1::PoolCreateResponse = cluster
        .manage(
            1,
            "Pools/Create",
            &v1::PoolCreateRequest {
                label: "first".to_owned(),
                size_bytes: 6 * SHARE_BYTES,
                ..v1::PoolCreateRequest::default()
            },
        )
        .expect("room on three engines");
    assert_eq!(first.pool.expect("an answer").ranks, [0, 1, 2]);
    assert_eq!(versions(&cluster, &[0, 1, 2]), [3, 3, 3]);
    cluster.list(4);
    cluster.boot(3);
    cluster.settle();
    cluster.world.run_for(HEARD);
    assert_eq!(versions(&cluster, &[0, 1, 2, 3]), [4, 4, 4, 4], "seed {seed}");
    for rank in 0..4 {
        assert_eq!(alive_at(&cluster, rank), 4, "seed {seed}: as rank {rank} sees it");
    }
    let adopted: u64 = (0..3).map(|rank| cluster.target(rank, 0).roster().adopted()).sum();
    assert_eq!(adopted, 3, "seed {seed}: each took the list over once");
    let second: v1::PoolCreateResponse = cluster
        .manage(2, "Pools/Create", &cluster.pool_request("second"))
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert_eq!(second.pool.expect("an answer").ranks, [0, 1, 2, 3]);
    let refused: u64 = (0..4).map(|rank| cluster.target(rank, 0).roster().refused()).sum();
    assert!(refused > 0, "seed {seed}: somebody was told");
}

/// An engine restarts with a configuration from before a fourth engine came.
pub fn catch_up(seed: u64) {
    let cluster = Cluster::start(seed, Shape { engines: 4, targets: 2, clients: 1 });
    cluster.create_pool("tank");
    cluster.crash(1, CrashKeeps::Everything);
    cluster.world.run_for(Duration::from_millis(50));
    cluster.list(3);
    cluster.restart(1);
    cluster.settle();
    cluster.world.run_for(HEARD);
    assert_eq!(versions(&cluster, &[0, 1, 2, 3]), [4; 4], "seed {seed}");
    assert_eq!(alive_at(&cluster, 1), 4, "seed {seed}");
    // Requests of its target 1 make that one catch up, too.
    let query = v1::PoolQueryRequest { pool: "tank".to_owned() };
    let answer: v1::PoolQueryResponse = cluster.manage(1, "Pools/Query", &query).expect("all are up");
    let pool = answer.pool.expect("an answer");
    assert_eq!((pool.state(), pool.unreachable_ranks), (v1::PoolState::Ready, Vec::new()), "seed {seed}");
}

/// The space of a pool on eleven engines: of all, of those that are left at once after a crash of two inner nodes of the tree,
/// and when everybody knows of it, without waiting for them.
pub fn sum_around_the_dead(seed: u64) {
    let cluster = Cluster::start(seed, Shape { engines: 11, targets: 2, clients: 1 });
    cluster.create_pool("tank");
    let query = v1::PoolQueryRequest { pool: "tank".to_owned() };
    let ask = |from: u32| {
        let began = cluster.world.now();
        let answer: v1::PoolQueryResponse = cluster.manage(from, "Pools/Query", &query).expect("it answers");
        (answer.pool.expect("an answer"), cluster.world.now() - began)
    };
    let (whole, _) = ask(0);
    let service = whole.service_ranks[0];
    assert_eq!(whole.used_bytes + whole.free_bytes, 22 * SHARE_BYTES);
    assert_eq!(whole.unreachable_ranks, Vec::<u32>::new());
    // In the tree of the service's engine, the first behind it has others below.
    let gone = [(service + 1) % 11, (service + 4) % 11];
    for rank in gone {
        cluster.crash(rank, CrashKeeps::Everything);
    }
    let mut named = gone.to_vec();
    named.sort_unstable();
    let asked = if gone.contains(&0) { service } else { 0 };
    let (part, _) = ask(asked);
    assert_eq!(part.unreachable_ranks, named, "seed {seed}");
    assert_eq!(part.used_bytes + part.free_bytes, 18 * SHARE_BYTES, "seed {seed}");
    cluster.world.run_for(HEARD);
    let (part, took) = ask(asked);
    assert_eq!(part.unreachable_ranks, named, "seed {seed}");
    assert!(took < Duration::from_millis(200), "seed {seed}: nobody waits for the dead, but {took:?}");
}
