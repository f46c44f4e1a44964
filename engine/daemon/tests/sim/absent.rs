//! Pools that are resized and destroyed while an engine is away or a device out of service.

use std::time::Duration;

use weir_client::{Pool, Rights};
use weir_management::v1;
use weir_media::sim::{CrashKeeps, SimDiskOptions};
use weir_proto::Der;

use crate::cluster::{Cluster, SHARE_BYTES, Shape};

/// Longest time until an engine that is back has heard of what it has missed: two rounds of the directory, each with an
/// engine that may not answer in time.
const HEARD: Duration = Duration::from_secs(40);

/// Bytes of a pool on each target after it has grown.
const LARGER: u64 = SHARE_BYTES + (8 << 20);

const SHAPE: Shape = Shape { engines: 3, targets: 2, clients: 1 };

fn resize(
    cluster: &Cluster,
    pool: &str,
    share: u64,
) -> Result<v1::PoolResizeResponse, weir_management::Failure> {
    let targets = u64::from(SHAPE.engines * SHAPE.targets);
    let request = v1::PoolResizeRequest { pool: pool.to_owned(), size_bytes: targets * share };
    cluster.manage(0, "Pools/Resize", &request)
}

fn destroy(cluster: &Cluster, pool: &str) -> Result<v1::PoolDestroyResponse, weir_management::Failure> {
    let request = v1::PoolDestroyRequest { pool: pool.to_owned(), force: true };
    cluster.manage(0, "Pools/Destroy", &request)
}

fn labels(cluster: &Cluster) -> Vec<String> {
    let listed: v1::PoolListResponse =
        cluster.manage(0, "Pools/List", &v1::PoolListRequest {}).expect("engine 0 is up");
    listed.pools.into_iter().map(|pool| pool.label).collect()
}

/// Sizes of the pools on a target, but for the system's.
fn shares(cluster: &Cluster, rank: u32, target: usize) -> Vec<u64> {
    let pools = cluster.target(rank, target).store().pools();
    let mut shares: Vec<u64> =
        pools.iter().filter(|pool| pool.pool != weir_pool::SYSTEM_POOL).map(|pool| pool.size).collect();
    shares.sort_unstable();
    shares
}

/// An engine that still holds what is left of a destroyed pool leads nobody there, but to the pool that has its label
/// now.
fn leads_to(cluster: &Cluster, pool: &'static str, uuid: &str) {
    let request = v1::PoolQueryRequest { pool: pool.to_owned() };
    let answer: v1::PoolQueryResponse = cluster.manage(2, "Pools/Query", &request).expect("it is asked");
    assert_eq!(answer.pool.expect("an answer").uuid, uuid);
    let context = cluster.context(cluster.admin(), Duration::from_secs(10));
    let connected = async move { Pool::connect(&context, pool, Rights::READ).await.map(|pool| pool.id()) };
    let connected = cluster.world.block_on(cluster.admin(), connected).expect("engines are up");
    assert_eq!(connected.to_string(), uuid);
}

/// What is up has the new sizes at once, and what was away when it is back, also when the directory was away meanwhile.
pub fn follow_when_they_are_back(seed: u64) {
    let cluster = Cluster::start(seed, SHAPE);
    for pool in ["tank", "old"] {
        cluster.create_pool(pool);
    }
    cluster.crash(2, CrashKeeps::Everything);
    // Also before it is known that the engine is gone.
    cluster.world.run_for(Duration::from_secs(10 * (seed % 3)));
    resize(&cluster, "tank", LARGER).expect("two engines are up");
    destroy(&cluster, "old").expect("two engines are up");
    assert_eq!(labels(&cluster), ["tank"]);
    let again = v1::PoolCreateRequest {
        size_bytes: 4 * SHARE_BYTES,
        ranks: vec![0, 1],
        ..cluster.pool_request("old")
    };
    let made: v1::PoolCreateResponse =
        cluster.manage(0, "Pools/Create", &again).expect("the label is free, and the room");
    let made = made.pool.expect("an answer");
    for (rank, target) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        assert_eq!(shares(&cluster, rank, target), [SHARE_BYTES, LARGER], "seed {seed}: rank {rank}");
    }
    if seed.is_multiple_of(2) {
        cluster.crash(0, CrashKeeps::Nothing);
        cluster.world.run_for(Duration::from_secs(1));
        cluster.restart(0);
        cluster.settle();
        cluster.world.run_for(Duration::from_secs(1));
    }
    cluster.restart(2);
    cluster.settle();
    let held = shares(&cluster, 2, 0);
    // It has heard of the destruction, of the size, of both or of neither.
    let possible: [&[u64]; 4] =
        [&[SHARE_BYTES, SHARE_BYTES], &[SHARE_BYTES, LARGER], &[SHARE_BYTES], &[LARGER]];
    assert!(possible.contains(&held.as_slice()), "seed {seed}: {held:?}");
    leads_to(&cluster, "old", &made.uuid);
    cluster.world.run_for(HEARD);
    for target in 0..2 {
        assert_eq!(shares(&cluster, 2, target), [LARGER], "seed {seed}: target {target}");
    }
    for (rank, target) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        assert_eq!(shares(&cluster, rank, target), [SHARE_BYTES, LARGER], "seed {seed}: rank {rank}");
    }
    assert_eq!(labels(&cluster), ["old", "tank"]);
}

/// The same with a target whose device is faulty, until an operator says that it is good.
pub fn follow_when_their_device_is_good(seed: u64) {
    let cluster = Cluster::start(seed, SHAPE);
    for pool in ["tank", "old"] {
        cluster.create_pool(pool);
    }
    cluster.disk((1, 1)).set_options(SimDiskOptions { error_probability: 1.0, ..SimDiskOptions::default() });
    // Whoever meets the fault first may be refused.
    if resize(&cluster, "tank", LARGER).is_err() {
        cluster.world.run_for(Duration::from_secs(10));
        resize(&cluster, "tank", LARGER).expect("the others are well");
    }
    destroy(&cluster, "old").expect("the others are well");
    assert_eq!(labels(&cluster), ["tank"]);
    for (rank, target) in [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)] {
        assert_eq!(shares(&cluster, rank, target), [LARGER], "seed {seed}: target {target} of rank {rank}");
    }
    cluster.disk((1, 1)).set_options(SimDiskOptions::default());
    let clear = v1::ClearDeviceRequest { rank: 1, target: 1 };
    let _: v1::ClearDeviceResponse = cluster.manage(0, "System/ClearDevice", &clear).expect("engine 1 is up");
    cluster.crash(1, CrashKeeps::Everything);
    cluster.restart(1);
    cluster.settle();
    cluster.world.run_for(HEARD);
    assert_eq!(shares(&cluster, 1, 1), [LARGER], "seed {seed}");
}

/// Where nobody can be told, nothing is done; and a pool that may have containers isn't destroyed while its service is
/// away.
pub fn are_refused_where_nobody_answers(seed: u64) {
    let cluster = Cluster::start(seed, SHAPE);
    let far =
        v1::PoolCreateRequest { size_bytes: 2 * SHARE_BYTES, ranks: vec![2], ..cluster.pool_request("far") };
    let _: v1::PoolCreateResponse = cluster.manage(0, "Pools/Create", &far).expect("room for a pool");
    cluster.crash(2, CrashKeeps::Everything);
    let refused = resize(&cluster, "far", LARGER).expect_err("its only engine is away");
    assert_eq!(refused.der, Der::UNREACH, "{refused}");
    let gentle = v1::PoolDestroyRequest { pool: "far".to_owned(), force: false };
    let refused = cluster.manage::<_, v1::PoolDestroyResponse>(0, "Pools/Destroy", &gentle);
    assert_eq!(refused.expect_err("nobody knows whether it is empty").der, Der::UNREACH);
    cluster.restart(2);
    cluster.settle();
    cluster.world.run_for(HEARD);
    assert_eq!(shares(&cluster, 2, 0), [SHARE_BYTES], "seed {seed}: it has its old size");
    assert_eq!(labels(&cluster), ["far"]);
}
