//! Space that entries and values count for.

use crate::codec::{Decoder, Encode, Malformed};
use crate::reserved;
use weir_media::BLOCK;

/// Bytes that an entry takes in a node beyond key and value.
const ENTRY_OVERHEAD: u64 = 6;

/// Space of metadata is counted with half as much again: nodes are two thirds full on average (random inserts split
/// nodes in half and fill them up again: ln 2 ≈ 69 %).
const FILL_NUMERATOR: u64 = 3;

const FILL_DENOMINATOR: u64 = 2;

/// What a container, or a pool by itself, uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks of data extents.
    pub blocks: u64,
    /// Bytes of keys and values in the index.
    pub entries: u64,
    /// Bytes that are kept for records which aren't written yet.
    pub reserved: u64,
}

impl Usage {
    /// What an entry counts for whose value has so many blocks.
    ///
    /// # Errors
    /// When a reservation does not follow the format.
    pub fn of_entry(key: &[u8], value: &[u8], blocks: u64) -> Result<Self, Malformed> {
        let entries = entry_bytes(key.len(), value.len());
        Ok(Self { blocks, entries, reserved: reserved::bytes_of(key, value)? })
    }

    /// Bytes of data extents.
    #[must_use]
    pub fn data(self) -> u64 {
        self.blocks.saturating_mul(BLOCK as u64)
    }

    /// Bytes that keys and values take in the index, estimated.
    #[must_use]
    pub fn metadata(self) -> u64 {
        self.entries.saturating_mul(FILL_NUMERATOR) / FILL_DENOMINATOR
    }

    /// Bytes that count against the pool.
    #[must_use]
    pub fn total(self) -> u64 {
        self.data().saturating_add(self.metadata()).saturating_add(self.reserved)
    }

    /// The value of its entry.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64(self.blocks);
        out.put_u64(self.entries);
        if self.reserved > 0 {
            out.put_u64(self.reserved);
        }
        out
    }

    /// Reads the value of an entry.
    ///
    /// # Errors
    /// When it has another length.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut decoder = Decoder::new(bytes);
        let (blocks, entries) = (decoder.u64()?, decoder.u64()?);
        let reserved = if decoder.is_empty() { 0 } else { decoder.u64()? };
        if decoder.is_empty() {
            return Ok(Self { blocks, entries, reserved });
        }
        Err(Malformed("a value has bytes behind its end"))
    }
}

impl core::ops::AddAssign for Usage {
    fn add_assign(&mut self, more: Self) {
        self.blocks = self.blocks.saturating_add(more.blocks);
        self.entries = self.entries.saturating_add(more.entries);
        self.reserved = self.reserved.saturating_add(more.reserved);
    }
}

impl core::ops::SubAssign for Usage {
    /// Counters never go below zero.
    fn sub_assign(&mut self, less: Self) {
        self.blocks = self.blocks.saturating_sub(less.blocks);
        self.entries = self.entries.saturating_sub(less.entries);
        self.reserved = self.reserved.saturating_sub(less.reserved);
    }
}

/// Bytes that an entry counts for.
#[must_use]
pub fn entry_bytes(key: usize, value: usize) -> u64 {
    entries_bytes(1, key + value)
}

/// Bytes that so many entries count for, with so many bytes of keys and values.
#[must_use]
pub fn entries_bytes(count: usize, bytes: usize) -> u64 {
    bytes as u64 + count as u64 * ENTRY_OVERHEAD
}
