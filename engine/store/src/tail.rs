//! The end of the log: whether something is missing there that was stable, and whether what a crash seems to have torn is
//! rather the device's doing.
//!
//! A batch that was torn and one that has rotted are both dropped. But what is written whole and differs in one bit tells
//! so: a checksum has a place for each single bit that may have flipped. Torn bytes that pass for that are as rare as the bits
//! of a batch among all checksums, which is why such a finding is reported and never acted upon.

use crate::checksum::{are_of_chunks, flipped_bit};
use crate::codec::crc32c;
use crate::error::OpenError;
use crate::format::{BATCH_HEADER, Batch, flips_of_header, probe_batch};
use crate::journal::Ring;
use crate::record::Records;
use crate::recover::Opening;
use crate::replay::{BATCH_MAX, Reader};
use crate::scrub::{self, Rot};
use crate::space::Run;
use crate::state::Core;
use crate::value::Blocks;
use core::time::Duration;
use uuid::Uuid;
use weir_media::{BLOCK, DmaBuf, MediaError};

/// How often data of the last batch is read that the device refuses: what passes must not cost a batch that may have been
/// acknowledged.
pub(crate) const READS_MAX: u32 = 3;

/// Pause between such reads.
const READ_PAUSE: Duration = Duration::from_millis(100);

/// Fails when a batch is missing at the end of the log that was stable: the checkpoint header says so, or an intact one
/// stands behind it; and when the log goes on for an open whose checkpoint header is lost. Reports what can't be read behind
/// the end, and a batch that would be there but for one bit.
pub(crate) async fn check(
    opening: &Opening<'_>,
    core: &Core,
    reader: &mut Reader<'_>,
) -> Result<(), OpenError> {
    let ring = *core.journal.ring.borrow();
    let stable = core.checkpoints.header.get().stable;
    if ring.sequence < stable {
        let offset = core.layout.log_offset + ring.position;
        let reason =
            format!("batch {} is damaged, while all before batch {stable} were stable", ring.sequence);
        return Err(opening.corrupt("the log", offset, reason));
    }
    let mut distance = 0;
    while distance <= BATCH_MAX {
        let position = (ring.position + distance) % ring.len;
        let later = reader.batch(position, core.id, |batch| batch.sequence > ring.sequence).await;
        let later = if distance == 0 { later? } else { unless_unreadable(core, later)?.flatten() };
        if later.is_some() {
            let offset = core.layout.log_offset + ring.position;
            let reason = format!("batch {} is damaged, while a later one is intact", ring.sequence);
            return Err(opening.corrupt("the log", offset, reason));
        }
        distance += BLOCK as u64;
    }
    let incarnation = core.journal.incarnation.get();
    let ahead = |batch: &Batch| ring.lacks_header_of(batch, incarnation);
    if let Some((batch, _)) = reader.batch(ring.position, core.id, ahead).await? {
        let offset = core.layout.log_offset + ring.position;
        let reason = format!("the checkpoint header that belongs to batch {} is lost", batch.sequence);
        return Err(opening.corrupt("the log", offset, reason));
    }
    let begin = reader.bytes(ring.position, BLOCK as u64).await?;
    let len = flipped_len(ring, core.id, begin);
    // What can't be read of it was reported just now.
    let bytes = reader.bytes(ring.position, len).await.ok();
    if let Some((batch, byte)) = bytes.and_then(|bytes| flipped(ring, core.id, bytes)) {
        let offset = core.layout.log_offset + ring.position + byte;
        report(core, "the log", offset, batch.len.into(), "one bit of the last batch has flipped");
    }
    Ok(())
}

/// What was read of a part of the log that nothing acknowledged is known to stand in. `None`, reported: it can't be read, which
/// is as good as damaged there.
pub(crate) fn unless_unreadable<T>(core: &Core, read: Result<T, OpenError>) -> Result<Option<T>, OpenError> {
    match read {
        Err(OpenError::Media(MediaError::Io { offset, len, reason, .. })) => {
            let location = core.location("the log", offset);
            let reason = format!("it can't be read behind its end: {reason}");
            scrub::report(core, Rot { location, len, pool: None, subject: None, reason, renewed: false });
            Ok(None)
        }
        read => read.map(Some),
    }
}

fn report(core: &Core, what: &'static str, offset: u64, len: u64, reason: &str) {
    let location = core.location(what, offset);
    let reason = format!("{reason}; what was stored last before the crash is not there");
    scrub::report(core, Rot { location, len, pool: None, subject: None, reason, renewed: false });
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

/// How many bytes from the end of the log on [`flipped`] has to see, by the first ones: none where nothing was begun.
pub(crate) fn flipped_len(ring: Ring, store: Uuid, begin: &[u8]) -> u64 {
    let Some(header) = header_of(begin) else { return 0 };
    candidates(ring, store, header).map(|(.., batch)| batch.len.into()).max().unwrap_or(0)
}

/// The batch that the log would go on with had one bit not flipped, and the byte of the batch with that bit.
pub(crate) fn flipped(ring: Ring, store: Uuid, bytes: &[u8]) -> Option<(Batch, u64)> {
    candidates(ring, store, header_of(bytes)?).find_map(|(byte, header, batch)| {
        let Some(byte) = byte else { return Some((batch, batch.flipped(bytes)?)) };
        let rest = bytes.get(BATCH_HEADER..batch.len as usize)?;
        batch.matches(&[&header, rest].concat()).then_some((batch, byte))
    })
}

/// Whether the data extents that the last batch leaves behind are what it says. What can't be read is reported, and isn't:
/// like data that doesn't match, it is no reason to give up all that was stable before.
pub(crate) async fn has_its_data(core: &Core, records: &Records) -> Result<bool, OpenError> {
    for blocks in records.blocks_left() {
        if !blocks_match(core, &blocks).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn blocks_match(core: &Core, blocks: &Blocks) -> Result<bool, OpenError> {
    let mut data = Vec::new();
    for run in &blocks.runs {
        if !core.space.borrow().contains(*run) {
            return Ok(false);
        }
        match read_run(core, *run).await {
            Err(MediaError::Io { offset, len, reason, .. }) => {
                let reason = format!("what the last batch of the log refers to can't be read: {reason}");
                report(core, "data", offset, len, &reason);
                return Ok(false);
            }
            read => data.extend_from_slice(&read?),
        }
    }
    let matches = are_of_chunks(&blocks.checksums, blocks.chunks, &data);
    if !matches {
        report_flipped(core, blocks, &data);
    }
    Ok(matches)
}

async fn read_run(core: &Core, run: Run) -> Result<DmaBuf, MediaError> {
    let (offset, len) = (core.layout.data(run.block), usize::try_from(run.bytes()).unwrap_or(usize::MAX));
    for _ in 1..READS_MAX {
        match core.device.read(offset, DmaBuf::new(len)).await {
            Err(MediaError::Io { .. }) => core.rt.sleep(READ_PAUSE).await,
            done => return done,
        }
    }
    core.device.read(offset, DmaBuf::new(len)).await
}

/// Reports data that doesn't match its checksums when one bit is the whole difference.
fn report_flipped(core: &Core, blocks: &Blocks, data: &[u8]) {
    let mut wrong = blocks.pieces(data).filter_map(|(start, bytes, kept)| {
        let difference = crc32c(bytes) ^ kept?;
        (difference != 0).then_some((start, bytes.len(), difference))
    });
    let (Some((start, len, difference)), None) = (wrong.next(), wrong.next()) else { return };
    let byte = flipped_bit(difference, len).map(|bit| start + bit as u64 / 8);
    if let Some(offset) = byte.and_then(|byte| blocks.offset_of(byte, &core.layout)) {
        report(core, "data", offset, 1, "one bit of what the last batch of the log refers to has flipped");
    }
}
