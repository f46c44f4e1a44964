//! How a process begins to find names of a mount by itself.
//!
//! It keeps the mount's root open, on a thread of this library, whose descriptors are not the program's. As long as it does, the mount
//! gathers nothing. The end of the process closes it.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use weir_dfs::Error;
use weir_dfs::direct::{self, DirectMount, DirectNames, FILE_BYTES};

use crate::ask::ask;
use crate::question::Beginning;
use crate::submission::Outcome;

/// Inode number of a mount's root.
const ROOT: u64 = 1;

/// What `/proc/self/uid_map` and `gid_map` end with where all users are those of the system.
const ALL_USERS: &str = "4294967295";

/// Asks a mount. Without an answer the kernel does all.
pub fn begin(beginning: &mut Beginning) -> Outcome {
    beginning.begun = try_begin(beginning);
    if beginning.begun.is_some() { Outcome::Done { bytes: 0, end: 0 } } else { Outcome::Failed }
}

fn try_begin(beginning: &Beginning) -> Option<(DirectNames, DirectMount)> {
    // In a namespace of users of its own a process has other numbers than the engines know.
    if !["/proc/self/uid_map", "/proc/self/gid_map"].iter().all(|map| has_all_users(map)) {
        return None;
    }
    let path = Path::new(OsStr::from_bytes(beginning.path));
    let root = File::options().read(true).custom_flags(libc::O_DIRECTORY).open(path).ok()?;
    if !is_root_of(&root, beginning.device) {
        return None;
    }
    let mut answer = [0; FILE_BYTES];
    ask(root.as_raw_fd(), direct::NAMES, &raw mut answer).ok()?;
    let names = DirectNames::from_answer(&answer).ok()?;
    let refused = |errno| Error::Invalid(format!("a mount has refused to describe itself: errno {errno}"));
    let mount =
        DirectMount::collect(|piece| ask(root.as_raw_fd(), direct::MOUNT, &raw mut *piece).map_err(refused));
    // Else another process serves the mount since.
    let mount = mount.ok().filter(|mount| mount.id == names.mount)?;
    // Until the process ends.
    std::mem::forget(root);
    Some((names, mount))
}

fn has_all_users(map: &str) -> bool {
    std::fs::read_to_string(map).is_ok_and(|map| map.split_whitespace().eq(["0", "0", ALL_USERS]))
}

fn is_root_of(root: &File, device: u32) -> bool {
    const HERE: &CStr = c"";
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the path is an empty C string, and the place holds what the call writes.
    let failed =
        unsafe { libc::statx(root.as_raw_fd(), HERE.as_ptr(), flags, libc::STATX_INO, found.as_mut_ptr()) };
    // SAFETY: zeroed above, which is a value of it, and perhaps written by the call.
    let found = unsafe { found.assume_init() };
    failed == 0 && found.stx_dev_major == 0 && found.stx_dev_minor == device && found.stx_ino == ROOT
}
