//! Why a store wasn't copied.

use uuid::Uuid;
use weir_media::MediaError;
use weir_store::FormatError;

/// A store can't be copied. The store that was to be copied is as it was; the device that it was to go to holds none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// Nothing says where the index is.
    #[error(
        "{device}: no copy of any checkpoint header is intact, so that the index can't be found: nothing of it can be copied"
    )]
    NoIndex {
        /// Name of the device that was to be copied.
        device: String,
    },
    /// What an engine holds in memory all the time takes more than that can be right.
    #[error(
        "{device}: its pools, containers, attributes, snapshots and transactions take more than {limit} bytes of memory, which no engine would leave so; the store can't be copied"
    )]
    Crowded {
        /// Name of the device that was to be copied.
        device: String,
        /// Most bytes that they may take.
        limit: u64,
    },
    /// The device has no room for the pools, or for what they hold.
    #[error(
        "{device} has {size} bytes, which is too small: the pools have {pools} bytes of the target, and data and index take up to {used}. Use one of {needed} bytes or more"
    )]
    TooSmall {
        /// Name of the device that the copy was to go to.
        device: String,
        /// Its size.
        size: u64,
        /// The pools' shares.
        pools: u64,
        /// What is to be copied takes at most so many bytes.
        used: u64,
        /// The smallest size that would do.
        needed: u64,
    },
    /// The device holds a copy that wasn't finished.
    #[error(
        "{device} holds a copy of store {from} that was not finished; say --restart to begin it again, which overwrites what is there"
    )]
    UnfinishedCopy {
        /// Name of the device that the copy was to go to.
        device: String,
        /// Identity of the store that was copied.
        from: Uuid,
    },
    /// The device may not be written to.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The device that the copy goes to doesn't take it.
    #[error(
        "the copy is not finished: {device} does not take it: {reason}. Repair or replace it, and repeat the copy with --restart"
    )]
    Target {
        /// Name of the device.
        device: String,
        /// Why.
        reason: String,
    },
    /// The device that is copied can't be read any more, wherever.
    #[error(
        "the copy is not finished: {device} does not answer any more: {reason}. Reset it, and repeat the copy with --restart"
    )]
    Source {
        /// Name of the device.
        device: String,
        /// What it said last.
        reason: String,
    },
    /// Something of the device that was copied could be read once and not another time, on which too much depends.
    #[error(
        "the copy is not finished: {device} does not give the same each time it is read: {reason}. Repeat the copy with --restart"
    )]
    Changed {
        /// Name of the device.
        device: String,
        /// What.
        reason: String,
    },
    /// Whoever asked for the copy wants it no longer.
    #[error("the copy is not finished: it was interrupted; repeat it with --restart")]
    Stopped,
}

impl From<MediaError> for CopyError {
    fn from(error: MediaError) -> Self {
        Self::Format(error.into())
    }
}
