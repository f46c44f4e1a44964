//! The begin of a checkpoint: one moment is held fast, and places for what has changed are found in slices.
//!
//! Only the root of the index, the bitmaps and where the log stands are of one step. The index holds itself fast below its
//! root; the bitmaps are kept as they were, and the checkpoint's own places go to them and to the present ones. Nothing of
//! the checkpoint is written before all places are found, so that one without room leaves all as if it hadn't begun.

use super::CheckpointError;
use crate::format::bitmap::Bits;
use crate::format::blocks::Run;
use crate::format::codec::Malformed;
use crate::format::node::NODE_HEADER;
use crate::format::ring::Ring;
use crate::index::tree::{DirtyNodes, Home, Node};
use crate::space::map::Purpose;
use crate::state::core::Core;
use std::collections::VecDeque;
use std::rc::Rc;
use weir_media::BLOCK;

/// Steps between which others run: some 50 µs.
pub(super) const SLICE: usize = 128;

/// What a checkpoint writes, all as of the same moment.
pub(super) struct Frozen {
    /// Children before their parents, each with its place.
    pub(super) nodes: VecDeque<(Rc<Node>, Run)>,
    /// Bytes of all of them.
    pub(super) bytes: u64,
    pub(super) root: Rc<Home>,
    /// Places of nodes that the state no longer consists of.
    pub(super) retired: Vec<Run>,
    pub(super) maps: Vec<(usize, Rc<Bits>)>,
    pub(super) entries: u64,
    pub(super) ring: Ring,
    /// Records that the log gets behind this point, though their changes are in here.
    pub(super) known: u64,
    /// The newest record whose changes are in here.
    pub(super) last: u64,
    pub(super) number: u64,
}

/// Freezes the present state and reserves what it takes to write it, while others run. Changes nothing when there is no room.
pub(super) async fn freeze(core: &Core) -> Result<Frozen, CheckpointError> {
    let mut beginning = Beginning::now(core)?;
    let placed = loop {
        match beginning.place() {
            Ok(true) => pause(core).await,
            placed => break placed,
        }
    };
    if let Err(error) = placed {
        while beginning.displace() {
            pause(core).await;
        }
        beginning.give_up();
        return Err(error);
    }
    for part in 0..beginning.frozen.nodes.len().div_ceil(SLICE) {
        pause(core).await;
        beginning.mark(part);
    }
    while beginning.retire() {
        pause(core).await;
    }
    Ok(beginning.end())
}

/// Between two slices.
async fn pause(core: &Core) {
    #[cfg(test)]
    core.rt.sleep(core.checkpoints.pause.get()).await;
    core.yield_to_io().await;
}

fn node_blocks(node: &Node) -> u64 {
    ((NODE_HEADER + node.size()) as u64).div_ceil(BLOCK as u64)
}

/// A checkpoint that has a moment, and not yet all places.
pub(super) struct Beginning<'a> {
    core: &'a Core,
    /// The nodes that have no place yet.
    nodes: DirtyNodes,
    /// Homes of those that the state no longer consists of.
    retired: Vec<Rc<Home>>,
    /// What is known so far.
    frozen: Frozen,
}

impl<'a> Beginning<'a> {
    /// Holds this moment fast.
    pub(super) fn now(core: &'a Core) -> Result<Self, CheckpointError> {
        let tree = &mut *core.tree.borrow_mut();
        for (key, value) in core.catalog.borrow_mut().take_dirty_usage() {
            // Usage sorts before the objects: its nodes stay in memory.
            tree.put(&key, &value).map_err(|_| Malformed("the usage of containers isn't in memory"))?;
        }
        let count = tree.dirty_nodes();
        let (root, retired) = tree.freeze();
        core.space.borrow_mut().begin_freeze();
        core.checkpoints.number.set(core.checkpoints.number.get() + 1);
        let frozen = Frozen {
            nodes: VecDeque::with_capacity(count),
            bytes: 0,
            root: Rc::clone(&root.home),
            retired: Vec::with_capacity(retired.len()),
            maps: Vec::new(),
            entries: tree.len(),
            ring: *core.journal.ring.borrow(),
            known: core.journal.unplaced(),
            last: core.journal.last(),
            number: core.checkpoints.number.get(),
        };
        Ok(Self { core, nodes: DirtyNodes::new(root), retired, frozen })
    }

    /// Finds places for the nodes of a slice. Returns whether there may be more.
    pub(super) fn place(&mut self) -> Result<bool, CheckpointError> {
        let (tree, space) = (&mut *self.core.tree.borrow_mut(), &mut *self.core.space.borrow_mut());
        for _ in 0..SLICE {
            let Some(step) = self.nodes.next() else {
                tree.note_all_placed();
                return Ok(false);
            };
            let Some(node) = step else { continue };
            let count = node_blocks(&node);
            let runs = space.allocate(count, Purpose::Index, 1);
            let run = runs.and_then(|runs| runs.first().copied()).ok_or(CheckpointError::NoSpace(count))?;
            tree.note_placed();
            self.frozen.bytes += run.bytes();
            self.frozen.nodes.push_back((node, run));
        }
        Ok(true)
    }

    /// How many nodes have a place.
    #[cfg(test)]
    pub(super) fn placed(&self) -> usize {
        self.frozen.nodes.len()
    }

    /// Gives up the places of a slice of the nodes. Returns whether there may be more.
    pub(super) fn displace(&mut self) -> bool {
        let (tree, space) = (&mut *self.core.tree.borrow_mut(), &mut *self.core.space.borrow_mut());
        let nodes = &mut self.frozen.nodes;
        for (_, run) in nodes.drain(nodes.len().saturating_sub(SLICE)..) {
            space.release(run);
            tree.note_displaced();
        }
        !nodes.is_empty()
    }

    /// Has all be as if the checkpoint hadn't begun. The places are given up.
    pub(super) fn give_up(self) {
        let Self { core, nodes, retired, frozen } = self;
        // What has changed meanwhile isn't shared any more.
        drop((nodes, frozen));
        core.tree.borrow_mut().thaw(retired);
        let space = &mut *core.space.borrow_mut();
        space.give_up_freeze();
        space.settle(core.journal.durable());
    }

    /// Marks the places of a slice as live: all nodes have one.
    pub(super) fn mark(&self, slice: usize) {
        let space = &mut *self.core.space.borrow_mut();
        self.frozen.nodes.iter().skip(slice * SLICE).take(SLICE).for_each(|(_, run)| space.place(*run));
    }

    /// Leaves a slice of the old places behind. Returns whether there may be more.
    pub(super) fn retire(&mut self) -> bool {
        let space = &mut *self.core.space.borrow_mut();
        for home in self.retired.drain(self.retired.len().saturating_sub(SLICE)..) {
            if let Some(run) = home.page.get().map(Run::from) {
                space.retire(run);
                self.frozen.retired.push(run);
            }
        }
        !self.retired.is_empty()
    }

    /// All places are found.
    pub(super) fn end(mut self) -> Frozen {
        let space = &mut *self.core.space.borrow_mut();
        self.frozen.maps = space.end_freeze();
        space.settle(self.core.journal.durable());
        self.frozen
    }
}
