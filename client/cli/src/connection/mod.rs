//! The way to a system's engines: which attach file counts, management over gRPC, and containers over the fabric. The room calls
//! attach files, and the folder of `weir dev` for whether its system runs. Every command that needs engines calls it.

pub mod session;
mod system;

pub use system::System;

use std::path::{Path, PathBuf};

use crate::error::CliError;
use crate::local::{default_folder, ensure_runs};

/// Environment variable that names the attach file.
pub const ATTACH_VARIABLE: &str = "WEIR_ATTACH";

/// Where a system on Kubernetes has its attach file in a pod or on a node.
pub const ATTACH_SYSTEM: &str = "/etc/weir/client/client.json";

/// The attach file to use: the one named, else the environment's, else the first that exists of the node's and that of
/// `weir dev`.
///
/// # Errors
/// When there is none, or it is that of a system of `weir dev` which doesn't run.
pub fn find_attach(named: Option<&Path>) -> Result<PathBuf, CliError> {
    let path = choose_attach(named)?;
    // A pipe might have to be waited for without an end.
    if std::fs::metadata(&path).is_ok_and(|about| !about.is_file()) {
        return Err(CliError::AttachFile { path, reason: "it is no file".to_owned() });
    }
    ensure_runs(&path)?;
    Ok(path)
}

fn choose_attach(named: Option<&Path>) -> Result<PathBuf, CliError> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    if let Some(path) = std::env::var_os(ATTACH_VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let places = [PathBuf::from(ATTACH_SYSTEM), default_folder().join("client.json")];
    places.iter().find(|path| path.exists()).cloned().ok_or_else(|| {
        CliError::NoAttachFile(
            places.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and "),
        )
    })
}

/// An executor for the calls of a command.
///
/// # Errors
/// When the system refuses what it needs.
pub fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::io("start the asynchronous runtime", error))
}
