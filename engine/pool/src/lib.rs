//! The pool service: pool map, properties, handles, containers.
//!
//! Each target knows the pools it holds a shard of ([`TargetPools`]). Target 0 of one rank of a pool also runs the
//! pool's service ([`PoolService`]), whose state lives in attributes of that target's shard and changes in atomic
//! batches. Up to five engines keep the list of pools ([`Keeper`]), and one of them coordinates their creation and destruction
//! ([`Directory`]). Engines ask each other through the crate `weir-group`.

mod directory;
mod error;
mod pools;
mod record;
mod requests;
mod service;
mod target;

pub use directory::{Directory, Keeper, PoolSpec, PoolUse, TenantUse};
pub use error::Failed;
pub use pools::TargetPools;
pub use record::{DirectoryEntry, EntryState, PoolRecord, SYSTEM_POOL};
pub use requests::serve_clients;
pub use service::{CHUNK_SIZE_DEFAULT, Condition, Filling, Health, Made, OpenHandle, PoolService};
pub use target::{CounterSet, ErrorCounts, MapBackup, OPERATIONS, Operation, TargetContainer, TargetPool};
