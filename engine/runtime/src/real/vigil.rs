//! How long an executor stays awake for something that it was told to expect.
//!
//! Waking a thread takes longer than many a transfer does, so a thread that expects the end of a transfer should be
//! awake then. But what is expected may take milliseconds, or may need the very core that waits for it. Whether staying
//! awake pays is learned from how earlier waits ended. Each wait in vain makes the following ones short, twice as many
//! of them as the one before. A wait that paid resets that.

use core::time::Duration;

/// Longest polling for what is expected. A lone piece of 1 MiB takes 80 µs where it is copied within a node and 400 µs
/// through a connection of the same node; at 10 Gb/s it takes longer than this, and to wake takes little of that.
pub(super) const VIGIL_MAX: Duration = Duration::from_micros(500);

/// Most short waits after one in vain: then those in vain cost no more than eight microseconds for each wait.
const PENANCE_MAX: u32 = 64;

/// What has been learned from waits so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Vigil {
    /// Waits that are still to be short.
    left: u32,
    /// Short waits that the last one in vain was followed by.
    penance: u32,
}

impl Vigil {
    /// How long to poll for what is expected; `spin` is the ordinary poll budget.
    pub(super) fn patience(self, spin: Duration) -> Duration {
        if self.left == 0 { spin.max(VIGIL_MAX) } else { spin }
    }

    /// A wait has ended. `awake`: what was expected came before the executor went to sleep.
    pub(super) fn ended(&mut self, awake: bool) {
        if self.left > 0 {
            self.left -= 1;
        } else if awake {
            self.penance = 0;
        } else {
            self.penance = (self.penance * 2).clamp(1, PENANCE_MAX);
            self.left = self.penance;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIN: Duration = Duration::from_micros(20);

    #[test]
    fn staying_awake_goes_on_as_long_as_it_pays() {
        let mut vigil = Vigil::default();
        for _ in 0..100 {
            assert_eq!(vigil.patience(SPIN), VIGIL_MAX);
            vigil.ended(true);
        }
    }

    #[test]
    fn of_many_waits_in_vain_few_are_long_and_one_that_pays_forgives_all() {
        let mut vigil = Vigil::default();
        let long = |vigil: &mut Vigil| {
            let long = vigil.patience(SPIN) == VIGIL_MAX;
            vigil.ended(!long);
            long
        };
        let first = (0..1000).filter(|_| long(&mut vigil)).count();
        assert_eq!(first, 7 + (1000 - 127 - 7) / 65 + 1, "1, 2, 4 … 64 short ones between two long ones");
        while vigil.patience(SPIN) != VIGIL_MAX {
            vigil.ended(true);
        }
        vigil.ended(true);
        assert_eq!(vigil, Vigil::default());
    }

    #[test]
    fn an_executor_that_polls_longer_by_itself_is_not_made_to_sleep_sooner() {
        assert_eq!(Vigil::default().patience(VIGIL_MAX * 2), VIGIL_MAX * 2);
    }
}
