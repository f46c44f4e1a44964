//! Who starts a system in a folder, or removes it, has the folder alone meanwhile.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::settings::Folder;
use crate::error::CliError;

/// How long whoever removes a system waits for who has just stopped to be gone.
const WAIT_LIMIT: Duration = Duration::from_secs(5);

/// Pause between looks.
const WAIT_PAUSE: Duration = Duration::from_millis(20);

/// The folder is one's own until this is dropped, or the process ends however it may.
#[derive(Debug)]
pub struct Lock {
    _file: Option<File>,
}

impl Folder {
    /// Makes the folder one's own, which exists; none if it is somebody else's.
    ///
    /// # Errors
    /// When its file can't be opened.
    pub fn lock(&self) -> Result<Option<Lock>, CliError> {
        let path = self.lock_file();
        loop {
            let opened = File::options().read(true).write(true).create(true).truncate(false).open(&path);
            let file = opened.map_err(|error| CliError::io(path.display().to_string(), error))?;
            match file.try_lock() {
                // One that was removed since it was opened keeps nobody out.
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
    /// When its file can't be opened, or it stays somebody else's.
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

    /// What to say while it is somebody else's.
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
        // Its file may go: who comes then makes another one.
        fs::remove_file(folder.lock_file()).expect("removed");
        let second = folder.lock().expect("opened").expect("free");
        drop(lock);
        assert!(folder.lock().expect("opened").is_none());
        drop(second);
        assert!(folder.lock().expect("opened").is_some());
    }
}
