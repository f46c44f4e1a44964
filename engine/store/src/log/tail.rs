//! The end of the log: whether something is missing there that was stable, and whether what a crash seems to have torn is
//! rather the device's doing.
//!
//! A batch that was torn and one that has rotted are both dropped. But what is written whole and differs in one bit tells
//! so: a checksum has a place for each single bit that may have flipped. Torn bytes that pass for that are as rare as the bits
//! of a batch among all checksums, which is why at the very end such a finding is reported and not acted upon. A batch that was
//! whole once is another matter: CRC-32C tells two flipped bits from one, so that a single one can be turned back.

use crate::format::Batch;
use crate::format::blocks::Run;
use crate::format::checksum::{are_of_chunks, flipped_bit};
use crate::format::codec::crc32c;
use crate::format::record::Records;
use crate::format::ring::{farthest, flipped, flipped_len};
use crate::format::size::in_memory;
use crate::format::value::Blocks;
use crate::log::recover::Opening;
use crate::log::replay::{Reader, stable_before};
use crate::state::core::Core;
use crate::state::error::OpenError;
use crate::state::paging::READ_PAUSES;
use crate::state::rot;
use crate::state::rot::Rot;
use weir_media::{BLOCK, DmaBuf, MediaError};

/// How often an open reads what the device refuses before it counts as unreadable.
pub const READS_MAX: usize = READ_PAUSES.len() + 1;

/// How many blocks behind the end of the log may be unreadable: each is an error of the device, of which eight put it out of use.
pub const UNREADABLE_MAX: usize = 2;

/// Fails when a batch is missing at the end of the log that was stable: the checkpoint header says so, or an intact one
/// stands behind it; and when the log goes on for an open whose checkpoint header is lost. Reports what can't be read behind
/// the end, and a batch that would be there but for one bit.
pub(crate) async fn check(
    opening: &Opening<'_>,
    core: &Core,
    reader: &mut Reader<'_>,
) -> Result<(), OpenError> {
    let ring = *core.journal.ring.borrow();
    let stable = stable_before(core);
    if ring.sequence < stable {
        let offset = core.layout.log_offset + ring.position;
        let reason =
            format!("batch {} is damaged, while all before batch {stable} were stable", ring.sequence);
        return Err(opening.corrupt("the log", offset, reason));
    }
    let begun = flipped_len(ring, core.id, reader.bytes(ring.position, BLOCK as u64).await?);
    let (mut distance, mut last, mut unreadable) = (0, farthest(ring, 0), 0);
    while distance <= last {
        let position = (ring.position + distance) % ring.len;
        let later = reader.batch(position, core.id, |batch| batch.sequence > ring.sequence).await;
        let later = match later {
            // What stands at the end may have been acknowledged, and this may have said so.
            Err(OpenError::Media(error @ MediaError::Io { .. }))
                if distance > 0 && begun == 0 && unreadable < UNREADABLE_MAX =>
            {
                report_unreadable(core, error);
                unreadable += 1;
                last = farthest(ring, distance);
                None
            }
            later => later?,
        };
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
    let bytes = reader.bytes(ring.position, begun).await?;
    if let Some(found) = flipped(ring, core.id, bytes) {
        let offset = core.layout.log_offset + ring.position + found.byte;
        report(core, "the log", offset, found.batch.len.into(), "one bit of the last batch has flipped");
    }
    Ok(())
}

/// What can't be read where nothing acknowledged stands.
fn report_unreadable(core: &Core, error: MediaError) {
    if let MediaError::Io { offset, len, reason, .. } = error {
        let location = core.location("the log", offset);
        let reason = format!("it can't be read behind its end: {reason}");
        rot::report(core, Rot { location, len, pool: None, subject: None, reason, renewed: false });
    }
}

fn report(core: &Core, what: &'static str, offset: u64, len: u64, reason: &str) {
    let location = core.location(what, offset);
    let reason = format!("{reason}; what was stored last before the crash is not there");
    rot::report(core, Rot { location, len, pool: None, subject: None, reason, renewed: false });
}

/// The next batch of the log with its records, where one of its bits has flipped and is turned back. Only of a batch that was
/// whole once: an intact one goes on behind it, or something says that it was stable. What a crash has torn may look so by
/// accident, and was acknowledged to nobody.
pub(crate) async fn turn_back(
    core: &Core,
    reader: &mut Reader<'_>,
    is_wanted: impl Fn(&Batch) -> bool,
) -> Result<Option<(Batch, Vec<u8>)>, OpenError> {
    let ring = *core.journal.ring.borrow();
    let begun = flipped_len(ring, core.id, reader.bytes(ring.position, BLOCK as u64).await?);
    let found = flipped(ring, core.id, reader.bytes(ring.position, begun).await?);
    let Some(found) = found.filter(|found| is_wanted(&found.batch)) else { return Ok(None) };
    let behind = found.ring_behind(ring);
    let was_whole = ring.sequence < stable_before(core)
        || reader.batch(behind.position, core.id, |batch| behind.goes_on_with(batch)).await?.is_some();
    let Some(records) = found.records().filter(|_| was_whole) else { return Ok(None) };
    let location = core.location("the log", core.layout.log_offset + ring.position + found.byte);
    let reason = format!("one bit of batch {} has flipped, and was turned back", ring.sequence);
    let len = found.batch.len.into();
    rot::report(core, Rot { location, len, pool: None, subject: None, reason, renewed: true });
    core.checkpoints.request.notify_one();
    Ok(Some((found.batch, records)))
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
    let (offset, len) = (core.layout.data(run.block), in_memory(run.bytes()));
    for pause in READ_PAUSES {
        match core.device.read(offset, DmaBuf::new(len)).await {
            Err(MediaError::Io { .. }) => core.rt.sleep(pause).await,
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
