//! Operations that the provider has, or that wait until it has room.
#![expect(unsafe_code, reason = "operations are found again through the pointers that providers hand back")]

use crate::PeerId;
use crate::endpoint::{Completer, SlabLease};
use crate::memory::{Access, Memory, RemoteRegion};
use core::cell::{Cell, RefCell};
use core::ffi::c_void;
use std::rc::Rc;
use weir_runtime::Attention;

/// Bytes of messages to a peer that were not sent yet.
#[derive(Clone, Default)]
pub(super) struct Backlog(Rc<Cell<usize>>);

impl Backlog {
    /// Their number.
    pub(super) fn bytes(&self) -> usize {
        self.0.get()
    }

    /// Counts this many more while the returned value is held.
    pub(super) fn add(&self, bytes: usize) -> Unsent {
        self.0.set(self.0.get() + bytes);
        Unsent { backlog: self.clone(), bytes }
    }
}

/// A message that was not sent yet.
pub(super) struct Unsent {
    backlog: Backlog,
    bytes: usize,
}

impl Drop for Unsent {
    fn drop(&mut self) {
        let Backlog(count) = &self.backlog;
        count.set(count.get().saturating_sub(self.bytes));
    }
}

/// An operation, with all that it takes to post and to complete it.
pub(super) enum Op {
    /// A posted receive slab.
    Slab(Rc<SlabLease>),
    /// A message to be sent.
    Send { peer: PeerId, context: u64, memory: Rc<Memory>, len: usize, _unsent: Unsent },
    /// A read or write of remote memory. Without a completer no caller waits for it.
    Transfer {
        peer: PeerId,
        access: Access,
        memory: Rc<Memory>,
        at: usize,
        len: usize,
        remote: RemoteRegion,
        completer: Option<Completer>,
        /// Keeps the thread awake until it ends.
        _attention: Attention,
    },
}

impl Op {
    /// Whether nothing would depend on it if it were never posted.
    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Self::Slab(_) | Self::Send { .. } => false,
            Self::Transfer { completer, .. } => completer.as_ref().is_none_or(Completer::is_abandoned),
        }
    }

    /// The memory that is sent or moved.
    pub(super) fn memory(&self) -> Option<&Rc<Memory>> {
        match self {
            Self::Slab(_) => None,
            Self::Send { memory, .. } | Self::Transfer { memory, .. } => Some(memory),
        }
    }

    pub(super) fn peer(&self) -> Option<PeerId> {
        match self {
            Self::Slab(_) => None,
            Self::Send { peer, .. } | Self::Transfer { peer, .. } => Some(*peer),
        }
    }
}

/// The target of the provider's context pointer. Boxed, so that it isn't moved.
#[repr(C)]
struct Slot {
    /// Scratch space that providers in `FI_CONTEXT2` mode need behind the pointer.
    scratch: [u64; 8],
    index: usize,
    /// The entry of the address vector that the operation was posted to; `None` while it waits.
    posted_to: Option<u64>,
}

/// Identifies an operation in the table.
pub(super) type OpId = usize;

#[derive(Default)]
struct Table {
    #[expect(
        clippy::vec_box,
        reason = "providers hold pointers to slots, which must not move when the list grows"
    )]
    slots: Vec<Box<Slot>>,
    ops: Vec<Option<Op>>,
    free: Vec<OpId>,
    /// Operations other than posted slabs.
    under_way: usize,
}

/// Keys of registrations. A peer must not be able to guess a key that it was not given, even from many others. So each is a
/// keyed hash (`SipHash`) of a number, under a key from the operating system.
#[derive(Default)]
pub(super) struct KeySource {
    secret: std::hash::RandomState,
    drawn: Cell<u64>,
}

impl KeySource {
    pub(super) fn draw(&self) -> u64 {
        use std::hash::BuildHasher;
        self.drawn.set(self.drawn.get().wrapping_add(1));
        self.secret.hash_one(self.drawn.get())
    }
}

/// All operations of an endpoint.
#[derive(Default)]
pub(super) struct Ops {
    table: RefCell<Table>,
}

impl Ops {
    pub(super) fn add(&self, op: Op) -> OpId {
        let table = &mut *self.table.borrow_mut();
        table.under_way += usize::from(op.peer().is_some());
        if let Some(id) = table.free.pop() {
            table.ops[id] = Some(op);
            table.slots[id].posted_to = None;
            return id;
        }
        let index = table.slots.len();
        table.slots.push(Box::new(Slot { scratch: [0; 8], index, posted_to: None }));
        table.ops.push(Some(op));
        index
    }

    /// The pointer that the provider gets.
    pub(super) fn context(&self, id: OpId) -> *mut c_void {
        let table = &mut *self.table.borrow_mut();
        table.slots.get_mut(id).map_or(core::ptr::null_mut(), |slot| (&raw mut **slot).cast())
    }

    /// The operation was posted, to this entry of the address vector.
    pub(super) fn posted(&self, id: OpId, entry: u64) {
        if let Some(slot) = self.table.borrow_mut().slots.get_mut(id) {
            slot.posted_to = Some(entry);
        }
    }

    /// The operation behind a pointer from the provider, and its slab if it is one.
    pub(super) fn find_slab(&self, context: *mut c_void) -> Option<(OpId, Option<Rc<SlabLease>>)> {
        if context.is_null() {
            return None;
        }
        // SAFETY: providers hand back only pointers that `context` made; slots are freed only by `drain`, when the
        // endpoint that has them is closed or no completion of it is ever read again, and the index behind the scratch
        // space is written only by `add`.
        let index = unsafe { (*context.cast::<Slot>()).index };
        match self.table.borrow().ops.get(index)?.as_ref()? {
            Op::Slab(lease) => Some((index, Some(Rc::clone(lease)))),
            Op::Send { .. } | Op::Transfer { .. } => Some((index, None)),
        }
    }

    /// Ends an operation.
    pub(super) fn take(&self, id: OpId) -> Option<Op> {
        let table = &mut *self.table.borrow_mut();
        let op = table.ops.get_mut(id)?.take()?;
        table.under_way -= usize::from(op.peer().is_some());
        table.free.push(id);
        Some(op)
    }

    /// Looks at an operation. `f` must not call this table.
    pub(super) fn with<T>(&self, id: OpId, f: impl FnOnce(&mut Op) -> T) -> Option<T> {
        self.table.borrow_mut().ops.get_mut(id)?.as_mut().map(f)
    }

    /// Takes away the completers of all transfers with a peer. Their callers are told; the memory stays held.
    pub(super) fn abandon(&self, gone: PeerId) -> Vec<Completer> {
        let table = &mut *self.table.borrow_mut();
        let mut completers = Vec::new();
        for op in table.ops.iter_mut().flatten() {
            if let Op::Transfer { peer, completer, .. } = op
                && *peer == gone
            {
                completers.extend(completer.take());
            }
        }
        completers
    }

    /// Number of operations other than posted slabs.
    pub(super) fn under_way(&self) -> usize {
        self.table.borrow().under_way
    }

    /// Peers of posted operations other than slabs, each with the entry of the address vector.
    pub(super) fn posted_to(&self) -> Vec<(PeerId, u64)> {
        let table = self.table.borrow();
        let ops = table.ops.iter().zip(&table.slots);
        ops.filter_map(|(op, slot)| Some((op.as_ref()?.peer()?, slot.posted_to?))).collect()
    }

    /// Takes out all operations after the provider has released them, or its endpoint is not used any more. The caller keeps
    /// what others may still read.
    pub(super) fn drain(&self) -> Vec<Op> {
        let table = &mut *self.table.borrow_mut();
        table.free.clear();
        table.under_way = 0;
        table.slots.clear();
        table.ops.drain(..).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BufferPool;

    fn send(peer: u64) -> Op {
        let memory = Rc::clone(BufferPool::new(1 << 20).alloc(8).expect("memory").memory());
        Op::Send { peer: PeerId(peer), context: 0, memory, len: 8, _unsent: Backlog::default().add(8) }
    }

    #[test]
    fn what_waits_was_posted_to_nobody_also_where_another_was_before() {
        let ops = Ops::default();
        let (first, second) = (ops.add(send(1)), ops.add(send(2)));
        ops.posted(first, 7);
        assert_eq!(ops.posted_to(), [(PeerId(1), 7)]);
        ops.take(first);
        assert_eq!(ops.add(send(3)), first, "the same place");
        ops.posted(second, 8);
        assert_eq!(ops.posted_to(), [(PeerId(2), 8)]);
        assert_eq!((ops.under_way(), ops.drain().len(), ops.under_way()), (2, 2, 0));
    }
}
