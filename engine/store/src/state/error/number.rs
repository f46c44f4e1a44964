//! The numbers by which errors cross the wire.

use crate::format::decision::Decision;
use crate::state::error::{FetchError, PoolError, TransactionError, UpdateError};
use weir_proto::Der;

impl TransactionError {
    /// The number that crosses the wire.
    #[must_use]
    pub const fn der(&self) -> Der {
        match self {
            Self::PoolMissing(_) | Self::Unknown(_) => Der::NONEXIST,
            Self::ContainerMissing(_) => Der::CONT_NONEXIST,
            Self::ContainerDestroying(_) => Der::CONT_DESTROYING,
            Self::Aborted(_) => Der::OP_CANCELED,
            Self::Committed { .. } => Der::ALREADY,
            Self::Media(_) => Der::NVME_IO,
            Self::Index { .. } | Self::Failed(_) => Der::IO,
        }
    }
}

impl PoolError {
    /// The number that crosses the wire.
    #[must_use]
    pub const fn der(&self) -> Der {
        match self {
            Self::Exists { .. } => Der::EXIST,
            Self::Missing(_) => Der::NONEXIST,
            Self::ContainerMissing(_) => Der::CONT_NONEXIST,
            Self::ContainerDestroying(_) => Der::CONT_DESTROYING,
            Self::NoSpace { .. } | Self::Full(_) => Der::NOSPACE,
            Self::InUse { .. } => Der::BUSY,
            Self::Index(_) | Self::Failed(_) => Der::IO,
        }
    }
}

impl UpdateError {
    /// Whether it may say what is there or isn't, and not only that the change can't be made now or at its epoch.
    pub(crate) const fn tells_state(&self) -> bool {
        !matches!(self, Self::Undecided { .. } | Self::Restart { .. } | Self::Aggregated { .. })
    }

    /// The number that crosses the wire.
    #[must_use]
    pub const fn der(&self) -> Der {
        match self {
            Self::Invalid(_) | Self::Kind { .. } => Der::INVAL,
            Self::PoolMissing(_) | Self::Missing(_) => Der::NONEXIST,
            Self::ContainerMissing(_) => Der::CONT_NONEXIST,
            Self::ContainerDestroying(_) => Der::CONT_DESTROYING,
            Self::Exists { .. } => Der::EXIST,
            Self::RecordSize { .. } => Der::REC_SIZE,
            Self::NoSpace { .. } | Self::Quota { .. } | Self::Fragmented(_) => Der::NOSPACE,
            Self::Unsupported { .. } => Der::NOSYS,
            Self::Checksum { .. } => Der::CSUM,
            Self::Undecided { .. } | Self::Crowded { .. } => Der::INPROGRESS,
            Self::Restart { .. } => Der::TX_RESTART,
            Self::Aggregated { .. } => Der::EP_OLD,
            Self::Decided { decision: Decision::Committed(_), .. } => Der::ALREADY,
            Self::Decided { decision: Decision::Aborted, .. } => Der::OP_CANCELED,
            Self::Media(_) => Der::NVME_IO,
            Self::Index { .. } | Self::Failed(_) => Der::IO,
        }
    }
}

impl FetchError {
    /// Whether bytes of a value are damaged, and nothing else is wrong.
    #[must_use]
    pub const fn is_of_data(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::Altered { .. })
    }

    /// The number that crosses the wire.
    #[must_use]
    pub const fn der(&self) -> Der {
        match self {
            Self::Invalid(_) | Self::Kind { .. } => Der::INVAL,
            Self::PoolMissing(_) | Self::Missing(_) => Der::NONEXIST,
            Self::ContainerMissing(_) => Der::CONT_NONEXIST,
            Self::ContainerDestroying(_) => Der::CONT_DESTROYING,
            Self::RecordSize { .. } => Der::REC_SIZE,
            Self::Buffer { .. } | Self::Scattered { .. } => Der::REC2BIG,
            Self::Undecided { .. } => Der::INPROGRESS,
            Self::Restart { .. } => Der::TX_RESTART,
            Self::Corrupt { .. } | Self::Altered { .. } | Self::Index { .. } => Der::CSUM,
            Self::Media(_) => Der::NVME_IO,
            Self::Failed(_) => Der::IO,
        }
    }
}
