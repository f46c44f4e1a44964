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
    fn a_duration_falls_into_the_bucket_whose_bound_it_does_not_pass() {
        let mut counts = LatencyCounts::default();
        counts.record(Duration::from_micros(50));
        counts.record(Duration::from_nanos(50_001));
        counts.record(Duration::from_secs(100));
        assert_eq!((counts.buckets[0], counts.buckets[1], counts.buckets[14]), (1, 1, 1));
    }
}
