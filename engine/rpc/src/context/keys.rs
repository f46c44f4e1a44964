//! The keys of a context, and the senders that have none.

use super::Context;
use crate::wire::seal::{Keys, Nonce, SealKey, nonce};
use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::collections::VecDeque;
use weir_fabric::PeerId;
use weir_proto::{TenantId, TenantKey};
use weir_runtime::Instant;

/// Answers to strangers in one [`NOTICE_SPAN`]: every client of the paper's largest run is told within a minute that a
/// server has restarted, and a flood is answered with a tenth of a megabyte a second at most.
const NOTICES_MAX: u32 = 10;

/// What [`NOTICES_MAX`] counts over.
const NOTICE_SPAN: Duration = Duration::from_millis(10);

/// Most strangers whose addresses are kept, for an answer that may still be on its way to them.
const STRANGERS_MAX: usize = 256;

/// The part of a provider's room for peers that strangers may take where it is small. Others who were met as strangers and live
/// on take as much again and more, as far as the endpoint has room for such ([`weir_fabric::Endpoint::has_room_for_strangers`]).
const STRANGERS_SHARE: usize = 8;

/// Strangers that are kept where the provider has room for so many peers.
pub(crate) fn strangers_max(room: Option<usize>) -> usize {
    room.map_or(STRANGERS_MAX, |room| STRANGERS_MAX.min(room / STRANGERS_SHARE))
}

/// The keys of a context, with what is derived from them once.
pub(crate) struct Ring {
    keys: Keys,
    own: TenantKey,
    hello: SealKey,
}

impl Ring {
    pub(crate) fn new(keys: Keys) -> Self {
        let own = keys.own();
        let hello = SealKey::of_hello(&own);
        Self { keys, own, hello }
    }

    pub(crate) fn tenant(&self) -> TenantId {
        self.own.tenant()
    }

    pub(crate) fn own(&self) -> &TenantKey {
        &self.own
    }

    /// The key of a tenant that may make requests here, and the one that its hellos are sealed with.
    pub(crate) fn of(&self, tenant: TenantId) -> Option<(TenantKey, SealKey)> {
        let key = self.keys.of(tenant)?;
        let hello = if tenant == self.tenant() { self.hello } else { SealKey::of_hello(&key) };
        Some((key, hello))
    }

    pub(crate) fn own_hello(&self) -> &SealKey {
        &self.hello
    }
}

/// Bounds what is sent to senders that are not known.
#[derive(Default)]
pub(crate) struct Strangers {
    since: Cell<Instant>,
    sent: Cell<u32>,
    peers: RefCell<VecDeque<PeerId>>,
}

impl Strangers {
    pub(crate) fn may_answer(&self, now: Instant) -> bool {
        if now - self.since.get() >= NOTICE_SPAN {
            self.since.set(now);
            self.sent.set(0);
        }
        self.sent.set(self.sent.get().saturating_add(1));
        self.sent.get() <= NOTICES_MAX
    }

    /// Keeps a stranger's entry for a while, `max` of them at most. Returns the one that has to go for it.
    pub(crate) fn keep(&self, peer: PeerId, max: usize) -> Option<PeerId> {
        let mut peers = self.peers.borrow_mut();
        peers.push_back(peer);
        if peers.len() > max { peers.pop_front() } else { None }
    }

    /// Somebody is no stranger any more.
    pub(crate) fn release(&self, peer: PeerId) {
        let mut peers = self.peers.borrow_mut();
        if !peers.is_empty() {
            peers.retain(|stranger| *stranger != peer);
        }
    }
}

impl Context {
    /// A number for a session's key. It need not be secret, only new.
    pub(crate) fn fresh_nonce(&self) -> Nonce {
        nonce(self.rt.random_u64(), self.rt.random_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_take_a_small_part_of_the_room_where_there_is_little() {
        assert_eq!([None, Some(100_000), Some(256)].map(strangers_max), [STRANGERS_MAX, STRANGERS_MAX, 32]);
        let strangers = Strangers::default();
        let evicted: Vec<_> =
            (0..40).filter_map(|peer| strangers.keep(PeerId(peer), strangers_max(Some(256)))).collect();
        assert_eq!(evicted, (0..8).map(PeerId).collect::<Vec<_>>());
    }
}
