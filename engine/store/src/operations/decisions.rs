//! Transactions that are prepared, and what became of others: questions about them, and what one target takes over of another one.

use crate::format::decision::Decision;
use crate::format::key::{self, TransactionKey, TransactionTail};
use crate::format::record::Change;
use crate::operations::attribute::AttributeChange;
use crate::operations::transaction::objects_prepared;
use crate::state::core::Core;
use crate::state::error::TransactionError;
use crate::state::shard::Shard;
use core::time::Duration;
use weir_proto::hlc::SKEW_MAX_NS;
use weir_proto::{ContainerId, Epoch, TransactionId};
use weir_runtime::nanos;

/// Decisions that are remembered at most: some 10 MiB of memory.
pub(crate) const DECISIONS_MAX: usize = 64 * 1024;

/// How long the decision of a transaction is remembered, unless there are too many: as long as a client or another target may
/// come back to it.
const DECISIONS_KEPT: Duration = Duration::from_mins(5);

/// What is known of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KnownTransaction {
    /// It is prepared, and awaits its decision.
    Prepared(Epoch),
    /// It is decided.
    Decided(Decision),
}

impl Shard {
    /// Prepared transactions that await their decision, oldest epoch first: after a restart, those whose coordinator
    /// has to be asked. As of the begin of the call; durable when it returns.
    ///
    /// # Errors
    /// When the container is missing or the store has failed.
    pub async fn undecided(
        &self,
        container: ContainerId,
    ) -> Result<Vec<(TransactionId, Epoch)>, TransactionError> {
        let number = self.locate(container)?;
        let undecided = self.core.transactions.borrow().undecided(self.number, number);
        // A transaction that is missing may just have been decided.
        self.core.make_durable(self.core.journal.last()).await.map_err(TransactionError::Failed)?;
        Ok(undecided)
    }

    /// Whether a transaction is prepared and awaits its decision. As of the begin of the call; durable when it returns.
    ///
    /// # Errors
    /// When the container is missing or the store has failed.
    pub async fn is_undecided(
        &self,
        container: ContainerId,
        id: TransactionId,
    ) -> Result<bool, TransactionError> {
        let number = self.locate(container)?;
        let is_prepared = self.core.transactions.borrow().is_prepared((self.number, number, id));
        // One that isn't may just have been decided.
        self.core.make_durable(self.core.journal.last()).await.map_err(TransactionError::Failed)?;
        Ok(is_prepared)
    }

    /// What became of a transaction; `None` when it is undecided, unknown or forgotten. As of the begin of the call; durable
    /// when it returns.
    ///
    /// # Errors
    /// When the container is missing or the store has failed.
    pub async fn decision(
        &self,
        container: ContainerId,
        id: TransactionId,
    ) -> Result<Option<Decision>, TransactionError> {
        let number = self.locate(container)?;
        let decision = self.core.transactions.borrow().decision((self.number, number, id));
        self.core.make_durable(self.core.journal.last()).await.map_err(TransactionError::Failed)?;
        Ok(decision)
    }

    /// Whether a transaction of this epoch may have been decided here so long ago that it is forgotten. Otherwise
    /// [`Shard::decision`] knows whether it was.
    #[must_use]
    pub fn may_have_forgotten(&self, epoch: Epoch) -> bool {
        let transactions = self.core.transactions.borrow();
        let until = transactions.forgotten_until(decisions_from(&self.core), DECISIONS_MAX);
        // It was decided no earlier than its client took its epoch, whose clock may be ahead.
        epoch.wall_ns().saturating_sub(SKEW_MAX_NS) <= until
    }

    /// The epoch of a transaction that is prepared, or that was committed as far as that is remembered.
    #[must_use]
    pub fn epoch_of_transaction(&self, container: ContainerId, id: TransactionId) -> Option<Epoch> {
        let place = (self.number, self.locate(container).ok()?, id);
        let transactions = self.core.transactions.borrow();
        match transactions.decision(place) {
            Some(Decision::Committed(epoch)) => Some(epoch),
            Some(Decision::Aborted) => None,
            None => transactions.prepared(place).map(|(prepared, _)| prepared.epoch),
        }
    }

    /// What is known of a container's transactions, from an id on, of up to so many. As of the begin of the call; durable when it
    /// returns.
    ///
    /// # Errors
    /// When the container is missing or the store has failed.
    pub async fn known_transactions(
        &self,
        container: ContainerId,
        from: Option<TransactionId>,
        most: usize,
    ) -> Result<Vec<(TransactionId, KnownTransaction)>, TransactionError> {
        let number = self.locate(container)?;
        let known = self.core.transactions.borrow().known((self.number, number), from, most);
        self.core.make_durable(self.core.journal.last()).await.map_err(TransactionError::Failed)?;
        let known = known.into_iter().map(|(id, known)| match known {
            Ok(epoch) => (id, KnownTransaction::Prepared(epoch)),
            Err(decision) => (id, KnownTransaction::Decided(decision)),
        });
        Ok(known.collect())
    }

    /// Takes note of a decision that was made elsewhere of a transaction that isn't prepared here. The changes of attributes commit
    /// in the same record. What is known here of the transaction stays. Durable when it returns.
    ///
    /// # Errors
    /// See [`TransactionError`].
    pub async fn note_decision(
        &self,
        container: ContainerId,
        id: TransactionId,
        decision: Decision,
        along: &[AttributeChange],
    ) -> Result<(), TransactionError> {
        self.change_transaction((container, id), along, |place| {
            let transactions = self.core.transactions.borrow();
            let is_known = transactions.is_prepared(place) || transactions.decision(place).is_some();
            (!is_known).then(|| vec![self.decide(place, decision)])
        })
        .await
    }

    /// Forgets all that is known of a transaction, as if it had never come here: what is prepared of it, or its decision. The
    /// changes of attributes commit in the same record. Durable when it returns.
    ///
    /// # Errors
    /// See [`TransactionError`].
    pub async fn forget_transaction(
        &self,
        container: ContainerId,
        id: TransactionId,
        along: &[AttributeChange],
    ) -> Result<(), TransactionError> {
        self.change_transaction((container, id), along, |place| {
            let transactions = self.core.transactions.borrow();
            let mut changes = transactions.removals(place);
            if transactions.decision(place).is_some() {
                changes.push(Change::Remove { key: key::transaction(place, TransactionTail::Decision) });
            }
            Some(changes)
        })
        .await
    }

    async fn change_transaction(
        &self,
        (container, id): (ContainerId, TransactionId),
        along: &[AttributeChange],
        plan: impl Fn(TransactionKey) -> Option<Vec<Change>>,
    ) -> Result<(), TransactionError> {
        let number = self.locate(container)?;
        let place = (self.number, number, id);
        self.core.admit().await.map_err(TransactionError::Failed)?;
        let planned = self.core.ask(|tree| {
            let mut changes = Vec::new();
            if let Some(planned) = plan(place) {
                changes = planned;
                self.add_attributes(along, &mut changes);
            }
            tree.reach(changes.iter().map(Change::key))?;
            Ok((changes, objects_prepared(&self.core.transactions.borrow(), place)))
        });
        let planned: Result<_, TransactionError> = planned.await;
        let (changes, objects) = planned?;
        self.commit_change((container, number), &changes, &objects).await
    }
}

/// When decisions were made that are remembered, unless they are too many.
pub(crate) fn decisions_from(core: &Core) -> u64 {
    let kept = nanos(DECISIONS_KEPT);
    core.rt.wall_ns().saturating_sub(kept)
}
