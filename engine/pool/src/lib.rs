//! The pool service: pool map, properties, handles, containers.
//!
//! Each target knows the pools it holds a shard of ([`TargetPools`]). Target 0 of one rank of a pool also runs the
//! pool's service ([`PoolService`]), whose state lives in attributes of that target's shard and changes in atomic
//! batches. The system's lowest rank keeps the list of pools ([`Directory`]) and coordinates their creation and
//! destruction. Engines ask each other through the crate `weir-group`.

mod directory;
mod error;
mod pools;
mod record;
mod requests;
mod service;
mod target;

pub use directory::{Directory, PoolSpec};
pub use error::Failed;
pub use pools::TargetPools;
pub use record::{DirectoryEntry, EntryState, PoolRecord, SYSTEM_POOL};
pub use requests::serve_clients;
pub use service::{CHUNK_SIZE_DEFAULT, Made, OpenHandle, PoolService};
pub use target::{CounterSet, ErrorCounts, MapBackup, OPERATIONS, Operation, TargetContainer, TargetPool};
