//! What is known of the checkpoints of an open store.

use crate::format::Checkpoint;
use crate::state::stats::CheckpointHistogram;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use weir_runtime::sync::Notify;

/// State of checkpointing.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    pub(crate) request: NotifyCell,
    /// A checkpoint ended, well or not.
    pub(crate) done: NotifyCell,
    /// Generation of the newest header.
    pub(crate) generation: Cell<u64>,
    /// Number of the last checkpoint that was begun.
    pub(crate) number: Cell<u64>,
    /// Header of the newest checkpoint.
    pub(crate) header: Cell<Checkpoint>,
    /// Number and slot of each group's newest bitmap.
    pub(crate) maps: RefCell<Vec<(u64, u64)>>,
    pub(crate) count: Cell<u64>,
    pub(crate) time: Cell<Duration>,
    pub(crate) bytes: Cell<u64>,
    pub(crate) latency: RefCell<CheckpointHistogram>,
    pub(crate) failures: Cell<u64>,
    /// Wall time of the last one's end; 0 before it.
    pub(crate) last_ns: Cell<u64>,
    pub(crate) running: Cell<bool>,
    /// How long the slices of a begin are apart.
    #[cfg(test)]
    pub(crate) pause: Cell<Duration>,
}

/// A [`Notify`] that can be printed.
#[derive(Default)]
pub(crate) struct NotifyCell(Notify);

impl core::ops::Deref for NotifyCell {
    type Target = Notify;

    fn deref(&self) -> &Notify {
        &self.0
    }
}

impl core::fmt::Debug for NotifyCell {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Notify")
    }
}

impl Checkpoints {
    /// `number` is the highest that any bitmap has.
    pub(crate) fn new(header: Checkpoint, number: u64, maps: Vec<(u64, u64)>) -> Self {
        Self {
            request: NotifyCell::default(),
            done: NotifyCell::default(),
            generation: Cell::new(header.generation),
            number: Cell::new(number.max(header.number)),
            header: Cell::new(header),
            maps: RefCell::new(maps),
            count: Cell::new(0),
            time: Cell::new(Duration::ZERO),
            bytes: Cell::new(0),
            latency: RefCell::default(),
            failures: Cell::new(0),
            last_ns: Cell::new(0),
            running: Cell::new(false),
            #[cfg(test)]
            pause: Cell::default(),
        }
    }

    /// Number and slot of a group's newest bitmap.
    pub(crate) fn map_of(&self, group: u64) -> Option<(u64, u64)> {
        self.maps.borrow().get(usize::try_from(group).ok()?).copied()
    }

    /// Whether one is being written.
    pub(crate) fn is_running(&self) -> bool {
        self.running.get()
    }
}
