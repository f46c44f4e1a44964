//! The history of objects, as a target that lacks it gets it from one that has it.
//!
//! History is what a store knows of objects: when each object, dkey and akey began and ended, and the versions of values by
//! epoch. Any two parts of it can be taken over in any order, and each again: what they amount to is their union.
//!
//! A target that has some of it already says so by fingerprints, and gets the rest. What it has and the other one hasn't goes.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::object::Extent;
use crate::replica::ChangeId;
use crate::replica_transaction::GroupName;
use crate::{ContainerId, Epoch, Key, ObjectId, PoolId, TargetIndex, TransactionId, codec};

/// A step along history. Objects, dkeys and akeys come in the order in which they are listed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum HistoryStep {
    /// What follows is of this object.
    Object(ObjectId),
    /// What follows is of this dkey of the object.
    Dkey(Key),
    /// What follows is of this akey of the dkey.
    Akey(Key),
    /// Something happened to what was named last.
    Event {
        /// When.
        epoch: Epoch,
        /// What.
        event: HistoryEvent,
    },
    /// A version of the value of the akey that was named last. Its data follows that of the versions before.
    Version(HistoryVersion),
}

/// The begin or end of an object, dkey or akey.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum HistoryEvent {
    /// It was punched.
    Punch,
    /// An object began.
    Object {
        /// Epoch of the newest change at it or below it.
        newest: Epoch,
    },
    /// A dkey began.
    Dkey,
    /// An akey with single values began.
    Single,
    /// An akey with an array began.
    Array {
        /// Bytes of a record; 0 while none was stored.
        record_size: u32,
        /// Lengths of the extents that it ever had: bit `c` stands for 4^c up to 4^(c+1) - 1 records.
        classes: u32,
    },
}

/// A version of an akey's value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HistoryVersion {
    /// Its epoch.
    pub epoch: Epoch,
    /// The records of an array; `None`: a single value.
    pub extent: Option<Extent>,
    /// Bytes of a record; 0 for single values and holes.
    pub record_size: u32,
    /// Bytes of its data. None: nothing is there from its epoch on.
    pub len: u64,
    /// Bytes of the first chunk of the data, and of those behind it ([`crate::chunk::Chunks`]).
    pub chunks: (u64, u64),
    /// The checksums of the chunks; none where the writer gave none.
    pub checksums: Vec<u32>,
}

/// A part of the history of a container.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct HistoryPage {
    /// The steps, which begin with an object.
    pub steps: Vec<HistoryStep>,
    /// Data of the versions, one behind the other.
    #[serde(with = "serde_bytes")]
    pub data: Vec<u8>,
    /// Where the next page begins; `None`: nothing is left.
    pub next: Option<Vec<u8>>,
    /// The page is empty, since what is next takes so many bytes; 0: it isn't.
    pub needed: u64,
}

/// A part of the history of a container, without what the asker has.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct HistoryDifference {
    /// What the asker lacks.
    pub page: HistoryPage,
    /// Which entries of [`HistoryComparison::here`] the sender has, too: a bit for each, the lowest of a byte first. Those behind
    /// the page's end have none.
    pub kept: ByteBuf,
    /// Places, among the versions of the page, of those whose data is damaged at the sender: zeros stand for the chunks that don't
    /// match their checksums. Ascending.
    pub unread: Vec<u32>,
}

/// Bytes of a fingerprint in [`HistoryComparison::here`].
pub const FINGERPRINT_LEN: usize = size_of::<u64>();

/// Most fingerprints of a request: with seal and header they fit [`crate::limits::INLINE_MAX`].
pub const FINGERPRINTS_MAX: usize = 1024;

/// What tells an entry of history from all others: a hash of its place in its container and of all that is said of it. Two
/// entries with one fingerprint are the same, data included, since checksums are said of it.
#[must_use]
pub fn fingerprint(place: &[u8], step: &HistoryStep) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(place.len() as u64).to_be_bytes()).update(place).update(&codec::encode(step));
    let mut first = [0; FINGERPRINT_LEN];
    hasher.finalize_xof().fill(&mut first);
    u64::from_be_bytes(first)
}

/// A target that gets data → one that serves: it is about to ask for history.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HistoryBegin {
    /// The pool.
    pub pool: PoolId,
    /// Version of the pool map by which the sender goes. One that goes by another refuses.
    pub map_version: u32,
}

/// What there is to be asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HistoryBegun {
    /// All changes of later epochs that the sender leads are sent to the asker by the map that both go by.
    pub now: Epoch,
    /// Containers of which the sender has something.
    pub containers: Vec<ContainerId>,
}

/// A target that gets data → one that serves: a page of history, of what it leads and the asker is to have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HistoryRequest {
    /// The target that asks, of the engine that has sealed the request.
    pub index: TargetIndex,
    /// The pool.
    pub pool: PoolId,
    /// Version of the pool map by which the sender goes. One that goes by another refuses.
    pub map_version: u32,
    /// The container.
    pub container: ContainerId,
    /// Where the page begins: empty at first, [`HistoryPage::next`] of the page before then.
    pub from: ByteBuf,
    /// Most bytes of the page.
    pub most: u64,
}

/// Asks for a page of history where the asker has some of it. Answered by a [`HistoryDifference`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HistoryComparison {
    /// The page.
    pub request: HistoryRequest,
    /// Where the page ends at the latest; empty: at the end of the container.
    pub until: ByteBuf,
    /// The [`fingerprint`]s of what the asker has from where the page begins until there, in its order, each as a big-endian
    /// number: that doesn't come again.
    pub here: ByteBuf,
}

/// A target that gets data → one that serves: transactions of groups that have ended. Answered by [`EndedTransactions`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EndedRequest {
    /// The target that asks, of the engine that has sealed the request.
    pub index: TargetIndex,
    /// The pool.
    pub pool: PoolId,
    /// Version of the pool map by which the sender goes. One that goes by another refuses.
    pub map_version: u32,
    /// The container.
    pub container: ContainerId,
    /// Where to begin; `None`: at the first one.
    pub from: Option<TransactionId>,
}

/// Transactions that have ended, in the order of their ids.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct EndedTransactions {
    /// Those.
    pub ended: Vec<EndedTransaction>,
    /// Where to go on; `None`: nothing is left.
    pub next: Option<TransactionId>,
}

/// What became of a transaction of groups.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EndedTransaction {
    /// The transaction.
    pub id: TransactionId,
    /// Its epoch, if it was committed.
    pub committed: Option<Epoch>,
    /// The groups that take part, the leading one first, where some may not have heard of it. Otherwise none.
    pub groups: Vec<GroupName>,
}

/// A target that gets data → one that serves: names of changes that were made. Answered by [`ChangeNames`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NamesRequest {
    /// The pool.
    pub pool: PoolId,
    /// Version of the pool map by which the sender goes. One that goes by another refuses.
    pub map_version: u32,
    /// Where to begin.
    pub from: ChangeId,
}

/// Names of changes that were made, which may be asked for again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChangeNames {
    /// Each with the wall time, in nanoseconds since 1970, until which it is kept, and the epoch of the change; 0: it isn't known.
    pub names: Vec<(ChangeId, u64, u64)>,
    /// Where to go on; `None`: nothing is left.
    pub next: Option<ChangeId>,
}

/// A version of a value, by what it belongs to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct VersionName {
    /// The container.
    pub container: ContainerId,
    /// The object.
    pub object: ObjectId,
    /// The dkey.
    pub dkey: Key,
    /// The akey.
    pub akey: Key,
    /// The records of an array; `None`: a single value.
    pub extent: Option<Extent>,
    /// When it was stored.
    pub epoch: Epoch,
}

impl core::fmt::Display for VersionName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { container, object, dkey, akey, extent, epoch } = self;
        write!(f, "container {container} object {object} dkey \"{dkey}\" akey \"{akey}\"")?;
        if let Some(Extent { index, count }) = extent {
            write!(f, " records {index} to {}", index.saturating_add(count.saturating_sub(1)))?;
        }
        write!(f, " epoch {}", epoch.0)
    }
}

/// A target whose copy of a version is damaged → another member of its group: the data of that version. Answered by
/// [`VersionData`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VersionRequest {
    /// The pool.
    pub pool: PoolId,
    /// Version of the pool map by which the sender goes.
    pub map_version: u32,
    /// The version.
    pub version: VersionName,
    /// Bytes of its data.
    pub len: u64,
}

/// Data of a version, as far as it is sound. Whoever has asked compares it with the checksums that it has.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct VersionData {
    /// The data; empty: nothing of it is there.
    #[serde(with = "serde_bytes")]
    pub data: Vec<u8>,
}
