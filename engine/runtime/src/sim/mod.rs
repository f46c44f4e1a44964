//! The simulated world: many nodes in one process, virtual time, one seed.
//!
//! The order in which ready tasks run is drawn from the seed, and so is everything that the simulated fabric and
//! disks draw. The same seed and the same program give the same trace, which [`World::trace_hash`] sums up.

mod node;

pub use node::{Node, NodeId};

use crate::handle::{Backend, Handle};
use crate::instant::Instant;
use crate::random::Random;
use crate::task::{Task, TaskId, TaskTable};
use crate::timer::{TimerId, Timers};
use crate::waker::{RunQueue, TaskWaker};
use core::cell::{Cell, RefCell};
use core::task::{Context, Waker};
use core::time::Duration;
use node::{NodeBackend, NodeState};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Wall time at the start of every world: 2030-01-01 00:00:00 UTC.
pub const WALL_START_NS: u64 = 1_893_456_000_000_000_000;

/// Virtual time that one task poll takes: enough that a task which waits for time by yielding gets there.
const POLL_COST_NS: u64 = 10;

/// Virtual time after which [`World::block_on`] gives up: longer than any deadline in the product.
const BLOCK_ON_LIMIT: Duration = Duration::from_hours(24);

/// Why a simulated run ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SimError {
    /// No task is ready and no event is due, ever.
    #[error("seed {seed}: deadlock at {at:?}: the future waits and nothing is left to happen")]
    Deadlock {
        /// The world's seed.
        seed: u64,
        /// When it was noticed.
        at: Instant,
    },
    /// Virtual time ran past the limit.
    #[error("seed {seed}: the future did not finish by {at:?}")]
    TimeLimit {
        /// The world's seed.
        seed: u64,
        /// The limit.
        at: Instant,
    },
    /// The node that ran the future crashed.
    #[error("seed {seed}: the node crashed at {at:?} while it ran the future")]
    Crashed {
        /// The world's seed.
        seed: u64,
        /// When it was noticed.
        at: Instant,
    },
}

type Action = Box<dyn FnOnce()>;
type CrashHook = Rc<dyn Fn(NodeId)>;

pub(crate) struct Inner {
    seed: u64,
    now: Cell<u64>,
    random: Random,
    trace: Cell<u64>,
    polls: Cell<u64>,
    queue: Rc<RunQueue>,
    tasks: RefCell<TaskTable>,
    timers: RefCell<Timers>,
    actions: RefCell<BTreeMap<(u64, u64), Action>>,
    action_serial: Cell<u64>,
    /// The world is over: nothing can be started any more.
    ended: Cell<bool>,
    nodes: RefCell<Vec<NodeState>>,
    crash_hooks: RefCell<Vec<CrashHook>>,
}

/// A simulated world. Cheap to clone: clones are the same world, which ends with the original. That way tasks and
/// devices of the world may hold clones.
pub struct World {
    inner: Rc<Inner>,
    _owner: Option<Owner>,
}

impl Clone for World {
    fn clone(&self) -> Self {
        Self { inner: Rc::clone(&self.inner), _owner: None }
    }
}

/// Ends the world: every node crashes for good.
struct Owner(Rc<Inner>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.ended.set(true);
        let ids = self.0.tasks.borrow().ids(None);
        for id in ids {
            self.0.abort(id);
        }
        let hooks: Vec<CrashHook> = self.0.crash_hooks.borrow().clone();
        let nodes = self.0.nodes.borrow().len();
        for hook in hooks {
            (0..nodes).for_each(|node| hook(NodeId(node)));
        }
        self.0.queue.unregister();
        let timers = self.0.timers.borrow_mut().drain();
        drop(timers);
        let actions = core::mem::take(&mut *self.0.actions.borrow_mut());
        drop(actions);
        let hooks = core::mem::take(&mut *self.0.crash_hooks.borrow_mut());
        drop(hooks);
    }
}

impl World {
    /// An empty world.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let inner = Rc::new(Inner {
            seed,
            now: Cell::new(0),
            random: Random::new(seed),
            trace: Cell::new(0xcbf2_9ce4_8422_2325),
            polls: Cell::new(0),
            queue: RunQueue::register(),
            tasks: RefCell::default(),
            timers: RefCell::default(),
            actions: RefCell::default(),
            action_serial: Cell::new(0),
            ended: Cell::new(false),
            nodes: RefCell::default(),
            crash_hooks: RefCell::default(),
        });
        Self { _owner: Some(Owner(Rc::clone(&inner))), inner }
    }

    /// The seed, for messages.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.inner.seed
    }

    /// Virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.inner.now.get())
    }

    /// The world's randomness.
    #[must_use]
    pub fn rng(&self) -> &Random {
        &self.inner.random
    }

    /// A sum over everything that has happened so far: equal for equal seeds and programs.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.inner.trace.get()
    }

    /// Task polls so far.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.inner.polls.get()
    }

    /// Mixes a value into the trace hash: simulated devices report what they decide.
    pub fn trace(&self, value: u64) {
        self.inner.trace(value);
    }

    /// The node of this name; it is made on first use.
    #[must_use]
    pub fn node(&self, name: &str) -> Node {
        let mut nodes = self.inner.nodes.borrow_mut();
        let at = nodes.iter().position(|node| node.name == name).unwrap_or_else(|| {
            nodes.push(NodeState::new(name));
            nodes.len() - 1
        });
        Node::new(Rc::clone(&self.inner), NodeId(at))
    }

    /// Calls this on every crash of a node, after its tasks are gone: simulated devices hang on here.
    pub fn on_crash(&self, hook: impl Fn(NodeId) + 'static) {
        self.inner.crash_hooks.borrow_mut().push(Rc::new(hook));
    }

    /// Power failure: drops the node's tasks where they stand. It stays down until [`World::restart`].
    pub fn crash(&self, node: &Node) {
        self.inner.crash(node.id());
    }

    /// Brings a crashed node up again, without any task. Handles from before the crash stay dead.
    pub fn restart(&self, node: &Node) {
        let mut nodes = self.inner.nodes.borrow_mut();
        nodes[node.id().0].up = true;
    }

    /// Calls this after a delay, whatever happens to any node.
    pub fn schedule(&self, delay: Duration, action: impl FnOnce() + 'static) {
        if self.inner.ended.get() {
            return;
        }
        let at = self.now() + delay;
        let serial = self.inner.action_serial.get() + 1;
        self.inner.action_serial.set(serial);
        self.inner.actions.borrow_mut().insert((at.as_nanos(), serial), Box::new(action));
    }

    /// Runs the world until a future on this node has finished.
    ///
    /// # Panics
    /// When it can't finish: deadlock, a virtual day passed, or its node crashed. The message names the seed.
    pub fn block_on<F, T>(&self, node: &Node, future: F) -> T
    where
        F: Future<Output = T> + 'static,
        T: 'static,
    {
        match self.try_block_on(node, BLOCK_ON_LIMIT, future) {
            Ok(value) => value,
            Err(error) => panic!("{error}"),
        }
    }

    /// Runs the world until a future on this node has finished, for at most `limit` of virtual time.
    ///
    /// # Errors
    /// When it can't finish.
    pub fn try_block_on<F, T>(&self, node: &Node, limit: Duration, future: F) -> Result<T, SimError>
    where
        F: Future<Output = T> + 'static,
        T: 'static,
    {
        let seed = self.inner.seed;
        let end = self.now() + limit;
        let result = Rc::new(RefCell::new(None));
        let slot = Rc::clone(&result);
        let task = node.handle().spawn(async move {
            let value = future.await;
            *slot.borrow_mut() = Some(value);
        });
        loop {
            if task.is_finished() {
                let value = result.borrow_mut().take();
                return value.ok_or(SimError::Crashed { seed, at: self.now() });
            }
            if self.inner.run_one_ready() {
                continue;
            }
            match self.inner.next_event() {
                None => return Err(SimError::Deadlock { seed, at: self.now() }),
                Some(at) if at > end.as_nanos() => return Err(SimError::TimeLimit { seed, at: end }),
                Some(at) => self.inner.fire(at),
            }
        }
    }

    /// Runs the world for a span of virtual time.
    pub fn run_for(&self, span: Duration) {
        let end = (self.now() + span).as_nanos();
        loop {
            if self.inner.now.get() < end && self.inner.run_one_ready() {
                continue;
            }
            match self.inner.next_event() {
                Some(at) if at <= end => self.inner.fire(at),
                _ => break,
            }
        }
        self.inner.now.set(self.inner.now.get().max(end));
    }
}

impl Inner {
    /// FNV-1a over 64-bit values.
    fn trace(&self, value: u64) {
        self.trace.set((self.trace.get() ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23));
    }

    /// Runs one ready task, drawn from all that are ready.
    fn run_one_ready(&self) -> bool {
        let picked = {
            let mut ready = self.queue.ready.borrow_mut();
            if ready.is_empty() {
                return false;
            }
            let at = self.random.below(ready.len() as u64);
            ready.swap_remove_back(usize::try_from(at).unwrap_or(0))
        };
        let taken = picked.and_then(|id| self.tasks.borrow_mut().take(id).map(|task| (id, task)));
        let Some((id, (mut task, waking))) = taken else { return true };
        self.now.set(self.now.get() + POLL_COST_NS);
        self.polls.set(self.polls.get() + 1);
        self.trace(self.now.get() ^ (u64::from(id.index) << 32) ^ u64::from(id.generation));
        waking.begin();
        if task.as_mut().poll(&mut Context::from_waker(waking.waker())).is_ready() {
            let removed = self.tasks.borrow_mut().remove(id);
            drop(removed);
        } else {
            let aborted = self.tasks.borrow_mut().put_back(id, task, waking);
            drop(aborted);
        }
        true
    }

    fn next_event(&self) -> Option<u64> {
        let timer = self.timers.borrow().next();
        let action = self.actions.borrow().first_key_value().map(|((at, _), _)| *at);
        match (timer, action) {
            (Some(timer), Some(action)) => Some(timer.min(action)),
            (timer, action) => timer.or(action),
        }
    }

    /// Advances time to `at` and makes everything happen that is due.
    fn fire(&self, at: u64) {
        let now = self.now.get().max(at);
        self.now.set(now);
        self.trace(now);
        loop {
            let due = self.timers.borrow_mut().pop_due(now);
            let Some(waker) = due else { break };
            waker.wake();
        }
        loop {
            let due = {
                let mut actions = self.actions.borrow_mut();
                match actions.first_entry() {
                    Some(entry) if entry.key().0 <= now => Some(entry.remove()),
                    _ => None,
                }
            };
            let Some(action) = due else { break };
            action();
        }
    }

    fn crash(&self, node: NodeId) {
        let owner = {
            let mut nodes = self.nodes.borrow_mut();
            let state = &mut nodes[node.0];
            let owner = state.owner(node);
            state.up = false;
            state.incarnation += 1;
            owner
        };
        self.trace(owner);
        let ids = self.tasks.borrow().ids(Some(owner));
        for id in ids {
            self.abort(id);
        }
        let hooks: Vec<CrashHook> = self.crash_hooks.borrow().clone();
        for hook in hooks {
            hook(node);
        }
    }

    fn abort(&self, id: TaskId) {
        let removed = self.tasks.borrow_mut().remove(id);
        drop(removed);
    }

    fn spawn(&self, owner: u64, task: Task) -> TaskId {
        if self.ended.get() {
            drop(task);
            return TaskId::MAIN;
        }
        let mut tasks = self.tasks.borrow_mut();
        let id = tasks.reserve(owner);
        let flag = TaskWaker::new(&self.queue, id, None);
        let waker = flag.waker();
        tasks.fill(id, task, flag);
        drop(tasks);
        waker.wake();
        id
    }

    fn set_timer(&self, at: Instant, waker: Waker) -> TimerId {
        self.timers.borrow_mut().set(at.as_nanos(), waker)
    }

    fn clear_timer(&self, timer: TimerId) {
        let cleared = self.timers.borrow_mut().clear(timer);
        drop(cleared);
    }
}

/// A handle of one incarnation of a node.
pub(crate) fn handle(inner: &Rc<Inner>, node: NodeId) -> Handle {
    let incarnation = inner.nodes.borrow()[node.0].incarnation;
    // Virtual time is known to the world only, which every question goes to.
    let backend = Rc::new(NodeBackend::new(Rc::clone(inner), node, incarnation));
    Handle::new(backend as Rc<dyn Backend>, Rc::default())
}

#[cfg(test)]
mod tests;
