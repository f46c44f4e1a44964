//! Objects with replicas: what was acknowledged survives the loss of an engine, and histories are linearizable whoever answers.

use std::time::Duration;

use weir_client::ObjectClass;
use weir_media::sim::CrashKeeps;
use weir_object::PlantedBug;
use weir_proto::Rank;

use crate::cluster::{Cluster, Shape};
use crate::history::History;
use crate::snapshots::service_rank;
use crate::workload::{self, Mix};

pub const SHAPE: Shape = Shape { engines: 3, targets: 2, clients: 3 };

/// Longest time until an engine is lost, and from then on until the pool map says so.
const LOST_MAX_US: u64 = 250_000;
const NOTICED_MAX_US: u64 = 400_000;

fn class() -> ObjectClass {
    "RP_2G2".parse().expect("a registered name")
}

pub fn below(cluster: &Cluster, most: u64) -> Duration {
    Duration::from_micros(cluster.world.rng().below(most))
}

/// An engine that doesn't run the pool's service.
pub fn other_engine(cluster: &Cluster, service: u32) -> u32 {
    let engines = cluster.shape.engines;
    let other = u32::try_from(cluster.world.rng().below(u64::from(engines - 1))).expect("few engines");
    (service + 1 + other) % engines
}

/// Has the pool's service take an engine out of the map.
pub fn exclude(cluster: &Cluster, service: u32, rank: u32) {
    let pools = cluster.target(service, 0).pools().clone();
    let pool = pools.find("tank").expect("the pool").id();
    let service = pools.own_service(pool).expect("it runs there");
    cluster.world.block_on(cluster.admin(), async move {
        service.exclude(Rank(rank)).await.expect("its device is well");
    });
}

/// Plants a fault in each target.
pub fn plant(cluster: &Cluster, bug: PlantedBug) {
    for rank in 0..cluster.shape.engines {
        for index in 0..cluster.shape.targets as usize {
            cluster.target(rank, index).io().plant(bug);
        }
    }
}

/// What comes of it when each target has a fault. Whether the history shows it.
pub fn shows(cluster: &Cluster, bug: PlantedBug) -> bool {
    plant(cluster, bug);
    let history = match bug {
        PlantedBug::LostForward => lose_an_engine(cluster, Mix::All),
        PlantedBug::NewThenOld => part_engines(cluster, Mix::All),
        PlantedBug::DoubleAnswer => lose_an_engine(cluster, Mix::Conditional),
        other => unreachable!("other histories show {other:?}"),
    };
    !history.is_linearizable()
}

/// An engine other than the service's is lost for good, at any moment, with messages lost and clocks that differ.
pub fn lose_an_engine(cluster: &Cluster, mix: Mix) -> History {
    let service = service_rank(cluster, "tank");
    disturb(cluster, 3);
    let run = workload::start_in(cluster, "tank", mix, Some(class()));
    lose_while_running(cluster, service);
    run.finish(cluster)
}

/// Sets clocks apart in half of the runs, and loses messages in one run of so many.
pub fn disturb(cluster: &Cluster, lossy_one_in: u64) {
    let random = cluster.world.rng();
    if random.below(2) == 0 {
        cluster.skew_clocks(Duration::from_millis(200));
    }
    if random.below(lossy_one_in) == 0 {
        cluster.fabric.configure(|config| {
            config.loss = 0.02;
            config.duplicate = 0.01;
        });
    }
}

/// In three of four runs an engine other than the service's is lost for good, at any moment. In the end the fabric is reliable.
pub fn lose_while_running(cluster: &Cluster, service: u32) {
    cluster.world.run_for(below(cluster, LOST_MAX_US));
    if cluster.world.rng().below(4) > 0 {
        let victim = other_engine(cluster, service);
        cluster.crash(victim, CrashKeeps::Any);
        cluster.world.run_for(below(cluster, NOTICED_MAX_US));
        exclude(cluster, service, victim);
    }
    cluster.world.run_for(below(cluster, LOST_MAX_US));
    cluster.fabric.configure(|config| {
        config.loss = 0.0;
        config.duplicate = 0.0;
    });
}

/// Engines that can't reach each other for a while acknowledge nothing that both don't have.
pub fn part_engines(cluster: &Cluster, mix: Mix) -> History {
    let random = cluster.world.rng();
    let run = workload::start_in(cluster, "tank", mix, Some(class()));
    for _ in 0..3 {
        cluster.world.run_for(below(cluster, LOST_MAX_US / 4));
        let rank = usize::try_from(random.below(u64::from(SHAPE.engines))).expect("few engines");
        let nodes: Vec<_> = cluster.engines.iter().map(|engine| &engine.node).collect();
        let others: Vec<_> =
            (0..nodes.len()).filter(|other| *other != rank).map(|other| nodes[other]).collect();
        cluster.fabric.partition(&[nodes[rank]], &others);
        cluster.world.run_for(below(cluster, NOTICED_MAX_US));
        cluster.fabric.heal();
    }
    run.finish(cluster)
}
