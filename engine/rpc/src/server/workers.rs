//! Who executes requests: workers that take them one after another.
//!
//! A worker is a task that lives on, with the handler's future in it, so that a request allocates neither task nor
//! future. There are as many as requests were under way at once; beyond a few, idle ones end.

use super::Body;
use super::running::Running;
use crate::error::Status;
use crate::request::Request;
use core::cell::RefCell;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::rc::Rc;
use weir_runtime::{Handle, JoinHandle, LocalBoxFuture, TaskName};

/// Idle workers of one operation that are kept: what a client with all its credits keeps busy, twice.
const IDLE_MAX: usize = 64;

/// Answers the requests of one operation. Implemented for closures that return a future.
pub trait Handler {
    /// Takes requests from a queue and answers them, one after another, until the queue closes. The future is dropped
    /// unfinished only when the context ends.
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
    /// What wakes it: kept, because a worker is one task all its life.
    waker: Option<Waker>,
    /// It waits for work, and has to be woken.
    parked: bool,
    /// It was woken, or made, for a request. One that has ended a request takes no other by itself: that one's worker is
    /// awake already, behind tasks whose turn is first.
    called: bool,
    /// What it is to execute next: in place, or else when its turn comes.
    job: Option<(Running, Request)>,
    task: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(Running, Request)>,
    workers: Vec<Worker>,
    /// Workers that wait, longest first.
    idle: Vec<usize>,
    /// Places of workers that have ended.
    free: Vec<usize>,
    closed: bool,
}

/// Who takes a request.
enum Assigned {
    /// An idle worker that was woken.
    Woken,
    /// The idle worker at this place, which has to be woken.
    Idle(usize, TaskName),
    /// None is idle; a new one may have this place.
    Nobody(usize),
}

/// The requests of one operation, and who executes them.
#[derive(Default)]
pub(crate) struct WorkerPool {
    state: RefCell<State>,
}

impl WorkerPool {
    /// Has a request executed: by a worker that is idle, else by a new one. `in_place`: there is no other whose turn
    /// would be first, so that it is executed here, where that is possible.
    #[inline(always)]
    pub(crate) fn take(
        self: &Rc<Self>,
        rt: &Handle,
        handler: &Rc<dyn Handler>,
        running: Running,
        request: Request,
        in_place: bool,
    ) {
        match self.put_down(running, request, in_place) {
            Assigned::Woken => {}
            Assigned::Idle(place, task) => {
                if !rt.run_now(task) {
                    self.wake(place);
                }
            }
            Assigned::Nobody(place) => self.hire(rt, handler, place),
        }
    }

    /// Puts a request where workers find it, and says whose it is.
    #[inline]
    fn put_down(&self, running: Running, request: Request, in_place: bool) -> Assigned {
        let state = &mut *self.state.borrow_mut();
        // The one that worked last has the warmest cache.
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
        let place = state.free.pop().unwrap_or_else(|| {
            state.workers.push(Worker::default());
            state.workers.len() - 1
        });
        state.workers[place].called = true;
        state.waiting.push_back((running, request));
        Assigned::Nobody(place)
    }

    /// Wakes a worker for what was to be executed in place, and was not.
    fn wake(&self, place: usize) {
        if let Some(Worker { waker: Some(waker), .. }) = self.state.borrow().workers.get(place) {
            waker.wake_by_ref();
        }
    }

    /// Starts a worker at a free place.
    fn hire(self: &Rc<Self>, rt: &Handle, handler: &Rc<dyn Handler>, place: usize) {
        let queue = WorkQueue { pool: Rc::clone(self), place, running: None };
        let task = rt.spawn(Rc::clone(handler).work(queue));
        if let Some(worker) = self.state.borrow_mut().workers.get_mut(place) {
            worker.task = Some(task);
        }
    }

    /// No more requests: idle workers end now, the others after what they are at.
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

/// Where a worker gets its requests.
pub struct WorkQueue {
    pool: Rc<WorkerPool>,
    place: usize,
    running: Option<Running>,
}

impl WorkQueue {
    /// The next request; `None` when there will be no more for this worker.
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
        let worker = &mut state.workers[self.place];
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
            state.idle.push(self.place);
        }
        Poll::Pending
    }

    /// Hands in the outcome of the request that was taken last.
    pub fn finish(&mut self, result: Result<Body, Status>) {
        if let Some(running) = self.running.take() {
            running.finish(result);
        }
    }
}

impl Drop for WorkQueue {
    fn drop(&mut self) {
        let Ok(mut state) = self.pool.state.try_borrow_mut() else { return };
        let place = self.place;
        state.idle.retain(|index| *index != place);
        let gone = state.workers.get_mut(place).map(core::mem::take);
        state.free.push(place);
        drop(state);
        drop(gone);
    }
}
