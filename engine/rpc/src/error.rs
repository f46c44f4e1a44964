//! Errors of calls and of handlers.

use crate::contact::Peer;
use core::ops::RangeInclusive;
use core::time::Duration;
use weir_fabric::FabricError;
use weir_proto::{Der, TenantId};

/// A server's refusal: travels in the reply.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message} ({der})")]
pub struct Status {
    /// The code that programs look at.
    pub der: Der,
    /// What failed, on which object, and what to do next.
    pub message: String,
}

impl Status {
    /// A refusal with a message for people.
    #[must_use]
    pub fn new(der: Der, message: impl Into<String>) -> Self {
        Self { der, message: message.into() }
    }
}

impl From<FabricError> for Status {
    fn from(error: FabricError) -> Self {
        let der = match &error {
            FabricError::NoBuffers { .. } => Der::NOMEM,
            FabricError::OutOfRange { .. } => Der::INVAL,
            FabricError::TooLarge { .. } => Der::OVERFLOW,
            FabricError::AccessDenied { .. } => Der::NO_PERM,
            FabricError::Cancelled => Der::CANCELED,
            FabricError::Resolve { .. }
            | FabricError::Unpublished { .. }
            | FabricError::BadAddress { .. }
            | FabricError::UnknownPeer
            | FabricError::Unreachable { .. } => Der::UNREACH,
            FabricError::Provider { .. }
            | FabricError::NoAuthKeys { .. }
            | FabricError::TooManyKeys { .. }
            | FabricError::NoProtocol { .. }
            | FabricError::NoDevice { .. }
            | FabricError::ForeignAddresses { .. }
            | FabricError::OwnProcess { .. } => Der::HG,
        };
        Self::new(der, error.to_string())
    }
}

/// A call failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RpcError {
    /// The server answered with a refusal.
    #[error("{0}")]
    Remote(Status),
    /// No reply came before the deadline.
    #[error(
        "{peer} did not answer operation {opcode:#06x} within {waited:?} ({tries} tries, last: {last}); whether it was executed is unknown"
    )]
    TimedOut {
        /// The server.
        peer: Peer,
        /// The operation.
        opcode: u16,
        /// Time since the call began.
        waited: Duration,
        /// How often the request was sent.
        tries: u32,
        /// Outcome of the last try.
        last: String,
    },
    /// Contact could not be made, or broke while a request was in flight that must not be repeated.
    #[error("{peer} can't be reached: {reason}")]
    Unreachable {
        /// The server.
        peer: Peer,
        /// The fabric's reason.
        reason: String,
    },
    /// The server does not accept this side's key.
    #[error(
        "{peer} does not know tenant {tenant} by this key; check that the key file is this system's and the tenant's"
    )]
    Denied {
        /// The server.
        peer: Peer,
        /// The tenant of this side.
        tenant: TenantId,
    },
    /// The two sides have no protocol version in common.
    #[error("{peer} speaks fabric protocol {} to {}, this side {} to {}; upgrade the older one", theirs.start(), theirs.end(), ours.start(), ours.end())]
    Version {
        /// The server.
        peer: Peer,
        /// Versions of this side.
        ours: RangeInclusive<u16>,
        /// Versions of the server.
        theirs: RangeInclusive<u16>,
    },
    /// The request does not fit in a message.
    #[error("a body of {len} bytes is larger than the inline limit of {max}; move it as bulk")]
    TooLarge {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The memory is in more parts than a request can name.
    #[error(
        "memory in {count} pieces is more than the {max} that a request may name; join some of them, or make several calls"
    )]
    Scattered {
        /// How many there are.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// This side's fabric refused before anything was sent.
    #[error("{0}")]
    Fabric(#[from] FabricError),
    /// The context was closed while the call waited.
    #[error("the RPC context was closed while the call waited")]
    Closed,
}

impl RpcError {
    /// The reason alone, for an error that names the peer itself.
    pub(crate) fn into_reason(self) -> String {
        match self {
            Self::Unreachable { reason, .. } => reason,
            other => other.to_string(),
        }
    }

    /// The code that programs look at.
    #[must_use]
    pub fn der(&self) -> Der {
        match self {
            Self::Remote(status) => status.der,
            Self::TimedOut { .. } => Der::TIMEDOUT,
            Self::Unreachable { .. } => Der::UNREACH,
            Self::Version { .. } => Der::PROTO,
            Self::Denied { .. } => Der::NO_PERM,
            Self::TooLarge { .. } => Der::OVERFLOW,
            Self::Scattered { .. } => Der::INVAL,
            Self::Fabric(error) => Status::from(error.clone()).der,
            Self::Closed => Der::CANCELED,
        }
    }
}
