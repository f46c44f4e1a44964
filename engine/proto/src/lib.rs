//! What crosses the wire or is shared by client and engine.
//!
//! Bodies of requests and replies are `postcard`-encoded values of the types here; [`codec`] is the only door to
//! that encoding. Everything decoded is bounded and checked: a hostile message gives an error, never a panic.

pub mod capability;
pub mod chunk;
pub mod codec;
pub mod der;
pub mod group;
pub mod history;
pub mod hlc;
pub mod id;
pub mod lease;
pub mod limits;
mod map;
pub mod object;
pub mod opcode;
pub mod pool;
pub mod probe;
pub mod quota;
pub mod raft;
pub mod replica;
pub mod replica_transaction;
pub mod system;
pub mod tenant;
pub mod transaction;

pub use capability::{Capability, CapabilityError, PoolSecret, Rights};
pub use der::Der;
pub use hlc::{Clock, Epoch};
pub use id::{ContainerId, Key, ObjectId, PoolId, Rank, TargetIndex};
pub use tenant::{Keys, TenantId, TenantKey};
pub use transaction::{ReaderId, TransactionId};
