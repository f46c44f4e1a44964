//! Calls and wakes from other threads: a locked inbox and an eventfd, used on no hot path.

use crate::handle::Handle;
use crate::task::TaskId;
use crate::waker::RemoteQueue;
use core::sync::atomic::{AtomicBool, Ordering};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

type Job = Box<dyn FnOnce(&Handle) + Send>;

/// Work that other threads have handed over and the executor has not taken yet.
#[derive(Default)]
struct Queued {
    wakes: Vec<TaskId>,
    jobs: Vec<Job>,
    closed: bool,
}

/// What other threads want from an executor.
pub(super) struct Inbox {
    queued: Mutex<Queued>,
    pending: AtomicBool,
    event: OwnedFd,
}

impl Inbox {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { queued: Mutex::default(), pending: AtomicBool::new(false), event }))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Whether anything waits: one plain load on the owner's path.
    pub(super) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    pub(super) fn take(&self) -> Option<(Vec<TaskId>, Vec<Job>)> {
        if !self.is_pending() {
            return None;
        }
        let mut queued = self.queued.lock().unwrap_or_else(PoisonError::into_inner);
        self.pending.store(false, Ordering::Release);
        // Resets the eventfd; it fails only when it was at zero.
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        Some((core::mem::take(&mut queued.wakes), core::mem::take(&mut queued.jobs)))
    }

    /// Refuses what comes from here on, and drops what waits.
    pub(super) fn close(&self) {
        let mut queued = self.queued.lock().unwrap_or_else(PoisonError::into_inner);
        queued.closed = true;
        queued.wakes.clear();
        let jobs = core::mem::take(&mut queued.jobs);
        drop(queued);
        drop(jobs);
    }

    fn post(&self, add: impl FnOnce(&mut Queued)) -> Result<(), ExecutorGone> {
        let mut queued = self.queued.lock().unwrap_or_else(PoisonError::into_inner);
        if queued.closed {
            return Err(ExecutorGone);
        }
        add(&mut queued);
        if !self.pending.swap(true, Ordering::AcqRel) {
            // It fails only when the counter is at its end, and then the owner is being woken anyway.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
        Ok(())
    }
}

impl RemoteQueue for Inbox {
    fn wake(&self, task: TaskId) {
        // There is nothing left to wake when the executor is gone.
        let _ = self.post(|queued| queued.wakes.push(task));
    }
}

/// The executor has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the executor has ended")]
pub struct ExecutorGone;

/// The door to an executor for other threads: `Send`, `Sync`, cheap to clone.
#[derive(Clone)]
pub struct Remote {
    inbox: Arc<Inbox>,
}

impl Remote {
    pub(super) fn new(inbox: Arc<Inbox>) -> Self {
        Self { inbox }
    }

    /// Runs a closure on the executor's thread, soon. It gets the handle to spawn what takes longer.
    ///
    /// # Errors
    /// When the executor has ended. A closure that was accepted is dropped unrun if it ends before its turn.
    pub fn spawn(&self, job: Box<dyn FnOnce(&Handle) + Send>) -> Result<(), ExecutorGone> {
        self.inbox.post(|queued| queued.jobs.push(job))
    }
}
