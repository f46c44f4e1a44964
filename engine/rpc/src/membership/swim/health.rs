//! How well this member itself is doing (Lifeguard's local health). A member that misses its own deadlines, or hears
//! from no other, gives others more time instead of blaming them.

/// Worst score (Lifeguard: 8).
const SCORE_MAX: u32 = 8;

/// 0 is healthy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct LocalHealth(u32);

impl LocalHealth {
    pub(super) fn improve(&mut self) {
        self.0 = self.0.saturating_sub(1);
    }

    pub(super) fn worsen(&mut self) {
        self.0 = (self.0 + 1).min(SCORE_MAX);
    }

    pub(super) const fn score(self) -> u32 {
        self.0
    }

    /// What times are stretched by.
    pub(super) const fn multiplier(self) -> u32 {
        self.0 + 1
    }
}
