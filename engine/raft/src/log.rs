//! The log of a replica with its vote: in memory for the library, and as attributes of the shard.
//!
//! Each batch of attributes leaves a state from which a replica can go on, whatever of the following ones a crash takes away: vote
//! and term are stored with the first entries of a batch, and what the new entries replace is removed there.

use std::collections::VecDeque;

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::util::limit_size;
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use weir_proto::{PoolId, Rank};
use weir_store::{AttributeChange, AttributeError, Shard};

use crate::error::Unreadable;
use crate::replica::Scopes;
use crate::snapshot;
use crate::stored::{
    EntryForm, HardForm, NAME_APPLIED, NAME_HARD, NAME_INSTALLING, NAME_START, PART, PlaceForm, SCOPE,
    SCOPE_LOG, StartForm, change, decode, encode, load, load_scope, put,
};
use crate::wire::{entry_of, id_of, number_of};

/// Entries that have taken effect and are kept for members that are behind. Beyond these a member gets the whole state.
const KEPT: usize = 1024;

/// Bytes of such entries.
const KEPT_BYTES: usize = 8 * 1024 * 1024;

/// Most bytes of one batch of attributes; the store takes 1 MiB.
const BATCH: usize = 512 * 1024;

/// Has a shard begin a replica of a new group with these members, of which the first stands for election at once. A shard that has
/// begun already stays as it is. Only for the first shard that an engine has in the group: a replica that has lost its votes and its
/// log must not take part again.
///
/// # Errors
/// When it can't be stored.
pub async fn prepare(shard: &Shard, members: &[Rank]) -> Result<(), AttributeError> {
    if is_prepared(shard) {
        return Ok(());
    }
    let voters = members.iter().map(|rank| id_of(*rank)).collect();
    shard.change_attributes(&[put(NAME_START, &StartForm { place: PlaceForm::default(), voters })]).await
}

/// Has a shard that was made anew begin its engine's replica again, from nothing. The other members, of which it is none at this moment
/// ([`crate::Replica::change_member`]), know what the lost one has voted for, and have all that was committed with it. A shard that has
/// a replica stays as it is.
///
/// # Errors
/// When it can't be stored.
pub async fn prepare_again(shard: &Shard, members: &[Rank]) -> Result<(), AttributeError> {
    if is_prepared(shard) {
        return Ok(());
    }
    let voters = members.iter().map(|rank| id_of(*rank)).collect();
    let start = put(NAME_START, &StartForm { place: PlaceForm::default(), voters });
    // The group has begun: this one doesn't stand for election at once.
    shard.change_attributes(&[start, put(NAME_HARD, &HardForm { term: 1, vote: 0, commit: 0 })]).await
}

/// Has a shard whose attributes are a state already begin a group of which it is the only member. A member that is taken in later
/// gets that state as a whole, since no log leads to it. A shard that has a replica stays as it is.
///
/// # Errors
/// When it can't be stored.
pub async fn prepare_with_state(shard: &Shard, own: Rank) -> Result<(), AttributeError> {
    if is_prepared(shard) {
        return Ok(());
    }
    let start = StartForm { place: PlaceForm { index: 1, term: 1 }, voters: vec![id_of(own)] };
    let hard = HardForm { term: 1, vote: 0, commit: 1 };
    shard.change_attributes(&[put(NAME_START, &start), put(NAME_HARD, &hard)]).await
}

/// Whether a shard has a replica.
#[must_use]
pub fn is_prepared(shard: &Shard) -> bool {
    shard.attribute(SCOPE, NAME_START).is_some()
}

pub(crate) struct Log {
    pub(crate) shard: Shard,
    scopes: Scopes,
    hard: HardForm,
    start: StartForm,
    applied: PlaceForm,
    /// Those behind the start.
    entries: VecDeque<Entry>,
    /// Bytes of them.
    bytes: usize,
}

impl Log {
    /// Loads what is stored.
    pub(crate) async fn load(shard: Shard, scopes: Scopes) -> Result<Self, Unreadable> {
        let group = shard.id();
        let unreadable = |what| move |reason| Unreadable { group, what, reason };
        if let Some(start) = load::<StartForm>(&shard, NAME_INSTALLING).map_err(unreadable("the snapshot"))? {
            snapshot::replace_state(&shard, &scopes, &start)
                .await
                .map_err(|error| unreadable("the snapshot")(error.to_string()))?;
        }
        let hard = load(&shard, NAME_HARD).map_err(unreadable("the vote"))?.unwrap_or_default();
        let start: Option<StartForm> =
            load(&shard, NAME_START).map_err(unreadable("the start of the log"))?;
        let missing = || unreadable("the start of the log")("there is none".to_owned());
        let start = start.ok_or_else(missing)?;
        let applied = load(&shard, NAME_APPLIED).map_err(unreadable("the place in the log"))?;
        let applied = applied.unwrap_or(start.place);
        let entries = load_entries(&shard, group, start.place.index)?;
        let bytes = entries.iter().map(|entry| entry.data.len()).sum();
        let log = Self { shard, scopes, hard, start, applied, entries, bytes };
        if applied.index < log.start.place.index || applied.index > log.last() {
            let reason = format!("entry {} took effect, the log ends with {}", applied.index, log.last());
            return Err(unreadable("the log")(reason));
        }
        Ok(log)
    }

    /// The members.
    pub(crate) fn voters(&self) -> &[u64] {
        &self.start.voters
    }

    /// Goes by other members from the entry on that takes effect next, with which the change is to be stored.
    pub(crate) fn set_voters(&mut self, voters: Vec<u64>) -> AttributeChange {
        self.start.voters = voters;
        put(NAME_START, &self.start)
    }

    /// Index of the last entry that has taken effect.
    pub(crate) const fn applied(&self) -> u64 {
        self.applied.index
    }

    /// Whether nothing has ever been stored.
    pub(crate) fn is_new(&self) -> bool {
        self.hard == HardForm::default() && self.entries.is_empty() && self.start.place.index == 0
    }

    pub(crate) fn last(&self) -> u64 {
        self.start.place.index + self.entries.len() as u64
    }

    /// Keeps a vote and entries, which take the place of those of the same indices and of all behind them.
    pub(crate) async fn append(
        &mut self,
        hard: Option<&HardState>,
        entries: Vec<Entry>,
    ) -> Result<(), AttributeError> {
        let mut batch = Vec::new();
        if let Some(hard) = hard {
            self.hard = HardForm { term: hard.term, vote: hard.vote, commit: hard.commit };
            batch.push(put(NAME_HARD, &self.hard));
        }
        if let Some(first) = entries.first() {
            self.cut(first.index, &mut batch);
        }
        let mut bytes = 0;
        for entry in entries {
            let parts = encode_entry(&entry);
            let len: usize = parts.iter().map(|part| part.value.as_ref().map_or(0, Vec::len)).sum();
            if bytes > 0 && bytes + len > BATCH {
                self.shard.change_attributes(&core::mem::take(&mut batch)).await?;
                bytes = 0;
            }
            bytes += len;
            batch.extend(parts);
            self.bytes += entry.data.len();
            self.entries.push_back(entry);
        }
        if !batch.is_empty() {
            self.shard.change_attributes(&batch).await?;
        }
        Ok(())
    }

    /// Removes the entries from an index on.
    fn cut(&mut self, from: u64, batch: &mut Vec<AttributeChange>) {
        while self.last() >= from
            && let Some(entry) = self.entries.pop_back()
        {
            self.bytes -= entry.data.len();
            batch.extend(removals(&entry));
        }
    }

    /// Makes what entries up to a place have changed durable, with the place.
    pub(crate) async fn apply(
        &mut self,
        (index, term): (u64, u64),
        mut changes: Vec<AttributeChange>,
    ) -> Result<(), AttributeError> {
        self.applied = PlaceForm { index, term };
        changes.push(put(NAME_APPLIED, &self.applied));
        self.shard.change_attributes(&changes).await
    }

    /// Forgets entries that have taken effect when there are many.
    pub(crate) async fn trim(&mut self) -> Result<(), AttributeError> {
        let done = self.applied.index - self.start.place.index;
        if done <= 2 * KEPT as u64 && self.bytes <= 2 * KEPT_BYTES {
            return Ok(());
        }
        let mut batch = Vec::new();
        let mut names = 0;
        while let Some(entry) = self.entries.front()
            && entry.index < self.applied.index
            && (self.entries.len() > KEPT || self.bytes > KEPT_BYTES)
            && names < KEPT
        {
            self.start.place = PlaceForm { index: entry.index, term: entry.term };
            self.bytes -= entry.data.len();
            batch.extend(removals(entry));
            self.entries.pop_front();
            names += 1;
        }
        batch.push(put(NAME_START, &self.start));
        self.shard.change_attributes(&batch).await
    }

    /// Puts a snapshot in the place of state and log.
    pub(crate) async fn install(&mut self, snapshot: &Snapshot) -> Result<(), AttributeError> {
        let metadata = snapshot.get_metadata();
        let place = PlaceForm { index: metadata.index, term: metadata.term };
        let start = StartForm { place, voters: metadata.get_conf_state().get_voters().to_vec() };
        snapshot::stage(&self.shard, &snapshot.data).await?;
        let mut batch = vec![put(NAME_START, &start), put(NAME_INSTALLING, &start)];
        batch.push(put(NAME_APPLIED, &place));
        self.cut(0, &mut batch);
        self.shard.change_attributes(&batch).await?;
        snapshot::replace_state(&self.shard, &self.scopes, &start).await?;
        self.start = start;
        self.applied = place;
        Ok(())
    }

    fn entry(&self, index: u64) -> Option<&Entry> {
        let at = index.checked_sub(self.start.place.index + 1)?;
        self.entries.get(usize::try_from(at).ok()?)
    }
}

impl Storage for Log {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let mut hard = HardState::default();
        hard.term = self.hard.term;
        hard.vote = self.hard.vote;
        // The stored figure may be ahead of the stored entries, and behind what has taken effect.
        hard.commit = self.hard.commit.min(self.last()).max(self.applied.index);
        let mut members = ConfState::default();
        members.set_voters(self.start.voters.clone());
        Ok(RaftState::new(hard, members))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.start.place.index {
            return Err(StorageError::Compacted.into());
        }
        let mut found: Vec<Entry> = (low..high).map_while(|index| self.entry(index).cloned()).collect();
        if found.len() as u64 != high.saturating_sub(low) {
            return Err(StorageError::Unavailable.into());
        }
        limit_size(&mut found, max_size.into());
        Ok(found)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.start.place.index {
            return Ok(self.start.place.term);
        }
        match self.entry(index) {
            Some(entry) => Ok(entry.term),
            None if index < self.start.place.index => Err(StorageError::Compacted.into()),
            None => Err(StorageError::Unavailable.into()),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.start.place.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, _: u64, _: u64) -> raft::Result<Snapshot> {
        let mut snapshot = Snapshot::default();
        snapshot.data = snapshot::encode(&self.shard, &(self.scopes)(&self.shard)).into();
        let metadata = snapshot.mut_metadata();
        metadata.index = self.applied.index;
        metadata.term = self.applied.term;
        metadata.mut_conf_state().set_voters(self.start.voters.clone());
        Ok(snapshot)
    }
}

/// Index and part of an entry as a name.
fn name(index: u64, part: usize) -> Vec<u8> {
    let part = u8::try_from(part).expect("a command has few parts");
    [index.to_be_bytes().as_slice(), &[part]].concat()
}

fn encode_entry(entry: &Entry) -> Vec<AttributeChange> {
    let place = PlaceForm { index: entry.index, term: entry.term };
    let kind = number_of(entry.get_entry_type());
    let bytes = encode(&EntryForm { kind, place, data: entry.data.to_vec().into() });
    let parts = bytes.chunks(PART).enumerate();
    parts.map(|(part, bytes)| change(SCOPE_LOG, &name(entry.index, part), Some(bytes.to_vec()))).collect()
}

/// The changes that remove an entry.
fn removals(entry: &Entry) -> impl Iterator<Item = AttributeChange> {
    let parts = encode_entry(entry).into_iter();
    parts.map(|part| AttributeChange { value: None, ..part })
}

fn load_entries(shard: &Shard, group: PoolId, start: u64) -> Result<VecDeque<Entry>, Unreadable> {
    let unreadable = |reason| Unreadable { group, what: "the log", reason };
    let mut parts: VecDeque<(u64, Vec<u8>)> = VecDeque::new();
    for (name, bytes) in load_scope(shard, SCOPE_LOG) {
        let wrong = || unreadable(format!("an entry has a name of {} bytes", name.len()));
        let (index, _) = name.split_first_chunk().ok_or_else(wrong)?;
        let index = u64::from_be_bytes(*index);
        match parts.back_mut() {
            Some((last, entry)) if *last == index => entry.extend(bytes),
            _ => parts.push_back((index, bytes)),
        }
    }
    let mut entries = VecDeque::new();
    for ((index, bytes), expected) in parts.into_iter().zip(start + 1..) {
        let EntryForm { kind, place, data } = decode(&bytes).map_err(unreadable)?;
        if index != expected || place.index != index {
            return Err(unreadable(format!("entry {index} is in the place of entry {expected}")));
        }
        let entry = entry_of(kind, (index, place.term), data.into_vec());
        entries.push_back(entry.ok_or_else(|| unreadable(format!("entry {index} is of kind {kind}")))?);
    }
    Ok(entries)
}
