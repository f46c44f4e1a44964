//! Membership by SWIM, as a pure state machine: it is told the time and what arrived, and says what to send.
//!
//! Each period every member probes one other, and is probed by one: the members agree on a distance around the ring of
//! ranks for each period of the wall clock. A failed probe makes a suspect, which has some seconds to object by raising
//! its incarnation. A suspect that does not object is dead. News travels with probes and, while there is any, to three
//! random members at a time. Tables that differ when no news is left are compared.
//!
//! Sources: SWIM (Das, Gupta, Motivala, DSN 2002); Lifeguard (Dadgar, Phillips, Currey, DSN 2018) for local health,
//! the confirmed suspicion and telling a suspect first; the paper's §2.2 for its place in the RPC layer.

mod config;
mod gossip;
mod health;
mod probe;
mod regroup;
mod suspicion;
mod table;

pub use config::{FANOUT, PIGGYBACK_MAX, RELAYS, SwimConfig};
pub use probe::ProbeId;
pub use table::Member;

use config::SECOND_OPINIONS;
use core::time::Duration;
use gossip::Gossip;
use health::LocalHealth;
use probe::Probe;
use suspicion::Suspicion;
use table::Table;
use weir_proto::Rank;
use weir_proto::group::{
    GroupAck, GroupPing, GroupRelay, GroupRelayReply, GroupSync, GroupSyncReply, MemberState, MemberUpdate,
    SYNC_PAGE,
};
use weir_runtime::random::Random;
use weir_runtime::{Instant, nanos};

/// Highest incarnation that is ever believed. Incarnations are nanoseconds since 1970.
const INCARNATION_MAX: u64 = u64::MAX >> 1;

/// How far an accepted incarnation is ahead of the wall clock, at most: a hundred years. No clock of an earlier run was
/// so far ahead. When a member is reported dead in the highest acceptable incarnation, the next one is acceptable a
/// moment later.
const AHEAD_MAX: u64 = 100 * 365 * 86_400 * 1_000_000_000;

/// What is to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Ask a member whether it is there; its answer goes to [`Swim::on_ack`].
    Ping {
        /// Which probe it belongs to.
        probe: ProbeId,
        /// The member that is asked.
        to: Rank,
        /// How long an answer is of use.
        limit: Duration,
        /// The message.
        ping: GroupPing,
    },
    /// Ask a member to ask another; its answer goes to [`Swim::on_relay_reply`].
    Relay {
        /// Which probe it belongs to.
        probe: ProbeId,
        /// The member that is asked to ping.
        via: Rank,
        /// How long an answer is of use.
        limit: Duration,
        /// The message.
        relay: GroupRelay,
    },
    /// Ask a member for a page of its table; it goes to [`Swim::on_sync_reply`].
    Sync {
        /// The member that is asked.
        to: Rank,
        /// The message.
        sync: GroupSync,
    },
}

/// A member's state has changed in this one's eyes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberEvent {
    /// Which member.
    pub rank: Rank,
    /// Its incarnation now.
    pub incarnation: u64,
    /// What it was believed to be.
    pub before: MemberState,
    /// What it is believed to be.
    pub after: MemberState,
    /// The members that say so first-hand.
    pub by: Rank,
}

/// What happened so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwimStats {
    /// Probes that the member itself answered.
    pub probes_direct: u64,
    /// Probes that were answered through another member.
    pub probes_indirect: u64,
    /// Probes that no member answered.
    pub probes_failed: u64,
    /// Probes given up because this member itself stood still.
    pub probes_void: u64,
    /// Members suspected, by whomever.
    pub suspicions: u64,
    /// Suspects that turned out alive.
    pub suspicions_refuted: u64,
    /// Members declared dead, by whomever.
    pub deaths: u64,
    /// Times that this member was suspected or declared dead itself and objected.
    pub objections: u64,
    /// Times that this member stood still.
    pub stalls: u64,
    /// Tables asked for.
    pub syncs: u64,
    /// Messages and news that make no sense: unknown ranks, states of no life.
    pub invalid: u64,
}

/// One member's view of its group.
#[derive(Debug)]
pub struct Swim {
    config: SwimConfig,
    own: usize,
    rank: Rank,
    incarnation: u64,
    /// The highest one that is believed now.
    horizon: u64,
    left: bool,
    table: Table,
    gossip: Gossip,
    health: LocalHealth,
    random: Random,
    suspicions: Vec<Suspicion>,
    probe: Option<Probe>,
    /// Members to probe out of turn, and from when on.
    urgent: Option<(usize, Instant)>,
    probes: u64,
    periods: u64,
    next_probe: Instant,
    next_gossip: Instant,
    /// Whose table is to be asked for, and from where on.
    wanted: Option<(Rank, u32)>,
    next_sync: Instant,
    /// When this member wanted to go on at the latest.
    promised: Instant,
    events: Vec<MemberEvent>,
    stats: SwimStats,
}

/// The highest incarnation that is believed at this wall time.
const fn horizon(wall_ns: u64) -> u64 {
    let highest = wall_ns.saturating_add(AHEAD_MAX);
    if highest < INCARNATION_MAX { highest } else { INCARNATION_MAX }
}

impl Swim {
    /// The member `rank` of a group of `ranks`, of which nothing is known yet. `incarnation` must be higher than in
    /// any earlier life: nanoseconds since 1970. `seed` decides all that is left to chance.
    #[must_use]
    pub fn new(
        rank: Rank,
        ranks: &[Rank],
        incarnation: u64,
        config: SwimConfig,
        now: Instant,
        seed: u64,
    ) -> Self {
        let mut ranks = ranks.to_vec();
        ranks.push(rank);
        let table = Table::new(&ranks, now);
        let random = Random::new(seed);
        let spread = nanos(config.period);
        let next_probe = now + Duration::from_nanos(random.below(spread));
        let mut swim = Self {
            own: table.index(rank).unwrap_or(0),
            gossip: Gossip::new(table.all().len()),
            config,
            rank,
            incarnation: incarnation.clamp(1, INCARNATION_MAX),
            horizon: horizon(incarnation),
            left: false,
            table,
            health: LocalHealth::default(),
            random,
            suspicions: Vec::new(),
            probe: None,
            urgent: None,
            probes: 0,
            periods: 0,
            next_probe,
            next_gossip: now,
            wanted: None,
            next_sync: now,
            promised: Instant::FAR_FUTURE,
            events: Vec::new(),
            stats: SwimStats::default(),
        };
        swim.announce(now);
        swim
    }

    /// When [`Swim::poll`] has something to do at the latest.
    #[must_use]
    pub fn next(&self) -> Instant {
        let mut next = match (&self.probe, &self.urgent) {
            (Some(probe), _) => probe.next(),
            (None, Some((_, due))) => self.next_probe.min(*due),
            (None, None) => self.next_probe,
        };
        for suspicion in &self.suspicions {
            next = next.min(suspicion.deadline);
        }
        if !self.gossip.is_empty() {
            next = next.min(self.next_gossip);
        }
        if self.wanted.is_some() {
            next = next.min(self.next_sync);
        }
        next
    }

    /// Does what is due and says what to send. `wall_ns` is the wall clock, nanoseconds since 1970.
    pub fn poll(&mut self, now: Instant, wall_ns: u64, actions: &mut Vec<Action>) {
        self.horizon = horizon(wall_ns);
        self.progress(now);
        if !self.left {
            self.expire(now);
            self.drive_probe(now, wall_ns, actions);
            self.drive_sync(now, actions);
        }
        if !self.gossip.is_empty() && now >= self.next_gossip {
            self.next_gossip = now + self.config.gossip;
            self.spread(actions);
        }
        self.promise(now);
    }

    /// A member asks whether this one is there.
    pub fn on_ping(&mut self, now: Instant, ping: &GroupPing) -> GroupAck {
        self.progress(now);
        self.hear(now, ping.from, ping.incarnation, &ping.updates);
        let ack = self.ack_for(ping.from);
        self.promise(now);
        ack
    }

    /// A member answers a ping that was sent at `sent`.
    pub fn on_ack(&mut self, now: Instant, probe: ProbeId, to: Rank, sent: Instant, ack: &GroupAck) {
        self.progress(now);
        let known = self.table.index(to).filter(|index| *index != self.own && ack.from == to);
        let Some(index) = known else {
            self.stats.invalid += 1;
            return;
        };
        self.hear(now, ack.from, ack.incarnation, &ack.updates);
        self.table.get_mut(index).measured(now - sent);
        self.answered(probe, index, false);
        self.compare(ack);
        self.promise(now);
    }

    /// A member asks to have another one asked. What to send to that one; `None`: there is no such member.
    pub fn on_relay(&mut self, now: Instant, relay: &GroupRelay) -> Option<GroupPing> {
        self.progress(now);
        self.hear(now, relay.ping.from, relay.ping.incarnation, &relay.ping.updates);
        let target = self.table.index(relay.target).filter(|index| *index != self.own);
        let ping = target.map(|index| self.ping_for(index));
        self.promise(now);
        ping
    }

    /// What to answer to a member that wanted another one asked.
    pub fn relay_reply(
        &mut self,
        now: Instant,
        relay: &GroupRelay,
        answer: Option<GroupAck>,
    ) -> GroupRelayReply {
        self.progress(now);
        let answer = answer.filter(|ack| ack.from == relay.target);
        if let Some(ack) = &answer {
            self.hear(now, ack.from, ack.incarnation, &ack.updates);
        }
        let relay = self.ack_for(relay.ping.from);
        self.promise(now);
        GroupRelayReply { answer, relay }
    }

    /// A member that was asked to ask another one answers.
    pub fn on_relay_reply(&mut self, now: Instant, probe: ProbeId, via: Rank, reply: &GroupRelayReply) {
        self.progress(now);
        if reply.relay.from != via {
            self.stats.invalid += 1;
            return;
        }
        self.hear(now, via, reply.relay.incarnation, &reply.relay.updates);
        if let Some(current) = self.probe.as_mut().filter(|current| current.id == probe) {
            current.replies += 1;
        }
        if let Some(ack) = &reply.answer
            && let Some(index) = self.table.index(ack.from)
        {
            self.hear(now, ack.from, ack.incarnation, &ack.updates);
            self.answered(probe, index, true);
        }
        self.promise(now);
    }

    /// A member asks for a page of the table.
    #[must_use]
    pub fn on_sync(&self, sync: &GroupSync) -> GroupSyncReply {
        let start = usize::try_from(sync.start).unwrap_or(usize::MAX);
        let known = |member: &&Member| member.state != MemberState::Unknown;
        let mut entries = self.table.all().iter().filter(known).skip(start).map(Member::update);
        let updates: Vec<MemberUpdate> = entries.by_ref().take(SYNC_PAGE).collect();
        let next = entries.next().and(sync.start.checked_add(u32::try_from(SYNC_PAGE).unwrap_or(u32::MAX)));
        GroupSyncReply { updates, next }
    }

    /// A page of another member's table arrived.
    pub fn on_sync_reply(&mut self, now: Instant, from: Rank, reply: &GroupSyncReply) {
        self.progress(now);
        for update in &reply.updates {
            // A member that lacks it will find out in the same way.
            self.apply(now, update, false);
        }
        if let Some(next) = reply.next {
            (self.wanted, self.next_sync) = (Some((from, next)), now);
        }
        self.promise(now);
    }

    /// Says goodbye: this member is to count as dead, and objects no more. Returns what to send.
    pub fn leave(&mut self, now: Instant) -> Vec<Action> {
        self.left = true;
        (self.probe, self.urgent) = (None, None);
        self.suspicions.clear();
        let update = MemberUpdate {
            rank: self.rank,
            incarnation: self.incarnation,
            state: MemberState::Dead,
            by: self.rank,
        };
        self.table.merge(self.own, &update, now);
        self.gossip.push(update);
        let mut actions = Vec::new();
        self.spread(&mut actions);
        actions
    }

    /// Changes since this was asked last.
    pub fn events(&mut self) -> Vec<MemberEvent> {
        core::mem::take(&mut self.events)
    }

    /// Every member, this one too, by ascending rank.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        self.table.all()
    }

    /// What is believed of a member; unknown for one that is not listed.
    #[must_use]
    pub fn state(&self, rank: Rank) -> MemberState {
        self.table.index(rank).map_or(MemberState::Unknown, |index| self.table.get(index).state)
    }

    /// This member's incarnation.
    #[must_use]
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Sum over the whole table: equal for members that agree on everything.
    #[must_use]
    pub const fn digest(&self) -> u64 {
        self.table.digest()
    }

    /// How badly this member itself is doing: 0 is healthy, 8 the worst.
    #[must_use]
    pub const fn health(&self) -> u32 {
        self.health.score()
    }

    /// What happened so far.
    #[must_use]
    pub const fn stats(&self) -> SwimStats {
        self.stats
    }

    /// Notes when this member wants to go on; what is overdue already, as news after a quiet time is, counts from now.
    fn promise(&mut self, now: Instant) {
        self.promised = self.next().max(now);
    }

    /// Notices when this member itself has stood still: then no other is to blame for what is overdue.
    fn progress(&mut self, now: Instant) {
        let late = now - self.promised;
        if late <= self.config.stall {
            return;
        }
        self.promised = now;
        self.stats.stalls += 1;
        self.health.worsen();
        if self.probe.take().is_some() {
            self.stats.probes_void += 1;
            self.next_probe = now;
        }
        for suspicion in &mut self.suspicions {
            suspicion.postpone(late);
        }
    }

    /// Takes note of a message: its sender lives in this incarnation, and its news.
    fn hear(&mut self, now: Instant, from: Rank, incarnation: u64, updates: &[MemberUpdate]) {
        let alive = MemberUpdate { rank: from, incarnation, state: MemberState::Alive, by: from };
        // The sender's own goodbye comes with its last incarnation.
        self.apply(now, &alive, true);
        for update in updates {
            self.apply(now, update, true);
        }
    }

    fn apply(&mut self, now: Instant, update: &MemberUpdate, pass_on: bool) {
        let valid = (1..=self.horizon).contains(&update.incarnation) && update.state != MemberState::Unknown;
        let Some(index) = self.table.index(update.rank).filter(|_| valid) else {
            self.stats.invalid += 1;
            return;
        };
        if index == self.own {
            self.accused(now, update);
            return;
        }
        let before = *self.table.get(index);
        if self.table.merge(index, update, now) {
            self.changed(now, index, &before, update);
            if pass_on {
                self.gossip.push(*update);
            } else {
                self.gossip.forget(update.rank);
            }
        } else if update.state == MemberState::Suspect
            && (before.state, before.incarnation) == (MemberState::Suspect, update.incarnation)
            && let Some(suspicion) = self.suspicions.iter_mut().find(|suspicion| suspicion.index == index)
            && suspicion.confirm(update.by, &self.config)
        {
            self.gossip.push(*update);
        }
    }

    /// A member's entry has changed from `before`.
    fn changed(&mut self, now: Instant, index: usize, before: &Member, update: &MemberUpdate) {
        if before.state == MemberState::Suspect {
            self.suspicions.retain(|suspicion| suspicion.index != index);
        }
        match update.state {
            MemberState::Suspect => {
                self.stats.suspicions += 1;
                let others = self.table.all().len() - 2;
                let stretch = self.health.multiplier();
                let suspicion = Suspicion::new(index, update.by, others, stretch, now, &self.config);
                self.suspicions.push(suspicion);
                if update.by != self.rank && self.random.below(others.max(1) as u64) < SECOND_OPINIONS {
                    self.urgent.get_or_insert((index, now));
                }
            }
            MemberState::Dead => self.stats.deaths += 1,
            _ if before.state == MemberState::Suspect => self.stats.suspicions_refuted += 1,
            _ => {}
        }
        if before.state != update.state {
            self.events.push(MemberEvent {
                rank: update.rank,
                incarnation: update.incarnation,
                before: before.state,
                after: update.state,
                by: update.by,
            });
        }
    }

    /// Takes what others say of this member itself, and corrects what isn't true by a higher incarnation.
    fn accused(&mut self, now: Instant, update: &MemberUpdate) {
        let wrong = match update.state {
            MemberState::Suspect | MemberState::Dead => update.incarnation >= self.incarnation,
            // From an earlier life, whose clock was ahead.
            _ => update.incarnation > self.incarnation,
        };
        if !wrong || self.left {
            return;
        }
        self.incarnation = update.incarnation.saturating_add(1).min(INCARNATION_MAX);
        if update.state != MemberState::Alive {
            self.stats.objections += 1;
            self.health.worsen();
        }
        self.announce(now);
    }

    /// Tells all members that this member is alive in its present incarnation.
    fn announce(&mut self, now: Instant) {
        let update = MemberUpdate {
            rank: self.rank,
            incarnation: self.incarnation,
            state: MemberState::Alive,
            by: self.rank,
        };
        self.table.merge(self.own, &update, now);
        self.gossip.push(update);
    }

    /// Declares suspects dead that had their time.
    fn expire(&mut self, now: Instant) {
        while let Some(at) = self.suspicions.iter().position(|suspicion| suspicion.deadline <= now) {
            let index = self.suspicions.swap_remove(at).index;
            let member = self.table.get(index);
            let update = MemberUpdate { state: MemberState::Dead, by: self.rank, ..member.update() };
            self.apply(now, &update, true);
        }
    }
}

#[cfg(test)]
mod tests;
