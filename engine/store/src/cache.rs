//! Small values that were written or read lately, so that asking for them again takes no device.
//!
//! What is in here matched its checksum when it was taken in, and is found by its first block and that checksum
//! together: a block that was given out again since holds another value. Rot on the device is not seen by a reader who
//! finds the value here, and does him no harm; the scrubber reads the device.

use core::cell::{Cell, RefCell};
use weir_media::BLOCK;

/// Values that compete for the same places.
const WAYS: usize = 4;

/// Places of the cache beside their data: block, checksum, time of use, and where the data is.
const PLACE_BYTES: usize = 64;

#[derive(Debug, Default)]
struct Place {
    block: u64,
    checksum: u32,
    /// When it was used last; 0: nothing is here.
    used: u64,
    data: Box<[u8]>,
}

/// The cache. Without room for a set of values it holds nothing and costs nothing.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    places: RefCell<Vec<Place>>,
    now: Cell<u64>,
    bytes: Cell<usize>,
    pub(crate) hits: Cell<u64>,
    pub(crate) misses: Cell<u64>,
}

impl Cache {
    /// A cache that takes at most this many bytes.
    pub(crate) fn new(limit: usize) -> Self {
        let sets = limit / ((BLOCK + PLACE_BYTES) * WAYS);
        let places = (0..sets * WAYS).map(|_| Place::default()).collect();
        Self { places: RefCell::new(places), ..Self::default() }
    }

    /// Bytes of the values it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    fn tick(&self) -> u64 {
        self.now.set(self.now.get() + 1);
        self.now.get()
    }

    /// Where a value that begins at this block may be; nothing when there is no cache.
    fn set(places: &mut [Place], block: u64) -> &mut [Place] {
        let sets = (places.len() / WAYS) as u64;
        if sets == 0 {
            return &mut [];
        }
        // Neighbours come one behind the other, so they fill the sets evenly.
        let first = usize::try_from(block % sets).unwrap_or(0) * WAYS;
        &mut places[first..first + WAYS]
    }

    /// Copies bytes of the value with this checksum at this block, from `from` of it on, to `into`. Returns whether it
    /// was here.
    pub(crate) fn read(&self, block: u64, checksum: u32, from: usize, into: &mut [u8]) -> bool {
        let places = &mut *self.places.borrow_mut();
        if places.is_empty() {
            return false;
        }
        let found = Self::set(places, block)
            .iter_mut()
            .find(|place| place.used > 0 && (place.block, place.checksum) == (block, checksum));
        let data = found.and_then(|place| {
            place.used = self.tick();
            place.data.get(from..from.checked_add(into.len())?)
        });
        let counter = if data.is_some() { &self.hits } else { &self.misses };
        counter.set(counter.get() + 1);
        match data {
            Some(data) => {
                into.copy_from_slice(data);
                true
            }
            None => false,
        }
    }

    /// Takes in a value of at most a block. What was known of the block is forgotten.
    pub(crate) fn insert(&self, block: u64, checksum: u32, data: &[u8]) {
        let places = &mut *self.places.borrow_mut();
        let set = Self::set(places, block);
        let same = set.iter().position(|place| place.used > 0 && place.block == block);
        let place = same.or_else(|| (0..set.len()).min_by_key(|at| set[*at].used));
        let Some(place) = place.and_then(|at| set.get_mut(at)) else { return };
        self.bytes.set(self.bytes.get() + data.len() - place.data.len());
        if place.data.len() == data.len() {
            place.data.copy_from_slice(data);
        } else {
            place.data = data.into();
        }
        (place.block, place.checksum, place.used) = (block, checksum, self.tick());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: usize = (BLOCK + PLACE_BYTES) * WAYS;

    #[test]
    fn a_value_is_found_by_its_block_and_checksum_until_others_need_the_place() {
        let cache = Cache::new(2 * SET);
        cache.insert(4, 99, b"weir");
        let mut into = [0; 2];
        assert!(cache.read(4, 99, 1, &mut into));
        assert_eq!(&into, b"ei");
        assert!(!cache.read(4, 98, 1, &mut into), "another value of the same block");
        assert!(!cache.read(4, 99, 3, &mut into), "behind its end");
        assert_eq!((cache.hits.get(), cache.misses.get(), cache.bytes()), (1, 2, 4));
        cache.insert(4, 98, b"dam");
        assert!(!cache.read(4, 99, 0, &mut into), "the block holds another value by now");
        for block in 1..=4u64 {
            cache.insert(4 + 2 * block, 1, b"other");
        }
        assert!(!cache.read(4, 98, 0, &mut into), "the one used longest ago went");
        assert!(cache.read(6, 1, 0, &mut into) && cache.bytes() == 20);
    }

    #[test]
    fn without_room_there_is_no_cache() {
        let cache = Cache::new(SET - 1);
        cache.insert(1, 1, b"weir");
        assert!(!cache.read(1, 1, 0, &mut [0; 4]));
        assert_eq!((cache.misses.get(), cache.bytes()), (0, 0));
    }
}
