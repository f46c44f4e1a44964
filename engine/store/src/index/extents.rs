//! Which versions of extents are visible at an epoch.

use crate::format::key::{self, KeyBytes, Path};
use crate::index::existence::Existence;
use crate::index::fault::Fault;
use crate::index::tree::Tree;
use core::ops::ControlFlow;
use smallvec::SmallVec;
use weir_proto::object::Extent;

/// All records that can be named: bit 63 of an index is reserved.
pub(crate) const ALL_RECORDS: Extent = Extent { index: 0, count: 1 << 63 };

/// Hidden versions of one extent that are stepped over before the next extent is searched for from the root.
pub(crate) const STEPS_MAX: u32 = 8;

/// Number of length classes.
const CLASSES: u8 = 32;

/// Entries that one step of a walk over a long array looks at: about as many as four nodes hold, which take at most a few hundred
/// microseconds. A step that can't stop anywhere looks at so many of one length class, and at all that overlap its first record.
pub(crate) const STEP_LOOKS: usize = 512;

/// Versions that a search keeps, beside those that one step adds. The longest ones in the index take some 6 MiB.
pub(crate) const FOUND_MAX: usize = 1024;

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

/// The newest version up to `epoch` of each stored extent that reaches into `range`, of the given classes. Versions
/// before the akey's present existence are left out.
#[cfg(test)]
pub(crate) fn newest_versions(
    tree: &Tree,
    akey: &Path,
    existence: Existence,
    epoch: u64,
    range: Extent,
    classes: u32,
) -> Result<SmallVec<[Stored; 1]>, Fault> {
    let mut all = Gathering { most: usize::MAX, ..Gathering::new(range, classes, usize::MAX) };
    all.step(tree, akey, existence, epoch, &mut { usize::MAX })?;
    Ok(all.found)
}

/// Like `newest_versions`, with a budget of looks, from which those that it takes are subtracted. `None`: it needs more.
pub(crate) fn versions_within(
    tree: &Tree,
    akey: &Path,
    existence: Existence,
    epoch: u64,
    range: Extent,
    classes: u32,
    looks: &mut usize,
) -> Result<Option<SmallVec<[Stored; 1]>>, Fault> {
    let mut gathering = Gathering::new(range, classes, usize::MAX);
    let is_whole = gathering.step(tree, akey, existence, epoch, looks)? && gathering.end() == range.end();
    Ok(is_whole.then_some(gathering.found))
}

/// A search for the versions that are visible at the start of a range, or at its end, in steps of few entries. It keeps
/// [`FOUND_MAX`] versions at most, and shortens the range when there are more.
pub(crate) struct Gathering {
    /// The range that is searched. It becomes shorter when there are too many versions in it.
    range: Extent,
    /// Whether the range loses its start then; else its end.
    is_of_end: bool,
    /// Length classes that are still to be searched.
    classes: u32,
    /// Where the search of the first of them continues.
    from: Option<KeyBytes>,
    ahead: Ahead,
    /// Entries of each class that begin in the range and are looked at; more when they begin at its first record.
    looks: usize,
    /// Versions beyond which the range is made shorter.
    most: usize,
    /// The versions found so far; at the end of the search, all that are visible in the range.
    pub(crate) found: SmallVec<[Stored; 1]>,
}

impl Gathering {
    pub(crate) fn new(range: Extent, classes: u32, looks: usize) -> Self {
        let ahead = Ahead { left: looks, end: range.end() };
        let (is_of_end, from, found) = (false, None, SmallVec::new());
        Self { range, is_of_end, classes, from, ahead, looks, most: FOUND_MAX, found }
    }

    /// A search from the end of a range.
    pub(crate) fn of_end(range: Extent, classes: u32) -> Self {
        Self { is_of_end: true, ..Self::new(range, classes, usize::MAX) }
    }

    /// The records that are looked at.
    pub(crate) fn range(&self) -> Extent {
        self.range
    }

    /// The first record behind those that are looked at.
    pub(crate) fn end(&self) -> u64 {
        self.range.end()
    }

    /// Looks at up to `looks` entries, and subtracts those from the budget. Returns whether the search is complete. The index
    /// has to be the same for all steps. When nodes have to be read first, the next step continues where this one stopped.
    pub(crate) fn step(
        &mut self,
        tree: &Tree,
        akey: &Path,
        existence: Existence,
        epoch: u64,
        looks: &mut usize,
    ) -> Result<bool, Fault> {
        while self.classes != 0 {
            let class = u8::try_from(self.classes.trailing_zeros()).expect("invariant: a set has 32 classes");
            let from = self.from.take().unwrap_or_else(|| {
                let first = self.range.index.saturating_sub(key::class_length_max(class));
                akey.extents_from(class, first)
            });
            if *looks == 0 {
                self.from = Some(from);
                return Ok(false);
            }
            let before = (*looks, self.ahead, self.found.len());
            // Each scan ends at the end of the class, or where it is quicker to search anew.
            let scanned = self.scan_class(tree, akey, &from, (existence, epoch), looks);
            if scanned.is_ok() && *looks == before.0 {
                // A scan that finds nothing costs a look, too: there may be many classes, and many small ranges.
                *looks -= 1;
            }
            match scanned {
                Ok(Some(next)) => self.from = Some(next),
                Ok(None) => {
                    self.classes &= self.classes - 1;
                    self.range.count = self.ahead.end - self.range.index;
                    self.ahead.left = self.looks;
                }
                Err(fault) => {
                    self.from = Some(from);
                    (*looks, self.ahead) = (before.0, before.1);
                    self.found.truncate(before.2);
                    return Err(fault);
                }
            }
            if self.found.len() > self.most {
                self.thin();
            }
        }
        let Extent { index, .. } = self.range;
        let end = self.end();
        self.found.retain(|stored: &mut Stored| stored.extent.index < end && stored.extent.end() > index);
        Ok(true)
    }

    /// Removes versions that others hide, and shortens the range when that isn't enough.
    fn thin(&mut self) {
        self.range.count = self.ahead.end - self.range.index;
        let mut parts = paint(&self.found, self.range);
        let surplus = parts.len().saturating_sub(FOUND_MAX / 2);
        if surplus > 0 && self.is_of_end {
            parts.drain(..surplus);
            let first = parts[0].extent.index;
            self.range = Extent { index: first, count: self.range.end() - first };
        } else if surplus > 0 {
            let first = parts[FOUND_MAX / 2].extent.index;
            self.range.count = first - self.range.index;
            self.ahead.end = first;
            parts.truncate(FOUND_MAX / 2);
        }
        let mut shown = vec![false; self.found.len()];
        parts.iter().for_each(|part| shown[part.stored] = true);
        let mut shown = shown.into_iter();
        self.found.retain(|_| shown.next().expect("invariant: one for each that was found"));
    }

    fn scan_class(
        &mut self,
        tree: &Tree,
        akey: &Path,
        from: &[u8],
        (existence, epoch): (Existence, u64),
        looks: &mut usize,
    ) -> Result<Option<KeyBytes>, Fault> {
        // The kind of the entry, and the class.
        let prefix_len = akey.as_bytes().len() + 2;
        let Self { range, ahead, found, .. } = self;
        let mut done: Option<Extent> = None;
        let mut steps = 0;
        let end = tree.scan_below(from, prefix_len, |rest, value| {
            let (extent, at) = match key::extent_tail(from[prefix_len - 1], rest) {
                Ok(found) => found,
                Err(malformed) => return ControlFlow::Break(Err(malformed)),
            };
            if extent.index >= ahead.end {
                return ControlFlow::Break(Ok(None));
            }
            if ahead.left == 0 && extent.index > range.index {
                ahead.end = extent.index;
                return ControlFlow::Break(Ok(None));
            }
            let is_done = done == Some(extent);
            if *looks == 0 {
                let next =
                    if is_done { key::after(&akey.versions(extent)).into() } else { akey.extent(extent, at) };
                return ControlFlow::Break(Ok(Some(next)));
            }
            *looks -= 1;
            // Versions that begin before the range are looked at, however many they are, and don't make it shorter.
            ahead.left = ahead.left.saturating_sub(usize::from(extent.index >= range.index));
            if is_done {
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
            if extent.end() > range.index && existence.shows(at, epoch) {
                found.push(Stored { extent, epoch: at, value: value.to_vec() });
            }
            ControlFlow::Continue(())
        })?;
        Ok(end.unwrap_or(Ok(None))?)
    }
}

/// A record such that at most `looks` entries of a class begin between it and `below`; 0 when there are no more.
pub(crate) fn last_window(
    tree: &Tree,
    akey: &Path,
    below: u64,
    class: u8,
    looks: usize,
) -> Result<u64, Fault> {
    let bound = akey.extents_from(class, below);
    let prefix = &bound[..bound.len() - size_of::<u64>()];
    let mut seen = 0;
    let at = tree.scan_back(&bound, |key, _| {
        let Some(rest) = key.strip_prefix(prefix) else { return ControlFlow::Break(Ok(0)) };
        seen += 1;
        if seen < looks {
            return ControlFlow::Continue(());
        }
        ControlFlow::Break(key::extent_tail(class, rest).map(|(extent, _)| extent.index))
    })?;
    Ok(at.unwrap_or(Ok(0))?)
}

/// The classes of a set, lowest first.
pub(crate) fn each_class(classes: u32) -> impl Iterator<Item = u8> {
    (0..CLASSES).filter(move |class| classes >> class & 1 == 1)
}

/// The records of a class that are still searched.
#[derive(Clone, Copy)]
struct Ahead {
    left: usize,
    /// The first record behind them.
    end: u64,
}

/// The parts of `range` in which each stored extent is visible, that is the newest one, in order of their index. Of versions
/// with the same epoch, the one with the lower index is. Holes are parts, too.
pub(crate) fn paint(stored: &[Stored], range: Extent) -> SmallVec<[Visible; 1]> {
    if let [only] = stored {
        let (from, to) = (range.index.max(only.extent.index), range.end().min(only.extent.end()));
        let part = |count| Visible { extent: Extent { index: from, count }, stored: 0 };
        let count = to.checked_sub(from).filter(|count| *count > 0);
        return count.map(part).into_iter().collect();
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

    /// Takes a search to its end in steps of few looks. Returns how many those were.
    fn gather(gathering: &mut Gathering, tree: &Tree, akey: &Path, epoch: u64, step: usize) -> usize {
        let (existence, mut steps) = (Existence { exists: true, low: 0, event: None }, 1);
        loop {
            let mut looks = step;
            if gathering.step(tree, akey, existence, epoch, &mut looks).expect("in memory") {
                return steps;
            }
            assert_eq!(looks, 0, "it has stopped too early");
            assert!(gathering.found.len() <= FOUND_MAX + step, "{} are remembered", gathering.found.len());
            steps += 1;
        }
    }

    #[test]
    fn a_range_is_looked_at_as_a_whole_however_much_it_shows() {
        let akey = Path::object(1, 1, ObjectId { hi: 0, lo: 1 })
            .dkey(&Key::new(b"d").expect("a key"))
            .akey(&Key::new(b"a").expect("a key"));
        let (mut tree, mut classes, mut next) = (Tree::default(), 0u32, 0);
        for count in [1, 4, 16].into_iter().cycle().take(3 * FOUND_MAX) {
            classes |= 1 << key::length_class(count);
            tree.put(&akey.extent(Extent { index: next, count }, 1), &[1]).expect("in memory");
            next += count;
        }
        assert_eq!(classes.count_ones(), 3);
        let (existence, range) =
            (Existence { exists: true, low: 0, event: None }, Extent { index: 0, count: next });
        let stored = newest_versions(&tree, &akey, existence, 1, range, classes).expect("sound");
        assert_eq!(paint(&stored, range).last().map(|part| part.extent.end()), Some(next));
    }

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
            let existence = Existence { exists: true, low, event: None };
            let range = Extent { index: range.0, count: range.1 };
            let stored = newest_versions(&tree, &akey, existence, epoch, range, classes).expect("sound");
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

    proptest! {
        #[test]
        fn windows_one_after_another_show_what_the_whole_range_shows(
            writes in proptest::collection::vec((0u64..400, prop_oneof![1u64..4, 1u64..60]), 0..120),
            looks in 1usize..20, epoch in 1u64..150,
        ) {
            let path = Path::object(1, 1, ObjectId { hi: 0, lo: 1 });
            let akey = path.dkey(&Key::new(b"d").expect("a key")).akey(&Key::new(b"a").expect("a key"));
            let (mut tree, mut classes) = (Tree::default(), 0);
            for (at, (index, count)) in (1u64..).zip(&writes) {
                classes |= 1 << key::length_class(*count);
                tree.put(&akey.extent(Extent { index: *index, count: *count }, at), b"x").expect("in memory");
            }
            let existence = Existence { exists: true, low: 0, event: None };
            let all = Extent { index: 0, count: 600 };
            let records = |range: Extent, stored: &[Stored]| {
                let mut shown = Vec::new();
                for part in paint(stored, range) {
                    shown.extend((part.extent.index..part.extent.end()).map(|at| (at, stored[part.stored].epoch)));
                }
                shown
            };
            let whole = newest_versions(&tree, &akey, existence, epoch, all, classes).expect("sound");
            let expected = records(all, &whole);
            let (mut from, mut shown) = (0, Vec::new());
            while from < all.end() {
                let rest = Extent { index: from, count: all.end() - from };
                let mut window = Gathering::new(rest, classes, looks);
                gather(&mut window, &tree, &akey, epoch, looks);
                prop_assert!(window.end() > from);
                shown.extend(records(window.range(), &window.found));
                from = window.end();
            }
            prop_assert_eq!(&shown, &expected);
            let (mut below, mut shown) = (all.end(), Vec::new());
            while below > 0 {
                let starts = each_class(classes)
                    .map(|class| last_window(&tree, &akey, below, class, looks).expect("sound"));
                let start = starts.max().unwrap_or(0);
                prop_assert!(start < below);
                let range = Extent { index: start, count: below - start };
                let begun = writes.iter().filter(|(index, _)| range.index < *index && *index < below);
                prop_assert!(begun.count() <= looks * classes.count_ones() as usize);
                let mut window = Gathering::of_end(range, classes);
                gather(&mut window, &tree, &akey, epoch, looks);
                prop_assert_eq!(window.range(), range);
                let mut part = records(range, &window.found);
                part.append(&mut shown);
                (shown, below) = (part, start);
            }
            prop_assert_eq!(shown, expected);
        }
    }

    #[test]
    fn a_step_over_a_long_array_holds_few_extents() {
        let path = Path::object(1, 1, ObjectId { hi: 0, lo: 1 });
        let akey = path.dkey(&Key::new(b"d").expect("a key")).akey(&Key::new(b"a").expect("a key"));
        let mut tree = Tree::default();
        let count = 50_000;
        for index in 0..count {
            tree.put(&akey.extent(Extent { index: index * 2, count: 1 }, 1), b"x").expect("in memory");
        }
        let (mut from, mut windows) = (0, 0);
        while from < count * 2 {
            let rest = Extent { index: from, count: count * 2 - from };
            let mut window = Gathering::new(rest, 1, STEP_LOOKS);
            gather(&mut window, &tree, &akey, 9, STEP_LOOKS);
            assert!(window.found.len() <= STEP_LOOKS);
            (from, windows) = (window.end(), windows + 1);
        }
        assert_eq!(windows, count.div_ceil(STEP_LOOKS as u64));
        let start = last_window(&tree, &akey, count * 2, 0, STEP_LOOKS).expect("sound");
        assert_eq!(start, (count - STEP_LOOKS as u64) * 2);
    }

    #[test]
    fn what_reaches_over_one_record_is_looked_at_in_steps_and_of_it_little_is_remembered() {
        let path = Path::object(1, 1, ObjectId { hi: 0, lo: 1 });
        let akey = path.dkey(&Key::new(b"d").expect("a key")).akey(&Key::new(b"a").expect("a key"));
        let (mut tree, mut classes) = (Tree::default(), 0);
        let count = 20_000;
        // Each is newer and shorter than the one before, so that all show a record: their last.
        for at in 0..count {
            let extent = Extent { index: 0, count: count - at };
            classes |= 1 << key::length_class(extent.count);
            tree.put(&akey.extent(extent, 1 + at), b"x").expect("in memory");
        }
        let all = Extent { index: 0, count: 2 * count };
        let mut window = Gathering::new(all, classes, STEP_LOOKS);
        let steps = gather(&mut window, &tree, &akey, u64::MAX, 100);
        assert!(steps >= 100, "{steps} steps");
        let parts = paint(&window.found, window.range());
        assert_eq!(parts.len(), FOUND_MAX / 2);
        assert_eq!(parts[0].extent, Extent { index: 0, count: 1 });
        let mut window = Gathering::of_end(all, classes);
        gather(&mut window, &tree, &akey, u64::MAX, 100);
        let parts = paint(&window.found, window.range());
        assert!(parts.len() >= FOUND_MAX / 2, "{} parts", parts.len());
        assert_eq!(parts.last().map(|part| part.extent), Some(Extent { index: count - 1, count: 1 }));
        assert!(parts.windows(2).all(|pair| pair[0].extent.end() == pair[1].extent.index));
        assert_eq!(window.end(), all.end());
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
        let existence = Existence { exists: true, low: 0, event: None };
        let classes = 1 << key::length_class(4);
        let found = newest_versions(&tree, &akey, existence, 1000, Extent { index: 0, count: 100 }, classes)
            .expect("sound");
        assert_eq!(found.iter().map(|stored| stored.epoch).collect::<Vec<_>>(), [1000, 1000]);
    }
}
