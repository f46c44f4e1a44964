//! Drives the membership protocol: timers, messages, and notifications of changes.

use super::swim::{Action, Member, MemberEvent, ProbeId, Swim, SwimConfig, SwimStats};
use super::transport::GroupTransport;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::rc::Rc;
use weir_proto::Rank;
use weir_proto::group::{
    GroupAck, GroupPing, GroupRelay, GroupRelayReply, GroupSync, GroupSyncReply, MemberState,
};
use weir_runtime::sync::Notify;
use weir_runtime::{Handle, Instant, join_all, nanos, race};

/// Upper bounds of the buckets of [`ProbeTimes`], in microseconds (`docs/reference/metrics.md`).
pub const PROBE_BOUNDS_US: [u64; 14] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000];

/// How long answers to pings took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProbeTimes {
    /// Answers by bucket; the last is beyond all bounds.
    pub buckets: [u64; PROBE_BOUNDS_US.len() + 1],
    /// Sum of the times in nanoseconds.
    pub sum_ns: u64,
}

impl ProbeTimes {
    fn record(&mut self, took: Duration) {
        let us = nanos(took).div_ceil(1000);
        self.buckets[PROBE_BOUNDS_US.partition_point(|bound| *bound < us)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(nanos(took));
    }
}

type Watcher = Rc<dyn Fn(&MemberEvent)>;

/// One member of a group: it knows which others are alive, and lets the others know that it is.
pub struct Membership {
    rt: Handle,
    config: SwimConfig,
    swim: RefCell<Swim>,
    transport: Rc<dyn GroupTransport>,
    /// Something arrived: the time to sleep may have changed.
    woken: Notify,
    times: RefCell<ProbeTimes>,
    watchers: RefCell<Vec<Watcher>>,
    left: Cell<bool>,
}

impl Membership {
    /// Takes part in a group until it is dropped. The incarnation is the present wall time, so that it is higher than
    /// in any earlier life.
    #[must_use]
    pub fn start(
        rt: &Handle,
        own: Rank,
        ranks: &[Rank],
        config: SwimConfig,
        transport: Rc<dyn GroupTransport>,
    ) -> Rc<Self> {
        let swim = Swim::new(own, ranks, rt.wall_ns(), config, rt.now(), rt.random_u64());
        let membership = Rc::new(Self {
            rt: rt.clone(),
            config,
            swim: RefCell::new(swim),
            transport,
            woken: Notify::new(),
            times: RefCell::default(),
            watchers: RefCell::default(),
            left: Cell::new(false),
        });
        let (weak, woken, timer) = (Rc::downgrade(&membership), membership.woken.clone(), rt.clone());
        rt.spawn(async move {
            loop {
                let Some(next) = weak.upgrade().and_then(|membership| membership.step()) else { return };
                race(timer.sleep_until(next), woken.notified()).await;
            }
        });
        membership
    }

    /// Calls this for every change of a member's state from now on. It must not wait.
    pub fn watch(&self, watcher: impl Fn(&MemberEvent) + 'static) {
        self.watchers.borrow_mut().push(Rc::new(watcher));
    }

    /// Goes on with another list of members.
    pub fn regroup(&self, ranks: &[Rank]) {
        self.swim.borrow_mut().regroup(self.rt.now(), ranks);
        self.wake();
    }

    /// Answers a ping.
    pub fn answer_ping(&self, ping: &GroupPing) -> GroupAck {
        let ack = self.swim.borrow_mut().on_ping(self.rt.now(), ping);
        self.wake();
        ack
    }

    /// Pings a member on another's behalf.
    pub async fn answer_relay(&self, relay: GroupRelay) -> GroupRelayReply {
        let ping = self.swim.borrow_mut().on_relay(self.rt.now(), &relay);
        self.wake();
        let limit = Duration::from_millis(relay.limit_ms.into()).min(self.config.period);
        let answer = match ping {
            Some(ping) => self.transport.ping(relay.target, ping, limit).await,
            None => None,
        };
        let reply = self.swim.borrow_mut().relay_reply(self.rt.now(), &relay, answer);
        self.wake();
        reply
    }

    /// Answers with a page of the table.
    pub fn answer_sync(&self, sync: &GroupSync) -> GroupSyncReply {
        self.swim.borrow().on_sync(sync)
    }

    /// Tells some others that this member leaves, so that they need not find out, and takes no part any more.
    pub async fn leave(&self) {
        if self.left.replace(true) {
            return;
        }
        let actions = self.swim.borrow_mut().leave(self.rt.now());
        let told = actions.into_iter().filter_map(|action| match action {
            Action::Ping { to, limit, ping, .. } => Some(self.transport.ping(to, ping, limit)),
            _ => None,
        });
        join_all(told).await;
    }

    /// Every member as this one sees it, by ascending rank.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.swim.borrow().members().to_vec()
    }

    /// What is believed of a member.
    #[must_use]
    pub fn state(&self, rank: Rank) -> MemberState {
        self.swim.borrow().state(rank)
    }

    /// This member's incarnation.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.swim.borrow().incarnation()
    }

    /// How badly this member itself is doing: 0 is healthy, 8 the worst.
    #[must_use]
    pub fn health(&self) -> u32 {
        self.swim.borrow().health()
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> SwimStats {
        self.swim.borrow().stats()
    }

    /// How long answers to pings took so far.
    #[must_use]
    pub fn probe_times(&self) -> ProbeTimes {
        *self.times.borrow()
    }

    fn wake(&self) {
        self.woken.notify_one();
    }

    /// Does what is due; says when to come again, or that it is over.
    fn step(self: &Rc<Self>) -> Option<Instant> {
        if self.left.get() {
            return None;
        }
        let mut actions = Vec::new();
        let (events, next) = {
            let mut swim = self.swim.borrow_mut();
            swim.poll(self.rt.now(), self.rt.wall_ns(), &mut actions);
            (swim.events(), swim.next())
        };
        for event in &events {
            report(event);
            let watchers: Vec<Watcher> = self.watchers.borrow().clone();
            for watcher in watchers {
                watcher(event);
            }
        }
        for action in actions {
            self.perform(action);
        }
        Some(next)
    }

    fn perform(self: &Rc<Self>, action: Action) {
        let membership = Rc::downgrade(self);
        let (rt, sent) = (self.rt.clone(), self.rt.now());
        match action {
            Action::Ping { probe, to, limit, ping } => {
                let asked = self.transport.ping(to, ping, limit);
                self.rt.spawn(async move {
                    if let (Some(ack), Some(membership)) = (asked.await, membership.upgrade()) {
                        membership.acknowledged(probe, to, sent, &ack);
                    }
                });
            }
            Action::Relay { probe, via, limit, relay } => {
                let asked = self.transport.relay(via, relay, limit);
                self.rt.spawn(async move {
                    if let (Some(reply), Some(membership)) = (asked.await, membership.upgrade()) {
                        membership.swim.borrow_mut().on_relay_reply(rt.now(), probe, via, &reply);
                        membership.wake();
                    }
                });
            }
            Action::Sync { to, sync } => {
                let asked = self.transport.sync(to, sync, self.config.period);
                self.rt.spawn(async move {
                    if let (Some(reply), Some(membership)) = (asked.await, membership.upgrade()) {
                        membership.swim.borrow_mut().on_sync_reply(rt.now(), to, &reply);
                        membership.wake();
                    }
                });
            }
        }
    }

    fn acknowledged(&self, probe: ProbeId, to: Rank, sent: Instant, ack: &GroupAck) {
        let now = self.rt.now();
        self.times.borrow_mut().record(now - sent);
        self.swim.borrow_mut().on_ack(now, probe, to, sent, ack);
        self.wake();
    }
}

/// What an operator wants to find in the log.
fn report(event: &MemberEvent) {
    let MemberEvent { rank, incarnation, before, after, by } = *event;
    let before = before.name();
    match after {
        MemberState::Dead if by == rank => tracing::info!(%rank, incarnation, before, "a member has left"),
        MemberState::Dead => tracing::warn!(%rank, incarnation, before, %by, "a member is dead"),
        MemberState::Suspect => tracing::warn!(%rank, incarnation, before, %by, "a member is suspected"),
        MemberState::Alive => tracing::info!(%rank, incarnation, before, "a member is alive"),
        MemberState::Unknown => {}
    }
}
