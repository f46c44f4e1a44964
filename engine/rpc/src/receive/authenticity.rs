//! Who a message is from: checks of what arrives before anything is done with it.
//!
//! A refusal costs the same few hundred instructions whatever arrives, and leaves nothing behind: no entry, no queue,
//! no address beyond a small bound.

use crate::context::{Context, Ring, strangers_max};
use crate::metrics::add;
use crate::reply::{Outcome, Proof};
use crate::wire::seal::SealKey;
use crate::wire::{self, Caller, ClientId, Header, Kind, Layout};
use weir_fabric::{Address, Message, Source};
use weir_proto::capability::CREDENTIAL_LIFETIME_NS;
use weir_proto::{Der, TenantId};

/// How old a hello may be: a recorded one can't open a session after a restart of the server for longer than this,
/// and a client's clock may lag that much.
const HELLO_LIFETIME_NS: u64 = CREDENTIAL_LIFETIME_NS;

/// The bytes of a message, which may be the first of several.
fn whole<'a>(message: &'a Message, layout: &Layout) -> &'a [u8] {
    message.get(..layout.end).unwrap_or_default()
}

impl Context {
    /// Whether a message is from whom it says it is. What isn't is counted, and a sender that may be a client of an
    /// earlier life of this server is told.
    #[inline]
    pub(crate) fn is_authentic(&self, header: &Header, message: &Message, layout: &Layout) -> bool {
        let Some(ring) = &self.ring else {
            add(&self.metrics.unauthenticated, header.sealed.into());
            return !header.sealed;
        };
        self.is_proved(ring, header, message, layout)
    }

    /// The same where there are seals.
    #[inline(never)]
    fn is_proved(&self, ring: &Ring, header: &Header, message: &Message, layout: &Layout) -> bool {
        match header.kind {
            Kind::Hello => self.is_known_tenant(ring, header, message, layout),
            Kind::Request => self.is_client(header, message, layout),
            Kind::HelloReply | Kind::Reply | Kind::Working => self.is_answer(ring, header, message, layout),
        }
    }

    fn is_known_tenant(&self, ring: &Ring, header: &Header, message: &Message, layout: &Layout) -> bool {
        let key = if header.sealed { ring.of(TenantId(header.tenant)) } else { None };
        if key.is_none_or(|(_, hello)| !hello.opens(whole(message, layout))) {
            add(&self.metrics.unauthenticated, 1);
            tracing::debug!(tenant = header.tenant, "a hello of no tenant of this system");
            self.notify(header, message, layout, Der::NO_PERM);
            return false;
        }
        if header.epoch.wall_ns().saturating_add(HELLO_LIFETIME_NS) < self.rt.wall_ns() {
            add(&self.metrics.replays_refused, 1);
            return false;
        }
        true
    }

    fn is_client(&self, header: &Header, message: &Message, layout: &Layout) -> bool {
        let session = self.clients.borrow().seal(Caller::of(header));
        match session {
            Some(key) if header.sealed && key.opens(whole(message, layout)) => true,
            Some(_) => {
                add(&self.metrics.unauthenticated, 1);
                // The session may have been made anew while this was on its way; who holds the key asks again.
                false
            }
            None => {
                add(&self.metrics.unknown_sessions, 1);
                self.notify(header, message, layout, Der::NO_HDL);
                false
            }
        }
    }

    fn is_answer(&self, ring: &Ring, header: &Header, message: &Message, layout: &Layout) -> bool {
        let Some(proof) = self.pending.proof(header.request, header.client) else {
            add(&self.metrics.stray_replies, 1);
            return false;
        };
        if header.kind == Kind::HelloReply && !header.sealed {
            self.noticed(header, message);
            return false;
        }
        let key = match &proof {
            Proof::Session(session) => session.key,
            Proof::Hello(ours) => {
                message.get(layout.body.clone()).and_then(wire::decode_nonce).map(|theirs| {
                    let server = (ClientId::new(header.deadline), theirs);
                    SealKey::of_session(ring.own(), (header.client, *ours), server)
                })
            }
        };
        let authentic = header.sealed && key.is_some_and(|key| key.opens(whole(message, layout)));
        if !authentic {
            add(&self.metrics.unauthenticated, 1);
        }
        authentic
    }

    /// A server says, without proof, that it doesn't know this client. Only who sees the request can say that in its
    /// place, and all it brings about is a new hello.
    fn noticed(&self, header: &Header, message: &Message) {
        let from = message.source().peer();
        let asked = Some(header.client);
        if self.pending.resolve_with(header.request, asked, from, || Outcome::Notice(Der(header.status))) {
            add(&self.metrics.notices, 1);
        }
    }

    /// Tells a sender that can't be authenticated why it gets no answer; a bounded number of them.
    pub(crate) fn notify(&self, header: &Header, message: &Message, layout: &Layout, der: Der) {
        if !self.strangers.may_answer(self.rt.now()) {
            return;
        }
        // What it says of where it is comes before the provider's word, which may be of whoever has the place in the address vector
        // that a client had which was forgotten. Where the network tells tenants apart, addresses in messages have no key.
        let said = || message.get(layout.greeting.clone()).and_then(Address::from_bytes);
        let address = match message.source() {
            Source::Peer(_) if self.endpoint.capabilities().serves_auth_keys => None,
            Source::Address(address) => Some(Address::clone(address)),
            Source::Peer(_) | Source::Unknown => said(),
        };
        let address = address.filter(|_| self.endpoint.has_room_for_strangers());
        let inserted = address.and_then(|address| self.entry(&address));
        let Some(peer) = inserted.map(|(peer, _)| peer).or(message.source().peer()) else { return };
        if let Some((_, true)) = inserted
            && let Some(gone) =
                self.strangers.keep(peer, strangers_max(self.endpoint.capabilities().max_peers))
        {
            self.endpoint.forget(gone);
        }
        let mut notice =
            Header::new(Kind::HelloReply, header.version, header.client, header.request, self.epoch());
        notice.deadline = self.id.bits();
        notice.status = der.0;
        let body = wire::encode_versions(&self.config.versions);
        notice.body_len = u32::try_from(body.len()).unwrap_or(0);
        add(&self.metrics.replies, 1);
        if let Err(error) = self.transmit(peer, 0, &mut notice, &[], &[], &body, None, 1) {
            add(&self.metrics.sends_failed, 1);
            tracing::debug!(%error, "a stranger could not be told");
        }
    }
}
