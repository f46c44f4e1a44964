//! Figures of the process, from `/proc`.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Clock ticks in a second as `/proc` counts CPU time: `USER_HZ`, 100 on every Linux that Rust runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// Fields of `/proc/self/stat` behind the process's name: user and system time, counted from the state (field 3).
const STAT_USER: usize = 11;
const STAT_SYSTEM: usize = 12;

/// Lets this process have as many open files as the system allows it: each connection is one.
pub fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, current = limit.current, "no more files can be opened than the soft limit allows (RLIMIT_NOFILE)");
    }
}

/// What Prometheus expects of every process.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessFigures {
    /// CPU time so far.
    pub cpu_seconds: f64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Open descriptors.
    pub open_fds: u64,
    /// Start, seconds since 1970.
    pub started: f64,
}

impl ProcessFigures {
    /// Reads them; what can't be read is 0.
    #[must_use]
    pub fn read(started: SystemTime) -> Self {
        let since = started.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            cpu_seconds: cpu_seconds().unwrap_or(0.0),
            resident_bytes: resident_bytes().unwrap_or(0),
            open_fds: std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64),
            started: since.as_secs_f64(),
        }
    }
}

fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
    Some((ticks(STAT_USER)? + ticks(STAT_SYSTEM)?) / TICKS_PER_SECOND)
}

fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_descriptors() {
        let figures = ProcessFigures::read(SystemTime::now());
        assert!(figures.resident_bytes > 100_000 && figures.open_fds >= 3 && figures.started > 1e9);
    }
}
