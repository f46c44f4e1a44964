//! Received messages.

use crate::address::{Address, PeerId};
use crate::memory::Memory;
use core::any::Any;
use core::cell::RefCell;
use core::ops::Deref;
use std::rc::{Rc, Weak};

/// The sender of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// A peer that was inserted.
    Peer(PeerId),
    /// Another sender, of this address. Boxed, because it comes once for each peer and every message has room
    /// for it.
    Address(Box<Address>),
    /// Another sender, which the provider can't identify.
    Unknown,
}

impl Source {
    /// The peer, where it is one that was inserted.
    #[must_use]
    #[inline]
    pub fn peer(&self) -> Option<PeerId> {
        match self {
            Self::Peer(peer) => Some(*peer),
            Self::Address(_) | Self::Unknown => None,
        }
    }
}

/// Slabs without messages, ready to be posted again.
pub(crate) type SlabReturns = RefCell<Vec<Rc<Memory>>>;

/// A posted receive slab. The endpoint and each message in it hold it. It is returned when none of them holds it any
/// more.
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

/// The memory that a message is in.
#[derive(Clone)]
enum Storage {
    Nowhere,
    Slab(Rc<SlabLease>),
    Owned(Rc<Owned>),
}

/// A copy of a message, with what is held as long as it is.
struct Owned {
    bytes: Vec<u8>,
    _hold: Option<Box<dyn Any>>,
}

/// One received message: bytes in a receive slab, or a copy. It occupies receive memory until it is dropped. The
/// default is an empty message of an unknown sender.
pub struct Message {
    source: Source,
    storage: Storage,
    offset: usize,
    len: usize,
}

impl Message {
    pub(crate) fn slab(source: Source, lease: Rc<SlabLease>, offset: usize, len: usize) -> Self {
        Self { source, storage: Storage::Slab(lease), offset, len }
    }

    pub(crate) fn owned(source: Source, bytes: Vec<u8>, hold: Option<Box<dyn Any>>) -> Self {
        let len = bytes.len();
        Self { source, storage: Storage::Owned(Rc::new(Owned { bytes, _hold: hold })), offset: 0, len }
    }

    /// Splits the message at this position, at most its end, and returns the part before it, of the same sender
    /// and in the same receive memory.
    #[must_use]
    #[inline]
    pub fn split_to(&mut self, at: usize) -> Self {
        let (offset, len) = (self.offset, at.min(self.len));
        self.offset += len;
        self.len -= len;
        Self { source: self.source.clone(), storage: self.storage.clone(), offset, len }
    }

    /// Its length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its sender is no longer known.
    pub(crate) fn disown(&mut self) {
        self.source = Source::Unknown;
    }

    /// The sender.
    #[must_use]
    #[inline]
    pub fn source(&self) -> &Source {
        &self.source
    }
}

impl Default for Message {
    #[inline]
    fn default() -> Self {
        Self { source: Source::Unknown, storage: Storage::Nowhere, offset: 0, len: 0 }
    }
}

impl Deref for Message {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.storage {
            Storage::Nowhere => &[],
            Storage::Slab(lease) => lease.memory.slice(self.offset..self.offset + self.len),
            Storage::Owned(owned) => owned.bytes.get(self.offset..self.offset + self.len).unwrap_or_default(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_into_parts_that_live_as_long_as_each_of_them() {
        let mut third = Message::owned(Source::Peer(PeerId(3)), b"onetwothree".to_vec(), None);
        let first = third.split_to(3);
        let second = third.split_to(3);
        drop(first);
        assert_eq!(
            (&second[..], &third[..], second.source()),
            (&b"two"[..], &b"three"[..], &Source::Peer(PeerId(3)))
        );
        let all = third.split_to(100);
        assert_eq!((&all[..], third.len()), (&b"three"[..], 0));
    }

    #[test]
    fn where_a_message_was_taken_from_nothing_is_left() {
        let mut message = Message::owned(Source::Peer(PeerId(3)), b"one".to_vec(), None);
        let taken = core::mem::take(&mut message);
        assert_eq!((&taken[..], taken.source()), (&b"one"[..], &Source::Peer(PeerId(3))));
        assert_eq!((&message[..], message.source()), (&b""[..], &Source::Unknown));
        assert!(message.split_to(1).is_empty());
    }
}
