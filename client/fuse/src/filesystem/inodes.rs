//! Inodes that the kernel knows, by number.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_client::Epoch;
use weir_dfs::{Kind, Node, Removed, SetAttributes};

use super::attributes::now_ns;
use super::gathering::Gathering;
use super::pages::Pages;
use super::reads::Reads;
use crate::kept::{Fate, Kept, KeptInode, Slot};

/// Number of the root directory (FUSE protocol).
pub const ROOT: u64 = 1;

/// Parts of the table, each with its own lock: more than there are threads, so that two rarely meet.
const SHARDS: usize = 32;

/// What tells whether a file's content has changed: size and stored part in bytes, and times in nanoseconds since 1970. The modification
/// time may be set to what it was before; the time of that change can't.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContentStamp {
    /// Size.
    pub size: u64,
    /// Bytes that are stored, and those that were written from here since.
    pub stored: u64,
    /// Modification time.
    pub mtime_ns: i64,
    /// Time of the last change of content or attributes.
    pub ctime_ns: i64,
    /// Epoch of the newest change of the content. `None` after a write from here whose epoch isn't known.
    pub newest: Option<Epoch>,
}

/// A moment in the order of this mount's changes. What engines are asked at a moment may be answered without the changes
/// that come after it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Moment(u64);

/// What is known of an inode.
#[derive(Debug)]
pub struct InodeState {
    /// The inode under the name it had last.
    pub node: Node,
    /// References that the kernel holds (FUSE lookup count).
    pub lookups: u64,
    /// Open handles, and opens under way.
    pub opens: u32,
    /// This mount has removed its last name; the content goes with the last handle.
    pub removed: Option<Removed>,
    /// It is an orphan since: other clients may have it open, too, and it goes when all have let it go.
    pub shared: bool,
    /// The extended attributes of an inode whose last name is gone: no entry holds them any more, nor the record.
    pub nameless: Option<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Others have taken its name away, and it has not become an orphan: they have renamed it.
    pub renamed: bool,
    /// Other clients have freed its content, since they had taken this one for dead.
    pub lost: bool,
    /// The content that the page cache holds.
    pub cached: Option<ContentStamp>,
    /// What the kernel was told last about the content.
    pub told: Option<ContentStamp>,
    /// When the engines said so last: in the order of this mount's changes, and by the clock.
    confirmed: Option<(Moment, Instant)>,
    /// What it was told before, and when another client's cut was noticed.
    pub before_cut: Option<(ContentStamp, Instant)>,
    /// The kernel's pages.
    pub pages: Pages,
    /// When name or record were changed from here last; of a directory, when it lost a name.
    pub changed: Moment,
    /// When content was written from here last.
    pub written: Moment,
    /// Where it is kept for a successor of this process.
    slot: Option<Slot>,
}

/// An inode that the kernel knows.
#[derive(Debug)]
pub struct Inode {
    /// Its number.
    pub number: u64,
    /// What the engines don't have of it yet.
    pub gathering: Gathering,
    /// Reads of its content.
    pub reads: Reads,
    state: Mutex<InodeState>,
}

impl InodeState {
    /// Whether an answer to a request of that moment knows the content as it is here.
    pub fn is_newest(&self, asked: Moment) -> bool {
        self.changed.max(self.written) <= asked
    }

    /// Takes note of the record that the engines answered to a request of that moment, unless it was changed from here
    /// since.
    pub fn learn_record(&mut self, node: &Node, asked: Moment) {
        if self.changed <= asked {
            self.node.record.clone_from(&node.record);
        }
    }

    /// Takes note of what the engines have answered to a request of that moment, and the kernel is told. `own`: the epoch of the newest
    /// write from here.
    pub fn tell(&mut self, stamp: ContentStamp, asked: Moment, own: Epoch) {
        let now = Instant::now();
        self.confirmed = Some((asked, now));
        let told = self.told.replace(stamp);
        let is_own =
            |told: ContentStamp| told.size == stamp.size && stamp.newest <= told.newest.max(Some(own));
        if !told.is_some_and(is_own) {
            self.pages.note_foreign(now);
        }
        if let Some(told) = told.filter(|told| told.size > stamp.size) {
            self.before_cut = Some((told, now));
        }
    }

    /// What the kernel was told of the content of a file that has its name, where the engines said so within a time and nothing was
    /// changed from here since.
    pub fn trusted(&self, within: Duration) -> Option<ContentStamp> {
        let (asked, said) = self.confirmed?;
        let is_named = self.removed.is_none() && self.nameless.is_none() && !self.renamed && !self.lost;
        self.told.filter(|_| is_named && self.is_newest(asked) && said.elapsed() < within)
    }

    /// What the kernel may still believe of a file that ends at `end`: that it is longer, because another client has cut it off
    /// within a time.
    pub fn believed_longer(&self, end: u64, within: Duration) -> Option<ContentStamp> {
        let recent =
            self.before_cut.filter(|(_, noticed)| noticed.elapsed() < within).map(|(stamp, _)| stamp);
        self.told.into_iter().chain(recent).filter(|stamp| stamp.size > end).max_by_key(|stamp| stamp.size)
    }

    /// What has become of its name.
    fn fate(&self) -> Fate {
        Fate {
            removed: self.removed.is_some(),
            shared: self.shared,
            nameless: self.nameless.is_some(),
            renamed: self.renamed,
        }
    }

    /// Whether it has that name, or had it last.
    fn is_called(&self, node: &Node) -> bool {
        self.node.parent == node.parent && self.node.name == node.name
    }

    /// Takes note that its last name is gone. Returns what is to be reclaimed now, because no handle needs it.
    pub fn lose_name(&mut self, removed: Removed) -> Option<Removed> {
        self.nameless = Some(removed.xattrs.iter().cloned().collect());
        if self.opens == 0 || removed.node.record.kind == Kind::Directory {
            return Some(removed);
        }
        self.removed = Some(removed);
        None
    }

    /// Changes the attributes held here of a file without a name, whose content's newest change has this epoch.
    pub fn apply(&mut self, change: &SetAttributes, newest: Epoch) {
        if change.changes_record() {
            change.apply(&mut self.node.record, now_ns(), newest);
        }
    }
}

impl Inode {
    /// Locks what is known. Never held across a request to an engine.
    pub fn lock(&self) -> MutexGuard<'_, InodeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of what the engines answered to a request of that moment, but for what was changed from here since.
    /// Returns whether size and times are what they said.
    pub fn learn(&self, node: &Node, stamp: ContentStamp, asked: Moment) -> bool {
        let mut known = self.lock();
        known.learn_record(node, asked);
        let is_newest = known.is_newest(asked);
        if is_newest {
            known.tell(stamp, asked, self.gathering.newest());
            self.gathering.learn_end(stamp.size);
        }
        is_newest
    }

    /// Whether it is there under that name, as far as this mount knows. One with hard links is found by any.
    pub fn is_named_as(&self, node: &Node) -> bool {
        let known = self.lock();
        known.nameless.is_none() && (known.is_called(node) || known.node.record.is_linked())
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
    /// Changes from here so far.
    changes: AtomicU64,
    /// Where inodes are kept for a successor of this process, if one may come.
    kept: Option<Arc<Kept>>,
}

impl Inodes {
    /// A table that holds the root, which the kernel never forgets.
    pub fn new(root: Node, kept: Option<Arc<Kept>>) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let table = Self { shards, changes: AtomicU64::new(0), kept };
        table.shard(ROOT).insert(ROOT, Arc::new(fresh(ROOT, root, 1)));
        table
    }

    /// Enters an inode that the kernel knows from a process that served the mount before.
    pub fn inherit(&self, slot: Slot, inode: KeptInode) {
        let KeptInode { lookups, node, fate } = inode;
        let number = node.inode_number();
        let inode = fresh(number, node.clone(), lookups);
        {
            let mut known = inode.lock();
            known.slot = Some(slot);
            (known.shared, known.renamed) = (fate.shared, fate.renamed);
            known.nameless = fate.nameless.then(BTreeMap::new);
            known.removed = fate.removed.then(|| Removed { node, xattrs: Vec::new(), links: 0 });
        }
        self.shard(number).insert(number, Arc::new(inode));
    }

    /// Keeps an inode as it is now for a successor of this process. Called after each change of what is kept, before the
    /// kernel is told.
    pub fn keep(&self, known: &mut InodeState) {
        if let Some(kept) = &self.kept {
            let inode = KeptInode { lookups: known.lookups, node: known.node.clone(), fate: known.fate() };
            known.slot = Some(kept.put_inode(known.slot, &inode));
        }
    }

    /// As [`Inodes::keep`], unless nothing refers to the inode any more.
    pub fn keep_again(&self, known: &mut InodeState) {
        if known.slot.is_some() {
            self.keep(known);
        }
    }

    /// Removes an inode that nothing refers to.
    fn drop_kept(&self, known: &mut InodeState) {
        if let (Some(kept), Some(slot)) = (&self.kept, known.slot.take()) {
            kept.drop_inode(slot);
        }
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

    /// Now: before the engines are asked.
    pub fn moment(&self) -> Moment {
        Moment(self.changes.load(Ordering::SeqCst))
    }

    /// Notes a change of name or record from here: answers on their way don't know of it.
    pub fn note_change(&self, known: &mut InodeState) {
        known.changed = self.next_moment();
    }

    /// Notes a record as it is after a change from here. An inode that was renamed here meanwhile keeps its newer name.
    pub fn note_record(&self, known: &mut InodeState, node: &Node) {
        if known.is_called(node) || node.record.is_linked() {
            known.node.record.clone_from(&node.record);
            self.keep_again(known);
        }
        self.note_change(known);
    }

    /// Notes a change of content from here, whether the engines have it or it waits here.
    pub fn note_write(&self, known: &mut InodeState) {
        known.written = self.next_moment();
        known.before_cut = None;
    }

    fn next_moment(&self) -> Moment {
        Moment(self.changes.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// Notes that a directory has lost a name.
    pub fn note_name_gone(&self, directory: u64) {
        if let Some(directory) = self.get(directory) {
            self.note_change(&mut directory.lock());
        }
    }

    /// Whether name or record of an inode were changed from here since a moment.
    pub fn has_changed(&self, number: u64, since: Moment) -> bool {
        self.get(number).is_some_and(|inode| inode.lock().changed > since)
    }

    /// Enters an inode from an answer to a request of that moment, or brings its entry up to date, but for what was
    /// changed from here since. The kernel holds one reference more.
    pub fn found(&self, node: &Node, stamp: Option<ContentStamp>, asked: Moment) -> Arc<Inode> {
        let number = node.inode_number();
        let mut shard = self.shard(number);
        let inode = shard.entry(number).or_insert_with(|| Arc::new(fresh(number, node.clone(), 0)));
        let mut known = inode.lock();
        known.lookups += 1;
        if known.changed <= asked {
            known.node.clone_from(node);
            (known.removed, known.nameless) = (None, None);
            (known.shared, known.renamed) = (false, false);
        }
        if let Some(stamp) = stamp.filter(|_| known.is_newest(asked)) {
            known.tell(stamp, asked, inode.gathering.newest());
        }
        self.keep(&mut known);
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
        if gone {
            self.drop_kept(&mut known);
        } else if number != ROOT {
            self.keep(&mut known);
        }
        drop(known);
        if gone {
            shard.remove(&number);
        }
    }

    /// One handle less. Returns what has to be reclaimed: the content of a removed file whose last handle this was, unless it is
    /// an orphan.
    pub fn closed(&self, inode: &Inode) -> Option<Removed> {
        let mut shard = self.shard(inode.number);
        let mut known = inode.lock();
        known.opens = known.opens.saturating_sub(1);
        let removed = if known.opens == 0 { known.removed.take() } else { None };
        if known.opens == 0 && removed.is_none() && known.node.record.kind == Kind::File {
            // Another client has removed it: a process that still reaches it by its name has to look that up again.
            known.nameless = None;
        }
        let reclaim = removed.filter(|_| !known.shared);
        if known.opens == 0 && known.lookups == 0 && inode.number != ROOT {
            self.drop_kept(&mut known);
            drop(known);
            shard.remove(&inode.number);
        } else if reclaim.is_some() {
            self.keep(&mut known);
        }
        reclaim
    }

    /// Every inode that is known now.
    pub fn all(&self) -> Vec<Arc<Inode>> {
        let locked = |shard: &Mutex<HashMap<u64, Arc<Inode>>>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.values().cloned().collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(locked).collect()
    }

    /// Number of inodes known.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }
}

fn fresh(number: u64, node: Node, lookups: u64) -> Inode {
    let state = InodeState {
        node,
        lookups,
        opens: 0,
        removed: None,
        shared: false,
        nameless: None,
        renamed: false,
        lost: false,
        cached: None,
        told: None,
        confirmed: None,
        before_cut: None,
        pages: Pages::default(),
        changed: Moment::default(),
        written: Moment::default(),
        slot: None,
    };
    Inode { number, gathering: Gathering::default(), reads: Reads::default(), state: Mutex::new(state) }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use weir_client::ObjectId;
    use weir_dfs::Record;

    /// A file in the root.
    pub fn node(lo: u64) -> Node {
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
            names: weir_dfs::Names::One,
        };
        Node { parent: ObjectId { hi: 0, lo: 1 }, name: b"f".to_vec(), record }
    }

    #[test]
    fn an_inode_lives_as_long_as_the_kernel_or_a_handle_refers_to_it() {
        let table = Inodes::new(node(1), None);
        let inode = table.found(&node(100), None, table.moment());
        table.found(&node(100), None, table.moment());
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
        let table = Inodes::new(node(1), None);
        let inode = table.found(&node(100), None, table.moment());
        inode.lock().opens = 2;
        inode.lock().removed = Some(Removed { node: node(100), xattrs: Vec::new(), links: 0 });
        assert!(table.closed(&inode).is_none());
        assert_eq!(table.closed(&inode), Some(Removed { node: node(100), xattrs: Vec::new(), links: 0 }));
        table.forget(inode.number, 1);
        assert!(table.get(inode.number).is_none());
    }

    #[test]
    fn an_orphan_is_not_reclaimed_here_and_who_reaches_a_file_removed_elsewhere_looks_its_name_up() {
        let table = Inodes::new(node(1), None);
        let inode = table.found(&node(100), None, table.moment());
        let removed = Removed { node: node(100), xattrs: Vec::new(), links: 0 };
        inode.lock().opens = 1;
        assert_eq!(inode.lock().lose_name(removed), None);
        inode.lock().shared = true;
        assert_eq!(table.closed(&inode), None, "it goes when other clients have let it go");
        assert!(inode.lock().nameless.is_some() && inode.lock().removed.is_none());
        let inode = table.found(&node(101), None, table.moment());
        inode.lock().opens = 2;
        inode.lock().nameless = Some(BTreeMap::new());
        assert_eq!(table.closed(&inode), None);
        assert!(inode.lock().nameless.is_some(), "a handle is left");
        assert_eq!(table.closed(&inode), None);
        assert!(inode.lock().nameless.is_none());
    }

    const OLD: ContentStamp =
        ContentStamp { size: 3, stored: 3, mtime_ns: 5, ctime_ns: 5, newest: Some(Epoch(5)) };

    #[test]
    fn an_answer_from_before_a_rename_from_here_does_not_bring_the_old_name_back() {
        let table = Inodes::new(node(1), None);
        let inode = table.found(&node(100), None, table.moment());
        let asked = table.moment();
        let renamed = Node { name: b"g".to_vec(), ..node(100) };
        {
            let mut known = inode.lock();
            known.node = renamed.clone();
            table.note_change(&mut known);
        }
        table.found(&node(100), Some(OLD), asked);
        assert_eq!((inode.node(), inode.lock().lookups), (renamed, 2));
        table.found(&node(100), Some(OLD), table.moment());
        assert_eq!(inode.node(), node(100), "another client renamed it back since");
    }

    #[test]
    fn an_answer_from_before_a_removal_does_not_keep_the_content_from_being_reclaimed() {
        let table = Inodes::new(node(1), None);
        let inode = table.found(&node(100), None, table.moment());
        let asked = table.moment();
        {
            let mut known = inode.lock();
            known.opens = 1;
            known.removed = Some(Removed { node: node(100), xattrs: Vec::new(), links: 0 });
            table.note_change(&mut known);
        }
        table.found(&node(100), Some(OLD), asked);
        assert_eq!(table.closed(&inode), Some(Removed { node: node(100), xattrs: Vec::new(), links: 0 }));
    }

    #[test]
    fn an_answer_from_before_a_write_does_not_make_the_file_shorter() {
        let table = Inodes::new(node(1), None);
        let inode = table.found(&node(100), Some(OLD), table.moment());
        let asked = table.moment();
        let written = ContentStamp { size: 9, ..OLD };
        {
            let mut known = inode.lock();
            known.told = Some(written);
            table.note_write(&mut known);
        }
        table.found(&node(100), Some(OLD), asked);
        assert!(!inode.learn(&node(100), OLD, asked));
        assert_eq!(inode.lock().told, Some(written));
        assert!(inode.learn(&node(100), OLD, table.moment()), "engines were asked after the write");
        assert_eq!(inode.lock().told, Some(OLD));
    }

    #[test]
    fn writes_from_here_are_told_from_those_of_other_clients() {
        let own = Epoch(8);
        let arrived = ContentStamp { size: 9, newest: Some(own), ..OLD };
        for (told, is_foreign) in [
            (arrived, false),
            (ContentStamp { newest: Some(Epoch(9)), ..arrived }, true),
            (ContentStamp { size: 10, ..arrived }, true),
        ] {
            let table = Inodes::new(node(1), None);
            let inode = table.found(&node(100), Some(OLD), table.moment());
            let (mut known, now) = (inode.lock(), Instant::now());
            known.pages.begin_writer();
            known.told = Some(ContentStamp { size: 9, newest: None, ..OLD });
            known.pages.note_written(now);
            known.tell(told, table.moment(), own);
            assert_eq!(known.pages.is_withholding(now), !is_foreign, "{told:?}");
            known.tell(told, table.moment(), own);
            assert_eq!(known.pages.is_withholding(now), !is_foreign, "until programs stop writing");
        }
    }
}
