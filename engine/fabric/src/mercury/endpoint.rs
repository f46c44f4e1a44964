//! The fabric trait on Mercury.
#![expect(unsafe_code, reason = "registering memory with Mercury, and moving it")]

use super::ops::{Kind, Op, Queued};
use super::ports::{self, Port};
use super::progress::{Core, Exposed, explain};
use super::raw::{Move, Registration, failure};
use crate::counters::add;
use crate::endpoint::{Ending, Exposure, Registered};
use crate::libfabric::hang_up::{cut_off, hang_up, hang_up_if_gone, stop_asking};
use crate::memory::{Access, Buffer, Memory, PAGE, RemoteRegion};
use crate::mercury_wire::fragments::Head;
use crate::mercury_wire::names::Name;
use crate::naming::resolve;
use crate::{
    Address, BufferPool, Capabilities, Endpoint, FabricCounters, FabricError, Found, Gone, PeerId, Sink,
    Transfer,
};
use core::net::SocketAddr;
use core::ops::Range;
use std::rc::{Rc, Weak};
use weir_runtime::{EventSource, Handle, LocalBoxFuture, SourceId};

pub(super) struct MercuryEndpoint {
    core: Rc<Core>,
    rt: Handle,
    source: SourceId,
    /// Ends before the endpoint does, so that no peer finds an endpoint that is gone.
    port: Option<Port>,
}

/// The registration of exposed memory.
struct ExposureRegistration {
    core: Weak<Core>,
    key: u64,
    _registration: Registration,
}

impl Drop for ExposureRegistration {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            core.exposed.borrow_mut().remove(&self.key);
        }
    }
}

impl Registered for ExposureRegistration {
    fn settle(self: Box<Self>) {}

    fn is_untold(&self) -> bool {
        self.core.upgrade().is_some_and(|core| core.raw.is_open())
    }

    fn close(self: Box<Self>) -> Ending {
        if self.is_untold() { Ending::Untold } else { Ending::Certain }
    }
}

/// No memory needs no registration.
struct Nothing;

impl Registered for Nothing {
    fn settle(self: Box<Self>) {}

    fn is_untold(&self) -> bool {
        false
    }

    fn close(self: Box<Self>) -> Ending {
        Ending::Certain
    }
}

/// A transfer that was checked.
struct Job {
    access: Access,
    memory: Rc<Memory>,
    at: usize,
    len: usize,
    remote: RemoteRegion,
}

impl MercuryEndpoint {
    /// Where connections with a peer are, on this side and on the other.
    fn ends(&self, peer: PeerId) -> Option<(SocketAddr, SocketAddr)> {
        let socket = self.core.peers.borrow().get(peer).and_then(|known| known.name.socket());
        self.core.name.socket().zip(socket)
    }

    pub(super) fn start(
        rt: &Handle,
        core: Rc<Core>,
        port: Option<Port>,
    ) -> Result<Rc<dyn Endpoint>, FabricError> {
        let source = rt.add_source(Rc::clone(&core) as Rc<dyn EventSource>).map_err(|error| {
            FabricError::Provider {
                call: "epoll_ctl",
                code: 0,
                reason: error.to_string(),
                provider: core.capabilities.provider.clone(),
            }
        })?;
        Ok(Rc::new(Self { core, rt: rt.clone(), source, port }))
    }

    fn refused(&self, call: &'static str, code: i32) -> FabricError {
        failure(call, code, &self.core.capabilities.provider)
    }

    /// A copy between this endpoint's own memories. Mercury would do it without any check.
    fn copy_own(&self, job: &Job) -> Result<(), FabricError> {
        let denied = |reason: &str| FabricError::AccessDenied { reason: reason.to_owned() };
        let exposed = self.core.exposed.borrow();
        let found = exposed.get(&job.remote.key).filter(|found| found.access == job.access);
        let found = found.ok_or_else(|| denied("there is no such memory"))?;
        let memory = found.memory.upgrade().ok_or_else(|| denied("the memory is gone"))?;
        let start = if self.core.capabilities.mr.virt_addr {
            job.remote.addr.checked_sub(memory.as_ptr() as u64 + found.at as u64)
        } else {
            Some(job.remote.addr)
        };
        let start = start.and_then(|start| usize::try_from(start).ok());
        let start = start.filter(|start| start.checked_add(job.len).is_some_and(|end| end <= found.len));
        let theirs = found.at + start.ok_or_else(|| denied("outside the memory"))?;
        let done = match job.access {
            Access::Read => job.memory.copy(job.at, &memory, theirs, job.len),
            Access::Write => memory.copy(theirs, &job.memory, job.at, job.len),
        };
        if done { Ok(()) } else { Err(denied("outside the memory")) }
    }

    /// The registration of local memory for this endpoint, which the memory keeps.
    fn local(&self, memory: &Rc<Memory>) -> Result<Rc<Registration>, FabricError> {
        let raw = &self.core.raw;
        let ours = |made: &Rc<Registration>| made.serves(raw).then(|| Rc::clone(made));
        let kept = memory.local();
        let found =
            kept.and_then(|local| local.borrow().iter().find_map(|made| made.downcast_ref().and_then(ours)));
        if let Some(found) = found {
            return Ok(found);
        }
        // SAFETY: the registration goes into the memory and into the operation, which drop it first.
        let made = unsafe { raw.register(memory, 0, memory.len(), None) };
        let made = Rc::new(made.map_err(|code| self.refused("HG_Bulk_create", code))?);
        if let Some(local) = kept {
            local.borrow_mut().push(Box::new(Rc::clone(&made)));
        }
        Ok(made)
    }

    /// Has Mercury start a transfer.
    fn start_move(&self, peer: PeerId, job: Job) -> Result<Transfer, FabricError> {
        let core = &self.core;
        let known = core.peers.borrow().get(peer).ok_or(FabricError::UnknownPeer)?;
        let denied = || FabricError::AccessDenied { reason: "no such memory".to_owned() };
        // Where the plugin counts from the start of the registration, what stands for that start doesn't matter.
        let (base, offset) = if core.capabilities.mr.virt_addr {
            (job.remote.addr, 0)
        } else {
            (PAGE as u64, job.remote.addr)
        };
        offset.checked_add(job.len as u64).and_then(|len| base.checked_add(len)).ok_or_else(denied)?;
        if base == 0 {
            // Mercury takes it for no memory at all.
            return Err(denied());
        }
        let own = self.local(&job.memory)?;
        let (transfer, completer) = Transfer::new();
        let kind = Kind::Transfer {
            access: job.access,
            len: job.len,
            completer: Some(completer),
            under_way: core::ptr::null_mut(),
            _registration: None,
            _memory: job.memory,
        };
        let token = core.ops.add(Op::new(peer, self.rt.now(), kind));
        let order = Move {
            access: job.access,
            peer: &known.addr,
            base,
            key: job.remote.key,
            offset,
            local: &own,
            at: job.at,
            len: job.len,
        };
        // SAFETY: the operation holds the memory and, from here on, the registration until its event.
        let started = unsafe { core.raw.start(&order, token) };
        match started {
            Ok(handle) => {
                core.ops.with(token, |op| {
                    if let Kind::Transfer { under_way, _registration: registration, .. } = &mut op.kind {
                        *under_way = handle;
                        *registration = Some(own);
                    }
                });
                Ok(transfer)
            }
            Err(refused) => {
                add(&core.counters.transfers_failed, 1);
                drop(core.ops.take(token));
                Err(explain(refused))
            }
        }
    }

    fn transfer(
        &self,
        peer: PeerId,
        buffer: &Buffer,
        range: &Range<usize>,
        remote: RemoteRegion,
        access: Access,
    ) -> Transfer {
        let len = range.len();
        let at = match buffer.locate(range) {
            Ok(at) => at,
            Err(error) => return Transfer::failed(error),
        };
        if len as u64 > remote.len {
            return Transfer::failed(FabricError::OutOfRange { start: 0, end: len as u64, len: remote.len });
        }
        let known = match self.reachable(peer) {
            Ok(known) => known,
            Err(error) => return Transfer::failed(error),
        };
        let job = Job { access, memory: Rc::clone(buffer.memory()), at, len, remote };
        if len == 0 || known {
            let (transfer, completer) = Transfer::new();
            completer.complete(if len == 0 { Ok(()) } else { self.copy_own(&job) });
            return transfer;
        }
        self.start_move(peer, job).unwrap_or_else(Transfer::failed)
    }

    /// Whether an operation to this peer makes sense, and whether it is this endpoint.
    fn reachable(&self, peer: PeerId) -> Result<bool, FabricError> {
        let known = self.core.peers.borrow().get(peer).ok_or(FabricError::UnknownPeer)?;
        if known.is_dead(self.rt.now()) {
            return Err(FabricError::Unreachable { reason: "the peer's process has ended".to_owned() });
        }
        Ok(known.is_self)
    }

    /// Whether a message of so many fragments may go out to a peer.
    fn has_room(&self, to: PeerId, fragments: usize) -> Result<(), FabricError> {
        let core = &self.core;
        let known = core.peers.borrow().get(to).ok_or(FabricError::UnknownPeer)?;
        core.ops.room(&known.queue, fragments).map_err(|(used, limit)| FabricError::NoBuffers {
            wanted: fragments * core.fragment,
            used: used * core.fragment,
            limit: limit * core.fragment,
        })
    }

    /// Sends one request: a message or a fragment of one, for which there is room.
    fn send_fragment(
        &self,
        to: PeerId,
        context: u64,
        head: Head,
        parts: &[&[u8]],
    ) -> Result<(), FabricError> {
        let core = &self.core;
        let known = core.peers.borrow().get(to).ok_or(FabricError::UnknownPeer)?;
        let queued = Queued::new(&known.queue);
        let kind = Kind::Send { context, handle: core::ptr::null_mut(), _queued: queued };
        let token = core.ops.add(Op::new(to, self.rt.now(), kind));
        match core.raw.send(&known.addr, &head.encode(), parts, token) {
            Ok(sent) => {
                core.ops.with(token, |op| {
                    if let Kind::Send { handle, .. } = &mut op.kind {
                        *handle = sent;
                    }
                });
                Ok(())
            }
            Err(refused) => {
                drop(core.ops.take(token));
                Err(explain(refused))
            }
        }
    }
}

impl Drop for MercuryEndpoint {
    fn drop(&mut self) {
        drop(self.port.take());
        self.rt.remove_source(self.source);
        self.core.close();
    }
}

impl Endpoint for MercuryEndpoint {
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

    fn resolve(&self, host: &str, port: u16) -> LocalBoxFuture<'static, Result<Found, FabricError>> {
        let host = host.to_owned();
        if self.core.name.socket().is_some() {
            let own = self.core.name.clone();
            return Box::pin(async move {
                let found = resolve::resolve(host, port).await?;
                let address = found.socket().map_or(Ok(found), |socket| own.at(socket).address());
                address.map(Found::from)
            });
        }
        // All peers are on this node, whatever the host is called.
        let reason = "no endpoint on this node listens there".to_owned();
        let found = ports::lookup(port).ok_or(FabricError::Resolve { host, port, reason });
        Box::pin(core::future::ready(found.and_then(|name| name.address()).map(Found::from)))
    }

    fn insert(&self, address: &Address) -> Result<PeerId, FabricError> {
        let core = &self.core;
        let provider = || core.capabilities.provider.clone();
        let bad = || FabricError::BadAddress { address: address.to_string(), provider: provider() };
        let name: Name = core.name.of_peer(address).ok_or_else(bad)?;
        let key = name.address()?;
        if let Some(known) = core.peers.borrow().by_address(&key) {
            return Ok(known);
        }
        let (addr, number) =
            core.raw.lookup(&name.text()).map_err(|code| self.refused("HG_Addr_lookup", code))?;
        add(&core.counters.peers_inserted, 1);
        let is_self = name == core.name;
        Ok(core.peers.borrow_mut().add(name, key, addr, number, is_self))
    }

    fn remove(&self, peer: PeerId) {
        let core = &self.core;
        let Some(gone) = core.peers.borrow_mut().remove(peer) else { return };
        add(&core.counters.peers_removed, 1);
        let mut under_way = false;
        core.ops.for_each(|op| under_way |= op.peer == peer);
        match gone.name.socket() {
            // What the network has of it ends with the connection, and is told of then: until it has, it may be at the peer's memory.
            Some(socket) if under_way => cut_off(socket),
            Some(socket) => drop(hang_up(socket)),
            None => {}
        }
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
    }

    fn send(&self, to: PeerId, context: u64, parts: &[&[u8]]) -> Result<(), FabricError> {
        let core = &self.core;
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > core.capabilities.max_message {
            return Err(FabricError::TooLarge { len, max: core.capabilities.max_message });
        }
        self.reachable(to)?;
        self.has_room(to, len.div_ceil(core.fragment).max(1))?;
        let message = core.next_message.get();
        core.next_message.set(message.wrapping_add(1));
        if len <= core.fragment {
            self.send_fragment(to, context, Head { message, index: 0, count: 1 }, parts)?;
        } else {
            let whole = parts.concat();
            let fragments = whole.chunks(core.fragment);
            let count = u16::try_from(fragments.len()).unwrap_or(u16::MAX);
            for (index, fragment) in (0u16..).zip(fragments) {
                self.send_fragment(to, context, Head { message, index, count }, &[fragment])?;
            }
        }
        add(&core.counters.messages_sent, 1);
        add(&core.counters.bytes_sent, len as u64);
        Ok(())
    }

    fn expose(&self, buffer: &Buffer, range: Range<usize>, access: Access) -> Result<Exposure, FabricError> {
        let core = &self.core;
        let at = buffer.locate(&range)?;
        let memory = Rc::clone(buffer.memory());
        if range.is_empty() {
            return Ok(Exposure::new(RemoteRegion::default(), memory, Box::new(Nothing)));
        }
        // SAFETY: the exposure holds the memory and drops the registration first.
        let registration = unsafe { core.raw.register(&memory, at, range.len(), Some(access)) };
        let registration = registration.map_err(|code| self.refused("HG_Bulk_create", code))?;
        add(&core.counters.exposures, 1);
        add(&core.counters.registrations, 1);
        // Shared memory has no keys; this one is only for transfers to ourselves.
        let key = if core.raw.is_sm() { self.rt.random_u64() } else { registration.key };
        let addr = if core.capabilities.mr.virt_addr { memory.as_ptr() as u64 + at as u64 } else { 0 };
        let exposed = Exposed { memory: Rc::downgrade(&memory), at, len: range.len(), access };
        core.exposed.borrow_mut().insert(key, exposed);
        let held = ExposureRegistration { core: Rc::downgrade(core), key, _registration: registration };
        let region = RemoteRegion { addr, key, len: range.len() as u64 };
        Ok(Exposure::new(region, memory, Box::new(held)))
    }

    fn read(&self, peer: PeerId, into: &mut Buffer, range: Range<usize>, from: RemoteRegion) -> Transfer {
        self.transfer(peer, into, &range, from, Access::Read)
    }

    fn write(&self, peer: PeerId, from: &Buffer, range: Range<usize>, to: RemoteRegion) -> Transfer {
        self.transfer(peer, from, &range, to, Access::Write)
    }
}
