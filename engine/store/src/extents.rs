//! Which versions of extents are visible at an epoch.

use crate::incarnation::Life;
use crate::key::{self, KeyBytes, Path};
use crate::paging::Fault;
use crate::tree::Tree;
use core::ops::ControlFlow;
use smallvec::SmallVec;
use weir_proto::object::Extent;

/// Hidden versions of one extent that are stepped over before the next extent is searched for from the root.
const STEPS_MAX: u32 = 8;

/// Number of length classes.
const CLASSES: u8 = 32;

/// A stored version of an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) extent: Extent,
    pub(crate) epoch: u64,
    /// The encoded version.
    pub(crate) value: Vec<u8>,
}

/// A visible part of a stored extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visible {
    /// The part.
    pub(crate) extent: Extent,
    /// Index of the stored extent that it is a part of.
    pub(crate) stored: usize,
}

/// Visits the newest version up to `epoch` of each stored extent that reaches into `range`, of the given classes.
/// Versions before the akey's present life are left out.
pub(crate) fn newest_versions(
    tree: &Tree,
    akey: &Path,
    life: Life,
    epoch: u64,
    range: Extent,
    classes: u32,
) -> Result<SmallVec<[Stored; 1]>, Fault> {
    let mut found = SmallVec::new();
    let mut left = classes;
    while left != 0 {
        let class = u8::try_from(left.trailing_zeros()).unwrap_or(CLASSES);
        left &= left - 1;
        let first = range.index.saturating_sub(key::class_length_max(class));
        let mut from = akey.extents_from(class, first);
        let prefix_len = from.len() - size_of::<u64>();
        // Each scan ends at the end of the class, or where it is quicker to search anew.
        while let Some(next) = scan_class(tree, akey, prefix_len, &from, (life, epoch, range), &mut found)? {
            from = next;
        }
    }
    Ok(found)
}

fn scan_class(
    tree: &Tree,
    akey: &Path,
    prefix_len: usize,
    from: &[u8],
    (life, epoch, range): (Life, u64, Extent),
    found: &mut SmallVec<[Stored; 1]>,
) -> Result<Option<KeyBytes>, Fault> {
    let mut done: Option<Extent> = None;
    let mut steps = 0;
    let end = tree.scan_below(from, prefix_len, |rest, value| {
        let (extent, at) = match key::extent_tail(from[prefix_len - 1], rest) {
            Ok(found) => found,
            Err(malformed) => return ControlFlow::Break(Err(malformed)),
        };
        if extent.index >= range.end() {
            return ControlFlow::Break(Ok(None));
        }
        if done == Some(extent) {
            steps += 1;
            let skip = steps > STEPS_MAX;
            return if skip {
                ControlFlow::Break(Ok(Some(key::after(&akey.versions(extent)).into())))
            } else {
                ControlFlow::Continue(())
            };
        }
        if at > epoch && extent.end() > range.index {
            steps += 1;
            let skip = steps > STEPS_MAX;
            return if skip {
                ControlFlow::Break(Ok(Some(akey.extent(extent, epoch))))
            } else {
                ControlFlow::Continue(())
            };
        }
        (done, steps) = (Some(extent), 0);
        if extent.end() > range.index && life.shows(at, epoch) {
            found.push(Stored { extent, epoch: at, value: value.to_vec() });
        }
        ControlFlow::Continue(())
    })?;
    Ok(end.unwrap_or(Ok(None))?)
}

/// The parts of `range` that each stored extent shows, newest on top, in order of their index. Of versions with the
/// same epoch the one of the lower index wins. Holes are parts too.
pub(crate) fn paint(stored: &[Stored], range: Extent) -> SmallVec<[Visible; 1]> {
    if let [only] = stored {
        let (from, to) = (range.index.max(only.extent.index), range.end().min(only.extent.end()));
        let part = Visible { extent: Extent { index: from, count: to.saturating_sub(from) }, stored: 0 };
        return if from < to { SmallVec::from_elem(part, 1) } else { SmallVec::new() };
    }
    let mut order: Vec<usize> = (0..stored.len()).collect();
    order.sort_by_key(|at| (core::cmp::Reverse(stored[*at].epoch), stored[*at].extent.index));
    let mut open = vec![(range.index, range.end())];
    let mut parts = SmallVec::new();
    for at in order {
        let extent = stored[at].extent;
        if open.is_empty() {
            break;
        }
        // Gaps are sorted: only those that the extent reaches into change.
        let first = open.partition_point(|(_, end)| *end <= extent.index);
        let last = first + open[first..].partition_point(|(start, _)| *start < extent.end());
        let mut left = Vec::new();
        for (start, end) in &open[first..last] {
            let (from, to) = ((*start).max(extent.index), (*end).min(extent.end()));
            parts.push(Visible { extent: Extent { index: from, count: to - from }, stored: at });
            left.extend((*start < from).then_some((*start, from)));
            left.extend((to < *end).then_some((to, *end)));
        }
        open.splice(first..last, left);
    }
    parts.sort_by_key(|part: &Visible| part.extent.index);
    parts
}

/// Whether an encoded version is a hole.
pub(crate) fn is_hole(value: &[u8]) -> bool {
    // Record size 0 and tag 0: see `value`.
    value == [0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_proto::{Key, ObjectId};

    proptest! {
        #[test]
        fn the_newest_version_of_each_record_is_on_top(
            writes in proptest::collection::vec((0u64..60, prop_oneof![1u64..6, 1u64..40], 1u64..50), 0..60),
            range in (0u64..50, 1u64..60), epoch in 0u64..50, low in 0u64..20,
        ) {
            let path = Path::object(1, 1, ObjectId { hi: 0, lo: 1 });
            let akey = path.dkey(&Key::new(b"d").expect("a key")).akey(&Key::new(b"a").expect("a key"));
            let mut tree = Tree::default();
            let (mut classes, mut used) = (0u32, std::collections::BTreeSet::new());
            let mut model = vec![None; 200];
            for (index, count, at) in writes {
                // Operations have distinct epochs.
                if !used.insert(at) {
                    continue;
                }
                classes |= 1 << key::length_class(count);
                tree.put(&akey.extent(Extent { index, count }, at), &at.to_le_bytes()).expect("in memory");
                for record in index..index + count {
                    let slot: &mut Option<u64> = &mut model[usize::try_from(record).expect("small")];
                    if at <= epoch && at >= low {
                        *slot = Some(slot.map_or(at, |old| old.max(at)));
                    }
                }
            }
            let life = Life { exists: true, low, event: None };
            let range = Extent { index: range.0, count: range.1 };
            let stored = newest_versions(&tree, &akey, life, epoch, range, classes).expect("sound");
            let parts = paint(&stored, range);
            let mut seen = vec![None; 200];
            for part in &parts {
                prop_assert!(part.extent.index >= range.index && part.extent.end() <= range.end());
                for record in part.extent.index..part.extent.end() {
                    let slot: &mut Option<u64> = &mut seen[usize::try_from(record).expect("small")];
                    prop_assert!(slot.is_none(), "record {} is shown twice", record);
                    *slot = Some(stored[part.stored].epoch);
                }
            }
            for record in range.index..range.end() {
                let at = usize::try_from(record).expect("small");
                prop_assert_eq!(seen[at], model[at], "record {}", record);
            }
        }
    }

    #[test]
    fn deep_stacks_of_versions_cost_a_search_each() {
        let path = Path::object(1, 1, ObjectId { hi: 0, lo: 1 });
        let akey = path.dkey(&Key::new(b"d").expect("a key")).akey(&Key::new(b"a").expect("a key"));
        let mut tree = Tree::default();
        let extent = |index| Extent { index, count: 4 };
        for at in 1..2000 {
            tree.put(&akey.extent(extent(0), at), b"x").expect("in memory");
            tree.put(&akey.extent(extent(4), at), b"y").expect("in memory");
        }
        let life = Life { exists: true, low: 0, event: None };
        let classes = 1 << key::length_class(4);
        let found = newest_versions(&tree, &akey, life, 1000, Extent { index: 0, count: 100 }, classes)
            .expect("sound");
        assert_eq!(found.iter().map(|stored| stored.epoch).collect::<Vec<_>>(), [1000, 1000]);
    }
}
