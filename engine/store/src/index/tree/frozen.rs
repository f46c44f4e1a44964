//! The state that a checkpoint writes, which is held fast in constant time and gone through in steps.
//!
//! Nothing below the root of a frozen state changes as long as that root, or a walk from it, is there: what is to be
//! changed is shared with it and is copied, and only children with a place on the device are let go.

use super::Tree;
use super::node::{Body, Home, Node};
use std::rc::Rc;

impl Tree {
    /// The present state, and the homes that left the tree since the last call. Resets the counts of changes.
    pub(crate) fn freeze(&mut self) -> (Rc<Node>, Vec<Rc<Home>>) {
        let changes = &mut self.changes;
        changes.frozen = core::mem::take(&mut changes.dirty);
        changes.unplaced = changes.frozen;
        changes.dropped = 0;
        self.version += 1;
        (Rc::clone(&self.root), core::mem::take(&mut changes.retired))
    }

    /// Undoes a freeze, with the homes that it returned. None of its nodes has been written.
    pub(crate) fn thaw(&mut self, mut retired: Vec<Rc<Home>>) {
        let changes = &mut self.changes;
        retired.append(&mut changes.retired);
        changes.retired = retired;
        // Each node that has left the tree was counted when it was added, before the freeze or since.
        let counted = changes.dirty + core::mem::take(&mut changes.frozen);
        changes.dirty =
            counted.checked_sub(changes.dropped).expect("invariant: none has left that wasn't counted");
        changes.unplaced = 0;
    }

    /// Upper bound of the nodes of the last frozen state that are still to get a place on the device.
    pub(crate) fn unplaced_nodes(&self) -> usize {
        self.changes.unplaced
    }

    /// Notes that one more of them has got a place.
    pub(crate) fn note_placed(&mut self) {
        let left = self.changes.unplaced.checked_sub(1);
        self.changes.unplaced = left.expect("invariant: no more nodes have a place than have changed");
    }

    /// Notes that one of them has lost its place again.
    pub(crate) fn note_displaced(&mut self) {
        self.changes.unplaced += 1;
    }

    /// Notes that all of them have got places.
    pub(crate) fn note_all_placed(&mut self) {
        self.changes.unplaced = 0;
    }
}

/// A walk through a frozen state along its nodes without a place on the device, children before their parents. Each step
/// looks at one child, or comes to one of these nodes.
pub(crate) struct DirtyNodes {
    /// The branches on the way, each with the child that comes next, and the leaf at its end.
    way: Vec<(Rc<Node>, usize)>,
}

impl DirtyNodes {
    pub(crate) fn new(root: Rc<Node>) -> Self {
        let way = if root.is_dirty() { vec![(root, 0)] } else { Vec::new() };
        Self { way }
    }
}

impl Iterator for DirtyNodes {
    type Item = Option<Rc<Node>>;

    fn next(&mut self) -> Option<Self::Item> {
        let (node, at) = self.way.last_mut()?;
        let child = match &node.body {
            Body::Leaf(_) => None,
            Body::Branch(_, children) => children.get(*at),
        };
        let Some(child) = child else {
            return Some(self.way.pop().map(|(node, _)| node));
        };
        *at += 1;
        // A clean node has no dirty child: changing the child made the whole path dirty.
        if let Some(below) = child.dirty() {
            self.way.push((below, 0));
        }
        Some(None)
    }
}

/// The nodes of a state that have no place on the device, children before their parents.
pub(crate) fn dirty_nodes(root: &Rc<Node>) -> Vec<Rc<Node>> {
    DirtyNodes::new(Rc::clone(root)).flatten().collect()
}
