//! Times of the membership protocol.

use core::time::Duration;

/// Tries of one probe: direct, then twice direct and through others. With 5 % of all messages lost and three relays a
/// living member fails all of them in one of 26 million probes, which in a system of 1,024 is one in seven hours.
pub(super) const WAVES: u8 = 3;

/// Members asked to probe on one's behalf in each wave after the first (DAOS: `SWIM_SUBGROUP_SIZE` 2; one more, so
/// that one of them may be dead too).
pub const RELAYS: usize = 3;

/// Members that news is sent to at a time, beside what travels with probes. Four times as many know it each time: a
/// thousand members after five.
pub const FANOUT: usize = 3;

/// News in one message (DAOS: 8).
pub const PIGGYBACK_MAX: usize = 8;

/// Independent suspicions that shorten the wait before a member is declared dead to its minimum (Lifeguard has 3).
pub(super) const CONFIRMATIONS: usize = 2;

/// Members, on average, that probe a suspect themselves as soon as they hear of it. Two confirmations are needed soon;
/// with eight tries on average fewer than two are made in one case of 300.
pub(super) const SECOND_OPINIONS: u64 = 8;

/// A dead or unknown member is greeted every so many periods: after a partition no other message would begin contact.
pub(super) const GREET_EVERY: u64 = 8;

/// Times of the membership protocol. The defaults make a dead member known to all of 1,024 within 8 s.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwimConfig {
    /// Each member probes one other in this time, and is probed by one.
    pub period: Duration,
    /// Wait before a suspect that others confirm is declared dead.
    pub suspicion_min: Duration,
    /// Wait before a suspect that no other member confirms is declared dead.
    pub suspicion_max: Duration,
    /// Pause between two rounds of news.
    pub gossip: Duration,
    /// Progress that is later than this is a stall of our own: no other member is blamed for it.
    pub stall: Duration,
}

impl Default for SwimConfig {
    fn default() -> Self {
        Self::with_period(Duration::from_secs(1))
    }
}

impl SwimConfig {
    /// The defaults in proportion to this period: suspects have three to six periods.
    #[must_use]
    pub fn with_period(period: Duration) -> Self {
        Self {
            period,
            suspicion_min: period * 3,
            suspicion_max: period * 6,
            gossip: period / 5,
            stall: period / 4,
        }
    }

    /// Shortest wait between two tries of a probe: the tries and some rest fit a period.
    pub(super) fn gap_min(&self) -> Duration {
        self.period / 4
    }

    /// Longest wait between two tries, however slow a member usually is.
    pub(super) fn gap_max(&self) -> Duration {
        self.period
    }
}
