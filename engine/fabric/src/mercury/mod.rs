//! Endpoints on Mercury, for sites that run a tuned one and to measure beside it.
//!
//! Only with the cargo feature `mercury`, against a Mercury that pkg-config finds. A message is a request that wants no
//! response, in several requests where the plugin carries little; memory is exposed and moved by bulk handles. What
//! differs from libfabric's own providers is in `docs/how-to/mercury.md`.

mod endpoint;
mod open;
mod ops;
mod peers;
mod ports;
mod progress;
mod raw;
mod reference;
mod remains;
mod sys;

pub(crate) use open::{offers, open};
pub use reference::{Load, ReferenceLoop};

/// What stands before Mercury's own name of a protocol in the name of a provider.
pub(crate) const PREFIX: &str = "mercury/";

/// Protocols that are tested.
pub(crate) const PROTOCOLS: [&str; 2] = ["mercury/na+sm", "mercury/ofi+tcp"];
