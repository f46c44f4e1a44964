//! One request to an engine: its memory, its data and checksums, its repetition until the deadline, and the meaning of its failure.
//! The room calls the RPC layer of a context. Handles of pools and containers call it, and so do objects and transactions.

mod answers;
pub(crate) mod checksum;
mod engines;
mod payload;
mod request;
pub(crate) mod scatter;
mod service;

pub(crate) use answers::{Answers, join_limited};
pub(crate) use payload::{LEND_MIN, LEND_PIECES_MAX, Payload};
pub(crate) use request::{Exchange, PAUSE, Reach, Refusal, RequestInfo};
pub(crate) use service::{SERVICE_LIMIT, is_elsewhere};
