//! What stands on the device of a store, and how it is checked: superblock, checkpoint headers, log batches, records, keys, values,
//! nodes and bitmaps. `docs/reference/format.md` describes it byte by byte.
//!
//! Everything here is a pure function of bytes. The store (`weir-store`) reads and writes devices with it; tools that look at a
//! device offline read with it, too. What is decoded is checked: bytes that don't follow the format give [`codec::Malformed`],
//! never a panic.

pub mod admissible;
mod batch;
pub mod bitmap;
pub mod blocks;
pub mod bounds;
mod checkpoint;
pub mod checksum;
pub mod codec;
pub mod decision;
#[cfg(test)]
mod documented;
pub mod edit_buffer;
pub mod entry;
pub mod key;
pub mod key_builder;
pub mod node;
pub mod owner;
pub mod page;
pub mod record;
pub mod reserved;
pub mod ring;
pub mod size;
pub mod stack_key_builder;
mod superblock;
pub mod usage;
pub mod value;

pub use batch::{
    BATCH_HEADER, BATCH_MAX, Batch, BatchKind, batch_header, flips_of_header, probe_batch, seal_batch,
};
pub use bitmap::{decode_map, encode_map, maps_checksum};
pub use checkpoint::{CHECKPOINT_BLOCKS, Checkpoint, ScrubPosition, checkpoint_offset};
pub use superblock::{
    Superblock, SuperblockFault, describe, read_superblock, unfinished_copy, unfinished_format,
};

use weir_media::BLOCK;

/// Oldest format version that this release reads.
pub const VERSION_OLDEST: u32 = 1;
/// Newest format version that this release reads, and the one it writes.
pub const VERSION_NEWEST: u32 = 3;
/// Format version from which on values have checksums wherever they are, over chunks that begin anywhere.
pub const VERSION_CHUNKS: u32 = 2;
/// Format version from which on room is kept for records that aren't written yet.
pub const VERSION_RESERVATIONS: u32 = 3;

/// Features that this release knows: none so far.
pub const FEATURES_KNOWN: u64 = 0;

/// What counts up by ones on the device stays below this: counted a billion times a second it takes centuries to get
/// there, and one more is always a number.
pub(crate) const COUNTER_END: u64 = 1 << 63;

/// Smallest log: four of the largest records ([`crate::record::RECORD_MAX`]), so that a record fits while a
/// checkpoint frees the rest.
pub(crate) const LOG_BYTES_MIN: u64 = 8 << 20;
/// Largest log that is chosen by itself: recovery reads it in well under a second on NVMe.
const LOG_BYTES_DEFAULT_MAX: u64 = 512 << 20;
/// Part of the device that the log takes by itself.
const LOG_DIVISOR: u64 = 16;
/// Smallest data region, in blocks.
const DATA_BLOCKS_MIN: u64 = 1024;

/// Where the regions of a device are, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Device size at format.
    pub size: u64,
    /// Two blocks for each group of data blocks.
    pub map_offset: u64,
    /// Groups of data blocks, each of which a bitmap describes.
    pub groups: u64,
    /// Where the log begins.
    pub log_offset: u64,
    /// Bytes of the log.
    pub log_len: u64,
    /// Where the data region begins.
    pub data_offset: u64,
    /// Blocks of the data region.
    pub data_blocks: u64,
}

impl Layout {
    /// Lays out a device. `Err`: the smallest size that would do.
    ///
    /// # Errors
    /// When the device is too small: the smallest size that would do.
    pub fn plan(size: u64, log_bytes: Option<u64>) -> Result<Self, u64> {
        let block = BLOCK as u64;
        let size = size - size % block;
        let chosen = log_bytes.unwrap_or((size / LOG_DIVISOR).min(LOG_BYTES_DEFAULT_MAX));
        let log_len = chosen.max(LOG_BYTES_MIN).next_multiple_of(block);
        let map_offset = block + CHECKPOINT_BLOCKS * block;
        // The last block holds the copy of the superblock.
        let fixed = map_offset + log_len + block;
        let smallest = fixed + DATA_BLOCKS_MIN * block + 2 * block;
        if size < smallest {
            return Err(smallest);
        }
        let groups = ((size - fixed) / block).div_ceil(crate::bitmap::GROUP_BLOCKS);
        let log_offset = map_offset + groups * 2 * block;
        let data_offset = log_offset + log_len;
        let data_blocks = (size - block - data_offset) / block;
        Ok(Self { size, map_offset, groups, log_offset, log_len, data_offset, data_blocks })
    }

    /// Whether regions read from a device are in order and inside it.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let block = BLOCK as u64;
        let aligned = [self.size, self.map_offset, self.log_offset, self.log_len, self.data_offset];
        let ends = || {
            let map_end = self.map_offset.checked_add(self.groups.checked_mul(2 * block)?)?;
            let log_end = self.log_offset.checked_add(self.log_len)?;
            let data_end = self.data_offset.checked_add(self.data_blocks.checked_mul(block)?)?;
            Some(map_end <= self.log_offset && log_end <= self.data_offset && data_end <= self.size - block)
        };
        aligned.iter().all(|offset| offset.is_multiple_of(block))
            && self.size > block
            && self.map_offset >= block + CHECKPOINT_BLOCKS * block
            && self.log_len >= LOG_BYTES_MIN
            && self.groups >= self.data_blocks.div_ceil(crate::bitmap::GROUP_BLOCKS)
            && self.data_blocks > 0
            && ends() == Some(true)
    }

    /// Offset of the copy of the superblock.
    #[must_use]
    pub fn copy_offset(size: u64) -> u64 {
        size - size % BLOCK as u64 - BLOCK as u64
    }

    /// Offset of one of the two bitmaps of a group.
    #[must_use]
    pub fn map(&self, group: u64, slot: u64) -> u64 {
        self.map_offset + (group * 2 + slot) * BLOCK as u64
    }

    /// Offset of a block of the data region; of one far outside it, an offset that no device has.
    #[must_use]
    pub fn data(&self, block: u64) -> u64 {
        self.data_offset.saturating_add(block.saturating_mul(BLOCK as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_sound_and_use_the_device() {
        for size in [14 << 20, 100 << 20, (1 << 30) + 4095, 1 << 40] {
            let layout = Layout::plan(size, None).expect("large enough");
            assert!(layout.is_sound(), "{layout:?}");
            let data = layout.data_blocks * BLOCK as u64;
            assert!(data + layout.log_len + (size >> 9) + (64 << 10) > size, "{layout:?} wastes space");
        }
        let smallest = Layout::plan(1 << 20, None).expect_err("too small");
        assert!(Layout::plan(smallest, None).is_ok());
        assert!(Layout::plan(smallest - 4096, None).is_err());
    }
}
