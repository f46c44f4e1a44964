//! One node of a simulated world.

use super::Inner;
use crate::handle::{Backend, EventSource, Handle, NoSources, SourceId};
use crate::instant::Instant;
use crate::task::{Task, TaskId};
use crate::timer::TimerId;
use core::task::Waker;
use std::rc::Rc;

/// Names a node within its world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub(super) usize);

pub(super) struct NodeState {
    pub(super) name: String,
    pub(super) up: bool,
    /// Counts crashes.
    pub(super) incarnation: u64,
    /// How far the node's wall clock is off, in nanoseconds.
    pub(super) skew_ns: i64,
    rate: Rate,
}

/// How fast a node's monotonic clock runs: from a moment on so many millionths faster than the world's.
#[derive(Clone, Copy, Default)]
struct Rate {
    /// That moment by the world's clock and by the node's, in nanoseconds.
    since: (u64, u64),
    faster_ppm: i64,
}

impl Rate {
    const MILLION: i128 = 1_000_000;

    /// What the node's clock shows when the world's shows `world`.
    fn local(self, world: u64) -> u64 {
        let passed = i128::from(world) - i128::from(self.since.0);
        let shown = passed + passed * i128::from(self.faster_ppm) / Self::MILLION;
        u64::try_from(i128::from(self.since.1) + shown).expect("invariant: a world lasts less than centuries")
    }

    /// What the world's clock shows when the node's has reached `local`.
    fn world(self, local: u64) -> u64 {
        let passed = i128::from(local) - i128::from(self.since.1);
        let faster = Self::MILLION + i128::from(self.faster_ppm);
        let needed = (passed * Self::MILLION + faster - 1).div_euclid(faster);
        // A moment beyond all clocks, for one that waits for ever, stays one.
        let moment = (i128::from(self.since.0) + needed.max(0)).min(i128::from(u64::MAX));
        u64::try_from(moment).expect("invariant: it is between the limits")
    }
}

impl NodeState {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), up: true, incarnation: 0, skew_ns: 0, rate: Rate::default() }
    }

    /// Owner of the tasks of the present incarnation.
    pub(super) fn owner(&self, node: NodeId) -> u64 {
        owner(node, self.incarnation)
    }
}

fn owner(node: NodeId, incarnation: u64) -> u64 {
    (node.0 as u64) << 32 | incarnation
}

/// A node of a simulated world. Cheap to clone.
#[derive(Clone)]
pub struct Node {
    inner: Rc<Inner>,
    id: NodeId,
}

impl Node {
    pub(super) fn new(inner: Rc<Inner>, id: NodeId) -> Self {
        Self { inner, id }
    }

    /// The door to time, randomness and tasks on this node. After a crash it is dead, and what it spawns is dropped
    /// at once: take a new one after the restart.
    #[must_use]
    pub fn handle(&self) -> Handle {
        super::handle(&self.inner, self.id)
    }

    /// Its name within the world.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        self.inner.nodes.borrow()[self.id.0].name.clone()
    }

    /// Whether it is running.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.inner.nodes.borrow()[self.id.0].up
    }

    /// How many times it has crashed.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.inner.nodes.borrow()[self.id.0].incarnation
    }

    /// Sets how far the node's wall clock is off, in nanoseconds.
    pub fn set_clock_skew(&self, skew_ns: i64) {
        self.inner.nodes.borrow_mut()[self.id.0].skew_ns = skew_ns;
    }
}

impl Node {
    /// Has the node's monotonic clock run so many millionths faster than the world's from now on, or slower when negative. It is
    /// set before the node has timers, which are not moved.
    ///
    /// # Panics
    /// When the clock would stand still or run backwards.
    pub fn set_clock_rate(&self, faster_ppm: i64) {
        assert!(i128::from(faster_ppm) > -Rate::MILLION, "a clock that runs");
        let world = self.inner.now.get();
        let mut nodes = self.inner.nodes.borrow_mut();
        let rate = &mut nodes[self.id.0].rate;
        *rate = Rate { since: (world, rate.local(world)), faster_ppm };
    }
}

pub(super) struct NodeBackend {
    inner: Rc<Inner>,
    node: NodeId,
    incarnation: u64,
}

impl NodeBackend {
    fn rate(&self) -> Rate {
        self.inner.nodes.borrow()[self.node.0].rate
    }

    pub(super) fn new(inner: Rc<Inner>, node: NodeId, incarnation: u64) -> Self {
        Self { inner, node, incarnation }
    }
}

impl Backend for NodeBackend {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.rate().local(self.inner.now.get()))
    }

    fn times(&self) -> (Instant, u64) {
        let skew = self.inner.nodes.borrow()[self.node.0].skew_ns;
        (self.now(), (super::WALL_START_NS + self.inner.now.get()).saturating_add_signed(skew))
    }

    fn random_u64(&self) -> u64 {
        self.inner.random.next_u64()
    }

    fn spawn(&self, task: Task) -> TaskId {
        let alive = {
            let nodes = self.inner.nodes.borrow();
            let state = &nodes[self.node.0];
            state.up && state.incarnation == self.incarnation
        };
        if !alive {
            drop(task);
            return TaskId::MAIN;
        }
        self.inner.spawn(owner(self.node, self.incarnation), task)
    }

    fn abort(&self, task: TaskId) {
        self.inner.abort(task);
    }

    fn set_timer(&self, at: Instant, waker: Waker) -> TimerId {
        self.inner.set_timer(Instant::from_nanos(self.rate().world(at.as_nanos())), waker)
    }

    fn clear_timer(&self, timer: TimerId) {
        self.inner.clear_timer(timer);
    }

    fn add_source(&self, _source: Rc<dyn EventSource>) -> Result<SourceId, NoSources> {
        Err(NoSources::Simulated)
    }

    fn remove_source(&self, _source: SourceId) {}
}
