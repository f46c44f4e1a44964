//! Transactions that change objects with replicas. A group of replicas leads: the decision is known to all its members before
//! anybody is told of it.
//!
//! A client sends all changes to the leader of the first group with replicas that they concern. That one has all members of all
//! groups prepare, and all members of its own group store the decision. Who has prepared and hears nothing asks
//! the target that leads that group then.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::transaction::{Change, Outcome};
use crate::{Capability, ContainerId, Epoch, ObjectId, PoolId, TransactionId};

/// Most groups that take part in one transaction.
pub const GROUPS_MAX: usize = 64;

/// Most bytes of encoded changes that travel in a message between engines. With seal, header and the groups around them they fit
/// [`crate::limits::INLINE_MAX`]; the receiver fetches what is longer.
pub const CHANGES_INLINE_MAX: usize = 13 * 1024;

/// Most bytes of the encoded changes of a transaction: small values and keys of [`crate::limits`] with room to spare.
pub const CHANGES_MAX: usize = 4 << 20;

/// Names a group of an object: the same in all versions of the pool map.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct GroupName {
    /// The object.
    pub object: ObjectId,
    /// Number of the group among those of the object; of a shard, where it has no replicas.
    pub number: u32,
}

/// Commits a transaction: all of it happens, or nothing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplicaCommitRequest {
    /// Handle on the container.
    pub capability: Capability,
    /// Pool-map version the client placed with.
    pub map_version: u32,
    /// The transaction, one of groups.
    pub transaction: TransactionId,
    /// Its epoch: that of its reads.
    pub epoch: Epoch,
    /// Bytes of the encoded `Vec` of [`crate::transaction::Change`]s, which follows or stands in the sender's memory. Up to
    /// [`CHANGES_MAX`].
    pub len: u64,
}

/// A change as a member of a group prepares it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PreparedChange {
    /// The change.
    pub change: Change,
    /// Whether the receiver leads its group, and judges its conditions.
    pub is_judged: bool,
}

/// Leader of a transaction → member of a group: be ready to commit this.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplicaPrepareRequest {
    /// The pool.
    pub pool: PoolId,
    /// The container.
    pub container: ContainerId,
    /// Version of the pool map by which the sender leads. A target with a newer one refuses.
    pub map_version: u32,
    /// The transaction.
    pub transaction: TransactionId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The groups that take part, the leading one first. 1 to [`GROUPS_MAX`].
    pub groups: Vec<GroupName>,
    /// The encoded `Vec` of [`PreparedChange`]s. Empty: longer than [`CHANGES_INLINE_MAX`], the receiver fetches it from the
    /// sender's memory.
    pub changes: ByteBuf,
}

/// Leader of the leading group → another member of it: this is decided. Answered with what is decided there from then on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplicaDecideRequest {
    /// The pool.
    pub pool: PoolId,
    /// The container.
    pub container: ContainerId,
    /// Version of the pool map by which the sender leads. A target with a newer one refuses.
    pub map_version: u32,
    /// The transaction.
    pub transaction: TransactionId,
    /// The decision.
    pub outcome: Outcome,
}

/// A decision with what a member needs to know of the transaction that hasn't prepared it, since it gets what it lacks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplicaDecision {
    /// The decision.
    pub request: ReplicaDecideRequest,
    /// The transaction's epoch; 0: the sender doesn't know it any more.
    pub epoch: Epoch,
    /// The groups that take part, the leading one first. None: all have heard of it.
    pub groups: Vec<GroupName>,
}

/// Leader of the leading group → another member of it: what do you know of this transaction?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplicaKnownRequest {
    /// The pool.
    pub pool: PoolId,
    /// The container.
    pub container: ContainerId,
    /// Version of the pool map by which the sender leads. A target with another one refuses.
    pub map_version: u32,
    /// The transaction.
    pub transaction: TransactionId,
}

/// What a member of the leading group knows of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Known {
    /// No decision.
    Nothing,
    /// It is being led, or decided, there at this moment.
    Led,
    /// The decision.
    Decided(Outcome),
}

/// A target that has prepared → leader of the leading group: what became of it?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplicaOutcomeRequest {
    /// The pool.
    pub pool: PoolId,
    /// The container.
    pub container: ContainerId,
    /// The transaction.
    pub transaction: TransactionId,
    /// The leading group.
    pub lead: GroupName,
}

/// Leader of the leading group → member of any group: all know what became of the transaction, and nobody will ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplicaForgetRequest {
    /// The pool.
    pub pool: PoolId,
    /// The container.
    pub container: ContainerId,
    /// The transaction.
    pub transaction: TransactionId,
}
