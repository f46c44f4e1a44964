//! Answers that are waited for.
//!
//! Each has an entry by the number of its request; the answer is put into the entry and taken from there by whoever
//! waits, so that nothing is allocated for it.

use crate::Outcome;
use crate::id_map::IdMap;
use crate::proof::Proof;
use crate::session::PeerState;
use core::cell::RefCell;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::rc::Rc;
use weir_fabric::PeerId;

struct Entry {
    peer: PeerId,
    state: Rc<PeerState>,
    proof: Proof,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Table {
    entries: IdMap<u64, Entry>,
    closed: bool,
}

/// The answers that a context waits for.
pub(crate) struct Pending {
    table: RefCell<Table>,
}

/// The context is closing: there will be no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Closed;

impl Pending {
    pub(crate) fn new(seed: u64) -> Self {
        Self { table: RefCell::new(Table { entries: IdMap::with_hasher(seed.into()), closed: false }) }
    }

    /// Expects the answer to a request, anew when it was expected before.
    pub(crate) fn expect(&self, request: u64, peer: PeerId, state: &Rc<PeerState>, proof: Proof) {
        let entry = Entry { peer, state: Rc::clone(state), proof, outcome: None, waker: None };
        let before = self.table.borrow_mut().entries.insert(request, entry);
        drop(before);
    }

    /// Does not expect it any more.
    pub(crate) fn forget(&self, request: u64) {
        let gone = self.table.borrow_mut().entries.remove(&request);
        drop(gone);
    }

    /// Answers that are waited for.
    pub(crate) fn len(&self) -> usize {
        self.table.borrow().entries.len()
    }

    /// What shows that an answer to this request is genuine.
    pub(crate) fn proof(&self, request: u64) -> Option<Proof> {
        self.table.borrow().entries.get(&request).map(|entry| entry.proof)
    }

    /// What is known of the server that was asked.
    pub(crate) fn state(&self, request: u64) -> Option<Rc<PeerState>> {
        self.table.borrow().entries.get(&request).map(|entry| Rc::clone(&entry.state))
    }

    /// Hands over an answer. `from`: who sent it, where that is known; it must be who was asked. `false`: nobody waits
    /// for it, or it has been answered already.
    pub(crate) fn resolve(&self, request: u64, from: Option<PeerId>, outcome: Outcome) -> bool {
        let waker = {
            let mut table = self.table.borrow_mut();
            let Some(entry) = table.entries.get_mut(&request) else { return false };
            if entry.outcome.is_some() || from.is_some_and(|from| from != entry.peer) {
                return false;
            }
            entry.outcome = Some(outcome);
            entry.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Requests to the same peer as this one: what was sent together fails together.
    pub(crate) fn fellows(&self, request: u64) -> Vec<u64> {
        let table = self.table.borrow();
        let Some(peer) = table.entries.get(&request).map(|entry| entry.peer) else { return Vec::new() };
        table.entries.iter().filter(|(_, entry)| entry.peer == peer).map(|(request, _)| *request).collect()
    }

    /// Waits for the answer that is expected.
    pub(crate) fn wait(&self, request: u64) -> Wait<'_> {
        Wait { pending: self, request }
    }

    /// There will be no more answers.
    pub(crate) fn close(&self) {
        let entries = {
            let mut table = self.table.borrow_mut();
            table.closed = true;
            core::mem::take(&mut table.entries)
        };
        for (_, entry) in entries {
            if let Some(waker) = entry.waker {
                waker.wake();
            }
        }
    }
}

/// See [`Pending::wait`].
pub(crate) struct Wait<'a> {
    pending: &'a Pending,
    request: u64,
}

impl Future for Wait<'_> {
    type Output = Result<Outcome, Closed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut table = self.pending.table.borrow_mut();
        if table.closed {
            return Poll::Ready(Err(Closed));
        }
        let Some(entry) = table.entries.get_mut(&self.request) else { return Poll::Ready(Err(Closed)) };
        if entry.outcome.is_none() {
            match &mut entry.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        let taken = table.entries.remove(&self.request);
        drop(table);
        Poll::Ready(taken.and_then(|entry| entry.outcome).ok_or(Closed))
    }
}
