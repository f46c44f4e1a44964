//! Reading history out.

use crate::format::codec::Malformed;
use crate::format::entry::{Entry, Item, ObjectPath};
use crate::format::key::{self, OBJECT_LEN, Path};
use crate::format::node::ENTRY_MAX;
use crate::format::size::in_memory;
use crate::format::value::{Event, Kind, Payload};
use crate::operations::fetch::hold_blocks;
use crate::operations::sliced_reader::{SLICE_LOOKS, SlicedReader};
use crate::state::error::FetchError;
use crate::state::read::{load, load_sound};
use crate::state::shard::Shard;
use core::ops::ControlFlow;
use std::collections::HashMap;
use weir_proto::history::{
    FINGERPRINT_LEN, FINGERPRINTS_MAX, HistoryDifference, HistoryEvent, HistoryPage, HistoryStep,
    HistoryVersion, fingerprint,
};
use weir_proto::{ContainerId, Epoch, Key, ObjectId};

/// Entries that are looked at in one question.
const LOOKS: usize = SLICE_LOOKS / 4;

/// Bytes of an encoded step beside keys and checksums, at most: its kind, and six numbers of up to 10 bytes.
const STEP_BYTES: u64 = 64;

/// What a reader of history wants: whether it wants anything of an object, and with a dkey, whether it wants that dkey.
pub(super) type Wanted<'a> = &'a dyn Fn(ObjectId, Option<&Key>) -> bool;

/// Bytes in front of an entry's place in its container: kind, numbers of pool and container.
pub(super) const PREFIX_LEN: usize = OBJECT_LEN - size_of::<ObjectId>();

/// A page that is being put together.
struct Filling<'a> {
    steps: Vec<HistoryStep>,
    /// Of the versions among the steps.
    payloads: Vec<Payload>,
    bytes: u64,
    most: u64,
    /// What was named last.
    at: (Option<ObjectId>, Option<Key>, Option<Key>),
    /// What is there already, with its places.
    here: &'a HashMap<u64, usize>,
    kept: Vec<u8>,
}

/// Where to go on.
pub(super) enum Onward {
    /// At the next entry.
    Next,
    /// At this key.
    Skip(Vec<u8>),
    /// With another page, or this one with room for so many bytes.
    Full(u64),
}

/// An entry of history, as it is told.
pub(super) struct Told {
    pub(super) path: ObjectPath,
    pub(super) epoch: u64,
    pub(super) step: HistoryStep,
    payload: Option<Payload>,
}

/// The object of an entry that keeps room for records of what is wanted.
pub(super) fn keeps_room(
    key: &[u8],
    value: &[u8],
    wanted: Wanted<'_>,
) -> Result<Option<ObjectId>, Malformed> {
    if !key::is_reserved(key) {
        return Ok(None);
    }
    let Entry::Object { path, .. } = Entry::decode(key, value)? else { return Ok(None) };
    Ok(wanted(path.object, path.dkey.as_ref()).then_some(path.object))
}

/// What an entry of the index says of history, if that is wanted; otherwise where to go on.
pub(super) fn told(key: &[u8], value: &[u8], wanted: Wanted<'_>) -> Result<Result<Told, Onward>, Malformed> {
    let Entry::Object { path, item } = Entry::decode(key, value)? else { return Ok(Err(Onward::Next)) };
    let object = Path::object(path.pool, path.container, path.object);
    if !wanted(path.object, None) {
        return Ok(Err(Onward::Skip(key::after(object.as_bytes()))));
    }
    // Room that is kept is no history. It stands behind all dkeys.
    if matches!(item, Item::Reserved(_)) {
        return Ok(Err(Onward::Next));
    }
    if let Some(dkey) = path.dkey.as_ref().filter(|dkey| !wanted(path.object, Some(dkey))) {
        return Ok(Err(Onward::Skip(key::after(object.dkey(dkey).as_bytes()))));
    }
    let (epoch, step, payload) = match item {
        Item::Incarnation { epoch, event } => {
            (epoch, HistoryStep::Event { epoch: Epoch(epoch), event: told_event(event) }, None)
        }
        Item::Single { epoch, payload } => (epoch, version(epoch, None, 0, &payload), Some(payload)),
        Item::Extent { extent, epoch, record_size, payload } => {
            (epoch, version(epoch, Some(extent), record_size, &payload), Some(payload))
        }
        Item::Reserved(_) => return Ok(Err(Onward::Next)),
    };
    Ok(Ok(Told { path, epoch, step, payload }))
}

impl Shard {
    /// A page of the history of a container's objects, of what is `wanted` between two places: `from` is empty at first and what
    /// the page before says then, an empty `until` is the end. It has up to `most` bytes. What has one of these fingerprints
    /// ([`weir_proto::history::fingerprint`]) isn't told again. Data that can't be read is told as such.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn history(
        &self,
        container: ContainerId,
        (from, until): (&[u8], &[u8]),
        most: u64,
        wanted: Wanted<'_>,
        here: &[u8],
    ) -> Result<HistoryDifference, FetchError> {
        let number = self.locate(container)?;
        if from.len() > ENTRY_MAX || until.len() > ENTRY_MAX {
            let longest = from.len().max(until.len());
            return Err(FetchError::Invalid(format!(
                "no page of history begins or ends with {longest} bytes"
            )));
        }
        let (here, rest) = here.as_chunks::<FINGERPRINT_LEN>();
        if !rest.is_empty() || here.len() > FINGERPRINTS_MAX {
            return Err(FetchError::Invalid(format!("{} bytes aren't fingerprints", rest.len())));
        }
        let places = here.iter().enumerate().map(|(at, one)| (u64::from_be_bytes(*one), at)).collect();
        let guard = hold_blocks(&self.core);
        let reader = SlicedReader::new(self, (container, number));
        let mut page = Filling::new(most, &places, here.len());
        let range = (&*key::objects(self.number, number), from, until);
        let end = walk(&reader, range, |_, key, value| page.take(key, value, wanted)).await?;
        drop(reader);
        self.finish(page, end, guard).await
    }

    /// Reads the data of a page.
    async fn finish(
        &self,
        page: Filling<'_>,
        end: Option<(Vec<u8>, u64)>,
        guard: impl Drop,
    ) -> Result<HistoryDifference, FetchError> {
        self.core.make_durable(self.core.journal.last()).await.map_err(FetchError::Failed)?;
        let (mut data, mut unread) = (Vec::new(), Vec::new());
        for (at, payload) in (0..).zip(&page.payloads) {
            match load(&self.core, payload).await {
                Ok(bytes) => data.extend(bytes),
                Err(error) if error.is_of_data() => {
                    tracing::error!(%error, "a version can't be given to who lacks it: its data is damaged");
                    data.extend(load_sound(&self.core, payload).await?);
                    unread.push(at);
                }
                Err(error) => return Err(error),
            }
        }
        drop(guard);
        let (next, needed) = end.map_or((None, 0), |(next, needed)| (Some(next), needed));
        let kept = page.kept.into();
        let page = HistoryPage { steps: page.steps, data, next, needed };
        Ok(HistoryDifference { page, kept, unread })
    }
}

/// Looks at the entries below a prefix between two places, an empty one being the end, as `visit` says of each what follows the
/// prefix, key, and value. Returns where there was no more room, and for how much.
pub(super) async fn walk(
    reader: &SlicedReader<'_>,
    (prefix, from, until): (&[u8], &[u8], &[u8]),
    mut visit: impl FnMut(&[u8], &[u8], &[u8]) -> Result<Onward, FetchError>,
) -> Result<Option<(Vec<u8>, u64)>, FetchError> {
    let mut at = Some([prefix, from].concat());
    while let Some(from) = at.take() {
        let found = reader.ask(LOOKS, |tree| {
            let mut found = Vec::new();
            tree.scan_below(&from, prefix.len(), |rest, value| {
                found.push((rest.to_vec(), value.to_vec()));
                if found.len() == LOOKS { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            Ok(found)
        });
        let found = found.await?;
        let is_last = found.len() < LOOKS;
        let behind = found.last().map(|(rest, _)| [prefix, rest, &[0]].concat());
        at = behind.filter(|_| !is_last);
        for (rest, value) in found {
            if !until.is_empty() && *rest >= *until {
                return Ok(None);
            }
            match visit(&rest, &[prefix, &rest].concat(), &value)? {
                Onward::Next => {}
                Onward::Skip(behind) => {
                    at = Some(behind).filter(|behind| behind.starts_with(prefix));
                    break;
                }
                Onward::Full(needed) => return Ok(Some((rest, needed))),
            }
        }
    }
    Ok(None)
}

impl<'a> Filling<'a> {
    fn new(most: u64, here: &'a HashMap<u64, usize>, count: usize) -> Self {
        let kept = vec![0; count.div_ceil(8)];
        Self { steps: Vec::new(), payloads: Vec::new(), bytes: 0, most, at: (None, None, None), here, kept }
    }

    /// Takes an entry, if it is wanted and isn't there.
    fn take(&mut self, key: &[u8], value: &[u8], wanted: Wanted<'_>) -> Result<Onward, FetchError> {
        let told = match told(key, value, wanted)? {
            Ok(told) => told,
            Err(onward) => return Ok(onward),
        };
        // Fingerprints are made only where there are some to compare with.
        if !self.here.is_empty()
            && let Some(at) = self.here.get(&fingerprint(&key[PREFIX_LEN..], &told.step))
        {
            self.kept[at / 8] |= 1 << (at % 8);
            return Ok(Onward::Next);
        }
        Ok(self.add(told.path, told.step, told.payload))
    }

    fn add(&mut self, path: ObjectPath, step: HistoryStep, payload: Option<Payload>) -> Onward {
        let names = self.names(path);
        let of_keys: usize = names.iter().map(key_bytes).sum();
        let of_sums = match &step {
            HistoryStep::Version(version) => size_of::<u64>() * version.checksums.len(),
            _ => 0,
        };
        let of_data = payload.as_ref().map_or(0, Payload::len);
        let bytes = (of_keys + of_sums) as u64 + of_data + STEP_BYTES * (1 + names.len() as u64);
        if self.bytes.saturating_add(bytes) > self.most {
            return Onward::Full(if self.steps.is_empty() { bytes } else { 0 });
        }
        self.bytes += bytes;
        for name in names {
            match &name {
                HistoryStep::Object(object) => self.at = (Some(*object), None, None),
                HistoryStep::Dkey(dkey) => (self.at.1, self.at.2) = (Some(dkey.clone()), None),
                HistoryStep::Akey(akey) => self.at.2 = Some(akey.clone()),
                HistoryStep::Event { .. } | HistoryStep::Version(_) => {}
            }
            self.steps.push(name);
        }
        self.steps.push(step);
        self.payloads.extend(payload);
        Onward::Next
    }

    /// The steps that lead to a place from where the page is.
    fn names(&self, ObjectPath { object, dkey, akey, .. }: ObjectPath) -> Vec<HistoryStep> {
        let mut names = Vec::new();
        if self.at.0 != Some(object) {
            names.push(HistoryStep::Object(object));
        }
        // Entries come in the order of their keys: whatever is above them came before.
        if let Some(dkey) = dkey
            && (!names.is_empty() || self.at.1.as_ref() != Some(&dkey))
        {
            names.push(HistoryStep::Dkey(dkey));
        }
        if let Some(akey) = akey
            && (!names.is_empty() || self.at.2.as_ref() != Some(&akey))
        {
            names.push(HistoryStep::Akey(akey));
        }
        names
    }
}

fn key_bytes(step: &HistoryStep) -> usize {
    match step {
        HistoryStep::Dkey(key) | HistoryStep::Akey(key) => key.as_bytes().len(),
        _ => 0,
    }
}

pub(super) fn told_event(event: Event) -> HistoryEvent {
    match event {
        Event::Punch => HistoryEvent::Punch,
        Event::Object { newest } => HistoryEvent::Object { newest: Epoch(newest) },
        Event::Dkey => HistoryEvent::Dkey,
        Event::Akey { kind: Kind::Single, .. } => HistoryEvent::Single,
        Event::Akey { kind: Kind::Array, record_size, classes } => {
            HistoryEvent::Array { record_size, classes }
        }
    }
}

fn version(
    epoch: u64,
    extent: Option<weir_proto::object::Extent>,
    record_size: u32,
    payload: &Payload,
) -> HistoryStep {
    let len = payload.len();
    let (chunks, checksums) = match payload {
        Payload::Hole => ((0, 0), Vec::new()),
        Payload::Inline(inline) => ((len, len), inline.checksum.into_iter().collect()),
        Payload::Blocks(blocks) => ((blocks.chunks.first(), blocks.chunks.step()), blocks.checksums.to_vec()),
    };
    debug_assert!(in_memory(len) as u64 == len, "a value fits memory");
    HistoryStep::Version(HistoryVersion { epoch: Epoch(epoch), extent, record_size, len, chunks, checksums })
}
