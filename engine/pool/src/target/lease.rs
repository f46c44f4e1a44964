//! The lease of a pool's map that a target holds.

use weir_proto::pool::{PoolMap, PoolTarget, TargetState};
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
    /// forgotten: it serves nothing until the map says what it is. One in doubt doesn't know, either; but those who fill places of
    /// others have to hear that it has started, since what it shows alone is to be at them.
    #[must_use]
    pub fn lacks_knowledge(&self) -> bool {
        self.is_leased && !self.is_whole.get() && self.counts_as_sure.get()
    }

    /// Takes note of what a map has this target for.
    pub(super) fn note_own_state(&self) {
        let own = (self.engines.own_rank(), self.engines.own_index());
        let state = |map: &PoolMap| {
            let target = map.targets.iter().find(|target| (target.rank, target.index) == own);
            let moves = map.moves_since().is_some_and(|since| since <= self.loaded);
            let is_sure = target.is_some_and(|target| target.state.serves() && (!target.in_doubt || moves));
            let gets = |target: &&PoolTarget| target.state == TargetState::Up || target.gains_all();
            (is_sure, target.filter(gets).map(|target| target.since))
        };
        let (is_sure, up) = self.with_map(state);
        self.counts_as_sure.set(is_sure);
        self.own_up.set(up);
    }

    /// Whether the target may have caught up already since the map calls it up, before it started: the pool's service may know,
    /// and count on it. It changes nothing that it has before the service calls it up anew.
    #[must_use]
    pub fn may_have_caught_up(&self) -> bool {
        self.is_leased && !self.is_whole.get() && self.own_up.get().is_some_and(|up| up <= self.loaded)
    }

    /// Whether the target takes part in transactions of groups: one that is up has first to forget what only it knows of them.
    #[must_use]
    pub fn has_rolled_back(&self) -> bool {
        self.own_up.get().is_none_or(|up| self.rolled_back.get() == Some(up))
    }

    /// What only this target knew of transactions is forgotten, as one that the map calls up since this version.
    pub fn set_rolled_back(&self, since: u32) {
        self.rolled_back.set(Some(since));
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
