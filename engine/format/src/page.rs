//! What pages of nodes and bitmaps have in common: checksum, and mark of their store.

use crate::codec::crc32c_without;
use uuid::Uuid;

/// Where a page has its checksum.
pub const CRC_AT: usize = 4;

/// What a page has of the identity of its store.
#[must_use]
pub fn store_mark(store: Uuid) -> u64 {
    u64::from_le_bytes(store.as_bytes()[..8].try_into().unwrap_or_default())
}

/// Puts the checksum of a page into it, and returns it.
pub fn seal(page: &mut [u8]) -> u32 {
    let crc = crc32c_without(page, CRC_AT);
    page[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    crc
}
