//! The thread that drives a station where nobody else does.

use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Poll, Waker};
use core::time::Duration;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use weir_proto::Der;

use super::{Station, lock};

/// How long nobody may have driven, with something under way.
pub(super) const PATIENCE: Duration = Duration::from_millis(1);

/// Looks at a station with nothing under way before a sleep that an operation has to end: a program that launches one after another
/// makes no system call for each.
const IDLE_LOOKS: u32 = 16;

/// Stack of the thread, which runs what operations run.
const STACK: usize = 1 << 20;

/// A station's keeper.
#[derive(Default)]
pub(super) struct Keeper {
    thread: Mutex<Option<JoinHandle<()>>>,
    started: AtomicBool,
    /// It sleeps until something is under way.
    asleep: AtomicBool,
    driving: AtomicBool,
    /// A thread of the program wants to drive.
    called_off: AtomicBool,
    /// Wakes it while it drives.
    waker: Mutex<Option<Waker>>,
}

impl Keeper {
    /// Starts the thread, unless it was.
    pub(super) fn start(&self, station: &Arc<Station>) -> Result<(), Der> {
        if self.started.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let station = Arc::clone(station);
            let made = std::thread::Builder::new().name("daos-keeper".into()).stack_size(STACK);
            *thread = Some(made.spawn(move || keep(&station)).map_err(|_| Der::NOMEM)?);
            self.started.store(true, Ordering::Release);
        }
        Ok(())
    }

    pub(super) fn is_driving(&self) -> bool {
        self.driving.load(Ordering::Relaxed)
    }

    /// Something is under way.
    pub(super) fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Some(thread) = &*lock(&self.thread)
        {
            thread.thread().unpark();
        }
    }

    /// Has it make room for another driver.
    pub(super) fn call_off(&self) {
        if self.is_driving() {
            self.called_off.store(true, Ordering::SeqCst);
            self.relieve();
        }
    }

    /// Has it look whether it is to drive on.
    pub(super) fn relieve(&self) {
        if self.is_driving() {
            let waker = lock(&self.waker).clone();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Ends the thread, whose station has ended.
    pub(super) fn end(&self) {
        let thread = lock(&self.thread).take();
        self.relieve();
        if let Some(thread) = thread {
            thread.thread().unpark();
            // What it panics with it has said.
            drop(thread.join());
        }
    }
}

/// Looks at a station from time to time until its end.
fn keep(station: &Station) {
    let keeper = &station.keeper;
    let mut idle = 0;
    while !station.ended.load(Ordering::SeqCst) {
        if station.in_flight.load(Ordering::SeqCst) == 0 && idle >= IDLE_LOOKS {
            keeper.asleep.store(true, Ordering::SeqCst);
            let is_idle = station.in_flight.load(Ordering::SeqCst) == 0;
            if is_idle && !station.ended.load(Ordering::SeqCst) {
                std::thread::park();
            }
            keeper.asleep.store(false, Ordering::SeqCst);
        }
        let drives = station.drives.load(Ordering::Relaxed);
        std::thread::park_timeout(PATIENCE);
        if station.in_flight.load(Ordering::SeqCst) == 0 {
            idle += 1;
            continue;
        }
        idle = 0;
        if drives == station.drives.load(Ordering::Relaxed) {
            drive(station);
        }
    }
}

/// Drives a station until nothing is under way, or a thread of the program wants to.
fn drive(station: &Station) {
    let keeper = &station.keeper;
    let Some(driver) = station.take_place() else { return };
    keeper.called_off.store(false, Ordering::SeqCst);
    keeper.driving.store(true, Ordering::SeqCst);
    let relieved = poll_fn(|cx| {
        *lock(&keeper.waker) = Some(cx.waker().clone());
        let is_over = station.in_flight.load(Ordering::SeqCst) == 0
            || keeper.called_off.swap(false, Ordering::SeqCst)
            || station.ended.load(Ordering::SeqCst);
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    });
    driver.drive(async |_| relieved.await);
    *lock(&keeper.waker) = None;
    keeper.driving.store(false, Ordering::SeqCst);
}
