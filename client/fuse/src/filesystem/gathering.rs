//! Gathered writes of one file: their state, and the threads that wait for it. [`super::writeback`] sends them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_client::Epoch;
use weir_dfs::{File, Node, SetAttributes};

use super::order::{Batch, Order, SendScope};
use super::worker::{Fault, Served};

/// How long nothing of what is on its way may arrive before the file counts as stalled: its engine is away.
const STALL: Duration = Duration::from_secs(1);

/// What the engines don't have yet of one file.
#[derive(Debug, Default)]
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
        let batch = self.order.take(wanted, file.chunk_size())?;
        if !was_sending {
            self.moved = Some(Instant::now());
        }
        if self.order.bytes() == 0 && !self.change.changes_record() {
            self.since = None;
        }
        Some((batch, file))
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
