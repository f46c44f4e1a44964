//! One value, once.

use core::cell::RefCell;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::rc::Rc;

struct State<T> {
    value: Option<T>,
    waker: Option<Waker>,
    sender: bool,
    receiver: bool,
}

/// The sending half.
pub struct Sender<T>(Rc<RefCell<State<T>>>);

/// The receiving half: a future.
pub struct Receiver<T>(Rc<RefCell<State<T>>>);

/// The sender was dropped without sending.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the sender was dropped without sending")]
pub struct Closed;

/// A channel for one value.
#[must_use]
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = Rc::new(RefCell::new(State { value: None, waker: None, sender: true, receiver: true }));
    (Sender(Rc::clone(&state)), Receiver(state))
}

impl<T> Sender<T> {
    /// Hands over the value.
    ///
    /// # Errors
    /// Gives it back when the receiver is gone.
    pub fn send(self, value: T) -> Result<(), T> {
        let waker = {
            let mut state = self.0.borrow_mut();
            if !state.receiver {
                return Err(value);
            }
            state.value = Some(value);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Whether no receiver waits any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        !self.0.borrow().receiver
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.0.borrow_mut();
            state.sender = false;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Receiver<T> {
    /// The value, when it is there already.
    #[must_use]
    pub fn try_recv(&self) -> Option<T> {
        self.0.borrow_mut().value.take()
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Closed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.borrow_mut();
        if let Some(value) = state.value.take() {
            return Poll::Ready(Ok(value));
        }
        if !state.sender {
            return Poll::Ready(Err(Closed));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // The value's own destructor may reach this channel again, so it runs after the borrow.
        let _value = {
            let mut state = self.0.borrow_mut();
            state.receiver = false;
            state.value.take()
        };
    }
}
