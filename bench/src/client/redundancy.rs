//! Objects with two copies beside objects with one, of the same client on two systems of three engines, by turns; and what the loss of
//! an engine costs those who read and write. Both systems have their data in files of the same file system, so that what is acknowledged is
//! on stable media.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Client, TURN, TURNS, output, unexpected};
use crate::pairs::Pairs;
use crate::report::{BenchError, Report};

/// The engine that is killed and lost. Objects of all groups have copies there.
const RANK: &str = "0";
/// Seconds of reads or writes while an engine is killed, and how long after their start that happens.
const KILL_TURN: &str = "12";
const KILL_AFTER: Duration = Duration::from_secs(2);
/// How long a pool may take to notice a loss, or to be healthy again.
const HEALTHY_DEADLINE: Duration = Duration::from_mins(3);
/// How often a pool is asked for its condition.
const ASKED_EVERY: Duration = Duration::from_millis(50);
/// Bytes of a write to the raw file.
const BLOCK: usize = 1 << 20;

/// A system with two copies of each object, and one without.
struct Systems {
    replicated: Client,
    plain: Client,
}

/// Measures and adds the rows.
pub fn measure(
    binaries: &Path,
    operations: &Path,
    scratch: &Path,
    report: &mut Report,
) -> Result<(), BenchError> {
    std::fs::create_dir_all(scratch).map_err(BenchError::file("make", scratch))?;
    let scratch = scratch.canonicalize().map_err(BenchError::file("find", scratch))?;
    let start = |factor: &str| {
        let engines = ["--engines", "3", "--size", "3GiB", "--redundancy", factor];
        let folder = scratch.join(format!("redundancy-{factor}"));
        Client::start_in(folder, &engines, binaries, operations)
    };
    let replicated = start("1")?;
    let plain = match start("0") {
        Ok(plain) => plain,
        Err(error) => return replicated.dev("down", &["--wipe"]).and(Err(error)),
    };
    let systems = Systems { replicated, plain };
    let measured = systems.rows(&scratch, report);
    let stopped = [systems.plain, systems.replicated].map(|system| system.dev("down", &["--wipe"]).map(drop));
    stopped.into_iter().fold(measured, Result::and)
}

impl Systems {
    fn rows(&self, scratch: &Path, report: &mut Report) -> Result<(), BenchError> {
        let small = self.turns("write:small:middle", ["RP_2G1", "S1"])?;
        small.time(report, "redundancy: update 4 KiB", "one copy", Some("<= 1.6"));
        for (name, figure, unit, goal) in [
            ("update 4 KiB, 16 in flight", "write:small:wait", "op/s", ">= 0.45"),
            ("fetch 4 KiB, 16 in flight", "read:small:wait", "op/s", ">= 0.95"),
            ("array write 1 MiB", "write", "MiB/s", ">= 0.45"),
            ("array read 1 MiB", "read", "MiB/s", ">= 0.95"),
        ] {
            let pairs = self.turns(figure, ["RP_2G1", "S1"])?;
            pairs.rate(report, &format!("redundancy: {name}"), unit, "one copy", Some(goal));
        }
        for (name, figure) in [("open and close a container", "opened"), ("make and destroy one", "created")]
        {
            let pairs = self.turns(figure, ["RP_2G1", "S1"])?;
            pairs.time(report, &format!("redundancy: {name}"), "one replica of the service", None);
        }
        self.stalls(report)?;
        self.loss(scratch, report)
    }

    /// Turns of a figure, with two copies and with one.
    fn turns(&self, figure: &str, [replicated, plain]: [&str; 2]) -> Result<Pairs, BenchError> {
        let mut pairs = Pairs::default();
        for _ in 0..TURNS {
            pairs.add(
                self.replicated.figure(figure, TURN, replicated)?,
                self.plain.figure(figure, TURN, plain)?,
            );
        }
        Ok(pairs)
    }

    /// The longest read and write while an engine is killed, which starts again at once.
    fn stalls(&self, report: &mut Report) -> Result<(), BenchError> {
        for (name, figure, goal) in [("read", "get:longest", "<= 2"), ("write", "put:longest", "<= 10")] {
            let longest = std::thread::scope(|scope| {
                let loaded = scope.spawn(|| self.replicated.figure(figure, KILL_TURN, "RP_2GX"));
                std::thread::sleep(KILL_AFTER);
                let killed = self.replicated.dev("kill", &[RANK]);
                let longest = loaded.join().map_err(|_| unexpected(figure, "a panic"))?;
                killed.and(longest)
            })?;
            report.figure(
                &format!("redundancy: longest {name} while an engine is killed"),
                longest,
                "s",
                Some(goal),
            );
            self.replicated.awaits("Healthy")?;
        }
        Ok(())
    }

    /// Reads without an engine, and how fast it gets its data when it has returned without any.
    fn loss(&self, scratch: &Path, report: &mut Report) -> Result<(), BenchError> {
        let filled = self.replicated.figure("filled-mib", TURN, "RP_2GX")?;
        self.replicated.dev("lose", &[RANK])?;
        self.replicated.awaits("Degraded")?;
        let pairs = self.turns("read", ["RP_2GX", "SX"])?;
        pairs.rate(
            report,
            "redundancy: array read 1 MiB without an engine",
            "MiB/s",
            "one copy",
            Some(">= 0.5"),
        );
        self.replicated.dev("return", &[RANK])?;
        self.replicated.awaits("Rebuilding")?;
        let began = Instant::now();
        self.replicated.awaits("Healthy")?;
        // An engine of three has two thirds of what has two copies.
        let share = filled * 2.0 / 3.0;
        let rate = share / began.elapsed().as_secs_f64();
        let raw = raw_write(&scratch.join("redundancy-raw"), share)?;
        report.beside(
            "redundancy: an engine's data rebuilt",
            rate,
            "MiB/s",
            ("raw file", raw),
            Some(">= 0.5"),
        );
        Ok(())
    }
}

impl Client {
    /// The condition of the pool "tank".
    fn condition(&self) -> Result<String, BenchError> {
        let mut command = Command::new(&self.weir);
        command
            .arg("--attach")
            .arg(self.folder.join("client.json"))
            .args(["--json", "pool", "query", "tank"]);
        let printed = output(&mut command)?;
        serde_json::from_str::<Value>(&printed)
            .ok()
            .and_then(|answer| Some(answer["response"]["health"]["condition"].as_str()?.to_owned()))
            .ok_or_else(|| unexpected("pool query", &printed))
    }

    /// Waits until the pool is in a condition, or healthy where that is one that passes by.
    fn awaits(&self, wanted: &str) -> Result<(), BenchError> {
        let began = Instant::now();
        while began.elapsed() < HEALTHY_DEADLINE {
            if self.condition()? == wanted {
                return Ok(());
            }
            std::thread::sleep(ASKED_EVERY);
        }
        Err(BenchError::Deadline {
            what: format!("the pool's condition {wanted}"),
            seconds: HEALTHY_DEADLINE.as_secs(),
        })
    }
}

/// MiB a second of sequential writes to a file that end on stable media.
fn raw_write(path: &PathBuf, mib: f64) -> Result<f64, BenchError> {
    let block = vec![0x5a; BLOCK];
    let began = Instant::now();
    let mut file = File::create(path).map_err(BenchError::file("make", path))?;
    let mut written = 0.0;
    while written < mib {
        file.write_all(&block).map_err(BenchError::file("write", path))?;
        written += 1.0;
    }
    file.sync_all().map_err(BenchError::file("sync", path))?;
    let rate = written / began.elapsed().as_secs_f64();
    std::fs::remove_file(path).map_err(BenchError::file("remove", path))?;
    Ok(rate)
}
