//! Which seeds are run, and how a failing one is reported.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A number in the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name))
}

/// Runs a test for each seed; names the seed that failed and how to run it alone.
pub fn for_each_seed(default: u64, test: impl Fn(u64)) {
    // The number in the environment stands for the largest test; the others run in proportion.
    let count = number("WEIR_SIM_SEEDS").map_or(default, |count| (count * default / super::SEEDS).max(1));
    run(count, test);
}

/// The same for a test that runs as many seeds as the environment says.
pub fn for_each_of_all(default: u64, test: impl Fn(u64)) {
    run(number("WEIR_SIM_SEEDS").unwrap_or(default), test);
}

fn run(count: u64, test: impl Fn(u64)) {
    if let Some(seed) = number("WEIR_SIM_SEED") {
        return test(seed);
    }
    let from = number("WEIR_SIM_FROM");
    let seeds: Range<u64> = from.unwrap_or(1)..from.unwrap_or(1) + count;
    let mut failed = Vec::new();
    for seed in seeds.clone() {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(seed))) else { continue };
        eprintln!("seed {seed} failed; run it alone with WEIR_SIM_SEED={seed}");
        // A run of many is for finding all that fail.
        if from.is_none() {
            resume_unwind(panic);
        }
        failed.push(seed);
    }
    if from.is_some() {
        println!("{} of the seeds {seeds:?} failed: {failed:?}", failed.len());
    }
    assert!(failed.is_empty(), "of the seeds {seeds:?} these failed: {failed:?}");
}
