//! A set of blocks of the data region.

use weir_format::blocks::Run;
use weir_format::size::in_memory;

/// One bit for each block.
#[derive(Clone, Debug)]
pub(super) struct BlockSet {
    words: Vec<u64>,
    blocks: u64,
}

impl BlockSet {
    /// An empty set for a region of this many blocks.
    pub(super) fn new(blocks: u64) -> Self {
        let words = in_memory(blocks.div_ceil(64));
        Self { words: vec![0; words], blocks }
    }

    /// Whether the run lies inside the region.
    pub(super) fn has_room_for(&self, run: Run) -> bool {
        run.is_inside(self.blocks)
    }

    fn each(run: Run, mut visit: impl FnMut(usize, u64)) {
        for block in run.block..run.block + run.count {
            visit(in_memory(block / 64), 1 << (block % 64));
        }
    }

    /// Adds a run inside the region and returns how many of its blocks were in the set already.
    pub(super) fn add(&mut self, run: Run) -> u64 {
        let mut there = 0;
        Self::each(run, |word, bit| {
            there += u64::from(self.words[word] & bit != 0);
            self.words[word] |= bit;
        });
        there
    }

    /// Takes out a run inside the region.
    pub(super) fn remove(&mut self, run: Run) {
        Self::each(run, |word, bit| self.words[word] &= !bit);
    }

    /// The 64 blocks from `word * 64` on, the first of which lies inside the region.
    pub(super) fn word(&self, word: u64) -> u64 {
        self.words[in_memory(word)]
    }

    /// Number of blocks in the set.
    #[cfg(test)]
    pub(super) fn len(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_were_there_already_are_counted() {
        let mut set = BlockSet::new(200);
        assert_eq!(set.add(Run { block: 60, count: 10 }), 0);
        assert_eq!(set.add(Run { block: 68, count: 4 }), 2);
        assert_eq!(set.len(), 12);
        set.remove(Run { block: 60, count: 12 });
        assert_eq!((set.len(), set.word(1)), (0, 0));
        assert!(set.has_room_for(Run { block: 199, count: 1 }));
        assert!(!set.has_room_for(Run { block: 199, count: 2 }));
        assert!(!set.has_room_for(Run { block: u64::MAX, count: 2 }));
        assert!(!set.has_room_for(Run { block: 5, count: 0 }));
    }
}
