//! Membership of 1,024 engines in the simulator: how soon a dead one is known to all, and whether a living one is ever taken
//! for dead, over the share of messages that get lost. Simulated time is the same in every run.

use core::time::Duration;

use crate::report::{BenchError, Report};
use simulated::Network;

#[path = "../../engine/rpc/tests/rpc/membership/simulated.rs"]
#[allow(dead_code, reason = "the tests of membership use the rest of it")]
mod simulated;

/// As many engines as the paper's largest system has server nodes.
const MEMBERS: u32 = 1024;

/// Engines that fail, one after another, for each share.
const FAILURES: u32 = 15;

/// Most messages that get lost, in per cent.
const LOSS_MAX: u32 = 5;

/// When to give up waiting for everybody to know.
const LIMIT: Duration = Duration::from_mins(1);

/// Measures each whole per cent.
pub fn measure(report: &mut Report) -> Result<(), BenchError> {
    println!("\n1,024 simulated engines of which {FAILURES} fail, one after another");
    println!("lost  known to all after, mean and longest, s  living ones suspected  taken for dead");
    for percent in 0..=LOSS_MAX {
        let mut network = Network::settled(MEMBERS, f64::from(percent) / 100.0, 1);
        let mut times = Vec::new();
        for _ in 0..FAILURES {
            let overdue = || BenchError::Deadline {
                what: format!("agreement of {MEMBERS} engines with {percent} % of messages lost"),
                seconds: LIMIT.as_secs(),
            };
            times.push(network.fail_one(LIMIT).ok_or_else(overdue)?);
        }
        let mean = times.iter().sum::<f64>() / f64::from(FAILURES);
        let longest = times.iter().copied().fold(0.0, f64::max);
        let counts = network.counts;
        println!(
            "{percent:>3} %  {mean:>27.2} {longest:>11.2}  {:>21}  {:>14}",
            counts.false_suspects, counts.false_deaths
        );
        let mut row = |what: &str, value: f64, unit: &str, goal: Option<&str>| {
            report.figure(&format!("membership simulated, {percent} % lost: {what}"), value, unit, goal);
        };
        row("known to all, mean", mean, "s", None);
        row("known to all, longest", longest, "s", Some("<= 8 s"));
        #[expect(clippy::cast_precision_loss, reason = "some thousands")]
        let [suspects, deaths] = [counts.false_suspects, counts.false_deaths].map(|count| count as f64);
        row("living ones suspected", suspects, "times", None);
        row("living ones taken for dead", deaths, "times", Some("0"));
    }
    Ok(())
}
