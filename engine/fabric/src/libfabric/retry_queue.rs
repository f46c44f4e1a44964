//! When operations are retried that wait for room or for a connection.
//!
//! Where each peer has a connection, a try may attempt to connect, and an address may name a host where no process
//! listens. So a completion with one peer brings forward the retry of that peer and of few others with short pauses.
//! The more peers wait, the longer are the pauses. Where all peers share the room, a completion brings forward all.

use crate::PeerId;
use core::time::Duration;
use std::collections::BTreeSet;
use weir_runtime::Instant;

/// First pause before an operation that found no room is tried again, unless something completes earlier.
const RETRY_MIN: Duration = Duration::from_micros(20);

/// Longest such pause while at most [`CROWD`] peers wait. It bounds how often connection attempts to a dead port repeat.
const RETRY_MAX: Duration = Duration::from_millis(20);

/// Longest such pause for a peer within the node with a full queue. It empties the queue several times in this time. Peers
/// that send more try more often, and must not be the only ones to fill it again.
const RETRY_QUEUE_MAX: Duration = Duration::from_millis(2);

/// Peers that are tried within the longest pause. If more wait, all pauses grow in proportion.
const CROWD: u32 = 16;

/// Longest pause, however many wait.
const RETRY_CROWDED_MAX: Duration = Duration::from_secs(5);

/// A peer whose last pause was at most this may be brought forward by another peer's completion.
const BRIEF: Duration = Duration::from_millis(1);

/// Most peers that one completion brings forward.
const BRIEF_MAX: usize = 8;

/// When more peers than these wait for connections, hardly all of them exist.
const MANY: usize = 64;

/// When this many peers wait for connections, answers wait for none: a peer that sent a request has one.
pub(super) const CROWD_MAX: usize = 512;

/// Longest time that an operation waits for room or a connection. Callers give up earlier; replies have no caller.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The same while very many peers wait for connections: at its next try after that it is given up.
const WAIT_CROWDED_MAX: Duration = Duration::from_secs(1);

/// When a waiting peer is tried next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct RetryTime {
    at: Instant,
    pause: Duration,
}

/// The waiting peers, by time.
#[derive(Default)]
pub(super) struct RetryQueue {
    by_time: BTreeSet<(Instant, PeerId)>,
    connects: bool,
}

impl RetryQueue {
    /// For peers that each have a connection.
    pub(super) fn for_connections() -> Self {
        Self { connects: true, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_time.len()
    }

    pub(super) fn clear(&mut self) {
        self.by_time.clear();
    }

    /// When the next peer is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// A peer that is due.
    pub(super) fn due(&self, now: Instant) -> Option<PeerId> {
        self.by_time.first().filter(|(at, _)| *at <= now).map(|(_, id)| *id)
    }

    /// A peer no longer waits.
    pub(super) fn remove(&mut self, id: PeerId, retry_time: RetryTime) {
        self.by_time.remove(&(retry_time.at, id));
    }

    /// A peer's operations have found no room. `near`: the peer is within the node.
    pub(super) fn back_off(&mut self, (id, near): (PeerId, bool), retry_time: &mut RetryTime, now: Instant) {
        self.by_time.remove(&(retry_time.at, id));
        let others = if self.connects { self.by_time.len() } else { 0 };
        let crowd = (u32::try_from(others).unwrap_or(u32::MAX) / CROWD).max(1);
        let max = RETRY_MAX.saturating_mul(crowd).min(RETRY_CROWDED_MAX);
        let (min, max) =
            if near { (RETRY_MIN, RETRY_QUEUE_MAX) } else { (RETRY_MIN.saturating_mul(crowd), max) };
        retry_time.pause = (retry_time.pause * 2).clamp(min.min(max), max);
        retry_time.at = now + retry_time.pause;
        self.by_time.insert((retry_time.at, id));
    }

    /// A waiting peer is due now.
    pub(super) fn hasten(&mut self, id: PeerId, retry_time: &mut RetryTime, now: Instant) {
        if self.by_time.remove(&(retry_time.at, id)) {
            retry_time.at = retry_time.at.min(now);
            self.by_time.insert((retry_time.at, id));
        }
    }

    /// Peers that a completion of others may have made room for.
    pub(super) fn hopeful(&self, is_brief: impl Fn(PeerId) -> bool) -> Vec<PeerId> {
        let all = self.by_time.iter().map(|(_, id)| *id);
        if !self.connects {
            return all.collect();
        }
        all.take(4 * BRIEF_MAX).filter(|id| is_brief(*id)).take(BRIEF_MAX).collect()
    }

    /// Whether so many wait for connections that only operations of this side's own may wait for further ones.
    pub(super) fn is_crowded(&self) -> bool {
        self.connects && self.by_time.len() >= CROWD_MAX
    }

    /// How long an operation may wait.
    pub(super) fn patience(&self) -> Duration {
        if self.connects && self.by_time.len() > MANY { WAIT_CROWDED_MAX } else { WAIT_MAX }
    }
}

impl RetryTime {
    /// Whether the last pause was short.
    pub(super) fn is_brief(self) -> bool {
        self.pause <= BRIEF
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// How often peers that never have room are tried in this time.
    fn tries(peers: u64, time: Duration, progress: bool) -> usize {
        let (mut waiting, mut turns) = (RetryQueue::for_connections(), HashMap::new());
        let (mut now, mut tries) = (Instant::default() + Duration::from_secs(1), 0);
        for id in (0..peers).map(PeerId) {
            waiting.back_off((id, false), turns.entry(id).or_default(), now);
        }
        let until = now + time;
        while now < until {
            now += Duration::from_micros(20);
            let hopeful = if progress { waiting.hopeful(|id| turns[&id].is_brief()) } else { Vec::new() };
            for id in hopeful {
                waiting.hasten(id, turns.get_mut(&id).expect("there"), now);
            }
            while let Some(id) = waiting.due(now) {
                tries += 1;
                waiting.back_off((id, false), turns.get_mut(&id).expect("there"), now);
            }
        }
        assert_eq!(waiting.len() as u64, peers);
        tries
    }

    #[test]
    fn peers_that_never_have_room_take_no_more_time_the_more_they_are_and_the_more_others_have() {
        for (peers, most) in [(1, 60), (16, 1000), (256, 3500), (4000, 40_000)] {
            for progress in [false, true] {
                let tries = tries(peers, Duration::from_secs(1), progress);
                assert!(tries <= most, "{peers} peers, {progress}: {tries}");
            }
        }
    }

    #[test]
    fn a_peer_that_waits_is_brought_forward_by_its_own_completion_however_long_it_waited() {
        let (mut waiting, mut turns) = (RetryQueue::for_connections(), [RetryTime::default(); 2]);
        let mut now = Instant::default() + Duration::from_secs(1);
        for _ in 0..20 {
            for (at, retry_time) in turns.iter_mut().enumerate() {
                waiting.back_off((PeerId(at as u64), false), retry_time, now);
            }
            now += Duration::from_micros(1);
        }
        assert_eq!(waiting.due(now), None);
        let is_brief = |id| turns[usize::from(id == PeerId(1))].is_brief();
        assert!(waiting.hopeful(is_brief).is_empty());
        waiting.connects = false;
        assert_eq!(waiting.hopeful(is_brief).len(), 2);
        waiting.hasten(PeerId(1), &mut turns[1], now);
        assert_eq!(waiting.due(now), Some(PeerId(1)));
        waiting.remove(PeerId(1), turns[1]);
        waiting.hasten(PeerId(1), &mut turns[1], now);
        assert_eq!((waiting.due(now), waiting.len()), (None, 1));
        assert_eq!(waiting.due(now + RETRY_MAX), Some(PeerId(0)));
    }
}
