//! Committing: what the leader of a transaction does.

use std::rc::Rc;
use std::time::Duration;

use weir_group::AskError;
use weir_pool::{Operation as Kind, TargetPool};
use weir_proto::object::UpdateReply;
use weir_proto::transaction::{
    CommitRequest, DecideRequest, Declined, Outcome, PARTS_MAX, Part, PrepareRequest,
};
use weir_proto::{Der, Epoch, Rank, Rights, TargetIndex, TransactionId, codec, opcode};
use weir_rpc::{Body, Request, Status};
use weir_runtime::{Instant, join_all};
use weir_store::{AttributeError, Decision, TransactionError};

use super::settle::finish;
use super::{ASK_LIMIT, AlreadyClaimed, Claim, Name, Targets, Transactions, may_succeed_anew, note};
use crate::admission::Access;
use crate::admission::refusal;

/// How long the client's answer waits until all targets have heard of the commit, so that the next reader finds it
/// decided.
pub(super) const TELLING: Duration = Duration::from_secs(1);

impl Transactions {
    pub(crate) async fn commit(self: &Rc<Self>, request: &Request) -> Result<Body, Status> {
        let commit: CommitRequest = codec::decode_message(request.body()).map_err(refusal::malformed)?;
        self.check_commit(&commit)?;
        self.observe_client(commit.epoch)?;
        let admission = &self.admission;
        let access = admission.access(request, &commit.capability, Rights::WRITE, commit.map_version).await?;
        check_places(&access.pool, &commit.parts)?;
        let counted = admission.counted(Kind::Commit, &access, async |_| {
            let name = (access.pool.id(), access.container.id, commit.transaction);
            let again = || Status::new(Der::INPROGRESS, "the transaction is being committed or given up");
            let epoch = match self.claimed.take(name) {
                Err(AlreadyClaimed { is_committed: true }) => commit.epoch,
                Err(_) => return Err(again()),
                Ok(claim) => match self.outcome_before(&access, &commit).await? {
                    Some(epoch) => epoch,
                    None => self.lead(&access, claim, commit, request.deadline()).await?,
                },
            };
            Ok((codec::encode(&UpdateReply { epoch }), 0))
        });
        counted.await
    }

    fn check_commit(&self, commit: &CommitRequest) -> Result<(), Status> {
        let engines = self.admission.pools.engines();
        let here = (engines.own_rank(), engines.own_index());
        let place = |part: &Part| (part.rank, part.index);
        let Some(first) = commit.parts.first().filter(|_| commit.parts.len() <= PARTS_MAX) else {
            let count = commit.parts.len();
            return Err(refusal::invalid(format!("a transaction has 1 to {PARTS_MAX} parts, not {count}")));
        };
        if place(first) != here || commit.transaction.leader() != here {
            return Err(refusal::invalid("the target that leads a transaction is the one of its first part"));
        }
        let mut places: Vec<_> = commit.parts.iter().map(place).collect();
        places.sort_unstable();
        places.dedup();
        if places.len() < commit.parts.len() {
            return Err(refusal::invalid("two parts of the transaction are for the same target"));
        }
        Ok(())
    }

    /// What became of a transaction that was sent again after its answer was lost. Epoch of the commit.
    async fn outcome_before(&self, access: &Access, commit: &CommitRequest) -> Result<Option<Epoch>, Status> {
        let (container, id) = (access.container.id, commit.transaction);
        if Self::is_noted(&access.pool, container, id) {
            return Ok(Some(commit.epoch));
        }
        match access.pool.shard().decision(container, id).await.map_err(|error| failed(&error))? {
            Some(Decision::Committed(epoch)) => Ok(Some(epoch)),
            Some(Decision::Aborted) => Err(given_up("it was given up before")),
            None if access.pool.shard().may_have_forgotten(commit.epoch) => {
                let message = format!("transaction {id} began so long ago that its end may be forgotten");
                Err(Status::new(Der::TX_UNCERTAIN, message))
            }
            None => Ok(None),
        }
    }

    /// Commits, unless the client's deadline passes before it begins, or before all targets have prepared: a client
    /// that has given up by then should not find later that it was done after all, where that can be helped.
    async fn lead(
        self: &Rc<Self>,
        access: &Access,
        claim: Claim,
        commit: CommitRequest,
        deadline: Instant,
    ) -> Result<Epoch, Status> {
        let CommitRequest { transaction, epoch, map_version, parts, .. } = commit;
        let (pool, container) = (&access.pool, access.container.id);
        // Learning of the container may have taken that long.
        if self.admission.rt.now() >= deadline {
            return Err(restarted(late(transaction)));
        }
        if let [own] = parts.as_slice() {
            let done = self.attempt(pool, container, &own.changes, async |operations| {
                pool.shard().transact(container, transaction, epoch, operations).await
            });
            return done.await.map_err(restarted);
        }
        let all: Targets = parts.iter().map(|part| (part.rank, part.index)).collect();
        let mut prepared = self.prepare_all(claim.name, (epoch, map_version), parts, deadline).await;
        if self.admission.rt.now() >= deadline {
            prepared = prepared.and(Err(late(transaction)));
        }
        if let Err(status) = prepared {
            self.admission.rt.spawn(Rc::clone(self).give_up(claim, all));
            return Err(restarted(status));
        }
        if let Err(error) = pool.shard().change_attributes(&[note(container, transaction, Some(&all))]).await
        {
            // A store that fails or closes doesn't say whether the note is stored. That is known after the next start,
            // and no client is told anything before.
            if !matches!(error, AttributeError::Failed(_)) {
                self.admission.rt.spawn(Rc::clone(self).give_up(claim, all));
            }
            return Err(Status::new(
                error.der(),
                format!("transaction {transaction} can't be committed: {error}"),
            ));
        }
        let told =
            self.admission.rt.spawn(finish(Rc::downgrade(self), self.admission.rt.clone(), claim, all));
        // Targets that are away hear of it later.
        let _ = self.admission.rt.timeout(TELLING, told).await;
        Ok(epoch)
    }

    /// Has every target prepare its part, this one as the others, until the client's deadline.
    async fn prepare_all(
        &self,
        name: Name,
        (epoch, map_version): (Epoch, u32),
        parts: Vec<Part>,
        deadline: Instant,
    ) -> Result<(), Status> {
        let (pool, container, transaction) = name;
        let limit = ASK_LIMIT.min(deadline.saturating_duration_since(self.admission.rt.now()));
        let prepared = parts.into_iter().map(|Part { rank, index, changes }| async move {
            let request = PrepareRequest { pool, container, map_version, transaction, epoch, changes };
            let opcode = opcode::TARGET_TRANSACTION_PREPARE;
            match self.admission.pools.engines().ask(rank, index, opcode, &request, limit).await {
                Ok(Ok(())) => None,
                Ok(Err(Declined { der, message })) => Some(Status::new(der, message)),
                Err(error) => Some(Status::new(error.der(), error.to_string())),
            }
        });
        let refused = join_all(prepared).await.into_iter().flatten();
        // What won't pass is what the client has to hear of.
        refused.min_by_key(|status| may_succeed_anew(status.der)).map_or(Ok(()), Err)
    }

    /// Tells a target what became of a transaction.
    pub(super) async fn tell(
        &self,
        (pool, container, transaction): Name,
        (rank, index): (Rank, TargetIndex),
        outcome: Outcome,
    ) -> Result<(), AskError> {
        let request = DecideRequest { pool, container, transaction, outcome };
        let opcode = opcode::TARGET_TRANSACTION_DECIDE;
        self.admission.pools.engines().ask(rank, index, opcode, &request, ASK_LIMIT).await
    }
}

/// Refuses to bother targets that have nothing to do with the pool.
fn check_places(pool: &TargetPool, parts: &[Part]) -> Result<(), Status> {
    match parts.iter().find(|part| !pool.has_target((part.rank, part.index))) {
        Some(Part { rank, index, .. }) => Err(refusal::invalid(format!(
            "a part of the transaction is for target {index} of rank {rank}, which pool {} doesn't have",
            pool.label()
        ))),
        None => Ok(()),
    }
}

pub(super) fn late(transaction: TransactionId) -> Status {
    let message = format!(
        "the client's deadline passed before every target had prepared transaction {transaction}; nothing of it happens"
    );
    Status::new(Der::TIMEDOUT, message)
}

/// The answer to a commit that is to be tried anew.
pub(super) fn given_up(reason: &str) -> Status {
    Status::new(Der::TX_RESTART, format!("the transaction has to start again: {reason}"))
}

/// What the client hears of a refusal: whether starting again may help.
pub(super) fn restarted(status: Status) -> Status {
    if may_succeed_anew(status.der) { given_up(&status.message) } else { status }
}

fn failed(error: &TransactionError) -> Status {
    Status::new(error.der(), error.to_string())
}
