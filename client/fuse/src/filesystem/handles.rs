//! Open files and directories, by the kernel's file handle.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_dfs::File;

use super::directories::Listing;
use super::inodes::Inode;

/// Parts of the table, each with its own lock.
const SHARDS: usize = 16;

/// An open file.
#[derive(Debug)]
pub struct OpenFile {
    /// Its inode.
    pub inode: Arc<Inode>,
    /// Its content.
    pub file: File,
    /// Every write goes to the end.
    pub append: bool,
    /// Gather writes until the file is closed.
    pub gathers: bool,
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
    shards: Vec<Mutex<HashMap<u64, Handle>>>,
}

impl Default for Handles {
    fn default() -> Self {
        Self { next: AtomicU64::new(1), shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl Handles {
    fn shard(&self, number: u64) -> MutexGuard<'_, HashMap<u64, Handle>> {
        let index = usize::try_from(number % SHARDS as u64).unwrap_or(0);
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a handle and returns its number.
    pub fn insert(&self, handle: Handle) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.shard(number).insert(number, handle);
        number
    }

    /// The open file of a number.
    pub fn file(&self, number: u64) -> Option<Arc<OpenFile>> {
        match self.shard(number).get(&number) {
            Some(Handle::File(file)) => Some(Arc::clone(file)),
            _ => None,
        }
    }

    /// The open directory of a number.
    pub fn directory(&self, number: u64) -> Option<Arc<OpenDirectory>> {
        match self.shard(number).get(&number) {
            Some(Handle::Directory(directory)) => Some(Arc::clone(directory)),
            _ => None,
        }
    }

    /// Every open file.
    pub fn files(&self) -> Vec<Arc<OpenFile>> {
        let mut files = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            files.extend(shard.values().filter_map(|handle| match handle {
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
        self.shard(number).remove(&number)
    }
}
