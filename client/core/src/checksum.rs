//! CRC-32C of values and extents, over scattered memory.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C (Castagnoli; RFC 3720 appendix B.4) of one run of bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    truncated(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes))
}

/// CRC-32C of several pieces, as if they were one.
pub fn crc32c_of<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for piece in pieces {
        digest.update(piece);
    }
    truncated(digest.finalize())
}

/// The library returns every checksum as 64 bits; a CRC-32 has 32.
fn truncated(checksum: u64) -> u32 {
    u32::try_from(checksum & u64::from(u32::MAX)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_crc_32c_comes_out() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c_of([b"1234".as_slice(), b"", b"56789"]), 0xe306_9283);
    }
}
