//! What a target does whose places others get: it settles what is under way before, and drops what lies there behind that.

use std::rc::Rc;
use std::time::Duration;

use weir_pool::TargetPool;
use weir_proto::pool::PoolMap;
use weir_proto::{ContainerId, Key, ObjectId};
use weir_store::Replacement;

use super::Rebuild;
use super::pull::Round;
use crate::groups::is_replicated;

/// Longest wait until all is settled and decided that was under way when places began to be handed over: members store a change far sooner.
const SETTLED_MAX: Duration = Duration::from_secs(2);

impl Rebuild {
    /// Waits until nothing is unsettled any more that this target leads of groups that get other members, and no transaction is undecided
    /// that may concern them. None of that begins by the map of the round, or by a later one as long as that hands places over.
    pub(super) async fn settle_all(&self, pool: &TargetPool, round: Round) -> Result<(), String> {
        let rt = &self.admission.rt;
        let until = rt.now() + SETTLED_MAX;
        for change in self.replication.running(pool.id()) {
            let ended = rt.timeout_at(until, change.wait()).await;
            ended.map_err(|_| "a change is not settled in time".to_owned())?;
        }
        if !self.transactions.when_all_decided(pool, SETTLED_MAX).await? {
            return Err("a transaction is not decided in time".to_owned());
        }
        self.check_round(pool, round)
    }

    /// Drops what lies in places of others, once places have moved and move no more.
    pub(super) fn look_for_moved(self: &Rc<Self>, pool: &Rc<TargetPool>) {
        let id = pool.id();
        let is_due = self.moved.borrow().contains(&id)
            && !self.dropping.borrow().contains(&id)
            && !self.running.borrow().contains_key(&id)
            && pool.with_map(|map| self.keeps_places(map));
        if !is_due {
            return;
        }
        self.moved.borrow_mut().remove(&id);
        self.dropping.borrow_mut().insert(id);
        let (rebuild, pool) = (Rc::clone(self), Rc::clone(pool));
        self.admission.rt.spawn(async move {
            if let Err(error) = rebuild.drop_moved(&pool).await {
                tracing::debug!(pool = pool.label(), error, "what lies in places of others is dropped later");
                rebuild.moved.borrow_mut().insert(id);
            }
            rebuild.dropping.borrow_mut().remove(&id);
        });
    }

    /// Whether this target serves, and no places move.
    fn keeps_places(&self, map: &PoolMap) -> bool {
        let own = self.own();
        let mut own = map.targets.iter().filter(|target| (target.rank, target.index) == own);
        own.any(|target| target.state.serves()) && map.moves_since().is_none()
    }

    async fn drop_moved(&self, pool: &TargetPool) -> Result<(), String> {
        let version = pool.with_map(|map| map.version);
        for summary in pool.shard().containers().into_iter().filter(|one| !one.destroying) {
            self.drop_moved_of(pool, summary.container, version).await?;
        }
        Ok(())
    }

    /// Drops what lies in places of others of one container, by one version of the map. Whoever gets such a place again gets all that
    /// counts there, so that it doesn't matter if it has begun to by a later map.
    async fn drop_moved_of(
        &self,
        pool: &TargetPool,
        container: ContainerId,
        version: u32,
    ) -> Result<(), String> {
        let holds = || pool.with_map(|map| map.version == version && self.keeps_places(map));
        let is_own = |object: ObjectId, dkey: Option<&Key>| self.has_place(pool, object, dkey);
        let wanted = |object: ObjectId, dkey: Option<&Key>| is_replicated(object) && !is_own(object, dkey);
        let is_shared = |object: ObjectId| self.has_some_place(pool, object);
        let bound = self.admission.epoch();
        let mut from = Vec::new();
        loop {
            if !holds() {
                return Err("the map has changed meanwhile".to_owned());
            }
            let held = pool.shard().held_history(container, &from, &wanted).await;
            let held = held.map_err(|error| error.to_string())?;
            if held.len() > 0 {
                let replacement = Replacement { bound, holds: &holds, is_shared: &is_shared };
                let gone = pool.shard().drop_history(container, &held, &replacement).await;
                gone.map_err(|error| error.to_string())?;
            }
            match held.until() {
                [] => return Ok(()),
                until if until <= from.as_slice() => return Err("history doesn't go on".to_owned()),
                until => from = until.to_vec(),
            }
        }
    }

    /// Whether this target has the place of a dkey, or those of all groups of an object.
    fn has_place(&self, pool: &TargetPool, object: ObjectId, dkey: Option<&Key>) -> bool {
        let own = self.own();
        let is_own_in = |map: &PoolMap, ids: &[u32]| {
            ids.iter().any(|id| map.target(*id).is_some_and(|target| (target.rank, target.index) == own))
        };
        let found = pool.with_layout(object, |layout, map| match dkey {
            Some(dkey) => is_own_in(map, layout.group(layout.group_index(dkey.hash()))),
            None => (0..layout.group_count()).all(|group| is_own_in(map, layout.group(group))),
        });
        // What can't be laid out stays.
        found.unwrap_or(true)
    }

    fn has_some_place(&self, pool: &TargetPool, object: ObjectId) -> bool {
        let own = self.own();
        let found = pool.with_layout(object, |layout, map| {
            let is_own = |id: &u32| map.target(*id).is_some_and(|one| (one.rank, one.index) == own);
            layout.shards.iter().any(is_own)
        });
        found.unwrap_or(true)
    }
}
