//! Which engines replicate the service of a pool: as many as its redundancy asks for, and others in the place of those that are lost for
//! good or drained. The rules, and why no command is lost, are in docs/explanation/pools.md.
//!
//! The map names them ([`PoolMap::service`]), so that targets and clients find the one that leads. Whoever takes part in the group is
//! named there: one that joins is named before it takes part, and one that leaves is named until it takes part no more. So after a crash
//! in the middle the next leader goes on with what the map and the members of the group say.

use std::rc::Rc;
use std::time::Duration;

use weir_proto::pool::{PoolMap, PoolTarget, ServiceJoin, ServiceRanks, TargetPool, TargetState};
use weir_proto::{Der, Rank, TargetIndex, opcode};
use weir_raft::{Replica, Replicas};
use weir_runtime::join_all;

use super::leadership::Led;
use super::{PoolService, STORING_MAX};
use crate::error::Failed;
use crate::record::{self, NAME_MAP, PoolRecord, SCOPE_SERVICE};

/// How often the leader looks after the replicas.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Longest wait for an engine to begin a replica: a few writes to its log.
const JOIN_LIMIT: Duration = Duration::from_secs(2);

/// Longest wait for an engine to say what it knows of the replicas: it answers from memory.
const KNOWN_LIMIT: Duration = Duration::from_millis(500);

/// Longest wait until the only member of a group leads: it needs nobody's vote.
const LEADING_MAX: Duration = Duration::from_secs(5);

/// Engines that are asked at once.
const ASKED_AT_ONCE: usize = 32;

/// The target of an engine that holds its replica.
fn holder(map: &PoolMap, rank: Rank) -> Option<&PoolTarget> {
    map.targets.iter().find(|target| target.rank == rank && target.index == TargetIndex(0))
}

/// Whether an engine leaves the pool: it is drained, or has been away for so long that others get its places.
pub(super) fn is_leaving(map: &PoolMap, rank: Rank) -> bool {
    holder(map, rank).is_none_or(|target| {
        let is_given_up = target.state == TargetState::DownOut || (target.excluded && target.state.is_lost());
        is_given_up || target.leaving != 0 || target.draining
    })
}

/// One change of the replicas.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Plan {
    /// Who takes part no more.
    leaves: Option<Rank>,
    /// Who may take part, the best first; none: nobody comes in the place of who leaves.
    candidates: Vec<Rank>,
}

/// What is to be changed next, if anything. `own` leaves last, since it leads; `is_there` says whether an engine lives.
fn plan(record: &PoolRecord, own: Rank, is_there: impl Fn(Rank) -> bool) -> Option<Plan> {
    let (map, replicas) = (&record.map, record.replicas());
    let (mut leaving, staying): (Vec<Rank>, Vec<Rank>) =
        replicas.iter().copied().partition(|rank| is_leaving(map, *rank));
    leaving.sort_by_key(|rank| *rank == own);
    let serves = |rank: &Rank| {
        holder(map, *rank).is_some_and(|target| target.state == TargetState::UpIn && !target.in_doubt)
    };
    let may =
        |rank: &Rank| !replicas.contains(rank) && serves(rank) && !is_leaving(map, *rank) && is_there(*rank);
    let mut candidates: Vec<Rank> = map.ranks().into_iter().filter(may).collect();
    candidates.sort_by_key(|rank| record.nearness(*rank, &staying));
    let has_places = |rank: &Rank| holder(map, *rank).is_some_and(|one| one.state != TargetState::New);
    let engines = map.ranks().into_iter().filter(|rank| has_places(rank) && !is_leaving(map, *rank)).count();
    let wanted = record.wanted_replicas(engines);
    let (is_alone, is_even) = (replicas.len() == 1, replicas.len().is_multiple_of(2));
    if let Some(leaves) = leaving.first().copied().filter(|_| !is_alone) {
        // Without another one it may come back; but of two that are lost, or where an even number is left, one is better missed.
        let is_better_missed = leaving.len() > 1 || is_even;
        if is_even && replicas.len() > wanted {
            candidates.clear();
        }
        let changes = !candidates.is_empty() || is_better_missed;
        return changes.then_some(Plan { leaves: Some(leaves), candidates });
    }
    // One more alone survives no more, where the number is odd.
    let needed = if is_even { 1 } else { 2 };
    let grows = wanted > replicas.len() && candidates.len() >= needed;
    // Who runs the service alone goes when another one has all of it.
    let makes_way = is_alone && !leaving.is_empty() && !candidates.is_empty();
    (grows || makes_way).then_some(Plan { leaves: None, candidates })
}

/// Looks after the replicas of a service for as long as this one leads.
pub(super) fn start(service: &Rc<PoolService>) {
    if service.led.get().is_some() {
        PoolService::repeat(service, LOOK_INTERVAL, async |service| {
            if let Err(error) = service.look_after_replicas().await {
                tracing::debug!(pool = service.label(), %error, "the replicas of a pool's service stay as they are");
            }
        });
    }
}

impl PoolService {
    /// Whether other engines are to replicate the service, which runs alone.
    pub(crate) fn wants_others(&self) -> bool {
        let record = self.pool().ok().filter(|record| record.redundancy > 0 && self.led.get().is_none());
        let own = self.engines.own_rank();
        record.is_some_and(|record| plan(&record, own, |rank| !self.spread.is_dead(rank)).is_some())
    }

    /// Makes the service, which runs alone, that of a group whose only member is here. What it has stored is the state of the group.
    ///
    /// # Errors
    /// When that can't be stored. The service goes on alone then.
    pub(crate) async fn begin_group(self: &Rc<Self>, replicas: &Replicas) -> Result<Rc<Replica>, Failed> {
        let rt = self.engines.runtime();
        let _mapping = self.mapping.acquire().await;
        // Nothing is being stored, and nothing will be, before the group has it.
        let _stored = self.storing.acquire_many(STORING_MAX).await;
        let record = self.pool()?;
        let map = record::change(SCOPE_SERVICE, NAME_MAP, Some(record::encode(&record.map)));
        self.shard.change_attributes(&[map]).await?;
        weir_raft::prepare_with_state(&self.shard, self.engines.own_rank()).await?;
        let replica = replicas.open(self.shard.clone(), Rc::new(record::scopes_of_service)).await?;
        let until = rt.now() + LEADING_MAX;
        let leadership = loop {
            let changed = replica.changed();
            if let Some(leadership) = replica.leadership() {
                break leadership;
            }
            if rt.timeout_at(until, changed).await.is_err() {
                replicas.close(self.shard.id());
                return Err(Failed::Leaderless(self.shard.id()));
            }
        };
        let led = Led { replica: Rc::clone(&replica), leadership };
        self.led.set(led).map_err(|_| Failed::Deposed(self.shard.id()))?;
        tracing::info!(
            pool = record.label,
            "other engines may replicate the service of a pool that one has run alone"
        );
        start(self);
        Ok(replica)
    }

    async fn look_after_replicas(&self) -> Result<(), Failed> {
        let Some(led) = self.led.get() else { return Ok(()) };
        self.name_members(led).await?;
        self.admit_replicas().await?;
        let record = self.pool()?;
        // Another map would take back that places are handed over.
        if record.map.handing > 0 {
            return Ok(());
        }
        let own = self.engines.own_rank();
        let Some(Plan { leaves, candidates }) = plan(&record, own, |rank| !self.spread.is_dead(rank)) else {
            return Ok(());
        };
        if leaves == Some(own) {
            self.hand_over(led, &record.map);
            return Ok(());
        }
        if record.map.service.is_empty() && !self.all_read_names(&record.map).await {
            return Ok(());
        }
        let joins = self.find_joining(led, &candidates).await?;
        if joins.is_none() && !candidates.is_empty() {
            return Ok(());
        }
        if let Some(rank) = leaves {
            self.dismiss_replica(rank).await?;
        }
        let replicas = record.replicas().into_iter().filter(|rank| Some(*rank) != leaves).chain(joins);
        self.name(replicas.collect()).await?;
        tracing::warn!(pool = record.label, ?leaves, ?joins, "other engines replicate the service of a pool");
        match joins {
            Some(rank) => self.change_replica(rank, true).await,
            None => Ok(()),
        }
    }

    /// Has the map name all members. It may have forgotten some, since a leader of an earlier release has made it.
    async fn name_members(&self, led: &Led) -> Result<(), Failed> {
        let (members, named) = (led.replica.members(), self.pool()?.replicas());
        let is_complete = members.iter().all(|rank| named.contains(rank));
        if is_complete { Ok(()) } else { self.name(members).await }
    }

    async fn name(&self, replicas: Vec<Rank>) -> Result<(), Failed> {
        let change = |map: &mut PoolMap, _| {
            map.service = replicas;
            Some(())
        };
        self.change_map(change).await.map(drop)
    }

    /// Has replicas take part that the map names and whose engines are there: those that join, and those whose shards were made anew.
    async fn admit_replicas(&self) -> Result<(), Failed> {
        let record = self.pool()?;
        let is_there = |rank: Rank| {
            let takes_writes = |target: &PoolTarget| target.state.takes_writes();
            holder(&record.map, rank).is_some_and(takes_writes) && !is_leaving(&record.map, rank)
        };
        for rank in record.replicas().into_iter().filter(|rank| is_there(*rank)) {
            self.change_replica(rank, true).await?;
        }
        Ok(())
    }

    /// Has another replica lead, since this one's engine is drained.
    fn hand_over(&self, led: &Led, map: &PoolMap) {
        let own = self.engines.own_rank();
        let may = |rank: &Rank| *rank != own && !is_leaving(map, *rank) && !self.spread.is_dead(*rank);
        if let Some(next) = led.replica.current_members().into_iter().find(may) {
            tracing::info!(pool = self.label(), rank = %next, "another replica is to lead a pool's service");
            led.replica.hand_over(next);
        }
    }

    /// Whether all engines of the pool read in its map who replicates the service. Those of earlier releases would look for it where it
    /// was at first.
    async fn all_read_names(&self, map: &PoolMap) -> bool {
        let request = TargetPool { pool: self.shard.id() };
        let ranks: Vec<Rank> = map.in_service().collect();
        for some in ranks.chunks(ASKED_AT_ONCE) {
            let asked = some.iter().map(|rank| {
                let (to, opcode) = (TargetIndex(0), opcode::POOL_SERVICE_RANKS);
                self.engines.ask::<_, ServiceRanks>(*rank, to, opcode, &request, KNOWN_LIMIT)
            });
            let answers = join_all(asked).await;
            if answers.iter().any(|answer| answer.as_ref().is_err_and(|error| error.der() == Der::NOSYS)) {
                return false;
            }
        }
        true
    }

    /// The first of some engines that begins a replica. No other replica has led meanwhile: whom this one knows to take no part
    /// takes none, so that one that has lost its votes may begin again.
    async fn find_joining(&self, led: &Led, candidates: &[Rank]) -> Result<Option<Rank>, Failed> {
        self.confirm().await?;
        let members = led.replica.members();
        for rank in candidates.iter().copied().filter(|rank| !members.contains(rank)) {
            let join = ServiceJoin { pool: self.shard.id(), members: members.clone() };
            let (to, opcode) = (TargetIndex(0), opcode::POOL_SERVICE_JOIN);
            match self.engines.ask::<_, ()>(rank, to, opcode, &join, JOIN_LIMIT).await {
                Ok(()) => return Ok(Some(rank)),
                Err(error) => tracing::info!(pool = self.label(), %error, "an engine begins no replica"),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::moves::tests::map;
    use crate::target::tests::{POOL, SECRET};
    use weir_proto::TenantId;
    use weir_proto::pool::PoolEngine;

    fn record(map: PoolMap, redundancy: u32) -> PoolRecord {
        let (label, object_class) = ("tank".to_owned(), String::new());
        let (pool, secret, tenant, size) = (POOL, SECRET, TenantId::SYSTEM, 0);
        PoolRecord { pool, label, secret, size, service: Rank(0), map, object_class, tenant, redundancy }
    }

    /// What is planned by rank 0, which leads: who leaves, and who may come.
    fn planned(record: &PoolRecord, dead: &[u32]) -> Option<(Option<u32>, Vec<u32>)> {
        let plan = plan(record, Rank(0), |rank| !dead.contains(&rank.0))?;
        let ranks = plan.candidates.into_iter().map(|rank| rank.0).collect();
        Some((plan.leaves.map(|rank| rank.0), ranks))
    }

    /// Engines of which the last ones have joined later.
    fn grown(engines: &str, original: usize) -> PoolMap {
        let mut map = map(engines);
        for target in map.targets.iter_mut().filter(|target| target.rank.0 as usize >= original) {
            target.joined = 2;
        }
        map
    }

    #[test]
    fn who_is_lost_for_good_or_drained_is_replaced_by_another_engine_and_nobody_else() {
        let of = |engines: &str| planned(&record(grown(engines, 3), 1), &[]);
        assert_eq!(of("......"), None);
        assert_eq!(of(".-...."), None, "it may come back");
        assert_eq!(of(".o...."), Some((Some(1), vec![3, 4, 5])));
        assert_eq!(of(".o-+?."), Some((Some(1), vec![5])), "who serves and is sure");
        assert_eq!(planned(&record(grown(".o....", 3), 1), &[3]), Some((Some(1), vec![4, 5])));
        assert_eq!(of(".o."), None, "nobody is there in its place");
        let mut drained = grown("....", 3);
        drained.targets[0].draining = true;
        assert_eq!(planned(&record(drained.clone(), 1), &[]), Some((Some(0), vec![3])));
        assert!(drained.targets[1].enter(TargetState::Down, 3) && drained.targets[1].leave(4));
        assert_eq!(planned(&record(drained, 1), &[]), Some((Some(1), vec![3])), "who leads goes last");
    }

    #[test]
    fn of_two_that_are_lost_one_is_better_missed() {
        let mut map = map("oo...");
        map.service = [0, 1, 2, 3, 4].map(Rank).to_vec();
        assert_eq!(planned(&record(map.clone(), 2), &[]), Some((Some(1), vec![])));
        map.service = [0, 2, 3, 4].map(Rank).to_vec();
        assert_eq!(planned(&record(map.clone(), 2), &[]), Some((Some(0), vec![])));
        map.service = [2, 3, 4].map(Rank).to_vec();
        assert_eq!(planned(&record(map, 2), &[]), None);
    }

    #[test]
    fn a_pool_that_has_grown_gets_as_many_replicas_as_its_redundancy_asks_for() {
        assert_eq!(planned(&record(grown("....", 4), 2), &[]), None, "four would survive no more than three");
        assert_eq!(planned(&record(grown(".....", 4), 2), &[]), Some((None, vec![3, 4])));
        assert_eq!(
            planned(&record(grown(".....", 4), 2), &[4]),
            None,
            "one more alone would survive no more"
        );
        let mut half = grown(".....", 4);
        half.service = [0, 1, 2, 3].map(Rank).to_vec();
        assert_eq!(planned(&record(half, 2), &[]), Some((None, vec![4])));
        assert_eq!(planned(&record(grown(".....", 4), 1), &[]), None);
    }

    #[test]
    fn a_service_that_runs_alone_gets_two_more_or_makes_way() {
        assert_eq!(planned(&record(grown("..", 2), 1), &[]), None);
        assert_eq!(planned(&record(grown("...", 2), 1), &[]), Some((None, vec![1, 2])));
        assert_eq!(planned(&record(grown("...", 2), 1), &[1]), None, "two survive no more than one");
        let mut drained = grown("...", 2);
        drained.targets[0].draining = true;
        assert_eq!(planned(&record(drained, 1), &[]), Some((None, vec![1, 2])));
        let mut gone = grown("o..", 2);
        gone.service = [0, 1].map(Rank).to_vec();
        assert_eq!(planned(&record(gone, 1), &[]), Some((Some(0), vec![])), "one is enough for two engines");
    }

    #[test]
    fn who_comes_is_in_another_failure_domain_where_there_is_one() {
        let mut map = grown(".o....", 3);
        let place = |rank: u32, node: &str| PoolEngine { rank: Rank(rank), path: vec![node.to_owned()] };
        map.engines = vec![place(0, "a"), place(2, "b"), place(3, "a"), place(4, "b"), place(5, "c")];
        assert_eq!(planned(&record(map, 1), &[]), Some((Some(1), vec![5, 3, 4])));
    }
}
