//! Groups of servers: ranks and tags, who is alive, and operations that reach all of them.

mod collective;
mod directory;
mod membership;
pub mod swim;
mod transport;
pub mod tree;

pub use collective::{
    CollectiveError, CollectiveHandler, CollectiveTransport, Collectives, Outcome, PlainCollectives,
    VALUE_MAX, serve_collectives,
};
pub use directory::{Group, Location, StaleGroup};
pub use membership::{Membership, PROBE_BOUNDS_US, ProbeTimes};
pub use transport::{Asked, GroupTransport, RpcTransport, serve_membership};
