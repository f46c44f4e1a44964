//! Figure 6: requests that are sent eagerly whatever their size beside a rendezvous, where the receiver is ready, and where
//! more clients send than it has room for. Nothing is kept for a message without a buffer: it is turned away, and its
//! sender tries again in bounded steps.

use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::path::Path;
use std::rc::{Rc, Weak};

use weir_fabric::sim::{
    Config, Fabric, MrCosts, MrModel, Nic, NicConfig, NicStats, ReceiveMode, UnknownSource,
};
use weir_fabric::{
    Access, Buffer, Endpoint, Exposure, FabricError, Message, MrMethod, PeerId, RemoteRegion, Sink, Source,
};
use weir_runtime::sim::World;
use weir_runtime::{Handle, Instant};

use super::publish;
use crate::drawing::Series;
use crate::report::{BenchError, Report};

/// Sizes of requests in bytes, up to the largest inline body.
const SIZES: [u32; 9] = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384];

/// Numbers of clients where the receiver is not ready.
const CLIENTS: [u32; 5] = [104, 416, 1664, 6656, 13_312];

/// A small request, and a large one.
const SMALL: u32 = 64;
const LARGE: u32 = 16_384;

/// Up to here the rendezvous protocol sends eagerly too: the threshold of the cxi provider.
const THRESHOLD: u32 = 2048;

/// Bytes of a header; an answer has nothing else.
const HEADER: usize = 64;

/// Time of a mebibyte: 200 Gbit/s.
const PER_MEBIBYTE: Duration = Duration::from_nanos(43_690);

/// How a request's data gets to the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Protocol {
    /// In the message.
    Eager,
    /// Above the threshold the server fetches it.
    Rendezvous,
    /// In the message, until the server turns messages away; then as with a rendezvous until it has room again.
    Learning,
}

#[derive(Clone, Copy, Debug)]
struct Setup {
    protocol: Protocol,
    bytes: u32,
    clients: u32,
    /// Receive memory, of two slabs of this length.
    slab_bytes: u32,
    /// What passes before anything is measured: the first messages find their way, and who learns has learned.
    warm: Duration,
    span: Duration,
}

/// What a run showed: latencies in microseconds.
#[derive(Clone, Copy, Debug)]
struct Reached {
    median: f64,
    p99: f64,
    answers: u64,
    lost: u64,
    nic: NicStats,
    /// Tries that found no room.
    refused: u64,
}

struct Server {
    endpoint: Weak<dyn Endpoint>,
    rt: Handle,
}

impl Sink for Server {
    fn message(&self, message: Message) {
        let Some(endpoint) = self.endpoint.upgrade() else { return };
        let peer = match message.source() {
            Source::Peer(peer) => Some(*peer),
            Source::Address(address) => endpoint.insert(address).ok(),
            Source::Unknown => None,
        };
        let Some(peer) = peer else { return };
        let word = |at: usize| {
            message.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
        };
        let remote = RemoteRegion { addr: 0, key: word(0), len: word(8) };
        if remote.len == 0 {
            // An answer that can't be sent shows as a lost request.
            let _ = endpoint.send(peer, 0, &[&[0; HEADER]]);
            return;
        }
        self.rt.spawn(async move {
            let len = usize::try_from(remote.len).unwrap_or(0);
            let mut buffer = Buffer::from_vec(vec![0; len]);
            if endpoint.read(peer, &mut buffer, 0..len, remote).await.is_ok() {
                let _ = endpoint.send(peer, 0, &[&[0; HEADER]]);
            }
        });
    }

    fn send_failed(&self, _peer: PeerId, _context: u64, _error: FabricError) {}
}

#[derive(Default)]
struct Tally {
    latencies: RefCell<Vec<Duration>>,
    lost: Cell<u64>,
}

struct Client {
    endpoint: Weak<dyn Endpoint>,
    world: World,
    to: PeerId,
    setup: Setup,
    memory: Rc<Buffer>,
    exposed: RefCell<Option<Exposure>>,
    began: Cell<Instant>,
    tally: Rc<Tally>,
}

impl Client {
    fn ask(&self) {
        let Some(endpoint) = self.endpoint.upgrade() else { return };
        self.began.set(self.world.now());
        let mut header = [0u8; HEADER];
        let mut body: &[u8] = &self.memory;
        let fetched = match self.setup.protocol {
            Protocol::Eager => false,
            Protocol::Rendezvous => true,
            Protocol::Learning => endpoint.is_short_of_room(self.to),
        };
        if fetched && self.setup.bytes > THRESHOLD {
            body = &[];
            if let Ok(exposure) = endpoint.expose(&self.memory, 0..self.memory.len(), Access::Read) {
                header[..8].copy_from_slice(&exposure.region().key.to_le_bytes());
                header[8..16].copy_from_slice(&exposure.region().len.to_le_bytes());
                *self.exposed.borrow_mut() = Some(exposure);
            }
        }
        if endpoint.send(self.to, 0, &[&header, body]).is_err() {
            self.tally.lost.set(self.tally.lost.get() + 1);
        }
    }
}

impl Sink for Client {
    fn message(&self, _message: Message) {
        self.tally.latencies.borrow_mut().push(self.world.now() - self.began.get());
        if let Some(exposure) = self.exposed.borrow_mut().take() {
            exposure.settle();
        }
        self.ask();
    }

    fn send_failed(&self, _peer: PeerId, _context: u64, _error: FabricError) {
        self.tally.lost.set(self.tally.lost.get() + 1);
        self.ask();
    }
}

fn run(setup: Setup, seed: u64) -> Reached {
    let world = World::new(seed);
    let config = Config {
        latency_min: Duration::from_micros(2),
        latency_max: Duration::from_micros(2),
        per_mebibyte: PER_MEBIBYTE,
        unknown_source: UnknownSource::Address,
        loss_reported: 1.0,
        receive_bytes: usize::MAX / 2,
        mr: MrModel { method: MrMethod::MatchEvents, revokes: true, costs: MrCosts::SLINGSHOT },
        ..Config::default()
    };
    let fabric = Fabric::with_config(&world, config);
    // Nothing is kept for messages that find no buffer.
    let limits = NicConfig { overflow: 0, slab_rest: LARGE + 64, ..NicConfig::default() };
    let nic = Nic::new(limits);
    let node = world.node("server");
    let mode = ReceiveMode::Multi { slabs: 2, slab_bytes: setup.slab_bytes };
    let server = fabric.endpoint_behind(&nic, mode, &node, None, &[]);
    let sink = Rc::new(Server { endpoint: Rc::downgrade(&server), rt: node.handle() });
    let weak = Rc::downgrade(&sink);
    server.set_sink(weak);
    let tally = Rc::new(Tally::default());
    let memory = Rc::new(Buffer::from_vec(vec![0; setup.bytes as usize]));
    let mut clients = Vec::new();
    for index in 0..setup.clients {
        let endpoint = fabric.endpoint(&world.node(&format!("client-{}", index / 104)), None);
        let Ok(to) = endpoint.insert(&server.address()) else { continue };
        let client = Rc::new(Client {
            endpoint: Rc::downgrade(&endpoint),
            world: world.clone(),
            to,
            setup,
            memory: Rc::clone(&memory),
            exposed: RefCell::default(),
            began: Cell::default(),
            tally: Rc::clone(&tally),
        });
        let weak = Rc::downgrade(&client);
        endpoint.set_sink(weak);
        let starter = Rc::clone(&client);
        world.schedule(Duration::from_nanos(world.rng().below(200_000)), move || starter.ask());
        clients.push((client, endpoint));
    }
    world.run_for(setup.warm);
    tally.latencies.borrow_mut().clear();
    world.run_for(setup.span);
    let mut latencies = tally.latencies.borrow_mut();
    latencies.sort();
    let at = |part: usize| {
        latencies.get(latencies.len() * part / 100).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    Reached {
        median: at(50),
        p99: at(99),
        answers: latencies.len() as u64,
        lost: tally.lost.get(),
        nic: nic.stats(),
        refused: fabric.stats().receiver_full,
    }
}

/// A receiver with room for everything.
const READY: Setup = Setup {
    protocol: Protocol::Eager,
    bytes: SMALL,
    clients: 1,
    slab_bytes: 2 << 20,
    warm: Duration::from_micros(500),
    span: Duration::from_millis(2),
};

/// One with room for a few large requests.
const NOT_READY: Setup = Setup {
    slab_bytes: 64 << 10,
    warm: Duration::from_millis(100),
    span: Duration::from_millis(40),
    ..READY
};

/// Until everybody has learned: the first large messages, which were under way before, have been taken in or given up.
const LEARNED: Duration = Duration::from_millis(600);

/// Runs both halves.
pub fn measure(report: &mut Report, folder: &Path) -> Result<(), BenchError> {
    let line = |name: &str, protocol| Series {
        name: name.to_owned(),
        points: SIZES
            .iter()
            .map(|bytes| (f64::from(*bytes), run(Setup { protocol, bytes: *bytes, ..READY }, 1).median))
            .collect(),
    };
    let lines = vec![line("eager", Protocol::Eager), line("rendezvous above 2 KiB", Protocol::Rendezvous)];
    let largest = |at: usize| lines.get(at).and_then(|line| line.points.last()).map_or(0.0, |point| point.1);
    let goal = Some("paper: no rendezvous, whatever the size");
    let name = "not ready simulated: 16 KiB eager, receiver ready";
    report.beside(name, largest(0), "µs", ("rendezvous", largest(1)), goal);
    let title = "Simulated: latency of a request, receiver ready (figure 6)";
    publish(title, "bytes", "µs", lines, &folder.join("figure-6.svg"))?;
    let kinds = [
        ("64 B eager", Protocol::Eager, SMALL),
        ("16 KiB eager", Protocol::Eager, LARGE),
        ("16 KiB rendezvous", Protocol::Rendezvous, LARGE),
        ("16 KiB eager that learns", Protocol::Learning, LARGE),
    ];
    let (mut lines, mut crowded) = (Vec::new(), Vec::new());
    for (name, protocol, bytes) in kinds {
        let warm = if protocol == Protocol::Learning { LEARNED } else { NOT_READY.warm };
        let setup = Setup { protocol, bytes, warm, ..NOT_READY };
        let runs = CLIENTS.map(|clients| (clients, run(Setup { clients, ..setup }, 1)));
        for (clients, reached) in &runs {
            println!(
                "{name}, {clients} clients: median {:.0} µs, p99 {:.0} µs, {} answered, {} tries turned away, {} lost, at \
                 most {} buffers posted",
                reached.median,
                reached.p99,
                reached.answers,
                reached.refused,
                reached.lost,
                reached.nic.entries_max
            );
        }
        let points = runs.iter().map(|(clients, reached)| (f64::from(*clients), reached.p99)).collect();
        crowded.push(runs[CLIENTS.len() - 1].1);
        lines.push(Series { name: name.to_owned(), points });
    }
    let name = "not ready simulated: 16 KiB eager, 13,312 clients, p99";
    report.beside(name, crowded[1].p99, "µs", ("rendezvous", crowded[2].p99), None);
    let name = "not ready simulated: 16 KiB eager that learns, 13,312 clients, p99";
    let goal = Some("no more than rendezvous");
    report.beside(name, crowded[3].p99, "µs", ("rendezvous", crowded[2].p99), goal);
    #[expect(clippy::cast_precision_loss, reason = "a count that should be zero")]
    let lost = crowded.iter().map(|reached| reached.lost).sum::<u64>() as f64;
    report.figure("not ready simulated: requests lost", lost, "", Some("none"));
    let title = "Simulated: p99 of a request, receiver not ready";
    publish(title, "clients", "µs", lines, &folder.join("figure-6-not-ready.svg"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_request_is_quicker_in_one_message_than_by_rendezvous_and_a_small_one_the_same() {
        let latency = |protocol, bytes| run(Setup { protocol, bytes, ..READY }, 1).median;
        for bytes in [SMALL, THRESHOLD] {
            let (eager, other) = (latency(Protocol::Eager, bytes), latency(Protocol::Rendezvous, bytes));
            assert!((eager - other).abs() < 0.01, "{bytes}: {eager} {other}");
        }
        let (eager, other) = (latency(Protocol::Eager, LARGE), latency(Protocol::Rendezvous, LARGE));
        assert!(eager + 4.0 < other, "a round trip less: {eager} {other}");
    }

    #[test]
    fn who_learns_that_a_receiver_is_short_of_room_waits_no_longer_than_a_rendezvous() {
        let reached = |protocol| {
            let (warm, span) = (Duration::from_millis(60), Duration::from_millis(20));
            run(Setup { protocol, bytes: LARGE, clients: 1664, warm, span, ..NOT_READY }, 3)
        };
        let [eager, rendezvous, learning] =
            [Protocol::Eager, Protocol::Rendezvous, Protocol::Learning].map(reached);
        println!(
            "p99: eager {} µs, rendezvous {} µs, learning {} µs",
            eager.p99, rendezvous.p99, learning.p99
        );
        assert!(learning.p99 <= 1.1 * rendezvous.p99, "{learning:?} {rendezvous:?}");
        assert!(learning.p99 < eager.p99, "{learning:?} {eager:?}");
        assert!(10 * learning.answers > 9 * rendezvous.answers, "{learning:?} {rendezvous:?}");
        assert_eq!((learning.lost, learning.nic.entries_max), (0, 2));
        let ready = |protocol| run(Setup { protocol, bytes: LARGE, ..READY }, 1).median;
        let (learning, eager) = (ready(Protocol::Learning), ready(Protocol::Eager));
        assert!((learning - eager).abs() < 0.01, "where there is room nothing changes: {learning} {eager}");
    }

    #[test]
    fn a_receiver_that_is_not_ready_loses_nothing_keeps_nothing_and_turns_away_in_bounded_steps() {
        for (protocol, bytes) in
            [(Protocol::Eager, LARGE), (Protocol::Rendezvous, LARGE), (Protocol::Eager, SMALL)]
        {
            let (warm, span) = (Duration::from_micros(2_500), Duration::from_millis(10));
            let setup = Setup { protocol, bytes, clients: 1664, warm, span, ..NOT_READY };
            let reached = run(setup, 2);
            assert_eq!(reached.lost, 0, "{reached:?}");
            assert!(reached.answers > 1000, "{reached:?}");
            assert!(reached.nic.entries_max <= 2, "two slabs, whoever sends: {reached:?}");
            assert_eq!(reached.nic.software_matched, 0, "nothing waits without a buffer: {reached:?}");
            if bytes == LARGE && protocol == Protocol::Eager {
                assert!(reached.nic.buffer_refused > 100, "it really was not ready: {reached:?}");
            }
        }
    }
}
