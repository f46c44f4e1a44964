//! Ways that lead back to a leaf without looking at keys.
//!
//! A way names the children that were gone to and the state of the leaf at its end. Where it still leads to a leaf in
//! that state, the leaf has the same entries as then, and every key between two of them still belongs to it: a leaf's range
//! becomes narrower only when it is split, which changes its entries.

use super::{Body, Missing, Node, Tree};
use crate::format::node::{CHILD_BYTES, NODE_MAX};
use core::cell::Cell;
use std::rc::Rc;

/// Levels of branches that a way leads through: with 200 children each, those above some hundred million entries.
const TURNS_MAX: usize = 3;

/// Ends a way that has fewer turns.
const END: u16 = u16::MAX;

const _: () = assert!(NODE_MAX / CHILD_BYTES < END as usize, "no child has the number of the end");

/// How often a leaf is asked for a name before it has one. Those that change again soon aren't worth it.
const REQUESTS: u64 = 8;

/// The children that are gone to on the way from the root to a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turns([u16; TURNS_MAX]);

/// Turns, and the name of the state of the leaf at their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) stamp: u64,
    turns: Turns,
}

/// What gives names to the states of the leaves of one tree: each once, and none whose lower half is 0.
#[derive(Debug)]
pub(crate) struct Stamps(Cell<u64>);

impl Stamps {
    /// Names from this one on.
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

/// The lower half of a name.
pub(crate) const fn half(stamp: u64) -> u32 {
    (stamp & 0xffff_ffff) as u32
}

/// Turns that are taken down one after the other.
#[derive(Debug)]
pub(super) struct Trace {
    turns: [u16; TURNS_MAX],
    count: usize,
}

impl Trace {
    pub(super) const fn new() -> Self {
        Self { turns: [END; TURNS_MAX], count: 0 }
    }

    /// Goes to a child.
    #[inline]
    pub(super) fn note(&mut self, at: usize) {
        if let Some(turn) = self.turns.get_mut(self.count) {
            *turn = u16::try_from(at).expect("invariant: a branch has few hundred children");
        }
        self.count += 1;
    }

    /// All of them; `None` where there are too many to be remembered.
    #[inline]
    pub(super) fn turns(&self) -> Option<Turns> {
        let is_known = self.turns.get(..self.count)?.iter().all(|turn| *turn != END);
        is_known.then_some(Turns(self.turns))
    }
}

impl Turns {
    /// The numbers of the children, from the root on.
    #[inline]
    pub(super) fn all(&self) -> impl Iterator<Item = usize> {
        self.0.into_iter().take_while(|turn| *turn != END).map(usize::from)
    }
}

impl Way {
    /// A way that leads nowhere.
    pub(crate) const NONE: Self = Self { stamp: 0, turns: Turns([END; TURNS_MAX]) };

    /// The way to a leaf as it is now. It gets a name, unless it has one that somebody knows, or it has changed lately.
    pub(crate) fn to(
        leaf: &Node,
        turns: Turns,
        stamps: &Stamps,
        is_known: impl FnOnce(u64) -> bool,
    ) -> Option<Self> {
        let asked = leaf.stamp.get();
        let stamp = match asked {
            0..REQUESTS => asked + 1,
            stamp if stamp > REQUESTS && is_known(stamp) => stamp,
            _ => stamps.take(),
        };
        leaf.stamp.set(stamp);
        (stamp > REQUESTS).then_some(Self { stamp, turns })
    }
}

impl Tree {
    /// As [`Tree::leaf`], and how it was found; `None` where there are too many turns to be remembered.
    #[inline]
    pub(crate) fn leaf_and_turns(&self, key: &[u8]) -> Result<(Rc<Node>, Option<Turns>), Missing> {
        let mut trace = Trace::new();
        let leaf = self.leaf_along(key, |at| trace.note(at))?;
        Ok((leaf, trace.turns()))
    }

    /// The leaf at the end of a way, if it is in the state that the way names.
    #[inline]
    pub(crate) fn follow(&self, way: &Way) -> Option<Rc<Node>> {
        let mut node = Rc::clone(&self.root);
        for turn in way.turns.all() {
            self.touch(&node);
            let child = match &node.body {
                Body::Leaf(_) => return None,
                Body::Branch(_, children) => children.get(turn)?.node().ok()?,
            };
            node = child;
        }
        (way.stamp > REQUESTS && node.stamp.get() == way.stamp).then(|| {
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

    /// The way to the leaf of a key, asked for until there is one.
    fn way(tree: &Tree, key: &[u8], stamps: &Stamps) -> Way {
        let ask = || {
            let (leaf, turns) = tree.leaf_and_turns(key).expect("in memory");
            Way::to(&leaf, turns.expect("a few"), stamps, |_| true)
        };
        assert_eq!(tree.follow(&Way::NONE).map(|leaf| entries(&leaf)), None);
        (0..=REQUESTS).find_map(|_| ask()).expect("it was asked for often enough")
    }

    proptest! {
        #[test]
        fn a_way_leads_to_a_leaf_only_as_it_was_and_all_its_keys_belong_there(
            steps in proptest::collection::vec(
                (proptest::collection::vec(0u8..5, 0..6), proptest::option::weighted(0.7, 0usize..3000)), 1..120),
        ) {
            let (mut tree, stamps, mut ways) = (Tree::default(), Stamps::from(1), Vec::new());
            for (number, (key, value)) in steps.into_iter().enumerate() {
                match value {
                    Some(len) => drop(tree.put(&key, &vec![7; len]).expect("in memory")),
                    None => drop(tree.remove(&key).expect("in memory")),
                }
                // Some leaves change again before anybody knows a way to them.
                if number % 3 > 0 {
                    let leaf = tree.leaf(&key).expect("in memory");
                    ways.push((way(&tree, &key, &stamps), entries(&leaf), key));
                    let (way, ..) = ways.last().expect("just added");
                    prop_assert!(tree.follow(way).is_some_and(|found| Rc::ptr_eq(&found, &leaf)));
                }
                for (way, known, key) in &ways {
                    let Some(leaf) = tree.follow(way) else { continue };
                    prop_assert_eq!(&entries(&leaf), known);
                    for key in known.iter().map(|(key, _)| key).chain([key]) {
                        prop_assert!(Rc::ptr_eq(&tree.leaf(key).expect("in memory"), &leaf), "{:?}", key);
                    }
                }
            }
        }
    }

    #[test]
    fn no_name_has_a_half_of_nothing() {
        let stamps = Stamps::from(u64::from(u32::MAX));
        let names = [stamps.take(), stamps.take(), stamps.take()];
        assert_eq!(names.map(half), [u32::MAX, 1, 2]);
    }
}
