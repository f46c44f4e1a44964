//! Listing directories by paths.

use core::ffi::{c_char, c_int, c_void};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use weir_client::Anchor;
use weir_dfs::Node;
use weir_proto::limits::LIST_KEYS_MAX;

use super::super::{handle_of, listing::entry, lock, pointer};
use super::{arguments, found};
use crate::boundary::required;
use crate::errno::{Errno, checked, wait};
use crate::handle::{self, Opened};

/// A directory that is listed by paths.
pub struct Listing {
    directory: Node,
    state: Mutex<State>,
}

struct State {
    ahead: VecDeque<Node>,
    next: Anchor,
    /// What the program was given last; its memory is this one's.
    current: Box<libc::dirent>,
}

impl Listing {
    /// Whether no thread is using it.
    pub fn is_settled(&self) -> bool {
        self.state.try_lock().is_ok()
    }
}

/// Opens a directory for listing.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_opendir(
    dfs_sys: *mut c_void,
    dir: *const c_char,
    flags: c_int,
    dirp: *mut *mut c_void,
) -> c_int {
    checked(|| {
        let ((mounted, path), place) = (arguments(dfs_sys, dir)?, required(dirp)?);
        let directory = wait(async |context| found(context, &mounted, &path, flags).await)?;
        if !directory.is_directory() {
            return Err(Errno(libc::ENOTDIR));
        }
        let current = Box::new(entry(&directory));
        let state = Mutex::new(State { ahead: VecDeque::new(), next: Anchor::START, current });
        place.set(pointer(handle::issue(Opened::Listing(Arc::new(Listing { directory, state })))?));
        Ok(())
    })
}

/// Ends a listing.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_closedir(dirp: *mut c_void) -> c_int {
    checked(|| {
        handle::listing(handle_of(dirp))?;
        Ok(handle::forget(handle_of(dirp))?)
    })
}

/// The next entry, NULL at the end. It stays until the next one is asked for.
#[unsafe(no_mangle)]
pub extern "C" fn dfs_sys_readdir(
    dfs_sys: *mut c_void,
    dirp: *mut c_void,
    dirent: *mut *mut libc::dirent,
) -> c_int {
    checked(|| {
        let (mounted, place) = (super::mounted(dfs_sys)?, required(dirent)?);
        let listing = handle::listing(handle_of(dirp))?;
        let mut state = lock(&listing.state);
        while state.ahead.is_empty() && !state.next.is_end() {
            let from = state.next.clone();
            let (nodes, next) = wait(async |context| {
                Ok(mounted.fs.list(context, &listing.directory, &from, LIST_KEYS_MAX).await?)
            })?;
            state.ahead.extend(nodes);
            state.next = next;
        }
        match state.ahead.pop_front() {
            Some(node) => {
                *state.current = entry(&node);
                place.set(&raw mut *state.current);
            }
            None => place.set(core::ptr::null_mut()),
        }
        Ok(())
    })
}
