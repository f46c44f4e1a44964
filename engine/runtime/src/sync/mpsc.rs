//! Many senders, one receiver, in order.

use super::semaphore::{Permit, Semaphore};
use core::cell::RefCell;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::rc::Rc;

struct State<T> {
    queue: VecDeque<(T, Option<Permit>)>,
    waker: Option<Waker>,
    senders: usize,
    receiver: bool,
}

/// The sending half; cloned freely.
pub struct Sender<T> {
    state: Rc<RefCell<State<T>>>,
    room: Option<Semaphore>,
}

/// The receiving half.
pub struct Receiver<T> {
    state: Rc<RefCell<State<T>>>,
    room: Option<Semaphore>,
}

/// The receiver is gone; here is the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the receiver is gone")]
pub struct SendError<T>(pub T);

/// Why a value was not taken at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TrySendError<T> {
    /// The channel holds as much as it may.
    #[error("the channel is full")]
    Full(T),
    /// The receiver is gone.
    #[error("the receiver is gone")]
    Closed(T),
}

/// A channel without a bound: use it only where the senders are bounded otherwise.
#[must_use]
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    channel(None)
}

/// A channel that holds at most `capacity` values.
#[must_use]
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    channel(Some(Semaphore::new(capacity)))
}

fn channel<T>(room: Option<Semaphore>) -> (Sender<T>, Receiver<T>) {
    let state = State { queue: VecDeque::new(), waker: None, senders: 1, receiver: true };
    let state = Rc::new(RefCell::new(state));
    (Sender { state: Rc::clone(&state), room: room.clone() }, Receiver { state, room })
}

impl<T> Sender<T> {
    /// Sends, waiting for room in a bounded channel.
    ///
    /// # Errors
    /// Gives the value back when the receiver is gone.
    pub async fn send(&self, value: T) -> Result<(), SendError<T>> {
        let permit = match &self.room {
            None => None,
            Some(room) => match room.acquire().await {
                Ok(permit) => Some(permit),
                Err(_) => return Err(SendError(value)),
            },
        };
        self.push(value, permit).map_err(SendError)
    }

    /// Sends without waiting.
    ///
    /// # Errors
    /// Gives the value back when the channel is full or the receiver is gone.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        let permit = match &self.room {
            None => None,
            Some(room) => match room.try_acquire() {
                Some(permit) => Some(permit),
                None if self.is_closed() => return Err(TrySendError::Closed(value)),
                None => return Err(TrySendError::Full(value)),
            },
        };
        self.push(value, permit).map_err(TrySendError::Closed)
    }

    /// Whether the receiver is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        !self.state.borrow().receiver
    }

    fn push(&self, value: T, permit: Option<Permit>) -> Result<(), T> {
        let waker = {
            let mut state = self.state.borrow_mut();
            if !state.receiver {
                return Err(value);
            }
            state.queue.push_back((value, permit));
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.state.borrow_mut().senders += 1;
        Self { state: Rc::clone(&self.state), room: self.room.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.state.borrow_mut();
            state.senders -= 1;
            if state.senders == 0 { state.waker.take() } else { None }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Receiver<T> {
    /// The next value; `None` when the channel is empty and every sender is gone.
    pub async fn recv(&mut self) -> Option<T> {
        core::future::poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// The next value, when it is there already.
    #[must_use]
    pub fn try_recv(&mut self) -> Option<T> {
        // The permit is returned after the borrow: it may wake a sender.
        let next = self.state.borrow_mut().queue.pop_front();
        next.map(|(value, _permit)| value)
    }

    /// Values that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state.borrow().queue.len()
    }

    /// Whether no value waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Like [`Receiver::recv`], for hand-written futures.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(value) = self.try_recv() {
            return Poll::Ready(Some(value));
        }
        let mut state = self.state.borrow_mut();
        if state.senders == 0 {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let _queue = {
            let mut state = self.state.borrow_mut();
            state.receiver = false;
            core::mem::take(&mut state.queue)
        };
        if let Some(room) = &self.room {
            room.close();
        }
    }
}

/// Receiving as a future of its own; see [`Receiver::recv`].
impl<T> Future for &mut Receiver<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.poll_recv(cx)
    }
}
