//! Standard and multi-receive side by side: figures 4 and 5 of "Enhancing RPC on Slingshot for Aurora's DAOS Storage
//! System", for real with processes on loopback, and with up to 53,248 clients in the simulator; and its figure 6, what a
//! receiver that is not ready costs large and small requests.

mod not_ready;
mod real;
mod simulated;

use std::path::Path;

use crate::drawing::{Chart, Series};
use crate::report::BenchError;

pub use not_ready::measure as measure_not_ready;
pub use real::{client, measure as measure_real, serve};
pub use simulated::measure as measure_simulated;

/// How a server posts its receive memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receive {
    /// A buffer for each message.
    Standard,
    /// Slabs for many.
    Multi,
}

impl Receive {
    const BOTH: [Self; 2] = [Self::Standard, Self::Multi];

    const fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Multi => "multi-recv",
        }
    }
}

/// Prints lines side by side and draws them.
pub fn publish(
    title: &str,
    across: &str,
    up: &str,
    series: Vec<Series>,
    path: &Path,
) -> Result<(), BenchError> {
    println!("\n{title}");
    print!("{across:>12}");
    for series in &series {
        print!("{:>26}", series.name);
    }
    println!();
    let mut ticks: Vec<f64> =
        series.iter().flat_map(|series| series.points.iter().map(|point| point.0)).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    for tick in ticks {
        print!("{tick:>12}");
        for series in &series {
            match series.points.iter().find(|point| point.0.total_cmp(&tick).is_eq()) {
                Some((_, value)) if *value < 100.0 => print!("{value:>26.2}"),
                Some((_, value)) => print!("{value:>26.0}"),
                None => print!("{:>26}", ""),
            }
        }
        println!();
    }
    let chart = Chart { title: title.to_owned(), across: across.to_owned(), up: up.to_owned(), series };
    chart.save(path)?;
    println!("drawn in {}", path.display());
    Ok(())
}
