//! Sorted entries of one node in compact form: one heap of bytes, a table of entries, a common prefix.
//!
//! A search looks at the heads of the keys first, which lie side by side: on most of its way it touches neither the
//! heap nor the rest of the keys.

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

/// How much to grow by: a quarter. Nodes are many, and doubling would waste a third of the index memory; growing by less
/// copies a node more often than it is split.
const fn grown(len: usize, min: usize) -> usize {
    if len / 4 > min { len / 4 } else { min }
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

/// The first bytes of a suffix, zeros behind a shorter one. Heads are in the order of their suffixes; only those of
/// equal heads have to be compared in full.
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

    /// The key of an entry without the prefix.
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
        self.search_suffix(suffix, head(suffix)).unwrap_or_else(|at| at)
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
            Some(suffix) => self.search_suffix(suffix, head(suffix)),
            None if key < self.prefix.as_slice() => Err(0),
            None => Err(self.slots.len()),
        }
    }

    fn search_suffix(&self, suffix: &[u8], head: u32) -> Result<usize, usize> {
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
        let head = head(suffix);
        let is_at = |index: usize| self.compare(index, suffix, head) != Ordering::Greater;
        index < self.slots.len() && is_at(index) && (index + 1 == self.slots.len() || !is_at(index + 1))
    }

    /// The first entry that isn't below `key`, when it is sure that the key belongs among these entries: before the
    /// first one and behind the last, it may belong elsewhere. `hint` is where it is most likely to be.
    pub(crate) fn seek(&self, key: &[u8], hint: usize) -> Option<usize> {
        let suffix = key.strip_prefix(self.prefix.as_slice())?;
        let head = head(suffix);
        if let Some(at) = self.near(hint, suffix, head) {
            return Some(at);
        }
        let last = self.slots.len().checked_sub(1)?;
        if self.compare(0, suffix, head) == Ordering::Greater
            || self.compare(last, suffix, head) == Ordering::Less
        {
            return None;
        }
        Some(self.search_suffix(suffix, head).unwrap_or_else(|at| at))
    }

    /// As [`Packed::search`], where the key isn't above the entry at `index` and is above the one before.
    pub(crate) fn at(&self, index: usize, key: &[u8]) -> Result<usize, usize> {
        let is_there = key.strip_prefix(self.prefix.as_slice()) == Some(self.suffix(index));
        if is_there { Ok(index) } else { Err(index) }
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

    fn append(&mut self, suffix: &[u8], value: &[u8]) -> Slot {
        let position = u32::try_from(self.heap.len()).unwrap_or(u32::MAX);
        let needed = LENGTHS + suffix.len() + value.len();
        if self.heap.capacity() - self.heap.len() < needed {
            self.heap.reserve_exact(needed.max(grown(self.heap.len(), HEAP_MIN)));
        }
        self.heap.extend_from_slice(&short(suffix.len()));
        self.heap.extend_from_slice(&short(value.len()));
        self.heap.extend_from_slice(suffix);
        self.heap.extend_from_slice(value);
        Slot { head: head(suffix), position }
    }

    /// Inserts an entry at the place that [`Packed::search`] gave.
    pub(crate) fn insert(&mut self, index: usize, key: &[u8], value: &[u8]) {
        if self.slots.is_empty() {
            *self = Self::default();
        }
        if !key.starts_with(&self.prefix) {
            self.rebuild(shared_len(&self.prefix, key));
        }
        let suffix = &key[self.prefix.len()..];
        let slot = self.append(suffix, value);
        if self.slots.len() == self.slots.capacity() {
            self.slots.reserve_exact(grown(self.slots.len(), SLOTS_MIN));
        }
        self.slots.insert(index, slot);
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
        copy.slots.reserve_exact(range.len());
        // What the suffixes gain from a shorter prefix, or lose to a longer one.
        let gained = self.prefix.get(prefix_len..).unwrap_or_default();
        let lost = prefix_len.saturating_sub(self.prefix.len());
        let len = |index: usize| {
            let (_, suffix, value) = self.parts(index);
            LENGTHS + gained.len() + suffix - lost + value
        };
        copy.heap.reserve_exact(range.clone().map(len).sum());
        let mut joined = gained.to_vec();
        for index in range {
            let suffix = &self.suffix(index)[lost..];
            let slot = if gained.is_empty() {
                copy.append(suffix, self.value(index))
            } else {
                joined.truncate(gained.len());
                joined.extend_from_slice(suffix);
                copy.append(&joined, self.value(index))
            };
            copy.slots.push(slot);
        }
        copy
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
        for index in 0..self.slots.len() {
            let (_, suffix, value) = self.parts(index);
            sum += ENTRY_OVERHEAD + suffix + value;
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
            for packed in [&packed, &packed.range(0..packed.len())] {
                for key in asked.iter().map(whole).chain(asked.iter().cloned()).chain(keys.iter().cloned()) {
                    prop_assert_eq!(packed.search(&key), keys.binary_search(&key), "{:?}", key);
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
                let found = |key: &[u8]| packed.seek(key, hint).map(|at| packed.key(at));
                prop_assert_eq!(found(key), Some(key.clone()));
                let behind = [key.as_slice(), &[0]].concat();
                prop_assert_eq!(found(&behind), model.range(behind.clone()..).next().map(|(key, _)| key.clone()));
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
