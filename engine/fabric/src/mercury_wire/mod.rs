//! What the transport on Mercury reads of others: their addresses, and fragments of messages. It needs no Mercury, so that builds
//! without have it, and their fuzzers.

pub mod fragments;
pub mod names;
