//! Nodes of the copy-on-write tree and their places on the device.

use super::packed::Packed;
use core::cell::Cell;
use std::rc::Rc;

/// Most bytes of a node on the device, its header included: four blocks hold at least two entries of the largest
/// size, and one device read fetches it.
pub(crate) const NODE_BYTES: usize = 16 * 1024;

/// Bytes of a node's header on the device (see `page`).
pub(crate) const NODE_HEADER: usize = 48;

/// Most bytes of entries in a node.
pub(crate) const NODE_MAX: usize = NODE_BYTES - NODE_HEADER;

/// Below this a node is merged with a neighbour when both fit.
pub(super) const NODE_MIN: usize = NODE_MAX / 4;

/// Most bytes of a merged node: leaves room, so that the next insert doesn't split it again.
pub(super) const NODE_MERGED: usize = NODE_MAX / 4 * 3;

/// Most bytes of key and value of one entry. With it, a split always gives two nodes within [`NODE_MAX`].
pub(crate) const ENTRY_MAX: usize = 6000;

/// Bytes that a branch stores for each child on the device: block, length and checksum.
pub(super) const CHILD_BYTES: usize = 16;

/// Place and checksum of a node on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageRef {
    /// First block.
    pub(crate) block: u64,
    /// Bytes.
    pub(crate) len: u32,
    /// Checksum of the bytes.
    pub(crate) crc: u32,
}

/// Where one state of a node was written. Shared with the list of retired homes, so that the place of a state that a
/// checkpoint is still writing is known when it can be freed.
#[derive(Debug, Default)]
pub(crate) struct Home {
    pub(crate) page: Cell<Option<PageRef>>,
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    Leaf(Packed),
    /// Child `i` holds the keys from key `i` of the entries up to the next one; the first key is empty.
    Branch(Packed, Vec<Rc<Node>>),
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) home: Rc<Home>,
    pub(crate) body: Body,
}

/// What the owner of a tree has to know about changes since the last checkpoint began.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Homes whose state left the tree. Their blocks are free once a checkpoint without them is stable.
    pub(crate) retired: Vec<Rc<Home>>,
    /// Upper bound of the nodes that have no place on the device.
    pub(crate) dirty: usize,
}

impl Node {
    pub(crate) fn new(body: Body) -> Rc<Self> {
        Rc::new(Self { home: Rc::default(), body })
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

    /// Which child a key belongs to.
    pub(super) fn child_of(keys: &Packed, key: &[u8]) -> usize {
        match keys.search(key) {
            Ok(at) => at,
            Err(at) => at.saturating_sub(1),
        }
    }
}

impl Changes {
    fn retire(&mut self, home: &Rc<Home>) {
        self.retired.push(Rc::clone(home));
    }

    /// A node that is new to the tree.
    pub(super) fn added(&mut self, body: Body) -> Rc<Node> {
        self.dirty += 1;
        Node::new(body)
    }

    /// A node that leaves the tree.
    pub(super) fn removed(&mut self, node: &Node) {
        self.retire(&node.home);
    }

    /// Makes a node changeable: copies it when a frozen root shares it, and parts it from its place on the device.
    pub(super) fn own<'a>(&mut self, node: &'a mut Rc<Node>) -> &'a mut Body {
        if Rc::strong_count(node) > 1 {
            self.retire(&node.home);
            let body = node.body.clone();
            *node = self.added(body);
        } else if !node.is_dirty() {
            self.retire(&node.home);
            self.dirty += 1;
            if let Some(node) = Rc::get_mut(node) {
                node.home = Rc::default();
            }
        }
        &mut Rc::get_mut(node).expect("the node was just made unique").body
    }
}
