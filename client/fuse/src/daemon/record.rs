//! The daemon's record of a mount, kept across its own restarts.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::process::ProcessRecord;
use crate::report::Identity;
use crate::spec::MountSpec;

/// File with the record in a mount's folder.
const RECORD_FILE: &str = "record.json";

/// A mount and the process that serves it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// What was asked for.
    pub spec: MountSpec,
    /// The process.
    pub process: ProcessRecord,
    /// What is mounted; none while the mount is being made.
    pub identity: Option<Identity>,
}

/// Name of the folder that belongs to a target path: a hash, since a path can be longer than a name may be.
#[must_use]
pub fn folder_name(target: &Path) -> String {
    blake3::hash(target.as_os_str().as_encoded_bytes()).to_hex()[..16].to_owned()
}

/// Control socket in a mount's folder.
#[must_use]
pub fn control_socket(folder: &Path) -> PathBuf {
    folder.join("control.sock")
}

impl Record {
    /// Reads the record of a mount's folder.
    ///
    /// # Errors
    /// When it is not there or not valid.
    pub fn load(folder: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(folder.join(RECORD_FILE))?;
        serde_json::from_str(&text).map_err(io::Error::other)
    }

    /// Writes the record in one step: a reader finds the old or the new one, whole.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn store(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let fresh = folder.join("record.new");
        let mut file = fs::File::create(&fresh)?;
        file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, folder.join(RECORD_FILE))
    }
}
