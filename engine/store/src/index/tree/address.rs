//! Addresses of entries that are set again and again, as an object's own entry is by each update below it.
//!
//! An address is where an entry was: the path to its leaf, and its number there. Its key tells whether it still
//! is there.

use super::{Body, ChildPath, Node, Tree, take_leaf};
use crate::format::edit_buffer::SortedEntries;
use crate::format::node::NODE_MAX;
use crate::format::record::Edit;
use std::rc::Rc;

/// Where an entry was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    leaf_path: ChildPath,
    at: u16,
}

impl Address {
    /// An entry of the leaf at the end of the path.
    pub(crate) fn new(leaf_path: ChildPath, at: usize) -> Option<Self> {
        Some(Self { leaf_path, at: u16::try_from(at).ok()? })
    }
}

impl Tree {
    /// Where the entry of a key is; `None` where there is none, it isn't in memory, or is too deep.
    pub(crate) fn address(&self, key: &[u8]) -> Option<Address> {
        let (leaf, leaf_path) = self.leaf_and_path(key).ok()?;
        let at = leaf.entries().search(key).ok()?;
        Address::new(leaf_path?, at)
    }

    /// Whether the entry of a key is at an address, with all that a change of it needs in memory.
    pub(crate) fn is_at(&self, address: Address, key: &[u8]) -> bool {
        self.is_below(&self.root, address.leaf_path.all(), usize::from(address.at), key)
    }

    fn is_below(
        &self,
        node: &Node,
        mut leaf_path: impl Iterator<Item = usize>,
        at: usize,
        key: &[u8],
    ) -> bool {
        self.touch(node);
        match (&node.body, leaf_path.next()) {
            (Body::Leaf(entries), None) => entries.has_key(at, key),
            (Body::Branch(_, children), Some(number)) => children
                .get(number)
                .is_some_and(|child| child.resident_and(|child| self.is_below(child, leaf_path, at, key))),
            _ => false,
        }
    }

    /// Sets an entry that is at an address to a value of the same length. `false`: nothing was set, since the entry is
    /// elsewhere or its value would become longer or shorter.
    pub(crate) fn set_at(&mut self, address: Address, edit: Edit<'_>) -> bool {
        let (Edit { key, value: Some(value) }, at) = (edit, usize::from(address.at)) else { return false };
        let set = |leaf: &mut Node| match &mut leaf.body {
            Body::Leaf(entries) => entries.has_key(at, key) && entries.overwrite(at, value),
            Body::Branch(..) => false,
        };
        let is_set = self.change_leaf(address, set);
        self.version += u64::from(is_set);
        is_set
    }

    /// Sets entries that aren't there before the one at an address. `false`: nothing was set, since they don't certainly belong
    /// there, or don't fit the leaf.
    pub(crate) fn insert_at(&mut self, address: Address, sorted: SortedEntries<'_>) -> bool {
        let (at, count) = (usize::from(address.at), sorted.spans.len() as u64);
        let is_set = self.change_leaf(address, |leaf| {
            let Body::Leaf(entries) = &mut leaf.body else { return false };
            let fits = entries.insert_between(at, sorted, NODE_MAX);
            leaf.recharge();
            fits
        });
        if is_set {
            self.version += 1;
            // The count comes from a checkpoint, which may lie.
            self.len = self.len.saturating_add(count);
        }
        is_set
    }

    /// Calls `change` with the node at an address, if there is one in memory, and returns its result; else `false`.
    #[inline]
    fn change_leaf(&mut self, address: Address, change: impl FnOnce(&mut Node) -> bool) -> bool {
        let Self { root, changes, recent, tick, .. } = self;
        let (mut node, tick) = (root, tick.get());
        for number in address.leaf_path.all() {
            let branch = changes.own(node);
            branch.used.set(tick);
            let Body::Branch(_, children) = &mut branch.body else { return false };
            let child = children.get_mut(number).and_then(|child| child.node_mut().ok());
            let Some(child) = child else { return false };
            node = child;
        }
        // A leaf that is remembered would be copied.
        let recent = recent.get_mut();
        let known = take_leaf(recent, node);
        let leaf = changes.own(node);
        leaf.used.set(tick);
        let is_changed = change(leaf);
        if let Some(number) = known {
            recent[number] = Some(Rc::clone(node));
        }
        is_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::edit_buffer::EditBuffer;
    use crate::format::record::Change;
    use proptest::prelude::*;

    fn all(tree: &Tree) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut all = Vec::new();
        let scanned = tree.scan(&[], |key, value| {
            all.push((key.to_vec(), value.to_vec()));
            core::ops::ControlFlow::<()>::Continue(())
        });
        scanned.expect("in memory");
        all
    }

    proptest! {
        #[test]
        fn what_is_inserted_at_an_address_is_as_if_it_were_put(
            steps in proptest::collection::vec(
                (proptest::collection::btree_set(proptest::collection::vec(0u8..5, 1..6), 1..5), 0usize..900, 0usize..4, any::<u8>()), 1..120),
        ) {
            let (mut tree, mut model, mut frozen) = (Tree::default(), Tree::default(), Vec::new());
            for (number, (keys, len, what, stray)) in (0u8..=u8::MAX).cycle().zip(steps) {
                let value = vec![number; len];
                let edits: Vec<Edit<'_>> =
                    keys.iter().map(|key| Edit { key, value: Some(&value) }).collect();
                let (leaf, leaf_path) = tree.leaf_and_path(edits[0].key).expect("in memory");
                let at = leaf.entries().search(edits[0].key).unwrap_or_else(|at| at);
                drop(leaf);
                let at = if what == 1 { usize::from(stray) } else { at };
                let address = Address::new(leaf_path.expect("a few"), at).expect("small");
                let (before, count, version) = (all(&tree), tree.len(), tree.version());
                let mut buffer = EditBuffer::default();
                buffer.extend(&edits.iter().map(|edit| Change::put(edit.key, value.clone())).collect::<Vec<_>>());
                if tree.insert_at(address, buffer.sorted(0..edits.len())) {
                    prop_assert_eq!((tree.len(), tree.version()), (count + edits.len() as u64, version + 1));
                    for edit in &edits {
                        prop_assert_eq!(model.put(edit.key, &value), Ok(None));
                    }
                } else {
                    prop_assert_eq!((all(&tree), tree.len(), tree.version()), (before, count, version));
                    for edit in &edits {
                        prop_assert_eq!(tree.put(edit.key, &value), model.put(edit.key, &value));
                    }
                }
                prop_assert_eq!(all(&tree), all(&model));
                for edit in &edits {
                    prop_assert_eq!(tree.get(edit.key), Ok(Some(value.clone())));
                }
                if what == 0 {
                    frozen.push((tree.freeze().0, model.freeze().0));
                }
                for (ours, theirs) in &frozen {
                    let still = |root| all(&Tree::new(Rc::clone(root), 0, tree.meter().clone()));
                    prop_assert_eq!(still(ours), still(theirs));
                }
            }
        }

        #[test]
        fn what_is_set_at_an_address_is_as_if_it_were_put(
            steps in proptest::collection::vec(
                (proptest::collection::vec(0u8..5, 0..6), proptest::option::weighted(0.8, 0usize..900), 0usize..4), 1..150),
        ) {
            let (mut tree, mut model, mut addresses) = (Tree::default(), Tree::default(), Vec::new());
            let mut frozen = Vec::new();
            for (number, (key, len, what)) in (0u8..=u8::MAX).cycle().zip(steps) {
                if let Some(len) = len {
                    let value = vec![number; len];
                    prop_assert_eq!(tree.put(&key, &value), model.put(&key, &value));
                } else {
                    prop_assert_eq!(tree.remove(&key), model.remove(&key));
                }
                addresses.extend(tree.address(&key).map(|address| (key.clone(), address)));
                if what == 0 {
                    // A checkpoint shares all nodes; what it was given stays as it is.
                    frozen.push((tree.freeze().0, model.freeze().0));
                }
                for (key, address) in addresses.clone().into_iter().rev().step_by(1 + what) {
                    let before = tree.get(&key).expect("in memory");
                    let value = vec![number; before.as_ref().map_or(7, Vec::len)];
                    let is_there = tree.is_at(address, &key);
                    prop_assert!(before.is_some() || !is_there);
                    let edit = Edit { key: &key, value: Some(&value) };
                    prop_assert_eq!(tree.set_at(address, edit), is_there);
                    if is_there {
                        prop_assert_eq!(model.put(&key, &value).expect("in memory"), before);
                    }
                    let longer = [&value[..], b"x"].concat();
                    let edit = Edit { key: &key, value: Some(&longer) };
                    prop_assert!(!tree.set_at(address, edit));
                }
                prop_assert_eq!(all(&tree), all(&model));
                for (ours, theirs) in &frozen {
                    let still = |root| all(&Tree::new(Rc::clone(root), 0, tree.meter().clone()));
                    prop_assert_eq!(still(ours), still(theirs));
                }
            }
        }
    }
}
