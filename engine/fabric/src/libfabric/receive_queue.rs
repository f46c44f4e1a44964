//! Messages that have arrived and were not handed to the sink yet.
//!
//! A provider delivers messages in the order of arrival, and takes in all that has arrived whenever it is polled. So
//! thousands of messages of a fast sender would be before all other senders' messages. Each turn of the executor
//! dispatches a few messages. The rest waits here in a queue for each sender, and the queues are served round-robin.
//! What a sender has waiting beyond many times its credits is dropped. While many queues are full the provider is not
//! polled, so that connections are not read and senders have to wait.

use crate::PeerId;
use crate::endpoint::{Message, Source};
use std::collections::{HashMap, VecDeque};

/// Messages handed out in a turn: as many as tasks run in one, so that received requests don't delay running ones.
pub(super) const HANDED_MAX: usize = 64;

/// Messages of one sender that may wait: thirty times its credits. Requests of a client with more credits than that are
/// dropped, and repeated after half a second.
const LANE_MAX: usize = 1024;

/// Bytes of one sender that may wait: twice its credits of the largest message.
const LANE_BYTES_MAX: usize = 1 << 20;

/// Waiting bytes at which the provider is asked for no more: those of sixteen senders with full queues.
const WAITING_BYTES_MAX: usize = 16 * LANE_BYTES_MAX;

/// Waiting messages at which the provider is asked for no more. Of small messages the bookkeeping is larger than the bytes.
const WAITING_MAX: usize = 64 * LANE_MAX;

/// The sender of a message if it is known; `None` for all unknown senders.
type SenderKey = Option<PeerId>;

/// Messages of one sender.
#[derive(Default)]
struct SenderQueue {
    messages: VecDeque<Message>,
    bytes: usize,
}

/// Messages that wait to be handed out.
#[derive(Default)]
pub(super) struct ReceiveQueue {
    lanes: HashMap<SenderKey, SenderQueue>,
    /// Senders with messages, each once; the front is served next.
    ring: VecDeque<SenderKey>,
    len: usize,
    bytes: usize,
}

impl ReceiveQueue {
    /// Messages that wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether so much waits that the provider is to keep what comes.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= WAITING_BYTES_MAX || self.len >= WAITING_MAX
    }

    /// Whether one more message of a sender is taken. A sender with too many waiting gets none taken. Unknown senders are
    /// not bounded here: thousands may come at the start of a job, and a provider may name no senders at all.
    pub(super) fn has_room(&self, source: &Source) -> bool {
        let lane = source.peer().and_then(|peer| self.lanes.get(&Some(peer)));
        lane.is_none_or(|lane| lane.messages.len() < LANE_MAX && lane.bytes < LANE_BYTES_MAX)
    }

    /// A peer is forgotten. Its waiting messages become those of an unknown sender.
    pub(super) fn disown(&mut self, peer: PeerId) {
        let Some(line) = self.lanes.remove(&Some(peer)) else { return };
        self.ring.retain(|whose| *whose != Some(peer));
        for mut message in line.messages {
            self.len -= 1;
            self.bytes -= message.len();
            message.disown();
            self.push(message);
        }
    }

    /// Adds a message behind its sender's others.
    pub(super) fn push(&mut self, message: Message) {
        let whose = message.source().peer();
        let lane = self.lanes.entry(whose).or_default();
        if lane.messages.is_empty() {
            self.ring.push_back(whose);
        }
        self.len += 1;
        self.bytes += message.len();
        lane.bytes += message.len();
        lane.messages.push_back(message);
    }

    /// The first message of the sender that is next.
    pub(super) fn pop(&mut self) -> Option<Message> {
        let whose = self.ring.pop_front()?;
        let lane = self.lanes.get_mut(&whose)?;
        let message = lane.messages.pop_front()?;
        lane.bytes -= message.len();
        if lane.messages.is_empty() {
            self.lanes.remove(&whose);
        } else {
            self.ring.push_back(whose);
        }
        self.len -= 1;
        self.bytes -= message.len();
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(from: u64, number: u8, len: usize) -> Message {
        Message::owned(Source::Peer(PeerId(from)), vec![number; len], None)
    }

    /// Offers a message. Returns whether it is taken.
    fn offer(receive_queue: &mut ReceiveQueue, message: Message) -> bool {
        let room = receive_queue.has_room(message.source());
        if room {
            receive_queue.push(message);
        }
        room
    }

    #[test]
    fn a_message_has_at_most_one_of_each_other_sender_before_it_however_many_they_sent_first() {
        let mut receive_queue = ReceiveQueue::default();
        for number in 0..200 {
            for flooder in 1..=5 {
                assert!(offer(&mut receive_queue, message(flooder, number, 1)));
            }
        }
        assert!(offer(&mut receive_queue, message(9, 0, 1)));
        let place =
            (0..1001).find(|_| receive_queue.pop().is_some_and(|m| m.source().peer() == Some(PeerId(9))));
        assert_eq!(place, Some(5));
    }

    #[test]
    fn what_a_sender_has_beyond_many_times_its_credits_is_dropped_and_others_messages_are_not() {
        for (count, len) in [(LANE_MAX, 10), (LANE_BYTES_MAX >> 14, 1 << 14)] {
            let mut receive_queue = ReceiveQueue::default();
            assert!((0..count).all(|_| offer(&mut receive_queue, message(1, 0, len))));
            assert!(
                !offer(&mut receive_queue, message(1, 0, len))
                    && offer(&mut receive_queue, message(2, 0, len))
            );
            receive_queue.pop();
            assert!(offer(&mut receive_queue, message(1, 0, len)));
        }
    }

    #[test]
    fn no_strangers_message_is_dropped_because_nobody_knows_how_many_they_are() {
        let mut receive_queue = ReceiveQueue::default();
        for _ in 0..10 * LANE_MAX {
            assert!(offer(&mut receive_queue, Message::owned(Source::Unknown, vec![0; 100], None)));
        }
    }

    #[test]
    fn no_more_is_taken_in_while_many_senders_have_all_waiting_that_they_may() {
        let mut receive_queue = ReceiveQueue::default();
        for from in 0..16 {
            assert!(!receive_queue.is_full());
            while offer(&mut receive_queue, message(from, 0, 1 << 14)) {}
        }
        assert!(receive_queue.is_full());
        receive_queue.pop();
        assert!(!receive_queue.is_full());
    }

    proptest! {
        #[test]
        fn each_senders_messages_come_out_in_order_and_none_is_lost(
            steps in prop::collection::vec((0..6u64, any::<bool>()), 0..300)
        ) {
            let (mut receive_queue, mut sent, mut got) = (ReceiveQueue::default(), [0u8; 6], [0u8; 6]);
            let mut check = |message: Option<Message>| {
                let Some(message) = message else { return true };
                let Some(PeerId(from)) = message.source().peer() else { return false };
                let next = &mut got[usize::try_from(from).expect("small")];
                let right = message[0] == *next;
                *next = next.wrapping_add(1);
                right
            };
            for (from, push) in steps {
                if push {
                    let number = &mut sent[usize::try_from(from).expect("small")];
                    prop_assert!(offer(&mut receive_queue, message(from, *number, 3)));
                    *number = number.wrapping_add(1);
                } else {
                    prop_assert!(check(receive_queue.pop()));
                }
            }
            while !receive_queue.is_empty() {
                prop_assert!(check(receive_queue.pop()));
            }
            prop_assert_eq!((sent, receive_queue.bytes), (got, 0));
        }
    }

    #[test]
    fn what_a_removed_peer_has_waiting_is_a_strangers_and_stays_in_order() {
        let mut receive_queue = ReceiveQueue::default();
        for number in 0..3 {
            assert!(
                offer(&mut receive_queue, message(1, number, 10))
                    && offer(&mut receive_queue, message(2, number, 10))
            );
        }
        receive_queue.disown(PeerId(1));
        receive_queue.disown(PeerId(7));
        assert_eq!((receive_queue.len(), receive_queue.bytes), (6, 60));
        let out: Vec<_> = core::iter::from_fn(|| receive_queue.pop()).collect();
        let of = |peer: Option<PeerId>| -> Vec<u8> {
            out.iter().filter(|message| message.source().peer() == peer).map(|message| message[0]).collect()
        };
        assert_eq!(
            (of(None), of(Some(PeerId(1))), of(Some(PeerId(2)))),
            (vec![0, 1, 2], vec![], vec![0, 1, 2])
        );
        assert_eq!((receive_queue.len(), receive_queue.bytes), (0, 0));
    }

    #[test]
    fn messages_without_bytes_fill_it_too() {
        let mut receive_queue = ReceiveQueue::default();
        let most = (0..2 * WAITING_MAX).position(|_| {
            assert!(offer(&mut receive_queue, Message::owned(Source::Unknown, Vec::new(), None)));
            receive_queue.is_full()
        });
        assert_eq!(most, Some(WAITING_MAX - 1));
        assert!(receive_queue.pop().is_some() && !receive_queue.is_full());
    }
}
