//! Sorted entries of one node in compact form: one heap of bytes, a table of entries, a common prefix.
//!
//! A search looks at the heads of the keys first, which lie side by side: on most of its way it touches neither the
//! heap nor the rest of the keys.

use super::node::NODE_MAX;
use crate::codec::shared_len;
use core::cmp::Ordering;

/// Bytes that an entry takes beyond its key suffix and value: two lengths in the heap and a position. On the device
/// it takes at most as much: three varints below 2^14.
pub(super) const ENTRY_OVERHEAD: usize = 6;

/// Entries with the same head that are stepped over before the end of them is searched for.
const EQUAL_HEADS_MAX: usize = 8;

/// Least room for new entries when the heap grows, in bytes: some ten small ones.
const HEAP_MIN: usize = 512;

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

/// An entry in the table.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// See [`head`].
    head: u32,
    /// Position in the heap.
    position: u32,
}

/// The first bytes of what suffixes have behind those that are alike, zeros behind fewer. Heads are in the order of their
/// suffixes; only those of equal heads have to be compared in full.
fn head(suffix: &[u8]) -> u32 {
    if let Some(first) = suffix.first_chunk() {
        return u32::from_be_bytes(*first);
    }
    let mut first = [0; 4];
    first[..suffix.len()].copy_from_slice(suffix);
    u32::from_be_bytes(first)
}

/// Sorted key-value entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Packed {
    /// What all keys begin with; stored once.
    prefix: Vec<u8>,
    /// How many bytes all suffixes begin with alike, but for an empty first one, which those of a branch have. There is
    /// one that isn't empty unless this is 0.
    alike: usize,
    /// Each entry, in key order.
    slots: Vec<Slot>,
    /// Entries: length of the suffix, length of the value (16 bits each), suffix, value.
    heap: Vec<u8>,
    /// Bytes of the heap that no entry uses.
    dead: usize,
}

/// The first eight bytes as a number, zeros behind fewer. Words are in the order of their bytes; only equal ones have to
/// be compared in full.
fn word(bytes: &[u8]) -> u64 {
    if let Some(first) = bytes.first_chunk() {
        return u64::from_be_bytes(*first);
    }
    bytes
        .iter()
        .zip([56, 48, 40, 32, 24, 16, 8])
        .fold(0, |word, (byte, shift)| word | u64::from(*byte) << shift)
}

/// Where a key is among the entries of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At an entry (`Ok`), or between two of them, before the one that is named (`Err`).
    Inside(Result<usize, usize>),
    /// Before all entries: it may belong to another node.
    Before,
    /// Behind all entries: it may belong to another node.
    Behind,
}

/// A length as the heap stores it. Keys and values are bounded far below 2^16 by `ENTRY_MAX`.
fn short(len: usize) -> [u8; 2] {
    debug_assert!(u16::try_from(len).is_ok(), "an entry of {len} bytes");
    u16::try_from(len).unwrap_or(u16::MAX).to_le_bytes()
}

impl Packed {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Upper bound of the bytes that the entries take on the device.
    pub(crate) fn size(&self) -> usize {
        self.prefix.len() + self.heap.len() - self.dead + self.slots.len() * (ENTRY_OVERHEAD - LENGTHS)
    }

    pub(crate) fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    fn parts(&self, index: usize) -> (usize, usize, usize) {
        let at = self.slots[index].position as usize;
        let lengths: [u8; LENGTHS] = self.heap[at..at + LENGTHS].try_into().unwrap_or_default();
        let [suffix, value] = [[lengths[0], lengths[1]], [lengths[2], lengths[3]]];
        (at + LENGTHS, usize::from(u16::from_le_bytes(suffix)), usize::from(u16::from_le_bytes(value)))
    }

    /// Bytes of an entry's suffix and value.
    fn data_len(&self, slot: Slot) -> usize {
        let lengths = self.heap.get(slot.position as usize..).and_then(<[u8]>::first_chunk::<LENGTHS>);
        let [low, high, value_low, value_high] = *lengths.unwrap_or(&[0; LENGTHS]);
        usize::from(u16::from_le_bytes([low, high]))
            + usize::from(u16::from_le_bytes([value_low, value_high]))
    }

    /// The key of an entry without the prefix.
    #[inline]
    pub(crate) fn suffix(&self, index: usize) -> &[u8] {
        let rest = &self.heap[self.slots[index].position as usize..];
        let len = usize::from(u16::from_le_bytes([rest[0], rest[1]]));
        &rest[LENGTHS..LENGTHS + len]
    }

    pub(crate) fn value(&self, index: usize) -> &[u8] {
        let (at, suffix, value) = self.parts(index);
        &self.heap[at + suffix..at + suffix + value]
    }

    /// Suffix and value of an entry; `None` behind the last one.
    pub(crate) fn entry(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let rest = self.heap.get(self.slots.get(index)?.position as usize..)?;
        let (lengths, rest) = rest.split_first_chunk::<LENGTHS>()?;
        let [suffix, value] = [[lengths[0], lengths[1]], [lengths[2], lengths[3]]].map(u16::from_le_bytes);
        let (suffix, rest) = rest.split_at_checked(usize::from(suffix))?;
        Some((suffix, rest.get(..usize::from(value))?))
    }

    /// The first entry whose suffix isn't below this one.
    pub(crate) fn first_from(&self, suffix: &[u8]) -> usize {
        self.search_suffix(suffix).unwrap_or_else(|at| at)
    }

    /// Puts the whole key of an entry into `key`.
    pub(crate) fn copy_key(&self, index: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(&self.prefix);
        key.extend_from_slice(self.suffix(index));
    }

    pub(crate) fn key(&self, index: usize) -> Vec<u8> {
        let mut key = Vec::new();
        self.copy_key(index, &mut key);
        key
    }

    /// How an entry's suffix compares with another one, whose head is known.
    fn compare(&self, index: usize, suffix: &[u8], head: u32) -> Ordering {
        self.slots[index].head.cmp(&head).then_with(|| self.suffix(index).cmp(suffix))
    }

    /// Where a key is (`Ok`) or would be inserted (`Err`).
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        match key.strip_prefix(self.prefix.as_slice()) {
            Some(suffix) => self.search_suffix(suffix),
            None if key < self.prefix.as_slice() => Err(0),
            None => Err(self.slots.len()),
        }
    }

    /// What suffixes begin with alike.
    fn alike(&self) -> &[u8] {
        match self.slots.len() {
            last @ 1.. if self.alike > 0 => self.suffix(last - 1).get(..self.alike).unwrap_or_default(),
            _ => &[],
        }
    }

    /// The head by which to look for a suffix among those that begin alike; `None` when it begins otherwise.
    fn head_of(&self, suffix: &[u8]) -> Option<u32> {
        suffix.strip_prefix(self.alike()).map(head)
    }

    fn search_suffix(&self, suffix: &[u8]) -> Result<usize, usize> {
        match self.head_of(suffix) {
            Some(head) => self.search_head(suffix, head),
            None => self.search_apart(suffix),
        }
    }

    /// Where a suffix is that doesn't begin as the others do: on one side of all of them, or the empty one.
    fn search_apart(&self, suffix: &[u8]) -> Result<usize, usize> {
        let empty = self.entry(0).is_some_and(|(first, _)| first.is_empty());
        match suffix.is_empty() {
            true if empty => Ok(0),
            _ if suffix < self.alike() => Err(usize::from(empty)),
            _ => Err(self.slots.len()),
        }
    }

    fn search_head(&self, suffix: &[u8], head: u32) -> Result<usize, usize> {
        let mut low = self.slots.partition_point(|slot| slot.head < head);
        let equal =
            self.slots[low..].iter().take(EQUAL_HEADS_MAX).take_while(|slot| slot.head == head).count();
        let mut high = low + equal;
        if equal == EQUAL_HEADS_MAX {
            high += self.slots[high..].partition_point(|slot| slot.head == head);
            return self.search_alike(low, high, suffix);
        }
        while low < high {
            let middle = usize::midpoint(low, high);
            match self.suffix(middle).cmp(suffix) {
                Ordering::Equal => return Ok(middle),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Searches among many entries that have the same head, and so more in common, most likely, as those of a branch have
    /// the ids above them all: what they share is compared once, and what follows eight bytes at a time.
    fn search_alike(&self, mut low: usize, mut high: usize, suffix: &[u8]) -> Result<usize, usize> {
        let (first, last) = (self.suffix(low), self.suffix(high - 1));
        let shared = shared_len(first, last);
        let Some(rest) = suffix.strip_prefix(&first[..shared]) else {
            // It is on the same side of all of them.
            return Err(if suffix < first { low } else { high });
        };
        let wanted = word(rest);
        while low < high {
            let middle = usize::midpoint(low, high);
            let found = &self.suffix(middle)[shared..];
            match word(found).cmp(&wanted).then_with(|| found.cmp(rest)) {
                Ordering::Equal => return Ok(middle),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// The entry at `hint` or the one before, if it is the first that isn't below a suffix, whose head is known.
    fn near(&self, hint: usize, suffix: &[u8], head: u32) -> Option<usize> {
        if hint == 0 || hint >= self.slots.len() {
            return None;
        }
        if self.compare(hint - 1, suffix, head) == Ordering::Less {
            return (self.compare(hint, suffix, head) != Ordering::Less).then_some(hint);
        }
        (hint > 1 && self.compare(hint - 2, suffix, head) == Ordering::Less).then_some(hint - 1)
    }

    /// Whether `key` is at or above the entry at `index` and below the next one, if there is one.
    pub(super) fn covers(&self, index: usize, key: &[u8]) -> bool {
        let Some(suffix) = key.strip_prefix(self.prefix.as_slice()) else { return false };
        let Some(head) = self.head_of(suffix) else {
            let place = self.search_apart(suffix).or_else(|at| at.checked_sub(1).ok_or(()));
            return index < self.slots.len() && place == Ok(index);
        };
        let is_at = |index: usize| self.compare(index, suffix, head) != Ordering::Greater;
        index < self.slots.len() && is_at(index) && (index + 1 == self.slots.len() || !is_at(index + 1))
    }

    /// The first entry that isn't below `key`, when it is sure that the key belongs among these entries: before the
    /// first one and behind the last, it may belong elsewhere. `hint` is where it is most likely to be.
    pub(crate) fn seek(&self, key: &[u8], hint: usize) -> Option<usize> {
        let suffix = key.strip_prefix(self.prefix.as_slice())?;
        let Some(head) = self.head_of(suffix) else {
            let place = self.search_apart(suffix);
            return place
                .or_else(|at| if at == 0 { Err(()) } else { Ok(at) })
                .ok()
                .filter(|at| *at < self.len());
        };
        if let Some(at) = self.near(hint, suffix, head) {
            return Some(at);
        }
        let last = self.slots.len().checked_sub(1)?;
        if self.compare(0, suffix, head) == Ordering::Greater
            || self.compare(last, suffix, head) == Ordering::Less
        {
            return None;
        }
        Some(self.search_head(suffix, head).unwrap_or_else(|at| at))
    }

    /// As [`Packed::search`], telling what is sure to belong here. `hint` is the entry before which it is most likely to
    /// be, or at which.
    pub(super) fn locate(&self, key: &[u8], hint: usize) -> Place {
        let Some(suffix) = key.strip_prefix(self.prefix.as_slice()) else {
            return if key < self.prefix.as_slice() { Place::Before } else { Place::Behind };
        };
        let Some(head) = self.head_of(suffix) else {
            return match self.search_apart(suffix) {
                Err(0) => Place::Before,
                Err(at) if at == self.slots.len() => Place::Behind,
                found => Place::Inside(found),
            };
        };
        let compare = |index: usize| self.compare(index, suffix, head);
        if let Some(before) = hint.checked_sub(1).filter(|_| hint < self.slots.len()) {
            match (compare(before), compare(hint)) {
                (Ordering::Equal, _) => return Place::Inside(Ok(before)),
                (_, Ordering::Equal) => return Place::Inside(Ok(hint)),
                (Ordering::Less, Ordering::Greater) => return Place::Inside(Err(hint)),
                _ => {}
            }
        }
        match self.slots.len().checked_sub(1) {
            None => Place::Behind,
            Some(last) if compare(last) == Ordering::Less => Place::Behind,
            Some(_) if compare(0) == Ordering::Greater => Place::Before,
            Some(_) => Place::Inside(self.search_head(suffix, head)),
        }
    }

    /// As [`Packed::first_from`], where that is most likely the entry at `hint` or the one before.
    pub(crate) fn first_near(&self, suffix: &[u8], hint: usize) -> usize {
        let near = self.head_of(suffix).and_then(|head| self.near(hint, suffix, head));
        near.unwrap_or_else(|| self.first_from(suffix))
    }

    /// Whether a key that has the common prefix is below the entry at `index`; `None` when there is none.
    pub(super) fn is_below(&self, key: &[u8], index: usize) -> Option<bool> {
        self.slots.get(index)?;
        let suffix = key.strip_prefix(self.prefix.as_slice());
        Some(suffix.is_some_and(|suffix| self.suffix(index) > suffix))
    }

    /// Whether an entry's key is above all that begin with these bytes.
    pub(super) fn is_beyond(&self, index: usize, start: &[u8]) -> bool {
        let is_beyond = |bytes: &[u8], start: &[u8]| bytes > start && !bytes.starts_with(start);
        match start.strip_prefix(self.prefix.as_slice()) {
            Some(start) => is_beyond(self.suffix(index), start),
            None => is_beyond(&self.prefix, start),
        }
    }

    /// Whether an entry's key is above this one.
    pub(super) fn is_above(&self, index: usize, key: &[u8]) -> bool {
        match key.strip_prefix(self.prefix.as_slice()) {
            Some(suffix) => self.suffix(index) > suffix,
            None => self.prefix.as_slice() > key,
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
        if let Some(start) = start.strip_prefix(self.prefix.as_slice()) {
            return self.suffix(index).strip_prefix(start);
        }
        let prefix = self.prefix.strip_prefix(start)?;
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
        let position = u32::try_from(self.heap.len()).unwrap_or(u32::MAX);
        self.make_room(LENGTHS + suffix.len() + value.len());
        let [suffix_len, value_len] = [short(suffix.len()), short(value.len())];
        self.heap.extend_from_slice(&[suffix_len[0], suffix_len[1], value_len[0], value_len[1]]);
        self.heap.extend_from_slice(suffix);
        self.heap.extend_from_slice(value);
        Slot { head: head(suffix.get(self.alike..).unwrap_or_default()), position }
    }

    /// Makes room among the suffixes that begin alike for more.
    fn join<'e>(&mut self, suffixes: impl Iterator<Item = &'e [u8]>) {
        let known = self.entry(self.slots.len().wrapping_sub(1)).map(|(last, _)| last);
        let known = known.filter(|last| !last.is_empty()).map(|last| &last[..self.alike.min(last.len())]);
        let alike = suffixes.filter(|suffix| !suffix.is_empty()).fold(known, |alike, suffix| {
            let shared = alike.map_or(suffix.len(), |alike| shared_len(alike, suffix));
            Some(&suffix[..shared])
        });
        let shared = alike.map_or(self.alike, <[u8]>::len);
        if shared == self.alike {
            return;
        }
        self.alike = shared;
        for index in 0..self.slots.len() {
            self.slots[index].head = head(self.suffix(index).get(shared..).unwrap_or_default());
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
        if !key.starts_with(&self.prefix) {
            self.rebuild(shared_len(&self.prefix, key));
        }
        let (before, shared) = (self.slots.len(), self.prefix.len());
        self.join(entries.clone().map(|(key, _)| &key[shared..]));
        self.make_room(entries.clone().map(|(key, value)| LENGTHS + key.len() - shared + value.len()).sum());
        let added = entries.clone().count();
        if self.slots.capacity() - before < added {
            self.slots.reserve_exact(added.max(more_slots(before)));
        }
        self.slots.resize(before + added, Slot { head: 0, position: 0 });
        self.slots.copy_within(index..before, index + added);
        for (at, (key, value)) in (index..).zip(entries) {
            self.slots[at] = self.append(&key[shared..], value);
        }
    }

    /// Appends an entry behind all others.
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        self.insert(self.slots.len(), key, value);
    }

    /// Replaces the value of an entry.
    pub(crate) fn replace(&mut self, index: usize, value: &[u8]) {
        let (at, suffix, old) = self.parts(index);
        if old == value.len() {
            self.heap[at + suffix..at + suffix + old].copy_from_slice(value);
            return;
        }
        let suffix = self.heap[at..at + suffix].to_vec();
        self.dead += LENGTHS + suffix.len() + old;
        self.slots[index] = self.append(&suffix, value);
        self.compact();
    }

    pub(crate) fn remove(&mut self, index: usize) {
        let (_, suffix, value) = self.parts(index);
        self.dead += LENGTHS + suffix + value;
        self.slots.remove(index);
        if self.entry(self.slots.len().wrapping_sub(1)).is_none_or(|(last, _)| last.is_empty()) {
            self.alike = 0;
        }
        self.compact();
    }

    /// Drops dead bytes once they are the larger part.
    fn compact(&mut self) {
        if self.dead * 2 > self.heap.len() {
            self.rebuild(self.prefix.len());
        }
    }

    /// Lays the entries out anew with a prefix of this length, which must be shared by all keys.
    fn rebuild(&mut self, prefix_len: usize) {
        *self = self.copy_range(0..self.slots.len(), prefix_len);
    }

    /// A copy of some entries with a prefix of this length, which all their keys share.
    fn copy_range(&self, range: core::ops::Range<usize>, prefix_len: usize) -> Self {
        let mut copy = Self::default();
        if range.is_empty() {
            return copy;
        }
        copy.prefix = self.key(range.start);
        copy.prefix.truncate(prefix_len);
        copy.alike = self.alike_behind(range.clone(), prefix_len);
        copy.slots.reserve_exact(range.len());
        // What the suffixes gain from a shorter prefix, or lose to a longer one.
        let gained = self.prefix.get(prefix_len..).unwrap_or_default();
        let lost = prefix_len.saturating_sub(self.prefix.len());
        let len = |slot: &Slot| LENGTHS + gained.len() + self.data_len(*slot) - lost;
        copy.heap.reserve_exact(self.slots[range.clone()].iter().map(len).sum());
        if gained.is_empty() {
            range.for_each(|index| copy.push_shortened(self, index, lost));
            return copy;
        }
        let mut joined = gained.to_vec();
        for index in range {
            joined.truncate(gained.len());
            joined.extend_from_slice(self.suffix(index));
            let slot = copy.append(&joined, self.value(index));
            copy.slots.push(slot);
        }
        copy
    }

    /// Appends an entry of other ones without the first `lost` bytes of its suffix. What is left of that lies before the
    /// value there as here.
    fn push_shortened(&mut self, other: &Self, index: usize, lost: usize) {
        let (at, suffix, value) = other.parts(index);
        let rest = &other.heap[at + lost..at + suffix + value];
        let position = u32::try_from(self.heap.len()).unwrap_or(u32::MAX);
        let [suffix_len, value_len] = [short(suffix - lost), short(value)];
        self.heap.extend_from_slice(&[suffix_len[0], suffix_len[1], value_len[0], value_len[1]]);
        self.heap.extend_from_slice(rest);
        let own = rest[..suffix - lost].get(self.alike..).unwrap_or_default();
        self.slots.push(Slot { head: head(own), position });
    }

    /// How many bytes the keys of some entries have alike behind a prefix of this length, but for a first one that ends with
    /// it.
    fn alike_behind(&self, range: core::ops::Range<usize>, prefix_len: usize) -> usize {
        let (first, last) = (self.suffix(range.start), self.suffix(range.end - 1));
        let ends = self.prefix.len() + first.len() == prefix_len && range.len() > 1;
        let first = if ends { self.suffix(range.start + 1) } else { first };
        (self.prefix.len() + shared_len(first, last)).saturating_sub(prefix_len)
    }

    /// A copy of some entries, with the longest prefix they share.
    pub(crate) fn range(&self, range: core::ops::Range<usize>) -> Self {
        if range.is_empty() {
            return Self::default();
        }
        let (first, last) = (self.suffix(range.start), self.suffix(range.end - 1));
        let shared = self.prefix.len() + if range.len() > 1 { shared_len(first, last) } else { 0 };
        self.copy_range(range, shared)
    }

    /// Where to split so that both halves take about the same bytes: at least one entry on each side.
    pub(crate) fn middle(&self) -> usize {
        let half = self.size() / 2;
        let mut sum = self.prefix.len();
        for (index, slot) in self.slots.iter().enumerate() {
            sum += ENTRY_OVERHEAD + self.data_len(*slot);
            if sum > half {
                return index.clamp(1, self.slots.len().saturating_sub(1).max(1));
            }
        }
        self.slots.len().saturating_sub(1)
    }

    /// Heap memory in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.prefix.capacity() + self.heap.capacity() + self.slots.capacity() * size_of::<Slot>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_common_prefix_is_stored_once_and_given_up_when_a_key_differs() {
        let mut packed = Packed::default();
        for key in [b"weir/a", b"weir/b", b"weir/c"] {
            packed.push(key, b"1");
        }
        let mut tight = packed.range(0..3);
        assert_eq!(tight.prefix(), b"weir/");
        assert!(tight.size() < packed.size());
        let at = tight.search(b"wax").expect_err("not there");
        assert_eq!(at, 0);
        tight.insert(at, b"wax", b"2");
        assert_eq!(tight.prefix(), b"w");
        assert_eq!(tight.search(b"weir/b"), Ok(2));
        assert_eq!(tight.search(b"x"), Err(4));
    }

    proptest! {
        #[test]
        fn alike_keys_are_found_as_in_a_sorted_map(
            keys in proptest::collection::btree_set(proptest::collection::vec(0u8..2, 0..16), 1..200),
            asked in proptest::collection::vec(proptest::collection::vec(0u8..2, 0..16), 40),
            start in prop_oneof![Just(&b"alike"[..]), Just(&b"ab"[..]), Just(&b""[..])],
            lead in any::<bool>(),
        ) {
            let whole = |key: &Vec<u8>| [start, key].concat();
            let mut keys: Vec<_> = keys.iter().map(whole).collect();
            let mut packed = Packed::default();
            if lead && !keys[0].is_empty() {
                // A branch has it, so that its keys have no prefix.
                keys.insert(0, Vec::new());
            }
            for key in &keys {
                packed.push(key, b"");
            }
            // Given a prefix, and losing it again to keys that have less of it.
            let (mut grown, mut all) = (packed.range(0..packed.len()), keys.clone());
            for key in asked.iter().take(8).cloned().chain([Vec::new()]) {
                prop_assert_eq!(grown.search(&key), all.binary_search(&key));
                if let Err(at) = grown.search(&key) {
                    grown.insert(at, &key, b"");
                    all.insert(at, key);
                }
            }
            for key in all.iter().chain(&asked) {
                prop_assert_eq!(grown.search(key), all.binary_search(key), "{:?}", key);
            }
            for packed in [&packed, &packed.range(0..packed.len())] {
                for key in asked.iter().map(whole).chain(asked.iter().cloned()).chain(keys.iter().cloned()) {
                    let place = keys.binary_search(&key);
                    prop_assert_eq!(packed.search(&key), place, "{:?}", key);
                    let covering = place.or_else(|at| at.checked_sub(1).ok_or(()));
                    for at in 0..packed.len() {
                        let covers = key.starts_with(packed.prefix()) && covering == Ok(at);
                        prop_assert_eq!(packed.covers(at, &key), covers, "{:?} at {}", key, at);
                    }
                }
            }
        }

        #[test]
        fn behaves_like_a_sorted_map(steps in proptest::collection::vec(
            (proptest::collection::vec(0u8..3, 0..6), proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40))), 0..200)) {
            let mut packed = Packed::default();
            let mut model = BTreeMap::new();
            for (key, value) in steps {
                match (packed.search(&key), value) {
                    (Ok(at), Some(value)) => { packed.replace(at, &value); model.insert(key, value); }
                    (Err(at), Some(value)) => { packed.insert(at, &key, &value); model.insert(key, value); }
                    (Ok(at), None) => { packed.remove(at); model.remove(&key); }
                    (Err(_), None) => prop_assert!(!model.contains_key(&key)),
                }
                let entries: Vec<_> = (0..packed.len()).map(|at| (packed.key(at), packed.value(at).to_vec())).collect();
                prop_assert_eq!(entries, model.clone().into_iter().collect::<Vec<_>>());
            }
            for (key, hint) in model.keys().flat_map(|key| [(key, 0), (key, 1), (key, packed.len())]) {
                prop_assert_eq!(packed.locate(key, hint), Place::Inside(packed.search(key)));
                let found = |key: &[u8]| packed.seek(key, hint).map(|at| packed.key(at));
                prop_assert_eq!(found(key), Some(key.clone()));
                let behind = [key.as_slice(), &[0]].concat();
                prop_assert_eq!(found(&behind), model.range(behind.clone()..).next().map(|(key, _)| key.clone()));
                let next = model.range(behind.clone()..).next();
                let located = if next.is_some() { Place::Inside(packed.search(&behind)) } else { Place::Behind };
                prop_assert_eq!(packed.locate(&behind, hint), located);
                prop_assert_eq!(packed.locate(&[], hint) == Place::Before, !model.contains_key(&[][..]));
                if let Ok(at) = packed.search(key) {
                    prop_assert!(!packed.is_above(at, key) && !packed.is_above(at, &behind));
                    prop_assert!(at == 0 || packed.is_above(at, &packed.key(at - 1)));
                    for start in [&key[..], &behind, &key[..key.len() / 2], &[1], &[]] {
                        let beyond = packed.key(at).as_slice() > start && !key.starts_with(start);
                        prop_assert_eq!(packed.is_beyond(at, start), beyond);
                    }
                    prop_assert_eq!(packed.is_below(&behind, at), behind.starts_with(packed.prefix()).then_some(false).or(Some(false)));
                    let after = packed.is_below(&behind, at + 1);
                    prop_assert_eq!(after, next.map(|(next, _)| behind.starts_with(packed.prefix()) && behind < *next));
                    for from in [&key[..], &behind].into_iter().filter_map(|from| from.strip_prefix(packed.prefix())) {
                        prop_assert_eq!(packed.first_near(from, hint), packed.first_from(from));
                    }
                }
                let at = packed.search(key).expect("it is there");
                let rest = |start: &[u8]| packed.rest(at, start, &mut Vec::new()).map(<[u8]>::to_vec);
                for len in 0..=key.len() {
                    prop_assert_eq!(rest(&key[..len]), Some(key[len..].to_vec()));
                }
                prop_assert_eq!(rest(&behind), None);
            }
            if packed.len() > 1 {
                let middle = packed.middle();
                prop_assert!(middle > 0 && middle < packed.len());
                let (left, right) = (packed.range(0..middle), packed.range(middle..packed.len()));
                prop_assert_eq!(left.len() + right.len(), packed.len());
                prop_assert_eq!(left.key(0), packed.key(0));
                prop_assert_eq!(right.key(0), packed.key(middle));
            }
        }
    }
}
