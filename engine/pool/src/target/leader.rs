//! Asking the leader of a replicated pool service.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_group::{AskError, Engines};
use weir_proto::pool::{ContainerStateByLeader, ServiceRanks, TargetContainerUsage, TargetPool as PoolName};
use weir_proto::{Der, Rank, TargetIndex, opcode};
use weir_runtime::join_all;

use super::TargetPool;
use crate::error::Failed;
use crate::record::PoolRecord;

/// Longest wait for one replica: a leader answers most requests in some milliseconds, and one that died has a successor within two
/// seconds.
const REPLICA_LIMIT: Duration = Duration::from_secs(1);

/// Longest wait for an engine to say which replicas there are: it answers from memory.
const KNOWN_LIMIT: Duration = Duration::from_millis(500);

/// Engines that are asked that at once.
const ASKED_AT_ONCE: usize = 16;

/// Pause before the replicas are asked once more.
const PAUSE: Duration = Duration::from_millis(100);

/// Asks the replicas of a pool's service, of which there is one at least, the `first` one first, until the one that leads answers. Returns which it was. Nothing of a
/// service that isn't replicated leads elsewhere: it is asked once.
///
/// # Errors
/// That of the leader; that of the last one asked when none leads within `limit`.
pub(crate) async fn ask_leader<Req: Serialize, Rep: DeserializeOwned>(
    engines: &Engines,
    (replicas, first): (&[Rank], Option<Rank>),
    opcode: u16,
    request: &Req,
    limit: Duration,
) -> (Rank, Result<Rep, AskError>) {
    let rt = engines.runtime();
    let until = rt.now() + limit;
    assert!(!replicas.is_empty(), "invariant: a service has a replica at least");
    let (mut order, others): (Vec<Rank>, Vec<Rank>) =
        replicas.iter().copied().partition(|rank| Some(*rank) == first);
    order.extend(others);
    let mut asked = 0;
    loop {
        let rank = order[asked % order.len()];
        let left = until.saturating_duration_since(rt.now());
        let wait = if replicas.len() == 1 { left } else { left.min(REPLICA_LIMIT) };
        let answer = engines.ask(rank, TargetIndex(0), opcode, request, wait).await;
        asked += 1;
        let is_other = answer.as_ref().is_err_and(|error| {
            error.is_away() || matches!(error.der(), Der::NOTLEADER | Der::NONEXIST | Der::SHUTDOWN)
        });
        if !is_other || replicas.len() == 1 || rt.now() + PAUSE >= until {
            return (rank, answer);
        }
        if asked % replicas.len() == 0 {
            rt.sleep(PAUSE).await;
        }
    }
}

/// The replicas of a pool's service, for who has no part of the pool and may know an old map of it: as that one of some engines of the pool
/// says which has the newest.
pub(crate) async fn newest_replicas(engines: &Engines, record: &PoolRecord, ranks: &[Rank]) -> Vec<Rank> {
    let request = PoolName { pool: record.pool };
    // The service of a pool without redundancy stays where it is.
    let ranks = if record.redundancy > 0 { ranks } else { &[] };
    for some in ranks.chunks(ASKED_AT_ONCE) {
        let asked = some.iter().map(|rank| {
            let (to, opcode) = (TargetIndex(0), opcode::POOL_SERVICE_RANKS);
            engines.ask::<_, ServiceRanks>(*rank, to, opcode, &request, KNOWN_LIMIT)
        });
        let answers = join_all(asked).await;
        let newest = answers.into_iter().flatten().max_by_key(|said| said.version);
        if let Some(said) =
            newest.filter(|said| said.version >= record.map.version && !said.replicas.is_empty())
        {
            return said.replicas;
        }
    }
    record.replicas()
}

impl TargetPool {
    /// Asks the pool's service, whichever replica leads it.
    ///
    /// # Errors
    /// As [`ask_leader`].
    pub(crate) async fn ask_service<Req: Serialize, Rep: DeserializeOwned>(
        &self,
        opcode: u16,
        request: &Req,
        limit: Duration,
    ) -> Result<Rep, AskError> {
        let replicas = self.record.borrow().replicas();
        let (rank, answer) =
            ask_leader(&self.engines, (&replicas, self.leader.get()), opcode, request, limit).await;
        if answer.is_ok() {
            self.leader.set(Some(rank));
        }
        answer
    }

    /// The rank that runs the pool's service, as far as is known to a target that doesn't replicate it.
    pub(crate) fn service(&self) -> Option<Rank> {
        let replicas = self.record.borrow().replicas();
        let known = self.leader.get().filter(|rank| replicas.contains(rank));
        known.or_else(|| replicas.first().copied())
    }

    /// Takes note of what the leader of a replicated service says of a container, unless a later leader has said something.
    pub(crate) async fn set_container_by_leader(
        &self,
        ContainerStateByLeader { term, state }: ContainerStateByLeader,
    ) -> Result<TargetContainerUsage, Failed> {
        if term < self.term.get() {
            return Err(Failed::Deposed(state.pool));
        }
        self.term.set(term);
        self.set_container(state).await
    }
}
