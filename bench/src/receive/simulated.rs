//! The experiment in the simulator: servers of two NICs with sixteen threads each, behind the NIC model of
//! `weir-fabric`, whose times are worked out from the paper's figures; clients that send the next request when they
//! have the answer. What the model adds is how the two modes behave when clients multiply: entries that run out, ports
//! that turn messages away, slabs that are held.

use core::cell::Cell;
use core::time::Duration;
use std::path::Path;
use std::rc::{Rc, Weak};

use weir_fabric::sim::{Config, Fabric, Nic, NicConfig, NicStats, ReceiveMode, UnknownSource};
use weir_fabric::{Endpoint, FabricError, Message, PeerId, Sink, Source};
use weir_runtime::sim::World;

use super::{Receive, publish};
use crate::drawing::Series;
use crate::report::{BenchError, Report};

/// Client processes on a node of the paper's system.
const PER_NODE: u32 = 104;

/// Numbers of clients: from one node to the paper's 512.
const CLIENTS: [u32; 7] = [104, 416, 1664, 6656, 13_312, 26_624, 53_248];

/// Bytes of a request, and of its answer: a header and a small argument.
const MESSAGE: usize = 128;

/// NICs of a server node, each of one engine.
const NICS: u32 = 2;

/// Threads of an engine.
const THREADS: u32 = 16;

/// Until the load is steady.
const WARM_UP: Duration = Duration::from_millis(2);

/// How long answers are counted.
const SPAN: Duration = Duration::from_millis(2);

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub servers: u32,
    pub nics: u32,
    pub threads: u32,
    pub clients: u32,
    /// Requests that a client has under way.
    pub in_flight: u32,
    pub receive: Receive,
}

/// What a run showed.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    /// Requests answered per second.
    pub rate: f64,
    /// All NICs of the servers together.
    pub nics: NicStats,
    /// Requests that were given up.
    pub lost: u64,
}

struct Server(Weak<dyn Endpoint>);

impl Sink for Server {
    fn message(&self, message: Message) {
        let Some(endpoint) = self.0.upgrade() else { return };
        let peer = match message.source() {
            Source::Peer(peer) => Some(*peer),
            Source::Address(address) => endpoint.insert(address).ok(),
            Source::Unknown => None,
        };
        if let Some(peer) = peer {
            // An answer that can't be sent shows as a lost request.
            let _ = endpoint.send(peer, 0, &[&[0; MESSAGE]]);
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
    tally: Rc<Tally>,
}

impl Client {
    fn ask(&self) {
        let sent = self.endpoint.upgrade().map(|endpoint| endpoint.send(self.to, 0, &[&[1; MESSAGE]]));
        if !matches!(sent, Some(Ok(()))) {
            self.tally.lost.set(self.tally.lost.get() + 1);
        }
    }
}

impl Sink for Client {
    fn message(&self, _message: Message) {
        self.tally.answers.set(self.tally.answers.get() + 1);
        self.ask();
    }

    fn send_failed(&self, _peer: PeerId, _context: u64, _error: FabricError) {
        self.tally.lost.set(self.tally.lost.get() + 1);
        self.ask();
    }
}

/// Runs one experiment.
#[must_use]
pub fn run(setup: Setup, seed: u64) -> Reached {
    let world = World::new(seed);
    let config = Config {
        latency_min: Duration::from_micros(2),
        latency_max: Duration::from_micros(4),
        unknown_source: UnknownSource::Address,
        loss_reported: 1.0,
        ..Config::default()
    };
    let fabric = Fabric::with_config(&world, config);
    let mode = match setup.receive {
        Receive::Standard => ReceiveMode::STANDARD,
        Receive::Multi => ReceiveMode::MULTI,
    };
    let (mut nics, mut endpoints, mut servers) = (Vec::new(), Vec::new(), Vec::new());
    for server in 0..setup.servers {
        let node = world.node(&format!("server-{server}"));
        for _ in 0..setup.nics {
            let nic = Nic::new(NicConfig::default());
            for _ in 0..setup.threads {
                let endpoint = fabric.endpoint_behind(&nic, mode, &node, None, &[]);
                let sink = Rc::new(Server(Rc::downgrade(&endpoint)));
                let weak = Rc::downgrade(&sink);
                endpoint.set_sink(weak);
                servers.push(sink);
                endpoints.push(endpoint);
            }
            nics.push(nic);
        }
    }
    let tally = Rc::new(Tally::default());
    let mut clients = Vec::new();
    for index in 0..setup.clients {
        let node = world.node(&format!("client-{}", index / PER_NODE));
        let endpoint = fabric.endpoint(&node, None);
        // Evenly over all threads.
        let server = &endpoints[index as usize % endpoints.len()];
        let Ok(to) = endpoint.insert(&server.address()) else { continue };
        let client = Rc::new(Client { endpoint: Rc::downgrade(&endpoint), to, tally: Rc::clone(&tally) });
        let weak = Rc::downgrade(&client);
        endpoint.set_sink(weak);
        for _ in 0..setup.in_flight {
            let starter = Rc::clone(&client);
            let delay = Duration::from_nanos(world.rng().below(1_000_000));
            world.schedule(delay, move || starter.ask());
        }
        clients.push((client, endpoint));
    }
    world.run_for(WARM_UP);
    let before = tally.answers.get();
    world.run_for(SPAN);
    #[expect(clippy::cast_precision_loss, reason = "some hundred thousands")]
    let rate = (tally.answers.get() - before) as f64 / SPAN.as_secs_f64();
    let sum = nics.iter().map(|nic| nic.stats()).fold(NicStats::default(), |sum, one| NicStats {
        received: sum.received + one.received,
        port_refused: sum.port_refused + one.port_refused,
        buffer_refused: sum.buffer_refused + one.buffer_refused,
        software_matched: sum.software_matched + one.software_matched,
        copied: sum.copied + one.copied,
        posts: sum.posts + one.posts,
        entries_max: sum.entries_max.max(one.entries_max),
    });
    Reached { rate, nics: sum, lost: tally.lost.get() }
}

/// A line: rates over the numbers of clients.
fn sweep(name: String, setup: Setup) -> (Series, Vec<Reached>) {
    let runs: Vec<Reached> =
        CLIENTS.iter().map(|clients| run(Setup { clients: *clients, ..setup }, 1)).collect();
    let points = CLIENTS.iter().zip(&runs).map(|(clients, run)| (f64::from(*clients), run.rate));
    (Series { name, points: points.collect() }, runs)
}

fn peak(series: &Series) -> f64 {
    series.points.iter().map(|point| point.1).fold(0.0, f64::max)
}

/// Runs the sweeps of both figures.
pub fn measure(report: &mut Report, folder: &Path) -> Result<(), BenchError> {
    let (across, up) = ("clients", "requests per second");
    let one = Setup { servers: 1, nics: 1, threads: 1, clients: 0, in_flight: 1, receive: Receive::Multi };
    let lines = Receive::BOTH.map(|receive| sweep(receive.name().to_owned(), Setup { receive, ..one }).0);
    let goal = Some("paper: 1.3 M/s against 0.6 M/s");
    report.beside(
        "receive simulated: one thread, multi-recv",
        peak(&lines[1]),
        "op/s",
        ("standard", peak(&lines[0])),
        goal,
    );
    publish(
        "Simulated: one server thread (figure 5)",
        across,
        up,
        lines.into(),
        &folder.join("figure-5.svg"),
    )?;
    for (servers, letter, goal) in
        [(1, 'a', "paper: 40 M/s against 4 M/s"), (2, 'b', "paper: 80 M/s against 8 M/s")]
    {
        let mut lines = Vec::new();
        for receive in Receive::BOTH {
            for in_flight in [1, 4] {
                let setup = Setup { servers, nics: NICS, threads: THREADS, clients: 0, in_flight, receive };
                let name = format!("{}, {in_flight} in flight", receive.name());
                let (series, runs) = sweep(name, setup);
                if let Some(Reached { nics, lost, .. }) = runs.last() {
                    println!(
                        "{}, most clients: {} posts, {} matched in software, {} turned away at the port, {lost} lost",
                        series.name, nics.posts, nics.software_matched, nics.port_refused
                    );
                }
                lines.push(series);
            }
        }
        let best = |at: usize| peak(&lines[at]).max(peak(&lines[at + 1]));
        let name = format!("receive simulated: {servers} x 32 threads, multi-recv");
        report.beside(&name, best(2), "op/s", ("standard", best(0)), Some(goal));
        let title = format!("Simulated: {servers} server node(s) of 2 x 16 threads (figure 4{letter})");
        publish(&title, across, up, lines, &folder.join(format!("figure-4{letter}.svg")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Setup =
        Setup { servers: 1, nics: 1, threads: 1, clients: 416, in_flight: 1, receive: Receive::Multi };

    #[test]
    fn one_thread_is_twice_as_fast_with_multi_receive() {
        let multi = run(BASE, 1);
        let standard = run(Setup { receive: Receive::Standard, ..BASE }, 1);
        assert!((1.0e6..1.4e6).contains(&multi.rate), "{multi:?}");
        assert!((0.5e6..0.7e6).contains(&standard.rate), "{standard:?}");
        assert_eq!((multi.lost, standard.lost), (0, 0));
        assert!(multi.nics.posts * 100 < standard.nics.posts, "few large buffers instead of many small ones");
    }

    #[test]
    fn sixteen_threads_exhaust_the_nic_in_standard_mode_only_and_two_servers_double_the_rate() {
        let many = Setup { nics: 2, threads: 16, clients: 1664, ..BASE };
        let multi = run(many, 2);
        let standard = run(Setup { receive: Receive::Standard, ..many }, 2);
        assert!(multi.rate > 30e6, "{multi:?}");
        assert!((3e6..6e6).contains(&standard.rate), "{standard:?}");
        // A few come before the first slabs are posted.
        assert!(multi.nics.software_matched * 1000 < multi.nics.received, "{multi:?}");
        assert!(standard.nics.software_matched > standard.nics.received / 2);
        let both = run(Setup { servers: 2, clients: 3328, ..many }, 2);
        assert!(both.rate > 1.8 * multi.rate, "{both:?}");
    }

    #[test]
    fn too_many_clients_are_turned_away_and_come_again_and_none_is_lost() {
        for in_flight in [1, 4] {
            let crowded = Setup { nics: 1, threads: 16, clients: 20_000, in_flight, ..BASE };
            let reached = run(crowded, 3);
            assert!(reached.nics.port_refused > 0, "{reached:?}");
            assert_eq!(reached.lost, 0);
            assert!(reached.rate > 8e6, "{reached:?}");
        }
    }
}
