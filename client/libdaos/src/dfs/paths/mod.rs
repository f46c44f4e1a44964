//! File systems by paths: `daos_fs_sys.h`.

mod directory;
mod entries;
mod mount;

pub use directory::Listing;

use core::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use weir_client::Context;
use weir_dfs::Node;

use super::{Mounted, handle_of};
use crate::errno::{Checked, Errno};
use crate::handle;
use crate::types::daos_handle_t;

/// A file system that is used by paths.
pub struct PathMount {
    /// The file system.
    mounted: Arc<Mounted>,
    /// Its handle for the functions without paths.
    base: daos_handle_t,
}

impl PathMount {
    /// Whether no thread is changing it.
    pub fn is_settled(&self) -> bool {
        self.mounted.is_settled()
    }
}

/// The file system that a program names by its `dfs_sys_t`.
pub fn mounted(dfs_sys: *mut c_void) -> Checked<Arc<Mounted>> {
    Ok(Arc::clone(&handle::paths(handle_of(dfs_sys))?.mounted))
}

/// Whether a link at the end of a path is followed.
const fn follows(flags: c_int) -> bool {
    flags & libc::O_NOFOLLOW == 0
}

/// The inode that a path names.
async fn found(context: &Context, mounted: &Mounted, path: &[u8], flags: c_int) -> Checked<Node> {
    Ok(mounted.fs.resolve(context, path, follows(flags)).await?)
}

/// The directory of a path's last component, and that: `EEXIST` for the root, which has no name.
async fn parent<'p>(context: &Context, mounted: &Mounted, path: &'p [u8]) -> Checked<(Node, &'p [u8])> {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let path = &path[..end];
    let start = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (directory, name) = path.split_at(start);
    if name.is_empty() {
        return Err(Errno(libc::EEXIST));
    }
    Ok((mounted.fs.resolve(context, directory, true).await?, name))
}

/// File system and path of a call.
fn arguments(dfs_sys: *mut c_void, path: *const c_char) -> Checked<(Arc<Mounted>, Vec<u8>)> {
    let mounted = mounted(dfs_sys)?;
    let path = mounted.path(path)?;
    Ok((mounted, path))
}

/// As [`arguments`], of a call that changes something.
fn change_arguments(dfs_sys: *mut c_void, path: *const c_char) -> Checked<(Arc<Mounted>, Vec<u8>)> {
    let (mounted, path) = arguments(dfs_sys, path)?;
    mounted.ensure_changes()?;
    Ok((mounted, path))
}
