//! Wakers without `unsafe` and without a lock on the owner's thread.
//!
//! A [`Waker`] must be `Send`, but nearly every wake happens on the thread that runs the task's executor. A thread has the
//! run queues of the executors that it runs in a thread-local table; a wake that finds its queue there pushes directly,
//! any other goes through the executor's [`RemoteQueue`].

use crate::task::TaskId;
use core::cell::RefCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Wake, Waker};

thread_local! {
    static QUEUES: RefCell<Vec<Rc<RunQueue>>> = const { RefCell::new(Vec::new()) };
}

static NEXT_QUEUE: AtomicU64 = AtomicU64::new(1);

/// Tasks of one executor that are ready to run, oldest first.
pub(crate) struct RunQueue {
    id: u64,
    pub(crate) ready: RefCell<VecDeque<TaskId>>,
}

/// Has a thread run a queue's executor, until this is dropped.
pub(crate) struct Running<'a>(&'a RunQueue);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.unregister();
    }
}

impl RunQueue {
    /// A queue that no thread runs.
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self { id: NEXT_QUEUE.fetch_add(1, Ordering::Relaxed), ready: RefCell::new(VecDeque::new()) })
    }

    /// A queue registered with the current thread.
    pub(crate) fn register() -> Rc<Self> {
        let queue = Self::new();
        QUEUES.with(|queues| queues.borrow_mut().push(Rc::clone(&queue)));
        queue
    }

    /// Has the current thread run the queue's executor.
    pub(crate) fn run_here(self: &Rc<Self>) -> Running<'_> {
        QUEUES.with(|queues| queues.borrow_mut().push(Rc::clone(self)));
        Running(self)
    }

    /// Removes the queue from the thread's table: later wakes of its tasks go nowhere.
    pub(crate) fn unregister(&self) {
        // The table is gone when the thread is ending; then a wake through it isn't possible either.
        let _ = QUEUES.try_with(|queues| queues.borrow_mut().retain(|queue| queue.id != self.id));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ready.borrow().is_empty()
    }
}

/// Where wakes from other threads go.
pub(crate) trait RemoteQueue: Send + Sync {
    /// Asks the owner's thread to wake this task.
    fn wake(&self, task: TaskId);
}

/// The waker of one task.
pub(crate) struct TaskWaker {
    queue: u64,
    task: TaskId,
    queued: AtomicBool,
    remote: Option<Arc<dyn RemoteQueue>>,
}

impl TaskWaker {
    pub(crate) fn new(queue: &RunQueue, task: TaskId, remote: Option<Arc<dyn RemoteQueue>>) -> Arc<Self> {
        Arc::new(Self { queue: queue.id, task, queued: AtomicBool::new(false), remote })
    }

    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }

    /// Called by the owner just before it polls the task: from here on a wake queues it again.
    pub(crate) fn begin(&self) {
        self.queued.store(false, Ordering::Relaxed);
    }

    fn push(&self) {
        let local = QUEUES.try_with(|queues| {
            let queues = queues.borrow();
            let Some(queue) = queues.iter().find(|queue| queue.id == self.queue) else { return false };
            // Only the thread that runs the executor gets here, so a plain load and store can't race.
            if !self.queued.load(Ordering::Relaxed) {
                self.queued.store(true, Ordering::Relaxed);
                queue.ready.borrow_mut().push_back(self.task);
            }
            true
        });
        if !matches!(local, Ok(true))
            && let Some(remote) = &self.remote
        {
            remote.wake(self.task);
        }
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.push();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.push();
    }
}
