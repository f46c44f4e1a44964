//! The C client beside bare requests: what the layers above RPC take. Engines have their data in memory, and figures are measured by
//! turns with `weir fabric bench` on the same engine.

mod interception;
mod redundancy;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::pairs::{Pairs, median};
use crate::report::{BenchError, Report};

/// Turns of each row: an odd number, so that the middle one is one of them.
const TURNS: usize = 5;
/// Seconds of one turn of the client.
const TURN: &str = "0.5";

/// A bare figure of `weir fabric bench`, in operations or MiB a second.
#[derive(Clone, Copy)]
enum Bare {
    RoundTrip,
    Rate,
    Write,
    Read,
}

impl Bare {
    const fn name(self) -> &'static str {
        match self {
            Self::RoundTrip => "bare request",
            Self::Rate => "bare requests, 16 in flight",
            Self::Write | Self::Read => "bare transfer",
        }
    }

    fn of(self, figures: &Value) -> Option<f64> {
        match self {
            Self::RoundTrip => figures["round_trip_us"]["p50"].as_f64().map(|us| 1e6 / us),
            Self::Rate => figures["requests_per_second"].as_f64(),
            // The client takes what it writes out of memory that the engine reads, and the other way round.
            Self::Write => figures["write_mib_per_second"].as_f64(),
            Self::Read => figures["read_mib_per_second"].as_f64(),
        }
    }
}

/// A system, and the program that is a client of it.
struct Client {
    weir: PathBuf,
    operations: PathBuf,
    /// Of the system; `weir dev down --wipe` removes it.
    folder: PathBuf,
}

impl Client {
    /// Starts an engine in memory.
    fn start(binaries: &Path, operations: &Path) -> Result<Self, BenchError> {
        let folder = PathBuf::from(format!("/dev/shm/weir-bench-{}", std::process::id()));
        Self::start_in(folder, &["--engines", "1", "--size", "1GiB"], binaries, operations)
    }

    /// Starts engines of one target each.
    fn start_in(
        folder: PathBuf,
        engines: &[&str],
        binaries: &Path,
        operations: &Path,
    ) -> Result<Self, BenchError> {
        let absolute = |path: &Path| path.canonicalize().map_err(BenchError::file("find", path));
        let client =
            Self { weir: absolute(binaries)?.join("weir"), operations: absolute(operations)?, folder };
        client.dev("up", &[&["--detach", "--targets", "1"], engines].concat())?;
        Ok(client)
    }

    fn dev(&self, verb: &str, rest: &[&str]) -> Result<String, BenchError> {
        let folder = self.folder.display().to_string();
        output(Command::new(&self.weir).args(["dev", verb, "--dir", &folder]).args(rest))
    }

    /// A figure of the client.
    fn own(&self, figure: &str) -> Result<f64, BenchError> {
        self.figure(figure, TURN, "S1")
    }

    /// A figure of the client with objects of a class.
    fn figure(&self, figure: &str, seconds: &str, class: &str) -> Result<f64, BenchError> {
        let mut command = Command::new(&self.operations);
        command.args(["tank", figure, seconds, class]).env("WEIR_ATTACH", self.folder.join("client.json"));
        let printed = output(&mut command)?;
        printed.trim().parse().map_err(|_| unexpected(figure, &printed))
    }

    /// What a bare request does at the same engine.
    fn bare(&self, wanted: Bare) -> Result<f64, BenchError> {
        let attach = self.folder.join("client.json");
        let mut command = Command::new(&self.weir);
        let printed = output(command.arg("--attach").arg(attach).args([
            "--json",
            "fabric",
            "bench",
            "--seconds",
            "1",
        ]))?;
        let figures = serde_json::from_str::<Value>(&printed)
            .ok()
            .and_then(|answer| wanted.of(&answer["response"]["providers"][0]["engines"][0]["figures"]));
        figures.ok_or_else(|| unexpected("fabric bench", &printed))
    }

    fn turns(&self, figure: &str, wanted: Bare) -> Result<Pairs, BenchError> {
        let mut pairs = Pairs::default();
        for _ in 0..TURNS {
            pairs.add(self.own(figure)?, self.bare(wanted)?);
        }
        Ok(pairs)
    }

    /// Turns of two figures of the client.
    fn against(&self, figure: &str, other: &str) -> Result<Pairs, BenchError> {
        let mut pairs = Pairs::default();
        for _ in 0..TURNS {
            pairs.add(self.own(figure)?, self.own(other)?);
        }
        Ok(pairs)
    }

    fn middle(&self, figure: &str) -> Result<f64, BenchError> {
        let turns: Result<Vec<f64>, BenchError> = (0..TURNS).map(|_| self.own(figure)).collect();
        turns.map(median)
    }
}

fn output(command: &mut Command) -> Result<String, BenchError> {
    let shown = format!("{command:?}");
    let program = PathBuf::from(command.get_program());
    let output = command.output().map_err(BenchError::file("run", &program))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(BenchError::Command { command: shown, output: String::from_utf8_lossy(&output.stderr).into_owned() })
}

fn unexpected(what: &str, printed: &str) -> BenchError {
    BenchError::Command { command: what.to_owned(), output: format!("no figure in {printed:?}") }
}

/// Measures the client and adds the rows.
pub fn measure(binaries: &Path, operations: &Path, report: &mut Report) -> Result<(), BenchError> {
    measure_by(rows, binaries, operations, report)
}

/// Measures programs that pass a mount, and adds the rows.
pub fn measure_interception(
    binaries: &Path,
    operations: &Path,
    report: &mut Report,
) -> Result<(), BenchError> {
    measure_by(interception::rows, binaries, operations, report)
}

/// Measures objects with two copies beside objects with one, and adds the rows.
pub fn measure_redundancy(
    binaries: &Path,
    operations: &Path,
    scratch: &Path,
    report: &mut Report,
) -> Result<(), BenchError> {
    redundancy::measure(binaries, operations, scratch, report)
}

fn measure_by(
    rows: fn(&Client, &mut Report) -> Result<(), BenchError>,
    binaries: &Path,
    operations: &Path,
    report: &mut Report,
) -> Result<(), BenchError> {
    let client = Client::start(binaries, operations)?;
    let measured = rows(&client, report);
    let stopped = client.dev("down", &["--wipe"]);
    measured.and(stopped.map(drop))
}

fn rows(client: &Client, report: &mut Report) -> Result<(), BenchError> {
    for (name, figure) in [("put", "put:middle"), ("get", "get:middle")] {
        let bare = Bare::RoundTrip;
        client.turns(figure, bare)?.time(
            report,
            &format!("client: {name} 64 B"),
            bare.name(),
            Some("<= 1.6"),
        );
    }
    for operation in ["put", "get"] {
        for (way, said) in [("wait", "waiting"), ("poll", "polling")] {
            let (bare, name) = (Bare::Rate, format!("client: {operation} 64 B, 16 in flight, {said}"));
            let figure = format!("{operation}:{way}");
            client.turns(&figure, bare)?.rate(report, &name, "op/s", bare.name(), Some(">= 0.8"));
        }
    }
    let polling = client.against("get:poll", "get:wait")?;
    polling.rate(report, "client: get 64 B, polling", "op/s", "waiting", Some(">= 0.9"));
    for (name, figure, bare) in [("write", "write", Bare::Write), ("read", "read", Bare::Read)] {
        let row = format!("client: array {name} 1 MiB");
        client.turns(figure, bare)?.rate(report, &row, "MiB/s", bare.name(), Some(">= 0.8"));
        let files = client.against(&format!("file-{figure}"), figure)?;
        files.rate(report, &format!("client: file {name} 1 MiB by DFS"), "MiB/s", "array", Some(">= 0.9"));
    }
    let open = client.middle("open-seconds")? * 1e3;
    report.figure("client: start to open container", open, "ms", Some("<= 20"));
    report.figure("client: make an event queue", client.middle("queue-seconds")? * 1e3, "ms", Some("<= 1"));
    report.figure("client: resident memory at rest", client.own("rest-mib")?, "MiB", Some("<= 20"));
    report.figure("client: memory of 64 threads", client.own("thread-mib")?, "MiB", Some("<= 64"));
    report.figure(
        "client: descriptors with 64 threads",
        client.own("thread-descriptors")?,
        "",
        Some("<= 100"),
    );
    Ok(())
}
