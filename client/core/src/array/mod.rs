//! Arrays: one dimension of cells of equal size, cut into chunks that spread over the object's shards.
//!
//! Chunk `c` is dkey `c + 1` (an integer) with one akey that holds its cells as an array value. Dkey 0 holds cell
//! and chunk size when the object's type says that they are stored (daos-api §1.4).
//!
//! The room calls an object, and transactions to append and to resize. Programs call it.

mod append;
mod reserve;
mod seek;
mod size;
mod split;

pub use reserve::Reservation;
pub use size::Measure;
pub use split::{Batch, ChunkPart, Range, RangeError, any_overlap, batch, between_edges, split};

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use weir_proto::object::{Conditions, Extent};
use weir_proto::{Der, Epoch, Key, ObjectId};

use crate::error::Error;
use crate::handles::Container;
use crate::object::{AkeyRead, AkeyWrite, Object};
use crate::operation::{join_limited, scatter};
use crate::session::Context;
use crate::{Result, kind};

/// The akey that holds the cells of each chunk.
const CELLS: &[u8] = b"c";

/// The akey of dkey 0 that holds cell and chunk size.
const ATTRIBUTES: &[u8] = b"a";

/// First word of stored attributes (daos-api §1.4).
const MAGIC: u64 = 0xdaca_55a9_daca_55a9;

/// Bytes of stored attributes: magic, cell size, chunk size.
const ATTRIBUTES_LEN: usize = 24;

/// Requests of one read or write that are under way at a time: enough to keep every target of a small system busy,
/// while a write holds at most this many times the payload limit in registered memory.
const IN_FLIGHT_MAX: usize = 16;

/// Cell and chunk size of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArrayAttributes {
    /// Bytes of a cell.
    pub cell_size: u32,
    /// Cells in a chunk.
    pub chunk_cells: u64,
}

impl ArrayAttributes {
    fn check(self) -> Result<Self> {
        if self.cell_size == 0 || self.chunk_cells == 0 || self.chunk_cells >= size::MARK {
            return Err(Error::invalid(
                "array",
                format!(
                    "cells of {} bytes in chunks of {} cells: neither may be 0",
                    self.cell_size, self.chunk_cells
                ),
            ));
        }
        Ok(self)
    }
}

/// How the end of an array is found.
#[derive(Clone, Debug)]
enum End {
    /// Every shard is asked for its last cell.
    Scanned,
    /// The shard of the first chunk is asked, and the others only when a mark there says that a later chunk may
    /// exist. The mark is durable before the first cell outside the first chunk is. The flag remembers that it is.
    Marked(Arc<AtomicBool>),
}

/// An array. Plain data: cheap to clone, usable from any context of the system.
#[derive(Clone, Debug)]
pub struct Array {
    object: Object,
    attributes: ArrayAttributes,
    end: End,
}

/// What a read found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadOutcome {
    /// Cells that lie before the array's end, over all ranges.
    pub cells: u64,
    /// Cells asked for that lie behind it.
    pub short: u64,
}

impl Array {
    /// Creates an array. Cell and chunk size are stored in it when its type is [`kind::ARRAY`]; for the other array
    /// types nothing is sent.
    ///
    /// # Errors
    /// `EXIST` when it exists, `INVAL` for another object type or sizes of zero; or as [`Object::update`].
    pub async fn create(
        context: &Context,
        container: &Container,
        oid: ObjectId,
        attributes: ArrayAttributes,
    ) -> Result<Self> {
        let array = Self::assemble(container, oid, attributes)?;
        if oid.kind() == kind::ARRAY {
            let mut stored = [0; ATTRIBUTES_LEN];
            stored[..8].copy_from_slice(&MAGIC.to_le_bytes());
            stored[8..16].copy_from_slice(&u64::from(attributes.cell_size).to_le_bytes());
            stored[16..].copy_from_slice(&attributes.chunk_cells.to_le_bytes());
            let writes = [AkeyWrite::single(name(ATTRIBUTES)?, &stored)];
            array.object.update(context, &Key::from_u64(0), Conditions::DKEY_INSERT, &writes).await?;
        }
        Ok(array)
    }

    /// Opens an array whose cell and chunk size are stored in it.
    ///
    /// # Errors
    /// `NONEXIST` when there is none, `INVAL` for another object type; or as [`Object::fetch`].
    pub async fn open(context: &Context, container: &Container, oid: ObjectId) -> Result<Self> {
        if oid.kind() != kind::ARRAY {
            let reason = format!("{oid:?} is not an array that stores its cell and chunk size");
            return Err(Error::invalid("open array", reason));
        }
        let object = Object::open(container, oid)?;
        let mut stored = [0; ATTRIBUTES_LEN];
        let mut reads = [AkeyRead::single(name(ATTRIBUTES)?, &mut stored)];
        let found = object.fetch(context, &Key::from_u64(0), Conditions::DKEY_FETCH, &mut reads).await?;
        let word =
            |at: usize| stored[at..at + 8].iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte));
        if found.first().is_none_or(|found| found.size != ATTRIBUTES_LEN as u64) || word(0) != MAGIC {
            return Err(Error::refused("open array", &object, Der::INVAL, "it is not an array"));
        }
        let cell_size = u32::try_from(word(8)).unwrap_or(0);
        let attributes = ArrayAttributes { cell_size, chunk_cells: word(16) };
        Self::assemble(container, oid, attributes)
    }

    /// An array whose cell and chunk size the caller knows. Sends nothing.
    ///
    /// # Errors
    /// `INVAL` for a type that stores its sizes or is no array, or for sizes of zero.
    pub fn with_attributes(
        container: &Container,
        oid: ObjectId,
        attributes: ArrayAttributes,
    ) -> Result<Self> {
        if oid.kind() == kind::ARRAY {
            let reason = format!("{oid:?} stores its cell and chunk size itself");
            return Err(Error::invalid("open array", reason));
        }
        Self::assemble(container, oid, attributes)
    }

    /// A byte array that is written and read through this constructor only: its end is found by asking one shard
    /// as long as it fits one chunk. Sends nothing.
    ///
    /// # Errors
    /// As [`Array::with_attributes`].
    pub fn compact_bytes(container: &Container, oid: ObjectId, chunk_size: u64) -> Result<Self> {
        let attributes = ArrayAttributes { cell_size: 1, chunk_cells: chunk_size };
        let array = Self::with_attributes(container, oid, attributes)?;
        Ok(Self { end: End::Marked(Arc::default()), ..array })
    }

    /// An array that another context opened, or another process: cell and chunk size are what they were there. Sends
    /// nothing.
    ///
    /// # Errors
    /// `INVAL` for an object that is no array, or for sizes of zero.
    pub fn shared(container: &Container, oid: ObjectId, attributes: ArrayAttributes) -> Result<Self> {
        Self::assemble(container, oid, attributes)
    }

    fn assemble(container: &Container, oid: ObjectId, attributes: ArrayAttributes) -> Result<Self> {
        if !kind::is_array(oid.kind()) {
            return Err(Error::invalid("open array", format!("{oid:?} has another type")));
        }
        let object = Object::open(container, oid)?;
        Ok(Self { object, attributes: attributes.check()?, end: End::Scanned })
    }

    /// The same array as it was at a snapshot's epoch; reads see that state.
    #[must_use]
    pub fn at(&self, epoch: Epoch) -> Self {
        Self { object: self.object.at(epoch), ..self.clone() }
    }

    /// The object beneath.
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// Cell and chunk size.
    #[must_use]
    pub fn attributes(&self) -> ArrayAttributes {
        self.attributes
    }

    /// Writes cells; the slices together hold exactly the bytes of the ranges. Returns the newest epoch written.
    ///
    /// A write to several chunks is several updates: after an error some may have taken effect.
    ///
    /// # Errors
    /// `INVAL` when ranges overlap or run past the last cell, `REC2BIG` when the slices hold fewer bytes; or as
    /// [`Object::update`].
    pub async fn write(&self, context: &Context, ranges: &[Range], data: &[&[u8]]) -> Result<Epoch> {
        let batches = self.plan("write array", ranges, scatter::total(data))?;
        if any_overlap(ranges) {
            return Err(Error::invalid("write array", "ranges overlap"));
        }
        if batches.iter().any(|batch| batch.chunk > 0) {
            self.mark(context).await?;
        }
        let writes = batches.iter().map(|batch| async move {
            let len: u64 = batch.extents.iter().map(|extent| extent.count * self.cell()).sum();
            let part = scatter::part(data, in_memory(batch.offset), in_memory(len));
            let extents = batch.extents.clone();
            let write = AkeyWrite::array(name(CELLS)?, self.attributes.cell_size, extents, part);
            self.object.update(context, &dkey_of(batch.chunk), Conditions::NONE, &[write]).await
        });
        let mut newest = Epoch::ZERO;
        for written in join_limited(IN_FLIGHT_MAX, writes).await {
            newest = newest.max(written?);
        }
        Ok(newest)
    }

    /// Reads cells to the slices, which together hold exactly the bytes of the ranges. In an array of bytes, holes
    /// and what lies behind the end read as zeros; with larger cells their memory is left as it is.
    ///
    /// `size` is the array's size in cells if the caller knows it; otherwise it is asked for when a range ends in a
    /// hole. Of an array of [`Array::compact_bytes`] it is asked for wherever a hole is met, and what may have been
    /// behind the end when it was read is read again: a client that lengthens such an array in order shows no hole
    /// there.
    ///
    /// # Errors
    /// `INVAL` when a range runs past the last cell, `REC2BIG` when the slices hold fewer bytes; or as
    /// [`Object::fetch`].
    pub async fn read(
        &self,
        context: &Context,
        ranges: &[Range],
        mut into: Vec<&mut [u8]>,
        size: Option<u64>,
    ) -> Result<ReadOutcome> {
        let batches = self.plan("read array", ranges, scatter::total_mut(&into))?;
        let mut found: Vec<Option<Vec<Extent>>> = vec![None; batches.len()];
        if matches!(self.end, End::Marked(_)) && self.object.is_newest() {
            return self.read_in_order(context, (ranges, &batches), &mut into, &mut found).await;
        }
        self.read_missing(context, &batches, &mut into, &mut found).await?;
        let present: Vec<Extent> = found.into_iter().flatten().flatten().collect();
        let ends: Vec<u64> = ranges.iter().map(|range| end_within(*range, &present)).collect();
        let wanted: u64 = ranges.iter().map(|range| range.count).sum();
        if ranges.iter().zip(&ends).all(|(range, end)| *end == range.index + range.count) {
            return Ok(ReadOutcome { cells: wanted, short: 0 });
        }
        let size = match size {
            Some(size) => size,
            None => self.size(context).await?,
        };
        let cells = ranges.iter().zip(&ends).map(|(range, end)| {
            let end = size.clamp(range.index, range.index + range.count).max(*end);
            end - range.index
        });
        let cells: u64 = cells.sum();
        Ok(ReadOutcome { cells, short: wanted - cells })
    }

    /// Reads an array that others lengthen in order and cut off. A hole is one if it was below an end that was known before it was
    /// read; epochs don't tell, since an update gets its epoch before its data is there. What lies behind that end is left out.
    async fn read_in_order(
        &self,
        context: &Context,
        (ranges, batches): (&[Range], &[Batch]),
        into: &mut [&mut [u8]],
        found: &mut [Option<Vec<Extent>>],
    ) -> Result<ReadOutcome> {
        let wanted: u64 = ranges.iter().map(|range| range.count).sum();
        self.read_missing(context, batches, into, found).await?;
        let has_hole = |(batch, found): (&Batch, &mut Option<Vec<Extent>>), end| {
            let base = batch.chunk * self.attributes.chunk_cells;
            found.as_ref().is_some_and(|found| has_hole(batch, base, found, end))
        };
        if !batches.iter().zip(&mut *found).any(|each| has_hole(each, u64::MAX)) {
            return Ok(ReadOutcome { cells: wanted, short: 0 });
        }
        let mut end = self.size(context).await?;
        for (batch, found) in batches.iter().zip(&mut *found) {
            if has_hole((batch, found), end) {
                *found = None;
            }
        }
        if found.iter().any(Option::is_none) {
            self.read_missing(context, batches, into, found).await?;
            if batches.iter().zip(&mut *found).any(|each| has_hole(each, end)) {
                // It may have been cut off since.
                end = self.size(context).await?.min(end);
            }
        }
        let cells =
            ranges.iter().map(|range| end.clamp(range.index, range.index + range.count) - range.index);
        let cells: u64 = cells.sum();
        Ok(ReadOutcome { cells, short: wanted - cells })
    }

    /// Reads those batches of which nothing was found yet, and notes which cells are real, counted from the array's start.
    async fn read_missing(
        &self,
        context: &Context,
        batches: &[Batch],
        into: &mut [&mut [u8]],
        found: &mut [Option<Vec<Extent>>],
    ) -> Result<()> {
        let mut dealer = scatter::Dealer::new(into.iter_mut().map(|piece| &mut **piece).collect());
        let mut reads = Vec::new();
        for (batch, found) in batches.iter().zip(found) {
            let len: u64 = batch.extents.iter().map(|extent| extent.count * self.cell()).sum();
            let memory = dealer.take(in_memory(len));
            if found.is_none() {
                reads.push(async move {
                    *found = Some(self.read_batch(context, batch, memory).await?);
                    Ok(())
                });
            }
        }
        join_limited(IN_FLIGHT_MAX, reads).await.into_iter().collect()
    }

    /// Reads one batch and returns which cells of it are real, counted from the array's start. What lies in more pieces than
    /// a reply can name is asked for in halves.
    async fn read_batch(
        &self,
        context: &Context,
        batch: &Batch,
        into: Vec<&mut [u8]>,
    ) -> Result<Vec<Extent>> {
        let (mut real, mut left) = (Vec::new(), vec![(batch.extents.clone(), into)]);
        while let Some((extents, mut into)) = left.pop() {
            let memory = into.iter_mut().map(|piece| &mut **piece).collect();
            match self.read_extents(context, batch.chunk, &extents, memory).await {
                Ok(found) => real.extend(found),
                Err(error) if error.is(Der::REC2BIG) || error.is(Der::OVERFLOW) => {
                    let (front, back) = halve(&extents).ok_or(error)?;
                    let len = front.iter().map(|extent| extent.count * self.cell()).sum();
                    let mut dealer = scatter::Dealer::new(into);
                    let memory = dealer.take(in_memory(len));
                    left.push((back, dealer.take(usize::MAX)));
                    left.push((front, memory));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(real)
    }

    /// Reads cells of one chunk in one request, as [`Array::read_batch`].
    async fn read_extents(
        &self,
        context: &Context,
        chunk: u64,
        extents: &[Extent],
        into: Vec<&mut [u8]>,
    ) -> Result<Vec<Extent>> {
        let akey = name(CELLS)?;
        let mut read = AkeyRead::array(akey, self.attributes.cell_size, extents.to_vec(), into);
        read.zero_holes = self.attributes.cell_size == 1;
        let mut reads = [read];
        let found = self.object.fetch(context, &dkey_of(chunk), Conditions::NONE, &mut reads).await?;
        let mut present = found.into_iter().next().map(|found| found.present).unwrap_or_default();
        present.sort_unstable();
        if self.attributes.cell_size == 1 {
            let [read] = &mut reads;
            zero_holes(extents, &present, &mut read.into);
        }
        let base = chunk * self.attributes.chunk_cells;
        Ok(present.into_iter().map(|found| Extent { index: base + found.index, ..found }).collect())
    }

    /// Makes holes of the ranges. Cells at the end that become holes no longer count to the size. Within a long range
    /// only chunks that exist are asked for.
    ///
    /// # Errors
    /// As [`Array::write`].
    pub async fn punch(&self, context: &Context, ranges: &[Range]) -> Result<()> {
        let (mut edges, mut between) = (Vec::new(), Vec::new());
        for range in ranges {
            match between_edges(*range, self.attributes.chunk_cells) {
                Some((front, chunks, back)) => {
                    edges.extend([front, back]);
                    between.push(chunks);
                }
                None => edges.push(*range),
            }
        }
        let pieces = split(&edges, 1, self.attributes.chunk_cells)
            .map_err(|error| Error::invalid("punch array", error))?;
        if !between.is_empty() {
            for chunks in &between {
                let cells = [chunks.start, chunks.end].map(|chunk| chunk * self.attributes.chunk_cells);
                self.release(context, cells[0], cells[1]).await?;
            }
            let gone = |chunk: u64| between.iter().any(|chunks| chunks.contains(&chunk));
            self.remove_chunks(context, &gone).await?;
        }
        let punches = pieces.iter().map(|piece| self.punch_extent(context, piece.chunk, piece.extent));
        join_limited(IN_FLIGHT_MAX, punches).await.into_iter().collect()
    }

    async fn punch_extent(&self, context: &Context, chunk: u64, extent: Extent) -> Result<()> {
        let punch = AkeyWrite::array(name(CELLS)?, 0, vec![extent], Vec::new());
        self.object.update(context, &dkey_of(chunk), Conditions::NONE, &[punch]).await?;
        Ok(())
    }

    /// Removes the array with all cells and its stored attributes.
    ///
    /// # Errors
    /// As [`Object::punch`].
    pub async fn destroy(&self, context: &Context) -> Result<()> {
        self.object.punch(context).await
    }

    fn cell(&self) -> u64 {
        u64::from(self.attributes.cell_size)
    }

    fn plan(&self, operation: &'static str, ranges: &[Range], have: usize) -> Result<Vec<Batch>> {
        let pieces = split(ranges, self.cell(), self.attributes.chunk_cells)
            .map_err(|error| Error::invalid(operation, error))?;
        let need = pieces.last().map_or(0, |last| last.offset + last.extent.count * self.cell());
        if need != have as u64 {
            let reason = format!("the ranges take {need} bytes, the buffers hold {have}");
            return Err(Error::Size { operation, reason, der: Der::REC2BIG });
        }
        Ok(batch(&pieces, self.cell()))
    }
}

fn name(akey: &[u8]) -> Result<Key> {
    Key::new(akey).map_err(|error| Error::invalid("array", error))
}

fn dkey_of(chunk: u64) -> Key {
    Key::from_u64(chunk + 1)
}

/// Lengths here were checked against memory that exists.
fn in_memory(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// The first and the second half of the cells. `None`: there is only one.
fn halve(extents: &[Extent]) -> Option<(Vec<Extent>, Vec<Extent>)> {
    let cells: u64 = extents.iter().map(|extent| extent.count).sum();
    let (mut front, mut back, mut left) = (Vec::new(), Vec::new(), cells / 2);
    for extent in extents {
        let count = extent.count.min(left);
        left -= count;
        front.extend((count > 0).then_some(Extent { index: extent.index, count }));
        let rest = Extent { index: extent.index + count, count: extent.count - count };
        back.extend((rest.count > 0).then_some(rest));
    }
    (!front.is_empty()).then_some((front, back))
}

/// End of the last real cell in the range; the range's start when there is none.
fn end_within(range: Range, present: &[Extent]) -> u64 {
    let end = range.index + range.count;
    present
        .iter()
        .filter(|found| found.index < end && found.end() > range.index)
        .map(|found| found.end().min(end))
        .max()
        .unwrap_or(range.index)
}

/// Whether a batch has a cell before `end` that isn't among the real ones, all of them counted from the array's start.
fn has_hole(batch: &Batch, base: u64, real: &[Extent], end: u64) -> bool {
    batch.extents.iter().any(|extent| {
        let (start, end) = (base + extent.index, (base + extent.end()).min(end));
        let within = |real: &Extent| real.end().min(end).saturating_sub(real.index.max(start));
        end.saturating_sub(start) > real.iter().map(within).sum()
    })
}

/// Zeros what `present` (ascending) leaves out of the extents; a cell is a byte.
fn zero_holes(extents: &[Extent], present: &[Extent], into: &mut [&mut [u8]]) {
    let mut base = 0;
    for extent in extents {
        let mut at = extent.index;
        let found = present.iter().filter(|found| found.index < extent.end() && found.end() > extent.index);
        for found in found {
            if found.index > at {
                scatter::zero(into, in_memory(base + at - extent.index), in_memory(found.index - at));
            }
            at = at.max(found.end());
        }
        if at < extent.end() {
            scatter::zero(into, in_memory(base + at - extent.index), in_memory(extent.end() - at));
        }
        base += extent.count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn exactly_the_holes_are_zeroed(
            runs in proptest::collection::vec((0_u64..6, 1_u64..8, any::<bool>()), 1..8),
            wanted in proptest::collection::vec((0_u64..6, 1_u64..12), 1..4),
        ) {
            let (mut at, mut present) = (0, Vec::new());
            for (gap, count, real) in runs {
                at += gap;
                if real {
                    present.push(Extent { index: at, count });
                }
                at += count;
            }
            let (mut at, mut extents) = (0, Vec::new());
            for (gap, count) in wanted {
                at += gap;
                extents.push(Extent { index: at, count });
                at += count;
            }
            let len: u64 = extents.iter().map(|extent| extent.count).sum();
            let mut bytes = vec![7_u8; in_memory(len)];
            zero_holes(&extents, &present, &mut [bytes.as_mut_slice()]);
            let cells = extents.iter().flat_map(|extent| extent.index..extent.end());
            for (cell, byte) in cells.zip(&bytes) {
                let real = present.iter().any(|found| (found.index..found.end()).contains(&cell));
                prop_assert_eq!(*byte, if real { 7 } else { 0 }, "cell {}", cell);
            }
        }
    }
}
