//! Access to time, randomness and tasks.

use crate::instant::Instant;
use crate::reading::Readings;
use crate::task::{Task, TaskId};
use crate::timer::TimerId;
use core::cell::RefCell;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

/// Something that makes progress when it is polled and that can wake a sleeping executor: a completion queue, an
/// io_uring instance.
pub trait EventSource {
    /// Handles what has happened, without waiting. Returns whether there was anything.
    fn poll(&self) -> bool;

    /// The descriptor that becomes readable when there is something to handle; asked for once, at registration.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Prepares for sleep on the descriptor. `false`: something has happened, poll again first.
    fn arm(&self) -> bool;

    /// Longest sleep that the source allows at this moment; `None` when its descriptor reports everything.
    fn max_sleep(&self) -> Option<Duration> {
        None
    }
}

/// Names a registered [`EventSource`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceId(pub(crate) u64);

/// The executor takes no event sources, or the operating system refused the descriptor.
#[derive(Debug, thiserror::Error)]
pub enum NoSources {
    /// A simulated world has no descriptors.
    #[error("event sources need a real executor; a simulated node has none")]
    Simulated,
    /// `epoll_ctl` failed.
    #[error("the event source's descriptor can't be watched: {0}")]
    Watch(#[from] std::io::Error),
}

pub(crate) trait Backend {
    fn now(&self) -> Instant;

    /// Monotonic time, and wall time in nanoseconds, of the same moment.
    fn times(&self) -> (Instant, u64);

    fn random_u64(&self) -> u64;
    fn spawn(&self, task: Task) -> TaskId;
    fn abort(&self, task: TaskId);
    fn set_timer(&self, at: Instant, waker: Waker) -> TimerId;
    fn clear_timer(&self, timer: TimerId);
    fn add_source(&self, source: Rc<dyn EventSource>) -> Result<SourceId, NoSources>;
    fn remove_source(&self, source: SourceId);

    /// See [`Handle::is_idle`]. Virtual time passes only when it is.
    fn is_idle(&self) -> bool {
        false
    }

    /// See [`Handle::run_now`]. In virtual time every task waits for its turn.
    fn run_now(&self, _task: TaskId) -> bool {
        false
    }

    /// Something is expected soon, or is not any more. Virtual time doesn't care.
    fn attend(&self, _expected: bool) {}

    /// See [`Handle::end_turn`]. In virtual time tasks take none.
    fn end_turn(&self) {}
}

/// Time, randomness and tasks of one context. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    backend: Rc<dyn Backend>,
    readings: Rc<Readings>,
}

impl core::fmt::Debug for Handle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Handle").field("now", &self.now()).finish_non_exhaustive()
    }
}

/// A wait was longer than allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("timed out")]
pub struct Elapsed;

/// The task was aborted, or its node crashed, before it finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the task was aborted before it finished")]
pub struct Aborted;

impl Handle {
    pub(crate) fn new(backend: Rc<dyn Backend>, readings: Rc<Readings>) -> Self {
        Self { backend, readings }
    }

    /// Monotonic time.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Instant {
        self.readings.now().unwrap_or_else(|| self.backend.now())
    }

    /// Wall time in nanoseconds since 1970-01-01; may step.
    #[must_use]
    #[inline]
    pub fn wall_ns(&self) -> u64 {
        self.times().1
    }

    /// Monotonic and wall time of the same moment: see [`Self::now`] and [`Self::wall_ns`].
    #[must_use]
    #[inline]
    pub fn times(&self) -> (Instant, u64) {
        self.readings.times().unwrap_or_else(|| self.backend.times())
    }

    /// As [`Self::times`], and read now. A turn's reading is old when the process has stood still in it: it was
    /// stopped, its machine was moved, a handler took long. Call this before the clock is used to blame another
    /// component.
    #[must_use]
    #[cold]
    pub fn times_anew(&self) -> (Instant, u64) {
        self.readings.forget();
        self.times()
    }

    /// 64 random bits.
    #[must_use]
    pub fn random_u64(&self) -> u64 {
        self.backend.random_u64()
    }

    /// Starts a task. Dropping the returned handle lets it run on by itself.
    pub fn spawn<F, T>(&self, future: F) -> JoinHandle<T>
    where
        F: Future<Output = T> + 'static,
        T: 'static,
    {
        let state = Rc::new(RefCell::new(JoinState::Running(None)));
        let guard = Finish { state: Rc::clone(&state) };
        let id = self.backend.spawn(Box::pin(async move {
            let guard = guard;
            let value = future.await;
            guard.finish(Ok(value));
        }));
        JoinHandle { state, id, backend: Rc::clone(&self.backend) }
    }

    /// Waits for a duration.
    #[must_use]
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration)
    }

    /// Waits until a point of time.
    #[must_use]
    pub fn sleep_until(&self, at: Instant) -> Sleep {
        Sleep { backend: Rc::clone(&self.backend), at, timer: None }
    }

    /// Runs a future for at most `duration`, then drops it.
    ///
    /// # Errors
    /// [`Elapsed`] when it didn't finish in time.
    pub async fn timeout<F: Future>(&self, duration: Duration, future: F) -> Result<F::Output, Elapsed> {
        self.timeout_at(self.now() + duration, future).await
    }

    /// Runs a future until `deadline`, then drops it.
    ///
    /// # Errors
    /// [`Elapsed`] when it didn't finish in time.
    pub async fn timeout_at<F: Future>(&self, deadline: Instant, future: F) -> Result<F::Output, Elapsed> {
        let mut future = pin!(future);
        let mut sleep = self.sleep_until(deadline);
        core::future::poll_fn(move |cx| {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(value));
            }
            Pin::new(&mut sleep).poll(cx).map(|()| Err(Elapsed))
        })
        .await
    }

    /// Polls a task in place instead of having it woken, and returns whether it did: that takes a source that is being
    /// polled, because then no task is, and is granted a few times for each look at the sources. For the task of which the
    /// caller knows that it waits for just this.
    #[must_use]
    pub fn run_now(&self, task: TaskName) -> bool {
        self.backend.run_now(task.0)
    }

    /// Whether no task is ready: then a source may take a little longer to look for what it has.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.backend.is_idle()
    }

    /// Lets every other ready task run once.
    #[must_use]
    pub fn yield_now(&self) -> YieldNow {
        YieldNow { yielded: false }
    }

    /// Has the executor poll its sources once the running task yields, before other ready tasks. It is for a task that
    /// has kept the thread for as long as many tasks take.
    pub fn end_turn(&self) {
        self.backend.end_turn();
    }

    /// Has the executor poll this source and sleep on its descriptor.
    ///
    /// # Errors
    /// In a simulated world, and when the descriptor can't be watched.
    pub fn add_source(&self, source: Rc<dyn EventSource>) -> Result<SourceId, NoSources> {
        self.backend.add_source(source)
    }

    /// Forgets a source.
    pub fn remove_source(&self, source: SourceId) {
        self.backend.remove_source(source);
    }

    /// Tells the executor that something is expected soon, until this is dropped: for transfers that take less time than
    /// waking a thread. It then stays awake for longer than it would, as long as that goes on paying.
    #[must_use]
    pub fn attend(&self) -> Attention {
        self.backend.attend(true);
        Attention { backend: Rc::clone(&self.backend) }
    }
}

/// Something is expected soon; see [`Handle::attend`].
pub struct Attention {
    backend: Rc<dyn Backend>,
}

impl core::fmt::Debug for Attention {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Attention").finish_non_exhaustive()
    }
}

impl Drop for Attention {
    fn drop(&mut self) {
        self.backend.attend(false);
    }
}

/// Waits for a point of time; see [`Handle::sleep`].
pub struct Sleep {
    backend: Rc<dyn Backend>,
    at: Instant,
    timer: Option<(TimerId, Waker)>,
}

impl Sleep {
    fn clear(&mut self) {
        if let Some((timer, _)) = self.timer.take() {
            self.backend.clear_timer(timer);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.backend.now() >= self.at {
            self.clear();
            return Poll::Ready(());
        }
        if self.timer.as_ref().is_some_and(|(_, waker)| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        self.clear();
        let timer = self.backend.set_timer(self.at, cx.waker().clone());
        self.timer = Some((timer, cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.clear();
    }
}

/// See [`Handle::yield_now`].
pub struct YieldNow {
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

enum JoinState<T> {
    Running(Option<Waker>),
    Finished(Result<T, Aborted>),
    Taken,
}

/// Reports the end of a task, also when it is dropped before it finished.
struct Finish<T> {
    state: Rc<RefCell<JoinState<T>>>,
}

impl<T> Finish<T> {
    fn finish(&self, result: Result<T, Aborted>) {
        let waker = {
            let mut state = self.state.borrow_mut();
            let JoinState::Running(waker) = &mut *state else { return };
            let waker = waker.take();
            *state = JoinState::Finished(result);
            waker
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Finish<T> {
    fn drop(&mut self) {
        self.finish(Err(Aborted));
    }
}

/// Names a task for [`Handle::run_now`]; nothing any more once the task has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskName(TaskId);

/// The result of a spawned task. Dropping it detaches the task.
pub struct JoinHandle<T> {
    state: Rc<RefCell<JoinState<T>>>,
    id: TaskId,
    backend: Rc<dyn Backend>,
}

impl<T> JoinHandle<T> {
    /// Drops the task where it stands; awaiting it then gives [`Aborted`].
    pub fn abort(&self) {
        self.backend.abort(self.id);
    }

    /// The task's name.
    #[must_use]
    pub fn name(&self) -> TaskName {
        TaskName(self.id)
    }

    /// Whether the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        !matches!(&*self.state.borrow(), JoinState::Running(_))
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Aborted>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.state.borrow_mut();
        match core::mem::replace(&mut *state, JoinState::Taken) {
            JoinState::Running(_) => {
                *state = JoinState::Running(Some(cx.waker().clone()));
                Poll::Pending
            }
            JoinState::Finished(result) => Poll::Ready(result),
            JoinState::Taken => Poll::Ready(Err(Aborted)),
        }
    }
}
