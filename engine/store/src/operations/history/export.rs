//! Reading history out.

use crate::format::entry::{Entry, Item, ObjectPath};
use crate::format::key::{self, Path};
use crate::format::node::ENTRY_MAX;
use crate::format::size::in_memory;
use crate::format::value::{Event, Kind, Payload};
use crate::operations::fetch::hold_blocks;
use crate::operations::sliced_reader::{SLICE_LOOKS, SlicedReader};
use crate::state::error::FetchError;
use crate::state::read::load;
use crate::state::shard::Shard;
use core::ops::ControlFlow;
use weir_proto::history::{HistoryEvent, HistoryPage, HistoryStep, HistoryVersion};
use weir_proto::{ContainerId, Epoch, Key, ObjectId};

/// Entries that are looked at in one question.
const LOOKS: usize = SLICE_LOOKS / 4;

/// Bytes of an encoded step beside keys and checksums, at most: its kind, and six numbers of up to 10 bytes.
const STEP_BYTES: u64 = 64;

/// What a reader of history wants: whether it wants anything of an object, and with a dkey, whether it wants that dkey.
type Wanted<'a> = &'a dyn Fn(ObjectId, Option<&Key>) -> bool;

/// A page that is being put together.
struct Filling {
    steps: Vec<HistoryStep>,
    /// Of the versions among the steps.
    payloads: Vec<Payload>,
    bytes: u64,
    most: u64,
    /// What was named last.
    at: (Option<ObjectId>, Option<Key>, Option<Key>),
}

/// Where to go on.
enum Onward {
    /// At the next entry.
    Next,
    /// At this key.
    Skip(Vec<u8>),
    /// With another page, or this one with room for so many bytes.
    Full(u64),
}

impl Shard {
    /// A page of the history of a container's objects, from `from` on, which is empty at first and what the page before says
    /// then. It has up to `most` bytes, and all that happened after `since`, of what is `wanted`.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn history(
        &self,
        container: ContainerId,
        since: Epoch,
        from: &[u8],
        most: u64,
        wanted: Wanted<'_>,
    ) -> Result<HistoryPage, FetchError> {
        let number = self.locate(container)?;
        if from.len() > ENTRY_MAX {
            return Err(FetchError::Invalid(format!("no page of history begins with {} bytes", from.len())));
        }
        let guard = hold_blocks(&self.core);
        let prefix = key::objects(self.number, number);
        let reader = SlicedReader::new(self, (container, number));
        let (mut at, mut page) = (Some([prefix.as_slice(), from].concat()), Filling::new(most));
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
            let behind = found.last().map(|(rest, _)| [prefix.as_slice(), rest, &[0]].concat());
            at = behind.filter(|_| !is_last);
            for (rest, value) in found {
                let key = [prefix.as_slice(), &rest].concat();
                match page.take(&key, &value, since, wanted)? {
                    Onward::Next => {}
                    Onward::Skip(behind) => {
                        at = Some(behind).filter(|behind| behind.starts_with(&prefix));
                        break;
                    }
                    Onward::Full(needed) => {
                        drop(reader);
                        return self.finish(page, (Some(rest), needed), guard).await;
                    }
                }
            }
        }
        drop(reader);
        self.finish(page, (None, 0), guard).await
    }

    /// Reads the data of a page.
    async fn finish(
        &self,
        page: Filling,
        (next, needed): (Option<Vec<u8>>, u64),
        guard: impl Drop,
    ) -> Result<HistoryPage, FetchError> {
        self.core.make_durable(self.core.journal.last()).await.map_err(FetchError::Failed)?;
        let mut data = Vec::new();
        for payload in &page.payloads {
            data.extend(load(&self.core, payload).await?);
        }
        drop(guard);
        Ok(HistoryPage { steps: page.steps, data, next, needed })
    }
}

impl Filling {
    const fn new(most: u64) -> Self {
        Self { steps: Vec::new(), payloads: Vec::new(), bytes: 0, most, at: (None, None, None) }
    }

    /// Takes an entry, if it is wanted.
    fn take(
        &mut self,
        key: &[u8],
        value: &[u8],
        since: Epoch,
        wanted: Wanted<'_>,
    ) -> Result<Onward, FetchError> {
        let Entry::Object { path, item } = Entry::decode(key, value)? else { return Ok(Onward::Next) };
        let object = Path::object(path.pool, path.container, path.object);
        if !wanted(path.object, None) {
            return Ok(Onward::Skip(key::after(object.as_bytes())));
        }
        if let Some(dkey) = path.dkey.as_ref().filter(|dkey| !wanted(path.object, Some(dkey))) {
            return Ok(Onward::Skip(key::after(object.dkey(dkey).as_bytes())));
        }
        let (step, payload) = match item {
            Item::Incarnation { epoch, event } => {
                (HistoryStep::Event { epoch: Epoch(epoch), event: told(event) }, None)
            }
            Item::Single { epoch, .. } | Item::Extent { epoch, .. } if epoch <= since.0 => {
                return Ok(Onward::Next);
            }
            Item::Single { epoch, payload } => (version(epoch, None, 0, &payload), Some(payload)),
            Item::Extent { extent, epoch, record_size, payload } => {
                (version(epoch, Some(extent), record_size, &payload), Some(payload))
            }
            Item::Reserved(_) => return Ok(Onward::Next),
        };
        Ok(self.add(path, step, payload))
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

fn told(event: Event) -> HistoryEvent {
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
