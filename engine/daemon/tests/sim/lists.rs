//! The list of pools while engines are away or lose what they have.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_management::{Failure, v1};
use weir_media::sim::CrashKeeps;
use weir_proto::Der;

use crate::cluster::{Cluster, SHARE_BYTES, Shape};

pub const SHAPE: Shape = Shape { engines: 3, targets: 1, clients: 0 };

/// Longest time until as many engines keep the list as are wanted.
const FORMED: Duration = Duration::from_secs(8);

fn listed(cluster: &Cluster, rank: u32) -> Result<BTreeMap<String, String>, Failure> {
    let answer: v1::PoolListResponse = cluster.manage(rank, "Pools/List", &v1::PoolListRequest {})?;
    Ok(answer.pools.into_iter().map(|pool| (pool.label, pool.uuid)).collect())
}

/// Asks for a pool on some engines until an engine answers, and returns its identity.
fn create(cluster: &Cluster, asked: u32, label: &str, ranks: &[u32]) -> String {
    let request = v1::PoolCreateRequest {
        label: label.to_owned(),
        size_bytes: ranks.len() as u64 * SHARE_BYTES,
        ranks: ranks.to_vec(),
        ..v1::PoolCreateRequest::default()
    };
    for _ in 0..20 {
        match cluster.manage::<_, v1::PoolCreateResponse>(asked, "Pools/Create", &request) {
            Ok(created) => return created.pool.expect("an answer").uuid,
            Err(error) if matches!(error.der, Der::INPROGRESS | Der::NOTLEADER | Der::UNREACH) => {
                cluster.world.run_for(Duration::from_secs(1));
            }
            Err(error) => panic!("seed {}: {error}", cluster.world.seed()),
        }
    }
    panic!("seed {}: pool {label} is never created", cluster.world.seed());
}

fn destroy(cluster: &Cluster, asked: u32, label: &str) {
    let request = v1::PoolDestroyRequest { pool: label.to_owned(), force: true };
    for _ in 0..20 {
        if cluster.manage::<_, v1::PoolDestroyResponse>(asked, "Pools/Destroy", &request).is_ok() {
            return;
        }
        cluster.world.run_for(Duration::from_secs(1));
    }
    panic!("seed {}: pool {label} is never destroyed", cluster.world.seed());
}

/// Each engine in turn dies at some step of a creation, whether it answers for the list or not. The others go on without it.
pub fn any_engine_is_away(seed: u64) {
    let cluster = Cluster::start(seed, SHAPE);
    // The list has an entry before there are replicas of it.
    let first = create(&cluster, 1, "first", &[0, 1, 2]);
    cluster.world.run_for(FORMED);
    for round in 0..3_u32 {
        let victim = u32::try_from(cluster.world.rng().below(3)).expect("small");
        // The one with the only replica of the pool's service may be the victim: it is asked for by the list alone.
        let left: Vec<u32> = (0..3).filter(|rank| *rank != victim).collect();
        let (other, delay) = (cluster.clone(), Duration::from_micros(cluster.world.rng().below(30_000)));
        cluster.world.schedule(delay, move || other.crash(victim, CrashKeeps::Any));
        let label = format!("made-{round}");
        let made = create(&cluster, left[0], &label, &left);
        cluster.world.run_for(Duration::from_millis(40));
        let expected = BTreeMap::from([("first".to_owned(), first.clone()), (label.clone(), made)]);
        for rank in &left {
            let known = listed(&cluster, *rank);
            assert_eq!(
                known.expect("two engines are up"),
                expected,
                "seed {seed}, round {round}: rank {rank}"
            );
        }
        destroy(&cluster, left[1], &label);
        let gone = listed(&cluster, left[0]).expect("two engines are up");
        assert_eq!(gone.keys().collect::<Vec<_>>(), ["first"], "seed {seed}, round {round}");
        cluster.restart(victim);
        cluster.settle();
        cluster.world.run_for(FORMED);
        let known = listed(&cluster, victim).expect("all engines are up");
        assert_eq!(known.keys().collect::<Vec<_>>(), ["first"], "seed {seed}, round {round}");
    }
    // A late message of a leader that died has left nothing.
    cluster.world.run_for(Duration::from_secs(40));
    for rank in 0..3 {
        let pools = cluster.target(rank, 0).store().pools();
        let own = pools.iter().filter(|pool| pool.pool != weir_pool::SYSTEM_POOL).count();
        assert_eq!(own, 1, "seed {seed}: rank {rank}");
    }
}

/// Each engine in turn comes back with nothing. The others have the list, and it gets it again.
pub fn every_engine_loses_all(seed: u64) {
    let cluster = Cluster::start(seed, SHAPE);
    let made = create(&cluster, 2, "first", &[0, 1, 2]);
    cluster.world.run_for(FORMED);
    for rank in 0..3 {
        cluster.crash(rank, CrashKeeps::Any);
        cluster.world.run_for(Duration::from_millis(cluster.world.rng().below(3000)));
        cluster.return_empty(rank);
        cluster.settle();
        let known = listed(&cluster, rank).expect("two others have it");
        assert_eq!(known.get("first"), Some(&made), "seed {seed}: rank {rank}");
        cluster.world.run_for(FORMED);
    }
    assert_eq!(listed(&cluster, 0).expect("all are up").get("first"), Some(&made), "seed {seed}");
}

/// The only engine with the list comes back with nothing: the other one knows the pools that it has a part of.
pub fn the_only_keeper_loses_all(seed: u64) {
    let cluster = Cluster::start(seed, Shape { engines: 2, ..SHAPE });
    let made = create(&cluster, 1, "first", &[0, 1]);
    cluster.crash(0, CrashKeeps::Any);
    cluster.world.run_for(Duration::from_secs(seed % 10));
    cluster.return_empty(0);
    cluster.settle();
    cluster.world.run_for(FORMED);
    for rank in 0..2 {
        let known = listed(&cluster, rank).expect("both are up");
        assert_eq!(known, BTreeMap::from([("first".to_owned(), made.clone())]), "seed {seed}: rank {rank}");
    }
}
