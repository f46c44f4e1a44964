//! Finding a pool by what is known here, and by asking the keeper of the list of pools.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_group::{AskError, Refusal};
use weir_proto::pool::{ResolveReply, ResolveRequest};
use weir_proto::system::SystemState;
use weir_proto::{Der, PoolId, Rank, TargetIndex, opcode};
use weir_runtime::join_all;

use super::TargetPools;
use crate::error::Failed;
use crate::target::TargetPool;

/// Longest wait for the keeper of the list of pools.
const RESOLVE_LIMIT: Duration = Duration::from_secs(5);

/// Longest wait for it when the answer can be done without.
const LISTED_LIMIT: Duration = Duration::from_secs(1);

/// Longest wait for one engine that says that it answers for the list.
const KEEPER_LIMIT: Duration = Duration::from_secs(1);

/// Pause before another one is looked for: there is one within two seconds.
const KEEPER_PAUSE: Duration = Duration::from_millis(100);

/// Longest wait for an engine to say what it knows of the system service: it answers from memory.
const STATE_LIMIT: Duration = Duration::from_millis(500);

/// Times in a row that an engine doesn't say that it answers for the list, after which another one is asked.
const MISSES: u32 = 2;

/// Engines that are asked at once who answers for the list.
const ASKED_AT_ONCE: usize = 16;

impl TargetPools {
    /// Where the service of a pool runs: known here, or asked of the keeper of the list.
    ///
    /// # Errors
    /// When there is no such pool, or the keeper doesn't answer.
    pub async fn resolve(&self, name: &str) -> Result<ResolveReply, Failed> {
        if let Some(pool) = self.find(name)
            && self.is_there(&pool).await
        {
            let record = pool.record.borrow().clone();
            let service = self.find_leader(&record).await?;
            return Ok(ResolveReply { pool: record.pool, service });
        }
        let found = self.ask_keeper(name, RESOLVE_LIMIT).await.map_err(|error| match error.der() {
            Der::NONEXIST | Der::ALREADY => {
                Failed::NoPool(name.chars().take(weir_proto::limits::LABEL_MAX).collect())
            }
            _ => Failed::asking(format!("pool {name}"), "finding it", error),
        })?;
        if let Ok(pool) = self.get(found.pool) {
            pool.is_listed.set(true);
        }
        Ok(found)
    }

    /// A pool of this target that a client has a handle on. Where there is none, the keeper of the list of pools tells a pool that
    /// was destroyed from one that this target has lost: a pool is listed when all its targets have their shards.
    ///
    /// # Errors
    /// When the target holds no shard of it, and says why; or when the keeper doesn't answer.
    pub async fn get_or_ask(&self, pool: PoolId) -> Result<Rc<TargetPool>, Failed> {
        let failed = match self.get(pool) {
            Err(failed @ Failed::NoPool(_)) => failed,
            known => return known,
        };
        match self.ask_keeper(&pool.to_string(), LISTED_LIMIT).await {
            Ok(_) => {
                if self.get(pool).is_err() {
                    self.miss(pool);
                }
                self.get(pool)
            }
            Err(error) if matches!(error.der(), Der::NONEXIST | Der::ALREADY) => Err(failed),
            Err(error) => Err(Failed::asking(format!("pool {pool}"), "finding out what became of it", error)),
        }
    }

    /// Whether a pool of this target was not destroyed while the engine was away: a client that connected to it would
    /// write what is lost when the engine hears of that. Without an answer it is taken to be there.
    async fn is_there(&self, pool: &TargetPool) -> bool {
        if !pool.is_listed.get() {
            match self.ask_keeper(&pool.id().to_string(), LISTED_LIMIT).await {
                Ok(_) => pool.is_listed.set(true),
                Err(error) => return error.der() != Der::ALREADY,
            }
        }
        true
    }

    /// Asks who answers for the list of pools where a pool is.
    async fn ask_keeper(&self, name: &str, limit: Duration) -> Result<ResolveReply, AskError> {
        let request = ResolveRequest { pool: name.to_owned() };
        self.ask_who_keeps(opcode::POOL_RESOLVE, &request, (limit, KEEPER_LIMIT)).await
    }

    /// Asks who answers for the list of pools: for so long, and each that may be it for so long.
    pub(super) async fn ask_who_keeps<Req: Serialize, Rep: DeserializeOwned>(
        &self,
        opcode: u16,
        request: &Req,
        (limit, limit_of_one): (Duration, Duration),
    ) -> Result<Rep, AskError> {
        let rt = self.engines().runtime();
        let until = rt.now() + limit;
        loop {
            let answer = match self.find_keeper().await {
                Ok(keeper) => {
                    let left = until.saturating_duration_since(rt.now()).min(limit_of_one);
                    self.engines()
                        .ask(keeper, TargetIndex(0), opcode, request, left)
                        .await
                        .inspect_err(|_| self.keeper.set(None))
                }
                Err(error) => Err(error),
            };
            let is_other = answer.as_ref().is_err_and(is_elsewhere);
            if !is_other || rt.now() + KEEPER_PAUSE >= until {
                return answer;
            }
            rt.sleep(KEEPER_PAUSE).await;
        }
    }

    /// The same for an engine that was asked itself, and doesn't answer for the list.
    ///
    /// # Errors
    /// That of who does, or that nobody does.
    pub(crate) async fn ask_other_keeper(&self, request: &ResolveRequest) -> Result<ResolveReply, Refusal> {
        let own = self.engines().own_rank();
        let keeper = self.find_keeper().await;
        let asked = match keeper {
            Ok(keeper) if keeper != own => {
                let opcode = opcode::POOL_RESOLVE;
                self.engines().ask(keeper, TargetIndex(0), opcode, request, KEEPER_LIMIT).await
            }
            Ok(_) => Err(self.no_keeper()),
            Err(error) => Err(error),
        };
        asked.map_err(|error| match error {
            AskError::Refused { refusal, .. } => refusal,
            error => Failed::asking("the list of pools", "finding a pool", error).into(),
        })
    }

    fn no_keeper(&self) -> AskError {
        let refusal = Failed::NoKeeper("none that answers leads them").into();
        AskError::Refused { rank: self.engines().own_rank(), index: 0, refusal }
    }

    /// The engine that answers for the list of pools: the one that did last, or one that says so. Without any in reach it may be one of
    /// an earlier release, which kept the list on the lowest rank.
    ///
    /// # Errors
    /// Which engine doesn't answer, that none of them answers for the list, or why none of them ever can.
    pub async fn find_keeper(&self) -> Result<Rank, AskError> {
        let engines = self.engines();
        let (own, infos) = (engines.own_rank(), engines.all());
        let (mut asked, mut silent, mut is_early) = (BTreeSet::new(), None, false);
        // What engines say that have lost what they kept, and whether another one may come to lead.
        let (mut out_of_service, mut may_yet) = (None, false);
        // The one that did last, those that it names, and then this engine's own replica.
        for first in self.keeper.take().into_iter().chain([own]) {
            let mut next = Some(first);
            while let Some(rank) = next.take().filter(|rank| asked.insert(*rank)) {
                let state = match self.ask_state(rank).await {
                    Ok(state) => state,
                    Err(error) if error.is_silent() => {
                        silent = silent.or(Some(error));
                        break;
                    }
                    Err(error) => {
                        out_of_service = out_of_service.or(Some(error));
                        break;
                    }
                };
                if state.leads {
                    self.keeper.set(Some(rank));
                    return Ok(rank);
                }
                may_yet = true;
                next = state.leader;
            }
        }
        let left: Vec<Rank> =
            infos.iter().map(|info| info.rank).filter(|rank| !asked.contains(rank)).collect();
        for some in left.chunks(ASKED_AT_ONCE) {
            let states = join_all(some.iter().map(|rank| self.ask_state(*rank))).await;
            for (rank, state) in some.iter().zip(states) {
                match state {
                    Ok(state) if state.leads => {
                        self.keeper.set(Some(*rank));
                        return Ok(*rank);
                    }
                    Ok(_) => may_yet = true,
                    Err(error) if error.is_silent() => silent = silent.or(Some(error)),
                    Err(error) => {
                        is_early |= *rank == engines.lowest_rank() && error.der() == Der::NOSYS;
                        out_of_service = out_of_service.or(Some(error));
                    }
                }
            }
        }
        if is_early {
            return Ok(engines.lowest_rank());
        }
        let nobody_can = out_of_service.filter(|_| !may_yet);
        Err(silent.or(nobody_can).unwrap_or_else(|| self.no_keeper()))
    }

    /// Waits until an engine that answered for the list of pools doesn't any more, so that what it was asked is asked of the next one.
    pub async fn wait_for_other_keeper(&self, rank: Rank) {
        let mut missed = 0;
        while missed < MISSES {
            self.engines().runtime().sleep(KEEPER_LIMIT).await;
            match self.ask_state(rank).await {
                Ok(state) if !state.leads => missed += 1,
                Err(error) if is_elsewhere(&error) => missed += 1,
                // It leads, has too much to do to say so, or is of an earlier release.
                _ => missed = 0,
            }
        }
    }

    async fn ask_state(&self, rank: Rank) -> Result<SystemState, AskError> {
        self.engines().ask(rank, TargetIndex(0), opcode::SYSTEM_STATE, &(), STATE_LIMIT).await
    }
}

/// Whether an engine that was asked for the list doesn't answer for it, or not at all.
fn is_elsewhere(error: &AskError) -> bool {
    error.is_silent() || matches!(error.der(), Der::NOTLEADER | Der::SHUTDOWN)
}
