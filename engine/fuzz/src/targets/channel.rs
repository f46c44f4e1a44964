//! Channels between endpoints of one node: offers of them, and a peer that writes what it likes to the memory of one. What a
//! peer has sent by the rules arrives as it is, and nothing is longer than a message may be.

use crate::source::Source;
use std::collections::VecDeque;
use weir_fabric::libfabric::foreign::{
    ChannelEvent, ForeignChannel, LONGS, MESSAGE_MAX, SLOT_BYTES, offered, slot, told,
};

/// Longest datagram that a bell takes in, in bytes.
const DATAGRAM_MAX: usize = 128;

pub fn run(input: &[u8]) {
    let mut source = Source::new(input);
    offer(&mut source);
    let foreign = ForeignChannel::new().expect("memory");
    let mut peer = Peer { foreign: &foreign, next: 0, sent: Some(VecDeque::new()), is_broken: false };
    while !source.is_empty() && !peer.is_broken {
        peer.step(&mut source);
    }
    // What a peer has left in a ring comes to its end.
    let left = (0..LONGS).take_while(|_| peer.take()).count();
    assert!(left < LONGS, "there is always more");
    let _ = foreign.is_over();
}

/// A name of an endpoint, nearly right, in an offer. What is taken for a name becomes the name of files.
fn offer(source: &mut Source<'_>) {
    let mut datagram = if source.chance(20) { source.bytes(6) } else { b"c\x01\0\0\0".to_vec() };
    let name = format!("weir-{}-{}-{:016x}", source.number(), source.number32(), source.number());
    let mut name = name.into_bytes();
    for _ in 0..source.below(3) {
        let at = usize::try_from(source.below(name.len() as u64)).unwrap_or(0);
        name[at] = source.byte();
    }
    datagram.extend(name);
    datagram.extend(source.bytes(8));
    datagram.truncate(DATAGRAM_MAX);
    if let Some(name) = offered(&datagram, source.number32()) {
        assert!(name.starts_with("weir-") && !name.contains(['/', '\0']) && name.len() < 64, "{name:?}");
    }
}

/// The other side of a channel.
struct Peer<'a> {
    foreign: &'a ForeignChannel,
    /// The slot that its next message begins in.
    next: u32,
    /// What it has sent and was not taken yet, as long as it keeps to the rules.
    sent: Option<VecDeque<Vec<u8>>>,
    /// It was found not to keep to them.
    is_broken: bool,
}

impl Peer<'_> {
    fn step(&mut self, source: &mut Source<'_>) {
        match source.byte() % 8 {
            0..3 => self.send(source),
            3 => {
                self.sent = None;
                let at = usize::try_from(source.below(LONGS as u64)).unwrap_or(0);
                self.foreign.set(at, source.number());
            }
            4 => {
                // A head that is waited for, with a length of whatever kind.
                self.sent = None;
                let len = source.number() << 32;
                self.foreign.set(slot(self.next), len | u64::from(self.next.wrapping_add(1)));
            }
            5 => {
                let len = usize::try_from(source.below(MESSAGE_MAX as u64 + 2)).unwrap_or(0);
                let is_sent = self.foreign.put(&vec![source.byte(); len]);
                assert!(!is_sent || len <= MESSAGE_MAX, "{len} bytes were sent");
            }
            6 => self.foreign.set(told(), source.number()),
            _ => {
                let _ = self.take();
            }
        }
    }

    /// Sends a message by the rules, if it has room for it: a ring holds three of the longest.
    fn send(&mut self, source: &mut Source<'_>) {
        let most = if source.chance(60) { MESSAGE_MAX } else { 2 * SLOT_BYTES };
        let message = source.bytes(most);
        if self.sent.as_ref().is_none_or(|sent| sent.len() >= 3) {
            return;
        }
        let slots = message.chunks(SLOT_BYTES).count().max(1);
        for (number, part) in (0u32..).zip(message.chunks(SLOT_BYTES)) {
            let first = slot(self.next.wrapping_add(number));
            for (at, bytes) in (first + 1..).zip(part.chunks(8)) {
                let mut long = [0; 8];
                long[..bytes.len()].copy_from_slice(bytes);
                self.foreign.set(at, u64::from_le_bytes(long));
            }
        }
        let head = (message.len() as u64) << 32 | u64::from(self.next.wrapping_add(1));
        self.foreign.set(slot(self.next), head);
        self.next = self.next.wrapping_add(u32::try_from(slots).unwrap_or(0));
        self.sent.as_mut().into_iter().for_each(|sent| sent.push_back(message.clone()));
    }

    /// Has the other side look. Returns whether a message came.
    fn take(&mut self) -> bool {
        let expected = self.sent.as_mut().map(VecDeque::pop_front);
        match self.foreign.take() {
            ChannelEvent::Message(message) => {
                assert!(message.len() <= MESSAGE_MAX, "a message of {} bytes", message.len());
                if let Some(expected) = expected {
                    assert_eq!(expected.as_deref(), Some(&message[..]), "it was sent otherwise");
                }
                true
            }
            ChannelEvent::Nothing => {
                assert!(expected.is_none_or(|expected| expected.is_none()), "what was sent has not come");
                false
            }
            ChannelEvent::Broken => {
                assert_eq!(expected, None, "a peer that keeps to the rules is taken for one that doesn't");
                assert!(!self.foreign.is_open(), "it is sent to all the same");
                self.is_broken = true;
                false
            }
        }
    }
}
