//! Which engines keep the list of pools: one of a system with one or two engines, three, or five of a larger one.
//!
//! More would survive more losses at once than pools do, and an even number survives no more than the odd one below it.

use std::time::Duration;

use weir_group::AskError;
use weir_proto::group::EngineInfo;
use weir_proto::system::{SystemJoin, SystemState};
use weir_proto::{Rank, TargetIndex, opcode};
use weir_runtime::{Instant, join_all};

use super::keeper::{Keeper, SYSTEM_POOL_SIZE};
use super::{Directory, Led};
use crate::error::Failed;
use crate::record::SYSTEM_POOL;

/// Most replicas of the list: it outlives the loss of two engines.
const REPLICAS_MAX: usize = 5;

/// Engines that are asked at once who could take a replica.
const CANDIDATES_MAX: usize = 32;

/// Longest wait for an engine to say what it has.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// Longest wait for an engine to begin a replica: a few writes to its log.
const JOIN_LIMIT: Duration = Duration::from_secs(5);

/// How long an engine that keeps the list may be away before another one takes its place: longer than restarts and maintenance, as with
/// the data of pools.
const PATIENCE: Duration = Duration::from_mins(10);

/// How many engines keep the list.
const fn wanted(engines: usize) -> usize {
    let most = if engines < REPLICAS_MAX { engines } else { REPLICAS_MAX };
    most.saturating_sub(1) / 2 * 2 + 1
}

impl Keeper {
    /// Has as many engines keep the list as are wanted, where this one answers for it: one change at a time.
    pub(super) async fn look_after_members(&self) -> Result<(), Failed> {
        let Some(directory) = self.current() else { return Ok(()) };
        if self.pools.out_of_service().is_some() {
            return Ok(());
        }
        match &directory.led {
            None => self.begin_replicas(&directory).await,
            Some(led) => {
                self.dismiss_replicas(led).await?;
                self.admit_replica(led).await
            }
        }
    }

    /// Becomes the first of several, when enough others can take part at once: two would survive no loss.
    async fn begin_replicas(&self, directory: &Directory) -> Result<(), Failed> {
        let wanted = wanted(self.engines.all().len());
        let own = self.engines.own_rank();
        if wanted == 1 || self.candidates(&[own]).await.len() + 1 < wanted {
            return Ok(());
        }
        let _turn = self.turn.acquire().await;
        let Some(shard) = self.shard() else { return Ok(()) };
        directory.retire().await;
        self.set_current(None);
        weir_raft::prepare_with_state(&shard, own).await?;
        self.open_replica(shard).await
    }

    /// Has replicas take part no more whose engines have lost them, or aren't of the system any more, or aren't needed, or have been away
    /// for long while another engine can take their place. What a lost one has voted for and stored is known to the others: with the
    /// change itself they have all that was committed.
    async fn dismiss_replicas(&self, led: &Led) -> Result<(), Failed> {
        let (own, members) = (self.engines.own_rank(), led.replica.members());
        let others: Vec<Rank> = members.iter().copied().filter(|rank| *rank != own).collect();
        let states = join_all(others.iter().map(|rank| self.state_of(*rank))).await;
        let given_up = self.stays_away(&others, &states);
        let is_lost = |(rank, state): &(&Rank, Result<SystemState, AskError>)| {
            self.engines.get(**rank).is_none() || state.as_ref().is_ok_and(|state| !state.holds)
        };
        let mut lost = others.iter().zip(states).find(is_lost).map(|(rank, _)| *rank);
        if lost.is_none() && given_up.is_some() && !self.candidates(&members).await.is_empty() {
            lost = given_up;
        }
        let is_needed = members.len() <= wanted(self.engines.all().len());
        let leaving = lost.or_else(|| others.last().copied().filter(|_| !is_needed));
        let Some(leaving) = leaving else { return Ok(()) };
        tracing::warn!(rank = %leaving, "an engine keeps the list of pools no more");
        let changed = led.replica.change_member(led.leadership.term, leaving, false).await;
        changed.map_err(|_| Failed::NoKeeper("this one has ceased to lead them"))
    }

    /// The first of some engines that keep the list, too, which has not said for a long time what it has.
    fn stays_away(&self, others: &[Rank], states: &[Result<SystemState, AskError>]) -> Option<Rank> {
        let now = self.engines.runtime().now();
        let mut silent = self.silent_since.borrow_mut();
        let is_silent =
            |rank: &Rank| others.iter().zip(states).any(|(other, state)| other == rank && state.is_err());
        silent.retain(|rank, _| is_silent(rank));
        for rank in others.iter().filter(|rank| is_silent(rank)) {
            silent.entry(*rank).or_insert(now);
        }
        let is_over = |since: &Instant| now.saturating_duration_since(*since) >= PATIENCE;
        others.iter().copied().find(|rank| silent.get(rank).is_some_and(is_over))
    }

    /// Has another engine take part when there are fewer than wanted.
    async fn admit_replica(&self, led: &Led) -> Result<(), Failed> {
        let members = led.replica.members();
        if members.len() >= wanted(self.engines.all().len()) {
            return Ok(());
        }
        let Some(rank) = self.candidates(&members).await.first().copied() else { return Ok(()) };
        let deposed = |_| Failed::NoKeeper("this one has ceased to lead them");
        // Whom this replica knows to take no part doesn't: so one that has lost its votes may begin again.
        led.replica.confirm(led.leadership.term).await.map_err(deposed)?;
        if led.replica.members() != members {
            return Ok(());
        }
        let join = SystemJoin { members };
        let asked =
            self.engines.ask::<_, ()>(rank, TargetIndex(0), opcode::SYSTEM_JOIN, &join, JOIN_LIMIT).await;
        asked.map_err(|error| Failed::asking("the list of pools", "keeping it", error))?;
        tracing::info!(%rank, "an engine begins to keep the list of pools");
        led.replica.change_member(led.leadership.term, rank, true).await.map_err(deposed)
    }

    async fn state_of(&self, rank: Rank) -> Result<SystemState, AskError> {
        self.engines.ask(rank, TargetIndex(0), opcode::SYSTEM_STATE, &(), ASK_LIMIT).await
    }

    /// Engines that can take a replica, the one first that shares its host with the fewest of `members`.
    async fn candidates(&self, members: &[Rank]) -> Vec<Rank> {
        let infos = self.engines.all();
        let hosts: Vec<&str> =
            infos.iter().filter(|info| members.contains(&info.rank)).map(|info| info.host.as_str()).collect();
        let shared = |info: &EngineInfo| hosts.iter().filter(|host| **host == info.host).count();
        let mut open: Vec<&EngineInfo> = infos.iter().filter(|info| !members.contains(&info.rank)).collect();
        open.sort_by_key(|info| (shared(info), info.rank));
        open.truncate(CANDIDATES_MAX);
        let states = join_all(open.iter().map(|info| self.state_of(info.rank))).await;
        let able = open.iter().zip(states).filter(|(_, state)| state.is_ok());
        able.map(|(info, _)| info.rank).collect()
    }

    /// Begins a replica, which the leader takes in afterwards. An engine that has one keeps it.
    pub(super) async fn join(&self, members: &[Rank]) -> Result<(), Failed> {
        if let Some(failed) = self.pools.out_of_service() {
            return Err(failed);
        }
        let _turn = self.turn.acquire().await;
        if self.replica.borrow().is_some() {
            return Ok(());
        }
        if self.leads() {
            return Err(Failed::NoKeeper("two engines keep a list each"));
        }
        let shard = match self.shard() {
            Some(shard) => shard,
            None => self.pools.store().create_pool(SYSTEM_POOL, SYSTEM_POOL_SIZE).await?,
        };
        weir_raft::prepare_again(&shard, members).await?;
        self.open_replica(shard).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_odd_number_of_engines_keeps_the_list() {
        let counts: Vec<usize> = (0..8).map(wanted).collect();
        assert_eq!(counts, [1, 1, 1, 3, 3, 5, 5, 5]);
    }
}
