//! Steps of history in batches that fit a record each.

use super::check_keys;
use crate::format::checksum::Checksums;
use crate::format::key::{ContainerNumber, Path, PoolNumber};
use crate::format::node::ENTRY_MAX;
use crate::format::size::in_memory;
use crate::format::value::{Event, Kind, Payload};
use crate::operations::update::VERSION_OVERHEAD;
use crate::state::piece::{WritePiece, WritePieces};
use crate::versions::intents::Slot;
use core::ops::Range;
use weir_proto::chunk::{CHUNK_BYTES_MAX, Chunks};
use weir_proto::history::{HistoryEvent, HistoryStep, HistoryVersion};
use weir_proto::limits::PAYLOAD_MAX;
use weir_proto::object::{AkeyUpdate, Conditions, Value};
use weir_proto::{Epoch, Key, ObjectId};

/// Events and versions of a batch: some 200 µs of work.
const PARTS_MAX: usize = 64;

/// Most inline bytes of a batch: with keys it fits a record.
const INLINE_MAX: usize = 256 << 10;

/// Bytes of data that a batch takes before it is full.
const DATA_FULL: usize = 1 << 20;

/// Bytes of an entry's key beside dkey and akey, at most.
const KEY_OVERHEAD: usize = 64;

/// A version of a batch.
pub(super) struct Versioned {
    pub(super) slot: Slot,
    pub(super) epoch: u64,
    record_size: u32,
    chunks: Chunks,
    data: Range<usize>,
    is_inline: bool,
    checksums: usize,
    /// Its data can't be read where it comes from.
    is_unread: bool,
}

/// A part of a batch: where it belongs, and what it is.
pub(super) enum Part {
    Event(Path, u64, Event),
    Version(Path, Versioned),
}

/// Some history of one object.
pub(super) struct Batch {
    pub(super) object: ObjectId,
    /// One of its dkeys, for messages.
    pub(super) dkey: Key,
    pub(super) parts: Vec<Part>,
    /// What is stored of each version, in the form of an update.
    pub(super) updates: Vec<AkeyUpdate>,
    /// Which of the parts are versions that are here already.
    pub(super) here: Vec<bool>,
    pub(super) oldest: u64,
    pub(super) newest: u64,
}

impl Batch {
    /// The versions that aren't here as pieces of an update.
    pub(super) fn missing(&self) -> WritePieces {
        let versions = self.parts.iter().zip(&self.here).filter_map(|(part, is_here)| match part {
            Part::Version(_, version) => Some((version, *is_here)),
            Part::Event(..) => None,
        });
        let missing = versions.enumerate().filter(|(_, (_, is_here))| !is_here);
        missing.map(|(akey, (version, _))| version.piece(akey)).collect()
    }
}

impl Versioned {
    fn piece(&self, akey: usize) -> WritePiece {
        WritePiece {
            akey,
            slot: self.slot,
            record_size: self.record_size,
            data: self.data.clone(),
            chunks: self.chunks,
            given: 0..self.checksums,
            checksums: Checksums::new(),
            payload: Payload::Hole,
            in_blocks: !self.data.is_empty() && !self.is_inline,
            is_unread: self.is_unread,
        }
    }
}

/// Goes along the steps of a page.
pub(super) struct Reader<'a> {
    owner: (PoolNumber, ContainerNumber),
    steps: &'a [HistoryStep],
    /// Bytes of the data, and how many of them belong to versions before.
    len: usize,
    at: usize,
    /// How many versions were before, and which ones can't be read.
    versions: u32,
    unread: &'a [u32],
    object: Option<(ObjectId, Path)>,
    dkey: Option<(Key, Path)>,
    akey: Option<(Key, Path)>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        owner: (PoolNumber, ContainerNumber),
        steps: &'a [HistoryStep],
        len: usize,
        unread: &'a [u32],
    ) -> Self {
        Self { owner, steps, len, at: 0, versions: 0, unread, object: None, dkey: None, akey: None }
    }

    /// The next batch; `None` at the end.
    pub(super) fn next(&mut self, inline_limit: usize) -> Result<Option<Batch>, String> {
        let mut batch: Option<Batch> = None;
        let (mut inline, begin) = (0, self.at);
        while let Some((step, rest)) = self.steps.split_first() {
            let is_full = |batch: &Batch| batch.parts.len() >= PARTS_MAX || inline >= INLINE_MAX;
            let ends = matches!(step, HistoryStep::Object(_)) || self.at - begin >= DATA_FULL;
            if batch.as_ref().is_some_and(|batch| ends || is_full(batch)) {
                break;
            }
            self.steps = rest;
            match step {
                HistoryStep::Object(object) => {
                    let path = Path::object(self.owner.0, self.owner.1, *object);
                    (self.object, self.dkey, self.akey) = (Some((*object, path)), None, None);
                }
                HistoryStep::Dkey(dkey) => self.go_to_dkey(dkey)?,
                HistoryStep::Akey(akey) => self.go_to_akey(akey)?,
                HistoryStep::Event { epoch, event } => {
                    let part = self.event(*epoch, *event)?;
                    self.batch(&mut batch, *epoch)?.parts.push(part);
                }
                HistoryStep::Version(version) => {
                    let (part, update) = self.version(version, inline_limit)?;
                    inline += if part.1.is_inline { part.1.data.len() } else { 0 };
                    let batch = self.batch(&mut batch, version.epoch)?;
                    batch.parts.push(Part::Version(part.0, part.1));
                    batch.updates.push(update);
                }
            }
        }
        Ok(batch)
    }

    /// The batch that is put together, which has something of this epoch.
    fn batch<'b>(&self, batch: &'b mut Option<Batch>, epoch: Epoch) -> Result<&'b mut Batch, String> {
        if epoch == Epoch::ZERO || epoch == Epoch::MAX {
            return Err(format!("{epoch} is not the epoch of a change"));
        }
        let (object, _) = self.object.as_ref().ok_or("history begins without an object")?;
        let batch = batch.get_or_insert_with(|| Batch {
            object: *object,
            dkey: self.dkey.as_ref().map_or_else(|| Key::from_u64(0), |(dkey, _)| dkey.clone()),
            parts: Vec::new(),
            updates: Vec::new(),
            here: Vec::new(),
            oldest: epoch.0,
            newest: epoch.0,
        });
        batch.oldest = batch.oldest.min(epoch.0);
        batch.newest = batch.newest.max(epoch.0);
        Ok(batch)
    }

    fn go_to_dkey(&mut self, dkey: &Key) -> Result<(), String> {
        let (object, path) = self.object.as_ref().ok_or("a dkey comes without its object")?;
        check_keys(*object, dkey, true)?;
        self.dkey = Some((dkey.clone(), path.dkey(dkey)));
        self.akey = None;
        Ok(())
    }

    fn go_to_akey(&mut self, akey: &Key) -> Result<(), String> {
        let (object, _) = self.object.as_ref().ok_or("an akey comes without its object")?;
        check_keys(*object, akey, false)?;
        let (_, path) = self.dkey.as_ref().ok_or("an akey comes without its dkey")?;
        self.akey = Some((akey.clone(), path.akey(akey)));
        Ok(())
    }

    fn event(&self, epoch: Epoch, event: HistoryEvent) -> Result<Part, String> {
        let above = (self.object.as_ref(), self.dkey.as_ref(), self.akey.as_ref());
        let (path, event) = match (above, event) {
            ((_, _, Some((_, path))), HistoryEvent::Single) => {
                (path, Event::Akey { kind: Kind::Single, record_size: 0, classes: 0 })
            }
            ((_, _, Some((_, path))), HistoryEvent::Array { record_size, classes }) => {
                (path, Event::Akey { kind: Kind::Array, record_size, classes })
            }
            ((_, Some((_, path)), None), HistoryEvent::Dkey) => (path, Event::Dkey),
            ((Some((_, path)), None, None), HistoryEvent::Object { newest }) => {
                (path, Event::Object { newest: newest.0 })
            }
            (
                (_, _, Some((_, path))) | (_, Some((_, path)), None) | (Some((_, path)), None, None),
                HistoryEvent::Punch,
            ) => (path, Event::Punch),
            _ => return Err(format!("{event:?} is not said of what it can happen to")),
        };
        Ok(Part::Event(path.clone(), epoch.0, event))
    }

    fn version(
        &mut self,
        version: &HistoryVersion,
        inline_limit: usize,
    ) -> Result<((Path, Versioned), AkeyUpdate), String> {
        let (akey, path) = self.akey.as_ref().ok_or("a version comes without its akey")?;
        let chunks = check_version(version)?;
        let len = in_memory(version.len);
        let end = self.at.checked_add(len).filter(|end| *end <= self.len);
        let data = self.at..end.ok_or("a version is longer than the data that came")?;
        self.at = data.end;
        let is_unread = self.unread.binary_search(&self.versions).is_ok();
        if is_unread && version.checksums.is_empty() {
            return Err("a version can't be read, and has no checksum that would tell".to_owned());
        }
        self.versions += 1;
        let key = KEY_OVERHEAD + path.as_bytes().len();
        let is_inline =
            len < inline_limit && key + VERSION_OVERHEAD + len <= ENTRY_MAX && version.checksums.len() <= 1;
        let slot = version.extent.map_or(Slot::Single, Slot::Extent);
        let versioned = Versioned {
            slot,
            epoch: version.epoch.0,
            record_size: version.record_size,
            chunks,
            data,
            is_inline,
            checksums: version.checksums.len(),
            is_unread,
        };
        let value = match version.extent {
            None => Value::Single { size: version.len },
            Some(extent) => Value::Array { record_size: version.record_size, extents: vec![extent] },
        };
        let checksums = version.checksums.clone();
        let update = AkeyUpdate { akey: akey.clone(), value, conditions: Conditions::NONE, checksums };
        Ok(((path.clone(), versioned), update))
    }
}

/// Checks all that a version says by itself. Returns its chunks.
fn check_version(version: &HistoryVersion) -> Result<Chunks, String> {
    let HistoryVersion { extent, record_size, len, chunks: (first, step), checksums, .. } = version;
    let wrong = |what: &str| Err(format!("a version {what}: {version:?}"));
    let needed = match extent {
        None if *record_size != 0 => return wrong("of a single value has records"),
        None => Some(*len),
        Some(extent) if extent.count == 0 || extent.index.checked_add(extent.count).is_none() => {
            return wrong("has an impossible extent");
        }
        Some(extent) => extent.count.checked_mul(u64::from(*record_size)),
    };
    if needed != Some(*len) || *len > PAYLOAD_MAX {
        return wrong("has an impossible length");
    }
    if *len == 0 {
        return if checksums.is_empty() {
            Ok(Chunks::new(0, 1, 1))
        } else {
            wrong("without data has checksums")
        };
    }
    let is_lone = first == len && step == len && *len <= CHUNK_BYTES_MAX;
    let is_cut = *first > 0 && first <= step && (1..=CHUNK_BYTES_MAX).contains(step);
    if !is_lone && !is_cut {
        return wrong("has impossible chunks");
    }
    let chunks = Chunks::new(*len, *first, *step);
    let has_none = checksums.is_empty() && is_lone;
    if !has_none && checksums.len() as u64 != chunks.count() {
        return wrong("has too many or too few checksums");
    }
    Ok(chunks)
}
