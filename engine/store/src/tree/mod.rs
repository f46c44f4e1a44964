//! An ordered copy-on-write map from bytes to bytes.
//!
//! [`Tree::freeze`] gives the present state in constant time; later changes copy the nodes on their path. A
//! checkpoint writes the nodes of a frozen state that have no place on the device yet, while the tree changes on.
//! Each state of a node has a [`Home`]; homes of states that left the tree are collected in [`Changes::retired`].

mod node;
mod packed;

pub(crate) use node::{Body, Changes, ENTRY_MAX, Home, NODE_BYTES, NODE_HEADER, NODE_MAX, Node, PageRef};
pub(crate) use packed::Packed;

use core::ops::ControlFlow;
use node::{NODE_MERGED, NODE_MIN};
use std::rc::Rc;

/// The map.
#[derive(Debug)]
pub(crate) struct Tree {
    root: Rc<Node>,
    changes: Changes,
    len: u64,
}

impl Default for Tree {
    fn default() -> Self {
        Self::new(Node::new(Body::Leaf(Packed::default())), 0)
    }
}

/// The right part of a split node with its lowest key.
type Split = Option<(Vec<u8>, Rc<Node>)>;

impl Tree {
    /// A tree over nodes that were loaded, with the number of their entries.
    pub(crate) fn new(root: Rc<Node>, len: u64) -> Self {
        let dirty = usize::from(root.is_dirty());
        Self { root, changes: Changes { retired: Vec::new(), dirty }, len }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Upper bound of the nodes that a checkpoint would write.
    pub(crate) fn dirty_nodes(&self) -> usize {
        self.changes.dirty
    }

    /// The present state, and the homes that left the tree since the last call. From now on changes are counted anew.
    pub(crate) fn freeze(&mut self) -> (Rc<Node>, Vec<Rc<Home>>) {
        self.changes.dirty = 0;
        (Rc::clone(&self.root), core::mem::take(&mut self.changes.retired))
    }

    /// The root node as it is now.
    pub(crate) fn root(&self) -> &Rc<Node> {
        &self.root
    }

    /// Homes that left the tree since the last freeze.
    pub(crate) fn retired(&self) -> &[Rc<Home>] {
        &self.changes.retired
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let mut node = &self.root;
        loop {
            match &node.body {
                Body::Leaf(entries) => return entries.search(key).ok().map(|at| entries.value(at)),
                Body::Branch(keys, children) => node = &children[Node::child_of(keys, key)],
            }
        }
    }

    /// Sets the value of a key and returns the one it had. Key and value together are at most [`ENTRY_MAX`] bytes.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Option<Vec<u8>> {
        debug_assert!(key.len() + value.len() <= ENTRY_MAX, "an entry of {} bytes", key.len() + value.len());
        let (old, split) = put(&mut self.root, key, value, &mut self.changes);
        if let Some((separator, right)) = split {
            let mut keys = Packed::default();
            keys.push(b"", b"");
            keys.push(&separator, b"");
            let left = Rc::clone(&self.root);
            self.root = self.changes.added(Body::Branch(keys, vec![left, right]));
        }
        self.len += u64::from(old.is_none());
        old
    }

    /// Removes a key and returns its value.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        // Looking first keeps a path that doesn't change clean.
        self.get(key)?;
        let old = remove(&mut self.root, key, &mut self.changes);
        loop {
            let only = match &self.root.body {
                Body::Branch(_, children) if children.len() == 1 => Rc::clone(&children[0]),
                _ => break,
            };
            self.changes.removed(&self.root);
            self.root = only;
        }
        self.len -= u64::from(old.is_some());
        old
    }

    /// Visits entries in order from the first key that is at least `from`, until `visit` breaks.
    pub(crate) fn scan<B>(
        &self,
        from: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Option<B> {
        match scan(&self.root, Some(from), &mut Vec::new(), &mut visit) {
            ControlFlow::Break(found) => Some(found),
            ControlFlow::Continue(()) => None,
        }
    }

    /// Visits entries in reverse order from the last key that is below `below`, until `visit` breaks.
    pub(crate) fn scan_back<B>(
        &self,
        below: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Option<B> {
        match scan_back(&self.root, Some(below), &mut Vec::new(), &mut visit) {
            ControlFlow::Break(found) => Some(found),
            ControlFlow::Continue(()) => None,
        }
    }

    /// The first entry whose key is at least `from` and begins with `prefix`.
    pub(crate) fn first(&self, from: &[u8], prefix: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        self.scan(from, |key, value| {
            ControlFlow::Break(key.starts_with(prefix).then(|| (key.to_vec(), value.to_vec())))
        })?
    }

    /// Heap memory of the index in bytes: walks all nodes.
    pub(crate) fn memory(&self) -> usize {
        fn walk(node: &Node) -> usize {
            // Two reference counts each for node and home.
            let own = size_of::<Node>() + size_of::<Home>() + 4 * size_of::<usize>();
            own + match &node.body {
                Body::Leaf(entries) => entries.memory(),
                Body::Branch(keys, children) => {
                    keys.memory()
                        + children.capacity() * size_of::<usize>()
                        + children.iter().map(|child| walk(child)).sum::<usize>()
                }
            }
        }
        walk(&self.root)
    }
}

/// The nodes of a frozen state that have no place on the device, children before their parents.
pub(crate) fn dirty_nodes(root: &Rc<Node>) -> Vec<Rc<Node>> {
    fn walk(node: &Rc<Node>, found: &mut Vec<Rc<Node>>) {
        // A clean node has no dirty child: changing the child made the whole path dirty.
        if !node.is_dirty() {
            return;
        }
        if let Body::Branch(_, children) = &node.body {
            for child in children {
                walk(child, found);
            }
        }
        found.push(Rc::clone(node));
    }
    let mut found = Vec::new();
    walk(root, &mut found);
    found
}

/// The shortest bytes that are above `left` and at most `right`.
fn separator(left: &[u8], right: &[u8]) -> Vec<u8> {
    let shared = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    right[..(shared + 1).min(right.len())].to_vec()
}

fn put(node: &mut Rc<Node>, key: &[u8], value: &[u8], changes: &mut Changes) -> (Option<Vec<u8>>, Split) {
    match changes.own(node) {
        Body::Leaf(entries) => {
            let (old, at) = match entries.search(key) {
                Ok(at) => {
                    let old = entries.value(at).to_vec();
                    entries.replace(at, value);
                    (Some(old), at)
                }
                Err(at) => {
                    entries.insert(at, key, value);
                    (None, at)
                }
            };
            if entries.size() <= NODE_MAX {
                return (old, None);
            }
            // Keys that arrive in order leave full nodes behind.
            let middle = if at + 1 == entries.len() { at } else { entries.middle() };
            let right = entries.range(middle..entries.len());
            let low = separator(&entries.key(middle - 1), &right.key(0));
            *entries = entries.range(0..middle);
            (old, Some((low, changes.added(Body::Leaf(right)))))
        }
        Body::Branch(keys, children) => {
            let at = Node::child_of(keys, key);
            let (old, split) = put(&mut children[at], key, value, changes);
            let Some((low, right)) = split else { return (old, None) };
            keys.insert(at + 1, &low, b"");
            children.insert(at + 1, right);
            if keys.size() + children.len() * node::CHILD_BYTES <= NODE_MAX {
                return (old, None);
            }
            let middle = if at + 2 == keys.len() { keys.len() - 2 } else { keys.middle() };
            let low = keys.key(middle);
            let mut right = keys.range(middle + 1..keys.len());
            right.insert(0, b"", b"");
            *keys = keys.range(0..middle);
            let right = Body::Branch(right, children.split_off(middle));
            (old, Some((low, changes.added(right))))
        }
    }
}

fn remove(node: &mut Rc<Node>, key: &[u8], changes: &mut Changes) -> Option<Vec<u8>> {
    match changes.own(node) {
        Body::Leaf(entries) => {
            let at = entries.search(key).ok()?;
            let old = entries.value(at).to_vec();
            entries.remove(at);
            Some(old)
        }
        Body::Branch(keys, children) => {
            let at = Node::child_of(keys, key);
            let old = remove(&mut children[at], key, changes);
            if children[at].size() < NODE_MIN && children.len() > 1 {
                let left = at.saturating_sub(1).min(children.len() - 2);
                merge(keys, children, left, changes);
            }
            old
        }
    }
}

/// Joins child `left` with its right neighbour when they fit, or when one of them is empty.
fn merge(keys: &mut Packed, children: &mut Vec<Rc<Node>>, left: usize, changes: &mut Changes) {
    let is_empty = |node: &Node| matches!(&node.body, Body::Leaf(entries) if entries.is_empty());
    if let Some(at) = [left, left + 1].into_iter().find(|at| is_empty(&children[*at])) {
        // Without the key between them, the neighbour takes over the whole range.
        keys.remove(left + 1);
        changes.removed(&children.remove(at));
        return;
    }
    let low = keys.key(left + 1);
    let joined = children[left].size() + children[left + 1].size() + low.len();
    // The longest prefix may be lost, which the bound covers: each entry of the smaller node may grow by it.
    let growth = prefix_growth(&children[left]) + prefix_growth(&children[left + 1]);
    if joined + growth > NODE_MERGED {
        return;
    }
    let right = children.remove(left + 1);
    keys.remove(left + 1);
    match (changes.own(&mut children[left]), &right.body) {
        (Body::Leaf(entries), Body::Leaf(more)) => {
            for at in 0..more.len() {
                entries.push(&more.key(at), more.value(at));
            }
            *entries = entries.range(0..entries.len());
        }
        (Body::Branch(keys, nodes), Body::Branch(more, others)) => {
            for at in 0..more.len() {
                keys.push(&if at == 0 { low.clone() } else { more.key(at) }, b"");
            }
            nodes.extend(others.iter().cloned());
        }
        _ => unreachable!("all leaves have the same depth"),
    }
    changes.removed(&right);
}

fn prefix_growth(node: &Node) -> usize {
    match &node.body {
        Body::Leaf(entries) | Body::Branch(entries, _) => {
            entries.prefix().len() * entries.len().saturating_sub(1)
        }
    }
}

type Visit<'a, B> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<B>;

fn scan<B>(node: &Node, from: Option<&[u8]>, key: &mut Vec<u8>, visit: Visit<'_, B>) -> ControlFlow<B> {
    match &node.body {
        Body::Leaf(entries) => {
            let first = from.map_or(0, |from| entries.search(from).unwrap_or_else(|at| at));
            for at in first..entries.len() {
                entries.copy_key(at, key);
                visit(key, entries.value(at))?;
            }
        }
        Body::Branch(keys, children) => {
            let first = from.map_or(0, |from| Node::child_of(keys, from));
            for (at, child) in children.iter().enumerate().skip(first) {
                scan(child, if at == first { from } else { None }, key, visit)?;
            }
        }
    }
    ControlFlow::Continue(())
}

fn scan_back<B>(node: &Node, below: Option<&[u8]>, key: &mut Vec<u8>, visit: Visit<'_, B>) -> ControlFlow<B> {
    match &node.body {
        Body::Leaf(entries) => {
            let end = below.map_or(entries.len(), |below| entries.search(below).unwrap_or_else(|at| at));
            for at in (0..end).rev() {
                entries.copy_key(at, key);
                visit(key, entries.value(at))?;
            }
        }
        Body::Branch(keys, children) => {
            let last = below.map_or(children.len() - 1, |below| Node::child_of(keys, below));
            for at in (0..=last).rev() {
                scan_back(&children[at], if at == last { below } else { None }, key, visit)?;
            }
        }
    }
    ControlFlow::Continue(())
}

#[cfg(test)]
mod tests;
