//! Giving the memory of clean nodes back.
//!
//! A hand goes round the keys as that of a clock. A node that was used since the hand last passed is spared once; one
//! that was not is evicted. Nodes that a question under way has passed are never evicted, so that it comes to its end
//! however small the memory is.

use super::Tree;
use super::node::{Body, Child, Node};
use super::scan::Low;
use core::cell::{Cell, RefCell};
use core::ops::ControlFlow;

/// Steps that a node in memory counts for. One on the device counts for one.
const RESIDENT_STEPS: usize = 8;

/// Rounds without an eviction after which no node can be evicted. The first round may only record which nodes were used.
const BARREN_ROUNDS: u32 = 2;

/// The hand of the clock algorithm.
#[derive(Debug, Default)]
pub(super) struct ClockHand {
    /// The lowest key of the node it comes to next.
    at: RefCell<Vec<u8>>,
    /// Complete rounds since a node was last evicted.
    barren: Cell<u32>,
}

/// What is never evicted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pinned<'a> {
    /// Nodes whose lowest key is below this.
    pub(crate) below: &'a [u8],
    /// Leaves with a key from the first of these on and below the second.
    pub(crate) among: [&'a [u8]; 2],
}

impl Pinned<'_> {
    fn has(&self, node: &Node) -> bool {
        let Body::Leaf(entries) = &node.body else { return false };
        let [from, to] = self.among.map(|key| entries.search(key).unwrap_or_else(|at| at));
        from < to
    }
}

/// Pins the nodes below a key, and no others.
#[cfg(test)]
pub(super) const fn below(key: &[u8]) -> Pinned<'_> {
    Pinned { below: key, among: [b"", b""] }
}

/// One sweep of the hand.
struct Sweep<'a> {
    /// Memory that is wanted.
    limit: usize,
    pinned: Pinned<'a>,
    /// Nodes used at this tick or later stay: queries that began then are running.
    oldest: u64,
    steps: usize,
    evicted: usize,
    /// The hand has come to nodes at or behind the floor.
    past_floor: bool,
}

impl Tree {
    /// Evicts clean nodes until all take at most `limit` bytes of memory or `steps` nodes were looked at. Returns how
    /// many it evicted. Those used at the tick `oldest` or later stay, too.
    pub(crate) fn evict(&self, limit: usize, pinned: Pinned<'_>, oldest: u64, steps: usize) -> usize {
        self.let_go();
        let floor = pinned.below;
        let mut sweep = Sweep { limit, pinned, oldest, steps, evicted: 0, past_floor: false };
        // Two rounds, since the first may only record which nodes were used, and the rest of the round that has begun.
        for _ in 0..=BARREN_ROUNDS {
            let from = core::mem::take(&mut *self.hand.at.borrow_mut());
            let from = if from.as_slice() < floor { floor.to_vec() } else { from };
            sweep.past_floor = false;
            match sweep.node(self, &self.root, Low::default(), Some(&from)) {
                ControlFlow::Break(next) => {
                    *self.hand.at.borrow_mut() = next;
                    break;
                }
                ControlFlow::Continue(()) => self.hand.barren.set(self.hand.barren.get().saturating_add(1)),
            }
        }
        if sweep.evicted > 0 {
            self.hand.barren.set(0);
        }
        sweep.evicted
    }

    /// Whether no node can be evicted, as far as the hand has seen: all wait for a checkpoint, or are in use.
    pub(crate) fn is_swept(&self) -> bool {
        self.hand.barren.get() >= BARREN_ROUNDS
    }

    /// More nodes may be evicted from now on, such as those that a checkpoint has written.
    pub(crate) fn sweep_anew(&self) {
        self.hand.barren.set(0);
    }
}

impl Sweep<'_> {
    /// Goes over the children of a node from that on which has `from`. Breaks with the key where to go on.
    fn node(&mut self, tree: &Tree, node: &Node, low: Low<'_>, from: Option<&[u8]>) -> ControlFlow<Vec<u8>> {
        let Body::Branch(keys, children) = &node.body else { return ControlFlow::Continue(()) };
        let first = from.map_or(0, |from| Node::child_of(keys, from));
        for (at, child) in children.iter().enumerate().skip(first) {
            let low = low.of_child(keys, at);
            let from = from.filter(|_| at == first);
            if tree.meter().bytes() <= self.limit || self.steps == 0 {
                return ControlFlow::Break(low.key().max(from.unwrap_or_default().to_vec()));
            }
            self.steps = self.steps.saturating_sub(1);
            let Ok(below) = child.node() else { continue };
            self.steps = self.steps.saturating_sub(RESIDENT_STEPS);
            self.node(tree, &below, low, from)?;
            drop(below);
            // Keys only grow from here on. A branch that begins before the floor has a child that stays.
            self.past_floor = self.past_floor || low.key().as_slice() >= self.pinned.below;
            if self.past_floor {
                self.child(child);
            }
        }
        ControlFlow::Continue(())
    }

    fn child(&mut self, child: &Child) {
        let (oldest, pinned) = (self.oldest, self.pinned);
        let evicted = child.evict(|node| {
            let used = node.used.get();
            if used >= oldest || node.has_resident_children() {
                return false;
            }
            node.spared.replace(used) == used && !pinned.has(node)
        });
        self.evicted += usize::from(evicted);
    }
}
