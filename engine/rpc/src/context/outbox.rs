//! Small messages to one peer that share a message of the fabric.
//!
//! A message that has company, because others to or from the same peer are under way, waits here until the tasks that
//! are ready now have run, or a few have come together; what they send to the same peer goes out with it. A lone one
//! goes out at once, as does the last one that was waited for.

use super::Context;
use core::cell::RefCell;
use core::task::{Poll, Waker};
use std::rc::Weak;
use weir_fabric::PeerId;

/// Longest fabric message that is put together: what `shm` copies into its queue, so that it stays one of its small
/// ones, and two dozen small requests.
const LOT_MAX: usize = 4096;

/// Messages after which a lot goes out without waiting for more: a quarter of a peer's credits. Larger ones make the two
/// sides take turns, each idle while the other works through everything that is under way; smaller ones save less.
const LOT_MESSAGES: usize = 8;

/// Messages that are taken from one of the fabric. More than any sender of ours puts into one, so that this can change, and
/// few enough for the messages of the fabric to say how much work comes in.
pub(crate) const TAKEN_MAX: usize = 2 * LOT_MESSAGES;

/// Longest message that shares.
const SHARE_MAX: usize = 512;

struct Lot {
    to: PeerId,
    /// Request that is told when the lot can't be sent; the others to the same peer hear of it with it.
    request: u64,
    messages: usize,
    bytes: Vec<u8>,
}

impl Lot {
    #[inline]
    fn add(&mut self, request: u64, parts: &[&[u8]]) {
        if self.request == 0 {
            self.request = request;
        }
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.messages += 1;
    }
}

/// Lots whose memory is kept for others, 256 KiB: more wait to be sent at once only in turns in which very many peers are answered.
const SPARE_MAX: usize = 64;

#[derive(Default)]
struct State {
    /// At most one for each peer.
    lots: Vec<Lot>,
    /// Memory of lots that have gone out.
    spare: Vec<Vec<u8>>,
    flusher: Option<Waker>,
    started: bool,
}

impl State {
    /// Puts a message to those in the lot that was opened last, where it goes to the same peer and isn't the last one there.
    #[inline]
    fn join(&mut self, to: PeerId, request: u64, parts: &[&[u8]], len: usize) -> bool {
        let Some(lot) = self.lots.last_mut() else { return false };
        if lot.to != to || lot.messages + 1 >= LOT_MESSAGES || lot.bytes.len() + len > LOT_MAX {
            return false;
        }
        lot.add(request, parts);
        true
    }

    fn lot(&self, to: PeerId) -> Option<usize> {
        self.lots.iter().position(|lot| lot.to == to)
    }

    fn open(&mut self, to: PeerId, request: u64) -> usize {
        let bytes = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(LOT_MAX));
        self.lots.push(Lot { to, request, messages: 0, bytes });
        self.lots.len() - 1
    }
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

    /// Whether something waits for this peer.
    #[inline]
    pub(crate) fn has(&self, to: PeerId) -> bool {
        self.state.borrow().lot(to).is_some()
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.borrow().lots.is_empty()
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

impl Context {
    /// Puts a message to others that go to the same peer. `company`: how many requests are under way with it.
    #[inline]
    pub(crate) fn share(&self, to: PeerId, request: u64, parts: &[&[u8]], len: usize, company: usize) {
        // The flusher was woken when the lot was opened.
        if company <= 1 || !self.outbox.state.borrow_mut().join(to, request, parts, len) {
            self.share_anew(to, request, parts, len, company);
        }
    }

    /// The same of a message that may be the first of a lot, or the last.
    #[inline(never)]
    fn share_anew(&self, to: PeerId, request: u64, parts: &[&[u8]], len: usize, company: usize) {
        let (start, full, complete) = {
            let state = &mut *self.outbox.state.borrow_mut();
            let at = state.lot(to);
            let is_full = |at: &usize| state.lots[*at].bytes.len() + len > LOT_MAX;
            let (at, full) = match at.filter(is_full) {
                Some(full) => (None, Some(state.lots.swap_remove(full))),
                None => (at, None),
            };
            let at = at.unwrap_or_else(|| state.open(to, request));
            let lot = &mut state.lots[at];
            lot.add(request, parts);
            let complete = company <= 1 || lot.messages >= LOT_MESSAGES;
            let complete = complete.then(|| state.lots.swap_remove(at));
            (!core::mem::replace(&mut state.started, true), full, complete)
        };
        if start {
            self.start_flusher();
        }
        if let Some(lot) = full {
            self.send_lot(lot);
        }
        match complete {
            Some(lot) => self.send_lot(lot),
            None => self.outbox.wake(),
        }
    }

    fn start_flusher(&self) {
        let weak: Weak<Self> = self.weak.clone();
        self.rt.spawn(core::future::poll_fn(move |cx| {
            let Some(context) = weak.upgrade() else { return Poll::Ready(()) };
            context.flush();
            let mut state = context.outbox.state.borrow_mut();
            if !state.lots.is_empty() {
                cx.waker().wake_by_ref();
            }
            state.flusher = Some(cx.waker().clone());
            Poll::Pending
        }));
    }

    /// Sends everything that waits.
    pub(crate) fn flush(&self) {
        loop {
            let lot = self.outbox.state.borrow_mut().lots.pop();
            let Some(lot) = lot else { return };
            self.send_lot(lot);
        }
    }

    /// Sends a lot. That may call back, so that it stands in no list meanwhile.
    fn send_lot(&self, lot: Lot) {
        let Lot { to, request, mut bytes, .. } = lot;
        if let Err(error) = self.endpoint.send(to, request, &[&bytes]) {
            self.unsent(to, request, &error);
        }
        bytes.clear();
        let spare = &mut self.outbox.state.borrow_mut().spare;
        if spare.len() < SPARE_MAX {
            spare.push(bytes);
        }
    }
}
