//! Transactions of groups where a target gets what it lacks: what only it knows of them goes, it takes over how they ended, and
//! those that give data wait until what began without it is decided.

use std::time::Duration;

use weir_pool::TargetPool;
use weir_proto::history::{EndedTransaction, EndedTransactions};
use weir_proto::replica_transaction::GroupName;
use weir_proto::{ContainerId, Epoch, TransactionId};
use weir_store::{Decision, KnownTransaction, TransactionError};

use super::{SCOPE, Taking, kept};
use crate::transaction::settle::split;
use crate::transaction::{Name, Transactions};

/// Transactions that are looked at, or told of, together.
const PAGE: usize = 256;

/// Pause between two looks whether transactions are decided.
const LOOK: Duration = Duration::from_millis(5);

/// The least id behind one.
fn behind(id: TransactionId) -> Option<TransactionId> {
    id.0.as_u128().checked_add(1).map(|next| TransactionId(uuid::Uuid::from_u128(next)))
}

/// What is known of a container's transactions of groups; nothing of a container that is gone.
async fn all_known(
    pool: &TargetPool,
    container: ContainerId,
) -> Result<Vec<(TransactionId, KnownTransaction)>, String> {
    let (mut all, mut from) = (Vec::new(), None);
    loop {
        let page = match pool.shard().known_transactions(container, from, PAGE).await {
            Ok(page) => page,
            Err(TransactionError::ContainerMissing(_) | TransactionError::ContainerDestroying(_)) => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(error.to_string()),
        };
        let next = page.last().and_then(|(last, _)| behind(*last));
        all.extend(page.into_iter().filter(|(id, _)| id.is_of_groups()));
        match next {
            Some(next) => from = Some(next),
            None => return Ok(all),
        }
    }
}

impl Transactions {
    /// Forgets what this target knows of transactions of groups, since nobody else may: all that counts it gets from others. From
    /// then on it takes part again.
    ///
    /// # Errors
    /// When one is being dealt with at this moment, or that can't be stored: it is to be tried again.
    pub(crate) async fn roll_back(&self, pool: &TargetPool) -> Result<(), String> {
        for summary in pool.shard().containers().into_iter().filter(|one| !one.destroying) {
            for (id, _) in all_known(pool, summary.container).await? {
                self.forget_all_of(pool, (pool.id(), summary.container, id)).await?;
            }
        }
        let mut from = Vec::new();
        loop {
            let page = pool.shard().attributes(SCOPE, &from, PAGE);
            let Some((last, _)) = page.last() else { return Ok(()) };
            // The least name greater than the last one.
            from = [last.as_slice(), &[0]].concat();
            for (container, id) in page.iter().filter_map(|(name, _)| split(name)) {
                let name = (pool.id(), container, id);
                let _claim = self.claimed.take(name).map_err(|_| in_hand(id))?;
                let gone = pool.shard().change_attributes(&[kept(name, None)]).await;
                gone.map_err(|error| error.to_string())?;
            }
        }
    }

    async fn forget_all_of(&self, pool: &TargetPool, name: Name) -> Result<(), String> {
        let (_, container, id) = name;
        // Whoever deals with it has begun before the target was up.
        let _claim = self.claimed.take(name).map_err(|_| in_hand(id))?;
        match pool.shard().forget_transaction(container, id, &[kept(name, None)]).await {
            Ok(())
            | Err(TransactionError::ContainerMissing(_) | TransactionError::ContainerDestroying(_)) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Waits until all transactions of groups are decided here that are prepared now. `false`: one isn't after so long.
    ///
    /// # Errors
    /// When that can't be found out.
    pub(crate) async fn when_all_decided(&self, pool: &TargetPool, limit: Duration) -> Result<bool, String> {
        let until = self.admission.rt.now() + limit;
        for summary in pool.shard().containers().into_iter().filter(|one| !one.destroying) {
            let undecided = match pool.shard().undecided(summary.container).await {
                Ok(undecided) => undecided,
                Err(TransactionError::ContainerMissing(_) | TransactionError::ContainerDestroying(_)) => {
                    continue;
                }
                Err(error) => return Err(error.to_string()),
            };
            for (id, _) in undecided.into_iter().filter(|(id, _)| id.is_of_groups()) {
                while pool.shard().is_undecided(summary.container, id).await.is_ok_and(|is_left| is_left) {
                    if self.admission.rt.now() >= until {
                        return Ok(false);
                    }
                    self.admission.rt.sleep(LOOK).await;
                }
            }
        }
        Ok(true)
    }

    /// Transactions of groups of a container that have ended, from one on. `is_led` tells of groups whose decisions the asker
    /// keeps, too.
    ///
    /// # Errors
    /// When they can't be read.
    pub(crate) async fn ended(
        &self,
        pool: &TargetPool,
        container: ContainerId,
        from: Option<TransactionId>,
        is_led: impl Fn(GroupName) -> bool,
    ) -> Result<EndedTransactions, TransactionError> {
        let known = pool.shard().known_transactions(container, from, PAGE).await?;
        let next = known.last().and_then(|(last, _)| behind(*last));
        let ended = known.into_iter().filter(|(id, _)| id.is_of_groups()).filter_map(|(id, known)| {
            let KnownTransaction::Decided(decision) = known else { return None };
            let committed = match decision {
                Decision::Committed(epoch) => Some(epoch),
                Decision::Aborted => None,
            };
            let taking = Taking::of(pool, container, id);
            let taking = taking.filter(|taking| taking.is_committed && is_led(taking.lead()));
            let groups = taking.map_or_else(Vec::new, |taking| taking.groups);
            Some(EndedTransaction { id, committed, groups })
        });
        Ok(EndedTransactions { ended: ended.collect(), next })
    }

    /// Takes over how transactions ended, where this target doesn't know of them.
    ///
    /// # Errors
    /// When that can't be stored.
    pub(crate) async fn take_over(
        self: &std::rc::Rc<Self>,
        pool: &TargetPool,
        container: ContainerId,
        ended: Vec<EndedTransaction>,
    ) -> Result<(), String> {
        for EndedTransaction { id, committed, groups } in ended {
            let name = (pool.id(), container, id);
            let taking = Taking { is_committed: true, groups };
            let is_kept = committed.is_some() && Taking::decode(&taking.encode()).is_some();
            let along = if is_kept { vec![kept(name, Some(&taking))] } else { Vec::new() };
            let decision = committed.map_or(Decision::Aborted, Decision::Committed);
            let is_sound = id.is_of_groups() && committed.is_none_or(|epoch| epoch != Epoch::ZERO);
            if !is_sound {
                return Err(format!("nobody can have decided transaction {id} so"));
            }
            match pool.shard().note_decision(container, id, decision, &along).await {
                Ok(()) if is_kept => self.watch_of_groups(name),
                Ok(())
                | Err(TransactionError::ContainerMissing(_) | TransactionError::ContainerDestroying(_)) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }
}

fn in_hand(id: TransactionId) -> String {
    format!("transaction {id} is being dealt with")
}
