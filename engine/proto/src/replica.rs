//! Changes of objects with replicas: a client sends each to the leader of a group, which tells the other members.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::object::{AkeyUpdate, PunchScope};
use crate::{ContainerId, Epoch, Key, ObjectId, PoolId, Rank, TargetIndex};

/// Most bytes of an encoded [`ForwardedChange`] with its data that travel in the message. With seal, header and the rest of
/// a [`ReplicaForward`] they fit [`crate::limits::INLINE_MAX`]; the receiver fetches what is longer.
pub const FORWARD_INLINE_MAX: usize = 15 * 1024;

/// Names a change of a client: the same however often it is sent, and to whichever target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ChangeId {
    /// One run of a client, drawn at random.
    pub client: u64,
    /// Number among the changes of that client, ascending from 1.
    pub number: u64,
}

/// A change on its way to the leader of a group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ByLeader<T> {
    /// Its name.
    pub id: ChangeId,
    /// The client sends no change below this number again.
    pub acked: u64,
    /// What it asks for.
    pub wanted: T,
}

/// What a member of a group carries out as its leader has, without conditions.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ForwardedChange {
    /// Stores values of akeys of one dkey. The data follows the encoded change.
    Update {
        /// The dkey.
        dkey: Key,
        /// The akeys.
        akeys: Vec<AkeyUpdate>,
    },
    /// Removes an object, dkeys or akeys.
    Punch {
        /// What goes.
        scope: PunchScope,
    },
}

/// Leader of a group → another member: store this.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplicaForward {
    /// The target that leads, of the engine that has sealed the request.
    pub leader: TargetIndex,
    /// The pool.
    pub pool: PoolId,
    /// The container.
    pub container: ContainerId,
    /// Version of the pool map by which the leader leads. A member with a newer one refuses.
    pub map_version: u32,
    /// The object.
    pub object: ObjectId,
    /// Epoch of the change.
    pub epoch: Epoch,
    /// Its name, which is stored with it.
    pub id: ChangeId,
    /// Wall time, in nanoseconds since 1970, until which the name is kept.
    pub until: u64,
    /// Numbers of the same client whose names are kept no longer.
    pub forgotten: Vec<u64>,
    /// An encoded [`ForwardedChange`], and its data. Empty: longer than [`FORWARD_INLINE_MAX`], the receiver fetches it from
    /// the sender's memory.
    pub change: ByteBuf,
}

/// Leader of groups → another member: keep room for copies of what is about to be stored here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RoomRequest {
    /// The target that leads, of the engine that has sealed the request.
    pub leader: TargetIndex,
    /// The pool.
    pub pool: PoolId,
    /// The container of the change that needs it.
    pub container: ContainerId,
    /// Bytes that the change takes at most.
    pub needed: u64,
    /// Bytes that are to be kept beside, for changes that come later.
    pub ahead: u64,
    /// Bytes that the leader still counts on, of earlier promises. The member may drop the rest of them.
    pub held: u64,
}

/// What a member answers. What it promises is added to what the leader holds, which lasts as long as what is promised last.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RoomPromise {
    /// Bytes that are kept: none, or as many as are needed and perhaps more.
    pub bytes: u64,
    /// Whether there may be room soon, where nothing is kept: what was overwritten or deleted a moment ago still takes some.
    pub regains: bool,
}

/// Leader of a group → another member: keep room for records, or give it up, as [`crate::object::ReserveRequest`] asks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplicaReserve {
    /// The pool.
    pub pool: PoolId,
    /// The container.
    pub container: ContainerId,
    /// Version of the pool map by which the leader leads. A member with a newer one refuses.
    pub map_version: u32,
    /// The object.
    pub object: ObjectId,
    /// The akey.
    pub akey: Key,
    /// Bytes of a record.
    pub record_size: u32,
    /// Records of a dkey: those below this one.
    pub records: u64,
    /// Dkey and record to begin with.
    pub from: (u64, u64),
    /// Dkey and record behind the last one.
    pub below: (u64, u64),
    /// Whether room is to be kept. Otherwise it is given up.
    pub keeps: bool,
    /// Runs of dkeys.
    pub dkeys: Vec<(u32, u32)>,
}

/// Leader of groups → another member: these changes are stored at all members.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SettledNotice {
    /// The target that leads.
    pub leader: TargetIndex,
    /// The pool.
    pub pool: PoolId,
    /// Epochs of the changes.
    pub epochs: Vec<Epoch>,
}

/// Leader of groups of more than two → another member: these changes are stored at all members.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SettledChanges {
    /// The target that leads, of the engine that has sealed the request.
    pub leader: TargetIndex,
    /// The pool.
    pub pool: PoolId,
    /// The targets that have chosen the epochs, the leader or those that led before it, and the epochs.
    pub changes: Vec<(Rank, TargetIndex, Epoch)>,
    /// All members know that all changes of the leader before this epoch are settled.
    pub floor: Epoch,
}

/// New leader of groups → another member: which changes of targets that led before are unsettled there? Answered by
/// [`LeftChanges`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftRequest {
    /// The target that leads, of the engine that has sealed the request.
    pub leader: TargetIndex,
    /// The pool.
    pub pool: PoolId,
    /// Version of the pool map by which the sender leads. A member with another one refuses.
    pub map_version: u32,
    /// Behind which one to begin, by epoch and who has chosen it; `None`: at the first one.
    pub from: Option<(Epoch, Rank, TargetIndex)>,
}

/// A change that a leader has left unsettled.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftChange {
    /// Its epoch.
    pub epoch: Epoch,
    /// The target that has chosen it.
    pub origin: (Rank, TargetIndex),
    /// The container.
    pub container: ContainerId,
    /// The object.
    pub object: ObjectId,
    /// Number of the group among those of the object.
    pub group: u32,
    /// Its name.
    pub id: ChangeId,
    /// Bytes of the encoded [`ForwardedChange`] with its data.
    pub len: u64,
}

/// Changes that leaders have left unsettled, in the order of their epochs.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct LeftChanges {
    /// Those.
    pub changes: Vec<LeftChange>,
    /// Whether there are more behind them.
    pub goes_on: bool,
}

/// New leader of a group → member that has a [`LeftChange`]: what is it? Answered by [`LeftData`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftDataRequest {
    /// The pool.
    pub pool: PoolId,
    /// Version of the pool map by which the sender leads. A member with another one refuses.
    pub map_version: u32,
    /// The target that has chosen the epoch.
    pub origin: (Rank, TargetIndex),
    /// Epoch of the change.
    pub epoch: Epoch,
}

/// A change that a leader has left unsettled, as it was forwarded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftData {
    /// Wall time, in nanoseconds since 1970, until which the name is kept.
    pub until: u64,
    /// An encoded [`ForwardedChange`], and its data.
    pub change: ByteBuf,
}

/// New leader of a group → another member: store this, which a target that led before has left unsettled, unless it is there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TakenForward {
    /// The target that has chosen the epoch.
    pub origin: (Rank, TargetIndex),
    /// Number of the group among those of the object.
    pub group: u32,
    /// The change, as the new leader forwards one of its own.
    pub forward: ReplicaForward,
}

/// Member of groups → their new leader: changes that targets which led before have left are unsettled here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftNotice {
    /// The member, of the engine that has sealed the request.
    pub member: TargetIndex,
    /// The pool.
    pub pool: PoolId,
}
