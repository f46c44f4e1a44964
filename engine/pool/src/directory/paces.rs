//! How fast the clients of a tenant may go at each target, pure arithmetic.
//!
//! Targets say how fast clients would go there, and get what they want as far as the limit of the tenant suffices, in equal parts
//! where it doesn't. What is left over goes to all of them, so that one whose clients begin to want more has some. A target gets no
//! more than the others have not: one that is to get less has what it was given last until it asks again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use weir_proto::quota::Rate;
use weir_proto::{Rank, TargetIndex};
use weir_runtime::Instant;

/// What a target was given counts for so long after it has asked: several times the interval in which targets ask.
const CLAIM: Duration = Duration::from_secs(1);

/// A part of what a target wants is added to it: clients that want more find some of it before the target asks again.
const HEADROOM_DIVISOR: u64 = 16;

/// The same part of the limit, over all targets.
const FLOOR_DIVISOR: u64 = 64;

/// What one target wants and has.
#[derive(Clone, Copy, Debug)]
struct Claim {
    wanted: Rate,
    allowed: Rate,
    at: Instant,
}

/// Claims of all targets on one tenant's rates.
#[derive(Default)]
pub(super) struct Paces(RefCell<BTreeMap<(Rank, TargetIndex), Claim>>);

impl Paces {
    /// What a target may do that wants so much, of so much over all targets. 0 means no limit.
    pub(super) fn allow(&self, place: (Rank, TargetIndex), wanted: Rate, limit: Rate, now: Instant) -> Rate {
        let mut claims = self.0.borrow_mut();
        claims.retain(|_, claim| now.saturating_duration_since(claim.at) < CLAIM);
        let claim = Claim { wanted, allowed: Rate::default(), at: now };
        claims.insert(place, claim);
        let allot = |limit: u64, of: fn(Rate) -> u64| {
            if limit == 0 {
                return 0;
            }
            let others = || claims.iter().filter(|(other, _)| **other != place).map(|(_, claim)| claim);
            let wants = others().map(|claim| of(claim.wanted));
            let fair = share_of(limit, of(wanted), wants.collect());
            let taken = others().fold(0_u64, |sum, claim| sum.saturating_add(of(claim.allowed)));
            fair.min(limit.saturating_sub(taken)).max(1)
        };
        let allowed = Rate {
            operations: allot(limit.operations, |rate| rate.operations),
            bandwidth: allot(limit.bandwidth, |rate| rate.bandwidth),
        };
        claims.insert(place, Claim { allowed, ..claim });
        allowed
    }
}

/// The share of one that wants `own` of `limit`, where others want something, too. Shares of all of them are the limit together.
fn share_of(limit: u64, own: u64, others: Vec<u64>) -> u64 {
    let count = others.len() as u64 + 1;
    let floor = limit / FLOOR_DIVISOR / count;
    let raised = |wanted: u64| wanted.saturating_add(wanted / HEADROOM_DIVISOR).saturating_add(floor);
    let mut wants: Vec<u64> = others.into_iter().chain([own]).map(raised).collect();
    wants.sort_unstable();
    let (mut left, mut of, mut level) = (limit, count, None);
    for want in wants {
        let fair = left / of;
        if want > fair {
            level = Some(fair);
            break;
        }
        left -= want;
        of -= 1;
    }
    match level {
        Some(level) => raised(own).min(level),
        None => raised(own).saturating_add(left / count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn operations(operations: u64) -> Rate {
        Rate { operations, bandwidth: 0 }
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_target_alone_has_all_and_who_wants_little_leaves_the_rest_to_others() {
        assert_eq!(share_of(1000, 0, vec![]), 1000);
        assert_eq!(share_of(1000, 5000, vec![]), 1000);
        assert_eq!(share_of(1000, 5000, vec![5000]), 500);
        let little = share_of(1000, 100, vec![5000]);
        assert!((100..130).contains(&little), "{little}");
        assert_eq!(share_of(1000, 5000, vec![100]), 1000 - little);
    }

    #[test]
    fn a_target_that_comes_waits_until_the_others_have_asked_again() {
        let paces = Paces::default();
        let [one, two] = [0, 1].map(|rank| (Rank(rank), TargetIndex(0)));
        let ask =
            |place, wanted, ms| paces.allow(place, operations(wanted), operations(1000), at(ms)).operations;
        assert_eq!(ask(one, 5000, 0), 1000);
        assert_eq!(ask(two, 5000, 10), 1, "the first has all of it");
        assert_eq!(ask(one, 5000, 250), 500);
        assert_eq!(ask(two, 5000, 260), 500);
        assert_eq!(ask(one, 5000, 1300), 1000, "nobody has asked for the other in a second");
    }

    #[test]
    fn what_has_no_limit_is_not_limited() {
        let paces = Paces::default();
        let place = (Rank(0), TargetIndex(0));
        let limit = Rate { operations: 0, bandwidth: 700 };
        let allowed = paces.allow(place, Rate { operations: 9, bandwidth: 9000 }, limit, at(0));
        assert_eq!(allowed, limit);
    }

    proptest! {
        #[test]
        fn shares_are_the_limit_together(limit in 1_u64..1 << 40, wants in prop::collection::vec(0_u64..1 << 40, 1..40)) {
            let share = |index: usize| {
                let mut others = wants.clone();
                let own = others.remove(index);
                share_of(limit, own, others)
            };
            let sum: u64 = (0..wants.len()).map(share).sum();
            // Each is rounded down.
            prop_assert!(sum <= limit && sum + wants.len() as u64 * 2 >= limit, "{sum} of {limit}");
        }

        #[test]
        fn what_targets_may_do_never_exceeds_the_limit_by_more_than_one_each(
            asked in prop::collection::vec((0_u32..5, 0_u64..3000, 0_u64..400), 1..60),
        ) {
            let (paces, mut now, mut allowed) = (Paces::default(), 0, BTreeMap::new());
            for (rank, wanted, pause) in asked {
                now += pause;
                let rate = paces.allow((Rank(rank), TargetIndex(0)), operations(wanted), operations(1000), at(now));
                allowed.insert(rank, (rate.operations, now));
                allowed.retain(|_, (_, since)| now - *since < 1000);
                let sum: u64 = allowed.values().map(|(rate, _)| *rate).sum();
                prop_assert!(sum <= 1000 + allowed.len() as u64, "{allowed:?}");
            }
        }
    }
}
