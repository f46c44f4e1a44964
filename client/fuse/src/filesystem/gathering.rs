//! What is gathered of one file: the state, and who waits for it. [`super::writeback`] moves it.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use weir_client::Epoch;
use weir_dfs::{Node, SetAttributes};

use super::runs::Runs;
use super::worker::{Fault, Served};

/// What the engines don't have yet of one file.
#[derive(Debug, Default)]
pub struct Pending {
    pub(super) runs: Runs,
    pub(super) change: SetAttributes,
    /// Attributes on their way.
    pub(super) sent_change: SetAttributes,
    /// When attributes changed last, in nanoseconds since 1970.
    pub(super) changed_ns: i64,
    /// Ranges on their way, with the order in which they left.
    pub(super) sending: Vec<(u64, Range<u64>)>,
    pub(super) sent: u64,
    /// A thread brings runs and attributes to the engines now.
    pub(super) settling: bool,
    /// When the oldest change came that is not on its way.
    pub(super) since: Option<Instant>,
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
        self.runs.is_empty() && self.sending.is_empty() && !self.settling && !self.change.changes_record()
    }

    /// The attributes to be sent. They count here until they have arrived.
    pub(super) fn take_change(&mut self) -> SetAttributes {
        self.sent_change = std::mem::take(&mut self.change);
        self.sent_change
    }

    pub(super) fn take_order(&mut self, range: Range<u64>) -> u64 {
        self.sent += 1;
        self.sending.push((self.sent, range));
        self.sent
    }

    pub(super) fn arrived(&mut self, order: u64) {
        self.sending.retain(|(other, _)| *other != order);
    }

    /// Notes how writing to the engines ended.
    pub(super) fn note(&mut self, outcome: &Served<Epoch>) {
        match outcome {
            Ok(epoch) => self.newest = self.newest.max(*epoch),
            Err(fault) => self.failures = (self.failures.0 + 1, fault.errno()),
        }
    }
}

/// A file's changes under way, with those who wait for them.
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
        // Whoever is waited for has a deadline of its own, that of a request to an engine.
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

    /// Notes that the content was changed by something else than what is gathered, at this epoch or before: a modification
    /// time that is set from now on is newer.
    pub fn note_changed(&self, epoch: Epoch) {
        let mut pending = self.lock();
        pending.newest = pending.newest.max(epoch);
    }

    /// Notes a write of a mapping's pages that failed. Whoever waits for it is told by the kernel, which forgets it then.
    pub fn note_lost_pages(&self, fault: &Fault) {
        let mut pending = self.lock();
        pending.failures = (pending.failures.0 + 1, fault.errno());
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
    for change in [&pending.sent_change, &pending.change] {
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
