//! Blocks of the data region: who has them, and when they can be given out again.
//!
//! Two bits for each block. *Live*: the index refers to it; this is what a checkpoint stores. *Busy*: it can't be
//! given out, because it is live, or reserved by an update that isn't committed, or was freed by a record that isn't
//! durable or while a reader may still be reading it.

mod derived;
mod frozen;
mod holes;
mod quads;

pub(crate) use holes::SEGMENT;

use crate::format::bitmap::Bits;
use crate::format::bitmap::GROUP_BLOCKS;
use crate::format::bitmap::GROUP_WORDS;
use crate::format::blocks::Run;
use crate::format::blocks::Runs;
use crate::format::size::in_memory;
use crate::space::deferral::Deferral;
use core::cell::Cell;
use std::rc::Rc;
use weir_media::BLOCK;
use weir_proto::limits::PAYLOAD_MAX;

/// Free blocks one behind the other that are enough for any value: beyond it isn't counted how many there are.
const LONG_BLOCKS: u64 = PAYLOAD_MAX / BLOCK as u64;

/// What blocks are wanted for. Data and index grow from different places, so that large values stay contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Data,
    Index,
}

#[derive(Debug, Default)]
struct Group {
    live: Rc<Bits>,
    busy: Bits,
    /// Blocks that aren't busy.
    free: u64,
    /// Quads of which no block is busy.
    quads: u64,
    /// No more free blocks than this lie one behind the other.
    longest: u64,
    /// How its free blocks are spread, if that was counted since it has changed.
    scatter: Cell<Option<holes::OfGroup>>,
    /// Live bits changed since the last checkpoint began.
    dirty: bool,
}

impl Group {
    /// Makes blocks busy. Returns how many weren't, and in how many quads of which none was.
    fn reserve(&mut self, from: usize, to: usize) -> (u64, u64) {
        let (taken, gone) = self.busy.set(from, to);
        if taken > 0 {
            self.scatter.set(None);
            (self.free, self.quads) = (self.free - taken, self.quads - gone);
        }
        debug_assert!(
            self.is_counted(),
            "{} free blocks and {} free quads are counted",
            self.free,
            self.quads
        );
        (taken, gone)
    }

    /// Whether the numbers of free blocks and free quads are those that the bits say.
    fn is_counted(&self) -> bool {
        let end = GROUP_WORDS * 64;
        self.free == self.busy.clear_count(0, end) && self.quads == self.busy.quads(0, end)
    }
}

/// Which blocks are live, as of one moment.
#[derive(Debug)]
pub(crate) struct Marks {
    blocks: u64,
    groups: Vec<Rc<Bits>>,
}

impl Marks {
    /// Whether all blocks of a run are marked as live.
    pub(crate) fn is_live(&self, run: Run) -> bool {
        let mut live = run.is_inside(self.blocks);
        if live {
            Space::for_groups(run, |group, from, to| {
                live = live && self.groups[group].clear_count(from, to) == 0;
            });
        }
        live
    }
}

/// All blocks of the data region.
#[derive(Debug)]
pub(crate) struct Space {
    blocks: u64,
    /// Data goes to blocks below this one only. Behind it are index nodes alone, all of a few blocks, so that there
    /// is always room for more of them.
    data_end: u64,
    groups: Vec<Group>,
    /// Blocks that aren't busy.
    free: u64,
    /// Quads of which no block is busy.
    quads: u64,
    /// Free blocks in quads below which data fills what lies between.
    kept: u64,
    /// Those below which data takes none of them.
    least: u64,
    live: u64,
    /// No more free blocks than this lie one behind the other where data goes to: what is longer isn't searched for.
    longest: u64,
    /// Where the search for blocks starts, for each purpose.
    cursors: [u64; 2],
    /// Pieces of free blocks that were looked at.
    #[cfg(test)]
    looks: u64,
    /// Data extents that were freed.
    data: Deferral,
    /// Index nodes that a checkpoint left behind.
    nodes: Deferral,
    /// Free blocks that aren't given out, because what is around them is being moved away.
    held: Vec<Run>,
    /// Live bits as of the moment at which a checkpoint began that is still finding its places.
    frozen: Option<frozen::Frozen>,
}

impl Space {
    /// A region of this many blocks, all free, the last `index_zone` of which are not for data.
    pub(crate) fn new(blocks: u64, index_zone: u64) -> Self {
        let count = in_memory(blocks.div_ceil(GROUP_BLOCKS));
        let mut space = Self {
            blocks,
            data_end: blocks.saturating_sub(index_zone),
            groups: (0..count).map(|_| Group::default()).collect(),
            free: 0,
            quads: 0,
            kept: 0,
            least: 0,
            live: 0,
            longest: GROUP_BLOCKS,
            #[cfg(test)]
            looks: 0,
            cursors: [0, blocks.saturating_sub(index_zone).min(blocks - 1)],
            data: Deferral::default(),
            nodes: Deferral::default(),
            held: Vec::new(),
            frozen: None,
        };
        for group in 0..count {
            space.load(group, Bits::default());
        }
        space
    }

    /// Number of groups.
    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Blocks of a group: the last one may be shorter.
    fn group_len(&self, group: usize) -> usize {
        let start = group as u64 * GROUP_BLOCKS;
        in_memory((self.blocks - start).min(GROUP_BLOCKS))
    }

    /// Replaces the live bits of a group by what a checkpoint stored.
    pub(crate) fn load(&mut self, index: usize, live: Bits) {
        let len = self.group_len(index);
        let group = &mut self.groups[index];
        self.free -= group.free;
        self.quads -= group.quads;
        self.live -= group.live.count();
        let mut busy = live.clone();
        // Bits behind the end of the region can never be given out.
        busy.set(len, GROUP_WORDS * 64);
        group.free = GROUP_BLOCKS - busy.count();
        group.quads = busy.quads(0, GROUP_WORDS * 64);
        group.longest = busy.longest_clear(len) as u64;
        self.longest = self.longest.max(group.longest);
        group.scatter.set(None);
        group.live = Rc::new(live);
        group.busy = busy;
        self.free += group.free;
        self.quads += group.quads;
        self.live += group.live.count();
    }

    /// Has the next checkpoint store the bits of a group even if they don't change.
    pub(crate) fn mark_dirty(&mut self, group: usize) {
        self.groups[group].dirty = true;
    }

    /// Blocks that can be given out now.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Blocks that the index refers to, its own nodes included.
    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    /// Blocks that were freed and can be given out once durable and unread.
    #[cfg(test)]
    pub(crate) fn deferred(&self) -> u64 {
        self.data.blocks()
    }

    /// Which blocks are live now.
    pub(crate) fn marks(&self) -> Marks {
        Marks {
            blocks: self.blocks,
            groups: self.groups.iter().map(|group| Rc::clone(&group.live)).collect(),
        }
    }

    /// Whether the run lies inside the region.
    pub(crate) fn contains(&self, run: Run) -> bool {
        run.is_inside(self.blocks)
    }

    /// Calls `each` for the part of the run in each group it touches.
    fn for_groups(run: Run, mut each: impl FnMut(usize, usize, usize)) {
        let mut at = run.block;
        let end = run.block + run.count;
        while at < end {
            let group = at / GROUP_BLOCKS;
            let from = at % GROUP_BLOCKS;
            let to = (end - group * GROUP_BLOCKS).min(GROUP_BLOCKS);
            each(in_memory(group), in_memory(from), in_memory(to));
            at = group * GROUP_BLOCKS + to;
        }
    }

    /// Reserves `count` blocks in at most `runs_max` runs, contiguous if possible. `None`: there aren't as many.
    pub(crate) fn allocate(&mut self, count: u64, purpose: Purpose, runs_max: usize) -> Option<Runs> {
        if count == 0 || count > self.free {
            return None;
        }
        let mut runs = Runs::new();
        let mut left = count;
        // Whole first; then ever smaller pieces, so that free space counts however scattered it is.
        let mut piece = left;
        while left > 0 {
            piece = piece.min(left);
            if purpose == Purpose::Data {
                piece = piece.min(self.longest.max(1));
            }
            match self.find(piece, purpose) {
                Some(run) if runs.len() < runs_max => {
                    self.reserve(run);
                    left -= run.count;
                    runs.push(run);
                }
                None if piece > 1 => piece = piece.div_ceil(2),
                _ => {
                    for run in runs {
                        self.release(run);
                    }
                    return None;
                }
            }
        }
        Some(runs)
    }

    fn reserve(&mut self, run: Run) {
        let Self { groups, free, quads, .. } = self;
        Self::for_groups(run, |group, from, to| {
            let (taken, gone) = groups[group].reserve(from, to);
            (*free, *quads) = (*free - taken, *quads - gone);
        });
    }

    /// Gives back blocks that never became live, or that nothing can refer to any more.
    pub(crate) fn release(&mut self, run: Run) {
        let Self { groups, free, quads, longest, .. } = self;
        Self::for_groups(run, |group, from, to| {
            let group = &mut groups[group];
            let before = group.busy.quads(from, to);
            let freed = group.busy.clear(from, to);
            group.scatter.set(None);
            let come = group.busy.quads(from, to) - before;
            (group.free, *free) = (group.free + freed, *free + freed);
            (group.quads, *quads) = (group.quads + come, *quads + come);
            debug_assert!(group.is_counted(), "{freed} blocks and {come} quads came free");
            group.longest = if group.longest >= LONG_BLOCKS {
                GROUP_BLOCKS
            } else {
                let end = to + group.busy.clear_len(to, GROUP_WORDS * 64);
                group.longest.max((group.busy.clear_before(from) + end - from) as u64)
            };
            *longest = (*longest).max(group.longest);
        });
    }

    /// The index now refers to these blocks.
    #[inline(never)]
    pub(crate) fn set_live(&mut self, run: Run) {
        let Self { groups, free, quads, live, frozen, .. } = self;
        Self::for_groups(run, |group, from, to| {
            let changed = &mut groups[group];
            // Recovery makes blocks live that nobody reserved.
            let (taken, gone) = changed.reserve(from, to);
            (*free, *quads) = (*free - taken, *quads - gone);
            frozen::change(frozen, group, changed);
            *live += Rc::make_mut(&mut changed.live).set(from, to).0;
        });
    }

    fn clear_live(&mut self, run: Run) {
        let Self { groups, live, frozen, .. } = self;
        Self::for_groups(run, |group, from, to| {
            frozen::change(frozen, group, &mut groups[group]);
            *live -= Rc::make_mut(&mut groups[group].live).clear(from, to);
        });
    }

    /// Recovery replays a record that freed these blocks; [`Space::finish_recovery`] makes them available.
    pub(crate) fn free_replayed(&mut self, run: Run) {
        self.clear_live(run);
    }

    /// After recovery nothing is reserved or being read: what isn't live is free.
    pub(crate) fn finish_recovery(&mut self) {
        for index in 0..self.groups.len() {
            let live = Bits::clone(&self.groups[index].live);
            let dirty = self.groups[index].dirty;
            self.load(index, live);
            self.groups[index].dirty = dirty;
        }
    }

    /// The index no longer refers to these blocks since the record of this number.
    pub(crate) fn free_after(&mut self, run: Run, record: u64) {
        self.clear_live(run);
        self.data.push(run, record);
    }

    /// Gives out again what was freed by records up to this one and isn't being read.
    pub(crate) fn settle(&mut self, durable: u64) {
        while let Some(run) = self.data.pop(durable) {
            self.release(run);
        }
    }

    /// Gives out again what a stable checkpoint left behind, unless it is being read.
    pub(crate) fn release_nodes(&mut self, runs: &[Run]) {
        for run in runs {
            self.nodes.push(*run, 0);
        }
        while let Some(run) = self.nodes.pop(0) {
            self.release(run);
        }
    }

    /// A reader of data begins: extents that are freed from now on stay until [`Space::end_read`] with the returned
    /// number.
    pub(crate) fn begin_read(&mut self) -> u64 {
        self.data.begin_read()
    }

    pub(crate) fn end_read(&mut self, reader: u64) {
        self.data.end_read(reader);
    }

    /// A reader of index nodes begins: those of the tree keep their places until [`Space::end_node_read`].
    pub(crate) fn begin_node_read(&mut self) -> u64 {
        self.nodes.begin_read()
    }

    pub(crate) fn end_node_read(&mut self, reader: u64) {
        self.nodes.end_read(reader);
        self.release_nodes(&[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn freed_blocks_wait_for_durability_and_readers() {
        let mut space = Space::new(100, 0);
        let run = space.allocate(60, Purpose::Data, 1).expect("an empty region")[0];
        space.set_live(run);
        let reader = space.begin_read();
        space.free_after(run, 7);
        assert_eq!((space.live(), space.free(), space.deferred()), (0, 40, 60));
        space.settle(7);
        assert_eq!(space.free(), 40, "a reader began before");
        space.end_read(reader);
        let later = space.begin_read();
        space.settle(6);
        assert_eq!(space.free(), 40, "the record isn't durable");
        space.settle(7);
        assert_eq!(space.free(), 100, "a later reader can't see them");
        space.end_read(later);
    }

    #[test]
    fn scattered_space_is_given_out_in_pieces_up_to_the_limit() {
        let mut space = Space::new(GROUP_BLOCKS + 10, 0);
        let all = space.allocate(GROUP_BLOCKS + 10, Purpose::Data, 100).expect("everything");
        assert_eq!(all.iter().map(|run| run.count).sum::<u64>(), GROUP_BLOCKS + 10);
        assert_eq!(space.free(), 0);
        for block in [3, 5, 6, 9] {
            space.release(Run { block, count: 1 });
        }
        assert!(space.allocate(4, Purpose::Index, 2).is_none());
        assert_eq!(space.free(), 4, "a failed allocation keeps nothing");
        assert_eq!(space.allocate(4, Purpose::Index, 3).expect("three pieces").len(), 3);
        assert!(space.allocate(1, Purpose::Data, 1).is_none());
    }

    #[test]
    fn what_is_longer_than_any_free_piece_is_searched_for_once() {
        const GROUPS: u64 = 16;
        let blocks = GROUPS * GROUP_BLOCKS;
        let mut space = Space::new(blocks, 0);
        while space.free() > 0 {
            space.allocate(space.free().min(GROUP_BLOCKS), Purpose::Data, 1).expect("empty groups");
        }
        (0..blocks).step_by(2).for_each(|block| space.release(Run { block, count: 1 }));
        for round in 0..1000 {
            let runs = space.allocate(64, Purpose::Data, 64).expect("as many free blocks");
            assert_eq!(runs.len(), 64);
            assert!(space.looks < 64 * (round + 1) + 2 * blocks, "{} looks in round {round}", space.looks);
        }
        // Where two pieces become one that is long enough, it is found.
        let last = blocks - 5;
        space.release(Run { block: last, count: 1 });
        let around = Run { block: last - 1, count: 3 };
        assert_eq!(space.allocate(3, Purpose::Data, 1).expect("a piece of three")[0], around);
        assert!(space.allocate(3, Purpose::Data, 1).is_none());
        assert_eq!(space.allocate(2, Purpose::Index, 2).map(|runs| runs.len()), Some(2));
    }

    #[test]
    fn loaded_bits_are_what_was_stored() {
        let mut space = Space::new(1000, 0);
        let run = space.allocate(77, Purpose::Data, 1).expect("an empty region")[0];
        space.set_live(run);
        let frozen = space.freeze();
        assert_eq!(frozen.len(), 1);
        assert!(space.freeze().is_empty());
        let bytes = frozen[0].1.to_bytes();
        let mut other = Space::new(1000, 0);
        other.load(0, Bits::from_bytes(&bytes).expect("a whole group"));
        assert_eq!((other.live(), other.free()), (77, 923));
        assert!(Bits::from_bytes(&bytes[1..]).is_none());
    }

    #[test]
    fn data_keeps_out_of_the_index_zone_but_not_the_other_way_round() {
        let mut space = Space::new(1000, 100);
        assert_eq!(space.allocate(1, Purpose::Index, 1), Some(Runs::from([Run { block: 900, count: 1 }])));
        assert!(space.allocate(901, Purpose::Data, usize::MAX).is_none());
        assert_eq!(space.allocate(900, Purpose::Data, 1), Some(Runs::from([Run { block: 0, count: 900 }])));
        space.release(Run { block: 10, count: 5 });
        assert_eq!(space.allocate(99, Purpose::Index, 1), Some(Runs::from([Run { block: 901, count: 99 }])));
        assert_eq!(space.allocate(4, Purpose::Index, 1), Some(Runs::from([Run { block: 10, count: 4 }])));
    }

    proptest! {
        #[test]
        fn no_block_is_given_out_twice(steps in proptest::collection::vec((any::<bool>(), 1u64..300, any::<prop::sample::Index>()), 1..200)) {
            let mut space = Space::new(2000, 0);
            let mut taken: Vec<Run> = Vec::new();
            let mut blocks = BTreeSet::new();
            for (take, count, pick) in steps {
                if take {
                    let fits = count <= 2000 - blocks.len() as u64;
                    let runs = space.allocate(count, Purpose::Data, usize::MAX);
                    prop_assert_eq!(runs.is_some(), fits);
                    for run in runs.unwrap_or_default() {
                        for block in run.block..run.block + run.count {
                            prop_assert!(block < 2000 && blocks.insert(block));
                        }
                        taken.push(run);
                    }
                } else if !taken.is_empty() {
                    let run = taken.swap_remove(pick.index(taken.len()));
                    space.release(run);
                    (run.block..run.block + run.count).for_each(|block| { blocks.remove(&block); });
                }
                prop_assert_eq!(space.free(), 2000 - blocks.len() as u64);
            }
        }
    }
}
