//! Small messages to one peer that share a message of the fabric.
//!
//! A message that has company, because others to or from the same peer are under way, waits here until the tasks that
//! are ready now have run; what they send to the same peer goes out with it. A lone one goes out at once.

use crate::Inner;
use core::cell::RefCell;
use core::task::{Poll, Waker};
use std::rc::Weak;
use weir_fabric::PeerId;

/// Longest fabric message that is put together: what `shm` copies into its queue, so that it stays one of its small
/// ones, and two dozen small requests.
const LOT_MAX: usize = 4096;

/// Longest message that shares.
const SHARE_MAX: usize = 512;

struct Lot {
    to: PeerId,
    /// Request that is told when the lot can't be sent; the others to the same peer hear of it with it.
    context: u64,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct State {
    /// Lots to be sent; those behind `used` are empty, and keep their room.
    lots: Vec<Lot>,
    used: usize,
    flusher: Option<Waker>,
    started: bool,
}

/// What waits to be sent.
#[derive(Default)]
pub(crate) struct Outbox {
    state: RefCell<State>,
}

impl Outbox {
    /// Whether a message of this length may share.
    pub(crate) fn takes(len: usize) -> bool {
        len <= SHARE_MAX
    }

    /// Adds a message. `false`: there is no room before what waits for that peer has gone out.
    fn add(&self, to: PeerId, context: u64, parts: &[&[u8]], len: usize) -> bool {
        let state = &mut *self.state.borrow_mut();
        let open = state.lots[..state.used].iter().rposition(|lot| lot.to == to);
        if open.is_some_and(|at| state.lots[at].bytes.len() + len > LOT_MAX) {
            return false;
        }
        let at = open.unwrap_or_else(|| {
            if state.used == state.lots.len() {
                state.lots.push(Lot { to, context, bytes: Vec::with_capacity(LOT_MAX) });
            }
            let lot = &mut state.lots[state.used];
            (lot.to, lot.context) = (to, context);
            lot.bytes.clear();
            state.used += 1;
            state.used - 1
        });
        let lot = &mut state.lots[at];
        if lot.context == 0 {
            lot.context = context;
        }
        for part in parts {
            lot.bytes.extend_from_slice(part);
        }
        true
    }

    /// The flusher ends with the context.
    pub(crate) fn close(&self) {
        self.wake();
    }

    /// There is something new for the flusher.
    fn wake(&self) {
        let waker = self.state.borrow_mut().flusher.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Inner {
    /// Puts a message to others that go to the same peer.
    pub(crate) fn share(&self, to: PeerId, context: u64, parts: &[&[u8]], len: usize) {
        if !core::mem::replace(&mut self.outbox.state.borrow_mut().started, true) {
            self.start_flusher();
        }
        if !self.outbox.add(to, context, parts, len) {
            self.flush();
            self.outbox.add(to, context, parts, len);
        }
        self.outbox.wake();
    }

    fn start_flusher(&self) {
        let weak: Weak<Self> = self.weak.clone();
        self.rt.spawn(core::future::poll_fn(move |cx| {
            let Some(inner) = weak.upgrade() else { return Poll::Ready(()) };
            inner.flush();
            let mut state = inner.outbox.state.borrow_mut();
            if state.used > 0 {
                cx.waker().wake_by_ref();
            }
            state.flusher = Some(cx.waker().clone());
            Poll::Pending
        }));
    }

    /// Sends everything that waits.
    pub(crate) fn flush(&self) {
        let mut at = 0;
        loop {
            // Sending may call back, and a failure lets others send; so each lot is taken out meanwhile.
            let lot = {
                let state = &mut *self.outbox.state.borrow_mut();
                if at >= state.used {
                    state.used = 0;
                    return;
                }
                let lot = &mut state.lots[at];
                (lot.to, lot.context, core::mem::take(&mut lot.bytes))
            };
            let (to, context, bytes) = lot;
            if let Err(error) = self.endpoint.send(to, context, &[&bytes]) {
                self.unsent(context, &error);
            }
            let state = &mut *self.outbox.state.borrow_mut();
            if let Some(lot) = state.lots.get_mut(at) {
                lot.bytes = bytes;
                lot.bytes.clear();
            }
            at += 1;
        }
    }
}
