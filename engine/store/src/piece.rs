//! Pieces of an update: the versions that it stores, with their checksums.

use crate::checksum::{self, Checksums};
use crate::error::UpdateError;
use crate::intents::{Intended, Slot};
use crate::key::Path;
use crate::space::Run;
use crate::tree::ENTRY_MAX;
use crate::update::{Request, VERSION_OVERHEAD};
use crate::value::{Payload, Version, is_regular};
use core::ops::Range;
use smallvec::SmallVec;
use weir_media::BLOCK;
use weir_proto::Key;
use weir_proto::chunk::{self, Chunks, Grain};
use weir_proto::object::Value;

/// Most inline bytes of one update: bounds its log record. What comes beyond takes blocks.
const INLINE_TOTAL_MAX: usize = 256 * 1024;

/// Bytes of an akey's path beside dkey and akey, at most: container, object, two marks and the ends of two texts.
const KEY_OVERHEAD: usize = 32;

/// The versions of an update: most have one.
pub(crate) type Pieces = SmallVec<[Piece; 1]>;

/// One version to be stored.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Index of the akey in the request.
    pub(crate) akey: usize,
    pub(crate) slot: Slot,
    pub(crate) record_size: u32,
    pub(crate) data: Range<usize>,
    pub(crate) chunks: Chunks,
    /// Which of the checksums that came with the akey are those of the chunks.
    given: Range<usize>,
    /// What is stored for the chunks; none for inline data whose client computed none.
    pub(crate) checksums: Checksums,
    /// What doesn't come from the request's data: blocks, or the version of a prepared transaction.
    pub(crate) payload: Payload,
    pub(crate) in_blocks: bool,
}

/// Bytes of the blocks that pieces take.
pub(crate) fn bytes_in_blocks(pieces: &[Piece]) -> u64 {
    pieces.iter().filter(|piece| piece.in_blocks).map(Piece::padded).sum()
}

impl Piece {
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
        let bytes = data.get(self.data.clone()).unwrap_or_default();
        Version::append_inline(self.record_size, bytes, self.checksums.first().copied(), out);
    }

    /// Takes the client's checksums, compared with the data, or computes what blocks need. They are stored as they came,
    /// so that whatever happens to the data from here on doesn't go unnoticed; only `regular_only`, in a store of the
    /// first format, others have to do for chunks that it can't describe. They are computed before the comparison.
    fn seal(&mut self, given: Option<&[u32]>, data: &[u8], regular_only: bool) -> bool {
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

#[cold]
fn wrong_checksums(akey: &Key, needed: usize, found: usize) -> UpdateError {
    UpdateError::Invalid(format!("akey \"{akey}\" has {needed} chunks but {found} checksums"))
}

impl Request<'_> {
    /// Cuts the data into the versions to be stored, `pieces`. Returns how much of it goes to blocks. Fails when an akey came
    /// with checksums for more or fewer chunks.
    pub(crate) fn cut(&self, inline_limit: usize, pieces: &mut Pieces) -> Result<usize, UpdateError> {
        let (mut at, mut inline) = (0usize, 0usize);
        let grain = Grain::of(self.akeys.iter().map(|update| &update.value));
        let mut of_dkey = None;
        for (index, update) in self.akeys.iter().enumerate() {
            // Short keys are short however they are escaped.
            let escaped = 2 * (self.dkey.as_bytes().len() + update.akey.as_bytes().len()) + KEY_OVERHEAD;
            let key_len =
                if escaped <= ENTRY_MAX / 4 { escaped } else { self.path_len(&update.akey, &mut of_dkey) };
            // An akey has as many checksums as its data has chunks, or none.
            let (mut needed, found) = (0, update.checksums.len());
            let mut add = |slot, record_size, chunks: Chunks| {
                let len = usize::try_from(chunks.len()).unwrap_or(usize::MAX);
                let small = len < inline_limit
                    && inline + len <= INLINE_TOTAL_MAX
                    && key_len + 32 + VERSION_OVERHEAD + len <= ENTRY_MAX;
                inline += if small { len } else { 0 };
                let first = needed;
                needed += if found > 0 { usize::try_from(chunks.count()).unwrap_or(usize::MAX) } else { 0 };
                pieces.push(Piece {
                    akey: index,
                    slot,
                    record_size,
                    data: at..at + len,
                    chunks,
                    given: first..needed,
                    checksums: Checksums::new(),
                    payload: Payload::Hole,
                    in_blocks: !small,
                });
                at += len;
            };
            match &update.value {
                Value::Single { size } => add(Slot::Single, 0, Chunks::of_single(*size, grain)),
                Value::Array { record_size, extents } => {
                    for extent in extents {
                        for part in chunk::parts(*extent, *record_size) {
                            add(Slot::Extent(part), *record_size, Chunks::of_part(part, *record_size, grain));
                        }
                    }
                }
            }
            if found != needed {
                return Err(wrong_checksums(&update.akey, needed, found));
            }
        }
        Ok(at - inline)
    }

    /// Bytes of the path of an akey. That of the dkey is put together once.
    #[cold]
    fn path_len(&self, akey: &Key, of_dkey: &mut Option<Path>) -> usize {
        let of_dkey = of_dkey.get_or_insert_with(|| self.path().dkey(self.dkey));
        of_dkey.akey(akey).as_bytes().len()
    }

    /// Compares the data of a piece with the checksums that came with it, in the only pass over it, and sees to it that it
    /// has those that are stored.
    #[inline]
    pub(crate) fn seal(&self, piece: &mut Piece, data: &[u8], regular_only: bool) -> Result<(), UpdateError> {
        let update = &self.akeys[piece.akey];
        if update.checksums.is_empty() && !piece.in_blocks {
            return Ok(());
        }
        let given = Some(&update.checksums[..]).filter(|given| !given.is_empty());
        let given = given.map(|given| given.get(piece.given.clone()).unwrap_or_default());
        if piece.seal(given, data, regular_only) {
            return Ok(());
        }
        Err(UpdateError::Checksum { akey: update.akey.clone() })
    }
}
