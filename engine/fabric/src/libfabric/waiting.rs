//! When peers are tried again whose operations wait for room, or for a connection.
//!
//! A try may cost a connection attempt, and anybody may name addresses where nobody is. So what completes with one peer brings forward
//! that one and few others, who have not waited long; and the more peers wait, the further apart are their tries.

use crate::PeerId;
use core::time::Duration;
use std::collections::BTreeSet;
use weir_runtime::Instant;

/// First pause before an operation that found no room is tried again, unless something completes earlier.
const RETRY_MIN: Duration = Duration::from_micros(20);

/// Longest such pause, where no more than [`CROWD`] peers wait: bounds how often connection attempts to a dead port repeat.
const RETRY_MAX: Duration = Duration::from_millis(20);

/// Longest such pause where the peer is within the node and its queue is full: it empties the queue several times in this
/// time, and others, who send more and so find out sooner, must not be the only ones to fill it again.
const RETRY_QUEUE_MAX: Duration = Duration::from_millis(2);

/// So many peers are tried in the time of the longest pause; if there are more, all pauses are as much longer.
const CROWD: u32 = 16;

/// Longest pause however many wait.
const RETRY_CROWDED_MAX: Duration = Duration::from_secs(5);

/// Peers whose pause is no longer may wait for what somebody else's completion has freed.
const BRIEF: Duration = Duration::from_millis(1);

/// So many of them are brought forward at once.
const BRIEF_MAX: usize = 8;

/// So many waiting peers are more than any mishap leaves a target that isn't asked to answer where nobody is.
const MANY: usize = 64;

/// Longest time that an operation waits for room or a connection. Callers give up earlier; replies have no caller.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The same where very many peers wait, and their memory may be short.
const WAIT_CROWDED_MAX: Duration = Duration::from_secs(1);

/// When a peer that waits is tried next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Turn {
    at: Instant,
    pause: Duration,
}

/// The peers that wait, by their turns.
#[derive(Default)]
pub(super) struct Waiting(BTreeSet<(Instant, PeerId)>);

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }

    /// One that is due.
    pub(super) fn due(&self, now: Instant) -> Option<PeerId> {
        self.0.first().filter(|(at, _)| *at <= now).map(|(_, id)| *id)
    }

    /// A peer waits no more.
    pub(super) fn remove(&mut self, id: PeerId, turn: &mut Turn) {
        self.0.remove(&(turn.at, id));
        *turn = Turn::default();
    }

    /// There is still no room for a peer's operations, or none any more. `near`: the peer is within the node.
    pub(super) fn back_off(&mut self, (id, near): (PeerId, bool), turn: &mut Turn, now: Instant) {
        self.0.remove(&(turn.at, id));
        let crowd = (u32::try_from(self.0.len()).unwrap_or(u32::MAX) / CROWD).max(1);
        let max = RETRY_MAX.saturating_mul(crowd).min(RETRY_CROWDED_MAX);
        let (min, max) =
            if near { (RETRY_MIN, RETRY_QUEUE_MAX) } else { (RETRY_MIN.saturating_mul(crowd), max) };
        turn.pause = (turn.pause * 2).clamp(min.min(max), max);
        turn.at = now + turn.pause;
        self.0.insert((turn.at, id));
    }

    /// A peer that waits is due now.
    pub(super) fn hasten(&mut self, id: PeerId, turn: &mut Turn, now: Instant) {
        if self.0.remove(&(turn.at, id)) {
            turn.at = turn.at.min(now);
            self.0.insert((turn.at, id));
        }
    }

    /// Those that something which completed with others may have made room for. `all`: it may, whoever they are.
    pub(super) fn hopeful(&self, all: bool, is_brief: impl Fn(PeerId) -> bool) -> Vec<PeerId> {
        let (looked, taken) = if all { (usize::MAX, usize::MAX) } else { (4 * BRIEF_MAX, BRIEF_MAX) };
        let first = self.0.iter().take(looked).map(|(_, id)| *id);
        first.filter(|id| all || is_brief(*id)).take(taken).collect()
    }

    /// How long an operation may wait.
    pub(super) fn patience(&self) -> Duration {
        if self.0.len() > MANY { WAIT_CROWDED_MAX } else { WAIT_MAX }
    }
}

impl Turn {
    /// Whether it has not been tried for long.
    pub(super) fn is_brief(self) -> bool {
        self.pause <= BRIEF
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// How often peers are tried within so long that never have room.
    fn tries(peers: u64, time: Duration, progress: bool) -> usize {
        let (mut waiting, mut turns) = (Waiting::default(), HashMap::new());
        let (mut now, mut tries) = (Instant::default() + Duration::from_secs(1), 0);
        for id in (0..peers).map(PeerId) {
            waiting.back_off((id, false), turns.entry(id).or_default(), now);
        }
        let until = now + time;
        while now < until {
            now += Duration::from_micros(20);
            let hopeful =
                if progress { waiting.hopeful(false, |id| turns[&id].is_brief()) } else { Vec::new() };
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
        let (mut waiting, mut turns) = (Waiting::default(), [Turn::default(); 2]);
        let mut now = Instant::default() + Duration::from_secs(1);
        for _ in 0..20 {
            for (at, turn) in turns.iter_mut().enumerate() {
                waiting.back_off((PeerId(at as u64), false), turn, now);
            }
            now += Duration::from_micros(1);
        }
        assert_eq!(waiting.due(now), None);
        assert!(waiting.hopeful(false, |id| turns[usize::from(id == PeerId(1))].is_brief()).is_empty());
        assert_eq!(waiting.hopeful(true, |_| false).len(), 2);
        waiting.hasten(PeerId(1), &mut turns[1], now);
        assert_eq!(waiting.due(now), Some(PeerId(1)));
        waiting.remove(PeerId(1), &mut turns[1]);
        waiting.hasten(PeerId(1), &mut turns[1], now);
        assert_eq!((waiting.due(now), waiting.len()), (None, 1));
        assert_eq!(waiting.due(now + RETRY_MAX), Some(PeerId(0)));
    }
}
