//! The servers that a context calls: their names, the contact that stands with each, and the requests to each that are not finished.
//! It calls the maps, admission for each server's credits, and the wire's names. Calls make contact and keep its records here;
//! errors name servers by it.

mod peer;
mod servers;
mod session;

pub use peer::Peer;

pub(crate) use servers::Servers;
pub(crate) use session::{PeerState, Session, common_version};
