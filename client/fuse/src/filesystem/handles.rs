//! Open files and directories, by the kernel's file handle.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_dfs::File;

use super::directories::Listing;
use super::inodes::Inode;
use crate::kept::{Kept, KeptHandle, Slot};

/// Parts of the table, each with its own lock.
const SHARDS: usize = 16;

/// An open file.
#[derive(Debug)]
pub struct OpenFile {
    /// Its inode.
    pub inode: Arc<Inode>,
    /// Its content.
    pub file: File,
    /// It was opened for writing.
    pub may_write: bool,
    /// Every write goes to the end.
    pub append: bool,
    /// Gather writes until the file is closed.
    pub gathers: bool,
    /// A process moves data to and from the engines itself.
    pub is_direct: AtomicBool,
    /// A process that can do so has mapped it.
    pub is_mapped: AtomicBool,
    /// Failures of the file that `fsync` or `close` of this handle has told, or that came before it.
    pub reported: AtomicU64,
    /// Failures that a write of this handle was refused for, or that were told otherwise.
    pub refused: AtomicU64,
}

/// An open directory.
#[derive(Debug)]
pub struct OpenDirectory {
    /// Its inode.
    pub inode: Arc<Inode>,
    /// What was listed so far. Locked across requests: the kernel reads one directory handle at a time.
    pub listing: Mutex<Listing>,
    /// An engine with attributes of entries stays away: names are listed without asking for more of them.
    pub names_only: AtomicBool,
    /// Of the root: the process that has it open finds names and attributes at the engines itself.
    pub reads_names: AtomicBool,
}

/// What a handle stands for.
#[derive(Clone, Debug)]
pub enum Handle {
    /// A file.
    File(Arc<OpenFile>),
    /// A directory.
    Directory(Arc<OpenDirectory>),
}

/// Open handles.
#[derive(Debug)]
pub struct Handles {
    next: AtomicU64,
    shards: Vec<Mutex<HashMap<u64, Entry>>>,
    /// Where handles are kept for a successor of this process, if one may come.
    kept: Option<Arc<Kept>>,
    /// Handles whose request the process before this one may not have answered, by its number.
    unanswered: Mutex<HashMap<u64, u64>>,
}

#[derive(Debug)]
struct Entry {
    handle: Handle,
    slot: Option<Slot>,
    request: OpenRequest,
}

/// Marks in the flags of a kept handle that a process accesses the file directly: no flag of `open` has this bit.
pub const KEPT_DIRECT: i32 = 1 << 30;

/// The request that opens a handle.
#[derive(Clone, Copy, Debug)]
pub struct OpenRequest {
    /// The kernel's number of it.
    pub number: u64,
    /// Flags of `open`; `None` for a directory.
    pub flags: Option<i32>,
}

impl Handles {
    /// An empty table.
    pub fn new(kept: Option<Arc<Kept>>) -> Self {
        let first = kept.as_ref().map_or(1, |kept| kept.first_handle());
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { next: AtomicU64::new(first), shards, kept, unanswered: Mutex::default() }
    }

    /// Enters a handle that a process before this one gave out.
    pub fn inherit(&self, slot: Slot, kept: &KeptHandle, handle: Handle) {
        let request = OpenRequest { number: kept.request, flags: kept.flags };
        self.shard(kept.number).insert(kept.number, Entry { handle, slot: Some(slot), request });
        let mut unanswered = self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        unanswered.insert(kept.request, kept.number);
    }

    /// The handle that a process before this one gave out for a request that the kernel sends again.
    pub fn opened_by(&self, request: u64) -> Option<u64> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner).remove(&request)
    }

    fn shard(&self, number: u64) -> MutexGuard<'_, HashMap<u64, Entry>> {
        let index = usize::try_from(number % SHARDS as u64).unwrap_or(0);
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a handle and returns its number.
    pub fn insert(&self, handle: Handle, request: OpenRequest) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let slot =
            self.kept.as_ref().map(|kept| kept.put_handle(None, &to_be_kept(number, &handle, request)));
        self.shard(number).insert(number, Entry { handle, slot, request });
        number
    }

    /// Keeps for a successor of this process that the file of a handle is accessed directly.
    pub fn keep_direct(&self, number: u64) {
        let mut shard = self.shard(number);
        let Some(entry) = shard.get_mut(&number) else { return };
        entry.request.flags = entry.request.flags.map(|flags| flags | KEPT_DIRECT);
        if let (Some(kept), Some(slot)) = (&self.kept, entry.slot) {
            kept.put_handle(Some(slot), &to_be_kept(number, &entry.handle, entry.request));
        }
    }

    /// The open file of a number.
    pub fn file(&self, number: u64) -> Option<Arc<OpenFile>> {
        match self.shard(number).get(&number).map(|entry| &entry.handle) {
            Some(Handle::File(file)) => Some(Arc::clone(file)),
            _ => None,
        }
    }

    /// The open directory of a number.
    pub fn directory(&self, number: u64) -> Option<Arc<OpenDirectory>> {
        match self.shard(number).get(&number).map(|entry| &entry.handle) {
            Some(Handle::Directory(directory)) => Some(Arc::clone(directory)),
            _ => None,
        }
    }

    /// Every open file.
    pub fn files(&self) -> Vec<Arc<OpenFile>> {
        let mut files = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            files.extend(shard.values().filter_map(|entry| match &entry.handle {
                Handle::File(file) => Some(Arc::clone(file)),
                Handle::Directory(_) => None,
            }));
        }
        files
    }

    /// Whether nothing is open.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).is_empty())
    }

    /// Removes a handle.
    pub fn remove(&self, number: u64) -> Option<Handle> {
        let Entry { handle, slot, .. } = self.shard(number).remove(&number)?;
        if let (Some(kept), Some(slot)) = (&self.kept, slot) {
            kept.drop_handle(slot);
        }
        Some(handle)
    }
}

fn to_be_kept(number: u64, handle: &Handle, request: OpenRequest) -> KeptHandle {
    let inode = match handle {
        Handle::File(file) => file.inode.number,
        Handle::Directory(directory) => directory.inode.number,
    };
    KeptHandle { number, inode, flags: request.flags, request: request.number }
}
