//! Who owns a store, and how it behaves.

use crate::format::owner::Owner;
use crate::state::mark::Mark;
use core::time::Duration;

/// Choices that are fixed when a device is formatted.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Whose data the device will hold.
    pub owner: Owner,
    /// Bytes of the log; `None` chooses 1/16 of the device within 8 MiB … 512 MiB.
    pub log_bytes: Option<u64>,
}

/// How the scrubber works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubConfig {
    /// Most bytes that it reads in a second.
    pub bytes_per_second: u64,
    /// From the begin of one pass to the begin of the next.
    pub interval: Duration,
}

/// Choices that may change at each open.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Values shorter than this many bytes, at most a block, live in log and index; from here on they take whole blocks
    /// of their own.
    pub inline_limit: usize,
    /// Most bytes of memory that the index takes. What is beyond stays on the device and is read when it is needed.
    /// Nodes with pools, containers and attributes stay in memory whatever the limit; so do changed ones until the
    /// next checkpoint.
    pub index_bytes: usize,
    /// Most bytes of memory for values of up to a block that are kept after they were written or read, with all that is
    /// known of them; 0 for none.
    pub cache_bytes: usize,
    /// How far the store was when somebody saw it last; an open that finds less fails.
    pub mark: Option<Mark>,
    /// Most bytes of transfer buffers.
    pub dma_bytes: usize,
    /// Entries of arrays in the index that a fetch looks at in one turn, at least 1. One that takes more goes on in steps,
    /// between which others run.
    pub fetch_looks: usize,
    /// Entries of the index that a page of a list, or a part of a search, takes looks at, whether it finds something or not:
    /// it ends then, one of extents when the window of records is over that is under way, and the next one goes on there.
    pub request_looks: usize,
    /// Longest time between checkpoints while there is something to write.
    pub checkpoint_interval: Duration,
    /// Part of the log, in percent, whose use starts a checkpoint.
    pub checkpoint_log_percent: u64,
    /// History younger than this is kept by aggregation even without a snapshot, so that a reader at a recent epoch
    /// finds it.
    pub retention: Duration,
    /// Whether the background task runs aggregation and reclaim by itself.
    pub background: bool,
    /// Shortest rest between two slices of background work, which take about as long; while there are clients it is
    /// four times as long.
    pub slice: Duration,
    /// Pause between two passes of background work that found little to do.
    pub background_interval: Duration,
    /// Whether and how stored bytes are compared with their checksums in the background.
    pub scrub: Option<ScrubConfig>,
    /// How long a transfer may take, once the store is open, before the device counts as faulty until it ends; `None`: one that
    /// hangs is given up, and the device faulty for good.
    pub stall_limit: Option<Duration>,
}

impl StoreConfig {
    /// From this many bytes on, values take blocks. What has none takes none.
    pub(crate) fn inline_max(&self) -> usize {
        self.inline_limit.clamp(1, weir_media::BLOCK)
    }
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            // A value of one block costs one block either way; inline it would be written twice.
            inline_limit: 4096,
            // Some three million files of one extent each.
            index_bytes: 1 << 30,
            cache_bytes: 0,
            mark: None,
            // Eight requests of the largest payload.
            dma_bytes: 64 << 20,
            // Some 400 µs of work; the 8 MiB of the largest fetch in extents of 8 KiB.
            fetch_looks: 1024,
            // Some 10 ms of work.
            request_looks: 51_200,
            checkpoint_interval: Duration::from_secs(10),
            checkpoint_log_percent: 50,
            retention: Duration::from_secs(5),
            background: true,
            slice: Duration::from_micros(100),
            background_interval: Duration::from_millis(500),
            scrub: None,
            stall_limit: Some(weir_media::health::STALL_LIMIT),
        }
    }
}
