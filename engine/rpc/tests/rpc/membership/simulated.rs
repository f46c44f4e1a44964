//! A light network for a thousand membership state machines: no RPC stack, a heap of events, one seed. A message and
//! its answer get lost independently of each other; nodes crash, stand still, come back and are cut off.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "ranks, seconds and counts here are small"
)]

use core::time::Duration;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use weir_proto::Rank;
use weir_proto::group::{
    GroupAck, GroupPing, GroupRelay, GroupRelayReply, GroupSync, GroupSyncReply, MemberState,
};
use weir_rpc::membership::swim::{Action, ProbeId, Swim, SwimConfig};
use weir_runtime::Instant;
use weir_runtime::random::Random;

/// One-way delays, in nanoseconds.
const DELAY: (u64, u64) = (20_000, 500_000);

/// How far wall clocks are apart at most, in nanoseconds.
const SKEW: u64 = 500_000_000;

/// Wall time at the start.
const WALL: u64 = 1_700_000_000_000_000_000;

/// A second, in the nanoseconds that the network's time has.
pub const SECOND: u64 = 1_000_000_000;

enum Event {
    Wake(usize),
    Ping {
        from: usize,
        to: usize,
        probe: ProbeId,
        sent: u64,
        ping: GroupPing,
    },
    Ack {
        to: usize,
        from: usize,
        probe: ProbeId,
        sent: u64,
        ack: GroupAck,
    },
    Relay {
        from: usize,
        via: usize,
        probe: ProbeId,
        relay: GroupRelay,
    },
    /// The relay asks the target.
    RelayPing {
        from: usize,
        via: usize,
        probe: ProbeId,
        relay: GroupRelay,
        ping: GroupPing,
    },
    /// The target has answered the relay, or the relay waits no longer.
    RelayEnd {
        from: usize,
        via: usize,
        probe: ProbeId,
        relay: GroupRelay,
        ack: Option<GroupAck>,
    },
    RelayReply {
        to: usize,
        via: usize,
        probe: ProbeId,
        reply: GroupRelayReply,
    },
    Sync {
        from: usize,
        to: usize,
        sync: GroupSync,
    },
    SyncReply {
        to: usize,
        from: usize,
        reply: GroupSyncReply,
    },
}

impl Event {
    /// The node that it happens at.
    const fn place(&self) -> usize {
        match self {
            Self::Wake(node) => *node,
            Self::Ping { to, .. }
            | Self::Ack { to, .. }
            | Self::RelayReply { to, .. }
            | Self::Sync { to, .. }
            | Self::SyncReply { to, .. } => *to,
            Self::Relay { via, .. } | Self::RelayEnd { via, .. } => *via,
            Self::RelayPing { relay, .. } => relay.target.0 as usize,
        }
    }
}

/// A member.
pub struct Node {
    /// Its state machine.
    pub swim: Swim,
    up: bool,
    skew: u64,
    /// Stands still until then.
    still: u64,
    wake: u64,
    /// Which side of a cut it is on.
    side: u8,
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Steps of the simulation.
    pub events: u64,
    /// Messages sent, with those that got lost.
    pub messages: u64,
    /// Times that a living member was declared dead in another's eyes by its own judgement or by hearsay.
    pub false_deaths: u64,
    /// Times that a living member became a suspect in another's eyes.
    pub false_suspects: u64,
}

/// Members, and what is on its way between them.
pub struct Network {
    /// Members by rank.
    pub nodes: Vec<Node>,
    /// Nanoseconds since the start.
    pub now: u64,
    loss: f64,
    /// What has happened since everybody knew everybody.
    pub counts: Counts,
    /// Where all chance comes from.
    pub random: Random,
    config: SwimConfig,
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    slots: Vec<Option<Event>>,
    free: Vec<usize>,
    serial: u64,
}

fn at(ns: u64) -> Instant {
    Instant::from_nanos(ns)
}

impl Network {
    /// Members that don't know of each other yet. `loss`: probability that a message gets lost.
    #[must_use]
    pub fn new(members: u32, config: SwimConfig, loss: f64, seed: u64) -> Self {
        let random = Random::new(seed);
        let ranks: Vec<Rank> = (0..members).map(Rank).collect();
        let nodes = ranks.iter().map(|rank| Node {
            swim: Swim::new(*rank, &ranks, WALL + u64::from(rank.0), config, at(0), random.next_u64()),
            up: true,
            skew: random.below(SKEW),
            still: 0,
            wake: u64::MAX,
            side: 0,
        });
        let mut network = Self {
            nodes: nodes.collect(),
            now: 0,
            loss,
            counts: Counts::default(),
            random,
            config,
            heap: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            serial: 0,
        };
        for node in 0..network.nodes.len() {
            network.advance(node);
        }
        network
    }

    /// Members that know each other.
    ///
    /// # Panics
    /// When they don't get to know each other within a minute.
    #[must_use]
    pub fn settled(members: u32, loss: f64, seed: u64) -> Self {
        let mut network = Self::new(members, SwimConfig::default(), loss, seed);
        let met = network.wait(Duration::from_mins(1), Self::all_alive);
        assert!(met.is_some(), "seed {seed}: {members} members don't get to know each other within a minute");
        network.counts = Counts::default();
        network
    }

    fn push(&mut self, time: u64, event: Event) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(event);
        self.serial += 1;
        self.heap.push(Reverse((time, self.serial, slot)));
    }

    /// Sends something from one node to another, or loses it.
    fn send(&mut self, from: usize, event: Event) {
        self.counts.messages += 1;
        let to = event.place();
        if self.nodes[from].side != self.nodes[to].side || self.random.chance(self.loss) {
            return;
        }
        let time = self.now + self.random.between(DELAY.0, DELAY.1);
        self.push(time, event);
    }

    /// Runs for so many nanoseconds.
    pub fn run_for(&mut self, span: u64) {
        let end = self.now + span;
        while let Some(Reverse((time, _, _))) = self.heap.peek()
            && *time <= end
        {
            let Some(Reverse((time, _, slot))) = self.heap.pop() else { break };
            self.now = time;
            let Some(event) = self.slots[slot].take() else { continue };
            self.free.push(slot);
            self.counts.events += 1;
            self.happen(event);
        }
        self.now = end;
    }

    fn happen(&mut self, event: Event) {
        let place = event.place();
        let Some(node) = self.nodes.get(place).filter(|node| node.up) else { return };
        if node.still > self.now {
            // What arrives waits unread.
            let later = node.still;
            self.push(later, event);
            return;
        }
        let now = at(self.now);
        match event {
            Event::Wake(node) => {
                if self.nodes[node].wake > self.now {
                    return;
                }
                self.nodes[node].wake = u64::MAX;
            }
            Event::Ping { from, to, probe, sent, ping } => {
                let ack = self.nodes[to].swim.on_ping(now, &ping);
                self.send(to, Event::Ack { to: from, from: to, probe, sent, ack });
            }
            Event::Ack { to, from, probe, sent, ack } => {
                self.nodes[to].swim.on_ack(now, probe, Rank(from as u32), at(sent), &ack);
            }
            Event::Relay { from, via, probe, relay } => {
                let limit = self.now + u64::from(relay.limit_ms) * 1_000_000;
                if let Some(ping) = self.nodes[via].swim.on_relay(now, &relay) {
                    let relay = relay.clone();
                    self.send(via, Event::RelayPing { from, via, probe, relay, ping });
                }
                self.push(limit, Event::RelayEnd { from, via, probe, relay, ack: None });
            }
            Event::RelayPing { from, via, probe, relay, ping } => {
                let target = relay.target.0 as usize;
                let ack = Some(self.nodes[target].swim.on_ping(now, &ping));
                self.send(target, Event::RelayEnd { from, via, probe, relay, ack });
            }
            Event::RelayEnd { from, via, probe, relay, ack } => {
                let reply = self.nodes[via].swim.relay_reply(now, &relay, ack);
                self.send(via, Event::RelayReply { to: from, via, probe, reply });
            }
            Event::RelayReply { to, via, probe, reply } => {
                self.nodes[to].swim.on_relay_reply(now, probe, Rank(via as u32), &reply);
            }
            Event::Sync { from, to, sync } => {
                let reply = self.nodes[to].swim.on_sync(&sync);
                self.send(to, Event::SyncReply { to: from, from: to, reply });
            }
            Event::SyncReply { to, from, reply } => {
                self.nodes[to].swim.on_sync_reply(now, Rank(from as u32), &reply);
            }
        }
        self.advance(place);
    }

    /// Lets a node do what is due, sends what it wants sent and notes when it wants to go on.
    fn advance(&mut self, node: usize) {
        let mut actions = Vec::new();
        let wall = WALL + self.now + self.nodes[node].skew;
        self.nodes[node].swim.poll(at(self.now), wall, &mut actions);
        for event in self.nodes[node].swim.events() {
            if self.nodes[event.rank.0 as usize].up {
                match event.after {
                    MemberState::Dead => self.counts.false_deaths += 1,
                    MemberState::Suspect => self.counts.false_suspects += 1,
                    _ => {}
                }
            }
        }
        for action in actions {
            let sent = self.now;
            let event = match action {
                Action::Ping { probe, to, ping, .. } => {
                    Event::Ping { from: node, to: to.0 as usize, probe, sent, ping }
                }
                Action::Relay { probe, via, relay, .. } => {
                    Event::Relay { from: node, via: via.0 as usize, probe, relay }
                }
                Action::Sync { to, sync } => Event::Sync { from: node, to: to.0 as usize, sync },
            };
            self.send(node, event);
        }
        let next = self.nodes[node].swim.next().as_nanos().max(self.now + 1);
        if next < self.nodes[node].wake {
            self.nodes[node].wake = next;
            self.push(next, Event::Wake(node));
        }
    }

    /// A process ends.
    pub fn crash(&mut self, node: usize) {
        self.nodes[node].up = false;
    }

    /// A new process under the old rank.
    pub fn restart(&mut self, node: usize) {
        let ranks: Vec<Rank> = (0..self.nodes.len() as u32).map(Rank).collect();
        let (incarnation, seed) = (WALL + self.now, self.random.next_u64());
        let rank = Rank(node as u32);
        let reborn = &mut self.nodes[node];
        reborn.swim = Swim::new(rank, &ranks, incarnation, self.config, at(self.now), seed);
        (reborn.up, reborn.wake) = (true, u64::MAX);
        self.advance(node);
    }

    /// The node stands still for this long: its timers don't fire, what arrives stays unread.
    pub fn stall(&mut self, node: usize, span: u64) {
        self.nodes[node].still = self.now + span;
    }

    /// Cuts the first `members` off from the others.
    pub fn cut(&mut self, members: usize) {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            node.side = u8::from(index < members);
        }
    }

    /// Mends the cut.
    pub fn heal(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.side = 0);
    }

    /// Whether every living node believes this of these nodes.
    #[must_use]
    pub fn agree(&self, state: MemberState, meant: &[usize]) -> bool {
        let believed = |node: &Node| meant.iter().all(|rank| node.swim.members()[*rank].state == state);
        self.nodes.iter().filter(|node| node.up).all(believed)
    }

    /// Whether every node is alive for every node.
    #[must_use]
    pub fn all_alive(&self) -> bool {
        let first = &self.nodes[0].swim;
        self.nodes.iter().all(|node| node.swim.digest() == first.digest())
            && first.members().iter().all(|member| member.state == MemberState::Alive)
    }

    /// Seconds until every living node believes this; `None`: not within the limit.
    pub fn time_until(&mut self, limit: Duration, state: MemberState, meant: &[usize]) -> Option<f64> {
        self.wait(limit, |network| network.agree(state, meant))
    }

    /// Ends the process of a random member, and starts it again. Returns the seconds until every other one knew that it was
    /// dead; `None`: that, or then that it was back, was not known to all within the limit.
    pub fn fail_one(&mut self, limit: Duration) -> Option<f64> {
        self.run_for(SECOND / 2 + self.random.below(SECOND));
        let victim = self.random.below(self.nodes.len() as u64) as usize;
        self.crash(victim);
        let took = self.time_until(limit, MemberState::Dead, &[victim])?;
        self.restart(victim);
        self.time_until(limit, MemberState::Alive, &[victim]).map(|_| took)
    }

    /// Seconds until something is so; `None`: not within the limit.
    pub fn wait(&mut self, limit: Duration, what: impl Fn(&Self) -> bool) -> Option<f64> {
        let began = self.now;
        while self.now - began < limit.as_nanos() as u64 {
            self.run_for(SECOND / 20);
            if what(self) {
                return Some((self.now - began) as f64 / SECOND as f64);
            }
        }
        None
    }
}
