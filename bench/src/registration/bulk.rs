//! Bulk requests in the simulator: clients register memory, send its key, and end the registration when the server, which
//! moves the data, has answered. Servers have two NICs of 200 Gbit/s with sixteen threads each, as in figure 10.

use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use weir_fabric::sim::{Config, Fabric, MrCosts, MrModel, Nic, NicConfig, ReceiveMode, UnknownSource};
use weir_fabric::{
    Access, Buffer, Endpoint, Exposure, FabricError, Message, MrMethod, PeerId, RemoteRegion, Sink, Source,
};
use weir_runtime::Handle;
use weir_runtime::sim::World;

/// Client processes on a node of the paper's system.
const PER_NODE: u32 = 104;

/// Time of a mebibyte on one NIC: 24 GB/s, of which two make the paper's 48 GB/s for a server.
const PER_MEBIBYTE: Duration = Duration::from_nanos(43_690);

/// Buffers of a server's thread; requests beyond them wait in order.
const BUFFERS: usize = 4;

/// Bytes of a request: a header with a descriptor.
const REQUEST: usize = 128;

/// One run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) servers: u32,
    pub(super) nics: u32,
    pub(super) threads: u32,
    pub(super) clients: u32,
    /// Requests that a client has under way.
    pub(super) in_flight: u32,
    /// Bytes of each.
    pub(super) bytes: usize,
    /// What servers do with the memory.
    pub(super) access: Access,
    /// `None`: registered once, before the measurement.
    pub(super) method: Option<MrMethod>,
    /// Until the load is steady, and how long answers are counted.
    pub(super) span: Duration,
}

/// What a run showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reached {
    /// Bytes per second.
    pub(super) rate: f64,
    pub(super) lost: u64,
    /// Accesses to memory whose registration had ended.
    pub(super) late: u64,
}

struct Server {
    endpoint: Weak<dyn Endpoint>,
    rt: Handle,
    access: Access,
    buffers: RefCell<Vec<Buffer>>,
    waiting: RefCell<VecDeque<(PeerId, [u8; 24])>>,
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl Server {
    /// Starts what waits as long as there are buffers.
    fn go_on(self: &Rc<Self>) {
        let Some(endpoint) = self.endpoint.upgrade() else { return };
        while !self.waiting.borrow().is_empty() {
            let Some(mut buffer) = self.buffers.borrow_mut().pop() else { return };
            let Some((peer, request)) = self.waiting.borrow_mut().pop_front() else { return };
            let remote = RemoteRegion { addr: 0, key: word(&request, 0), len: word(&request, 8) };
            let len = buffer.len().min(usize::try_from(remote.len).unwrap_or(0));
            let (server, endpoint) = (Rc::clone(self), Rc::clone(&endpoint));
            self.rt.spawn(async move {
                let moved = match server.access {
                    Access::Read => endpoint.read(peer, &mut buffer, 0..len, remote).await,
                    Access::Write => endpoint.write(peer, &buffer, 0..len, remote).await,
                };
                let mut reply = [0u8; REQUEST];
                reply[0] = u8::from(moved.is_ok());
                reply[8..16].copy_from_slice(&request[16..24]);
                // An answer that can't be sent shows as a lost request.
                let _ = endpoint.send(peer, 0, &[&reply]);
                server.buffers.borrow_mut().push(buffer);
                server.go_on();
            });
        }
    }
}

struct Port(Rc<Server>);

impl Sink for Port {
    fn message(&self, message: Message) {
        let Some(endpoint) = self.0.endpoint.upgrade() else { return };
        let peer = match message.source() {
            Source::Peer(peer) => Some(*peer),
            Source::Address(address) => endpoint.insert(address).ok(),
            Source::Unknown => None,
        };
        let request = message.get(..24).and_then(|head| head.try_into().ok());
        if let (Some(peer), Some(request)) = (peer, request) {
            self.0.waiting.borrow_mut().push_back((peer, request));
            self.0.go_on();
        }
    }

    fn send_failed(&self, _peer: PeerId, _context: u64, _error: FabricError) {}
}

#[derive(Default)]
struct Tally {
    answers: Cell<u64>,
    lost: Cell<u64>,
}

struct Client {
    endpoint: Weak<dyn Endpoint>,
    to: PeerId,
    access: Access,
    lasting: Option<Exposure>,
    exposed: RefCell<Vec<Option<Exposure>>>,
    memory: Rc<Buffer>,
    tally: Rc<Tally>,
}

impl Client {
    fn ask(&self, slot: usize) {
        let Some(endpoint) = self.endpoint.upgrade() else { return };
        let region = if let Some(lasting) = &self.lasting {
            lasting.region()
        } else {
            let Ok(exposure) = endpoint.expose(&self.memory, 0..self.memory.len(), self.access) else {
                self.tally.lost.set(self.tally.lost.get() + 1);
                return;
            };
            let region = exposure.region();
            if let Some(place) = self.exposed.borrow_mut().get_mut(slot) {
                *place = Some(exposure);
            }
            region
        };
        let mut request = [0u8; REQUEST];
        request[..8].copy_from_slice(&region.key.to_le_bytes());
        request[8..16].copy_from_slice(&region.len.to_le_bytes());
        request[16..24].copy_from_slice(&(slot as u64).to_le_bytes());
        if endpoint.send(self.to, 0, &[&request]).is_err() {
            self.tally.lost.set(self.tally.lost.get() + 1);
        }
    }
}

impl Sink for Client {
    fn message(&self, message: Message) {
        let slot = usize::try_from(word(&message, 8)).unwrap_or(0);
        if message.first() == Some(&1) {
            self.tally.answers.set(self.tally.answers.get() + 1);
        } else {
            self.tally.lost.set(self.tally.lost.get() + 1);
        }
        let exposure = self.exposed.borrow_mut().get_mut(slot).and_then(Option::take);
        if let Some(exposure) = exposure {
            exposure.settle();
        }
        self.ask(slot);
    }

    fn send_failed(&self, _peer: PeerId, _context: u64, _error: FabricError) {
        self.tally.lost.set(self.tally.lost.get() + 1);
    }
}

fn fabric(world: &World, method: Option<MrMethod>) -> Fabric {
    let config = Config {
        latency_min: Duration::from_micros(2),
        latency_max: Duration::from_micros(3),
        per_mebibyte: PER_MEBIBYTE,
        unknown_source: UnknownSource::Address,
        loss_reported: 1.0,
        receive_bytes: usize::MAX / 2,
        mr: MrModel {
            // The reference has optimized keys, of which it makes one before it begins.
            method: method.unwrap_or(MrMethod::Optimized),
            revokes: true,
            costs: MrCosts::SLINGSHOT,
        },
        ..Config::default()
    };
    Fabric::with_config(world, config)
}

/// Runs one experiment.
pub(super) fn run(setup: Setup, seed: u64) -> Reached {
    let world = World::new(seed);
    let fabric = fabric(&world, setup.method);
    let (mut endpoints, mut servers) = (Vec::new(), Vec::new());
    for server in 0..setup.servers {
        let node = world.node(&format!("server-{server}"));
        for _ in 0..setup.nics {
            let nic = Nic::new(NicConfig { one_wire: true, ..NicConfig::default() });
            for _ in 0..setup.threads {
                let endpoint = fabric.endpoint_behind(&nic, ReceiveMode::MULTI, &node, None, &[]);
                let buffers = (0..BUFFERS.max(setup.in_flight as usize))
                    .map(|_| Buffer::from_vec(vec![0; setup.bytes]));
                let server = Rc::new(Server {
                    endpoint: Rc::downgrade(&endpoint),
                    rt: node.handle(),
                    access: setup.access,
                    buffers: RefCell::new(buffers.collect()),
                    waiting: RefCell::default(),
                });
                let port = Rc::new(Port(server));
                let weak = Rc::downgrade(&port);
                endpoint.set_sink(weak);
                servers.push(port);
                endpoints.push(endpoint);
            }
        }
    }
    let tally = Rc::new(Tally::default());
    // One memory stands for everybody's: 53,248 mebibytes would be too many.
    let memory = Rc::new(Buffer::from_vec(vec![0; setup.bytes]));
    let mut clients = Vec::new();
    for index in 0..setup.clients {
        let node = world.node(&format!("client-{}", index / PER_NODE));
        let endpoint = fabric.endpoint(&node, None);
        let server = &endpoints[index as usize % endpoints.len()];
        let Ok(to) = endpoint.insert(&server.address()) else { continue };
        let lasting = if setup.method.is_none() {
            endpoint.expose(&memory, 0..setup.bytes, setup.access).ok()
        } else {
            None
        };
        let client = Rc::new(Client {
            endpoint: Rc::downgrade(&endpoint),
            to,
            access: setup.access,
            lasting,
            exposed: RefCell::new((0..setup.in_flight).map(|_| None).collect()),
            memory: Rc::clone(&memory),
            tally: Rc::clone(&tally),
        });
        let weak = Rc::downgrade(&client);
        endpoint.set_sink(weak);
        for slot in 0..setup.in_flight {
            let starter = Rc::clone(&client);
            let delay = Duration::from_nanos(world.rng().below(1_000_000));
            world.schedule(delay, move || starter.ask(slot as usize));
        }
        clients.push((client, endpoint));
    }
    world.run_for(Duration::from_millis(2) + setup.span / 4);
    let before = tally.answers.get();
    world.run_for(setup.span);
    #[expect(clippy::cast_precision_loss, reason = "below 2^52")]
    let rate = ((tally.answers.get() - before) * setup.bytes as u64) as f64 / setup.span.as_secs_f64();
    Reached { rate, lost: tally.lost.get(), late: fabric.stats().late_accesses }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Setup = Setup {
        servers: 1,
        nics: 1,
        threads: 1,
        clients: 1,
        in_flight: 16,
        bytes: 256 << 10,
        access: Access::Read,
        method: None,
        span: Duration::from_millis(4),
    };

    fn rate(setup: Setup) -> f64 {
        let reached = run(setup, 1);
        assert_eq!((reached.lost, reached.late), (0, 0), "{setup:?}");
        reached.rate
    }

    #[test]
    fn methods_are_as_far_apart_as_in_the_paper() {
        let [uncached, optimized, persistent, cache, events] =
            MrMethod::ALL.map(|method| rate(Setup { method: Some(method), ..BASE }));
        let reference = rate(BASE);
        assert!((22e9..24.1e9).contains(&reference), "{reference}");
        assert!(uncached < 0.75 * reference && optimized < 0.75 * reference, "{uncached} {optimized}");
        assert!(persistent > 0.97 * reference && cache > 0.9 * reference, "{persistent} {cache}");
        assert!(events > 0.8 * reference && events <= cache * 1.01, "{events} {cache}");
    }

    #[test]
    fn two_nics_are_full_with_match_events_and_writes_of_servers_are_a_little_slower() {
        let many = Setup {
            nics: 2,
            threads: 16,
            clients: 104,
            in_flight: 1,
            bytes: 1 << 20,
            method: Some(MrMethod::MatchEvents),
            ..BASE
        };
        let (out, back) = (rate(many), rate(Setup { access: Access::Write, ..many }));
        assert!((46e9..48.2e9).contains(&out) && (44e9..47e9).contains(&back), "{out} {back}");
    }
}
