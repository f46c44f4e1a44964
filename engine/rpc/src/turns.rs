//! Whose request begins next.
//!
//! A request that was admitted wakes a worker, which begins it when its task's turn comes. Only a few are woken at a time.
//! What is admitted beyond that waits here in a lane for each client, and the lanes take turns: one request each. So a
//! client with a single request has at most those few and one of each other client before it, however many the others
//! have been admitted with.

use crate::Inner;
use crate::clients::Caller;
use crate::id_map::IdMap;
use crate::metrics::raise;
use crate::request::Request;
use crate::server::{Running, Served};
use core::cell::{Cell, RefCell};
#[cfg(test)]
use core::hash::BuildHasher;
use std::collections::VecDeque;
use std::rc::Rc;

/// Requests whose workers are awake and that have not begun: what one client has under way with all its credits, so that
/// nothing waits in a lane for a client that is alone.
pub(crate) const WOKEN_MAX: usize = crate::config::CREDITS_DEFAULT;

/// More of these that urgent requests may use: as many as a client's reserve of urgent credits has, of two clients.
pub(crate) const WOKEN_URGENT: usize = 8;

/// A request that waits for its turn.
struct Waiting {
    served: Rc<Served>,
    running: Running,
    request: Request,
}

/// Clients with waiting requests, and the order of their turns.
struct Lanes {
    waiting: IdMap<Caller, VecDeque<Waiting>>,
    /// Each of them once, next one first.
    ring: VecDeque<Caller>,
}

impl Lanes {
    fn push(&mut self, client: Caller, waiting: Waiting) {
        let lane = self.waiting.entry(client).or_default();
        if lane.is_empty() {
            self.ring.push_back(client);
        }
        lane.push_back(waiting);
    }

    fn pop(&mut self) -> Option<Waiting> {
        let client = self.ring.pop_front()?;
        let lane = self.waiting.get_mut(&client)?;
        let waiting = lane.pop_front();
        if lane.is_empty() {
            self.waiting.remove(&client);
        } else {
            self.ring.push_back(client);
        }
        waiting
    }
}

/// The order in which a context's admitted requests begin.
pub(crate) struct Turns {
    /// Requests whose workers are awake and that have not begun.
    woken: Cell<usize>,
    /// Those among them that move no memory.
    small: Cell<usize>,
    /// Requests that have begun so far.
    begun: Cell<u64>,
    lanes: RefCell<Lanes>,
}

impl Turns {
    /// No requests; `seed` is secret.
    pub(crate) fn new(seed: u64) -> Self {
        let lanes = Lanes { waiting: IdMap::with_hasher(seed.into()), ring: VecDeque::new() };
        let [woken, small] = [0, 0].map(Cell::new);
        Self { woken, small, begun: Cell::new(0), lanes: RefCell::new(lanes) }
    }

    /// Where a name falls.
    #[cfg(test)]
    pub(crate) fn hash(&self, client: Caller) -> u64 {
        self.lanes.borrow().waiting.hasher().hash_one(client)
    }

    /// Requests that have begun so far.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.get()
    }

    /// Whether a request that moves no memory is about to begin.
    pub(crate) fn has_small(&self) -> bool {
        self.small.get() > 0
    }

    /// A worker is woken for a request.
    fn wake(&self, running: &Running) {
        self.woken.set(self.woken.get() + 1);
        self.small.set(self.small.get() + usize::from(running.is_small()));
    }

    fn has_waiting(&self) -> bool {
        !self.lanes.borrow().ring.is_empty()
    }

    /// Nobody gets a turn any more. Returned to be dropped by the caller, because requests come back here.
    pub(crate) fn close(&self) -> impl Sized + use<> {
        let lanes = &mut *self.lanes.borrow_mut();
        lanes.ring.clear();
        core::mem::take(&mut lanes.waiting)
    }
}

impl Inner {
    /// Has an admitted request executed when its client's turn has come; at once, where nobody waits; and in place, where it is
    /// `short` and no worker is about to begin.
    #[inline(always)]
    pub(crate) fn queue(
        &self,
        served: Rc<Served>,
        client: Caller,
        running: Running,
        request: Request,
        short: bool,
    ) {
        let turns = &self.turns;
        let free = !turns.has_waiting() && turns.woken.get() < WOKEN_MAX;
        if free || served.urgent && turns.woken.get() < WOKEN_MAX + WOKEN_URGENT {
            let in_place = short && turns.woken.get() == 0;
            turns.wake(&running);
            served.counter.take(self, &served.handler, running, request, in_place);
            return;
        }
        let waiting = Waiting { served, running, request };
        turns.lanes.borrow_mut().push(client, waiting);
    }

    /// A request begins, which moves no memory if it is `small`. `lone`: how many had begun when it came, where its client had no
    /// other under way.
    #[inline]
    pub(crate) fn begun(&self, lone: Option<u64>, small: bool) {
        let turns = &self.turns;
        let begun = turns.begun.get();
        turns.begun.set(begun + 1);
        turns.woken.set(turns.woken.get().saturating_sub(1));
        turns.small.set(turns.small.get().saturating_sub(usize::from(small)));
        if let Some(before) = lone {
            raise(&self.metrics.passed_max, begun.saturating_sub(before));
        }
        if turns.has_waiting() {
            self.wake_next();
        }
    }

    /// Gives the next client in turn its worker.
    #[cold]
    fn wake_next(&self) {
        let turns = &self.turns;
        while turns.woken.get() < WOKEN_MAX {
            let next = turns.lanes.borrow_mut().pop();
            let Some(Waiting { served, running, request }) = next else { return };
            turns.wake(&running);
            served.counter.take(self, &served.handler, running, request, false);
        }
    }
}
