//! Reports of a mount's process: one line of JSON on its standard output once it serves or has failed, and a snapshot
//! of its state for each connection to its control socket.

use std::fmt;

use serde::{Deserialize, Serialize};
use tonic::{Code, Status};
use weir_proto::Der;

use crate::metrics::Snapshot;

/// Longest line that a reader accepts, in bytes: a snapshot has at most a few hundred numbers.
pub const LINE_MAX: usize = 256 * 1024;

/// Why a mount could not be made. The names are those of the gRPC codes that the mount protocol lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// A field is missing or malformed.
    InvalidArgument,
    /// Pool or container does not exist.
    NotFound,
    /// The target cannot be used, or the container is not a POSIX one.
    FailedPrecondition,
    /// Credentials were refused.
    PermissionDenied,
    /// Engines cannot be reached now.
    Unavailable,
    /// Something that the caller can do nothing about.
    Internal,
}

/// A mount could not be made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MountFailure {
    /// Class of a failure that has no DER number.
    pub kind: FailureKind,
    /// What failed, on which object, what to do next.
    pub message: String,
    /// DER number, where there is one.
    pub der: Option<u32>,
}

impl MountFailure {
    /// A failure without a DER number.
    pub fn new(kind: FailureKind, message: impl fmt::Display) -> Self {
        Self { kind, message: message.to_string(), der: None }
    }

    /// A failure with a DER number, which decides over the gRPC code as it does for engines.
    pub fn of(der: Der, message: impl fmt::Display) -> Self {
        Self { kind: FailureKind::Internal, message: message.to_string(), der: Some(der.0) }
    }

    /// The status that a caller gets: code and details are of one source.
    #[must_use]
    pub fn status(self) -> Status {
        let code = match (self.der, self.kind) {
            (Some(der), _) => return weir_management::Failure::new(Der(der), "", self.message).into(),
            (None, FailureKind::InvalidArgument) => Code::InvalidArgument,
            (None, FailureKind::NotFound) => Code::NotFound,
            (None, FailureKind::FailedPrecondition) => Code::FailedPrecondition,
            (None, FailureKind::PermissionDenied) => Code::PermissionDenied,
            (None, FailureKind::Unavailable) => Code::Unavailable,
            (None, FailureKind::Internal) => Code::Internal,
        };
        Status::new(code, self.message)
    }
}

impl fmt::Display for MountFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for MountFailure {}

/// What a mount that serves is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// UUID text of the pool.
    pub pool_uuid: String,
    /// UUID text of the container.
    pub container_uuid: String,
    /// Label of the pool, for metrics.
    pub pool_label: String,
    /// Label of the container, for metrics.
    pub container_label: String,
    /// Wall-clock time of the mount, seconds since 1970.
    pub mounted_unix_seconds: i64,
    /// How long it took from the start of the process to an open container, in microseconds.
    pub open_micros: u64,
}

/// The first line of a mount's process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Report {
    /// The file system answers at its target.
    Serving(Identity),
    /// It never will.
    Failed(MountFailure),
}

/// What the control socket answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct State {
    /// What is mounted.
    pub identity: Identity,
    /// Why I/O waits or fails; empty while it does neither.
    pub trouble: String,
    /// Counters.
    pub metrics: Snapshot,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_details_of_a_status_agree() {
        for (der, code) in [
            (Der::NOSPACE, Code::ResourceExhausted),
            (Der::CONT_NONEXIST, Code::NotFound),
            (Der::UNREACH, Code::Unavailable),
            (Der::CSUM, Code::DataLoss),
        ] {
            let status = MountFailure::of(der, "the quota is used up").status();
            assert_eq!(status.code(), code);
            // The first field of the details is the code once more, as a varint.
            assert_eq!(status.details()[..2], [0x08, code as u8]);
            assert_eq!(weir_management::failure_of(&status).der, der);
        }
        assert_eq!(MountFailure::new(FailureKind::Unavailable, "x").status().code(), Code::Unavailable);
    }

    #[test]
    fn a_report_survives_its_line() {
        let report = Report::Failed(MountFailure {
            kind: FailureKind::NotFound,
            message: "pool \"tank\" does not exist".into(),
            der: Some(1005),
        });
        let line = serde_json::to_string(&report).expect("encodes");
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Report>(&line).expect("decodes"), report);
        assert!(serde_json::from_str::<Report>("{\"serving\":{}}").is_err());
    }
}
