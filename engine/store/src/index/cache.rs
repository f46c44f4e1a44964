//! A cache of small values that were written or read lately, so that another read of them needs no device.
//!
//! A value matched its checksum when it was added. It is found by its first block and that checksum together: a block that was
//! reused since holds another value. A writer of a block adds the new value or removes the old one, since two values can have
//! the same checksum. A reader that finds a value here doesn't notice damage on the device, and isn't affected by it; the
//! scrubber reads the device.
//!
//! Each place has a block of one large piece of memory, which its number names: the position of a value follows from its set.
//! The system provides that memory as it is filled, on huge pages if it has them: values are read in any order, and few pages
//! fit the processor's TLB.

use core::cell::{Cell, RefCell};
use core::ops::Range;
use weir_media::{BLOCK, prefetch};
use weir_memory::{Lasting, Mapping};

/// Bytes of a value that are prefetched ahead of its copy. The processor prefetches the rest by itself once it has seen the first
/// lines being read; to prefetch all takes longer on a busy machine.
const HEAD: usize = 512;

/// Values that compete for the same places.
const WAYS: usize = 4;

/// The entries of a set: one line of the processor's cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Set {
    blocks: [u64; WAYS],
    checksums: [u32; WAYS],
    /// Bytes of the value; 0 where there is none.
    lens: [u16; WAYS],
    /// How many of the others were used since. No two are equal, and entries without a value have the greatest.
    ages: [u8; WAYS],
}

const _: () = assert!(size_of::<Set>() == 64 && BLOCK <= u16::MAX as usize);

impl Default for Set {
    fn default() -> Self {
        Self { blocks: [0; WAYS], checksums: [0; WAYS], lens: [0; WAYS], ages: [3, 2, 1, 0] }
    }
}

impl Set {
    fn find(&self, block: u64, checksum: u32) -> Option<usize> {
        let is_here = |way: usize| self.blocks[way] == block && self.checksums[way] == checksum;
        (0..WAYS).find(|way| is_here(*way) && self.lens[*way] > 0)
    }

    /// The place of another value of the same block, or of what was used longest ago.
    fn place(&self, block: u64) -> usize {
        let same = (0..WAYS).find(|way| self.blocks[*way] == block && self.lens[*way] > 0);
        same.or_else(|| (0..WAYS).max_by_key(|way| self.ages[*way])).expect("invariant: a set has ways")
    }

    /// Notes that a place was used.
    fn touch(&mut self, way: usize) {
        let age = self.ages[way];
        self.ages.iter_mut().for_each(|other| *other += u8::from(*other < age));
        self.ages[way] = 0;
    }
}

#[derive(Debug, Default)]
struct Slots {
    sets: Vec<Set>,
    /// The blocks of all places; `None` without any.
    memory: Option<Mapping>,
}

impl Slots {
    fn new(limit: usize) -> Self {
        let sets = limit / (WAYS * BLOCK + size_of::<Set>());
        // Without memory for it there is no cache.
        match Mapping::new(sets * WAYS * BLOCK) {
            Some(memory) => Self { sets: vec![Set::default(); sets], memory: Some(memory) },
            None => Self::default(),
        }
    }

    /// The memory of all places.
    fn memory(&mut self) -> &mut [u8] {
        self.memory.as_mut().map(Lasting::bytes).unwrap_or_default()
    }

    /// The set of a value that begins at this block; `None` when there is no cache.
    fn set(&self, block: u64) -> Option<usize> {
        // Values of consecutive blocks go to consecutive sets, so they fill the sets evenly.
        usize::try_from(block.checked_rem(self.sets.len() as u64)?).ok()
    }

    /// Where the data of a place begins in memory. Places of consecutive sets follow each other, as the blocks of their values
    /// do.
    fn start(&self, set: usize, way: usize) -> usize {
        (way * self.sets.len() + set) * BLOCK
    }

    /// Where the data of a place is.
    fn range(&self, set: usize, way: usize) -> Range<usize> {
        let start = self.start(set, way);
        start..start + usize::from(self.sets[set].lens[way])
    }
}

/// The cache. Without room for a set of values it holds nothing and costs nothing.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    places: RefCell<Slots>,
    bytes: Cell<usize>,
    pub(crate) hits: Cell<u64>,
    pub(crate) misses: Cell<u64>,
}

impl Cache {
    /// A cache that takes at most this many bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { places: RefCell::new(Slots::new(limit)), ..Self::default() }
    }

    /// Bytes of the values it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Prefetches the value with this checksum at this block to the processor's cache, if it is here.
    pub(crate) fn prefetch(&self, block: u64, checksum: u32) {
        let mut places = self.places.borrow_mut();
        let found = places.set(block).and_then(|set| Some((set, places.sets[set].find(block, checksum)?)));
        let Some((set, way)) = found else { return };
        let range = places.range(set, way);
        let value = &places.memory()[range];
        prefetch(&value[..value.len().min(HEAD)]);
    }

    /// Calls `using` with the value with this checksum at this block, and returns what that returns; `None` if it isn't here.
    pub(crate) fn read<T>(
        &self,
        block: u64,
        checksum: u32,
        using: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Option<T> {
        let places = &mut *self.places.borrow_mut();
        let set = places.set(block)?;
        let found = places.sets[set].find(block, checksum).and_then(|way| {
            places.sets[set].touch(way);
            let range = places.range(set, way);
            using(&places.memory()[range])
        });
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.set(counter.get() + 1);
        found
    }

    /// Adds a value of at most a block, in place of another one of the same block.
    pub(crate) fn insert(&self, block: u64, checksum: u32, data: &[u8]) {
        let places = &mut *self.places.borrow_mut();
        let (Some(at), Ok(len)) = (places.set(block), u16::try_from(data.len())) else { return };
        if data.is_empty() || data.len() > BLOCK {
            return;
        }
        let set = &mut places.sets[at];
        let way = set.place(block);
        self.bytes.set(self.bytes.get() + data.len() - usize::from(set.lens[way]));
        (set.blocks[way], set.checksums[way], set.lens[way]) = (block, checksum, len);
        set.touch(way);
        let range = places.range(at, way);
        places.memory()[range].copy_from_slice(data);
    }

    /// Removes the value of a block that is written with something else.
    pub(crate) fn forget(&self, block: u64) {
        let places = &mut *self.places.borrow_mut();
        let Some(at) = places.set(block) else { return };
        let set = &mut places.sets[at];
        for way in (0..WAYS).filter(|way| set.blocks[*way] == block) {
            self.bytes.set(self.bytes.get() - usize::from(set.lens[way]));
            set.lens[way] = 0;
        }
    }

    /// Flips a bit of every byte.
    #[cfg(test)]
    pub(crate) fn alter(&self) {
        self.places.borrow_mut().memory().iter_mut().for_each(|byte| *byte ^= 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a cache with so many sets.
    const fn room(sets: usize) -> usize {
        sets * (WAYS * BLOCK + size_of::<Set>())
    }

    fn read(cache: &Cache, block: u64, checksum: u32) -> Option<Vec<u8>> {
        cache.read(block, checksum, |data| Some(data.to_vec()))
    }

    #[test]
    fn a_value_is_found_by_its_block_and_checksum_until_others_need_the_place() {
        let cache = Cache::new(room(2));
        cache.insert(4, 99, b"weir");
        cache.prefetch(4, 99);
        assert_eq!(read(&cache, 4, 99).as_deref(), Some(&b"weir"[..]));
        assert_eq!(read(&cache, 4, 98), None, "another value of the same block");
        assert_eq!(cache.read(4, 99, |_| None::<()>), None, "of no use");
        assert_eq!((cache.hits.get(), cache.misses.get(), cache.bytes()), (1, 2, 4));
        cache.insert(4, 98, b"dam");
        assert_eq!(read(&cache, 4, 99), None, "the block holds another value by now");
        assert_eq!(cache.bytes(), 3);
        for block in 1..=3u64 {
            cache.insert(4 + 2 * block, 1, b"other");
        }
        assert!(read(&cache, 4, 98).is_some(), "there is room for all of them");
        cache.insert(12, 1, b"other");
        assert_eq!(read(&cache, 6, 1), None, "the one used longest ago went");
        assert!(
            [4, 8, 10, 12]
                .into_iter()
                .all(|block| read(&cache, block, if block == 4 { 98 } else { 1 }).is_some())
        );
        assert_eq!(cache.bytes(), 18);
    }

    #[test]
    fn each_value_has_memory_of_its_own_within_the_limit() {
        let cache = Cache::new(room(3));
        let places = 3 * WAYS as u64;
        let value = |block: u64| vec![u8::try_from(block).expect("few"); BLOCK];
        for block in 0..places {
            cache.insert(block, 7, &value(block));
        }
        assert!((0..places).all(|block| read(&cache, block, 7) == Some(value(block))));
        assert_eq!(cache.bytes(), 3 * WAYS * BLOCK);
        let mut held = cache.places.borrow_mut();
        assert!(held.memory().len() + size_of_val(&held.sets[..]) <= room(3));
        assert!(held.memory().as_ptr().addr().is_multiple_of(BLOCK));
    }

    #[test]
    fn what_a_block_held_is_forgotten_when_it_is_written_with_something_else() {
        let cache = Cache::new(room(2));
        cache.insert(4, 99, b"weir");
        cache.insert(6, 99, b"dam");
        cache.forget(4);
        assert_eq!(read(&cache, 4, 99), None, "another value may have that checksum, too");
        assert_eq!(read(&cache, 6, 99).as_deref(), Some(&b"dam"[..]));
        cache.forget(4);
        cache.forget(8);
        assert_eq!(cache.bytes(), 3);
    }

    #[test]
    fn without_room_there_is_no_cache() {
        let cache = Cache::new(room(1) - 1);
        cache.insert(1, 1, b"weir");
        cache.prefetch(1, 1);
        assert_eq!(read(&cache, 1, 1), None);
        assert_eq!((cache.misses.get(), cache.bytes()), (0, 0));
    }

    #[test]
    fn what_is_no_small_value_is_not_kept() {
        let cache = Cache::new(room(1));
        cache.insert(1, 1, &[1; BLOCK + 1]);
        cache.insert(2, 0, b"");
        assert_eq!((read(&cache, 1, 1), read(&cache, 2, 0), cache.bytes()), (None, None, 0));
    }
}
