//! Writing nodes anew that are damaged on the device and whole in memory.

use super::node::Changes;
use super::{Body, LEVELS_MAX, Node, PageRef, Tree};
use std::rc::Rc;

impl Tree {
    /// Takes the node at this place, to which `key` leads, and those above it for changed: the next checkpoint writes them to
    /// other places. `false`: it isn't in memory, or isn't at that place any more.
    pub(crate) fn renew(&mut self, key: &[u8], place: PageRef) -> bool {
        let Some(depth) = self.depth_of(key, place) else { return false };
        self.let_go();
        self.version += 1;
        renew(&mut self.root, key, depth, &mut self.changes);
        true
    }

    /// How many nodes on the way to a key stand above the one at this place.
    fn depth_of(&self, key: &[u8], place: PageRef) -> Option<usize> {
        let mut node = Rc::clone(&self.root);
        for depth in 0..LEVELS_MAX {
            if node.home.page.get() == Some(place) {
                return Some(depth);
            }
            let Body::Branch(keys, children) = &node.body else { return None };
            let below = children[Node::child_of(keys, key)].node().ok()?;
            node = below;
        }
        None
    }
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
    use crate::tree::dirty_nodes;

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
                assert!(!tree.renew(&key(1), place), "another key doesn't lead there");
            }
            let held = way(&tree, &wanted);
            let retired = tree.retired().len();
            assert!(tree.renew(&wanted, place));
            assert_eq!((tree.dirty_nodes(), tree.retired().len() - retired), (depth + 1, depth + 1));
            assert!(!tree.renew(&wanted, place), "it is there no longer");
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
    }
}
