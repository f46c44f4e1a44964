//! Pools whose history comes from another target, or goes to one.

use crate::format::key::PoolNumber;
use core::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use weir_runtime::Instant;

/// What is under way with the history of pools.
#[derive(Debug, Default)]
pub(crate) struct Fills {
    /// Pools that are being filled, each with the epoch from which on all changes come from leaders.
    filled: RefCell<BTreeMap<PoolNumber, Fill>>,
    /// Pools whose history is read out, each with the time until which it stays as it is.
    held: RefCell<BTreeMap<PoolNumber, Instant>>,
}

/// What is known of a pool that is being filled.
#[derive(Debug, Default)]
struct Fill {
    /// All changes of later epochs come from leaders.
    since: u64,
    /// Epochs, up to that one, of transactions that were committed meanwhile. They are few: such a transaction began before, and is
    /// decided within seconds.
    committed: BTreeSet<u64>,
}

impl Fills {
    /// A pool is being filled. All changes behind `since` come from leaders; the greatest epoch begins it anew.
    pub(crate) fn begin(&self, pool: PoolNumber, since: u64) {
        let mut filled = self.filled.borrow_mut();
        let fill = filled.entry(pool).or_default();
        fill.since = since;
        if since == u64::MAX {
            fill.committed.clear();
        }
    }

    /// A transaction of this epoch is committed.
    pub(crate) fn note_commit(&self, pool: PoolNumber, epoch: u64) {
        if let Some(fill) = self.filled.borrow_mut().get_mut(&pool)
            && epoch <= fill.since
        {
            fill.committed.insert(epoch);
        }
    }

    /// Whether a transaction of this epoch was committed since the pool is being filled.
    pub(crate) fn is_committed(&self, pool: PoolNumber, epoch: u64) -> bool {
        self.filled.borrow().get(&pool).is_some_and(|fill| fill.committed.contains(&epoch))
    }

    /// A pool has all that it is to have.
    pub(crate) fn end(&self, pool: PoolNumber) {
        self.filled.borrow_mut().remove(&pool);
    }

    /// The epoch from which on all changes of a pool come from leaders; `None`: the pool isn't being filled.
    pub(crate) fn since(&self, pool: PoolNumber) -> Option<u64> {
        self.filled.borrow().get(&pool).map(|fill| fill.since)
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
