//! The log as a ring of batches: where it goes on, and whether a batch would be there but for one bit.

use crate::Layout;
use crate::batch::{BATCH_HEADER, BATCH_MAX, Batch, BatchKind, flips_of_header, probe_batch};
use crate::checkpoint::Checkpoint;
use crate::codec::crc32c;
use crate::key;
use crate::record::{Change, Records};
use crate::value::{Payload, Version};
use uuid::Uuid;
use weir_media::BLOCK;

/// Where the log ring stands.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Bytes of the ring.
    pub len: u64,
    /// Where the next batch goes.
    pub position: u64,
    /// Its number.
    pub sequence: u64,
    /// Checksum of the batch before it.
    pub previous: u32,
    /// Bytes written since the ring was made, wrapped ends included.
    pub written: u64,
    /// Bytes of those that recovery no longer needs.
    pub trimmed: u64,
}

impl Ring {
    /// The ring as a checkpoint left it; `None` when the checkpoint's position is outside the log.
    #[must_use]
    pub fn of(checkpoint: &Checkpoint, layout: &Layout) -> Option<Self> {
        let position = checkpoint.log_position;
        let is_inside = position < layout.log_len && position.is_multiple_of(BLOCK as u64);
        is_inside.then_some(Self {
            len: layout.log_len,
            position,
            sequence: checkpoint.log_sequence,
            previous: checkpoint.log_previous,
            written: 0,
            trimmed: 0,
        })
    }

    /// Whether this is the batch that comes next, whoever wrote it.
    #[must_use]
    pub fn goes_on_with(&self, batch: &Batch) -> bool {
        batch.sequence == self.sequence && batch.previous == self.previous
    }

    /// Whether this is the batch that comes next, of an open whose checkpoint header isn't the one that was found, which
    /// is of this incarnation: whoever opens a store renews the header before anything is logged.
    #[must_use]
    pub fn lacks_header_of(&self, batch: &Batch, incarnation: u64) -> bool {
        self.goes_on_with(batch) && batch.incarnation > incarnation
    }

    /// Bytes that recovery would read.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.written - self.trimmed
    }

    /// Bytes at the end of the ring that must be skipped for a batch of `len` bytes.
    #[must_use]
    pub fn skip(&self, len: u64) -> u64 {
        let left = self.len - self.position;
        if left < len { left } else { 0 }
    }

    /// Whether a batch of `len` bytes fits.
    #[must_use]
    pub fn has_room(&self, len: u64) -> bool {
        // One block stays free, so that a full ring differs from an empty one.
        self.used() + self.skip(len) + len + BLOCK as u64 <= self.len
    }

    /// Goes on behind a batch of `len` bytes.
    pub fn advance(&mut self, len: u64) {
        debug_assert!(len.is_multiple_of(BLOCK as u64), "{len} bytes are no whole blocks");
        self.position = (self.position + len) % self.len;
        self.written += len;
        self.sequence += 1;
    }
}

/// How far behind the end of the log the next intact batch stands at most, where one has been lost at `distance`, or can't be read.
#[must_use]
pub fn farthest(ring: Ring, distance: u64) -> u64 {
    (distance + BATCH_MAX).min(ring.len)
}

/// The batches that the log may go on with by this header, as it is and with one of its bits flipped back: the byte of that
/// bit, the header, and what it says.
fn candidates(
    ring: Ring,
    store: Uuid,
    header: [u8; BATCH_HEADER],
) -> impl Iterator<Item = (Option<u64>, [u8; BATCH_HEADER], Batch)> {
    let flipped = flips_of_header(header).map(|(byte, header)| (Some(byte), header));
    core::iter::once((None, header)).chain(flipped).filter_map(move |(byte, header)| {
        let batch = probe_batch(&header, store)?;
        let fits = ring.goes_on_with(&batch) && u64::from(batch.len) <= BATCH_MAX;
        fits.then_some((byte, header, batch))
    })
}

fn header_of(bytes: &[u8]) -> Option<[u8; BATCH_HEADER]> {
    bytes.get(..BATCH_HEADER)?.try_into().ok()
}

/// How many bytes from the end of the log on [`flipped`] has to see, by the first ones: none where no batch was begun, whole or not.
#[must_use]
pub fn flipped_len(ring: Ring, store: Uuid, begin: &[u8]) -> u64 {
    let Some(header) = header_of(begin) else { return 0 };
    candidates(ring, store, header).map(|(.., batch)| u64::from(batch.len)).fold(0, u64::max)
}

/// A batch of which one bit has flipped.
pub struct Flipped {
    /// The batch without it.
    pub batch: Batch,
    /// The byte of the batch with that bit.
    pub byte: u64,
    /// The batch as it was written.
    pub whole: Vec<u8>,
}

/// The batch that the log would go on with had one bit not flipped.
#[must_use]
pub fn flipped(ring: Ring, store: Uuid, bytes: &[u8]) -> Option<Flipped> {
    candidates(ring, store, header_of(bytes)?).find_map(|(byte, header, batch)| {
        let Some(byte) = byte else {
            // It may be one of the header, which says something else then.
            let (byte, whole) = batch.turned_back(bytes)?;
            let batch = probe_batch(&whole, store).filter(|batch| ring.goes_on_with(batch))?;
            return Some(Flipped { batch, byte, whole });
        };
        let whole = [&header, bytes.get(BATCH_HEADER..batch.len as usize)?].concat();
        batch.matches(&whole).then_some(Flipped { batch, byte, whole })
    })
}

impl Flipped {
    /// The ring behind the batch.
    #[must_use]
    pub fn ring_behind(&self, ring: Ring) -> Ring {
        let mut behind = Ring { previous: self.batch.crc, ..ring };
        behind.advance(match self.batch.kind {
            BatchKind::Records => self.batch.blocks_len(),
            BatchKind::Wrap => ring.len - ring.position,
        });
        behind
    }

    /// The records, where they make sense and all small values among them match checksums of their own: what more than one bit
    /// has made of a batch hardly passes for that.
    #[must_use]
    pub fn records(&self) -> Option<Vec<u8>> {
        let bytes = self.whole[BATCH_HEADER..].to_vec();
        let records = Records::decode(bytes.clone()).ok()?;
        let is_whole = |change: Change| {
            let Change::Put { key, value } = change else { return true };
            if !key::is_version(&key) {
                return true;
            }
            match Version::decode(&value).map(|version| version.payload) {
                Ok(Payload::Inline(inline)) => inline.checksum.is_none_or(|sum| sum == crc32c(&inline.bytes)),
                Ok(_) => true,
                Err(_) => false,
            }
        };
        records.changes(0).all(is_whole).then_some(bytes)
    }
}
