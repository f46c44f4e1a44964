//! Pending timers, soonest first; equal times fire in the order they were set.

use std::collections::BTreeMap;
use std::task::Waker;

/// Names a pending timer: its time in nanoseconds and a serial number.
pub(crate) type TimerId = (u64, u64);

#[derive(Default)]
pub(crate) struct Timers {
    pending: BTreeMap<TimerId, Waker>,
    serial: u64,
}

impl Timers {
    pub(crate) fn set(&mut self, at: u64, waker: Waker) -> TimerId {
        self.serial += 1;
        let id = (at, self.serial);
        self.pending.insert(id, waker);
        id
    }

    pub(crate) fn clear(&mut self, id: TimerId) -> Option<Waker> {
        self.pending.remove(&id)
    }

    pub(crate) fn next(&self) -> Option<u64> {
        self.pending.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes one timer that is due.
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<Waker> {
        let entry = self.pending.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }

    pub(crate) fn drain(&mut self) -> BTreeMap<TimerId, Waker> {
        core::mem::take(&mut self.pending)
    }
}
