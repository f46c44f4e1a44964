//! How an endpoint uses its channels.

use super::ring::SLOTS;
use super::table::{CHANNELS_MAX, Look};
use super::{Channel, Offer};
use crate::counters::add;
use crate::endpoint::Message;
use crate::libfabric::doorbell;
use crate::libfabric::peers::KnownPeer;
use crate::libfabric::progress::Core;
use crate::libfabric::receive_queue::HANDED_MAX;
use crate::{Address, PeerId};
use std::io;
use std::rc::Rc;

/// Messages that one look takes from channels, at most: others have the rest of a turn.
const TAKEN_MAX: usize = HANDED_MAX / 2;

/// While channels bring something, the provider is asked once in so many looks, unless it has something to end.
const PROVIDERS_LOOK: u32 = 8;

/// Looks at channels before other sources of an idle executor are looked at again: a tenth of a microsecond.
const LOOKS_IN_A_ROW: usize = 32;

/// Looks after which an endpoint that never sleeps sees which channels are closed.
const LOOKS_PER_ROUND: u32 = 4096;

/// Why an offer is not accepted.
#[derive(thiserror::Error, Debug)]
enum Refusal {
    #[error("nobody of that name is known, or somebody else offers it, or this endpoint takes no channels")]
    Stranger,
    #[error("there is a channel to that peer, or there will be")]
    Another,
    #[error("all {CHANNELS_MAX} channels are in use")]
    Full,
    #[error("what was offered can't be used: {0}")]
    Unusable(#[from] io::Error),
}

impl Core {
    /// Takes what has come through channels, one message of each in turn, until none of them has another one. So a peer
    /// that sends much doesn't delay others. Returns whether there was anything.
    pub(in crate::libfabric) fn take_from_channels(&self) -> bool {
        if self.sink.get().is_none() {
            return false;
        }
        let within = self.reaping.replace(true);
        let (mut next, mut left, mut empty) = (self.channels.first(), TAKEN_MAX, 0);
        while empty < self.channels.count() && left > 0 && !self.raw.is_stopped() {
            match self.channels.look_at(&mut next) {
                Look::Nothing => empty += 1,
                Look::Came(message) => {
                    self.count_message(&message);
                    self.hand_over(message);
                    (left, empty) = (left - 1, 0);
                }
                Look::Broken(channel) => {
                    channel.give_up();
                    self.leave_channel(&channel);
                }
            }
        }
        if left == 0 {
            self.channels.begin_with(next);
        }
        self.reaping.set(within);
        left < TAKEN_MAX
    }

    /// Looks at channels for a little longer, where there is nothing else to do: a look at them alone takes a twentieth of a turn
    /// of the executor, which is how long a message that comes in between waits. Returns whether there was anything.
    pub(in crate::libfabric) fn wait_at_channels(&self) -> bool {
        if !self.rt.is_idle() {
            return false;
        }
        let rounds = LOOKS_IN_A_ROW / self.channels.count().max(1);
        (0..rounds).any(|_| self.channels.have_something()) && self.take_from_channels()
    }

    #[inline]
    fn count_message(&self, message: &Message) {
        add(&self.counters.messages_received, 1);
        add(&self.counters.bytes_received, message.len() as u64);
        add(&self.counters.channel_received, 1);
    }

    /// Whether the provider is to be asked although channels have brought something.
    #[inline]
    pub(in crate::libfabric) fn is_providers_look(&self) -> bool {
        let look = self.channels.look();
        if look.is_multiple_of(LOOKS_PER_ROUND) {
            self.tend_channels();
        }
        look.is_multiple_of(PROVIDERS_LOOK)
    }

    /// Leaves the channels that peers have closed, and counts time.
    pub(in crate::libfabric) fn tend_channels(&self) {
        for channel in self.channels.take(Channel::is_over) {
            self.forget_channel(&channel);
        }
        self.channels.pass(self.rt.now());
    }

    fn forget_channel(&self, channel: &Rc<Channel>) {
        if let Some(peer) = self.peers.borrow().get(channel.peer) {
            peer.peer_channel.leave(channel);
        }
    }

    fn leave_channel(&self, gone: &Rc<Channel>) {
        self.channels.take(|channel| core::ptr::eq(channel, &raw const **gone));
        self.end_channel(gone);
    }

    /// Closes a channel that is not in the table any more. What has come through it is queued with what came from the
    /// provider, because the caller may be in the middle of a send.
    fn end_channel(&self, gone: &Rc<Channel>) {
        gone.close();
        // A peer that goes on writing could do so for ever.
        for _ in 0..SLOTS {
            let Look::Came(message) = self.channels.look_into(gone) else { break };
            self.count_message(&message);
            self.keep(message.source().clone(), |_| message);
        }
        self.forget_channel(gone);
    }

    /// Leaves the channel of a peer that is given up, or has moved.
    pub(in crate::libfabric) fn leave_channel_of(&self, peer: PeerId) {
        self.leave_channels_that(|channel| channel.peer == peer);
    }

    /// Leaves all of them.
    pub(in crate::libfabric) fn leave_channels(&self) {
        self.leave_channels_that(|_| true);
    }

    fn leave_channels_that(&self, gone: impl Fn(&Channel) -> bool) {
        for channel in self.channels.take(gone) {
            self.end_channel(&channel);
        }
    }

    /// A message went to a peer through the provider: offers the peer a channel if it is time.
    pub(in crate::libfabric) fn sent_by_provider(&self, to: PeerId, peer: &KnownPeer) {
        let Some(peer_doorbell) = peer.peer_doorbell.as_ref().filter(|_| self.capabilities.channels) else {
            return;
        };
        if !peer.peer_channel.is_worth_a_channel()
            || !peer_doorbell.takes_channels()
            || self.is_own(&peer.address)
        {
            return;
        }
        let Some(doorbell) = &self.doorbell else { return };
        // One that was not answered until now won't be.
        if let Some(before) = peer.peer_channel.channel() {
            self.leave_channel(&before);
        }
        if !self.make_room() {
            return;
        }
        let made = Channel::make(to).and_then(|(channel, memory)| {
            let offered = peer_doorbell.offer(doorbell.name(), &memory);
            offered.map(|()| channel)
        });
        match made {
            Ok(channel) => {
                let channel = Rc::new(channel);
                self.channels.add(Rc::clone(&channel));
                peer.peer_channel.replace(Some(channel));
            }
            Err(error) => tracing::debug!(peer = %peer.address, %error, "a channel could not be offered"),
        }
    }

    /// Whether a peer is this endpoint itself. Peers' addresses are names without the zero at the end.
    fn is_own(&self, address: &Address) -> bool {
        self.doorbell.as_ref().is_some_and(|doorbell| doorbell.name().as_bytes() == address.as_bytes())
    }

    /// Answers the offers that have come.
    pub(in crate::libfabric) fn answer_offers(&self) {
        let Some(doorbell) = &self.doorbell else { return };
        for offer in doorbell.take_offers() {
            let name = offer.name.clone();
            match self.answer(&offer) {
                Ok(()) => {
                    add(&self.counters.channels_accepted, 1);
                    tracing::debug!(peer = name, "a channel was accepted");
                }
                Err(why) => {
                    add(&self.counters.channels_refused, 1);
                    tracing::debug!(peer = name, %why, "a channel was refused");
                }
            }
        }
    }

    fn answer(&self, offer: &Offer) -> Result<(), Refusal> {
        if !self.capabilities.channels || !doorbell::can_be_of(&offer.name, offer.process) {
            return Err(Refusal::Stranger);
        }
        let address = Address::from_bytes(offer.name.as_bytes()).ok_or(Refusal::Stranger)?;
        // An endpoint that watches itself knows itself, too.
        let known = self.peers.borrow().by_address(&address).filter(|_| !self.is_own(&address));
        let peer = known.ok_or(Refusal::Stranger)?;
        let channel = Rc::new(Channel::of_offer(peer, &offer.memory)?);
        let answer = self.find_place(peer, &offer.name);
        if answer.is_err() || !channel.accept() {
            channel.close();
            return answer.and(Err(Refusal::Another));
        }
        if let Some(known) = self.peers.borrow().get(peer) {
            known.peer_channel.replace(Some(Rc::clone(&channel)));
        }
        self.channels.add(channel);
        Ok(())
    }

    /// Makes place for a channel that a peer offers. Of two that offer each other one at the same time, the one whose name comes
    /// first gets its way.
    fn find_place(&self, peer: PeerId, name: &str) -> Result<(), Refusal> {
        let own = self.doorbell.as_ref().map_or("", |doorbell| doorbell.name());
        let before = self.peers.borrow().get(peer).and_then(|known| known.peer_channel.channel());
        if let Some(before) = before {
            if before.is_open() || !before.is_closed() && own < name {
                return Err(Refusal::Another);
            }
            self.leave_channel(&before);
        }
        if self.make_room() { Ok(()) } else { Err(Refusal::Full) }
    }

    /// Makes room for another channel: replaces one whose peer has ended, or that was unused for a while. Returns
    /// whether there is any room.
    fn make_room(&self) -> bool {
        if !self.channels.is_full() {
            return true;
        }
        let peers = self.peers.borrow();
        let ended = |channel: &Channel| peers.get(channel.peer).is_none_or(KnownPeer::has_ended);
        self.leave_channels_that(ended);
        if self.channels.is_full()
            && let Some(idle) = self.channels.idle()
        {
            self.leave_channel(&idle);
        }
        !self.channels.is_full()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libfabric::channel::{BYTES, HEAD_LONGS, RING_LONGS, SEALS};
    use crate::libfabric::doorbell::PeerDoorbell;
    use crate::libfabric::shared::Shared;
    use crate::{Ability, Endpoint, FabricError, Options, Sink, open};
    use core::cell::RefCell;
    use core::sync::atomic::Ordering;
    use core::time::Duration;
    use rustix::fs::{MemfdFlags, SealFlags};
    use std::os::fd::OwnedFd;
    use weir_runtime::real::Executor;

    #[derive(Default)]
    struct Inbox(RefCell<Vec<Vec<u8>>>);

    impl Sink for Inbox {
        fn message(&self, message: Message) {
            self.0.borrow_mut().push(message.to_vec());
        }

        fn send_failed(&self, _peer: PeerId, _context: u64, _error: FabricError) {}
    }

    /// An endpoint, and a peer whose side of things the test writes itself.
    struct Stage {
        executor: Executor,
        victim: Rc<dyn Endpoint>,
        inbox: Rc<Inbox>,
        peer: Rc<dyn Endpoint>,
    }

    fn name(endpoint: &Rc<dyn Endpoint>) -> String {
        let address = endpoint.address();
        str::from_utf8(address.as_bytes()).expect("a name").trim_end_matches('\0').to_owned()
    }

    impl Stage {
        fn set() -> Self {
            let executor = Executor::new().expect("an executor");
            let rt = executor.handle();
            let near = Options::near("shm", "127.0.0.1", 1);
            let quiet = Options { without: vec![Ability::Channels], ..near.clone() };
            let [victim, peer] = [near, quiet].map(|options| open(&rt, &options).expect("an endpoint"));
            let inbox = Rc::new(Inbox::default());
            let weak = Rc::downgrade(&inbox);
            victim.set_sink(weak);
            Self { executor, victim, inbox, peer }
        }

        /// None with a library whose endpoints of one process can't know each other.
        fn set_with_known_peer() -> Option<Self> {
            let stage = Self::set();
            if !stage.victim.capabilities().within_process() {
                return None;
            }
            stage.victim.insert(&stage.peer.address()).expect("an address");
            Some(stage)
        }

        /// Offers this memory in the peer's name. Returns how many offers were accepted and refused by then.
        fn offer(&self, memory: &OwnedFd) -> [u64; 2] {
            self.offer_as(&name(&self.peer), memory)
        }

        fn offer_as(&self, who: &str, memory: &OwnedFd) -> [u64; 2] {
            let peer_doorbell = PeerDoorbell::new(&name(&self.victim)).expect("its bell");
            peer_doorbell.offer(who, memory).expect("sent");
            self.pause();
            let counters = self.victim.counters();
            [counters.channels_accepted.get(), counters.channels_refused.get()]
        }

        fn pause(&self) {
            let rt = self.executor.handle();
            // In pieces, between each of which everything is polled, however long this process has no processor.
            for _ in 0..30 {
                self.executor.block_on(rt.sleep(Duration::from_millis(1)));
            }
        }

        fn received(&self) -> Vec<Vec<u8>> {
            self.pause();
            self.inbox.0.take()
        }
    }

    fn memory(len: usize, seals: SealFlags) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("weir-test", flags).expect("memory");
        rustix::fs::ftruncate(&memory, len as u64).expect("memory");
        rustix::fs::fcntl_add_seals(&memory, seals).expect("sealed");
        memory
    }

    #[test]
    fn what_a_known_peer_offers_carries_its_messages() {
        let Some(stage) = Stage::set_with_known_peer() else { return };
        let (channel, memory) = Channel::make(PeerId(0)).expect("a channel");
        assert_eq!(stage.offer(&memory), [1, 0]);
        assert!(channel.is_open() && channel.put(b"one", 0) && channel.put(b"two", 0));
        assert_eq!(stage.received(), [b"one", b"two"]);
    }

    #[test]
    fn strangers_and_those_who_say_that_they_are_others_are_refused() {
        let (_channel, memory) = Channel::make(PeerId(0)).expect("a channel");
        assert_eq!(Stage::set().offer(&memory), [0, 1], "nobody knows it");
        // A peer in another process can't be spoken for.
        let own = name(&Stage::set().peer);
        let pid = format!("-{}-", std::process::id());
        let other = own.replace(&pid, &format!("-{}-", std::os::unix::process::parent_id()));
        assert!(
            doorbell::can_be_of(&own, std::process::id()) && !doorbell::can_be_of(&other, std::process::id())
        );
        // Nor can one in this namespace, by a process that can't be seen from here.
        let elsewhere = "weir-1-2-0123456789abcdef";
        assert!(doorbell::can_be_of(elsewhere, 0) && !doorbell::can_be_of(&own, 0));
        assert!(!doorbell::can_be_of(&own.replace(&pid, "-0-"), 0));
        let Some(stage) = Stage::set_with_known_peer() else { return };
        stage.victim.insert(&stage.victim.address()).expect("an address");
        for who in ["", "weir-1-2-3", "../weir", &name(&stage.victim)] {
            assert_eq!(stage.offer_as(who, &memory)[0], 0, "{who}");
        }
    }

    #[test]
    fn memory_that_could_be_taken_away_or_is_too_short_is_refused() {
        let Some(stage) = Stage::set_with_known_peer() else { return };
        assert_eq!(stage.offer(&memory(BYTES, SealFlags::GROW)), [0, 1], "it can become shorter");
        assert_eq!(stage.offer(&memory(BYTES - 1, SEALS)), [0, 2], "it is shorter");
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::DGRAM, None);
        assert_eq!(stage.offer(&socket.expect("a socket")), [0, 3], "it is no memory");
        let answered = memory(BYTES, SEALS);
        Shared::map(&answered, BYTES).expect("mapped").word(0).store(1, Ordering::Relaxed);
        assert_eq!(stage.offer(&answered), [0, 4], "nobody offers it any more");
        assert_eq!(stage.offer(&memory(2 * BYTES, SEALS)), [1, 4]);
    }

    #[test]
    fn a_second_channel_of_a_peer_is_refused() {
        let Some(stage) = Stage::set_with_known_peer() else { return };
        let [(first, one), (second, other)] = [0, 0].map(|id| Channel::make(PeerId(id)).expect("a channel"));
        assert_eq!(stage.offer(&one), [1, 0]);
        assert_eq!(stage.offer(&other), [1, 1]);
        assert!(first.is_open() && second.is_closed());
    }

    #[test]
    fn a_peer_that_writes_garbage_loses_its_channel_and_is_heard_through_the_provider() {
        let Some(stage) = Stage::set_with_known_peer() else { return };
        let (channel, memory) = Channel::make(PeerId(0)).expect("a channel");
        assert_eq!(stage.offer(&memory), [1, 0]);
        assert!(channel.put(b"good", 0));
        // The head of the next slot, with a length that no message has.
        let garbage = 2 | u64::MAX << 32;
        channel.shared.longs::<1>(HEAD_LONGS + 32)[0].store(garbage, Ordering::Release);
        let victim = stage.peer.insert(&stage.victim.address()).expect("an address");
        stage.peer.send(victim, 0, &[b"through the provider"]).expect("accepted");
        let mut received = stage.received();
        received.sort_unstable();
        assert_eq!(received, [&b"good"[..], b"through the provider"]);
        assert!(channel.is_closed());
        channel.put(b"more", 0);
        stage.peer.send(victim, 0, &[b"again"]).expect("accepted");
        assert_eq!(stage.received(), [b"again"]);
    }

    #[test]
    fn one_whose_reader_lies_is_left_alone_by_the_writer() {
        let Some(stage) = Stage::set_with_known_peer() else { return };
        let (channel, memory) = Channel::make(PeerId(0)).expect("a channel");
        assert_eq!(stage.offer(&memory), [1, 0]);
        // What the victim writes is read here; it is told that more was taken than was ever there.
        let taken = HEAD_LONGS + RING_LONGS;
        channel.shared.longs::<1>(taken)[0].store(7777, Ordering::Release);
        let peer = stage.victim.insert(&stage.peer.address()).expect("an address");
        for _ in 0..200 {
            stage.victim.send(peer, 0, &[b"hello"]).expect("accepted");
        }
        assert!(channel.is_closed());
        // It claims that nothing has happened.
        channel.shared.word(0).store(1, Ordering::Release);
        channel.shared.longs::<1>(taken)[0].store(128, Ordering::Release);
        stage.victim.send(peer, 0, &[b"hello"]).expect("accepted");
        assert_eq!(stage.victim.counters().channel_sent.get(), 128);
    }

    #[test]
    fn those_that_stay_are_heard_when_others_have_gone() {
        let Some(stage) = Stage::set_with_known_peer() else { return };
        let options = Options { without: vec![Ability::Channels], ..Options::near("shm", "127.0.0.1", 1) };
        let others = [0, 1].map(|_| open(&stage.executor.handle(), &options).expect("an endpoint"));
        let peers = [&stage.peer, &others[0], &others[1]];
        let channels = peers.map(|peer| {
            stage.victim.insert(&peer.address()).expect("an address");
            let (channel, memory) = Channel::make(PeerId(0)).expect("a channel");
            stage.offer_as(&name(peer), &memory);
            assert!(channel.is_open());
            channel
        });
        // As many as one look takes: the next one begins with the last channel.
        for number in 0..TAKEN_MAX {
            assert!(channels[number % channels.len()].put(b"much", 0));
        }
        assert_eq!(stage.received().len(), TAKEN_MAX);
        channels[..2].iter().for_each(Channel::close);
        stage.pause();
        assert!(channels[2].put(b"still there", 0));
        assert_eq!(stage.received(), [b"still there"]);
    }

    #[test]
    fn what_came_through_a_channel_that_is_left_is_not_lost() {
        let Some(stage) = Stage::set_with_known_peer() else { return };
        let [(first, one), (second, other)] = [0, 0].map(|id| Channel::make(PeerId(id)).expect("a channel"));
        assert_eq!(stage.offer(&one), [1, 0]);
        assert!(first.put(b"last of the first", 0));
        first.close();
        // It is answered before channels are looked at.
        assert_eq!(stage.offer(&other), [2, 0]);
        assert_eq!(stage.received(), [b"last of the first"]);
        assert!(second.put(b"last of the second", 0));
        let peer = stage.victim.insert(&stage.peer.address()).expect("known");
        stage.victim.forget(peer);
        assert_eq!(stage.received(), [b"last of the second"]);
        assert!(second.is_closed());
    }
}
