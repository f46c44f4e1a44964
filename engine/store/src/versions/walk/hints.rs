//! Where walks have ended lately, so that the next one for the same needn't look for the way.
//!
//! A hint leads to an entry of a leaf, and says since when its dkey has existed. It counts only as long as the leaf is as it
//! was, so that nothing below the dkey has changed either, and the entry's key is compared with what is asked for. The
//! worst that a hint can do is to lead nowhere.
//!
//! Hints are many and small, since each is a line that the processor has to fetch: what the hints to one leaf have in common
//! stands in a table of its own.
//!
//! Without them a fetch of 64 B takes 39 % more instructions (`weir-bench store --store-part counts`).

use crate::format::size::in_memory;
use crate::index::tree::{ChildPath, Node, StampSource, StampedPath, Tree, half};
use core::cell::{Cell, OnceCell};
use std::rc::Rc;

/// Hints that compete for the same places.
const WAYS: usize = 4;

/// Most sets of hints: 512 KiB, room for 32,768 keys.
const SETS_MAX: usize = 1 << 13;

/// Hints take at most this part of the memory that the index may take, on top of it; ways a quarter of that more.
const PART: usize = 128;

/// Of so many walks without a hint, one replaces another hint.
const RELUCTANCE: usize = 8;

/// Where a walk has ended.
#[derive(Clone, Copy, Debug)]
struct Hint {
    /// When the dkey was created.
    since: u64,
    /// The lower half of the leaf's name. All hints are forgotten before another leaf has the same one.
    stamp: u32,
    /// Where the entry is in the leaf.
    position: u16,
    /// Tells hints of one set apart.
    tag: u16,
}

impl Hint {
    /// No hint: no name has a half of 0.
    const NONE: Self = Self { since: 0, stamp: 0, position: 0, tag: 0 };
}

/// The hints of keys that have a part of their hashes in common: one line of the processor's cache.
#[derive(Debug)]
#[repr(align(64))]
struct Set([Cell<Hint>; WAYS]);

const _: () = assert!(size_of::<Set>() == 64, "a set is a line");

impl Set {
    /// Without hints.
    const fn new() -> Self {
        Self([const { Cell::new(Hint::NONE) }; WAYS])
    }
}

/// What hints are kept in.
#[derive(Debug)]
struct Tables {
    sets: Box<[Set]>,
    /// Paths to the leaves, each at the place that the lower half of its stamp gives: as many as sets.
    ways: Box<[Cell<StampedPath>]>,
}

impl Tables {
    fn new(sets: usize) -> Self {
        Self {
            sets: (0..sets).map(|_| Set::new()).collect(),
            ways: vec![Cell::new(StampedPath::NONE); sets].into(),
        }
    }

    #[inline]
    fn way(&self, stamp: u32) -> &Cell<StampedPath> {
        &self.ways[stamp as usize & (self.ways.len() - 1)]
    }

    /// Which set a hash belongs to, and what tells it apart there.
    #[inline]
    fn split(&self, hash: u64) -> (usize, u16) {
        let [low, tag] = [hash & u64::from(u32::MAX), hash >> 48];
        let set = in_memory(low) & (self.sets.len() - 1);
        (set, u16::try_from(tag).expect("invariant: 16 bits are left"))
    }

    /// The hint with this number.
    #[inline]
    fn hint(&self, number: usize) -> &Cell<Hint> {
        &self.sets[number / WAYS].0[number % WAYS]
    }

    /// The hint for what has this hash, and its number.
    #[inline]
    fn find(&self, hash: u64) -> Option<(usize, Hint)> {
        let (set, tag) = self.split(hash);
        let hints = &self.sets[set].0;
        let way = hints.iter().position(|hint| hint.get().tag == tag)?;
        Some((set * WAYS + way, hints[way].get()))
    }

    /// Forgets everything.
    #[cold]
    fn clear(&self) {
        self.sets.iter().flat_map(|set| &set.0).for_each(|hint| hint.set(Hint::NONE));
        self.ways.iter().for_each(|way| way.set(StampedPath::NONE));
    }

    /// Stores the path to a leaf, if that has a stamp by now. Returns the lower half of the stamp.
    fn learn(&self, leaf: &Node, leaf_path: ChildPath, stamps: &StampSource) -> Option<u32> {
        let is_known = |stamp| self.way(half(stamp)).get().stamp == stamp;
        let way = StampedPath::to(leaf, leaf_path, stamps, is_known)?;
        let stamp = half(way.stamp);
        if stamp == 1 && !is_known(way.stamp) {
            // The lower halves from here on have been used before.
            self.clear();
        }
        self.way(stamp).set(way);
        Some(stamp)
    }
}

/// Hints for the index of one store. Their memory is allocated with the first hint.
#[derive(Debug)]
pub(crate) struct Hints {
    /// `None` where there is no room for any.
    tables: OnceCell<Option<Tables>>,
    /// How many sets there may be: a power of two, or none.
    limit: usize,
    /// How many walks could have been stored.
    count: Cell<usize>,
    stamps: StampSource,
}

impl Hints {
    /// Hints for an index of at most so many bytes.
    pub(crate) fn new(index_bytes: usize) -> Self {
        let sets = (index_bytes / PART / size_of::<Set>()).min(SETS_MAX);
        let limit = sets.checked_ilog2().map_or(0, |bits| 1 << bits);
        let (tables, count, stamps) = (OnceCell::new(), Cell::new(0), StampSource::from(1));
        Self { tables, limit, count, stamps }
    }

    /// With names from this one on.
    #[cfg(test)]
    pub(super) fn named_from(self, stamp: u64) -> Self {
        Self { stamps: StampSource::from(stamp), ..self }
    }

    #[inline]
    fn tables(&self) -> Option<&Tables> {
        self.tables.get()?.as_ref()
    }

    /// Where a walk for what has this hash will most likely end. Prefetches the entry there.
    #[inline]
    pub(crate) fn lead(&self, tree: &Tree, hash: u64) -> Lead<'_> {
        let found = self.tables().and_then(|tables| Some((tables, tables.find(hash)?)));
        let Some((tables, (number, hint))) = found else {
            return Lead { hints: self, hash, number: None, end: None };
        };
        let way = tables.way(hint.stamp).get();
        let leaf = if half(way.stamp) == hint.stamp { tree.follow(&way) } else { None };
        let end = leaf.map(|leaf| End { leaf, position: usize::from(hint.position), since: hint.since });
        match &end {
            Some(end) => end.prefetch(),
            // The leaf has changed for good: the hint is of no use any more.
            None => tables.hint(number).set(Hint::NONE),
        }
        Lead { hints: self, hash, number: Some(number), end }
    }
}

/// The leaf and the entry that a hint leads to.
#[derive(Debug)]
pub(super) struct End {
    pub(super) leaf: Rc<Node>,
    pub(super) position: usize,
    /// When the dkey was created.
    pub(super) since: u64,
}

impl End {
    fn prefetch(&self) {
        self.leaf.entries().prefetch_at(self.position);
    }
}

/// The hint for a walk, and where the walk's end is stored.
#[derive(Debug)]
pub(crate) struct Lead<'a> {
    hints: &'a Hints,
    hash: u64,
    /// Number of the hint, if there is one.
    number: Option<usize>,
    pub(super) end: Option<End>,
}

impl Lead<'_> {
    /// Stores where a walk has ended: at an entry of a leaf, below a dkey that has existed `since`.
    pub(super) fn take_down(&self, leaf: &Node, leaf_path: ChildPath, (position, since): (usize, u64)) {
        let Hints { tables, limit, count, stamps } = self.hints;
        let tables = tables.get_or_init(|| (*limit > 0).then(|| Tables::new(*limit)));
        let (Some(tables), Ok(position)) = (tables, u16::try_from(position)) else { return };
        let (set, tag) = tables.split(self.hash);
        let free = || Some(set * WAYS + tables.sets[set].0.iter().position(|hint| hint.get().stamp == 0)?);
        let turn = count.replace(count.get().wrapping_add(1));
        let place = match self.number.or_else(free) {
            Some(number) => number,
            // If more keys are asked for in turn than there is room for, some keep their hints, and the others don't spend time
            // on replacing them.
            None if turn % RELUCTANCE > 0 => return,
            None => set * WAYS + turn / RELUCTANCE % WAYS,
        };
        let Some(stamp) = tables.learn(leaf, leaf_path, stamps) else { return };
        tables.hint(place).set(Hint { since, stamp, position, tag });
    }
}
