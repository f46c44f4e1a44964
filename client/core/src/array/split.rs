//! Cuts ranges of an array into requests: pure arithmetic.

use weir_proto::limits::{EXTENTS_MAX, PAYLOAD_MAX};
use weir_proto::object::Extent;

/// Cells from `index` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First cell.
    pub index: u64,
    /// Number of cells; may be 0.
    pub count: u64,
}

/// Part of a range that lies in one chunk, and where its bytes stand in the caller's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkPart {
    /// Number of the chunk; its dkey is one more.
    pub chunk: u64,
    /// Cells, counted from the chunk's start.
    pub extent: Extent,
    /// Offset of its first byte in the run of the caller's bytes.
    pub offset: u64,
}

/// One request: consecutive pieces of one chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Number of the chunk.
    pub chunk: u64,
    /// Cells in the order of the caller's bytes, none overlapping.
    pub extents: Vec<Extent>,
    /// Offset of the batch's first byte in the run of the caller's bytes; the rest follows without a gap.
    pub offset: u64,
}

/// A range that no array has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RangeError {
    /// The range runs past the last cell.
    #[error("{count} cells from {index} on run past the last cell of an array")]
    Overflow {
        /// First cell.
        index: u64,
        /// Number of cells.
        count: u64,
    },
    /// One request can't carry a cell.
    #[error("a cell of {0} bytes is larger than the {PAYLOAD_MAX} bytes that a request carries")]
    Cell(u64),
}

/// First cell index that can't be addressed with chunks of `chunk_cells`: chunk numbers plus one must fit a dkey.
pub(super) const CELLS_END: u64 = u64::MAX - 1;

/// Most chunks of a range that are worth a request each, whether they exist or not: about as many as it takes to list
/// those that do on all shards.
const CHUNKS_MAX: u64 = 64;

/// A range of more than `CHUNKS_MAX` chunks in three: what lies in its first chunk, the numbers of the whole chunks
/// between, which never begin with 0, and what lies in its last one. `None` for a shorter range, and for one that no
/// array has.
#[must_use]
pub fn between_edges(range: Range, chunk_cells: u64) -> Option<(Range, core::ops::Range<u64>, Range)> {
    let end = range.index.checked_add(range.count).filter(|end| *end <= CELLS_END)?;
    let (first, last) = (range.index / chunk_cells, end / chunk_cells);
    if last - first <= CHUNKS_MAX {
        return None;
    }
    let chunks = first + 1..last;
    let front = Range { index: range.index, count: chunks.start * chunk_cells - range.index };
    let back = Range { index: chunks.end * chunk_cells, count: end - chunks.end * chunk_cells };
    Some((front, chunks, back))
}

/// Cuts ranges at chunk boundaries and at what one request may carry, in the order of the caller's bytes.
///
/// # Errors
/// When a range runs past the last cell or a cell doesn't fit a request.
pub fn split(ranges: &[Range], cell_size: u64, chunk_cells: u64) -> Result<Vec<ChunkPart>, RangeError> {
    let cells_max = PAYLOAD_MAX / cell_size.max(1);
    if cells_max == 0 {
        return Err(RangeError::Cell(cell_size));
    }
    let mut pieces = Vec::new();
    let mut offset = 0_u64;
    for range in ranges {
        let overflow = RangeError::Overflow { index: range.index, count: range.count };
        let end = range.index.checked_add(range.count).filter(|end| *end <= CELLS_END).ok_or(overflow)?;
        let mut index = range.index;
        while index < end {
            let within = index % chunk_cells;
            let count = (end - index).min(chunk_cells - within).min(cells_max);
            pieces.push(ChunkPart {
                chunk: index / chunk_cells,
                extent: Extent { index: within, count },
                offset,
            });
            index += count;
            offset = count.checked_mul(cell_size).and_then(|len| offset.checked_add(len)).ok_or(overflow)?;
        }
    }
    Ok(pieces)
}

/// Gathers neighbouring pieces of the same chunk into one request, as far as a request may carry them.
#[must_use]
pub fn batch(pieces: &[ChunkPart], cell_size: u64) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    let mut bytes = 0_u64;
    for piece in pieces {
        let len = piece.extent.count * cell_size;
        match batches.last_mut() {
            Some(last)
                if last.chunk == piece.chunk
                    && bytes + len <= PAYLOAD_MAX
                    && last.extents.len() < EXTENTS_MAX
                    && !last.extents.iter().any(|extent| overlap(*extent, piece.extent)) =>
            {
                bytes += len;
                match last.extents.last_mut() {
                    Some(before) if before.end() == piece.extent.index => before.count += piece.extent.count,
                    _ => last.extents.push(piece.extent),
                }
            }
            _ => {
                bytes = len;
                batches.push(Batch { chunk: piece.chunk, extents: vec![piece.extent], offset: piece.offset });
            }
        }
    }
    batches
}

/// Whether two of the ranges share a cell.
#[must_use]
pub fn any_overlap(ranges: &[Range]) -> bool {
    let mut sorted: Vec<Range> = ranges.iter().copied().filter(|range| range.count > 0).collect();
    sorted.sort_unstable_by_key(|range| range.index);
    sorted.windows(2).any(|pair| pair[0].index.saturating_add(pair[0].count) > pair[1].index)
}

const fn overlap(a: Extent, b: Extent) -> bool {
    a.index < b.end() && b.index < a.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_range_is_cut_at_chunks_and_at_the_payload_limit() {
        let pieces = split(&[Range { index: 6, count: 8 }], 2, 8).expect("fits");
        let flat: Vec<_> =
            pieces.iter().map(|p| (p.chunk, p.extent.index, p.extent.count, p.offset)).collect();
        assert_eq!(flat, [(0, 6, 2, 0), (1, 0, 6, 4)]);
        let large = split(&[Range { index: 0, count: 2 * PAYLOAD_MAX }], 1, 4 * PAYLOAD_MAX).expect("fits");
        assert_eq!(large.len(), 2);
        assert_eq!(batch(&large, 1).len(), 2);
        assert!(split(&[Range { index: u64::MAX, count: 2 }], 1, 8).is_err());
        assert!(split(&[Range { index: 0, count: 1 }], PAYLOAD_MAX + 1, 8).is_err());
    }

    #[test]
    fn a_long_range_is_two_edges_and_the_chunks_between() {
        let range = |index, count| Range { index, count };
        assert_eq!(between_edges(range(5, 64 * 8), 8), None);
        assert_eq!(between_edges(range(5, 65 * 8), 8), Some((range(5, 3), 1..65, range(520, 5))));
        assert_eq!(between_edges(range(0, 100 * 8), 8), Some((range(0, 8), 1..100, range(800, 0))));
        assert_eq!(between_edges(range(u64::MAX, 2), 8), None);
        let (_, chunks, back) = between_edges(range(1, CELLS_END - 1), 1).expect("a long one");
        assert_eq!((chunks, back), (2..CELLS_END, range(CELLS_END, 0)));
    }

    proptest! {
        /// Writing bytes through batches and reading them back by cell gives what a plain vector gives.
        #[test]
        fn batches_place_every_byte_where_a_byte_vector_has_it(
            ranges in proptest::collection::vec((0_u64..200, 0_u64..60), 1..6),
            cell in 1_u64..4, chunk in 1_u64..40,
        ) {
            let ranges: Vec<Range> =
                ranges.into_iter().map(|(index, count)| Range { index, count }).collect();
            let pieces = split(&ranges, cell, chunk).expect("small");
            let batches = batch(&pieces, cell);
            // Model: cell number -> offsets of the caller's bytes that name it, in order.
            let mut model: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            let mut offset = 0;
            for range in &ranges {
                for index in range.index..range.index + range.count {
                    model.entry(index).or_default().push(offset);
                    offset += cell;
                }
            }
            let mut found: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            for batch in &batches {
                let mut offset = batch.offset;
                for extent in &batch.extents {
                    prop_assert!(extent.end() <= chunk);
                    for index in extent.index..extent.end() {
                        found.entry(batch.chunk * chunk + index).or_default().push(offset);
                        offset += cell;
                    }
                }
            }
            prop_assert_eq!(found, model);
        }
    }
}
