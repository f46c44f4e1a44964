//! What a service does differently where it is replicated: it leads for a term, and changes what most replicas have.

use std::rc::Rc;
use std::time::Duration;

use weir_group::{AskError, Engines, Spread};
use weir_proto::pool::{
    ContainerStateByLeader, PoolMap, PoolTarget, TargetContainerState, TargetContainerUsage,
};
use weir_proto::{Clock, Rank, opcode};
use weir_raft::{Command, CommandId, Leadership, Lost, Replica};
use weir_store::AttributeChange;

use super::PoolService;
use super::moves::begin_anew;
use crate::error::Failed;
use crate::record::{self, NAME_MAP, SCOPE_SERVICE};
use crate::target::TargetPool;

/// By what a service leads.
pub(crate) struct Led {
    /// This engine's replica.
    pub(crate) replica: Rc<Replica>,
    /// The term in which it leads, and since when.
    pub(crate) leadership: Leadership,
}

impl PoolService {
    /// Starts the service of a pool whose replica leads: takes over the map that the replicas have, and goes on with what earlier
    /// leaders have left.
    pub(crate) async fn lead(
        pool: &Rc<TargetPool>,
        engines: Rc<Engines>,
        spread: Rc<Spread>,
        clock: Rc<Clock>,
        led: Led,
    ) -> Result<Rc<Self>, Failed> {
        if let Some(bytes) = pool.shard().attribute(SCOPE_SERVICE, NAME_MAP) {
            let map: PoolMap = record::decode(pool.id(), &bytes)?;
            pool.set_map(map).await?;
        }
        Self::open(pool, engines, spread, clock, Some(led))
    }

    /// In which term this replica leads the pool's service, and since when on this engine's monotonic clock; `None`: the service isn't
    /// replicated.
    #[must_use]
    pub fn leadership(&self) -> Option<Leadership> {
        self.led.get().map(|led| led.leadership)
    }

    /// Ends the service: nothing begins any more.
    pub(crate) fn end(&self) {
        self.stopped.set(true);
        self.doomed.notify_one();
        self.mapped.notify_one();
        self.untold.notify_one();
    }

    /// Makes sure that no other replica has led at the time of this call: what is known here includes all that was acknowledged.
    ///
    /// # Errors
    /// When another replica leads, or may.
    pub async fn confirm(&self) -> Result<(), Failed> {
        let Some(led) = self.led.get() else { return Ok(()) };
        led.replica.confirm(led.leadership.term).await.map_err(|lost| self.lost(lost))
    }

    /// Whether a request of this name has made its change before, by what the replicas remember.
    pub(super) fn has_done(&self, id: Option<CommandId>) -> bool {
        let led = self.led.get().zip(id);
        led.is_some_and(|(led, id)| led.replica.result_of(&id).is_some())
    }

    pub(super) async fn propose(
        &self,
        led: &Led,
        id: Option<CommandId>,
        changes: &[AttributeChange],
    ) -> Result<(), Failed> {
        let command = Command { id, changes: changes.to_vec(), ..Command::default() };
        let proposed = led.replica.propose(led.leadership.term, command).await;
        proposed.map(drop).map_err(|lost| self.lost(lost))
    }

    /// Has the service's replica on an engine whose shard is lost take no part any more. What that one has voted for and stored is known
    /// to the others: with the change itself they have all that was committed.
    pub(super) async fn dismiss_replica(&self, rank: Rank) -> Result<(), Failed> {
        self.change_replica(rank, false).await
    }

    /// Has the service's replica on an engine take part, or no more.
    pub(super) async fn change_replica(&self, rank: Rank, takes_part: bool) -> Result<(), Failed> {
        let Some(led) = self.led.get() else { return Ok(()) };
        let is_done = || led.replica.members().contains(&rank) == takes_part;
        if is_done() {
            return Ok(());
        }
        let changed = led.replica.change_member(led.leadership.term, rank, takes_part).await;
        changed.map_err(|lost| self.lost(lost))?;
        // Another change was under way.
        if is_done() { Ok(()) } else { Err(Failed::Deposed(self.shard.id())) }
    }

    fn lost(&self, lost: Lost) -> Failed {
        let pool = self.shard.id();
        match lost {
            Lost::NotLeader(Some(service)) => Failed::Elsewhere { pool, service },
            Lost::NotLeader(None) => Failed::Leaderless(pool),
            Lost::InDoubt => Failed::Deposed(pool),
            Lost::TooLong { .. } => {
                Failed::Invalid { object: format!("pool {}", self.label()), reason: lost.to_string() }
            }
            Lost::Failed(reason) => {
                Failed::Frozen { pool: self.label(), rank: self.engines.own_rank(), reason }
            }
        }
    }

    /// Goes by a new map, which the replicas have before any target is told of it.
    pub(super) async fn put_map(&self, pool: &TargetPool, mut map: PoolMap) -> Result<(), Failed> {
        begin_anew(&pool.record.borrow().map, &mut map);
        if self.led.get().is_some() {
            let stored = record::change(SCOPE_SERVICE, NAME_MAP, Some(record::encode(&map)));
            self.commit(&[stored]).await?;
        }
        pool.set_map(map).await
    }

    /// Tells a target of a container. A leader says in which term, so that none tells what a later one has changed.
    pub(super) async fn tell_target(
        &self,
        target: &PoolTarget,
        state: TargetContainerState,
        limit: Duration,
    ) -> Result<TargetContainerUsage, AskError> {
        let (rank, index) = (target.rank, target.index);
        match self.led.get() {
            None => self.engines.ask(rank, index, opcode::TARGET_CONTAINER_SET, &state, limit).await,
            Some(led) => {
                let told = ContainerStateByLeader { term: led.leadership.term, state };
                self.engines.ask(rank, index, opcode::TARGET_CONTAINER_SET_BY_LEADER, &told, limit).await
            }
        }
    }
}
