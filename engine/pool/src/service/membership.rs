//! Which targets take part in a pool with replicas: engines that are away are taken out of the map while the pool stays within its
//! redundancy, and what comes back takes part again. The rules, and why they lose nothing, are in docs/explanation/replication.md.
//!
//! What is decided here is a function of the map, of which engines are away, and of leases. A service that starts decides it anew.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use weir_layout::domains_with;
use weir_proto::Rank;
use weir_proto::pool::{PoolMap, PoolTarget, TargetState};

use super::PoolService;
use crate::error::Failed;

/// How often the service looks which engines are away.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// An engine that takes no lease for this long is away, whatever membership believes: it reaches others, but not the service.
/// Longer than a lease, so that one whose requests are lost for a moment only pauses.
const SILENCE: Duration = Duration::from_secs(6);

/// The same for an engine that membership has found dead. One that is back takes leases before membership believes it.
const SILENCE_OF_THE_DEAD: Duration = Duration::from_secs(3);

/// Whether a target is missing in the groups that it has places in: it serves no reads, and no other one has its places.
pub(super) fn is_missing(target: &PoolTarget) -> bool {
    !target.state.serves() && target.state != TargetState::New && target.out == 0
}

/// Whether a pool stays within its redundancy without further targets: not more fault domains miss targets than replicas may be
/// lost of each group.
pub(super) fn stays_within(map: &PoolMap, redundancy: u32, without: impl Fn(&PoolTarget) -> bool) -> bool {
    domains_with(map, |target| is_missing(target) || without(target)) <= redundancy as usize
}

/// Whether engines may be taken out of a map. A target in doubt may lack what was read from others: from those that are sure, and
/// from those in doubt of a greater rank. So it counts as missing when one of these goes.
fn may_go(map: &PoolMap, redundancy: u32, away: &BTreeSet<Rank>) -> bool {
    // Who gets all of its places from others is missed by nobody.
    let goes = |target: &PoolTarget| away.contains(&target.rank) && !target.gains_all();
    let in_service = || map.targets.iter().filter(|target| target.state.serves());
    let is_read_before =
        |one: &PoolTarget, other: &PoolTarget| !one.in_doubt || (other.in_doubt && one.rank > other.rank);
    let lacks = |target: &PoolTarget| {
        target.in_doubt && in_service().filter(|one| goes(one)).any(|one| is_read_before(one, target))
    };
    stays_within(map, redundancy, |target| goes(target) || lacks(target))
}

/// The engine in doubt that catches up next: the one of the lowest rank, so that those of greater ranks, which are read before it,
/// have what it lacks.
fn next_in_doubt(map: &PoolMap, redundancy: u32) -> Option<Rank> {
    let rank = map.in_doubt().map(|target| target.rank).min()?;
    stays_within(map, redundancy, |target| target.rank == rank).then_some(rank)
}

/// Looks after the members of a pool with replicas for as long as its service lives.
pub(super) fn start(service: &Rc<PoolService>) {
    if service.pool().is_ok_and(|record| record.redundancy > 0) {
        PoolService::repeat(service, LOOK_INTERVAL, async |service| {
            // What could not be stored is tried again.
            if let Err(error) = service.look_after_members().await {
                tracing::warn!(pool = service.label(), %error, "the pool map can't be changed");
            }
        });
    }
}

impl PoolService {
    async fn look_after_members(&self) -> Result<(), Failed> {
        let record = self.pool()?;
        let (map, redundancy) = (record.map, record.redundancy);
        let mut away = self.away(&map);
        away.extend(self.excluding.borrow().iter().copied());
        let may_go = may_go(&map, redundancy, &away);
        if self.stuck.replace(!may_go) == may_go {
            let pool = &record.label;
            if may_go {
                tracing::info!(pool, "the pool is within its redundancy again");
            } else {
                tracing::error!(
                    pool,
                    redundancy,
                    ?away,
                    "the pool is beyond its redundancy: what needs these engines waits for them"
                );
            }
        }
        let leaving = if may_go { away } else { BTreeSet::new() };
        // From here on no lease is granted to them: they stay in the map until what they hold has ended.
        self.leases.bar(leaving.clone());
        let now = self.engines.runtime().now();
        let ended: BTreeSet<Rank> =
            leaving.into_iter().filter(|rank| self.leases.end(*rank) <= now).collect();
        if !ended.is_empty() {
            self.take_out(&ended).await?;
            // One that is back before the next look is in the map by then, and has had no time to take a lease.
            let now = self.engines.runtime().now();
            for rank in ended {
                self.leases.excuse(rank, now);
            }
        }
        self.replace_shards(&map, redundancy).await?;
        self.resolve_doubt(redundancy).await?;
        self.look_after_moves(redundancy).await
    }

    /// Engines with targets in the map that are away: membership has found them dead, or they take no lease.
    fn away(&self, map: &PoolMap) -> BTreeSet<Rank> {
        let (now, own) = (self.engines.runtime().now(), self.engines.own_rank());
        let takes_part = |rank: &Rank| map.targets.iter().any(|one| one.rank == *rank && one.takes_part());
        let (inside, outside): (Vec<Rank>, Vec<Rank>) = map.ranks().into_iter().partition(takes_part);
        for rank in outside {
            self.leases.excuse(rank, now);
        }
        let is_away = |rank: &Rank| {
            let limit = if self.spread.is_dead(*rank) { SILENCE_OF_THE_DEAD } else { SILENCE };
            *rank != own && now.saturating_duration_since(self.leases.heard(*rank)) >= limit
        };
        inside.into_iter().filter(is_away).collect()
    }

    /// Whether engines are away that can't be taken out of the map, since the pool would have less than its redundancy allows.
    #[must_use]
    pub fn is_beyond_redundancy(&self) -> bool {
        self.stuck.get()
    }

    /// Lets targets in doubt catch up, one engine after another.
    pub(super) async fn resolve_doubt(&self, redundancy: u32) -> Result<(), Failed> {
        let turn = |map: &mut PoolMap, version| {
            let rank = next_in_doubt(map, redundancy)?;
            for target in map.targets.iter_mut().filter(|one| one.rank == rank && one.in_doubt) {
                target.enter(TargetState::Up, version);
            }
            tracing::info!(%rank, version, "an engine that has started again catches up");
            Some(())
        };
        self.change_map(turn).await.map(drop)
    }

    /// Changes the map, when there is something to change. It is durable before this returns, and told in the background.
    pub(super) async fn change_map<T>(
        &self,
        change: impl FnOnce(&mut PoolMap, u32) -> Option<T>,
    ) -> Result<Option<T>, Failed> {
        let _permit = self.mapping.acquire().await;
        let mut map = self.pool()?.map;
        let version = map.version.saturating_add(1);
        let Some(changed) = change(&mut map, version) else { return Ok(None) };
        let Some(pool) = self.pool.upgrade() else { return Ok(None) };
        map.version = map.version.max(version);
        self.put_map(&pool, map).await?;
        self.gathered.borrow_mut().take();
        self.mapped.notify_one();
        Ok(Some(changed))
    }

    /// Takes the targets of engines out of the map.
    pub(super) async fn take_out(&self, ranks: &BTreeSet<Rank>) -> Result<(), Failed> {
        let pool = self.label();
        let change = |map: &mut PoolMap, version| {
            let mut lost = 0_u32;
            let concerned = |one: &&mut PoolTarget| ranks.contains(&one.rank) && !one.state.is_lost();
            for target in map.targets.iter_mut().filter(concerned) {
                lost += u32::from(target.enter(TargetState::Down, version));
                target.excluded |= self.excluding.borrow().contains(&target.rank);
            }
            (lost > 0).then(|| {
                tracing::error!(pool, ?ranks, targets = lost, version, "engines are out of the pool map");
            })
        };
        self.change_map(change).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::leases::Lease;
    use crate::service::tests::served_by;
    use crate::target::tests::POOL;
    use weir_proto::TargetIndex;
    use weir_proto::lease::LeaseWish;

    /// A map of engines with two targets each: in service, `?` in doubt, `-` down, `+` up.
    fn map(engines: &str) -> PoolMap {
        let mut map = PoolMap::new(9, Vec::new());
        for (rank, state) in (0..).zip(engines.chars()) {
            for index in 0..2 {
                let mut target = PoolTarget::serving(rank * 2 + index, Rank(rank), TargetIndex(index));
                match state {
                    '?' => target.in_doubt = true,
                    '-' => drop(target.enter(TargetState::Down, 5)),
                    '+' => drop(target.enter(TargetState::Up, 6)),
                    _ => {}
                }
                map.targets.push(target);
            }
        }
        map
    }

    fn goes(engines: &str, redundancy: u32, away: &[u32]) -> bool {
        may_go(&map(engines), redundancy, &away.iter().copied().map(Rank).collect())
    }

    #[test]
    fn engines_go_as_long_as_the_pool_stays_within_its_redundancy() {
        assert!(goes("....", 1, &[2]));
        assert!(!goes("....", 1, &[1, 2]), "none goes when both are away");
        assert!(goes("....", 2, &[1, 2]));
        assert!(!goes(".-..", 1, &[2]), "one is out");
        assert!(!goes(".+..", 1, &[2]), "one has not caught up");
        assert!(goes(".+..", 1, &[1]), "it is missing anyway");
    }

    #[test]
    fn who_has_no_places_yet_is_missed_by_nobody() {
        let mut map = map("....");
        map.targets.push(PoolTarget::joining(8, (Rank(4), TargetIndex(0)), 9));
        assert!(may_go(&map, 1, &[Rank(2), Rank(4)].into()));
        assert!(map.targets[8].enter(TargetState::UpIn, 10));
        assert!(!may_go(&map, 1, &[Rank(2), Rank(4)].into()));
    }

    #[test]
    fn engines_of_one_fault_domain_go_together() {
        let mut map = map("....");
        let place =
            |rank, node: &str| weir_proto::pool::PoolEngine { rank: Rank(rank), path: vec![node.into()] };
        map.engines = vec![place(0, "a"), place(1, "a"), place(2, "b"), place(3, "c")];
        assert!(may_go(&map, 1, &[Rank(0), Rank(1)].into()));
        assert!(!may_go(&map, 1, &[Rank(1), Rank(2)].into()));
    }

    #[test]
    fn who_may_have_what_others_lack_stays_in_the_map() {
        assert!(!goes("??.", 2, &[2]), "those in doubt may lack what it has shown");
        assert!(!goes("???", 1, &[2]), "it is read before the others");
        assert!(goes("???", 1, &[0]), "it is read behind all others");
        assert!(goes("??", 1, &[0]) && !goes("??", 1, &[1]));
    }

    #[test]
    fn who_is_back_before_the_next_look_stays_in_the_map() {
        let targets = (0..3).map(|id| PoolTarget::serving(id, Rank(id), TargetIndex(0)));
        let (world, node, _store, service, _pool) = served_by(targets.collect(), 1);
        let look = || {
            let service = Rc::clone(&service);
            world.block_on(&node, async move {
                let version = service.pool().expect("it has been made").map.version;
                service.lease(Rank(2), &LeaseWish { pool: POOL, version, held: true });
                service.look_after_members().await.expect("the store is sound");
                let targets = service.pool().expect("it is there").map.targets;
                (version, targets[1].state)
            })
        };
        let mut looks = 0;
        let (version, _) = loop {
            world.run_for(LOOK_INTERVAL);
            let (version, state) = look();
            if state == TargetState::Down {
                break (version, state);
            }
            looks += 1;
            assert!(looks < 20, "it takes no lease");
        };
        let back = Rc::clone(&service);
        let told = world.block_on(&node, async move { back.readmit(Rank(1), TargetIndex(0), version).await });
        told.expect("it is back");
        world.run_for(LOOK_INTERVAL);
        assert_eq!(look().1, TargetState::Up);
        let version = service.pool().expect("it is there").map.version;
        let lease = service.lease(Rank(1), &LeaseWish { pool: POOL, version, held: false });
        assert!(matches!(lease, Lease::Granted(_)), "nobody bars it");
    }

    #[test]
    fn those_in_doubt_catch_up_in_the_order_of_their_ranks_and_one_fault_domain_at_a_time() {
        let next = |engines| next_in_doubt(&map(engines), 1).map(|rank| rank.0);
        assert_eq!(next("..."), None);
        assert_eq!(next("???"), Some(0));
        assert_eq!(next("+??"), None, "the first has not caught up");
        assert_eq!(next(".??"), Some(1));
        assert_eq!(next("..?"), Some(2));
        assert_eq!(next("-.?"), None, "nobody else has its data");
    }
}
