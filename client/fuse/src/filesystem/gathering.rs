//! Gathered writes of one file: their state, and the threads that wait for it. [`super::writeback`] sends them.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_client::Epoch;
use weir_dfs::{File, Node, SetAttributes};

use super::order::{Batch, Order, SendScope};
use super::worker::{Fault, Served};
use crate::kept::{KeptChange, KeptWrite, Slot};

/// How long nothing of what is on its way may arrive before the file counts as stalled: its engine is away.
const STALL: Duration = Duration::from_secs(1);

/// What the engines don't have yet of one file.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each says something else of the file, independent of the others"
)]
pub struct Pending {
    pub(super) order: Order,
    /// The content. It knows what was found out about its end.
    pub(super) file: Option<File>,
    pub(super) change: SetAttributes,
    /// Attributes on their way.
    pub(super) sent_change: Option<SetAttributes>,
    /// When attributes changed last, in nanoseconds since 1970.
    pub(super) changed_ns: i64,
    /// When something arrived last, or left when nothing was on its way.
    pub(super) moved: Option<Instant>,
    /// When the oldest change came that is not on its way.
    pub(super) since: Option<Instant>,
    /// What was gathered before this byte has waited long enough, and so have attributes.
    pub(super) due: Option<u64>,
    /// Newest epoch of content written from here.
    pub(super) newest: Epoch,
    /// Failures so far, and the errno of the last.
    pub(super) failures: (u64, i32),
    /// The sender looks at it from time to time.
    pub(super) listed: bool,
    /// Made here and not closed since: its attributes are gathered too.
    pub(super) fresh: bool,
    /// Pages of a mapping came since the last `fsync` or `close`.
    pub(super) mapped: bool,
    /// Writes that are kept for a successor of this process, the oldest first.
    pub(super) kept: Vec<UnsentWrite>,
    /// The attributes, as a successor of this process finds them.
    pub(super) kept_change: Option<(Slot, KeptChange)>,
    /// Something came from the process before this one, which may have written content that is not counted in `newest`.
    pub(super) is_inherited: bool,
    /// Handles that are accessed directly: meanwhile nothing may be gathered.
    pub(super) direct: u32,
    /// Handles of mappings, because of which none may be.
    mappings: u32,
}

/// A write that is kept for a successor of this process until the engines have it.
#[derive(Debug)]
pub struct UnsentWrite {
    kept: KeptWrite,
    /// What of it the engines don't have. No two ranges touch.
    left: Vec<Range<u64>>,
}

impl UnsentWrite {
    /// All of it is unsent.
    pub fn new(kept: KeptWrite, range: Range<u64>) -> Self {
        Self { kept, left: vec![range] }
    }

    /// Takes off what has arrived, in ascending order.
    fn take_off(&mut self, arrived: &[(u64, Vec<u8>)]) {
        let end_of = |(start, run): &(u64, Vec<u8>)| start + run.len() as u64;
        let mut left = Vec::new();
        for mut range in self.left.drain(..) {
            let first = arrived.partition_point(|run| end_of(run) <= range.start);
            for run in arrived[first..].iter().take_while(|(start, _)| *start < range.end) {
                if range.start < run.0 {
                    left.push(range.start..run.0);
                }
                range.start = end_of(run).min(range.end);
            }
            if !range.is_empty() {
                left.push(range);
            }
        }
        self.left = left;
    }
}

impl Pending {
    /// Whether the engines have everything.
    pub(super) fn is_settled(&self) -> bool {
        self.order.is_empty() && self.sent_change.is_none() && !self.change.changes_record()
    }

    /// Whether the engine that has to answer next stays away.
    pub(super) fn is_stalled(&self) -> bool {
        self.order.is_sending() && self.moved.is_some_and(|moved| moved.elapsed() >= STALL)
    }

    /// Content that may leave now, and the file that it is of.
    pub(super) fn take(&mut self, wanted: SendScope) -> Option<(Batch, File)> {
        let file = self.file.clone()?;
        let was_sending = self.order.is_sending();
        let mut batch = self.order.take(wanted, file.chunk_size())?;
        batch.kept = self.kept.last().map_or(0, |write| write.kept.order);
        if !was_sending {
            self.moved = Some(Instant::now());
        }
        if self.order.bytes() == 0 && !self.change.changes_record() {
            self.since = None;
        }
        Some((batch, file))
    }

    /// Writes that need not be kept any more, after a batch has arrived or is lost: what it has of older writes is what was
    /// written there last, when it left.
    pub(super) fn let_go(&mut self, batch: &Batch) -> Vec<KeptWrite> {
        let is_empty = self.order.is_empty();
        let mut gone = Vec::new();
        self.kept.retain_mut(|write| {
            if write.kept.order <= batch.kept {
                write.take_off(&batch.runs);
            }
            let stays = !is_empty && !write.left.is_empty();
            if !stays {
                gone.push(write.kept);
            }
            stays
        });
        gone
    }

    /// Whether attributes may leave: all content has arrived, or leaves with them.
    pub(super) fn has_free_change(&self, leaving: bool) -> bool {
        let content_is_there = if leaving { self.order.leaves_one() } else { self.order.is_empty() };
        content_is_there && self.sent_change.is_none() && self.change.changes_record()
    }

    /// The attributes to be sent. They count here until they have arrived.
    pub(super) fn take_change(&mut self) -> SetAttributes {
        self.since = None;
        let change = std::mem::take(&mut self.change);
        self.sent_change = Some(change);
        change
    }

    /// Notes how writing to the engines ended.
    pub(super) fn note(&mut self, outcome: &Served<Epoch>) {
        match outcome {
            Ok(epoch) => self.newest = self.newest.max(*epoch),
            Err(fault) => self.note_failure(fault),
        }
    }

    /// Notes that something is lost.
    pub(super) fn note_failure(&mut self, fault: &Fault) {
        self.failures = (self.failures.0 + 1, fault.errno());
    }
}

/// A file's changes under way, with the threads that wait for them.
#[derive(Debug, Default)]
pub struct Gathering {
    pending: Mutex<Pending>,
    pub(super) progress: Condvar,
}

impl Gathering {
    /// Locks what is pending. Never held across a request to an engine.
    pub(super) fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait<'a>(
        &self,
        pending: MutexGuard<'a, Pending>,
        blocked: impl Fn(&Pending) -> bool,
    ) -> MutexGuard<'a, Pending> {
        // The thread that is waited for has a deadline of its own, that of a request to an engine.
        self.progress.wait_while(pending, |pending| blocked(pending)).unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the engines have everything.
    pub fn is_settled(&self) -> bool {
        self.lock().is_settled()
    }

    /// Whether the sender has to look at it again.
    pub(super) fn stays_listed(&self) -> bool {
        let mut pending = self.lock();
        pending.listed = !pending.is_settled();
        pending.listed
    }

    /// Notes that the file was made here just now.
    pub fn begin_fresh(&self) {
        self.lock().fresh = true;
    }

    /// From now on changes of the file's attributes go to the engines at once.
    pub fn end_fresh(&self) {
        self.lock().fresh = false;
    }

    /// One more handle is accessed directly, unless the file is mapped. What is gathered has to be settled then.
    pub fn begin_direct(&self) -> bool {
        let mut pending = self.lock();
        if pending.mappings > 0 {
            return false;
        }
        pending.direct += 1;
        pending.fresh = false;
        true
    }

    /// One handle less is accessed directly.
    pub fn end_direct(&self) {
        let mut pending = self.lock();
        pending.direct = pending.direct.saturating_sub(1);
    }

    /// Whether a handle is accessed directly.
    pub fn is_direct(&self) -> bool {
        self.lock().direct > 0
    }

    /// So many handles more are mapped.
    pub fn note_mapped(&self, more: i32) {
        let mut pending = self.lock();
        pending.mappings = pending.mappings.saturating_add_signed(more);
    }

    /// Whether the newest epoch of the content has to be asked for before attributes are sent.
    pub(super) fn is_inherited(&self) -> bool {
        self.lock().is_inherited
    }

    /// Whether the engines don't have all that the process before this one has gathered.
    pub(super) fn is_unsent_of_another(&self) -> bool {
        let pending = self.lock();
        pending.is_inherited && !pending.is_settled()
    }

    /// Waits for something to arrive.
    pub(super) fn wait_once<'a>(&self, pending: MutexGuard<'a, Pending>) -> MutexGuard<'a, Pending> {
        self.progress.wait(pending).unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes where the file ends, as the engines have said.
    pub fn learn_end(&self, end: u64) {
        self.lock().order.learn_end(end);
    }

    /// Notes that the file is about to end there, if not before.
    pub fn lower_end(&self, end: u64) {
        let mut pending = self.lock();
        let end = pending.order.known_end().min(end);
        pending.order.learn_end(end);
    }

    /// Notes that the content was changed by something else than what is gathered, at this epoch or before: a modification
    /// time that is set from now on is newer.
    pub fn note_changed(&self, epoch: Epoch) {
        let mut pending = self.lock();
        pending.newest = pending.newest.max(epoch);
    }

    /// Epoch of the newest change of the content from here, or a later one.
    pub fn newest(&self) -> Epoch {
        self.lock().newest
    }

    /// Notes a write of a mapping's pages that failed. The kernel tells the process that waits for it, and forgets it
    /// then.
    pub fn note_lost_pages(&self, fault: &Fault) {
        let mut pending = self.lock();
        pending.note_failure(fault);
        pending.mapped = false;
    }

    /// Failures so far; a handle reports those after the count that it knows.
    pub fn failures(&self) -> u64 {
        self.lock().failures.0
    }
}

/// Attributes of a file whose changes are not all with the engines, as they will be.
pub fn overlay(node: &Node, gathering: &Gathering) -> weir_dfs::Record {
    let mut record = node.record.clone();
    let pending = gathering.lock();
    for change in pending.sent_change.iter().chain([&pending.change]) {
        if change.changes_record() {
            change.apply(&mut record, pending.changed_ns, Epoch::ZERO);
        }
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filesystem::inodes::tests::node;
    use crate::kept::Kept;
    use rustix::fs::{MemfdFlags, memfd_create};

    fn memory() -> std::fs::File {
        memfd_create("kept", MemfdFlags::CLOEXEC).expect("made").into()
    }

    #[test]
    fn a_write_is_kept_until_all_of_it_has_arrived_as_it_is() {
        let kept = Kept::begin(memory()).expect("begun");
        let mut pending = Pending::default();
        let write = |pending: &mut Pending, offset: u64, length: usize| {
            let data = vec![1; length];
            pending.order.insert(offset, &data);
            let write = kept.put_write(16, offset, &data).expect("room");
            pending.kept.push(UnsentWrite::new(write, offset..offset + length as u64));
        };
        pending.order.learn_end(100);
        write(&mut pending, 0, 10);
        write(&mut pending, 20, 10);
        let mut first = pending.order.take(SendScope::All, 1 << 20).expect("something");
        first.kept = pending.kept[1].kept.order;
        // Newer than what has left.
        write(&mut pending, 5, 20);
        assert!(pending.order.arrived(first.number, true) == 0);
        assert_eq!(pending.let_go(&first).len(), 2);
        assert_eq!(pending.kept[0].left.as_slice(), core::slice::from_ref(&(5..25)));
        let part = Batch { number: 9, runs: vec![(8, vec![1; 2]), (12, vec![1; 20])], kept: u64::MAX };
        assert!(pending.let_go(&part).is_empty());
        assert_eq!(pending.kept[0].left, [5..8, 10..12]);
        let last = pending.order.take(SendScope::All, 1 << 20).expect("something");
        pending.order.arrived(last.number, true);
        assert_eq!(pending.let_go(&last).len(), 1, "nothing is left to be sent");
        assert!(pending.kept.is_empty());
    }

    #[test]
    fn attributes_on_their_way_count_as_those_that_wait() {
        let node = node(100);
        let gathering = Gathering::default();
        let owner = SetAttributes { mode: Some(0o600), uid: Some(2), ..SetAttributes::default() };
        gathering.lock().change = owner;
        assert_eq!(gathering.lock().take_change(), owner);
        gathering.lock().change = SetAttributes { uid: Some(3), ..SetAttributes::default() };
        let seen = overlay(&node, &gathering);
        assert_eq!((seen.mode, seen.uid, seen.gid), (0o600, 3, 0));
    }
}
