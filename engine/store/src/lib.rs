//! The versioned object store of one target: one device, one thread, several pools.
//!
//! A [`Store`] holds pool shards; a [`Shard`] holds containers of objects, dkeys, akeys and values by epoch. The
//! index is one ordered copy-on-write tree. It is made durable by a write-ahead log with group commit and by
//! checkpoints, which write a frozen root of the tree while the store goes on serving. DRAM holds as much of it as
//! the configuration allows; the rest is read from the last checkpoint when it is needed. Small values live in log and
//! index, larger ones in data extents that are written before the log names them. Everything read from the device is
//! checked against a checksum first.
//!
//! The on-disk format is described byte by byte in `docs/reference/format.md`.

mod aggregate;
mod attribute;
mod audit;
mod cache;
mod catalog;
mod checkpoint;
mod checksum;
mod chores;
mod codec;
mod config;
mod copy;
mod credit;
mod deferral;
mod defragment;
mod derive;
mod draft;
mod empty;
mod entry;
mod error;
mod extents;
mod fetch;
mod format;
mod formatting;
mod incarnation;
mod inspect;
mod intents;
mod journal;
mod key;
mod land;
mod list;
mod lives;
mod lost;
mod mark;
mod merge;
mod neighbours;
mod operation;
mod pace;
mod paging;
mod piece;
mod promise;
mod punch;
mod query;
mod read;
mod record;
mod recover;
mod replay;
mod reservation;
mod reserve;
mod route;
mod runs;
mod scrub;
mod shard;
mod space;
mod spelling;
mod state;
mod stats;
mod store;
mod sweep;
mod tail;
mod timestamps;
mod touched;
mod transact;
mod transaction;
mod tree;
mod turns;
mod update;
mod value;
mod view;
mod walk;
mod writer;

pub use attribute::{Along, AttributeChange, AttributeError};
pub use audit::Audit;
pub use config::{FormatOptions, Owner, ScrubConfig, StoreConfig};
pub use copy::{Copied, CopyError, CopyEvents, CopyOptions, CopyProgress, CopyStage, Loss, LossKind, Survey};
pub use error::{FetchError, FormatError, Location, OpenError, PoolError, TransactionError, UpdateError};
pub use fetch::{AkeySums, Fetch, FetchedAkey, Landed};
pub use inspect::{
    BlockCount, CheckpointReport, ContainerReport, CopyReport, DataReport, Depth, Dumped, Field, Filter,
    Finding, IndexReport, InspectError, Inspector, Line, LogReport, Part, PoolReport, Region, Report,
    Severity,
};
pub use intents::Decision;
pub use list::ListPage;
pub use mark::Mark;
pub use operation::Operation;
pub use read::Comparison;
pub use reserve::RecordRange;
pub use scrub::{Rot, ScrubReport};
pub use shard::Shard;
pub use stats::{
    CHECKPOINT_BOUNDS_MS, CacheStats, CheckpointHistogram, CommitStats, ContainerSummary, DmaStats,
    IndexStats, LATENCY_BOUNDS_US, LatencyHistogram, PoolSpace, PoolSummary, StoreSpace, StoreStats,
};
pub use store::Store;
pub use update::Data;
pub use view::View;
pub use weir_proto::TransactionId;
