//! What is known of each member.

use core::time::Duration;
use weir_proto::Rank;
use weir_proto::group::{MemberState, MemberUpdate};
use weir_runtime::Instant;
use weir_runtime::random::mix;

/// One member as this one sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its number.
    pub rank: Rank,
    /// Which life of it; 0 while it is unknown.
    pub incarnation: u64,
    /// What it is believed to be.
    pub state: MemberState,
    /// The members that said so first-hand.
    pub by: Rank,
    /// Since when it has been believed here.
    pub since: Instant,
    /// Usual time of its answers in microseconds; 0 before the first.
    pub round_trip_us: u32,
}

impl Member {
    /// This, as it is told to others.
    pub(super) fn update(&self) -> MemberUpdate {
        MemberUpdate { rank: self.rank, incarnation: self.incarnation, state: self.state, by: self.by }
    }

    /// Lets one more measured round trip count for an eighth, as TCP does.
    pub(super) fn measured(&mut self, round_trip: Duration) {
        let us = u32::try_from(round_trip.as_micros()).unwrap_or(u32::MAX).clamp(1, u32::MAX / 8);
        self.round_trip_us =
            if self.round_trip_us == 0 { us } else { self.round_trip_us - self.round_trip_us / 8 + us / 8 };
    }
}

/// All members, by ascending rank.
#[derive(Debug)]
pub(super) struct Table {
    members: Vec<Member>,
    /// Ranks are 0 to n − 1: then a rank is its own index.
    dense: bool,
    digest: u64,
}

/// One entry's part of the digest.
fn part(rank: Rank, incarnation: u64, state: MemberState) -> u64 {
    if state == MemberState::Unknown {
        return 0;
    }
    let told = incarnation.wrapping_mul(4).wrapping_add(state as u64);
    mix(told.wrapping_add(u64::from(rank.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

impl Table {
    pub(super) fn new(ranks: &[Rank], now: Instant) -> Self {
        let mut ranks = ranks.to_vec();
        ranks.sort_unstable();
        ranks.dedup();
        let dense = ranks.iter().zip(0..).all(|(rank, index)| rank.0 == index);
        let members = ranks.into_iter().map(|rank| Member {
            rank,
            incarnation: 0,
            state: MemberState::Unknown,
            by: rank,
            since: now,
            round_trip_us: 0,
        });
        Self { members: members.collect(), dense, digest: 0 }
    }

    pub(super) fn index(&self, rank: Rank) -> Option<usize> {
        if self.dense {
            return usize::try_from(rank.0).ok().filter(|index| *index < self.members.len());
        }
        self.members.binary_search_by_key(&rank, |member| member.rank).ok()
    }

    pub(super) fn all(&self) -> &[Member] {
        &self.members
    }

    pub(super) fn get(&self, index: usize) -> &Member {
        &self.members[index]
    }

    pub(super) fn get_mut(&mut self, index: usize) -> &mut Member {
        &mut self.members[index]
    }

    pub(super) const fn digest(&self) -> u64 {
        self.digest
    }

    /// Believes an update if it is later than what is believed: a higher incarnation, or a later state of the same.
    pub(super) fn merge(&mut self, index: usize, update: &MemberUpdate, now: Instant) -> bool {
        let member = &mut self.members[index];
        if (update.incarnation, update.state) <= (member.incarnation, member.state) {
            return false;
        }
        self.digest ^= part(member.rank, member.incarnation, member.state)
            ^ part(member.rank, update.incarnation, update.state);
        if member.state != update.state {
            member.since = now;
        }
        (member.incarnation, member.state, member.by) = (update.incarnation, update.state, update.by);
        true
    }
}
