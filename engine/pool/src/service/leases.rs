//! Leases of the map: an engine serves a pool with replicas only as long as it holds one. So a map without an engine is used no
//! sooner than that engine has ceased to serve by an earlier one.
//!
//! An engine counts from the moment at which it sent its request, by its own monotonic clock. The service counts from the moment at
//! which it granted the lease, by its own, and adds what the two clocks may run apart. No clock is compared with another.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weir_proto::Rank;
use weir_proto::lease::LeaseWish;
use weir_proto::pool::{PoolMap, PoolTarget};
use weir_runtime::Instant;

use super::PoolService;

/// How long a lease lasts. Three renewals may get lost before it ends, and a dead engine's ends before membership has found out.
pub(crate) const LEASE: Duration = Duration::from_secs(4);

/// What two monotonic clocks may run apart during a lease: a tenth, several times what a kernel's clock is slewed by.
const DRIFT: Duration = Duration::from_millis(400);

/// What the service answers to a wish.
pub(crate) enum Lease {
    /// It lasts so long from the moment at which the wish was sent.
    Granted(Duration),
    /// The sender goes by another map than this one.
    Other(PoolMap),
    /// There is none.
    Refused,
}

/// What engines may hold.
pub(super) struct Leases {
    /// When the service began to grant any. What was granted before isn't known.
    since: Instant,
    held: RefCell<BTreeMap<Rank, Held>>,
    /// Engines that get none: they are about to be taken out of the map.
    barred: RefCell<BTreeSet<Rank>>,
}

/// What one engine may hold.
#[derive(Clone, Copy)]
struct Held {
    /// When its lease has ended at the latest.
    until: Instant,
    /// When it was last heard of while it held one.
    heard: Instant,
}

impl Leases {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, held: RefCell::default(), barred: RefCell::default() }
    }

    fn of(&self, rank: Rank) -> Held {
        let unknown = Held { until: self.since + LEASE + DRIFT, heard: self.since };
        self.held.borrow().get(&rank).copied().unwrap_or(unknown)
    }

    /// When the lease of an engine has ended at the latest.
    pub(super) fn end(&self, rank: Rank) -> Instant {
        self.of(rank).until
    }

    /// When an engine was last heard of while it held a lease.
    pub(super) fn heard(&self, rank: Rank) -> Instant {
        self.of(rank).heard
    }

    /// An engine is as good as heard of: it isn't expected to hold a lease.
    pub(super) fn excuse(&self, rank: Rank, now: Instant) {
        let held = self.of(rank);
        self.held.borrow_mut().insert(rank, Held { heard: now, ..held });
    }

    /// These engines get none from now on, and no others.
    pub(super) fn bar(&self, ranks: BTreeSet<Rank>) {
        self.barred.replace(ranks);
    }

    fn grant(&self, rank: Rank, held: bool, now: Instant) -> bool {
        let known = self.of(rank);
        let is_barred = self.barred.borrow().contains(&rank);
        let until = if is_barred { known.until } else { known.until.max(now + LEASE + DRIFT) };
        let heard = if held { now } else { known.heard };
        self.held.borrow_mut().insert(rank, Held { until, heard });
        !is_barred
    }
}

impl PoolService {
    /// Grants an engine a lease of the map, if it goes by the newest.
    ///
    /// A service that has several replicas may call this only while it knows that no other one leads: it grants nothing that
    /// a later leader wouldn't wait for, since that one waits for a whole lease from its own beginning on.
    pub(crate) fn lease(&self, rank: Rank, wish: &LeaseWish) -> Lease {
        let pool = self.pool.upgrade().filter(|pool| pool.is_leased() && !self.stopped.get());
        let Some(pool) = pool else { return Lease::Refused };
        let map = &pool.record.borrow().map;
        let mut own = map.targets.iter().filter(|target| target.rank == rank).peekable();
        if own.peek().is_none() {
            return Lease::Refused;
        }
        if wish.version != map.version {
            return Lease::Other(map.clone());
        }
        let takes_part = own.any(PoolTarget::takes_part);
        let now = self.engines.runtime().now();
        if takes_part && self.leases.grant(rank, wish.held, now) {
            Lease::Granted(LEASE)
        } else {
            Lease::Refused
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::tests::served_by;
    use crate::target::tests::POOL;
    use weir_proto::TargetIndex;
    use weir_proto::pool::TargetState;

    const RANK: Rank = Rank(3);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn what_was_granted_before_the_service_began_is_waited_for() {
        let leases = Leases::new(at(1000));
        assert_eq!(leases.end(RANK), at(5400));
        assert!(leases.grant(RANK, false, at(1001)));
        assert_eq!(leases.end(RANK), at(5401));
        assert_eq!(leases.end(Rank(4)), at(5400), "of another nothing is known");
    }

    #[test]
    fn who_is_barred_gets_no_more_and_keeps_what_it_has() {
        let leases = Leases::new(at(0));
        assert!(leases.grant(RANK, false, at(9000)));
        leases.bar([RANK].into());
        assert!(!leases.grant(RANK, true, at(10_000)));
        assert!(leases.grant(Rank(4), true, at(10_000)));
        assert_eq!(leases.end(RANK), at(13_400));
        leases.bar(BTreeSet::new());
        assert!(leases.grant(RANK, true, at(11_000)));
        assert_eq!(leases.end(RANK), at(15_400));
    }

    #[test]
    fn who_does_not_get_its_leases_is_not_heard_of() {
        let leases = Leases::new(at(0));
        assert!(leases.grant(RANK, false, at(1000)));
        assert!(leases.grant(RANK, false, at(2000)));
        assert_eq!(leases.heard(RANK), at(0));
        assert!(leases.grant(RANK, true, at(3000)));
        assert_eq!(leases.heard(RANK), at(3000));
        leases.excuse(RANK, at(4000));
        assert_eq!((leases.heard(RANK), leases.end(RANK)), (at(4000), at(7400)));
    }

    #[test]
    fn a_lease_is_for_who_takes_part_by_the_newest_map() {
        let granted = |redundancy, rank, version| {
            let mut targets: Vec<_> =
                (0..3).map(|id| PoolTarget::serving(id, Rank(id), TargetIndex(0))).collect();
            targets[1].enter(TargetState::Down, 1);
            targets[2].enter(TargetState::Up, 1);
            let (_world, _node, _store, service, _pool) = served_by(targets, redundancy);
            match service.lease(Rank(rank), &LeaseWish { pool: POOL, version, held: false }) {
                Lease::Granted(lasts) => Some(lasts),
                Lease::Other(map) => {
                    assert_ne!(map.version, version);
                    None
                }
                Lease::Refused => None,
            }
        };
        assert_eq!(granted(1, 0, 1), Some(LEASE));
        assert_eq!(granted(1, 2, 1), Some(LEASE), "it takes writes");
        assert_eq!(granted(1, 1, 1), None, "it is down");
        assert_eq!(granted(1, 7, 1), None, "no engine of the pool");
        assert_eq!((granted(1, 0, 0), granted(1, 0, 2)), (None, None), "another map");
        assert_eq!(granted(0, 0, 1), None, "a pool without redundancy");
    }
}
