//! Where free blocks lie: in one piece, or in holes between what is in use.
//!
//! The region is looked at in segments, as long as the longest extent. A segment without anything in use takes any
//! extent; free blocks of the others are holes.

use super::Space;
use crate::format::bitmap::GROUP_BLOCKS;
use crate::format::blocks::Run;
use crate::format::size::in_memory;
use weir_media::BLOCK;
use weir_proto::chunk::PART_BYTES_MAX;

/// Blocks of a segment: those of the longest extent. Groups have a whole number of segments.
pub(crate) const SEGMENT: u64 = PART_BYTES_MAX / BLOCK as u64;
const _: () = assert!(GROUP_BLOCKS.is_multiple_of(SEGMENT));

/// How free blocks are spread over the segments that data goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scatter {
    /// Whole segments.
    pub(crate) segments: u64,
    /// Those of them without anything in use.
    pub(crate) empty: u64,
    /// Free blocks of the others.
    pub(crate) holes: u64,
}

/// The same of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OfGroup {
    empty: u64,
    holes: u64,
    /// Free blocks of the emptiest segment with at most half in use and not nothing; 0 when there is none.
    emptiest: u64,
}

/// Whether a segment with so many free blocks is worth being emptied.
fn is_sparse(free: u64) -> bool {
    (SEGMENT / 2..SEGMENT).contains(&free)
}

/// Segments of a group.
const SEGMENTS: u64 = GROUP_BLOCKS / SEGMENT;

impl Space {
    /// Free blocks of a segment.
    fn free_in(&self, segment: Run) -> u64 {
        let mut free = 0;
        Self::for_groups(segment, |group, from, to| free += self.groups[group].busy.clear_count(from, to));
        free
    }

    /// The whole segments of a group that data goes to, with their free blocks.
    fn segments_of(&self, group: u64) -> impl Iterator<Item = (Run, u64)> {
        let first = group * SEGMENTS;
        let numbers = first..(self.data_end / SEGMENT).min(first + SEGMENTS);
        numbers.map(|number| {
            let segment = Run { block: number * SEGMENT, count: SEGMENT };
            (segment, self.free_in(segment))
        })
    }

    pub(crate) fn scatter(&self) -> Scatter {
        let mut scatter = Scatter { segments: self.data_end / SEGMENT, empty: 0, holes: 0 };
        for number in 0..self.groups.len() as u64 {
            let of_group = self.scatter_of(number);
            scatter.empty += of_group.empty;
            scatter.holes += of_group.holes;
        }
        scatter
    }

    /// How the free blocks of a group are spread, counted again if it has changed.
    fn scatter_of(&self, number: u64) -> OfGroup {
        let known = &self.groups[in_memory(number)].scatter;
        known.get().unwrap_or_else(|| {
            let mut found = OfGroup::default();
            for (_, free) in self.segments_of(number) {
                match free {
                    SEGMENT => found.empty += 1,
                    free => found.holes += free,
                }
                found.emptiest = found.emptiest.max(if is_sparse(free) { free } else { 0 });
            }
            known.set(Some(found));
            found
        })
    }

    /// The segments, the emptiest first, whose content would fit the holes of the others: at most `most` of them, at
    /// most half in use, with at most `free_max` free blocks together. Of groups that haven't changed only so many are
    /// looked into.
    pub(crate) fn sparse_segments(&self, most: usize, free_max: u64) -> Vec<Run> {
        let emptiest = (0..self.groups.len() as u64).map(|number| (self.scatter_of(number).emptiest, number));
        let mut groups: Vec<(u64, u64)> = emptiest.filter(|(free, _)| *free > 0).collect();
        // Each of those before a group has a segment that comes before all of the group's.
        groups.sort_unstable_by_key(|(free, number)| (core::cmp::Reverse(*free), *number));
        groups.truncate(most);
        let segments = groups.iter().flat_map(|(_, number)| self.segments_of(*number));
        let mut found: Vec<(Run, u64)> = segments.filter(|(_, free)| is_sparse(*free)).collect();
        found.sort_by_key(|(segment, free)| (core::cmp::Reverse(*free), segment.block));
        found.truncate(most);
        let mut elsewhere = self.scatter().holes;
        let (mut free_sum, mut used_sum) = (0, 0);
        let mut chosen = Vec::new();
        for (segment, free) in found {
            elsewhere -= free;
            (free_sum, used_sum) = (free_sum + free, used_sum + SEGMENT - free);
            if used_sum > elsewhere || free_sum > free_max {
                break;
            }
            chosen.push(segment);
        }
        chosen
    }

    /// Keeps the blocks of these segments that are free now from being given out, until [`Space::release_held`].
    pub(crate) fn hold_free(&mut self, segments: &[Run]) {
        for segment in segments {
            let (group, start) =
                (in_memory(segment.block / GROUP_BLOCKS), in_memory(segment.block % GROUP_BLOCKS));
            let end = start + in_memory(segment.count);
            let mut at = start;
            while let Some((from, len)) = self.groups[group].busy.find_clear(at, end, end) {
                let first = segment.block + (from - start) as u64;
                let run = Run { block: first, count: len as u64 };
                self.reserve(run);
                self.held.push(run);
                at = from + len;
            }
        }
    }

    pub(crate) fn release_held(&mut self) {
        for run in core::mem::take(&mut self.held) {
            self.release(run);
        }
    }

    /// Free blocks that are kept from being given out.
    pub(crate) fn held(&self) -> u64 {
        self.held.iter().map(|run| run.count).sum()
    }

    /// Reserves `count` contiguous blocks in a hole. `from` is the segment where the search begins and, afterwards, the
    /// one where it ended.
    pub(crate) fn allocate_in_hole(&mut self, count: u64, from: &mut u64) -> Option<Run> {
        let total = self.data_end / SEGMENT;
        let mut step = 0;
        while step < total {
            let number = (*from + step) % total;
            if self.groups[in_memory(number / SEGMENTS)].longest < count {
                // None of its segments has such a hole.
                step += (SEGMENTS - number % SEGMENTS).min(total - number);
                continue;
            }
            step += 1;
            let segment = Run { block: number * SEGMENT, count: SEGMENT };
            if !(count..SEGMENT).contains(&self.free_in(segment)) {
                continue;
            }
            let (group, start) =
                (in_memory(segment.block / GROUP_BLOCKS), in_memory(segment.block % GROUP_BLOCKS));
            let end = start + in_memory(SEGMENT);
            let mut at = start;
            while let Some((first, len)) = self.groups[group].busy.find_clear(at, end, in_memory(count)) {
                if len as u64 == count {
                    let run = Run { block: segment.block + (first - start) as u64, count };
                    self.reserve(run);
                    *from = number;
                    return Some(run);
                }
                at = first + len;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::Purpose;
    use super::*;

    fn run(block: u64, count: u64) -> Run {
        Run { block, count }
    }

    #[test]
    fn sparse_segments_are_found_and_their_content_fits_the_holes_of_others() {
        let mut space = Space::new(10 * SEGMENT + 40, 40);
        let all = space.allocate(10 * SEGMENT, Purpose::Data, 1).expect("an empty region")[0];
        assert_eq!((all.count, space.scatter().empty), (10 * SEGMENT, 0));
        // One segment free, two nearly so, one with a hole.
        for (block, count) in [(0, SEGMENT), (SEGMENT + 5, 250), (3 * SEGMENT, 200), (5 * SEGMENT + 9, 70)] {
            space.release(run(block, count));
        }
        let scatter = space.scatter();
        assert_eq!(scatter, Scatter { segments: 10, empty: 1, holes: 520 });
        assert_eq!(space.sparse_segments(8, 1000), [run(SEGMENT, SEGMENT), run(3 * SEGMENT, SEGMENT)]);
        assert_eq!(space.sparse_segments(8, 300), [run(SEGMENT, SEGMENT)]);
        assert_eq!(space.sparse_segments(1, 1000), [run(SEGMENT, SEGMENT)]);
        let victims = space.sparse_segments(8, 1000);
        let free = space.free();
        space.hold_free(&victims);
        assert_eq!((space.held(), space.free()), (450, free - 450));
        let mut from = 0;
        assert_eq!(space.allocate_in_hole(60, &mut from), Some(run(5 * SEGMENT + 9, 60)));
        assert_eq!(from, 5);
        assert_eq!(space.allocate_in_hole(11, &mut from), None, "empty and held segments are no holes");
        space.release_held();
        assert_eq!((space.held(), space.free()), (0, free - 60));
    }

    #[test]
    fn holes_are_counted_again_where_something_has_changed() {
        let mut space = Space::new(3 * GROUP_BLOCKS + 2 * SEGMENT + 40, 40);
        let segments = 3 * SEGMENTS + 2;
        assert_eq!(space.scatter(), Scatter { segments, empty: segments, holes: 0 });
        let runs = space.allocate(3 * GROUP_BLOCKS + 2 * SEGMENT, Purpose::Data, 9).expect("everything");
        assert_eq!(space.scatter(), Scatter { segments, empty: 0, holes: 0 });
        assert!(runs.len() > 3);
        // One after another in each group, the last first.
        for (number, group) in (1..).zip([3, 2, 1, 0]) {
            space.release(run(group * GROUP_BLOCKS + 7, 3));
            assert_eq!(space.scatter(), Scatter { segments, empty: 0, holes: 3 * number });
        }
        let mut from = segments - 1;
        for group in [0, 1, 2, 3] {
            assert_eq!(space.allocate_in_hole(3, &mut from), Some(run(group * GROUP_BLOCKS + 7, 3)));
        }
        assert_eq!(space.allocate_in_hole(1, &mut from), None);
        assert_eq!(space.scatter(), Scatter { segments, empty: 0, holes: 0 });
    }

    #[test]
    fn the_emptiest_segments_of_many_groups_are_the_same_as_of_all_segments() {
        let (groups, random) = (12, weir_runtime::random::Random::new(5));
        let mut space = Space::new(groups * GROUP_BLOCKS, 0);
        space.allocate(groups * GROUP_BLOCKS, Purpose::Data, 64).expect("an empty region");
        for round in 0..30 {
            for _ in 0..20 {
                let (segment, count) = (random.below(groups * SEGMENTS), random.between(1, SEGMENT));
                let start = Run { block: segment * SEGMENT, count: SEGMENT };
                if space.free_in(start) == 0 {
                    space.release(run(start.block, count));
                }
            }
            let mut sparse: Vec<(Run, u64)> =
                (0..groups).flat_map(|group| space.segments_of(group)).collect();
            sparse.retain(|(_, free)| is_sparse(*free));
            sparse.sort_by_key(|(segment, free)| (core::cmp::Reverse(*free), segment.block));
            for most in [1, 3, 8] {
                let found = space.sparse_segments(most, u64::MAX);
                let expected: Vec<Run> =
                    sparse.iter().map(|(segment, _)| *segment).take(found.len()).collect();
                assert_eq!(found, expected, "round {round}");
                assert!(round < 3 || found.len() == most, "round {round}: only {} found", found.len());
            }
        }
    }

    #[test]
    fn what_can_not_go_elsewhere_stays() {
        let mut space = Space::new(3 * SEGMENT, 0);
        space.allocate(3 * SEGMENT, Purpose::Data, 1).expect("an empty region");
        space.release(run(10, 150));
        assert_eq!(space.sparse_segments(8, 1000), [], "there is no hole but its own");
    }
}
