//! Admitted requests that wait for a worker. Clients are served round-robin, one request each.

use crate::maps::IdMap;
use crate::wire::Caller;
use core::cell::Cell;
#[cfg(test)]
use core::hash::BuildHasher;
use std::collections::VecDeque;

/// One queue for each client that has waiting requests, and the round-robin order of these clients.
pub(crate) struct FairQueue<T> {
    waiting: IdMap<Caller, VecDeque<T>>,
    /// Each client with a queue stands here once; the front is served next.
    ring: VecDeque<Caller>,
}

impl<T> FairQueue<T> {
    /// An empty queue. `seed` is secret: clients choose the keys that are hashed.
    pub(crate) fn new(seed: u64) -> Self {
        Self { waiting: IdMap::with_hasher(seed.into()), ring: VecDeque::new() }
    }

    /// The hash of a client's name.
    #[cfg(test)]
    pub(crate) fn hash(&self, client: Caller) -> u64 {
        self.waiting.hasher().hash_one(client)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    pub(crate) fn push(&mut self, client: Caller, waiting: T) {
        let lane = self.waiting.entry(client).or_default();
        if lane.is_empty() {
            self.ring.push_back(client);
        }
        lane.push_back(waiting);
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
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

    /// Removes all requests. The caller drops them, because dropping a request may call this queue.
    pub(crate) fn clear(&mut self) -> impl Sized + use<T> {
        self.ring.clear();
        core::mem::take(&mut self.waiting)
    }
}

/// Counts requests from the waking of their worker to their beginning.
#[derive(Default)]
pub(crate) struct Backlog {
    /// Requests whose worker is awake and that have not begun.
    woken: Cell<usize>,
    /// Requests among them that move no client memory.
    small: Cell<usize>,
    /// Requests that have begun so far.
    begun: Cell<u64>,
}

impl Backlog {
    /// Requests whose worker is awake and that have not begun.
    pub(crate) fn woken(&self) -> usize {
        self.woken.get()
    }

    /// Requests that have begun so far.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.get()
    }

    /// Whether a request that moves no client memory is about to begin.
    pub(crate) fn has_small(&self) -> bool {
        self.small.get() > 0
    }

    /// A worker is woken for a request. `small`: the request moves no client memory.
    pub(crate) fn wake(&self, small: bool) {
        self.woken.set(self.woken.get() + 1);
        self.small.set(self.small.get() + usize::from(small));
    }

    /// A request begins whose worker was woken. Returns how many requests had begun before.
    #[inline]
    pub(crate) fn begin(&self, small: bool) -> u64 {
        debug_assert!(self.woken.get() > 0, "a request begins for which no worker was woken");
        debug_assert!(
            self.small.get() >= usize::from(small),
            "a small request begins that was counted as another"
        );
        let begun = self.begun.get();
        self.begun.set(begun + 1);
        self.woken.set(self.woken.get() - 1);
        self.small.set(self.small.get() - usize::from(small));
        begun
    }
}
