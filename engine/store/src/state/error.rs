//! Errors, one type for each kind of operation. Each says what failed, on which object, and what to do next.

mod number;

use crate::format::codec::Malformed;
use crate::format::decision::Decision;
use crate::format::owner::Owner;
use crate::index::fault::Location;
use crate::index::fault::{Fault, Halt, PageError};
use uuid::Uuid;
use weir_media::MediaError;
use weir_proto::object::Extent;
use weir_proto::{ContainerId, Epoch, Key, PoolId, TransactionId};

/// A device can't be formatted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// There is data on the device.
    #[error(
        "{device} is not empty: byte {offset} is not zero ({found}); it is left untouched. Give the target an empty file or device, or erase this one if its data is not needed"
    )]
    NotEmpty {
        /// Name of the device.
        device: String,
        /// Offset of the first byte that isn't zero.
        offset: u64,
        /// What the content looks like.
        found: &'static str,
    },
    /// The device is too small.
    #[error("{device} has {size} bytes, a store needs at least {needed}")]
    TooSmall {
        /// Name of the device.
        device: String,
        /// Its size.
        size: u64,
        /// The smallest possible size.
        needed: u64,
    },
    /// The system name is empty or too long.
    #[error("a system name has 1 to 63 bytes, \"{0}\" has not")]
    SystemName(String),
    /// The device failed.
    #[error(transparent)]
    Media(#[from] MediaError),
}

/// A store can't be opened. The device is left as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// All superblocks are zero: never formatted, or wiped.
    #[error(
        "{device} holds no store: its superblocks are zero. If it is new, format it; if it held data, it was wiped or is the wrong device"
    )]
    Blank {
        /// Name of the device.
        device: String,
    },
    /// A format was begun and not finished.
    #[error("{device} holds no store: its format was interrupted. Format it again")]
    Unfinished {
        /// Name of the device.
        device: String,
    },
    /// A copy of a store to the device was begun and not finished.
    #[error(
        "{device} holds no store: the copy of store {from} to it was not finished. Repeat `weir store copy` with --restart, and use the store that was copied until that has succeeded"
    )]
    UnfinishedCopy {
        /// Name of the device.
        device: String,
        /// Identity of the store that was copied.
        from: Uuid,
    },
    /// The device carries something else.
    #[error(
        "{device} holds no store: it begins with {found}. Check that the right device is configured for this target"
    )]
    Foreign {
        /// Name of the device.
        device: String,
        /// What the content looks like.
        found: &'static str,
    },
    /// Only the copy of the superblock is intact, and the first one was overwritten.
    #[error(
        "the first block of {device} was overwritten ({found}), while the copy of the superblock at byte {copy} is intact. Something wrote to this device; if its data is to be used, copy the block at {copy} to the start of the device"
    )]
    Overwritten {
        /// Name of the device.
        device: String,
        /// What is there now.
        found: &'static str,
        /// Offset of the intact copy.
        copy: u64,
    },
    /// Another engine's or target's data.
    #[error("{device} belongs to {found}, not to {expected}. Check which volume is mounted for this target")]
    WrongOwner {
        /// Name of the device.
        device: String,
        /// The owner on the device.
        found: Box<Owner>,
        /// The owner that was asked for.
        expected: Box<Owner>,
    },
    /// Another store of the same owner, that lacks what the one in its place had.
    #[error(
        "{device} holds store {found}, in which changes are missing that store {expected} had in its place: it is an older one, or a new one. Check that the right device is configured for this target"
    )]
    Replaced {
        /// Name of the device.
        device: String,
        /// Identity of the store on it.
        found: Uuid,
        /// Identity of the one that was there.
        expected: Uuid,
    },
    /// Written by a newer release.
    #[error(
        "{device} has format version {found}, this release reads {oldest} to {newest}. Run the release that wrote it, or a newer one"
    )]
    Version {
        /// Name of the device.
        device: String,
        /// Version on the device.
        found: u32,
        /// Oldest version that this build reads.
        oldest: u32,
        /// Newest version that this build reads.
        newest: u32,
    },
    /// Uses a feature that this release doesn't know.
    #[error(
        "{device} uses features {unknown:#x} that this release does not know. Run the release that wrote it, or a newer one"
    )]
    Features {
        /// Name of the device.
        device: String,
        /// The unknown bits.
        unknown: u64,
    },
    /// The device is smaller than when it was formatted.
    #[error(
        "{device} has {size} bytes but was formatted with {formatted}: it was truncated. Restore its full size"
    )]
    Truncated {
        /// Name of the device.
        device: String,
        /// Size now.
        size: u64,
        /// Size at format.
        formatted: u64,
    },
    /// Metadata is damaged.
    #[error(
        "{location} is damaged: {reason}. The store is not opened. `weir store check` says what else is, `weir store copy` copies to another device what can be read; restore the rest from a backup"
    )]
    Corrupt {
        /// Where.
        location: Location,
        /// What is wrong with it.
        reason: String,
    },
    /// The device failed.
    #[error(transparent)]
    Media(#[from] MediaError),
}

/// An operation on pools or containers failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The pool exists with another size.
    #[error("pool {pool} exists on this target with {size} bytes; resize it instead")]
    Exists {
        /// The pool.
        pool: PoolId,
        /// Its size.
        size: u64,
    },
    /// No such pool.
    #[error("pool {0} has no shard on this target")]
    Missing(PoolId),
    /// No such container.
    #[error("container {0} does not exist on this target; create it first")]
    ContainerMissing(ContainerId),
    /// The container is being destroyed.
    #[error("container {0} is being destroyed")]
    ContainerDestroying(ContainerId),
    /// Not enough unassigned space.
    #[error(
        "pool {pool} asks for {asked} bytes, the target has {free} unassigned; ask for less or destroy another pool"
    )]
    NoSpace {
        /// The pool.
        pool: PoolId,
        /// Bytes asked for.
        asked: u64,
        /// Bytes that no pool has.
        free: u64,
    },
    /// The device has no room left for more pools, containers or snapshots.
    #[error("the device has no room for another entry of pool {0}; delete data")]
    Full(PoolId),
    /// A pool can't shrink below what it holds.
    #[error("pool {pool} holds {used} bytes and can't shrink to {asked}; delete data first")]
    InUse {
        /// The pool.
        pool: PoolId,
        /// Bytes asked for.
        asked: u64,
        /// Bytes in use.
        used: u64,
    },
    /// A part of the index can't be read.
    #[error("{0}; restore what was on this target from a backup, and replace the device if it happens again")]
    Index(String),
    /// The store has failed.
    #[error("the store takes no changes: {0}; if its device failed, repair it and restart the engine")]
    Failed(String),
}

/// An update or punch failed. Nothing of it is stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// The request breaks a rule.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// The pool was destroyed.
    #[error("pool {0} has no shard on this target")]
    PoolMissing(PoolId),
    /// No such container.
    #[error("container {0} does not exist on this target")]
    ContainerMissing(ContainerId),
    /// The container is being destroyed.
    #[error("container {0} is being destroyed")]
    ContainerDestroying(ContainerId),
    /// An insert condition met an existing key.
    #[error("{level} \"{key}\" exists already")]
    Exists {
        /// `dkey` or `akey`.
        level: &'static str,
        /// The key.
        key: Key,
    },
    /// An update or punch condition met nothing.
    #[error("{0} does not exist")]
    Missing(String),
    /// The akey's records have another size.
    #[error("records of akey \"{akey}\" have {stored} bytes, not {given}")]
    RecordSize {
        /// The akey.
        akey: Key,
        /// Its record size.
        stored: u32,
        /// The size of the request.
        given: u32,
    },
    /// An array update to a single value or the other way round.
    #[error("akey \"{akey}\" holds {stored}; punch it before storing {given}")]
    Kind {
        /// The akey.
        akey: Key,
        /// What it holds.
        stored: &'static str,
        /// What was to be stored.
        given: &'static str,
    },
    /// A prepared transaction writes the same.
    #[error(
        "transaction {transaction} at epoch {:#x} writes the same and is not decided yet; try again, or ask its coordinator",
        epoch.0
    )]
    Undecided {
        /// The transaction.
        transaction: TransactionId,
        /// Its epoch.
        epoch: Epoch,
    },
    /// Somebody has read or written the same at this or a later epoch, or taken a snapshot.
    #[error("epoch {:#x} comes too late: the same was read or written, or a snapshot taken, at epoch {:#x}; try again at a newer one", epoch.0, newest.0)]
    Restart {
        /// The epoch of the change.
        epoch: Epoch,
        /// The newest epoch at which others were there.
        newest: Epoch,
    },
    /// Aggregation has gone over what the object was at this epoch.
    #[error("epoch {:#x} comes too late: history of the object, or of one that shares its slot, was aggregated up to epoch {:#x}; store it at a newer one", epoch.0, newest.0)]
    Aggregated {
        /// The epoch of the change.
        epoch: Epoch,
        /// Up to this epoch history has gone.
        newest: Epoch,
    },
    /// A pool's prepared transactions take all the memory that they may.
    #[error(
        "prepared transactions of pool {pool} hold {kept} bytes of memory, and those of all pools may hold {limit}, of which some is kept for others; try again when some are decided, or raise index_memory"
    )]
    Crowded {
        /// The pool.
        pool: PoolId,
        /// Bytes that they hold.
        kept: u64,
        /// Bytes that those of all pools may hold.
        limit: u64,
    },
    /// The transaction was committed or aborted before.
    #[error("transaction {transaction} was decided before: {decision:?}")]
    Decided {
        /// The transaction.
        transaction: TransactionId,
        /// What became of it.
        decision: Decision,
    },
    /// The store was made by an earlier release, which is to read it.
    #[error("a store of format version {version} keeps no reservations; one that is made anew does")]
    Unsupported {
        /// Its version.
        version: u32,
    },
    /// The pool's share of the target is used up.
    #[error(
        "pool {pool} is full on this target: {needed} bytes needed, {free} free of {size}; delete data or grow the pool"
    )]
    NoSpace {
        /// The pool.
        pool: PoolId,
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
        /// The pool's share.
        size: u64,
    },
    /// Free blocks are too scattered for the value.
    #[error(
        "the free blocks of this target are too scattered for a value of dkey \"{0}\"; delete data or grow the pool"
    )]
    Fragmented(Key),
    /// A part of the index is damaged on the device.
    #[error(
        "{location} is damaged: {reason}; nothing was changed. Restore what lies below it from a backup, and replace the device if it happens again"
    )]
    Index {
        /// Where.
        location: Location,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The data isn't what the client sent.
    #[error(
        "data of akey \"{akey}\" does not match the checksum that came with it: it was damaged on the way; send it again"
    )]
    Checksum {
        /// The akey.
        akey: Key,
    },
    /// The device failed to take the data.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// The container's quota is used up.
    #[error(
        "container {container} is at its quota of {quota} bytes on this target; delete data or raise the quota"
    )]
    Quota {
        /// The container.
        container: ContainerId,
        /// Its quota here.
        quota: u64,
    },
    /// The store has failed.
    #[error("the store takes no changes: {0}; if its device failed, repair it and restart the engine")]
    Failed(String),
}

/// A fetch, list or query failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The request breaks a rule.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// The pool was destroyed.
    #[error("pool {0} has no shard on this target")]
    PoolMissing(PoolId),
    /// No such container.
    #[error("container {0} does not exist on this target")]
    ContainerMissing(ContainerId),
    /// The container is being destroyed.
    #[error("container {0} is being destroyed")]
    ContainerDestroying(ContainerId),
    /// A condition met nothing.
    #[error("{0} does not exist")]
    Missing(String),
    /// The akey's records have another size.
    #[error("records of akey \"{akey}\" have {stored} bytes, not {given}")]
    RecordSize {
        /// The akey.
        akey: Key,
        /// Its record size.
        stored: u32,
        /// The size of the request.
        given: u32,
    },
    /// An array fetch of a single value or the other way round.
    #[error("akey \"{akey}\" holds {stored}, not {given}")]
    Kind {
        /// The akey.
        akey: Key,
        /// What it holds.
        stored: &'static str,
        /// What was asked for.
        given: &'static str,
    },
    /// A prepared transaction may change what is asked for.
    #[error(
        "transaction {transaction} at epoch {:#x} may change this and is not decided yet; try again, or ask its coordinator",
        epoch.0
    )]
    Undecided {
        /// The transaction.
        transaction: TransactionId,
        /// Its epoch.
        epoch: Epoch,
    },
    /// Something that a transaction would see at its epoch has gone.
    #[error(
        "epoch {:#x} comes too late: of what was there, aggregation has removed what changed up to epoch {:#x}; start the transaction again at a newer one",
        epoch.0,
        newest.0
    )]
    Restart {
        /// The epoch of the transaction.
        epoch: Epoch,
        /// Up to this epoch history has gone.
        newest: Epoch,
    },
    /// The buffer is too small for the data.
    #[error("the data has {needed} bytes, the buffer {given}")]
    Buffer {
        /// Bytes of data.
        needed: u64,
        /// Bytes of the buffer.
        given: u64,
    },
    /// What was asked for has more holes than a reply can name.
    #[error(
        "what is asked for lies in more than {max} pieces with holes between them; ask for fewer records at once"
    )]
    Scattered {
        /// Most pieces.
        max: usize,
    },
    /// Stored data doesn't match its checksum.
    #[error("{location} does not match its checksum{}; it is not returned. Restore it from a backup, and replace the device if it happens again", extent_text(extent.as_ref()))]
    Corrupt {
        /// Where.
        location: Location,
        /// The records concerned, for an array.
        extent: Option<Extent>,
    },
    /// A small value in memory doesn't match its checksum.
    #[error("a small value{} was altered in this target's memory; it is not returned. Restart the engine, which reads it from the device again, and have the node's memory checked", extent_text(extent.as_ref()))]
    Altered {
        /// The records concerned, for an array.
        extent: Option<Extent>,
    },
    /// A part of the index is damaged on the device.
    #[error(
        "{location} is damaged: {reason}; what lies below it can't be found. Restore it from a backup, and replace the device if it happens again"
    )]
    Index {
        /// Where.
        location: Location,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The device failed.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// The store has failed.
    #[error("the store takes no changes: {0}; if its device failed, repair it and restart the engine")]
    Failed(String),
}

impl From<PageError> for FetchError {
    fn from(error: PageError) -> Self {
        match error {
            PageError::Corrupt { location, reason } => Self::Index { location, reason },
            PageError::Media(error) => Self::Media(error),
        }
    }
}

impl From<PageError> for UpdateError {
    fn from(error: PageError) -> Self {
        match error {
            PageError::Corrupt { location, reason } => Self::Index { location, reason },
            PageError::Media(error) => Self::Media(error),
        }
    }
}

impl From<FetchError> for UpdateError {
    /// Of a look at what is there, by who wants to change it.
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::PoolMissing(pool) => Self::PoolMissing(pool),
            FetchError::ContainerMissing(container) => Self::ContainerMissing(container),
            FetchError::ContainerDestroying(container) => Self::ContainerDestroying(container),
            FetchError::Index { location, reason } => Self::Index { location, reason },
            FetchError::Media(error) => Self::Media(error),
            FetchError::Failed(reason) => Self::Failed(reason),
            other => Self::Invalid(other.to_string()),
        }
    }
}

impl From<PageError> for OpenError {
    fn from(error: PageError) -> Self {
        match error {
            PageError::Corrupt { location, reason } => Self::Corrupt { location, reason: reason.to_owned() },
            PageError::Media(error) => Self::Media(error),
        }
    }
}

impl From<Halt<Malformed>> for Halt<FetchError> {
    fn from(fault: Fault) -> Self {
        fault.map(FetchError::from)
    }
}

impl From<FetchError> for Halt<FetchError> {
    fn from(error: FetchError) -> Self {
        Self::Failed(error)
    }
}

impl From<Halt<Malformed>> for Halt<UpdateError> {
    fn from(fault: Fault) -> Self {
        fault.map(UpdateError::from)
    }
}

impl From<UpdateError> for Halt<UpdateError> {
    fn from(error: UpdateError) -> Self {
        Self::Failed(error)
    }
}

fn extent_text(extent: Option<&Extent>) -> String {
    extent.map_or_else(String::new, |extent| format!(" (records {} to {})", extent.index, extent.end()))
}

/// A transaction can't be committed or aborted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransactionError {
    /// The pool was destroyed.
    #[error("pool {0} has no shard on this target")]
    PoolMissing(PoolId),
    /// No such container.
    #[error("container {0} does not exist on this target")]
    ContainerMissing(ContainerId),
    /// The container is being destroyed.
    #[error("container {0} is being destroyed")]
    ContainerDestroying(ContainerId),
    /// It isn't prepared, and no decision of it is known.
    #[error("transaction {0} is not prepared on this target")]
    Unknown(TransactionId),
    /// It was aborted.
    #[error("transaction {0} was aborted")]
    Aborted(TransactionId),
    /// It was committed.
    #[error("transaction {transaction} was committed at epoch {:#x}", epoch.0)]
    Committed {
        /// The transaction.
        transaction: TransactionId,
        /// Its epoch.
        epoch: Epoch,
    },
    /// A part of the index is damaged on the device.
    #[error(
        "{location} is damaged: {reason}; nothing was changed. Restore what lies below it from a backup, and replace the device if it happens again"
    )]
    Index {
        /// Where.
        location: Location,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The device failed.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// The store has failed.
    #[error("the store takes no changes: {0}; if its device failed, repair it and restart the engine")]
    Failed(String),
}

impl From<PageError> for TransactionError {
    fn from(error: PageError) -> Self {
        match error {
            PageError::Corrupt { location, reason } => Self::Index { location, reason },
            PageError::Media(error) => Self::Media(error),
        }
    }
}

impl From<UpdateError> for TransactionError {
    fn from(error: UpdateError) -> Self {
        match error {
            UpdateError::Failed(reason) => Self::Failed(reason),
            // What was checked at prepare still holds, unless the index is not what it was.
            error => Self::Failed(format!("a prepared change is refused: {error}")),
        }
    }
}

impl From<TransactionError> for Halt<TransactionError> {
    fn from(error: TransactionError) -> Self {
        Self::Failed(error)
    }
}

impl OpenError {
    /// Whether this release can't read the store, which another one can: nothing is wrong with the device.
    #[must_use]
    pub const fn is_of_other_release(&self) -> bool {
        matches!(self, Self::Version { .. } | Self::Features { .. })
    }

    /// Whether the device may be new: formatting it is what is to be done, and [`crate::Store::format`] still refuses
    /// if there is data behind the superblock.
    #[must_use]
    pub const fn is_unformatted(&self) -> bool {
        matches!(self, Self::Blank { .. } | Self::Unfinished { .. })
    }
}
