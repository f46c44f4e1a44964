//! Inodes that the kernel knows, by number.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_dfs::{Node, Removed, SetAttributes};

use super::gathering::Gathering;

/// Number of the root directory (FUSE protocol).
pub const ROOT: u64 = 1;

/// Parts of the table, each with its own lock: more than there are threads, so that two rarely meet.
const SHARDS: usize = 32;

/// What tells whether a file's content has changed: size in bytes and modification time in nanoseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Size.
    pub size: u64,
    /// Modification time.
    pub mtime_ns: i64,
}

/// What is known of an inode.
#[derive(Debug)]
pub struct Known {
    /// The inode under the name it had last.
    pub node: Node,
    /// References that the kernel holds (FUSE lookup count).
    pub lookups: u64,
    /// Open handles, and opens under way.
    pub opens: u32,
    /// Its last name is gone; the content goes with the last handle.
    pub removed: Option<Removed>,
    /// The content that the page cache holds.
    pub cached: Option<Stamp>,
    /// What the kernel was told last about the content.
    pub told: Option<Stamp>,
}

/// An inode that the kernel knows.
#[derive(Debug)]
pub struct Inode {
    /// Its number.
    pub number: u64,
    /// What the engines don't have of it yet.
    pub gathering: Gathering,
    state: Mutex<Known>,
}

impl Known {
    /// Changes the attributes held here.
    pub fn apply(&mut self, change: &SetAttributes) {
        let record = &mut self.node.record;
        record.mode = change.mode.unwrap_or(record.mode);
        record.uid = change.uid.unwrap_or(record.uid);
        record.gid = change.gid.unwrap_or(record.gid);
    }
}

impl Inode {
    /// Locks what is known. Never held across a request to an engine.
    pub fn lock(&self) -> MutexGuard<'_, Known> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a record as the engines have it now. An inode that was renamed here meanwhile keeps its newer
    /// name.
    pub fn learn_record(&self, node: &Node) {
        let mut known = self.lock();
        if known.node.parent == node.parent && known.node.name == node.name {
            known.node.record.clone_from(&node.record);
        }
    }

    /// The inode under its last name.
    pub fn node(&self) -> Node {
        self.lock().node.clone()
    }
}

/// Inodes by number.
#[derive(Debug)]
pub struct Inodes {
    shards: Vec<Mutex<HashMap<u64, Arc<Inode>>>>,
}

impl Inodes {
    /// A table that holds the root, which the kernel never forgets.
    pub fn new(root: Node) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let table = Self { shards };
        table.shard(ROOT).insert(ROOT, Arc::new(fresh(ROOT, root, 1)));
        table
    }

    fn shard(&self, number: u64) -> MutexGuard<'_, HashMap<u64, Arc<Inode>>> {
        // Numbers are given out in sequence, so their low bits spread well.
        let index = usize::try_from(number % SHARDS as u64).unwrap_or(0);
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inode of a number that the kernel names.
    pub fn get(&self, number: u64) -> Option<Arc<Inode>> {
        self.shard(number).get(&number).cloned()
    }

    /// Enters an inode that was just looked up, or brings its entry up to date; the kernel holds one reference more.
    pub fn found(&self, node: &Node) -> Arc<Inode> {
        let number = node.inode_number();
        let mut shard = self.shard(number);
        let inode = shard.entry(number).or_insert_with(|| Arc::new(fresh(number, node.clone(), 0)));
        let mut known = inode.lock();
        known.lookups += 1;
        known.node.clone_from(node);
        known.removed = None;
        drop(known);
        Arc::clone(inode)
    }

    /// The kernel gives back references. Open handles keep the inode.
    pub fn forget(&self, number: u64, count: u64) {
        let mut shard = self.shard(number);
        let Some(inode) = shard.get(&number) else { return };
        let mut known = inode.lock();
        known.lookups = known.lookups.saturating_sub(count);
        let gone = known.lookups == 0 && known.opens == 0 && number != ROOT;
        drop(known);
        if gone {
            shard.remove(&number);
        }
    }

    /// One handle less. Returns what has to be reclaimed: the content of a removed file whose last handle this was.
    pub fn closed(&self, inode: &Inode) -> Option<Removed> {
        let mut shard = self.shard(inode.number);
        let mut known = inode.lock();
        known.opens = known.opens.saturating_sub(1);
        let reclaim = if known.opens == 0 { known.removed.take() } else { None };
        if known.opens == 0 && known.lookups == 0 && inode.number != ROOT {
            drop(known);
            shard.remove(&inode.number);
        }
        reclaim
    }

    /// Number of inodes known.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }
}

fn fresh(number: u64, node: Node, lookups: u64) -> Inode {
    let state = Known { node, lookups, opens: 0, removed: None, cached: None, told: None };
    Inode { number, gathering: Gathering::default(), state: Mutex::new(state) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_client::{Epoch, ObjectId};
    use weir_dfs::{Kind, Record};

    fn node(lo: u64) -> Node {
        let record = Record {
            kind: Kind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            oid: ObjectId { hi: 0, lo },
            atime_ns: 0,
            mtime_ns: 0,
            mtime_epoch: Epoch::ZERO,
            ctime_ns: 0,
            chunk_size: 1 << 20,
            xattrs: false,
            target: vec![],
        };
        Node { parent: ObjectId { hi: 0, lo: 1 }, name: b"f".to_vec(), record }
    }

    #[test]
    fn an_inode_lives_as_long_as_the_kernel_or_a_handle_refers_to_it() {
        let table = Inodes::new(node(1));
        let inode = table.found(&node(100));
        table.found(&node(100));
        inode.lock().opens += 1;
        table.forget(inode.number, 2);
        assert!(table.get(inode.number).is_some(), "a handle keeps it");
        assert!(table.closed(&inode).is_none());
        assert!(table.get(inode.number).is_none());
        assert_eq!(table.len(), 1);
        table.forget(ROOT, 99);
        assert!(table.get(ROOT).is_some());
    }

    #[test]
    fn the_content_of_a_removed_file_goes_with_its_last_handle() {
        let table = Inodes::new(node(1));
        let inode = table.found(&node(100));
        inode.lock().opens = 2;
        inode.lock().removed = Some(Removed { node: node(100) });
        assert!(table.closed(&inode).is_none());
        assert_eq!(table.closed(&inode), Some(Removed { node: node(100) }));
        table.forget(inode.number, 1);
        assert!(table.get(inode.number).is_none());
    }
}
