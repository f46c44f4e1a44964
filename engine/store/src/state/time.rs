//! Durations as the clocks of the runtime count them.

use core::time::Duration;

/// A duration in nanoseconds. One of more than 584 years, which only a configuration says, is as good as that.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
