//! When a server without room asks a client to come back.
//!
//! Refused requests get retry times one after another, as far apart as requests are finished here. This is a
//! queue in time instead of memory: ten thousand clients come back one by one, and the server keeps a few
//! numbers.
//!
//! While no request is finished, the requests in flight take at least as long as that. Retry times are then as
//! far apart as if they all ended now, so that a stuck server is asked less and less often.

use core::cell::Cell;
use core::time::Duration;
use weir_runtime::Instant;

/// Shortest pause. The round trip of a client on any network is shorter.
const PAUSE_MIN: Duration = Duration::from_micros(500);

/// Longest pause that a server asks for. Clients cap what they are told at this.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Clients for which the queue is full get pauses that are shorter by up to this much, so that they don't come
/// at once.
const SPREAD: Duration = Duration::from_millis(250);

/// The fraction of the golden ratio in 64 bits. Its multiples are spread evenly over any range, however many
/// there are.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Nanoseconds for one request before any was finished: a target answers some hundred thousand in a second.
const GAP_FIRST: u64 = 5_000;

/// Longest time in nanoseconds between two finished requests that counts. Longer gaps are idle time, or the
/// server is stuck.
const GAP_MAX: u64 = 10_000_000;

/// The next free retry time of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RetrySlot {
    at: Instant,
    /// How often the server had been stuck when this was set.
    stalls: u32,
}

/// The rate at which requests are finished, and the retry times that were given out.
pub(crate) struct RetrySchedule {
    /// Nanoseconds between two finished requests, smoothed over about sixteen.
    gap: Cell<u64>,
    last: Cell<Instant>,
    slot: Cell<RetrySlot>,
    /// When a request was first refused since an admitted one was finished.
    full_since: Cell<Option<Instant>>,
    /// How often the server was stuck. Retry times from before are void.
    stalls: Cell<u32>,
    /// Requests for which the queue was full.
    unplaced: Cell<u64>,
}

impl Default for RetrySchedule {
    fn default() -> Self {
        Self {
            gap: Cell::new(GAP_FIRST),
            last: Cell::default(),
            slot: Cell::default(),
            full_since: Cell::default(),
            stalls: Cell::default(),
            unplaced: Cell::default(),
        }
    }
}

impl RetrySchedule {
    /// A request was finished. `leaves_room`: it had needed room to be admitted.
    pub(crate) fn finished(&self, leaves_room: bool, now: Instant) {
        let gap = now.nanos_since(self.last.get()).min(GAP_MAX);
        self.last.set(now);
        self.gap.set((self.gap.get() * 15 + gap) / 16);
        if leaves_room
            && let Some(since) = self.full_since.take()
            && now.nanos_since(since) > GAP_MAX
        {
            self.stalls.set(self.stalls.get().wrapping_add(1));
        }
    }

    /// Pause for the next refused request, while `running` requests are executed. `None`: longer than clients
    /// accept.
    pub(crate) fn pause(&self, running: u64, now: Instant) -> Option<Duration> {
        let mut slot = self.slot.get();
        let pause = self.next(&mut slot, (1, running), now);
        self.slot.set(slot);
        pause
    }

    /// The same for a client's own queue, which gets one of `shares` equal parts of the server's rate.
    pub(crate) fn next(
        &self,
        slot: &mut RetrySlot,
        (shares, running): (usize, u64),
        now: Instant,
    ) -> Option<Duration> {
        let full_since = self.full_since.get().unwrap_or(now);
        self.full_since.set(Some(full_since));
        let earliest = now + PAUSE_MIN;
        let place = if slot.stalls == self.stalls.get() { slot.at.max(earliest) } else { earliest };
        if place - now >= PAUSE_MAX {
            return None;
        }
        let stalled = now.nanos_since(full_since);
        let least = if stalled > GAP_MAX { stalled / running.max(1) } else { 1 };
        let shares = shares.max(1) as u64;
        let apart = Duration::from_nanos(self.gap.get().max(least).saturating_mul(shares)).min(PAUSE_MAX);
        *slot = RetrySlot { at: place + apart, stalls: self.stalls.get() };
        Some(place - now)
    }

    /// Pause for a request for which the queue is full.
    pub(crate) fn longest(&self) -> Duration {
        let number = self.unplaced.get().wrapping_add(1);
        self.unplaced.set(number);
        let part = number.wrapping_mul(GOLDEN) >> 32;
        PAUSE_MAX.saturating_sub(Duration::from_nanos((part * u64::from(SPREAD.subsec_nanos())) >> 32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin() -> Instant {
        Instant::default() + Duration::from_secs(1)
    }

    #[test]
    fn who_shares_the_server_with_others_comes_back_as_much_more_rarely_and_in_a_queue_of_its_own() {
        let (load, now) = (RetrySchedule::default(), begin());
        let mut slot = RetrySlot::default();
        let pauses: Vec<_> = (0..100_000).map(|_| load.next(&mut slot, (4, 10), now)).collect();
        let second = PAUSE_MIN + Duration::from_nanos(4 * GAP_FIRST);
        assert_eq!((pauses[0], pauses[1]), (Some(PAUSE_MIN), Some(second)));
        assert_eq!(pauses[99_999], None);
        assert_eq!(load.pause(10, now), Some(PAUSE_MIN), "the others don't wait for that");
    }

    #[test]
    fn those_sent_away_come_back_as_far_apart_as_requests_are_finished() {
        let load = RetrySchedule::default();
        let mut now = begin();
        for _ in 0..200 {
            now += Duration::from_micros(100);
            load.finished(true, now);
        }
        let pauses: Vec<Duration> = (0..50).map(|_| load.pause(10, now).expect("a place")).collect();
        assert_eq!(pauses[0], PAUSE_MIN);
        for pair in pauses.windows(2) {
            let apart = pair[1].saturating_sub(pair[0]);
            assert!(apart > Duration::from_micros(90) && apart < Duration::from_micros(110), "{apart:?}");
        }
        // No pause is longer than clients accept, however many requests are refused.
        let longest = (0..100_000).filter_map(|_| load.pause(10, now)).max().expect("many");
        assert!(longest < PAUSE_MAX && load.pause(10, now).is_none());
        // The queue empties when no client comes.
        load.finished(true, now + Duration::from_secs(5));
        assert_eq!(load.pause(10, now + Duration::from_secs(5)), Some(PAUSE_MIN));
    }

    #[test]
    fn a_server_that_finishes_nothing_is_asked_more_and_more_seldom_until_it_does() {
        let (load, mut now) = (RetrySchedule::default(), begin());
        let (mut shared, mut own) = (Vec::new(), RetrySlot::default());
        for _ in 0..10 {
            let (first, second) = (load.pause(100, now), load.pause(100, now));
            shared.push(second.zip(first).map_or(PAUSE_MAX, |(second, first)| second.saturating_sub(first)));
            now += PAUSE_MAX;
            load.finished(false, now);
        }
        assert_eq!(shared[0], Duration::from_nanos(GAP_FIRST));
        for (second, apart) in (1..).zip(&shared[1..]) {
            assert_eq!(
                *apart,
                Duration::from_millis(10 * second),
                "after {second} s; what is urgent doesn't count"
            );
        }
        let pauses: Vec<_> = (0..4).map(|_| load.next(&mut own, (8, 100), now)).collect();
        assert!(pauses[1] > Some(Duration::from_millis(700)) && pauses[2].is_none(), "{pauses:?}");
        load.finished(true, now);
        assert_eq!(load.pause(100, now), Some(PAUSE_MIN), "places are given out anew");
        assert_eq!(load.next(&mut own, (8, 100), now), Some(PAUSE_MIN));
        let next = load.next(&mut own, (8, 100), now);
        assert!(next < Some(Duration::from_millis(100)), "{next:?}");
    }

    #[test]
    fn a_server_that_was_idle_for_long_is_not_taken_for_one_that_is_stuck() {
        let load = RetrySchedule::default();
        load.finished(true, begin());
        let now = begin() + Duration::from_hours(1);
        let [first, second] = [0, 1].map(|_| load.pause(100, now).expect("a place"));
        let apart = second.saturating_sub(first);
        assert!(apart < Duration::from_millis(1), "{apart:?}");
    }

    #[test]
    fn those_for_whom_the_queue_is_too_long_do_not_come_all_at_once() {
        let load = RetrySchedule::default();
        let mut parts = [0; 25];
        for _ in 0..10_000 {
            let early = PAUSE_MAX.saturating_sub(load.longest());
            assert!(early < SPREAD);
            parts[usize::try_from(early.as_millis() / 10).expect("few")] += 1;
        }
        assert!(parts.iter().all(|count| (390..410).contains(count)), "{parts:?}");
    }
}
