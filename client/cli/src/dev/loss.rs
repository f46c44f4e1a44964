//! Engines that end by force: `kill` (SIGKILL, and started again), `lose` (for good, with all data) and `return` (started
//! again, empty).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use rustix::process::Signal;
use weir_fuse::process::ProcessRecord;

use super::DirArguments;
use crate::connection::runtime;
use crate::error::CliError;
use crate::local::Folder;
use crate::output::Answer;

/// How long the kernel may take to end a process that got SIGKILL: one that waits for a device ends when that answers.
const KILL_LIMIT: Duration = Duration::from_secs(15);

/// An engine of the system.
#[derive(Args, Debug, Clone)]
pub struct EngineArguments {
    #[command(flatten)]
    dir: DirArguments,
    /// Rank of the engine.
    rank: u32,
}

/// Ends an engine with SIGKILL.
pub(super) fn kill(arguments: &EngineArguments) -> Result<Answer, CliError> {
    let folder = arguments.dir.folder()?;
    if !end(&folder, arguments.rank)? {
        let shown = folder.0.display();
        return Err(CliError::NotFound(format!("engine {} does not run in {shown}", arguments.rank)));
    }
    Ok(Answer::done(format!("engine {} killed", arguments.rank)))
}

/// Ends an engine with SIGKILL, and removes its data. It stays away until it is told to return.
pub(super) fn lose(arguments: &EngineArguments) -> Result<Answer, CliError> {
    let (folder, rank) = (arguments.dir.folder()?, arguments.rank);
    let settings = settings_with(&folder, rank)?;
    if !settings.devices.is_empty() {
        return Err(CliError::Usage(format!(
            "engine {rank} has its data on devices, which `weir dev lose` does not erase: use `weir dev kill`, or files"
        )));
    }
    if folder.is_lost(rank) {
        return Err(CliError::Busy(format!(
            "engine {rank} is lost already: start it again with `{}`",
            folder.command(&format!("return {rank}"))
        )));
    }
    // Written first: the supervisor starts no engine that is lost.
    write(&folder.lost_file(rank))?;
    end(&folder, rank)?;
    let data = folder.engine_data(rank);
    empty(&data).map_err(|error| CliError::io(data.display().to_string(), error))?;
    Ok(Answer::done(format!("engine {rank} lost, its data removed")))
}

/// Has a lost engine started again, without its data.
pub(super) fn come_back(arguments: &EngineArguments) -> Result<Answer, CliError> {
    let (folder, rank) = (arguments.dir.folder()?, arguments.rank);
    settings_with(&folder, rank)?;
    let file = folder.lost_file(rank);
    match fs::remove_file(&file) {
        Ok(()) => Ok(Answer::done(format!("engine {rank} returns, empty"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(CliError::NotFound(format!("engine {rank} is not lost in {}", folder.0.display())))
        }
        Err(error) => Err(CliError::io(file.display().to_string(), error)),
    }
}

/// The settings of a system that has an engine of this rank.
fn settings_with(folder: &Folder, rank: u32) -> Result<crate::local::Settings, CliError> {
    let shown = folder.0.display();
    let settings = folder.settings()?;
    let settings = settings.ok_or_else(|| CliError::NotFound(format!("no system is in {shown}")))?;
    if rank < settings.engines {
        return Ok(settings);
    }
    Err(CliError::NotFound(format!(
        "the system in {shown} has engines 0 to {}, not {rank}",
        settings.engines - 1
    )))
}

/// Ends an engine's process, and waits until it is gone. Returns whether it ran.
fn end(folder: &Folder, rank: u32) -> Result<bool, CliError> {
    let running = folder.running()?;
    let process: Option<ProcessRecord> = running.and_then(|running| {
        running.members.iter().find(|member| member.rank == Some(rank)).map(|member| member.process)
    });
    let Some(process) = process else { return Ok(false) };
    let signalled = process.signal(Signal::KILL);
    if !signalled.map_err(|error| CliError::io(format!("kill engine {rank}"), error))? {
        return Ok(false);
    }
    let gone = runtime()?.block_on(process.wait_gone(KILL_LIMIT));
    if gone.map_err(|error| CliError::io(format!("wait for the end of engine {rank}"), error))? {
        return Ok(true);
    }
    Err(CliError::Dev(format!(
        "engine {rank} (process {}) has not ended {} s after SIGKILL",
        process.pid,
        KILL_LIMIT.as_secs()
    )))
}

fn write(path: &Path) -> Result<(), CliError> {
    fs::write(path, b"").map_err(|error| CliError::io(path.display().to_string(), error))
}

/// Removes what is in a folder.
fn empty(folder: &Path) -> io::Result<()> {
    let entries: Result<Vec<PathBuf>, _> =
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect();
    for path in entries? {
        let is_folder = fs::symlink_metadata(&path)?.is_dir();
        if is_folder { fs::remove_dir_all(&path)? } else { fs::remove_file(&path)? }
    }
    Ok(())
}
