//! Received messages.

use crate::address::{Address, PeerId};
use crate::memory::Memory;
use core::any::Any;
use core::cell::RefCell;
use core::ops::Deref;
use std::rc::{Rc, Weak};

/// Who sent a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// A peer that was inserted.
    Peer(PeerId),
    /// Somebody else; the provider says where it is.
    Address(Address),
    /// Somebody else; the provider can't tell who.
    Unknown,
}

/// Slabs whose last message is gone, ready to be posted again.
pub(crate) type SlabReturns = RefCell<Vec<Rc<Memory>>>;

/// A posted receive slab. The endpoint and each message in it hold it; when all have let go it is returned.
pub(crate) struct SlabLease {
    memory: Rc<Memory>,
    returns: Weak<SlabReturns>,
}

impl SlabLease {
    pub(crate) fn new(memory: Rc<Memory>, returns: Weak<SlabReturns>) -> Rc<Self> {
        Rc::new(Self { memory, returns })
    }

    pub(crate) fn memory(&self) -> &Rc<Memory> {
        &self.memory
    }
}

impl Drop for SlabLease {
    fn drop(&mut self) {
        if let Some(returns) = self.returns.upgrade() {
            returns.borrow_mut().push(Rc::clone(&self.memory));
        }
    }
}

enum Data {
    Slab { lease: Rc<SlabLease>, offset: usize, len: usize },
    Owned { bytes: Vec<u8>, _hold: Option<Box<dyn Any>> },
}

/// One received message: bytes in a receive slab (not copied), or a copy. It occupies receive memory until dropped.
pub struct Message {
    source: Source,
    data: Data,
}

impl Message {
    pub(crate) fn slab(source: Source, lease: Rc<SlabLease>, offset: usize, len: usize) -> Self {
        Self { source, data: Data::Slab { lease, offset, len } }
    }

    pub(crate) fn owned(source: Source, bytes: Vec<u8>, hold: Option<Box<dyn Any>>) -> Self {
        Self { source, data: Data::Owned { bytes, _hold: hold } }
    }

    /// Who sent it.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.data {
            Data::Slab { lease, offset, len } => lease.memory.slice(*offset..*offset + *len),
            Data::Owned { bytes, .. } => bytes,
        }
    }
}

impl core::fmt::Debug for Message {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Message")
            .field("source", &self.source)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
