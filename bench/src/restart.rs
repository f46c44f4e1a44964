//! Figures of a system's life: memory at rest, idle CPU, restart after a crash with data.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::report::{BenchError, Report};
use crate::system::System;

/// How long idle CPU is watched.
const IDLE_WINDOW: Duration = Duration::from_secs(5);
/// How long a restart may take before the run gives up.
const RESTART_DEADLINE: Duration = Duration::from_mins(1);

/// Measures and adds the rows.
pub fn measure(system: &System, report: &mut Report) -> Result<(), BenchError> {
    let engines = processes(system, "weir-engine", "--config")?;
    let mounts = processes(system, "weir", "mount")?;
    let (Some(&engine), Some(&mount)) = (engines.first(), mounts.first()) else {
        return Err(BenchError::Deadline {
            what: "finding the engine and mount processes".into(),
            seconds: 0,
        });
    };
    report.figure("engine: resident memory at rest (2 targets)", resident_mib(engine)?, "MiB", None);
    report.figure("mount: resident memory at rest", resident_mib(mount)?, "MiB", None);
    report.figure("engine: CPU while idle", idle_percent(engine)?, "% core", Some("< 1"));
    report.figure(
        "engine: kill -9 until the mount writes again",
        restart_seconds(system, engine)?,
        "s",
        None,
    );
    Ok(())
}

/// Processes of a program whose command line names the system's directory and has a certain word.
fn processes(system: &System, name: &str, word: &str) -> Result<Vec<i32>, BenchError> {
    let root = Path::new("/proc");
    let directory = system.directory().display().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir(root).map_err(BenchError::file("list", root))?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let is_one = fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.trim() == name);
        let is_ours = fs::read_to_string(entry.path().join("cmdline"))
            .is_ok_and(|line| line.contains(&directory) && line.split('\0').any(|argument| argument == word));
        if is_one && is_ours {
            found.push(pid);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Memory of a process that the system has really given it.
pub fn resident_mib(pid: i32) -> Result<f64, BenchError> {
    memory_mib(pid, "VmRSS:")
}

/// The most of it that it ever had.
pub fn most_resident_mib(pid: i32) -> Result<f64, BenchError> {
    memory_mib(pid, "VmHWM:")
}

fn memory_mib(pid: i32, field: &str) -> Result<f64, BenchError> {
    let path = Path::new("/proc").join(pid.to_string()).join("status");
    let text = fs::read_to_string(&path).map_err(BenchError::file("read", &path))?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.unwrap_or(0.0) / 1024.0)
}

/// CPU time of a process in clock ticks of 10 ms.
fn cpu_ticks(pid: i32) -> Result<f64, BenchError> {
    let path = Path::new("/proc").join(pid.to_string()).join("stat");
    let text = fs::read_to_string(&path).map_err(BenchError::file("read", &path))?;
    let after_name = text.rsplit(')').next().unwrap_or("");
    Ok(after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum())
}

fn idle_percent(pid: i32) -> Result<f64, BenchError> {
    let before = cpu_ticks(pid)?;
    std::thread::sleep(IDLE_WINDOW);
    Ok((cpu_ticks(pid)? - before) / IDLE_WINDOW.as_secs_f64())
}

/// Kills an engine, which `weir dev` starts again, and writes until a write through the mount has gone to every target.
fn restart_seconds(system: &System, pid: i32) -> Result<f64, BenchError> {
    let began = Instant::now();
    if let Some(pid) = Pid::from_raw(pid) {
        kill_process(pid, Signal::KILL).map_err(|error| BenchError::Command {
            command: format!("kill -9 {pid:?}"),
            output: error.to_string(),
        })?;
    }
    let path = system.mount_point().join("after-restart");
    let block = vec![7; 64 << 20];
    fs::write(&path, &block).map_err(BenchError::file("write", &path))?;
    let elapsed = began.elapsed();
    if elapsed > RESTART_DEADLINE {
        return Err(BenchError::Deadline { what: "the restart".into(), seconds: RESTART_DEADLINE.as_secs() });
    }
    Ok(elapsed.as_secs_f64())
}
