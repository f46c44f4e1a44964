//! Suspects and how long they have.

use super::config::{CONFIRMATIONS, SwimConfig};
use core::time::Duration;
use weir_proto::Rank;
use weir_runtime::Instant;

/// What of the span between shortest and longest wait is left after 0, 1 and 2 confirmations, in thousandths:
/// 1 − ln(c + 1) ÷ ln(k + 1) of Lifeguard, for k possible confirmations.
const LEFT: [[u32; CONFIRMATIONS + 1]; CONFIRMATIONS + 1] = [[0, 0, 0], [1000, 0, 0], [1000, 369, 0]];

/// A member that is suspected.
#[derive(Debug)]
pub(super) struct Suspicion {
    /// Its index in the table.
    pub(super) index: usize,
    /// When it is declared dead.
    pub(super) deadline: Instant,
    began: Instant,
    /// Own slowness at the beginning.
    stretch: u32,
    /// The members that suspect it.
    by: Vec<Rank>,
    /// Confirmations that are possible.
    possible: usize,
}

impl Suspicion {
    /// `others`: members beside this one and the suspect.
    pub(super) fn new(
        index: usize,
        by: Rank,
        others: usize,
        stretch: u32,
        now: Instant,
        config: &SwimConfig,
    ) -> Self {
        let possible = others.min(CONFIRMATIONS);
        let mut suspicion = Self { index, deadline: now, began: now, stretch, by: vec![by], possible };
        suspicion.set_deadline(config);
        suspicion
    }

    /// Another one suspects it too. False when that was known or changes nothing.
    pub(super) fn confirm(&mut self, by: Rank, config: &SwimConfig) -> bool {
        if self.by.len() > self.possible || self.by.contains(&by) {
            return false;
        }
        self.by.push(by);
        self.set_deadline(config);
        true
    }

    /// This member stood still for this long; no suspect could object meanwhile.
    pub(super) fn postpone(&mut self, late: Duration) {
        self.began += late;
        self.deadline += late;
    }

    fn set_deadline(&mut self, config: &SwimConfig) {
        let span = config.suspicion_max.saturating_sub(config.suspicion_min);
        let left = LEFT[self.possible][(self.by.len() - 1).min(CONFIRMATIONS)];
        let wait = config.suspicion_min + span * left / 1000;
        self.deadline = self.began + wait * self.stretch;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: SwimConfig = SwimConfig {
        period: Duration::from_secs(1),
        suspicion_min: Duration::from_secs(3),
        suspicion_max: Duration::from_secs(6),
        gossip: Duration::from_millis(200),
        stall: Duration::from_millis(250),
    };

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn confirmations_of_different_members_shorten_the_wait() {
        let mut suspicion = Suspicion::new(5, Rank(1), 1000, 1, at(0), &CONFIG);
        assert_eq!(suspicion.deadline, at(6000));
        assert!(!suspicion.confirm(Rank(1), &CONFIG), "the same one again");
        assert!(suspicion.confirm(Rank(2), &CONFIG));
        assert_eq!(suspicion.deadline, at(4107));
        assert!(suspicion.confirm(Rank(3), &CONFIG));
        assert_eq!(suspicion.deadline, at(3000));
        assert!(!suspicion.confirm(Rank(4), &CONFIG), "more than enough");
        suspicion.postpone(Duration::from_secs(2));
        assert_eq!(suspicion.deadline, at(5000));
    }

    #[test]
    fn where_nobody_can_confirm_the_wait_is_short_and_slow_members_wait_longer() {
        assert_eq!(Suspicion::new(1, Rank(0), 0, 1, at(0), &CONFIG).deadline, at(3000));
        assert_eq!(Suspicion::new(1, Rank(0), 1, 1, at(0), &CONFIG).deadline, at(6000));
        assert_eq!(Suspicion::new(1, Rank(0), 1, 3, at(0), &CONFIG).deadline, at(18_000));
    }
}
