//! Probing, passing news on and comparing tables.

use super::config::{FANOUT, GREET_EVERY, RELAYS, WAVES};
use super::{Action, Member, Swim};
use core::time::Duration;
use weir_proto::Rank;
use weir_proto::group::{GroupAck, GroupPing, GroupRelay, GroupSync, MemberState, MemberUpdate};
use weir_runtime::random::mix;
use weir_runtime::{Instant, nanos};

/// Names a probe; answers to messages outside of any probe carry [`ProbeId::NONE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct ProbeId(u64);

impl ProbeId {
    /// No probe: news, greetings.
    pub const NONE: Self = Self(0);

    #[cfg(test)]
    pub(super) const fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// A probe under way.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) id: ProbeId,
    target: usize,
    /// Which life of the target is probed.
    incarnation: u64,
    /// Tries so far.
    waves: u8,
    gap: Duration,
    next_wave: Instant,
    ends: Instant,
    /// Relays that were asked.
    asked: u32,
    /// Relays that answered, with the target's answer or without.
    pub(super) replies: u32,
}

impl Probe {
    pub(super) fn next(&self) -> Instant {
        if self.waves < WAVES { self.next_wave } else { self.ends }
    }
}

/// Wall-clock periods have distances that look random.
fn scramble(period: u64) -> u64 {
    mix(period.wrapping_add(0x9e37_79b9_7f4a_7c15))
}

impl Swim {
    /// Goes on with the probe under way, ends it, and begins the next one.
    pub(super) fn drive_probe(&mut self, now: Instant, wall_ns: u64, actions: &mut Vec<Action>) {
        if let Some(probe) = &self.probe {
            if probe.ends <= now {
                self.probe_failed(now);
            } else if probe.waves < WAVES && probe.next_wave <= now {
                self.wave(now, actions);
            }
        }
        if self.probe.is_none()
            && let Some((target, _)) = self.urgent.take()
            && self.table.get(target).state == MemberState::Suspect
        {
            self.begin(now, target, actions);
        }
        if self.probe.is_some() || now < self.next_probe {
            return;
        }
        let period = self.config.period * self.health.multiplier();
        self.next_probe += period;
        if self.next_probe <= now {
            self.next_probe = now + period;
        }
        self.periods += 1;
        if let Some(target) = self.choose(wall_ns) {
            self.begin(now, target, actions);
        }
        if self.periods.is_multiple_of(GREET_EVERY) {
            self.greet(actions);
        }
    }

    /// Begins a probe.
    fn begin(&mut self, now: Instant, target: usize, actions: &mut Vec<Action>) {
        let Member { round_trip_us, incarnation, .. } = *self.table.get(target);
        let usual = Duration::from_micros(round_trip_us.into());
        let gap = (usual * 4).clamp(self.config.gap_min(), self.config.gap_max());
        let gap = gap * self.health.multiplier();
        let ends = now + gap * u32::from(WAVES);
        self.probes += 1;
        let id = ProbeId(self.probes);
        self.probe = Some(Probe {
            id,
            target,
            incarnation,
            waves: 0,
            gap,
            next_wave: now,
            ends,
            asked: 0,
            replies: 0,
        });
        self.wave(now, actions);
    }

    /// The member to probe: in each period of the wall clock all members look the same distance around the ring, so
    /// that each is probed by one. Dead ones are passed over.
    fn choose(&self, wall_ns: u64) -> Option<usize> {
        let members = self.table.all().len();
        if members < 2 {
            return None;
        }
        let period = nanos(self.config.period).max(1);
        let distance = scramble(wall_ns / period) % (members as u64 - 1) + 1;
        let first = self.own + usize::try_from(distance).unwrap_or(1);
        (0..members)
            .map(|step| (first + step) % members)
            .find(|index| *index != self.own && self.table.get(*index).state != MemberState::Dead)
    }

    /// One try: a ping, and from the second try on others are asked to ping too.
    fn wave(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let Some(probe) = &mut self.probe else { return };
        let (id, target, first) = (probe.id, probe.target, probe.waves == 0);
        probe.waves += 1;
        probe.next_wave = now + probe.gap;
        let (limit, gap) = (probe.ends - now, probe.gap);
        let to = self.table.get(target).rank;
        let ping = self.ping_for(target);
        actions.push(Action::Ping { probe: id, to, limit, ping });
        if first {
            return;
        }
        let mut relays = [None; RELAYS];
        self.draw(&mut relays, |state| state == MemberState::Alive, target);
        for via in relays.into_iter().flatten() {
            if let Some(probe) = &mut self.probe {
                probe.asked += 1;
            }
            let limit_ms = u32::try_from(gap.as_millis()).unwrap_or(u32::MAX);
            let relay = GroupRelay { target: to, limit_ms, ping: self.ping_for(via) };
            actions.push(Action::Relay { probe: id, via: self.table.get(via).rank, limit, relay });
        }
    }

    /// Draws different members of a kind, neither this one nor `except`.
    fn draw(&self, drawn: &mut [Option<usize>], kind: impl Fn(MemberState) -> bool, except: usize) {
        let members = self.table.all();
        for at in 0..drawn.len() {
            // Dead members are few, so that some tries find one; where they are many, fewer members do.
            for _ in 0..4 {
                let index = usize::try_from(self.random.below(members.len() as u64)).unwrap_or(0);
                let taken = index == self.own || index == except || drawn.contains(&Some(index));
                if !taken && kind(members[index].state) {
                    drawn[at] = Some(index);
                    break;
                }
            }
        }
    }

    /// An answer came from a member.
    pub(super) fn answered(&mut self, id: ProbeId, index: usize, indirect: bool) {
        if self.probe.as_ref().is_none_or(|probe| probe.id != id || probe.target != index) {
            return;
        }
        self.probe = None;
        self.health.improve();
        if indirect {
            self.stats.probes_indirect += 1;
        } else {
            self.stats.probes_direct += 1;
        }
    }

    /// The time of a probe is over.
    fn probe_failed(&mut self, now: Instant) {
        let Some(probe) = self.probe.take() else { return };
        self.stats.probes_failed += 1;
        if probe.asked > 0 && probe.replies == 0 {
            // No member answered, not even those that were only asked to ping: it may be this member's own fault.
            self.health.worsen();
        }
        let member = self.table.get(probe.target);
        // A member that was restarted or has objected meanwhile is another one than did not answer.
        let same = member.incarnation == probe.incarnation;
        if same && matches!(member.state, MemberState::Alive | MemberState::Suspect) {
            let update = MemberUpdate { state: MemberState::Suspect, by: self.rank, ..member.update() };
            self.apply(now, &update, true);
        }
    }

    /// Looks whether a member that was dead, or was never heard of, is there after all.
    fn greet(&mut self, actions: &mut Vec<Action>) {
        let absent = |state| matches!(state, MemberState::Dead | MemberState::Unknown);
        let members = self.table.all();
        let count = members.iter().filter(|member| absent(member.state)).count() as u64;
        if count == 0 {
            return;
        }
        let chosen = usize::try_from(self.random.below(count)).unwrap_or(0);
        let Some(index) =
            members.iter().enumerate().filter(|(_, member)| absent(member.state)).nth(chosen).map(|(i, _)| i)
        else {
            return;
        };
        let (to, limit) = (self.table.get(index).rank, self.config.gap_max());
        let ping = self.ping_for(index);
        actions.push(Action::Ping { probe: ProbeId::NONE, to, limit, ping });
    }

    /// Sends news to some members.
    pub(super) fn spread(&mut self, actions: &mut Vec<Action>) {
        let mut chosen = [None; FANOUT];
        self.draw(&mut chosen, |state| state != MemberState::Dead, self.own);
        for index in chosen.into_iter().flatten() {
            if self.gossip.is_empty() {
                break;
            }
            let (to, limit) = (self.table.get(index).rank, self.config.gap_max());
            let ping = self.ping_for(index);
            actions.push(Action::Ping { probe: ProbeId::NONE, to, limit, ping });
        }
    }

    /// Asks for a table that differs.
    pub(super) fn drive_sync(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if self.wanted.is_some() && now < self.next_sync {
            return;
        }
        if let Some((to, start)) = self.wanted.take() {
            self.next_sync = now + self.config.period;
            self.stats.syncs += 1;
            actions.push(Action::Sync { to, sync: GroupSync { from: self.rank, start } });
        }
    }

    /// Looks whether the sender's table differs though no news is on its way, or more than gets through.
    pub(super) fn compare(&mut self, ack: &GroupAck) {
        let settled = self.gossip.is_empty() || self.gossip.is_crowded();
        if settled && ack.digest != self.table.digest() && self.wanted.is_none() {
            self.wanted = Some((ack.from, 0));
        }
    }

    /// A message to a member: if it is suspected it hears that first, so that it can object.
    pub(super) fn ping_for(&mut self, index: usize) -> GroupPing {
        let updates = self.news_for(index);
        GroupPing { from: self.rank, incarnation: self.incarnation, digest: self.table.digest(), updates }
    }

    pub(super) fn ack_for(&mut self, to: Rank) -> GroupAck {
        let updates = match self.table.index(to) {
            Some(index) => self.news_for(index),
            None => Vec::new(),
        };
        GroupAck { from: self.rank, incarnation: self.incarnation, digest: self.table.digest(), updates }
    }

    fn news_for(&mut self, index: usize) -> Vec<MemberUpdate> {
        let mut updates = Vec::new();
        let member = self.table.get(index);
        if index != self.own && matches!(member.state, MemberState::Suspect | MemberState::Dead) {
            updates.push(member.update());
        }
        self.gossip.fill(&mut updates);
        updates
    }
}
