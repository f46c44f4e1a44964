//! Room for index nodes among data.
//!
//! A node lies in one piece, of up to four blocks, while values of one block may leave free blocks of which no four lie
//! together: with room for thousands of values and none for a node no checkpoint could be written, and nothing could be
//! deleted any more. So free *quads*, four aligned blocks each, are counted. As long as there are enough of them everything
//! goes where it lies best; then data fills what lies between, and updates are refused before the last ones are gone. What
//! a node leaves behind has room for a node again.

use super::{Purpose, Space};
use crate::format::bitmap::{Bits, GROUP_BLOCKS, GROUP_WORDS, whole_quads};
use crate::format::blocks::Run;
use crate::format::size::in_memory;

/// Blocks of a quad: those of the largest node.
pub(super) const QUAD: u64 = 4;
const _: () = assert!(crate::format::node::NODE_BYTES as u64 == QUAD * weir_media::BLOCK as u64);

/// Which free blocks a search may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    All,
    /// Those outside free quads.
    Between,
    /// Free quads.
    Quads,
}

/// Bits with those set that a search doesn't take.
fn seen_by(bits: &Bits, view: View) -> Bits {
    let mut bits = bits.clone();
    for word in bits.0.iter_mut() {
        let free = whole_quads(*word) * 0xf;
        *word = if view == View::Between { *word | free } else { !free };
    }
    bits
}

impl Space {
    /// Free blocks that lie together as the largest node needs them.
    pub(crate) fn node_room(&self) -> u64 {
        self.quads * QUAD
    }

    /// Whether updates may take so many more blocks when as many as `reserved` are to be left for nodes and `dirty` ones
    /// for those that have changed.
    pub(crate) fn has_room(&mut self, blocks: u64, reserved: u64, dirty: u64) -> bool {
        self.kept = reserved + dirty;
        self.least = reserved - reserved / 4 + dirty;
        self.free >= blocks + self.kept && self.node_room() >= self.least
    }

    /// Finds `count` contiguous free blocks within one group, where they do the least harm.
    pub(super) fn find(&mut self, count: u64, purpose: Purpose) -> Option<Run> {
        let left = self.node_room().checked_sub(count.next_multiple_of(QUAD));
        let is_plenty = match purpose {
            Purpose::Data => left.is_some_and(|left| left >= self.kept),
            Purpose::Index => self.node_room() >= 2 * self.kept,
        };
        if is_plenty {
            return self.find_among(count, purpose, View::All);
        }
        let between = self.find_among(count, purpose, View::Between);
        let may_split = purpose == Purpose::Index || left.is_some_and(|left| left >= self.least);
        between.or_else(|| may_split.then(|| self.find_among(count, purpose, View::Quads)).flatten())
    }

    fn find_among(&mut self, count: u64, purpose: Purpose, view: View) -> Option<Run> {
        let cursor = self.cursors[purpose as usize];
        let (first, within, wanted) =
            (in_memory(cursor / GROUP_BLOCKS), in_memory(cursor % GROUP_BLOCKS), in_memory(count));
        let total = self.groups.len();
        // The first group is looked at twice: from the cursor on, and at last from its start.
        for step in 0..=total {
            let index = (first + step) % total;
            let group_len = self.group_len(index);
            let group = &mut self.groups[index];
            let free = match view {
                View::All => group.free,
                View::Between => group.free - group.quads * QUAD,
                View::Quads => group.quads * QUAD,
            };
            if free < count || group.longest < count {
                continue;
            }
            let mut len = group_len;
            if purpose == Purpose::Data {
                len = len.min(in_memory(self.data_end.saturating_sub(index as u64 * GROUP_BLOCKS)));
            }
            let seen;
            let bits = if view == View::All {
                &group.busy
            } else {
                seen = seen_by(&group.busy, view);
                &seen
            };
            let mut at = if step == 0 { within } else { 0 };
            if view == View::Quads {
                at = at.next_multiple_of(in_memory(QUAD));
            }
            let sees_all = view == View::All || view == View::Between && group.quads == 0;
            let (is_whole, mut longest) = (sees_all && at == 0 && len == group_len, 0);
            while let Some((start, found)) = bits.find_clear(at, len, wanted) {
                #[cfg(test)]
                {
                    self.looks += 1;
                }
                if found == wanted {
                    let block = index as u64 * GROUP_BLOCKS + start as u64;
                    self.cursors[purpose as usize] = (block + count) % self.blocks;
                    return Some(Run { block, count });
                }
                at = start + found;
                longest = longest.max(found as u64);
            }
            if is_whole {
                group.longest = longest;
            }
        }
        if purpose == Purpose::Data && (view == View::All || view == View::Between && self.quads == 0) {
            self.longest = self.longest.min(count - 1);
        }
        None
    }
}

const _: () = assert!((GROUP_WORDS as u64 * 64).is_multiple_of(QUAD));

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A region of which every other block is taken, but for the last `left`.
    fn holes(blocks: u64, left: u64) -> Space {
        let mut space = Space::new(blocks, 0);
        let all = space.allocate(blocks - left, Purpose::Data, 1).expect("an empty region")[0];
        for block in (all.block..all.block + all.count).step_by(2) {
            space.release(Run { block, count: 1 });
        }
        space
    }

    #[test]
    fn data_fills_what_lies_between_before_it_takes_what_nodes_need() {
        let mut space = holes(1000, 80);
        assert_eq!((space.free(), space.node_room()), (540, 80));
        assert!(space.has_room(1, 60, 8) && !space.has_room(1, 100, 10), "not 85 blocks in quads");
        assert!(space.has_room(1, 60, 8));
        for _ in 0..460 {
            assert!(space.allocate(1, Purpose::Data, 1).is_some());
            assert!(space.node_room() >= 64, "{} blocks are left", space.node_room());
        }
        // Then as many as are not the last ones.
        while space.allocate(1, Purpose::Data, 1).is_some() {}
        assert!((53..=57).contains(&space.node_room()), "{} blocks are left", space.node_room());
        for _ in 0..space.node_room() / QUAD {
            assert!(space.allocate(4, Purpose::Index, 1).is_some());
        }
        assert!(space.allocate(4, Purpose::Index, 1).is_none());
    }

    #[test]
    fn nodes_take_the_places_of_nodes() {
        let mut space = holes(1000, 40);
        assert!(!space.has_room(1, 100, 0));
        for count in [4, 3, 2, 4, 1, 3] {
            let node = space.allocate(count, Purpose::Index, 1).expect("room")[0];
            let room = space.node_room();
            space.release(node);
            let again = space.allocate(count, Purpose::Index, 1).expect("room");
            assert_eq!((again[0].count, space.node_room()), (count, room));
        }
    }

    proptest! {
        #[test]
        fn free_quads_are_counted(steps in proptest::collection::vec((0u64..3, 1u64..40, any::<prop::sample::Index>()), 1..120)) {
            let blocks = GROUP_BLOCKS + 333;
            let mut space = Space::new(blocks, 0);
            let mut taken: Vec<Run> = Vec::new();
            space.has_room(0, blocks - blocks / 8, 0);
            for (what, count, pick) in steps {
                let purpose = if what == 0 { Purpose::Index } else { Purpose::Data };
                if what == 2 && !taken.is_empty() {
                    space.release(taken.swap_remove(pick.index(taken.len())));
                } else {
                    taken.extend(space.allocate(count, purpose, usize::MAX).unwrap_or_default());
                }
                let is_free = |block: u64| !taken.iter().any(|run| (run.block..run.block + run.count).contains(&block));
                let aligned = (0..blocks / QUAD).filter(|quad| (quad * QUAD..(quad + 1) * QUAD).all(is_free));
                // Groups have whole quads, and only the last one may end within one.
                prop_assert_eq!(space.node_room(), aligned.count() as u64 * QUAD);
            }
        }
    }
}
