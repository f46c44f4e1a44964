//! Requests that were admitted and wait for a worker: the clients take turns, one request each.

use crate::maps::IdMap;
use crate::wire::Caller;
use core::cell::Cell;
#[cfg(test)]
use core::hash::BuildHasher;
use std::collections::VecDeque;

/// Clients with waiting requests, and the order of their turns.
pub(crate) struct FairQueue<T> {
    waiting: IdMap<Caller, VecDeque<T>>,
    /// Each of them once, next one first.
    ring: VecDeque<Caller>,
}

impl<T> FairQueue<T> {
    /// An empty queue; `seed` is secret.
    pub(crate) fn new(seed: u64) -> Self {
        Self { waiting: IdMap::with_hasher(seed.into()), ring: VecDeque::new() }
    }

    /// Where a name falls.
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

    /// Takes everything out. Returned to be dropped by the caller, because requests come back to their queue.
    pub(crate) fn clear(&mut self) -> impl Sized + use<T> {
        self.ring.clear();
        core::mem::take(&mut self.waiting)
    }
}

/// How many requests are between a worker that was woken and their beginning.
#[derive(Default)]
pub(crate) struct Backlog {
    /// Requests whose workers are awake and that have not begun.
    woken: Cell<usize>,
    /// Those among them that move no memory.
    small: Cell<usize>,
    /// Requests that have begun so far.
    begun: Cell<u64>,
}

impl Backlog {
    /// Requests whose workers are awake and that have not begun.
    pub(crate) fn woken(&self) -> usize {
        self.woken.get()
    }

    /// Requests that have begun so far.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.get()
    }

    /// Whether a request that moves no memory is about to begin.
    pub(crate) fn has_small(&self) -> bool {
        self.small.get() > 0
    }

    /// A worker is woken for a request, which moves no memory if it is `small`.
    pub(crate) fn wake(&self, small: bool) {
        self.woken.set(self.woken.get() + 1);
        self.small.set(self.small.get() + usize::from(small));
    }

    /// A request begins that a worker was woken for. Returns how many had begun before.
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
