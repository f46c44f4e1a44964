//! Live bits that were derived from the index, in place of stored ones that are damaged.

use super::Space;
use crate::format::bitmap::Bits;

impl Space {
    /// Takes over the blocks that the index was found to refer to. Where `is_whole`, that is all of them, as the stored bits of
    /// all groups should say. Otherwise nobody knows whose the other blocks of the groups `damaged` (ascending) are: they are
    /// taken for live, so that none is given out that somebody has. Returns how many these are. The next checkpoint stores what
    /// differs.
    pub(crate) fn derive(&mut self, found: &Self, damaged: &[usize], is_whole: bool) -> u64 {
        let mut withheld = 0;
        for index in 0..self.groups.len() {
            let (len, is_damaged) = (self.group_len(index), damaged.binary_search(&index).is_ok());
            let mut live = Bits::clone(&found.groups[index].live);
            if !is_whole && is_damaged {
                withheld += live.set(0, len).0;
            } else if !is_whole {
                live.add(&self.groups[index].live);
            }
            if is_damaged || live != *self.groups[index].live {
                self.load(index, live);
                self.mark_dirty(index);
            }
        }
        withheld
    }
}

#[cfg(test)]
mod tests {
    use super::super::{GROUP_BLOCKS, Purpose, Run};
    use super::*;

    fn run(block: u64, count: u64) -> Run {
        Run { block, count }
    }

    /// A region of two groups and a part, in which these are live.
    fn space(live: &[Run]) -> Space {
        let mut space = Space::new(2 * GROUP_BLOCKS + 100, 0);
        for run in live {
            space.set_live(*run);
        }
        space.freeze();
        space
    }

    fn stored_next(space: &mut Space) -> Vec<usize> {
        space.freeze().into_iter().map(|(index, _)| index).collect()
    }

    #[test]
    fn the_whole_index_says_what_is_live_in_every_group() {
        let mut stored = space(&[run(5, 5), run(GROUP_BLOCKS, 9)]);
        let found = space(&[run(5, 5), run(GROUP_BLOCKS + 3, 2), run(2 * GROUP_BLOCKS, 7)]);
        assert_eq!(stored.derive(&found, &[2], true), 0);
        assert_eq!((stored.live(), stored.free()), (found.live(), found.free()));
        assert_eq!(stored_next(&mut stored), [1, 2]);
        for live in [run(5, 5), run(GROUP_BLOCKS + 3, 2), run(2 * GROUP_BLOCKS, 7)] {
            assert!(stored.marks().is_live(live));
        }
    }

    #[test]
    fn what_a_part_of_the_index_leaves_open_is_not_given_out() {
        let mut stored = space(&[run(5, 5), run(GROUP_BLOCKS, 9)]);
        let found = space(&[run(7, 9), run(2 * GROUP_BLOCKS, 7)]);
        assert_eq!(stored.derive(&found, &[2], false), 93, "blocks of the last group");
        assert_eq!(stored.live(), 11 + 9 + 100);
        assert!(stored.marks().is_live(run(5, 11)) && stored.marks().is_live(run(2 * GROUP_BLOCKS, 100)));
        let free = stored.free();
        let all = stored.allocate(free, Purpose::Data, usize::MAX).expect("all that is free");
        assert!(all.iter().all(|run| run.block + run.count <= 2 * GROUP_BLOCKS));
    }
}
