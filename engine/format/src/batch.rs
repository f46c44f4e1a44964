//! Batches of the log: records that were made durable by one flush.

use crate::checksum::flipped_bit;
use crate::codec::{Decoder, Encode, crc32c_without};
use crate::record::RECORD_MAX;
use uuid::Uuid;
use weir_media::BLOCK;

const MAGIC: u32 = u32::from_le_bytes(*b"WLOG");
const CRC_AT: usize = 4;

/// Longest batch: the bytes after which a batch takes no more records, one more record, and the header.
pub const BATCH_MAX: u64 = (1 << 20) + RECORD_MAX as u64 + BLOCK as u64;

/// Bytes of a batch before its records.
pub const BATCH_HEADER: usize = 64;

/// What a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchKind {
    /// Records.
    Records,
    /// Nothing: the log goes on at the start of the ring.
    Wrap,
}

/// A batch without its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// What it is.
    pub kind: BatchKind,
    /// Its number: that of the batch before and one.
    pub sequence: u64,
    /// The open of the store that wrote it.
    pub incarnation: u64,
    /// Checksum of the batch before.
    pub previous: u32,
    /// Bytes of header and records; the batch takes whole blocks.
    pub len: u32,
    /// Checksum of header and records, this field counted as zeros.
    pub crc: u32,
}

impl Batch {
    /// Bytes that the batch takes in the ring.
    #[must_use]
    pub fn blocks_len(&self) -> u64 {
        u64::from(self.len).next_multiple_of(BLOCK as u64)
    }
}

fn store_mark(store: Uuid) -> u64 {
    u64::from_le_bytes(store.as_bytes()[8..].try_into().unwrap_or_default())
}

/// The header of a batch, to be put before its records and sealed with [`seal_batch`].
#[must_use]
pub fn batch_header(batch: &Batch, store: Uuid) -> Vec<u8> {
    let mut out = Vec::with_capacity(BATCH_HEADER);
    out.put_u32(MAGIC);
    out.put_u32(0);
    out.put_u64(store_mark(store));
    out.put_u64(batch.sequence);
    out.put_u64(batch.incarnation);
    out.put_u32(batch.previous);
    out.put_u32(batch.len);
    out.put_u8(match batch.kind {
        BatchKind::Records => 0,
        BatchKind::Wrap => 1,
    });
    out.resize(BATCH_HEADER, 0);
    out
}

/// Puts the checksum over header and records (without padding) into the header and returns it.
pub fn seal_batch(bytes: &mut [u8]) -> u32 {
    let crc = crc32c_without(bytes, CRC_AT);
    bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// Reads a batch header; its checksum isn't checked yet, because that takes all its `len` bytes.
#[must_use]
pub fn probe_batch(bytes: &[u8], store: Uuid) -> Option<Batch> {
    let mut decoder = Decoder::new(bytes);
    let magic = decoder.u32().ok()?;
    let crc = decoder.u32().ok()?;
    let mark = decoder.u64().ok()?;
    let (sequence, incarnation) = (decoder.u64().ok()?, decoder.u64().ok()?);
    let (previous, len) = (decoder.u32().ok()?, decoder.u32().ok()?);
    let kind = match decoder.u8().ok()? {
        0 => BatchKind::Records,
        1 => BatchKind::Wrap,
        _ => return None,
    };
    let plausible = magic == MAGIC && mark == store_mark(store) && len as usize >= BATCH_HEADER;
    plausible.then_some(Batch { kind, sequence, incarnation, previous, len, crc })
}

impl Batch {
    /// Whether these bytes, header included, are the whole batch and match its checksum.
    #[must_use]
    pub fn matches(&self, bytes: &[u8]) -> bool {
        bytes.get(..self.len as usize).is_some_and(|bytes| crc32c_without(bytes, CRC_AT) == self.crc)
    }

    /// The batch with the flipped bit turned back, and the byte of that, when these bytes would be the batch but for one bit, which
    /// its header doesn't tell other bytes by.
    #[must_use]
    pub fn turned_back(&self, bytes: &[u8]) -> Option<(u64, Vec<u8>)> {
        let bytes = bytes.get(..self.len as usize)?;
        let bit = flipped_bit(crc32c_without(bytes, CRC_AT) ^ self.crc, bytes.len())?;
        let mut whole = bytes.to_vec();
        whole[bit / 8] ^= 1 << (bit % 8);
        self.matches(&whole).then_some((bit as u64 / 8, whole))
    }
}

/// A header as it would be had one of its bits not flipped: the byte of each bit, and the header.
pub fn flips_of_header(header: [u8; BATCH_HEADER]) -> impl Iterator<Item = (u64, [u8; BATCH_HEADER])> {
    (0..BATCH_HEADER * 8).map(move |bit| {
        let mut other = header;
        other[bit / 8] ^= 1 << (bit % 8);
        (bit as u64 / 8, other)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_sealed_batch_is_recognised_until_a_bit_flips() {
        let store = Uuid::from_u128(11);
        let batch =
            Batch { kind: BatchKind::Records, sequence: 4, incarnation: 2, previous: 9, len: 68, crc: 0 };
        let mut bytes = batch_header(&batch, store);
        bytes.extend_from_slice(b"data");
        let crc = seal_batch(&mut bytes);
        let found = probe_batch(&bytes, store).expect("a header");
        assert_eq!(found, Batch { crc, ..batch });
        assert!(found.matches(&bytes));
        assert!(probe_batch(&bytes, Uuid::from_u128(12 << 64)).is_none());
        bytes[66] ^= 1;
        assert!(!found.matches(&bytes));
        assert!(!found.matches(&bytes[..60]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_probed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Some(batch) = probe_batch(&bytes, Uuid::nil()) {
                let _ = batch.matches(&bytes);
            }
        }
    }
}
