//! An ordered copy-on-write map from bytes to bytes, of which only a part needs to be in memory.
//!
//! [`Tree::freeze`] gives the present state in constant time; later changes copy the nodes on their path. A
//! checkpoint writes the nodes of a frozen state that have no place on the device yet, while the tree changes on.
//! Each state of a node has a [`Home`]; homes of states that left the tree are collected in [`Changes::retired`].
//!
//! A node that has a place on the device can be evicted from memory. Whoever then asks for something below it gets
//! [`Missing`]: the nodes to be read and given to [`Tree::install`] before the question is asked again. A change never
//! misses a node once [`Tree::reach`] has found the way to its key.

mod evict;
mod node;
mod packed;
mod scan;

pub(crate) use node::{
    Body, Changes, Child, ENTRY_MAX, Home, Meter, NODE_BYTES, NODE_HEADER, NODE_MAX, Node, PageRef,
};
pub(crate) use packed::Packed;

use crate::codec::{Malformed, shared_len};
use core::cell::{Cell, RefCell};
use evict::Hand;
use node::{NODE_MERGED, NODE_MIN};
use smallvec::SmallVec;
use std::rc::Rc;

/// Most levels of an index: even nodes of three children would hold more entries than a device has blocks.
pub(crate) const LEVELS_MAX: usize = 40;

/// The map.
#[derive(Debug)]
pub(crate) struct Tree {
    root: Rc<Node>,
    changes: Changes,
    len: u64,
    /// Counts changes of entries.
    version: u64,
    /// Counts questions.
    tick: Cell<u64>,
    /// Counts nodes that questions pass.
    visits: Cell<u64>,
    /// Nodes beyond a missing one that a scan asks for.
    ahead: Cell<usize>,
    hand: Hand,
    /// Leaves where the last scans were, the latest first: what belongs together is close together, and the entry of an
    /// object itself is asked for between its dkeys. A leaf is let go before it is changed, since it would have to be
    /// copied otherwise.
    fingers: RefCell<Fingers>,
    /// Memory for the keys that a scan visits.
    key: RefCell<Vec<u8>>,
}

type Fingers = [Option<Finger>; 2];

/// A leaf, and the entry of it that was looked at last.
#[derive(Clone, Debug)]
struct Finger {
    leaf: Rc<Node>,
    at: usize,
}

#[cfg(test)]
impl Default for Tree {
    fn default() -> Self {
        let meter = Meter::default();
        Self::new(Node::new(Body::Leaf(Packed::default()), &meter), 0, meter)
    }
}

/// What keys had before they were set; `None` where there was nothing. What is overwritten again and again is an
/// object's event, of nine bytes.
pub(crate) type Olds = SmallVec<[Option<SmallVec<[u8; 16]>>; 4]>;

/// The right part of a split node with its lowest key.
type Split = Option<(Vec<u8>, Rc<Node>)>;

/// Nodes that a question needs and that aren't in memory, the first one in any case: each with its place and a key
/// that belongs below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing(pub(crate) Vec<(Vec<u8>, PageRef)>);

impl Missing {
    fn one(key: &[u8], page: PageRef) -> Self {
        Self(vec![(key.to_vec(), page)])
    }
}

impl Tree {
    /// A tree over its root, with the number of its entries and the meter that all its nodes are counted on.
    pub(crate) fn new(root: Rc<Node>, len: u64, meter: Meter) -> Self {
        let dirty = usize::from(root.is_dirty());
        let changes = Changes { retired: Vec::new(), dirty, meter };
        let (tick, visits, ahead) = (Cell::new(0), Cell::new(0), Cell::new(0));
        Self {
            root,
            changes,
            len,
            version: 0,
            tick,
            visits,
            ahead,
            hand: Hand::default(),
            fingers: RefCell::default(),
            key: RefCell::default(),
        }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Grows with each change of entries: what was found at a version is so as long as the tree has it.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Upper bound of the nodes that a checkpoint would write.
    pub(crate) fn dirty_nodes(&self) -> usize {
        self.changes.dirty
    }

    /// Memory that the nodes take.
    pub(crate) fn meter(&self) -> &Meter {
        &self.changes.meter
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

    /// A question begins, or begins again: nodes it passes count as used from now. A scan that misses a node behind
    /// its first asks for up to `ahead` more. Returns the present tick.
    pub(crate) fn begin(&self, ahead: usize) -> u64 {
        self.ahead.set(ahead);
        self.tick.set(self.tick.get() + 1);
        self.tick.get()
    }

    /// The present tick.
    pub(crate) fn tick(&self) -> u64 {
        self.tick.get()
    }

    /// Nodes that questions have passed.
    pub(crate) fn visits(&self) -> u64 {
        self.visits.get()
    }

    fn touch(&self, node: &Node) {
        self.visits.set(self.visits.get() + 1);
        node.used.set(self.tick.get());
    }

    /// The leaf that a key belongs to.
    pub(crate) fn leaf(&self, key: &[u8]) -> Result<Rc<Node>, Missing> {
        let mut node = Rc::clone(&self.root);
        loop {
            self.touch(&node);
            let child = match &node.body {
                Body::Leaf(_) => return Ok(node),
                Body::Branch(keys, children) => {
                    let at = Node::child_of(keys, key);
                    node.trail.note(at);
                    children[at].node().map_err(|page| Missing::one(key, page))?
                }
            };
            node = child;
        }
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Missing> {
        let leaf = self.leaf(key)?;
        match &leaf.body {
            Body::Leaf(entries) => Ok(entries.search(key).ok().map(|at| entries.value(at).to_vec())),
            Body::Branch(..) => Ok(None),
        }
    }

    /// Makes sure that changes of these keys find all they need.
    pub(crate) fn reach<'a>(&self, keys: impl IntoIterator<Item = &'a [u8]>) -> Result<(), Missing> {
        let mut missing: Vec<(Vec<u8>, PageRef)> = Vec::new();
        for key in keys {
            if self.at_finger(key).is_some() {
                continue;
            }
            let Missing(nodes) = match self.leaf(key) {
                Ok(leaf) => {
                    self.point(&leaf, 0);
                    continue;
                }
                Err(missing) => missing,
            };
            for (key, page) in nodes {
                if missing.iter().all(|(_, known)| *known != page) {
                    missing.push((key, page));
                }
            }
            if missing.len() > self.ahead.get() {
                break;
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(Missing(missing)) }
    }

    /// Puts a node that was read into its place, found by a key below it. Nothing happens when it was put there
    /// meanwhile, or the place is gone. Fails when the node doesn't fit where its parent has it.
    pub(crate) fn install(&self, key: &[u8], page: PageRef, body: Body) -> Result<(), Malformed> {
        let mut node = Rc::clone(&self.root);
        for _ in 0..LEVELS_MAX {
            let Body::Branch(keys, children) = &node.body else { return Ok(()) };
            let at = Node::child_of(keys, key);
            let Ok(below) = children[at].node() else {
                check_range(keys, at, &body)?;
                let loaded = Node::loaded(page, body, self.meter());
                self.touch(&loaded);
                children[at].install(page, loaded);
                return Ok(());
            };
            node = below;
        }
        Err(Malformed("it is deeper than any index grows: the nodes above it form a loop"))
    }

    /// Sets the value of a key and returns the one it had. Key and value together are at most [`ENTRY_MAX`] bytes.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Missing> {
        let mut old = SmallVec::new();
        self.put_run(&[(key, value)], &mut old)?;
        Ok(old.pop().flatten().map(SmallVec::into_vec))
    }

    /// Sets the values of as many keys, from the first on, as go to the same leaf, at least of one. Adds the values that
    /// they had to `old`.
    pub(crate) fn put_run(&mut self, run: &[(&[u8], &[u8])], old: &mut Olds) -> Result<(), Missing> {
        for (key, value) in run {
            debug_assert!(
                key.len() + value.len() <= ENTRY_MAX,
                "an entry of {} bytes",
                key.len() + value.len()
            );
        }
        self.version += 1;
        let before = old.len();
        let split = put(&mut self.root, run, old, &mut self.changes, self.fingers.get_mut())?;
        let added = old[before..].iter().filter(|old| old.is_none()).count();
        self.len = self.len.saturating_add(added as u64);
        if let Some((separator, right)) = split {
            let mut keys = Packed::default();
            keys.push(b"", b"");
            keys.push(&separator, b"");
            let left = Child::resident(Rc::clone(&self.root));
            self.root = self.changes.added(Body::Branch(keys, vec![left, Child::resident(right)]));
        }
        Ok(())
    }

    /// Removes a key and returns its value. Nodes stay as they are, however small, until [`Tree::tidy`]: when they are
    /// joined, keys move to other nodes, which changes that follow may not have reached.
    pub(crate) fn take(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Missing> {
        // Looking first keeps a path that doesn't change clean.
        if self.get(key)?.is_none() {
            return Ok(None);
        }
        self.let_go();
        self.version += 1;
        let old = take(&mut self.root, key, &mut self.changes)?;
        // The count comes from a checkpoint, which may lie.
        self.len = self.len.saturating_sub(u64::from(old.is_some()));
        Ok(old)
    }

    /// Joins nodes that became small by the removal of this key.
    pub(crate) fn tidy(&mut self, key: &[u8]) {
        self.let_go();
        tidy(&mut self.root, key, &mut self.changes);
        loop {
            let only = match &self.root.body {
                Body::Branch(_, children) if children.len() == 1 => children[0].node().ok(),
                _ => None,
            };
            let Some(only) = only else { break };
            self.changes.removed(&self.root);
            self.root = only;
        }
    }

    /// Removes a key and joins what has become small.
    #[cfg(test)]
    pub(crate) fn remove(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Missing> {
        let old = self.take(key)?;
        if old.is_some() {
            self.tidy(key);
        }
        Ok(old)
    }

    /// Forgets the leaves of the last scans.
    fn let_go(&self) {
        self.fingers.take();
    }
}

/// Checks that the keys of a node read for child `at` lie between those that the parent has around it.
fn check_range(keys: &Packed, at: usize, body: &Body) -> Result<(), Malformed> {
    let (entries, first) = match body {
        Body::Leaf(entries) => (entries, 0),
        // A branch's first key is empty.
        Body::Branch(keys, _) => (keys, 1),
    };
    let below = first < entries.len() && entries.key(first) < keys.key(at);
    let beyond = entries.len() > first && {
        at + 1 < keys.len() && entries.key(entries.len() - 1) >= keys.key(at + 1)
    };
    if below || beyond {
        return Err(Malformed("its keys don't belong where its parent has it"));
    }
    Ok(())
}

/// The nodes of a frozen state that have no place on the device, children before their parents.
pub(crate) fn dirty_nodes(root: &Rc<Node>) -> Vec<Rc<Node>> {
    fn walk(node: &Rc<Node>, found: &mut Vec<Rc<Node>>) {
        // A clean node has no dirty child: changing the child made the whole path dirty.
        if !node.is_dirty() {
            return;
        }
        if let Body::Branch(_, children) = &node.body {
            for child in children.iter().filter_map(|child| child.node().ok()) {
                walk(&child, found);
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
    let shared = shared_len(left, right);
    right[..(shared + 1).min(right.len())].to_vec()
}

/// Puts the first entries of a run, which go to the same leaf. What they replace is added to `old`.
fn put(
    node: &mut Rc<Node>,
    run: &[(&[u8], &[u8])],
    old: &mut Olds,
    changes: &mut Changes,
    fingers: &mut Fingers,
) -> Result<Split, Missing> {
    let pointed = fingers
        .iter()
        .position(|finger| finger.as_ref().is_some_and(|finger| Rc::ptr_eq(&finger.leaf, node)));
    let mut hint = pointed.and_then(|number| fingers[number].take()).map_or(0, |finger| finger.at);
    let owned = changes.own(node);
    let done = match &mut owned.body {
        Body::Leaf(entries) => Ok(put_entries(entries, run, old, changes, &mut hint)),
        Body::Branch(..) => put_below(owned, run, old, changes, fingers),
    };
    owned.recharge();
    if let (Some(number), Ok(None)) = (pointed, &done) {
        fingers[number] = Some(Finger { leaf: Rc::clone(node), at: hint });
    }
    done
}

/// `near` is where the first entry is most likely to be; then, where the last one is.
fn put_entries(
    entries: &mut Packed,
    run: &[(&[u8], &[u8])],
    old: &mut Olds,
    changes: &mut Changes,
    near: &mut usize,
) -> Split {
    let mut hint = *near;
    for (number, (key, value)) in run.iter().enumerate() {
        // The first one belongs here. Of those that follow, only what certainly does and leaves the node whole.
        let room = || entries.size() + packed::ENTRY_OVERHEAD + key.len() + value.len() <= NODE_MAX;
        let found = match entries.seek(key, hint) {
            Some(at) if number == 0 || room() => entries.at(at, key),
            _ if number == 0 => entries.search(key),
            _ => break,
        };
        let at = match found {
            Ok(at) => {
                old.push(Some(SmallVec::from_slice(entries.value(at))));
                entries.replace(at, value);
                at
            }
            Err(at) => {
                old.push(None);
                entries.insert(at, key, value);
                at
            }
        };
        if entries.size() > NODE_MAX {
            // Keys that arrive in order leave full nodes behind.
            let middle = if at + 1 == entries.len() { at } else { entries.middle() };
            let right = entries.range(middle..entries.len());
            let low = separator(&entries.key(middle - 1), &right.key(0));
            *entries = entries.range(0..middle);
            return Some((low, changes.added(Body::Leaf(right))));
        }
        *near = at;
        hint = at + 1;
    }
    None
}

fn put_below(
    branch: &mut Node,
    run: &[(&[u8], &[u8])],
    old: &mut Olds,
    changes: &mut Changes,
    fingers: &mut Fingers,
) -> Result<Split, Missing> {
    let Node { body: Body::Branch(keys, children), trail, .. } = branch else { return Ok(None) };
    let Some((key, _)) = run.first() else { return Ok(None) };
    let at = trail.child_of(keys, key);
    let child = children[at].node_mut().map_err(|page| Missing::one(key, page))?;
    let Some((low, right)) = put(child, run, old, changes, fingers)? else { return Ok(None) };
    keys.insert(at + 1, &low, b"");
    children.insert(at + 1, Child::resident(right));
    if keys.size() + children.len() * node::CHILD_BYTES <= NODE_MAX {
        return Ok(None);
    }
    let middle = if at + 2 == keys.len() { keys.len() - 2 } else { keys.middle() };
    let low = keys.key(middle);
    let mut right = keys.range(middle + 1..keys.len());
    right.insert(0, b"", b"");
    *keys = keys.range(0..middle);
    let right = Body::Branch(right, children.split_off(middle));
    Ok(Some((low, changes.added(right))))
}

fn take(node: &mut Rc<Node>, key: &[u8], changes: &mut Changes) -> Result<Option<Vec<u8>>, Missing> {
    let owned = changes.own(node);
    let done = match &mut owned.body {
        Body::Leaf(entries) => Ok(entries.search(key).ok().map(|at| {
            let old = entries.value(at).to_vec();
            entries.remove(at);
            old
        })),
        Body::Branch(keys, children) => match children[Node::child_of(keys, key)].node_mut() {
            Ok(child) => take(child, key, changes),
            Err(page) => Err(Missing::one(key, page)),
        },
    };
    owned.recharge();
    done
}

/// Joins small nodes on the way to a key, the lowest first, as far as the way was changed since the last freeze.
fn tidy(node: &mut Rc<Node>, key: &[u8], changes: &mut Changes) {
    if !node.is_dirty() || Rc::strong_count(node) > 1 {
        return;
    }
    let owned = changes.own(node);
    if let Body::Branch(keys, children) = &mut owned.body {
        let at = Node::child_of(keys, key);
        let Ok(child) = children[at].node_mut() else { return };
        tidy(child, key, changes);
        if child.size() < NODE_MIN && children.len() > 1 {
            let left = at.saturating_sub(1).min(children.len() - 2);
            merge(keys, children, left, changes);
        }
    }
    owned.recharge();
}

/// Joins child `left` with its right neighbour when both are in memory and fit, or when one of them is empty.
fn merge(keys: &mut Packed, children: &mut Vec<Child>, left: usize, changes: &mut Changes) {
    for at in [left, left + 1] {
        if let Ok(node) = children[at].node()
            && node.is_empty()
        {
            // Without the key between them, the neighbour takes over the whole range.
            keys.remove(left + 1);
            children.remove(at);
            changes.removed_empty(&node);
            return;
        }
    }
    // A neighbour on the device stays as it is: reading it would cost more than a small node does.
    let (Ok(first), Ok(right)) = (children[left].node(), children[left + 1].node()) else { return };
    // Unlike each other they would be only in a damaged index.
    if matches!(&first.body, Body::Leaf(_)) != matches!(&right.body, Body::Leaf(_)) {
        return;
    }
    let low = keys.key(left + 1);
    let joined = first.size() + right.size() + low.len();
    // The longest prefix may be lost, which the bound covers: each entry of the smaller node may grow by it.
    if joined + prefix_growth(&first) + prefix_growth(&right) > NODE_MERGED {
        return;
    }
    drop(first);
    children.remove(left + 1);
    keys.remove(left + 1);
    if let Ok(node) = children[left].node_mut() {
        let owned = changes.own(node);
        match (&mut owned.body, &right.body) {
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
            _ => {}
        }
        owned.recharge();
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

#[cfg(test)]
mod tests;
