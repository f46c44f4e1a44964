//! Used and free room of a range of bytes.

use std::collections::BTreeMap;

/// Room is taken in multiples of this many bytes.
const UNIT: u64 = 64;

/// Free room, by where it begins. No two pieces touch.
#[derive(Debug)]
pub struct Extents {
    free: BTreeMap<u64, u64>,
    size: u64,
    /// The end of what was ever used.
    high: u64,
}

fn room_of(length: u64) -> u64 {
    length.max(1).next_multiple_of(UNIT)
}

impl Extents {
    /// Free room of so many bytes.
    pub fn new(size: u64) -> Self {
        Self { free: BTreeMap::from([(0, size)]), size, high: 0 }
    }

    /// Takes room for so many bytes. `None`: there is none in one piece.
    pub fn take(&mut self, length: u64) -> Option<u64> {
        let room = room_of(length);
        let start = *self.free.iter().find(|(_, free)| **free >= room)?.0;
        self.take_at(start, length).then_some(start)
    }

    /// Takes the room that begins there. False when it is not free.
    pub fn take_at(&mut self, start: u64, length: u64) -> bool {
        let room = room_of(length);
        let Some(end) = start.checked_add(room) else { return false };
        let Some((&first, &free)) = self.free.range(..=start).next_back() else { return false };
        if first + free < end {
            return false;
        }
        self.free.remove(&first);
        if first < start {
            self.free.insert(first, start - first);
        }
        if end < first + free {
            self.free.insert(end, first + free - end);
        }
        self.high = self.high.max(end);
        true
    }

    /// Gives back room that was taken for so many bytes.
    pub fn give(&mut self, mut start: u64, length: u64) {
        let mut room = room_of(length);
        if let Some((&before, &free)) = self.free.range(..start).next_back()
            && before + free == start
        {
            self.free.remove(&before);
            (start, room) = (before, room + free);
        }
        if let Some(behind) = self.free.remove(&(start + room)) {
            room += behind;
        }
        self.free.insert(start, room);
    }

    /// The end of what was used, if nothing is used any more and it is more than `spare`; from then on it counts anew.
    pub fn emptied(&mut self, spare: u64) -> Option<u64> {
        let is_free = self.high > spare && self.free.get(&0) == Some(&self.size);
        is_free.then(|| std::mem::take(&mut self.high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_two_pieces_overlap_and_all_room_comes_back(
            steps in proptest::collection::vec((any::<bool>(), 0_u64..600, any::<prop::sample::Index>()), 1..200),
        ) {
            let size = 8192;
            let mut extents = Extents::new(size);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (takes, length, which) in steps {
                if takes {
                    if let Some(start) = extents.take(length) {
                        let end = start + room_of(length);
                        prop_assert!(end <= size);
                        prop_assert!(taken.iter().all(|(other, len)| end <= *other || other + room_of(*len) <= start));
                        prop_assert!(!extents.take_at(start, length));
                        taken.push((start, length));
                    }
                } else if !taken.is_empty() {
                    let (start, length) = taken.swap_remove(which.index(taken.len()));
                    extents.give(start, length);
                }
                let used: u64 = taken.iter().map(|(_, length)| room_of(*length)).sum();
                prop_assert_eq!(extents.free.values().sum::<u64>() + used, size);
            }
            // Another table that is told what is used finds the same.
            let mut again = Extents::new(size);
            for (start, length) in &taken {
                prop_assert!(again.take_at(*start, *length));
            }
            prop_assert_eq!(&again.free, &extents.free);
            for (start, length) in taken.drain(..) {
                extents.give(start, length);
            }
            prop_assert_eq!(extents.emptied(size), None);
            prop_assert_eq!(extents.take(size), Some(0));
            prop_assert_eq!(extents.emptied(0), None);
            extents.give(0, size);
            prop_assert_eq!(extents.emptied(0), Some(size));
        }
    }
}
