//! Workers, which execute requests one after another.
//!
//! A worker is a task that lives on with its handler's future, so that a request allocates neither task nor
//! future. Their number is that of the requests that were in flight at once; idle workers beyond a few end.

use super::Body;
use super::running::Running;
use crate::error::Status;
use crate::request::Request;
use core::cell::RefCell;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::rc::Rc;
use weir_runtime::{Handle, JoinHandle, LocalBoxFuture, TaskName};

/// Idle workers of one operation that are kept: twice the credits of a client.
const IDLE_MAX: usize = 64;

/// Answers the requests of one operation. Closures that return a future implement it.
pub trait Handler {
    /// Takes requests from a queue and answers them, one after another, until the queue closes. The future is
    /// dropped unfinished only when the context ends.
    fn work(self: Rc<Self>, queue: WorkQueue) -> LocalBoxFuture<'static, ()>;
}

impl<F, Fut> Handler for F
where
    F: Fn(Request) -> Fut + 'static,
    Fut: Future<Output = Result<Body, Status>> + 'static,
{
    fn work(self: Rc<Self>, mut queue: WorkQueue) -> LocalBoxFuture<'static, ()> {
        Box::pin(async move {
            while let Some(request) = queue.next().await {
                let result = self(request).await;
                queue.finish(result);
            }
        })
    }
}

#[derive(Default)]
struct Worker {
    /// Kept, because a worker is the same task all its life.
    waker: Option<Waker>,
    /// It waits for a request and has to be woken.
    parked: bool,
    /// It was woken or started for a request. A worker that has finished takes no further request by itself:
    /// that request's worker is awake already, behind tasks that run first.
    called: bool,
    /// The request to execute next: in place, or when its task runs.
    job: Option<(Running, Request)>,
    task: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(Running, Request)>,
    workers: Vec<Worker>,
    /// Idle workers, longest idle first.
    idle: Vec<usize>,
    /// Slots of workers that have ended.
    free: Vec<usize>,
    closed: bool,
}

/// The worker that a request was assigned to.
enum Assigned {
    /// An idle worker, which was woken.
    Woken,
    /// The idle worker in this slot, which has to be run or woken.
    Idle(usize, TaskName),
    /// No worker is idle. A new one may take this slot.
    Nobody(usize),
}

/// The workers of one operation, and the requests that wait for them.
#[derive(Default)]
pub(crate) struct WorkerPool {
    state: RefCell<State>,
}

impl WorkerPool {
    /// Has a request executed by an idle worker, else by a new one. `in_place`: no other worker is about to
    /// begin, so that it is executed on this stack if that is possible.
    #[inline(always)]
    pub(crate) fn take(
        self: &Rc<Self>,
        rt: &Handle,
        handler: &Rc<dyn Handler>,
        running: Running,
        request: Request,
        in_place: bool,
    ) {
        match self.assign(running, request, in_place) {
            Assigned::Woken => {}
            Assigned::Idle(slot, task) => {
                if !rt.run_now(task) {
                    self.wake(slot);
                }
            }
            Assigned::Nobody(slot) => self.spawn_worker(rt, handler, slot),
        }
    }

    /// Puts a request where a worker finds it.
    #[inline]
    fn assign(&self, running: Running, request: Request, in_place: bool) -> Assigned {
        let state = &mut *self.state.borrow_mut();
        // The worker that ran last has the warmest cache.
        let idle = state.idle.pop().and_then(|index| Some((index, state.workers.get_mut(index)?)));
        if let Some((index, Worker { waker: Some(waker), parked, called, job, task })) = idle {
            *parked = false;
            if in_place && let Some(task) = task {
                *job = Some((running, request));
                return Assigned::Idle(index, task.name());
            }
            *called = true;
            state.waiting.push_back((running, request));
            // Waking only queues the task.
            waker.wake_by_ref();
            return Assigned::Woken;
        }
        let slot = state.free.pop().unwrap_or_else(|| {
            state.workers.push(Worker::default());
            state.workers.len() - 1
        });
        state.workers[slot].called = true;
        state.waiting.push_back((running, request));
        Assigned::Nobody(slot)
    }

    /// Wakes a worker whose request could not be executed in place.
    fn wake(&self, slot: usize) {
        if let Some(Worker { waker: Some(waker), .. }) = self.state.borrow().workers.get(slot) {
            waker.wake_by_ref();
        }
    }

    /// Starts a worker in a free slot.
    fn spawn_worker(self: &Rc<Self>, rt: &Handle, handler: &Rc<dyn Handler>, slot: usize) {
        let queue = WorkQueue { pool: Rc::clone(self), slot, running: None };
        let task = rt.spawn(Rc::clone(handler).work(queue));
        if let Some(worker) = self.state.borrow_mut().workers.get_mut(slot) {
            worker.task = Some(task);
        }
    }

    /// No more requests: idle workers end now, others after their present request.
    pub(crate) fn close(&self) {
        let (unbegun, tasks) = {
            let state = &mut *self.state.borrow_mut();
            state.closed = true;
            let idle = core::mem::take(&mut state.idle);
            let tasks: Vec<_> =
                idle.into_iter().filter_map(|index| state.workers[index].task.take()).collect();
            let mut unbegun = core::mem::take(&mut state.waiting);
            unbegun.extend(state.workers.iter_mut().filter_map(|worker| worker.job.take()));
            (unbegun, tasks)
        };
        drop(unbegun);
        for task in tasks {
            task.abort();
        }
    }
}

/// Where a worker gets its requests from.
pub struct WorkQueue {
    pool: Rc<WorkerPool>,
    slot: usize,
    running: Option<Running>,
}

impl WorkQueue {
    /// The next request. `None`: this worker gets no more.
    #[expect(clippy::should_implement_trait, reason = "nobody takes a queue of work for an iterator")]
    pub fn next(&mut self) -> impl Future<Output = Option<Request>> {
        core::future::poll_fn(|cx| {
            self.look(cx).map(|job| {
                let (running, request) = job?;
                running.begin();
                self.running = Some(running);
                Some(request)
            })
        })
    }

    #[inline]
    fn look(&self, cx: &Context<'_>) -> Poll<Option<(Running, Request)>> {
        let state = &mut *self.pool.state.borrow_mut();
        let worker = &mut state.workers[self.slot];
        let job = worker.job.take();
        if job.is_some() {
            return Poll::Ready(job);
        }
        if core::mem::take(&mut worker.called)
            && let Some(job) = state.waiting.pop_front()
        {
            return Poll::Ready(Some(job));
        }
        if state.closed || !worker.parked && state.idle.len() >= IDLE_MAX {
            return Poll::Ready(None);
        }
        if !worker.parked {
            worker.parked = true;
            match &mut worker.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            state.idle.push(self.slot);
        }
        Poll::Pending
    }

    /// Hands in the result of the last request.
    pub fn finish(&mut self, result: Result<Body, Status>) {
        if let Some(running) = self.running.take() {
            running.finish(result);
        }
    }
}

impl Drop for WorkQueue {
    fn drop(&mut self) {
        let Ok(mut state) = self.pool.state.try_borrow_mut() else { return };
        let slot = self.slot;
        state.idle.retain(|index| *index != slot);
        let gone = state.workers.get_mut(slot).map(core::mem::take);
        state.free.push(slot);
        drop(state);
        drop(gone);
    }
}
