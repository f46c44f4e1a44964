//! Authentication of what arrives, before anything is done with it.
//!
//! A refusal costs the same few hundred instructions whatever arrives, and leaves nothing behind: no entry, no
//! queue, and addresses only within a small bound.

use crate::context::{Context, KeyRing, unknown_senders_max};
use crate::metrics::add;
use crate::reply::{Outcome, ReplyAuth};
use crate::wire::seal::SealKey;
use crate::wire::{self, Caller, ClientId, Header, Kind, Layout};
use weir_fabric::{Address, Message, Source};
use weir_proto::capability::CREDENTIAL_LIFETIME_NS;
use weir_proto::{Der, TenantId};

/// Longest age of a hello. After a restart of the server, a recorded hello can't open a session for longer than
/// this. A client's clock may lag by as much.
const HELLO_LIFETIME_NS: u64 = CREDENTIAL_LIFETIME_NS;

/// The bytes of a message. Other messages may follow them.
fn whole<'a>(message: &'a Message, layout: &Layout) -> &'a [u8] {
    &message[..layout.end]
}

impl Context {
    /// Whether a message is from the sender that it names. Others are counted, and a sender that may be a client from
    /// before a restart of this server gets a notice.
    #[inline]
    pub(crate) fn is_authentic(&self, header: &Header, message: &Message, layout: &Layout) -> bool {
        let Some(ring) = &self.ring else {
            add(&self.metrics.unauthenticated, header.sealed.into());
            return !header.sealed;
        };
        self.is_proved(ring, header, message, layout)
    }

    /// The same where messages are sealed.
    #[inline(never)]
    fn is_proved(&self, ring: &KeyRing, header: &Header, message: &Message, layout: &Layout) -> bool {
        match header.kind {
            Kind::Hello | Kind::Request if ring.is_revoked(TenantId(header.tenant)) => {
                add(&self.metrics.revoked, 1);
                self.notify(header, message, layout, Der::NO_PERM);
                false
            }
            Kind::Hello => self.is_known_tenant(ring, header, message, layout),
            Kind::Request => self.is_client(header, message, layout),
            Kind::HelloReply | Kind::Reply | Kind::Working => self.is_answer(ring, header, message, layout),
        }
    }

    fn is_known_tenant(&self, ring: &KeyRing, header: &Header, message: &Message, layout: &Layout) -> bool {
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
                // The session may have been opened anew while this was in flight. A sender with the key asks
                // again.
                false
            }
            None => {
                add(&self.metrics.unknown_sessions, 1);
                self.notify(header, message, layout, Der::NO_HDL);
                false
            }
        }
    }

    fn is_answer(&self, ring: &KeyRing, header: &Header, message: &Message, layout: &Layout) -> bool {
        let Some(proof) = self.pending.proof(header.request, header.client) else {
            add(&self.metrics.stray_replies, 1);
            return false;
        };
        if header.kind == Kind::HelloReply && !header.sealed {
            self.noticed(header, message);
            return false;
        }
        let key = match &proof {
            ReplyAuth::Session(session) => session.key,
            ReplyAuth::Hello(ours) => {
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

    /// A server says, unauthenticated, that it doesn't know this client. Only a process that sees the request can forge
    /// that, and it only causes a new hello.
    fn noticed(&self, header: &Header, message: &Message) {
        let from = message.source().peer();
        let asked = Some(header.client);
        if self.pending.resolve_with(header.request, asked, from, || Outcome::Notice(Der(header.status))) {
            add(&self.metrics.notices, 1);
        }
    }

    /// Tells a sender that can't be authenticated why it gets no answer. The rate of these notices is bounded.
    pub(crate) fn notify(&self, header: &Header, message: &Message, layout: &Layout, der: Der) {
        if !self.strangers.may_answer(self.rt.now()) {
            return;
        }
        // The address in the message takes precedence over the provider's word, which may name the present owner
        // of a forgotten client's entry. Where the network tells tenants apart, addresses in messages have no
        // key.
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
                self.strangers.keep(peer, unknown_senders_max(self.endpoint.capabilities().max_peers))
        {
            self.endpoint.forget(gone);
        }
        let mut notice =
            Header::new(Kind::HelloReply, header.version, header.client, header.request, self.epoch());
        notice.deadline = self.id.bits();
        notice.status = der.0;
        let body = wire::encode_versions(&self.config.versions);
        notice.set_body(&body);
        add(&self.metrics.replies, 1);
        if let Err(error) = self.transmit(peer, 0, &mut notice, &[], &[], &body, None, 1) {
            add(&self.metrics.sends_failed, 1);
            tracing::debug!(%error, "a stranger could not be told");
        }
    }
}
