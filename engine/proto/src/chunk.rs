//! Chunks: the ranges of data that have a checksum each.
//!
//! The client computes a CRC-32C for each chunk of what it writes. These very checksums are stored and returned to
//! readers, so both sides have to cut alike. An extent is first cut into *parts* at record indexes that are multiples
//! of [`PART_BYTES_MAX`] / record size, because a target stores parts. A part's chunks end at record indexes that are
//! multiples of chunk size / record size. So extents that overlap or adjoin have the same boundaries, and a read along
//! them is covered by checksums that the writer computed. Single values, and records larger than a chunk, are cut from
//! their start.

use core::ops::Range;

use crate::object::{Extent, Value};

/// Most data bytes of one part of an extent, if it has several records: overwrites of the same range meet the same
/// parts, and a part fits a contiguous run of blocks even on a fragmented device.
pub const PART_BYTES_MAX: u64 = 1 << 20;

/// Smallest chunk in bytes: a block of the device, because nothing smaller is read. Parts of up to this size are one
/// chunk, wherever they lie.
pub const CHUNK_BYTES_MIN: u64 = 4096;

/// Largest chunk in bytes: what a small read of a large value has to read and check.
pub const CHUNK_BYTES_MAX: u64 = 32 * 1024;

/// Parts up to this many bytes have small chunks; larger ones large chunks, so that their index entries stay small.
const FINE_BYTES_MAX: u64 = 64 * 1024;

/// Most extents and single values of a request whose parts may have small chunks: 64 parts of 16 chunks, and their
/// checksums take a third of a message.
const FINE_VALUES_MAX: usize = 64;

/// Size of the chunks of a request's small parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grain {
    /// [`CHUNK_BYTES_MIN`].
    Fine,
    /// [`CHUNK_BYTES_MAX`], like that of large parts.
    Coarse,
}

impl Grain {
    /// The grain of a request with these values.
    pub fn of<'a>(values: impl IntoIterator<Item = &'a Value>) -> Self {
        let pieces = |value: &Value| match value {
            Value::Single { .. } => 1,
            Value::Array { extents, .. } => extents.len(),
        };
        let count: usize = values.into_iter().map(pieces).sum();
        if count <= FINE_VALUES_MAX { Self::Fine } else { Self::Coarse }
    }

    const fn chunk_bytes(self, len: u64) -> u64 {
        match self {
            Self::Fine if len <= FINE_BYTES_MAX => CHUNK_BYTES_MIN,
            Self::Fine | Self::Coarse => CHUNK_BYTES_MAX,
        }
    }
}

/// The chunks of a part or single value: one up to the first boundary, then others of equal size, the last one maybe
/// shorter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunks {
    len: u64,
    first: u64,
    step: u64,
}

impl Chunks {
    /// Cuts `len` bytes at `first` and then every `step` bytes; both are at least 1.
    #[must_use]
    pub const fn new(len: u64, first: u64, step: u64) -> Self {
        // A lone chunk has one description.
        if first < len { Self { len, first, step } } else { Self { len, first: len, step: len } }
    }

    /// The chunks of a single value of `len` bytes.
    #[must_use]
    pub const fn of_single(len: u64, grain: Grain) -> Self {
        let step = grain.chunk_bytes(len);
        Self::new(len, step, step)
    }

    /// The chunks of a part, see [`parts`].
    #[must_use]
    pub const fn of_part(part: Extent, record_size: u32, grain: Grain) -> Self {
        let record = record_size as u64;
        let len = part.count.saturating_mul(record);
        let step = grain.chunk_bytes(len);
        if len <= CHUNK_BYTES_MIN {
            return Self::new(len, len, len);
        }
        if record > step {
            return Self::new(len, step, step);
        }
        let records = step / record;
        Self::new(len, (records - part.index % records) * record, records * record)
    }

    /// Bytes of all chunks together.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.len
    }

    /// Whether there is nothing to be cut.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Bytes of the first chunk.
    #[must_use]
    pub const fn first(self) -> u64 {
        self.first
    }

    /// Bytes of the chunks behind the first, but for the last.
    #[must_use]
    pub const fn step(self) -> u64 {
        self.step
    }

    /// Number of chunks.
    #[must_use]
    pub const fn count(self) -> u64 {
        if self.len == 0 { 0 } else { 1 + (self.len - self.first).div_ceil(self.step) }
    }

    /// The bytes of a chunk.
    #[must_use]
    pub const fn range(self, number: u64) -> Range<u64> {
        if number == 0 {
            return 0..self.first;
        }
        let start = self.first + (number - 1) * self.step;
        let end = start + self.step;
        start..if end < self.len { end } else { self.len }
    }

    /// The chunk that a byte belongs to.
    #[must_use]
    pub const fn at(self, byte: u64) -> u64 {
        if byte < self.first { 0 } else { 1 + (byte - self.first) / self.step }
    }

    /// The bytes of all chunks, in order.
    pub fn ranges(self) -> impl Iterator<Item = Range<u64>> {
        (0..self.count()).map(move |number| self.range(number))
    }
}

/// Records of this size to a part: parts end at multiples of it. Records without size, which are holes, are never cut.
#[must_use]
pub const fn part_records(record_size: u32) -> u64 {
    match record_size {
        0 => u64::MAX,
        // Of records that are longer than a part, each is one.
        size if size as u64 > PART_BYTES_MAX => 1,
        size => PART_BYTES_MAX / size as u64,
    }
}

/// The parts of an extent.
pub fn parts(extent: Extent, record_size: u32) -> impl Iterator<Item = Extent> {
    let step = part_records(record_size);
    let mut index = extent.index;
    core::iter::from_fn(move || {
        if index >= extent.end() {
            return None;
        }
        let boundary = (index / step).saturating_add(1).saturating_mul(step);
        let part = Extent { index, count: boundary.min(extent.end()) - index };
        index = part.end();
        Some(part)
    })
}

/// The chunks of each part of a value with its data, in the order of the data. What has no data has no chunk.
pub fn chunks(value: &Value, grain: Grain) -> impl Iterator<Item = Chunks> {
    let (single, record_size, extents) = match value {
        Value::Single { size } => (Some(Chunks::of_single(*size, grain)), 0, &[][..]),
        Value::Array { record_size, extents } => (None, *record_size, &extents[..]),
    };
    let parts = extents.iter().flat_map(move |extent| parts(*extent, record_size));
    let of_parts = parts.map(move |part| Chunks::of_part(part, record_size, grain));
    single.into_iter().chain(of_parts).filter(|chunks| !chunks.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(chunks: Chunks) -> Vec<u64> {
        chunks.ranges().map(|range| range.end).collect()
    }

    fn extent(index: u64, count: u64) -> Extent {
        Extent { index, count }
    }

    #[test]
    fn chunks_of_overlapping_parts_end_at_the_same_records() {
        let aligned = Chunks::of_part(extent(0, 20_000), 1, Grain::Fine);
        assert_eq!(bounds(aligned), [4096, 8192, 12_288, 16_384, 20_000]);
        let shifted = Chunks::of_part(extent(1000, 10_000), 1, Grain::Fine);
        assert_eq!(bounds(shifted), [3096, 7192, 10_000]);
        let odd = Chunks::of_part(extent(41, 100), 100, Grain::Fine);
        assert_eq!(bounds(odd), [3900, 7900, 10_000], "forty records each");
        let coarse = Chunks::of_part(extent(8, 10_000), 8, Grain::Coarse);
        assert_eq!(bounds(coarse), [32_704, 65_472, 80_000]);
    }

    #[test]
    fn small_parts_are_one_chunk_and_large_records_several() {
        assert_eq!(bounds(Chunks::of_part(extent(4000, 200), 1, Grain::Fine)), [200]);
        assert_eq!(bounds(Chunks::of_part(extent(3, 2), 5000, Grain::Fine)), [4096, 8192, 10_000]);
        assert_eq!(bounds(Chunks::of_single(70_000, Grain::Fine)), [32_768, 65_536, 70_000]);
        assert_eq!(Chunks::of_single(0, Grain::Fine).count(), 0);
    }

    #[test]
    fn every_byte_is_in_the_chunk_that_is_named_for_it() {
        for index in [0, 1, 39, 40, 4095, 4096, 1 << 40] {
            for (count, size) in [(1, 1), (4097, 1), (90_000, 1), (41, 100), (300, 333), (3, 40_000)] {
                for grain in [Grain::Fine, Grain::Coarse] {
                    let chunks = Chunks::of_part(extent(index, count), size, grain);
                    let mut end = 0;
                    for (number, range) in (0..).zip(chunks.ranges()) {
                        assert_eq!(range.start, end);
                        assert!(!range.is_empty() && range.end - range.start <= CHUNK_BYTES_MAX);
                        assert_eq!((chunks.at(range.start), chunks.at(range.end - 1)), (number, number));
                        end = range.end;
                    }
                    assert_eq!(end, count * u64::from(size));
                }
            }
        }
    }

    #[test]
    fn parts_end_at_a_mebibyte_of_records() {
        let found = |index, count, size| parts(extent(index, count), size).collect::<Vec<_>>();
        assert_eq!(found(5, 10, 1), [extent(5, 10)]);
        let mib = 1 << 20;
        assert_eq!(found(mib - 1, mib + 2, 1), [extent(mib - 1, 1), extent(mib, mib), extent(2 * mib, 1)]);
        assert_eq!(found(7, 2, 2 << 20), [extent(7, 1), extent(8, 1)]);
        assert_eq!(found((1 << 63) - 2, 2, 3), [extent((1 << 63) - 2, 2)]);
        assert_eq!(found(9, 1 << 40, 0), [extent(9, 1 << 40)]);
    }

    #[test]
    fn many_small_extents_have_a_checksum_each() {
        let extents = (0..1024).map(|number| extent(number * 10_000, 8192)).collect();
        let value = Value::Array { record_size: 1, extents };
        let grain = Grain::of([&value]);
        assert_eq!(grain, Grain::Coarse);
        assert!(chunks(&value, grain).map(Chunks::count).sum::<u64>() < 1024 * 3 / 2);
        assert_eq!(Grain::of([&Value::Single { size: 1 }]), Grain::Fine);
    }

    #[test]
    fn what_has_no_data_has_no_chunk() {
        assert_eq!(chunks(&Value::Single { size: 0 }, Grain::Fine).count(), 0);
        let holes = Value::Array { record_size: 0, extents: vec![extent(3, 5)] };
        assert_eq!(chunks(&holes, Grain::Fine).count(), 0);
    }
}
