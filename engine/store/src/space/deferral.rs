//! Blocks that nothing refers to any more and that can't be given out yet: what freed them isn't durable, or a
//! reader that began before may still read them.

use crate::format::blocks::Run;
use crate::format::size::in_memory;
use std::collections::VecDeque;

#[derive(Debug)]
struct Deferred {
    run: Run,
    /// Number of the record that freed them.
    record: u64,
    /// Readers that began before this number may still read them.
    reader: u64,
}

/// Freed blocks in the order in which they were freed, and the readers that hold them.
#[derive(Debug, Default)]
pub(crate) struct Deferral {
    queue: VecDeque<Deferred>,
    /// Readers from the oldest that hasn't ended on, in the order in which they began: whether each has ended.
    readers: VecDeque<bool>,
    /// Number of the next reader.
    next: u64,
}

impl Deferral {
    /// Blocks were freed by the record of this number.
    pub(crate) fn push(&mut self, run: Run, record: u64) {
        debug_assert!(
            self.queue.back().is_none_or(|last| last.record <= record),
            "records have ascending numbers"
        );
        self.queue.push_back(Deferred { run, record, reader: self.next });
    }

    /// The next run that can be given out, when records up to `durable` are durable.
    pub(crate) fn pop(&mut self, durable: u64) -> Option<Run> {
        let oldest = self.next - self.readers.len() as u64;
        let first = self.queue.front()?;
        if first.record > durable || first.reader > oldest {
            return None;
        }
        self.queue.pop_front().map(|deferred| deferred.run)
    }

    /// A reader begins: what is freed from now on stays until [`Deferral::end_read`] with the returned number.
    pub(crate) fn begin_read(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        self.readers.push_back(false);
        number
    }

    /// The reader of this number has ended.
    pub(crate) fn end_read(&mut self, reader: u64) {
        let oldest = self.next - self.readers.len() as u64;
        let place = reader.checked_sub(oldest).expect("invariant: a reader ends once");
        let has_ended = core::mem::replace(&mut self.readers[in_memory(place)], true);
        assert!(!has_ended, "invariant: a reader ends once");
        while self.readers.front() == Some(&true) {
            self.readers.pop_front();
        }
    }

    /// Blocks that wait.
    #[cfg(test)]
    pub(crate) fn blocks(&self) -> u64 {
        self.queue.iter().map(|deferred| deferred.run.count).sum()
    }
}
