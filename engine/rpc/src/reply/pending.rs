//! Answers that are waited for.
//!
//! Each has an entry by the number of its request. The answer is put into the entry and taken from there, so
//! that nothing is allocated for it. Nor does each wait set a timer: nearly all end long before they are due.
//! One watch over all of them is set to the earliest and wakes those that are due.

use super::{Outcome, Reply, ReplyAuth};
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
    proof: ReplyAuth,
    /// When the wait ends without an answer.
    due: Instant,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

impl Entry {
    /// Registers the waker of the task that polls.
    #[inline]
    fn wait(&mut self, spare: &mut VecDeque<Waker>, cx: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(waker_of(spare, cx)),
        }
    }
}

/// Wakers that are kept: as many as a client's context has requests in flight.
const SPARE_MAX: usize = 64;

struct Table {
    entries: SequenceMap<Entry>,
    /// Used wakers in the order of their use, in which their tasks wait next. To clone and drop a waker for each
    /// wait takes two locked instructions.
    spare: VecDeque<Waker>,
    closed: bool,
}

/// A waker for this task: the oldest used one if it is the task's, else a new one.
fn waker_of(spare: &mut VecDeque<Waker>, cx: &Context<'_>) -> Waker {
    spare.pop_front().filter(|waker| waker.will_wake(cx.waker())).unwrap_or_else(|| cx.waker().clone())
}

/// The answers that a context waits for.
pub(crate) struct Pending {
    table: RefCell<Table>,
    /// When the watch next looks for due waits. It is never later than the first due wait.
    watch: Cell<Instant>,
    watcher: RefCell<Option<Waker>>,
    watched: Cell<bool>,
}

/// Which kind of answer has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AnswerKind {
    /// A reply, for [`Pending::take_reply`].
    Reply,
    /// Anything else, for [`Pending::take`].
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

    /// Whether a task calls [`Pending::poll_watch`] already. The caller starts one otherwise.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.replace(true)
    }

    /// Expects the answer to a request until it is due. A second call replaces the first. `proof` makes what
    /// authenticates the answer. `waiting`: whose waker to use, if it is known.
    #[inline]
    pub(crate) fn expect(
        &self,
        request: u64,
        peer: PeerId,
        state: &Rc<PeerState>,
        proof: impl FnOnce() -> ReplyAuth,
        due: Instant,
        waiting: Option<&Context<'_>>,
    ) {
        let Table { entries, spare, .. } = &mut *self.table.borrow_mut();
        let waker = waiting.map(|cx| waker_of(spare, cx));
        // Dropping the replaced entry calls nothing that borrows the table.
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

    /// Expects the answer no more.
    pub(crate) fn forget(&self, request: u64) {
        self.table.borrow_mut().entries.discard(request);
    }

    /// Number of expected answers.
    pub(crate) fn len(&self) -> usize {
        self.table.borrow().entries.len()
    }

    /// What authenticates an answer to this request of this client.
    pub(crate) fn proof(&self, request: u64, client: ClientId) -> Option<ReplyAuth> {
        let table = self.table.borrow();
        let entry = table.entries.get(request).filter(|entry| entry.state.client == client)?;
        Some(entry.proof.clone())
    }

    /// The state of the server that was asked.
    pub(crate) fn state(&self, request: u64) -> Option<Rc<PeerState>> {
        self.table.borrow().entries.get(request).map(|entry| Rc::clone(&entry.state))
    }

    /// Hands over an answer, constructed in place. `client` and `from`, if known, must be the client id of the request
    /// and the peer that was asked. Returns `false` when no call waits for it, or it was answered before.
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

    /// Outstanding requests to a peer.
    pub(crate) fn asked_of(&self, peer: PeerId) -> Vec<u64> {
        let table = self.table.borrow();
        table.entries.iter().filter(|(_, entry)| entry.peer == peer).map(|(request, _)| request).collect()
    }

    /// Takes an answer that is not a reply. Nothing more is expected.
    pub(crate) fn take(&self, request: u64) -> Option<Outcome> {
        let mut table = self.table.borrow_mut();
        let outcome = table.entries.get_mut(request)?.outcome.take();
        table.entries.discard(request);
        outcome
    }

    /// The incarnation of the server that sent the reply.
    pub(crate) fn replied_by(&self, request: u64) -> Option<ClientId> {
        match self.table.borrow().entries.get(request)?.outcome.as_ref()? {
            Outcome::Reply(reply) => Some(reply.server()),
            _ => None,
        }
    }

    /// Takes the reply. Nothing more is expected.
    #[inline]
    pub(crate) fn take_reply(&self, request: u64) -> Option<Reply> {
        let taken = self.table.borrow_mut().entries.discard_with(request, |entry| match &mut entry.outcome {
            Some(Outcome::Reply(reply)) => Some(reply.take()),
            _ => None,
        });
        taken.flatten()
    }

    /// Takes the reply if it has come; nothing more is expected then. `None`: [`Pending::wait`] returns at once
    /// with what there is instead.
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

    /// Waits for the expected answer until it is due. The answer stays in its entry until it is taken.
    pub(crate) fn wait<'a>(&'a self, rt: &'a Handle, request: u64) -> Wait<'a> {
        Wait { pending: self, rt, request }
    }

    /// Wakes the waits that are due, and sets the watch to the next one.
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

    /// Watches for due waits, as a task that is woken for the first of them. It ends when the context closes.
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

    /// No more answers come.
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
    type Output = Result<AnswerKind, NoAnswer>;

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
            Some(Outcome::Reply(_)) => return Poll::Ready(Ok(AnswerKind::Reply)),
            Some(_) => return Poll::Ready(Ok(AnswerKind::Other)),
        }
        if self.rt.now() >= entry.due {
            return Poll::Ready(Err(NoAnswer::Late));
        }
        entry.wait(spare, cx);
        Poll::Pending
    }
}
