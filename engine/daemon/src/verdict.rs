//! What is remembered of a target's device over a restart of the engine: that it is faulty, and why.
//!
//! It can't be kept on the device itself, which is not used any more. On real engines it is a file beside the target's,
//! `target-N.faulty` with the reason as text, until an operator says that the device was repaired or replaced.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::durable;

/// The memory of one device's verdict.
pub trait Verdict {
    /// Why the device is faulty; `None`: nothing is held against it.
    fn read(&self) -> Option<String>;

    /// Remembers that it is faulty.
    ///
    /// # Errors
    /// When it can't be made durable.
    fn pass(&self, reason: &str) -> io::Result<()>;

    /// Forgets it. Whether there was anything to forget.
    ///
    /// # Errors
    /// When that can't be made durable.
    fn lift(&self) -> io::Result<bool>;
}

/// A verdict in a file of the data directory.
#[derive(Clone, Debug)]
pub struct FileVerdict {
    path: PathBuf,
}

impl FileVerdict {
    /// The verdict that is kept in this file.
    #[must_use]
    pub const fn new(path: PathBuf) -> Self {
        Self { path }
    }
}

impl Verdict for FileVerdict {
    fn read(&self) -> Option<String> {
        match fs::read_to_string(&self.path) {
            Ok(reason) => Some(reason.trim().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // Who can't tell must not use it.
            Err(error) => Some(format!("{} can't be read: {error}", self.path.display())),
        }
    }

    fn pass(&self, reason: &str) -> io::Result<()> {
        durable::write(&self.path, format!("{reason}\n").as_bytes())
    }

    fn lift(&self) -> io::Result<bool> {
        durable::remove(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_stays_until_it_is_lifted() {
        let folder = tempfile::tempdir().expect("a folder");
        let verdict = || FileVerdict::new(folder.path().join("target-0.faulty"));
        assert_eq!(verdict().read(), None);
        assert!(!verdict().lift().expect("nothing to lift"));
        verdict().pass("a flush failed").expect("it is written");
        verdict().pass("a flush failed again").expect("it is written");
        assert_eq!(verdict().read().as_deref(), Some("a flush failed again"));
        assert!(verdict().lift().expect("it is lifted"));
        assert_eq!(verdict().read(), None);
        fs::create_dir(folder.path().join("target-0.faulty")).expect("something else");
        assert!(verdict().read().expect("who can't tell must not use it").contains("can't be read"));
    }
}
