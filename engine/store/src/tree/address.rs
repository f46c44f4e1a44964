//! Addresses of entries that are set again and again, as an object's own entry is by each update below it.
//!
//! An address is where an entry was: the children that were gone to, and its number in the leaf. Its key tells whether it still
//! is there.

use super::{Body, Missing, Node, Tree, Turns};
use crate::record::Edit;

/// Where an entry was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    turns: Turns,
    at: u16,
}

impl Tree {
    /// Where the entry of a key is; `None` where there is none, it isn't in memory, or is too deep.
    pub(crate) fn address(&self, key: &[u8]) -> Option<Address> {
        let (leaf, turns) = self.leaf_and_turns(key).ok()?;
        let at = leaf.entries()?.search(key).ok()?;
        Some(Address { turns: turns?, at: u16::try_from(at).ok()? })
    }

    /// Whether the entry of a key is at an address, with all that a change of it needs in memory.
    pub(crate) fn is_at(&self, address: Address, key: &[u8]) -> bool {
        self.is_below(&self.root, address.turns.all(), usize::from(address.at), key)
    }

    fn is_below(&self, node: &Node, mut turns: impl Iterator<Item = usize>, at: usize, key: &[u8]) -> bool {
        self.touch(node);
        match (&node.body, turns.next()) {
            (Body::Leaf(entries), None) => entries.has_key(at, key),
            (Body::Branch(_, children), Some(turn)) => children
                .get(turn)
                .is_some_and(|child| child.resident_and(|child| self.is_below(child, turns, at, key))),
            _ => false,
        }
    }

    /// Sets an entry that is at an address to a value of the same length. `false`: nothing was set, since the entry is
    /// elsewhere or its value would become longer or shorter.
    pub(crate) fn set_at(&mut self, address: Address, edit: Edit<'_>) -> Result<bool, Missing> {
        let (Edit { key, value }, at) = (edit, usize::from(address.at));
        let Some(value) = value else { return Ok(false) };
        let mut node = &mut self.root;
        for turn in address.turns.all() {
            let Body::Branch(_, children) = &mut self.changes.own(node).body else { return Ok(false) };
            let Some(child) = children.get_mut(turn) else { return Ok(false) };
            node = child.node_mut().map_err(|page| Missing::one(key, page))?;
        }
        // A finger would have the leaf copied; its entries stay where they are.
        let fingers = self.fingers.get_mut();
        let pointed =
            fingers.iter().position(|finger| finger.as_ref().is_some_and(|finger| finger.is_on(node)));
        let finger_at = pointed.and_then(|number| fingers[number].take()).map(|finger| finger.at);
        let mut is_set = false;
        if let Body::Leaf(entries) = &mut self.changes.own(node).body
            && entries.has_key(at, key)
            && entries.overwrite(at, value)
        {
            self.version += 1;
            is_set = true;
        }
        if let (Some(number), Some(at)) = (pointed, finger_at) {
            fingers[number] = Some(super::Finger { leaf: std::rc::Rc::clone(node), at });
        }
        Ok(is_set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
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
                    prop_assert_eq!(tree.set_at(address, edit), Ok(is_there));
                    if is_there {
                        prop_assert_eq!(model.put(&key, &value).expect("in memory"), before);
                    }
                    let longer = [&value[..], b"x"].concat();
                    let edit = Edit { key: &key, value: Some(&longer) };
                    prop_assert_eq!(tree.set_at(address, edit), Ok(false));
                }
                let all = |tree: &Tree| {
                    let mut all = Vec::new();
                    tree.scan(&[], |key, value| {
                        all.push((key.to_vec(), value.to_vec()));
                        core::ops::ControlFlow::<()>::Continue(())
                    }).expect("in memory");
                    all
                };
                prop_assert_eq!(all(&tree), all(&model));
                for (ours, theirs) in &frozen {
                    let still = |root| all(&Tree::new(std::rc::Rc::clone(root), 0, tree.meter().clone()));
                    prop_assert_eq!(still(ours), still(theirs));
                }
            }
        }
    }
}
