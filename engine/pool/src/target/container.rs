//! A container as a target knows it, with the counters that metrics are made of.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use weir_proto::{ContainerId, Der, Epoch};
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

/// A client that was refused for want of room comes again sooner than this, unless it has given up.
const SHORTAGE_PAUSE: Duration = Duration::from_secs(3);

/// A time in which updates of a container find no room. It ends when an update has found room that is as large as the
/// smallest that found none, or when no client comes again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shortage {
    /// When the first was refused: what was overwritten or deleted before may make room.
    since: Epoch,
    /// When the last was refused.
    last: Instant,
    /// Bytes of the smallest that was refused.
    wanted: u64,
}

impl Shortage {
    /// The shortage that there is when an update of so many bytes is refused, after `known`.
    fn after(known: Option<Self>, wanted: u64, (now, epoch): (Instant, Epoch)) -> Self {
        let known = known.filter(|known| now.saturating_duration_since(known.last) < SHORTAGE_PAUSE);
        match known {
            Some(known) => Self { since: known.since, last: now, wanted: known.wanted.min(wanted) },
            None => Self { since: epoch, last: now, wanted },
        }
    }
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
    /// Until then no grant for so many bytes or more is asked for again, since it was refused.
    refused: Cell<Option<(Instant, u64)>>,
    shortage: Cell<Option<Shortage>>,
}

impl TargetContainer {
    /// Whether updates have found no room here lately.
    #[must_use]
    pub fn is_short_of_room(&self) -> bool {
        self.shortage.get().is_some()
    }

    /// An update of so many bytes has found room.
    pub fn has_found_room(&self, bytes: u64) {
        if self.shortage.get().is_some_and(|shortage| bytes >= shortage.wanted) {
            self.end_shortage();
        }
    }

    /// An update of so many bytes is refused at this moment. Returns since when such have been.
    pub(crate) fn note_shortage(&self, bytes: u64, moment: (Instant, Epoch)) -> Epoch {
        let shortage = Shortage::after(self.shortage.get(), bytes, moment);
        self.shortage.set(Some(shortage));
        shortage.since
    }

    /// A client that is refused from now on may wait for what was overwritten since.
    pub(crate) fn end_shortage(&self) {
        self.shortage.set(None);
    }

    /// A grant for so many bytes was refused, and is not asked for again until then.
    pub(crate) fn note_refusal(&self, wanted: u64, until: Instant) {
        self.refused.set(Some((until, wanted)));
    }

    /// Whether a grant for so many bytes would be refused, since one for as many or fewer was a moment ago. One for fewer may be
    /// given.
    pub(crate) fn is_refused(&self, wanted: u64, now: Instant) -> bool {
        self.refused.get().is_some_and(|(until, refused)| now < until && refused <= wanted)
    }

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
            refused: Cell::new(None),
            shortage: Cell::new(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_lasts_until_as_much_finds_room_as_did_not_or_nobody_comes_again() {
        let container = TargetContainer::new(ContainerId(uuid::Uuid::nil()), "box".into(), None);
        let begin = Instant::from_nanos(0);
        let at = |ms: u64| (begin + Duration::from_millis(ms), Epoch(1000 + ms));
        assert!(!container.is_short_of_room());
        assert_eq!(container.note_shortage(4096, at(0)), Epoch(1000));
        assert_eq!(container.note_shortage(1 << 20, at(2000)), Epoch(1000));
        container.has_found_room(100);
        assert_eq!(container.note_shortage(1 << 20, at(4000)), Epoch(1000), "a small one tells nothing");
        container.has_found_room(4096);
        assert!(!container.is_short_of_room());
        assert_eq!(container.note_shortage(1 << 20, at(4100)), Epoch(5100));
        container.has_found_room(4096);
        assert_eq!(container.note_shortage(1 << 20, at(4200)), Epoch(5100), "it wasn't as much");
        assert_eq!(container.note_shortage(1 << 20, at(7300)), Epoch(8300), "nobody came for three seconds");
    }

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
