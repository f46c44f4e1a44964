//! The channels of an endpoint, and the memory that what comes through them is copied to.

use super::Channel;
use super::ring::{InvalidRing, MESSAGE_MAX, SLOT_BYTES};
use crate::BufferPool;
use crate::endpoint::{Message, SlabLease, SlabReturns, Source};
use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::rc::Rc;
use weir_runtime::Instant;

/// Most channels of an endpoint: each is looked at every time, which is a word of the processor's cache. Peers beyond that
/// are reached through the provider.
pub(super) const CHANNELS_MAX: usize = 64;

/// Shortest turn.
const TURN: Duration = Duration::from_secs(1);

/// Turns without a message after which a channel makes place for another one.
const IDLE_TURNS: u32 = 8;

/// Length of a slab that messages are copied to.
const SLAB_BYTES: usize = 64 << 10;

/// Most of them: where requests hold all of these, messages are copied to memory of their own.
const SLABS_MAX: usize = 8;

/// Where messages are copied to from the rings. Memory that is not held any more serves again at once, while the
/// processor's cache has it.
struct Copies {
    pool: BufferPool,
    returns: Rc<SlabReturns>,
    slabs: usize,
    slab: Option<Rc<SlabLease>>,
    used: usize,
}

impl Copies {
    fn new() -> Self {
        let pool = BufferPool::new(SLABS_MAX * SLAB_BYTES);
        Self { pool, returns: Rc::default(), slabs: 0, slab: None, used: 0 }
    }

    /// A slab that is not held.
    fn next_slab(&mut self) -> Option<Rc<SlabLease>> {
        // The one before comes back when the last message in it is gone.
        self.slab = None;
        let returned = self.returns.borrow_mut().pop();
        let memory = match returned {
            Some(memory) => memory,
            None if self.slabs < SLABS_MAX => {
                let memory = Rc::clone(self.pool.alloc(SLAB_BYTES).ok()?.memory());
                self.slabs += 1;
                memory
            }
            None => return None,
        };
        Some(SlabLease::new(memory, Rc::downgrade(&self.returns)))
    }

    /// Has `fill` write a message of this length, of this sender, to the beginning of room for no less than what a slot holds.
    #[inline]
    fn message(&mut self, source: Source, len: usize, fill: impl FnOnce(&mut [u8])) -> Message {
        let room = len.max(SLOT_BYTES);
        match &self.slab {
            Some(slab) if Rc::strong_count(slab) == 1 => self.used = 0,
            Some(slab) if self.used + room <= slab.memory().len() => {}
            _ => (self.slab, self.used) = (self.next_slab(), 0),
        }
        let Some(slab) = &self.slab else { return Self::message_of_its_own(source, len, fill) };
        let at = self.used;
        // The next message's words are words of the processor's, too.
        self.used += room.next_multiple_of(8);
        slab.memory().fill(at..at + room, fill);
        Message::slab(source, Rc::clone(slab), at, len)
    }

    #[cold]
    fn message_of_its_own(source: Source, len: usize, fill: impl FnOnce(&mut [u8])) -> Message {
        let mut bytes = vec![0; len.max(SLOT_BYTES)];
        fill(&mut bytes);
        bytes.truncate(len);
        Message::owned(source, bytes, None)
    }
}

/// What a look at a channel has brought.
pub(super) enum Look {
    /// Nothing has come.
    Nothing,
    /// A message.
    Came(Message),
    /// What it has can't be read; it is to be left.
    Broken(Rc<Channel>),
}

/// The channels of an endpoint.
pub(in crate::libfabric) struct Channels {
    open: RefCell<Vec<Rc<Channel>>>,
    /// How many those are: asked at every look.
    count: Cell<usize>,
    /// Which one is looked at first the next time.
    first: Cell<usize>,
    /// Looks so far.
    looks: Cell<u32>,
    turn: Cell<u32>,
    /// When the turn began.
    began: Cell<Instant>,
    copies: RefCell<Copies>,
}

const _: () = assert!(SLAB_BYTES >= 8 * MESSAGE_MAX);

impl Channels {
    pub(in crate::libfabric) fn new(now: Instant) -> Self {
        Self {
            open: RefCell::default(),
            count: Cell::new(0),
            first: Cell::new(0),
            looks: Cell::new(0),
            turn: Cell::new(0),
            began: Cell::new(now),
            copies: RefCell::new(Copies::new()),
        }
    }

    /// How many there are.
    #[inline]
    pub(in crate::libfabric) fn count(&self) -> usize {
        self.count.get()
    }

    /// The turn that it is; one that is used now was used in this turn.
    #[inline]
    pub(in crate::libfabric) fn turn(&self) -> u32 {
        self.turn.get()
    }

    /// Counts a look.
    #[inline]
    pub(super) fn look(&self) -> u32 {
        self.looks.set(self.looks.get().wrapping_add(1));
        self.looks.get()
    }

    /// Begins another turn, if this one has lasted long enough.
    pub(super) fn pass(&self, now: Instant) {
        if now - self.began.get() >= TURN {
            self.began.set(now);
            self.turn.set(self.turn.get().wrapping_add(1));
        }
    }

    /// Which channel is looked at first.
    #[inline]
    pub(super) fn first(&self) -> usize {
        self.first.get()
    }

    /// The next look begins with this one.
    #[inline]
    pub(super) fn begin_with(&self, at: usize) {
        self.first.set(at);
    }

    pub(super) fn is_full(&self) -> bool {
        self.count() >= CHANNELS_MAX
    }

    pub(super) fn add(&self, channel: Rc<Channel>) {
        channel.used.set(self.turn.get());
        self.open.borrow_mut().push(channel);
        self.count.set(self.count.get() + 1);
    }

    /// Takes out those that this is true of.
    pub(super) fn take(&self, gone: impl Fn(&Channel) -> bool) -> Vec<Rc<Channel>> {
        let mut open = self.open.borrow_mut();
        let taken = open.extract_if(.., |channel| gone(channel)).collect();
        self.count.set(open.len());
        taken
    }

    /// The channel that has been idle longest, if that is long enough for another one to take its place.
    pub(super) fn idle(&self) -> Option<Rc<Channel>> {
        let idle = |channel: &Channel| self.turn.get().wrapping_sub(channel.used.get());
        let open = self.open.borrow();
        open.iter().filter(|channel| idle(channel) >= IDLE_TURNS).max_by_key(|channel| idle(channel)).cloned()
    }

    /// Whether there is something to take, or to leave.
    #[inline]
    pub(super) fn have_something(&self) -> bool {
        self.open.borrow().iter().any(|channel| channel.reader.peek() != Ok(None))
    }

    /// Looks at one of them, the first one where there are not so many. `next` is then the one behind it.
    #[inline]
    pub(super) fn look_at(&self, next: &mut usize) -> Look {
        let open = self.open.borrow();
        let at = if *next < open.len() { *next } else { 0 };
        *next = at + 1;
        open.get(at).map_or(Look::Nothing, |channel| self.look_into(channel))
    }

    /// Looks at a channel, which need not be one of these any more.
    #[inline(always)]
    pub(super) fn look_into(&self, channel: &Rc<Channel>) -> Look {
        match channel.reader.peek() {
            Ok(None) => Look::Nothing,
            Ok(Some(len)) => Look::Came(self.take_from(channel, len)),
            Err(InvalidRing) => Look::Broken(Rc::clone(channel)),
        }
    }

    /// Takes the message that has come through a channel.
    #[inline(always)]
    fn take_from(&self, channel: &Channel, len: usize) -> Message {
        channel.used.set(self.turn.get());
        let (source, mut copies) = (Source::Peer(channel.peer), self.copies.borrow_mut());
        copies.message(source, len, |bytes| channel.reader.take(bytes, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(copies: &mut Copies, number: u8, len: usize) -> Message {
        copies.message(Source::Unknown, len, |bytes| bytes[..len].fill(number))
    }

    #[test]
    fn memory_serves_again_when_nobody_holds_what_is_in_it() {
        let mut copies = Copies::new();
        for number in 0..=255 {
            let one = message(&mut copies, number, 3000);
            assert_eq!(&one[..], [number; 3000]);
        }
        assert_eq!(copies.slabs, 1);
    }

    #[test]
    fn memory_that_there_was_none_of_is_asked_for_again() {
        let mut copies = Copies::new();
        let all = copies.pool.alloc(SLABS_MAX * SLAB_BYTES).expect("memory");
        for number in 0..=255 {
            assert_eq!(&message(&mut copies, number, 3000)[..], [number; 3000]);
        }
        drop(all);
        message(&mut copies, 0, 3000);
        assert!(copies.slab.is_some() && copies.slabs == 1, "{} slabs", copies.slabs);
    }

    #[test]
    fn messages_that_are_held_stay_as_they_are_however_many_they_become() {
        let mut copies = Copies::new();
        let held: Vec<_> = (0..=255).map(|number| message(&mut copies, number, MESSAGE_MAX)).collect();
        assert_eq!(copies.slabs, SLABS_MAX);
        for (number, one) in (0..=255).zip(&held) {
            assert_eq!(&one[..], [number; MESSAGE_MAX]);
        }
        drop(held);
        for number in 0..=255 {
            message(&mut copies, number, MESSAGE_MAX);
        }
        assert_eq!((copies.slabs, copies.returns.borrow().len()), (SLABS_MAX, SLABS_MAX - 1));
    }
}
