//! What goes wrong, drawn from the seed.

use std::time::Duration;

use weir_media::sim::CrashKeeps;

use crate::cluster::Cluster;
use crate::workload::Run;

/// Longest pause between two faults.
const PAUSE_MAX_MS: u64 = 60;

/// Longest time that an engine stays down.
const DOWN_MAX_MS: u64 = 400;

/// Most faults of one run.
const FAULTS_MAX: u64 = 12;

fn millis(cluster: &Cluster, most: u64) -> Duration {
    Duration::from_micros(cluster.world.rng().below(most * 1000))
}

fn rank(cluster: &Cluster) -> u32 {
    u32::try_from(cluster.world.rng().below(u64::from(cluster.shape.engines))).expect("few engines")
}

/// Loses many messages between clients and engines from now on: of requests that are sent again some were executed and some were not.
pub fn lose_messages(cluster: &Cluster) {
    cluster.fabric.configure(|config| {
        config.loss = 0.08;
        config.duplicate = 0.02;
    });
}

/// Injects faults until the clients have finished or enough went wrong.
pub fn inject(cluster: &Cluster, run: &Run) {
    let random = cluster.world.rng();
    if random.below(2) == 0 {
        cluster.skew_clocks(Duration::from_millis(200));
    }
    if random.below(3) == 0 {
        cluster.fabric.configure(|config| {
            config.loss = 0.02;
            config.duplicate = 0.01;
        });
    }
    for _ in 0..=random.below(FAULTS_MAX) {
        if run.is_finished() {
            return;
        }
        cluster.world.run_for(millis(cluster, PAUSE_MAX_MS));
        let victim = rank(cluster);
        match random.below(6) {
            0..=2 => crash(cluster, victim),
            3 => {
                let (engine, other) = (&cluster.engines[victim as usize].node, rank(cluster));
                cluster.fabric.partition(&[engine], &[&cluster.engines[other as usize].node]);
            }
            4 => {
                let client =
                    usize::try_from(random.below(cluster.clients.len() as u64)).expect("few clients");
                let engine = &cluster.engines[victim as usize].node;
                cluster.fabric.partition_one_way(engine, &cluster.clients[client]);
            }
            _ => cluster.fabric.heal(),
        }
    }
}

/// Power failure of an engine, and its return after a while.
fn crash(cluster: &Cluster, victim: u32) {
    if !cluster.is_up(victim) {
        return;
    }
    let keeps = match cluster.world.rng().below(4) {
        0 => CrashKeeps::Nothing,
        1 => CrashKeeps::Everything,
        _ => CrashKeeps::Any,
    };
    cluster.crash(victim, keeps);
    let (later, down) = (cluster.clone(), millis(cluster, DOWN_MAX_MS));
    cluster.world.schedule(down, move || {
        if !later.is_up(victim) {
            later.restart(victim);
        }
    });
}

/// Ends all faults and waits until every engine serves.
pub fn bring_back(cluster: &Cluster) {
    cluster.fabric.heal();
    cluster.fabric.configure(|config| {
        config.loss = 0.0;
        config.duplicate = 0.0;
    });
    // Restarts that are under way.
    cluster.world.run_for(Duration::from_millis(DOWN_MAX_MS));
    for rank in 0..cluster.shape.engines {
        if !cluster.is_up(rank) {
            cluster.restart(rank);
        }
    }
    cluster.settle();
}
