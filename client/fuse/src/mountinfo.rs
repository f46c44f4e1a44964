//! The mount table, from `/proc/self/mountinfo`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// File system type of our mounts.
pub const FILE_SYSTEM_TYPE: &str = "fuse.weir";

/// One mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    /// Where.
    pub mount_point: PathBuf,
    /// Type, e.g. `fuse.weir`.
    pub file_system: String,
    /// Source, e.g. `weir:tank/home`.
    pub source: String,
    /// Device number, `major:minor`.
    pub device: String,
}

/// The mount on top at exactly `path`, if any.
///
/// # Errors
/// When `/proc/self/mountinfo` cannot be read.
pub fn at(path: &Path) -> io::Result<Option<MountEntry>> {
    let table = fs::read("/proc/self/mountinfo")?;
    // Later lines cover earlier ones.
    Ok(parse(&table).into_iter().rev().find(|entry| entry.mount_point == path))
}

/// Mounts below a folder, innermost first.
///
/// # Errors
/// When `/proc/self/mountinfo` cannot be read.
pub fn below(folder: &Path) -> io::Result<Vec<MountEntry>> {
    let table = fs::read("/proc/self/mountinfo")?;
    let inside = |entry: &MountEntry| entry.mount_point.starts_with(folder) && entry.mount_point != folder;
    Ok(parse(&table).into_iter().rev().filter(inside).collect())
}

/// Whether a mount answers, so that `stat` of its root does not fail with `ENOTCONN`.
///
/// Blocks as long as the file system takes; callers put a limit on it.
#[must_use]
pub fn is_connected(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(_) => true,
        Err(error) => !matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)),
    }
}

fn parse(table: &[u8]) -> Vec<MountEntry> {
    table.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// A line is: id parent major:minor root mount-point options [optional fields] - type source super-options.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = fields.nth(2)?;
    let mount_point = fields.nth(1)?;
    fields.by_ref().find(|field| *field == b"-")?;
    let file_system = fields.next()?;
    let source = fields.next()?;
    Some(MountEntry {
        mount_point: PathBuf::from(unescape(mount_point)),
        file_system: String::from_utf8_lossy(file_system).into_owned(),
        source: unescape(source).to_string_lossy().into_owned(),
        device: String::from_utf8_lossy(device).into_owned(),
    })
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let code = tail.get(..3).filter(|_| *first == b'\\').and_then(octal);
        if let Some(byte) = code {
            plain.push(byte);
            rest = &tail[3..];
        } else {
            plain.push(*first);
            rest = tail;
        }
    }
    OsString::from_vec(plain)
}

fn octal(digits: &[u8]) -> Option<u8> {
    let text = OsStr::from_bytes(digits).to_str()?;
    u8::from_str_radix(text, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
        40 22 0:50 / /mnt/a\\040b rw,nosuid shared:7 - fuse.weir weir:tank/home rw,user_id=0\n\
        garbage\n\
        41 22 0:51 / /mnt/a\\040b rw - tmpfs none rw\n";

    #[test]
    fn escaped_names_and_optional_fields_are_understood() {
        let entries = parse(TABLE);
        assert_eq!(entries.len(), 3);
        assert_eq!(entries[1].mount_point, Path::new("/mnt/a b"));
        assert_eq!(
            (entries[1].file_system.as_str(), entries[1].source.as_str()),
            (FILE_SYSTEM_TYPE, "weir:tank/home")
        );
        assert_eq!(entries[1].device, "0:50");
    }

    #[test]
    fn the_root_is_always_mounted() {
        assert!(at(Path::new("/")).expect("/proc is there").is_some());
        assert!(at(Path::new("/no/such/mount")).expect("/proc is there").is_none());
    }

    #[test]
    fn a_broken_escape_stays_as_it_is() {
        assert_eq!(unescape(b"a\\09"), OsStr::new("a\\09"));
        assert_eq!(unescape(b"\\999"), OsStr::new("\\999"));
    }
}
