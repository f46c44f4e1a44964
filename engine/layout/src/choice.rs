//! The class of an object whose maker names none: by the class of its container, by hints, and by the pool.

use weir_proto::pool::PoolMap;

use crate::class::{ALL_GROUPS, ClassError, ObjectClass};
use crate::domains;

/// What the maker of an object says of how it will be used (`daos_oclass_hints_t`): one bit for redundancy, one for the number
/// of groups, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hints(u16);

/// How far an object spreads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Spread {
    /// As its type says.
    Typed,
    /// One group.
    One,
    /// At least so many groups, or so many percent of all.
    Part(usize, usize),
    /// All groups.
    All,
}

impl Hints {
    /// No hint.
    pub const NONE: Self = Self(0);

    /// Bits of redundancy (`DAOS_OCH_RDD_MASK`) and of the number of groups (`DAOS_OCH_SHD_MASK`).
    const REDUNDANCY: u16 = 0x0f;
    const SPREAD: u16 = 0x3f0;

    /// The hints of a number; `None` where it has unknown bits, or two that contradict each other.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Option<Self> {
        let is_known = bits & !(Self::REDUNDANCY | Self::SPREAD) == 0;
        let is_clear = (bits & Self::REDUNDANCY).count_ones() <= 1 && (bits & Self::SPREAD).count_ones() <= 1;
        if is_known && is_clear { Some(Self(bits)) } else { None }
    }

    const fn spread(self) -> Spread {
        match self.0 & Self::SPREAD {
            0x20 => Spread::One,
            0x40 => Spread::Part(128, 25),
            0x80 => Spread::Part(256, 50),
            0x100 => Spread::Part(1024, 70),
            0x200 => Spread::All,
            _ => Spread::Typed,
        }
    }
}

impl ObjectClass {
    /// The class of an object whose maker names none, in a container of this class. `is_flat` says that the object is an array
    /// or a flat key-value store, which spreads as the container's class does; others have one group. Hints change that. What the
    /// container's class survives the object survives in any case. Hints for replicas and for erasure coding have no effect: where the
    /// container's class has replicas so has the object, elsewhere the pool keeps none, and erasure coding isn't served.
    ///
    /// # Errors
    /// When the class isn't served, or needs more fault domains than the pool has.
    pub fn chosen(self, is_flat: bool, hints: Hints, map: &PoolMap) -> Result<Self, ClassError> {
        let protected = self.ensure_supported()?.ensure_fits(map)?;
        let all = domains::most_groups(&sizes(map), protected.replicas());
        let groups = match hints.spread() {
            Spread::Typed if is_flat => return Ok(protected),
            Spread::Typed | Spread::One => 1,
            Spread::Part(least, percent) => least.max(all.saturating_mul(percent) / 100),
            Spread::All => all,
        };
        let groups = u16::try_from(groups).ok().filter(|_| groups < all.max(2)).unwrap_or(ALL_GROUPS);
        Ok(protected.with_groups(groups))
    }

    /// Checks that a pool has as many fault domains as a group has replicas.
    ///
    /// # Errors
    /// When it has fewer.
    pub fn ensure_fits(self, map: &PoolMap) -> Result<Self, ClassError> {
        let domains = sizes(map).len();
        if self.replicas() > domains.max(1) { Err(ClassError::Domains(self, domains)) } else { Ok(self) }
    }
}

/// How many targets each fault domain of a pool has.
fn sizes(map: &PoolMap) -> Vec<usize> {
    domains::sizes(&domains::seats(map, |_| true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::pool::PoolTarget;
    use weir_proto::{Rank, TargetIndex};

    fn map(engines: u32, targets: u32) -> PoolMap {
        let target = |id| PoolTarget::serving(id, Rank(id / targets), TargetIndex(id % targets));
        PoolMap::new(1, (0..engines * targets).map(target).collect())
    }

    fn chosen(class: &str, is_flat: bool, bits: u16, map: &PoolMap) -> Result<String, ClassError> {
        let class: ObjectClass = class.parse().expect("a registered name");
        let hints = Hints::from_bits(bits).expect("known bits");
        class.chosen(is_flat, hints, map).map(|class| class.to_string())
    }

    #[test]
    fn the_containers_class_and_hints_choose() {
        let (small, large) = (map(3, 2), map(100, 16));
        for (class, is_flat, bits, expected) in [
            ("SX", true, 0, "SX"),
            ("SX", true, 16, "SX"),
            ("SX", false, 0, "S1"),
            ("S4", true, 0, "S4"),
            ("SX", true, 32, "S1"),
            ("S1", false, 512, "SX"),
            ("SX", true, 64, "SX"),
            ("SX", true, 4, "SX"),
            ("SX", false, 4, "S1"),
            ("RP_2GX", true, 4, "RP_2GX"),
            ("SX", true, 8, "SX"),
            ("RP_2GX", true, 0, "RP_2GX"),
            ("RP_2GX", false, 0, "RP_2G1"),
            ("RP_2GX", true, 2, "RP_2GX"),
            ("RP_2G1", true, 512, "RP_2GX"),
            ("RP_3GX", true, 32 | 4, "RP_3G1"),
        ] {
            assert_eq!(chosen(class, is_flat, bits, &small).as_deref(), Ok(expected), "{class} {bits}");
        }
        for (class, bits, expected) in [
            ("SX", 64, "S400"),
            ("SX", 128, "S800"),
            ("SX", 256, "S1120"),
            ("RP_2GX", 64, "RP_2G200"),
            ("RP_2GX", 256, "RP_2GX"),
        ] {
            assert_eq!(chosen(class, true, bits, &large).as_deref(), Ok(expected), "{class} {bits}");
        }
    }

    #[test]
    fn a_pool_with_one_domain_has_no_replicas() {
        let one = map(1, 4);
        assert_eq!(chosen("SX", true, 4, &one).as_deref(), Ok("SX"));
        let error = chosen("RP_2GX", true, 0, &one).expect_err("two domains are needed");
        assert!(error.to_string().contains("RP_2GX needs 2 fault domains, the pool has 1"), "{error}");
    }

    #[test]
    fn contradicting_and_unknown_hints_have_no_meaning() {
        for bits in [3, 6, 48, 1 << 10, 1 << 15] {
            assert_eq!(Hints::from_bits(bits), None, "{bits}");
        }
    }
}
