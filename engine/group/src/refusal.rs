//! Errors of requests between engines: what crosses the wire, and why a request is rejected before its handler sees it.

use weir_proto::Der;
use weir_rpc::Status;

/// What crosses the wire of an error: a number and a message, with the object it is about.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message} ({der})")]
pub struct Refusal {
    /// The number.
    pub der: Der,
    /// The object, e.g. "pool tank"; empty when there is none.
    pub object: String,
    /// What failed and what to do next.
    pub message: String,
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        Self { der: refusal.der, message: refusal.message }
    }
}

impl From<Status> for Refusal {
    fn from(Status { der, message }: Status) -> Self {
        Self { der, object: String::new(), message }
    }
}

/// Why a request of an engine is rejected, whatever it asks for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rejection {
    /// It came with the seal of an engine that isn't one.
    #[error(
        "the request is not sealed by an engine of this system; check that all engines have the same system key"
    )]
    NotSealed,
    /// It goes by another version of the list of engines.
    #[error(
        "the request goes by version {theirs} of the list of engines, this engine by version {ours}; the newer one is to be fetched and the request repeated"
    )]
    StaleGroup {
        /// The request's version.
        theirs: u64,
        /// This engine's.
        ours: u64,
    },
    /// It is a part in an operation of all engines that can't be done here.
    #[error(
        "collective operation {operation:#06x} can't be done here ({der}); ask this engine's targets themselves"
    )]
    Collective {
        /// Opcode of the operation.
        operation: u16,
        /// Why.
        der: Der,
    },
}

impl Rejection {
    /// The number that crosses the wire.
    #[must_use]
    pub const fn der(&self) -> Der {
        match self {
            Self::NotSealed => Der::NO_PERM,
            Self::StaleGroup { .. } => Der::GRPVER,
            Self::Collective { der, .. } => *der,
        }
    }
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Self {
        Self { der: rejection.der(), object: String::new(), message: rejection.to_string() }
    }
}

impl From<Rejection> for Status {
    fn from(rejection: Rejection) -> Self {
        Refusal::from(rejection).into()
    }
}
