//! A container as a target knows it, with the counters that metrics are made of.

use std::cell::{Cell, RefCell};

use weir_proto::{ContainerId, Der};
use weir_runtime::Instant;
use weir_runtime::sync::Semaphore;

/// Number of kinds of operations.
pub const OPERATIONS: usize = 6;

/// Kind of an operation, as the metrics name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Write values.
    Update,
    /// Read values.
    Fetch,
    /// Remove keys or objects.
    Punch,
    /// Enumerate keys.
    List,
    /// Ask for keys or epochs.
    Query,
    /// Make a transaction's changes visible.
    Commit,
}

impl Operation {
    /// Every kind, in the order of the counters.
    pub const ALL: [Self; OPERATIONS] =
        [Self::Update, Self::Fetch, Self::Punch, Self::List, Self::Query, Self::Commit];

    /// Value of the `op` label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Update => "update",
            Self::Fetch => "fetch",
            Self::Punch => "punch",
            Self::List => "list",
            Self::Query => "query",
            Self::Commit => "commit",
        }
    }
}

/// Errors by number: few of them ever occur, so a list is enough.
pub type ErrorCounts = Vec<(Der, u64)>;

/// Counters of one container on one target.
#[derive(Default, Debug)]
pub struct CounterSet {
    operations: [Cell<u64>; OPERATIONS],
    written: Cell<u64>,
    read: Cell<u64>,
    errors: RefCell<ErrorCounts>,
}

impl CounterSet {
    /// Counts an operation that was answered without error, and the application's bytes it moved.
    pub fn succeeded(&self, operation: Operation, bytes: u64) {
        bump(&self.operations[operation as usize], 1);
        match operation {
            Operation::Update => bump(&self.written, bytes),
            Operation::Fetch => bump(&self.read, bytes),
            _ => {}
        }
    }

    /// Counts an operation that was answered with an error.
    pub fn failed(&self, operation: Operation, der: Der) {
        bump(&self.operations[operation as usize], 1);
        let mut errors = self.errors.borrow_mut();
        match errors.iter_mut().find(|(known, _)| *known == der) {
            Some((_, count)) => *count += 1,
            None => errors.push((der, 1)),
        }
    }

    /// Operations answered, by [`Operation`].
    #[must_use]
    pub fn operations(&self) -> [u64; OPERATIONS] {
        core::array::from_fn(|index| self.operations[index].get())
    }

    /// Bytes written and read.
    #[must_use]
    pub const fn bytes(&self) -> (u64, u64) {
        (self.written.get(), self.read.get())
    }

    /// Errors by number.
    #[must_use]
    pub fn errors(&self) -> ErrorCounts {
        self.errors.borrow().clone()
    }
}

fn bump(counter: &Cell<u64>, by: u64) {
    counter.set(counter.get().wrapping_add(by));
}

/// A container as a target knows it.
pub struct TargetContainer {
    /// Identity.
    pub id: ContainerId,
    /// Label.
    pub label: RefCell<String>,
    /// What happened to it here.
    pub counters: CounterSet,
    /// When a client last used it.
    pub(crate) used_at: Cell<Option<Instant>>,
    /// Bytes it may hold here; `None`: no limit.
    pub(crate) grant: Cell<Option<u64>>,
    /// One request for a greater grant at a time.
    pub(crate) asking: Semaphore,
    /// What the service says is taken over one behind the other, in the order in which it comes.
    pub(crate) setting: Semaphore,
    /// Counts what the service said of the grant unasked.
    pub(crate) told: Cell<u64>,
    /// Until then a greater grant is not asked for again, since it was refused.
    pub(crate) refused_until: Cell<Option<Instant>>,
}

impl TargetContainer {
    /// A client uses it now.
    pub fn touch(&self, now: Instant) {
        self.used_at.set(Some(now));
    }

    pub(crate) fn new(id: ContainerId, label: String, grant: Option<u64>) -> Self {
        Self {
            id,
            label: RefCell::new(label),
            counters: CounterSet::default(),
            used_at: Cell::new(None),
            grant: Cell::new(grant),
            asking: Semaphore::new(1),
            setting: Semaphore::new(1),
            told: Cell::new(0),
            refused_until: Cell::new(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_tell_operations_bytes_and_errors() {
        let counters = CounterSet::default();
        counters.succeeded(Operation::Update, 10);
        counters.succeeded(Operation::Fetch, 5);
        counters.succeeded(Operation::List, 99);
        counters.failed(Operation::Update, Der::NOSPACE);
        counters.failed(Operation::Update, Der::NOSPACE);
        assert_eq!(counters.operations(), [3, 1, 0, 1, 0, 0]);
        assert_eq!(counters.bytes(), (10, 5));
        assert_eq!(counters.errors(), [(Der::NOSPACE, 2)]);
    }
}
