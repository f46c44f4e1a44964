//! The part of every target in a transaction, the leader included.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use weir_group::Refusal;
use weir_pool::Failed;
use weir_proto::transaction::{DecideRequest, Declined, Outcome, OutcomeRequest, PrepareRequest};
use weir_proto::{Der, Rank, opcode};
use weir_rpc::Status;
use weir_store::{Shard, TransactionError};

use super::{Name, Transactions};
use crate::admission::refusal;

/// How long a prepared transaction waits to hear of its decision before the leader is asked, and the longest pause between
/// two questions.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// Prepared transactions that a task watches, and whether each was prepared again since its task last looked: the task may
/// have looked before that.
#[derive(Default)]
pub(crate) struct WatchedTransactions(RefCell<BTreeMap<Name, bool>>);

impl WatchedTransactions {
    /// Begins to watch. Returns whether no task did so before.
    pub(super) fn begin(&self, name: Name) -> bool {
        self.0.borrow_mut().insert(name, true).is_none()
    }

    pub(super) fn look(&self, name: Name) {
        self.0.borrow_mut().insert(name, false);
    }

    /// Ends the watch. Returns false when the transaction was prepared again: the watch goes on then.
    pub(super) fn end(&self, name: Name) -> bool {
        let mut all = self.0.borrow_mut();
        let is_over = all.get(&name) != Some(&true);
        if is_over {
            all.remove(&name);
        }
        is_over
    }
}

impl Transactions {
    /// Answers the leaders of transactions from now on.
    pub(super) fn take_part(self: &Rc<Self>) {
        let engines = Rc::clone(self.admission.pools.engines());
        let weak = Rc::downgrade(self);
        engines.serve(opcode::TARGET_TRANSACTION_PREPARE, move |rank, request: PrepareRequest| {
            let service = weak.upgrade();
            async move {
                let stopping = || Status::new(Der::SHUTDOWN, "the engine is stopping");
                let declined = |Status { der, message }| Declined { der, message };
                let Some(service) = service else { return Ok::<_, Refusal>(Err(declined(stopping()))) };
                // The leader's request may be dropped in the middle: what is prepared is watched all the same.
                let rt = service.admission.rt.clone();
                let prepared = rt.spawn(async move { service.prepare(rank, request).await });
                Ok(prepared.await.unwrap_or_else(|_| Err(stopping())).map_err(declined))
            }
        });
        let weak = Rc::downgrade(self);
        engines.serve(opcode::TARGET_TRANSACTION_DECIDE, move |rank, request: DecideRequest| {
            let service = weak.upgrade();
            async move {
                let DecideRequest { pool, container, transaction, outcome } = request;
                let object = format!("transaction {transaction} in container {container}");
                // Which target leads the group of one of groups the sender knows, by its map.
                if !transaction.is_of_groups() && transaction.leader().0 != rank {
                    let reason = format!("rank {rank} does not lead it, and can't decide it");
                    return Err(Failed::Invalid { object, reason });
                }
                let stopping = || Failed::Busy { object, reason: "is on an engine that is stopping".into() };
                let (service, name) = (service.ok_or_else(stopping)?, (pool, container, transaction));
                service.decide(name, outcome).await?;
                if transaction.is_of_groups() {
                    let rt = service.admission.rt.clone();
                    rt.spawn(async move { service.forget_decided(name, outcome).await });
                }
                Ok(())
            }
        });
    }

    async fn prepare(self: &Rc<Self>, leader: Rank, request: PrepareRequest) -> Result<(), Status> {
        let PrepareRequest { pool: id, container, map_version, transaction, epoch, changes } = request;
        if transaction.leader().0 != leader {
            return Err(refusal::invalid(format!("rank {leader} does not lead transaction {transaction}")));
        }
        self.observe(epoch)?;
        let pool = self.admission.pool(id)?;
        // That the client may write there is what the leader has checked; this is what it can't know.
        self.admission.check_placed(&pool, map_version)?;
        let prepared = self.attempt(&pool, container, &changes, async |operations| {
            pool.shard().prepare(container, transaction, epoch, operations).await
        });
        prepared.await?;
        self.watch((id, container, transaction));
        Ok(())
    }

    /// Sees to it that a prepared transaction is decided.
    pub(super) fn watch(self: &Rc<Self>, name: Name) {
        if !self.watched.begin(name) {
            return;
        }
        let (service, rt) = (Rc::downgrade(self), self.admission.rt.clone());
        self.admission.rt.spawn(async move {
            let mut pause = PATIENCE.0;
            loop {
                rt.sleep(pause).await;
                let Some(service) = service.upgrade() else { return };
                service.watched.look(name);
                if !service.is_undecided(name).await {
                    if service.watched.end(name) {
                        return;
                    }
                    continue;
                }
                if let Some(outcome) = service.ask_leader(name).await
                    && let Err(error) = service.decide(name, outcome).await
                {
                    tracing::warn!(transaction = %name.2, %error, "a transaction that was decided is still prepared here");
                }
                pause = (pause * 2).min(PATIENCE.1);
            }
        });
    }

    async fn is_undecided(&self, (pool, container, id): Name) -> bool {
        let Ok(pool) = self.admission.pools.get(pool) else { return false };
        // A store that has failed tells no more after the next start.
        pool.shard().is_undecided(container, id).await.is_ok_and(|is_undecided| is_undecided)
    }

    async fn ask_leader(&self, (pool, container, transaction): Name) -> Option<Outcome> {
        let engines = self.admission.pools.engines();
        let (rank, index) = transaction.leader();
        let request = OutcomeRequest { pool, container, transaction };
        let opcode = opcode::TARGET_TRANSACTION_OUTCOME;
        let asked = engines.ask(rank, index, opcode, &request, super::ASK_LIMIT).await;
        asked
            .inspect_err(|error| {
                tracing::warn!(
                    %transaction, %error,
                    "what was prepared waits for its leader; what it changes can't be read or written until that answers"
                );
            })
            .ok()
            .flatten()
    }

    /// Does here what was decided. What isn't prepared any more was done before.
    pub(super) async fn decide(&self, name: Name, outcome: Outcome) -> Result<(), Failed> {
        let (pool, container, transaction) = name;
        // What is prepared on a device that can't be used is decided when it can be.
        if let Some(failed) = self.admission.pools.out_of_service() {
            return Err(failed);
        }
        let Ok(pool) = self.admission.pools.get(pool) else { return Ok(()) };
        let done = decided(pool.shard(), name, outcome).await;
        done.map_err(|error| Failed::Target {
            object: format!("transaction {transaction} in container {container} of pool {}", pool.label()),
            rank: self.admission.pools.engines().own_rank(),
            index: self.admission.pools.engines().own_index().0,
            der: error.der(),
            message: error.to_string(),
        })
    }
}

async fn decided(shard: &Shard, (_, container, id): Name, outcome: Outcome) -> Result<(), TransactionError> {
    let done = match outcome {
        Outcome::Committed => shard.commit_transaction(container, id).await.map(|_| ()),
        Outcome::Aborted => shard.abort_transaction(container, id).await,
    };
    match done {
        // Decided so long ago that it is forgotten, or gone with its container.
        Err(
            TransactionError::Unknown(_)
            | TransactionError::PoolMissing(_)
            | TransactionError::ContainerMissing(_)
            | TransactionError::ContainerDestroying(_),
        ) => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;
    use weir_proto::{ContainerId, PoolId, TransactionId};

    #[test]
    fn what_is_prepared_again_while_somebody_looks_is_looked_at_again() {
        let (watched, uuid) = (WatchedTransactions::default(), Uuid::from_u128(1));
        let name = (PoolId(uuid), ContainerId(uuid), TransactionId(uuid));
        assert!(watched.begin(name), "nobody sees to it");
        watched.look(name);
        assert!(!watched.begin(name), "somebody does");
        assert!(!watched.end(name), "who looked before it was prepared again has seen nothing");
        watched.look(name);
        assert!(watched.end(name));
        assert!(watched.begin(name), "nobody sees to it any more");
    }
}
