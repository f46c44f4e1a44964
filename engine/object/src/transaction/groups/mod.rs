//! Transactions that a group of replicas leads: those that change objects with replicas.
//!
//! All members that serve of all groups that are changed take part. The leader of the first group with replicas leads: it has
//! each member prepare its part, each group's conditions being judged by that group's leader. Then it has all members of its own
//! group store the decision. From then on the transaction is committed, whoever dies, and the leader tells all. A target that
//! takes part keeps, in the record by which it prepares, which groups do. Where the leader goes, the next
//! one of its group decides: by a decision that any member knows, or else the transaction is given up. A transaction of one group with two
//! members takes fewer steps (`pair`).

mod filled;
mod leader;
mod member;
mod pair;
mod plan;
mod settle;

use std::time::Duration;

use weir_pool::TargetPool;
use weir_proto::replica_transaction::{CHANGES_MAX, GROUPS_MAX, GroupName};
use weir_proto::transaction::Outcome;
use weir_proto::{ContainerId, Der, Epoch, TransactionId, codec};
use weir_rpc::{Request, Status};
use weir_store::{AttributeChange, Decision, TransactionError};

use super::{Name, Transactions};
use crate::admission::refusal;
use crate::operations::{UpdateData, pull};
use crate::unsettled::Place;

/// Scope of the attributes that say in which transactions of groups a target takes part.
const SCOPE: &[u8] = b"group transaction";

/// Form of their values.
const VERSION: u8 = 1;

/// Pause before a member that has refused, or not answered, is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// What a target keeps of a transaction in which it takes part, until nobody will ask.
pub(super) struct Taking {
    /// Whether it is decided that the transaction is committed; kept by members of the leading group.
    is_committed: bool,
    /// The groups that take part, the leading one first.
    groups: Vec<GroupName>,
}

impl Taking {
    fn encode(&self) -> Vec<u8> {
        codec::encode(&(VERSION, self.is_committed, &self.groups))
    }

    /// Reads what was kept. `None`: no target writes that.
    fn decode(value: &[u8]) -> Option<Self> {
        let (version, is_committed, groups) = codec::decode::<(u8, bool, Vec<GroupName>)>(value).ok()?;
        let is_sound = version == VERSION && (1..=GROUPS_MAX).contains(&groups.len());
        is_sound.then_some(Self { is_committed, groups })
    }

    /// The leading group.
    fn lead(&self) -> GroupName {
        self.groups[0]
    }

    fn of(pool: &TargetPool, container: ContainerId, id: TransactionId) -> Option<Self> {
        let value = pool.shard().attribute(SCOPE, &attribute_name(container, id))?;
        let taking = Self::decode(&value);
        if taking.is_none() {
            tracing::warn!(pool = %pool.id(), transaction = %id, "what is kept of a transaction can't be understood");
        }
        taking
    }
}

fn attribute_name(container: ContainerId, id: TransactionId) -> Vec<u8> {
    [container.0.into_bytes(), id.0.into_bytes()].concat()
}

/// Keeps that the target takes part in a transaction, or forgets it.
fn kept((_, container, id): Name, taking: Option<&Taking>) -> AttributeChange {
    let name = attribute_name(container, id);
    AttributeChange { scope: SCOPE.to_vec(), name, value: taking.map(Taking::encode) }
}

fn failed(error: &TransactionError) -> Status {
    Status::new(error.der(), error.to_string())
}

/// Encoded changes of so many bytes: those that came with the message, or else what is in the memory of the sender.
async fn arrived<'a>(request: &Request, inline: &'a [u8], len: u64) -> Result<UpdateData<&'a [u8]>, Status> {
    if len > CHANGES_MAX as u64 {
        let message =
            format!("the changes of a transaction have {len} bytes, at most {CHANGES_MAX} are taken");
        return Err(Status::new(Der::REC2BIG, message));
    }
    if inline.len() as u64 == len {
        return Ok(UpdateData::Inline(inline));
    }
    pull(request, inline, len).await.map(UpdateData::Pulled)
}

impl Transactions {
    /// This target.
    fn own(&self) -> Place {
        let engines = self.admission.pools.engines();
        (engines.own_rank(), engines.own_index())
    }

    /// What is decided of a transaction, as far as this target knows. Durable when it returns.
    async fn decided_here(
        &self,
        pool: &TargetPool,
        (_, container, id): Name,
    ) -> Result<Option<Outcome>, Status> {
        let is_committed = Taking::of(pool, container, id).is_some_and(|taking| taking.is_committed);
        match pool.shard().decision(container, id).await {
            Ok(_) if is_committed => Ok(Some(Outcome::Committed)),
            Ok(Some(Decision::Committed(_))) => Ok(Some(Outcome::Committed)),
            Ok(Some(Decision::Aborted)) => Ok(Some(Outcome::Aborted)),
            Ok(None) => Ok(None),
            // Nothing of it is there any more.
            Err(TransactionError::ContainerMissing(_) | TransactionError::ContainerDestroying(_)) => {
                Ok(Some(Outcome::Aborted))
            }
            Err(error) => Err(failed(&error)),
        }
    }

    /// Stores a decision of the leading group here, unless another one is stored already. Returns what is decided here from then
    /// on. The caller has claimed the transaction.
    async fn record(&self, pool: &TargetPool, name: Name, outcome: Outcome) -> Result<Outcome, Status> {
        if let Some(decided) = self.decided_here(pool, name).await? {
            return Ok(decided);
        }
        let (_, container, id) = name;
        match outcome {
            Outcome::Aborted => match pool.shard().abort_transaction(container, id).await {
                Ok(()) => {
                    self.forget_here(pool, name).await;
                    Ok(Outcome::Aborted)
                }
                Err(TransactionError::Committed { .. }) => Ok(Outcome::Committed),
                Err(error) => Err(failed(&error)),
            },
            Outcome::Committed => {
                let is_prepared =
                    pool.shard().is_undecided(container, id).await.map_err(|error| failed(&error))?;
                let taking = Taking::of(pool, container, id).filter(|_| is_prepared).ok_or_else(|| {
                    let message = format!("transaction {id} is not prepared here, and can't be committed");
                    Status::new(Der::AGAIN, message)
                })?;
                let taking = Taking { is_committed: true, ..taking };
                let noted = pool.shard().change_attributes(&[kept(name, Some(&taking))]).await;
                noted.map_err(|error| Status::new(error.der(), error.to_string()))?;
                Ok(Outcome::Committed)
            }
        }
    }

    /// Takes note that a transaction is committed that this target hasn't prepared and gets as history.
    async fn note_elsewhere(
        &self,
        pool: &TargetPool,
        name: Name,
        (epoch, groups): (Epoch, Vec<GroupName>),
    ) -> Result<Outcome, Status> {
        let (_, container, id) = name;
        let taking = Taking { is_committed: true, groups };
        let along = if taking.groups.is_empty() { Vec::new() } else { vec![kept(name, Some(&taking))] };
        if epoch == Epoch::ZERO || (!along.is_empty() && Taking::decode(&taking.encode()).is_none()) {
            return Err(refusal::invalid(format!("a decision of transaction {id} says too little")));
        }
        let noted = pool.shard().note_decision(container, id, Decision::Committed(epoch), &along).await;
        noted.map_err(|error| failed(&error))?;
        // What was known before stays.
        let left = || Status::new(Der::AGAIN, format!("transaction {id} is prepared here, and not decided"));
        self.decided_here(pool, name).await?.ok_or_else(left)
    }

    /// Forgets that this target takes part.
    async fn forget_here(&self, pool: &TargetPool, name: Name) {
        if Taking::of(pool, name.1, name.2).is_none() {
            return;
        }
        if let Err(error) = pool.shard().change_attributes(&[kept(name, None)]).await {
            tracing::debug!(transaction = %name.2, %error, "what is kept of a transaction stays until the next start");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::ObjectId;

    #[test]
    fn what_is_kept_of_a_transaction_is_read_again_and_nothing_else() {
        let group = |number| GroupName { object: ObjectId { hi: 7, lo: 8 }, number };
        let taking = Taking { is_committed: true, groups: vec![group(1), group(0)] };
        let again = Taking::decode(&taking.encode()).expect("it was written so");
        assert_eq!((again.is_committed, again.lead(), again.groups.len()), (true, group(1), 2));
        let none = Taking { is_committed: false, groups: Vec::new() };
        let many = Taking { is_committed: false, groups: vec![group(0); GROUPS_MAX + 1] };
        let later = codec::encode(&(VERSION + 1, true, vec![group(0)]));
        for bad in [none.encode(), many.encode(), later, Vec::new(), vec![1, 1]] {
            assert!(Taking::decode(&bad).is_none(), "{bad:?}");
        }
    }
}
