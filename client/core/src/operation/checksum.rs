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

/// CRC-32C of each of the runs of these lengths that pieces consist of one behind the other.
pub fn crc32c_of_runs(pieces: &[&[u8]], lens: impl IntoIterator<Item = usize>) -> Vec<u32> {
    let mut pieces = pieces.iter();
    let mut rest: &[u8] = &[];
    let sum = |mut len: usize| {
        if len <= rest.len() {
            let (run, behind) = rest.split_at(len);
            rest = behind;
            return crc32c(run);
        }
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        while len > 0 {
            if rest.is_empty() {
                let Some(next) = pieces.next() else { break };
                rest = next;
                continue;
            }
            let (run, behind) = rest.split_at(len.min(rest.len()));
            digest.update(run);
            (len, rest) = (len - run.len(), behind);
        }
        truncated(digest.finalize())
    };
    lens.into_iter().map(sum).collect()
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

    #[test]
    fn runs_may_lie_across_pieces_and_pieces_hold_several_runs() {
        let pieces = [b"ab".as_slice(), b"", b"cdefgh", b"i"];
        let expected: Vec<u32> = [b"a".as_slice(), b"bcd", b"e", b"fghi"].map(crc32c).to_vec();
        assert_eq!(crc32c_of_runs(&pieces, [1, 3, 1, 4]), expected);
    }
}
