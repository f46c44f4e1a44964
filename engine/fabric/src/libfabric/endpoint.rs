//! The endpoint on libfabric.

use super::connection_limit::ConnectionLimit;
use super::doorbell::{self, RingOutcome};
use super::hang_up::{hang_up, hang_up_if_gone, stop_asking};
use super::ops::Op;
use super::peers::KnownPeer;
use super::progress::{Core, JOIN_BYTES, JOIN_MAX};
use super::provider_names;
use super::raw::Posted;
use crate::counters::add;
use crate::endpoint::Exposure;
use crate::memory::{Access, Buffer, RemoteRegion};
use crate::naming::{PublishedAddress, Publisher, Querier, query, resolve};
use crate::{
    Address, AuthKey, BufferPool, Capabilities, Endpoint, FabricCounters, FabricError, Found, Gone, PeerId,
    Sink, Transfer, Wait,
};
use core::cell::OnceCell;
use core::ops::Range;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use weir_proto::Keys;
use weir_runtime::{EventSource, Handle, LocalBoxFuture, SourceId};

/// What an endpoint needs whose peers' addresses are published.
pub(super) struct Published {
    /// For queries before it was introduced, without a key.
    anybody: Querier,
    /// For queries after that.
    querier: OnceCell<Querier>,
    /// Publishes its own address, if it listens.
    publisher: Option<Publisher>,
}

impl Published {
    pub(super) fn new(provider: &str, format: u32, publisher: Option<Publisher>) -> Self {
        let provider = provider_names::offered_as(provider).to_owned();
        Self { anybody: Querier { provider, format, key: None }, querier: OnceCell::new(), publisher }
    }

    fn introduce(&self, address: Address, server: u64, keys: Option<&Keys>) {
        let Querier { provider, format, .. } = self.anybody.clone();
        if let Some(publisher) = &self.publisher {
            let told = PublishedAddress { server, provider: provider.clone(), format, address };
            publisher.begin(told, keys.cloned());
        }
        // The first one stays: an endpoint has one owner for its whole life.
        let _ = self.querier.set(Querier { provider, format, key: keys.map(Keys::own) });
    }
}

pub(super) struct LibfabricEndpoint {
    core: Rc<Core>,
    rt: Handle,
    source: SourceId,
    /// Its address as the provider spells it.
    spelled: String,
    published: Option<Published>,
    /// Bounds the connections to it.
    _connection_limit: Option<ConnectionLimit>,
}

impl LibfabricEndpoint {
    /// The addresses of connections with a peer, of this side and of the other.
    fn ends(&self, peer: PeerId) -> Option<(SocketAddr, SocketAddr)> {
        let socket = self.core.peers.borrow().get(peer).and_then(|known| known.address.socket());
        self.core.address.socket().zip(socket)
    }

    pub(super) fn start(
        rt: &Handle,
        core: Rc<Core>,
        spelled: String,
        published: Option<Published>,
        connection_limit: Option<ConnectionLimit>,
    ) -> Result<Rc<dyn Endpoint>, FabricError> {
        let source = rt.add_source(Rc::clone(&core) as Rc<dyn EventSource>).map_err(|error| {
            FabricError::Provider {
                call: "epoll_ctl",
                code: 0,
                reason: error.to_string(),
                provider: core.capabilities.provider.clone(),
            }
        })?;
        Ok(Rc::new(Self {
            core,
            rt: rt.clone(),
            source,
            spelled,
            published,
            _connection_limit: connection_limit,
        }))
    }

    /// Whether the peer can be reached at all.
    fn reachable(&self, peer: PeerId) -> Result<(), FabricError> {
        self.core.peers.borrow().get(peer).map_or(Err(FabricError::UnknownPeer), |peer| self.alive(peer))
    }

    /// Whether the peer's process lives, if that is visible.
    #[inline]
    fn alive(&self, peer: &KnownPeer) -> Result<(), FabricError> {
        if peer.peer_doorbell.is_some() && peer.is_dead(self.rt.now()) {
            return Err(FabricError::Unreachable { reason: "the peer's process has ended".to_owned() });
        }
        Ok(())
    }

    fn transfer(
        &self,
        peer: PeerId,
        buffer: &Buffer,
        range: &Range<usize>,
        remote: RemoteRegion,
        access: Access,
    ) -> Transfer {
        let at = match buffer.locate(range) {
            Ok(at) => at,
            Err(error) => return Transfer::failed(error),
        };
        let len = range.len();
        if len as u64 > remote.len {
            return Transfer::failed(FabricError::OutOfRange { start: 0, end: len as u64, len: remote.len });
        }
        if let Err(error) = self.reachable(peer) {
            return Transfer::failed(error);
        }
        let (transfer, completer) = Transfer::new();
        if len == 0 {
            completer.complete(Ok(()));
            return transfer;
        }
        let memory = Rc::clone(buffer.memory());
        let op = Op::Transfer {
            peer,
            access,
            memory,
            at,
            len,
            remote,
            completer: Some(completer),
            _attention: self.rt.attend(),
        };
        match self.core.start(peer, op) {
            Ok(()) => transfer,
            Err(error) => Transfer::failed(error),
        }
    }

    /// The fast paths: a message that is copied at once needs no buffer, no entry in the table of operations and no
    /// completion. `None`: it takes the slow path.
    fn inject(&self, to: PeerId, parts: &[&[u8]], len: usize) -> Result<Option<()>, FabricError> {
        let core = &self.core;
        // Nothing that is called while they are borrowed comes back to the peers.
        let peers = core.peers.borrow();
        let Some(peer) = peers.get(to) else { return Err(FabricError::UnknownPeer) };
        self.alive(peer)?;
        let put = self.put(peer, parts, len);
        let posted = if put { None } else { self.post(peer, parts, len) };
        if !put && posted.is_none() {
            return Ok(None);
        }
        if let Some(peer_doorbell) = &peer.peer_doorbell
            && core.ring(peer_doorbell) == RingOutcome::Moved
        {
            drop(peers);
            core.follow(to)?;
            return Ok(None);
        }
        match posted {
            None => add(&core.counters.channel_sent, 1),
            Some(Posted::Yes) => core.sent_by_provider(to, peer),
            Some(Posted::Again) => return Ok(None),
            Some(Posted::Failed(errno)) => return Err(core.refusal(errno)),
        }
        Ok(Some(()))
    }

    /// Puts a message into the peer's channel, if there is one that has room.
    #[inline]
    fn put(&self, peer: &KnownPeer, parts: &[&[u8]], len: usize) -> bool {
        let Some(channel) = peer.peer_channel.open().filter(|_| len <= JOIN_BYTES) else { return false };
        channel.put(whole(&mut self.core.join.borrow_mut()[..], parts, len), self.core.channels.turn())
    }

    /// Posts a message, if the provider copies it at once. `None`: it doesn't, or other messages go first.
    fn post(&self, peer: &KnownPeer, parts: &[&[u8]], len: usize) -> Option<Posted> {
        let core = &self.core;
        let most = core.capabilities.inject;
        let copied = most > 0 && len <= most && (len <= JOIN_MAX || parts.len() == 1);
        if !copied || !peer.waiting.is_empty() || peer.has_moved() {
            return None;
        }
        let mut joined = core.join.borrow_mut();
        Some(core.raw.inject(whole(&mut joined[..], parts, len), peer.fi_addr))
    }
}

/// A message of this length in one piece, assembled if it has several parts.
#[inline]
fn whole<'a>(into: &'a mut [u8], parts: &[&'a [u8]], len: usize) -> &'a [u8] {
    match parts {
        [whole] => whole,
        _ => join(&mut into[..len], parts),
    }
}

/// Assembles a message.
fn join<'a>(into: &'a mut [u8], parts: &[&[u8]]) -> &'a [u8] {
    let mut at = 0;
    for part in parts {
        into[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    into
}

impl Drop for LibfabricEndpoint {
    fn drop(&mut self) {
        // First of all: no peer is to get the address of an endpoint that is gone.
        drop(self.published.take());
        self.rt.remove_source(self.source);
        self.core.close();
    }
}

impl Endpoint for LibfabricEndpoint {
    fn capabilities(&self) -> &Capabilities {
        &self.core.capabilities
    }

    fn address(&self) -> Address {
        self.core.address.clone()
    }

    fn spelled(&self) -> String {
        self.spelled.clone()
    }

    fn counters(&self) -> &FabricCounters {
        let counters = &self.core.counters;
        if let Some(publisher) = self.published.as_ref().and_then(|published| published.publisher.as_ref()) {
            let (told, refused) = publisher.counts();
            counters.addresses_told.set(told);
            counters.addresses_refused.set(refused);
        }
        counters
    }

    fn buffers(&self) -> &BufferPool {
        &self.core.pool
    }

    fn introduce(&self, server: u64, keys: Option<&Keys>) {
        if let Some(published) = &self.published {
            published.introduce(self.address(), server, keys);
        }
    }

    fn resolve(&self, host: &str, port: u16) -> LocalBoxFuture<'static, Result<Found, FabricError>> {
        let host = host.to_owned();
        if let Some(Published { anybody, querier, .. }) = &self.published {
            let nonce = u128::from(self.rt.random_u64()) << 64 | u128::from(self.rt.random_u64());
            let querier = querier.get().unwrap_or(anybody).clone();
            return Box::pin(query(querier, host, port, nonce.to_le_bytes()));
        }
        if self.core.capabilities.wait != Wait::Doorbell {
            let own = self
                .core
                .address
                .socket()
                .filter(|_| !provider_names::has_loopback(self.core.raw.provider()));
            return Box::pin(async move {
                let found = resolve::resolve(host, port).await?;
                // A peer at loopback is on this node, and so at the address of the same device.
                let near = found.socket().filter(|socket| socket.ip().is_loopback()).and(own);
                let address = near.map_or(found, |own| Address::from_socket(SocketAddr::new(own.ip(), port)));
                Ok(Found::from(address))
            });
        }
        // All peers of a doorbell provider are on this node, whatever the host is called.
        let found = doorbell::lookup(port).and_then(|name| Address::from_bytes(name.as_bytes()));
        let reason = "no endpoint on this node listens there".to_owned();
        let result = found.map(Found::from).ok_or(FabricError::Resolve { host, port, reason });
        Box::pin(core::future::ready(result))
    }

    fn insert(&self, address: &Address) -> Result<PeerId, FabricError> {
        self.core.insert(address)
    }

    fn auth_key(&self, peer: PeerId) -> Option<AuthKey> {
        self.core.peers.borrow().get(peer)?.address.auth_key()
    }

    fn address_of(&self, peer: PeerId) -> Option<Address> {
        Some(self.core.peers.borrow().get(peer)?.address.clone())
    }

    fn remove(&self, peer: PeerId) {
        let socket = self.core.peers.borrow().get(peer).and_then(|known| known.address.socket());
        if let Some(socket) = socket
            && hang_up(socket) > 0
        {
            tracing::debug!(peer = %socket, "connections to a silent peer were shut down");
        }
        self.forget(peer);
    }

    fn forget(&self, peer: PeerId) {
        // See `LEFT_MAX`: what is in our queue may refer to an shm peer's mapping, also after its death.
        let retained = self.core.capabilities.wait == Wait::Doorbell;
        self.core.leave_channel_of(peer);
        let gone = self.core.peers.borrow_mut().remove(peer, retained);
        let Some(gone) = gone else { return };
        let has_ended = gone.has_ended();
        add(&self.core.counters.peers_removed, 1);
        self.core.receive_queue.borrow_mut().disown(peer);
        if !gone.waiting.is_empty() {
            self.core.stop_dialling(Some(&gone.address));
        }
        for (op, _) in gone.waiting {
            self.core.fail(op, FabricError::Cancelled);
        }
        // What the provider has goes on, and may write to the peer's memory until it ends: over a connection that is shut down
        // with an error at once, over others when the peer has let go of it. Within a node the provider has copied when it was
        // posted; where it can't, the peer writes it itself and ends it, or the endpoint does that is opened anew for want of that
        // ([`super::watch`]). Only a process that is gone has no memory any more.
        if has_ended {
            for completer in self.core.ops.abandon(peer) {
                completer.complete(Err(FabricError::Cancelled));
            }
        }
        if !retained {
            self.core.raw.remove(gone.fi_addr);
        }
    }

    fn has_room_for_strangers(&self) -> bool {
        self.core.peers.borrow().has_room_for_strangers()
    }

    fn hang_up_if_gone(&self, peer: PeerId, gone: Gone) {
        if let Some(ends) = self.ends(peer) {
            hang_up_if_gone(ends, gone, gone.silence());
        }
    }

    fn stop_asking(&self, peer: PeerId) {
        if let Some(ends) = self.ends(peer) {
            stop_asking(ends);
        }
    }

    fn set_sink(&self, sink: Weak<dyn Sink>) {
        // The first one stays: an endpoint has one owner for its whole life.
        let _ = self.core.sink.set(sink);
        self.core.post_slabs();
    }

    fn send(&self, to: PeerId, context: u64, parts: &[&[u8]]) -> Result<(), FabricError> {
        let core = &self.core;
        let len = match parts {
            [whole] => whole.len(),
            _ => parts.iter().map(|part| part.len()).sum(),
        };
        if len > core.capabilities.max_message {
            return Err(FabricError::TooLarge { len, max: core.capabilities.max_message });
        }
        if self.inject(to, parts, len)?.is_none() {
            let (mut buffer, unsent) = core.room_for(to, len)?;
            join(&mut buffer, parts);
            let memory = Rc::clone(buffer.memory());
            core.start(to, Op::Send { peer: to, context, memory, len, _unsent: unsent })?;
        }
        add(&core.counters.messages_sent, 1);
        add(&core.counters.bytes_sent, len as u64);
        Ok(())
    }

    fn expose(&self, buffer: &Buffer, range: Range<usize>, access: Access) -> Result<Exposure, FabricError> {
        let at = buffer.locate(&range)?;
        self.core.expose(Rc::clone(buffer.memory()), at, range.len(), access)
    }

    fn read(&self, peer: PeerId, into: &mut Buffer, range: Range<usize>, from: RemoteRegion) -> Transfer {
        self.transfer(peer, into, &range, from, Access::Read)
    }

    fn write(&self, peer: PeerId, from: &Buffer, range: Range<usize>, to: RemoteRegion) -> Transfer {
        self.transfer(peer, from, &range, to, Access::Write)
    }

    fn look_at_once(&self) {
        self.core.reap_at_once();
    }
}
