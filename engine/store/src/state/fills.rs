//! Pools whose history comes from another target, or goes to one.

use crate::format::key::PoolNumber;
use core::cell::RefCell;
use std::collections::BTreeMap;
use weir_runtime::Instant;

/// What is under way with the history of pools.
#[derive(Debug, Default)]
pub(crate) struct Fills {
    /// Pools that are being filled, each with the epoch from which on all changes come from leaders.
    filled: RefCell<BTreeMap<PoolNumber, u64>>,
    /// Pools whose history is read out, each with the time until which it stays as it is.
    held: RefCell<BTreeMap<PoolNumber, Instant>>,
}

impl Fills {
    /// A pool is being filled. All changes behind `since` come from leaders.
    pub(crate) fn begin(&self, pool: PoolNumber, since: u64) {
        self.filled.borrow_mut().insert(pool, since);
    }

    /// A pool has all that it is to have.
    pub(crate) fn end(&self, pool: PoolNumber) {
        self.filled.borrow_mut().remove(&pool);
    }

    /// The epoch from which on all changes of a pool come from leaders; `None`: the pool isn't being filled.
    pub(crate) fn since(&self, pool: PoolNumber) -> Option<u64> {
        self.filled.borrow().get(&pool).copied()
    }

    /// The history of a pool stays as it is until then.
    pub(crate) fn hold(&self, pool: PoolNumber, until: Instant) {
        let mut held = self.held.borrow_mut();
        let known = held.entry(pool).or_insert(until);
        *known = until.max(*known);
    }

    /// Whether aggregation may go on with a pool.
    pub(crate) fn may_aggregate(&self, pool: PoolNumber, now: Instant) -> bool {
        let is_held = self.held.borrow().get(&pool).is_some_and(|until| now < *until);
        !is_held && self.since(pool).is_none()
    }
}
