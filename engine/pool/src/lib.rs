//! The pool service: pool map, properties, handles, containers.
//!
//! Each target knows the pools it holds a shard of ([`TargetPools`]). Target 0 of one rank of a pool also runs the
//! pool's service ([`PoolService`]), whose state lives in attributes of that target's shard and changes in atomic
//! batches. The system's lowest rank keeps the list of pools ([`Directory`]) and coordinates their creation and
//! destruction. Engines talk to each other through [`Engines`], in requests sealed with the system key that carry the
//! version of the list of engines ([`Roster`]); what concerns all engines of a pool goes over a tree ([`Spread`]).

mod absent;
mod container;
mod directory;
mod engines;
mod error;
mod gather;
mod grants;
mod notice;
mod plan;
mod pools;
mod record;
mod reply;
mod requests;
mod roster;
mod seal;
mod service;
mod shelter;
mod spread;
mod target;

pub use container::{CounterSet, ErrorCounts, OPERATIONS, Operation, TargetContainer};
pub use directory::{Directory, DirectoryEntry, EntryState, Made, SYSTEM_POOL};
pub use engines::{AskError, Engines, InvalidEngines};
pub use error::{Failed, Refusal};
pub use gather::Gathered;
pub use plan::PoolSpec;
pub use pools::TargetPools;
pub use reply::{read_long_reply, reply};
pub use requests::serve_clients;
pub use roster::Roster;
pub use seal::{SEAL_LIFETIME_NS, open_seal, seal};
pub use service::{CHUNK_SIZE_DEFAULT, OpenHandle, PoolService};
pub use shelter::MapShelter;
pub use spread::Spread;
pub use target::TargetPool;
pub use weir_proto::group::{EngineInfo, GroupList};
