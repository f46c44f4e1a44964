//! Coalescing of small messages: messages to one peer share a message of the fabric.
//!
//! While other requests to or from the same peer are in flight, a message waits here until all ready tasks have
//! run, or until a few messages are together. A message without others in flight goes out at once, as does the
//! last one that was waited for.

use super::Context;
use core::cell::RefCell;
use core::task::{Poll, Waker};
use std::rc::Weak;
use weir_fabric::PeerId;

/// Largest batch in bytes: what `shm` copies into its queue as one of its small messages. Two dozen small
/// requests fit.
const BATCH_MAX: usize = 4096;

/// Messages after which a batch goes out: a quarter of a peer's credits. With larger batches the two sides
/// alternate, each idle while the other works; smaller ones save less.
const BATCH_MESSAGES: usize = 8;

/// Messages that are taken from one message of the fabric. It is more than any sender puts into one, so that the
/// batch size can change. It is small enough that the number of fabric messages bounds the work that comes in.
pub(crate) const TAKEN_MAX: usize = 2 * BATCH_MESSAGES;

/// Largest message that is coalesced, in bytes.
const SHARE_MAX: usize = 512;

struct Batch {
    to: PeerId,
    /// The request that learns when the batch can't be sent. The others to the same peer fail with it.
    request: u64,
    messages: usize,
    bytes: Vec<u8>,
}

impl Batch {
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

/// Batches whose memory is kept for later ones: 256 KiB. More are open at once only when very many peers are
/// answered together.
const SPARE_MAX: usize = 64;

#[derive(Default)]
struct State {
    /// At most one for each peer.
    batches: Vec<Batch>,
    /// Memory of batches that were sent.
    spare: Vec<Vec<u8>>,
    flusher: Option<Waker>,
    started: bool,
}

impl State {
    /// Adds a message to the newest batch, if it is for the same peer and isn't full.
    #[inline]
    fn join(&mut self, to: PeerId, request: u64, parts: &[&[u8]], len: usize) -> bool {
        let Some(batch) = self.batches.last_mut() else { return false };
        if batch.to != to || batch.messages + 1 >= BATCH_MESSAGES || batch.bytes.len() + len > BATCH_MAX {
            return false;
        }
        batch.add(request, parts);
        true
    }

    fn batch(&self, to: PeerId) -> Option<usize> {
        self.batches.iter().position(|batch| batch.to == to)
    }

    fn open(&mut self, to: PeerId, request: u64) -> usize {
        let bytes = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(BATCH_MAX));
        self.batches.push(Batch { to, request, messages: 0, bytes });
        self.batches.len() - 1
    }
}

/// Batches that wait to be sent.
#[derive(Default)]
pub(crate) struct Coalescer {
    state: RefCell<State>,
}

impl Coalescer {
    /// Whether a message of this length is coalesced.
    pub(crate) fn takes(len: usize) -> bool {
        len <= SHARE_MAX
    }

    /// Whether a batch for this peer is open.
    #[inline]
    pub(crate) fn has(&self, to: PeerId) -> bool {
        self.state.borrow().batch(to).is_some()
    }

    /// Whether no batch is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.borrow().batches.is_empty()
    }

    /// The flusher ends with the context.
    pub(crate) fn close(&self) {
        self.wake();
    }

    /// Wakes the flusher.
    fn wake(&self) {
        let waker = self.state.borrow_mut().flusher.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Context {
    /// Adds a message to the batch of its peer. `in_flight`: requests in flight with that peer.
    #[inline]
    pub(crate) fn share(&self, to: PeerId, request: u64, parts: &[&[u8]], len: usize, in_flight: usize) {
        // The flusher was woken when the batch was opened.
        if in_flight <= 1 || !self.coalescer.state.borrow_mut().join(to, request, parts, len) {
            self.share_anew(to, request, parts, len, in_flight);
        }
    }

    /// The same for a message that may be the first or the last of a batch.
    #[inline(never)]
    fn share_anew(&self, to: PeerId, request: u64, parts: &[&[u8]], len: usize, in_flight: usize) {
        let (start, full, complete) = {
            let state = &mut *self.coalescer.state.borrow_mut();
            let at = state.batch(to);
            let is_full = |at: &usize| state.batches[*at].bytes.len() + len > BATCH_MAX;
            let (at, full) = match at.filter(is_full) {
                Some(full) => (None, Some(state.batches.swap_remove(full))),
                None => (at, None),
            };
            let at = at.unwrap_or_else(|| state.open(to, request));
            let batch = &mut state.batches[at];
            batch.add(request, parts);
            let complete = in_flight <= 1 || batch.messages >= BATCH_MESSAGES;
            let complete = complete.then(|| state.batches.swap_remove(at));
            (!core::mem::replace(&mut state.started, true), full, complete)
        };
        if start {
            self.start_flusher();
        }
        if let Some(batch) = full {
            self.send_batch(batch);
        }
        match complete {
            Some(batch) => self.send_batch(batch),
            None => self.coalescer.wake(),
        }
    }

    fn start_flusher(&self) {
        let weak: Weak<Self> = self.weak.clone();
        self.rt.spawn(core::future::poll_fn(move |cx| {
            let Some(context) = weak.upgrade() else { return Poll::Ready(()) };
            context.flush();
            let mut state = context.coalescer.state.borrow_mut();
            if !state.batches.is_empty() {
                cx.waker().wake_by_ref();
            }
            state.flusher = Some(cx.waker().clone());
            Poll::Pending
        }));
    }

    /// Sends all batches.
    pub(crate) fn flush(&self) {
        loop {
            let batch = self.coalescer.state.borrow_mut().batches.pop();
            let Some(batch) = batch else { return };
            self.send_batch(batch);
        }
    }

    /// Sends a batch. That may call back, so the batch is not in the list meanwhile.
    fn send_batch(&self, batch: Batch) {
        let Batch { to, request, mut bytes, .. } = batch;
        if let Err(error) = self.endpoint.send(to, request, &[&bytes]) {
            self.unsent(to, request, &error);
        }
        bytes.clear();
        let spare = &mut self.coalescer.state.borrow_mut().spare;
        if spare.len() < SPARE_MAX {
            spare.push(bytes);
        }
    }
}
