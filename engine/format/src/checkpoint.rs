//! The checkpoint header: which tree and which bitmaps are the stable state, and where the log goes on from there.
//!
//! Two slots of two copies each. A generation goes to the slot of its parity, so that the one before stays intact
//! until the new one is stable.

use super::COUNTER_END;
use crate::codec::{Decoder, Encode, Malformed, crc32c_without};
use crate::node::PageRef;
use uuid::Uuid;
use weir_media::BLOCK;

const MAGIC: [u8; 8] = *b"WEIRCKPT";
const CRC_AT: usize = 8;

/// So many numbers before their end a header is told of.
const COUNTERS_LEFT_MIN: u64 = 1 << 32;

/// Blocks of all slots and copies.
pub const CHECKPOINT_BLOCKS: u64 = 4;

/// Offset of a copy (0 or 1) of a generation.
#[must_use]
pub const fn checkpoint_offset(generation: u64, copy: u64) -> u64 {
    (1 + (generation % 2) * 2 + copy) * BLOCK as u64
}

/// A checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Counts header writes.
    pub generation: u64,
    /// Number of the checkpoint: bitmaps and nodes with a higher one are left from an attempt that failed. Never used
    /// again after such an attempt.
    pub number: u64,
    /// Counts opens of the store: log batches of an earlier one can't follow those of a later one.
    pub incarnation: u64,
    /// Root node of the index.
    pub root: PageRef,
    /// Entries of the index.
    pub entries: u64,
    /// Byte position in the log ring where replay starts.
    pub log_position: u64,
    /// Number of the batch expected there.
    pub log_sequence: u64,
    /// Checksum of the batch before.
    pub log_previous: u32,
    /// Checksum over the generations of all groups' bitmaps: tells that each one found is the right one.
    pub maps: u32,
    /// Newest epoch of any change so far; 0 when none was noted.
    pub newest: u64,
    /// Records at the start of replay whose changes the checkpoint has already.
    pub known: u64,
    /// Where the scrubber is.
    pub scrub: ScrubPosition,
    /// Log batches of lower numbers were stable when this was written; 0 in headers of earlier releases.
    pub stable: u64,
    /// Device size at format, so that the copy of the superblock is found without the first; 0 in headers of earlier releases.
    pub size: u64,
    /// Newest time of decisions of transactions that were forgotten; 0 in headers of earlier releases.
    pub forgotten: u64,
}

/// Bytes of a key that are kept to go on with a pass of the scrubber: those that name container, object and the
/// beginning of a dkey. It goes on a little before where it was.
const SCRUB_KEY: usize = 64;

/// Where the scrubber is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubPosition {
    /// Wall time of the begin of the pass under way, or of the last one, nanoseconds since 1970; 0 before the first.
    pub begin_ns: u64,
    /// The beginning of the index key where the pass goes on; zeros when none is under way.
    key: [u8; SCRUB_KEY],
}

impl ScrubPosition {
    /// A pass that began then goes on at this key; at none when it is over.
    #[must_use]
    pub fn new(begin_ns: u64, from: &[u8]) -> Self {
        let mut key = [0; SCRUB_KEY];
        let len = from.len().min(SCRUB_KEY);
        key[..len].copy_from_slice(&from[..len]);
        Self { begin_ns, key }
    }

    /// Where the pass goes on, at the latest; empty when none is under way.
    #[must_use]
    pub fn resume(&self) -> &[u8] {
        let end = self.key.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        &self.key[..end]
    }
}

impl Default for ScrubPosition {
    fn default() -> Self {
        Self::new(0, &[])
    }
}

impl Checkpoint {
    /// The block that holds this header of a store.
    #[must_use]
    pub fn encode(&self, store: Uuid) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK);
        out.extend_from_slice(&MAGIC);
        out.put_u32(0);
        out.put_u32(0);
        out.extend_from_slice(store.as_bytes());
        out.put_u64(self.generation);
        out.put_u64(self.number);
        out.put_u64(self.incarnation);
        out.put_u64(self.root.block);
        out.put_u32(self.root.len);
        out.put_u32(self.root.crc);
        out.put_u64(self.entries);
        out.put_u64(self.log_position);
        out.put_u64(self.log_sequence);
        out.put_u32(self.log_previous);
        out.put_u32(self.maps);
        out.put_u64(self.newest);
        out.put_u64(self.known);
        out.put_u64(self.scrub.begin_ns);
        out.extend_from_slice(&self.scrub.key);
        out.put_u64(self.stable);
        out.put_u64(self.size);
        out.put_u64(self.forgotten);
        out.resize(BLOCK, 0);
        let crc = crc32c_without(&out, CRC_AT);
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a header of this store.
    ///
    /// # Errors
    /// When the block is no intact header of this store.
    pub fn decode(block: &[u8], store: Uuid) -> Result<Self, Malformed> {
        let (header, owner) = Self::decode_any(block)?;
        if owner == store { Ok(header) } else { Err(Malformed("it belongs to another store")) }
    }

    /// Reads a header with the identity of its store.
    ///
    /// # Errors
    /// When the block is no intact header.
    pub fn decode_any(block: &[u8]) -> Result<(Self, Uuid), Malformed> {
        let mut decoder = Decoder::new(block);
        if decoder.array()? != MAGIC {
            return Err(Malformed("it does not begin as a checkpoint header"));
        }
        let crc = decoder.u32()?;
        if crc32c_without(block, CRC_AT) != crc {
            return Err(Malformed("it does not match its checksum"));
        }
        decoder.u32()?;
        let store = Uuid::from_bytes(decoder.array()?);
        let header = Self {
            generation: decoder.u64()?,
            number: decoder.u64()?,
            incarnation: decoder.u64()?,
            root: PageRef { block: decoder.u64()?, len: decoder.u32()?, crc: decoder.u32()? },
            entries: decoder.u64()?,
            log_position: decoder.u64()?,
            log_sequence: decoder.u64()?,
            log_previous: decoder.u32()?,
            maps: decoder.u32()?,
            newest: decoder.u64()?,
            known: decoder.u64()?,
            scrub: ScrubPosition { begin_ns: decoder.u64()?, key: decoder.array()? },
            stable: decoder.u64()?,
            size: decoder.u64()?,
            forgotten: decoder.u64()?,
        };
        if header.highest_counter() >= COUNTER_END {
            return Err(Malformed("one of its counters is impossible"));
        }
        Ok((header, store))
    }

    /// The highest of the numbers that go up by ones.
    fn highest_counter(&self) -> u64 {
        let Self { generation, number, incarnation, log_sequence, known, stable, .. } = *self;
        [generation, number, incarnation, log_sequence, known, stable].into_iter().fold(0, u64::max)
    }

    /// Whether a store that goes on counting from here will be one that nobody opens. None got there by counting.
    #[must_use]
    pub fn is_nearly_spent(&self) -> bool {
        self.highest_counter() >= COUNTER_END - COUNTERS_LEFT_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_encoding_and_belong_to_one_store() {
        let header = Checkpoint {
            generation: 5,
            number: 4,
            incarnation: 2,
            root: PageRef { block: 77, len: 4096, crc: 9 },
            entries: 1000,
            log_position: 8192,
            log_sequence: 44,
            log_previous: 3,
            maps: 8,
            newest: 1 << 60,
            known: 12,
            scrub: ScrubPosition::new(1 << 60, &[5; 100]),
            stable: 45,
            size: 64 << 20,
            forgotten: 1 << 59,
        };
        let block = header.encode(Uuid::from_u128(1));
        assert_eq!(Checkpoint::decode(&block, Uuid::from_u128(1)), Ok(header));
        assert!(Checkpoint::decode(&block, Uuid::from_u128(2)).is_err());
        let spent = Checkpoint { incarnation: COUNTER_END, ..header }.encode(Uuid::from_u128(1));
        assert!(Checkpoint::decode(&spent, Uuid::from_u128(1)).is_err());
        assert!(
            Checkpoint { number: COUNTER_END - 1, ..header }.is_nearly_spent() && !header.is_nearly_spent()
        );
        let mut damaged = block;
        damaged[100] ^= 1;
        assert!(Checkpoint::decode(&damaged, Uuid::from_u128(1)).is_err());
        assert_ne!(checkpoint_offset(4, 1), checkpoint_offset(5, 0));
    }

    #[test]
    fn a_scrubber_goes_on_where_it_was_or_a_little_before() {
        assert_eq!(ScrubPosition::default().resume(), b"");
        for key in [b"\x05abc".as_slice(), b"\x05a\0\0", &[7; 64], &[7; 65], &[0; 3]] {
            let position = ScrubPosition::new(1, key);
            assert!(position.resume() <= key && key.starts_with(position.resume()), "{key:?}");
        }
        assert_eq!(ScrubPosition::new(1, &[7; 70]).resume(), [7; 64]);
    }
}
