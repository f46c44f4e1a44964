//! A map by ascending numbers, nearly all of which are recent.
//!
//! The slot of a number is given by its lowest bits, so that a look-up takes one comparison. When a newer number
//! collides with an old one the list grows, up to a bound; numbers that still collide are kept in an ordinary
//! map.

use super::id_map::IdMap;

/// Slots for the first entry.
const SLOTS_MIN: usize = 4;

/// Most slots: several times the requests that a busy context has in flight.
const SLOTS_MAX: usize = 1024;

pub(crate) struct SequenceMap<T> {
    /// Their number is a power of two, or 0.
    slots: Vec<Option<(u64, T)>>,
    others: IdMap<u64, T>,
    len: usize,
}

impl<T> SequenceMap<T> {
    /// An empty map. `seed` is the context's own.
    pub(crate) fn new(seed: u64) -> Self {
        Self { slots: Vec::new(), others: IdMap::with_hasher(seed.into()), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn slot(&self, number: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "the mask leaves no bit that doesn't fit")]
        let slot = (number & (self.slots.len() as u64).wrapping_sub(1)) as usize;
        slot
    }

    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        match self.slots.get(self.slot(number)) {
            Some(Some((known, entry))) if *known == number => Some(entry),
            _ if self.others.is_empty() => None,
            _ => self.others.get(&number),
        }
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let slot = self.slot(number);
        match self.slots.get_mut(slot) {
            Some(Some((known, entry))) if *known == number => Some(entry),
            _ if self.others.is_empty() => None,
            _ => self.others.get_mut(&number),
        }
    }

    /// Adds an entry, constructed in place, under a free number. Returns `false` when the number is taken.
    #[inline]
    pub(crate) fn insert_with(&mut self, number: u64, entry: impl FnOnce() -> T) -> bool {
        if self.get(number).is_some() {
            return false;
        }
        self.len += 1;
        while self.is_taken(number) && self.slots.len() < SLOTS_MAX {
            self.grow();
        }
        let slot = self.slot(number);
        match self.slots.get_mut(slot) {
            Some(free @ None) => *free = Some((number, entry())),
            _ => drop(self.others.insert(number, entry())),
        }
        true
    }

    /// Adds an entry, constructed in place, or replaces the one that is there.
    #[inline]
    pub(crate) fn replace_with(&mut self, number: u64, entry: impl FnOnce() -> T) {
        let slot = self.slot(number);
        match self.slots.get_mut(slot) {
            Some(free @ None) if self.others.is_empty() => {
                *free = Some((number, entry()));
                self.len += 1;
            }
            _ => {
                self.discard(number);
                self.insert_with(number, entry);
            }
        }
    }

    fn is_taken(&self, number: u64) -> bool {
        self.slots.get(self.slot(number)).is_none_or(Option::is_some)
    }

    /// Numbers in different slots stay in different slots.
    fn grow(&mut self) {
        let slots = (2 * self.slots.len()).max(SLOTS_MIN);
        let before = core::mem::replace(&mut self.slots, (0..slots).map(|_| None).collect());
        for (number, entry) in before.into_iter().flatten() {
            let slot = self.slot(number);
            self.slots[slot] = Some((number, entry));
        }
    }

    /// Drops an entry in place. Returns whether there was one.
    pub(crate) fn discard(&mut self, number: u64) -> bool {
        self.discard_with(number, |_| ()).is_some()
    }

    /// Drops an entry in place, after `look` has seen it. `None`: there is none.
    #[inline]
    pub(crate) fn discard_with<R>(&mut self, number: u64, look: impl FnOnce(&mut T) -> R) -> Option<R> {
        let slot = self.slot(number);
        let seen = match self.slots.get_mut(slot) {
            Some(slot @ Some(_)) if slot.as_ref().is_some_and(|(known, _)| *known == number) => {
                let seen = slot.as_mut().map(|(_, entry)| look(entry));
                *slot = None;
                seen
            }
            _ if self.others.is_empty() => None,
            _ => self.others.remove(&number).map(|mut entry| look(&mut entry)),
        };
        self.len -= usize::from(seen.is_some());
        seen
    }

    /// All entries, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let recent = self.slots.iter().flatten().map(|(number, entry)| (*number, entry));
        recent.chain(self.others.iter().map(|(number, entry)| (*number, entry)))
    }

    /// All entries, in no particular order.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten().map(|(_, entry)| entry).chain(self.others.values_mut())
    }

    /// Removes all entries.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        self.len = 0;
        let recent = core::mem::take(&mut self.slots).into_iter().flatten().map(|(_, entry)| entry);
        recent.chain(self.others.drain().map(|(_, entry)| entry)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn one_old_number_makes_the_list_grow_no_further_than_its_bound() {
        let mut map = SequenceMap::new(1);
        map.insert_with(0, || 0);
        for number in 1..10_000u64 {
            assert!(map.insert_with(number, || number) && map.discard(number));
        }
        assert!(map.slots.len() <= SLOTS_MAX);
        assert_eq!((map.get(0), map.len()), (Some(&0), 1));
    }

    proptest! {
        #[test]
        fn it_holds_what_an_ordered_map_holds(steps in prop::collection::vec((0..4u8, 0..6000u64), 0..400)) {
            let mut map = SequenceMap::new(7);
            let mut model = BTreeMap::new();
            for (at, (what, number)) in steps.into_iter().enumerate() {
                // Numbers that share few slots, so that many collide.
                let number = number / 8 * 1024 + number % 8;
                match what {
                    0 => {
                        prop_assert_eq!(map.insert_with(number, || at), !model.contains_key(&number));
                        model.entry(number).or_insert(at);
                    }
                    1 => {
                        map.replace_with(number, || at);
                        model.insert(number, at);
                    }
                    2 => prop_assert_eq!(map.discard(number), model.remove(&number).is_some()),
                    _ => prop_assert_eq!(map.get_mut(number).map(|entry| *entry), model.get(&number).copied()),
                }
                prop_assert_eq!((map.get(number), map.len()), (model.get(&number), model.len()));
            }
            let mut all: Vec<_> = map.iter().map(|(number, entry)| (number, *entry)).collect();
            all.sort_unstable();
            prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
            let len = map.len();
            prop_assert_eq!(map.values_mut().count(), len);
            prop_assert_eq!(map.drain().len(), len);
        }
    }
}
