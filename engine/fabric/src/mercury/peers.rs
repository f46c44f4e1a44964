//! The peers that an endpoint knows.

use super::ops::Queue;
use super::raw::PeerAddress;
use crate::mercury_wire::names::Name;
use crate::{Address, PeerId};
use core::cell::Cell;
use core::time::Duration;
use std::collections::HashMap;
use std::rc::Rc;
use weir_runtime::Instant;

/// How often a peer's process is looked for, at most.
const LOOK_EVERY: Duration = Duration::from_millis(10);

pub(super) struct KnownPeer {
    pub(super) name: Name,
    pub(super) key: Address,
    pub(super) addr: PeerAddress,
    /// What its messages are numbered with.
    number: u64,
    /// The endpoint itself.
    pub(super) is_self: bool,
    /// What is on its way to it.
    pub(super) queue: Queue,
    /// When its process was last seen, where that can be seen.
    seen: Cell<Instant>,
}

impl KnownPeer {
    /// Whether its process has ended, where that can be seen.
    pub(super) fn is_dead(&self, now: Instant) -> bool {
        if self.name.socket().is_some() || now - self.seen.get() < LOOK_EVERY {
            return false;
        }
        if self.name.is_dead() {
            return true;
        }
        self.seen.set(now);
        false
    }
}

#[derive(Default)]
pub(super) struct Peers {
    known: HashMap<PeerId, Rc<KnownPeer>>,
    by_address: HashMap<Address, PeerId>,
    by_number: HashMap<u64, PeerId>,
    made: u64,
}

impl Peers {
    pub(super) fn get(&self, id: PeerId) -> Option<Rc<KnownPeer>> {
        self.known.get(&id).map(Rc::clone)
    }

    pub(super) fn by_address(&self, address: &Address) -> Option<PeerId> {
        self.by_address.get(address).copied()
    }

    /// Whose messages have this number.
    pub(super) fn by_number(&self, number: u64) -> Option<PeerId> {
        self.by_number.get(&number).copied()
    }

    /// Adds a peer under an id that was never used before.
    pub(super) fn add(
        &mut self,
        name: Name,
        key: Address,
        addr: PeerAddress,
        number: u64,
        is_self: bool,
    ) -> PeerId {
        self.made += 1;
        let id = PeerId(self.made);
        self.by_address.insert(key.clone(), id);
        self.by_number.insert(number, id);
        let (queue, seen) = (Queue::default(), Cell::default());
        self.known.insert(id, Rc::new(KnownPeer { name, key, addr, number, is_self, queue, seen }));
        id
    }

    /// Forgets a peer.
    pub(super) fn remove(&mut self, id: PeerId) -> Option<Rc<KnownPeer>> {
        let gone = self.known.remove(&id)?;
        self.by_address.remove(&gone.key);
        self.by_number.remove(&gone.number);
        Some(gone)
    }

    /// All peers.
    pub(super) fn all(&self) -> Vec<Rc<KnownPeer>> {
        self.known.values().map(Rc::clone).collect()
    }
}
