//! What a tenant may use, and how pools get their shares of it.
//!
//! The keeper of the list of pools divides a tenant's bytes among its pools, and each pool's service divides its share among its
//! targets. A share grows only from what no other pool may hold.

use serde::{Deserialize, Serialize};

use crate::{PoolId, TargetIndex, TenantId};

/// What all clients of a tenant together may use of a system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TenantLimits {
    /// Bytes that its pools may hold, counted as containers' quotas are: with copies and keys; 0: no limit.
    pub bytes: u64,
    /// Requests on objects of its pools a second; 0: no limit.
    pub operations: u64,
    /// Bytes that are written to and read from its pools a second; 0: no limit.
    pub bandwidth: u64,
}

/// Orders what the keeper says of a pool's share: of two the later one holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct ShareStamp {
    /// The term in which the keeper leads; 0 where it keeps the list alone.
    pub term: u64,
    /// Ascending within the term: wall time in nanoseconds since 1970, or more.
    pub at: u64,
}

/// What becomes of a pool's share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ShareChange {
    /// It stays as it is.
    Look,
    /// The pool may hold so many bytes from now on. What its targets hold already stays: the share is no less than that.
    Hold(u64),
    /// The pool has no limit.
    Lift,
}

/// Keeper of the list of pools → pool service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShareOrder {
    /// The pool.
    pub pool: PoolId,
    /// Orders it among others.
    pub stamp: ShareStamp,
    /// What is to become of the share.
    pub change: ShareChange,
}

/// What a pool service says of its share.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShareReport {
    /// Bytes that the pool may hold; none: it has no limit.
    pub limit: Option<u64>,
    /// Bytes that its targets hold, as far as they answer, where the keeper only looks.
    pub used: Option<u64>,
    /// The newest stamp that it knows.
    pub stamp: ShareStamp,
}

/// Pool service → keeper of the list of pools: the pool's share is used up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShareRequest {
    /// The pool.
    pub pool: PoolId,
    /// Bytes that it may hold now.
    pub limit: u64,
    /// Bytes that it is short of.
    pub wanted: u64,
    /// Whether other pools are asked for what they don't use.
    pub urgent: bool,
}

/// What the pool may hold from now on, unless something later was said.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShareGrant {
    /// Orders it among others.
    pub stamp: ShareStamp,
    /// Bytes; none: no limit.
    pub limit: Option<u64>,
}

/// What clients wanted of the pools of one tenant at a target since the target asked last, or how fast they may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Rate {
    /// Requests a second.
    pub operations: u64,
    /// Bytes a second.
    pub bandwidth: u64,
}

/// Target → keeper of the list of pools: how fast clients of tenants would go.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RateRequest {
    /// Index of the asking target in its engine; the seal names the rank.
    pub index: TargetIndex,
    /// The tenants that want something, with how fast they would go.
    pub wanted: Vec<(TenantId, Rate)>,
}

/// How fast they may go there until the target asks again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RateReply {
    /// Of each tenant that was asked about in this order; 0 in a rate that has no limit.
    pub allowed: Vec<Rate>,
}
