//! Nodes of the copy-on-write tree, their places on the device, and what of them is in memory.

use super::packed::Packed;
use crate::format::node::CHILD_BYTES;
use crate::format::node::NODE_MAX;
use crate::format::node::PageRef;
use core::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_media::prefetch;

/// Below this a node is merged with a neighbour when both fit.
pub(super) const NODE_MIN: usize = NODE_MAX / 4;

/// Most bytes of a merged node: leaves room, so that the next insert doesn't split it again.
pub(super) const NODE_MERGED: usize = NODE_MAX / 4 * 3;

/// Bytes of a node in memory beside its entries: the node and its home with two reference counts each.
const NODE_FIXED: usize = size_of::<Node>() + size_of::<Home>() + 4 * size_of::<usize>();

/// Where one state of a node was written. Shared with the list of retired homes, so that the place of a state that a
/// checkpoint is still writing is known when it can be freed.
#[derive(Debug, Default)]
pub(crate) struct Home {
    pub(crate) page: Cell<Option<PageRef>>,
}

/// What a branch knows of a child.
#[derive(Clone, Debug)]
pub(crate) enum Link {
    /// It is in memory.
    Resident(Rc<Node>),
    /// It is on the device only.
    Stored(PageRef),
}

/// A child of a branch. Loading it or giving its memory back changes nothing of the tree's content, so both are
/// possible on nodes that a frozen state shares.
#[derive(Clone, Debug)]
pub(crate) struct Child(RefCell<Link>);

impl Child {
    pub(crate) fn resident(node: Rc<Node>) -> Self {
        Self(RefCell::new(Link::Resident(node)))
    }

    pub(crate) fn stored(page: PageRef) -> Self {
        Self(RefCell::new(Link::Stored(page)))
    }

    /// The node, or where it is on the device.
    pub(crate) fn node(&self) -> Result<Rc<Node>, PageRef> {
        match &*self.0.borrow() {
            Link::Resident(node) => Ok(Rc::clone(node)),
            Link::Stored(page) => Err(*page),
        }
    }

    /// The node as part of a branch that is being changed.
    pub(super) fn node_mut(&mut self) -> Result<&mut Rc<Node>, PageRef> {
        match self.0.get_mut() {
            Link::Resident(node) => Ok(node),
            Link::Stored(page) => Err(*page),
        }
    }

    /// Whether the node is in memory.
    pub(super) fn is_resident(&self) -> bool {
        matches!(&*self.0.borrow(), Link::Resident(_))
    }

    /// Whether the node is in memory, and `is` says so of it.
    pub(super) fn resident_and(&self, is: impl FnOnce(&Node) -> bool) -> bool {
        matches!(&*self.0.borrow(), Link::Resident(node) if is(node))
    }

    /// The place of the first node that isn't in memory along one edge of what is below, itself included: `is_left` is the
    /// edge of the lowest keys. `None`: the leaf there is in memory.
    pub(super) fn absent_edge(&self, is_left: bool) -> Option<PageRef> {
        let node = match self.node() {
            Ok(node) => node,
            Err(page) => return Some(page),
        };
        match &node.body {
            Body::Leaf(_) => None,
            Body::Branch(_, children) => {
                let edge = if is_left { children.first() } else { children.last() };
                edge?.absent_edge(is_left)
            }
        }
    }

    /// Its place on the device, if it was written.
    pub(crate) fn page(&self) -> Option<PageRef> {
        match &*self.0.borrow() {
            Link::Resident(node) => node.home.page.get(),
            Link::Stored(page) => Some(*page),
        }
    }

    /// The node, if it has no place on the device.
    pub(super) fn dirty(&self) -> Option<Rc<Node>> {
        match &*self.0.borrow() {
            Link::Resident(node) if node.is_dirty() => Some(Rc::clone(node)),
            _ => None,
        }
    }

    /// Puts a loaded node into its place; nothing happens when something else is there by now.
    pub(super) fn install(&self, page: PageRef, node: Rc<Node>) {
        let mut link = self.0.borrow_mut();
        if matches!(&*link, Link::Stored(stored) if *stored == page) {
            *link = Link::Resident(node);
        }
    }

    /// Releases the node, if it was written: a query reads it from the device again.
    fn let_go(&self) {
        let mut link = self.0.borrow_mut();
        let page = match &*link {
            Link::Resident(node) => node.home.page.get(),
            Link::Stored(_) => None,
        };
        if let Some(page) = page {
            *link = Link::Stored(page);
        }
    }

    /// Frees the node's memory if nobody else refers to it and `may` returns true.
    pub(super) fn evict(&self, may: impl FnOnce(&Node) -> bool) -> bool {
        let mut link = self.0.borrow_mut();
        let page = match &*link {
            Link::Resident(node) if Rc::strong_count(node) == 1 && may(node) => node.home.page.get(),
            _ => None,
        };
        if let Some(page) = page {
            *link = Link::Stored(page);
        }
        page.is_some()
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    Leaf(Packed),
    /// Child `i` holds the keys from key `i` of the entries up to the next one; the first key is empty.
    Branch(Packed, Vec<Child>),
}

impl Body {
    fn memory(&self) -> usize {
        NODE_FIXED
            + match self {
                Self::Leaf(entries) => entries.memory(),
                Self::Branch(keys, children) => keys.memory() + children.capacity() * size_of::<Child>(),
            }
    }
}

/// Memory that nodes take, in bytes: those of the tree, and those that have left it and are kept for a checkpoint or a reader.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter(Rc<Cell<usize>>);

impl Meter {
    pub(crate) fn bytes(&self) -> usize {
        self.0.get()
    }
}

/// What a node has added to the meter. It is subtracted when the node is dropped.
#[derive(Debug)]
struct Charge {
    meter: Meter,
    bytes: usize,
}

impl Charge {
    fn set(&mut self, bytes: usize) {
        debug_assert!(self.meter.0.get() >= self.bytes, "the meter has what each node has put on it");
        self.meter.0.set(self.meter.0.get() + bytes - self.bytes);
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) home: Rc<Home>,
    pub(crate) body: Body,
    charge: Charge,
    /// Tick of the last query that passed through.
    pub(super) used: Cell<u64>,
    /// The `used` that it had when it was last spared from eviction.
    pub(super) spared: Cell<u64>,
    pub(super) trail: Trail,
    /// Whether it has left the tree: something else is in its place.
    left: Cell<bool>,
    /// Names the present state of a leaf's entries, once a path has been asked for often enough; until then the number of times
    /// it was. No other state of any node ever has the same name.
    pub(super) stamp: Cell<u64>,
}

/// Children that a branch remembers: those of an object's own entry, which each update of the object changes, of the keys
/// that an update is about, and of the keys before.
const TRAIL: usize = 3;

/// The children of a branch that were visited last, the latest first: most changes follow a query for the same keys.
#[derive(Debug, Default)]
pub(super) struct Trail(Cell<[u32; TRAIL]>);

impl Trail {
    /// Records a visit of a child.
    pub(super) fn note(&self, at: usize) {
        let [last, second, third] = self.0.get();
        let at = u32::try_from(at).expect("invariant: a branch has few hundred children");
        if last != at {
            self.0.set([at, last, if second == at { third } else { second }]);
        }
    }

    /// The child that a key belongs to, as [`Node::child_of`]. Looks at the children that were visited last first.
    pub(super) fn child_of(&self, keys: &Packed, key: &[u8]) -> usize {
        keys.covering(self.0.get().map(|at| at as usize), key)
    }
}

/// What the owner of a tree has to know about changes since the last checkpoint began.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Homes whose state left the tree. Their blocks are free once a checkpoint without them is stable.
    pub(crate) retired: Vec<Rc<Home>>,
    /// Upper bound of the nodes that have no place on the device and were changed since.
    pub(crate) dirty: usize,
    /// The same as it was at the last freeze.
    pub(super) frozen: usize,
    /// Of these, those that a checkpoint hasn't found a place for.
    pub(super) unplaced: usize,
    /// Nodes without a place on the device that have left the tree since.
    pub(super) dropped: usize,
    /// The memory of all nodes.
    pub(crate) meter: Meter,
    /// One reference for the tree and one for each of its snapshots.
    pub(super) readers: Rc<()>,
}

impl Node {
    /// A node without a place on the device.
    pub(crate) fn new(body: Body, meter: &Meter) -> Rc<Self> {
        Self::with_home(Rc::default(), body, meter)
    }

    /// A node that was read from its place.
    pub(crate) fn loaded(page: PageRef, body: Body, meter: &Meter) -> Rc<Self> {
        Self::with_home(Rc::new(Home { page: Cell::new(Some(page)) }), body, meter)
    }

    fn with_home(home: Rc<Home>, body: Body, meter: &Meter) -> Rc<Self> {
        let mut charge = Charge { meter: meter.clone(), bytes: 0 };
        charge.set(body.memory());
        let (used, spared) = (Cell::new(0), Cell::new(u64::MAX));
        let (trail, left, stamp) = (Trail::default(), Cell::new(false), Cell::new(0));
        Rc::new(Self { home, body, charge, used, spared, trail, left, stamp })
    }

    /// Prefetches what a query of a leaf and the change behind it read first.
    pub(crate) fn prefetch_change(&self) {
        prefetch(core::slice::from_ref(&*self.home));
        if let Body::Leaf(entries) = &self.body {
            entries.prefetch_search();
        }
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.home.page.get().is_none()
    }

    /// Upper bound of the node's bytes on the device, without the header.
    pub(crate) fn size(&self) -> usize {
        match &self.body {
            Body::Leaf(entries) => entries.size(),
            Body::Branch(keys, children) => keys.size() + children.len() * CHILD_BYTES,
        }
    }

    /// The entries of the node, which has to be a leaf.
    #[inline]
    pub(crate) fn entries(&self) -> &Packed {
        match &self.body {
            Body::Leaf(entries) => entries,
            Body::Branch(..) => unreachable!("invariant: it is a leaf"),
        }
    }

    /// Which child a key belongs to.
    pub(super) fn child_of(keys: &Packed, key: &[u8]) -> usize {
        match keys.search(key) {
            Ok(at) => at,
            // The first key is empty, so that none is below it.
            Err(at) => at - 1,
        }
    }

    /// Whether no entry is below.
    pub(super) fn is_empty(&self) -> bool {
        match &self.body {
            Body::Leaf(entries) => entries.is_empty(),
            Body::Branch(_, children) => {
                children.len() == 1 && children[0].node().is_ok_and(|child| child.is_empty())
            }
        }
    }

    /// Releases the children that were written, if the node has left the tree: a checkpoint needs only their places.
    pub(super) fn let_go_of_children(&self) {
        if let (true, Body::Branch(_, children)) = (self.left.get(), &self.body) {
            children.iter().for_each(Child::let_go);
        }
    }

    /// Whether any child is in memory.
    pub(super) fn has_resident_children(&self) -> bool {
        match &self.body {
            Body::Leaf(_) => false,
            Body::Branch(_, children) => children.iter().any(Child::is_resident),
        }
    }

    /// Whether it is no branch, or has a key for each child, of which the first is empty.
    fn is_sound_branch(&self) -> bool {
        match &self.body {
            Body::Leaf(_) => true,
            Body::Branch(keys, children) => {
                keys.len() == children.len() && !keys.is_empty() && keys.key(0).is_empty()
            }
        }
    }

    /// Bytes that the node has added to the meter.
    #[cfg(test)]
    pub(super) fn charged(&self) -> usize {
        self.charge.bytes
    }

    /// Counts the node's memory anew after a change of its body, which is at its end.
    pub(super) fn recharge(&mut self) {
        debug_assert!(self.size() <= NODE_MAX, "a node of {} bytes", self.size());
        debug_assert!(self.is_sound_branch(), "a branch has a key for each child, and an empty first one");
        self.charge.set(self.body.memory());
    }
}

impl Changes {
    fn retire(&mut self, home: &Rc<Home>) {
        self.retired.push(Rc::clone(home));
    }

    /// A node that is new to the tree.
    pub(super) fn added(&mut self, body: Body) -> Rc<Node> {
        self.dirty += 1;
        Node::new(body, &self.meter)
    }

    /// A node that leaves the tree; what is below it stays or is gone already.
    pub(super) fn removed(&mut self, node: &Node) {
        self.dropped += usize::from(node.is_dirty());
        self.retire(&node.home);
        node.left.set(true);
    }

    /// An empty node that leaves the tree, with the empty ones that are all there is below it.
    pub(super) fn removed_empty(&mut self, node: &Node) {
        self.removed(node);
        if let Body::Branch(_, children) = &node.body {
            for child in children.iter().filter_map(|child| child.node().ok()) {
                self.removed_empty(&child);
            }
        }
    }

    /// Makes a node changeable: copies it when a frozen root shares it, and gives it a new home without a place on the device.
    /// [`Node::recharge`] it after the change.
    #[inline]
    pub(super) fn own<'a>(&mut self, node: &'a mut Rc<Node>) -> &'a mut Node {
        if Rc::strong_count(node) > 1 || !node.is_dirty() {
            self.part(node);
        }
        let node = Rc::get_mut(node).expect("the node was just made unique");
        node.stamp.set(0);
        node
    }

    /// As [`Changes::own`], where the node is shared or has a place on the device.
    #[cold]
    fn part(&mut self, node: &mut Rc<Node>) {
        if Rc::strong_count(node) > 1 {
            let copy = self.added(node.body.clone());
            copy.used.set(node.used.get());
            let old = core::mem::replace(node, copy);
            self.removed(&old);
            // As long as the old state refers to the children, changes below copy them, too, until the checkpoint has passed
            // this node.
            if !self.has_stills() {
                old.let_go_of_children();
            }
        } else if let Some(node) = Rc::get_mut(node) {
            self.retire(&node.home);
            self.dirty += 1;
            node.home = Rc::default();
        }
    }

    /// Whether there are snapshots of the tree: nodes that have left it may belong to them.
    pub(super) fn has_stills(&self) -> bool {
        Rc::strong_count(&self.readers) > 1
    }
}
