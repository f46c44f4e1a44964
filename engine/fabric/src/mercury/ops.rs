//! Operations that Mercury has.

use super::raw::Registration;
use super::sys::{HgHandle, HgMove};
use crate::PeerId;
use crate::memory::{Access, Memory};
use crate::transfer::Completer;
use core::cell::RefCell;
use core::time::Duration;
use std::rc::Rc;
use weir_runtime::Instant;

/// Longest time that an operation waits for room or a connection, as on libfabric, and takes: a piece of a bulk transfer is a
/// MiB. Mercury doesn't tell waiting from being under way.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Longest time that a transfer takes which nobody waits for any more: after it the connection is as good as dead.
const ABANDONED_MAX: Duration = Duration::from_secs(2);

/// What an operation is, with everything that has to live until it ends.
pub(super) enum Kind {
    /// A message, or a piece of one.
    Send { context: u64, handle: *mut HgHandle },
    /// A read or write of a peer's memory. Without a completer nobody waits for it any more.
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

    /// Messages on their way out.
    pub(super) fn sends(&self) -> usize {
        self.table.borrow().sends
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
