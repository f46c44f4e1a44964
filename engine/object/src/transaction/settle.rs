//! The end of transactions whose leader or whose targets were away: giving up, telling the targets that haven't heard,
//! and settling what a restart has left behind.

use std::rc::{Rc, Weak};
use std::time::Duration;

use uuid::Uuid;
use weir_pool::{Failed, TargetPool};
use weir_proto::transaction::{Outcome, OutcomeRequest};
use weir_proto::{ContainerId, TransactionId, codec, opcode};
use weir_runtime::{Handle, join_all};
use weir_store::TransactionError;

use super::{Claim, Name, SCOPE, Targets, Transactions, note};

/// First and longest pause before targets that don't answer are told again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Notes that are looked at together at the start.
const NOTES_MAX: usize = 256;

impl Transactions {
    /// Answers questions about transactions that were led here, and takes up what the last life has left behind.
    pub(crate) fn start(self: &Rc<Self>) {
        self.take_part();
        self.take_part_in_groups();
        let weak = Rc::downgrade(self);
        let here = (self.admission.pools.engines().own_rank(), self.admission.pools.engines().own_index());
        self.admission.pools.engines().serve(
            opcode::TARGET_TRANSACTION_OUTCOME,
            move |_, request: OutcomeRequest| {
                let service = weak.upgrade();
                async move {
                    let OutcomeRequest { pool, container, transaction } = request;
                    if transaction.leader() != here {
                        let object = format!("transaction {transaction} in container {container}");
                        let reason = "another target leads it, and is to be asked".into();
                        return Err(Failed::Invalid { object, reason });
                    }
                    Ok(match service {
                        Some(service) => service.outcome((pool, container, transaction)).await,
                        None => None,
                    })
                }
            },
        );
        for pool in self.admission.pools.all() {
            self.admission.rt.spawn(Rc::clone(self).take_up(pool));
        }
    }

    /// Takes up the transactions of a pool that were prepared or noted before the target was started.
    async fn take_up(self: Rc<Self>, pool: Rc<TargetPool>) {
        for (container, id, targets) in notes(&pool) {
            let (name, weak, rt) =
                ((pool.id(), container, id), Rc::downgrade(&self), self.admission.rt.clone());
            let claimed = self.claimed.clone();
            self.admission.rt.spawn(async move {
                loop {
                    match claimed.take(name) {
                        Ok(claim) => return finish(weak, rt, claim, targets).await,
                        // Another task has just claimed it.
                        Err(_) => rt.sleep(PAUSE.0).await,
                    }
                }
            });
        }
        for summary in pool.shard().containers() {
            // What can't be read now is asked for after the next start; nothing is lost by that.
            let undecided = pool.shard().undecided(summary.container).await.unwrap_or_default();
            for (id, _) in undecided.into_iter().filter(|(id, _)| !id.is_of_groups()) {
                self.watch((pool.id(), summary.container, id));
            }
        }
        self.take_up_groups(&pool);
    }

    /// Whether it is noted that a transaction is committed.
    pub(super) fn is_noted(pool: &TargetPool, container: ContainerId, id: TransactionId) -> bool {
        pool.shard().attribute(SCOPE, &note(container, id, None).name).is_some()
    }

    /// What became of a transaction that this target leads; `None` while that isn't known. One that is neither being led nor
    /// noted is given up.
    async fn outcome(&self, name: Name) -> Option<Outcome> {
        let (id, container, transaction) = name;
        let _claim = match self.claimed.take(name) {
            Ok(claim) => claim,
            Err(taken) => return taken.is_committed.then_some(Outcome::Committed),
        };
        let Ok(pool) = self.admission.pools.get(id) else {
            // Which pools are on a device that can't be read isn't known.
            if self.admission.pools.out_of_service().is_some() {
                return None;
            }
            // No target will ever know more of it: the pool was destroyed, or the device is another one.
            tracing::warn!(
                pool = %id, %container, %transaction,
                "a transaction that was led here counts as given up: nothing of its pool is here any more"
            );
            return Some(Outcome::Aborted);
        };
        if self.admission.pools.out_of_service().is_some() || pool.shard().failure().is_some() {
            return None;
        }
        if Self::is_noted(&pool, container, transaction) {
            // Told is only what is durable, as a decision is.
            let durable = pool.shard().decision(container, transaction).await;
            return durable.is_ok().then_some(Outcome::Committed);
        }
        match pool.shard().abort_transaction(container, transaction).await {
            Ok(())
            | Err(TransactionError::ContainerMissing(_) | TransactionError::ContainerDestroying(_)) => {
                Some(Outcome::Aborted)
            }
            Err(TransactionError::Committed { .. }) => Some(Outcome::Committed),
            Err(error) => {
                tracing::warn!(%transaction, %error, "a transaction can't be given up");
                None
            }
        }
    }

    /// Gives a transaction up everywhere. A target that doesn't hear of it asks.
    ///
    /// Here first: when this target dies, and the client asks again after its restart, the transaction must not be
    /// committed after another target was told that it is given up.
    pub(super) async fn give_up(self: Rc<Self>, claim: Claim, all: Targets) {
        if let Err(error) = self.decide(claim.name, Outcome::Aborted).await {
            // A device that can't be used should not keep others from going on.
            tracing::warn!(transaction = %claim.name.2, %error, "that a transaction is given up can't be stored");
        } else if claim.name.2.is_of_groups() {
            self.forget_decided(claim.name, Outcome::Aborted).await;
        }
        let engines = self.admission.pools.engines();
        let here = (engines.own_rank(), engines.own_index());
        let others = all.into_iter().filter(|target| *target != here);
        let told = others.map(|target| self.tell(claim.name, target, Outcome::Aborted));
        drop(join_all(told).await);
    }
}

/// Has all targets apply what is committed, and removes the note when all have.
pub(super) async fn finish(service: Weak<Transactions>, rt: Handle, claim: Claim, mut all: Targets) {
    claim.set_committed();
    let (id, container, transaction) = claim.name;
    let mut pause = PAUSE.0;
    loop {
        let Some(service) = service.upgrade() else { return };
        let Ok(pool) = service.admission.pools.get(id) else { return };
        let told = all.iter().map(|target| {
            let (target, told) = (*target, service.tell(claim.name, *target, Outcome::Committed));
            async move { (target, told.await) }
        });
        all = join_all(told)
            .await
            .into_iter()
            .filter_map(|(target, told)| {
                told.inspect_err(
                    |error| tracing::warn!(%transaction, %error, "a target hasn't heard of a commit yet"),
                )
                .is_err()
                .then_some(target)
            })
            .collect();
        if all.is_empty() {
            if let Err(error) = pool.shard().change_attributes(&[note(container, transaction, None)]).await {
                tracing::debug!(%transaction, %error, "the note of a commit stays until the next start");
            }
            return;
        }
        drop((service, pool));
        rt.sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// The transactions that are noted to be committed, with the targets that may not have heard of it.
fn notes(pool: &TargetPool) -> Vec<(ContainerId, TransactionId, Targets)> {
    let (mut found, mut from) = (Vec::new(), Vec::new());
    loop {
        let page = pool.shard().attributes(SCOPE, &from, NOTES_MAX);
        let Some((last, _)) = page.last() else { return found };
        // The least name greater than the last one.
        from = [last.as_slice(), &[0]].concat();
        for (name, value) in page {
            match (split(&name), codec::decode(&value)) {
                (Some((container, id)), Ok(targets)) => found.push((container, id, targets)),
                _ => {
                    tracing::warn!(pool = %pool.id(), "the note of a committed transaction can't be understood");
                }
            }
        }
    }
}

pub(super) fn split(name: &[u8]) -> Option<(ContainerId, TransactionId)> {
    let (container, id) = name.split_at_checked(16)?;
    let uuid = |bytes: &[u8]| Uuid::from_slice(bytes).ok();
    Some((ContainerId(uuid(container)?), TransactionId(uuid(id)?)))
}
