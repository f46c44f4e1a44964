//! What a change that is being made holds of device and pool until it is committed or given up.

use crate::format::blocks::{Run, Runs};
use crate::format::key::PoolNumber;
use crate::state::core::Core;
use std::rc::Rc;

/// Blocks and bytes of a pool's share.
pub(crate) struct Reservation {
    core: Rc<Core>,
    pool: PoolNumber,
    bytes: u64,
    runs: Runs,
}

impl Reservation {
    /// Blocks that were allocated for a pool.
    pub(crate) fn of_runs(core: &Rc<Core>, pool: PoolNumber, runs: Runs) -> Self {
        Self { core: Rc::clone(core), pool, bytes: 0, runs }
    }

    /// Has so many bytes of the pool's share count as taken.
    pub(crate) fn take(&mut self, bytes: u64) {
        if let Some(pool) = self.core.catalog.borrow_mut().pools.get_mut(&self.pool) {
            pool.reserved += bytes;
            self.bytes += bytes;
        }
    }

    /// Takes more blocks, which were allocated for the pool.
    pub(crate) fn extend(&mut self, runs: &[Run]) {
        self.runs.extend_from_slice(runs);
    }

    /// The blocks.
    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The blocks belong to the index now.
    pub(crate) fn keep(&mut self) {
        self.runs.clear();
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut space = self.core.space.borrow_mut();
        self.runs.iter().for_each(|run| space.release(*run));
        if let Some(pool) = self.core.catalog.borrow_mut().pools.get_mut(&self.pool) {
            pool.reserved -= self.bytes;
        }
    }
}
