//! The report of an inspection, as plain data.

use super::finding::Finding;
use uuid::Uuid;
use weir_format::owner::Owner;
use weir_proto::{ContainerId, PoolId};

/// How much of a store is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// Superblocks, checkpoint headers, space map, log, pools and containers.
    Outline,
    /// All metadata: every index node and entry, compared with the space map and the counters too.
    Metadata,
    /// All metadata, and every data extent against its checksums.
    Everything,
}

/// A copy of a block that there are several of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyReport {
    /// What it is.
    pub what: &'static str,
    /// First byte on the device.
    pub offset: u64,
    /// What is wrong with it.
    pub fault: Option<String>,
}

/// A region of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its name in the format's description.
    pub name: &'static str,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// The checkpoint that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointReport {
    /// Counts header writes.
    pub generation: u64,
    /// Number of the checkpoint.
    pub number: u64,
    /// Counts opens.
    pub incarnation: u64,
    /// First byte of the root node.
    pub root: u64,
    /// Index entries that it counts.
    pub entries: u64,
    /// Newest epoch of any change up to it.
    pub newest_epoch: u64,
}

/// The log behind the checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogReport {
    /// Bytes of the ring.
    pub capacity: u64,
    /// First byte of the log on the device.
    pub start: u64,
    /// Byte on the device where the next batch goes.
    pub end: u64,
    /// Number of the first batch.
    pub sequence: u64,
    /// Intact batches.
    pub batches: u64,
    /// Records in them.
    pub records: u64,
    /// Changes in those.
    pub changes: u64,
    /// Bytes of the batches, their padding included.
    pub bytes: u64,
    /// Whether an open drops the last batch, because the data it refers to isn't complete. It was not acknowledged.
    pub dropped: bool,
}

/// Blocks of the data region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCount {
    /// All of them.
    pub total: u64,
    /// Those that the space map marks as used.
    pub marked: u64,
    /// Groups of blocks whose map is unreadable.
    pub unreadable_groups: u64,
}

/// A container of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerReport {
    /// Its number within the pool.
    pub number: u32,
    /// The container.
    pub id: ContainerId,
    /// Quota in bytes; 0 for none.
    pub quota: u64,
    /// Whether it was destroyed and is being reclaimed.
    pub destroyed: bool,
    /// Number of snapshots.
    pub snapshots: u64,
    /// Bytes of data extents, as of the checkpoint.
    pub data_bytes: u64,
    /// Bytes of index entries, as of the checkpoint.
    pub entry_bytes: u64,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolReport {
    /// Its number within the store.
    pub number: u32,
    /// The pool.
    pub id: PoolId,
    /// Its share in bytes.
    pub size: u64,
    /// Whether it was destroyed and is being reclaimed.
    pub destroyed: bool,
    /// Its containers.
    pub containers: Vec<ContainerReport>,
}

/// The index as it was walked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexReport {
    /// Levels, leaves included.
    pub levels: u64,
    /// Intact nodes.
    pub nodes: u64,
    /// Bytes of them on the device.
    pub bytes: u64,
    /// Entries in intact leaves.
    pub entries: u64,
    /// Nodes that are unreadable, with everything below them.
    pub lost_nodes: u64,
}

/// Data extents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataReport {
    /// Versions of values with blocks of their own.
    pub extents: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Pieces whose checksums were compared.
    pub checked: u64,
    /// Pieces that can't be read or don't match.
    pub damaged: u64,
}

/// What an inspection found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Name of the device.
    pub device: String,
    /// Its size in bytes.
    pub size: u64,
    /// Format version.
    pub version: u32,
    /// Features without which the store can't be read.
    pub features: u64,
    /// Identity given at format.
    pub id: Uuid,
    /// Whose data it holds.
    pub owner: Owner,
    /// Wall time of the format, nanoseconds since 1970.
    pub formatted_ns: u64,
    /// How much was looked at.
    pub depth: Depth,
    /// Where what is.
    pub regions: Vec<Region>,
    /// Superblocks and checkpoint headers.
    pub copies: Vec<CopyReport>,
    /// The checkpoint that counts; `None` when no header is intact.
    pub checkpoint: Option<CheckpointReport>,
    /// The log behind it.
    pub log: LogReport,
    /// Space.
    pub blocks: BlockCount,
    /// Pools with their containers, the log's changes included.
    pub pools: Vec<PoolReport>,
    /// The index; `None` unless all of it was walked.
    pub index: Option<IndexReport>,
    /// Data extents; `None` unless the index was walked.
    pub data: Option<DataReport>,
    /// What is wrong, in the order in which it was found, up to a thousand.
    pub findings: Vec<Finding>,
    /// Number of findings that are damage.
    pub damages: u64,
    /// Number of the others.
    pub notes: u64,
}

impl Report {
    /// Whether nothing is lost as far as was looked.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        self.damages == 0
    }
}
