//! Groups of three: what a lost leader has left at some of those that remain and not at others comes to all of them, or was
//! nowhere, whoever else is lost meanwhile.

use std::time::Duration;

use weir_client::ObjectClass;
use weir_media::sim::CrashKeeps;
use weir_object::PlantedBug;
use weir_proto::Epoch;

use crate::cluster::{Cluster, Shape};
use crate::history::History;
use crate::members::crash_and_restart;
use crate::rebuild::{difference_among, wait_until_whole};
use crate::replicas::{below, disturb, exclude, plant};
use crate::snapshots::service_rank;
use crate::transactions::{self, Ledger};
use crate::workload::{self, Mix};

pub const SHAPE: Shape = Shape { engines: 5, targets: 2, clients: 3 };

/// Longest time until an engine is lost, until the pool map says so, and for how long some don't hear from it before.
const LOST_MAX_US: u64 = 150_000;
const NOTICED_MAX_US: u64 = 300_000;
const UNHEARD_MAX_US: u64 = 20_000;

/// Longest time from the beginning of a run until something happens in a pool that looks after itself, and until the next thing does.
const MOMENT_MAX_US: u64 = 3_000_000;
const NEXT_MAX_US: u64 = 10_000_000;

/// Longest time from the loss of engines until all go by a map without them.
const KNOWN_MAX: Duration = Duration::from_secs(10);

/// How far clocks of engines are off.
const RATE_MAX_PPM: u64 = 45_000;

/// Longest pause of clients between two transactions.
const PAUSE_MAX_US: u64 = 700_000;

fn class(cluster: &Cluster) -> ObjectClass {
    let groups = 1 + cluster.world.rng().below(2);
    format!("RP_3G{groups}").parse().expect("a registered name")
}

/// A cluster with a pool that outlasts the loss of two engines, and so does its service. Their clocks run at different rates.
pub fn start(seed: u64) -> Cluster {
    start_some(seed, SHAPE.engines)
}

/// The same with four engines, where most replicas of the service have to come back.
pub fn start_four(seed: u64) -> Cluster {
    start_some(seed, 4)
}

fn start_some(seed: u64, engines: u32) -> Cluster {
    let cluster = Cluster::start_drifting(seed, Shape { engines, ..SHAPE }, RATE_MAX_PPM);
    cluster.create_redundant_pool("tank", 2);
    cluster
}

/// Some engines, in any order, of those that a test may lose.
fn some(cluster: &Cluster, of: impl Fn(&u32) -> bool, most: usize) -> Vec<u32> {
    let mut all: Vec<u32> = (0..cluster.shape.engines).filter(of).collect();
    let random = cluster.world.rng();
    let mut chosen = Vec::new();
    while chosen.len() < most && !all.is_empty() {
        let at = usize::try_from(random.below(all.len() as u64)).expect("few engines");
        chosen.push(all.swap_remove(at));
    }
    chosen
}

/// Some engines don't hear any more from one, which is lost a moment later. So they lack what others have got from it.
fn lose_unheard(cluster: &Cluster, victim: u32) {
    let node = |rank: u32| &cluster.engines[rank as usize].node;
    let count = usize::try_from(cluster.world.rng().below(3)).expect("small");
    for other in some(cluster, |rank| *rank != victim && cluster.is_up(*rank), count) {
        cluster.fabric.partition_one_way(node(victim), node(other));
    }
    cluster.world.run_for(below(cluster, UNHEARD_MAX_US));
    cluster.crash(victim, CrashKeeps::Any);
    cluster.fabric.heal();
}

/// One engine or two are lost for good, one a while after the other, while something runs. All of it as the pool's service is told.
fn lose_while_running(cluster: &Cluster) {
    let service = service_rank(cluster, "tank");
    let count = usize::try_from(1 + cluster.world.rng().below(2)).expect("small");
    let mut unnoticed = Vec::new();
    for victim in some(cluster, |rank| *rank != service, count) {
        cluster.world.run_for(below(cluster, LOST_MAX_US));
        lose_unheard(cluster, victim);
        unnoticed.push(victim);
        // The second one may be lost before anybody knows of the first, or while what that one has left is being taken over.
        if cluster.world.rng().below(3) > 0 {
            cluster.world.run_for(below(cluster, NOTICED_MAX_US));
            for victim in unnoticed.drain(..) {
                exclude(cluster, service, victim);
            }
            if cluster.world.rng().below(2) == 0 {
                continue;
            }
        }
        cluster.world.run_for(below(cluster, UNHEARD_MAX_US));
    }
    cluster.world.run_for(below(cluster, NOTICED_MAX_US));
    for victim in unnoticed {
        exclude(cluster, service, victim);
    }
    cluster.world.run_for(below(cluster, LOST_MAX_US));
    cluster.fabric.configure(|config| {
        config.loss = 0.0;
        config.duplicate = 0.0;
    });
}

/// What a run shows, and in the end the members that are left.
fn finish(cluster: &Cluster, run: workload::Run, is_whole: bool) -> (History, Option<String>) {
    let history = run.finish(cluster);
    // What the last have changed is told to all members.
    cluster.world.run_for(Duration::from_secs(2));
    (history, difference_among(cluster, left(cluster), Epoch::MAX, is_whole))
}

/// An engine that is up.
fn left(cluster: &Cluster) -> u32 {
    (0..cluster.shape.engines).find(|rank| cluster.is_up(*rank)).expect("not all are lost")
}

#[track_caller]
fn check(cluster: &Cluster, (history, difference): (History, Option<String>)) {
    let seed = cluster.world.seed();
    history.check(seed);
    assert_eq!(difference, None, "seed {seed}");
}

fn lose_leaders_of(cluster: &Cluster, mix: Mix) -> (History, Option<String>) {
    disturb(cluster, 3);
    let run = workload::start_in(cluster, "tank", mix, Some(class(cluster)));
    lose_while_running(cluster);
    finish(cluster, run, false)
}

/// Engines are lost at any moment, and some of those that remain have what others lack.
pub fn lose_leaders(cluster: &Cluster, mix: Mix) {
    check(cluster, lose_leaders_of(cluster, mix));
}

/// What comes of it when each target has a fault. Whether the history, or what members have in the end, shows it.
pub fn shows(cluster: &Cluster, bug: PlantedBug) -> bool {
    plant(cluster, bug);
    let (history, difference) = lose_leaders_of(cluster, Mix::All);
    difference.is_some() || !history.is_linearizable()
}

/// The same of transactions.
pub fn lose_leaders_of_transactions(cluster: &Cluster) -> Ledger {
    disturb(cluster, 4);
    let run = transactions::start(cluster, &["RP_3G1", "RP_3G2", "RP_3G1"]);
    lose_while_running(cluster);
    run.finish(cluster)
}

fn begin(cluster: &Cluster, mix: Mix) -> workload::Run {
    // Each target has a lease.
    cluster.world.run_for(Duration::from_secs(2));
    let run = workload::start_in(cluster, "tank", mix, Some(class(cluster)));
    cluster.world.run_for(below(cluster, MOMENT_MAX_US));
    run
}

/// One engine or two of a pool that outlasts the loss of two are lost for good, and nobody says so.
pub fn lose_engines(cluster: &Cluster) {
    let run = begin(cluster, Mix::Slow);
    let count = usize::try_from(1 + cluster.world.rng().below(2)).expect("small");
    for victim in some(cluster, |_| true, count) {
        lose_unheard(cluster, victim);
        cluster.world.run_for(below(cluster, NEXT_MAX_US));
    }
    cluster.world.run_for(KNOWN_MAX);
    check(cluster, finish(cluster, run, false));
}

/// Engines are lost and come back, one or two at a time, and once more while they get what they lack.
pub fn come_back(cluster: &Cluster) {
    let run = begin(cluster, Mix::Slow);
    for _ in 0..=cluster.world.rng().below(2) {
        let count = usize::try_from(1 + cluster.world.rng().below(2)).expect("small");
        let victims = some(cluster, |rank| cluster.is_up(*rank), count);
        for victim in &victims {
            lose_unheard(cluster, *victim);
            cluster.world.run_for(below(cluster, NEXT_MAX_US / 2));
        }
        for victim in &victims {
            cluster.restart(*victim);
            cluster.world.run_for(below(cluster, MOMENT_MAX_US));
        }
        cluster.settle();
        cluster.world.run_for(below(cluster, MOMENT_MAX_US));
    }
    wait_until_whole(cluster);
    check(cluster, finish(cluster, run, true));
}

/// Engines start again, some or all of them, and nobody says so.
pub fn start_again(cluster: &Cluster) {
    let run = begin(cluster, Mix::Slow);
    let count = usize::try_from(1 + cluster.world.rng().below(u64::from(cluster.shape.engines)));
    let victims = some(cluster, |_| true, count.expect("small"));
    crash_and_restart(cluster, &victims);
    wait_until_whole(cluster);
    check(cluster, finish(cluster, run, true));
}

/// Transactions go on while engines are lost and come back: they are serializable, and in the end all members have the same.
pub fn transactions_come_back(cluster: &Cluster) {
    cluster.world.run_for(Duration::from_secs(2));
    let run = transactions::start_with_pauses(cluster, &["RP_3G1", "RP_3G2", "RP_3G1"], PAUSE_MAX_US);
    for _ in 0..=cluster.world.rng().below(2) {
        cluster.world.run_for(below(cluster, MOMENT_MAX_US));
        let count = usize::try_from(1 + cluster.world.rng().below(2)).expect("small");
        let victims = some(cluster, |rank| cluster.is_up(*rank), count);
        for victim in &victims {
            lose_unheard(cluster, *victim);
            cluster.world.run_for(below(cluster, NEXT_MAX_US / 2));
        }
        for victim in victims {
            cluster.restart(victim);
        }
        cluster.settle();
    }
    wait_until_whole(cluster);
    let ledger = run.finish(cluster);
    let seed = cluster.world.seed();
    assert!(ledger.len() > 20, "seed {seed}: only {} were answered", ledger.len());
    ledger.check(seed);
    cluster.world.run_for(Duration::from_secs(2));
    assert_eq!(difference_among(cluster, left(cluster), Epoch::MAX, true), None, "seed {seed}");
}
