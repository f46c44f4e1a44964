//! What the transport on Mercury reads of others: their addresses, and pieces of messages. It needs no Mercury, so that builds
//! without have it, and their fuzzers.

pub mod names;
pub mod pieces;
