//! CRC-32C of values and extents.

use crc_fast::CrcAlgorithm;
use weir_proto::object::Value;

/// CRC-32C (Castagnoli; RFC 3720 appendix B.4) of a run of bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    // The library returns every checksum as 64 bits; a CRC-32 has 32.
    u32::try_from(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) & u64::from(u32::MAX))
        .unwrap_or_default()
}

/// Lengths in bytes of the pieces that have a checksum each: the single value, or every extent.
pub fn pieces(value: &Value, record_size: u64) -> Vec<u64> {
    match value {
        Value::Single { size } => vec![*size],
        Value::Array { extents, .. } => {
            extents.iter().map(|extent| extent.count.saturating_mul(record_size)).collect()
        }
    }
}

/// The checksum of each piece at the start of `data`; `None` when there is less data than the pieces have.
pub fn of_pieces(pieces: &[u64], mut data: &[u8]) -> Option<Vec<u32>> {
    let mut sums = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let (head, rest) = data.split_at_checked(usize::try_from(*piece).ok()?)?;
        sums.push(crc32c(head));
        data = rest;
    }
    Some(sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::object::Extent;

    #[test]
    fn the_check_value_of_crc_32c_comes_out() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn every_extent_has_a_checksum_of_its_own() {
        let extents = vec![Extent { index: 0, count: 2 }, Extent { index: 9, count: 1 }];
        let lengths = pieces(&Value::Array { record_size: 3, extents }, 3);
        assert_eq!(lengths, [6, 3]);
        assert_eq!(of_pieces(&lengths, b"123456789"), Some(vec![crc32c(b"123456"), crc32c(b"789")]));
        assert_eq!(of_pieces(&lengths, b"12345678"), None);
    }
}
