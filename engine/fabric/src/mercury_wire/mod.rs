//! What the transport on Mercury reads of other processes: their addresses, and fragments of messages. It needs no
//! Mercury, so that builds without Mercury have it, and their fuzzers.

pub mod fragments;
pub mod names;
