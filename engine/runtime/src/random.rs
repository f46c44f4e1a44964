//! Pseudo-random numbers: xoshiro256** (Blackman and Vigna, 2018), seeded through splitmix64. Not for secrets
//! under simulation; a real executor seeds it from the operating system.

use core::cell::Cell;

/// A bijection of 64 bits that looks random (the finishing steps of splitmix64).
#[must_use]
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A generator that one thread shares by reference.
#[derive(Debug)]
pub struct Random {
    state: Cell<[u64; 4]>,
}

impl Random {
    /// The generator of this seed; equal seeds give equal sequences.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut walk = seed;
        let mut next = || {
            walk = walk.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(walk)
        };
        Self { state: Cell::new([next(), next(), next(), next()]) }
    }

    /// 64 random bits.
    pub fn next_u64(&self) -> u64 {
        let mut s = self.state.get();
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        self.state.set(s);
        result
    }

    /// A number in `0..bound`; 0 when `bound` is 0. The bias is below `bound / 2^64`.
    pub fn below(&self, bound: u64) -> u64 {
        u64::try_from((u128::from(self.next_u64()) * u128::from(bound)) >> 64).unwrap_or(0)
    }

    /// A number in `low..=high`; `low` when the range is empty.
    pub fn between(&self, low: u64, high: u64) -> u64 {
        match high.checked_sub(low) {
            None | Some(0) => low,
            Some(u64::MAX) => self.next_u64(),
            Some(span) => low + self.below(span + 1),
        }
    }

    /// True with this probability (values outside 0..=1 mean never and always).
    pub fn chance(&self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A number in `0.0..1.0` with 53 random bits.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact in an f64")]
    pub fn unit(&self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_sequences_and_other_seeds_others() {
        let take = |seed| {
            let random = Random::new(seed);
            (0..100).map(|_| random.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
    }

    #[test]
    fn bounds_are_kept_and_both_ends_are_reached() {
        let random = Random::new(1);
        let seen: std::collections::BTreeSet<u64> = (0..1000).map(|_| random.between(3, 6)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6]);
        assert_eq!(random.below(0), 0);
        assert!(!random.chance(0.0));
        assert!(random.chance(1.0));
    }
}
