//! Which peers lack receive room, as the messages show that they refused.
//!
//! A large message that is refused again and again waits longest, because it needs the most room and its retry
//! steps grow. A sender that knows of the shortage can send a small message, and the peer fetches the rest when
//! it has room. Only the sender keeps this, a few words for each peer that has refused something.

use crate::address::PeerId;
use core::cell::RefCell;
use core::time::Duration;
use std::collections::HashMap;
use weir_runtime::Instant;

/// Refusals within [`WINDOW`] after which a peer counts as short: one message retried for 0.4 ms, or a few at
/// once. A single refusal is a short burst.
const REFUSALS: u32 = 4;

/// The time over which refusals are counted: three of the longest retry steps.
const WINDOW: Duration = Duration::from_millis(40);

/// How long a peer counts as short after the last refusal, at first. It doubles each time the peer is found
/// short at the first attempt. Requests to such a server take some milliseconds each, so that less than one in a
/// hundred is such an attempt.
const RECOVERY_MIN: Duration = Duration::from_secs(1);

/// Longest such time. A peer that stays short gets a large message once in some thousands of requests, and room
/// is noticed before a person would notice.
const RECOVERY_MAX: Duration = Duration::from_secs(16);

#[derive(Clone, Copy, Default)]
struct Record {
    refusals: u32,
    last: Instant,
    short_until: Instant,
    recovery: Duration,
}

/// Peers that have refused messages.
#[derive(Default)]
pub(crate) struct Shortages {
    peers: RefCell<HashMap<PeerId, Record>>,
}

impl Shortages {
    /// A peer has refused a message.
    pub(crate) fn refused(&self, peer: PeerId, now: Instant) {
        let mut peers = self.peers.borrow_mut();
        let record = peers.entry(peer).or_default();
        if now - record.last > WINDOW {
            record.refusals = 0;
        }
        record.refusals = record.refusals.saturating_add(1);
        record.last = now;
        if now < record.short_until {
            record.short_until = now + record.recovery;
            return;
        }
        // Found short again at the first attempt, or for the first time in a while.
        let again = !record.recovery.is_zero() && now - record.short_until < record.recovery;
        if again || record.refusals >= REFUSALS {
            record.recovery = if again { (record.recovery * 2).min(RECOVERY_MAX) } else { RECOVERY_MIN };
            record.short_until = now + record.recovery;
        }
    }

    /// Whether a peer should get only small messages.
    pub(crate) fn is_short(&self, peer: PeerId, now: Instant) -> bool {
        let peers = self.peers.borrow();
        peers.get(&peer).is_some_and(|record| now < record.short_until)
    }

    /// A peer is no longer known.
    pub(crate) fn forget(&self, peer: PeerId) {
        self.peers.borrow_mut().remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000 + 1_000_000_000)
    }

    const PEER: PeerId = PeerId(7);

    fn refuse(shortages: &Shortages, times: u32, ms: u64) {
        for _ in 0..times {
            shortages.refused(PEER, at(ms));
        }
    }

    #[test]
    fn a_burst_passes_and_repeated_refusals_count_for_a_while() {
        let shortages = Shortages::default();
        refuse(&shortages, 3, 0);
        assert!(!shortages.is_short(PEER, at(0)), "a burst");
        refuse(&shortages, 3, 100);
        assert!(!shortages.is_short(PEER, at(100)), "another one");
        refuse(&shortages, 1, 101);
        assert!(shortages.is_short(PEER, at(1_100)) && !shortages.is_short(PEER, at(1_102)));
        assert!(!shortages.is_short(PeerId(8), at(101)), "another peer");
        shortages.forget(PEER);
        assert!(!shortages.is_short(PEER, at(101)));
    }

    #[test]
    fn a_peer_that_is_short_for_good_is_tried_ever_less_often_and_room_is_noticed() {
        let shortages = Shortages::default();
        refuse(&shortages, 4, 0);
        let (mut now, mut tries) = (0, 0);
        while now < 60_000 {
            now += 1;
            if !shortages.is_short(PEER, at(now)) {
                tries += 1;
                refuse(&shortages, 1, now);
            }
        }
        assert!((5..10).contains(&tries), "{tries} tries in a minute");
        assert!(!shortages.is_short(PEER, at(now + 16_001)), "sixteen seconds at most");
        refuse(&shortages, 1, now + 60_000);
        assert!(
            !shortages.is_short(PEER, at(now + 60_000)),
            "it had room for long: one refusal is a burst again"
        );
    }
}
