//! Shares of a container's quota, pure arithmetic.
//!
//! The pool service hands each target a share (grant) of the quota and targets enforce it alone, so that writes need
//! no coordination. The sum of grants never exceeds the quota. A target that needs more asks for it; the service
//! first gives from what is not granted, generously while much is left and sparingly towards the end, and when
//! nothing is left takes back what other targets were granted but don't use. In the same way the keeper of the list of pools hands
//! each pool of a tenant a share of the tenant's quota.

use std::collections::BTreeMap;

/// Least bytes given at once while there are some: a few requests of the largest payload, so that a target asks
/// seldom.
const STEP_MIN: u64 = 16 * 1024 * 1024;

/// Fraction of the free quota that a target gets, over all targets: half of it is kept for those that ask next.
const SHARE_DIVISOR: u64 = 2;

/// Quota that no target has. `grants` without limit (given before the quota was set) count as nothing.
pub(super) fn ungranted(quota: u64, grants: &BTreeMap<u32, Option<u64>>) -> u64 {
    let given = grants.values().flatten().fold(0_u64, |sum, grant| sum.saturating_add(*grant));
    quota.saturating_sub(given)
}

/// Fraction of the free quota that a target gets at most, when its share is less than [`STEP_MIN`]: of small quotas,
/// too, something is left for those that ask next.
const SMALL_DIVISOR: u64 = 8;

/// What a target that holds `used` bytes and is short of `wanted` gets in total, when `free` bytes are not granted
/// and the target has `granted`. Less than `used + wanted` means that the quota doesn't suffice.
pub(crate) fn enlarge(granted: u64, used: u64, wanted: u64, free: u64, targets: usize) -> u64 {
    let needed = used.saturating_add(wanted).saturating_sub(granted);
    let targets = u64::try_from(targets.max(1)).unwrap_or(u64::MAX);
    let generous = (free / SHARE_DIVISOR / targets).max(STEP_MIN.min(free / SMALL_DIVISOR));
    granted.saturating_add(needed.max(generous).min(free))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn a_first_grant_is_a_share_of_the_quota() {
        assert_eq!(enlarge(0, 0, 4096, 1024 * MIB, 8), 64 * MIB);
    }

    #[test]
    fn one_target_can_get_the_whole_quota() {
        let (quota, targets) = (64 * MIB, 6);
        let mut granted = 0;
        while granted < quota {
            let more = enlarge(granted, granted, 4096, quota - granted, targets);
            assert!(more > granted, "stuck at {granted}");
            granted = more;
        }
        assert_eq!(granted, quota);
    }

    #[test]
    fn grants_without_limit_do_not_count() {
        let grants = BTreeMap::from([(1, Some(30)), (2, None), (3, Some(20))]);
        assert_eq!(ungranted(100, &grants), 50);
        assert_eq!(ungranted(40, &grants), 0);
    }

    proptest! {
        #[test]
        fn a_grant_never_exceeds_what_is_free(granted: u32, used: u32, wanted: u32, free: u32, targets in 1_usize..100) {
            let (granted, free) = (u64::from(granted), u64::from(free));
            let total = enlarge(granted, u64::from(used), u64::from(wanted), free, targets);
            prop_assert!(total >= granted && total <= granted + free);
            let enough = granted + free >= u64::from(used) + u64::from(wanted);
            prop_assert_eq!(total >= u64::from(used) + u64::from(wanted), enough);
        }
    }
}
