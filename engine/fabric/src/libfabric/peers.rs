//! The peers that an endpoint knows, with what waits for each.

use super::bell::{self, Ringer};
use super::ops::OpId;
use crate::{Address, PeerId};
use core::cell::Cell;
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use weir_runtime::Instant;

/// First pause before an operation that found no room is tried again, unless something completes earlier.
const RETRY_MIN: Duration = Duration::from_micros(20);

/// Longest such pause: bounds how often connection attempts to a dead port repeat.
pub(super) const RETRY_MAX: Duration = Duration::from_millis(20);

/// How often a peer's process is looked for, at most.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Longest time that an operation waits for room or a connection. Callers give up earlier; replies have no caller.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(10);

pub(super) struct KnownPeer {
    pub(super) fi_addr: u64,
    pub(super) address: Address,
    pub(super) ringer: Option<Rc<Ringer>>,
    /// Operations that the provider had no room for, oldest first, and since when they wait.
    pub(super) waiting: VecDeque<(OpId, Instant)>,
    /// When the peer's process was last seen, where that can be seen.
    pub(super) seen: Cell<Instant>,
    pub(super) retry_at: Instant,
    pause: Duration,
}

impl KnownPeer {
    /// Whether the peer is known to be gone: a doorbell provider goes on taking messages for a dead process.
    pub(super) fn is_dead(&self, now: Instant) -> bool {
        if self.ringer.is_none() || now - self.seen.get() < LOOK_EVERY {
            return false;
        }
        self.seen.set(now);
        str::from_utf8(self.address.as_bytes()).is_ok_and(bell::is_dead)
    }

    /// Notes that the provider still has no room.
    pub(super) fn back_off(&mut self, now: Instant) {
        self.pause = (self.pause * 2).clamp(RETRY_MIN, RETRY_MAX);
        self.retry_at = now + self.pause;
    }

    pub(super) fn reset(&mut self) {
        self.pause = Duration::ZERO;
    }
}

#[derive(Default)]
pub(super) struct Peers {
    known: HashMap<PeerId, KnownPeer>,
    by_address: HashMap<Address, PeerId>,
    by_fi_addr: HashMap<u64, PeerId>,
    next: u64,
    /// Peers with a waiting queue that isn't empty.
    pub(super) waiting: Vec<PeerId>,
}

impl Peers {
    pub(super) fn by_address(&self, address: &Address) -> Option<PeerId> {
        self.by_address.get(address).copied()
    }

    pub(super) fn by_fi_addr(&self, fi_addr: u64) -> Option<PeerId> {
        self.by_fi_addr.get(&fi_addr).copied()
    }

    pub(super) fn add(&mut self, address: &Address, fi_addr: u64, ringer: Option<Rc<Ringer>>) -> PeerId {
        let id = PeerId(self.next);
        self.next += 1;
        let peer = KnownPeer {
            fi_addr,
            address: address.clone(),
            ringer,
            waiting: VecDeque::new(),
            seen: Cell::default(),
            retry_at: Instant::default(),
            pause: Duration::ZERO,
        };
        self.known.insert(id, peer);
        self.by_address.insert(address.clone(), id);
        self.by_fi_addr.insert(fi_addr, id);
        id
    }

    pub(super) fn remove(&mut self, id: PeerId) -> Option<KnownPeer> {
        let peer = self.known.remove(&id)?;
        self.by_address.remove(&peer.address);
        if self.by_fi_addr.get(&peer.fi_addr) == Some(&id) {
            self.by_fi_addr.remove(&peer.fi_addr);
        }
        self.waiting.retain(|waiting| *waiting != id);
        Some(peer)
    }

    pub(super) fn get(&self, id: PeerId) -> Option<&KnownPeer> {
        self.known.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: PeerId) -> Option<&mut KnownPeer> {
        self.known.get_mut(&id)
    }

    /// Queues an operation behind those that wait for the peer already.
    pub(super) fn wait(&mut self, id: PeerId, op: OpId, now: Instant) {
        let Some(peer) = self.known.get_mut(&id) else { return };
        if peer.waiting.is_empty() {
            peer.back_off(now);
            self.waiting.push(id);
        }
        peer.waiting.push_back((op, now));
    }

    /// When the next waiting operation should be tried again.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.waiting.iter().filter_map(|id| self.known.get(id)).map(|peer| peer.retry_at).min()
    }
}
