//! Messages that are longer than a request of the plugin carries travel in several; `na+sm` carries one page.

use std::collections::{HashMap, VecDeque};

/// Length of what stands before each fragment: number of the message, index and count of its fragments.
pub const HEAD_LEN: usize = 8;

/// Messages that are put together at once: the credits of eight senders. When there are more, the oldest goes of the sender that
/// has the most.
pub const PARTIAL_MAX: usize = 256;

/// Messages of one sender that are put together at once: its credits. Its own oldest goes when there are more.
const PARTIAL_EACH: usize = PARTIAL_MAX / 8;

/// Most fragments of a message: the largest one in fragments of a kilobyte.
pub const FRAGMENTS_MAX: u16 = 20;

/// The head of a fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Number of the message.
    pub message: u32,
    /// Which of its fragments this is.
    pub index: u16,
    /// How many it has.
    pub count: u16,
}

impl Head {
    /// Its bytes.
    #[must_use]
    pub fn encode(self) -> [u8; HEAD_LEN] {
        let mut bytes = [0; HEAD_LEN];
        bytes[..4].copy_from_slice(&self.message.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.index.to_le_bytes());
        bytes[6..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    /// The head and what it stands before; `None` when that is no fragment.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, body) = bytes.split_at_checked(HEAD_LEN)?;
        let message = u32::from_le_bytes(head[..4].try_into().ok()?);
        let index = u16::from_le_bytes(head[4..6].try_into().ok()?);
        let count = u16::from_le_bytes(head[6..].try_into().ok()?);
        (index < count && count <= FRAGMENTS_MAX).then_some((Self { message, index, count }, body))
    }
}

/// A message of which not all fragments have come.
#[derive(Debug)]
struct Partial {
    fragments: Vec<Option<Vec<u8>>>,
    len: usize,
}

/// Puts messages together, whatever order their fragments come in.
#[derive(Default, Debug)]
pub struct Assembly {
    partial: HashMap<(u64, u32), Partial>,
    order: VecDeque<(u64, u32)>,
}

impl Assembly {
    /// Takes a fragment from a sender. Returns the message when that was the last one missing.
    pub fn take(&mut self, source: u64, head: Head, body: &[u8], len_max: usize) -> Option<Vec<u8>> {
        let key = (source, head.message);
        let count = usize::from(head.count);
        if !self.partial.contains_key(&key) {
            self.make_room(source);
            self.partial.insert(key, Partial { fragments: vec![None; count], len: 0 });
            self.order.push_back(key);
        }
        let partial = self.partial.get_mut(&key)?;
        let place = partial.fragments.get_mut(usize::from(head.index));
        let fits = partial.len + body.len() <= len_max;
        match place {
            Some(place) if fits && place.is_none() => {
                *place = Some(body.to_vec());
                partial.len += body.len();
            }
            // Twice the same fragment, or more than a message may be: no message of ours.
            _ => {
                self.forget(key);
                return None;
            }
        }
        let complete = partial.fragments.len() == count && partial.fragments.iter().all(Option::is_some);
        complete.then(|| self.forget(key)).flatten().map(|whole| {
            let mut bytes = Vec::with_capacity(whole.len);
            whole.fragments.iter().flatten().for_each(|fragment| bytes.extend_from_slice(fragment));
            bytes
        })
    }

    /// Messages that are being put together.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.order.len()
    }

    /// The sender with the most messages that are being put together.
    fn sender_of_most(&self) -> Option<u64> {
        let mut counts = HashMap::new();
        for (of, _) in &self.order {
            *counts.entry(*of).or_insert(0) += 1;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(of, _)| of)
    }

    /// Makes room for one more message of a sender, which loses one of its own before others do.
    fn make_room(&mut self, source: u64) {
        let own = self.order.iter().filter(|(of, _)| *of == source).count();
        let loser = if own >= PARTIAL_EACH {
            Some(source)
        } else if self.order.len() >= PARTIAL_MAX {
            self.sender_of_most()
        } else {
            None
        };
        let oldest = loser.and_then(|loser| self.order.iter().find(|(of, _)| *of == loser).copied());
        if let Some(oldest) = oldest {
            self.forget(oldest);
        }
    }

    fn forget(&mut self, key: (u64, u32)) -> Option<Partial> {
        self.order.retain(|known| *known != key);
        self.partial.remove(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(message: u32, index: u16, count: u16) -> Head {
        Head { message, index, count }
    }

    #[test]
    fn heads_survive_the_round_trip_and_impossible_ones_are_refused() {
        let bytes = [&head(7, 2, 5).encode()[..], b"body"].concat();
        assert_eq!(Head::decode(&bytes), Some((head(7, 2, 5), &b"body"[..])));
        for (index, count) in [(0, 0), (5, 5), (6, 5), (0, FRAGMENTS_MAX + 1), (u16::MAX, u16::MAX)] {
            assert_eq!(Head::decode(&head(1, index, count).encode()), None, "{index} of {count}");
        }
        assert_eq!(Head::decode(&[0; HEAD_LEN - 1]), None);
    }

    #[test]
    fn fragments_make_a_message_in_any_order_and_among_those_of_others() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.take(1, head(9, 2, 3), b"c", 10), None);
        assert_eq!(assembly.take(2, head(9, 0, 2), b"x", 10), None);
        assert_eq!(assembly.take(1, head(9, 0, 3), b"aa", 10), None);
        assert_eq!(assembly.take(2, head(9, 1, 2), b"y", 10), Some(b"xy".to_vec()));
        assert_eq!(assembly.take(1, head(9, 1, 3), b"b", 10), Some(b"aabc".to_vec()));
        assert!(assembly.partial.is_empty() && assembly.order.is_empty());
    }

    #[test]
    fn hostile_fragments_take_no_more_memory_than_the_bound() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.take(1, head(1, 0, 2), &[0; 6], 10), None);
        assert_eq!(assembly.take(1, head(1, 1, 2), &[0; 6], 10), None, "longer than a message");
        assert_eq!(assembly.take(1, head(2, 0, 2), b"a", 10), None);
        assert_eq!(assembly.take(1, head(2, 0, 2), b"a", 10), None, "twice the same");
        assert_eq!(assembly.take(1, head(3, 0, 2), b"a", 10), None);
        assert_eq!(assembly.take(1, head(3, 4, 5), b"a", 10), None, "another count");
        assert!(assembly.partial.is_empty());
        for message in 0..1000 {
            assembly.take(1, head(message, 0, 2), b"a", 10);
        }
        assert_eq!((assembly.partial.len(), assembly.order.len()), (PARTIAL_EACH, PARTIAL_EACH));
        for message in 0..1000 {
            assembly.take(message.into(), head(message, 0, 2), b"a", 10);
        }
        assert_eq!((assembly.partial.len(), assembly.order.len()), (PARTIAL_MAX, PARTIAL_MAX));
    }

    #[test]
    fn senders_of_first_fragments_only_lose_their_own_messages_and_nobody_elses() {
        for hostile in [1, 7, 50] {
            let mut assembly = Assembly::default();
            assert_eq!(assembly.take(0, head(5, 0, 2), b"a", 10), None);
            for message in 0..1000 {
                for source in 1..=hostile {
                    assert_eq!(assembly.take(source, head(message, 0, 2), b"x", 10), None);
                }
            }
            assert_eq!(assembly.take(0, head(5, 1, 2), b"b", 10), Some(b"ab".to_vec()), "{hostile} senders");
            let last = assembly.take(1, head(999, 1, 2), b"y", 10);
            assert_eq!(last, Some(b"xy".to_vec()), "it loses its oldest first");
        }
    }
}
