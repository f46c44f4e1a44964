//! Counters of a target's I/O service: plain cells, read by message.

use std::cell::Cell;
use std::time::Duration;

use weir_pool::{OPERATIONS, Operation};
use weir_runtime::nanos;

/// Upper bounds of the latency buckets in microseconds (`docs/reference/metrics.md`).
pub const BOUNDS_US: [u64; 14] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000];

/// Counts of durations by bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LatencyCounts {
    /// How many fell at or below each bound and above the one before; the last is beyond all.
    pub buckets: [u64; BOUNDS_US.len() + 1],
    /// Their sum in nanoseconds.
    pub sum_ns: u64,
}

impl LatencyCounts {
    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let us = u64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX);
        self.buckets[BOUNDS_US.partition_point(|bound| *bound < us)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(nanos(duration));
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// What was counted since the same counts were `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let bucket = |index: usize| self.buckets[index].saturating_sub(earlier.buckets[index]);
        Self { buckets: core::array::from_fn(bucket), sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns) }
    }

    /// The duration that a part of those counted, from 0 to 1, did not pass: as if those in a bucket were spread evenly over it. Zero
    /// where nothing was counted; what is beyond all bounds counts as the last one.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "an estimate between two bounds")]
    pub fn quantile(&self, part: f64) -> Duration {
        let rank = part * self.count() as f64;
        let (mut below, mut lower) = (0.0, 0.0);
        for (count, upper) in self.buckets.iter().zip(BOUNDS_US) {
            let (count, upper) = (*count as f64, upper as f64);
            if count > 0.0 && below + count >= rank {
                let us = lower + (upper - lower) * ((rank - below) / count).clamp(0.0, 1.0);
                return Duration::from_secs_f64(us / 1e6);
            }
            (below, lower) = (below + count, upper);
        }
        Duration::from_secs_f64(if below < rank { lower / 1e6 } else { 0.0 })
    }
}

/// What a target's I/O service has done since it started.
#[derive(Default, Debug)]
pub struct IoMetrics {
    latency: [Cell<LatencyCounts>; OPERATIONS],
    without_lease: Cell<u64>,
}

impl IoMetrics {
    pub(crate) fn refused_without_lease(&self) {
        self.without_lease.set(self.without_lease.get() + 1);
    }

    /// Requests that were refused because the target held no lease of the pool's map.
    #[must_use]
    pub const fn without_lease(&self) -> u64 {
        self.without_lease.get()
    }

    pub(crate) fn record(&self, operation: Operation, duration: Duration) {
        let cell = &self.latency[operation as usize];
        let mut counts = cell.get();
        counts.record(duration);
        cell.set(counts);
    }

    /// Times of all operations together.
    pub(crate) fn all(&self) -> LatencyCounts {
        let mut all = LatencyCounts::default();
        for counts in self.latency() {
            all.buckets.iter_mut().zip(counts.buckets).for_each(|(sum, count)| *sum += count);
            all.sum_ns = all.sum_ns.saturating_add(counts.sum_ns);
        }
        all
    }

    /// Times from a request's arrival to its reply, by [`Operation`].
    #[must_use]
    pub fn latency(&self) -> [LatencyCounts; OPERATIONS] {
        core::array::from_fn(|index| self.latency[index].get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_between_the_bounds_of_its_bucket() {
        let mut counts = LatencyCounts::default();
        assert_eq!((counts.count(), counts.quantile(0.99)), (0, Duration::ZERO));
        (0..98).for_each(|_| counts.record(Duration::from_micros(200)));
        let earlier = counts;
        (0..2).for_each(|_| counts.record(Duration::from_micros(900)));
        let us = |part| counts.quantile(part).as_micros();
        assert!(
            (100..=250).contains(&us(0.5)) && (500..=1000).contains(&us(0.99)),
            "{} {}",
            us(0.5),
            us(0.99)
        );
        assert_eq!(counts.since(&earlier).count(), 2);
        let mut slow = LatencyCounts::default();
        slow.record(Duration::from_secs(100));
        assert_eq!(slow.quantile(0.99), Duration::from_secs(5), "beyond all bounds");
    }

    #[test]
    fn a_duration_falls_into_the_bucket_whose_bound_it_does_not_pass() {
        let mut counts = LatencyCounts::default();
        counts.record(Duration::from_micros(50));
        counts.record(Duration::from_nanos(50_001));
        counts.record(Duration::from_secs(100));
        assert_eq!((counts.buckets[0], counts.buckets[1], counts.buckets[14]), (1, 1, 1));
    }
}
