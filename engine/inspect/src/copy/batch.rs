//! Entries on their way, some at once: their data is read together, compared with its checksums, and written together.

use super::source::{Bad, Source};
use std::rc::Rc;
use weir_format::value::{Blocks, Payload, Version};
use weir_media::MediaError;
use weir_store::offline::{Filling, Places, Written};

/// Bytes of data of a batch that is full: several transfers of the largest size.
const DATA_FULL: u64 = 4 << 20;

/// Bytes of entries of a batch that is full: a quarter of what a record may have.
const ENTRY_BYTES_FULL: usize = 512 << 10;

/// Entries of a batch that is full: some milliseconds of work.
const ENTRIES_FULL: usize = 4096;

/// An entry.
pub(super) struct Item {
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    /// The data that it refers to, if it does, with its record size.
    pub(super) data: Option<(u32, Blocks)>,
}

/// Entries in the order of their keys.
#[derive(Default)]
pub(super) struct Batch {
    items: Vec<Item>,
    bytes: usize,
    data: u64,
}

impl Batch {
    pub(super) fn push(&mut self, item: Item) {
        self.bytes += item.key.len() + item.value.len();
        self.data += item.data.as_ref().map_or(0, |(_, blocks)| blocks.len());
        self.items.push(item);
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.data >= DATA_FULL || self.bytes >= ENTRY_BYTES_FULL || self.items.len() >= ENTRIES_FULL
    }
}

/// Entries whose data is where it is to be.
pub(super) struct Carried {
    /// Each with what it says now.
    pub(super) items: Vec<(Item, Vec<u8>)>,
    /// What is bad of the data of which of them.
    pub(super) bad: Vec<(usize, Vec<Bad>)>,
    /// Bytes of the data.
    pub(super) data: u64,
    /// The blocks that it is in.
    pub(super) held: Written,
}

/// Takes the blocks that the data of a batch goes to. `None`: there aren't as many.
pub(super) fn reserve(target: &Filling<'_>, batch: &Batch) -> Option<Places> {
    let data = batch.items.iter().filter_map(|item| item.data.as_ref());
    target.places(data.map(|(_, blocks)| blocks.len()))
}

/// Brings the data of a batch to its places.
pub(super) async fn carry(source: Rc<Source>, batch: Batch, places: Places) -> Result<Carried, MediaError> {
    let data = || batch.items.iter().filter_map(|item| item.data.as_ref()).map(|(_, blocks)| blocks);
    let haul = source.read(data().flat_map(|blocks| blocks.runs.iter().copied())).await;
    let (mut contents, mut bad, mut items) = (Vec::new(), Vec::new(), Vec::with_capacity(batch.items.len()));
    let mut runs = places.runs().iter();
    for (number, mut item) in batch.items.into_iter().enumerate() {
        let Some((record_size, blocks)) = item.data.take() else {
            let value = item.value.clone();
            items.push((item, value));
            continue;
        };
        let (bytes, found) = source.content(&blocks, &haul).await;
        if !found.is_empty() {
            bad.push((number, found));
        }
        contents.push(bytes);
        let runs = runs.next().expect("a place was taken for each value").clone();
        let moved = Blocks { runs, ..blocks.clone() };
        let value = Version { record_size, payload: Payload::Blocks(moved) }.encode();
        item.data = Some((record_size, blocks));
        items.push((item, value));
    }
    drop(haul);
    let held = places.write(contents).await?;
    Ok(Carried { items, bad, data: batch.data, held })
}
