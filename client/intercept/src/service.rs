//! The threads that reach the engines.
//!
//! They have a table of descriptors of their own (`CLOSE_RANGE_UNSHARE`). So the program's descriptors have the numbers that they
//! would have without this library, a program that closes all it doesn't know (`closefrom`) closes nothing here, and a
//! forked child inherits no connection. They take no signal of the program.
//!
//! A forked child has no copy of them, and leaves what its parent had for them as it is: locks of it may be held. It begins
//! another *life*, with threads of its own at its first operation.

use core::ffi::{c_int, c_uint};
use core::mem::MaybeUninit;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use core::time::Duration;
use std::fs::File as HostFile;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use libc::iovec;
use weir_dfs::direct::{DirectMount, MountId};

use crate::engines::Engines;
use crate::original::Inside;
use crate::submission::{Operation, Outcome, Task};

/// Mounts of a process, at most. Files of further ones go through the kernel.
const MOUNTS: usize = 64;

/// Threads, at most: as many operations are under way side by side. Each has an endpoint, as the threads of a mount do.
const THREADS: usize = 8;

/// Stack of a thread.
const STACK: usize = 2 << 20;

/// How long the end of a process waits for the threads.
const END_LIMIT: Duration = Duration::from_secs(2);

/// The service in one life of the process. Never freed: a forked child may look at its parent's.
pub struct Service {
    process: libc::pid_t,
    /// Which life this is.
    life: u32,
    queue: Mutex<Queue>,
    /// Something was queued, or the service ends.
    queued: Condvar,
    /// A thread has ended.
    ended: Condvar,
    mounts: [OnceLock<Mount>; MOUNTS],
    /// Held while a mount is entered.
    entering: Mutex<()>,
}

/// A mount of the process.
struct Mount {
    device: u64,
    described: DirectMount,
    /// Whether its engines can be reached.
    is_reached: OnceLock<bool>,
}

/// A mount whose engines can be reached.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    /// Its place among those of the process.
    pub place: u16,
    /// In which life of the process.
    pub life: u32,
    /// Which mount it is.
    pub id: MountId,
}

/// Operations that no thread has taken, and the threads.
struct Queue {
    first: *mut Operation,
    last: *mut Operation,
    threads: usize,
    idle: usize,
    /// No thread can be had.
    has_failed: bool,
    is_ending: bool,
}

// SAFETY: the operations of the queue stand on stacks of threads that wait until they are done, whichever thread does them.
unsafe impl Send for Queue {}

/// The service of this life, once it is needed.
static SERVICE: AtomicPtr<Service> = AtomicPtr::new(null_mut());

/// Forks so far, from the process on that loaded the library.
static LIFE: AtomicU32 = AtomicU32::new(0);

/// The process whose memory this is: one that shares it (`vfork`) has another number.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// The process is ending.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Runs in a forked child before `fork` returns.
extern "C" fn begin_life() {
    // SAFETY: it has no preconditions.
    OWNER.store(unsafe { libc::getpid() }, Ordering::SeqCst);
    SERVICE.store(null_mut(), Ordering::SeqCst);
    LIFE.fetch_add(1, Ordering::SeqCst);
}

/// Runs at the end of the process, before what this library is linked with ends.
extern "C" fn end() {
    let _inside = Inside::enter();
    IS_ENDING.store(true, Ordering::SeqCst);
    if let Some(service) = Service::running() {
        service.end();
    }
}

/// No signal handler runs on this thread until it is dropped.
struct SignalsBlocked {
    before: libc::sigset_t,
}

impl SignalsBlocked {
    fn new() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: both are places for a set, of which the first call fills one and the second the other.
        let before = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
            before.assume_init()
        };
        Self { before }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set is the one that was in force.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, null_mut()) };
    }
}

fn lock<T>(locked: &Mutex<T>) -> MutexGuard<'_, T> {
    locked.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which life of the process this is.
pub fn life() -> u32 {
    LIFE.load(Ordering::SeqCst)
}

/// Takes note of the process, which has the library to itself, and has its forked children noted.
pub fn note_owner() {
    // SAFETY: the function is of this library, which is never unloaded; `getpid` has no preconditions.
    unsafe {
        OWNER.store(libc::getpid(), Ordering::SeqCst);
        libc::pthread_atfork(None, None, Some(begin_life));
    }
}

/// Whether this is a child of the process that the library works for, and shares its memory (`vfork`).
pub fn is_others() -> bool {
    // SAFETY: it has no preconditions.
    OWNER.load(Ordering::SeqCst) != unsafe { libc::getpid() }
}

impl Service {
    /// The service of this process, if it runs. A child that shares the memory of its parent has none.
    pub fn running() -> Option<&'static Self> {
        // SAFETY: null, or what `Box::into_raw` gave and nobody frees.
        let service = unsafe { SERVICE.load(Ordering::SeqCst).as_ref() }?;
        // SAFETY: it has no preconditions.
        (unsafe { libc::getpid() } == service.process).then_some(service)
    }

    /// The service of this process, started if it isn't there.
    pub fn start() -> Option<&'static Self> {
        static IS_WATCHED: AtomicBool = AtomicBool::new(false);
        if IS_ENDING.load(Ordering::SeqCst) {
            return None;
        }
        if !SERVICE.load(Ordering::SeqCst).is_null() {
            return Self::running();
        }
        if !IS_WATCHED.swap(true, Ordering::SeqCst) {
            // SAFETY: the function is of this library, which is never unloaded.
            unsafe { libc::atexit(end) };
        }
        let queue = Queue {
            first: null_mut(),
            last: null_mut(),
            threads: 0,
            idle: 0,
            has_failed: false,
            is_ending: false,
        };
        let made = Box::into_raw(Box::new(Self {
            // SAFETY: it has no preconditions.
            process: unsafe { libc::getpid() },
            life: LIFE.load(Ordering::SeqCst),
            queue: Mutex::new(queue),
            queued: Condvar::new(),
            ended: Condvar::new(),
            mounts: [const { OnceLock::new() }; MOUNTS],
            entering: Mutex::new(()),
        }));
        if SERVICE.compare_exchange(null_mut(), made, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            // Another thread was faster.
            // SAFETY: made above, and seen by nobody.
            drop(unsafe { Box::from_raw(made) });
            return Self::running();
        }
        let service = Self::running()?;
        let _blocked = SignalsBlocked::new();
        service.add_thread(true);
        Some(service)
    }

    /// The mount that is known of a device, the newest, or the one that is wanted; if any is. `Some(None)`: it can't be reached.
    #[expect(
        clippy::option_option,
        reason = "what isn't known is asked for, and what can't be reached is not"
    )]
    pub fn known_mount(&self, device: u64, wanted: Option<MountId>) -> Option<Option<Reached>> {
        let mut known =
            self.mounts.iter().enumerate().filter_map(|(index, place)| Some((index, place.get()?)));
        let is_it = |mount: &Mount| match wanted {
            Some(id) => mount.described.id == id,
            None => mount.device == device,
        };
        let (index, mount) = known.rfind(|(_, mount)| is_it(mount))?;
        mount.is_reached.get().map(|is_reached| self.reached(index, mount).filter(|_| *is_reached))
    }

    fn reached(&self, index: usize, mount: &Mount) -> Option<Reached> {
        Some(Reached { place: u16::try_from(index).ok()?, life: self.life, id: mount.described.id })
    }

    /// Enters a mount, unless it is there, and finds out whether its engines can be reached.
    pub fn enter_mount(&self, device: u64, described: DirectMount) -> Option<Reached> {
        let id = described.id;
        let (index, mount) = {
            let _blocked = SignalsBlocked::new();
            let _entering = lock(&self.entering);
            let is_it = |place: &OnceLock<Mount>| place.get().is_none_or(|mount| mount.described.id == id);
            let index = self.mounts.iter().position(is_it)?;
            let made = || Mount { device, described, is_reached: OnceLock::new() };
            (index, self.mounts[index].get_or_init(made))
        };
        let reached = self.reached(index, mount)?;
        let ask = || matches!(self.run(Task::Reach(reached.place), null(), 0), Outcome::Done { .. });
        let is_reached = mount.is_reached.get().copied().unwrap_or_else(ask);
        // Another thread may have found out the same.
        let _ = mount.is_reached.set(is_reached);
        is_reached.then_some(reached)
    }

    /// Has a thread do an operation, and waits for its end.
    pub fn run(&self, task: Task, vectors: *const iovec, count: usize) -> Outcome {
        let mut operation = Operation::new(task, vectors, count);
        let place = &raw mut operation;
        {
            let _blocked = SignalsBlocked::new();
            let mut queue = lock(&self.queue);
            if queue.has_failed || queue.is_ending {
                return Outcome::Failed;
            }
            queue.push(place);
            drop(queue);
            self.queued.notify_one();
        }
        // SAFETY: it was given to the queue, which gives it to one thread.
        unsafe { Operation::wait(place) }
    }

    /// Starts a thread. The first one is started by a thread of the program, and the others by it.
    fn add_thread(&'static self, is_first: bool) {
        lock(&self.queue).threads += 1;
        let made = thread::Builder::new().name("weir-intercept".into()).stack_size(STACK);
        let started = made.spawn(move || {
            // For good: all that runs here is this library's.
            std::mem::forget(Inside::enter());
            if !is_first || own_descriptors() {
                self.work();
            } else {
                self.fail();
            }
            let mut queue = lock(&self.queue);
            queue.threads -= 1;
            self.ended.notify_all();
        });
        if started.is_err() {
            lock(&self.queue).threads -= 1;
            if is_first {
                self.fail();
            }
        }
    }

    /// Nothing can be done here: whatever comes goes through the kernel.
    fn fail(&self) {
        let mut queue = lock(&self.queue);
        queue.has_failed = true;
        while let Some(operation) = queue.pop() {
            // SAFETY: it was just taken from the queue.
            unsafe { Operation::end(operation, Outcome::Failed) };
        }
    }

    /// Does what is queued until the end.
    fn work(&'static self) {
        let described = |mount| {
            let place = Service::running()?.mounts.get(usize::from(mount))?;
            place.get().map(|mount: &'static Mount| &mount.described)
        };
        let mut engines = Engines::new(described);
        while let Some(operation) = self.next() {
            // SAFETY: the queue's operations are there until they are ended.
            let (task, vectors, count) =
                unsafe { ((*operation).task, (*operation).vectors, (*operation).count) };
            // A panic is a defect of this library; the kernel does what it has left.
            let outcome = catch_unwind(AssertUnwindSafe(|| engines.run(task, vectors, count)));
            // SAFETY: it was taken from the queue above.
            unsafe { Operation::end(operation, outcome.unwrap_or(Outcome::InDoubt)) };
        }
    }

    /// The next operation; `None` at the end.
    fn next(&'static self) -> Option<*mut Operation> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(operation) = queue.pop() {
                let is_short = !queue.first.is_null() && queue.idle == 0 && queue.threads < THREADS;
                drop(queue);
                if is_short {
                    self.add_thread(false);
                }
                return Some(operation);
            }
            if queue.is_ending {
                return None;
            }
            queue.idle += 1;
            queue = self.queued.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }

    /// Ends the threads: what they use ends next.
    fn end(&self) {
        let mut queue = lock(&self.queue);
        queue.is_ending = true;
        self.queued.notify_all();
        drop(self.ended.wait_timeout_while(queue, END_LIMIT, |queue| queue.threads > 0));
    }
}

impl Queue {
    fn push(&mut self, operation: *mut Operation) {
        if self.last.is_null() {
            self.first = operation;
        } else {
            // SAFETY: what is in the queue is there until it was taken and ended.
            unsafe { (*self.last).next = operation };
        }
        self.last = operation;
    }

    fn pop(&mut self) -> Option<*mut Operation> {
        let first = self.first;
        if first.is_null() {
            return None;
        }
        // SAFETY: as above.
        self.first = unsafe { (*first).next };
        if self.first.is_null() {
            self.last = null_mut();
        }
        Some(first)
    }
}

/// Gives the calling thread a table of descriptors of its own, with nothing of the program's in it.
fn own_descriptors() -> bool {
    let (first, last, unshare): (c_uint, c_uint, c_int) = (0, c_uint::MAX, 2);
    // SAFETY: only this thread's table changes, in which this library has nothing yet.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, unshare) } != 0 {
        return false;
    }
    for _ in 0..3 {
        // So that no connection gets a number that means standard input or output.
        match HostFile::options().read(true).write(true).open("/dev/null") {
            Ok(null) => std::mem::forget(null),
            Err(_) => return false,
        }
    }
    true
}
