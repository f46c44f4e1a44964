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
    /// Somebody else; the provider says where it is. Boxed, because it comes once for each peer, and every message has
    /// room for it.
    Address(Box<Address>),
    /// Somebody else; the provider can't tell who.
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
    Nothing,
    Slab { lease: Rc<SlabLease>, offset: usize, len: usize },
    Owned { owned: Rc<Owned>, offset: usize, len: usize },
}

/// A copy of a message, with what is held as long as it is.
struct Owned {
    bytes: Vec<u8>,
    _hold: Option<Box<dyn Any>>,
}

/// One received message: bytes in a receive slab (not copied), or a copy. It occupies receive memory until dropped. An empty
/// one of nobody stands where one was taken from.
pub struct Message {
    source: Source,
    data: Data,
}

impl Message {
    pub(crate) fn slab(source: Source, lease: Rc<SlabLease>, offset: usize, len: usize) -> Self {
        Self { source, data: Data::Slab { lease, offset, len } }
    }

    pub(crate) fn owned(source: Source, bytes: Vec<u8>, hold: Option<Box<dyn Any>>) -> Self {
        let len = bytes.len();
        Self { source, data: Data::Owned { owned: Rc::new(Owned { bytes, _hold: hold }), offset: 0, len } }
    }

    /// Cuts the message at this position, at most its end, and returns what is behind it: of the same sender, in the same
    /// receive memory.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        let data = match &mut self.data {
            Data::Nothing => Data::Nothing,
            Data::Slab { lease, offset, len } => {
                let kept = at.min(*len);
                let rest = Data::Slab { lease: Rc::clone(lease), offset: *offset + kept, len: *len - kept };
                *len = kept;
                rest
            }
            Data::Owned { owned, offset, len } => {
                let kept = at.min(*len);
                let rest = Data::Owned { owned: Rc::clone(owned), offset: *offset + kept, len: *len - kept };
                *len = kept;
                rest
            }
        };
        Self { source: self.source.clone(), data }
    }

    /// Whoever sent it is not known any more.
    pub(crate) fn disown(&mut self) {
        self.source = Source::Unknown;
    }

    /// Who sent it.
    #[must_use]
    #[inline]
    pub fn source(&self) -> &Source {
        &self.source
    }
}

impl Default for Message {
    #[inline]
    fn default() -> Self {
        Self { source: Source::Unknown, data: Data::Nothing }
    }
}

impl Deref for Message {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.data {
            Data::Nothing => &[],
            Data::Slab { lease, offset, len } => lease.memory.slice(*offset..*offset + *len),
            Data::Owned { owned, offset, len } => {
                owned.bytes.get(*offset..*offset + *len).unwrap_or_default()
            }
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
        let mut first = Message::owned(Source::Peer(PeerId(3)), b"onetwothree".to_vec(), None);
        let mut second = first.split_off(3);
        let third = second.split_off(3);
        drop(first);
        assert_eq!(
            (&second[..], &third[..], third.source()),
            (&b"two"[..], &b"three"[..], &Source::Peer(PeerId(3)))
        );
        assert!(second.split_off(100).is_empty());
    }

    #[test]
    fn where_a_message_was_taken_from_nothing_is_left() {
        let mut place = Message::owned(Source::Peer(PeerId(3)), b"one".to_vec(), None);
        let taken = core::mem::take(&mut place);
        assert_eq!((&taken[..], taken.source()), (&b"one"[..], &Source::Peer(PeerId(3))));
        assert_eq!((&place[..], place.source()), (&b""[..], &Source::Unknown));
        assert!(place.split_off(1).is_empty());
    }
}
