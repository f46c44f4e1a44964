//! Checksums of data put together from parts whose checksums are known, without a look at the data.
//!
//! A CRC is a remainder of polynomials over GF(2) (Peterson and Brown, 1961), so that of two runs of bytes one behind the
//! other follows from theirs: that of the first, multiplied by x to the power of the bits of the second, plus that of the
//! second. What a reader gets so is a function of what the writer computed; bytes that changed in between don't enter it.

use crate::codec::crc32c;
use crate::size::in_memory;
use smallvec::SmallVec;
use weir_proto::chunk::Chunks;

/// Checksums of chunks. Most values have one or two.
pub type Checksums = SmallVec<[u32; 2]>;

/// The polynomial of CRC-32C, x³² left out, with the highest power in the lowest bit (RFC 3720 §12.1).
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// x to the power of 8 · 2ⁿ: what 2ⁿ bytes behind it multiply a remainder by.
const POWERS: [u32; 64] = powers();

const fn powers() -> [u32; 64] {
    let mut powers = [0; 64];
    let (mut power, mut at) = (ONE >> 8, 0);
    while at < powers.len() {
        powers[at] = power;
        power = multiply(power, power);
        at += 1;
    }
    powers
}

/// The product of two polynomials, modulo the polynomial of the checksum.
const fn multiply(left: u32, mut right: u32) -> u32 {
    let (mut product, mut bit) = (0, ONE);
    while bit != 0 {
        product ^= right & 0u32.wrapping_sub((left & bit != 0) as u32);
        right = (right >> 1) ^ (POLYNOMIAL & 0u32.wrapping_sub(right & 1));
        bit >>= 1;
    }
    product
}

/// A remainder with `len` bytes of zeros behind it.
fn shift(mut remainder: u32, mut len: u64) -> u32 {
    while len != 0 {
        let power = POWERS[(len.trailing_zeros() & 63) as usize];
        remainder = multiply(power, remainder);
        len &= len - 1;
    }
    remainder
}

/// The checksum of two runs of bytes as if they were one, the second of `len` bytes.
#[must_use]
pub fn join(first: u32, second: u32, len: u64) -> u32 {
    // An empty run's checksum is 0, and nearly always there is but one part.
    if first == 0 { second } else { shift(first, len) ^ second }
}

/// The checksum of `len` bytes of zeros.
#[must_use]
pub fn of_zeros(len: u64) -> u32 {
    !shift(u32::MAX, len)
}

/// The checksum of each chunk of some data.
#[must_use]
pub fn of_chunks(chunks: Chunks, data: &[u8]) -> Checksums {
    sums(chunks, data).collect()
}

/// Whether these are the checksums of the chunks of some data.
#[must_use]
pub fn are_of_chunks(checksums: &[u32], chunks: Chunks, data: &[u8]) -> bool {
    sums(chunks, data).eq(checksums.iter().copied())
}

/// Which of `len` bytes' bits has flipped when that alone changes their checksum by `difference`; bits are counted from the
/// first byte's lowest.
#[must_use]
pub fn flipped_bit(difference: u32, len: usize) -> Option<usize> {
    // What the last bit's flip makes of the checksum, and each bit before it that multiplied by x.
    let mut flip = POLYNOMIAL;
    for bit in (0..len * 8).rev() {
        if flip == difference {
            return Some(bit);
        }
        flip = (flip >> 1) ^ (POLYNOMIAL & 0u32.wrapping_sub(flip & 1));
    }
    None
}

fn sums(chunks: Chunks, data: &[u8]) -> impl Iterator<Item = u32> {
    let usable = |at: u64| in_memory(at).min(data.len());
    chunks.ranges().map(move |range| crc32c(&data[usable(range.start)..usable(range.end)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_parts_checksums_give_that_of_the_whole(
            data in proptest::collection::vec(any::<u8>(), 0..700), cuts in proptest::collection::vec(0usize..700, 0..5), zeros in 0usize..300,
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(data.len())).collect();
            cuts.extend([0, data.len()]);
            cuts.sort_unstable();
            let parts = cuts.windows(2).map(|pair| &data[pair[0]..pair[1]]);
            let whole = parts.fold(0, |sum, part| join(sum, crc32c(part), part.len() as u64));
            prop_assert_eq!(whole, crc32c(&data));
            let padded = [&data[..], &vec![0; zeros]].concat();
            prop_assert_eq!(join(whole, of_zeros(zeros as u64), zeros as u64), crc32c(&padded));
        }
    }

    proptest! {
        #[test]
        fn a_flipped_bit_is_found_by_what_it_makes_of_the_checksum(
            mut data in proptest::collection::vec(any::<u8>(), 1..300), at in any::<proptest::sample::Index>(), other in any::<proptest::sample::Index>(),
        ) {
            let (bits, before) = (data.len() * 8, crc32c(&data));
            let (bit, other) = (at.index(bits), other.index(bits));
            data[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(flipped_bit(before ^ crc32c(&data), data.len()), Some(bit));
            data[other / 8] ^= 1 << (other % 8);
            // CRC-32C tells any three flipped bits of so few bytes from none.
            prop_assert_eq!(flipped_bit(before ^ crc32c(&data), data.len()), None);
        }
    }

    #[test]
    fn long_runs_of_zeros_and_chunks_have_the_checksums_that_their_bytes_have() {
        let zeros = vec![0; 3 << 20];
        assert_eq!(of_zeros(3 << 20), crc32c(&zeros));
        assert_eq!(of_zeros(0), 0);
        let sums = of_chunks(Chunks::new(10, 3, 4), b"0123456789");
        assert_eq!(sums[..], [crc32c(b"012"), crc32c(b"3456"), crc32c(b"789")]);
        assert_eq!(
            sums.iter().zip([3, 4, 3]).fold(0, |sum, (part, len)| join(sum, *part, len)),
            crc32c(b"0123456789")
        );
    }
}
