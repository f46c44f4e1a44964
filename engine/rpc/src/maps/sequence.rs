//! A map by numbers that are given out one after another, nearly all of which are recent.
//!
//! A number's place is its lowest bits, so that finding it takes one comparison. An old one whose place is wanted by a
//! newer one makes the list grow, up to a bound; what collides then stands in an ordinary map.

use super::id_map::IdMap;

/// Places when there is the first entry.
const PLACES_MIN: usize = 4;

/// Most places: the requests that a busy context has under way, several times over.
const PLACES_MAX: usize = 1024;

pub(crate) struct SequenceMap<T> {
    /// As many as a power of two, or none.
    places: Vec<Option<(u64, T)>>,
    others: IdMap<u64, T>,
    len: usize,
}

impl<T> SequenceMap<T> {
    /// An empty map; `seed` is the context's own.
    pub(crate) fn new(seed: u64) -> Self {
        Self { places: Vec::new(), others: IdMap::with_hasher(seed.into()), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn place(&self, number: u64) -> usize {
        // The mask leaves no bit that doesn't fit.
        usize::try_from(number & (self.places.len() as u64).wrapping_sub(1)).unwrap_or(0)
    }

    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        match self.places.get(self.place(number)) {
            Some(Some((known, entry))) if *known == number => Some(entry),
            _ if self.others.is_empty() => None,
            _ => self.others.get(&number),
        }
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let place = self.place(number);
        match self.places.get_mut(place) {
            Some(Some((known, entry))) if *known == number => Some(entry),
            _ if self.others.is_empty() => None,
            _ => self.others.get_mut(&number),
        }
    }

    /// Adds an entry, made where it stays, under a number that is free; `false` when the number is taken.
    #[inline]
    pub(crate) fn insert_with(&mut self, number: u64, entry: impl FnOnce() -> T) -> bool {
        if self.get(number).is_some() {
            return false;
        }
        self.len += 1;
        while self.is_taken(number) && self.places.len() < PLACES_MAX {
            self.grow();
        }
        let place = self.place(number);
        match self.places.get_mut(place) {
            Some(free @ None) => *free = Some((number, entry())),
            _ => drop(self.others.insert(number, entry())),
        }
        true
    }

    /// Puts an entry, made where it stays, in the place of the one that there may be.
    #[inline]
    pub(crate) fn replace_with(&mut self, number: u64, entry: impl FnOnce() -> T) {
        let place = self.place(number);
        match self.places.get_mut(place) {
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
        self.places.get(self.place(number)).is_none_or(Option::is_some)
    }

    /// Two that had different places have them still.
    fn grow(&mut self) {
        let places = (2 * self.places.len()).max(PLACES_MIN);
        let before = core::mem::replace(&mut self.places, (0..places).map(|_| None).collect());
        for (number, entry) in before.into_iter().flatten() {
            let place = self.place(number);
            self.places[place] = Some((number, entry));
        }
    }

    /// Drops an entry where it is. Returns whether there was one.
    pub(crate) fn discard(&mut self, number: u64) -> bool {
        self.discard_with(number, |_| ()).is_some()
    }

    /// Drops an entry where it is, behind a last look at it. `None`: there is none.
    #[inline]
    pub(crate) fn discard_with<R>(&mut self, number: u64, look: impl FnOnce(&mut T) -> R) -> Option<R> {
        let place = self.place(number);
        let seen = match self.places.get_mut(place) {
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

    /// All entries, in no order that means anything.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let recent = self.places.iter().flatten().map(|(number, entry)| (*number, entry));
        recent.chain(self.others.iter().map(|(number, entry)| (*number, entry)))
    }

    /// All entries, in no order that means anything.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().flatten().map(|(_, entry)| entry).chain(self.others.values_mut())
    }

    /// Takes everything out.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        self.len = 0;
        let recent = core::mem::take(&mut self.places).into_iter().flatten().map(|(_, entry)| entry);
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
        assert!(map.places.len() <= PLACES_MAX);
        assert_eq!((map.get(0), map.len()), (Some(&0), 1));
    }

    proptest! {
        #[test]
        fn it_holds_what_an_ordered_map_holds(steps in prop::collection::vec((0..4u8, 0..6000u64), 0..400)) {
            let mut map = SequenceMap::new(7);
            let mut model = BTreeMap::new();
            for (at, (what, number)) in steps.into_iter().enumerate() {
                // Numbers that fall on the same few places, so that many collide.
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
