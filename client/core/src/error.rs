//! Errors of client operations.

use core::time::Duration;

use weir_proto::Der;

use crate::attach::AttachError;

/// Result of a client operation.
pub type Result<T> = core::result::Result<T, Error>;

/// A failed client operation: what was tried, on what, why it failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The attach file is missing or wrong.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The local fabric endpoint or executor can't be made.
    #[error("can't open the fabric (provider {provider}): {reason}")]
    Fabric {
        /// libfabric provider.
        provider: String,
        /// What the fabric or the operating system said.
        reason: String,
    },
    /// An engine refused the operation.
    #[error("{operation} {subject}: {message} ({der})")]
    Refused {
        /// Operation, e.g. `update`.
        operation: &'static str,
        /// What it was about, e.g. `object 1.2`.
        subject: String,
        /// Error number.
        der: Der,
        /// The engine's explanation.
        message: String,
    },
    /// No answer within the operation's deadline.
    #[error(
        "{operation} {subject}: {server} has not answered for {}.{:03} s ({cause}); the operation was given up, its data is available again when that engine is back", waited.as_secs(), waited.subsec_millis()
    )]
    Unavailable {
        /// Operation.
        operation: &'static str,
        /// What it was about.
        subject: String,
        /// Which engine and target, e.g. `engine 2 target 1 (node-3:10101)`.
        server: String,
        /// How long it was tried.
        waited: Duration,
        /// The last thing that went wrong.
        cause: String,
    },
    /// A transaction had to start again until the operation's deadline had passed. Nothing has happened.
    #[error(
        "{operation} {subject}: it had to start again for {}.{:03} s ({cause}) and was given up; nothing was changed. Try again when others change the same less, or when the engine that is named is back", waited.as_secs(), waited.subsec_millis()
    )]
    Restarted {
        /// Operation.
        operation: &'static str,
        /// What it was about.
        subject: String,
        /// How long it was tried.
        waited: Duration,
        /// Why it had to start again the last time.
        cause: String,
    },
    /// The caller's arguments make no sense.
    #[error("{operation}: {reason}")]
    Invalid {
        /// Operation.
        operation: &'static str,
        /// Which rule is broken.
        reason: String,
    },
    /// A value, key or buffer has the wrong size.
    #[error("{operation}: {reason} ({der})")]
    Size {
        /// Operation.
        operation: &'static str,
        /// Which limit is passed.
        reason: String,
        /// `REC2BIG`, `KEY2BIG`, `REC_SIZE`, `TRUNC` or `OVERFLOW`.
        der: Der,
    },
    /// Data arrived altered.
    #[error(
        "{operation} {subject}: the data's CRC-32C is {actual:#010x}, the engine sent {expected:#010x}: it was altered between engine and client"
    )]
    Checksum {
        /// Operation.
        operation: &'static str,
        /// What was read.
        subject: String,
        /// Checksum the engine sent.
        expected: u32,
        /// Checksum of what arrived.
        actual: u32,
    },
    /// An engine's answer can't be understood.
    #[error("{operation} {subject}: {reason}; do client and engine run versions that fit together?")]
    Protocol {
        /// Operation.
        operation: &'static str,
        /// What it was about.
        subject: String,
        /// What is wrong with the answer.
        reason: String,
    },
}

impl Error {
    /// The error's DER number.
    #[must_use]
    pub fn der(&self) -> Der {
        match self {
            Self::Attach(_) => Der::AGENT_COMM,
            Self::Fabric { .. } => Der::HG,
            Self::Refused { der, .. } | Self::Size { der, .. } => *der,
            Self::Unavailable { .. } | Self::Restarted { .. } => Der::TIMEDOUT,
            Self::Invalid { .. } => Der::INVAL,
            Self::Checksum { .. } => Der::CSUM,
            Self::Protocol { .. } => Der::PROTO,
        }
    }

    /// The errno that stands for the error.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.der().to_errno()
    }

    /// Whether an engine refused with this number.
    #[must_use]
    pub fn is(&self, number: Der) -> bool {
        self.der() == number
    }

    #[expect(clippy::needless_pass_by_value, reason = "callers hand over errors and texts, which end here")]
    pub(crate) fn refused(
        operation: &'static str,
        subject: impl ToString,
        der: Der,
        message: impl Into<String>,
    ) -> Self {
        Self::Refused { operation, subject: subject.to_string(), der, message: message.into() }
    }

    #[expect(clippy::needless_pass_by_value, reason = "callers hand over errors and texts, which end here")]
    pub(crate) fn invalid(operation: &'static str, reason: impl ToString) -> Self {
        Self::Invalid { operation, reason: reason.to_string() }
    }
}
