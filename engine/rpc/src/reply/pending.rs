//! Answers that are waited for.
//!
//! Each has an entry by the number of its request; the answer is put into the entry and taken from there by whoever
//! waits, so that nothing is allocated for it. Nor does each wait set a timer: nearly all end long before they are due,
//! and one watch over all of them, which is set to the earliest, wakes those that don't.

use super::{Outcome, Proof, Reply};
use crate::contact::PeerState;
use crate::maps::SequenceMap;
use crate::wire::ClientId;
use core::cell::{Cell, RefCell};
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::rc::Rc;
use weir_fabric::PeerId;
use weir_runtime::{Handle, Instant, Sleep};

struct Entry {
    peer: PeerId,
    state: Rc<PeerState>,
    proof: Proof,
    /// When whoever waits gives up.
    due: Instant,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

impl Entry {
    /// Who polls is woken when the answer comes.
    #[inline]
    fn wait(&mut self, spare: &mut VecDeque<Waker>, cx: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(waker_of(spare, cx)),
        }
    }
}

/// Wakers that are kept: as many as a context of a client has requests under way.
const SPARE_MAX: usize = 64;

struct Table {
    entries: SequenceMap<Entry>,
    /// Wakers that have done their work, in its order, which is the one in which their tasks wait next. Making one anew for
    /// each wait, and dropping it, takes two locked instructions.
    spare: VecDeque<Waker>,
    closed: bool,
}

/// A waker of whoever waits: the one that woke it last, if it is its turn.
fn waker_of(spare: &mut VecDeque<Waker>, cx: &Context<'_>) -> Waker {
    spare.pop_front().filter(|waker| waker.will_wake(cx.waker())).unwrap_or_else(|| cx.waker().clone())
}

/// The answers that a context waits for.
pub(crate) struct Pending {
    table: RefCell<Table>,
    /// When the watch looks for waits that are due: no later than the first of them is.
    watch: Cell<Instant>,
    watcher: RefCell<Option<Waker>>,
    watched: Cell<bool>,
}

/// What has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrived {
    /// What [`Pending::take_reply`] takes.
    Reply,
    /// Anything else; [`Pending::take`] takes it.
    Other,
}

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoAnswer {
    /// The context is closing.
    Closed,
    /// None came in time.
    Late,
}

impl Pending {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            table: RefCell::new(Table {
                entries: SequenceMap::new(seed),
                spare: VecDeque::new(),
                closed: false,
            }),
            watch: Cell::new(Instant::FAR_FUTURE),
            watcher: RefCell::default(),
            watched: Cell::new(false),
        }
    }

    /// Whether a task calls [`Pending::poll_watch`]; it does from now on.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.replace(true)
    }

    /// Expects the answer to a request until it is due, anew when it was expected before. `proof` makes what shows that it is
    /// genuine where that stays. `waiting`: who is to be woken, where that is known already.
    #[inline]
    pub(crate) fn expect(
        &self,
        request: u64,
        peer: PeerId,
        state: &Rc<PeerState>,
        proof: impl FnOnce() -> Proof,
        due: Instant,
        waiting: Option<&Context<'_>>,
    ) {
        let Table { entries, spare, .. } = &mut *self.table.borrow_mut();
        let waker = waiting.map(|cx| waker_of(spare, cx));
        // An entry that is replaced lets go of nothing that comes back here.
        entries.replace_with(request, || Entry {
            peer,
            state: Rc::clone(state),
            proof: proof(),
            due,
            outcome: None,
            waker,
        });
        if due < self.watch.get() {
            self.watch.set(due);
            self.wake_watcher();
        }
    }

    fn wake_watcher(&self) {
        let waker = self.watcher.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Does not expect it any more.
    pub(crate) fn forget(&self, request: u64) {
        self.table.borrow_mut().entries.discard(request);
    }

    /// Answers that are waited for.
    pub(crate) fn len(&self) -> usize {
        self.table.borrow().entries.len()
    }

    /// What shows that an answer to this request of this client is genuine.
    pub(crate) fn proof(&self, request: u64, client: ClientId) -> Option<Proof> {
        let table = self.table.borrow();
        let entry = table.entries.get(request).filter(|entry| entry.state.client == client)?;
        Some(entry.proof.clone())
    }

    /// What is known of the server that was asked.
    pub(crate) fn state(&self, request: u64) -> Option<Rc<PeerState>> {
        self.table.borrow().entries.get(request).map(|entry| Rc::clone(&entry.state))
    }

    /// Hands over an answer, made where it stays. `client`: as whom it is to have been asked, where that is known; `from`: who
    /// sent it, likewise; it must be who was asked. `false`: nobody waits for it, or it has been answered already.
    pub(crate) fn resolve_with(
        &self,
        request: u64,
        client: Option<ClientId>,
        from: Option<PeerId>,
        outcome: impl FnOnce() -> Outcome,
    ) -> bool {
        let waker = {
            let mut table = self.table.borrow_mut();
            let Some(entry) = table.entries.get_mut(request) else { return false };
            let other = from.is_some_and(|from| from != entry.peer)
                || client.is_some_and(|client| client != entry.state.client);
            if entry.outcome.is_some() || other {
                return false;
            }
            entry.outcome = Some(outcome());
            entry.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake_by_ref();
            let spare = &mut self.table.borrow_mut().spare;
            if spare.len() < SPARE_MAX {
                spare.push_back(waker);
            }
        }
        true
    }

    /// Requests to a peer: what was sent together fails together.
    pub(crate) fn asked_of(&self, peer: PeerId) -> Vec<u64> {
        let table = self.table.borrow();
        table.entries.iter().filter(|(_, entry)| entry.peer == peer).map(|(request, _)| request).collect()
    }

    /// Takes what has come, which was no reply; nothing more is expected.
    pub(crate) fn take(&self, request: u64) -> Option<Outcome> {
        let mut table = self.table.borrow_mut();
        let outcome = table.entries.get_mut(request)?.outcome.take();
        table.entries.discard(request);
        outcome
    }

    /// Which incarnation of the server the reply that has come is of.
    pub(crate) fn replied_by(&self, request: u64) -> Option<ClientId> {
        match self.table.borrow().entries.get(request)?.outcome.as_ref()? {
            Outcome::Reply(reply) => Some(reply.server()),
            _ => None,
        }
    }

    /// Takes the reply that has come; nothing more is expected.
    #[inline]
    pub(crate) fn take_reply(&self, request: u64) -> Option<Reply> {
        let taken = self.table.borrow_mut().entries.discard_with(request, |entry| match &mut entry.outcome {
            Some(Outcome::Reply(reply)) => Some(reply.take()),
            _ => None,
        });
        taken.flatten()
    }

    /// Takes the reply to a request when it has come: nothing more is expected then. `None`: [`Pending::wait`] tells at once
    /// what there is in its place.
    #[inline]
    pub(crate) fn poll_reply(&self, rt: &Handle, request: u64, cx: &Context<'_>) -> Poll<Option<Reply>> {
        let Table { entries, spare, closed } = &mut *self.table.borrow_mut();
        let Some(entry) = entries.get_mut(request).filter(|_| !*closed) else { return Poll::Ready(None) };
        match &mut entry.outcome {
            Some(Outcome::Reply(reply)) => {
                let reply = reply.take();
                entries.discard(request);
                Poll::Ready(Some(reply))
            }
            None if rt.now() < entry.due => {
                entry.wait(spare, cx);
                Poll::Pending
            }
            _ => Poll::Ready(None),
        }
    }

    /// Waits for the answer that is expected, until it is due. It stays where it is until it is taken.
    pub(crate) fn wait<'a>(&'a self, rt: &'a Handle, request: u64) -> Wait<'a> {
        Wait { pending: self, rt, request }
    }

    /// Wakes whoever waits for an answer that is due, and sets the watch to the next one.
    fn sweep(&self, now: Instant) {
        let mut wakers = Vec::new();
        let mut next = Instant::FAR_FUTURE;
        for entry in self.table.borrow_mut().entries.values_mut() {
            if entry.due > now {
                next = next.min(entry.due);
            } else if entry.outcome.is_none() {
                wakers.extend(entry.waker.take());
            }
        }
        self.watch.set(next);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Looks after waits that are due, as a task that is woken when the first of them is; it ends when there will be no more answers.
    pub(crate) fn poll_watch(
        &self,
        rt: &Handle,
        sleep: &mut Option<(Instant, Sleep)>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if self.table.borrow().closed {
            return Poll::Ready(());
        }
        loop {
            let now = rt.now();
            if self.watch.get() <= now {
                self.sweep(now);
            }
            let at = self.watch.get();
            self.watcher.replace(Some(cx.waker().clone()));
            if at == Instant::FAR_FUTURE {
                return Poll::Pending;
            }
            if sleep.as_ref().is_none_or(|(until, _)| *until != at) {
                *sleep = Some((at, rt.sleep_until(at)));
            }
            let slept = sleep.as_mut().map(|(_, sleep)| Pin::new(sleep).poll(cx));
            if slept != Some(Poll::Ready(())) {
                return Poll::Pending;
            }
            *sleep = None;
        }
    }

    /// There will be no more answers.
    pub(crate) fn close(&self) {
        let entries = {
            let mut table = self.table.borrow_mut();
            table.closed = true;
            table.entries.drain()
        };
        for entry in entries {
            if let Some(waker) = entry.waker {
                waker.wake();
            }
        }
        self.wake_watcher();
    }
}

/// See [`Pending::wait`].
pub(crate) struct Wait<'a> {
    pending: &'a Pending,
    rt: &'a Handle,
    request: u64,
}

impl Future for Wait<'_> {
    type Output = Result<Arrived, NoAnswer>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut table = self.pending.table.borrow_mut();
        if table.closed {
            return Poll::Ready(Err(NoAnswer::Closed));
        }
        let Table { entries, spare, .. } = &mut *table;
        let Some(entry) = entries.get_mut(self.request) else {
            return Poll::Ready(Err(NoAnswer::Closed));
        };
        match &entry.outcome {
            None => {}
            Some(Outcome::Reply(_)) => return Poll::Ready(Ok(Arrived::Reply)),
            Some(_) => return Poll::Ready(Ok(Arrived::Other)),
        }
        if self.rt.now() >= entry.due {
            return Poll::Ready(Err(NoAnswer::Late));
        }
        entry.wait(spare, cx);
        Poll::Pending
    }
}
