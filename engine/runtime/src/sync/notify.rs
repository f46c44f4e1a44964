//! Waking tasks without a value.

use core::cell::{Cell, RefCell};
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::rc::Rc;

#[derive(Default)]
struct State {
    /// Counts calls of `notify_waiters`.
    round: Cell<u64>,
    /// A `notify_one` that found no waiting task.
    stored: Cell<bool>,
    waiting: RefCell<Vec<(u64, Waker)>>,
    serial: Cell<u64>,
}

/// Wakes one or all waiting tasks. Cheap to clone: clones share the waiters.
#[derive(Clone, Default)]
pub struct Notify(Rc<State>);

impl Notify {
    /// No task waits yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes the longest waiting task. When none waits, the next one that does goes through at once.
    pub fn notify_one(&self) {
        self.0.stored.set(true);
        if let Some((_, waker)) = self.0.waiting.borrow().first() {
            waker.wake_by_ref();
        }
    }

    /// Wakes every task that waits now.
    #[inline]
    pub fn notify_waiters(&self) {
        self.0.round.set(self.0.round.get() + 1);
        if self.0.waiting.borrow().is_empty() {
            return;
        }
        let waiting = core::mem::take(&mut *self.0.waiting.borrow_mut());
        for (_, waker) in waiting {
            waker.wake();
        }
    }

    /// Waits for a notification. It counts from this call on, not from the first poll.
    #[must_use]
    pub fn notified(&self) -> Notified {
        Notified { state: Rc::clone(&self.0), round: self.0.round.get(), serial: None }
    }
}

/// See [`Notify::notified`].
pub struct Notified {
    state: Rc<State>,
    round: u64,
    serial: Option<u64>,
}

impl Notified {
    fn leave(&mut self) {
        if let Some(serial) = self.serial.take() {
            self.state.waiting.borrow_mut().retain(|(waiting, _)| *waiting != serial);
        }
    }
}

impl Future for Notified {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.state.round.get() != this.round {
            this.leave();
            return Poll::Ready(());
        }
        let first = match (this.serial, this.state.waiting.borrow().first()) {
            (_, None) => true,
            (Some(own), Some((first, _))) => own == *first,
            (None, Some(_)) => false,
        };
        if first && this.state.stored.replace(false) {
            this.leave();
            return Poll::Ready(());
        }
        let mut waiting = this.state.waiting.borrow_mut();
        let own = this.serial.and_then(|own| waiting.iter_mut().find(|(serial, _)| *serial == own));
        if let Some((_, waker)) = own {
            waker.clone_from(cx.waker());
        } else {
            let serial = this.state.serial.get() + 1;
            this.state.serial.set(serial);
            this.serial = Some(serial);
            waiting.push((serial, cx.waker().clone()));
        }
        Poll::Pending
    }
}

impl Drop for Notified {
    fn drop(&mut self) {
        self.leave();
        // A wake that this waiter didn't use goes to the next one.
        if self.state.stored.get()
            && let Some((_, waker)) = self.state.waiting.borrow().first()
        {
            waker.wake_by_ref();
        }
    }
}

/// Opens once and stays open. Cheap to clone.
#[derive(Clone, Default)]
pub struct Gate {
    open: Rc<Cell<bool>>,
    notify: Notify,
}

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets all tasks through, now and later.
    pub fn open(&self) {
        self.open.set(true);
        self.notify.notify_waiters();
    }

    /// Whether it is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.get()
    }

    /// Waits until it is open.
    pub async fn wait(&self) {
        while !self.open.get() {
            self.notify.notified().await;
        }
    }
}
