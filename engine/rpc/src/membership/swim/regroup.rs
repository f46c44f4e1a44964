//! Another list of members.

use super::gossip::Gossip;
use super::table::Table;
use super::{MemberUpdate, Swim};
use weir_proto::Rank;
use weir_proto::group::MemberState;
use weir_runtime::Instant;

impl Swim {
    /// Goes on with another list of members. Knowledge of members that stay is kept. Suspicions and the probe under way
    /// begin anew, since both go by the old list. Members that are not listed any more are forgotten.
    pub fn regroup(&mut self, now: Instant, ranks: &[Rank]) {
        let mut ranks = ranks.to_vec();
        ranks.push(self.rank);
        let mut table = Table::new(&ranks, now);
        for member in self.table.all() {
            let Some(index) = table.index(member.rank) else { continue };
            // A member that still suspects it says so again.
            let state = if member.state == MemberState::Suspect { MemberState::Alive } else { member.state };
            table.merge(index, &MemberUpdate { state, ..member.update() }, now);
            let kept = table.get_mut(index);
            (kept.since, kept.round_trip_us) = (member.since, member.round_trip_us);
        }
        self.own = table.index(self.rank).unwrap_or(0);
        self.gossip = Gossip::new(table.all().len());
        self.table = table;
        self.suspicions.clear();
        (self.probe, self.urgent, self.wanted) = (None, None, None);
        // Those that are new have not heard of this one.
        self.announce(now);
        self.promise(now);
    }
}
