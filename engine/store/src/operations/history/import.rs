//! Taking history in.

mod batch;

use super::export::told_event;
use crate::format::key::{self, ContainerNumber, Path, PoolNumber};
use crate::format::node::ENTRY_MAX;
use crate::format::record::{Change, growth};
use crate::format::value::Event;
use crate::index::fault::Halt;
use crate::index::tree::Tree;
use crate::operations::update::{Data, Request, Staging, is_large};
use crate::state::error::UpdateError;
use crate::state::piece::bytes_in_blocks;
use crate::state::shard::{QuotaCheck, Shard};
use crate::versions::intents::Slot;
use crate::versions::timestamps::Scope;
use batch::{Batch, Part, Reader};
use std::collections::HashMap;
use weir_proto::history::{HistoryDifference, HistoryEvent, HistoryPage, HistoryStep};
use weir_proto::object::Conditions;
use weir_proto::{ContainerId, Epoch, ObjectId};

/// What was taken in.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Imported {
    /// Events and versions that were not here.
    pub entries: u64,
    /// Bytes of data of the versions among them.
    pub bytes: u64,
}

/// What a batch changes.
enum Planned {
    Changes(Vec<Change>),
    /// A version has come meanwhile.
    Outdated,
}

/// The error of history that comes from somebody who isn't to be asked any more.
pub(super) fn superseded() -> UpdateError {
    UpdateError::Restart { epoch: Epoch::MAX, newest: Epoch::MAX }
}

impl Shard {
    /// Takes in a part of the history of objects: what is here already stays as it is, and the rest is added. The shard is being
    /// filled ([`Shard::fill`]). Each record commits if `holds` says at that moment that the part still counts. Durable when it
    /// returns.
    ///
    /// # Errors
    /// [`UpdateError::Checksum`]: data doesn't match its checksums. [`UpdateError::Restart`]: it counts no more. Otherwise see
    /// [`UpdateError`]. A part may have been taken in.
    pub async fn import_history(
        &self,
        container: ContainerId,
        told: &HistoryDifference,
        holds: &dyn Fn() -> bool,
    ) -> Result<Imported, UpdateError> {
        if !self.is_filling() {
            return Err(UpdateError::Invalid(
                "history comes only to a target that is being filled".to_owned(),
            ));
        }
        let number = self.locate(container)?;
        let HistoryDifference { page: HistoryPage { steps, data, .. }, unread, .. } = told;
        check_len(steps, data.len() as u64).map_err(UpdateError::Invalid)?;
        if !unread.is_empty() && !self.core.keeps_all_checksums() {
            let text = "a store of the first format can't hold a version that nobody can read".to_owned();
            return Err(UpdateError::Invalid(text));
        }
        let mut reader = Reader::new((self.number, number), steps, data.len(), unread);
        let (mut imported, data) = (Imported::default(), Data::Borrowed(data));
        while let Some(batch) = reader.next(self.core.config.inline_max()).map_err(UpdateError::Invalid)? {
            let added = self.import_batch((container, number), batch, &data, holds).await?;
            imported.entries += added.entries;
            imported.bytes += added.bytes;
            self.core.yield_to_io().await;
        }
        self.core.make_durable(self.core.journal.last()).await.map_err(UpdateError::Failed)?;
        Ok(imported)
    }

    /// Takes in some history of one object, by one record.
    async fn import_batch(
        &self,
        (container, number): (ContainerId, ContainerNumber),
        mut batch: Batch,
        data: &Data<'_>,
        holds: &dyn Fn() -> bool,
    ) -> Result<Imported, UpdateError> {
        let touched = (self.number, number, batch.object);
        loop {
            self.core.admit().await.map_err(UpdateError::Failed)?;
            self.core.ask(|tree| batch.look(tree)).await?;
            let mut request =
                Request::new(self.number, batch.object, &batch.dkey, Conditions::NONE, &batch.updates);
            request.container = number;
            request.quota = QuotaCheck::AtLeader;
            let mut pieces = batch.missing();
            let in_blocks = pieces.iter().filter(|piece| piece.in_blocks).map(|piece| piece.data.len()).sum();
            if !is_large(in_blocks) {
                self.seal_all(&request, &mut pieces, data.bytes())?;
            }
            let staging = is_large(in_blocks).then(|| Staging::new(&self.core));
            let stored = if in_blocks > 0 {
                Some(self.write_blocks(container, &request, &mut pieces, data).await?.end().await?)
            } else {
                None
            };
            let planned = self.core.ask(|tree| batch.plan(tree, &pieces, data.bytes())).await?;
            if self.locate(container)? != number {
                return Err(UpdateError::ContainerMissing(container));
            }
            let Planned::Changes(changes) = planned else { continue };
            if !holds() {
                return Err(superseded());
            }
            let sizes = (growth(&changes), bytes_in_blocks(&pieces), 0);
            self.check_space((container, number), QuotaCheck::AtLeader, sizes)?;
            let bytes = pieces.iter().map(|piece| piece.data.len() as u64).sum();
            let entries = changes.len() as u64;
            if !changes.is_empty() {
                self.core.commit(&changes, Some(touched))?;
                if let Some(mut stored) = stored {
                    stored.keep();
                }
                self.core.timestamps.note_write(&touched, Scope::Object, batch.newest, false);
                self.core.queue_for_aggregation(touched, batch.oldest);
            }
            drop(staging);
            return Ok(Imported { entries, bytes });
        }
    }
}

/// The events that a page tells of, by their keys.
pub(super) fn events_of(
    owner: (PoolNumber, ContainerNumber),
    HistoryDifference { page, unread, .. }: &HistoryDifference,
) -> Result<HashMap<Vec<u8>, HistoryEvent>, String> {
    let mut reader = Reader::new(owner, &page.steps, page.data.len(), unread);
    let mut events = HashMap::new();
    while let Some(batch) = reader.next(0)? {
        for part in &batch.parts {
            if let Part::Event(path, epoch, event) = part {
                events.insert(path.event(*epoch).to_vec(), told_event(*event));
            }
        }
    }
    Ok(events)
}

/// Checks that the versions among steps have so many bytes of data.
fn check_len(steps: &[HistoryStep], len: u64) -> Result<(), String> {
    let of_version = |step: &HistoryStep| match step {
        HistoryStep::Version(version) => version.len,
        _ => 0,
    };
    let needed = steps.iter().map(of_version).fold(0, u64::saturating_add);
    if needed == len {
        return Ok(());
    }
    Err(format!("{len} bytes of data came, of which versions have {needed}"))
}

/// What two tellings of the same event amount to. `None`: they contradict each other.
fn united(here: Event, there: Event) -> Option<Event> {
    match (here, there) {
        (Event::Punch, Event::Punch) => Some(Event::Punch),
        (Event::Dkey, Event::Dkey) => Some(Event::Dkey),
        (Event::Object { newest }, Event::Object { newest: other }) => {
            Some(Event::Object { newest: newest.max(other) })
        }
        (
            Event::Akey { kind, record_size, classes },
            Event::Akey { kind: other_kind, record_size: other_size, classes: others },
        ) if kind == other_kind && (record_size == other_size || record_size == 0 || other_size == 0) => {
            let record_size = record_size.max(other_size);
            Some(Event::Akey { kind, record_size, classes: classes | others })
        }
        _ => None,
    }
}

impl Batch {
    /// Finds out which of the versions are here already.
    fn look(&mut self, tree: &Tree) -> Result<(), Halt<UpdateError>> {
        let mut here = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            here.push(match part {
                Part::Event(..) => false,
                Part::Version(path, piece) => {
                    tree.get(&version_key(path, piece.slot, piece.epoch))?.is_some()
                }
            });
        }
        self.here = here;
        Ok(())
    }

    /// The changes that add what isn't here. The pieces are those of the versions that weren't here before.
    fn plan(
        &self,
        tree: &Tree,
        pieces: &[crate::state::piece::WritePiece],
        data: &[u8],
    ) -> Result<Planned, Halt<UpdateError>> {
        let (mut changes, mut pieces) = (Vec::new(), pieces.iter());
        for (part, is_here) in self.parts.iter().zip(&self.here) {
            match part {
                Part::Event(path, epoch, event) => {
                    let key = path.event(*epoch);
                    let here = tree.get(&key)?;
                    let known = here.as_deref().map(Event::decode).transpose().map_err(UpdateError::from)?;
                    let all = known.map_or(Some(*event), |known| united(known, *event));
                    let all = all.ok_or_else(|| self.contradiction(*epoch))?;
                    if known != Some(all) {
                        changes.push(Change::put(&key, all.encode()));
                    }
                }
                Part::Version(path, version) => {
                    if *is_here {
                        continue;
                    }
                    let key = version_key(path, version.slot, version.epoch);
                    let Some(piece) =
                        pieces.next().filter(|_| tree.get(&key).is_ok_and(|here| here.is_none()))
                    else {
                        return Ok(Planned::Outdated);
                    };
                    let mut value = Vec::new();
                    piece.append_version(data, &mut value);
                    if key.len() + value.len() > ENTRY_MAX {
                        return Err(UpdateError::Fragmented(self.dkey.clone()).into());
                    }
                    changes.push(Change::put(&key, value));
                }
            }
        }
        tree.reach(changes.iter().map(Change::key))?;
        Ok(Planned::Changes(changes))
    }

    fn contradiction(&self, epoch: u64) -> UpdateError {
        let object = self.object;
        UpdateError::Invalid(format!("object {object} is said to have another history at epoch {epoch:#x}"))
    }
}

fn version_key(path: &Path, slot: Slot, epoch: u64) -> key::KeyBytes {
    match slot {
        Slot::Single => path.single(epoch),
        Slot::Extent(extent) => path.extent(extent, epoch),
    }
}

/// The keys of what is said of an object have the form that its type asks for.
fn check_keys(object: ObjectId, key: &weir_proto::Key, is_dkey: bool) -> Result<(), String> {
    let (dkey, akey) = if is_dkey { (Some(key), None) } else { (None, Some(key)) };
    crate::format::admissible::check_keys(object, dkey, akey)
}
