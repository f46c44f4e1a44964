//! The lease of a pool's map that a target holds.

use weir_proto::pool::PoolMap;
use weir_runtime::Instant;

use super::TargetPool;

impl TargetPool {
    /// Whether the pool is served only under a lease of its map: that of a pool with replicas.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        self.is_leased
    }

    /// Whether the pool may be served at a time: by the target's lease, or because it needs none.
    #[must_use]
    pub fn holds_lease(&self, now: Instant) -> bool {
        !self.is_leased || self.lease.get().is_some_and(|(until, _)| until > now)
    }

    /// Whether the map takes this target for one that knows which changes are settled, though it has started again and has
    /// forgotten: it serves nothing until the map says what it is.
    #[must_use]
    pub fn lacks_knowledge(&self) -> bool {
        self.is_leased && !self.is_whole.get() && self.counts_as_sure.get()
    }

    /// Takes note of what a map has this target for.
    pub(super) fn note_own_state(&self) {
        let own = (self.engines.own_rank(), self.engines.own_index());
        let is_sure = |map: &PoolMap| {
            let target = map.targets.iter().find(|target| (target.rank, target.index) == own);
            target.is_some_and(|target| target.state.serves() && !target.in_doubt)
        };
        self.counts_as_sure.set(self.with_map(is_sure));
    }

    /// When the target's lease ends, and by which version of the map it was granted.
    pub(crate) fn lease(&self) -> Option<(Instant, u32)> {
        self.lease.get()
    }

    /// Takes note of a lease that was granted for a version of the map.
    pub(crate) fn take_lease(&self, until: Instant, version: u32) {
        if self.lease.get().is_none_or(|(known, _)| known < until) {
            self.lease.set(Some((until, version)));
        }
    }
}
