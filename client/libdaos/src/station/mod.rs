//! Stations: the few contexts of a process, which belong to no thread.
//!
//! A context has an endpoint, memory for receiving and a dozen descriptors, so a process has at most [`COUNT_MAX`] of them,
//! however many threads and event queues it has. What drives a context is whoever wants something of it:
//!
//! * A call without an event, `daos_eq_poll` and `daos_event_test` drive the executor on their own thread until they have what they
//!   wait for. No thread has to be woken for a reply.
//! * One thread drives a station at a time. Another one that finds it driven posts its operation there and sleeps. A driver that
//!   leaves wakes the thread that has slept longest, which drives on.
//! * The operation of an event is posted, and the first one under way is begun by the thread that launches it. They go on while
//!   anybody drives. Where nobody has for a millisecond, the station's keeper does ([`keeper`]), a thread that sleeps while no such
//!   operation is under way.
//! * A thread uses the first station; one that finds it driven by another thread gets a place at one of all. Event queues are spread
//!   over them in turn. A station opens its context at its first use.
//! * Functions of programs are never called by a driver in its executor's turn, so that they may call the library.
//! * A forked child leaves its parent's stations as they are ([`crate::library`]).

mod keeper;

use core::cell::{Cell, RefCell};
use core::ffi::c_int;
use core::future::poll_fn;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::task::{Poll, Waker};
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::task::Wake;
use std::thread::Thread;
use std::time::Instant;

use weir_client::{Attach, Context};
use weir_proto::Der;
use weir_runtime::JoinHandle;
use weir_runtime::real::Remote;

use crate::boundary::{Operation, Start, code};
use crate::library;
use keeper::Keeper;

/// Most stations of a process. One takes some 18 MiB and 12 descriptors once it is used, and a thread that drives one does all
/// that the others want from it.
pub const COUNT_MAX: usize = 3;

/// A context and the tasks of operations that run on it.
struct Seat {
    context: Context,
    tasks: RefCell<HashMap<u64, JoinHandle<()>>>,
    /// Tasks so far.
    numbers: Cell<u64>,
}

/// A seat on its way from one driver to the next.
struct Movable(Rc<Seat>);

// SAFETY: a seat is used by one thread at a time, which holds the station's mutex; that orders the accesses. All reference counts and
// cells that its context and tasks share are reached through it only: what leaves it are results and wakers, which are `Send`. Two
// tables belong to threads. The run queue of an executor is in that of the thread which drives it, and only meanwhile
// (`Executor::block_on`). The unused states of transfers that a thread keeps (`weir_fabric::Transfer`) have no other owner when they
// are put there, so that the thread which takes one is its only user.
unsafe impl Send for Movable {}

thread_local! {
    /// The seat that this thread drives.
    static DRIVEN: RefCell<Option<Rc<Seat>>> = const { RefCell::new(None) };
    /// Wakes this thread.
    static SLEEPER: Waker = Waker::from(Arc::new(Sleeper(std::thread::current())));
}

struct Sleeper(Thread);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// An operation of a caller that waits, with what it borrows.
type Borrowed<'a> = Box<dyn FnOnce(Context) -> Pin<Box<dyn Future<Output = c_int> + 'a>> + 'a>;

/// A context that threads drive in turn.
pub struct Station {
    attach: Arc<Attach>,
    /// Whoever holds it drives. Nothing before the first use and behind the end.
    seat: Mutex<Option<Movable>>,
    /// The way in for other threads, from the first use on.
    remote: OnceLock<Remote>,
    /// Somebody drives.
    driven: AtomicBool,
    ended: AtomicBool,
    /// Threads that sleep until they can drive; the oldest one first.
    successors: Mutex<VecDeque<Waker>>,
    /// Operations of events under way.
    in_flight: AtomicUsize,
    /// How often somebody began to drive.
    drives: AtomicU64,
    keeper: Keeper,
}

/// Who is told how an operation has ended, also when it is dropped.
pub struct Told(Option<Box<dyn FnOnce(c_int) + Send>>);

impl Told {
    /// Has a function told the return code, `-DER_CANCELED` of an operation that is dropped.
    pub fn new(told: impl FnOnce(c_int) + Send + 'static) -> Self {
        Self(Some(Box::new(told)))
    }

    fn tell(mut self, result: c_int) {
        if let Some(told) = self.0.take() {
            told(result);
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if let Some(told) = self.0.take() {
            told(code(Der::CANCELED));
        }
    }
}

/// An operation on its way to the thread that drives. What it borrows goes before its end is told.
struct Posted {
    start: Start,
    told: Told,
}

// SAFETY: an operation holds handles, which are `Send`, and pointers to the caller's memory. By the promise made with an event, and
// because a caller without one sleeps, nobody touches that memory until the operation is complete, so one thread may use it at a
// time; the executor's inbox orders the accesses.
unsafe impl Send for Posted {}

impl Seat {
    /// Starts an operation, as a task.
    fn begin(self: &Rc<Self>, posted: Posted) {
        let number = self.numbers.replace(self.numbers.get() + 1);
        let (seat, context) = (Rc::downgrade(self), self.context.clone());
        let task = self.context.runtime().spawn(async move {
            // First, so that it ends last.
            let told = posted.told;
            let result = whole(posted.start, context).await;
            forget(&seat, number);
            told.tell(result);
        });
        self.tasks.borrow_mut().insert(number, task);
    }
}

/// A task has ended: its station needs it no more.
fn forget(seat: &Weak<Seat>, number: u64) {
    if let Some(seat) = seat.upgrade() {
        seat.tasks.borrow_mut().remove(&number);
    }
}

/// Runs an operation. A panic in it is its own, not that of the thread which drives.
async fn whole(start: Start, context: Context) -> c_int {
    let panicked = code(Der::MISC);
    let Ok(mut operation): Result<Operation, _> = catch_unwind(AssertUnwindSafe(|| start(context))) else {
        return panicked;
    };
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| operation.as_mut().poll(cx))) {
        Ok(polled) => polled,
        Err(_) => Poll::Ready(panicked),
    })
    .await
}

/// Hands an operation to the thread that drives, or will. Where there will be none it is dropped.
fn post(remote: &Remote, posted: Posted) {
    let job = move |_: &weir_runtime::Handle| {
        let posted = posted;
        DRIVEN.with_borrow(|seat| {
            if let Some(seat) = seat {
                seat.begin(posted);
            }
        });
    };
    // Refused, it is dropped: its end is told by that.
    let _ = remote.spawn(Box::new(job));
}

/// Locks, also where a thread has panicked with the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to drive a station.
struct Driver<'a> {
    station: &'a Station,
    seat: Option<MutexGuard<'a, Option<Movable>>>,
}

impl Driver<'_> {
    /// Runs a future to its end.
    fn drive<T>(&self, body: impl AsyncFnOnce(&Rc<Seat>) -> T) -> Option<T> {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                let left = DRIVEN.take();
                drop(left);
            }
        }
        let seat = Rc::clone(&self.seat.as_ref()?.as_ref()?.0);
        DRIVEN.set(Some(Rc::clone(&seat)));
        let _leave = Leave;
        Some(seat.context.block_on(body(&seat)))
    }
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        // In this order: whoever sees that somebody drives is seen by that driver when it leaves.
        self.station.driven.store(false, Ordering::SeqCst);
        self.seat = None;
        self.station.hand_over();
    }
}

/// Whether this thread drives a station: what it calls can't wait for one.
fn is_driving() -> bool {
    DRIVEN.with_borrow(Option::is_some)
}

impl Station {
    /// A station that isn't open yet.
    pub fn new(attach: &Arc<Attach>) -> Arc<Self> {
        Arc::new(Self {
            attach: Arc::clone(attach),
            seat: Mutex::default(),
            remote: OnceLock::new(),
            driven: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            successors: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            drives: AtomicU64::new(0),
            keeper: Keeper::default(),
        })
    }

    /// The way in, with the context open.
    fn open(&self) -> Result<&Remote, Der> {
        if let Some(remote) = self.remote.get() {
            return Ok(remote);
        }
        let mut seat = lock(&self.seat);
        if self.ended.load(Ordering::SeqCst) {
            return Err(Der::UNINIT);
        }
        if seat.is_none() {
            let context = library::new_context(&self.attach)?;
            let remote = context.remote().ok_or(Der::MISC)?;
            let (tasks, numbers) = (RefCell::default(), Cell::default());
            *seat = Some(Movable(Rc::new(Seat { context, tasks, numbers })));
            self.remote.get_or_init(|| remote);
        }
        self.remote.get().ok_or(Der::MISC)
    }

    /// Whether a thread of the program drives it.
    pub fn is_busy(&self) -> bool {
        self.driven.load(Ordering::Relaxed) && !self.keeper.is_driving()
    }

    /// Takes the driver's place, where no thread of the program has it.
    fn sit_down(&self) -> Option<Driver<'_>> {
        let driver = self.take_place();
        if driver.is_none() {
            self.keeper.call_off();
        }
        driver
    }

    /// As [`Self::sit_down`], leaving the keeper where it is.
    fn take_place(&self) -> Option<Driver<'_>> {
        let seat = match self.seat.try_lock() {
            Ok(seat) => seat,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if seat.is_none() {
            return None;
        }
        self.driven.store(true, Ordering::SeqCst);
        self.drives.fetch_add(1, Ordering::Relaxed);
        Some(Driver { station: self, seat: Some(seat) })
    }

    /// A driver has left: the next one may be waiting.
    fn hand_over(&self) {
        let next = lock(&self.successors).pop_front();
        if let Some(next) = next {
            next.wake();
        }
    }

    /// Runs an operation to its end.
    pub fn run<T>(&self, body: impl AsyncFnOnce(&Context) -> T) -> Result<T, Der> {
        if is_driving() {
            return Err(Der::BUSY);
        }
        let remote = self.open()?;
        if let Some(driver) = self.sit_down() {
            return driver.drive(async |seat| body(&seat.context).await).ok_or(Der::UNINIT);
        }
        self.run_posted(remote, body)
    }

    /// Has the driver run an operation; drives where that leaves before the operation's end.
    fn run_posted<T>(&self, remote: &Remote, body: impl AsyncFnOnce(&Context) -> T) -> Result<T, Der> {
        let mut found: Option<T> = None;
        let place = &raw mut found;
        let start: Borrowed<'_> = Box::new(move |context| {
            Box::pin(async move {
                let value = body(&context).await;
                // SAFETY: the place is on the stack of the thread below, which waits until this operation has ended and doesn't
                // look at it before.
                unsafe { *place = Some(value) };
                0
            })
        });
        // SAFETY: only the lifetime is another one. What the operation borrows is there until this call returns, and that is
        // behind the operation's end, whether it was run or dropped: `told` is dropped last.
        let start = unsafe { core::mem::transmute::<Borrowed<'_>, Start>(start) };
        let ending = Arc::new(Mutex::new((false, None::<Waker>)));
        let tells = Arc::clone(&ending);
        let told = Told::new(move |_| {
            let waker = {
                let mut ending = lock(&tells);
                ending.0 = true;
                ending.1.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        });
        post(remote, Posted { start, told });
        let mut is_over = |waker: &Waker| {
            let mut ending = lock(&ending);
            if !ending.0 {
                ending.1 = Some(waker.clone());
            }
            ending.0.then_some(())
        };
        // Neither the station's end nor a panic of what this thread drives may have it leave before.
        while !matches!(catch_unwind(AssertUnwindSafe(|| self.wait(None, &mut is_over))), Ok(Some(()))) {
            std::thread::yield_now();
        }
        found.ok_or(Der::CANCELED)
    }

    /// Starts an operation that goes on while anybody drives.
    pub fn launch(self: &Arc<Self>, start: Start, told: Told) -> Result<(), Der> {
        if is_driving() {
            return Err(Der::BUSY);
        }
        let remote = self.open()?;
        self.keeper.start(self)?;
        let is_first = self.in_flight.fetch_add(1, Ordering::SeqCst) == 0;
        if is_first {
            self.keeper.wake();
        }
        let station = Arc::clone(self);
        let told = Told::new(move |result| {
            told.tell(result);
            if station.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 {
                station.keeper.relieve();
            }
        });
        let posted = Posted { start, told };
        // Of several that are launched together the first one is on its way at once; the others go with the next look at the sources,
        // which would cost as much for each of them as the operation itself.
        match is_first.then(|| self.sit_down()).flatten() {
            Some(driver) => {
                driver.drive(async |seat| {
                    seat.begin(posted);
                    seat.context.runtime().yield_now().await;
                });
            }
            None => post(remote, posted),
        }
        Ok(())
    }

    /// Does what can be done now for operations of events, unless another thread is at it.
    pub fn progress(&self) {
        if self.in_flight.load(Ordering::Relaxed) == 0 || is_driving() {
            return;
        }
        match self.sit_down() {
            Some(driver) => {
                driver.drive(async |seat| seat.context.runtime().yield_now().await);
            }
            // A program that polls in a loop would keep the core from the thread that drives.
            None => std::thread::yield_now(),
        }
    }

    /// Waits until `ready` gives something, at most until a moment; nothing also when the station has ended. `ready` keeps the waker
    /// it is given, which has to be woken when it is to be asked again.
    pub fn wait<T>(&self, until: Option<Instant>, mut ready: impl FnMut(&Waker) -> Option<T>) -> Option<T> {
        if self.open().is_err() {
            // What is launched there fails, too; the caller waits for something that others do.
            std::thread::sleep(keeper::PATIENCE);
            return None;
        }
        loop {
            if let Some(driver) = self.sit_down() {
                let found = poll_fn(|cx| match ready(cx.waker()) {
                    Some(found) => Poll::Ready(Some(found)),
                    None if self.ended.load(Ordering::SeqCst) => Poll::Ready(None),
                    None => Poll::Pending,
                });
                let driven = driver.drive(async |seat| match until {
                    None => found.await,
                    Some(until) => {
                        let left = until.saturating_duration_since(Instant::now());
                        seat.context.runtime().timeout(left, found).await.ok().flatten()
                    }
                });
                return driven.flatten();
            }
            let waker = SLEEPER.with(Waker::clone);
            if let Some(found) = ready(&waker) {
                return Some(found);
            }
            let is_late = until.is_some_and(|until| until <= Instant::now());
            if is_late || self.ended.load(Ordering::SeqCst) {
                return None;
            }
            self.sleep(&waker, until);
        }
    }

    /// Sleeps until somebody wakes this thread: because what it waits for is there, or because it is to drive.
    fn sleep(&self, waker: &Waker, until: Option<Instant>) {
        lock(&self.successors).push_back(waker.clone());
        if self.driven.load(Ordering::SeqCst) && !self.ended.load(Ordering::SeqCst) {
            match until {
                None => std::thread::park(),
                Some(until) => std::thread::park_timeout(until.saturating_duration_since(Instant::now())),
            }
        }
        let mut successors = lock(&self.successors);
        if let Some(own) = successors.iter().position(|other| other.will_wake(waker)) {
            successors.remove(own);
        }
    }

    /// Ends the station, once nobody drives it. Operations under way are dropped where they stand.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.keeper.end();
        let seat = lock(&self.seat).take();
        if let Some(Movable(seat)) = seat {
            // Tasks hold the context that runs them: end them first.
            let tasks = seat.tasks.take();
            tasks.values().for_each(JoinHandle::abort);
        }
        let left = core::mem::take(&mut *lock(&self.successors));
        left.into_iter().for_each(Waker::wake);
    }
}
