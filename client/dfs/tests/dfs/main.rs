//! File systems, against engines in the simulator.

mod appends;
#[path = "../../../core/tests/cluster/mod.rs"]
mod cluster;
#[path = "../model/mod.rs"]
mod model;
mod order;
mod replicas;
mod restarts;
mod simulated;
mod together;

use std::ops::Range;

/// Names one seed.
const SEED: &str = "WEIR_SIM_SEED";

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect(name))
}

/// Whether one seed runs, which needn't show all that the seeds of a test show together.
fn is_alone() -> bool {
    number(SEED).is_some()
}

/// The seeds of a test: the one that `WEIR_SIM_SEED` names, else one in `part` of as many as `WEIR_SIM_SEEDS` says, from 0 on.
fn seeds(default: u64, part: u64) -> Range<u64> {
    match number(SEED) {
        Some(seed) => seed..seed + 1,
        None => 0..number("WEIR_SIM_SEEDS").unwrap_or(default) / part,
    }
}
