//! Random keys, and files that only their owner can read. The room calls errors; whatever keeps or hands out a key calls it.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::error::CliError;

/// A new system key.
///
/// # Errors
/// When the kernel gives no random numbers.
pub fn random_key() -> Result<[u8; 32], CliError> {
    let mut key = [0; 32];
    let read = fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut key));
    read.map(|()| key).map_err(|error| CliError::io("/dev/urandom", error))
}

/// Writes a file that only its owner can read, in one step.
///
/// # Errors
/// When it cannot be written.
pub fn write_private(path: &Path, content: &[u8]) -> Result<(), CliError> {
    let write = || -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let fresh = path.with_extension("new");
        // The remains of an interrupted write. A link that another user has put there is not followed, but removed.
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(content)?;
        drop(file);
        fs::rename(&fresh, path)
    };
    write().map_err(|error| CliError::io(format!("write {}", path.display()), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_link_is_followed_where_a_private_file_is_written() {
        let folder = tempfile::tempdir().expect("made");
        let (victim, path) = (folder.path().join("victim"), folder.path().join("system.key"));
        fs::write(&victim, "mine").expect("written");
        for link in [folder.path().join("system.new"), path.clone()] {
            std::os::unix::fs::symlink(&victim, link).expect("made");
        }
        write_private(&path, b"secret").expect("written");
        assert_eq!(fs::read(&victim).expect("read"), b"mine");
        assert!(fs::symlink_metadata(&path).expect("there").is_file());
        assert_eq!(fs::read(&path).expect("read"), b"secret");
    }
}
