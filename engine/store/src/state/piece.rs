//! Pieces of an update: the versions that it stores, with their checksums.

use crate::format::blocks::Run;
use crate::format::checksum::{self, Checksums};
use crate::format::value::{Payload, Version, is_regular};
use crate::versions::intents::{Intended, Slot};
use core::ops::Range;
use smallvec::SmallVec;
use weir_media::BLOCK;
use weir_proto::chunk::{Chunks, Grain};

/// The versions of an update: most have one.
pub(crate) type WritePieces = SmallVec<[WritePiece; 1]>;

/// One version to be stored.
#[derive(Debug)]
pub(crate) struct WritePiece {
    /// Index of the akey in the request.
    pub(crate) akey: usize,
    pub(crate) slot: Slot,
    pub(crate) record_size: u32,
    pub(crate) data: Range<usize>,
    pub(crate) chunks: Chunks,
    /// Which of the checksums that came with the akey are those of the chunks.
    pub(crate) given: Range<usize>,
    /// What is stored for the chunks; none for inline data whose client computed none.
    pub(crate) checksums: Checksums,
    /// What doesn't come from the request's data: blocks, or the version of a prepared transaction.
    pub(crate) payload: Payload,
    pub(crate) in_blocks: bool,
    /// Its data is lost: what stands for it doesn't match the checksums, which tell readers so.
    pub(crate) is_unread: bool,
}

/// Bytes of the blocks that pieces take.
pub(crate) fn bytes_in_blocks(pieces: &[WritePiece]) -> u64 {
    pieces.iter().filter(|piece| piece.in_blocks).map(WritePiece::padded).sum()
}

impl WritePiece {
    /// A version of a prepared transaction, whose data is in its place.
    pub(crate) fn of_version(intended: &Intended, version: &Version) -> Self {
        let Intended { akey, slot, record_size } = *intended;
        Self {
            akey,
            slot,
            record_size,
            data: 0..0,
            chunks: Chunks::of_single(0, Grain::Fine),
            given: 0..0,
            checksums: Checksums::new(),
            payload: version.payload.clone(),
            in_blocks: false,
            is_unread: false,
        }
    }

    /// Bytes of the blocks that it takes, if it takes any.
    pub(crate) fn padded(&self) -> u64 {
        (self.data.len() as u64).next_multiple_of(BLOCK as u64)
    }

    /// The blocks that it has.
    pub(crate) fn runs(&self) -> &[Run] {
        if let Payload::Blocks(blocks) = &self.payload { &blocks.runs } else { &[] }
    }

    /// Has the description of the blocks take over chunks and checksums, as far as they are known.
    pub(crate) fn describe(&mut self) {
        if let Payload::Blocks(blocks) = &mut self.payload {
            blocks.chunks = self.chunks;
            blocks.checksums = core::mem::take(&mut self.checksums);
        }
    }

    /// Appends the version that is stored, where the request came with `data`.
    #[inline]
    pub(crate) fn append_version(&self, data: &[u8], out: &mut Vec<u8>) {
        // A single value without bytes and records without size are holes.
        if self.in_blocks || self.data.is_empty() {
            return Version::append(self.record_size, &self.payload, out);
        }
        let bytes = &data[self.data.clone()];
        Version::append_inline(self.record_size, bytes, self.checksums.first().copied(), out);
    }

    /// Takes the client's checksums, compared with the data, or computes what blocks need. They are stored as they came,
    /// so that whatever happens to the data from here on doesn't go unnoticed; only `regular_only`, in a store of the
    /// first format, others have to do for chunks that it can't describe. They are computed before the comparison.
    pub(crate) fn seal(&mut self, given: Option<&[u32]>, data: &[u8], regular_only: bool) -> bool {
        let (bytes, compared) = (&data[self.data.clone()], self.chunks);
        let is_kept = !regular_only || (self.in_blocks && is_regular(compared));
        if let Some(given) = given.filter(|_| is_kept) {
            self.checksums = Checksums::from_slice(given);
        } else if self.in_blocks {
            if !is_kept {
                self.chunks = Chunks::of_single(compared.len(), Grain::Fine);
            }
            self.checksums = checksum::of_chunks(self.chunks, bytes);
        }
        given.is_none_or(|given| checksum::are_of_chunks(given, compared, bytes))
    }
}
