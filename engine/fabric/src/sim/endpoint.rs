//! An endpoint of the simulated fabric.

use super::network::{Job, Network, ReceiveClaim};
use super::nic::Queue;
use super::registration::{Regions, Registration};
use crate::counters::add;
use crate::endpoint::{Exposure, Message, Shortages, Source};
use crate::memory::{Access, Buffer, Memory, RemoteRegion};
use crate::{
    Address, AuthKey, BufferPool, Capabilities, Endpoint, FabricCounters, FabricError, Found, Gone,
    MrAccounting, MrMethod, MrMode, POOL_BYTES_DEFAULT, PeerId, Sink, Transfer, Wait,
};
use core::cell::{Cell, OnceCell, RefCell};
use core::ops::Range;
use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use weir_proto::Keys;
use weir_runtime::sim::{Node, NodeId, World};
use weir_runtime::{Instant, LocalBoxFuture};

/// Largest simulated message: an inline body with its header and bulk descriptors, rounded up generously.
const MESSAGE_MAX: usize = 64 << 10;

/// Largest simulated transfer: the largest payload of one request (8 MiB), twice.
const TRANSFER_MAX: usize = 16 << 20;

#[derive(Default)]
struct Peers {
    addresses: BTreeMap<PeerId, Address>,
    ids: BTreeMap<Address, PeerId>,
    next: u64,
    /// The place that an address has in the address vector, or had last.
    places: BTreeMap<Address, usize>,
    /// The owner of each entry now.
    taken: Vec<Option<PeerId>>,
    /// Free entries, of which the last is given out next.
    free: Vec<usize>,
}

impl Peers {
    fn add(&mut self, address: &Address) -> PeerId {
        let id = PeerId(self.next);
        self.next += 1;
        self.ids.insert(address.clone(), id);
        self.addresses.insert(id, address.clone());
        let place = self.free.pop().unwrap_or(self.taken.len());
        if place == self.taken.len() {
            self.taken.push(None);
        }
        self.taken[place] = Some(id);
        self.places.insert(address.clone(), place);
        id
    }

    /// Forgets a peer. Whether there was one.
    fn remove(&mut self, id: PeerId) -> bool {
        let Some(address) = self.addresses.remove(&id) else { return false };
        self.ids.remove(&address);
        if let Some(place) = self.places.get(&address) {
            self.taken[*place] = None;
            self.free.push(*place);
        }
        true
    }

    /// The owner of the entry of an address that is not known any more.
    fn successor(&self, address: &Address) -> Option<PeerId> {
        self.taken.get(*self.places.get(address)?).copied().flatten()
    }
}

pub(super) struct EndpointState {
    pub(super) node: NodeId,
    pub(super) address: Address,
    pub(super) alive: Cell<bool>,
    /// The id of the server that uses it, once that is known.
    pub(super) server: Cell<Option<u64>>,
    /// Keys of the virtual networks that it is on; none: the one that has no key.
    pub(super) auth_keys: Vec<AuthKey>,
    pub(super) unread: Rc<Cell<usize>>,
    pub(super) counters: FabricCounters,
    /// The receive queue of an endpoint behind a NIC.
    pub(super) queue: Option<Rc<Queue>>,
    sink: OnceCell<Weak<dyn Sink>>,
    peers: RefCell<Peers>,
    pub(super) regions: Regions,
    /// Peers that turned its messages away.
    pub(super) shortages: Shortages,
    world: World,
    /// When the thread has done what registrations took.
    busy: Cell<Instant>,
}

/// Gives receive room back when a message is dropped.
struct Unread {
    bytes: usize,
    total: Rc<Cell<usize>>,
    _held: Option<ReceiveClaim>,
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.total.set(self.total.get().saturating_sub(self.bytes));
    }
}

impl EndpointState {
    pub(super) fn close(&self) {
        if !self.alive.replace(false) {
            return;
        }
        if let Some(sink) = self.sink.get().and_then(Weak::upgrade) {
            sink.closed();
        }
        self.regions.close();
    }

    /// The endpoint's thread is occupied for this long.
    pub(super) fn spend(&self, time: Duration) {
        if !time.is_zero() {
            self.busy.set(self.busy.get().max(self.world.now()) + time);
        }
    }

    /// Time until the thread can send something.
    pub(super) fn lag(&self) -> Duration {
        self.busy.get() - self.world.now()
    }

    /// The network that operations to this address go through.
    pub(super) fn network_to(&self, to: &Address) -> Option<AuthKey> {
        to.auth_key().or_else(|| self.auth_keys.first().copied())
    }

    /// Whether the NIC takes what comes through a network.
    pub(super) fn is_on(&self, network: Option<AuthKey>) -> bool {
        network.map_or(self.auth_keys.is_empty(), |network| {
            // Services are a matter of each side's NIC.
            self.auth_keys.iter().any(|key| key.vni == network.vni)
        })
    }

    /// The first of its keys, when there are several.
    fn first_of_several(&self) -> Option<AuthKey> {
        self.auth_keys.first().copied().filter(|_| self.auth_keys.len() > 1)
    }

    /// Regions that peers can reach.
    pub(super) fn exposed(&self) -> usize {
        self.regions.len()
    }

    pub(super) fn has_sink(&self) -> bool {
        self.sink.get().is_some()
    }

    pub(super) fn peer_address(&self, peer: PeerId) -> Option<Address> {
        self.peers.borrow().addresses.get(&peer).cloned()
    }

    pub(super) fn known_peer(&self, address: &Address) -> Option<PeerId> {
        self.peers.borrow().ids.get(address).copied()
    }

    /// The peer that a connected provider takes a forgotten sender for: while there is a connection it goes on naming
    /// the entry in the address vector, whichever peer has that entry by now.
    pub(super) fn mistaken_for(&self, address: &Address) -> Option<PeerId> {
        self.peers.borrow().successor(address)
    }

    fn sink(&self) -> Option<Rc<dyn Sink>> {
        self.sink.get().filter(|_| self.alive.get()).and_then(Weak::upgrade)
    }

    pub(super) fn deliver(&self, source: Source, bytes: Vec<u8>, held: Option<ReceiveClaim>) {
        let Some(sink) = self.sink() else { return };
        let room = Unread { bytes: bytes.len(), total: Rc::clone(&self.unread), _held: held };
        self.unread.set(self.unread.get() + bytes.len());
        add(&self.counters.messages_received, 1);
        add(&self.counters.bytes_received, bytes.len() as u64);
        if !matches!(source, Source::Peer(_)) {
            add(&self.counters.unknown_sources, 1);
        }
        sink.message(Message::owned(source, bytes, Some(Box::new(room))));
    }

    pub(super) fn send_failed(&self, peer: PeerId, context: u64, error: FabricError) {
        add(&self.counters.sends_failed, 1);
        if let Some(sink) = self.sink() {
            sink.send_failed(peer, context, error);
        }
    }
}

pub(super) struct SimEndpoint {
    network: Rc<Network>,
    state: Rc<EndpointState>,
    capabilities: Capabilities,
    pool: BufferPool,
    /// Others' addresses are asked for.
    published: bool,
}

impl SimEndpoint {
    pub(super) fn open(
        network: &Rc<Network>,
        node: &Node,
        port: Option<u16>,
        auth_keys: &[AuthKey],
        queue: Option<Rc<Queue>>,
    ) -> Rc<dyn Endpoint> {
        let published = network.config.borrow().published;
        let chosen = if published { network.chosen_address(node) } else { None };
        let address = chosen
            .or_else(|| super::address(&node.name(), port.map_or_else(|| network.private_port(), u32::from)))
            .or_else(|| super::address("long-name", network.private_port()))
            .expect("a short name makes an address");
        let state = Rc::new(EndpointState {
            node: node.id(),
            address: address.clone(),
            alive: Cell::new(node.is_up()),
            server: Cell::default(),
            auth_keys: auth_keys.to_vec(),
            unread: Rc::default(),
            counters: FabricCounters::default(),
            queue,
            sink: OnceCell::new(),
            peers: RefCell::default(),
            regions: Regions::default(),
            shortages: Shortages::default(),
            world: network.world.clone(),
            busy: Cell::default(),
        });
        network.register(&address, &state);
        if let Some(port) = port.filter(|_| published) {
            network.publish(node, port, &state);
        }
        let mr = network.config.borrow().mr;
        let told = mr.method == MrMethod::MatchEvents || mr.revokes;
        let mr_accounting = if told { MrAccounting::Provider } else { MrAccounting::Own };
        let capabilities = Capabilities {
            provider: "sim".to_owned(),
            version: "0".to_owned(),
            library: "sim".to_owned(),
            multi_recv: true,
            source: network.config.borrow().unknown_source != super::UnknownSource::Always,
            source_err: !auth_keys.is_empty()
                || network.config.borrow().unknown_source == super::UnknownSource::Address,
            av_user_id: false,
            auth_keys: true,
            serves_auth_keys: !auth_keys.is_empty(),
            receiver_not_ready: true,
            rma: true,
            delivery: true,
            ordered_writes: network.config.borrow().ordered_writes,
            wait: Wait::Simulated,
            mr: MrMode::default(),
            mr_accounting,
            shared_queue: false,
            channels: false,
            mr_key_bytes: 8,
            inject: 0,
            max_message: MESSAGE_MAX,
            max_transfer: TRANSFER_MAX,
            max_peers: None,
        };
        let pool = BufferPool::of_plain_pages(POOL_BYTES_DEFAULT);
        Rc::new(Self { network: Rc::clone(network), state, capabilities, pool, published })
    }

    fn start(
        &self,
        peer: PeerId,
        part: Result<BufferPart, FabricError>,
        remote: RemoteRegion,
        access: Access,
    ) -> Transfer {
        let part = match part {
            Ok(part) => part,
            Err(error) => return Transfer::failed(error),
        };
        let Some(to) = self.state.peer_address(peer) else {
            return Transfer::failed(FabricError::UnknownPeer);
        };
        if !self.state.alive.get() {
            return Transfer::failed(FabricError::Cancelled);
        }
        if part.len as u64 > remote.len {
            let (end, len) = (part.len as u64, remote.len);
            return Transfer::failed(FabricError::OutOfRange { start: 0, end, len });
        }
        let (transfer, completer) = Transfer::new();
        let from = Rc::clone(&self.state);
        let BufferPart { memory, at, len } = part;
        let network = from.network_to(&to);
        self.network.transfer(Job { from, to, network, access, memory, at, len, remote, completer });
        transfer
    }
}

/// A located part of a buffer.
struct BufferPart {
    memory: Rc<Memory>,
    at: usize,
    len: usize,
}

fn part(buffer: &Buffer, range: &Range<usize>) -> Result<BufferPart, FabricError> {
    let at = buffer.locate(range)?;
    Ok(BufferPart { memory: Rc::clone(buffer.memory()), at, len: range.len() })
}

impl Drop for SimEndpoint {
    fn drop(&mut self) {
        self.state.close();
    }
}

impl Endpoint for SimEndpoint {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn address(&self) -> Address {
        self.state.address.clone()
    }

    fn counters(&self) -> &FabricCounters {
        &self.state.counters
    }

    fn buffers(&self) -> &BufferPool {
        &self.pool
    }

    fn introduce(&self, server: u64, _keys: Option<&Keys>) {
        self.state.server.set(Some(server));
    }

    fn resolve(&self, host: &str, port: u16) -> LocalBoxFuture<'static, Result<Found, FabricError>> {
        if self.published {
            return self.network.ask(&self.state, host, port);
        }
        let aliases = self.network.aliases.borrow();
        let name = aliases.get(host).map_or(host, String::as_str);
        let result = super::address(name, u32::from(port)).ok_or_else(|| FabricError::Resolve {
            host: host.to_owned(),
            port,
            reason: "the name is too long".to_owned(),
        });
        Box::pin(core::future::ready(result.map(Found::from)))
    }

    fn insert(&self, address: &Address) -> Result<PeerId, FabricError> {
        let keyed = address.named_under(self.state.first_of_several());
        let address = keyed.as_ref().unwrap_or(address);
        let peers = &mut *self.state.peers.borrow_mut();
        if let Some(id) = peers.ids.get(address) {
            return Ok(*id);
        }
        let id = peers.add(address);
        add(&self.state.counters.peers_inserted, 1);
        Ok(id)
    }

    fn auth_key(&self, peer: PeerId) -> Option<AuthKey> {
        let known = self.state.peer_address(peer)?;
        self.state.network_to(&known)
    }

    fn address_of(&self, peer: PeerId) -> Option<Address> {
        self.state.peer_address(peer)
    }

    fn is_short_of_room(&self, peer: PeerId) -> bool {
        self.state.shortages.is_short(peer, self.network.world.now())
    }

    fn remove(&self, peer: PeerId) {
        self.state.shortages.forget(peer);
        if self.state.peers.borrow_mut().remove(peer) {
            add(&self.state.counters.peers_removed, 1);
        }
    }

    fn hang_up_if_gone(&self, peer: PeerId, gone: Gone) {
        if let Some(address) = self.state.peer_address(peer) {
            self.network.hang_up_if_gone(&self.state, &address, gone);
        }
    }

    fn stop_asking(&self, peer: PeerId) {
        if let Some(address) = self.state.peer_address(peer) {
            self.network.asked.borrow_mut().remove(&(self.state.address.clone(), address));
        }
    }

    fn set_sink(&self, sink: Weak<dyn Sink>) {
        // The first one stays: an endpoint has one owner for its whole life.
        let _ = self.state.sink.set(sink);
    }

    fn send(&self, to: PeerId, context: u64, parts: &[&[u8]]) -> Result<(), FabricError> {
        let len = parts.iter().map(|part| part.len()).sum();
        if len > MESSAGE_MAX {
            return Err(FabricError::TooLarge { len, max: MESSAGE_MAX });
        }
        if self.state.peer_address(to).is_none() {
            return Err(FabricError::UnknownPeer);
        }
        if !self.state.alive.get() {
            return Err(FabricError::Cancelled);
        }
        add(&self.state.counters.messages_sent, 1);
        add(&self.state.counters.bytes_sent, len as u64);
        self.network.send(&self.state, to, context, parts.concat());
        Ok(())
    }

    fn expose(&self, buffer: &Buffer, range: Range<usize>, access: Access) -> Result<Exposure, FabricError> {
        let at = buffer.locate(&range)?;
        let memory = Rc::clone(buffer.memory());
        let model = self.network.config.borrow().mr;
        let part = (at, range.len() as u64, access);
        let draw = || self.network.world.rng().next_u64();
        let (region, registration) = Registration::new(&self.state, model, &memory, part, draw);
        add(&self.state.counters.exposures, 1);
        Ok(Exposure::new(region, memory, Box::new(registration)))
    }

    fn read(&self, peer: PeerId, into: &mut Buffer, range: Range<usize>, from: RemoteRegion) -> Transfer {
        self.start(peer, part(into, &range), from, Access::Read)
    }

    fn write(&self, peer: PeerId, from: &Buffer, range: Range<usize>, to: RemoteRegion) -> Transfer {
        self.start(peer, part(from, &range), to, Access::Write)
    }
}
