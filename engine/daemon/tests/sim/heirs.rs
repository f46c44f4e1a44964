//! Engines that are lost for good: others get their places, and when they have all, the pool outlasts the next loss.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use weir_client::ObjectClass;
use weir_media::sim::CrashKeeps;
use weir_pool::{Condition, PoolService};
use weir_proto::pool::TargetState;
use weir_proto::{Epoch, Rank};

use crate::cluster::{Cluster, Shape};
use crate::rebuild;
use crate::replicas::below;
use crate::workload::{self, Mix};

pub const SHAPE: Shape = Shape { engines: 4, targets: 2, clients: 3 };

/// Longest time from the beginning of a run until an engine is lost.
const MOMENT_MAX_US: u64 = 3_000_000;

/// Longest time until an engine that is lost is out of the map.
pub const OUT_MAX: Duration = Duration::from_secs(10);

/// How long an engine that is out of the map is waited for, before others fill its places.
const PATIENCE: Duration = Duration::from_mins(10);

/// Longest time until others have its places.
pub const HEALED_MAX: Duration = Duration::from_mins(1);

/// Longest time that clients work.
pub const RUN_MAX: Duration = Duration::from_mins(2);

/// A cluster with a pool that outlasts the loss of an engine.
pub fn start(seed: u64) -> Cluster {
    let cluster = Cluster::start_drifting(seed, SHAPE, 45_000);
    cluster.create_redundant_pool("tank", 1);
    cluster
}

/// The same with five engines, two of which may be lost.
pub fn start_of_three(seed: u64) -> Cluster {
    let cluster = Cluster::start_drifting(seed, Shape { engines: 5, ..SHAPE }, 45_000);
    cluster.create_redundant_pool("tank", 2);
    cluster
}

/// A class that survives as many losses as the pool, of at most so many groups.
pub fn class(cluster: &Cluster, groups: u32) -> ObjectClass {
    let replicas = if cluster.shape.engines > SHAPE.engines { 3 } else { 2 };
    format!("RP_{replicas}G{groups}").parse().expect("a registered name")
}

/// The service of the pool, where it is led.
pub fn service(cluster: &Cluster) -> Option<(u32, Rc<PoolService>)> {
    let mut up = (0..cluster.shape.engines).filter(|rank| cluster.is_up(*rank) && cluster.is_serving(*rank));
    up.find_map(|rank| {
        let pools = cluster.target(rank, 0).pools().clone();
        let pool = pools.find("tank")?.id();
        Some((rank, pools.own_service(pool)?))
    })
}

/// Waits for something that comes in the end.
#[track_caller]
pub fn wait_for(cluster: &Cluster, most: Duration, what: &str, is_so: impl Fn() -> bool) {
    let mut left = most;
    while !is_so() {
        let step = Duration::from_millis(100);
        let known = || service(cluster).map(|(_, service)| service.pool().map(|record| record.map));
        left = left
            .checked_sub(step)
            .unwrap_or_else(|| panic!("seed {}: {what}: {:?}", cluster.world.seed(), known()));
        cluster.world.run_for(step);
    }
}

/// Whether all targets that are up have an engine's targets in a state.
pub fn all_see(cluster: &Cluster, victim: u32, state: TargetState) -> bool {
    let up = (0..cluster.shape.engines).filter(|rank| *rank != victim && cluster.is_up(*rank));
    up.flat_map(|rank| (0..cluster.shape.targets as usize).map(move |index| (rank, index))).all(
        |(rank, index)| {
            cluster.target(rank, index).pools().find("tank").is_some_and(|pool| {
                pool.with_map(|map| {
                    map.targets.iter().filter(|one| one.rank == Rank(victim)).all(|one| one.state == state)
                })
            })
        },
    )
}

pub fn condition(cluster: &Cluster) -> Option<Condition> {
    let (_, service) = service(cluster)?;
    service.health().expect("it lives").map(|health| health.condition)
}

/// Loses an engine, and has others get its places; perhaps another engine starts again in the middle.
fn lose_for_good(cluster: &Cluster, victim: u32) {
    cluster.crash(victim, CrashKeeps::Any);
    wait_for(cluster, OUT_MAX, "it stays in the map", || all_see(cluster, victim, TargetState::Down));
    let (leader, service) = service(cluster).expect("most replicas are up");
    let node = &cluster.engines[leader as usize].node;
    cluster.world.block_on(node, async move {
        service.expel(Rank(victim)).await.expect("the pool can do without it");
    });
    if cluster.world.rng().below(3) == 0 {
        cluster.world.run_for(below(cluster, 1_000_000));
        let others: Vec<u32> =
            (0..cluster.shape.engines).filter(|rank| *rank != victim && *rank != leader).collect();
        let which = usize::try_from(cluster.world.rng().below(others.len() as u64)).expect("few engines");
        cluster.crash(others[which], CrashKeeps::Any);
        cluster.world.run_for(below(cluster, 3_000_000));
        cluster.restart(others[which]);
        cluster.settle();
    }
    wait_for(cluster, HEALED_MAX, "others don't get its places", || {
        all_see(cluster, victim, TargetState::DownOut)
    });
    wait_for(cluster, HEALED_MAX, "it doesn't get healthy", || {
        condition(cluster) == Some(Condition::Healthy)
    });
}

/// An engine is lost for good, others get its places, and then another one is lost: nothing is.
pub fn outlast_one_loss_after_the_other(cluster: &Cluster) {
    let seed = cluster.world.seed();
    let class = class(cluster, if cluster.world.rng().below(2) == 0 { 2 } else { 4 });
    let run = workload::start_in(cluster, "tank", Mix::Slow, Some(class));
    cluster.world.run_for(below(cluster, MOMENT_MAX_US));
    let (leader, leading) = service(cluster).expect("all are up");
    let replicas: BTreeSet<u32> =
        leading.pool().expect("it lives").replicas().into_iter().map(|rank| rank.0).collect();
    drop(leading);
    let first = crate::replicas::other_engine(cluster, leader);
    lose_for_good(cluster, first);
    wait_for(cluster, RUN_MAX, "the clients don't end", || run.is_finished());
    // What the last of them have changed is told to all members.
    cluster.world.run_for(Duration::from_secs(1));
    rebuild::assert_equal_among(cluster, leader, Epoch::MAX);
    // Most of the service's replicas have to stay.
    let may_go = |rank: &u32| {
        *rank != leader && *rank != first && !(replicas.contains(&first) && replicas.contains(rank))
    };
    if let Some(second) = (0..cluster.shape.engines).find(may_go) {
        cluster.crash(second, CrashKeeps::Any);
        wait_for(cluster, OUT_MAX, "the second stays in the map", || {
            all_see(cluster, second, TargetState::Down)
        });
    }
    run.finish(cluster).check(seed);
}

/// An engine is lost, and with it a replica of the pool's service; another one that starts again meanwhile then keeps its leases.
pub fn start_again_while_a_replica_is_away(cluster: &Cluster) {
    let class: ObjectClass = "RP_2G4".parse().expect("a registered name");
    let run = workload::start_in(cluster, "tank", Mix::Slow, Some(class));
    cluster.world.run_for(below(cluster, MOMENT_MAX_US));
    let (leader, leading) = service(cluster).expect("all are up");
    let replicas = leading.pool().expect("it lives").replicas();
    let away = replicas.iter().map(|rank| rank.0).find(|rank| *rank != leader).expect("there are three");
    let again =
        (0..cluster.shape.engines).find(|rank| ![leader, away].contains(rank)).expect("there are four");
    cluster.crash(away, CrashKeeps::Any);
    wait_for(cluster, OUT_MAX, "it stays in the map", || all_see(cluster, away, TargetState::Down));
    cluster.crash(again, CrashKeeps::Any);
    cluster.world.run_for(Duration::from_secs(1));
    cluster.restart(again);
    cluster.settle();
    let step = Duration::from_millis(500);
    cluster.world.run_for(10 * step);
    for _ in 0..60 {
        assert_ne!(condition(cluster), Some(Condition::Unavailable), "seed {}", cluster.world.seed());
        cluster.world.run_for(step);
    }
    wait_for(cluster, RUN_MAX, "the clients don't end", || run.is_finished());
}

/// An engine stays away until others fill its places, and comes back in the middle: it keeps them, or gets them back.
pub fn come_back_while_others_fill(cluster: &Cluster) {
    let seed = cluster.world.seed();
    let class: ObjectClass = "RP_2G4".parse().expect("a registered name");
    let run = workload::start_in(cluster, "tank", Mix::All, Some(class));
    let (leader, leading) = service(cluster).expect("all are up");
    let victim = crate::replicas::other_engine(cluster, leader);
    wait_for(cluster, RUN_MAX, "the clients don't end", || run.is_finished());
    cluster.crash(victim, CrashKeeps::Any);
    wait_for(cluster, OUT_MAX, "it stays in the map", || all_see(cluster, victim, TargetState::Down));
    let moves = || leading.pool().expect("it lives").map.moves_since().is_some();
    wait_for(cluster, 2 * PATIENCE, "it is waited for", moves);
    cluster.world.run_for(below(cluster, 1_500_000));
    cluster.restart(victim);
    cluster.settle();
    let is_back = || all_see(cluster, victim, TargetState::UpIn);
    wait_for(cluster, HEALED_MAX, "it doesn't get its places back", is_back);
    wait_for(cluster, HEALED_MAX, "it doesn't get healthy", || {
        condition(cluster) == Some(Condition::Healthy)
    });
    assert!(!moves(), "seed {seed}");
    rebuild::assert_equal_among(cluster, leader, Epoch::MAX);
    run.finish(cluster).check(seed);
}
