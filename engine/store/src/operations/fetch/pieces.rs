//! The data of an akey as the pieces it consists of, and their checksums.

use super::FetchedAkey;
use crate::format::checksum::{Checksums, join, of_zeros};
use crate::format::value::{Blocks, Payload};
use crate::state::core::Core;
use crate::state::error::FetchError;
use crate::state::read::{Comparison, copy_inline, read_blocks};
use smallvec::{SmallVec, smallvec};
use std::rc::Rc;
use weir_proto::object::{Extent, Value};
use weir_runtime::join_all;

/// Where a part of an akey's data comes from.
#[derive(Clone, Debug)]
pub(super) struct ReadPiece {
    /// Position within the akey's data.
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) payload: Rc<Payload>,
    /// Position within the payload.
    pub(super) from: u64,
    /// The records, for an array.
    pub(super) extent: Option<Extent>,
}

/// Parts of an akey's data. Nearly always there is one.
pub(super) type ReadPieces = SmallVec<[ReadPiece; 1]>;

/// Reads what is in blocks, all at once.
pub(super) async fn finish(
    core: &Core,
    mut reads: Vec<BlockRead<'_>>,
    sums: &mut Sums,
) -> Result<(), FetchError> {
    let wants = sums.comparison;
    if reads.len() < 2 {
        let Some((slot, blocks, from, extent, part)) = reads.pop() else { return Ok(()) };
        let sum = read_blocks(core, blocks, from, extent, part, wants).await?;
        sums.set(slot, sum);
        return Ok(());
    }
    let reads = reads.into_iter().map(async |(slot, blocks, from, extent, part)| {
        read_blocks(core, blocks, from, extent, part, wants).await.map(|sum| (slot, sum))
    });
    for read in join_all(reads).await {
        let (slot, sum) = read?;
        sums.set(slot, sum);
    }
    Ok(())
}

/// The checksums of pieces in their order, if they are wanted.
pub(super) struct Sums {
    /// Who compares the data with them; `None` if they aren't wanted.
    comparison: Option<Comparison>,
    all: Vec<u32>,
}

impl Sums {
    pub(super) const fn wanted(comparison: Option<Comparison>) -> Self {
        Self { comparison, all: Vec::new() }
    }

    /// None of them unless they are wanted.
    pub(super) fn into_all(self) -> Vec<u32> {
        self.all
    }

    const fn are_wanted(&self) -> bool {
        self.comparison.is_some()
    }

    /// Adds that of a piece that is known. Returns its place.
    fn push(&mut self, sum: u32) -> usize {
        if self.are_wanted() {
            self.all.push(sum);
        }
        self.all.len().saturating_sub(1)
    }

    fn set(&mut self, slot: usize, sum: u32) {
        if let Some(place) = self.all.get_mut(slot) {
            *place = sum;
        }
    }
}

/// The checksum of a range of data, put together of those of its pieces. What lies between them is zeros.
pub(super) struct Summing {
    sum: u32,
    at: u64,
}

impl Summing {
    pub(super) const fn new(at: u64) -> Self {
        Self { sum: 0, at }
    }

    fn skip(&mut self, to: u64) {
        let gap = to - self.at;
        if gap > 0 {
            self.sum = join(self.sum, of_zeros(gap), gap);
        }
        self.at = to;
    }

    /// The next piece, in order.
    pub(super) fn add(&mut self, at: u64, len: u64, own: u32) {
        self.skip(at);
        self.sum = join(self.sum, own, len);
        self.at += len;
    }

    pub(super) fn end(mut self, at: u64) -> u32 {
        self.skip(at);
        self.sum
    }
}

/// The checksums of an akey's data, one for each extent that was asked for, from those of its pieces.
pub(super) fn sum_up(
    asked: &Value,
    found: &FetchedAkey,
    pieces: &[ReadPiece],
    sums: &mut impl Iterator<Item = u32>,
) -> Checksums {
    if found.len == 0 {
        return Checksums::new();
    }
    let mut pieces = pieces.iter().zip(sums.by_ref()).peekable();
    let mut start = 0;
    let mut sum_range = |len: u64| {
        let mut summing = Summing::new(start);
        start += len;
        while let Some((piece, own)) = pieces.next_if(|(piece, _)| (piece.at as u64) < start) {
            summing.add(piece.at as u64, piece.len as u64, own);
        }
        summing.end(start)
    };
    match asked {
        Value::Single { .. } => smallvec![sum_range(found.len)],
        Value::Array { extents, .. } => {
            extents.iter().map(|extent| sum_range(extent.count * found.fetched.size)).collect()
        }
    }
}

/// Bytes of a value to be read from its blocks: the place of their checksum, from where in it, for which records, and
/// where they go.
pub(super) type BlockRead<'a> = (usize, &'a Blocks, u64, Option<Extent>, &'a mut [u8]);

/// Puts the data of pieces in its place, zeros where there is none, and notes what has to be read.
pub(super) fn fill<'a>(
    pieces: &'a [ReadPiece],
    into: &'a mut [u8],
    reads: &mut Vec<BlockRead<'a>>,
    sums: &mut Sums,
) -> Result<(), FetchError> {
    let (mut rest, mut at) = (into, 0);
    for piece in pieces {
        let (gap, after) = rest.split_at_mut(piece.at - at);
        gap.fill(0);
        let (part, after) = after.split_at_mut(piece.len);
        match &*piece.payload {
            Payload::Hole => {
                part.fill(0);
                if sums.are_wanted() {
                    sums.push(of_zeros(part.len() as u64));
                }
            }
            Payload::Inline(inline) => {
                let sum = copy_inline(inline.summed(), piece.from, piece.extent, part, sums.are_wanted())?;
                sums.push(sum);
            }
            Payload::Blocks(blocks) => reads.push((sums.push(0), blocks, piece.from, piece.extent, part)),
        }
        rest = after;
        at = piece.at + piece.len;
    }
    rest.fill(0);
    Ok(())
}
