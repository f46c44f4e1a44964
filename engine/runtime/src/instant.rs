//! Monotonic time of one executor.

use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A point of monotonic time: nanoseconds since the executor (or the simulated world) started.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(u64);

impl Instant {
    /// A point later than any that is reached: about 584 years after the start.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// The point `ns` nanoseconds after the start.
    #[must_use]
    #[inline]
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the start.
    #[must_use]
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Nanoseconds from `earlier` to `self`; zero when `earlier` is later. Where only the number counts this spares making a
    /// [`Duration`] of it, which is a division.
    #[must_use]
    #[inline]
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The point this many nanoseconds later; saturates at [`Instant::FAR_FUTURE`].
    #[must_use]
    #[inline]
    pub const fn after_nanos(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Time from `earlier` to `self`; zero when `earlier` is later.
    #[must_use]
    #[inline]
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }
}

/// A duration in whole nanoseconds. One of more than 584 years, which only a configuration says, is as good as that: `u64::MAX`.
#[must_use]
#[inline]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates at [`Instant::FAR_FUTURE`].
    #[inline]
    fn add(self, duration: Duration) -> Self {
        self.after_nanos(nanos(duration))
    }
}

impl AddAssign<Duration> for Instant {
    #[inline]
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    /// Saturates at the start.
    #[inline]
    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// Like [`Instant::saturating_duration_since`].
    #[inline]
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}
