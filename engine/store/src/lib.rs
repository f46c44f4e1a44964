//! The versioned object store of one target: one device, one thread, several pools.
//!
//! A [`Store`] holds pool shards; a [`Shard`] holds containers of objects, dkeys, akeys and values by epoch. The
//! index is one ordered copy-on-write tree. It is made durable by a write-ahead log with group commit and by
//! checkpoints, which write a frozen root of the tree while the store goes on serving. DRAM holds as much of it as
//! the configuration allows; the rest is read from the last checkpoint when it is needed. Small values live in log and
//! index, larger ones in data extents that are written before the log names them. Everything read from the device is
//! checked against a checksum first.
//!
//! What stands on the device is `weir-format`'s; `docs/reference/format.md` describes it byte by byte.
//!
//! Rooms, each of which calls only those above it:
//!
//! | room | what it has |
//! |---|---|
//! | `space` | which blocks are in use |
//! | `index` | the copy-on-write tree, existence of objects and keys, visible extents |
//! | `versions` | timestamps, prepared transactions, walks over the versions of a dkey |
//! | `state` | the open store that all operations share, with journal, catalog, paging and limits |
//! | `log` | checkpoints, and the open of a store: recovery, replay, damage |
//! | `operations` | update, fetch, punch, list, query, transactions |
//! | `upkeep` | aggregation, merging, defragmentation, scrubbing, repair, reclaim |
//! | `store` | the store itself |
//! | `audit` | the index of an open store against what is counted along |
//! | `offline` | what tools need for a store that nobody has open |

mod audit;
mod index;
mod log;
pub mod offline;
mod operations;
mod space;
mod state;
mod store;
mod upkeep;
mod versions;

pub use audit::Audit;
pub use index::fault::Location;
pub use operations::attribute::{Along, AttributeChange, AttributeError};
pub use operations::decisions::KnownTransaction;
pub use operations::fetch::{AkeySums, DirectRead, Fetch, FetchedAkey};
pub use operations::history::{HeldHistory, Imported, Replacement};
pub use operations::list::ListPage;
pub use operations::operation::Operation;
pub use operations::query::WantedDkeys;
pub use operations::reserve::RecordRange;
pub use operations::update::Data;
pub use operations::view::View;
pub use state::config::{FormatOptions, ScrubConfig, StoreConfig};
pub use state::error::{FetchError, FormatError, OpenError, PoolError, TransactionError, UpdateError};
pub use state::mark::Mark;
pub use state::read::Comparison;
pub use state::rot::{Rot, RottenVersion, ScrubReport};
pub use state::shard::Shard;
pub use state::stats::{
    CHECKPOINT_BOUNDS_MS, CacheStats, CheckpointHistogram, CommitStats, ContainerSummary, DmaStats,
    IndexStats, LATENCY_BOUNDS_US, LatencyHistogram, PoolSpace, PoolSummary, StoreSpace, StoreStats,
};
pub use store::Store;
pub use upkeep::repair::{DamagedVersion, RepairOutcome};
pub use weir_format::decision::Decision;
pub use weir_format::owner::Owner;
pub use weir_proto::TransactionId;

/// The crate is to all rooms the one below them.
use weir_format as format;
