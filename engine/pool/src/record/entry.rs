//! A pool in the list of pools, and what is left there of one that was destroyed.

use serde::{Deserialize, Serialize};
use weir_proto::codec::DecodeError;
use weir_proto::{Rank, codec};

use super::pool::{FirstPoolForm, PoolForm, PoolRecord, SecondPoolForm};
use super::{Read, Stored, read_as, read_through};

/// How far a pool is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryState {
    /// Targets are being told.
    Creating,
    /// In use.
    Ready,
    /// Targets are being told.
    Destroying,
}

/// A pool as the directory keeps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryEntry {
    /// What every target of the pool is told.
    pub pool: PoolRecord,
    /// Bytes asked for.
    pub size: u64,
    /// Ranks that hold it, or are joining it, ascending.
    pub ranks: Vec<Rank>,
    /// How far it is.
    pub state: EntryState,
}

impl DirectoryEntry {
    /// Ranks that are joining the pool: parts of it may be there, and its map may have them.
    #[must_use]
    pub fn joining(&self) -> Vec<Rank> {
        let known = self.pool.map.ranks();
        self.ranks.iter().copied().filter(|rank| !known.contains(rank)).collect()
    }
}

/// The form of version 3, with [`SecondPoolForm`] that of version 2, and with [`FirstPoolForm`] that of version 1.
#[derive(Serialize, Deserialize)]
struct EntryForm<Pool> {
    pool: Pool,
    size: u64,
    ranks: Vec<Rank>,
    state: StateForm,
}

/// Stored as the number of the variant.
#[derive(Serialize, Deserialize)]
enum StateForm {
    Creating,
    Ready,
    Destroying,
}

impl From<&DirectoryEntry> for EntryForm<PoolForm> {
    fn from(entry: &DirectoryEntry) -> Self {
        let state = match entry.state {
            EntryState::Creating => StateForm::Creating,
            EntryState::Ready => StateForm::Ready,
            EntryState::Destroying => StateForm::Destroying,
        };
        Self { pool: (&entry.pool).into(), size: entry.size, ranks: entry.ranks.clone(), state }
    }
}

impl<Pool> EntryForm<Pool> {
    /// The entry, when the pool in it could be read.
    fn try_map<E>(self, read: impl FnOnce(Pool) -> Result<PoolRecord, E>) -> Result<DirectoryEntry, E> {
        let state = match self.state {
            StateForm::Creating => EntryState::Creating,
            StateForm::Ready => EntryState::Ready,
            StateForm::Destroying => EntryState::Destroying,
        };
        Ok(DirectoryEntry { pool: read(self.pool)?, size: self.size, ranks: self.ranks, state })
    }
}

impl TryFrom<EntryForm<PoolForm>> for DirectoryEntry {
    type Error = DecodeError;

    fn try_from(form: EntryForm<PoolForm>) -> Result<Self, DecodeError> {
        form.try_map(TryInto::try_into)
    }
}

impl TryFrom<EntryForm<SecondPoolForm>> for DirectoryEntry {
    type Error = DecodeError;

    fn try_from(form: EntryForm<SecondPoolForm>) -> Result<Self, DecodeError> {
        form.try_map(|pool| Ok(pool.into()))
    }
}

impl TryFrom<EntryForm<FirstPoolForm>> for DirectoryEntry {
    type Error = DecodeError;

    fn try_from(form: EntryForm<FirstPoolForm>) -> Result<Self, DecodeError> {
        form.try_map(|pool| Ok(pool.into()))
    }
}

impl Stored for DirectoryEntry {
    const WHAT: &'static str = "an entry of the list of pools";
    const VERSION: u8 = 3;

    fn body(&self) -> Vec<u8> {
        codec::encode(&EntryForm::<PoolForm>::from(self))
    }

    fn read(version: u8, body: &[u8]) -> Read<Self> {
        match version {
            1 => read_through::<EntryForm<FirstPoolForm>, _>(body),
            2 => read_through::<EntryForm<SecondPoolForm>, _>(body),
            3 => read_through::<EntryForm<PoolForm>, _>(body),
            _ => Read::Unknown,
        }
    }
}

/// What is left of a destroyed pool. Its own form of versions 1 and 2: it is no message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Remnant {
    pub(crate) label: String,
    /// Engines that may still hold a part.
    pub(crate) ranks: Vec<Rank>,
}

impl Stored for Remnant {
    const WHAT: &'static str = "what is left of it";
    const VERSION: u8 = 2;

    fn body(&self) -> Vec<u8> {
        codec::encode(self)
    }

    fn read(version: u8, body: &[u8]) -> Read<Self> {
        match version {
            1 | 2 => read_as::<Self, _>(body),
            _ => Read::Unknown,
        }
    }
}
