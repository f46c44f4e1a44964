//! News that is still being passed on.

use super::config::PIGGYBACK_MAX;
use weir_proto::Rank;
use weir_proto::group::{MemberState, MemberUpdate};

/// Each piece of news is sent this often for each doubling of the number of members (SWIM's λ).
const REPEATS: u32 = 3;

#[derive(Clone, Copy, Debug)]
struct Item {
    update: MemberUpdate,
    sent: u32,
}

/// The news that this member passes on, each piece a limited number of times.
#[derive(Debug)]
pub(super) struct Gossip {
    items: Vec<Item>,
    limit: u32,
}

impl Gossip {
    pub(super) fn new(members: usize) -> Self {
        let doublings = usize::BITS - members.leading_zeros();
        Self { items: Vec::new(), limit: REPEATS * doublings }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether there is more than gets through soon; then whole tables are the better way.
    pub(super) const fn is_crowded(&self) -> bool {
        self.items.len() > 2 * PIGGYBACK_MAX
    }

    /// Passes this on from now on. It replaces what was said of that member before; suspicions of several members
    /// stand beside each other.
    pub(super) fn push(&mut self, update: MemberUpdate) {
        let confirms = |old: &MemberUpdate| {
            (old.incarnation, old.state) == (update.incarnation, update.state)
                && update.state == MemberState::Suspect
                && old.by != update.by
        };
        self.items.retain(|item| item.update.rank != update.rank || confirms(&item.update));
        self.items.push(Item { update, sent: 0 });
    }

    /// Puts the least-told news into a message, at most as much as there is room for.
    pub(super) fn fill(&mut self, updates: &mut Vec<MemberUpdate>) {
        if self.items.is_empty() {
            return;
        }
        self.items.sort_by_key(|item| item.sent);
        let room = PIGGYBACK_MAX.saturating_sub(updates.len());
        for item in self.items.iter_mut().take(room) {
            item.sent += 1;
            if !updates.contains(&item.update) {
                updates.push(item.update);
            }
        }
        let limit = self.limit;
        self.items.retain(|item| item.sent < limit);
    }

    /// Stops passing on what is said of a member.
    pub(super) fn forget(&mut self, rank: Rank) {
        self.items.retain(|item| item.update.rank != rank);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(rank: u32, state: MemberState, by: u32) -> MemberUpdate {
        MemberUpdate { rank: Rank(rank), incarnation: 1, state, by: Rank(by) }
    }

    fn take(gossip: &mut Gossip) -> Vec<MemberUpdate> {
        let mut updates = Vec::new();
        gossip.fill(&mut updates);
        updates
    }

    #[test]
    fn news_is_told_a_limited_number_of_times_and_the_least_told_goes_first() {
        let mut gossip = Gossip::new(1024);
        gossip.push(update(1, MemberState::Dead, 0));
        for _ in 0..5 {
            assert_eq!(take(&mut gossip).len(), 1);
        }
        for rank in 2..12 {
            gossip.push(update(rank, MemberState::Dead, 0));
        }
        let first = take(&mut gossip);
        assert_eq!(first.len(), PIGGYBACK_MAX);
        assert!(first.iter().all(|update| update.rank != Rank(1)), "rank 1 was told before");
        let told = (0..1000).map(|_| take(&mut gossip).len()).sum::<usize>();
        assert_eq!(told + 5 + PIGGYBACK_MAX, 11 * 33, "11 pieces, 3 times for each of 11 doublings");
        assert!(gossip.is_empty());
    }

    #[test]
    fn later_news_of_a_member_replaces_what_was_said_before_but_suspicions_add_up() {
        let mut gossip = Gossip::new(8);
        gossip.push(update(1, MemberState::Suspect, 2));
        gossip.push(update(1, MemberState::Suspect, 3));
        gossip.push(update(1, MemberState::Suspect, 3));
        assert_eq!(take(&mut gossip).len(), 2);
        gossip.push(update(1, MemberState::Dead, 4));
        assert_eq!(take(&mut gossip), [update(1, MemberState::Dead, 4)]);
        gossip.forget(Rank(1));
        assert!(gossip.is_empty());
    }
}
