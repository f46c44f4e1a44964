//! When a server that has no room asks a client to come back.
//!
//! Those that are sent away get times one after another, as far apart as requests are finished here: a queue in time
//! instead of memory. So ten thousand clients come back one by one and not all at once, and the server keeps two numbers.

use core::cell::Cell;
use core::time::Duration;
use weir_runtime::Instant;

/// Shortest pause: a client's round trip on any network is shorter.
const PAUSE_MIN: Duration = Duration::from_micros(500);

/// Longest pause that is asked for; clients believe no longer one.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Time for one request before any has been finished: a target answers some hundred thousand in a second.
const GAP_FIRST: u64 = 5_000;

/// Longest time between two finished requests that counts: what is longer was idleness.
const GAP_MAX: u64 = 10_000_000;

/// How fast requests are finished, and until when places are given out.
pub(crate) struct Load {
    /// Nanoseconds from one finished request to the next, smoothed over about sixteen.
    gap: Cell<u64>,
    last: Cell<Instant>,
    /// When the next one that is sent away may come.
    slot: Cell<Instant>,
}

impl Default for Load {
    fn default() -> Self {
        Self { gap: Cell::new(GAP_FIRST), last: Cell::default(), slot: Cell::default() }
    }
}

impl Load {
    /// A request was finished.
    pub(crate) fn finished(&self, now: Instant) {
        let gap = now.nanos_since(self.last.get()).min(GAP_MAX);
        self.last.set(now);
        self.gap.set((self.gap.get() * 15 + gap) / 16);
    }

    /// How long the next one that is sent away should stay away.
    pub(crate) fn pause(&self, now: Instant) -> Duration {
        let mut slot = self.slot.get();
        let pause = self.next(&mut slot, 1, now);
        self.slot.set(slot);
        pause
    }

    /// The same for a queue of somebody's own, who gets one of so many `shares` of what is finished here.
    pub(crate) fn next(&self, slot: &mut Instant, shares: usize, now: Instant) -> Duration {
        let earliest = now + PAUSE_MIN;
        let place = (*slot).max(earliest);
        if place - now >= PAUSE_MAX {
            return PAUSE_MAX;
        }
        let shares = u64::try_from(shares.max(1)).unwrap_or(u64::MAX);
        *slot = place + Duration::from_nanos(self.gap.get().max(1).saturating_mul(shares)).min(PAUSE_MAX);
        place - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_shares_the_server_with_others_comes_back_as_much_more_rarely_and_in_a_queue_of_its_own() {
        let (load, now) = (Load::default(), Instant::default() + Duration::from_secs(1));
        let mut slot = Instant::default();
        let pauses: Vec<Duration> = (0..100_000).map(|_| load.next(&mut slot, 4, now)).collect();
        assert_eq!((pauses[0], pauses[1]), (PAUSE_MIN, PAUSE_MIN + Duration::from_nanos(4 * GAP_FIRST)));
        assert_eq!(pauses[99_999], PAUSE_MAX);
        assert_eq!(load.pause(now), PAUSE_MIN, "the others don't wait for that");
    }

    #[test]
    fn those_sent_away_come_back_as_far_apart_as_requests_are_finished() {
        let load = Load::default();
        let mut now = Instant::default() + Duration::from_secs(1);
        for _ in 0..200 {
            now += Duration::from_micros(100);
            load.finished(now);
        }
        let pauses: Vec<Duration> = (0..50).map(|_| load.pause(now)).collect();
        assert_eq!(pauses[0], PAUSE_MIN);
        for pair in pauses.windows(2) {
            let apart = pair[1].saturating_sub(pair[0]);
            assert!(apart > Duration::from_micros(90) && apart < Duration::from_micros(110), "{apart:?}");
        }
        // However many come, none is sent away for longer than it believes.
        let longest = (0..100_000).map(|_| load.pause(now)).max().expect("many");
        assert_eq!(longest, PAUSE_MAX);
        // And when the crowd has gone, so has the queue.
        assert_eq!(load.pause(now + Duration::from_secs(5)), PAUSE_MIN);
    }
}
