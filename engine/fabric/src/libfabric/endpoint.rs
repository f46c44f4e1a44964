//! The fabric trait on libfabric.

use super::bell::{self, Ringer};
use super::hang_up::hang_up;
use super::ops::Op;
use super::peers::{KnownPeer, Peers};
use super::progress::{Core, JOIN_MAX};
use super::raw::Posted;
use super::resolve;
use crate::counters::add;
use crate::exposure::Exposure;
use crate::memory::{Access, Buffer, RemoteRegion};
use crate::{
    Address, AuthKey, BufferPool, Capabilities, Endpoint, FabricCounters, FabricError, PeerId, Sink,
    Transfer, Wait,
};
use core::ops::Range;
use std::rc::{Rc, Weak};
use weir_runtime::{EventSource, Handle, LocalBoxFuture, SourceId};

pub(super) struct LibfabricEndpoint {
    core: Rc<Core>,
    rt: Handle,
    source: SourceId,
}

impl LibfabricEndpoint {
    pub(super) fn start(rt: &Handle, core: Rc<Core>) -> Result<Rc<dyn Endpoint>, FabricError> {
        let source = rt.add_source(Rc::clone(&core) as Rc<dyn EventSource>).map_err(|error| {
            FabricError::Provider {
                call: "epoll_ctl",
                code: 0,
                reason: error.to_string(),
                provider: core.capabilities.provider.clone(),
            }
        })?;
        Ok(Rc::new(Self { core, rt: rt.clone(), source }))
    }

    fn bad_address(&self, address: &Address) -> FabricError {
        let provider = self.core.capabilities.provider.clone();
        FabricError::BadAddress { address: address.to_string(), provider }
    }

    /// Checks an address before libfabric sees it: addresses come from the network.
    fn check(&self, address: &Address) -> Result<Option<Rc<Ringer>>, FabricError> {
        let own = &self.core.address;
        if self.core.capabilities.wait == Wait::Doorbell {
            let name = address.as_bytes().strip_suffix(&[0]).unwrap_or(address.as_bytes());
            let name = str::from_utf8(name).ok().filter(|name| bell::is_name(name));
            let name = name.ok_or_else(|| self.bad_address(address))?;
            if bell::is_own(name) && !self.core.capabilities.within_process() {
                let Capabilities { provider, library, .. } = &self.core.capabilities;
                return Err(FabricError::OwnProcess { provider: provider.clone(), library: library.clone() });
            }
            return Ok(Some(Rc::new(Ringer::new(name)?)));
        }
        let usable = match (own.socket(), address.socket()) {
            (Some(own), Some(socket)) => {
                own.is_ipv4() == socket.is_ipv4() && socket.port() != 0 && !socket.ip().is_unspecified()
            }
            (None, None) => own.as_bytes().len() == address.as_bytes().len(),
            _ => false,
        };
        if usable { Ok(None) } else { Err(self.bad_address(address)) }
    }

    /// A new entry of the address vector, with the slot that its completions will name where the provider can.
    fn insert_raw(&self, peers: &mut Peers, address: &Address) -> Result<(u64, u32), FabricError> {
        let slot = peers.reserve();
        let raw = &self.core.raw;
        let inserted = if peers.has_user_ids() {
            raw.insert(address, Some(slot.into())).or_else(|error| {
                // Advertised and refused: entries are found by the provider's own numbers from now on.
                tracing::debug!(%error, "the provider takes no user ids");
                peers.give_up_user_ids();
                raw.insert(address, None)
            })
        } else {
            raw.insert(address, None)
        };
        match inserted {
            Ok(fi_addr) => Ok((fi_addr, slot)),
            Err(error) => {
                peers.unreserve(slot);
                Err(error)
            }
        }
    }

    /// Whether an operation to this peer makes sense.
    fn reachable(&self, peer: PeerId) -> Result<(), FabricError> {
        self.alive(self.core.peers.borrow().get(peer).ok_or(FabricError::UnknownPeer)?)
    }

    /// Whether the peer's process is still there, where that can be seen.
    fn alive(&self, peer: &KnownPeer) -> Result<(), FabricError> {
        if peer.ringer.is_some() && peer.is_dead(self.rt.now()) {
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

    /// The short way out: a message that the provider copies at once needs no buffer, no entry in the table of operations
    /// and no completion. `None`: it has to go the long way.
    fn inject(&self, to: PeerId, parts: &[&[u8]], len: usize) -> Result<Option<()>, FabricError> {
        let core = &self.core;
        // Nothing that is called from here comes back to the peers.
        let peers = core.peers.borrow();
        let peer = peers.get(to).ok_or(FabricError::UnknownPeer)?;
        self.alive(peer)?;
        if len > core.capabilities.inject || !peer.waiting.is_empty() {
            return Ok(None);
        }
        let posted = match parts {
            [whole] => core.raw.inject(whole, peer.fi_addr),
            _ if len > JOIN_MAX => return Ok(None),
            _ => {
                let mut bytes = core.join.borrow_mut();
                let mut at = 0;
                for part in parts {
                    bytes[at..at + part.len()].copy_from_slice(part);
                    at += part.len();
                }
                core.raw.inject(&bytes[..len], peer.fi_addr)
            }
        };
        if let Some(ringer) = &peer.ringer {
            core.ring(ringer);
        }
        match posted {
            Posted::Yes => Ok(Some(())),
            Posted::Again => Ok(None),
            Posted::Failed(errno) => Err(core.refusal(errno)),
        }
    }
}

impl Drop for LibfabricEndpoint {
    fn drop(&mut self) {
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

    fn counters(&self) -> &FabricCounters {
        &self.core.counters
    }

    fn buffers(&self) -> &BufferPool {
        &self.core.pool
    }

    fn resolve(&self, host: &str, port: u16) -> LocalBoxFuture<'static, Result<Address, FabricError>> {
        let host = host.to_owned();
        if self.core.capabilities.wait != Wait::Doorbell {
            return Box::pin(resolve::resolve(host, port));
        }
        // All peers of a doorbell provider are on this node, whatever the host is called.
        let found = bell::lookup(port).and_then(|name| Address::from_bytes(name.as_bytes()));
        let reason = "no endpoint on this node listens there".to_owned();
        let result = found.ok_or(FabricError::Resolve { host, port, reason });
        Box::pin(core::future::ready(result))
    }

    fn insert(&self, address: &Address) -> Result<PeerId, FabricError> {
        let address = if self.core.capabilities.wait == Wait::Doorbell {
            // With and without the terminating zero it is the same name.
            let name = address.as_bytes().strip_suffix(&[0]).unwrap_or(address.as_bytes());
            &Address::from_bytes(name).ok_or_else(|| self.bad_address(address))?
        } else {
            address
        };
        let keyed = address.named_under(self.core.raw.first_key());
        let address = keyed.as_ref().unwrap_or(address);
        if let Some(known) = self.core.peers.borrow().by_address(address) {
            return Ok(known);
        }
        let ringer = self.check(address)?;
        let peers = &mut *self.core.peers.borrow_mut();
        let (fi_addr, slot) = match peers.take_retained(address) {
            Some(entry) => entry,
            None => self.insert_raw(peers, address)?,
        };
        add(&self.core.counters.peers_inserted, 1);
        Ok(peers.add(slot, address, fi_addr, ringer))
    }

    fn auth_key(&self, peer: PeerId) -> Option<AuthKey> {
        self.core.peers.borrow().get(peer)?.address.auth_key()
    }

    fn remove(&self, peer: PeerId) {
        // A living shm peer may still have commands in our queue that refer to its mapping.
        let doorbell = self.core.capabilities.wait == Wait::Doorbell;
        let retain =
            |peer: &KnownPeer| doorbell && !str::from_utf8(peer.address.as_bytes()).is_ok_and(bell::is_dead);
        let mut retained = false;
        let gone = self.core.peers.borrow_mut().remove(peer, |peer| {
            retained = retain(peer);
            retained
        });
        let Some(gone) = gone else { return };
        add(&self.core.counters.peers_removed, 1);
        self.core.intake.borrow_mut().disown(peer);
        for (op, _) in gone.waiting {
            self.core.fail(op, FabricError::Cancelled);
        }
        for completer in self.core.ops.abandon(peer) {
            completer.complete(Err(FabricError::Cancelled));
        }
        if let Some(socket) = gone.address.socket()
            && hang_up(socket) > 0
        {
            tracing::debug!(peer = %socket, "connections to a silent peer were shut down");
        }
        if !retained {
            self.core.raw.remove(gone.fi_addr);
        }
    }

    fn set_sink(&self, sink: Weak<dyn Sink>) {
        // The first one stays: an endpoint has one owner for its whole life.
        let _ = self.core.sink.set(sink);
        self.core.post_slabs();
    }

    fn send(&self, to: PeerId, context: u64, parts: &[&[u8]]) -> Result<(), FabricError> {
        let core = &self.core;
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > core.capabilities.max_message {
            return Err(FabricError::TooLarge { len, max: core.capabilities.max_message });
        }
        if self.inject(to, parts, len)?.is_none() {
            let mut buffer = core.send_buffer(len)?;
            let mut at = 0;
            for part in parts {
                buffer[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            core.start(to, Op::Send { peer: to, context, memory: Rc::clone(buffer.memory()), len })?;
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
