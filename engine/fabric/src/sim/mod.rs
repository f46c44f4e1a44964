//! The simulated fabric: messages and RMA between the nodes of one simulated world, with delays, loss, partitions,
//! crashes and limited receive memory, all drawn from the world's seed.

mod endpoint;
mod network;
mod nic;
mod registration;

use core::time::Duration;
use endpoint::SimEndpoint;
use network::Network;
use nic::Queue;
use std::rc::Rc;
use weir_runtime::sim::{Node, World};

pub use nic::{Nic, NicConfig, NicStats, ReceiveMode};
pub use registration::{MrCosts, MrModel, OPTIMIZED_KEYS};

use crate::{Address, AuthKey, Endpoint, Gone};

/// How the simulated fabric behaves; may change while it runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Shortest one-way delay.
    pub latency_min: Duration,
    /// Longest one-way delay. Each message draws its own, so messages overtake each other.
    pub latency_max: Duration,
    /// Time that a mebibyte takes on top.
    pub per_mebibyte: Duration,
    /// Probability that a message gets lost.
    pub loss: f64,
    /// Probability that a lost message is reported to its sender (a reset connection) instead of vanishing.
    pub loss_reported: f64,
    /// Probability that a message arrives twice. Reliable endpoints don't do that; a resend through another
    /// connection after a reset may look like it.
    pub duplicate: f64,
    /// How receivers identify the sender of a message before they have inserted its address.
    pub unknown_source: UnknownSource,
    /// Bytes of unread messages that a receiver holds before senders have to retry.
    pub receive_bytes: usize,
    /// How long a read or write of an unreachable peer's memory takes to fail.
    pub transfer_timeout: Duration,
    /// What is still there of a peer that doesn't answer.
    pub stays: Option<Gone>,
    /// How memory is registered.
    pub mr: MrModel,
    /// What endpoints that are opened from now on say of the order of their writes
    /// ([`crate::Capabilities::ordered_writes`]). A simulated write has arrived when it has ended, and is overtaken by
    /// nothing that is sent then.
    pub ordered_writes: bool,
    /// Whether endpoints that are opened from now on have addresses that the provider chooses and publishes, as on `cxi`:
    /// the number of a node and a small number that is free there, which one that is opened later gets again.
    pub published: bool,
}

/// What a provider reports about a sender that was not inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnknownSource {
    /// Nothing, like `tcp` and `shm`. Or the present owner of the address-vector entry of a sender that was inserted
    /// and then forgotten: `tcp` goes by that for as long as there is a connection.
    Nothing,
    /// Its address, like `cxi` with `FI_SOURCE_ERR`.
    Address,
    /// Nothing, and nothing about senders that were inserted either: a provider without `FI_SOURCE`.
    Always,
}

impl Default for Config {
    /// A quiet data-centre network: 2–20 µs, 10 GB/s, no faults.
    fn default() -> Self {
        Self {
            latency_min: Duration::from_micros(2),
            latency_max: Duration::from_micros(20),
            per_mebibyte: Duration::from_micros(100),
            loss: 0.0,
            loss_reported: 0.5,
            duplicate: 0.0,
            unknown_source: UnknownSource::Nothing,
            receive_bytes: 8 << 20,
            transfer_timeout: Duration::from_secs(1),
            stays: None,
            mr: MrModel::default(),
            ordered_writes: false,
            published: false,
        }
    }
}

/// What a simulated fabric has done; for tests that ask whether a fault really happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Messages delivered.
    pub delivered: u64,
    /// Messages lost by chance.
    pub lost: u64,
    /// Messages and transfers stopped by a partition or a dead endpoint.
    pub unreachable: u64,
    /// Messages delivered a second time.
    pub duplicated: u64,
    /// Tries that found the receiver full.
    pub receiver_full: u64,
    /// Reads and writes refused for their key, range or access.
    pub denied: u64,
    /// Reads and writes that moved bytes of memory whose owner had ended their exposure.
    pub late_accesses: u64,
    /// Messages and transfers that a NIC did not take, because they came through a virtual network that it is not on.
    pub other_network: u64,
}

/// The network of one simulated world. Cheap to clone.
#[derive(Clone)]
pub struct Fabric {
    network: Rc<Network>,
}

impl Fabric {
    /// A fault-free network for this world.
    #[must_use]
    pub fn new(world: &World) -> Self {
        Self::with_config(world, Config::default())
    }

    /// A network that behaves as told.
    #[must_use]
    pub fn with_config(world: &World, config: Config) -> Self {
        Self { network: Network::new(world, config) }
    }

    /// An endpoint on a node. With a port it listens as `node-name:port`, replacing a dead endpoint of that name;
    /// without, it gets a port of its own. Dropping it closes it, and so does a crash of its node.
    #[must_use]
    pub fn endpoint(&self, node: &Node, port: Option<u16>) -> Rc<dyn Endpoint> {
        SimEndpoint::open(&self.network, node, port, &[], None)
    }

    /// Like [`Fabric::endpoint`], on virtual networks: the NIC takes only what comes through one of them. A client has
    /// one key, a server as many as its clients have together; they are all there before the first message is.
    #[must_use]
    pub fn endpoint_with_keys(&self, node: &Node, port: Option<u16>, keys: &[AuthKey]) -> Rc<dyn Endpoint> {
        SimEndpoint::open(&self.network, node, port, keys, None)
    }

    /// An endpoint as [`Fabric::endpoint_with_keys`] makes it, or without any as [`Fabric::endpoint`], behind a NIC that it
    /// shares with others and with a thread of its own: what arrives takes their time.
    #[must_use]
    pub fn endpoint_behind(
        &self,
        nic: &Rc<Nic>,
        mode: ReceiveMode,
        node: &Node,
        port: Option<u16>,
        keys: &[AuthKey],
    ) -> Rc<dyn Endpoint> {
        let queue = Queue::new(nic, mode, self.network.world.now());
        SimEndpoint::open(&self.network, node, port, keys, Some(queue))
    }

    /// Gives a node one more name, or gives that name to another node: what a resolver may do at any time.
    pub fn alias(&self, name: &str, node: &Node) {
        self.network.aliases.borrow_mut().insert(name.to_owned(), node.name());
    }

    /// Changes how the network behaves from now on.
    pub fn configure(&self, change: impl FnOnce(&mut Config)) {
        change(&mut self.network.config.borrow_mut());
    }

    /// Cuts all traffic between two groups of nodes, both ways.
    pub fn partition(&self, one: &[&Node], other: &[&Node]) {
        let mut cuts = self.network.cuts.borrow_mut();
        for a in one {
            for b in other {
                cuts.insert((a.id(), b.id()));
                cuts.insert((b.id(), a.id()));
            }
        }
    }

    /// Cuts traffic in one direction only.
    pub fn partition_one_way(&self, from: &Node, to: &Node) {
        self.network.cuts.borrow_mut().insert((from.id(), to.id()));
    }

    /// Mends every cut.
    pub fn heal(&self) {
        self.network.cuts.borrow_mut().clear();
    }

    /// Memory regions that peers can reach now, over all endpoints; for tests that ask whether any was forgotten.
    #[must_use]
    pub fn exposed(&self) -> usize {
        self.network.exposed()
    }

    /// Pairs of an endpoint and a peer whose host it asks for signs of life.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.network.asked.borrow().len()
    }

    /// What has happened so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.network.stats.get()
    }
}

/// The address of `host:port`.
fn address(host: &str, port: u32) -> Option<Address> {
    Address::from_bytes(format!("{host}:{port}").as_bytes())
}

#[cfg(test)]
mod tests;
