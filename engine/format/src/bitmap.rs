//! Bitmaps of the data region: which blocks of a group the index refers to.

use super::COUNTER_END;
use crate::codec::{Decoder, Encode, Malformed, crc32c, crc32c_without};
use crate::page::{CRC_AT, seal, store_mark};
use uuid::Uuid;
use weir_media::BLOCK;

/// Words of a group's bitmap: what a block holds beside its header.
pub const GROUP_WORDS: usize = (BLOCK - MAP_HEADER) / 8;

/// Bytes before the bits in a stored bitmap.
pub(crate) const MAP_HEADER: usize = 32;

/// Blocks of a group: those that one stored bitmap describes, 127 MiB of data.
pub const GROUP_BLOCKS: u64 = GROUP_WORDS as u64 * 64;

/// The first bit of each quad of a word.
const FIRSTS: u64 = 0x1111_1111_1111_1111;

const MAP_MAGIC: u32 = u32::from_le_bytes(*b"WMAP");

/// The page of a group's bitmap.
#[must_use]
pub fn encode_map(group: u64, generation: u64, bits: &Bits, store: Uuid) -> Vec<u8> {
    let mut out = Vec::with_capacity(BLOCK);
    out.put_u32(MAP_MAGIC);
    out.put_u32(0);
    out.put_u64(store_mark(store));
    out.put_u64(generation);
    out.put_u64(group);
    debug_assert_eq!(out.len(), MAP_HEADER);
    out.extend_from_slice(&bits.to_bytes());
    seal(&mut out);
    out
}

/// Reads the bitmap of a group with its generation.
///
/// # Errors
/// When the page does not follow the format, or is not that of this group and store.
pub fn decode_map(page: &[u8], group: u64, store: Uuid) -> Result<(u64, Bits), Malformed> {
    let mut decoder = Decoder::new(page);
    if decoder.u32()? != MAP_MAGIC {
        return Err(Malformed("it does not begin as a bitmap"));
    }
    if decoder.u32()? != crc32c_without(page, CRC_AT) {
        return Err(Malformed("it does not match its checksum"));
    }
    if decoder.u64()? != store_mark(store) {
        return Err(Malformed("it belongs to another store"));
    }
    let generation = decoder.u64()?;
    if decoder.u64()? != group {
        return Err(Malformed("it belongs to another group: a write was misdirected"));
    }
    if generation >= COUNTER_END {
        return Err(Malformed("its number is impossible"));
    }
    let bits = Bits::from_bytes(decoder.rest()).ok_or(Malformed("it has another length"))?;
    Ok((generation, bits))
}

/// Checksum over the numbers of all groups' bitmaps, each with its slot, in the order of the groups.
#[must_use]
pub fn maps_checksum(maps: &[(u64, u64)]) -> u32 {
    let bytes: Vec<u8> = maps.iter().flat_map(|(number, _)| number.to_le_bytes()).collect();
    crc32c(&bytes)
}

/// Bits of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits(pub Box<[u64; GROUP_WORDS]>);

impl Default for Bits {
    fn default() -> Self {
        Self(Box::new([0; GROUP_WORDS]))
    }
}

impl Bits {
    /// Calls `each` with every word that the range touches and the mask of the touched bits.
    pub(crate) fn for_words(from: usize, to: usize, mut each: impl FnMut(usize, u64)) {
        let mut at = from;
        while at < to {
            let bit = at % 64;
            let count = (64 - bit).min(to - at);
            let mask = if count == 64 { u64::MAX } else { ((1 << count) - 1) << bit };
            each(at / 64, mask);
            at += count;
        }
    }

    /// Number of clear bits.
    #[must_use]
    pub fn clear_count(&self, from: usize, to: usize) -> u64 {
        let mut count = 0;
        Self::for_words(from, to, |word, mask| count += u64::from((mask & !self.0[word]).count_ones()));
        count
    }

    /// Sets bits and returns how many were clear, and in how many clear quads they were.
    pub fn set(&mut self, from: usize, to: usize) -> (u64, u64) {
        let (mut changed, mut quads) = (0, 0);
        Self::for_words(from, to, |word, mask| {
            let before = self.0[word];
            if mask & !before != 0 {
                self.0[word] |= mask;
                changed += u64::from((mask & !before).count_ones());
                quads += quads_left(before, before | mask);
            }
        });
        (changed, quads)
    }

    /// Clears bits and returns how many were set.
    pub fn clear(&mut self, from: usize, to: usize) -> u64 {
        let mut changed = 0;
        Self::for_words(from, to, |word, mask| {
            changed += u64::from((mask & self.0[word]).count_ones());
            self.0[word] &= !mask;
        });
        changed
    }

    /// Sets all bits that are set there.
    pub fn add(&mut self, other: &Self) {
        for (word, more) in self.0.iter_mut().zip(other.0.iter()) {
            *word |= more;
        }
    }

    /// Quads without a set bit among the words that the range touches.
    ///
    /// # Panics
    /// When the range reaches beyond the group.
    #[must_use]
    pub fn quads(&self, from: usize, to: usize) -> u64 {
        let words = &self.0[from / 64..to.div_ceil(64)];
        words.iter().map(|word| u64::from(whole_quads(*word).count_ones())).sum()
    }

    /// Number of set bits.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The first run of up to `wanted` clear bits in `from..to`: its start and length.
    #[must_use]
    pub fn find_clear(&self, from: usize, to: usize, wanted: usize) -> Option<(usize, usize)> {
        let mut at = from;
        while at < to {
            let ahead = !(self.0[at / 64] >> (at % 64));
            let skipped = ahead.trailing_zeros() as usize;
            if skipped + at % 64 >= 64 {
                at = (at / 64 + 1) * 64;
                continue;
            }
            at += skipped;
            if at >= to {
                return None;
            }
            return Some((at, self.clear_len(at, to.min(at + wanted))));
        }
        None
    }

    /// The most clear bits one behind the other in the first `to`.
    #[must_use]
    pub fn longest_clear(&self, to: usize) -> usize {
        let (mut at, mut longest) = (0, 0);
        while let Some((start, found)) = self.find_clear(at, to, to) {
            (at, longest) = (start + found, longest.max(found));
        }
        longest
    }

    /// Number of clear bits that end before `at`.
    #[must_use]
    pub fn clear_before(&self, at: usize) -> usize {
        let mut start = at;
        while start > 0 {
            let room = (start - 1) % 64 + 1;
            let clear = (self.0[(start - 1) / 64] << (64 - room)).leading_zeros() as usize;
            start -= clear.min(room);
            if clear < room {
                break;
            }
        }
        at - start
    }

    /// Number of clear bits from `at` on, up to `to`.
    #[must_use]
    pub fn clear_len(&self, at: usize, to: usize) -> usize {
        let mut end = at;
        while end < to {
            let set = (self.0[end / 64] >> (end % 64)).trailing_zeros() as usize;
            let room = 64 - end % 64;
            end += set.min(room);
            if set < room {
                break;
            }
        }
        end.min(to) - at
    }

    /// The words, little-endian.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// `None` unless there are exactly as many bytes as a group has.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut bits = Self::default();
        let (words, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() || words.len() != GROUP_WORDS {
            return None;
        }
        for (word, bytes) in bits.0.iter_mut().zip(words) {
            *word = u64::from_le_bytes(*bytes);
        }
        Some(bits)
    }
}

/// The first bits of the quads of a word in which no bit is set.
#[must_use]
pub fn whole_quads(word: u64) -> u64 {
    !(word | word >> 1 | word >> 2 | word >> 3) & FIRSTS
}

/// The quads of a word in which no bit was set before, and some are after.
fn quads_left(before: u64, after: u64) -> u64 {
    let left = whole_quads(before) & !whole_quads(after);
    if left == 0 { 0 } else { u64::from(left.count_ones()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: Uuid = Uuid::from_u128(5 << 100);

    #[test]
    fn bitmaps_survive_encoding() {
        let page = encode_map(3, 17, &Bits::default(), STORE);
        assert_eq!(page.len(), BLOCK);
        assert_eq!(decode_map(&page, 3, STORE), Ok((17, Bits::default())));
        assert!(decode_map(&page, 4, STORE).is_err());
        assert!(decode_map(&[0; BLOCK], 3, STORE).is_err());
    }
}
