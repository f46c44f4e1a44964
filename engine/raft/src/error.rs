//! Why a replica can't be opened, and why a command or a read has no answer.

use weir_proto::{PoolId, Rank};

/// What a replica has stored can't be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} of the replicated service of pool {group} can't be read back: {reason}")]
pub struct Unreadable {
    /// The group.
    pub group: PoolId,
    /// Which part of it.
    pub what: &'static str,
    /// What was found.
    pub reason: String,
}

/// A replica could not carry out what it was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Lost {
    /// Another one leads, or none. Nothing has changed.
    #[error("this replica doesn't lead{}", .0.map_or_else(String::new, |rank| format!(", rank {rank} does")))]
    NotLeader(Option<Rank>),
    /// It has ceased to lead before it knew whether the command takes effect.
    #[error("this replica has ceased to lead; whether the command takes effect is known to the next leader")]
    InDoubt,
    /// The command has too many bytes. Nothing has changed.
    #[error("the command has {len} bytes, at most {limit} are replicated at once")]
    TooLong {
        /// Its length.
        len: usize,
        /// Most bytes.
        limit: usize,
    },
    /// The replica's store has failed.
    #[error("this replica has failed: {0}")]
    Failed(String),
}
