//! The folder of a system of `weir dev`: its settings, certificates and keys, its running processes, and the lock that
//! one supervisor holds. The room calls attach files and secrets, which it writes. Connections ask it whether a system
//! runs; `dev` starts and stops it.

mod identity;
mod lock;
mod ports;
mod settings;

pub use identity::LOOPBACK;
pub use lock::Lock;
pub use settings::{Folder, Member, Running, Settings, in_quotes, quoted};

use std::path::{Path, PathBuf};

use crate::error::CliError;

/// The folder of `weir dev` when none is named.
#[must_use]
pub fn default_folder() -> PathBuf {
    std::env::var_os("HOME").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from).join(".weir-dev")
}

/// Refuses to ask engines that were not started, instead of waiting for them. An attach file that is not in a folder of
/// `weir dev` says nothing of running engines.
///
/// # Errors
/// When the folder has a system of which no process is there.
pub fn ensure_runs(attach: &Path) -> Result<(), CliError> {
    let Some(path) = attach.parent() else { return Ok(()) };
    let folder = Folder(path.to_owned());
    // A file that can't be read belongs to another user.
    let Ok(Some(_)) = folder.settings() else { return Ok(()) };
    let runs = match folder.running() {
        Ok(Some(running)) => {
            running.supervisor.is_alive() || running.members.iter().any(|member| member.process.is_alive())
        }
        Ok(None) => false,
        Err(_) => true,
    };
    if runs {
        return Ok(());
    }
    let (shown, start) = (folder.0.display(), folder.command("up"));
    Err(CliError::Dead(format!("no system runs in {shown}: start it with `{start}`")))
}
