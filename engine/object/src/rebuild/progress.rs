//! How far a rebuild is.

use weir_proto::lease::FillProgress;
use weir_runtime::Instant;

/// How far the rebuild of a pool's shard is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RebuildProgress {
    /// When it began.
    pub since: Instant,
    /// Events and versions that were taken in.
    pub entries: u64,
    /// Bytes of data that were taken in.
    pub bytes: u64,
    /// Parts of the work: the containers of each target that has data.
    pub parts: u64,
    /// Parts that are done.
    pub done: u64,
}

impl RebuildProgress {
    /// The same as it is told to the pool's service.
    pub(super) fn told(&self, now: Instant) -> FillProgress {
        let running = now.saturating_duration_since(self.since).as_millis();
        FillProgress {
            running_ms: u64::try_from(running).expect("an engine runs for less than 500 million years"),
            entries: self.entries,
            bytes: self.bytes,
            parts: self.parts,
            done: self.done,
        }
    }

    pub(super) const fn begun(since: Instant) -> Self {
        Self { since, entries: 0, bytes: 0, parts: 0, done: 0 }
    }
}
