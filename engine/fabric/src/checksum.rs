//! CRC-32C of what is a few dozen bytes long: the headers of messages.
//!
//! Libraries are made for long inputs, and take longer to find the way for a short one than the processor takes to go it:
//! two headers are made and two checked for each request.
#![expect(unsafe_code, reason = "an instruction that not every processor of the architecture has")]

/// CRC-32C (Castagnoli) of these bytes.
#[must_use]
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instruction, as was found out just now.
        return unsafe { by_instruction(bytes) };
    }
    anywhere(bytes)
}

/// CRC-32C of the little-endian bytes of these words and of a shorter last one: for who has them at hand, and would have to
/// wait until they are in memory.
#[must_use]
#[inline]
pub fn crc32c_of_words(words: &[u64], last: u32) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instruction, as was found out just now.
        return unsafe { words_by_instruction(words, last) };
    }
    words_anywhere(words, last)
}

/// The same on any processor: what says what is right.
fn anywhere(bytes: &[u8]) -> u32 {
    low(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes))
}

/// The same of words.
fn words_anywhere(words: &[u64], last: u32) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    for word in words {
        digest.update(&word.to_le_bytes());
    }
    digest.update(&last.to_le_bytes());
    low(digest.finalize())
}

/// The CRC of 32 bits comes in the low half.
fn low(sum: u64) -> u32 {
    u32::try_from(sum & 0xffff_ffff).unwrap_or(0)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn by_instruction(bytes: &[u8]) -> u32 {
    use core::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(0xffff_ffff, |sum, word| _mm_crc32_u64(sum, u64::from_le_bytes(*word)));
    let mut sum = u32::try_from(sum).unwrap_or(0);
    let (halves, rest) = rest.as_chunks::<4>();
    for half in halves {
        sum = _mm_crc32_u32(sum, u32::from_le_bytes(*half));
    }
    !rest.iter().fold(sum, |sum, byte| _mm_crc32_u8(sum, *byte))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn words_by_instruction(words: &[u64], last: u32) -> u32 {
    use core::arch::x86_64::{_mm_crc32_u32, _mm_crc32_u64};
    let sum = words.iter().fold(0xffff_ffff, |sum, word| _mm_crc32_u64(sum, *word));
    !_mm_crc32_u32(u32::try_from(sum).unwrap_or(0), last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn it_is_the_crc_of_the_standard() {
        // The check value of the catalogue of CRC algorithms.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
    }

    proptest! {
        #[test]
        fn the_instruction_gives_what_the_library_gives(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(crc32c(&bytes), anywhere(&bytes));
        }

        #[test]
        fn words_have_the_sum_of_their_bytes(words in prop::collection::vec(any::<u64>(), 0..20), last: u32) {
            let bytes = words.iter().flat_map(|word| word.to_le_bytes()).chain(last.to_le_bytes());
            let sum = anywhere(&bytes.collect::<Vec<u8>>());
            prop_assert_eq!(crc32c_of_words(&words, last), sum);
            prop_assert_eq!(words_anywhere(&words, last), sum);
        }
    }
}
