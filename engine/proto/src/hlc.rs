//! The hybrid logical clock that orders updates (epochs).
//!
//! An epoch is 64 bits: nanoseconds of wall time since 1970-01-01, of which the low [`LOGICAL_BITS`] bits are a
//! logical counter. It never runs backwards, and every message carries it, so that an update that was seen by one
//! engine has a lower epoch than whatever happens afterwards anywhere.

use core::num::NonZeroU64;
use serde::{Deserialize, Serialize};

/// Bits of an epoch that count events within one tick of 2^18 ns ≈ 262 µs; enough for 10^9 updates per second.
pub const LOGICAL_BITS: u32 = 18;

/// Furthest a received epoch may be ahead of the local wall clock, in nanoseconds. A clock that is off by more is
/// an operator's error (DAOS: epsilon of 1 s) and would push every later epoch into the future.
pub const SKEW_MAX_NS: u64 = 1_000_000_000;

/// Furthest that tenants' clocks move an engine's clock ahead of the wall clock, in nanoseconds. The rest of the bound
/// is for the difference between the clocks of the engines that hear of it next: else a tenant could have them refuse
/// each other.
pub const LEAD_MAX_NS: u64 = SKEW_MAX_NS / 2;

/// A point in the order of updates. 0 means "none", [`Epoch::MAX`] means "the newest".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Before every update.
    pub const ZERO: Self = Self(0);
    /// After every update; as a read epoch: the newest state.
    pub const MAX: Self = Self(u64::MAX);

    /// Wall time of the epoch in nanoseconds since 1970, coarse to one tick.
    #[must_use]
    #[inline]
    pub const fn wall_ns(self) -> u64 {
        self.0 & !((1 << LOGICAL_BITS) - 1)
    }

    /// Checks that it isn't further ahead of the wall clock than clocks may differ.
    ///
    /// # Errors
    /// When it is more than [`SKEW_MAX_NS`] ahead.
    #[inline]
    pub const fn check(self, wall_ns: u64) -> Result<(), ClockSkew> {
        let ahead_ns = self.0.saturating_sub(wall_ns);
        if ahead_ns > SKEW_MAX_NS { Err(ClockSkew { ahead_ns }) } else { Ok(()) }
    }
}

impl core::fmt::Debug for Epoch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl core::fmt::Display for Epoch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A received epoch is too far ahead of the local clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the sender's clock is {ahead_ns} ns ahead of ours, more than the bound of {SKEW_MAX_NS} ns; check time synchronisation on both nodes"
)]
pub struct ClockSkew {
    /// How far the received epoch lies in the local future.
    pub ahead_ns: u64,
}

/// One node's hybrid logical clock. Reads of the wall clock are passed in, so that it runs in virtual time.
#[derive(Debug, Default)]
pub struct Clock {
    last: core::cell::Cell<u64>,
}

impl Clock {
    /// A clock that goes on behind `last`, an epoch it gave before a restart.
    #[must_use]
    pub const fn after(last: Epoch) -> Self {
        Self { last: core::cell::Cell::new(last.0) }
    }

    /// The newest epoch that this clock returned or saw.
    #[must_use]
    #[inline]
    pub const fn latest(&self) -> Epoch {
        Epoch(self.last.get())
    }

    /// A fresh epoch, greater than every one this clock returned or saw.
    #[inline]
    pub fn now(&self, wall_ns: u64) -> Epoch {
        let next = Epoch(wall_ns).wall_ns().max(self.last.get().saturating_add(1));
        self.last.set(next);
        Epoch(next)
    }

    /// Takes note of an epoch that arrived in a message.
    ///
    /// # Errors
    /// When it lies more than [`SKEW_MAX_NS`] ahead of the wall clock; the clock is then unchanged.
    #[inline]
    pub fn observe(&self, seen: Epoch, wall_ns: u64) -> Result<(), ClockSkew> {
        seen.check(wall_ns)?;
        self.last.set(self.last.get().max(seen.0));
        Ok(())
    }

    /// Takes note of an epoch that a tenant says. `Some`: it is new, more than [`LEAD_MAX_NS`] ahead, and will be noted in so many
    /// nanoseconds; whatever is to come behind it has to wait.
    ///
    /// # Errors
    /// As [`Clock::observe`].
    #[inline]
    pub fn observe_tenant(&self, seen: Epoch, wall_ns: u64) -> Result<Option<NonZeroU64>, ClockSkew> {
        seen.check(wall_ns)?;
        if seen <= self.latest() {
            return Ok(None);
        }
        let early = NonZeroU64::new(seen.0.saturating_sub(wall_ns.saturating_add(LEAD_MAX_NS)));
        if early.is_none() {
            self.last.set(seen.0);
        }
        Ok(early)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_at_its_end_stays_there() {
        assert_eq!(Clock::after(Epoch::MAX).now(5), Epoch::MAX);
    }

    #[test]
    fn epochs_grow_even_when_the_wall_clock_steps_back() {
        let clock = Clock::default();
        let first = clock.now(5_000_000_000);
        let second = clock.now(4_000_000_000);
        assert!(second > first);
    }

    #[test]
    fn a_restarted_clock_gives_no_epoch_twice() {
        let last = Epoch(9_000_000_000);
        assert!(Clock::after(last).now(5) > last);
    }

    #[test]
    fn a_seen_epoch_pushes_the_clock_but_not_beyond_the_skew_bound() {
        let clock = Clock::default();
        clock.observe(Epoch(1_500_000_000), 1_000_000_000).expect("within the bound");
        assert!(clock.now(1_000_000_000) > Epoch(1_500_000_000));
        assert!(clock.observe(Epoch(9_000_000_000), 1_000_000_000).is_err());
    }

    #[test]
    fn tenants_push_a_clock_by_half_of_the_bound_and_wait_for_the_rest() {
        const WALL: u64 = 1_000_000_000;
        let clock = Clock::default();
        assert_eq!(clock.observe_tenant(Epoch(WALL + LEAD_MAX_NS), WALL), Ok(None));
        assert_eq!(clock.latest(), Epoch(WALL + LEAD_MAX_NS));
        assert_eq!(clock.observe_tenant(Epoch(WALL + LEAD_MAX_NS + 7), WALL), Ok(NonZeroU64::new(7)));
        assert_eq!(clock.latest(), Epoch(WALL + LEAD_MAX_NS));
        assert_eq!(clock.observe_tenant(Epoch(WALL + LEAD_MAX_NS + 7), WALL + 7), Ok(None));
        assert!(clock.observe_tenant(Epoch(WALL + SKEW_MAX_NS + 1), WALL).is_err());
        let pushed = Epoch(WALL + SKEW_MAX_NS);
        clock.observe(pushed, WALL).expect("the system may");
        assert_eq!(clock.observe_tenant(pushed, WALL), Ok(None), "it says nothing new");
    }
}
