//! A pool in the list of pools, and what is left there of one that was destroyed.

use serde::{Deserialize, Serialize};
use weir_proto::{Rank, codec};

use super::pool::{FirstPoolForm, PoolForm, PoolRecord};
use super::{Read, Stored, read_as};

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
    /// Ranks that hold it, ascending.
    pub ranks: Vec<Rank>,
    /// How far it is.
    pub state: EntryState,
}

/// The form of version 2, and with [`FirstPoolForm`] that of version 1.
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

impl<Pool: Into<PoolRecord>> From<EntryForm<Pool>> for DirectoryEntry {
    fn from(form: EntryForm<Pool>) -> Self {
        let EntryForm { pool, size, ranks, state } = form;
        let state = match state {
            StateForm::Creating => EntryState::Creating,
            StateForm::Ready => EntryState::Ready,
            StateForm::Destroying => EntryState::Destroying,
        };
        Self { pool: pool.into(), size, ranks, state }
    }
}

impl Stored for DirectoryEntry {
    const WHAT: &'static str = "an entry of the list of pools";
    const VERSION: u8 = 2;

    fn body(&self) -> Vec<u8> {
        codec::encode(&EntryForm::<PoolForm>::from(self))
    }

    fn read(version: u8, body: &[u8]) -> Read<Self> {
        match version {
            1 => read_as::<EntryForm<FirstPoolForm>, _>(body),
            2 => read_as::<EntryForm<PoolForm>, _>(body),
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
