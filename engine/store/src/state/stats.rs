//! Figures of a store as plain data, for metrics and queries.

use core::time::Duration;
use weir_media::DeviceStats;
use weir_proto::{ContainerId, Epoch, PoolId};
use weir_runtime::nanos;

/// Upper bounds of the latency buckets in microseconds, the last bucket being open (`docs/reference/metrics.md`): from
/// a flush on fast NVMe to a device in trouble.
pub const LATENCY_BOUNDS_US: [u64; 14] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000];

/// Upper bounds of the buckets of checkpoint times in milliseconds, the last bucket being open
/// (`docs/reference/metrics.md`).
pub const CHECKPOINT_BOUNDS_MS: [u64; 10] = [10, 50, 100, 500, 1_000, 5_000, 10_000, 30_000, 60_000, 300_000];

/// Counts of durations by bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyHistogram {
    /// How many fell at or below each bound of [`LATENCY_BOUNDS_US`] and above the one before; the last is beyond all.
    pub buckets: [u64; LATENCY_BOUNDS_US.len() + 1],
    /// How many there were.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub sum_ns: u64,
}

impl LatencyHistogram {
    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let us = nanos(duration).div_ceil(1000);
        let bucket = LATENCY_BOUNDS_US.partition_point(|bound| *bound < us);
        self.buckets[bucket] += 1;
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(nanos(duration));
    }
}

/// Counts of checkpoint times by bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointHistogram {
    /// How many fell at or below each bound of [`CHECKPOINT_BOUNDS_MS`] and above the one before; the last is beyond
    /// all.
    pub buckets: [u64; CHECKPOINT_BOUNDS_MS.len() + 1],
    /// Their sum in nanoseconds.
    pub sum_ns: u64,
}

impl CheckpointHistogram {
    /// Counts one checkpoint that succeeded.
    pub fn record(&mut self, duration: Duration) {
        let ms = u64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
        self.buckets[CHECKPOINT_BOUNDS_MS.partition_point(|bound| *bound < ms)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(nanos(duration));
    }
}

/// Figures of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitStats {
    /// Bytes of the log ring.
    pub log_capacity: u64,
    /// Bytes of it that recovery would read.
    pub log_used: u64,
    /// Bytes written to the log since open.
    pub log_written: u64,
    /// Records committed since open.
    pub records: u64,
    /// Batches (write and flush) since open.
    pub batches: u64,
    /// Time from the start of a batch's write to the end of its flush.
    pub latency: LatencyHistogram,
}

/// Space of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreSpace {
    /// Bytes of the device.
    pub device: u64,
    /// Bytes that can be given to pools.
    pub capacity: u64,
    /// Bytes given to pools.
    pub assigned: u64,
    /// Bytes of the data region that are in use, by data and index.
    pub used: u64,
    /// Bytes of the data region that are not in use.
    pub free: u64,
}

/// Space of one pool shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSpace {
    /// The pool's share of the target.
    pub total: u64,
    /// Bytes of data extents, in whole blocks.
    pub data: u64,
    /// Bytes of keys and inline values, with the index around them.
    pub metadata: u64,
    /// Bytes that are kept for records which aren't written yet.
    pub reserved: u64,
    /// Bytes that prepared transactions take when they are committed.
    pub prepared: u64,
    /// What updates can still take.
    pub free: u64,
    /// Use of each container, those being destroyed included.
    pub containers: Vec<ContainerSummary>,
}

impl PoolSpace {
    /// Bytes in use.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.data.saturating_add(self.metadata).saturating_add(self.reserved)
    }
}

/// One container of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerSummary {
    /// The container.
    pub container: ContainerId,
    /// Bytes in use: data extents and metadata.
    pub used: u64,
    /// Bytes of these that count towards the quota: not what is known to be overwritten and about to go.
    pub counted: u64,
    /// Most bytes it may use on this target; 0 for no limit.
    pub quota: u64,
    /// Whether it was destroyed and its space is being reclaimed.
    pub destroying: bool,
}

/// One pool of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSummary {
    /// The pool.
    pub pool: PoolId,
    /// Its share of the target in bytes.
    pub size: u64,
    /// Bytes in use.
    pub used: u64,
    /// Number of containers, without those being destroyed.
    pub containers: u64,
}

/// Figures of the index's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Bytes that nodes take now.
    pub memory: u64,
    /// Bytes that they may take.
    pub memory_limit: u64,
    /// Nodes read from the device since open, because they were needed.
    pub faults: u64,
    /// Nodes that operations and background work have passed since open: what they cost, whatever the machine.
    pub visits: u64,
    /// Nodes whose memory was given back since open.
    pub evictions: u64,
    /// Nodes that couldn't be read, or were damaged, since open.
    pub errors: u64,
}

/// Figures of the cache of small values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Bytes of the values in it.
    pub bytes: u64,
    /// Bytes that it may take.
    pub limit: u64,
    /// Reads that found their value there, since open.
    pub hits: u64,
    /// Reads of values of its size that didn't.
    pub misses: u64,
}

/// Figures of the pool of transfer buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DmaStats {
    /// Bytes in use now.
    pub used: u64,
    /// Bytes that the pool holds, in use or not.
    pub held: u64,
    /// Most bytes that may be in use.
    pub limit: u64,
    /// Transfers that had to wait for a buffer since open.
    pub waits: u64,
}

/// Everything a daemon exports about a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// The log.
    pub commit: CommitStats,
    /// Checkpoints since open.
    pub checkpoints: u64,
    /// Time spent in checkpoints since open.
    pub checkpoint_time: Duration,
    /// Times of the checkpoints that succeeded since open.
    pub checkpoint_latency: CheckpointHistogram,
    /// Checkpoints that failed since open.
    pub checkpoint_failures: u64,
    /// Wall time of the end of the last checkpoint that succeeded since open, in nanoseconds since 1970; 0 before it.
    pub checkpoint_last_ns: u64,
    /// Log records that the open applied.
    pub replayed_records: u64,
    /// How long the open took.
    pub recovery_time: Duration,
    /// Bytes that checkpoints wrote since open.
    pub checkpoint_bytes: u64,
    /// Index nodes that the next checkpoint will write.
    pub dirty_nodes: u64,
    /// Entries of the index.
    pub entries: u64,
    /// Its memory.
    pub index: IndexStats,
    /// Small values in memory.
    pub cache: CacheStats,
    /// Transfer buffers.
    pub dma: DmaStats,
    /// Records waiting for the log now.
    pub queue_depth: u64,
    /// Space.
    pub space: StoreSpace,
    /// Transactions that were prepared and await their decision.
    pub undecided: u64,
    /// Epoch of the oldest of them; zero when there is none.
    pub undecided_oldest: Epoch,
    /// Versions that aggregation dropped since open.
    pub aggregated: u64,
    /// Values that defragmentation moved since open.
    pub relocated: u64,
    /// Records that reclaim of destroyed containers and pools removed since open.
    pub reclaimed: u64,
    /// Stored bytes that did not match their checksum since open.
    pub checksum_errors: u64,
    /// The device.
    pub device: DeviceStats,
}
