//! Errors of the store as clients get them, with the names of pool, container and target.

use weir_group::Refusal;
use weir_pool::{Failed, TargetPool, TargetPools};
use weir_proto::{Der, PoolId, Rank, TargetIndex};
use weir_rpc::Status;
use weir_store::{FetchError, UpdateError};

/// Where an operation ran, for messages.
pub struct ErrorSite<'a> {
    pub pools: &'a TargetPools,
    pub pool: PoolId,
    pub container: &'a str,
}

impl core::fmt::Display for ErrorSite<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let engines = self.pools.engines();
        let pool = self.pools.get(self.pool).map_or_else(|_| self.pool.to_string(), |pool| pool.label());
        let (rank, index) = (engines.own_rank(), engines.own_index());
        write!(f, "container {} of pool {pool} on target {index} of rank {rank}", self.container)
    }
}

/// The answer to an update or punch that the store refused.
pub fn update(error: &UpdateError, place: &ErrorSite<'_>) -> Status {
    let message = match error {
        UpdateError::NoSpace { needed, free, size, .. } => format!(
            "{place}: the pool is full there ({needed} bytes needed, {free} free of {size}); delete data or grow the pool"
        ),
        UpdateError::Quota { .. } => {
            format!("{place}: its quota or its tenant's is used up; delete data or raise the quota")
        }
        error => format!("{place}: {error}"),
    };
    Status::new(error.der(), message)
}

/// The answer to an update that may find room soon: it is to come again.
pub fn room_to_come(error: &UpdateError, place: &ErrorSite<'_>) -> Status {
    let used_up = match error {
        UpdateError::Quota { .. } => "its quota or its tenant's is used up, delete data or raise the quota",
        _ => "the pool is full there, delete data or grow the pool",
    };
    let message = format!("{place}: {used_up}; what was overwritten or deleted a moment ago still counts");
    Status::new(Der::UPDATE_AGAIN, message)
}

/// The answer to an update for which another member of its group has no room, or none at this moment.
pub fn no_room_for_copy((rank, index): (Rank, TargetIndex), regains: bool, place: &ErrorSite<'_>) -> Status {
    let (der, hint) = if regains {
        (Der::UPDATE_AGAIN, "; what was overwritten or deleted a moment ago still counts")
    } else {
        (Der::NOSPACE, "")
    };
    let message = format!(
        "{place}: the pool is full on target {index} of rank {rank}, which is to keep a copy; delete data or grow the pool{hint}"
    );
    Status::new(der, message)
}

/// The answer to a fetch, list or query that the store refused.
pub fn fetch(error: &FetchError, place: &ErrorSite<'_>) -> Status {
    Status::new(error.der(), format!("{place}: {error}"))
}

/// The answer of a target whose device is faulty, or that is lost.
pub fn out_of_service(pools: &TargetPools, pool: PoolId, failed: &Failed) -> Status {
    let pool = pools.get(pool).map_or_else(|_| pool.to_string(), |pool| pool.label());
    Status::new(failed.der(), format!("pool {pool}: {failed}"))
}

/// The answer of a target whose device keeps everything waiting: the request is to come again.
pub fn stalled(pools: &TargetPools, pool: PoolId, reason: &str) -> Status {
    let (rank, index) = (pools.engines().own_rank(), pools.engines().own_index());
    let pool = pools.get(pool).map_or_else(|_| pool.to_string(), |pool| pool.label());
    let message = format!("pool {pool}: target {index} of rank {rank} waits for its device: {reason}");
    Status::new(Der::AGAIN, message)
}

/// The answer of a target that holds no lease of the pool's map: the request is to come again, or to go to another replica.
pub fn without_lease(pools: &TargetPools, pool: &TargetPool) -> Status {
    let (rank, index) = (pools.engines().own_rank(), pools.engines().own_index());
    let message = format!(
        "pool {}: target {index} of rank {rank} holds no lease of the pool's map at the moment, so that it may be out of date",
        pool.label()
    );
    Status::new(Der::AGAIN, message)
}

/// An answer to another engine.
pub fn between_engines(Status { der, message }: Status) -> Refusal {
    Refusal { der, object: String::new(), message }
}

/// The answer to a request that breaks a rule of the protocol.
pub fn invalid(reason: impl core::fmt::Display) -> Status {
    Status::new(Der::INVAL, format!("the request is invalid: {reason}"))
}

/// The answer to a body that doesn't decode.
pub fn malformed(reason: impl core::fmt::Display) -> Status {
    Status::new(Der::PROTO, format!("the request is malformed: {reason}"))
}
