//! Sorted entries of one node in compact form: one heap of bytes, a table of entries, a common prefix.

mod search;

use search::FIRST_BYTES;
pub(super) use search::Position;

use crate::format::codec::shared_len;
use crate::format::edit_buffer::SortedEntries;
use crate::format::node::NODE_MAX;
use core::cmp::Ordering;
use core::ops::Range;
use weir_media::prefetch;

/// Bytes that an entry takes beyond its key suffix and value: two lengths in the heap and a position. On the device
/// it takes at most as much: three varints below 2^14.
pub(super) const ENTRY_OVERHEAD: usize = 6;

/// Least room for new entries when the heap grows, in bytes: some ten small ones.
const HEAP_MIN: usize = 512;

/// Bytes that are prefetched where entries are about to be read: those of a dkey with a small value take some 180, which
/// are in up to four lines of the processor's cache.
const NEAR: usize = 256;

/// As [`HEAP_MIN`] for the table, in entries.
const SLOTS_MIN: usize = 8;

/// How many slots to grow by: a quarter. Nodes are many, and doubling would waste a third of the index memory; growing by
/// less copies a node more often than it is split.
const fn more_slots(len: usize) -> usize {
    if len / 4 > SLOTS_MIN { len / 4 } else { SLOTS_MIN }
}

/// How many bytes the heap is to grow by: a half, so that it is copied twice between two splits, but not beyond what a node
/// has.
const fn more_heap(len: usize) -> usize {
    let left = NODE_MAX.saturating_sub(len);
    let wanted = if left > 0 && left < len / 2 { left } else { len / 2 };
    if wanted > HEAP_MIN { wanted } else { HEAP_MIN }
}

/// Bytes before suffix and value in the heap: their two lengths.
const LENGTHS: usize = 4;

/// The lengths that stand before suffix and value.
#[inline]
fn lengths(stored: &[u8]) -> (usize, usize) {
    let [low, high, value_low, value_high] =
        *stored.first_chunk().expect("invariant: each entry begins with its lengths");
    let [suffix, value] = [[low, high], [value_low, value_high]].map(u16::from_le_bytes);
    (usize::from(suffix), usize::from(value))
}

/// An entry in the table.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// See [`head`].
    head: u32,
    /// Position in the heap.
    position: u32,
}

/// The first bytes of what keys have behind their common start, zeros behind fewer. Heads are in the order of their keys;
/// only those of equal heads have to be compared in full.
fn head(rest: &[u8]) -> u32 {
    if let Some(first) = rest.first_chunk() {
        return u32::from_be_bytes(*first);
    }
    let mut first = [0; 4];
    first[..rest.len()].copy_from_slice(rest);
    u32::from_be_bytes(first)
}

/// What a copy of entries has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// What is copied.
    None,
    /// As much more as an insert would make room for.
    More,
}

/// Sorted key-value entries.
#[derive(Clone, Debug, Default)]
pub struct Packed {
    /// What all keys begin with but for a first one that is the prefix alone, as that of a branch is. Without any other
    /// than that one, this is the prefix.
    start: Vec<u8>,
    /// How much of `start` is the prefix, which all keys begin with; stored once.
    prefix: usize,
    /// Each entry, in key order.
    slots: Vec<Slot>,
    /// Entries: length of the suffix, length of the value (16 bits each), suffix, value.
    heap: Vec<u8>,
    /// Bytes of the heap that no entry uses.
    dead: usize,
}

/// A length as the heap stores it. Keys and values are bounded far below 2^16 by `ENTRY_MAX`.
fn short(len: usize) -> [u8; 2] {
    debug_assert!(u16::try_from(len).is_ok(), "an entry of {len} bytes");
    let [low, high, ..] = len.to_le_bytes();
    [low, high]
}

/// A position in a heap as the table has it. Nodes are of some KiB, and what is read for one has few thousand entries.
#[inline]
fn position_of(len: usize) -> u32 {
    u32::try_from(len).expect("invariant: a heap has less than 4 GiB")
}

/// Appends an entry to a heap that has room for it: a suffix of this length, the first bytes of which are the common start,
/// and behind it the value.
#[inline]
fn store_joined(heap: &mut Vec<u8>, bytes: &[u8], suffix: usize, alike: usize) -> Slot {
    let position = position_of(heap.len());
    let [suffix_len, value_len] = [short(suffix), short(bytes.len() - suffix)];
    heap.extend_from_slice(&[suffix_len[0], suffix_len[1], value_len[0], value_len[1]]);
    heap.extend_from_slice(bytes);
    Slot { head: bytes.get(alike..suffix).map_or(0, head), position }
}

impl Packed {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Upper bound of the bytes that the entries take on the device.
    pub(crate) fn size(&self) -> usize {
        self.prefix + self.heap.len() - self.dead + self.slots.len() * (ENTRY_OVERHEAD - LENGTHS)
    }

    pub(crate) fn prefix(&self) -> &[u8] {
        &self.start[..self.prefix]
    }

    /// How many bytes suffixes have of the common start of keys.
    fn alike(&self) -> usize {
        self.start.len() - self.prefix
    }

    /// Where the suffix of an entry is in the heap, its length, and that of the value behind it.
    fn parts(&self, index: usize) -> (usize, usize, usize) {
        let at = self.slots[index].position as usize;
        let (suffix, value) = lengths(&self.heap[at..]);
        (at + LENGTHS, suffix, value)
    }

    /// Bytes of an entry's suffix and value.
    fn data_len(&self, index: usize) -> usize {
        let (_, suffix, value) = self.parts(index);
        suffix + value
    }

    /// The key of an entry without the prefix.
    #[inline]
    pub(crate) fn suffix(&self, index: usize) -> &[u8] {
        let rest = &self.heap[self.slots[index].position as usize..];
        let len = usize::from(u16::from_le_bytes([rest[0], rest[1]]));
        &rest[LENGTHS..LENGTHS + len]
    }

    /// The value of an entry, which has to be there.
    #[must_use]
    pub fn value(&self, index: usize) -> &[u8] {
        let (at, suffix, value) = self.parts(index);
        &self.heap[at + suffix..at + suffix + value]
    }

    /// Suffix and value of an entry; `None` behind the last one.
    #[inline]
    pub(crate) fn entry(&self, index: usize) -> Option<(&[u8], &[u8])> {
        self.entry_at(self.position(index)?)
    }

    /// Where an entry is, as long as nothing changes here.
    #[inline]
    pub(crate) fn position(&self, index: usize) -> Option<usize> {
        Some(self.slots.get(index)?.position as usize)
    }

    /// Suffix and value of the entry at a position.
    #[inline]
    pub(crate) fn entry_at(&self, position: usize) -> Option<(&[u8], &[u8])> {
        let rest = self.heap.get(position..)?;
        let (lengths, rest) = rest.split_first_chunk::<LENGTHS>()?;
        let [suffix, value] = [[lengths[0], lengths[1]], [lengths[2], lengths[3]]].map(u16::from_le_bytes);
        let (suffix, rest) = rest.split_at_checked(usize::from(suffix))?;
        Some((suffix, rest.get(..usize::from(value))?))
    }

    /// Prefetches the tables that a search reads, each step of which waits for the one before, and the end of the heap, where an
    /// insert appends.
    pub(crate) fn prefetch_search(&self) {
        prefetch(&self.start);
        prefetch(&self.slots);
        prefetch(&self.heap[self.heap.len().saturating_sub(1)..]);
    }

    /// Prefetches an entry, and those that were stored together with it.
    pub(crate) fn prefetch(&self, index: usize) {
        if let Some(position) = self.position(index) {
            self.prefetch_at(position);
        }
    }

    /// As [`Packed::prefetch`], of the entry at a position.
    #[inline]
    pub(crate) fn prefetch_at(&self, position: usize) {
        let rest = self.heap.get(position..).unwrap_or_default();
        prefetch(&rest[..rest.len().min(NEAR)]);
    }

    /// Puts the whole key of an entry into `key`.
    pub(crate) fn copy_key(&self, index: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix());
        key.extend_from_slice(self.suffix(index));
    }

    /// The key of an entry, which has to be there.
    #[must_use]
    pub fn key(&self, index: usize) -> Vec<u8> {
        [self.prefix(), self.suffix(index)].concat()
    }

    /// Whether an entry has this key.
    #[inline]
    pub(super) fn has_key(&self, index: usize, key: &[u8]) -> bool {
        let suffix = key.strip_prefix(self.prefix());
        suffix.is_some() && self.entry(index).map(|(found, _)| found) == suffix
    }

    /// What an entry's key has behind the common start of keys; `None` of one that is the prefix alone.
    fn rest_of(&self, index: usize) -> Option<&[u8]> {
        self.suffix(index).get(self.alike()..)
    }

    /// How an entry's key compares with another one, if their heads differ: that spares a read of the heap, which is most
    /// likely not in the processor's cache.
    #[inline]
    fn order_of_heads(&self, index: usize, key: &[u8]) -> Option<Ordering> {
        let rest = key.strip_prefix(self.start.as_slice())?;
        Some(self.slots.get(index)?.head.cmp(&head(rest))).filter(|order| order.is_ne())
    }

    /// Whether an entry's suffix may begin so, as far as its head tells, as in [`Packed::order_of_heads`].
    #[inline]
    pub(crate) fn may_begin(&self, index: usize, suffix: &[u8]) -> bool {
        let Some(slot) = self.slots.get(index) else { return false };
        let Some(rest) = suffix.strip_prefix(&self.start[self.prefix..]) else { return true };
        (slot.head ^ head(rest)) & FIRST_BYTES[rest.len().min(size_of::<u32>())] == 0
    }

    /// Whether an entry's key is above this one.
    pub(super) fn is_above(&self, index: usize, key: &[u8]) -> bool {
        if let Some(order) = self.order_of_heads(index, key) {
            return order == Ordering::Greater;
        }
        match key.strip_prefix(self.prefix()) {
            Some(suffix) => self.suffix(index) > suffix,
            None => self.prefix() > key,
        }
    }

    /// What follows `start` in the key of an entry, if that begins with it. Put together in `scratch` where it has to
    /// be.
    pub(crate) fn rest<'a>(
        &'a self,
        index: usize,
        start: &[u8],
        scratch: &'a mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        if let Some(start) = start.strip_prefix(self.prefix()) {
            return self.suffix(index).strip_prefix(start);
        }
        let prefix = self.prefix().strip_prefix(start)?;
        scratch.clear();
        scratch.extend_from_slice(prefix);
        scratch.extend_from_slice(self.suffix(index));
        Some(scratch)
    }

    /// Makes sure that the heap takes so many bytes more.
    fn make_room(&mut self, needed: usize) {
        if self.heap.capacity() - self.heap.len() < needed {
            self.heap.reserve_exact(needed.max(more_heap(self.heap.len())));
        }
    }

    fn append(&mut self, suffix: &[u8], value: &[u8]) -> Slot {
        self.make_room(LENGTHS + suffix.len() + value.len());
        self.store(suffix, value)
    }

    /// As [`Packed::append`], where room has been made.
    #[inline]
    fn store(&mut self, suffix: &[u8], value: &[u8]) -> Slot {
        let position = position_of(self.heap.len());
        let [suffix_len, value_len] = [short(suffix.len()), short(value.len())];
        self.heap.extend_from_slice(&[suffix_len[0], suffix_len[1], value_len[0], value_len[1]]);
        self.heap.extend_from_slice(suffix);
        self.heap.extend_from_slice(value);
        Slot { head: head(suffix.get(self.alike()..).unwrap_or_default()), position }
    }

    /// Whether any entry has more than the prefix: of several, only the first has not.
    fn has_suffixes(&self) -> bool {
        self.slots.len() > 1 || self.entry(0).is_some_and(|(only, _)| !only.is_empty())
    }

    /// Makes the common start one of these suffixes, too.
    fn join<'e>(&mut self, suffixes: impl Iterator<Item = &'e [u8]>) {
        let mut suffixes = suffixes.filter(|suffix| !suffix.is_empty());
        if !self.has_suffixes() {
            self.start.truncate(self.prefix);
            self.start.extend_from_slice(suffixes.next().unwrap_or_default());
        }
        let alike = &self.start[self.prefix..];
        let shared = suffixes.fold(alike.len(), |shared, suffix| shared_len(&alike[..shared], suffix));
        if shared == alike.len() {
            return;
        }
        self.start.truncate(self.prefix + shared);
        for index in 0..self.slots.len() {
            self.slots[index].head = head(self.rest_of(index).unwrap_or_default());
        }
    }

    /// Inserts an entry at the place that [`Packed::search`] gave.
    pub(crate) fn insert(&mut self, index: usize, key: &[u8], value: &[u8]) {
        self.insert_all(index, core::iter::once((key, value)));
    }

    /// Inserts entries one behind the other at the place that [`Packed::search`] gave for the first one. What that one's key
    /// shares with those that are here, the other keys share, too.
    pub(super) fn insert_all<'e>(
        &mut self,
        index: usize,
        entries: impl Iterator<Item = (&'e [u8], &'e [u8])> + Clone,
    ) {
        let Some((key, _)) = entries.clone().next() else { return };
        if self.slots.is_empty() {
            *self = Self::default();
        }
        if !key.starts_with(self.prefix()) {
            self.rebuild(shared_len(self.prefix(), key));
        }
        let shared = self.prefix;
        self.join(entries.clone().map(|(key, _)| &key[shared..]));
        let (mut added, mut needed) = (0, 0);
        for (key, value) in entries.clone() {
            added += 1;
            needed += LENGTHS + key.len() - shared + value.len();
        }
        self.make_room_for(index, added, needed);
        for (at, (key, value)) in (index..).zip(entries) {
            self.slots[at] = self.store(&key[shared..], value);
        }
        debug_assert!(self.is_ordered(index, added), "keys are out of order");
    }

    /// As [`Packed::insert_all`], of entries that belong before the one at `index` and behind another one, as long as they then
    /// take no more than `limit`. `false`: nothing was inserted.
    #[inline(never)]
    pub(super) fn insert_between(&mut self, index: usize, sorted: SortedEntries<'_>, limit: usize) -> bool {
        // A key between two others shares what those share: the common start, which all keys have but a first one that is the
        // prefix alone.
        let belongs = sorted.ends().is_some_and(|(first, last)| self.is_between(index, first, last));
        if !belongs {
            return false;
        }
        let (count, shared) = (sorted.spans.len(), self.prefix);
        let needed = sorted.bytes() + count * LENGTHS - count * shared;
        if self.size() + needed + count * (ENTRY_OVERHEAD - LENGTHS) > limit {
            return false;
        }
        self.make_room_for(index, count, needed);
        let (alike, Self { slots, heap, .. }) = (self.alike(), &mut *self);
        for (slot, span) in slots[index..].iter_mut().zip(sorted.spans) {
            let start = span.start + shared;
            *slot = store_joined(heap, &sorted.text[start..span.end], span.value - start, alike);
        }
        debug_assert!(self.is_ordered(index, count), "keys are out of order");
        true
    }

    /// Whether so many entries from a place on are in order, with those before and behind them.
    fn is_ordered(&self, from: usize, count: usize) -> bool {
        let range = from.saturating_sub(1)..self.slots.len().min(from + count + 1);
        range.clone().skip(1).all(|at| self.suffix(at - 1) < self.suffix(at))
    }

    /// Makes room for so many entries at a place, which take so many bytes of the heap.
    fn make_room_for(&mut self, index: usize, added: usize, needed: usize) {
        let before = self.slots.len();
        self.make_room(needed);
        if self.slots.capacity() - before < added {
            self.slots.reserve_exact(added.max(more_slots(before)));
        }
        self.slots.resize(before + added, Slot { head: 0, position: 0 });
        self.slots.copy_within(index..before, index + added);
    }

    /// Appends an entry behind all others.
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        self.insert(self.slots.len(), key, value);
    }

    /// Replaces the value of an entry where it is, if both have the same length.
    pub(super) fn overwrite(&mut self, index: usize, value: &[u8]) -> bool {
        let (at, suffix, old) = self.parts(index);
        if old == value.len() {
            self.heap[at + suffix..at + suffix + old].copy_from_slice(value);
        }
        old == value.len()
    }

    /// Replaces the value of an entry.
    pub(crate) fn replace(&mut self, index: usize, value: &[u8]) {
        if self.overwrite(index, value) {
            return;
        }
        let (at, suffix, old) = self.parts(index);
        let suffix = self.heap[at..at + suffix].to_vec();
        self.dead += LENGTHS + suffix.len() + old;
        self.slots[index] = self.append(&suffix, value);
        self.compact();
    }

    pub(crate) fn remove(&mut self, index: usize) {
        let (_, suffix, value) = self.parts(index);
        self.dead += LENGTHS + suffix + value;
        self.slots.remove(index);
        if !self.has_suffixes() {
            self.start.truncate(self.prefix);
        }
        self.compact();
    }

    /// Drops dead bytes once they are the larger part.
    fn compact(&mut self) {
        if self.dead * 2 > self.heap.len() {
            self.rebuild(self.prefix);
        }
    }

    /// Lays the entries out anew with a prefix of this length, which must be shared by all keys.
    fn rebuild(&mut self, prefix_len: usize) {
        *self = self.copy_range(0..self.slots.len(), self.data(), prefix_len, Room::None);
    }

    /// Bytes of the suffixes and values of all entries.
    fn data(&self) -> usize {
        self.heap.len() - self.dead - self.slots.len() * LENGTHS
    }

    /// The same of some entries.
    fn data_of(&self, range: Range<usize>) -> usize {
        range.map(|index| self.data_len(index)).sum()
    }

    /// A copy of some entries, which have so many bytes of suffixes and values, with a prefix of this length, which all their
    /// keys share.
    fn copy_range(&self, range: Range<usize>, data: usize, prefix_len: usize, room: Room) -> Self {
        let mut copy = Self::default();
        if range.is_empty() {
            return copy;
        }
        // The last key has more than the prefix if any has.
        copy.start = self.key(range.end - 1);
        copy.start.truncate(prefix_len + self.alike_behind(range.clone(), prefix_len));
        copy.prefix = prefix_len;
        let more =
            |now: usize, more: fn(usize) -> usize| now + if room == Room::More { more(now) } else { 0 };
        copy.slots.reserve_exact(more(range.len(), more_slots));
        // What the suffixes gain from a shorter prefix, or lose to a longer one.
        let gained = self.prefix().get(prefix_len..).unwrap_or_default();
        let lost = prefix_len.saturating_sub(self.prefix);
        let bytes = data + range.len() * (LENGTHS + gained.len()) - range.len() * lost;
        copy.heap.reserve_exact(more(bytes, more_heap));
        if gained.is_empty() && lost == 0 && copy.start.len() == self.start.len() {
            copy.push_same(self, range);
        } else if gained.is_empty() {
            self.slots[range].iter().for_each(|slot| copy.push_shortened(self, *slot, lost));
        } else {
            let mut joined = gained.to_vec();
            for index in range {
                joined.truncate(gained.len());
                joined.extend_from_slice(self.suffix(index));
                let slot = copy.append(&joined, self.value(index));
                copy.slots.push(slot);
            }
        }
        copy
    }

    /// Appends some entries of other ones, which have the same prefix and the same common start.
    fn push_same(&mut self, other: &Self, range: Range<usize>) {
        let Self { slots, heap, .. } = self;
        // What was inserted together lies together in the heap: it is copied at once, when something else comes.
        let mut run = 0..0;
        slots.extend(other.slots[range].iter().map(|slot| {
            let from = slot.position as usize;
            let (suffix, value) = lengths(&other.heap[from..]);
            if from != run.end {
                heap.extend_from_slice(&other.heap[run.clone()]);
                run = from..from;
            }
            let position = position_of(heap.len() + from - run.start);
            run.end += LENGTHS + suffix + value;
            Slot { head: slot.head, position }
        }));
        heap.extend_from_slice(&other.heap[run]);
    }

    /// Appends an entry of other ones without the first `lost` bytes of its suffix. What is left of that lies before the
    /// value there as here.
    fn push_shortened(&mut self, other: &Self, Slot { head: known, position: from }: Slot, lost: usize) {
        let stored = &other.heap[from as usize..];
        let (suffix, value) = lengths(stored);
        let position = position_of(self.heap.len());
        let [suffix_len, value_len] = [short(suffix - lost), short(value)];
        self.heap.extend_from_slice(&[suffix_len[0], suffix_len[1], value_len[0], value_len[1]]);
        self.heap.extend_from_slice(&stored[LENGTHS + lost..LENGTHS + suffix + value]);
        // With the same common start, the head is the same.
        let head = if self.start.len() == other.start.len() {
            known
        } else {
            head(stored[LENGTHS + lost..LENGTHS + suffix].get(self.alike()..).unwrap_or_default())
        };
        self.slots.push(Slot { head, position });
    }

    /// How many bytes the keys of some entries have alike behind a prefix of this length, but for a first one that ends with
    /// it.
    fn alike_behind(&self, range: Range<usize>, prefix_len: usize) -> usize {
        let (first, last) = (self.suffix(range.start), self.suffix(range.end - 1));
        let ends = self.prefix + first.len() == prefix_len && range.len() > 1;
        let first = if ends { self.suffix(range.start + 1) } else { first };
        self.prefix + shared_len(first, last) - prefix_len
    }

    /// A copy of some entries, with the longest prefix they share.
    pub(crate) fn range(&self, range: Range<usize>) -> Self {
        self.part(range.clone(), self.data_of(range), Room::None)
    }

    /// Splits off the entries from a place on. Both parts have the longest prefix that their keys share.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        self.split(at, self.data_of(0..at), Room::None)
    }

    /// Splits off the upper half. Both parts have room for others.
    pub(super) fn split_off_half(&mut self) -> Self {
        let (at, before) = self.middle();
        self.split(at, before, Room::More)
    }

    /// As [`Packed::split_off`], where the entries that stay have so many bytes of suffixes and values.
    fn split(&mut self, at: usize, before: usize, room: Room) -> Self {
        let behind = self.part(at..self.slots.len(), self.data() - before, room);
        *self = self.part(0..at, before, room);
        behind
    }

    /// As [`Packed::range`], of entries with so many bytes of suffixes and values, with room for others.
    fn part(&self, range: Range<usize>, data: usize, room: Room) -> Self {
        if range.is_empty() {
            return Self::default();
        }
        let (first, last) = (self.suffix(range.start), self.suffix(range.end - 1));
        let shared = self.prefix + if range.len() > 1 { shared_len(first, last) } else { 0 };
        self.copy_range(range, data, shared, room)
    }

    /// Where to split so that both halves take about the same bytes: at least one entry on each side. Also the bytes of
    /// suffixes and values before it.
    pub(crate) fn middle(&self) -> (usize, usize) {
        debug_assert!(self.slots.len() > 1, "{} entries can't be split", self.slots.len());
        let (half, last) = (self.size() / 2, self.slots.len() - 1);
        let (mut sum, mut before) = (self.prefix, 0);
        for index in 0..last {
            let data = self.data_len(index);
            let len = ENTRY_OVERHEAD + data;
            sum += len;
            if sum > half {
                // The entry in the middle goes to the side that makes the halves more equal.
                let is_before = index == 0 || sum - half < len / 2;
                return if is_before { (index + 1, before + data) } else { (index, before) };
            }
            before += data;
        }
        (last, before)
    }

    /// Heap memory in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.start.capacity() + self.heap.capacity() + self.slots.capacity() * size_of::<Slot>()
    }
}

#[cfg(test)]
mod tests;
