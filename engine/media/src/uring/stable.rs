//! How a write to a file is made stable: as a synchronous write, or as a write and a flush behind it.
//!
//! File systems do the same for both, on different threads. The thread that ends a synchronous write stays on one
//! processor. That is faster until other programs use the processor, and then it takes milliseconds. So the method is
//! chosen by the time that both have taken lately.

use crate::device::BRIEF_MAX;
use core::cell::Cell;
use core::time::Duration;
use weir_runtime::nanos;

/// One write in so many goes the other way, so that a change is noticed within a second on a busy log; the worse way may
/// take ten times as long.
const OTHER_EVERY: u64 = 256;

/// Share of the newest time in a mean: a stall of milliseconds shows at once.
const NEWEST_SHARE: u64 = 8;

/// Longest write whose time tells of the way, not of its bytes.
const TELLING_MAX: usize = 64 << 10;

/// How one write is made stable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StableWrite {
    Synchronous,
    Flushed,
}

/// Both ways, with the mean time of each in nanoseconds; `None`: not tried yet.
#[derive(Default)]
pub(super) struct StableWriteChoice {
    synchronous: Cell<Option<u64>>,
    flushed: Cell<Option<u64>>,
    chosen: Cell<u64>,
}

impl StableWriteChoice {
    /// The way of the next write, of so many bytes.
    pub(super) fn choose(&self, bytes: usize) -> StableWrite {
        let (synchronous, flushed) = (self.synchronous.get(), self.flushed.get());
        let is_shorter =
            synchronous.is_none_or(|synchronous| flushed.is_none_or(|flushed| synchronous <= flushed));
        let shorter = if is_shorter { StableWrite::Synchronous } else { StableWrite::Flushed };
        if bytes > TELLING_MAX {
            return shorter;
        }
        let chosen = self.chosen.get() + 1;
        self.chosen.set(chosen);
        match shorter {
            StableWrite::Synchronous if synchronous.is_some() && flushed.is_none() => StableWrite::Flushed,
            shorter if !chosen.is_multiple_of(OTHER_EVERY) => shorter,
            StableWrite::Synchronous => StableWrite::Flushed,
            StableWrite::Flushed => StableWrite::Synchronous,
        }
    }

    /// Whether a write of so many bytes that goes this way will have ended soon, and without this thread: it may stay awake until
    /// then. A synchronous one is ended on this processor by a thread that would have to wait for this one to sleep.
    pub(super) fn is_brief(&self, way: StableWrite, bytes: usize) -> bool {
        let is_short = |mean| Duration::from_nanos(mean) < BRIEF_MAX;
        way == StableWrite::Flushed && bytes <= TELLING_MAX && self.flushed.get().is_some_and(is_short)
    }

    /// Takes note of how long a write of so many bytes took.
    pub(super) fn note(&self, way: StableWrite, bytes: usize, took: Duration) {
        if bytes > TELLING_MAX {
            return;
        }
        let mean = match way {
            StableWrite::Synchronous => &self.synchronous,
            StableWrite::Flushed => &self.flushed,
        };
        let took = nanos(took);
        let next = |mean: u64| mean - mean / NEWEST_SHARE + took / NEWEST_SHARE;
        mean.set(Some(mean.get().map_or(took, next)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 4096;

    /// Writes that take so many microseconds each by either way. How many of them were synchronous.
    fn synchronous(ways: &StableWriteChoice, writes: u64, [synchronous, flushed]: [u64; 2]) -> u64 {
        let mut count = 0;
        for _ in 0..writes {
            let way = ways.choose(BYTES);
            count += u64::from(way == StableWrite::Synchronous);
            let took = if way == StableWrite::Synchronous { synchronous } else { flushed };
            ways.note(way, BYTES, Duration::from_micros(took));
        }
        count
    }

    #[test]
    fn the_shorter_way_is_taken_and_the_other_one_tried_now_and_then() {
        let ways = StableWriteChoice::default();
        assert_eq!(
            (ways.choose(BYTES), ways.choose(BYTES)),
            (StableWrite::Synchronous, StableWrite::Synchronous),
            "neither is known"
        );
        assert_eq!(synchronous(&ways, 100 * OTHER_EVERY, [110, 200]), 100 * OTHER_EVERY - 1 - 100);
        let ways = StableWriteChoice::default();
        assert_eq!(synchronous(&ways, 100 * OTHER_EVERY, [200, 110]), 1 + 100);
    }

    #[test]
    fn a_way_that_stalls_is_left_at_once_and_taken_again_when_it_has_recovered() {
        let ways = StableWriteChoice::default();
        synchronous(&ways, 100, [110, 200]);
        ways.note(StableWrite::Synchronous, BYTES, Duration::from_millis(4));
        assert!(synchronous(&ways, OTHER_EVERY, [110, 200]) <= 1);
        let recovered = (0..20).position(|_| synchronous(&ways, OTHER_EVERY, [110, 200]) > OTHER_EVERY / 2);
        assert!(recovered.is_some_and(|rounds| rounds >= 5), "{recovered:?}");
    }

    #[test]
    fn what_a_short_flush_ends_is_waited_for_awake() {
        let ways = StableWriteChoice::default();
        assert!(!ways.is_brief(StableWrite::Flushed, BYTES), "nothing is known");
        synchronous(&ways, 100, [500, 100]);
        assert!(ways.is_brief(StableWrite::Flushed, BYTES));
        assert!(!ways.is_brief(StableWrite::Synchronous, BYTES), "it ends on this processor");
        assert!(!ways.is_brief(StableWrite::Flushed, TELLING_MAX + 1), "a long one");
        synchronous(&ways, 100, [500, 300]);
        assert!(!ways.is_brief(StableWrite::Flushed, BYTES), "a slow disk");
    }

    #[test]
    fn times_without_bound_are_no_overflow() {
        let ways = StableWriteChoice::default();
        for _ in 0..100 {
            ways.note(StableWrite::Flushed, BYTES, Duration::MAX);
        }
        assert_eq!(synchronous(&ways, 3, [1, 1]), 3);
    }

    #[test]
    fn long_writes_take_the_shorter_way_and_tell_nothing() {
        let ways = StableWriteChoice::default();
        assert_eq!(ways.choose(TELLING_MAX + 1), StableWrite::Synchronous);
        ways.note(StableWrite::Synchronous, TELLING_MAX + 1, Duration::from_secs(1));
        synchronous(&ways, 10, [200, 110]);
        assert!((0..2 * OTHER_EVERY).all(|_| ways.choose(TELLING_MAX + 1) == StableWrite::Flushed));
    }
}
