//! Why a request to the pool service or to a target's pools fails.

use weir_group::{AskError, Refusal};
use weir_proto::{CapabilityError, ContainerId, Der, Epoch, PoolId, Rank, TargetIndex};
use weir_store::{AttributeError, PoolError};

/// Why a pool or container operation failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failed {
    /// No pool of that label or UUID.
    #[error("pool {0} does not exist; `weir pool list` shows the pools")]
    NoPool(String),
    /// A pool that was destroyed while some engine was away, which still holds a part of it.
    #[error("pool {0} was destroyed; what is left of it goes when its engines have heard")]
    Remnant(PoolId),
    /// The pool's service runs on another rank.
    #[error("the service of pool {pool} runs on rank {service}, not here; ask that rank")]
    Elsewhere {
        /// The pool.
        pool: PoolId,
        /// Where it runs.
        service: Rank,
    },
    /// The pool's service is replicated, and the replica that was asked doesn't lead, nor knows one that does.
    #[error("the service of pool {0} has no leader at this moment; try again")]
    Leaderless(PoolId),
    /// The replica that was asked has ceased to lead before the change was known to be made.
    #[error(
        "the service of pool {0} has changed its leader meanwhile; ask again whether the change was made"
    )]
    Deposed(PoolId),
    /// The pool is being created or destroyed.
    #[error("pool {0} is being {1}; try again when that has finished")]
    InTransition(String, &'static str),
    /// No container of that label or UUID.
    #[error(
        "container {container} does not exist in pool {pool}; `weir container list {pool}` shows the containers"
    )]
    NoContainer {
        /// The pool's label.
        pool: String,
        /// The container as named.
        container: String,
    },
    /// The container was destroyed while a handle was open.
    #[error("container {container} of pool {pool} does not exist any more; it was destroyed while open")]
    Destroyed {
        /// The pool's label.
        pool: String,
        /// The container.
        container: ContainerId,
    },
    /// No snapshot of that epoch.
    #[error("{object} has no snapshot of epoch {}; `weir container list-snap` shows those it has", .epoch.0)]
    NoSnapshot {
        /// The container.
        object: String,
        /// The epoch as named.
        epoch: Epoch,
    },
    /// The label is in use by something else.
    #[error("{object} exists with other properties ({difference}); choose another label or destroy it first")]
    Exists {
        /// The object.
        object: String,
        /// What differs.
        difference: String,
    },
    /// An engine that is to join a pool has.
    #[error("{object}: rank {rank} holds it already; `weir pool query` shows the ranks that do")]
    Joined {
        /// The pool.
        object: String,
        /// The engine.
        rank: Rank,
    },
    /// The object is in use.
    #[error("{object} {reason}")]
    Busy {
        /// The object.
        object: String,
        /// The cause, and what to do.
        reason: String,
    },
    /// The request makes no sense.
    #[error("{object}: {reason}")]
    Invalid {
        /// The object.
        object: String,
        /// What is wrong.
        reason: String,
    },
    /// A known feature that this release doesn't have.
    #[error("{object}: {reason}")]
    NotSupported {
        /// The object.
        object: String,
        /// What isn't supported, and what is.
        reason: String,
    },
    /// Not enough room.
    #[error("{object}: {reason}")]
    NoSpace {
        /// The object.
        object: String,
        /// How much is missing, where.
        reason: String,
    },
    /// Nobody answers for the list of pools.
    #[error(
        "no engine answers for the list of pools at the moment: {0}; try again when the engines are back that keep it (`weir system query` shows which are away)"
    )]
    NoKeeper(&'static str),
    /// The client's credential is wrong.
    #[error(
        "the credential for pool {0} is not valid; check that the client has this system's key and that both clocks agree"
    )]
    Credential(String),
    /// The client's handle is wrong.
    #[error(transparent)]
    Capability(#[from] CapabilityError),
    /// Engines took so long that a snapshot might lack what was aggregated meanwhile.
    #[error("{0}: engines took too long to take a snapshot together; try again when they are less busy")]
    Late(String),
    /// The device of this target is faulty.
    #[error(
        "target {index} of rank {rank} is out of service, because its device is faulty: {reason}. Repair or replace the device, say so with `weir system clear-device {rank} {index}`, and restart the engine"
    )]
    OutOfService {
        /// The rank.
        rank: Rank,
        /// The target.
        index: TargetIndex,
        /// What is wrong with it.
        reason: String,
    },
    /// What this target held is not on its device.
    #[error(
        "target {index} of rank {rank} is lost: {reason}. It serves nothing of what it held. Bring its device or file back, or put a copy in its place (`weir store check` says what can still be read, `weir store copy` copies it), and restart the engine. If its data is to be given up: erase the device or remove the file, unless what is there is to be used as it is, say so with `weir system clear-device {rank} {index}`, and restart the engine"
    )]
    Lost {
        /// The rank.
        rank: Rank,
        /// The target.
        index: TargetIndex,
        /// What is there instead.
        reason: String,
    },
    /// A target has nothing of a pool whose map counts on it.
    #[error(
        "target {index} of rank {rank} is lost to pool {pool}: it has nothing of the pool, which counts on it. If its device was replaced, or its file, by another one, put the old one back, or a copy of it (`weir store copy`), and restart the engine; if its data is gone, destroy the pool, and restore what was in it from a backup"
    )]
    LostShard {
        /// The pool.
        pool: PoolId,
        /// The rank.
        rank: Rank,
        /// The target.
        index: TargetIndex,
    },
    /// An engine or some of its targets don't answer.
    #[error(
        "{object}: {doing} needs rank {rank}, which does not answer ({reason}); try again when it is back"
    )]
    Unreachable {
        /// The object.
        object: String,
        /// What was being done.
        doing: &'static str,
        /// The rank.
        rank: Rank,
        /// What the transport says.
        reason: String,
    },
    /// Another engine refused its part.
    #[error("{object}: target {index} of rank {rank} refused: {message}")]
    Target {
        /// The object.
        object: String,
        /// The rank.
        rank: Rank,
        /// The target.
        index: u32,
        /// Its error's number.
        der: Der,
        /// Its error.
        message: String,
    },
    /// Clocks are too far apart.
    #[error(transparent)]
    Clock(#[from] weir_proto::hlc::ClockSkew),
    /// The store of this target failed.
    #[error(transparent)]
    Store(#[from] PoolError),
    /// The pool's state could not be written.
    #[error(transparent)]
    Attributes(#[from] AttributeError),
    /// The last change of something of a container may have been made durable, or not.
    #[error(
        "{object}: its last change of {what} failed with the device of the pool service, and only that tells whether it was made; repair or replace the device, restart the engine, then ask again"
    )]
    Unsettled {
        /// The container.
        object: String,
        /// What was changed.
        what: &'static str,
    },
    /// The device of the pool service can't keep changes.
    #[error(
        "pool {pool}: its service takes no changes, because they can't be kept on the device of target 0 of rank {rank} ({reason}); no object ids are given out, and containers, quotas, attributes and snapshots stay as they are. Repair or replace the device, say so with `weir system clear-device {rank} 0`, and restart the engine"
    )]
    Frozen {
        /// The pool's label.
        pool: String,
        /// Where the service runs.
        rank: Rank,
        /// What is wrong with the device or its store.
        reason: String,
    },
    /// The map of a pool can be kept neither on the device of its service nor beside it.
    #[error(
        "the map of pool {pool} can't be {what} the engine's data directory: {reason}; while the device of the pool's service is out of use, that is where the map is kept: make it readable and writable, with some room"
    )]
    MapBackup {
        /// The pool.
        pool: PoolId,
        /// What was tried.
        what: &'static str,
        /// What the system says.
        reason: String,
    },
    /// The pool's state could not be read.
    #[error(
        "{what} of pool {pool} can't be read back: {reason}; recreate the pool, and restore what was in it from a backup"
    )]
    Record {
        /// The pool.
        pool: PoolId,
        /// Which part of the state.
        what: &'static str,
        /// What the decoder met.
        reason: String,
    },
}

impl Failed {
    /// The failure of an operation on `object` that asked another engine for its part in `doing`.
    #[must_use]
    pub fn asking(object: impl Into<String>, doing: &'static str, error: AskError) -> Self {
        let object = object.into();
        match error {
            AskError::Refused { rank, index, refusal } => {
                Self::Target { object, rank, index, der: refusal.der, message: refusal.message }
            }
            AskError::NoAnswer { rank, reason, .. } => Self::Unreachable { object, doing, rank, reason },
            AskError::StaleGroup { rank, index, .. } => {
                Self::Target { object, rank, index, der: Der::GRPVER, message: error.to_string() }
            }
            AskError::Unknown { rank, .. } => {
                Self::Unreachable { object, doing, rank, reason: error.to_string() }
            }
        }
    }

    /// The number that crosses the wire.
    #[must_use]
    pub fn der(&self) -> Der {
        match self {
            Self::NoPool(_) | Self::NoContainer { .. } | Self::NoSnapshot { .. } => Der::NONEXIST,
            Self::Remnant(_) => Der::ALREADY,
            Self::Elsewhere { .. } | Self::Leaderless(_) | Self::Deposed(_) | Self::NoKeeper(_) => {
                Der::NOTLEADER
            }
            Self::InTransition(..) => Der::INPROGRESS,
            Self::Destroyed { .. } => Der::CONT_NONEXIST,
            Self::Exists { .. } | Self::Joined { .. } => Der::EXIST,
            Self::Busy { .. } => Der::BUSY,
            Self::Invalid { .. } => Der::INVAL,
            Self::NotSupported { .. } => Der::NOTSUPPORTED,
            Self::NoSpace { .. } => Der::NOSPACE,
            Self::Credential(_) => Der::NO_PERM,
            Self::Capability(error) => capability_der(error),
            Self::Unreachable { .. } => Der::UNREACH,
            Self::Late(_) => Der::TIMEDOUT,
            Self::OutOfService { .. } | Self::Lost { .. } | Self::LostShard { .. } => Der::NVME_IO,
            Self::Target { der, .. } => *der,
            Self::Clock(_) => Der::HLC_SYNC,
            Self::Store(error) => error.der(),
            Self::Attributes(error) => error.der(),
            Self::Unsettled { .. } | Self::Frozen { .. } | Self::Record { .. } | Self::MapBackup { .. } => {
                Der::IO
            }
        }
    }

    /// The object the failure is about; empty when the message alone says it.
    #[must_use]
    pub fn object(&self) -> String {
        match self {
            Self::NoPool(pool)
            | Self::InTransition(pool, _)
            | Self::Credential(pool)
            | Self::Frozen { pool, .. } => format!("pool {pool}"),
            Self::Elsewhere { pool, .. }
            | Self::Record { pool, .. }
            | Self::MapBackup { pool, .. }
            | Self::LostShard { pool, .. }
            | Self::Leaderless(pool)
            | Self::Deposed(pool)
            | Self::Remnant(pool) => format!("pool {pool}"),
            Self::NoContainer { container, .. } => format!("container {container}"),
            Self::Destroyed { container, .. } => format!("container {container}"),
            Self::Late(object)
            | Self::Unsettled { object, .. }
            | Self::NoSnapshot { object, .. }
            | Self::Exists { object, .. }
            | Self::Joined { object, .. }
            | Self::Busy { object, .. }
            | Self::Invalid { object, .. }
            | Self::NotSupported { object, .. }
            | Self::NoSpace { object, .. }
            | Self::Unreachable { object, .. }
            | Self::Target { object, .. } => object.clone(),
            Self::Capability(_)
            | Self::NoKeeper(_)
            | Self::OutOfService { .. }
            | Self::Lost { .. }
            | Self::Clock(_)
            | Self::Store(_)
            | Self::Attributes(_) => String::new(),
        }
    }
}

/// The number of a refused capability.
pub(crate) const fn capability_der(error: &CapabilityError) -> Der {
    match error {
        CapabilityError::Forged(_) => Der::NO_HDL,
        CapabilityError::Insufficient { .. } => Der::NO_PERM,
    }
}

impl From<weir_raft::Unreadable> for Failed {
    fn from(error: weir_raft::Unreadable) -> Self {
        let weir_raft::Unreadable { group, what, reason } = error;
        Self::Record { pool: group, what, reason }
    }
}

impl From<Failed> for Refusal {
    fn from(failed: Failed) -> Self {
        Self { der: failed.der(), object: failed.object(), message: failed.to_string() }
    }
}

impl From<Failed> for weir_rpc::Status {
    fn from(failed: Failed) -> Self {
        Self { der: failed.der(), message: failed.to_string() }
    }
}
