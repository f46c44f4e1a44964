//! The state of an open store that all its parts share.

use crate::format::VERSION_RESERVATIONS;
use crate::format::blocks::{Run, Runs};
use crate::format::codec::Malformed;
use crate::format::edit_buffer::{EditBuffer, SortedEntries};
use crate::format::key::{self, ObjectKey, PoolNumber};
use crate::format::node::NODE_BLOCKS;
use crate::format::record::RECORD_MAX;
use crate::format::record::{Change, Edit, excess_len, growth};
use crate::format::usage::{Usage, entries_bytes, entry_bytes};
use crate::format::value::Version;
use crate::format::{Layout, VERSION_CHUNKS};
use crate::index::cache::Cache;
use crate::index::fault::{Halt, Location};
use crate::index::tree::{Address, LEVELS_MAX, Missing, Tree};
use crate::space::map::Space;
use crate::state::catalog::{Catalog, Tally};
use crate::state::checkpoints::Checkpoints;
use crate::state::config::StoreConfig;
use crate::state::error::PoolError;
use crate::state::journal::Journal;
use crate::state::pace::Pace;
use crate::state::paging::Paging;
use crate::state::piece::WritePiece;
use crate::state::writer::Writer;
use crate::versions::intents::Transactions;
use crate::versions::timestamps::Timestamps;
use core::cell::{Cell, RefCell};
use smallvec::SmallVec;
use std::rc::Rc;
use uuid::Uuid;
use weir_media::{BLOCK, Device, DmaPool};
use weir_proto::PoolId;
use weir_runtime::Handle;
use weir_runtime::sync::Notify;

/// A change found a node on the device that it should have had read before.
const ABSENT: Malformed = Malformed("a node that a change needs isn't in memory");

/// Part of the data region that updates leave free, so that checkpoints, punches and reclaim always have blocks to
/// write to: a checkpoint needs new places for all dirty nodes before the old ones are free.
const RESERVE_DIVISOR: u64 = 32;
/// Smallest reserve in blocks: 64 nodes, more than a small store's whole index has dirty at once.
const RESERVE_BLOCKS_MIN: u64 = 256;
/// Largest reserve in blocks: 256 MiB of dirty nodes at twice their size.
const RESERVE_BLOCKS_MAX: u64 = 128 << 10;

/// Part of the reserve that deletes leave free: on the smallest device 16 nodes, more than a step of aggregation changes.
const DELETE_DIVISOR: u64 = 4;

/// Least memory of the index, in bytes: what a few questions under way need to hold at once, so that a smaller limit
/// only means that they wait for the device.
const INDEX_BYTES_MIN: usize = 256 << 10;

/// Eighths of the index memory that dirty nodes may take before updates wait: a checkpoint being written keeps as much
/// again.
const DIRTY_EIGHTHS: usize = 3;

/// Blocks that updates leave free on a device with this many.
#[must_use]
pub fn reserve_blocks(data_blocks: u64) -> u64 {
    (data_blocks / RESERVE_DIVISOR).clamp(RESERVE_BLOCKS_MIN, RESERVE_BLOCKS_MAX)
}

/// Why changes were not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CommitError {
    /// Nothing was changed. An open would not read such a record.
    #[error("its changes take {len} bytes of the log, where {RECORD_MAX} fit one record; make fewer at once")]
    TooLong { len: usize },
    /// Nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// The store has failed by it.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// Where the index has the first entries of a record, as far as that is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct EntryAddresses<'a> {
    /// The first one, which is that of an object, and is to stay as long as it is.
    pub(crate) object: Option<Address>,
    /// Where all others go that were put, none of which is there, in the order of their keys.
    pub(crate) behind: Option<Address>,
    /// The newest epoch of these, and the pieces that their versions store.
    pub(crate) pieces: (u64, &'a [WritePiece]),
    /// Whether nothing else was changed.
    pub(crate) are_all: bool,
}

/// What the changes of a record do to space, catalog and transactions.
struct Accounts<'a> {
    core: &'a Core,
    /// The record's number, with the blocks that only move within it.
    record: (u64, &'a [Run]),
    tally: Tally,
    /// Bytes of data extents that the changes refer to.
    data: u64,
    outcome: Result<(), Malformed>,
}

impl<'a> Accounts<'a> {
    /// Of the next record.
    fn of(core: &'a Core, moved: &'a [Run]) -> Self {
        let record = (core.journal.next(), moved);
        Self { core, record, tally: Tally::default(), data: 0, outcome: Ok(()) }
    }

    /// Follows a change of a key that had the value `old`.
    #[inline]
    fn note(&mut self, edit: Edit<'_>, old: Option<&[u8]>) {
        if self.core.account_inline(edit, old, &mut self.tally) {
            return;
        }
        match self.core.account(edit, old, Some(self.record), &mut self.tally) {
            Ok(bytes) => self.data += bytes,
            Err(malformed) => self.outcome = Err(malformed),
        }
    }

    /// Follows changes that set new entries of one object at an epoch, or earlier ones, whose versions store these pieces.
    fn note_new(&mut self, sorted: SortedEntries<'_>, (epoch, pieces): (u64, &[WritePiece])) {
        let (path, _) = sorted.ends().expect("invariant: what was inserted has entries");
        let mut blocks = 0;
        for piece in pieces {
            for run in piece.runs() {
                self.core.space.borrow_mut().set_live(*run);
                blocks += run.count;
            }
        }
        self.data += blocks * BLOCK as u64;
        let usage = Usage { blocks, entries: entries_bytes(sorted.spans.len(), sorted.bytes()), reserved: 0 };
        self.core.catalog.borrow_mut().count(path, Usage::default(), usage);
        let newest = &self.core.counters.newest;
        newest.set(newest.get().max(epoch));
    }

    /// Counts what is left to be counted. Returns the bytes of data extents.
    fn close(mut self) -> Result<u64, Malformed> {
        self.outcome?;
        self.core.catalog.borrow_mut().count_tally(&mut self.tally);
        Ok(self.data)
    }
}

/// Counters since open.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) aggregated: Cell<u64>,
    pub(crate) relocated: Cell<u64>,
    pub(crate) reclaimed: Cell<u64>,
    pub(crate) checksum_errors: Cell<u64>,
    /// Newest epoch of the changes applied since the open began.
    pub(crate) newest: Cell<u64>,
    /// Log records that the open applied.
    pub(crate) replayed: Cell<u64>,
    /// How long the open took.
    pub(crate) recovery: Cell<core::time::Duration>,
}

/// Whether a run is one of several that are in the order of their blocks.
fn is_among(run: Run, ordered: &[Run]) -> bool {
    ordered.binary_search_by_key(&run.block, |found| found.block).is_ok_and(|at| ordered[at] == run)
}

/// Whether entries are those of an epoch, or earlier ones, and their versions have the blocks of these pieces.
fn are_of_pieces<'a>(
    entries: impl Iterator<Item = Edit<'a>> + Clone,
    (epoch, pieces): (u64, &[WritePiece]),
) -> bool {
    let versions = entries.clone().filter(|edit| key::is_version(edit.key));
    let runs =
        versions.flat_map(|edit| edit.value.map(Version::runs).and_then(Result::ok).unwrap_or_default());
    let are_old = entries.map(|edit| key::epoch_of(edit.key)).all(|at| at.is_some() && at <= Some(epoch));
    are_old && runs.eq(pieces.iter().flat_map(WritePiece::runs).copied())
}

/// Adds to a counter.
pub(crate) fn add(counter: &Cell<u64>, count: u64) {
    counter.set(counter.get() + count);
}

/// An open store.
pub(crate) struct Core {
    pub(crate) rt: Handle,
    pub(crate) device: Rc<dyn Device>,
    pub(crate) config: StoreConfig,
    pub(crate) id: Uuid,
    /// Format version of the store.
    pub(crate) version: u32,
    pub(crate) layout: Layout,
    pub(crate) dma: DmaPool,
    pub(crate) cache: Cache,
    pub(crate) tree: RefCell<Tree>,
    pub(crate) space: RefCell<Space>,
    pub(crate) catalog: RefCell<Catalog>,
    pub(crate) journal: Journal,
    pub(crate) writer: Writer,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) aggregation: RefCell<crate::state::aggregation::Queue>,
    pub(crate) defragmentation: RefCell<crate::state::defragmentation::Defragmentation>,
    pub(crate) counters: Counters,
    pub(crate) paging: Paging,
    pub(crate) lost: crate::state::lost::LostNodes,
    pub(crate) pace: Pace,
    pub(crate) scrub: crate::state::rot::Scrub,
    pub(crate) transactions: RefCell<Transactions>,
    pub(crate) fills: crate::state::fills::Fills,
    pub(crate) timestamps: Timestamps,
    pub(crate) existences: crate::state::existence_cache::ExistenceCache,
    pub(crate) hints: crate::versions::walk::Hints,
    /// The last update's edits, for their memory.
    buffer: Cell<Option<Box<EditBuffer>>>,
    /// Why the store takes no more changes.
    failed: RefCell<Option<String>>,
    stopped: Cell<bool>,
    /// Wakes background work: something was destroyed, or space is short.
    pub(crate) chores: Notify,
}

/// What an open store is made of.
pub(crate) struct Parts {
    pub(crate) rt: Handle,
    pub(crate) device: Rc<dyn Device>,
    pub(crate) config: StoreConfig,
    pub(crate) id: Uuid,
    /// Format version of the store.
    pub(crate) version: u32,
    pub(crate) layout: Layout,
    pub(crate) tree: Tree,
    pub(crate) space: Space,
    pub(crate) catalog: Catalog,
    pub(crate) journal: Journal,
    pub(crate) checkpoints: Checkpoints,
}

impl Core {
    pub(crate) fn new(parts: Parts) -> Rc<Self> {
        let dma = DmaPool::new(parts.config.dma_bytes);
        parts.device.register(&dma);
        Rc::new(Self {
            rt: parts.rt,
            device: parts.device,
            dma,
            cache: Cache::new(parts.config.cache_bytes),
            hints: crate::versions::walk::Hints::new(parts.config.index_bytes),
            config: parts.config,
            id: parts.id,
            version: parts.version,
            layout: parts.layout,
            tree: RefCell::new(parts.tree),
            space: RefCell::new(parts.space),
            catalog: RefCell::new(parts.catalog),
            journal: parts.journal,
            writer: Writer::default(),
            checkpoints: parts.checkpoints,
            aggregation: RefCell::default(),
            defragmentation: RefCell::default(),
            counters: Counters::default(),
            paging: Paging::default(),
            lost: crate::state::lost::LostNodes::default(),
            pace: Pace::default(),
            scrub: crate::state::rot::Scrub::default(),
            transactions: RefCell::default(),
            fills: crate::state::fills::Fills::default(),
            timestamps: Timestamps::default(),
            existences: crate::state::existence_cache::ExistenceCache::default(),
            buffer: Cell::default(),
            failed: RefCell::new(None),
            stopped: Cell::new(false),
            chores: Notify::new(),
        })
    }

    /// Whether every value can be stored with the checksums of its chunks. In a store of the first format small values
    /// have none, and chunks begin where the value does: it stays readable for the release that made it.
    pub(crate) fn keeps_all_checksums(&self) -> bool {
        self.version >= VERSION_CHUNKS
    }

    /// Whether room can be kept for records that aren't written yet: earlier releases don't read that.
    pub(crate) fn keeps_reservations(&self) -> bool {
        self.version >= VERSION_RESERVATIONS
    }

    /// A buffer that most likely has memory.
    #[expect(clippy::unnecessary_box_returns, reason = "a pointer is taken out and put back")]
    pub(crate) fn take_edit_buffer(&self) -> Box<EditBuffer> {
        self.buffer.take().unwrap_or_default()
    }

    /// Takes a buffer back.
    #[inline]
    pub(crate) fn give_back_edit_buffer(&self, buffer: Box<EditBuffer>) {
        if buffer.is_worth_keeping() {
            self.buffer.set(Some(buffer));
        }
    }

    /// Why the store takes no more changes, if it doesn't.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failed.borrow().clone()
    }

    /// Why the store takes no changes from anybody, if it doesn't: it has failed or is being closed.
    #[inline]
    pub(crate) fn refusal(&self) -> Option<String> {
        if !self.has_failed() && !self.is_stopped() {
            return None;
        }
        self.failure().or_else(|| self.is_stopped().then(|| "it is being closed".to_owned()))
    }

    /// Whether the store takes no more changes.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.borrow().is_some()
    }

    /// Stops taking changes: what is in DRAM may be ahead of the device for good.
    pub(crate) fn fail(&self, reason: &str) {
        self.failed.borrow_mut().get_or_insert_with(|| reason.to_owned());
        self.journal.wake(true);
        self.checkpoints.done.notify_waiters();
        self.chores.notify_waiters();
    }

    /// Takes no more changes and asks background tasks to end, but for those that bring to the device what was changed.
    pub(crate) fn stop(&self) {
        self.stopped.set(true);
        self.chores.notify_waiters();
        self.chores.notify_one();
        self.journal.progress.notify_waiters();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    /// Blocks that the next checkpoint needs at most.
    pub(crate) fn dirty_blocks(&self) -> u64 {
        self.tree.borrow().dirty_nodes() as u64 * NODE_BLOCKS
    }

    /// Blocks that changed nodes need at most, those included for which a checkpoint is finding places.
    pub(super) fn awaited_blocks(&self) -> u64 {
        self.dirty_blocks() + self.tree.borrow().unplaced_nodes() as u64 * NODE_BLOCKS
    }

    pub(crate) fn reserve_blocks(&self) -> u64 {
        reserve_blocks(self.layout.data_blocks)
    }

    /// Dirty blocks beyond which updates wait for a checkpoint. Two checkpoints' worth must fit in what is free: one
    /// being written while the next one's nodes become dirty. They can't be evicted, so memory bounds them, too.
    pub(crate) fn dirty_blocks_max(&self) -> u64 {
        let node_room = self.space.borrow().node_room();
        let room = (self.reserve_blocks() / 2).max(node_room / 8).min(node_room / 2);
        let memory = self.config.index_bytes.max(INDEX_BYTES_MIN) / 8 * DIRTY_EIGHTHS / BLOCK;
        room.min(memory as u64)
    }

    /// Asks for a checkpoint when log or index need one soon.
    pub(crate) fn request_checkpoint_if_due(&self) {
        let ring = *self.journal.ring.borrow();
        let log_due = ring.used() * 100 >= ring.len * self.config.checkpoint_log_percent;
        if log_due || self.dirty_blocks() >= self.dirty_blocks_max() / 2 {
            self.checkpoints.request.notify_one();
        }
    }

    /// Whether log and index have room for one more update.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_crowded() && !self.journal.is_congested()
    }

    /// Whether a checkpoint has to be written before more of the index changes.
    fn is_crowded(&self) -> bool {
        self.dirty_blocks() > self.dirty_blocks_max()
    }

    /// Waits until log and index have room for one more update. `Err`: the store takes none.
    pub(crate) async fn admit(&self) -> Result<(), String> {
        loop {
            if let Some(reason) = self.refusal() {
                return Err(reason);
            }
            if self.has_room() {
                return Ok(());
            }
            let progress = self.journal.progress.notified();
            if self.is_crowded() {
                self.checkpoints.request.notify_one();
            }
            progress.await;
        }
    }

    /// Whether updates may take this many more blocks, beside those that are promised to others.
    pub(crate) fn has_blocks(&self, blocks: u64) -> bool {
        let promised = self.catalog.borrow().promised().div_ceil(BLOCK as u64);
        let kept = self.awaited_blocks() + self.prepared_blocks();
        self.space.borrow_mut().has_room(blocks + promised, self.reserve_blocks(), kept)
    }

    /// Blocks of index nodes that prepared transactions need when they are committed.
    pub(super) fn prepared_blocks(&self) -> u64 {
        self.transactions.borrow().prepared_spaces.all().blocks()
    }

    /// Bytes of a pool's share that its prepared transactions take when they are committed.
    pub(crate) fn prepared_bytes_of(&self, pool: PoolNumber) -> u64 {
        self.transactions.borrow().prepared_spaces.of_pool(pool)
    }

    /// Whether small changes of metadata may still be made on a device that is full for updates.
    pub(crate) fn has_room_for_metadata(&self) -> bool {
        let kept = self.reserve_blocks() / 2 + self.awaited_blocks() + self.prepared_blocks();
        self.space.borrow().node_room() >= kept
    }

    /// Refuses more pools, containers or snapshots, which nobody's share or quota counts, on a device that is full.
    pub(crate) fn check_room_for_entry(&self, pool: PoolId) -> Result<(), PoolError> {
        if self.has_room_for_metadata() {
            return Ok(());
        }
        // Deleted data may be waiting for aggregation.
        self.chores.notify_one();
        Err(PoolError::Full(pool))
    }

    /// Whether a delete may still make these changes, and take so many blocks of nodes later: aggregation, which gives back
    /// what deletes take, and the checkpoints that it needs must have room behind them, too. `Err`: nodes on the way to the
    /// keys are missing.
    pub(crate) fn has_room_for_delete(&self, changes: &[Change], later: u64) -> Result<bool, Missing> {
        let kept =
            self.reserve_blocks() / DELETE_DIVISOR + self.awaited_blocks() + self.prepared_blocks() + later;
        let Some(left) = self.space.borrow().node_room().checked_sub(kept) else { return Ok(false) };
        // A node that changes goes to another place, and may be split.
        let blocks =
            |nodes: usize| 2 * nodes as u64 * NODE_BLOCKS + 2 * growth(changes).div_ceil(BLOCK as u64);
        if blocks(changes.len() * LEVELS_MAX) <= left {
            return Ok(true);
        }
        let nodes = self.tree.borrow().nodes_to(changes.iter().map(Change::key))?;
        Ok(blocks(nodes) <= left)
    }

    /// Changes the index and queues the record that makes the change durable. Returns the record's number. The caller
    /// has found the way to all keys ([`Tree::reach`]) since it last let others run.
    pub(crate) fn commit(&self, changes: &[Change], object: Option<ObjectKey>) -> Result<u64, CommitError> {
        self.commit_moving(changes, object.as_slice(), Vec::new())
    }

    /// Like [`Core::commit`], where blocks in `moved` pass from entries that go to entries that come.
    pub(crate) fn commit_moving(
        &self,
        changes: &[Change],
        objects: &[ObjectKey],
        mut moved: Vec<Run>,
    ) -> Result<u64, CommitError> {
        // There may be a hundred thousand: each is looked for.
        moved.sort_unstable_by_key(|run| run.block);
        let mut buffer = self.take_edit_buffer();
        buffer.clear();
        buffer.extend(changes);
        let record = self.commit_edits(&buffer, objects, &moved, &mut EntryAddresses::default());
        self.give_back_edit_buffer(buffer);
        record
    }

    /// Like [`Core::commit_moving`], with the blocks in their order. `places` tells where the first changes go.
    pub(crate) fn commit_edits(
        &self,
        buffer: &EditBuffer,
        objects: &[ObjectKey],
        moved: &[Run],
        places: &mut EntryAddresses<'_>,
    ) -> Result<u64, CommitError> {
        if let Some(reason) = self.refusal() {
            return Err(CommitError::Refused(reason));
        }
        if let Some(len) = excess_len(buffer) {
            return Err(CommitError::TooLong { len });
        }
        let record = self.change(buffer, objects, moved, places);
        if let Err(malformed) = &record {
            // The index may be ahead of the log.
            self.fail(malformed.0);
        }
        Ok(record?)
    }

    fn change(
        &self,
        buffer: &EditBuffer,
        objects: &[ObjectKey],
        moved: &[Run],
        places: &mut EntryAddresses<'_>,
    ) -> Result<u64, Malformed> {
        let mut accounts = Accounts::of(self, moved);
        let made = self.change_placed(buffer, places, &mut accounts);
        places.are_all = made == buffer.len();
        if !places.are_all {
            self.change_rest(buffer, made, &mut accounts)?;
        }
        let data = accounts.close()?;
        self.tidy_keys(buffer.removed());
        self.relieve_memory();
        Ok(self.journal.append(buffer, data, objects))
    }

    /// Makes all changes but so many, the first ones, wherever they go.
    #[inline(never)]
    fn change_rest(
        &self,
        buffer: &EditBuffer,
        made: usize,
        accounts: &mut Accounts<'_>,
    ) -> Result<(), Malformed> {
        let edits: SmallVec<[Edit<'_>; 8]> = buffer.edits_of(made..buffer.len()).collect();
        let mut rest = &edits[..];
        while !rest.is_empty() {
            let done = self.change_index(rest, |edit, old| accounts.note(edit, old)).map_err(|_| ABSENT)?;
            rest = &rest[done..];
        }
        Ok(())
    }

    /// Makes the first changes where they are known to go, as far as that holds. Returns how many were made.
    fn change_placed(
        &self,
        buffer: &EditBuffer,
        places: &mut EntryAddresses<'_>,
        accounts: &mut Accounts<'_>,
    ) -> usize {
        let (tree, mut done) = (&mut *self.tree.borrow_mut(), 0);
        if let (Some(address), Some(edit)) = (places.object, buffer.first()) {
            // An entry that stays as long as it was has nothing to be accounted for.
            if !tree.set_at(address, edit) {
                places.object = None;
                return 0;
            }
            done = 1;
        }
        if let Some(address) = places.behind {
            let end = buffer.put_len();
            let sorted = buffer.sorted(done..end);
            if tree.insert_at(address, sorted) {
                debug_assert!(are_of_pieces(buffer.edits_of(done..end), places.pieces));
                accounts.note_new(sorted, places.pieces);
                done = end;
            }
        }
        done
    }

    /// Joins index nodes that became small by changes that were applied together.
    pub(crate) fn tidy<'a>(&self, changes: impl IntoIterator<Item = &'a Change>) {
        self.tidy_keys(
            changes.into_iter().filter(|change| matches!(change, Change::Remove { .. })).map(Change::key),
        );
    }

    fn tidy_keys<'a>(&self, removed: impl Iterator<Item = &'a [u8]>) {
        for key in removed {
            self.tree.borrow_mut().tidy(key, |page, low| self.paging.may_inherit(page, low));
        }
    }

    /// Newest epoch of any change of the store.
    pub(crate) fn newest_epoch(&self) -> u64 {
        self.counters.newest.get().max(self.checkpoints.header.get().newest)
    }

    /// Applies one change to index, space, catalog and transactions. `record` is its record's number with the blocks
    /// that only move within it; `None` during recovery. Returns the bytes of data extents that the change refers to.
    pub(crate) fn apply(&self, change: &Change, record: Option<(u64, &[Run])>) -> Result<u64, Malformed> {
        let edit = Edit::from(change);
        let (mut tally, mut data) = (Tally::default(), Ok(0));
        let account = |edit: Edit<'_>, old: Option<&[u8]>| data = self.account(edit, old, record, &mut tally);
        self.change_index(core::slice::from_ref(&edit), account).map_err(|_| ABSENT)?;
        self.catalog.borrow_mut().count_tally(&mut tally);
        data
    }

    /// Applies as many changes, from the first on, as the index takes at once, at least one. Tells `each` what their keys
    /// had. Returns how many.
    fn change_index<'a>(
        &self,
        edits: &'a [Edit<'a>],
        mut each: impl FnMut(Edit<'a>, Option<&[u8]>),
    ) -> Result<usize, Missing> {
        let mut tree = self.tree.borrow_mut();
        if let Some(edit) = edits.first().filter(|edit| edit.value.is_none()) {
            let old = tree.take(edit.key)?;
            each(*edit, old.as_deref());
            return Ok(1);
        }
        tree.put_run(edits, each)
    }

    /// As [`Core::account`], of an entry that this store has made and that is set, if it is one of an object, has no blocks, had
    /// none, and belongs to the container that is tallied. `false`: nothing was done.
    #[inline]
    fn account_inline(&self, Edit { key, value }: Edit<'_>, old: Option<&[u8]>, tally: &mut Tally) -> bool {
        let (Some(new), Some(epoch)) = (value, key::epoch_of(key)) else { return false };
        if Version::has_blocks(new) || old.is_some_and(Version::has_blocks) || key::is_reserved(key) {
            return false;
        }
        let usage = |value: &[u8]| Usage { entries: entry_bytes(key.len(), value.len()), ..Usage::default() };
        let is_tallied = tally.add(key, old.map(usage).unwrap_or_default(), usage(new));
        if is_tallied && epoch > self.counters.newest.get() {
            self.counters.newest.set(epoch);
        }
        is_tallied
    }

    /// Follows a change of the index, of a key that had the value `old`, in space, catalog and transactions; the rest is
    /// as in [`Core::apply`]. What is in the tally at the end has yet to be counted.
    fn account(
        &self,
        Edit { key, value: new }: Edit<'_>,
        old: Option<&[u8]>,
        record: Option<(u64, &[Run])>,
        tally: &mut Tally,
    ) -> Result<u64, Malformed> {
        if let Some(epoch) = key::epoch_of(key).filter(|_| new.is_some()) {
            self.counters.newest.set(self.counters.newest.get().max(epoch));
        }
        // What was made here is well-formed, and what was read was checked.
        let has_blocks = |value: Option<&[u8]>| value.is_some_and(Version::has_blocks);
        let may_have = has_blocks(old) || has_blocks(new);
        let (old_blocks, new_blocks) =
            if may_have && key::is_version(key) { self.account_blocks(old, new, record)? } else { (0, 0) };
        let usage = |value: Option<&[u8]>, blocks| {
            value.map_or(Ok(Usage::default()), |value| Usage::of_entry(key, value, blocks))
        };
        let (gone, come) = (usage(old, old_blocks)?, usage(new, new_blocks)?);
        if !tally.add(key, gone, come) {
            let mut catalog = self.catalog.borrow_mut();
            catalog.count_tally(tally);
            catalog.count(key, gone, come);
            catalog.follow(key, new)?;
            drop(catalog);
            self.transactions.borrow_mut().follow(key, new)?;
        }
        Ok(new_blocks * BLOCK as u64)
    }

    /// Follows a change of a version in space. Returns the blocks of the one that goes and the one that comes.
    fn account_blocks(
        &self,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        record: Option<(u64, &[Run])>,
    ) -> Result<(u64, u64), Malformed> {
        let runs = |value: Option<&[u8]>| value.map_or(Ok(Runs::new()), Version::runs);
        let (old_runs, new_runs) = (runs(old)?, runs(new)?);
        let mut space = self.space.borrow_mut();
        if old_runs.iter().chain(&new_runs).any(|run| !space.contains(*run)) {
            return Err(Malformed("a value refers to blocks outside the data region"));
        }
        for run in &old_runs {
            match record {
                Some((_, moved)) if is_among(*run, moved) => {}
                Some((number, _)) => space.free_after(*run, number),
                None => space.free_replayed(*run),
            }
        }
        for run in &new_runs {
            space.set_live(*run);
        }
        let blocks = |runs: &[Run]| runs.iter().map(|run| run.count).sum();
        Ok((blocks(&old_runs), blocks(&new_runs)))
    }

    /// Waits until a record is durable. `Err`: the store failed first.
    pub(crate) fn make_durable(&self, record: u64) -> impl Future<Output = Result<(), String>> + use<'_> {
        core::future::poll_fn(move |cx| {
            let failure =
                || self.failure().expect("invariant: only a store that has failed gives a record up");
            let end = |is_durable| if is_durable { Ok(()) } else { Err(failure()) };
            self.journal.poll_durable(self, record, cx).map(end)
        })
    }

    /// Makes a change of pools or containers durable.
    pub(crate) async fn change_catalog(&self, changes: &[Change]) -> Result<(), String> {
        self.ask(|tree| Ok::<_, Halt<String>>(tree.reach(changes.iter().map(Change::key))?)).await?;
        let number = self.commit(changes, None).map_err(|error| error.to_string())?;
        self.make_durable(number).await
    }

    /// A place on the device, for errors.
    pub(crate) fn location(&self, what: &'static str, offset: u64) -> Location {
        Location { device: self.device.name().to_owned(), what, offset }
    }
}
