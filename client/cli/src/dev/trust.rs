//! Whether a folder is safe to keep a system in: its content is run, killed, read and written as the user that runs
//! `weir dev`.

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use crate::error::CliError;

/// The superuser, which could change everything anyway.
const ROOT: u32 = 0;

/// Mode bits that let a folder's group, and all users, put something into it.
const OTHERS_WRITE: u32 = 0o022;
const ALL_WRITE: u32 = 0o002;

/// Lets each user remove only its own files.
const STICKY: u32 = 0o1000;

/// Mode of a folder made here, whatever the process's mask: no other user writes to it.
const FOLDER_MODE: u32 = 0o755;

/// Checks that only root and this user can put something into a folder, or another folder in its place. A missing
/// folder is made below folders that are checked so.
///
/// # Errors
/// When another user can, or it can't be checked.
pub fn check(folder: &Path) -> Result<(), CliError> {
    let looked = |path: &Path| match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CliError::io(path.display().to_string(), error)),
    };
    if let Some(found) = looked(folder)?.filter(Metadata::is_symlink)
        && !is_trusted(found.uid())
    {
        return Err(refused(folder, &format!("it is a link that user {} has made", found.uid())));
    }
    // Links on the way are followed here, as they are later: those that others can change stand in folders that are refused.
    let mut known = folder;
    let whole = loop {
        match known.canonicalize() {
            Ok(whole) => break whole,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                known = known.parent().ok_or_else(|| CliError::io(folder.display().to_string(), error))?;
            }
            Err(error) => return Err(CliError::io(folder.display().to_string(), error)),
        }
    };
    for (path, above) in whole.ancestors().zip(0_usize..) {
        let Some(found) = looked(path)? else { continue };
        let is_it = above == 0 && known == folder;
        if let Some(reason) = reason_against(&found, is_it) {
            return Err(refused(folder, &format!("{} {reason}", path.display())));
        }
    }
    Ok(())
}

/// Makes a folder where there is none.
///
/// # Errors
/// When it can't be made, or another process has made it first.
pub fn make(folder: &Path) -> Result<(), CliError> {
    DirBuilder::new()
        .recursive(true)
        .mode(FOLDER_MODE)
        .create(folder)
        .map_err(|error| CliError::io(folder.display().to_string(), error))?;
    check(folder)
}

fn is_trusted(owner: u32) -> bool {
    owner == ROOT || owner == rustix::process::geteuid().as_raw()
}

/// Why nothing is kept in a folder, or below it.
fn reason_against(found: &Metadata, is_it: bool) -> Option<String> {
    let mode = found.mode();
    if !is_trusted(found.uid()) {
        return Some(format!("belongs to user {}", found.uid()));
    }
    let open = if is_it { mode & OTHERS_WRITE != 0 } else { mode & ALL_WRITE != 0 && mode & STICKY == 0 };
    open.then(|| format!("can be written by others (mode {:04o})", mode & 0o7777))
}

fn refused(folder: &Path, reason: &str) -> CliError {
    CliError::Untrusted(format!(
        "{} is not safe to keep a system in: {reason}; give another --dir, or take the right away (chmod go-w)",
        folder.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
    }

    #[test]
    fn a_folder_that_others_can_change_is_refused() {
        let above = tempfile::tempdir().expect("made");
        let folder = above.path().join("a/b");
        check(&folder).expect("it can be made");
        make(&folder).expect("made");
        for (open, good) in [(0o755, true), (0o700, true), (0o775, false), (0o757, false), (0o1777, false)] {
            mode(&folder, open);
            assert_eq!(check(&folder).is_ok(), good, "{open:o}");
        }
        mode(&folder, 0o755);
        let below = folder.join("c");
        for (open, good) in [(0o777, false), (0o1777, true), (0o755, true)] {
            mode(&folder, open);
            assert_eq!(check(&below).is_ok(), good, "below {open:o}");
        }
        let link = above.path().join("link");
        symlink(&folder, &link).expect("made");
        check(&link).expect("a link of one's own");
    }

    #[test]
    fn a_folder_or_link_of_somebody_else_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let above = tempfile::tempdir().expect("made");
        let (folder, link, own) =
            (above.path().join("theirs"), above.path().join("link"), above.path().join("own"));
        make(&folder).expect("made");
        make(&own).expect("made");
        chown(&folder, Some(65534), None).expect("chown");
        symlink(&own, &link).expect("made");
        std::os::unix::fs::lchown(&link, Some(65534), None).expect("chown");
        for path in [&folder, &folder.join("below"), &link] {
            let refused = check(path).expect_err("not one's own").to_string();
            assert!(refused.contains("65534"), "{refused}");
        }
    }
}
