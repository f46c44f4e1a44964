//! Admission of connections at a listener, and eviction when there are more than the limit.
//!
//! No connection is refused. When all slots are taken, the peer with the most connections loses the one that was silent for
//! longest. So a peer that opens connections without end evicts its own, and another peer finds a slot at any time.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::oneshot;

/// Most connections of a listener at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// Of all peers.
    pub(crate) all: usize,
    /// Of one peer.
    pub(crate) peer: usize,
}

struct Connection {
    peer: IpAddr,
    /// When it said something last, as a number that grows with each such event.
    heard: u64,
    evict: oneshot::Sender<()>,
}

#[derive(Default)]
struct Table {
    connections: BTreeMap<u64, Connection>,
    peers: HashMap<IpAddr, usize>,
    events: u64,
}

impl Table {
    fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    fn count(&self, peer: IpAddr) -> usize {
        self.peers.get(&peer).copied().unwrap_or_default()
    }

    fn remove(&mut self, number: u64) -> Option<Connection> {
        let connection = self.connections.remove(&number)?;
        if let Some(count) = self.peers.get_mut(&connection.peer) {
            *count -= 1;
            if *count == 0 {
                self.peers.remove(&connection.peer);
            }
        }
        Some(connection)
    }

    /// Ends the connection of a peer that was heard of the longest time ago; without a peer, of one that has most.
    fn evict_one(&mut self, peer: Option<IpAddr>) {
        let most = self.peers.values().copied().max().unwrap_or_default();
        let may_go = |of: IpAddr| peer.map_or_else(|| self.count(of) == most, |peer| peer == of);
        let those = self.connections.iter().filter(|(_, connection)| may_go(connection.peer));
        let quietest = those.min_by_key(|(_, connection)| connection.heard).map(|(number, _)| *number);
        if let Some(connection) = quietest.and_then(|number| self.remove(number)) {
            // It may be leaving by itself.
            let _ = connection.evict.send(());
        }
    }
}

/// The connections of a listener.
#[derive(Clone)]
pub(crate) struct Connections {
    room: ConnectionLimits,
    table: Arc<Mutex<Table>>,
}

impl Connections {
    pub(crate) fn new(room: ConnectionLimits) -> Self {
        Self { room, table: Arc::default() }
    }

    /// Admits a connection from this address; another connection may be evicted for it.
    pub(crate) fn admit(&self, address: IpAddr) -> ConnectionSlot {
        let (peer, mut table) = (peer(address), self.table());
        if table.count(peer) >= self.room.peer {
            table.evict_one(Some(peer));
        } else if table.connections.len() >= self.room.all {
            table.evict_one(None);
        }
        let (evict, evicted) = oneshot::channel();
        let number = table.event();
        table.connections.insert(number, Connection { peer, heard: number, evict });
        *table.peers.entry(peer).or_default() += 1;
        drop(table);
        ConnectionSlot { number, connections: self.clone(), evicted }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's slot, until it is dropped.
pub(crate) struct ConnectionSlot {
    number: u64,
    connections: Connections,
    evicted: oneshot::Receiver<()>,
}

impl ConnectionSlot {
    /// The peer has said something.
    pub(crate) fn heard(&self) {
        let mut table = self.connections.table();
        let event = table.event();
        if let Some(connection) = table.connections.get_mut(&self.number) {
            connection.heard = event;
        }
    }

    /// Ready once another connection has taken the slot.
    pub(crate) fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.evicted).poll(cx).map(|_| ())
    }

    /// Returns once another connection has taken the slot.
    pub(crate) async fn evicted(&mut self) {
        std::future::poll_fn(|cx| self.poll_evicted(cx)).await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.connections.table().remove(self.number);
    }
}

/// Whose an address is: of IPv6 a host has a whole network of 64 bits.
fn peer(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64))),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn is_displaced(place: &mut ConnectionSlot) -> bool {
        place.evicted.try_recv().is_ok()
    }

    #[test]
    fn who_comes_without_end_displaces_its_own_and_nobody_else() {
        let connections = Connections::new(ConnectionLimits { all: 8, peer: 6 });
        let mut quiet = connections.admit(OTHER);
        let mut crowd: Vec<ConnectionSlot> = (0..100).map(|_| connections.admit(ONE)).collect();
        assert_eq!(crowd.iter_mut().filter_map(|place| is_displaced(place).then_some(())).count(), 94);
        assert!(!is_displaced(&mut quiet) && !is_displaced(&mut crowd[99]));
        let mut late: Vec<ConnectionSlot> = (0..3).map(|_| connections.admit(OTHER)).collect();
        assert!(late.iter_mut().chain([&mut quiet]).all(|place| !is_displaced(place)));
        assert_eq!(connections.table().connections.len(), 8);
        drop((quiet, crowd, late));
        let table = connections.table();
        assert!(table.connections.is_empty() && table.peers.is_empty());
    }

    #[test]
    fn who_says_something_stays_longer_than_who_does_not() {
        let connections = Connections::new(ConnectionLimits { all: 2, peer: 2 });
        let (mut talks, mut silent) = (connections.admit(ONE), connections.admit(ONE));
        talks.heard();
        let _third = connections.admit(ONE);
        assert!(is_displaced(&mut silent) && !is_displaced(&mut talks));
    }

    #[test]
    fn the_addresses_of_one_host_are_one_peer() {
        let of = |text: &str| peer(text.parse().expect("an address"));
        assert_eq!(of("::ffff:10.0.0.1"), ONE);
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    }
}
