//! Where a key is among the entries of a node.
//!
//! A search looks at the heads of the keys first, which lie side by side: on most of its way it touches neither the
//! heap nor the rest of the keys.

use super::{Packed, head};
use crate::format::codec::shared_len;
use core::cmp::Ordering;

/// Entries with the same head that are compared one by one; more are counted by a search.
const EQUAL_HEADS_MAX: usize = 8;

/// The bits of the first bytes of a head, for each number of them.
pub(super) const FIRST_BYTES: [u32; 1 + size_of::<u32>()] =
    [0, 0xff00_0000, 0xffff_0000, 0xffff_ff00, u32::MAX];

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

/// A key that is looked for.
struct Sought<'a> {
    key: &'a [u8],
    /// What follows the common start of keys, and its head; `None` of one that doesn't begin so.
    rest: Option<(&'a [u8], u32)>,
}

impl<'a> Sought<'a> {
    #[inline]
    fn new(among: &Packed, key: &'a [u8]) -> Self {
        Self { key, rest: key.strip_prefix(among.start.as_slice()).map(|rest| (rest, head(rest))) }
    }
}

/// Where a key is among the entries of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// At an entry (`Ok`), or between two of them, before the one that is named (`Err`).
    Inside(Result<usize, usize>),
    /// Before all entries: it may belong to another node.
    Before,
    /// Behind all entries: it may belong to another node.
    Behind,
}

impl Packed {
    /// The first entry whose suffix isn't below this one.
    pub(crate) fn first_from(&self, suffix: &[u8]) -> usize {
        let found = match suffix.strip_prefix(&self.start[self.prefix..]) {
            Some(rest) => self.search_rest(rest, head(rest)),
            None => self.search_suffix_apart(suffix),
        };
        found.unwrap_or_else(|at| at)
    }

    /// The first entry whose key isn't below this one; `None` when that doesn't have the common prefix.
    pub(crate) fn first_at(&self, key: &[u8]) -> Option<usize> {
        let found = match key.strip_prefix(self.start.as_slice()) {
            Some(rest) => self.search_rest(rest, head(rest)),
            None => self.search_suffix_apart(key.strip_prefix(self.prefix())?),
        };
        Some(found.unwrap_or_else(|at| at))
    }

    /// How an entry compares with another key, of which this is what follows the common start, and its head.
    fn compare(&self, index: usize, rest: &[u8], head: u32) -> Ordering {
        self.slots[index].head.cmp(&head).then_with(|| self.rest_of(index).cmp(&Some(rest)))
    }

    /// Where a key is (`Ok`) or would be inserted (`Err`).
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        match key.strip_prefix(self.start.as_slice()) {
            Some(rest) => self.search_rest(rest, head(rest)),
            None => self.search_apart(key),
        }
    }

    /// Where a key is that doesn't begin with the common start: before or behind all others, or it is the prefix alone.
    #[cold]
    fn search_apart(&self, key: &[u8]) -> Result<usize, usize> {
        match key.strip_prefix(self.prefix()) {
            Some(suffix) => self.search_suffix_apart(suffix),
            None if key < self.prefix() => Err(0),
            None => Err(self.slots.len()),
        }
    }

    /// As [`Packed::search_apart`], of the suffix of such a key.
    #[cold]
    fn search_suffix_apart(&self, suffix: &[u8]) -> Result<usize, usize> {
        let empty = self.entry(0).is_some_and(|(first, _)| first.is_empty());
        match suffix.is_empty() {
            true if empty => Ok(0),
            _ if suffix < &self.start[self.prefix..] => Err(usize::from(empty)),
            _ => Err(self.slots.len()),
        }
    }

    /// Where a key is of which this is what follows the common start, and its head.
    #[inline]
    fn search_rest(&self, rest: &[u8], head: u32) -> Result<usize, usize> {
        let low = self.slots.partition_point(|slot| slot.head < head);
        match self.slots.get(low) {
            Some(slot) if slot.head == head => self.search_equal(low, rest, head),
            _ => Err(low),
        }
    }

    /// As [`Packed::search_rest`], where `low` is the first entry with this head.
    #[inline(never)]
    fn search_equal(&self, mut low: usize, rest: &[u8], head: u32) -> Result<usize, usize> {
        let equal =
            self.slots[low..].iter().take(EQUAL_HEADS_MAX).take_while(|slot| slot.head == head).count();
        let mut high = low + equal;
        if equal == EQUAL_HEADS_MAX {
            high += self.slots[high..].partition_point(|slot| slot.head == head);
            return self.search_alike(low, high, rest);
        }
        while low < high {
            let middle = usize::midpoint(low, high);
            match self.rest_of(middle).cmp(&Some(rest)) {
                Ordering::Equal => return Ok(middle),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Searches among many entries that have the same head. Most likely they share more, as the keys of a branch share ids of
    /// pool, container and object: what they share is compared once, and the rest eight bytes at a time.
    fn search_alike(&self, mut low: usize, mut high: usize, rest: &[u8]) -> Result<usize, usize> {
        // One that is the prefix alone is below all that have a rest, and shares nothing with them.
        low += usize::from(self.rest_of(low).is_none());
        let rest_of = |index: usize| {
            self.rest_of(index).expect("invariant: only the first key may be the prefix alone")
        };
        let (first, last) = (rest_of(low), rest_of(high - 1));
        let shared = shared_len(first, last);
        let Some(rest) = rest.strip_prefix(&first[..shared]) else {
            // It is before or behind all of them.
            return Err(if rest < first { low } else { high });
        };
        let wanted = word(rest);
        while low < high {
            let middle = usize::midpoint(low, high);
            let found = &rest_of(middle)[shared..];
            match word(found).cmp(&wanted).then_with(|| found.cmp(rest)) {
                Ordering::Equal => return Ok(middle),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Where a key is of which this is what follows the common start, and its head, if that is next to the entry at `hint`
    /// or the one before.
    fn near(&self, hint: usize, rest: &[u8], head: u32) -> Option<Result<usize, usize>> {
        if hint >= self.slots.len() {
            return None;
        }
        let compare = |index: usize| self.compare(index, rest, head);
        let Some(before) = hint.checked_sub(1) else {
            return match compare(hint) {
                Ordering::Equal => Some(Ok(hint)),
                Ordering::Greater => Some(Err(hint)),
                Ordering::Less => None,
            };
        };
        match compare(before) {
            Ordering::Equal => Some(Ok(before)),
            Ordering::Less => match compare(hint) {
                Ordering::Equal => Some(Ok(hint)),
                Ordering::Greater => Some(Err(hint)),
                Ordering::Less => None,
            },
            Ordering::Greater => {
                let is_between = before > 0 && compare(before - 1) == Ordering::Less;
                is_between.then_some(Err(before))
            }
        }
    }

    /// The last entry whose key isn't above this one, or the first of all. It is most likely one of `near`.
    pub(crate) fn covering(&self, near: impl IntoIterator<Item = usize>, key: &[u8]) -> usize {
        let Some(rest) = key.strip_prefix(self.start.as_slice()) else {
            return self.search_apart(key).unwrap_or_else(|at| at.saturating_sub(1));
        };
        let (head, len) = (head(rest), self.slots.len());
        let is_at = |index: usize| self.compare(index, rest, head) != Ordering::Greater;
        let covers = |at: &usize| *at < len && is_at(*at) && (*at + 1 == len || !is_at(*at + 1));
        let search = || self.search_rest(rest, head).unwrap_or_else(|at| at.saturating_sub(1));
        near.into_iter().find(covers).unwrap_or_else(search)
    }

    /// The first entry that isn't below `key`, when it is sure that the key belongs among these entries: before the
    /// first one and behind the last, it may belong elsewhere.
    pub(crate) fn seek(&self, key: &[u8]) -> Option<usize> {
        match self.locate(key) {
            Position::Inside(found) => Some(found.unwrap_or_else(|at| at)),
            Position::Before | Position::Behind => None,
        }
    }

    /// As [`Packed::covering`]; also whether the entry behind it, which is above the key, doesn't begin with the first `len`
    /// bytes of that. `None`: there is none behind it.
    pub(crate) fn covering_with(&self, key: &[u8], len: usize) -> (usize, Option<bool>) {
        let sought = Sought::new(self, key);
        let at = self.search_sought(&sought).unwrap_or_else(|at| at.saturating_sub(1));
        let is_last = (at + 1 < self.slots.len()).then(|| !self.begins_as(at + 1, &sought, len));
        (at, is_last)
    }

    /// The first entry that isn't below a key, and whether it begins with the first `len` bytes of that.
    pub(crate) fn first_with(&self, key: &[u8], len: usize) -> (usize, bool) {
        let sought = Sought::new(self, key);
        let at = self.search_sought(&sought).unwrap_or_else(|at| at);
        (at, at < self.slots.len() && self.begins_as(at, &sought, len))
    }

    fn search_sought(&self, sought: &Sought<'_>) -> Result<usize, usize> {
        match sought.rest {
            Some((rest, head)) => self.search_rest(rest, head),
            None => self.search_apart(sought.key),
        }
    }

    /// Whether an entry begins with the first `len` bytes of what is sought. If the heads differ, the heap isn't read, which is
    /// most likely not in the processor's cache.
    #[inline]
    fn begins_as(&self, index: usize, sought: &Sought<'_>, len: usize) -> bool {
        let known = len.saturating_sub(self.start.len()).min(size_of::<u32>());
        let differs = |head: u32| (head ^ self.slots[index].head) & FIRST_BYTES[known] != 0;
        !sought.rest.is_some_and(|(_, head)| differs(head)) && self.begins_with(index, &sought.key[..len])
    }

    /// Whether the key of an entry begins so.
    #[inline(never)]
    fn begins_with(&self, index: usize, start: &[u8]) -> bool {
        match start.strip_prefix(self.prefix()) {
            Some(start) => self.suffix(index).starts_with(start),
            None => self.prefix().starts_with(start),
        }
    }

    /// Whether keys from `first` to `last` belong before an entry that isn't the first, and behind the one before it.
    pub(super) fn is_between(&self, index: usize, first: &[u8], last: &[u8]) -> bool {
        let is_found = |at: usize, key: &[u8], order: Ordering| {
            let rest = key.strip_prefix(self.start.as_slice());
            rest.is_some_and(|rest| self.compare(at, rest, head(rest)) == order)
        };
        let before = index.checked_sub(1).filter(|_| index < self.slots.len());
        before.is_some_and(|before| {
            is_found(before, first, Ordering::Less) && is_found(index, last, Ordering::Greater)
        })
    }

    /// As [`Packed::search`]; says also whether the key certainly belongs to this node.
    pub(crate) fn locate(&self, key: &[u8]) -> Position {
        let found = match key.strip_prefix(self.start.as_slice()) {
            Some(rest) => {
                let (head, len) = (head(rest), self.slots.len());
                match len.checked_sub(1) {
                    // Most keys that don't belong here are behind all entries, which one comparison shows.
                    Some(last) if self.compare(last, rest, head) == Ordering::Less => Err(len),
                    _ => self.search_rest(rest, head),
                }
            }
            None => self.search_apart(key),
        };
        match found {
            Err(at) if at == self.slots.len() => Position::Behind,
            Err(0) => Position::Before,
            found => Position::Inside(found),
        }
    }

    /// As [`Packed::first_from`], where that is most likely the entry at `hint` or the one before.
    pub(crate) fn first_near(&self, suffix: &[u8], hint: usize) -> usize {
        let found = match suffix.strip_prefix(&self.start[self.prefix..]) {
            Some(rest) => {
                let head = head(rest);
                self.near(hint, rest, head).unwrap_or_else(|| self.search_rest(rest, head))
            }
            None => self.search_suffix_apart(suffix),
        };
        found.unwrap_or_else(|at| at)
    }
}
