//! Places that go from engines which go on serving: back to engines that others had stood in for, and away from those that are drained.

use std::rc::Rc;
use std::time::Duration;

use weir_client::ObjectClass;
use weir_media::sim::CrashKeeps;
use weir_pool::{Condition, Failed, PoolService};
use weir_proto::pool::TargetState;
use weir_proto::{Epoch, Rank};

use crate::cluster::Cluster;
use crate::heirs::{HEALED_MAX, OUT_MAX, RUN_MAX, SHAPE, all_see, class, condition, service, wait_for};
use crate::rebuild;
use crate::replicas::below;
use crate::transactions;
use crate::workload::{self, Mix};

/// Longest time from the beginning of a run until an engine is lost or drained.
const MOMENT_MAX_US: u64 = 2_000_000;

/// Longest time until another engine is lost while places move, and until it starts again.
const AGAIN_MAX_US: u64 = 4_000_000;

/// Longest pause of clients between two transactions.
const PAUSE_MAX_US: u64 = 900_000;

/// Has the service of the pool do something, again when its leader is lost meanwhile.
pub fn ask(cluster: &Cluster, work: impl AsyncFn(&PoolService) -> Result<(), Failed> + 'static) {
    let work = Rc::new(work);
    for _ in 0..100 {
        let Some((leader, service)) = service(cluster) else {
            cluster.world.run_for(Duration::from_millis(200));
            continue;
        };
        let work = Rc::clone(&work);
        let node = &cluster.engines[leader as usize].node;
        let done = cluster.world.block_on(node, async move { work(&service).await });
        match done {
            Ok(()) => return,
            Err(error) => {
                assert!(!matches!(error, Failed::Invalid { .. }), "seed {}: {error}", cluster.world.seed());
                cluster.world.run_for(Duration::from_millis(500));
            }
        }
    }
    panic!("seed {}: the pool's service does not do it", cluster.world.seed());
}

/// Takes an engine out for good, and waits until others have its places.
fn exclude(cluster: &Cluster, victim: u32) {
    cluster.crash(victim, CrashKeeps::Any);
    wait_for(cluster, OUT_MAX, "it stays in the map", || all_see(cluster, victim, TargetState::Down));
    ask(cluster, async move |service| service.expel(Rank(victim)).await);
    wait_out(cluster, victim);
}

fn wait_out(cluster: &Cluster, victim: u32) {
    wait_for(cluster, HEALED_MAX, "others don't get its places", || {
        all_see(cluster, victim, TargetState::DownOut)
    });
}

/// Wants an engine back, and waits until it has its places.
fn take_back(cluster: &Cluster, victim: u32) {
    ask(cluster, async move |service| service.reintegrate(Rank(victim)).await);
    disturb(cluster);
    wait_for(cluster, HEALED_MAX, "it doesn't get its places back", || {
        all_see(cluster, victim, TargetState::UpIn)
    });
    wait_healthy(cluster);
}

fn wait_healthy(cluster: &Cluster) {
    wait_for(cluster, HEALED_MAX, "it doesn't get healthy", || {
        condition(cluster) == Some(Condition::Healthy)
    });
}

/// In two of three runs one engine or two start again in the middle of what moves, one after the other.
fn disturb(cluster: &Cluster) {
    for _ in 0..cluster.world.rng().below(3) {
        cluster.world.run_for(below(cluster, AGAIN_MAX_US));
        let rank =
            u32::try_from(cluster.world.rng().below(u64::from(cluster.shape.engines))).expect("few engines");
        cluster.crash(rank, CrashKeeps::Any);
        cluster.world.run_for(below(cluster, 2 * AGAIN_MAX_US));
        cluster.restart(rank);
        cluster.settle();
    }
}

fn engine(cluster: &Cluster) -> u32 {
    u32::try_from(cluster.world.rng().below(u64::from(cluster.shape.engines))).expect("few engines")
}

/// Loses an engine of the pool: all is there without it.
fn outlast(cluster: &Cluster, rank: u32) {
    cluster.crash(rank, CrashKeeps::Any);
    wait_for(cluster, OUT_MAX, "the next one stays in the map", || all_see(cluster, rank, TargetState::Down));
}

fn some_class(cluster: &Cluster) -> ObjectClass {
    class(cluster, [1, 2, 4][usize::try_from(cluster.world.rng().below(3)).expect("small")])
}

/// An engine is taken out, returns with old data or with none, and gets its places back, while clients work and engines start again. Then
/// another one is lost.
pub fn give_places_back(cluster: &Cluster) {
    let seed = cluster.world.seed();
    let class = some_class(cluster);
    let run = workload::start_in(cluster, "tank", Mix::Long, Some(class));
    cluster.world.run_for(below(cluster, MOMENT_MAX_US));
    let victim = 1 + u32::try_from(cluster.world.rng().below(3)).expect("small");
    exclude(cluster, victim);
    if cluster.world.rng().below(2) == 0 {
        cluster.restart(victim);
    } else {
        cluster.return_empty(victim);
    }
    cluster.settle();
    cluster.world.run_for(below(cluster, MOMENT_MAX_US));
    assert!(all_see(cluster, victim, TargetState::DownOut), "seed {seed}: it comes back by itself");
    take_back(cluster, victim);
    wait_for(cluster, RUN_MAX, "the clients don't end", || run.is_finished());
    cluster.world.run_for(Duration::from_secs(2));
    rebuild::assert_equal_among(cluster, victim, Epoch::MAX);
    rebuild::assert_nothing_elsewhere(cluster, victim);
    let next = (0..cluster.shape.engines).find(|rank| *rank != victim && *rank != 0).expect("four engines");
    outlast(cluster, next);
    run.finish(cluster).check(seed);
}

/// An engine is drained, in the end or until it is wanted back, while clients work and engines start again. Then it is taken back in.
pub fn drain_and_take_back(cluster: &Cluster) {
    let seed = cluster.world.seed();
    let class = some_class(cluster);
    let run = workload::start_in(cluster, "tank", Mix::Long, Some(class));
    cluster.world.run_for(below(cluster, MOMENT_MAX_US));
    let victim = engine(cluster);
    ask(cluster, async move |service| service.drain(Rank(victim)).await);
    let is_called_off = cluster.world.rng().below(4) == 0;
    if is_called_off {
        cluster.world.run_for(below(cluster, MOMENT_MAX_US));
    } else {
        disturb(cluster);
        wait_out(cluster, victim);
        wait_healthy(cluster);
        cluster.world.run_for(Duration::from_secs(2));
        assert!(all_see(cluster, victim, TargetState::DownOut), "seed {seed}: it comes back by itself");
    }
    take_back(cluster, victim);
    wait_for(cluster, RUN_MAX, "the clients don't end", || run.is_finished());
    cluster.world.run_for(Duration::from_secs(2));
    rebuild::assert_equal_among(cluster, victim, Epoch::MAX);
    run.finish(cluster).check(seed);
}

/// Transactions go on while an engine is drained, or taken out, and gets its places back.
pub fn move_under_transactions(cluster: &Cluster) {
    let seed = cluster.world.seed();
    cluster.world.run_for(Duration::from_secs(2));
    let classes: &'static [&'static str] = if cluster.shape.engines > SHAPE.engines {
        &["RP_3G1", "RP_3G2", "RP_3G1"]
    } else {
        &["RP_2G1", "RP_2G2", "RP_2G1"]
    };
    let run = transactions::start_with_pauses(cluster, classes, PAUSE_MAX_US);
    cluster.world.run_for(below(cluster, MOMENT_MAX_US));
    let victim = 1 + u32::try_from(cluster.world.rng().below(3)).expect("small");
    if cluster.world.rng().below(2) == 0 {
        exclude(cluster, victim);
        cluster.restart(victim);
        cluster.settle();
    } else {
        ask(cluster, async move |service| service.drain(Rank(victim)).await);
        disturb(cluster);
        wait_out(cluster, victim);
    }
    take_back(cluster, victim);
    let ledger = run.finish(cluster);
    assert!(ledger.len() > 20, "seed {seed}: only {} were answered", ledger.len());
    ledger.check(seed);
    rebuild::assert_equal_among(cluster, victim, Epoch::MAX);
}
