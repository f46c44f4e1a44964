//! A channel whose other side a fuzzer controls.

use super::ring::{RING_LONGS, SLOT_LONGS, SLOTS};
use super::table::{Channels, Look};
use super::{BYTES, Channel, HEAD_LONGS, offer, ring};
use crate::libfabric::doorbell;
use crate::libfabric::shared::Shared;
use crate::{Message, PeerId};
use core::sync::atomic::Ordering;
use std::io;
use std::rc::Rc;
use weir_runtime::Instant;

/// Longest message that goes through a channel, in bytes.
pub const MESSAGE_MAX: usize = ring::MESSAGE_MAX;

/// Long words of a channel's memory, which both sides may write.
pub const LONGS: usize = BYTES / size_of::<u64>();

/// Bytes of a message that one slot holds.
pub const SLOT_BYTES: usize = ring::SLOT_BYTES;

/// The name in what a process has sent to a doorbell, if that offers a channel in a name that the process can have made.
#[must_use]
pub fn offered(datagram: &[u8], process: u32) -> Option<&str> {
    offer::name_in(datagram).filter(|name| doorbell::can_be_of(name, process))
}

/// The long word with which a slot begins that the other side writes.
#[must_use]
pub const fn slot(number: u32) -> usize {
    HEAD_LONGS + SLOT_LONGS + (number % SLOTS) as usize * SLOT_LONGS
}

/// The long word in which the other side says how many slots it has taken.
#[must_use]
pub const fn told() -> usize {
    HEAD_LONGS + RING_LONGS
}

/// What a look at a channel has brought.
#[derive(Debug)]
pub enum ChannelEvent {
    /// Nothing has come.
    Nothing,
    /// A message.
    Message(Message),
    /// The other side doesn't keep to the rules; the channel is closed.
    Broken,
}

/// One side of a channel that another endpoint has offered, and that endpoint's memory of it.
pub struct ForeignChannel {
    channels: Channels,
    channel: Rc<Channel>,
    memory: Shared,
}

impl ForeignChannel {
    /// Accepts a channel that the other side has offered.
    ///
    /// # Errors
    /// When the system has no memory for it.
    pub fn new() -> io::Result<Self> {
        let (_, memory) = Channel::make(PeerId(0))?;
        let channel = Rc::new(Channel::of_offer(PeerId(0), &memory)?);
        channel.accept();
        let channels = Channels::new(Instant::default());
        channels.add(Rc::clone(&channel));
        Ok(Self { channels, channel, memory: Shared::map(&memory, BYTES)? })
    }

    /// What the other side reads in a long word.
    ///
    /// # Panics
    /// When there is none of that number: they are below [`LONGS`].
    #[must_use]
    pub fn get(&self, at: usize) -> u64 {
        self.memory.longs::<1>(at)[0].load(Ordering::Acquire)
    }

    /// The other side writes a long word.
    ///
    /// # Panics
    /// As [`ForeignChannel::get`].
    pub fn set(&self, at: usize, value: u64) {
        self.memory.longs::<1>(at)[0].store(value, Ordering::Release);
    }

    /// This side looks for a message.
    #[must_use]
    pub fn take(&self) -> ChannelEvent {
        match self.channels.look_at(&mut 0) {
            Look::Nothing => ChannelEvent::Nothing,
            Look::Came(message) => ChannelEvent::Message(message),
            Look::Broken(channel) => {
                channel.give_up();
                ChannelEvent::Broken
            }
        }
    }

    /// This side sends a message, if there is room for it.
    #[must_use]
    pub fn put(&self, message: &[u8]) -> bool {
        self.channel.put(message, 0)
    }

    /// Whether this side would send anything.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.channel.is_open()
    }

    /// Whether this side would leave the channel.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.channel.is_over()
    }
}

impl core::fmt::Debug for ForeignChannel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ForeignChannel").field("is_open", &self.is_open()).finish_non_exhaustive()
    }
}
