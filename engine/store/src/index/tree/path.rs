//! Paths that lead back to a leaf without a comparison of keys.
//!
//! A stamped path has the number of the child in each branch from the root to a leaf, and the stamp of the leaf, which names
//! one state of its entries. Where the path still leads to a leaf with that stamp, the leaf has the same entries as then, and
//! every key between two of them belongs to it: the range of a leaf becomes narrower only by a split, which changes its entries.

use super::{Body, Missing, Node, Tree};
use crate::format::node::{CHILD_BYTES, NODE_MAX};
use core::cell::Cell;
use std::rc::Rc;

/// Levels of branches that a path leads through: with 200 children each, those above some hundred million entries.
const LEVELS_OF_PATH: usize = 3;

/// Ends a path of fewer levels.
const END: u16 = u16::MAX;

const _: () = assert!(NODE_MAX / CHILD_BYTES < END as usize, "no child has the number of the end");

/// How often a leaf is asked for its stamp before it gets one: most leaves that have just changed change again soon.
const REQUESTS: u64 = 8;

/// The numbers of the children on the way from the root to a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChildPath([u16; LEVELS_OF_PATH]);

/// A path, and the stamp of the leaf at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StampedPath {
    pub(crate) stamp: u64,
    leaf_path: ChildPath,
}

/// Gives stamps to the leaves of one tree: each stamp once, and none whose lower half is 0.
#[derive(Debug)]
pub(crate) struct StampSource(Cell<u64>);

impl StampSource {
    /// Stamps from this one on.
    pub(crate) fn from(first: u64) -> Self {
        Self(Cell::new(first.max(REQUESTS + 1)))
    }

    fn take(&self) -> u64 {
        let stamp = self.0.get();
        let next = stamp + 1;
        self.0.set(if half(next) == 0 { next + 1 } else { next });
        stamp
    }
}

/// The lower half of a stamp.
pub(crate) const fn half(stamp: u64) -> u32 {
    (stamp & 0xffff_ffff) as u32
}

/// A path that is recorded on the way down.
#[derive(Debug)]
pub(super) struct PathRecorder {
    leaf_path: [u16; LEVELS_OF_PATH],
    count: usize,
}

impl PathRecorder {
    pub(super) const fn new() -> Self {
        Self { leaf_path: [END; LEVELS_OF_PATH], count: 0 }
    }

    /// Records the number of the next child.
    #[inline]
    pub(super) fn note(&mut self, at: usize) {
        if let Some(number) = self.leaf_path.get_mut(self.count) {
            *number = u16::try_from(at).expect("invariant: a branch has few hundred children");
        }
        self.count += 1;
    }

    /// The whole path; `None` where it has too many levels.
    #[inline]
    pub(super) fn leaf_path(&self) -> Option<ChildPath> {
        let is_known = self.leaf_path.get(..self.count)?.iter().all(|number| *number != END);
        is_known.then_some(ChildPath(self.leaf_path))
    }
}

impl ChildPath {
    /// The numbers of the children, from the root on.
    #[inline]
    pub(super) fn all(&self) -> impl Iterator<Item = usize> {
        self.0.into_iter().take_while(|number| *number != END).map(usize::from)
    }
}

impl StampedPath {
    /// A path that leads nowhere.
    pub(crate) const NONE: Self = Self { stamp: 0, leaf_path: ChildPath([END; LEVELS_OF_PATH]) };

    /// The path to a leaf as it is now. The leaf gets a stamp, unless it has one that somebody knows, or has changed lately.
    pub(crate) fn to(
        leaf: &Node,
        leaf_path: ChildPath,
        stamps: &StampSource,
        is_known: impl FnOnce(u64) -> bool,
    ) -> Option<Self> {
        let asked = leaf.stamp.get();
        let stamp = match asked {
            0..REQUESTS => asked + 1,
            stamp if stamp > REQUESTS && is_known(stamp) => stamp,
            _ => stamps.take(),
        };
        leaf.stamp.set(stamp);
        (stamp > REQUESTS).then_some(Self { stamp, leaf_path })
    }
}

impl Tree {
    /// As [`Tree::leaf`], with the path to it; `None` where that has too many levels.
    #[inline]
    pub(crate) fn leaf_and_path(&self, key: &[u8]) -> Result<(Rc<Node>, Option<ChildPath>), Missing> {
        let mut trace = PathRecorder::new();
        let leaf = self.leaf_along(key, |at| trace.note(at))?;
        Ok((leaf, trace.leaf_path()))
    }

    /// The leaf at the end of a path, if it still has the stamp.
    #[inline]
    pub(crate) fn follow(&self, path: &StampedPath) -> Option<Rc<Node>> {
        let mut node = Rc::clone(&self.root);
        for number in path.leaf_path.all() {
            self.touch(&node);
            let child = match &node.body {
                Body::Leaf(_) => return None,
                Body::Branch(_, children) => children.get(number)?.node().ok()?,
            };
            node = child;
        }
        (path.stamp > REQUESTS && node.stamp.get() == path.stamp).then(|| {
            self.touch(&node);
            node
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Entries = Vec<(Vec<u8>, Vec<u8>)>;

    fn entries(leaf: &Node) -> Entries {
        let entries = leaf.entries();
        (0..entries.len()).map(|at| (entries.key(at), entries.value(at).to_vec())).collect()
    }

    /// The path to the leaf of a key, asked for until there is one.
    fn path(tree: &Tree, key: &[u8], stamps: &StampSource) -> StampedPath {
        let ask = || {
            let (leaf, leaf_path) = tree.leaf_and_path(key).expect("in memory");
            StampedPath::to(&leaf, leaf_path.expect("a few"), stamps, |_| true)
        };
        assert_eq!(tree.follow(&StampedPath::NONE).map(|leaf| entries(&leaf)), None);
        (0..=REQUESTS).find_map(|_| ask()).expect("it was asked for often enough")
    }

    proptest! {
        #[test]
        fn a_path_leads_to_a_leaf_only_as_it_was_and_all_its_keys_belong_there(
            steps in proptest::collection::vec(
                (proptest::collection::vec(0u8..5, 0..6), proptest::option::weighted(0.7, 0usize..3000)), 1..120),
        ) {
            let (mut tree, stamps, mut paths) = (Tree::default(), StampSource::from(1), Vec::new());
            for (number, (key, value)) in steps.into_iter().enumerate() {
                match value {
                    Some(len) => drop(tree.put(&key, &vec![7; len]).expect("in memory")),
                    None => drop(tree.remove(&key).expect("in memory")),
                }
                // Some leaves change again before anybody knows a path to them.
                if number % 3 > 0 {
                    let leaf = tree.leaf(&key).expect("in memory");
                    paths.push((path(&tree, &key, &stamps), entries(&leaf), key));
                    let (path, ..) = paths.last().expect("just added");
                    prop_assert!(tree.follow(path).is_some_and(|found| Rc::ptr_eq(&found, &leaf)));
                }
                for (path, known, key) in &paths {
                    let Some(leaf) = tree.follow(path) else { continue };
                    prop_assert_eq!(&entries(&leaf), known);
                    for key in known.iter().map(|(key, _)| key).chain([key]) {
                        prop_assert!(Rc::ptr_eq(&tree.leaf(key).expect("in memory"), &leaf), "{:?}", key);
                    }
                }
            }
        }
    }

    #[test]
    fn no_stamp_has_a_lower_half_of_zero() {
        let stamps = StampSource::from(u64::from(u32::MAX));
        let names = [stamps.take(), stamps.take(), stamps.take()];
        assert_eq!(names.map(half), [u32::MAX, 1, 2]);
    }
}
