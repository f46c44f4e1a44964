//! Why a command failed, and the exit code that says it to scripts.

use std::io;
use std::path::PathBuf;

use weir_fuse::report::{FailureKind, MountFailure};
use weir_proto::Der;

/// A command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The arguments make no sense together.
    #[error("{0}")]
    Usage(String),
    /// Others could change what would be relied on.
    #[error("{0}")]
    Untrusted(String),
    /// No attach file.
    #[error(
        "no attach file: give --attach, set WEIR_ATTACH, or start a system with `weir dev up`; looked at {0}"
    )]
    NoAttachFile(String),
    /// The attach file is not one.
    #[error("attach file {path}: {reason}")]
    AttachFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The engines refused a management request, or could not be asked.
    #[error("{what}: {failure}")]
    Management {
        /// What was asked, e.g. "create pool tank".
        what: String,
        /// The engines' answer.
        failure: weir_management::Failure,
    },
    /// No engine has answered a management request in time.
    #[error("{what}: {failure}")]
    Unanswered {
        /// What was asked.
        what: String,
        /// What the last engine that was tried said.
        failure: weir_management::Failure,
    },
    /// A client operation failed.
    #[error(transparent)]
    Client(#[from] weir_client::Error),
    /// A file system operation failed.
    #[error("{what}: {message}")]
    FileSystem {
        /// What was asked.
        what: String,
        /// Why it failed.
        message: String,
        /// The errno that stands for it.
        errno: i32,
    },
    /// A mount could not be made or removed.
    #[error(transparent)]
    Mount(#[from] MountFailure),
    /// Something asked for is not there.
    #[error("{0}")]
    NotFound(String),
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// A manifest cannot be used.
    #[error("manifest {path}: {reason}")]
    Manifest {
        /// The file.
        path: PathBuf,
        /// Which object and field, and what to do.
        reason: String,
    },
    /// A store is damaged.
    #[error("{0}")]
    Damaged(String),
    /// A device, or a folder of `weir dev`, is in use.
    #[error("{0}")]
    Busy(String),
    /// A device cannot be read.
    #[error("{0}")]
    Device(String),
    /// A device has not the room that is needed.
    #[error("{0}")]
    NoSpace(String),
    /// Engines are dead, or were never started.
    #[error("{0}")]
    Dead(String),
    /// A system that was to come up in the background did not.
    #[error("the system did not come up: {reason}")]
    Background {
        /// What its supervisor said.
        reason: String,
        /// The status that it gave, as [`CliError::status`].
        status: i64,
        /// Its exit code.
        code: u8,
    },
    /// `weir dev` could not do its work.
    #[error("{0}")]
    Dev(String),
}

/// Exit codes, in `docs/reference/cli.md`.
pub mod exit {
    /// Anything that has no code of its own.
    pub const FAILURE: u8 = 1;
    /// Wrong arguments.
    pub const USAGE: u8 = 2;
    /// The object does not exist.
    pub const NOT_FOUND: u8 = 3;
    /// An object of that name exists and is another one.
    pub const EXISTS: u8 = 4;
    /// Engines cannot be reached in time.
    pub const UNAVAILABLE: u8 = 5;
    /// Credentials were refused.
    pub const PERMISSION: u8 = 6;
    /// No space, or a quota is reached.
    pub const NO_SPACE: u8 = 7;
    /// The object is in use or in another state than the command needs.
    pub const BUSY: u8 = 8;
    /// Stored data or metadata is damaged.
    pub const DAMAGED: u8 = 9;
}

impl CliError {
    /// Wraps an error of the operating system.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }

    /// Wraps an error about a file or directory that the arguments name: one that is missing does not exist.
    pub fn named(what: impl Into<String>, source: io::Error) -> Self {
        let what = what.into();
        match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound(format!("{what}: {source}")),
            _ => Self::Io { what, source },
        }
    }

    /// The DER number, where the failure has one.
    #[must_use]
    pub fn der(&self) -> Option<Der> {
        match self {
            Self::Management { failure, .. } | Self::Unanswered { failure, .. } => Some(failure.der),
            Self::Client(error) => Some(error.der()),
            Self::Mount(failure) => failure.der.map(Der),
            Self::NotFound(_) => Some(Der::NONEXIST),
            Self::Untrusted(_) => Some(Der::NO_PERM),
            Self::Usage(_) | Self::Manifest { .. } => Some(Der::INVAL),
            Self::Damaged(_) => Some(Der::CSUM),
            Self::Busy(_) => Some(Der::BUSY),
            Self::Device(_) => Some(Der::IO),
            Self::NoSpace(_) => Some(Der::NOSPACE),
            Self::Dead(_) => Some(Der::UNREACH),
            Self::NoAttachFile(_) | Self::AttachFile { .. } => Some(Der::AGENT_COMM),
            Self::FileSystem { errno, .. } => match errno {
                2 => Some(Der::NONEXIST),
                28 => Some(Der::NOSPACE),
                122 => Some(Der::QUOTA_LIMIT),
                _ => None,
            },
            Self::Io { .. } | Self::Background { .. } | Self::Dev(_) => None,
        }
    }

    /// `status` of the JSON envelope: the negative DER number as in DAOS, or that of `DER_MISC`.
    #[must_use]
    pub fn status(&self) -> i64 {
        match self {
            Self::Background { status, .. } => *status,
            _ => -i64::from(self.der().unwrap_or(Der::MISC).0),
        }
    }

    /// Exit code of the process.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Manifest { .. } => exit::USAGE,
            Self::Damaged(_) => exit::DAMAGED,
            Self::Background { code, .. } => *code,
            Self::Mount(failure) if failure.der.is_none() => match failure.kind {
                FailureKind::InvalidArgument => exit::USAGE,
                FailureKind::NotFound => exit::NOT_FOUND,
                FailureKind::FailedPrecondition => exit::BUSY,
                FailureKind::PermissionDenied => exit::PERMISSION,
                FailureKind::Unavailable => exit::UNAVAILABLE,
                FailureKind::Internal => exit::FAILURE,
            },
            _ => self.der().map_or(exit::FAILURE, code_of),
        }
    }
}

fn code_of(der: Der) -> u8 {
    match der {
        Der::INVAL | Der::NOTSUPPORTED | Der::KEY2BIG | Der::REC2BIG => exit::USAGE,
        Der::NONEXIST | Der::ENOENT | Der::CONT_NONEXIST => exit::NOT_FOUND,
        Der::EXIST | Der::ID_MISMATCH => exit::EXISTS,
        Der::UNREACH | Der::TIMEDOUT | Der::NO_SERVICE | Der::AGAIN | Der::AGENT_COMM | Der::SHUTDOWN => {
            exit::UNAVAILABLE
        }
        Der::NO_PERM | Der::NO_HDL | Der::BAD_CERT | Der::NO_CERT => exit::PERMISSION,
        Der::NOSPACE | Der::QUOTA_LIMIT => exit::NO_SPACE,
        Der::BUSY | Der::INPROGRESS | Der::NOTAPPLICABLE | Der::EQ_BUSY => exit::BUSY,
        _ => exit::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_can_tell_failures_apart() {
        let management = |der| CliError::Management {
            what: "query pool tank".into(),
            failure: weir_management::Failure::new(der, "pool tank", "reason"),
        };
        assert_eq!(management(Der::NONEXIST).exit_code(), exit::NOT_FOUND);
        assert_eq!(management(Der::NONEXIST).status(), -1005);
        assert_eq!(management(Der::NOSPACE).exit_code(), exit::NO_SPACE);
        assert_eq!(management(Der::INPROGRESS).exit_code(), exit::BUSY);
        assert_eq!(management(Der::KEY2BIG).exit_code(), exit::USAGE);
        assert_eq!(management(Der::CSUM).exit_code(), exit::FAILURE);
        assert_eq!(CliError::Damaged("x".into()).exit_code(), exit::DAMAGED);
        assert_eq!(CliError::Dead("x".into()).exit_code(), exit::UNAVAILABLE);
        assert_eq!(CliError::Usage("x".into()).exit_code(), exit::USAGE);
        let file = |errno| CliError::FileSystem { what: "/x".into(), message: "reason".into(), errno };
        assert_eq!((file(2).exit_code(), file(2).status()), (exit::NOT_FOUND, -1005));
        assert_eq!((file(28).exit_code(), file(122).exit_code()), (exit::NO_SPACE, exit::NO_SPACE));
        assert_eq!((file(21).exit_code(), file(21).status()), (exit::FAILURE, -1025));
        let mount = CliError::Mount(MountFailure::new(FailureKind::FailedPrecondition, "busy"));
        assert_eq!((mount.exit_code(), mount.status()), (exit::BUSY, -1025));
    }
}
