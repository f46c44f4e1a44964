//! Transactions: changes of one or several targets that become visible together, at one epoch.
//!
//! A client reads at the epoch of its transaction, keeps its changes to itself, and sends them all with the commit, to
//! the leader: the first target that they concern. Where there are others, the leader has each prepare its part, writes
//! down that the transaction is committed, and tells them.

use core::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use uuid::Uuid;

use crate::object::{AkeyUpdate, Conditions, PunchScope};
use crate::{Capability, ContainerId, Der, Epoch, Key, ObjectId, PoolId, Rank, TargetIndex, codec, opcode};

/// Most targets that take part in one transaction.
pub const PARTS_MAX: usize = 64;

/// Most bytes of an encoded [`CommitRequest`]: with seal and header around it, the part of a target still fits a message
/// of [`crate::limits::INLINE_MAX`].
pub const COMMIT_MAX: usize = 15 * 1024;

/// What stands for the leader in the id of a transaction that a group of replicas leads: no target has it.
const OF_GROUPS: u64 = u64::MAX;

/// The id of a transaction, made by its client. It contains the target that leads it, so that the others know which
/// target to ask: rank and target index in 4 bytes each, and 8 random ones. Where objects with replicas take part, a group
/// leads it, and the id contains no target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TransactionId(pub Uuid);

impl TransactionId {
    /// A name for a transaction that this target leads.
    #[must_use]
    pub fn new((rank, index): (Rank, TargetIndex), reader: ReaderId) -> Self {
        let leader = (u64::from(rank.0) << 32) | u64::from(index.0);
        Self(Uuid::from_u64_pair(leader, reader.0))
    }

    /// A name for a transaction that a group of replicas leads. It holds no address: who takes part keeps the group's name.
    #[must_use]
    pub fn of_groups(reader: ReaderId) -> Self {
        Self(Uuid::from_u64_pair(OF_GROUPS, reader.0))
    }

    /// Whether a group of replicas leads it.
    #[must_use]
    pub fn is_of_groups(self) -> bool {
        self.0.as_u64_pair().0 == OF_GROUPS
    }

    /// The target that leads the transaction; one that no system has where a group leads it.
    #[must_use]
    pub fn leader(self) -> (Rank, TargetIndex) {
        let (leader, _) = self.0.as_u64_pair();
        let half = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        (Rank(half(leader >> 32)), TargetIndex(half(leader)))
    }

    /// The reader of the transaction: its id without the leader, which isn't known before all changes are.
    #[must_use]
    pub fn reader(self) -> ReaderId {
        ReaderId(self.0.as_u64_pair().1)
    }
}

/// What tells a transaction that reads from others that may have the same epoch: the random part of its [`TransactionId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReaderId(pub u64);

/// Something that a transaction reads.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Read<T> {
    /// The transaction.
    pub reader: ReaderId,
    /// What it asks for, at its epoch.
    pub wanted: T,
}

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What the body of a read asks for, and which transaction where the opcode is one of those.
///
/// # Errors
/// When the body isn't what the opcode says.
pub fn decode_read<T: DeserializeOwned>(
    opcode: u16,
    body: &[u8],
) -> Result<(Option<ReaderId>, T), codec::DecodeError> {
    if opcode::is_of_transaction(opcode) {
        let Read { reader, wanted } = codec::decode(body)?;
        return Ok((Some(reader), wanted));
    }
    Ok((None, codec::decode(body)?))
}

/// As [`decode_read`], of a body that has grown: what a later release has put behind it is ignored.
///
/// # Errors
/// As [`decode_read`].
pub fn decode_read_with_tail<T: DeserializeOwned, Tail: DeserializeOwned + Default>(
    opcode: u16,
    body: &[u8],
) -> Result<(Option<ReaderId>, T, Tail), codec::DecodeError> {
    if opcode::is_of_transaction(opcode) {
        let (Read { reader, wanted }, tail) = codec::decode_with_tail(body)?;
        return Ok((Some(reader), wanted, tail));
    }
    let (wanted, tail) = codec::decode_with_tail(body)?;
    Ok((None, wanted, tail))
}

/// Encodes the body of a read, by a transaction if there is one.
#[must_use]
pub fn encode_read<T: Serialize>(reader: Option<ReaderId>, wanted: T) -> Vec<u8> {
    match reader {
        Some(reader) => codec::encode(&Read { reader, wanted }),
        None => codec::encode(&wanted),
    }
}

/// One change of a transaction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// Stores values of akeys of one dkey.
    Update {
        /// The object.
        object: ObjectId,
        /// The dkey.
        dkey: Key,
        /// What must hold at the transaction's epoch.
        conditions: Conditions,
        /// The akeys.
        akeys: Vec<AkeyUpdate>,
        /// Their values, in order.
        data: ByteBuf,
    },
    /// Removes an object as far as the target holds it, dkeys or akeys.
    Punch {
        /// The object.
        object: ObjectId,
        /// What goes.
        scope: PunchScope,
        /// What must hold at the transaction's epoch.
        conditions: Conditions,
    },
}

/// What a transaction changes on one target.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// Rank of the target.
    pub rank: Rank,
    /// Its index.
    pub index: TargetIndex,
    /// The changes; no two of them concern the same key.
    pub changes: Vec<Change>,
}

/// Commits a transaction: all of it happens, or nothing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CommitRequest {
    /// Handle on the container.
    pub capability: Capability,
    /// Pool-map version the client placed with.
    pub map_version: u32,
    /// The transaction.
    pub transaction: TransactionId,
    /// Its epoch: that of its reads.
    pub epoch: Epoch,
    /// What it changes, by target, the leader's first. 1 to [`PARTS_MAX`].
    pub parts: Vec<Part>,
}

/// Leader → another target of a transaction: be ready to commit this.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PrepareRequest {
    /// The pool.
    pub pool: PoolId,
    /// The container.
    pub container: ContainerId,
    /// Pool-map version the client placed with.
    pub map_version: u32,
    /// The transaction.
    pub transaction: TransactionId,
    /// Its epoch.
    pub epoch: Epoch,
    /// What it changes there.
    pub changes: Vec<Change>,
}

/// Why a target doesn't take part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Declined {
    /// The number.
    pub der: Der,
    /// What failed, and what to do next.
    pub message: String,
}

/// What became of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// It happened.
    Committed,
    /// It never happened, and never will.
    Aborted,
}

/// Leader → another target of a transaction: what became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DecideRequest {
    /// The pool.
    pub pool: PoolId,
    /// The container.
    pub container: ContainerId,
    /// The transaction.
    pub transaction: TransactionId,
    /// What became of it.
    pub outcome: Outcome,
}

/// A target that has prepared a transaction → its leader: what became of it?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OutcomeRequest {
    /// The pool.
    pub pool: PoolId,
    /// The container.
    pub container: ContainerId,
    /// The transaction.
    pub transaction: TransactionId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_the_leader_and_who_reads() {
        let leader = (Rank(0x0102_0304), TargetIndex(7));
        let id = TransactionId::new(leader, ReaderId(u64::MAX));
        assert_eq!((id.leader(), id.reader()), (leader, ReaderId(u64::MAX)));
        assert_ne!(id, TransactionId::new(leader, ReaderId(0)));
        let of_groups = TransactionId::of_groups(ReaderId(7));
        assert!(of_groups.is_of_groups() && !id.is_of_groups());
        assert_eq!(of_groups.reader(), ReaderId(7));
    }
}
