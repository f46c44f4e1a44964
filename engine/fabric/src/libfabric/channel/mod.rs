//! Channels: a path for small messages between two endpoints of one node.
//!
//! Providers within a node have one queue for each receiver, which all its senders fill: each takes a slot, a
//! buffer and a lock there. Two endpoints that exchange messages all the time get a channel beside that. It is
//! memory of these two, with a ring for each direction that has one writer and one reader. A message then costs
//! what it costs to move its cache lines between two cores, and a process that is killed while writing one harms
//! only itself.
//!
//! An endpoint offers a channel to a peer that it has sent some messages to, through the socket of the peer's
//! doorbell. Until the peer has accepted it, messages go through the provider. So do large messages, those that
//! find no room in the ring, and all transfers. There is no order between the two paths.

mod flow;
#[cfg(feature = "fuzz")]
pub mod foreign;
mod offer;
mod peer_channel;
mod ring;
mod table;

pub(super) use offer::{Offer, receive, send};
pub(super) use peer_channel::PeerChannel;
pub(super) use ring::MESSAGE_MAX;
pub(super) use table::Channels;

use super::shared::{PAGE, Shared};
use crate::PeerId;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use ring::{InvalidRing, RING_LONGS, Reader, Writer};
use rustix::fs::{MemfdFlags, SealFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Which form of channels this is; an endpoint is offered none of a form that it doesn't have.
pub(super) const VERSION: u32 = 1;

/// The word with the state of the channel. Behind it, on lines of their own, come the rings: first the one that the
/// offering side writes.
const STATE: usize = 0;

/// Long words before the first ring: a pair of lines.
const HEAD_LONGS: usize = 16;

/// Length of a channel's memory in bytes.
const BYTES: usize = ((HEAD_LONGS + 2 * RING_LONGS) * 8).next_multiple_of(PAGE);

/// The peer has not answered yet.
const OFFERED: u32 = 0;

/// Both sides use it.
const ACCEPTED: u32 = 1;

/// One side doesn't use it, or not any more.
const CLOSED: u32 = 2;

/// No process can make the memory shorter, which would end others that touch it.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The kind of file system that memory for channels is in (`TMPFS_MAGIC` of `statfs(2)`). Its pages exist from the
/// first access on. A process could give huge pages back and leave a hole that nothing fills; a process that reads the
/// hole dies.
const PLAIN: u64 = 0x0102_1994;

/// One side of a channel.
pub(super) struct Channel {
    shared: Rc<Shared>,
    peer: PeerId,
    writer: Writer,
    reader: Reader,
    /// The other side has broken the rules: it may say what it wants of the state.
    is_broken: Cell<bool>,
    /// When it was last used, by the count of its table.
    used: Cell<u32>,
}

impl Channel {
    /// `own` is the ring that this side writes, `other` the one that it reads.
    fn new(shared: Shared, peer: PeerId, own: usize, other: usize) -> Self {
        let shared = Rc::new(shared);
        let at = |ring: usize| HEAD_LONGS + ring * RING_LONGS;
        let writer = Writer::new(Rc::clone(&shared), at(own));
        let reader = Reader::new(Rc::clone(&shared), at(other));
        Self { shared, peer, writer, reader, is_broken: Cell::new(false), used: Cell::new(0) }
    }

    /// A new channel for a peer, with the memory that it is to be given.
    fn make(peer: PeerId) -> io::Result<(Self, OwnedFd)> {
        let memory =
            rustix::fs::memfd_create("weir-channel", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&memory, BYTES as u64)?;
        rustix::fs::fcntl_add_seals(&memory, SEALS)?;
        let shared = Shared::map(&memory, BYTES)?;
        Ok((Self::new(shared, peer, 0, 1), memory))
    }

    /// The other side of a channel that a peer has offered. Memory that its owner could take away is none.
    fn of_offer(peer: PeerId, memory: &OwnedFd) -> io::Result<Self> {
        let sealed = rustix::fs::fcntl_get_seals(memory)?.contains(SealFlags::SHRINK);
        let long = rustix::fs::fstat(memory)?.st_size >= i64::try_from(BYTES).unwrap_or(i64::MAX);
        let plain = u64::try_from(rustix::fs::fstatfs(memory)?.f_type).is_ok_and(|kind| kind == PLAIN);
        if !sealed || !long || !plain {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no memory for a channel"));
        }
        Ok(Self::new(Shared::map(memory, BYTES)?, peer, 1, 0))
    }

    fn state(&self) -> u32 {
        self.shared.word(STATE).load(Ordering::Acquire)
    }

    /// Whether the other side uses it.
    #[inline]
    fn is_open(&self) -> bool {
        self.state() == ACCEPTED && !self.is_broken.get()
    }

    fn is_closed(&self) -> bool {
        self.is_broken.get() || !matches!(self.state(), OFFERED | ACCEPTED)
    }

    /// Whether nothing more comes through it: it is closed, and what was in it has been taken.
    fn is_over(&self) -> bool {
        self.is_closed() && self.reader.peek() == Ok(None)
    }

    /// Accepts it. Returns whether the other side still offers it.
    fn accept(&self) -> bool {
        let state = self.shared.word(STATE);
        state.compare_exchange(OFFERED, ACCEPTED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Tells the other side that nothing comes this way any more, and that nothing is taken.
    fn close(&self) {
        self.shared.word(STATE).store(CLOSED, Ordering::Release);
    }

    /// The other side has broken the rules.
    fn give_up(&self) {
        tracing::warn!("a peer within the node doesn't keep to the rules of channels; its channel is closed");
        self.is_broken.set(true);
        self.close();
    }

    /// Writes a message, where there is room for it. Not, where the other side has broken the rules. `turn` is the table's.
    #[inline]
    pub(super) fn put(&self, message: &[u8], turn: u32) -> bool {
        self.used.set(turn);
        self.writer.put(message).unwrap_or_else(|InvalidRing| {
            self.give_up();
            false
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_which_can_run_out_are_no_memory_for_a_channel() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        // Not every system has them.
        let Ok(memory) = rustix::fs::memfd_create("weir-test", flags) else { return };
        let len = rustix::fs::fstat(&memory).expect("a file").st_blksize.unsigned_abs();
        rustix::fs::ftruncate(&memory, len).expect("memory");
        rustix::fs::fcntl_add_seals(&memory, SEALS).expect("sealed");
        let refused = Channel::of_offer(PeerId(0), &memory).err().map(|error| error.kind());
        assert_eq!(refused, Some(io::ErrorKind::InvalidData));
    }
}
