//! Putting another target's history in place of the own: only what differs comes and goes, part by part.

use super::export::{Onward, PREFIX_LEN, Wanted, keeps_room, told, walk};
use super::import::superseded;
use crate::format::key::{self, ContainerNumber};
use crate::format::record::Change;
use crate::operations::history::import::{Imported, events_of};
use crate::operations::sliced_reader::SlicedReader;
use crate::state::error::{FetchError, UpdateError};
use crate::state::shard::Shard;
use std::collections::HashMap;
use weir_proto::history::{FINGERPRINTS_MAX, HistoryDifference, HistoryEvent, HistoryStep, fingerprint};
use weir_proto::{ContainerId, Epoch, ObjectId};

/// Entries that one record removes: some 200 µs of work.
const REMOVALS_MAX: usize = 64;

/// What is here of a part of a container's history, at most as much as one request names.
#[derive(Debug, Default)]
pub struct HeldHistory {
    entries: Vec<HeldEntry>,
    until: Vec<u8>,
}

#[derive(Debug)]
struct HeldEntry {
    object: ObjectId,
    /// Whether it is the object's own, and not below one of its dkeys.
    is_own: bool,
    epoch: u64,
    key: Vec<u8>,
    event: Option<HistoryEvent>,
    fingerprint: u64,
}

/// What there is to know when a part of history is replaced.
pub struct Replacement<'a> {
    /// All that the other target has up to this epoch is in what it tells. What is of later epochs stays.
    pub bound: Epoch,
    /// Whether what it tells counts at this moment.
    pub holds: &'a dyn Fn() -> bool,
    /// Whether objects have something of other targets, too: events of the objects themselves stay, since those may tell of them.
    pub is_shared: &'a dyn Fn(ObjectId) -> bool,
}

impl HeldHistory {
    /// The fingerprints, as a request has them.
    #[must_use]
    pub fn fingerprints(&self) -> Vec<u8> {
        self.entries.iter().flat_map(|entry| entry.fingerprint.to_be_bytes()).collect()
    }

    /// Where the part ends; empty: at the end of the container.
    #[must_use]
    pub fn until(&self) -> &[u8] {
        &self.until
    }

    /// How many entries are here.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a part without entries is nothing special")]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Shard {
    /// What is here of a container's history from a place on, of what is `wanted`.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn held_history(
        &self,
        container: ContainerId,
        from: &[u8],
        wanted: Wanted<'_>,
    ) -> Result<HeldHistory, FetchError> {
        let number = self.locate(container)?;
        let reader = SlicedReader::new(self, (container, number));
        let mut entries = Vec::new();
        let range = (&*key::objects(self.number, number), from, &[][..]);
        let end = walk(&reader, range, |rest, key, value| {
            let room = keeps_room(key, value, wanted)?;
            let (told, room) = match (told(key, value, wanted)?, room) {
                (Ok(told), _) => (Some(told), None),
                (Err(onward), None) => return Ok(onward),
                (Err(_), room) => (None, room),
            };
            if entries.len() == FINGERPRINTS_MAX {
                return Ok(Onward::Full(0));
            }
            if let Some(object) = room {
                // It may have been given up while this target was away: no other one tells of it, and it goes.
                let (key, event) = (key.to_vec(), None);
                entries.push(HeldEntry { object, is_own: false, epoch: 0, key, event, fingerprint: 0 });
                return Ok(Onward::Next);
            }
            let Some(told) = told else { return Ok(Onward::Next) };
            entries.push(HeldEntry {
                object: told.path.object,
                is_own: told.path.dkey.is_none(),
                epoch: told.epoch,
                key: key.to_vec(),
                fingerprint: fingerprint(rest, &told.step),
                event: match told.step {
                    HistoryStep::Event { event, .. } => Some(event),
                    _ => None,
                },
            });
            Ok(Onward::Next)
        });
        let until = end.await?.map_or_else(Vec::new, |(until, _)| until);
        Ok(HeldHistory { entries, until })
    }

    /// Has a part of history be as another target tells: what it doesn't tell of goes, and what isn't here is added. `held` is what
    /// was here when that target was asked; what has come since stays, and so does what transactions have committed while the
    /// shard is being filled. Durable when it returns.
    ///
    /// # Errors
    /// As [`Shard::import_history`].
    pub async fn replace_history(
        &self,
        container: ContainerId,
        held: &HeldHistory,
        told: &HistoryDifference,
        replacement: &Replacement<'_>,
    ) -> Result<Imported, UpdateError> {
        let number = self.locate(container)?;
        if told.kept.len() != held.entries.len().div_ceil(8) {
            let text = format!("{} entries are compared by {} bytes", held.entries.len(), told.kept.len());
            return Err(UpdateError::Invalid(text));
        }
        let events = events_of((self.number, number), told).map_err(UpdateError::Invalid)?;
        let doomed = self.doomed(held, told, &events, replacement);
        self.remove_history((container, number), &doomed, replacement.holds).await?;
        self.import_history(container, told, replacement.holds).await
    }

    /// Has a part of history go that this target has no place for any more. Durable when it returns.
    ///
    /// # Errors
    /// [`UpdateError::Restart`]: it isn't to go any more. Otherwise see [`UpdateError`]. Some may be gone then.
    pub async fn drop_history(
        &self,
        container: ContainerId,
        held: &HeldHistory,
        replacement: &Replacement<'_>,
    ) -> Result<(), UpdateError> {
        let number = self.locate(container)?;
        let kept = vec![0; held.entries.len().div_ceil(8)];
        let nothing = HistoryDifference { kept: kept.into(), ..HistoryDifference::default() };
        let doomed = self.doomed(held, &nothing, &HashMap::new(), replacement);
        self.remove_history((container, number), &doomed, replacement.holds).await?;
        self.core.make_durable(self.core.journal.last()).await.map_err(UpdateError::Failed)
    }

    /// What is here and goes.
    fn doomed<'h>(
        &self,
        held: &'h HeldHistory,
        told: &HistoryDifference,
        events: &HashMap<Vec<u8>, HistoryEvent>,
        replacement: &Replacement<'_>,
    ) -> Vec<&'h [u8]> {
        let covered =
            |entry: &HeldEntry| told.page.next.as_ref().is_none_or(|next| entry.key[PREFIX_LEN..] < **next);
        let mut doomed = Vec::new();
        for (at, entry) in held.entries.iter().enumerate().take_while(|(_, entry)| covered(entry)) {
            let is_kept = told.kept[at / 8] & 1 << (at % 8) != 0;
            let stays = is_kept
                || entry.epoch > replacement.bound.0
                || self.core.fills.is_committed(self.number, entry.epoch)
                || (entry.is_own && (replacement.is_shared)(entry.object));
            // Two tellings of the begin of an akey are united; what else differs is told anew.
            let is_united = matches!(
                (entry.event, events.get(&entry.key)),
                (Some(HistoryEvent::Single), Some(HistoryEvent::Single))
                    | (Some(HistoryEvent::Array { .. }), Some(HistoryEvent::Array { .. }))
            );
            if !stays && !is_united {
                doomed.push(entry.key.as_slice());
            }
        }
        doomed
    }

    /// Removes entries, where they are still there.
    async fn remove_history(
        &self,
        (container, number): (ContainerId, ContainerNumber),
        doomed: &[&[u8]],
        holds: &dyn Fn() -> bool,
    ) -> Result<(), UpdateError> {
        for some in doomed.chunks(REMOVALS_MAX) {
            self.core.admit().await.map_err(UpdateError::Failed)?;
            let found = self.core.ask(|tree| {
                let mut found = Vec::with_capacity(some.len());
                for key in some {
                    if tree.get(key)?.is_some() {
                        found.push(Change::Remove { key: key.to_vec() });
                    }
                }
                tree.reach(found.iter().map(Change::key))?;
                Ok(found)
            });
            let found: Result<Vec<Change>, UpdateError> = found.await;
            let found = found?;
            if self.locate(container)? != number {
                return Err(UpdateError::ContainerMissing(container));
            }
            if !holds() {
                return Err(superseded());
            }
            if !found.is_empty() {
                self.core.commit(&found, None)?;
            }
            self.core.yield_slice().await;
        }
        Ok(())
    }
}
