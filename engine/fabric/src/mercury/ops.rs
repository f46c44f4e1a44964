//! Operations that Mercury has.

use super::raw::Registration;
use super::sys::{HgHandle, HgMove};
use crate::PeerId;
use crate::endpoint::Completer;
use crate::memory::{Access, Memory};
use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::rc::Rc;
use weir_runtime::Instant;

/// Longest time that an operation waits for room or a connection, as on libfabric, and takes: a fragment of a bulk transfer is a
/// MiB. Mercury doesn't tell waiting from being under way.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Longest time of a transfer that no caller waits for any more: after it the connection is as good as dead.
const ABANDONED_MAX: Duration = Duration::from_secs(2);

/// Bound of messages on their way out, each in a request of up to 20 KiB: as much memory as on libfabric.
const SENDS_MAX: usize = 3276;

/// How many places have to be free for each that a peer has. One alone then gets a third of all, enough for a client with a thousand
/// credits. The more others have, the fewer one may have, so that some are left for those whose messages are taken.
const FREE_FOR_EACH: usize = 2;

/// How many messages are on their way out to one peer.
#[derive(Clone, Default)]
pub(super) struct Queue(Rc<Cell<usize>>);

/// A message on its way out, as long as this lives.
pub(super) struct Queued(Queue);

impl Queued {
    pub(super) fn new(queue: &Queue) -> Self {
        queue.0.set(queue.0.get() + 1);
        Self(queue.clone())
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.0.0.set(self.0.0.get().saturating_sub(1));
    }
}

/// What an operation is, with everything that has to live until it ends.
pub(super) enum Kind {
    /// A message, or a fragment of one.
    Send { context: u64, handle: *mut HgHandle, _queued: Queued },
    /// A read or write of a peer's memory. Without a completer no caller waits for it any more.
    Transfer {
        access: Access,
        len: usize,
        completer: Option<Completer>,
        under_way: *mut HgMove,
        /// Held until the operation has ended. The registration ends before its memory can go.
        _registration: Option<Rc<Registration>>,
        _memory: Rc<Memory>,
    },
}

/// How far giving an operation up has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// It is wanted.
    Wanted,
    /// Since then it isn't; what the network has of it fails when the connection ends.
    Doomed(Instant),
    /// Mercury was told.
    Cancelled,
}

/// An operation that Mercury has.
pub(super) struct Op {
    pub(super) peer: PeerId,
    pub(super) since: Instant,
    pub(super) fate: Fate,
    pub(super) kind: Kind,
}

impl Op {
    pub(super) fn new(peer: PeerId, since: Instant, kind: Kind) -> Self {
        Self { peer, since, fate: Fate::Wanted, kind }
    }

    fn is_send(&self) -> bool {
        matches!(self.kind, Kind::Send { .. })
    }

    /// How long it may take.
    pub(super) fn patience(&self) -> Duration {
        match &self.kind {
            Kind::Transfer { completer, .. } if completer.as_ref().is_none_or(Completer::is_abandoned) => {
                ABANDONED_MAX
            }
            Kind::Send { .. } | Kind::Transfer { .. } => WAIT_MAX,
        }
    }
}

#[derive(Default)]
struct Table {
    ops: Vec<Option<Op>>,
    free: Vec<usize>,
    sends: usize,
}

/// All operations of an endpoint, by the tokens that Mercury hands back.
#[derive(Default)]
pub(super) struct Ops {
    table: RefCell<Table>,
}

impl Ops {
    pub(super) fn add(&self, op: Op) -> u64 {
        let table = &mut *self.table.borrow_mut();
        table.sends += usize::from(op.is_send());
        let index = if let Some(index) = table.free.pop() {
            table.ops[index] = Some(op);
            index
        } else {
            table.ops.push(Some(op));
            table.ops.len() - 1
        };
        index as u64
    }

    /// Ends an operation.
    pub(super) fn take(&self, token: u64) -> Option<Op> {
        let table = &mut *self.table.borrow_mut();
        let index = usize::try_from(token).ok()?;
        let op = table.ops.get_mut(index)?.take()?;
        table.free.push(index);
        table.sends -= usize::from(op.is_send());
        Some(op)
    }

    /// Looks at an operation. `f` must not come back to the table.
    pub(super) fn with<T>(&self, token: u64, f: impl FnOnce(&mut Op) -> T) -> Option<T> {
        let index = usize::try_from(token).ok()?;
        self.table.borrow_mut().ops.get_mut(index)?.as_mut().map(f)
    }

    /// Looks at every operation. `f` must not come back to the table.
    pub(super) fn for_each(&self, f: impl FnMut(&mut Op)) {
        self.table.borrow_mut().ops.iter_mut().flatten().for_each(f);
    }

    /// Whether there is room for so many more messages to a peer; else how many are on their way out and what bounds
    /// that. Messages to a peer that takes none don't keep answers to other peers from going out.
    pub(super) fn room(&self, queue: &Queue, count: usize) -> Result<(), (usize, usize)> {
        let sends = self.table.borrow().sends;
        let fits = (queue.0.get() + count) * FREE_FOR_EACH <= SENDS_MAX.saturating_sub(sends);
        if fits { Ok(()) } else { Err((sends, SENDS_MAX)) }
    }

    /// Number of operations.
    pub(super) fn len(&self) -> usize {
        let table = self.table.borrow();
        table.ops.len() - table.free.len()
    }

    /// Takes everything out.
    pub(super) fn drain(&self) -> Vec<Op> {
        let table = &mut *self.table.borrow_mut();
        table.free.clear();
        table.sends = 0;
        table.ops.drain(..).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(queue: &Queue) -> Op {
        let kind = Kind::Send { context: 0, handle: core::ptr::null_mut(), _queued: Queued::new(queue) };
        Op::new(PeerId(1), Instant::default(), kind)
    }

    #[test]
    fn peers_that_take_nothing_leave_room_for_another_one() {
        let (ops, queues) = (Ops::default(), [(); 8].map(|()| Queue::default()));
        let mut tokens = Vec::new();
        while let Some(queue) = queues.iter().find(|queue| ops.room(queue, 1).is_ok()) {
            tokens.push(ops.add(send(queue)));
        }
        let counts = queues.each_ref().map(|queue| queue.0.get());
        assert!(counts[0] >= 1024 && counts.iter().all(|count| *count > 0), "{counts:?}");
        // One of the longest messages, in fragments.
        let late = Queue::default();
        assert!(ops.room(&late, 20).is_ok(), "{counts:?}");
        assert_eq!(ops.room(&late, SENDS_MAX), Err((tokens.len(), SENDS_MAX)));
        for token in tokens {
            drop(ops.take(token));
        }
        assert!(queues.iter().all(|queue| queue.0.get() == 0) && ops.room(&late, 1024).is_ok());
    }
}
