//! The lock of a folder: a process that starts a system in it, or removes the system, has the folder alone.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::settings::Folder;
use crate::error::CliError;

/// How long a process that removes a system waits until a process that was just stopped is gone.
const WAIT_LIMIT: Duration = Duration::from_secs(5);

/// Pause between looks.
const WAIT_PAUSE: Duration = Duration::from_millis(20);

/// The folder is one's own until this is dropped, or the process ends however it may.
#[derive(Debug)]
pub struct Lock {
    _file: Option<File>,
}

impl Folder {
    /// Locks the folder, which exists; `None` if another process has it.
    ///
    /// # Errors
    /// When its file can't be opened.
    pub fn lock(&self) -> Result<Option<Lock>, CliError> {
        let path = self.lock_file();
        loop {
            let opened = File::options().read(true).write(true).create(true).truncate(false).open(&path);
            let file = opened.map_err(|error| CliError::io(path.display().to_string(), error))?;
            match file.try_lock() {
                // A lock file that was removed since it was opened excludes no other process.
                Ok(()) if is_at(&file, &path) => return Ok(Some(Lock { _file: Some(file) })),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                // A file system without locks, as there are among distributed ones.
                Err(TryLockError::Error(_)) => return Ok(Some(Lock { _file: None })),
            }
        }
    }

    /// The same, with some patience.
    ///
    /// # Errors
    /// When its file can't be opened, or another process keeps the lock.
    pub fn lock_soon(&self) -> Result<Lock, CliError> {
        let begun = Instant::now();
        loop {
            if let Some(lock) = self.lock()? {
                return Ok(lock);
            }
            if begun.elapsed() > WAIT_LIMIT {
                return Err(self.is_busy());
            }
            std::thread::sleep(WAIT_PAUSE);
        }
    }

    /// The message while another process has the lock.
    pub fn is_busy(&self) -> CliError {
        let folder = self.0.display();
        CliError::Busy(format!(
            "a system is just being started or removed in {folder}: try again, or give another --dir"
        ))
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(own), Ok(there)) = (file.metadata(), fs::metadata(path)) else { return false };
    (own.dev(), own.ino()) == (there.dev(), there.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_one_processs_at_a_time() {
        let temporary = tempfile::tempdir().expect("made");
        let folder = Folder(temporary.path().to_owned());
        let lock = folder.lock().expect("opened").expect("free");
        assert!(folder.lock().expect("opened").is_none());
        // Its file may be removed: the next process makes another one.
        fs::remove_file(folder.lock_file()).expect("removed");
        let second = folder.lock().expect("opened").expect("free");
        drop(lock);
        assert!(folder.lock().expect("opened").is_none());
        drop(second);
        assert!(folder.lock().expect("opened").is_some());
    }
}
