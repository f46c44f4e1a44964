//! The executor of a real thread: epoll, monotonic clock, the operating system's randomness.
//!
//! It polls its sources while there is work, goes on polling for a short budget after the last progress, and then
//! sleeps on the sources' descriptors until one is readable, a timer is due or another thread calls.

mod remote;
mod vigil;

pub use remote::{ExecutorGone, Remote};

use crate::handle::{Backend, EventSource, Handle, NoSources, SourceId};
use crate::instant::Instant;
use crate::random::Random;
use crate::reading::{Reading, Readings, Wall};
use crate::task::{Task, TaskId, TaskTable};
use crate::timer::{TimerId, Timers};
use crate::waker::{RunQueue, TaskWaker};
use core::cell::{Cell, RefCell};
use core::mem::MaybeUninit;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use remote::Inbox;
use rustix::event::{Timespec, epoll};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use vigil::Vigil;

/// How long an executor goes on polling after the last progress, before it sleeps. About two round trips on
/// loopback TCP: a reply that is on its way is met awake, and an idle thread costs next to nothing.
pub const SPIN_DEFAULT: Duration = Duration::from_micros(20);

/// Most tasks run between two looks at the sources and timers: bounds how late a completion is seen.
const TASKS_PER_TURN: usize = 64;

/// Task polls that one reading of the clock serves: a read costs as much as a tenth of a small request, and a handful of
/// polls take a few microseconds. What a deadline check sees is never older than these few polls, or one poll of the
/// sources.
const POLLS_PER_READING: usize = 8;

/// Tasks that may be polled in place while the sources are polled once: what one reading of the clock serves.
const POLLS_IN_PLACE: usize = POLLS_PER_READING;

/// Idle turns that one reading of the clock, and one `pause` instruction, serve. On recent processors both together take
/// longer than the turn itself, which is a look at each source, and what arrives meanwhile has to wait. Sixteen turns are
/// below a microsecond where a look makes no system call, and that is how old a reading may be.
const IDLE_TURNS_PER_READING: u32 = 16;

/// Readable descriptors taken from one `epoll_wait`. What they mean is found out by polling the sources.
const EVENTS_MAX: usize = 8;

/// Sleep in place of an `epoll_pwait2` that the system refuses, for instance by a seccomp profile.
const REFUSED_WAIT: Duration = Duration::from_millis(1);

/// Owner of every task of this executor in the task table.
const OWNER: u64 = 0;

/// Settings of an [`Executor`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Polling time after the last progress.
    pub spin: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { spin: SPIN_DEFAULT }
    }
}

/// What an executor has done since it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Turns of the loop.
    pub turns: u64,
    /// Task polls.
    pub polls: u64,
    /// Sleeps on the descriptors.
    pub sleeps: u64,
}

struct Source {
    id: SourceId,
    source: Rc<dyn EventSource>,
}

struct Core {
    queue: Rc<RunQueue>,
    tasks: RefCell<TaskTable>,
    timers: RefCell<Timers>,
    sources: RefCell<Vec<Source>>,
    source_serial: Cell<u64>,
    epoll: OwnedFd,
    inbox: Arc<Inbox>,
    /// Monotonic time of the system at the start.
    start: u64,
    random: Random,
    options: Options,
    turns: Cell<u64>,
    polls: Cell<u64>,
    sleeps: Cell<u64>,
    /// The future of `block_on` was woken.
    main_ready: Cell<bool>,
    /// Tasks that may still be polled in place: none unless a source is being polled, and no task.
    in_place: Cell<usize>,
    /// No more tasks have their turn before the next look at the sources.
    turn_over: Cell<bool>,
    /// The reading of the clocks for the tasks that run now.
    readings: Rc<Readings>,
    /// How many expect something soon, and what was learned of such waits.
    attending: Cell<u32>,
    vigil: Cell<Vigil>,
}

/// A time without anything to do.
#[derive(Clone, Copy, Default)]
struct Lull {
    /// When it was first seen that there is nothing, after the last sleep if there was one.
    since: Option<Instant>,
    /// The executor has slept in it.
    slept: bool,
}

/// How long the wall clock is taken to run with the monotonic one: what it is set by is noticed this much later.
const WALL_AGE_MAX: Duration = Duration::from_millis(1);

/// What a clock of the system says, in nanoseconds; five centuries of them fit. Neither clock is before its zero. The
/// library's own types check and divide, which takes longer than reading the clock.
#[expect(clippy::cast_sign_loss, reason = "neither part is negative")]
fn system_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// A single-threaded executor. Tasks that are left when it is dropped are dropped with it.
pub struct Executor {
    core: Rc<Core>,
}

impl Executor {
    /// An executor. One thread at a time runs it, by [`Executor::block_on`].
    ///
    /// # Errors
    /// When the process has no file descriptor left, or no randomness.
    pub fn new() -> io::Result<Self> {
        Self::with_options(Options::default())
    }

    /// An executor with other settings than the default ones.
    ///
    /// # Errors
    /// When the process has no file descriptor left, or no randomness.
    pub fn with_options(options: Options) -> io::Result<Self> {
        let mut seed = [0u8; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let inbox = Inbox::new()?;
        let readable = epoll::EventFlags::IN;
        epoll::add(&epoll, inbox.fd(), epoll::EventData::new_u64(0), readable)?;
        let core = Core {
            queue: RunQueue::new(),
            tasks: RefCell::default(),
            timers: RefCell::default(),
            sources: RefCell::default(),
            source_serial: Cell::new(0),
            epoll,
            inbox,
            start: system_ns(ClockId::Monotonic),
            random: Random::new(u64::from_ne_bytes(seed)),
            options,
            turns: Cell::default(),
            polls: Cell::default(),
            sleeps: Cell::default(),
            main_ready: Cell::new(false),
            in_place: Cell::new(0),
            turn_over: Cell::new(false),
            readings: Rc::default(),
            attending: Cell::new(0),
            vigil: Cell::default(),
        };
        Ok(Self { core: Rc::new(core) })
    }

    /// The door to this executor for code that runs on it.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::new(Rc::clone(&self.core) as Rc<dyn Backend>, Rc::clone(&self.core.readings))
    }

    /// The door to this executor for other threads.
    #[must_use]
    pub fn remote(&self) -> Remote {
        Remote::new(Arc::clone(&self.core.inbox))
    }

    /// See [`Handle::add_source`].
    ///
    /// # Errors
    /// When the descriptor can't be watched.
    pub fn add_source(&self, source: Rc<dyn EventSource>) -> Result<SourceId, NoSources> {
        self.core.add_source(source)
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let core = &self.core;
        Stats { turns: core.turns.get(), polls: core.polls.get(), sleeps: core.sleeps.get() }
    }

    /// Runs tasks until this future has finished.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let core = &self.core;
        let _running = core.queue.run_here();
        let mut future = pin!(future);
        let flag = TaskWaker::new(&core.queue, TaskId::MAIN, Some(core.inbox.clone()));
        let waker = flag.waker();
        waker.wake_by_ref();
        // The clock is not read while there is something to do.
        let mut lull = Lull::default();
        let mut idle_turns = 0;
        core.readings.clock.set(Reading::Unread);
        loop {
            let mut progress = core.turn();
            if core.main_ready.get() {
                core.main_ready.set(false);
                progress = true;
                flag.begin();
                if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    core.readings.clock.set(Reading::Outside);
                    return value;
                }
            }
            if progress {
                idle_turns = 0;
                core.readings.clock.set(Reading::Unread);
                core.learn(core::mem::take(&mut lull));
                continue;
            }
            idle_turns = idle_turns % IDLE_TURNS_PER_READING + 1;
            if idle_turns != 1 {
                continue;
            }
            // This reading serves the next turns too: it is younger than anything which they find, but for a fraction
            // of a microsecond. It is made as soon as there is nothing to do, so that what comes next finds it: a lone
            // message need not wait for the clock.
            core.readings.clock.set(Reading::Unread);
            let now = core.now();
            if now - *lull.since.get_or_insert(now) >= core.patience(lull) {
                lull = Lull { since: None, slept: core.sleep() || lull.slept };
            } else {
                core::hint::spin_loop();
            }
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.core.inbox.close();
        let ids = self.core.tasks.borrow().ids(None);
        for id in ids {
            self.core.abort(id);
        }
        let timers = self.core.timers.borrow_mut().drain();
        drop(timers);
        let sources = core::mem::take(&mut *self.core.sources.borrow_mut());
        drop(sources);
    }
}

impl Core {
    fn read_clock(&self) -> Instant {
        Instant::from_nanos(system_ns(ClockId::Monotonic).wrapping_sub(self.start))
    }

    /// The time, when it is not known yet.
    #[cold]
    fn read_anew(&self, reading: Reading) -> Instant {
        let now = self.read_clock();
        if reading == Reading::Unread {
            self.readings.clock.set(Reading::At(now));
        }
        now
    }

    /// How far the wall clock is ahead just now.
    #[cold]
    fn read_wall(&self, now: Instant) -> Wall {
        // The two have to be read at the same moment.
        let ahead = system_ns(ClockId::Realtime).wrapping_sub(self.read_clock().as_nanos());
        let wall = Wall { ahead, until: now + WALL_AGE_MAX };
        self.readings.wall.set(wall);
        wall
    }

    /// Runs what is ready, fires timers, polls sources. Returns whether there was anything to do.
    fn turn(self: &Rc<Self>) -> bool {
        self.turns.set(self.turns.get() + 1);
        let mut progress = self.take_inbox();
        // Sources first: a task that sends should know by then which connections have ended.
        progress |= self.poll_sources();
        progress |= self.fire_timers();
        self.turn_over.set(false);
        for polls in 1..=TASKS_PER_TURN {
            if self.turn_over.get() {
                break;
            }
            let next = self.queue.ready.borrow_mut().pop_front();
            let Some(id) = next else { break };
            progress = true;
            if id == TaskId::MAIN {
                self.main_ready.set(true);
            } else {
                self.run(id);
            }
            if polls % POLLS_PER_READING == 0 {
                self.readings.clock.set(Reading::Unread);
            }
        }
        progress
    }

    /// Polls a task. Returns whether there was one.
    #[inline(always)]
    fn run(&self, id: TaskId) -> bool {
        let taken = self.tasks.borrow_mut().take(id);
        let Some((mut task, waking)) = taken else { return false };
        self.polls.set(self.polls.get() + 1);
        waking.begin();
        let polled = task.as_mut().poll(&mut Context::from_waker(waking.waker()));
        if polled.is_ready() {
            let removed = self.tasks.borrow_mut().remove(id);
            drop(removed);
        } else {
            let aborted = self.tasks.borrow_mut().put_back(id, task, waking);
            drop(aborted);
        }
        true
    }

    /// How long to poll before the next sleep. A thread that has slept has lost the benefit of staying awake.
    fn patience(&self, lull: Lull) -> Duration {
        let spin = self.options.spin;
        if self.attending.get() == 0 || lull.slept { spin } else { self.vigil.get().patience(spin) }
    }

    /// There is something to do again. A pause that every poll budget covers says nothing.
    fn learn(&self, lull: Lull) {
        if self.attending.get() == 0 {
            return;
        }
        let long = lull.since.is_some_and(|since| self.now() - since >= self.options.spin);
        if lull.slept || long {
            let mut vigil = self.vigil.get();
            vigil.ended(!lull.slept);
            self.vigil.set(vigil);
        }
    }

    fn fire_timers(&self) -> bool {
        let Some(next) = self.timers.borrow().next() else { return false };
        let now = self.now().as_nanos();
        if now < next {
            return false;
        }
        let mut fired = false;
        loop {
            let due = self.timers.borrow_mut().pop_due(now);
            let Some(waker) = due else { return fired };
            waker.wake();
            fired = true;
        }
    }

    fn poll_sources(&self) -> bool {
        let mut progress = false;
        let mut index = 0;
        self.in_place.set(POLLS_IN_PLACE);
        loop {
            // A source may add or remove sources while it is polled, so the list is not borrowed meanwhile.
            let source = self.sources.borrow().get(index).map(|entry| Rc::clone(&entry.source));
            let Some(source) = source else { break };
            if source.poll() {
                // What another source has done may have taken long; the last reading is for its own tasks.
                if progress {
                    self.readings.clock.set(Reading::Unread);
                }
                progress = true;
            }
            index += 1;
        }
        if self.in_place.replace(0) == 0 {
            self.readings.clock.set(Reading::Unread);
        }
        progress
    }

    fn take_inbox(self: &Rc<Self>) -> bool {
        let Some((wakes, jobs)) = self.inbox.take() else { return false };
        for id in wakes {
            let flag = if id == TaskId::MAIN { None } else { self.tasks.borrow().waker(id) };
            match flag {
                Some(flag) => flag.wake(),
                None if id == TaskId::MAIN => self.main_ready.set(true),
                None => {}
            }
        }
        let handle = Handle::new(Rc::clone(self) as Rc<dyn Backend>, Rc::clone(&self.readings));
        for job in jobs {
            job(&handle);
        }
        true
    }

    /// Sleeps until something may have happened. `false`: something had, so that it was no sleep.
    fn sleep(&self) -> bool {
        let before = self.now();
        self.sleep_until_ready();
        self.readings.clock.set(Reading::Unread);
        // A source whose bytes keep coming has its descriptor ready long before there is anything to hand out.
        self.attending.get() == 0 || self.now() - before >= self.options.spin
    }

    fn sleep_until_ready(&self) {
        let mut limit: Option<Duration> = None;
        let mut index = 0;
        loop {
            let source = self.sources.borrow().get(index).map(|entry| Rc::clone(&entry.source));
            let Some(source) = source else { break };
            if !source.arm() {
                return;
            }
            limit = match (limit, source.max_sleep()) {
                (Some(limit), Some(more)) => Some(limit.min(more)),
                (limit, more) => limit.or(more),
            };
            index += 1;
        }
        if !self.queue.is_empty() || self.inbox.is_pending() {
            return;
        }
        if let Some(at) = self.timers.borrow().next() {
            let until = Instant::from_nanos(at) - self.now();
            limit = Some(limit.map_or(until, |limit| limit.min(until)));
        }
        self.sleeps.set(self.sleeps.get() + 1);
        let timeout = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        let waited = epoll::wait(&self.epoll, &mut events, timeout.as_ref());
        // An interrupted wait means nothing worse than polling once more; a refused one must not burn the core.
        if waited.is_err_and(|error| error != rustix::io::Errno::INTR) {
            std::thread::sleep(REFUSED_WAIT);
        }
    }
}

impl Backend for Core {
    fn now(&self) -> Instant {
        match self.readings.clock.get() {
            Reading::At(now) => now,
            other => self.read_anew(other),
        }
    }

    fn times(&self) -> (Instant, u64) {
        let now = self.now();
        let wall = self.readings.wall.get();
        let wall = if now < wall.until { wall } else { self.read_wall(now) };
        (now, wall.ahead.wrapping_add(now.as_nanos()))
    }

    fn random_u64(&self) -> u64 {
        self.random.next_u64()
    }

    fn spawn(&self, task: Task) -> TaskId {
        let mut tasks = self.tasks.borrow_mut();
        let id = tasks.reserve(OWNER);
        let flag = TaskWaker::new(&self.queue, id, Some(self.inbox.clone()));
        let waker = flag.waker();
        tasks.fill(id, task, flag);
        drop(tasks);
        waker.wake();
        id
    }

    fn abort(&self, id: TaskId) {
        let removed = self.tasks.borrow_mut().remove(id);
        drop(removed);
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    fn run_now(&self, id: TaskId) -> bool {
        // What runs in place is a task, within which no other one is polled.
        let Some(left) = self.in_place.replace(0).checked_sub(1) else { return false };
        let ran = self.run(id);
        self.in_place.set(if ran { left } else { left + 1 });
        ran
    }

    fn set_timer(&self, at: Instant, waker: Waker) -> TimerId {
        self.timers.borrow_mut().set(at.as_nanos(), waker)
    }

    fn clear_timer(&self, timer: TimerId) {
        let cleared = self.timers.borrow_mut().clear(timer);
        drop(cleared);
    }

    fn add_source(&self, source: Rc<dyn EventSource>) -> Result<SourceId, NoSources> {
        let serial = self.source_serial.get() + 1;
        self.source_serial.set(serial);
        if let Some(fd) = source.fd() {
            let readable = epoll::EventFlags::IN;
            epoll::add(&self.epoll, fd, epoll::EventData::new_u64(serial), readable)
                .map_err(io::Error::from)?;
        }
        let id = SourceId(serial);
        self.sources.borrow_mut().push(Source { id, source });
        Ok(id)
    }

    fn attend(&self, expected: bool) {
        let attending = self.attending.get();
        self.attending.set(if expected { attending + 1 } else { attending.saturating_sub(1) });
    }

    fn end_turn(&self) {
        self.turn_over.set(true);
    }

    fn remove_source(&self, id: SourceId) {
        let mut sources = self.sources.borrow_mut();
        let Some(at) = sources.iter().position(|entry| entry.id == id) else { return };
        let entry = sources.remove(at);
        drop(sources);
        if let Some(fd) = entry.source.fd() {
            // A descriptor that is closed already has left the epoll set by itself.
            let _ = epoll::delete(&self.epoll, fd);
        }
    }
}

#[cfg(test)]
mod tests;
