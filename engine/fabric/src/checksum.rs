//! CRC-32C of a few dozen bytes: message headers.
//!
//! Libraries are made for long inputs, and take longer to select an algorithm than a short input takes. Each
//! request makes two headers and checks two.
#![expect(unsafe_code, reason = "an instruction that not every processor of the architecture has")]

/// CRC-32C (Castagnoli) of the little-endian bytes of these words and of a shorter last one. Their number is part of the
/// type, so that there is no loop.
#[must_use]
#[inline]
pub fn crc32c_of_words<const N: usize>(words: &[u64; N], last: u32) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instruction, as was found out just now.
        return unsafe { by_instruction(words, last) };
    }
    anywhere(words, last)
}

/// The same on any processor: what says what is right.
fn anywhere(words: &[u64], last: u32) -> u32 {
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
fn by_instruction<const N: usize>(words: &[u64; N], last: u32) -> u32 {
    use core::arch::x86_64::{_mm_crc32_u32, _mm_crc32_u64};
    let sum = words.iter().fold(0xffff_ffff, |sum, word| _mm_crc32_u64(sum, *word));
    !_mm_crc32_u32(u32::try_from(sum).unwrap_or(0), last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of_bytes(words: &[u64], last: u32) -> u32 {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes()).chain(last.to_le_bytes());
        low(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes.collect::<Vec<u8>>()))
    }

    #[test]
    fn it_is_the_crc_of_the_standard() {
        // Test patterns of RFC 3720, B.4: with its CRC behind it, every message has the same one.
        let ascending = core::array::from_fn(|at| 0x0706_0504_0302_0100 + 0x0808_0808_0808_0808 * at as u64);
        for (words, crc) in [([0; 4], 0x8a91_36aa), ([u64::MAX; 4], 0x62a8_ab43), (ascending, 0x46dd_794e)] {
            assert_eq!((crc32c_of_words(&words, crc), anywhere(&words, crc)), (0x4867_4bc7, 0x4867_4bc7));
        }
    }

    proptest! {
        #[test]
        fn words_have_the_sum_of_their_bytes(words: [u64; 8], last: u32) {
            let sum = of_bytes(&words, last);
            prop_assert_eq!(crc32c_of_words(&words, last), sum);
            prop_assert_eq!(anywhere(&words, last), sum);
            prop_assert_eq!(crc32c_of_words(&[words[0]], last), of_bytes(&words[..1], last));
        }
    }
}
