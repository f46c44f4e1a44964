//! Reading and writing of the on-disk encodings. All integers are little-endian; varints are LEB128.

use core::ops::Range;
use weir_media::prefetch;

/// Bytes don't follow the format. Says what was expected; the caller adds where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// Appends encoded fields to bytes.
pub trait Encode {
    /// Appends a byte.
    fn put_u8(&mut self, value: u8);
    /// Appends a little-endian number of four bytes.
    fn put_u32(&mut self, value: u32);
    /// Appends a little-endian number of eight bytes.
    fn put_u64(&mut self, value: u64);
    /// Appends a varint.
    fn put_varint(&mut self, value: u64);
}

impl Encode for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }

    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.push((value & 0x7f) as u8);
    }
}

/// Takes encoded fields from the front of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// Begins at the first of these bytes.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether all bytes are taken.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The bytes that are not taken yet.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Takes so many bytes.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Malformed("it ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// Takes so many bytes as an array.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Malformed("it ends too early"))?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Takes a byte.
    ///
    /// # Errors
    /// When there is none.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    /// Takes a little-endian number of four bytes.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Takes a little-endian number of eight bytes.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Takes a varint.
    ///
    /// # Errors
    /// When it does not end, or does not fit 64 bits.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, Malformed> {
        // Most are short.
        if let [byte @ ..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u64::from(*byte));
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Malformed("a number is too large"));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed("a number is too large"))
    }

    /// A varint that counts something in memory, at most `limit`.
    ///
    /// # Errors
    /// When it is more than that.
    pub fn count(&mut self, limit: usize) -> Result<usize, Malformed> {
        let value = usize::try_from(self.varint()?).map_err(|_| Malformed("a count is too large"))?;
        if value > limit { Err(Malformed("a count is too large")) } else { Ok(value) }
    }
}

/// How many bytes two texts begin with that are the same.
#[must_use]
pub fn shared_len(a: &[u8], b: &[u8]) -> usize {
    let (words, _) = a.as_chunks::<8>();
    let (others, _) = b.as_chunks::<8>();
    let mut len = 0;
    for (word, other) in words.iter().zip(others) {
        let differing = u64::from_le_bytes(*word) ^ u64::from_le_bytes(*other);
        if differing != 0 {
            return len + differing.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    len + a[len..].iter().zip(&b[len..]).take_while(|(a, b)| a == b).count()
}

/// CRC-32C, the checksum of everything on the device: computed by one instruction per eight bytes on all supported
/// processors, and it detects all errors of up to 5 bits in the longest page.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    // The library returns 64 bits for every algorithm; those of a CRC-32 are the low ones.
    (crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) & 0xffff_ffff) as u32
}

/// Bytes that are summed and then copied: the copy finds them in the processor's nearest cache.
const STEP: usize = 2048;

/// Up to this many bytes, a digest of its own costs more than it spares.
const WHOLE: usize = 4 * STEP;

/// How far ahead of them the next ones are asked for, so that they are there when it is their turn.
const AHEAD: usize = 8 * STEP;

/// Copies a range of bytes, which the other ones are as long as, and returns the CRC-32C of what was copied. What lies behind
/// the range is most likely read next.
pub fn crc32c_of_copy(bytes: &[u8], range: Range<usize>, into: &mut [u8]) -> u32 {
    let all = &bytes[range.clone()];
    if all.len() <= WHOLE {
        let sum = crc32c(all);
        into.copy_from_slice(all);
        return sum;
    }
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    let mut at = range.start;
    for (step, into) in all.chunks(STEP).zip(into.chunks_mut(STEP)) {
        let next = (at + AHEAD).min(bytes.len())..(at + AHEAD + STEP).min(bytes.len());
        prefetch(&bytes[next]);
        digest.update(step);
        into.copy_from_slice(step);
        at += step.len();
    }
    (digest.finalize() & 0xffff_ffff) as u32
}

/// CRC-32C of bytes whose four bytes at `field` hold that checksum: they count as zeros.
#[must_use]
pub fn crc32c_without(bytes: &[u8], field: usize) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&bytes[..field.min(bytes.len())]);
    digest.update(&[0; 4]);
    digest.update(bytes.get(field + 4..).unwrap_or_default());
    (digest.finalize() & 0xffff_ffff) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_encoding() {
        for value in [0, 1, 127, 128, 300, 1 << 35, u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            bytes.put_varint(value);
            let mut decoder = Decoder::new(&bytes);
            assert_eq!(decoder.varint(), Ok(value));
            assert!(decoder.is_empty());
        }
    }

    #[test]
    fn texts_share_what_they_begin_with() {
        let text = b"a text of more than two words of eight";
        for shared in 0..text.len() {
            let mut other = text.to_vec();
            other[shared] ^= 0x80;
            assert_eq!(shared_len(text, &other), shared);
            assert_eq!(shared_len(&text[..shared], text), shared);
            assert_eq!(shared_len(text, &text[..shared]), shared);
        }
    }

    #[test]
    fn overlong_and_cut_numbers_are_refused() {
        assert!(Decoder::new(&[0xff; 10]).varint().is_err());
        assert!(Decoder::new(&[0xff; 3]).varint().is_err());
        assert!(Decoder::new(&[5]).count(4).is_err());
        assert!(Decoder::new(&[1, 2, 3]).u32().is_err());
    }

    #[test]
    fn the_checksum_is_the_standard_one() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        for len in [0, 9, WHOLE, WHOLE + 1, WHOLE + STEP, AHEAD + WHOLE + 7] {
            let bytes: Vec<u8> = (0..len + 10).map(|at| u8::try_from(at % 251).expect("small")).collect();
            let mut copy = vec![0; len];
            assert_eq!(crc32c_of_copy(&bytes, 3..len + 3, &mut copy), crc32c(&bytes[3..len + 3]));
            assert_eq!(copy, bytes[3..len + 3]);
        }
        assert_eq!(crc32c_without(b"12345\xaa\xbb\xcc\xdd6789", 5), crc32c(b"12345\0\0\0\x006789"));
    }
}
