//! What one thread has to reach the engines: executor, endpoint, RPC state, and what it was told of pools. The room calls the
//! runtime, the fabric and the RPC layer. Everything above it takes a [`Context`].

mod changes;
mod context;
mod endpoint;

pub(crate) use changes::NamedChange;
pub use context::{Context, ContextOptions, Lender, NODE_VARIABLE, OPERATION_DEADLINE, Traffic};
