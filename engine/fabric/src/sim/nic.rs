//! A simulated NIC with limited receive resources, and a server thread behind each of its endpoints.
//!
//! Without it, a simulated endpoint takes any number of messages at no cost. Behind a NIC, messages pass four stages
//! one after another, each of which takes time: the link, on which messages wait for each other in the network, the
//! NIC's port, the matching of a message with a posted buffer, and the thread that handles it. Posting a buffer takes
//! time of the NIC and of the thread. The buffers that the NIC holds for all its endpoints together are limited. Beyond
//! the limit it matches in software, which takes time of the thread.
//!
//! Source: "Enhancing RPC on Slingshot for Aurora's DAOS Storage System" (CUG 2025), §3.1, §3.2 and §3.4, from whose
//! figures 4 and 5 the default times are worked out; the receiver-not-ready waits are those of `network.rs`.

use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::rc::Rc;
use weir_runtime::Instant;

/// How an endpoint's receive memory is posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceiveMode {
    /// One buffer for each message (§3.1).
    Standard {
        /// Buffers posted at first; as many again are added whenever none is left.
        buffers: u32,
    },
    /// Few large buffers, each for many messages (§3.2).
    Multi {
        /// How many.
        slabs: u32,
        /// Length of each in bytes.
        slab_bytes: u32,
    },
}

impl ReceiveMode {
    /// The paper's standard mode: 512 buffers.
    pub const STANDARD: Self = Self::Standard { buffers: 512 };
    /// The paper's multi-receive mode: four slabs of 2 MiB.
    pub const MULTI: Self = Self::Multi { slabs: 4, slab_bytes: 2 << 20 };
}

/// What a NIC and the threads behind it can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NicConfig {
    /// Time of a message on the link, whatever becomes of it. The network holds back what the link has no time for, so
    /// that a crowd of senders that come again takes less than half of the port's time with refusals.
    pub link: Duration,
    /// Time of a message on the port. Four ports take the 80 million a second of figure 4b, and little more.
    pub message: Duration,
    /// Time on the port of a message that is turned away.
    pub refusal: Duration,
    /// Messages that the port holds until it has time for them; more are turned away and sent again later.
    pub queue: u32,
    /// Time of the NIC for one posted buffer.
    pub post: Duration,
    /// Posted buffers that hardware can match, for all endpoints together. Sixteen threads with 512 each exceed it.
    pub entries: u32,
    /// Time of a thread for one request and its reply: 1.3 million a second (§3.2.2).
    pub handle: Duration,
    /// Time of a thread to post a buffer: with it, 0.6 million requests a second in standard mode (figure 5).
    pub repost: Duration,
    /// Time of a thread to match a message in software: 16 threads then reach 2 million a second (figure 4).
    pub software_match: Duration,
    /// Time of a thread to copy a message out of a buffer that is needed.
    pub copy: Duration,
    /// Messages without a buffer that an endpoint keeps; more are turned away.
    pub overflow: u32,
    /// Slabs left below which messages are copied out (§3.2.1).
    pub copy_below: u32,
    /// Room that a slab must have to stay posted: the largest message.
    pub slab_rest: u32,
    /// Whether reads and writes that its endpoints make have its wire one after another, rather than all at once.
    pub one_wire: bool,
}

impl Default for NicConfig {
    fn default() -> Self {
        Self {
            link: Duration::from_nanos(20),
            message: Duration::from_nanos(46),
            refusal: Duration::from_nanos(12),
            queue: 8192,
            post: Duration::from_nanos(100),
            entries: 4096,
            handle: Duration::from_nanos(770),
            repost: Duration::from_nanos(900),
            software_match: Duration::from_nanos(6300),
            copy: Duration::from_nanos(60),
            overflow: 4096,
            copy_below: 1,
            slab_rest: 4096,
            one_wire: false,
        }
    }
}

/// What a NIC has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NicStats {
    /// Messages handed on.
    pub received: u64,
    /// Messages turned away because the port was too busy.
    pub port_refused: u64,
    /// Messages turned away because no buffer was left and the overflow was full.
    pub buffer_refused: u64,
    /// Messages that software matched: for want of a posted buffer, or because the NIC's entries are used up.
    pub software_matched: u64,
    /// Messages copied out of slabs.
    pub copied: u64,
    /// Buffers and slabs posted, first time and again.
    pub posts: u64,
    /// Most buffers posted at a time.
    pub entries_max: u32,
}

/// A NIC that some endpoints of one node share.
#[derive(Debug)]
pub struct Nic {
    config: NicConfig,
    /// When the last message that is on the link will have arrived.
    link: Cell<Instant>,
    /// When the port is done with what it has.
    port: Cell<Instant>,
    /// When the NIC is done with posting what it was given.
    poster: Cell<Instant>,
    /// When the wire is done with the transfers that it has.
    wire: Cell<Instant>,
    entries: Cell<u32>,
    stats: Cell<NicStats>,
}

impl Nic {
    /// An idle NIC.
    #[must_use]
    pub fn new(config: NicConfig) -> Rc<Self> {
        Rc::new(Self {
            config,
            link: Cell::default(),
            port: Cell::default(),
            poster: Cell::default(),
            wire: Cell::default(),
            entries: Cell::new(0),
            stats: Cell::default(),
        })
    }

    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> NicStats {
        self.stats.get()
    }

    /// Buffers and slabs that are posted now.
    #[must_use]
    pub fn posted(&self) -> u32 {
        self.entries.get()
    }

    fn count(&self, change: impl FnOnce(&mut NicStats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }

    /// Posts a buffer; when it is there.
    fn post(&self, now: Instant) -> Instant {
        let ready = self.poster.get().max(now) + self.config.post;
        self.poster.set(ready);
        self.entries.set(self.entries.get() + 1);
        let entries = self.entries.get();
        self.count(|stats| {
            stats.posts += 1;
            stats.entries_max = stats.entries_max.max(entries);
        });
        ready
    }

    fn unpost(&self) {
        self.entries.set(self.entries.get().saturating_sub(1));
    }

    /// Whether hardware can't hold all that is posted.
    fn is_exhausted(&self) -> bool {
        self.entries.get() > self.config.entries
    }

    /// When a message that reaches the link now has arrived: it comes after those before it.
    fn arrival(&self, now: Instant) -> Instant {
        let arrived = self.link.get().max(now) + self.config.link;
        self.link.set(arrived);
        arrived
    }

    /// Lets a message pass the port; when it has, or `None` when it is turned away.
    fn admit(&self, now: Instant) -> Option<Instant> {
        let backlog = self.port.get() - now;
        if backlog > self.config.message * self.config.queue {
            self.port.set(self.port.get() + self.config.refusal);
            self.count(|stats| stats.port_refused += 1);
            return None;
        }
        let passed = self.port.get().max(now) + self.config.message;
        self.port.set(passed);
        Some(passed)
    }
}

/// A slab that is posted or still in use.
#[derive(Debug)]
struct Slab {
    left: u32,
    /// Messages that are held.
    held: u32,
    retired: bool,
    ready: Instant,
}

#[derive(Debug)]
enum Buffers {
    /// Times at which posted buffers are there, and how many are added at a time.
    Standard {
        ready: std::collections::VecDeque<Instant>,
        step: u32,
    },
    Multi {
        slabs: Vec<Slab>,
        bytes: u32,
    },
}

/// One endpoint's receive queue behind a NIC, and its thread.
#[derive(Debug)]
pub(super) struct Queue {
    nic: Rc<Nic>,
    buffers: RefCell<Buffers>,
    /// When the thread is done with what it has.
    thread: Cell<Instant>,
    /// Messages that have no buffer of their own.
    overflow: Cell<u32>,
}

/// What a message occupies until it is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReceiveSlot {
    Buffer,
    Slab(usize),
    Overflow,
    /// Copied out: its place is free already.
    Copied,
}

/// Where a message went, and when its handler gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Accepted {
    pub(super) place: ReceiveSlot,
    pub(super) at: Instant,
}

impl Queue {
    pub(super) fn new(nic: &Rc<Nic>, mode: ReceiveMode, now: Instant) -> Rc<Self> {
        let buffers = match mode {
            ReceiveMode::Standard { buffers } => {
                let ready = (0..buffers).map(|_| nic.post(now)).collect();
                Buffers::Standard { ready, step: buffers.max(1) }
            }
            ReceiveMode::Multi { slabs, slab_bytes } => {
                let slab = |_| Slab { left: slab_bytes, held: 0, retired: false, ready: nic.post(now) };
                Buffers::Multi { slabs: (0..slabs.max(2)).map(slab).collect(), bytes: slab_bytes }
            }
        };
        let buffers = RefCell::new(buffers);
        Rc::new(Self { nic: Rc::clone(nic), buffers, thread: Cell::default(), overflow: Cell::new(0) })
    }

    /// When a message that reaches the NIC's link now has arrived at the NIC.
    pub(super) fn arrival(&self, now: Instant) -> Instant {
        self.nic.arrival(now)
    }

    /// Takes a message in, or turns it away.
    pub(super) fn receive(&self, now: Instant, len: usize) -> Option<Accepted> {
        let config = &self.nic.config;
        let passed = self.nic.admit(now)?;
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let mut cost = config.handle;
        let matched = self.take(passed, len, &mut cost);
        let place = match matched {
            Some(place) => {
                if place == ReceiveSlot::Buffer {
                    // The buffer will be posted again, at the thread's expense.
                    cost += config.repost;
                    if self.nic.is_exhausted() {
                        cost += config.software_match;
                        self.nic.count(|stats| stats.software_matched += 1);
                    }
                }
                place
            }
            None if self.overflow.get() < config.overflow => {
                self.overflow.set(self.overflow.get() + 1);
                cost += config.software_match;
                self.nic.count(|stats| stats.software_matched += 1);
                ReceiveSlot::Overflow
            }
            None => {
                self.nic.count(|stats| stats.buffer_refused += 1);
                return None;
            }
        };
        let at = self.thread.get().max(passed) + cost;
        self.thread.set(at);
        self.nic.count(|stats| stats.received += 1);
        Some(Accepted { place, at })
    }

    /// Lets a transfer that takes this time have the wire. Returns when its last byte is through, from now on.
    pub(super) fn occupy_wire(&self, now: Instant, time: Duration) -> Duration {
        if !self.nic.config.one_wire {
            return time;
        }
        let end = self.nic.wire.get().max(now) + time;
        self.nic.wire.set(end);
        end - now
    }

    /// Finds a posted buffer.
    fn take(&self, now: Instant, len: u32, cost: &mut Duration) -> Option<ReceiveSlot> {
        let config = &self.nic.config;
        match &mut *self.buffers.borrow_mut() {
            Buffers::Standard { ready, step } => {
                if ready.front().is_some_and(|ready| *ready <= now) {
                    ready.pop_front();
                    self.nic.unpost();
                    return Some(ReceiveSlot::Buffer);
                }
                if ready.is_empty() && self.nic.entries.get() < config.entries {
                    // The server adds more when it runs out.
                    ready.extend((0..*step).map(|_| self.nic.post(now)));
                }
                None
            }
            Buffers::Multi { slabs, .. } => {
                let posted = slabs.iter().filter(|slab| !slab.retired).count();
                let at =
                    slabs.iter().position(|slab| !slab.retired && slab.ready <= now && slab.left >= len)?;
                let slab = &mut slabs[at];
                slab.left -= len;
                let full = slab.left < config.slab_rest;
                if full {
                    slab.retired = true;
                    self.nic.unpost();
                }
                if posted <= config.copy_below as usize {
                    *cost += config.copy;
                    self.nic.count(|stats| stats.copied += 1);
                    return Some(ReceiveSlot::Copied);
                }
                slab.held += 1;
                Some(ReceiveSlot::Slab(at))
            }
        }
    }

    /// A message is dropped: what it occupied may be posted again.
    pub(super) fn release(&self, place: ReceiveSlot, now: Instant) {
        match (&mut *self.buffers.borrow_mut(), place) {
            (Buffers::Standard { ready, .. }, ReceiveSlot::Buffer) => ready.push_back(self.nic.post(now)),
            (Buffers::Multi { slabs, .. }, ReceiveSlot::Slab(at)) => slabs[at].held -= 1,
            (_, ReceiveSlot::Overflow) => self.overflow.set(self.overflow.get().saturating_sub(1)),
            _ => {}
        }
        self.repost_slabs(now);
    }

    fn repost_slabs(&self, now: Instant) {
        let Buffers::Multi { slabs, bytes } = &mut *self.buffers.borrow_mut() else { return };
        for slab in slabs.iter_mut().filter(|slab| slab.retired && slab.held == 0) {
            self.thread.set(self.thread.get().max(now) + self.nic.config.repost);
            *slab = Slab { left: *bytes, held: 0, retired: false, ready: self.nic.post(now) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    /// Requests per second of one thread that is never out of work, each message dropped when it was handled.
    fn rate(nic: &Rc<Nic>, mode: ReceiveMode) -> f64 {
        let queue = Queue::new(nic, mode, at(0));
        let mut held = std::collections::VecDeque::new();
        let (mut now, mut done) = (at(1_000_000), 0u32);
        let end = at(21_000_000);
        while now < end {
            while let Some(Accepted { place, at }) = held.front().copied()
                && at <= now
            {
                held.pop_front();
                queue.release(place, at);
                done += 1;
            }
            // A hundred are always under way.
            if held.len() < 100
                && let Some(accepted) = queue.receive(now, 128)
            {
                held.push_back(accepted);
                continue;
            }
            now = held.front().map_or(now + Duration::from_nanos(100), |accepted| accepted.at.max(now));
        }
        f64::from(done) / 0.02
    }

    #[test]
    fn one_thread_reaches_the_papers_rates_in_both_modes() {
        let multi = rate(&Nic::new(NicConfig::default()), ReceiveMode::MULTI);
        let standard = rate(&Nic::new(NicConfig::default()), ReceiveMode::STANDARD);
        assert!((1.25e6..1.35e6).contains(&multi), "{multi}");
        assert!((0.55e6..0.65e6).contains(&standard), "{standard}");
    }

    #[test]
    fn more_posted_buffers_than_the_nic_has_entries_are_matched_in_software() {
        let nic = Nic::new(NicConfig::default());
        let others: Vec<_> = (0..15).map(|_| Queue::new(&nic, ReceiveMode::STANDARD, at(0))).collect();
        let standard = rate(&nic, ReceiveMode::STANDARD);
        assert!(standard < 0.14e6, "{standard}");
        let stats = nic.stats();
        assert_eq!((others.len(), stats.entries_max), (15, 16 * 512));
        assert!(stats.software_matched > 2000);
        let nic = Nic::new(NicConfig::default());
        let others: Vec<_> = (0..15).map(|_| Queue::new(&nic, ReceiveMode::MULTI, at(0))).collect();
        let multi = rate(&nic, ReceiveMode::MULTI);
        assert!(multi > 1.25e6, "{multi}: {} slabs are no burden", 4 * (others.len() + 1));
    }

    #[test]
    fn slow_holders_of_slabs_lead_to_copies_and_never_to_starvation() {
        let nic = Nic::new(NicConfig::default());
        let mode = ReceiveMode::Multi { slabs: 2, slab_bytes: 16 << 10 };
        let queue = Queue::new(&nic, mode, at(0));
        let mut slow = Vec::new();
        for n in 0..2000_u64 {
            let now = at(1_000_000 + n * 2_000);
            let accepted = queue.receive(now, 1000).expect("never without a buffer");
            match accepted.place {
                ReceiveSlot::Slab(_) => slow.push(accepted),
                place => queue.release(place, now),
            }
        }
        assert!(nic.stats().copied > 1900, "{:?}", nic.stats());
        assert_eq!(nic.stats().buffer_refused, 0);
        for accepted in slow {
            queue.release(accepted.place, at(10_000_000));
        }
        let accepted = queue.receive(at(20_000_000), 1000).expect("room");
        assert_ne!(accepted.place, ReceiveSlot::Copied, "all slabs are back");
    }

    #[test]
    fn messages_arrive_one_after_another_however_many_come() {
        let nic = Nic::new(NicConfig::default());
        let queue = Queue::new(&nic, ReceiveMode::MULTI, at(0));
        let last = (0..1000).map(|_| queue.arrival(at(1_000_000))).max();
        assert_eq!(last, Some(at(1_000_000) + NicConfig::default().link * 1000));
        assert_eq!(queue.arrival(at(9_000_000)), at(9_000_000) + NicConfig::default().link);
    }

    #[test]
    fn a_port_that_is_too_busy_turns_messages_away_and_that_costs_it_time_too() {
        let nic = Nic::new(NicConfig { queue: 10, ..NicConfig::default() });
        let queue = Queue::new(&nic, ReceiveMode::MULTI, at(0));
        let taken = (0..100).filter(|_| queue.receive(at(1_000_000), 128).is_some()).count();
        assert_eq!(taken, 11);
        assert_eq!(nic.stats().port_refused, 89);
        assert!(nic.port.get() - at(1_000_000) > NicConfig::default().message * 11);
    }
}
