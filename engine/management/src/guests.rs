//! Who is let in at a listener, and who leaves when more come than there is room for.
//!
//! Nobody is turned away: when all places are taken, a connection of the peer that has most ends, the one that has said
//! nothing for longest. So whoever opens connections without end displaces its own, and another peer finds a place at
//! any time.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::oneshot;

/// Connections that a listener has at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Of all peers.
    pub(crate) all: usize,
    /// Of one peer.
    pub(crate) peer: usize,
}

struct Guest {
    peer: IpAddr,
    /// When it said something last, as a number that grows with each such event.
    heard: u64,
    leave: oneshot::Sender<()>,
}

#[derive(Default)]
struct Table {
    guests: BTreeMap<u64, Guest>,
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

    fn remove(&mut self, number: u64) -> Option<Guest> {
        let guest = self.guests.remove(&number)?;
        if let Some(count) = self.peers.get_mut(&guest.peer) {
            *count -= 1;
            if *count == 0 {
                self.peers.remove(&guest.peer);
            }
        }
        Some(guest)
    }

    /// Ends the connection of a peer that was heard of the longest time ago; without a peer, of one that has most.
    fn make_room(&mut self, peer: Option<IpAddr>) {
        let most = self.peers.values().copied().max().unwrap_or_default();
        let may_go = |of: IpAddr| peer.map_or_else(|| self.count(of) == most, |peer| peer == of);
        let those = self.guests.iter().filter(|(_, guest)| may_go(guest.peer));
        let quietest = those.min_by_key(|(_, guest)| guest.heard).map(|(number, _)| *number);
        if let Some(guest) = quietest.and_then(|number| self.remove(number)) {
            // It may be leaving by itself.
            let _ = guest.leave.send(());
        }
    }
}

/// The connections of a listener.
#[derive(Clone)]
pub(crate) struct Guests {
    room: Room,
    table: Arc<Mutex<Table>>,
}

impl Guests {
    pub(crate) fn new(room: Room) -> Self {
        Self { room, table: Arc::default() }
    }

    /// Gives a connection from this address a place; others may have to leave for it.
    pub(crate) fn admit(&self, address: IpAddr) -> Place {
        let (peer, mut table) = (peer(address), self.table());
        if table.count(peer) >= self.room.peer {
            table.make_room(Some(peer));
        } else if table.guests.len() >= self.room.all {
            table.make_room(None);
        }
        let (leave, left) = oneshot::channel();
        let number = table.event();
        table.guests.insert(number, Guest { peer, heard: number, leave });
        *table.peers.entry(peer).or_default() += 1;
        drop(table);
        Place { number, guests: self.clone(), left }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's place, until it is dropped.
pub(crate) struct Place {
    number: u64,
    guests: Guests,
    left: oneshot::Receiver<()>,
}

impl Place {
    /// The peer has said something.
    pub(crate) fn heard(&self) {
        let mut table = self.guests.table();
        let event = table.event();
        if let Some(guest) = table.guests.get_mut(&self.number) {
            guest.heard = event;
        }
    }

    /// Ready once another connection needs the place.
    pub(crate) fn poll_displaced(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.left).poll(cx).map(|_| ())
    }

    /// Returns once another connection needs the place.
    pub(crate) async fn displaced(&mut self) {
        std::future::poll_fn(|cx| self.poll_displaced(cx)).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.guests.table().remove(self.number);
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

    fn is_displaced(place: &mut Place) -> bool {
        place.left.try_recv().is_ok()
    }

    #[test]
    fn who_comes_without_end_displaces_its_own_and_nobody_else() {
        let guests = Guests::new(Room { all: 8, peer: 6 });
        let mut quiet = guests.admit(OTHER);
        let mut crowd: Vec<Place> = (0..100).map(|_| guests.admit(ONE)).collect();
        assert_eq!(crowd.iter_mut().filter_map(|place| is_displaced(place).then_some(())).count(), 94);
        assert!(!is_displaced(&mut quiet) && !is_displaced(&mut crowd[99]));
        let mut late: Vec<Place> = (0..3).map(|_| guests.admit(OTHER)).collect();
        assert!(late.iter_mut().chain([&mut quiet]).all(|place| !is_displaced(place)));
        assert_eq!(guests.table().guests.len(), 8);
        drop((quiet, crowd, late));
        let table = guests.table();
        assert!(table.guests.is_empty() && table.peers.is_empty());
    }

    #[test]
    fn who_says_something_stays_longer_than_who_does_not() {
        let guests = Guests::new(Room { all: 2, peer: 2 });
        let (mut talks, mut silent) = (guests.admit(ONE), guests.admit(ONE));
        talks.heard();
        let _third = guests.admit(ONE);
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
