//! An ordered copy-on-write map from bytes to bytes, of which only a part needs to be in memory.
//!
//! [`Tree::freeze`] gives the present state in constant time; later changes copy the nodes on their path. A
//! checkpoint finds the nodes of a frozen state that have no place on the device yet and writes them, while the tree
//! changes on.
//! Each state of a node has a [`Home`]; homes of states that left the tree are collected in [`Changes::retired`].
//!
//! A node that has a place on the device can be evicted from memory. Whoever then asks for something below it gets
//! [`Missing`]: the nodes to be read and given to [`Tree::install`] before the question is asked again. A change never
//! misses a node once [`Tree::reach`] has found the way to its key.

mod address;
mod evict;
mod frozen;
mod insert;
mod node;
mod packed;
mod path;
mod renew;
mod scan;

use crate::format::node::PageRef;
pub(crate) use address::Address;
pub(crate) use evict::Pinned;
pub(crate) use frozen::{DirtyNodes, dirty_nodes};
pub(crate) use node::{Body, Changes, Child, Home, Meter, Node};
pub use packed::Packed;
use path::PathRecorder;
pub(crate) use path::{ChildPath, StampSource, StampedPath, half};
pub(crate) use renew::NodeLocation;

use crate::format::codec::Malformed;
use core::cell::{Cell, RefCell};
use evict::ClockHand;
use node::{NODE_MERGED, NODE_MIN};
use scan::Low;
use std::collections::HashSet;
use std::rc::Rc;

/// Most levels of an index: even nodes of three children would hold more entries than a device has blocks.
pub const LEVELS_MAX: usize = 40;

/// The map.
#[derive(Debug)]
pub(crate) struct Tree {
    root: Rc<Node>,
    changes: Changes,
    len: u64,
    /// Counts changes of entries, and freezes.
    version: u64,
    /// Counts queries.
    tick: Cell<u64>,
    /// Counts nodes that queries pass.
    visits: Cell<u64>,
    /// How many nodes behind a missing one a scan reads ahead.
    ahead: Cell<usize>,
    hand: ClockHand,
    /// Leaves of the last scans, the latest first: keys that belong together are close together, and the entry of an object
    /// itself is looked up between its dkeys. A leaf is removed from these before it is changed, since the change would copy it
    /// otherwise.
    recent: RefCell<RecentLeaves>,
    /// Memory for the keys that a scan visits.
    key: RefCell<Vec<u8>>,
}

/// Leaves that are remembered.
const RECENT_LEAVES: usize = 2;

type RecentLeaves = [Option<Rc<Node>>; RECENT_LEAVES];

/// Takes a leaf that is about to be changed from those that are remembered. Returns where it was among them.
fn take_leaf(recent: &mut RecentLeaves, leaf: &Rc<Node>) -> Option<usize> {
    let is_it = |known: &Option<Rc<Node>>| known.as_ref().is_some_and(|known| Rc::ptr_eq(known, leaf));
    let number = recent.iter().position(is_it)?;
    recent[number] = None;
    Some(number)
}

#[cfg(test)]
impl Default for Tree {
    fn default() -> Self {
        let meter = Meter::default();
        Self::new(Node::new(Body::Leaf(Packed::default()), &meter), 0, meter)
    }
}

/// Nodes that a query needs and that aren't in memory, each with its place and a key that belongs below it. The first one is
/// needed in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing(pub(crate) Vec<(Vec<u8>, PageRef)>);

impl Missing {
    fn one(key: &[u8], page: PageRef) -> Self {
        Self(vec![(key.to_vec(), page)])
    }
}

impl Tree {
    /// A tree with this root and number of entries. The meter counts the memory of all its nodes.
    pub(crate) fn new(root: Rc<Node>, len: u64, meter: Meter) -> Self {
        let dirty = usize::from(root.is_dirty());
        let changes = Changes { dirty, meter, ..Changes::default() };
        let (tick, visits, ahead) = (Cell::new(0), Cell::new(0), Cell::new(0));
        Self {
            root,
            changes,
            len,
            version: 0,
            tick,
            visits,
            ahead,
            hand: ClockHand::default(),
            recent: RefCell::default(),
            key: RefCell::default(),
        }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Increases with each change of entries: the tree is unchanged as long as its version is. As long, all nodes on the path
    /// of the last change are in memory, too.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Upper bound of the nodes that have changed since the last freeze.
    pub(crate) fn dirty_nodes(&self) -> usize {
        self.changes.dirty
    }

    /// Memory that the nodes take.
    pub(crate) fn meter(&self) -> &Meter {
        &self.changes.meter
    }

    /// Releases a node of a frozen state that a checkpoint has begun to write: it needs only the node's place from then on.
    pub(crate) fn release(&self, node: &Node) {
        if !self.changes.has_stills() {
            node.let_go_of_children();
        }
    }

    /// The root node as it is now.
    pub(crate) fn root(&self) -> &Rc<Node> {
        &self.root
    }

    /// Homes that left the tree since the last freeze.
    pub(crate) fn retired(&self) -> &[Rc<Home>] {
        &self.changes.retired
    }

    /// Begins a query, or begins it again: nodes that it passes count as used from now on. A scan that misses a node behind
    /// its first reads up to `ahead` more. Returns the present tick.
    pub(crate) fn begin(&self, ahead: usize) -> u64 {
        self.ahead.set(ahead);
        self.tick.set(self.tick.get() + 1);
        self.tick.get()
    }

    /// A snapshot of the tree, to be read while the tree changes. It shares all nodes; those that change are copied.
    pub(crate) fn still(&self) -> Self {
        let (meter, readers) = (self.changes.meter.clone(), Rc::clone(&self.changes.readers));
        let changes = Changes { meter, readers, ..Changes::default() };
        Self {
            root: Rc::clone(&self.root),
            changes,
            len: self.len,
            version: self.version,
            tick: self.tick.clone(),
            visits: Cell::new(0),
            ahead: Cell::new(0),
            hand: ClockHand::default(),
            recent: RefCell::default(),
            key: RefCell::default(),
        }
    }

    /// Begins a query to a snapshot of a tree, at a tick of that tree: both mark the nodes that they share as used.
    pub(crate) fn begin_at(&self, tick: u64, ahead: usize) {
        self.ahead.set(ahead);
        self.tick.set(tick);
    }

    /// The present tick.
    pub(crate) fn tick(&self) -> u64 {
        self.tick.get()
    }

    /// Nodes that queries have passed.
    pub(crate) fn visits(&self) -> u64 {
        self.visits.get()
    }

    fn touch(&self, node: &Node) {
        self.visits.set(self.visits.get() + 1);
        node.used.set(self.tick.get());
    }

    /// The leaf that a key belongs to.
    pub(crate) fn leaf(&self, key: &[u8]) -> Result<Rc<Node>, Missing> {
        self.leaf_along(key, |_| ())
    }

    /// As [`Tree::leaf`]; calls `turn` with the number of each child on the path.
    fn leaf_along(&self, key: &[u8], mut turn: impl FnMut(usize)) -> Result<Rc<Node>, Missing> {
        let mut node = Rc::clone(&self.root);
        loop {
            self.touch(&node);
            let child = match &node.body {
                Body::Leaf(_) => return Ok(node),
                Body::Branch(keys, children) => {
                    let at = Node::child_of(keys, key);
                    node.trail.note(at);
                    turn(at);
                    children[at].node().map_err(|page| Missing::one(key, page))?
                }
            };
            node = child;
        }
    }

    /// As [`Tree::leaf_and_path`]; also whether no entry that begins with the first `len` bytes of the key stands behind the
    /// leaf.
    pub(crate) fn leaf_of(
        &self,
        key: &[u8],
        len: usize,
    ) -> Result<(Rc<Node>, Option<ChildPath>, bool), Missing> {
        let (mut node, mut trace, mut has_all) = (Rc::clone(&self.root), PathRecorder::new(), true);
        loop {
            self.touch(&node);
            let child = match &node.body {
                Body::Leaf(_) => return Ok((node, trace.leaf_path(), has_all)),
                Body::Branch(keys, children) => {
                    let (at, is_last) = keys.covering_with(key, len);
                    trace.note(at);
                    has_all = is_last.unwrap_or(has_all);
                    children[at].node().map_err(|page| Missing::one(key, page))?
                }
            };
            node = child;
        }
    }

    /// The leaf behind the one that a key belongs to; `None` when that is the last one, or it isn't known in memory which
    /// it is.
    pub(crate) fn leaf_behind(&self, key: &[u8]) -> Option<Rc<Node>> {
        let leaf = leaf_behind(&self.root, Some(key)).ok()??;
        self.touch(&leaf);
        Some(leaf)
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Missing> {
        let leaf = self.leaf(key)?;
        let entries = leaf.entries();
        Ok(entries.search(key).ok().map(|at| entries.value(at).to_vec()))
    }

    /// Fails unless all nodes that changes of these keys need are in memory.
    pub(crate) fn reach<'a>(&self, keys: impl IntoIterator<Item = &'a [u8]>) -> Result<(), Missing> {
        let mut missing: Vec<(Vec<u8>, PageRef)> = Vec::new();
        for key in keys {
            if self.leaf_of_others(key).is_some() {
                continue;
            }
            let Missing(nodes) = match self.leaf(key) {
                Ok(leaf) => {
                    self.remember(&leaf);
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

    /// Number of different nodes on the ways to these keys.
    pub(crate) fn nodes_to<'a>(&self, keys: impl IntoIterator<Item = &'a [u8]>) -> Result<usize, Missing> {
        let mut nodes = HashSet::new();
        for key in keys {
            let mut node = Rc::clone(&self.root);
            loop {
                nodes.insert(Rc::as_ptr(&node));
                let child = match &node.body {
                    Body::Leaf(_) => break,
                    Body::Branch(keys, children) => {
                        children[Node::child_of(keys, key)].node().map_err(|page| Missing::one(key, page))?
                    }
                };
                node = child;
            }
        }
        Ok(nodes.len())
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

    /// Removes a key and returns its value. Nodes stay as they are, however small, until [`Tree::tidy`]: when they are
    /// joined, keys move to other nodes, which changes that follow may not have reached.
    pub(crate) fn take(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Missing> {
        // The look-up leaves the nodes of a path clean that doesn't change.
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

    /// Joins nodes that became small by the removal of this key. A node that isn't in memory takes over the keys of an empty
    /// one where `may_inherit` says so of its place and the lowest of these keys.
    pub(crate) fn tidy(&mut self, key: &[u8], may_inherit: impl Fn(PageRef, &[u8]) -> bool) {
        self.let_go();
        tidy(&mut self.root, (Low::default(), key), &mut self.changes, &may_inherit);
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
            self.tidy(key, |_, _| true);
        }
        Ok(old)
    }

    /// Removes the leaves of the last scans, before one of them changes.
    fn let_go(&self) {
        self.recent.take();
    }
}

/// The first leaf below a node that lies behind the one that a key belongs to; without a key, the first of all.
fn leaf_behind(node: &Rc<Node>, key: Option<&[u8]>) -> Result<Option<Rc<Node>>, PageRef> {
    let Body::Branch(keys, children) = &node.body else { return Ok(key.is_none().then(|| Rc::clone(node))) };
    let at = key.map_or(0, |key| Node::child_of(keys, key));
    let found = leaf_behind(&children[at].node()?, key)?;
    match children.get(at + 1) {
        Some(next) if found.is_none() => leaf_behind(&next.node()?, None),
        _ => Ok(found),
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
fn tidy(
    node: &mut Rc<Node>,
    (low, key): (Low<'_>, &[u8]),
    changes: &mut Changes,
    may_inherit: &dyn Fn(PageRef, &[u8]) -> bool,
) {
    if !node.is_dirty() || Rc::strong_count(node) > 1 {
        return;
    }
    let owned = changes.own(node);
    if let Body::Branch(keys, children) = &mut owned.body {
        let at = Node::child_of(keys, key);
        let Ok(child) = children[at].node_mut() else { return };
        tidy(child, (low.of_child(keys, at), key), changes, may_inherit);
        if child.size() < NODE_MIN && children.len() > 1 {
            let left = at.saturating_sub(1).min(children.len() - 2);
            merge((low, keys), children, left, changes, may_inherit);
        }
    }
    owned.recharge();
}

/// Joins child `left` with its right neighbour when both are in memory and fit, or when one of them is empty.
fn merge(
    (low, keys): (Low<'_>, &mut Packed),
    children: &mut Vec<Child>,
    left: usize,
    changes: &mut Changes,
    may_inherit: &dyn Fn(PageRef, &[u8]) -> bool,
) {
    for (at, heir) in [(left, left + 1), (left + 1, left)] {
        let absent = children[heir].absent_edge(heir > at);
        if let Ok(node) = children[at].node()
            && node.is_empty()
            && absent.is_none_or(|page| may_inherit(page, &low.of_child(keys, at).key()))
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
    // Only in a damaged index is one a leaf and the other a branch.
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
    let owned = changes.own(children[left].node_mut().expect("invariant: it was just in memory"));
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
        _ => unreachable!("invariant: both are leaves or both are branches"),
    }
    owned.recharge();
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
