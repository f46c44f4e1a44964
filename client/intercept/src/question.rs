//! What `libpil4dfs.so` hands over, and a question on names on its way to a thread that asks the engines.

use core::ffi::{c_char, c_int, c_void};

use libc::{dirent64, size_t, ssize_t};
use weir_client::ObjectId;
use weir_dfs::direct::{DirectMount, DirectNames};
use weir_dfs::{DirStream, Stat};

use crate::caller::Caller;

/// Mounts of a process, at most (`names.c`).
pub const MOUNTS: usize = 16;

/// Longest path of one, with its end.
const PATH_BYTES: usize = 1024;

/// The answer by which a call goes through the kernel.
pub const KERNEL: c_int = -2;

/// The mount allows no changes.
pub const READ_ONLY: u32 = 1;

/// The mount runs no programs.
pub const NO_PROGRAMS: u32 = 2;

/// A mount of Weir.
#[repr(C)]
pub struct Place {
    /// Number of the mount in the kernel.
    pub id: u32,
    /// Minor number of its device.
    pub device: u32,
    /// [`READ_ONLY`] and [`NO_PROGRAMS`].
    pub flags: u32,
    length: size_t,
    path: [u8; PATH_BYTES],
}

impl Place {
    /// Where it is mounted.
    pub fn path(&self) -> &[u8] {
        &self.path[..self.length.min(PATH_BYTES)]
    }
}

/// The mounts of Weir that the process has found.
#[repr(C)]
pub struct Places {
    /// Bytes of this structure.
    pub bytes: size_t,
    count: size_t,
    all: [Place; MOUNTS],
}

impl Places {
    /// All of them.
    pub fn all(&self) -> &[Place] {
        &self.all[..self.count.min(MOUNTS)]
    }
}

/// Where a path begins.
#[repr(C)]
pub struct Base {
    /// Which of the mounts.
    pub mount: u32,
    /// The directory's descriptor, or `AT_FDCWD`.
    pub descriptor: c_int,
    /// Not 0: the path is relative.
    pub is_relative: c_int,
    /// What the kernel says of the root of the mount, or of the directory.
    pub found: libc::statx,
}

/// The functions that `libpil4dfs.so` calls.
#[repr(C)]
pub struct NameCalls {
    /// Bytes of this structure.
    pub bytes: size_t,
    /// Directories that this library has opened are from here
    pub first: *const c_char,
    /// to here.
    pub end: *const c_char,
    /// `stat` and its like.
    pub look: unsafe extern "C" fn(*const Base, *const c_char, c_int, *mut libc::statx) -> c_int,
    /// `access` and its like.
    pub may: unsafe extern "C" fn(*const Base, *const c_char, c_int, c_int) -> c_int,
    /// `readlink`.
    pub read_link: unsafe extern "C" fn(*const Base, *const c_char, *mut c_char, size_t) -> ssize_t,
    /// `mkdir`, and with a target `symlink`.
    pub make: unsafe extern "C" fn(*const Base, *const c_char, libc::mode_t, *const c_char) -> c_int,
    /// `getxattr`, and without a name `listxattr`.
    pub attribute: unsafe extern "C" fn(
        *const Base,
        *const c_char,
        c_int,
        *const c_char,
        *mut c_char,
        size_t,
    ) -> ssize_t,
    /// `opendir`, and without a path `fdopendir`.
    pub open: unsafe extern "C" fn(*const Base, *const c_char) -> *mut c_void,
    /// `readdir`.
    pub next: unsafe extern "C" fn(*mut c_void) -> *mut dirent64,
    /// `closedir`.
    pub close: unsafe extern "C" fn(*mut c_void) -> c_int,
    /// `telldir`.
    pub place: unsafe extern "C" fn(*mut c_void) -> libc::c_long,
    /// `seekdir` and `rewinddir`.
    pub go: unsafe extern "C" fn(*mut c_void, libc::c_long),
    /// `dirfd`.
    pub descriptor: unsafe extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: the pointers are to memory of this library that is never freed.
unsafe impl Sync for NameCalls {}

/// A question whether a mount's names may be found here, with the answer.
pub struct Beginning {
    /// Where it is mounted: bytes that last as long as the process.
    pub path: &'static [u8],
    /// Minor number of its device.
    pub device: u32,
    /// The answer.
    pub begun: Option<(DirectNames, DirectMount)>,
}

/// What is wanted of a path.
pub enum Wanted<'a> {
    /// Attributes.
    Look,
    /// Whether the caller may do this, on a mount that has these flags.
    May(u32, u32),
    /// Where a symbolic link leads.
    ReadLink(&'a mut [u8]),
    /// The value of an extended attribute; without a name, the names of all.
    Attribute(Option<&'a [u8]>, &'a mut [u8]),
    /// A new directory, with a mode before the umask.
    MakeDirectory(u32),
    /// A new symbolic link to there.
    MakeLink(&'a [u8]),
    /// To list a directory.
    Open(&'a mut Option<(DirStream, u64)>),
}

/// A question on a name.
pub struct Question<'a> {
    /// Which of the process's mounts.
    pub mount: u16,
    /// Inode number of the directory where the path begins.
    pub start: u64,
    /// Path of that directory below the mount's root; `None` as long as it isn't needed.
    pub start_path: Option<&'a [u8]>,
    /// The path from there; empty for the directory itself.
    pub path: &'a [u8],
    /// A symbolic link at its end is followed.
    pub follows: bool,
    /// Who asks.
    pub caller: Caller,
    /// For what.
    pub wanted: Wanted<'a>,
    /// The attributes, once they are found.
    pub found: Option<Stat>,
}

/// A question for entries of a directory.
pub struct Listing<'a> {
    /// Which of the process's mounts.
    pub mount: u16,
    /// What was listed so far.
    pub stream: &'a mut DirStream,
    /// Where to go on.
    pub cookie: u64,
    /// What comes then; empty at the end.
    pub entries: Vec<Entry>,
}

/// An entry as `readdir` tells it.
pub struct Entry {
    /// Its name.
    pub name: Vec<u8>,
    /// Inode number.
    pub inode: u64,
    /// Type of the inode, as `d_type` has it.
    pub kind: u8,
}

/// An object by its parts.
pub const fn key(oid: ObjectId) -> u128 {
    ((oid.hi as u128) << 64) | oid.lo as u128
}
