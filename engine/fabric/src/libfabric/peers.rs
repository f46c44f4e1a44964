//! The peers that an endpoint knows, and the operations that wait for each.

use super::channel::PeerChannel;
use super::doorbell::{self, PeerDoorbell};
use super::ops::{Backlog, OpId};
use super::retry_queue::{RetryQueue, RetryTime};
use super::sys;
use crate::{Address, PeerId};
use core::cell::Cell;
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use weir_runtime::Instant;

/// Shortest time between two looks for a peer's process.
const LOOK_EVERY: Duration = Duration::from_millis(10);

pub(super) struct KnownPeer {
    pub(super) fi_addr: u64,
    pub(super) address: Address,
    pub(super) peer_doorbell: Option<Rc<PeerDoorbell>>,
    /// Its channel, if it is within the node.
    pub(super) peer_channel: PeerChannel,
    /// What was sent to it and it has not taken.
    pub(super) backlog: Backlog,
    /// Operations that found no room, oldest first, and since when they wait.
    pub(super) waiting: VecDeque<(OpId, Instant)>,
    /// A path that exists while the peer's process lives, if it is visible.
    process: Option<PathBuf>,
    /// When the process was last seen.
    seen: Cell<Instant>,
    /// When its operations are retried.
    pub(super) retry_time: RetryTime,
}

impl KnownPeer {
    /// Whether the peer is known to be gone. A doorbell provider goes on taking messages for a dead process.
    pub(super) fn is_dead(&self, now: Instant) -> bool {
        let Some(process) = self.process.as_ref().filter(|_| now >= self.seen.get() + LOOK_EVERY) else {
            return false;
        };
        self.seen.set(now);
        !process.exists()
    }

    /// The generation of its endpoint that the entry is of.
    pub(super) fn generation(&self) -> u32 {
        self.peer_doorbell.as_ref().map_or(0, |peer_doorbell| peer_doorbell.generation())
    }

    /// Whether it has reopened its endpoint since the entry was made, or has no entry because none could be made.
    pub(super) fn has_moved(&self) -> bool {
        self.fi_addr == sys::FI_ADDR_NOTAVAIL
            || self.peer_doorbell.as_ref().is_some_and(|peer_doorbell| peer_doorbell.has_moved())
    }

    /// Whether operations posted to an entry of the address vector can still end: the entry is of the peer's present
    /// endpoint, and its process is not known to have ended.
    pub(super) fn is_at(&self, entry: u64) -> bool {
        self.fi_addr == entry && !self.has_moved() && !self.has_ended()
    }

    /// Whether its process is known to have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.peer_doorbell.is_some() && is_gone(&self.address)
    }
}

/// A slot for a peer. The generation tells its successive users apart.
#[derive(Default)]
struct Slot {
    generation: u32,
    peer: Option<KnownPeer>,
}

/// Provider's numbers up to this are looked up in a list, higher ones in a map: address vectors are tables whose entries
/// count from 0.
const DENSE_MAX: usize = 1 << 20;

/// Entries of the address vector of a provider within the node (`shm`: `SMR_MAX_PEERS`).
pub(super) const ENTRIES_MAX: usize = 256;

/// Unused entries that an endpoint keeps: a quarter of all. They are not removed one by one. While a peer lives, the
/// provider takes the next owner of its entry for that peer. When the peer is dead, what it has left in the queue or
/// half done still refers to its mapping. The provider also believes that the next owner has been met, and writes to
/// memory that it has not mapped (`smr_verify_peer` of libfabric 2.1). So the endpoint is reopened: when nothing is
/// under way, or when there is little room.
const LEFT_MAX: usize = ENTRIES_MAX / 4;

/// The same when there is no room at all, because nearly all entries have a use.
const LEFT_WHEN_FULL: usize = ENTRIES_MAX / 16;

/// Number of entries from which on it is too late to wait until nothing is in flight. Unanswered senders take entries, too.
/// When none is free the provider reuses one that is in use, and crashes.
const NEARLY_ALL: usize = ENTRIES_MAX - ENTRIES_MAX / 8;

/// Whether the peer within the node at this address is gone.
pub(super) fn is_gone(address: &Address) -> bool {
    str::from_utf8(address.as_bytes()).is_ok_and(doorbell::is_dead)
}

/// The entry that a forgotten peer has left in the address vector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Retained {
    pub(super) fi_addr: u64,
    /// The slot that it is of.
    pub(super) slot: u32,
    /// The generation of the peer that it is of.
    pub(super) generation: u32,
}

/// The peers. A [`PeerId`] is the index and the generation of a slot, so that a look-up hashes nothing.
#[derive(Default)]
pub(super) struct Peers {
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_address: HashMap<Address, PeerId>,
    /// Slot + 1 by the provider's number of a peer; 0 is none.
    dense: Vec<u32>,
    sparse: HashMap<u64, u32>,
    /// Forgotten peers whose entries stay in the address vector.
    retained: HashMap<Address, Retained>,
    /// Entries of peers before they reopened their endpoints, with their slots.
    left: Vec<(u32, u64)>,
    /// Completions name peers by their slot, because entries were inserted with it as user id.
    user_ids: bool,
    /// Peers with waiting operations.
    pub(super) waiting: RetryQueue,
}

fn id_of(index: u32, generation: u32) -> PeerId {
    PeerId(u64::from(generation) << 32 | u64::from(index))
}

/// Index and generation of an id.
fn parts(id: PeerId) -> (usize, u32) {
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of the number")]
    let halves = (id.0 as u32, (id.0 >> 32) as u32);
    (halves.0 as usize, halves.1)
}

impl Peers {
    pub(super) fn with_user_ids(user_ids: bool) -> Self {
        Self { user_ids, ..Self::default() }
    }

    /// Each peer has a connection, which is made when something is sent to it.
    pub(super) fn set_connected(&mut self) {
        self.waiting = RetryQueue::for_connections();
    }

    /// Whether completions name peers by the user id that was inserted with them.
    pub(super) fn has_user_ids(&self) -> bool {
        self.user_ids
    }

    pub(super) fn by_address(&self, address: &Address) -> Option<PeerId> {
        self.by_address.get(address).copied()
    }

    /// The peer that a completion names.
    pub(super) fn by_source(&self, source: u64) -> Option<PeerId> {
        let index = if self.user_ids {
            u32::try_from(source).ok()?
        } else {
            let at = usize::try_from(source).ok()?;
            let entry = if at < DENSE_MAX { self.dense.get(at) } else { self.sparse.get(&source) };
            entry?.checked_sub(1)?
        };
        let slot = self.slots.get(index as usize)?;
        slot.peer.as_ref().map(|_| id_of(index, slot.generation))
    }

    fn note_source(&mut self, fi_addr: u64, entry: u32) {
        // The number of unknown senders.
        if fi_addr == sys::FI_ADDR_NOTAVAIL {
            return;
        }
        match usize::try_from(fi_addr) {
            Ok(at) if at < DENSE_MAX => {
                if self.dense.len() <= at {
                    self.dense.resize(at + 1, 0);
                }
                self.dense[at] = entry;
            }
            _ if entry == 0 => drop(self.sparse.remove(&fi_addr)),
            _ => drop(self.sparse.insert(fi_addr, entry)),
        }
    }

    /// What a forgotten peer has left, which is reused when the address is added again.
    pub(super) fn retained(&self, address: &Address) -> Option<Retained> {
        self.retained.get(address).copied()
    }

    /// The slot of a peer.
    pub(super) fn slot_of(id: PeerId) -> u32 {
        u32::try_from(parts(id).0).unwrap_or(u32::MAX)
    }

    /// Reserves a slot for a new peer. Completions name the peer by it, where the provider can.
    pub(super) fn reserve(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        })
    }

    /// Gives a reserved slot back.
    pub(super) fn unreserve(&mut self, index: u32) {
        self.free.push(index);
    }

    pub(super) fn add(
        &mut self,
        index: u32,
        address: &Address,
        fi_addr: u64,
        peer_doorbell: Option<Rc<PeerDoorbell>>,
    ) -> PeerId {
        let process =
            peer_doorbell.as_ref().and_then(|_| doorbell::process(str::from_utf8(address.as_bytes()).ok()?));
        let slot = &mut self.slots[index as usize];
        let id = id_of(index, slot.generation);
        slot.peer = Some(KnownPeer {
            fi_addr,
            address: address.clone(),
            process,
            peer_doorbell,
            peer_channel: PeerChannel::default(),
            backlog: Backlog::default(),
            waiting: VecDeque::new(),
            seen: Cell::default(),
            retry_time: RetryTime::default(),
        });
        self.by_address.insert(address.clone(), id);
        self.retained.remove(address);
        self.note_source(fi_addr, index + 1);
        id
    }

    /// Forgets a peer. `retain`: its entry stays in the address vector for when the address comes back.
    pub(super) fn remove(&mut self, id: PeerId, retain: bool) -> Option<KnownPeer> {
        let (index, generation) = parts(id);
        let slot = self.slots.get_mut(index).filter(|slot| slot.generation == generation)?;
        let peer = slot.peer.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        self.by_address.remove(&peer.address);
        self.waiting.remove(id, peer.retry_time);
        if retain {
            let generation = peer.generation();
            let retained = Retained { fi_addr: peer.fi_addr, slot: index, generation };
            self.retained.insert(peer.address.clone(), retained);
        } else {
            self.note_source(peer.fi_addr, 0);
            self.free.push(index);
        }
        Some(peer)
    }

    /// An entry of a slot is of no use any more, because another one stands for the peer.
    pub(super) fn leave(&mut self, slot: u32, fi_addr: u64) {
        if fi_addr != sys::FI_ADDR_NOTAVAIL {
            self.left.push((slot, fi_addr));
        }
    }

    /// Entries without use.
    fn unused(&self) -> usize {
        self.left.len() + self.retained.len()
    }

    /// Whether entries without use take room that is needed. `idle`: nothing is in flight. `met`: how many entries the
    /// provider has, if known; those of unknown senders have no use yet, and may never have.
    pub(super) fn has_many_left(&self, idle: bool, met: Option<usize>) -> bool {
        let (unused, all) = (self.unused(), self.unused() + self.by_address.len());
        let strangers = met.map_or(0, |met| met.saturating_sub(all));
        if strangers >= LEFT_WHEN_FULL && all + strangers >= NEARLY_ALL {
            return true;
        }
        let full = all >= ENTRIES_MAX && unused >= LEFT_WHEN_FULL;
        self.left.len() > LEFT_MAX || unused > LEFT_MAX && (idle || all >= NEARLY_ALL) || full
    }

    /// Whether there is room for entries that may soon be of no use.
    pub(super) fn has_room_for_strangers(&self) -> bool {
        self.unused() <= LEFT_MAX
    }

    /// A peer has reopened its endpoint, and has another entry in the address vector.
    pub(super) fn renew(&mut self, id: PeerId, fi_addr: u64, peer_doorbell: Rc<PeerDoorbell>) {
        let slot = Self::slot_of(id);
        let Some(peer) = self.get_mut(id) else { return };
        let before = core::mem::replace(&mut peer.fi_addr, fi_addr);
        peer.peer_doorbell = Some(peer_doorbell);
        self.leave(slot, before);
        self.note_source(fi_addr, slot + 1);
    }

    /// The address vector is empty, and nothing waits. Each peer gets a new entry, which `insert` makes for its slot.
    pub(super) fn start_afresh(&mut self, mut insert: impl FnMut(u32, &mut KnownPeer) -> u64) {
        self.dense.clear();
        self.sparse.clear();
        self.free.extend(self.retained.drain().map(|(_, retained)| retained.slot));
        self.waiting.clear();
        self.left.clear();
        let mut entries = Vec::new();
        for (index, slot) in (0u32..).zip(&mut self.slots) {
            let Some(peer) = &mut slot.peer else { continue };
            peer.waiting.clear();
            peer.retry_time = RetryTime::default();
            peer.fi_addr = insert(index, peer);
            entries.push((peer.fi_addr, index + 1));
        }
        for (fi_addr, entry) in entries {
            self.note_source(fi_addr, entry);
        }
    }

    pub(super) fn get(&self, id: PeerId) -> Option<&KnownPeer> {
        let (index, generation) = parts(id);
        self.slots.get(index).filter(|slot| slot.generation == generation)?.peer.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: PeerId) -> Option<&mut KnownPeer> {
        let (index, generation) = parts(id);
        self.slots.get_mut(index).filter(|slot| slot.generation == generation)?.peer.as_mut()
    }

    /// A peer, and the queue of peers with waiting operations.
    fn with_waiting(&mut self, id: PeerId) -> Option<(&mut KnownPeer, &mut RetryQueue)> {
        let (index, generation) = parts(id);
        let slot = self.slots.get_mut(index).filter(|slot| slot.generation == generation)?;
        Some((slot.peer.as_mut()?, &mut self.waiting))
    }

    /// Queues an operation behind those that wait for the peer.
    pub(super) fn wait(&mut self, id: PeerId, op: OpId, now: Instant) {
        let Some(peer) = self.get_mut(id) else { return };
        peer.waiting.push_back((op, now));
        if peer.waiting.len() == 1 {
            self.back_off(id, now);
        }
    }

    /// The provider has no room for a peer's operations.
    pub(super) fn back_off(&mut self, id: PeerId, now: Instant) {
        if let Some((peer, waiting)) = self.with_waiting(id) {
            waiting.back_off((id, peer.peer_doorbell.is_some()), &mut peer.retry_time, now);
        }
    }

    /// It had room for the first of them, so that the next pause is the shortest, or that one was given up.
    pub(super) fn go_on(&mut self, id: PeerId, had_room: bool) {
        let Some((peer, waiting)) = self.with_waiting(id) else { return };
        peer.waiting.pop_front();
        waiting.remove(id, peer.retry_time);
        if had_room {
            peer.retry_time = RetryTime::default();
        }
    }

    /// A peer's operations may succeed now.
    pub(super) fn hasten(&mut self, id: PeerId, now: Instant) {
        if let Some((peer, waiting)) = self.with_waiting(id) {
            waiting.hasten(id, &mut peer.retry_time, now);
        }
    }

    /// Something has completed, so that others' operations may succeed, too.
    pub(super) fn hasten_others(&mut self, now: Instant) {
        let is_brief = |id| self.get(id).is_some_and(|peer| peer.retry_time.is_brief());
        for id in self.waiting.hopeful(is_brief) {
            self.hasten(id, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address::from_bytes(text.as_bytes()).expect("short")
    }

    fn add(peers: &mut Peers, name: &str, fi_addr: u64) -> PeerId {
        let slot = peers.reserve();
        peers.add(slot, &address(name), fi_addr, None)
    }

    #[test]
    fn sources_lead_to_peers_by_the_providers_number_or_by_ours() {
        for user_ids in [false, true] {
            let mut peers = Peers::with_user_ids(user_ids);
            let numbers = [7, 0, DENSE_MAX as u64 + 3];
            let ids: Vec<_> = numbers
                .iter()
                .zip(["a", "b", "c"])
                .map(|(number, name)| add(&mut peers, name, *number))
                .collect();
            for (slot, (number, id)) in (0u64..).zip(numbers.iter().zip(&ids)) {
                let source = if user_ids { slot } else { *number };
                assert_eq!(peers.by_source(source), Some(*id));
            }
            assert_eq!(peers.by_source(u64::MAX), None);
            assert_eq!(peers.by_source(99), None);
        }
    }

    #[test]
    fn an_id_names_no_later_user_of_its_slot() {
        let mut peers = Peers::with_user_ids(true);
        let first = add(&mut peers, "a", 3);
        assert!(peers.remove(first, false).is_some());
        let second = add(&mut peers, "b", 3);
        assert_ne!(first, second);
        assert!(peers.get(first).is_none() && peers.get(second).is_some());
        assert_eq!(peers.by_source(0), Some(second));
        assert!(peers.remove(first, false).is_none());
    }

    #[test]
    fn an_entry_that_stays_in_the_address_vector_keeps_its_slot() {
        let mut peers = Peers::with_user_ids(true);
        let first = add(&mut peers, "a", 3);
        peers.remove(first, true);
        assert_eq!(peers.by_source(0), None, "given up");
        let other = add(&mut peers, "b", 4);
        assert_eq!(peers.by_source(1), Some(other));
        let retained = peers.retained(&address("a")).expect("retained");
        assert_eq!(retained, Retained { fi_addr: 3, slot: 0, generation: 0 });
        let again = peers.add(retained.slot, &address("a"), retained.fi_addr, None);
        assert_eq!(peers.by_source(0), Some(again));
        assert_ne!(first, again);
    }

    #[test]
    fn entries_that_have_no_use_any_more_are_counted_also_those_of_peers_given_up() {
        let name = doorbell::fresh_name(32);
        let _bell = doorbell::Doorbell::new(&name).expect("a bell");
        let mut peers = Peers::with_user_ids(false);
        let (a, b) = (add(&mut peers, "a", 3), add(&mut peers, "b", 4));
        let renew = |peers: &mut Peers, id, entry| {
            peers.renew(id, entry, Rc::new(PeerDoorbell::new(&name).expect("its bell")));
        };
        renew(&mut peers, a, 13);
        renew(&mut peers, b, 14);
        assert_eq!((peers.by_source(3), peers.by_source(13)), (Some(a), Some(a)), "also what it sent before");
        // It comes back in another generation, and is forgotten again.
        peers.remove(a, true);
        let retained = peers.retained(&address("a")).expect("retained");
        peers.leave(retained.slot, retained.fi_addr);
        let again = peers.add(retained.slot, &address("a"), 33, None);
        peers.remove(again, true);
        for moves in 4..LEFT_MAX {
            renew(&mut peers, b, 100 + moves as u64);
        }
        assert!(!peers.has_many_left(true, None) && peers.has_room_for_strangers());
        renew(&mut peers, b, 97);
        assert!(peers.has_many_left(true, None) && !peers.has_room_for_strangers());
        assert!(!peers.has_many_left(false, None), "there is room yet");
        renew(&mut peers, b, 98);
        assert!(peers.has_many_left(false, None));
        peers.start_afresh(|_, _| 1);
        assert!(!peers.has_many_left(true, None));
    }

    #[test]
    fn an_endpoint_in_use_is_opened_anew_for_entries_without_use_only_when_there_is_little_room() {
        let mut peers = Peers::with_user_ids(true);
        let fill = |peers: &mut Peers, names: core::ops::Range<usize>, keep: bool| {
            for name in names {
                let id = add(peers, &format!("{keep}-{name}"), name as u64);
                if !keep {
                    peers.remove(id, true);
                }
            }
        };
        fill(&mut peers, 0..LEFT_MAX + 1, false);
        fill(&mut peers, 0..NEARLY_ALL - LEFT_MAX - 2, true);
        assert!(peers.has_many_left(true, None) && !peers.has_many_left(false, None));
        fill(&mut peers, NEARLY_ALL..NEARLY_ALL + 1, true);
        assert!(peers.has_many_left(false, None));
        // Nearly all are in use.
        let mut peers = Peers::with_user_ids(true);
        fill(&mut peers, 0..ENTRIES_MAX - LEFT_WHEN_FULL, true);
        fill(&mut peers, 0..LEFT_WHEN_FULL - 1, false);
        assert!(!peers.has_many_left(true, None));
        fill(&mut peers, ENTRIES_MAX..ENTRIES_MAX + 1, false);
        assert!(peers.has_many_left(false, None));
    }

    #[test]
    fn an_endpoint_is_opened_anew_for_places_that_nobody_known_has_before_there_are_none_left() {
        let mut peers = Peers::with_user_ids(true);
        for name in 0..100u64 {
            add(&mut peers, &format!("{name}"), name);
        }
        let at = |met| [true, false].map(|idle| peers.has_many_left(idle, Some(met)));
        assert_eq!([0, 100, NEARLY_ALL - 1].map(at), [[false; 2]; 3], "they may yet be answered");
        assert_eq!([NEARLY_ALL, ENTRIES_MAX + 7].map(at), [[true; 2]; 2]);
        for name in 100..ENTRIES_MAX as u64 {
            add(&mut peers, &format!("{name}"), name);
        }
        assert!(!peers.has_many_left(true, Some(ENTRIES_MAX)), "all are of use");
    }

    #[test]
    fn only_what_was_posted_to_a_peer_before_it_moved_never_ends() {
        let mut peers = Peers::with_user_ids(true);
        let id = add(&mut peers, "a", 3);
        let name = doorbell::fresh_name(31);
        let doorbell = doorbell::Doorbell::new(&name).expect("a bell");
        let peer_doorbell = || Rc::new(PeerDoorbell::new(&name).expect("its bell"));
        peers.renew(id, 4, peer_doorbell());
        let is_at = |peers: &Peers, entry| peers.get(id).is_some_and(|peer| peer.is_at(entry));
        assert!(!is_at(&peers, 3) && is_at(&peers, 4));
        doorbell.advance(doorbell.next_generation()).expect("another bell");
        assert!(!is_at(&peers, 4), "it has moved, and nobody has followed it yet");
        peers.renew(id, 5, peer_doorbell());
        assert!(!is_at(&peers, 4) && is_at(&peers, 5));
    }

    #[test]
    fn peers_keep_their_ids_when_the_address_vector_is_made_anew() {
        for user_ids in [false, true] {
            let mut peers = Peers::with_user_ids(user_ids);
            let gone = add(&mut peers, "gone", 3);
            let kept = add(&mut peers, "kept", 4);
            peers.wait(kept, 7, Instant::default());
            peers.remove(gone, true);
            assert_eq!(peers.get(kept).map(|peer| peer.waiting.len()), Some(1));
            peers.start_afresh(|_, _| sys::FI_ADDR_NOTAVAIL);
            assert_eq!(peers.by_source(sys::FI_ADDR_NOTAVAIL), None, "nobody");
            assert!(peers.get(kept).is_some_and(KnownPeer::has_moved), "to be inserted again");
            peers.start_afresh(|slot, _| u64::from(slot) + 20);
            assert_eq!(peers.by_source(if user_ids { 1 } else { 21 }), Some(kept));
            assert_eq!((peers.by_source(3), peers.by_source(4)), (None, None));
            assert_eq!(peers.get(kept).map(|peer| peer.waiting.len()), Some(0));
            assert_eq!((peers.waiting.len(), peers.retained(&address("gone"))), (0, None));
            assert_eq!(peers.get(kept).map(|peer| peer.fi_addr), Some(21));
            assert_eq!(peers.reserve(), 0, "nobody's slot is free again");
        }
    }
}
