//! The durable record that a target's device is faulty, and why. It outlasts restarts of the engine.
//!
//! The record can't be kept on the device itself, because a faulty device is not used any more. Real engines keep it in a file
//! beside the target's: `target-N.faulty`, with the reason as text. The file stays until an operator says that the device was
//! repaired or replaced.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::durable;

/// The durable record that one device is faulty.
pub trait FaultRecord {
    /// Why the device is faulty; `None`: the device is not recorded as faulty.
    fn read(&self) -> Option<String>;

    /// Records that the device is faulty.
    ///
    /// # Errors
    /// When it can't be made durable.
    fn set(&self, reason: &str) -> io::Result<()>;

    /// Removes the record. Returns whether there was one.
    ///
    /// # Errors
    /// When that can't be made durable.
    fn clear(&self) -> io::Result<bool>;
}

/// A fault record in a file of the data directory.
#[derive(Clone, Debug)]
pub struct FaultFile {
    path: PathBuf,
}

impl FaultFile {
    /// The record that is kept in this file.
    #[must_use]
    pub const fn new(path: PathBuf) -> Self {
        Self { path }
    }
}

impl FaultRecord for FaultFile {
    fn read(&self) -> Option<String> {
        match fs::read_to_string(&self.path) {
            Ok(reason) => Some(reason.trim().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // A device whose record can't be read must not be used.
            Err(error) => Some(format!("{} can't be read: {error}", self.path.display())),
        }
    }

    fn set(&self, reason: &str) -> io::Result<()> {
        durable::write(&self.path, format!("{reason}\n").as_bytes())
    }

    fn clear(&self) -> io::Result<bool> {
        durable::remove(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_stays_until_it_is_cleared() {
        let folder = tempfile::tempdir().expect("a folder");
        let fault_record = || FaultFile::new(folder.path().join("target-0.faulty"));
        assert_eq!(fault_record().read(), None);
        assert!(!fault_record().clear().expect("nothing to clear"));
        fault_record().set("a flush failed").expect("it is written");
        fault_record().set("a flush failed again").expect("it is written");
        assert_eq!(fault_record().read().as_deref(), Some("a flush failed again"));
        assert!(fault_record().clear().expect("it is cleared"));
        assert_eq!(fault_record().read(), None);
        fs::create_dir(folder.path().join("target-0.faulty")).expect("something else");
        assert!(
            fault_record().read().expect("a device of unknown state is not used").contains("can't be read")
        );
    }
}
