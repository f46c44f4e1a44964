//! The keys of a context, and bounds for senders that have proved none.

use super::Context;
use crate::wire::seal::{Keys, Nonce, SealKey, nonce};
use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};
use weir_fabric::PeerId;
use weir_proto::{TenantId, TenantKey};
use weir_runtime::Instant;

/// Answers to unknown senders in one [`NOTICE_SPAN`]. Every client of the paper's largest run learns within a
/// minute that a server has restarted, and a flood costs at most a tenth of a megabyte a second.
const NOTICES_MAX: u32 = 10;

/// The time that [`NOTICES_MAX`] counts over.
const NOTICE_SPAN: Duration = Duration::from_millis(10);

/// Most unknown senders whose addresses are kept for an answer that may still be in flight.
const UNKNOWN_SENDERS_MAX: usize = 256;

/// Where a provider has room for few peers, one part in this many is for unknown senders. Those that turn out to
/// be clients take further room, as far as the endpoint allows it
/// ([`weir_fabric::Endpoint::has_room_for_strangers`]).
const UNKNOWN_SENDERS_SHARE: usize = 8;

/// Unknown senders that are kept, by the provider's room for peers.
pub(crate) fn unknown_senders_max(room: Option<usize>) -> usize {
    room.map_or(UNKNOWN_SENDERS_MAX, |room| UNKNOWN_SENDERS_MAX.min(room / UNKNOWN_SENDERS_SHARE))
}

/// The keys of a context, and what is derived from them once.
pub(crate) struct KeyRing {
    keys: Keys,
    own: TenantKey,
    hello: SealKey,
    /// Tenants that may make no request here, though they have keys.
    revoked: RefCell<BTreeSet<TenantId>>,
    has_revoked: Cell<bool>,
}

impl KeyRing {
    pub(crate) fn new(keys: Keys) -> Self {
        let own = keys.own();
        let hello = SealKey::of_hello(&own);
        Self { keys, own, hello, revoked: RefCell::default(), has_revoked: Cell::new(false) }
    }

    pub(crate) fn tenant(&self) -> TenantId {
        self.own.tenant()
    }

    pub(crate) fn own(&self) -> &TenantKey {
        &self.own
    }

    /// From now on these tenants, and no others, may make no request here.
    pub(crate) fn revoke(&self, tenants: BTreeSet<TenantId>) {
        self.has_revoked.set(!tenants.is_empty());
        self.revoked.replace(tenants);
    }

    /// Whether a tenant may make no request here. Each request is asked.
    #[inline]
    pub(crate) fn is_revoked(&self, tenant: TenantId) -> bool {
        self.has_revoked.get() && self.revoked.borrow().contains(&tenant)
    }

    /// The key of a tenant that may make requests here, and the key that seals its hellos.
    pub(crate) fn of(&self, tenant: TenantId) -> Option<(TenantKey, SealKey)> {
        let key = self.keys.of(tenant)?;
        let hello = if tenant == self.tenant() { self.hello } else { SealKey::of_hello(&key) };
        Some((key, hello))
    }

    pub(crate) fn own_hello(&self) -> &SealKey {
        &self.hello
    }
}

/// Bounds what is sent to unknown senders.
#[derive(Default)]
pub(crate) struct UnknownSenders {
    since: Cell<Instant>,
    sent: Cell<u32>,
    peers: RefCell<VecDeque<PeerId>>,
}

impl UnknownSenders {
    pub(crate) fn may_answer(&self, now: Instant) -> bool {
        if now - self.since.get() >= NOTICE_SPAN {
            self.since.set(now);
            self.sent.set(0);
        }
        self.sent.set(self.sent.get().saturating_add(1));
        self.sent.get() <= NOTICES_MAX
    }

    /// Keeps the entry of an unknown sender for a while, at most `max` of them. Returns the entry that has to
    /// go.
    pub(crate) fn keep(&self, peer: PeerId, max: usize) -> Option<PeerId> {
        let mut peers = self.peers.borrow_mut();
        peers.push_back(peer);
        if peers.len() > max { peers.pop_front() } else { None }
    }

    /// The sender at this entry has become known.
    pub(crate) fn release(&self, peer: PeerId) {
        let mut peers = self.peers.borrow_mut();
        if !peers.is_empty() {
            peers.retain(|stranger| *stranger != peer);
        }
    }
}

impl Context {
    /// A nonce for a session's key. It need not be secret, only new.
    pub(crate) fn fresh_nonce(&self) -> Nonce {
        nonce(self.rt.random_u64(), self.rt.random_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_take_a_small_part_of_the_room_where_there_is_little() {
        assert_eq!(
            [None, Some(100_000), Some(256)].map(unknown_senders_max),
            [UNKNOWN_SENDERS_MAX, UNKNOWN_SENDERS_MAX, 32]
        );
        let strangers = UnknownSenders::default();
        let evicted: Vec<_> =
            (0..40).filter_map(|peer| strangers.keep(PeerId(peer), unknown_senders_max(Some(256)))).collect();
        assert_eq!(evicted, (0..8).map(PeerId).collect::<Vec<_>>());
    }
}
