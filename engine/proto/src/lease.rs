//! What keeps the targets of a pool with replicas in step with its map: leases of the map, and what targets say of their data.

use serde::{Deserialize, Serialize};

use crate::pool::TargetPoolMap;
use crate::{PoolId, TargetIndex};

/// Asks for leases of maps: an engine the services of pools that run at another one, and a target the first target of its engine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// The pools.
    pub pools: Vec<LeaseWish>,
}

/// A pool of which a lease is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeaseWish {
    /// The pool.
    pub pool: PoolId,
    /// Version of its map that the sender goes by.
    pub version: u32,
    /// Whether the sender holds a lease of it: what was granted before has reached it.
    pub held: bool,
}

/// The leases that were granted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LeaseReply {
    /// Pools, with milliseconds that the lease lasts from the moment at which the request was sent. What is missing was not granted.
    pub granted: Vec<(PoolId, u32)>,
    /// Maps of pools by which the sender doesn't go: without them there is no lease.
    pub maps: Vec<TargetPoolMap>,
}

/// A target says that it has all that it lacked: one that is up, that it has caught up with its groups, or one that serves, that it
/// has filled the places that it gets of others. The reply is a [`TargetPoolMap`], by which a target that was up serves unless its
/// state has changed meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RebuiltNotice {
    /// Index of the target in its engine; the seal names the rank.
    pub index: TargetIndex,
    /// The pool.
    pub pool: PoolId,
    /// Version of the map that brought the state [`crate::pool::TargetState::Up`] in which it has caught up, or since which data moves
    /// ([`crate::pool::PoolMap::moves_since`]).
    pub since: u32,
}

/// A target that gets data says how far it is. The reply is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProgressNotice {
    /// Index of the target in its engine; the seal names the rank.
    pub index: TargetIndex,
    /// The pool.
    pub pool: PoolId,
    /// How far it is.
    pub progress: FillProgress,
}

/// Most bytes of what a [`HindranceNotice`] says.
pub const HINDRANCE_MAX: usize = 1024;

/// A target that gets data can't go on. The reply is empty.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HindranceNotice {
    /// Index of the target in its engine; the seal names the rank.
    pub index: TargetIndex,
    /// The pool.
    pub pool: PoolId,
    /// Why, for people, up to [`HINDRANCE_MAX`] bytes.
    pub reason: String,
}

/// How far a target is with the data that it gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FillProgress {
    /// Milliseconds since it began.
    pub running_ms: u64,
    /// Events and versions that it has taken in.
    pub entries: u64,
    /// Bytes of data that it has taken in.
    pub bytes: u64,
    /// Parts of the work: the containers of each target that has data. 0: it isn't known yet.
    pub parts: u64,
    /// Parts that are done.
    pub done: u64,
}

/// A target has started again, so that it doesn't know which changes on its device are settled, or finds that it is out of a map
/// although it is well. The reply has the maps of the pools, as [`TargetPoolMap`]s.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReturnedNotice {
    /// Index of the target in its engine; the seal names the rank.
    pub index: TargetIndex,
    /// Pools that this concerns, with the versions of their maps that the target knows.
    pub pools: Vec<(PoolId, u32)>,
}
