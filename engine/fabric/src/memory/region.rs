//! Huge pages that the buffers of a pool share.
//!
//! A peer's kernel has to find and hold each page of memory that it copies from or to, which on `shm` takes two thirds of
//! the time of a copy on pages of 4 KiB. So buffers that are large enough to be moved by RMA lie together on huge pages, those
//! of all sizes side by side, so that few of them are touched.
#![expect(unsafe_code, reason = "addresses within a mapping")]

use core::cell::{Cell, RefCell};
use core::ptr::NonNull;
use std::rc::{Rc, Weak};
use weir_memory::{HUGE, Mapping};

/// Bytes of the smallest part of a region: one in 64, and more than what is sent as a message.
pub(crate) const PART: usize = HUGE / 64;

/// Parts of a region.
const PARTS: usize = HUGE / PART;

/// A huge page, and which of its parts are free.
struct Region {
    mapping: Mapping,
    /// A bit for each.
    free: Cell<u64>,
}

impl Region {
    fn new() -> Option<Rc<Self>> {
        Some(Rc::new(Self { mapping: Mapping::new(HUGE)?, free: Cell::new(u64::MAX) }))
    }

    /// The bits of `count` parts, a power of two, that lie at a multiple of it and are free.
    fn find(&self, count: usize) -> Option<u64> {
        let first = u64::MAX >> (PARTS - count);
        (0..PARTS).step_by(count).map(|at| first << at).find(|bits| self.free.get() & bits == *bits)
    }
}

/// Some of a region's bytes, for one user.
pub(crate) struct Block {
    region: Rc<Region>,
    bits: u64,
}

impl Block {
    /// Where it begins; the bytes are initialised, with anything, and stay while the block lives.
    pub(crate) fn start(&self) -> NonNull<u8> {
        let at = PART * self.bits.trailing_zeros() as usize;
        // SAFETY: no bit is beyond the region's parts.
        unsafe { self.region.mapping.start().add(at) }
    }

    /// Bytes of it.
    pub(crate) fn len(&self) -> usize {
        PART * self.bits.count_ones() as usize
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.region.free.set(self.region.free.get() | self.bits);
    }
}

/// The regions of a pool. Each goes back to the system with its last block.
pub(crate) struct Regions {
    max: usize,
    /// The oldest first.
    held: RefCell<Vec<Weak<Region>>>,
}

impl Regions {
    /// No more than fit into so many bytes.
    pub(crate) fn within(bytes: usize) -> Self {
        Self { max: bytes / HUGE, held: RefCell::default() }
    }

    /// A block of `len` bytes, a power of two between [`PART`] and [`HUGE`]; `None` when no region has room for it.
    pub(crate) fn take(&self, len: usize) -> Option<Block> {
        if !len.is_power_of_two() || !(PART..=HUGE).contains(&len) {
            return None;
        }
        let held = &mut *self.held.borrow_mut();
        held.retain(|region| region.strong_count() > 0);
        // In the oldest that has room: the youngest are free of blocks first.
        let found = held.iter().find_map(|region| {
            let region = region.upgrade()?;
            Some((region.find(len / PART)?, region))
        });
        let (bits, region) = match found {
            Some(found) => found,
            None if held.len() < self.max => {
                let region = Region::new()?;
                held.push(Rc::downgrade(&region));
                (region.find(len / PART)?, region)
            }
            None => return None,
        };
        region.free.set(region.free.get() & !bits);
        Some(Block { region, bits })
    }

    /// Bytes that they take, used or not.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        HUGE * self.held.borrow().iter().filter(|region| region.strong_count() > 0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_all_sizes_share_a_region_and_never_overlap() {
        let regions = Regions::within(2 * HUGE);
        let sizes = [PART, HUGE / 2, 4 * PART, HUGE / 4, PART, 2 * PART];
        let mut blocks: Vec<_> = sizes.map(|size| regions.take(size).expect("room")).into_iter().collect();
        assert_eq!(
            (blocks.iter().map(Block::len).collect::<Vec<_>>(), regions.bytes()),
            (sizes.to_vec(), HUGE)
        );
        for (block, size) in blocks.iter().zip(sizes) {
            assert!(block.start().addr().get().is_multiple_of(size));
        }
        blocks.sort_by_key(Block::start);
        let ends = blocks.iter().map(|block| block.start().addr().get() + block.len());
        assert!(ends.zip(&blocks[1..]).all(|(end, next)| end <= next.start().addr().get()));
    }

    #[test]
    fn there_are_no_more_than_so_many_and_each_goes_with_its_last_block() {
        let regions = Regions::within(2 * HUGE + PART);
        let mut blocks: Vec<_> = (0..4).map(|_| regions.take(HUGE / 2).expect("room")).collect();
        assert!(regions.take(PART).is_none());
        drop(blocks.remove(0));
        let small = regions.take(PART).expect("where the block was");
        assert!(regions.take(HUGE / 2).is_none() && regions.bytes() == 2 * HUGE);
        blocks.remove(0);
        assert_eq!(regions.bytes(), 2 * HUGE);
        drop(small);
        assert_eq!(regions.bytes(), HUGE);
        drop(blocks);
        assert_eq!(regions.bytes(), 0);
        assert_eq!(regions.take(HUGE).map(|block| block.len()), Some(HUGE));
    }

    #[test]
    fn other_sizes_are_refused() {
        let regions = Regions::within(4 * HUGE);
        assert!([0, PART / 2, 3 * PART, 2 * HUGE].into_iter().all(|len| regions.take(len).is_none()));
    }
}
