//! Groups of servers: ranks and tags, which members are alive, and operations that reach all of them. It calls
//! [`Rpc`](crate::Rpc) as any user of the crate does, and no room below it. The engines' layer above drives it.

mod collective;
mod directory;
mod member;
pub mod swim;
mod transport;
pub mod tree;

pub use collective::{
    CollectiveError, CollectiveHandler, CollectiveTransport, Collectives, Outcome, PlainCollectives,
    VALUE_MAX, serve_collectives,
};
pub use directory::{Group, Location, StaleGroup};
pub use member::{Membership, PROBE_BOUNDS_US, ProbeTimes};
pub use transport::{GroupTransport, MemberAnswer, RpcTransport, serve_membership};
