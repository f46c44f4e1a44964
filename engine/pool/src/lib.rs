//! The pool service: pool map, properties, handles, containers.
//!
//! Each target knows the pools it holds a shard of ([`TargetPools`]). Target 0 of one rank of a pool also runs the
//! pool's service ([`PoolService`]), whose state lives in attributes of that target's shard and changes in atomic
//! batches. The system's lowest rank keeps the list of pools ([`Directory`]) and coordinates their creation and
//! destruction. Engines ask each other through the crate `weir-group`.

mod absent;
mod container;
mod directory;
mod error;
mod grants;
mod notice;
mod plan;
mod pools;
mod record;
mod requests;
mod service;
mod shelter;
mod target;

pub use container::{CounterSet, ErrorCounts, OPERATIONS, Operation, TargetContainer};
pub use directory::{Directory, DirectoryEntry, EntryState, Made, SYSTEM_POOL};
pub use error::Failed;
pub use plan::PoolSpec;
pub use pools::TargetPools;
pub use requests::serve_clients;
pub use service::{CHUNK_SIZE_DEFAULT, OpenHandle, PoolService};
pub use shelter::MapShelter;
pub use target::TargetPool;
