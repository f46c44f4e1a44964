//! Who sent a message.

use super::Server;
use crate::clients::Stranger;
use crate::metrics::add;
use crate::wire::{Caller, Header, Kind, Layout};
use weir_fabric::{Address, Message, PeerId, Source};
use weir_proto::TenantId;
use weir_runtime::Instant;

/// Where a message is from, and whose it is.
#[derive(Clone, Copy)]
pub(super) struct Sender {
    pub(super) peer: PeerId,
    pub(super) caller: Caller,
}

impl Server {
    /// Who sent this, as an entry of the address vector: the address in the message where there is one, else what the
    /// provider says, else where this client was last, if the provider can't name it.
    #[inline(always)]
    pub(super) fn sender(
        &self,
        header: &Header,
        message: &Message,
        layout: &Layout,
        now: Instant,
    ) -> Option<Sender> {
        // The short way: who says nothing of where it is, and comes from where the provider named it before.
        if let Source::Peer(peer) = message.source()
            && layout.greeting.is_empty()
        {
            let (peer, caller) = (*peer, self.caller(header, *peer));
            if self.context.clients.borrow_mut().comes_again(caller, peer, now) {
                return Some(Sender { peer, caller });
            }
        }
        self.find_sender(header, message, layout, now)
    }

    /// The long way.
    #[inline(never)]
    fn find_sender(
        &self,
        header: &Header,
        message: &Message,
        layout: &Layout,
        now: Instant,
    ) -> Option<Sender> {
        // Where the network tells tenants apart, its word is the only one: an address in a message has no key.
        let served = self.context.endpoint.capabilities().serves_auth_keys;
        let greeting = if served { None } else { message.get(layout.greeting.clone()) };
        let greeting = greeting.and_then(Address::from_bytes);
        let (known, address) = match message.source() {
            Source::Peer(peer) => (Some(*peer), greeting),
            Source::Address(address) => {
                // What a client says of where it is stands under its seal. From elsewhere it is a recording: it must not
                // have the client's name stand for the place of whoever plays it.
                let sealed_hello = header.kind == Kind::Hello && self.context.ring.is_some() && !served;
                let true_there = greeting.as_ref().map_or(!sealed_hello, |said| said == &**address);
                if !true_there {
                    add(&self.context.metrics.impostors, 1);
                    return None;
                }
                (None, Some(Address::clone(address)))
            }
            Source::Unknown => (None, greeting),
        };
        let inserted = address.as_ref().and_then(|address| self.context.entry(address));
        // What a message says of its tenant counts only behind a seal.
        let unnamed = || {
            let is_proved = self.context.ring.is_some() || !self.context.tells_tenants;
            self.context.clients.borrow().unnamed(Caller::of(header)).filter(|_| is_proved)
        };
        let peer = inserted.map(|(peer, _)| peer).or(known).or_else(unnamed)?;
        let caller = self.caller(header, peer);
        // A connected provider names a sender that was forgotten by whoever has its place now: of who was never named it says nothing.
        let known =
            known.filter(|known| *known == peer || self.context.clients.borrow().is_placed(caller, *known));
        let met = if known.is_some_and(|known| known != peer) {
            Err(Stranger::Impostor)
        } else {
            self.context.clients.borrow_mut().meet(caller, peer, address.as_ref(), now)
        };
        match met {
            Ok(forgotten) => {
                self.context.strangers.release(peer);
                if known.is_some() {
                    self.context.clients.borrow_mut().name(caller);
                }
                self.context.forget_unused(&forgotten);
                Some(Sender { peer, caller })
            }
            Err(stranger) => {
                // An address that was only claimed leaves nothing behind.
                if let Some((claimed, true)) = inserted {
                    self.context.endpoint.forget(claimed);
                }
                let counter = match stranger {
                    Stranger::Impostor | Stranger::Replay => &self.context.metrics.impostors,
                    Stranger::NoRoom => &self.context.metrics.overloaded,
                };
                add(counter, 1);
                None
            }
        }
    }

    /// Whose message this is: by the seal that it has, else by the network where that tells. Where nobody checks a tenant,
    /// all are one, whatever they say.
    #[inline]
    fn caller(&self, header: &Header, peer: PeerId) -> Caller {
        if self.context.ring.is_some() {
            return Caller::of(header);
        }
        let key = if self.context.tells_tenants { self.context.endpoint.auth_key(peer) } else { None };
        Caller { tenant: TenantId(key.map_or(0, |key| key.vni.into())), id: header.client }
    }
}
