//! The network between the simulated endpoints.

use super::endpoint::EndpointState;
use super::nic::{Accepted, Queue};
use super::registration::Region;
use super::{Config, Stats, UnknownSource};
use crate::counters::add;
use crate::endpoint::{Completer, Source};
use crate::memory::{Access, Memory, RemoteRegion};
use crate::{Address, AuthKey, FabricError, Found, Gone, PeerId};
use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use weir_runtime::sim::{Node, NodeId, World};
use weir_runtime::sync::oneshot;
use weir_runtime::{Instant, LocalBoxFuture, nanos};

/// Tries before a sender gives up on a full receiver: with the waits below about half a second, as the receiver-not-
/// ready protocol of the cxi provider has it.
const FULL_RETRIES_MAX: u64 = 37;

/// How many numbers a node has for the endpoints that have such addresses (`cxi`: process ids of 0 to 510).
const PIDS: u64 = 511;

/// Of how many numbers one is drawn that a new endpoint has if it is free: few, so that those of the dead are used again.
const PIDS_DRAWN: u64 = 8;

/// First port of endpoints that don't listen on a chosen one; above every 16-bit port.
const FIRST_PRIVATE_PORT: u32 = 1 << 16;

pub(super) struct Network {
    pub(super) world: World,
    pub(super) config: RefCell<Config>,
    pub(super) cuts: RefCell<BTreeSet<(NodeId, NodeId)>>,
    /// Nodes by their other names.
    pub(super) aliases: RefCell<BTreeMap<String, String>>,
    pub(super) stats: Cell<Stats>,
    endpoints: RefCell<BTreeMap<Address, Weak<EndpointState>>>,
    /// Listening endpoints with addresses that are not known beforehand, by the node and port where these are
    /// published.
    published: RefCell<BTreeMap<(String, u16), Weak<EndpointState>>>,
    next_port: Cell<u32>,
    stuck: RefCell<Stuck>,
    /// Pairs of an endpoint and a peer whose host it probes for signs of life.
    pub(super) asked: RefCell<BTreeSet<(Address, Address)>>,
}

/// Gives what a message occupies behind a NIC back when the message is dropped.
pub(super) struct ReceiveClaim {
    queue: Rc<Queue>,
    accepted: Accepted,
    world: World,
}

impl Drop for ReceiveClaim {
    fn drop(&mut self) {
        self.queue.release(self.accepted.place, self.world.now());
    }
}

/// One message on its way.
struct InTransit {
    from: Rc<EndpointState>,
    peer: PeerId,
    to: Address,
    network: Option<AuthKey>,
    context: u64,
    bytes: Vec<u8>,
}

impl Network {
    pub(super) fn new(world: &World, config: Config) -> Rc<Self> {
        let network = Rc::new(Self {
            world: world.clone(),
            config: RefCell::new(config),
            cuts: RefCell::default(),
            aliases: RefCell::default(),
            stats: Cell::default(),
            endpoints: RefCell::default(),
            published: RefCell::default(),
            next_port: Cell::new(FIRST_PRIVATE_PORT),
            stuck: RefCell::default(),
            asked: RefCell::default(),
        });
        let weak = Rc::downgrade(&network);
        world.on_crash(move |node| {
            if let Some(network) = weak.upgrade() {
                network.node_crashed(node);
            }
        });
        network
    }

    pub(super) fn private_port(&self) -> u32 {
        let port = self.next_port.get();
        self.next_port.set(port + 1);
        port
    }

    pub(super) fn register(&self, address: &Address, endpoint: &Rc<EndpointState>) {
        let old = self.endpoints.borrow_mut().insert(address.clone(), Rc::downgrade(endpoint));
        if let Some(old) = old.and_then(|old| old.upgrade()) {
            old.close();
        }
    }

    /// An address of a node that no living endpoint has.
    pub(super) fn chosen_address(&self, node: &Node) -> Option<Address> {
        let drawn = self.world.rng().below(PIDS_DRAWN);
        let mut addresses = (0..PIDS).filter_map(|n| {
            let pid = (drawn + n) % PIDS;
            Address::from_bytes(format!("{:?}#{pid}", node.id()).as_bytes())
        });
        let endpoints = self.endpoints.borrow();
        let is_free = |address: &Address| {
            let there = endpoints.get(address).and_then(Weak::upgrade);
            there.is_none_or(|endpoint| !endpoint.alive.get())
        };
        addresses.find(is_free)
    }

    /// Has an endpoint's address told at a port of its node from now on.
    pub(super) fn publish(&self, node: &Node, port: u16, endpoint: &Rc<EndpointState>) {
        self.published.borrow_mut().insert((node.name(), port), Rc::downgrade(endpoint));
    }

    /// Asks for the address that is told at a port of a node.
    pub(super) fn ask(
        self: &Rc<Self>,
        from: &Rc<EndpointState>,
        host: &str,
        port: u16,
    ) -> LocalBoxFuture<'static, Result<Found, FabricError>> {
        let (answer, answered) = oneshot::channel();
        let name = self.aliases.borrow().get(host).cloned().unwrap_or_else(|| host.to_owned());
        let (network, from, host) = (Rc::clone(self), Rc::clone(from), host.to_owned());
        let closed = FabricError::Unpublished { host: host.clone(), port, reason: "nobody asks".to_owned() };
        self.world.schedule(self.delay(0), move || {
            let found = network.told_at(&from, name, port).ok_or_else(|| {
                let reason = "nobody listens there".to_owned();
                FabricError::Unpublished { host, port, reason }
            });
            let back = network.delay(0);
            // The caller may have given up.
            network.world.schedule(back, move || drop(answer.send(found)));
        });
        Box::pin(async move { answered.await.unwrap_or(Err(closed)) })
    }

    /// The answer at a port now, for an endpoint that can reach it and be reached.
    fn told_at(&self, from: &EndpointState, name: String, port: u16) -> Option<Found> {
        let endpoint = self.published.borrow().get(&(name, port)).and_then(Weak::upgrade)?;
        let cuts = self.cuts.borrow();
        let ways = [(from.node, endpoint.node), (endpoint.node, from.node)];
        let told = endpoint.alive.get() && !ways.iter().any(|way| cuts.contains(way));
        let server = endpoint.server.get();
        told.then(|| Found { address: endpoint.address.clone(), server }).filter(|_| server.is_some())
    }

    pub(super) fn exposed(&self) -> usize {
        self.endpoints.borrow().values().filter_map(Weak::upgrade).map(|endpoint| endpoint.exposed()).sum()
    }

    fn node_crashed(&self, node: NodeId) {
        let victims: Vec<_> = self
            .endpoints
            .borrow()
            .values()
            .filter_map(Weak::upgrade)
            .filter(|endpoint| endpoint.node == node)
            .collect();
        for endpoint in victims {
            endpoint.close();
        }
    }

    fn count(&self, change: impl FnOnce(&mut Stats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }

    fn delay(&self, bytes: usize) -> Duration {
        let config = self.config.borrow();
        let (min, max) = (nanos(config.latency_min), nanos(config.latency_max));
        let size = nanos(config.per_mebibyte).saturating_mul(bytes as u64) >> 20;
        Duration::from_nanos(self.world.rng().between(min, max).saturating_add(size))
    }

    /// The living endpoint of this address, if `from` can reach it through a virtual network.
    fn reach(
        &self,
        from: &EndpointState,
        to: &Address,
        network: Option<AuthKey>,
    ) -> Option<Rc<EndpointState>> {
        // Endpoints are known by their addresses alone, whatever key they are met under.
        let place = Address::from_bytes(to.as_bytes())?;
        let endpoint = self.endpoints.borrow().get(&place).and_then(Weak::upgrade)?;
        // A NIC neither sends nor takes what goes through a network that it is not on.
        if !from.is_on(network) || !endpoint.is_on(network) {
            self.count(|stats| stats.other_network += 1);
            return None;
        }
        let cut = self.cuts.borrow().contains(&(from.node, endpoint.node));
        (endpoint.alive.get() && !cut).then_some(endpoint)
    }

    pub(super) fn send(
        self: &Rc<Self>,
        from: &Rc<EndpointState>,
        peer: PeerId,
        context: u64,
        bytes: Vec<u8>,
    ) {
        let Some(to) = from.peer_address(peer) else { return };
        let network = from.network_to(&to);
        let parcel = InTransit { from: Rc::clone(from), peer, to, network, context, bytes };
        let (loss, duplicate) = {
            let config = self.config.borrow();
            (config.loss, config.duplicate)
        };
        let rng = self.world.rng();
        if rng.chance(loss) {
            self.count(|stats| stats.lost += 1);
            self.give_up(parcel, "the connection was reset");
            return;
        }
        if rng.chance(duplicate) {
            self.count(|stats| stats.duplicated += 1);
            let twin = InTransit {
                from: Rc::clone(from),
                peer,
                to: parcel.to.clone(),
                network,
                context,
                bytes: parcel.bytes.clone(),
            };
            self.travel(twin, self.delay(parcel.bytes.len()), 0);
        }
        let delay = parcel.from.lag() + self.delay(parcel.bytes.len());
        self.travel(parcel, delay, 0);
    }

    fn travel(self: &Rc<Self>, parcel: InTransit, delay: Duration, tries: u64) {
        let network = Rc::clone(self);
        self.world.schedule(delay, move || network.arrive(parcel, tries));
    }

    fn arrive(self: &Rc<Self>, parcel: InTransit, tries: u64) {
        let Some(receiver) = self.reach(&parcel.from, &parcel.to, parcel.network) else {
            self.count(|stats| stats.unreachable += 1);
            self.give_up(parcel, "no endpoint answers at that address");
            return;
        };
        let room = self.config.borrow().receive_bytes;
        if receiver.unread.get() + parcel.bytes.len() > room || !receiver.has_sink() {
            self.receiver_not_ready(parcel, tries);
            return;
        }
        let Some(queue) = receiver.queue.clone() else {
            self.deliver(&receiver, parcel, None);
            return;
        };
        let now = self.world.now();
        let network = Rc::clone(self);
        self.world.schedule(queue.arrival(now) - now, move || {
            match queue.receive(network.world.now(), parcel.bytes.len()) {
                Some(accepted) => network.handle(&receiver, &queue, accepted, parcel),
                None => network.receiver_not_ready(parcel, tries),
            }
        });
    }

    /// A NIC has taken a message; the thread behind it will get to it.
    fn handle(
        self: &Rc<Self>,
        receiver: &Rc<EndpointState>,
        queue: &Rc<Queue>,
        accepted: Accepted,
        parcel: InTransit,
    ) {
        let hold = ReceiveClaim { queue: Rc::clone(queue), accepted, world: self.world.clone() };
        let (network, receiver) = (Rc::clone(self), Rc::clone(receiver));
        self.world.schedule(accepted.at - self.world.now(), move || {
            network.deliver(&receiver, parcel, Some(hold));
        });
    }

    /// The sender tries again later, a limited number of times.
    fn receiver_not_ready(self: &Rc<Self>, parcel: InTransit, tries: u64) {
        self.count(|stats| stats.receiver_full += 1);
        parcel.from.shortages.refused(parcel.peer, self.world.now());
        if tries >= FULL_RETRIES_MAX {
            self.give_up(parcel, "the receiver has no room");
        } else {
            // now + 1 + i³·10 µs: the five retry queues of the receiver-not-ready protocol, and on in the same way
            // to 13 ms, so that a crowd doesn't keep the receiver busy with turning it away.
            let wait = 1 + 10 * tries.min(11).pow(3);
            self.travel(parcel, Duration::from_micros(wait), tries + 1);
        }
    }

    fn deliver(&self, receiver: &Rc<EndpointState>, parcel: InTransit, hold: Option<ReceiveClaim>) {
        self.count(|stats| stats.delivered += 1);
        self.world.trace(parcel.bytes.len() as u64);
        // What a NIC on several networks reports is the sender under the network that the message came through.
        let (sender, unknown_source) = match parcel.network.filter(|_| receiver.auth_keys.len() > 1) {
            Some(key) => (parcel.from.address.clone().under(key), UnknownSource::Address),
            None => (parcel.from.address.clone(), self.config.borrow().unknown_source),
        };
        let source = match (receiver.known_peer(&sender), unknown_source) {
            (_, UnknownSource::Always) => Source::Unknown,
            (None, UnknownSource::Nothing) => {
                receiver.mistaken_for(&sender).map_or(Source::Unknown, Source::Peer)
            }
            (Some(peer), _) => Source::Peer(peer),
            (None, UnknownSource::Address) => Source::Address(Box::new(sender)),
        };
        receiver.deliver(source, parcel.bytes, hold);
    }

    /// Drops a message, and with the configured probability lets its sender know.
    fn give_up(self: &Rc<Self>, parcel: InTransit, reason: &'static str) {
        let reported = self.config.borrow().loss_reported;
        if !self.world.rng().chance(reported) {
            return;
        }
        let delay = self.delay(0);
        self.world.schedule(delay, move || {
            let error = FabricError::Unreachable { reason: reason.to_owned() };
            parcel.from.send_failed(parcel.peer, parcel.context, error);
        });
    }

    pub(super) fn transfer(self: &Rc<Self>, job: Job) {
        let delay = job.from.lag() + self.delay(0);
        let network = Rc::clone(self);
        self.world.schedule(delay, move || network.transfer_arrives(job));
    }

    fn transfer_arrives(self: &Rc<Self>, job: Job) {
        let lost = self.world.rng().chance(self.config.borrow().loss);
        let target = if lost { None } else { self.reach(&job.from, &job.to, job.network) };
        let Some(target) = target else {
            self.transfer_fails(job);
            return;
        };
        match target.regions.find(&job) {
            Ok((region, optimized)) => {
                let mut time = stretched(self.config.borrow().per_mebibyte, job.len);
                if !optimized {
                    let costs = self.config.borrow().mr.costs;
                    time += costs.search;
                    if job.access == Access::Write {
                        time += stretched(costs.write_per_mebibyte, job.len);
                    }
                }
                // Behind a NIC, one transfer after another has the wire.
                let time =
                    job.from.queue.as_ref().map_or(time, |queue| queue.occupy_wire(self.world.now(), time));
                let network = Rc::clone(self);
                self.world.schedule(time, move || network.transfer_lands(&target, &region, job));
            }
            Err(reason) => self.transfer_denied(job, reason),
        }
    }

    /// The last bytes of a transfer are there.
    fn transfer_lands(self: &Rc<Self>, target: &EndpointState, region: &Region, job: Job) {
        if !target.alive.get() {
            self.transfer_fails(job);
            return;
        }
        match region.land(&job) {
            Ok(late) => {
                self.count(|stats| stats.late_accesses += u64::from(late));
                self.world.trace(job.len as u64);
                let delay = self.delay(0);
                self.world.schedule(delay, move || job.finish(Ok(())));
            }
            Err(reason) => self.transfer_denied(job, reason),
        }
    }

    fn transfer_denied(self: &Rc<Self>, job: Job, reason: &'static str) {
        self.count(|stats| stats.denied += 1);
        self.world.trace(job.len as u64);
        let delay = self.delay(0);
        let reason = reason.to_owned();
        self.world.schedule(delay, move || job.finish(Err(FabricError::AccessDenied { reason })));
    }

    fn transfer_fails(self: &Rc<Self>, job: Job) {
        self.count(|stats| stats.unreachable += 1);
        let wait = self.config.borrow().transfer_timeout;
        let number = self.stuck.borrow_mut().add(self.world.now(), job);
        let network = Rc::clone(self);
        self.world.schedule(wait, move || {
            let stuck = network.stuck.borrow_mut().jobs.remove(&number);
            if let Some((_, job)) = stuck {
                job.find_nobody();
            }
        });
    }

    /// Ends the transfers of an endpoint that have been stuck with a peer for longer than any is silent that isn't gone.
    pub(super) fn hang_up_if_gone(&self, from: &EndpointState, to: &Address, gone: Gone) {
        self.asked.borrow_mut().insert((from.address.clone(), to.clone()));
        let stays = self.config.borrow().stays;
        let (now, all) = (self.world.now(), [Gone::Host, Gone::Process, Gone::Progress]);
        let silence = all.into_iter().find(|what| Some(*what) > stays && *what <= gone).map(Gone::silence);
        let Some(silence) = silence else { return };
        let given_up = self.stuck.borrow_mut().take(|since, job| {
            core::ptr::eq(&raw const *job.from, from) && job.to == *to && now - since >= silence
        });
        given_up.into_iter().for_each(Job::find_nobody);
    }
}

/// How long bytes take, of which a mebibyte takes this long.
fn stretched(per_mebibyte: Duration, bytes: usize) -> Duration {
    let nanos = (per_mebibyte.as_nanos() * bytes as u128) >> 20;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Transfers with peers that don't answer, with when they got stuck.
#[derive(Default)]
pub(super) struct Stuck {
    jobs: BTreeMap<u64, (Instant, Job)>,
    next: u64,
}

impl Stuck {
    fn add(&mut self, since: Instant, job: Job) -> u64 {
        let number = self.next;
        self.next += 1;
        self.jobs.insert(number, (since, job));
        number
    }

    fn take(&mut self, wanted: impl Fn(Instant, &Job) -> bool) -> Vec<Job> {
        let taken = self.jobs.extract_if(.., |_, (since, job)| wanted(*since, job));
        taken.map(|(_, (_, job))| job).collect()
    }
}

/// A read or write of remote memory on its way.
pub(super) struct Job {
    pub(super) from: Rc<EndpointState>,
    pub(super) to: Address,
    pub(super) network: Option<AuthKey>,
    pub(super) access: Access,
    pub(super) memory: Rc<Memory>,
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) remote: RemoteRegion,
    pub(super) completer: Completer,
}

impl Job {
    fn find_nobody(self) {
        let reason = "no endpoint answers at that address".to_owned();
        self.finish(Err(FabricError::Unreachable { reason }));
    }

    fn finish(self, result: Result<(), FabricError>) {
        let counters = &self.from.counters;
        match (&result, self.access) {
            (Ok(()), Access::Read) => {
                add(&counters.reads, 1);
                add(&counters.bytes_read, self.len as u64);
            }
            (Ok(()), Access::Write) => {
                add(&counters.writes, 1);
                add(&counters.bytes_written, self.len as u64);
            }
            (Err(_), _) => add(&counters.transfers_failed, 1),
        }
        if self.from.alive.get() {
            self.completer.complete(result);
        }
    }
}
