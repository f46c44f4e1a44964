//! The sender of a message.

use super::Server;
use crate::clients::SenderError;
use crate::metrics::add;
use crate::wire::{Caller, Header, Kind, Layout};
use weir_fabric::{Address, Message, PeerId, Source};
use weir_proto::TenantId;
use weir_runtime::Instant;

/// The peer that a message is from, and its client.
#[derive(Clone, Copy)]
pub(super) struct Sender {
    pub(super) peer: PeerId,
    pub(super) caller: Caller,
}

impl Server {
    /// The sender, as an entry of the address vector. That is the entry of the address in the message if there
    /// is one, else of what the provider says, else of where the client was last, if the provider can't name it.
    #[inline(always)]
    pub(super) fn sender(
        &self,
        header: &Header,
        message: &Message,
        layout: &Layout,
        now: Instant,
    ) -> Option<Sender> {
        // The fast path: no address in the message, and the provider names the peer as before.
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

    /// The slow path.
    #[inline(never)]
    fn find_sender(
        &self,
        header: &Header,
        message: &Message,
        layout: &Layout,
        now: Instant,
    ) -> Option<Sender> {
        // Where the network tells tenants apart only the provider's word counts: an address in a message has no
        // key.
        let served = self.context.endpoint.capabilities().serves_auth_keys;
        let greeting = if served { None } else { message.get(layout.greeting.clone()) };
        let greeting = greeting.and_then(Address::from_bytes);
        let (known, address) = match message.source() {
            Source::Peer(peer) => (Some(*peer), greeting),
            Source::Address(address) => {
                // The address in a hello is covered by its seal. A hello from another address is a replay: it must not
                // bind the client to the address of the sender of the replay.
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
        // The tenant in a message counts only if it is sealed.
        let unnamed = || {
            let is_proved = self.context.ring.is_some() || !self.context.tells_tenants;
            self.context.clients.borrow().unnamed(Caller::of(header)).filter(|_| is_proved)
        };
        let peer = inserted.map(|(peer, _)| peer).or(known).or_else(unnamed)?;
        let caller = self.caller(header, peer);
        // A connected provider may name a forgotten sender by the present owner of its entry. It says nothing
        // about senders that were never named.
        let known =
            known.filter(|known| *known == peer || self.context.clients.borrow().is_placed(caller, *known));
        let met = if known.is_some_and(|known| known != peer) {
            Err(SenderError::Impostor)
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
                    SenderError::Impostor | SenderError::Replay => &self.context.metrics.impostors,
                    SenderError::NoRoom => &self.context.metrics.overloaded,
                };
                add(counter, 1);
                None
            }
        }
    }

    /// The client of a message: its tenant is that of the seal, else that of the network if it tells tenants.
    /// Where nothing authenticates a tenant, all clients are of one.
    #[inline]
    fn caller(&self, header: &Header, peer: PeerId) -> Caller {
        if self.context.ring.is_some() {
            return Caller::of(header);
        }
        let key = if self.context.tells_tenants { self.context.endpoint.auth_key(peer) } else { None };
        Caller { tenant: TenantId(key.map_or(0, |key| key.vni.into())), id: header.client }
    }
}
