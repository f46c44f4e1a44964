//! Figures 8, 9 and 10. What the model puts in are the times of figure 9 and the speed of a NIC; what comes out is how much
//! of it each method lets through, by size and by number of clients.

use core::time::Duration;
use std::path::Path;

use weir_fabric::{Access, MrMethod};

use super::bulk::{Reached, Setup, run};
use super::paper_name;
use super::times::times;
use crate::drawing::Series;
use crate::receive::publish;
use crate::report::{BenchError, Report};

/// Sizes of figure 8, in bytes.
const SIZES: [u32; 11] = [
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
];

/// Numbers of clients of figure 10: from one node to the paper's 512.
const CLIENTS: [u32; 7] = [104, 416, 1664, 6656, 13_312, 26_624, 53_248];

const POINT_TO_POINT: Setup = Setup {
    servers: 1,
    nics: 1,
    threads: 1,
    clients: 1,
    in_flight: 16,
    bytes: 0,
    access: Access::Read,
    method: None,
    span: Duration::from_millis(10),
};

/// The directions, as figure 8 and figure 10 name them: what the server does, and what the client asked for.
const DIRECTIONS: [(Access, &str, &str); 2] =
    [(Access::Read, "read", "write"), (Access::Write, "write", "read")];

fn figure_8(report: &mut Report, folder: &Path) -> Result<(), BenchError> {
    for (access, does, _) in DIRECTIONS {
        let line = |name: &str, method: Option<MrMethod>| Series {
            name: name.to_owned(),
            points: SIZES
                .iter()
                .map(|bytes| {
                    let setup = Setup { bytes: *bytes as usize, access, method, ..POINT_TO_POINT };
                    (f64::from(*bytes), run(setup, 1).rate / 1e9)
                })
                .collect(),
        };
        let mut lines: Vec<Series> =
            MrMethod::ALL.into_iter().map(|method| line(paper_name(method), Some(method))).collect();
        lines.push(line("registered once", None));
        let at_256k = |at: usize| {
            lines.get(at).and_then(|line: &Series| line.points.get(6)).map_or(0.0, |point| point.1)
        };
        for (at, method) in MrMethod::ALL.into_iter().enumerate() {
            let goal = match method {
                MrMethod::MatchEvents => Some("paper: slightly below the key cache"),
                MrMethod::KeyCache => Some("paper: slightly below the reference"),
                MrMethod::Persistent => Some("paper: roughly the reference"),
                MrMethod::Uncached | MrMethod::Optimized => Some("paper: detrimental"),
            };
            let name = format!("registration simulated: RMA {does}s of 256 KiB, {}", paper_name(method));
            report.beside(&name, at_256k(at), "GB/s", ("registered once", at_256k(5)), goal);
        }
        let letter = if access == Access::Write { 'a' } else { 'b' };
        let title = format!("Simulated: RMA {does} by registration method (figure 8{letter})");
        publish(&title, "bytes", "GB/s", lines, &folder.join(format!("figure-8{letter}.svg")))?;
    }
    Ok(())
}

fn figure_9(report: &mut Report) {
    println!("\nSimulated: registering and ending a registration (figure 9)");
    println!("{:>26}{:>16}{:>16}", "", "register µs", "deregister µs");
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    for method in MrMethod::ALL {
        let (made, ended) = times(method);
        println!("{:>26}{:>16.2}{:>16.2}", paper_name(method), micros(made), micros(ended));
        let name = format!("registration simulated: {}, both", paper_name(method));
        let goal = if method == MrMethod::MatchEvents { Some("paper: about 2 µs each") } else { None };
        report.figure(&name, micros(made + ended), "µs", goal);
    }
}

fn figure_10(report: &mut Report, folder: &Path) -> Result<(), BenchError> {
    for (servers, letter, goals) in
        [(1, 'a', ["paper: 48 GB/s", "paper: 46 GB/s"]), (2, 'b', ["paper: 96 GB/s", "paper: 84 GB/s"])]
    {
        let mut lines = Vec::new();
        for ((access, _, asked), goal) in DIRECTIONS.into_iter().zip(goals) {
            let mut peaks = Vec::new();
            for method in [MrMethod::KeyCache, MrMethod::MatchEvents] {
                let runs = CLIENTS.map(|clients| {
                    let setup = Setup {
                        servers,
                        nics: 2,
                        threads: 16,
                        clients,
                        in_flight: 1,
                        bytes: 1 << 20,
                        access,
                        method: Some(method),
                        span: Duration::from_millis(8),
                    };
                    (f64::from(clients), run(setup, 1))
                });
                let sum = |count: fn(&Reached) -> u64| runs.iter().map(|(_, run)| count(run)).sum::<u64>();
                let (lost, late) = (sum(|run| run.lost), sum(|run| run.late));
                let points: Vec<(f64, f64)> = runs.iter().map(|(at, run)| (*at, run.rate / 1e9)).collect();
                println!(
                    "{servers} server(s), bulk {asked}, {}: {lost} lost, {late} late accesses",
                    paper_name(method)
                );
                peaks.push(points.iter().map(|point| point.1).fold(0.0, f64::max));
                let short = if method == MrMethod::KeyCache { "key cache" } else { "match events" };
                lines.push(Series { name: format!("bulk {asked}, {short}"), points });
            }
            let name = format!("registration simulated: {servers} server(s), bulk {asked}, match events");
            report.beside(&name, peaks[1], "GB/s", ("key cache", peaks[0]), Some(goal));
        }
        let title =
            format!("Simulated: bulk requests of 1 MiB, {servers} server node(s) (figure 10{letter})");
        publish(&title, "clients", "GB/s", lines, &folder.join(format!("figure-10{letter}.svg")))?;
    }
    Ok(())
}

/// Runs all three.
pub fn measure(report: &mut Report, folder: &Path) -> Result<(), BenchError> {
    figure_8(report, folder)?;
    figure_9(report);
    figure_10(report, folder)
}
