//! The live bits as of the moment at which a checkpoint begins.
//!
//! The checkpoint stores them together with the places of its own nodes, which it finds while blocks are taken and freed:
//! what others change from that moment on isn't in them, since the log has it. An open that replays the log frees again
//! what was freed since. So no node may come to such blocks: they aren't given out before all places are found.

use super::{Group, Space};
use crate::format::bitmap::Bits;
use crate::format::blocks::Run;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Groups as they were.
#[derive(Debug)]
pub(super) struct Frozen {
    groups: BTreeMap<usize, Kept>,
    /// Keeps what is freed from being given out.
    reader: u64,
}

#[derive(Debug)]
struct Kept {
    live: Rc<Bits>,
    /// Whether they aren't what the last checkpoint stored.
    is_new: bool,
}

/// The live bits of a group are about to be changed by somebody else than the checkpoint.
pub(super) fn change(frozen: &mut Option<Frozen>, index: usize, group: &mut Group) {
    if group.dirty {
        return;
    }
    group.dirty = true;
    if let Some(frozen) = frozen {
        frozen.keep(index, group);
    }
}

/// By how much a number of set bits changes.
fn difference(bits: u64) -> i64 {
    i64::try_from(bits).expect("invariant: a group has GROUP_BLOCKS bits")
}

impl Frozen {
    /// A group as it was; it hasn't changed since, unless it is kept already.
    fn keep(&mut self, index: usize, group: &Group) -> &mut Kept {
        self.groups.entry(index).or_insert_with(|| Kept { live: Rc::clone(&group.live), is_new: false })
    }
}

impl Space {
    /// Keeps the live bits as they are now for a checkpoint. Until [`Space::end_freeze`] or [`Space::give_up_freeze`] nothing
    /// is given out that is freed meanwhile.
    pub(crate) fn begin_freeze(&mut self) {
        debug_assert!(self.frozen.is_none(), "one checkpoint begins after the other");
        let reader = self.begin_read();
        let dirty = |(index, group): (usize, &mut Group)| {
            let is_new = core::mem::take(&mut group.dirty);
            is_new.then(|| (index, Kept { live: Rc::clone(&group.live), is_new }))
        };
        let groups = self.groups.iter_mut().enumerate().filter_map(dirty).collect();
        self.frozen = Some(Frozen { groups, reader });
    }

    /// A place that was found for a node of the checkpoint.
    pub(crate) fn place(&mut self, run: Run) {
        self.change_both(run, |bits, from, to| difference(bits.set(from, to).0));
    }

    /// Blocks of index nodes that the checkpoint leaves behind; [`Space::release_nodes`] when it is stable.
    pub(crate) fn retire(&mut self, run: Run) {
        self.change_both(run, |bits, from, to| -difference(bits.clear(from, to)));
    }

    /// Changes live bits as they are and as they were: what this checkpoint stores is no change for the next one.
    fn change_both(&mut self, run: Run, change: impl Fn(&mut Bits, usize, usize) -> i64) {
        let Self { groups, live, frozen, .. } = self;
        Self::for_groups(run, |index, from, to| {
            let group = &mut groups[index];
            if let Some(frozen) = frozen {
                let kept = frozen.keep(index, group);
                kept.is_new = true;
                change(Rc::make_mut(&mut kept.live), from, to);
            } else {
                group.dirty = true;
            }
            let difference = change(Rc::make_mut(&mut group.live), from, to);
            *live = live
                .checked_add_signed(difference)
                .expect("invariant: live blocks are the bits that are set");
        });
    }

    /// All places are found: the live bits that aren't as the last checkpoint stored them.
    pub(crate) fn end_freeze(&mut self) -> Vec<(usize, Rc<Bits>)> {
        let Frozen { groups, reader } = self.frozen.take().expect("invariant: a freeze has begun");
        self.end_read(reader);
        groups.into_iter().filter(|(_, kept)| kept.is_new).map(|(index, kept)| (index, kept.live)).collect()
    }

    /// There is no room for the checkpoint, which has placed and retired nothing: the next one stores what has changed before
    /// this one, too.
    pub(crate) fn give_up_freeze(&mut self) {
        for (index, _) in self.end_freeze() {
            self.groups[index].dirty = true;
        }
    }

    /// The live bits of groups that changed since the last freeze, frozen as they are now.
    pub(crate) fn freeze(&mut self) -> Vec<(usize, Rc<Bits>)> {
        self.begin_freeze();
        self.end_freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{GROUP_BLOCKS, Purpose};
    use super::*;

    fn run(block: u64, count: u64) -> Run {
        Run { block, count }
    }

    /// Whether the first block of each of these is live in what a checkpoint stores.
    fn are_live<const N: usize>(maps: &[(usize, Rc<Bits>)], runs: [Run; N]) -> [bool; N] {
        runs.map(|run| {
            let mut live = false;
            Space::for_groups(run, |index, from, _| {
                let (_, bits) = maps.iter().find(|(group, _)| *group == index).expect("stored");
                live = bits.clear_count(from, from + 1) == 0;
            });
            live
        })
    }

    #[test]
    fn the_bits_of_a_checkpoint_are_as_of_its_begin_but_for_its_own_places() {
        let mut space = Space::new(2 * GROUP_BLOCKS, 0);
        let [data, old, new, later, other] =
            [run(0, 4), run(8, 4), run(12, 4), run(20, 4), run(GROUP_BLOCKS, 4)];
        for run in [data, old, other] {
            space.set_live(run);
        }
        assert_eq!(space.freeze().len(), 2);
        space.begin_freeze();
        space.set_live(later);
        space.free_after(data, 1);
        space.free_after(other, 1);
        space.reserve(new);
        space.place(new);
        space.retire(old);
        assert_eq!(space.live(), 8);
        let maps = space.end_freeze();
        // Nothing of the checkpoint is in the second group.
        assert_eq!(maps.len(), 1);
        assert_eq!(are_live(&maps, [data, old, new, later]), [true, false, true, false]);
        let next = space.freeze();
        assert_eq!(are_live(&next, [data, old, new, later, other]), [false, false, true, true, false]);
        assert!(space.freeze().is_empty());
    }

    #[test]
    fn what_a_checkpoint_places_is_stored_by_it_alone() {
        let mut space = Space::new(GROUP_BLOCKS, 0);
        space.begin_freeze();
        space.place(run(0, 4));
        assert_eq!(space.end_freeze().len(), 1);
        assert!(space.freeze().is_empty());
    }

    #[test]
    fn what_is_freed_behind_the_begin_of_a_checkpoint_is_not_given_to_its_nodes() {
        let mut space = Space::new(8, 0);
        let [first, second] = [run(0, 4), run(4, 4)];
        space.set_live(first);
        space.set_live(second);
        space.free_after(first, 1);
        space.begin_freeze();
        space.free_after(second, 2);
        space.settle(2);
        assert_eq!(space.allocate(4, Purpose::Index, 1).as_deref(), Some(&[first][..]));
        assert!(space.allocate(1, Purpose::Index, 1).is_none());
        space.end_freeze();
        space.settle(2);
        assert_eq!(space.allocate(4, Purpose::Index, 1).as_deref(), Some(&[second][..]));
    }

    #[test]
    fn a_checkpoint_that_is_given_up_leaves_its_bits_to_the_next_one() {
        let mut space = Space::new(2 * GROUP_BLOCKS, 0);
        space.set_live(run(0, 4));
        space.begin_freeze();
        space.set_live(run(GROUP_BLOCKS, 4));
        space.give_up_freeze();
        let next: Vec<usize> = space.freeze().iter().map(|(index, _)| *index).collect();
        assert_eq!(next, [0, 1]);
    }
}
