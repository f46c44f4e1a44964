//! A map that finds the entry of the last look-up without hashing.
//!
//! One message asks for its client half a dozen times, and messages of one client come in runs.

use super::id_map::IdMap;
use core::cell::Cell;
use core::hash::Hash;

pub(crate) struct CachedMap<K, V> {
    index: IdMap<K, usize>,
    entries: Vec<Option<(K, V)>>,
    free: Vec<usize>,
    last: Cell<usize>,
}

impl<K: Copy + Eq + Hash, V> CachedMap<K, V> {
    /// An empty map. `seed` is the context's own.
    pub(crate) fn new(seed: u64) -> Self {
        let index = IdMap::with_hasher(seed.into());
        Self { index, entries: Vec::new(), free: Vec::new(), last: Cell::new(0) }
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    #[inline]
    fn find(&self, key: K) -> Option<usize> {
        let last = self.last.get();
        if matches!(self.entries.get(last), Some(Some((known, _))) if *known == key) {
            return Some(last);
        }
        self.search(key)
    }

    #[cold]
    fn search(&self, key: K) -> Option<usize> {
        let at = *self.index.get(&key)?;
        self.last.set(at);
        Some(at)
    }

    #[inline]
    pub(crate) fn get(&self, key: K) -> Option<&V> {
        self.entries.get(self.find(key)?)?.as_ref().map(|(_, value)| value)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let at = self.find(key)?;
        self.entries.get_mut(at)?.as_mut().map(|(_, value)| value)
    }

    /// Adds an entry, or replaces the one that is there.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        let at = self.find(key).or_else(|| self.free.pop()).unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.entries[at] = Some((key, value));
        self.index.insert(key, at);
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        let at = self.index.remove(&key)?;
        self.free.push(at);
        self.entries.get_mut(at)?.take().map(|(_, value)| value)
    }

    /// All values, in no particular order.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.iter_mut().flatten().map(|(_, value)| value)
    }

    /// All entries, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.entries.iter().flatten().map(|(key, value)| (*key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_holds_what_an_ordered_map_holds(steps in prop::collection::vec((0..3u8, 0..12u64), 0..200)) {
            let mut map = CachedMap::new(3);
            let mut model = BTreeMap::new();
            for (at, (what, key)) in steps.into_iter().enumerate() {
                match what {
                    0 => {
                        map.insert(key, at);
                        model.insert(key, at);
                    }
                    1 => prop_assert_eq!(map.remove(key), model.remove(&key)),
                    _ => prop_assert_eq!(map.get_mut(key).copied(), model.get(&key).copied()),
                }
                prop_assert_eq!((map.get(key), map.len()), (model.get(&key), model.len()));
            }
            let mut all: Vec<_> = map.iter().map(|(key, value)| (key, *value)).collect();
            all.sort_unstable();
            prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        }
    }
}
