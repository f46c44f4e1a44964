//! Reads and writes of remote memory in flight.

use crate::error::FabricError;
use core::cell::RefCell;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::rc::Rc;
use weir_memory::Spares;

#[derive(Default)]
struct State {
    result: Option<Result<(), FabricError>>,
    waker: Option<Waker>,
}

thread_local! {
    /// States of transfers that have ended, of all endpoints of a thread.
    static SPARES: Spares<RefCell<State>> = const { Spares::new() };
}

/// A read or write under way: a future. Dropping it does not stop the operation.
pub struct Transfer {
    state: Rc<RefCell<State>>,
}

/// The endpoint's side of a [`Transfer`]; when it is dropped unfinished the transfer is cancelled.
pub(crate) struct Completer {
    state: Rc<RefCell<State>>,
}

impl Transfer {
    pub(crate) fn new() -> (Self, Completer) {
        let state = SPARES.try_with(|spares| spares.take(|state| *state.get_mut() = State::default()));
        let state = state.unwrap_or_default();
        (Self { state: Rc::clone(&state) }, Completer { state })
    }

    /// How it ended, once it has.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<(), FabricError>> {
        self.state.borrow().result.clone()
    }

    pub(crate) fn failed(error: FabricError) -> Self {
        Self { state: Rc::new(RefCell::new(State { result: Some(Err(error)), waker: None })) }
    }
}

impl Completer {
    pub(crate) fn complete(self, result: Result<(), FabricError>) {
        self.finish(result);
    }

    /// Whether no caller waits for the transfer any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        Rc::strong_count(&self.state) == 1
    }

    fn finish(&self, result: Result<(), FabricError>) {
        let waker = {
            let mut state = self.state.borrow_mut();
            state.result.get_or_insert(result);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// One of the two sides lets go. The last one leaves the state for the next transfer: before, it would be found in use.
fn let_go(state: &Rc<RefCell<State>>) {
    if Rc::strong_count(state) == 1 {
        // The thread may be ending.
        let _ = SPARES.try_with(|spares| spares.keep(state));
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        self.finish(Err(FabricError::Cancelled));
        let_go(&self.state);
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let_go(&self.state);
    }
}

impl Future for Transfer {
    type Output = Result<(), FabricError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.state.borrow_mut();
        if let Some(result) = &state.result {
            return Poll::Ready(result.clone());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
