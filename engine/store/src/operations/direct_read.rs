//! Reads of large values without a copy: the device writes to the memory that the reply is sent from. The store compares the
//! data with its checksums there, or leaves that to the reader.

use crate::format::size::in_memory;
use crate::format::value::Blocks;
use crate::state::core::Core;
use crate::state::error::FetchError;
use crate::state::read::{Comparison, check, is_within};
use weir_media::{BLOCK, ExternalBuffer, Lasting};
use weir_proto::object::Extent;

/// Fewest bytes of a direct read. To copy fewer costs less than memory for them, which is allocated in pieces of 32 KiB.
const DIRECT_MIN: u64 = 32 << 10;

/// One transfer of bytes of a value from the device: with the chunks that they lie in, and the blocks that those lie in.
///
/// Shorter transfers, so that the first part is compared while the next is read, were tried with 256 and 512 KiB of a
/// mebibyte, and are no faster.
pub(crate) struct DirectTransfer {
    /// First and last byte of the chunks within the value.
    low: u64,
    high: u64,
    /// The first block of the transfer on the device, and how many bytes of it lie before the chunks.
    offset: u64,
    before: usize,
    /// Where in the memory the bytes begin that are wanted.
    start: usize,
}

impl DirectTransfer {
    /// `None`: the bytes are too few, are not there, or are scattered.
    pub(crate) fn of(core: &Core, blocks: &Blocks, from: u64, len: usize) -> Option<Self> {
        let [run] = blocks.runs.as_slice() else { return None };
        if (len as u64) < DIRECT_MIN {
            return None;
        }
        is_within(blocks.len(), from, len).ok()?;
        let (chunks, last) = (blocks.chunks, from + len as u64 - 1);
        let (low, high) = (chunks.range(chunks.at(from)).start, chunks.range(chunks.at(last)).end);
        let before = low % BLOCK as u64;
        let offset = core.layout.data(run.block) + low - before;
        Some(Self { low, high, offset, before: in_memory(before), start: in_memory(before + from - low) })
    }

    /// Bytes of memory that it takes.
    pub(crate) fn room(&self) -> usize {
        (self.before + in_memory(self.high - self.low)).next_multiple_of(BLOCK)
    }

    /// Where in the memory the bytes begin that are wanted.
    pub(crate) const fn start(&self) -> usize {
        self.start
    }

    /// Whether the device has the bytes in memory: they are copied from there, like those of small values.
    pub(crate) fn is_in_memory(&self, core: &Core) -> bool {
        core.device.lend(self.offset, self.room()).is_some()
    }

    /// Reads the bytes and returns their checksum. `comparison` says who compares them with it. If that is the reader, the
    /// processor doesn't read whole chunks here.
    pub(crate) async fn read<M: Lasting>(
        &self,
        core: &Core,
        blocks: &Blocks,
        (from, len, extent): (u64, usize, Option<Extent>),
        comparison: Comparison,
        external: &mut ExternalBuffer<M>,
    ) -> Result<u32, FetchError> {
        let short = FetchError::Buffer { needed: self.room() as u64, given: external.room() as u64 };
        let Some(buffer) = external.take(self.room()) else { return Err(short) };
        let bytes = core.device.read(self.offset, buffer).await?;
        let data = &bytes[self.before..self.before + in_memory(self.high - self.low)];
        let place = (from, from + len as u64, extent);
        check(core, blocks, (self.low, data), self.offset + self.before as u64, place, Some(comparison), None)
    }
}
