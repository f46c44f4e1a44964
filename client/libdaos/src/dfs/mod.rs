//! libdfs: file systems in containers.
//!
//! What programs hold by pointers (`dfs_t`, `dfs_obj_t`, `dfs_sys_t`, `DIR`) are numbers of the table of handles: they are never
//! followed, and one that was released is no number any more.

mod attributes;
mod connect;
mod data;
mod filter;
mod global;
mod listing;
mod mount;
mod names;
mod open;
mod paths;
mod xattr;

pub use connect::{create as create_container, properties as container_properties};
pub use filter::Filter;
pub use mount::copy_text;
pub use paths::{Listing, PathMount};

use core::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_client::ObjectClass;
use weir_dfs::{Dfs, File, FileLayout, Node, Ownership};

use crate::boundary::bytes_of;
use crate::errno::{Checked, Errno};
use crate::handle::{self, Opened};
use crate::types::daos_handle_t;

/// A mounted file system.
pub struct Mounted {
    /// The file system.
    pub fs: Dfs,
    /// It was mounted to be read only.
    pub is_read_only: bool,
    /// Handle of the pool.
    pub pool: daos_handle_t,
    /// Handle of the container.
    pub container: daos_handle_t,
    /// Its handles end with it.
    pub is_connected: bool,
    /// What paths begin with that programs give.
    prefix: Mutex<Vec<u8>>,
}

/// An open file, directory or symbolic link.
pub struct FsObject {
    /// Where it is.
    pub mounted: Arc<Mounted>,
    /// How it was opened (`O_ACCMODE`).
    pub access: c_int,
    /// Its content, of a file.
    pub file: Option<File>,
    node: Mutex<Node>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mounted {
    /// A file system that was just mounted with these flags.
    pub fn new(
        fs: Dfs,
        flags: c_int,
        (pool, container): (daos_handle_t, daos_handle_t),
        is_connected: bool,
    ) -> Self {
        let is_read_only = flags & libc::O_ACCMODE == libc::O_RDONLY;
        Self { fs, is_read_only, pool, container, is_connected, prefix: Mutex::default() }
    }

    /// Whether no thread is changing it.
    pub fn is_settled(&self) -> bool {
        self.prefix.try_lock().is_ok()
    }

    /// Refuses changes through a mount that is for reading.
    pub fn ensure_changes(&self) -> Checked<()> {
        if self.is_read_only { Err(Errno(libc::EPERM)) } else { Ok(()) }
    }

    /// Sets what paths begin with; nothing any more for an empty prefix.
    pub fn set_prefix(&self, prefix: &[u8]) {
        let end = prefix.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        *lock(&self.prefix) = prefix[..end].to_vec();
    }

    /// The prefix that was set.
    pub fn prefix(&self) -> Vec<u8> {
        lock(&self.prefix).clone()
    }

    /// A path of a program, without the prefix: `EINVAL` for one that isn't absolute or has another beginning.
    pub fn path(&self, path: *const c_char) -> Checked<Vec<u8>> {
        let path = bytes_of(path)?;
        if path.len() > PATH_MAX {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        let prefix = lock(&self.prefix);
        match path.strip_prefix(&prefix[..]) {
            Some([]) if !prefix.is_empty() => Ok(b"/".to_vec()),
            Some(rest) if rest.first() == Some(&b'/') => Ok(rest.to_vec()),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// Opens an inode, for what the flags say.
    pub fn open(self: &Arc<Self>, node: Node, flags: c_int) -> Checked<FsObject> {
        let access = flags & libc::O_ACCMODE;
        if access != libc::O_RDONLY {
            self.ensure_changes()?;
        }
        let is_file = node.record.kind == weir_dfs::Kind::File;
        let file = if is_file { Some(self.fs.file(&node)?) } else { None };
        Ok(FsObject { mounted: Arc::clone(self), access, file, node: Mutex::new(node) })
    }
}

/// Longest path, in bytes (`DFS_MAX_PATH`).
const PATH_MAX: usize = 4096;

impl FsObject {
    /// Whether no thread is changing it.
    pub fn is_settled(&self) -> bool {
        self.node.try_lock().is_ok() && self.mounted.is_settled()
    }

    /// The inode, as it was seen last.
    pub fn node(&self) -> Node {
        lock(&self.node).clone()
    }

    /// Notes how the inode is now.
    pub fn note(&self, node: Node) {
        *lock(&self.node) = node;
    }

    /// The content: `EINVAL` of what is no file.
    pub fn content(&self) -> Checked<&File> {
        self.file.as_ref().ok_or(Errno(libc::EINVAL))
    }

    /// The content, to be read.
    pub fn readable(&self) -> Checked<&File> {
        if self.access == libc::O_WRONLY { Err(Errno(libc::EPERM)) } else { self.content() }
    }

    /// The content, to be changed.
    pub fn writable(&self) -> Checked<&File> {
        if self.access == libc::O_RDONLY { Err(Errno(libc::EPERM)) } else { self.content() }
    }

    /// Makes a pointer for the program of it.
    pub fn issue(self) -> Checked<*mut c_void> {
        let container = self.mounted.container;
        Ok(pointer(handle::issue_within(container, false, Opened::FsObject(Arc::new(self)))?))
    }
}

/// A handle as a program holds it.
pub fn pointer(handle: daos_handle_t) -> *mut c_void {
    handle.cookie as *mut c_void
}

/// The handle of a program's pointer.
pub fn handle_of(pointer: *mut c_void) -> daos_handle_t {
    daos_handle_t { cookie: pointer as u64 }
}

/// The file system that a program names.
pub fn mounted(dfs: *mut c_void) -> Checked<Arc<Mounted>> {
    Ok(handle::file_system(handle_of(dfs))?)
}

/// The open object that a program names.
pub fn object(obj: *mut c_void) -> Checked<Arc<FsObject>> {
    Ok(handle::fs_object(handle_of(obj))?)
}

/// The directory that a program names; the root for NULL.
pub fn directory(mounted: &Mounted, parent: *mut c_void) -> Checked<Node> {
    if parent.is_null() {
        return Ok(mounted.fs.root().clone());
    }
    let node = object(parent)?.node();
    if node.is_directory() { Ok(node) } else { Err(Errno(libc::ENOTDIR)) }
}

/// Permission bits for what this process creates, which is its owner.
pub fn ownership(mode: u32) -> Ownership {
    // SAFETY: both calls take nothing and only read.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    Ownership { mode: mode & 0o7777, uid, gid }
}

/// The class that a program names by its number; `None` for 0.
pub fn class_of(cid: u32) -> Checked<Option<ObjectClass>> {
    let class = crate::class::chosen(cid)?;
    match class.map(ObjectClass::ensure_supported).transpose() {
        Ok(class) => Ok(class),
        Err(_) => Err(Errno(libc::EINVAL)),
    }
}

/// How a file that a program creates is stored.
pub fn layout_of(cid: u32, chunk_size: u64) -> Checked<FileLayout> {
    Ok(FileLayout { class: class_of(cid)?, chunk_size: (chunk_size > 0).then_some(chunk_size) })
}
