//! Transactions over several targets: two-phase commit, led by one of the targets that take part.
//!
//! The leader has every target prepare its part. When all have, it stores a note on its own device: the transaction is
//! committed, and these targets have to be told. From then on it is committed. The leader removes the note once all
//! targets know. A transaction that is prepared, is not being led and has no note is not committed and never will be. A
//! target that has prepared and hears nothing asks the leader, which the transaction's id contains. Where objects with replicas
//! take part, a group of replicas leads (`groups`).
//!
//! The room checks requests by admission, asks other targets through `weir-group`, and calls the store's shard. The service calls
//! it.

mod groups;
mod leader;
mod participant;
mod settle;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;
use std::time::Duration;

use weir_pool::TargetPool;
use weir_proto::transaction::Change;
use weir_proto::{ContainerId, Der, Epoch, PoolId, Rank, TargetIndex, TransactionId, codec};
use weir_rpc::Status;
use weir_store::{AttributeChange, Data, Operation, UpdateError};

use crate::admission::Admission;
use crate::admission::refusal::ErrorSite;
use crate::groups::Floors;
use crate::operations::within_quota;
use crate::replication::Replication;
use crate::succession::Succession;
use crate::unsettled::Unsettled;
use participant::WatchedTransactions;

/// Scope of the attributes that note committed transactions: by container and transaction, the targets to be told.
const SCOPE: &[u8] = b"committed";

/// Longest wait for a target's answer about a transaction.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// A transaction in its container.
type Name = (PoolId, ContainerId, TransactionId);

/// The targets that take part in one, the leader too.
type Targets = Vec<(Rank, TargetIndex)>;

/// Transactions that are being led or settled here, and whether each is known to be committed: one task at a
/// time claims each.
#[derive(Clone, Default)]
pub struct ClaimedTransactions(Rc<RefCell<BTreeMap<Name, bool>>>);

/// Another task has claimed the transaction.
struct AlreadyClaimed {
    is_committed: bool,
}

/// The exclusive right to lead or settle a transaction, until it is dropped.
pub struct Claim {
    claimed: ClaimedTransactions,
    name: Name,
}

impl ClaimedTransactions {
    /// Claims a transaction, unless another task has it.
    fn take(&self, name: Name) -> Result<Claim, AlreadyClaimed> {
        match self.0.borrow_mut().entry(name) {
            Entry::Occupied(taken) => Err(AlreadyClaimed { is_committed: *taken.get() }),
            Entry::Vacant(free) => {
                free.insert(false);
                Ok(Claim { claimed: self.clone(), name })
            }
        }
    }
}

impl Claim {
    /// It is noted durably that the transaction is committed: tasks that ask meanwhile may be told so.
    fn set_committed(&self) {
        self.claimed.0.borrow_mut().insert(self.name, true);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claimed.0.borrow_mut().remove(&self.name);
    }
}

/// The note that a transaction is committed.
fn note(container: ContainerId, id: TransactionId, targets: Option<&Targets>) -> AttributeChange {
    let name = [container.0.into_bytes(), id.0.into_bytes()].concat();
    AttributeChange { scope: SCOPE.to_vec(), name, value: targets.map(codec::encode) }
}

/// Changes as the store takes them.
fn operations(changes: &[Change]) -> Vec<Operation<'_>> {
    let mut operations = Vec::with_capacity(changes.len());
    for change in changes {
        operations.push(match change {
            Change::Update { object, dkey, conditions, akeys, data } => Operation::Update {
                object: *object,
                dkey: dkey.clone(),
                conditions: *conditions,
                akeys: akeys.clone(),
                data: Data::Borrowed(data),
            },
            Change::Punch { object, scope, conditions } => {
                Operation::Punch { object: *object, scope: scope.clone(), conditions: *conditions }
            }
        });
    }
    operations
}

/// Leads transactions of clients, and takes part in those that other targets lead.
pub(crate) struct Transactions {
    admission: Admission,
    claimed: ClaimedTransactions,
    watched: WatchedTransactions,
    /// What is judged for groups of replicas waits for.
    unsettled: Rc<Unsettled>,
    floors: Rc<Floors>,
    succession: Rc<Succession>,
    /// Tells other members what is settled.
    replication: Rc<Replication>,
}

impl Transactions {
    pub(crate) fn new(
        admission: Admission,
        unsettled: Rc<Unsettled>,
        (floors, succession): (Rc<Floors>, Rc<Succession>),
        replication: Rc<Replication>,
    ) -> Rc<Self> {
        let (claimed, watched) = (ClaimedTransactions::default(), WatchedTransactions::default());
        Rc::new(Self { admission, claimed, watched, unsettled, floors, succession, replication })
    }

    /// Puts the target's clock behind an epoch that a client names, which is no further ahead than what its messages may say
    /// ([`Clock::observe_tenant`](weir_proto::hlc::Clock::observe_tenant)), or than what this one's did.
    fn observe_client(&self, epoch: Epoch) -> Result<(), Status> {
        match self.admission.pools.clock().observe_tenant(epoch, self.admission.rt.wall_ns()) {
            Ok(None) => Ok(()),
            Ok(Some(early)) => {
                let text = format!(
                    "the transaction's epoch, {epoch}, is {early} ns further ahead of the clock than a client may move it, and \
                     than that of its message; check time synchronisation on both nodes"
                );
                Err(Status::new(Der::HLC_SYNC, text))
            }
            Err(skew) => Err(Status::new(Der::HLC_SYNC, skew.to_string())),
        }
    }

    /// Puts the target's clock behind a transaction's epoch: what is written here afterwards comes later.
    fn observe(&self, epoch: Epoch) -> Result<(), Status> {
        let observed = self.admission.pools.clock().observe(epoch, self.admission.rt.wall_ns());
        observed.map_err(|skew| Status::new(Der::HLC_SYNC, skew.to_string()))
    }

    /// Does `attempt` at changes, within the container's quota.
    async fn attempt<T>(
        &self,
        pool: &TargetPool,
        container: ContainerId,
        changes: &[Change],
        attempt: impl AsyncFn(&[Operation<'_>]) -> Result<T, UpdateError>,
    ) -> Result<T, Status> {
        let container = pool.container(container).await?;
        let label = container.label.borrow().clone();
        let place = ErrorSite { pools: &self.admission.pools, pool: pool.id(), container: &label };
        let (operations, bytes) = (operations(changes), changes.iter().map(bytes_of).sum());
        let done =
            within_quota((pool, &container), bytes, &place, async || attempt(&operations).await).await?;
        container.has_found_room(bytes);
        Ok(done)
    }
}

fn bytes_of(change: &Change) -> u64 {
    match change {
        Change::Update { data, .. } => data.len() as u64,
        Change::Punch { .. } => 0,
    }
}

/// Whether a transaction that was refused so may succeed when its client tries anew, with another epoch: also where the
/// refusal is about the epoch or the first try, or two engines are about to agree on their list.
const fn may_succeed_anew(der: Der) -> bool {
    der.is_passing() || matches!(der, Der::TX_RESTART | Der::OP_CANCELED | Der::GRPVER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn a_transaction_is_dealt_with_by_one_at_a_time() {
        let (claimed, uuid) = (ClaimedTransactions::default(), Uuid::from_u128(1));
        let name = (PoolId(uuid), ContainerId(uuid), TransactionId(uuid));
        let claim = claimed.take(name).ok().expect("free");
        assert!(claimed.take(name).is_err_and(|taken| !taken.is_committed));
        claim.set_committed();
        assert!(claimed.take(name).is_err_and(|taken| taken.is_committed));
        drop(claim);
        assert!(claimed.take(name).is_ok());
    }
}
