//! Lengths and counts of the device as lengths in memory.

/// A length, a count or an index that the format has in 64 bits, as what memory is indexed with. The conversion loses nothing:
/// the store is compiled for processors with 64-bit addresses only.
#[must_use]
#[inline]
pub const fn in_memory(value: u64) -> usize {
    usize::from_ne_bytes(value.to_ne_bytes())
}
