//! Which seeds are run, and how a failing one is reported.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Runs a test for each seed; names the seed that failed and how to run it alone.
pub fn for_each_seed(default: u64, test: impl Fn(u64)) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    if let Some(seed) = number("WEIR_SIM_SEED") {
        return test(seed);
    }
    // The number in the environment stands for the largest test; the others run in proportion.
    let count = number("WEIR_SIM_SEEDS").map_or(default, |count| (count * default / super::SEEDS).max(1));
    for seed in 1..=count {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(seed))) {
            eprintln!("seed {seed} failed; run it alone with WEIR_SIM_SEED={seed}");
            resume_unwind(panic);
        }
    }
}
