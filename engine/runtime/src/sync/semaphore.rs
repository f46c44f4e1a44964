//! A counting semaphore that serves waiters in the order they came.

use core::cell::RefCell;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::rc::Rc;

struct Waiter {
    serial: u64,
    permits: usize,
    granted: bool,
    waker: Waker,
}

#[derive(Default)]
struct State {
    free: usize,
    closed: bool,
    serial: u64,
    waiters: VecDeque<Waiter>,
}

/// Permits that are handed out first come, first served. Cheap to clone: clones share the permits.
#[derive(Clone)]
pub struct Semaphore(Rc<RefCell<State>>);

/// The semaphore was closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the semaphore was closed")]
pub struct SemaphoreClosed;

impl Semaphore {
    /// A semaphore with this many permits.
    #[must_use]
    pub fn new(permits: usize) -> Self {
        Self(Rc::new(RefCell::new(State { free: permits, ..State::default() })))
    }

    /// Waits for one permit.
    #[must_use]
    pub fn acquire(&self) -> Acquire {
        self.acquire_many(1)
    }

    /// Waits for several permits at once; later and smaller requests don't overtake it.
    #[must_use]
    pub fn acquire_many(&self, permits: usize) -> Acquire {
        Acquire { semaphore: self.clone(), permits, serial: None }
    }

    /// One permit, when it is free and no task waits for it.
    #[must_use]
    pub fn try_acquire(&self) -> Option<Permit> {
        self.try_acquire_many(1)
    }

    /// Several permits, when they are free and no task waits for them.
    #[must_use]
    pub fn try_acquire_many(&self, permits: usize) -> Option<Permit> {
        let mut state = self.0.borrow_mut();
        if state.closed || !state.waiters.is_empty() || state.free < permits {
            return None;
        }
        state.free -= permits;
        Some(Permit { semaphore: self.clone(), permits })
    }

    /// Permits that are free now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.0.borrow().free
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.borrow().waiters.len()
    }

    /// Adds permits.
    pub fn add(&self, permits: usize) {
        self.0.borrow_mut().free += permits;
        self.grant();
    }

    /// Fails all waiting and later calls.
    pub fn close(&self) {
        let wakers: Vec<Waker> = {
            let mut state = self.0.borrow_mut();
            state.closed = true;
            state.waiters.iter().map(|waiter| waiter.waker.clone()).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Grants permits from the front of the queue, as far as they go.
    fn grant(&self) {
        // One after another, so that no list is allocated of those to wake; nothing is borrowed while they are.
        while let Some(waker) = self.grant_next() {
            waker.wake();
        }
    }

    /// Grants the first waiter without permits those that it wants, if they are free. Returns the waker.
    fn grant_next(&self) -> Option<Waker> {
        let state = &mut *self.0.borrow_mut();
        let waiter = state.waiters.iter_mut().find(|waiter| !waiter.granted)?;
        state.free = state.free.checked_sub(waiter.permits)?;
        waiter.granted = true;
        Some(waiter.waker.clone())
    }
}

/// Permits that return when this is dropped.
pub struct Permit {
    semaphore: Semaphore,
    permits: usize,
}

impl Permit {
    /// Takes the permits out of circulation.
    pub fn forget(mut self) {
        self.permits = 0;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.permits > 0 {
            self.semaphore.add(self.permits);
        }
    }
}

/// Waits for permits; dropping it leaves the queue.
pub struct Acquire {
    semaphore: Semaphore,
    permits: usize,
    serial: Option<u64>,
}

impl Future for Acquire {
    type Output = Result<Permit, SemaphoreClosed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut state = this.semaphore.0.borrow_mut();
        let Some(serial) = this.serial else {
            if state.closed {
                return Poll::Ready(Err(SemaphoreClosed));
            }
            if state.waiters.is_empty() && state.free >= this.permits {
                state.free -= this.permits;
                return Poll::Ready(Ok(Permit { semaphore: this.semaphore.clone(), permits: this.permits }));
            }
            state.serial += 1;
            let serial = state.serial;
            state.waiters.push_back(Waiter {
                serial,
                permits: this.permits,
                granted: false,
                waker: cx.waker().clone(),
            });
            this.serial = Some(serial);
            return Poll::Pending;
        };
        let Some(at) = state.waiters.iter().position(|waiter| waiter.serial == serial) else {
            return Poll::Ready(Err(SemaphoreClosed));
        };
        if state.waiters[at].granted {
            state.waiters.remove(at);
            this.serial = None;
            return Poll::Ready(Ok(Permit { semaphore: this.semaphore.clone(), permits: this.permits }));
        }
        if state.closed {
            state.waiters.remove(at);
            this.serial = None;
            return Poll::Ready(Err(SemaphoreClosed));
        }
        state.waiters[at].waker.clone_from(cx.waker());
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(serial) = self.serial.take() else { return };
        {
            let state = &mut *self.semaphore.0.borrow_mut();
            if let Some(at) = state.waiters.iter().position(|waiter| waiter.serial == serial)
                && let Some(waiter) = state.waiters.remove(at)
                && waiter.granted
            {
                state.free += waiter.permits;
            }
        }
        self.semaphore.grant();
    }
}
