//! One direction of a channel: a ring of slots with one writer and one reader, in memory that both share.
//!
//! A slot is two cache lines. Its first word is the slot's number among all ever written, and the length of the message
//! that begins in it. That word is written last. So a reader that waits looks at one word, and the cache line that
//! brings it brings the begin of the message. No word is written by both sides, so neither side can block the other,
//! wherever it stops.
//!
//! The other side may write anything at any time: a reader copies first and checks the copy then.

use crate::libfabric::shared::{Longs, Shared};
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use std::rc::Rc;

/// Slots of a ring: as many small messages as a client may have under way.
pub(super) const SLOTS: u32 = 128;

/// Long words of a slot: its head, and what it holds of a message.
pub(super) const SLOT_LONGS: usize = 16;

/// Bytes of a message in one slot.
pub(super) const SLOT_BYTES: usize = (SLOT_LONGS - 1) * 8;

/// Slots of the longest message: several fit in a ring.
const MESSAGE_SLOTS: u32 = 34;

/// Longest message in bytes: requests that share a message have 4 KiB.
pub(in crate::libfabric) const MESSAGE_MAX: usize = MESSAGE_SLOTS as usize * SLOT_BYTES;

/// Slots that a reader has taken before it says so: saying it takes a line away from the writer.
const TOLD_EVERY: u32 = SLOTS / 4;

const _: () = assert!(SLOTS.is_power_of_two() && SLOTS - TOLD_EVERY >= 2 * MESSAGE_SLOTS);

/// Long words of a ring: the slots, and a pair of lines with the number of those that the reader has taken.
pub(super) const RING_LONGS: usize = SLOTS as usize * SLOT_LONGS + SLOT_LONGS;

/// The other side has broken the protocol of the ring: nothing that it wrote is valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct InvalidRing;

/// Where a ring is.
struct RingMemory(Longs<RING_LONGS>);

impl RingMemory {
    /// The ring that begins at this long word.
    fn new(shared: Rc<Shared>, at: usize) -> Self {
        Self(Longs::new(shared, at))
    }

    #[inline]
    fn slot(&self, number: u32) -> &[AtomicU64; SLOT_LONGS] {
        let (slots, _) = self.0.as_chunks::<SLOT_LONGS>();
        &slots[1 + (number % SLOTS) as usize]
    }

    #[inline]
    fn taken(&self) -> &AtomicU64 {
        &self.0[0]
    }
}

/// The first word of a slot: which one it is, and the length of the message that begins there, in its upper half.
fn head(number: u32, len: usize) -> u64 {
    // Memory is zero at first: no slot that was written has a zero there in its first round.
    u64::from(number.wrapping_add(1)) | (len as u64) << 32
}

/// Slots that a message takes. Nearly each takes one.
#[inline]
fn slots_for(len: usize) -> u32 {
    if len <= SLOT_BYTES { 1 } else { u32::try_from(len.div_ceil(SLOT_BYTES)).unwrap_or(u32::MAX) }
}

/// The side of a ring that writes.
pub(super) struct Writer {
    place: RingMemory,
    /// Number of the next slot.
    next: Cell<u32>,
    /// Slots that the reader is known to have taken.
    taken: Cell<u32>,
}

impl Writer {
    pub(super) fn new(shared: Rc<Shared>, at: usize) -> Self {
        Self { place: RingMemory::new(shared, at), next: Cell::new(0), taken: Cell::new(0) }
    }

    fn has_room(&self, slots: u32) -> Result<bool, InvalidRing> {
        let fits = |taken: u32| self.next.get().wrapping_sub(taken) + slots <= SLOTS;
        if fits(self.taken.get()) {
            return Ok(true);
        }
        let taken = u32::try_from(self.place.taken().load(Ordering::Acquire)).map_err(|_| InvalidRing)?;
        if self.next.get().wrapping_sub(taken) > SLOTS {
            return Err(InvalidRing);
        }
        self.taken.set(taken);
        Ok(fits(taken))
    }

    /// Writes a slot's part of a message, the end first. A reader polls the line in which the slot begins. It would
    /// take that line away once more if anything else were written between the line's first word and its head.
    #[inline]
    fn fill(longs: &[AtomicU64; SLOT_LONGS - 1], bytes: &[u8]) {
        let (whole, rest) = bytes.as_chunks::<8>();
        if let Some(long) = longs.get(whole.len()).filter(|_| !rest.is_empty()) {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            long.store(u64::from_le_bytes(last), Ordering::Relaxed);
        }
        // By fours, for which there is no loop.
        let (fours, ones) = whole.as_chunks::<4>();
        let (groups, _) = longs.as_chunks::<4>();
        let behind = longs.get(4 * fours.len()..).unwrap_or_default();
        for (long, word) in behind.iter().zip(ones).rev() {
            long.store(u64::from_le_bytes(*word), Ordering::Relaxed);
        }
        for (group, words) in groups.iter().zip(fours).rev() {
            for (long, word) in group.iter().zip(words).rev() {
                long.store(u64::from_le_bytes(*word), Ordering::Relaxed);
            }
        }
    }

    /// Writes a message of at most [`MESSAGE_MAX`] bytes. Returns whether there was room.
    #[inline(always)]
    pub(super) fn put(&self, message: &[u8]) -> Result<bool, InvalidRing> {
        let slots = slots_for(message.len());
        if message.len() > MESSAGE_MAX || !self.has_room(slots)? {
            return Ok(false);
        }
        let first = self.next.get();
        let (begin, rest) = message.split_at(message.len().min(SLOT_BYTES));
        for (number, bytes) in (1..).zip(rest.chunks(SLOT_BYTES)) {
            let number = first.wrapping_add(number);
            let [slot, longs @ ..] = self.place.slot(number);
            Self::fill(longs, bytes);
            // So that a slot never has the number that it had 2^32 slots ago.
            slot.store(head(number, 0), Ordering::Relaxed);
        }
        let [slot, longs @ ..] = self.place.slot(first);
        Self::fill(longs, begin);
        slot.store(head(first, message.len()), Ordering::Release);
        self.next.set(first.wrapping_add(slots));
        Ok(true)
    }
}

/// The side of a ring that reads.
pub(super) struct Reader {
    place: RingMemory,
    /// Number of the slot in which the next message begins.
    next: Cell<u32>,
    /// What the writer was told last of how many were taken.
    told: Cell<u32>,
}

impl Reader {
    pub(super) fn new(shared: Rc<Shared>, at: usize) -> Self {
        Self { place: RingMemory::new(shared, at), next: Cell::new(0), told: Cell::new(0) }
    }

    /// Length of the next message, if one has come.
    #[inline]
    pub(super) fn peek(&self) -> Result<Option<usize>, InvalidRing> {
        let next = self.next.get();
        let head = self.place.slot(next)[0].load(Ordering::Acquire);
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        if head as u32 != next.wrapping_add(1) {
            return Ok(None);
        }
        let len = usize::try_from(head >> 32).map_err(|_| InvalidRing)?;
        if len > MESSAGE_MAX { Err(InvalidRing) } else { Ok(Some(len)) }
    }

    /// Copies the message that has come, of this length, to the beginning of `into`, which has room for what a slot holds. What
    /// is behind the message there is changed, too: a slot is copied as a whole, for which there is no loop.
    #[inline]
    pub(super) fn take(&self, into: &mut [u8], len: usize) {
        let (first, slots) = (self.next.get(), slots_for(len));
        if let Some((begin, rest)) = into.split_first_chunk_mut::<SLOT_BYTES>() {
            self.copy(first, begin);
            if slots > 1 {
                self.take_rest(first, &mut rest[..len.saturating_sub(SLOT_BYTES)]);
            }
        }
        let next = first.wrapping_add(slots);
        self.next.set(next);
        if next.wrapping_sub(self.told.get()) >= TOLD_EVERY {
            self.told.set(next);
            self.place.taken().store(next.into(), Ordering::Release);
        }
    }

    /// Copies all that a slot holds.
    #[inline]
    fn copy(&self, number: u32, into: &mut [u8; SLOT_BYTES]) {
        let [_, longs @ ..] = self.place.slot(number);
        let (places, _) = into.as_chunks_mut::<8>();
        for (place, long) in places.iter_mut().zip(longs) {
            *place = long.load(Ordering::Relaxed).to_le_bytes();
        }
    }

    /// Copies what stands in the slots behind the first one.
    fn take_rest(&self, first: u32, into: &mut [u8]) {
        for (number, bytes) in (1..).zip(into.chunks_mut(SLOT_BYTES)) {
            let mut whole = [0; SLOT_BYTES];
            self.copy(first.wrapping_add(number), &mut whole);
            bytes.copy_from_slice(&whole[..bytes.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn shared() -> Rc<Shared> {
        let file = rustix::fs::memfd_create("weir-test", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
        let len = (RING_LONGS * 8).next_multiple_of(4096);
        rustix::fs::ftruncate(&file, len as u64).expect("memory");
        Rc::new(Shared::map(&file, len).expect("mapped"))
    }

    /// A ring whose next slot has this number.
    fn ring(number: u32) -> (Writer, Reader) {
        let shared = shared();
        let (writer, reader) = (Writer::new(Rc::clone(&shared), 0), Reader::new(Rc::clone(&shared), 0));
        for counter in [&writer.next, &writer.taken, &reader.next, &reader.told] {
            counter.set(number);
        }
        writer.place.taken().store(number.into(), Ordering::Relaxed);
        (writer, reader)
    }

    fn take(reader: &Reader) -> Option<Vec<u8>> {
        let len = reader.peek().expect("no garbage")?;
        let mut bytes = vec![0; len.max(SLOT_BYTES)];
        reader.take(&mut bytes, len);
        bytes.truncate(len);
        Some(bytes)
    }

    proptest! {
        #[test]
        fn messages_come_out_as_they_went_in_also_where_numbers_begin_again(
            start in prop_oneof![Just(0u32), Just(u32::MAX - 300), any::<u32>()],
            steps in prop::collection::vec(prop::option::of(prop_oneof![0..300usize, 0..=MESSAGE_MAX]), 1..600),
        ) {
            let (writer, reader) = ring(start);
            let mut sent: VecDeque<Vec<u8>> = VecDeque::new();
            for (number, step) in (0u8..=255).cycle().zip(steps) {
                if let Some(len) = step {
                    let message: Vec<u8> = (0..len).map(|at| number.wrapping_add(at.to_le_bytes()[0])).collect();
                    if writer.put(&message).expect("no garbage") {
                        sent.push_back(message);
                    } else {
                        let taken: u32 = sent.iter().map(|message| slots_for(message.len())).sum();
                        prop_assert!(taken + slots_for(len) + TOLD_EVERY > SLOTS, "there was room");
                    }
                } else {
                    prop_assert_eq!(take(&reader), sent.pop_front());
                }
            }
            while let Some(message) = sent.pop_front() {
                prop_assert_eq!(take(&reader), Some(message));
            }
            prop_assert_eq!(take(&reader), None);
        }

        #[test]
        fn whatever_the_other_side_writes_is_taken_within_bounds_or_refused(
            longs in prop::collection::vec((0..RING_LONGS, any::<u64>(), any::<bool>()), 0..200),
        ) {
            let (writer, reader) = ring(0);
            for (at, value, fits) in longs {
                // Half of them look like the head of the message that is waited for.
                let value = if fits { value << 32 | u64::from(reader.next.get().wrapping_add(1)) } else { value };
                reader.place.0[at].store(value, Ordering::Relaxed);
                if let Ok(Some(len)) = reader.peek() {
                    prop_assert!(len <= MESSAGE_MAX);
                    reader.take(&mut vec![0; len.max(SLOT_BYTES)], len);
                }
                let _ = writer.put(&[1; 500]);
            }
        }
    }

    #[test]
    fn a_reader_that_claims_to_have_taken_what_was_never_written_is_found_out() {
        let (writer, _reader) = ring(0);
        while writer.put(&[1; 100]) == Ok(true) {}
        assert_eq!(writer.put(&[1; 100]), Ok(false), "it has taken nothing");
        for lie in [u64::MAX, 1 << 32, u64::from(SLOTS) + 1, 1 << 31] {
            writer.place.taken().store(lie, Ordering::Relaxed);
            assert_eq!(writer.put(&[1; 100]), Err(InvalidRing), "{lie}");
        }
    }

    #[test]
    fn a_length_that_no_message_has_is_garbage() {
        let (writer, reader) = ring(0);
        writer.place.slot(0)[0].store(head(0, MESSAGE_MAX + 1), Ordering::Relaxed);
        assert_eq!(reader.peek(), Err(InvalidRing));
        assert_eq!(writer.put(&[0; MESSAGE_MAX + 1]), Ok(false));
    }
}
