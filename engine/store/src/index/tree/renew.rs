//! Writing nodes anew that are damaged on the device and whole in memory.

use super::node::Changes;
use super::{Body, Child, LEVELS_MAX, Node, Tree};
use crate::format::node::PageRef;
use std::rc::Rc;

/// Where the node is that the stable checkpoint has at some place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NodeLocation {
    /// In memory, so many levels below the root.
    Memory(usize),
    /// On the device only, or below a node that is on the device only.
    Device,
    /// It has been replaced: the next checkpoint doesn't refer to it.
    Gone,
}

impl Tree {
    /// Where the node is that stood at this place, on the way to a key.
    pub(crate) fn location(&self, key: &[u8], place: PageRef) -> NodeLocation {
        let mut node = Rc::clone(&self.root);
        for depth in 0..LEVELS_MAX {
            if node.home.page.get() == Some(place) {
                return NodeLocation::Memory(depth);
            }
            let Body::Branch(keys, children) = &node.body else { break };
            // It may be this child, or one below it.
            let Ok(below) = children[Node::child_of(keys, key)].node() else { return NodeLocation::Device };
            node = below;
        }
        NodeLocation::Gone
    }

    /// Marks the node so many levels below the root, on the path to a key, and those above it as changed: the next checkpoint
    /// writes them to other places.
    pub(crate) fn renew(&mut self, key: &[u8], depth: usize) {
        self.let_go();
        self.version += 1;
        renew(&mut self.root, key, depth, &mut self.changes);
    }
}

/// First key below a node, and first one behind it, if there is a limit.
pub(crate) type Bounds = (Vec<u8>, Option<Vec<u8>>);

impl Tree {
    /// The bounds of the node at this place, where it is the first on the way to a key that isn't in memory.
    pub(crate) fn absent(&self, key: &[u8], place: PageRef) -> Option<Bounds> {
        let (mut node, mut low, mut high) = (Rc::clone(&self.root), Vec::new(), None);
        for _ in 0..LEVELS_MAX {
            let Body::Branch(keys, children) = &node.body else { return None };
            let at = Node::child_of(keys, key);
            if at > 0 {
                low = keys.key(at);
            }
            if at + 1 < keys.len() {
                high = Some(keys.key(at + 1));
            }
            match children[at].node() {
                Err(page) => return (page == place).then_some((low, high)),
                Ok(below) => node = below,
            }
        }
        None
    }

    /// Makes the first node on the path to a key that isn't in memory unreadable for good: no content of its place passes for
    /// it, also if the device returns the right one later. It keeps its place.
    pub(crate) fn void(&mut self, key: &[u8]) {
        if self.leaf(key).is_err() {
            self.let_go();
            self.version += 1;
            void(&mut self.root, key, &mut self.changes);
        }
    }
}

fn void(node: &mut Rc<Node>, key: &[u8], changes: &mut Changes) {
    let owned = changes.own(node);
    if let Body::Branch(keys, children) = &mut owned.body {
        let at = Node::child_of(keys, key);
        match children[at].node_mut() {
            Ok(child) => void(child, key, changes),
            // No page whose bits are those that were written has this checksum.
            Err(page) => children[at] = Child::stored(PageRef { crc: page.crc.wrapping_add(1), ..page }),
        }
    }
    owned.recharge();
}

fn renew(node: &mut Rc<Node>, key: &[u8], depth: usize, changes: &mut Changes) {
    let owned = changes.own(node);
    if let (Body::Branch(keys, children), Some(depth)) = (&mut owned.body, depth.checked_sub(1))
        && let Ok(child) = children[Node::child_of(keys, key)].node_mut()
    {
        renew(child, key, depth, changes);
    }
    owned.recharge();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::tree::dirty_nodes;
    use crate::index::tree::evict::below;

    /// All nodes on the way to a key.
    fn way(tree: &Tree, key: &[u8]) -> Vec<Rc<Node>> {
        let mut all = vec![Rc::clone(tree.root())];
        loop {
            let below = match &all[all.len() - 1].body {
                Body::Leaf(_) => return all,
                Body::Branch(keys, children) => {
                    children[Node::child_of(keys, key)].node().expect("in memory")
                }
            };
            all.push(below);
        }
    }

    /// Gives each changed node a place, as a checkpoint does.
    fn write(tree: &mut Tree, first: u64) {
        let (root, _) = tree.freeze();
        for (at, node) in dirty_nodes(&root).into_iter().enumerate() {
            node.home.page.set(Some(PageRef { block: first + at as u64, len: 1, crc: 0 }));
        }
        tree.note_all_placed();
    }

    #[test]
    fn a_node_is_renewed_with_those_above_it_and_nothing_else_changes() {
        let mut tree = Tree::default();
        let key = |number: u64| number.to_be_bytes();
        for number in 0..60_000u64 {
            tree.put(&key(number), &[7; 200]).expect("in memory");
        }
        write(&mut tree, 1);
        let wanted = key(12_345);
        let levels = way(&tree, &wanted).len();
        assert!(levels > 2, "{levels}");
        for depth in 0..levels {
            let place = way(&tree, &wanted)[depth].home.page.get().expect("it was written");
            if depth + 1 == levels {
                assert_eq!(
                    tree.location(&key(1), place),
                    NodeLocation::Gone,
                    "another key doesn't lead there"
                );
            }
            let held = way(&tree, &wanted);
            let retired = tree.retired().len();
            assert_eq!(tree.location(&wanted, place), NodeLocation::Memory(depth));
            tree.renew(&wanted, depth);
            assert_eq!((tree.dirty_nodes(), tree.retired().len() - retired), (depth + 1, depth + 1));
            assert_eq!(tree.location(&wanted, place), NodeLocation::Gone);
            let changed: Vec<bool> = way(&tree, &wanted).iter().map(|node| node.is_dirty()).collect();
            assert!(changed.iter().enumerate().all(|(at, dirty)| *dirty == (at <= depth)), "{changed:?}");
            assert!(held.iter().all(|node| !node.is_dirty()), "who reads it as it was goes on");
            for number in (0..60_000).step_by(997) {
                assert_eq!(tree.get(&key(number)), Ok(Some(vec![7; 200])));
            }
            drop(held);
            write(&mut tree, 100_000 * (depth as u64 + 1));
        }
        assert_eq!(tree.len(), 60_000);
        let leaf = way(&tree, &wanted)[levels - 1].home.page.get().expect("it was written");
        tree.evict(0, below(&[]), u64::MAX, usize::MAX);
        assert_eq!(tree.location(&wanted, leaf), NodeLocation::Device);
    }
}
