//! What the replicas of a Raft group tell each other. The members of a group are engines; each speaks through its target 0.
//!
//! The messages are those of the Raft algorithm (Ongaro and Ousterhout, 2014; Ongaro's thesis for pre-vote and reads). Their
//! numbers of kinds are those of the library that the engines use, `raft` 0.7 (`eraftpb.proto`).

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::PoolId;

/// Most bytes of encoded messages that travel in a [`RaftBatch`]. With seal and header they fit [`crate::limits::INLINE_MAX`];
/// the receiver fetches what is longer.
pub const RAFT_INLINE_MAX: usize = 15 * 1024;

/// Most bytes of encoded messages in the sender's memory: a snapshot of a pool with a hundred thousand containers.
pub const RAFT_LENT_MAX: usize = 64 * 1024 * 1024;

/// Replica → replica: messages of one group, in the order in which they were made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RaftBatch {
    /// The pool whose service the group is.
    pub group: PoolId,
    /// An encoded list of encoded [`RaftMessage`]s. Empty: longer than [`RAFT_INLINE_MAX`], the receiver fetches it from the
    /// sender's memory.
    pub messages: ByteBuf,
}

/// One message of Raft. Fields that its kind has no use for are 0 or empty.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RaftMessage {
    /// Number of the kind.
    pub kind: u8,
    /// Whom it is for: 1 more than the rank.
    pub to: u64,
    /// Whom it is from: 1 more than the rank.
    pub from: u64,
    /// The sender's term.
    pub term: u64,
    /// Term of the entry before the first one, or of the last one.
    pub log_term: u64,
    /// Index of that entry.
    pub index: u64,
    /// Entries of the log.
    pub entries: Vec<RaftEntry>,
    /// Index up to which the log is committed.
    pub commit: u64,
    /// Term of the entry there.
    pub commit_term: u64,
    /// What stands for the log's beginning.
    pub snapshot: Option<RaftSnapshot>,
    /// Index from which on a snapshot is asked for.
    pub request_snapshot: u64,
    /// Whether the request is refused.
    pub reject: bool,
    /// Where the logs may match.
    pub reject_hint: u64,
    /// What the answer has to bring back.
    pub context: ByteBuf,
    /// Priority of the sender's candidacy.
    pub priority: i64,
}

/// One entry of the log.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RaftEntry {
    /// Number of the kind: 0 is a command, 1 and 2 are changes of the members.
    pub kind: u8,
    /// The term in which it was proposed.
    pub term: u64,
    /// Its place in the log.
    pub index: u64,
    /// The command; empty: that of a leader who has begun.
    pub data: ByteBuf,
}

/// The state that all entries up to one have led to.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RaftSnapshot {
    /// Index of that entry.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// The members with a vote: 1 more than their ranks.
    pub voters: Vec<u64>,
    /// The state.
    pub data: ByteBuf,
}
