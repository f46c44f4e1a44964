//! Cutting the data of an update into pieces.

use super::{Request, VERSION_OVERHEAD};
use crate::format::checksum::Checksums;
use crate::format::key::Path;
use crate::format::node::ENTRY_MAX;
use crate::format::size::in_memory;
use crate::format::value::Payload;
use crate::state::error::UpdateError;
use crate::state::piece::{WritePiece, WritePieces};
use crate::versions::intents::Slot;
use weir_proto::Key;
use weir_proto::chunk::{self, Chunks, Grain};
use weir_proto::object::Value;

/// Most inline bytes of one update: bounds its log record. What comes beyond takes blocks.
const INLINE_TOTAL_MAX: usize = 256 * 1024;

/// Bytes of an akey's path beside dkey and akey, at most: container, object, two marks and the ends of two texts.
const KEY_OVERHEAD: usize = 32;

#[cold]
fn wrong_checksums(akey: &Key, needed: usize, found: usize) -> UpdateError {
    UpdateError::Invalid(format!("akey \"{akey}\" has {needed} chunks but {found} checksums"))
}

impl Request<'_> {
    /// Cuts the data into the versions to be stored, `pieces`. Returns how much of it goes to blocks. Fails when an akey came
    /// with checksums for more or fewer chunks.
    pub(crate) fn cut(&self, inline_limit: usize, pieces: &mut WritePieces) -> Result<usize, UpdateError> {
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
                let len = in_memory(chunks.len());
                let small = len < inline_limit
                    && inline + len <= INLINE_TOTAL_MAX
                    && key_len + 32 + VERSION_OVERHEAD + len <= ENTRY_MAX;
                inline += if small { len } else { 0 };
                let first = needed;
                needed += if found > 0 { in_memory(chunks.count()) } else { 0 };
                pieces.push(WritePiece {
                    akey: index,
                    slot,
                    record_size,
                    data: at..at + len,
                    chunks,
                    given: first..needed,
                    checksums: Checksums::new(),
                    payload: Payload::Hole,
                    in_blocks: !small,
                    is_unread: false,
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
    pub(crate) fn seal(
        &self,
        piece: &mut WritePiece,
        data: &[u8],
        regular_only: bool,
    ) -> Result<(), UpdateError> {
        let update = &self.akeys[piece.akey];
        if update.checksums.is_empty() && !piece.in_blocks {
            return Ok(());
        }
        let given = Some(&update.checksums[..]).filter(|given| !given.is_empty());
        let given = given.map(|given| &given[piece.given.clone()]);
        if piece.seal(given, data, regular_only) || piece.is_unread {
            return Ok(());
        }
        Err(UpdateError::Checksum { akey: update.akey.clone() })
    }
}
