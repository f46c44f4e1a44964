//! What stands at fixed places: superblocks, checkpoint headers, the space map, the log.

use super::Budget;
use crate::format::BATCH_MAX;
use crate::format::size::in_memory;
use crate::format::{
    BATCH_HEADER, BatchKind, Checkpoint, Layout, SuperblockFault, checkpoint_offset, decode_map, probe_batch,
    read_superblock,
};
use crate::state::core::Core;
use crate::state::rot::{self, Rot};
use std::rc::Rc;
use weir_media::{BLOCK, DmaBuf, Slice};

/// Reads and compares all of it.
pub(super) async fn check(core: &Rc<Core>, budget: &mut Budget) {
    check_superblocks(core, budget).await;
    check_headers(core, budget).await;
    check_maps(core, budget).await;
    check_log(core, budget).await;
}

async fn read(core: &Core, offset: u64, len: usize) -> Result<DmaBuf, String> {
    core.read_behind(offset, len).await.map_err(|error| error.to_string())
}

/// Reports a block, and whether it is written anew.
fn report(core: &Core, (what, offset): (&'static str, u64), reason: String, renewed: bool) {
    let (location, len) = (core.location(what, offset), BLOCK as u64);
    rot::report(core, Rot { location, len, pool: None, subject: None, reason, renewed });
}

async fn check_superblocks(core: &Core, budget: &mut Budget) {
    let copy = Layout::copy_offset(core.layout.size);
    for (offset, other) in [(0, copy), (copy, 0)] {
        let fault = match read(core, offset, BLOCK).await.map(|block| read_superblock(&block)) {
            Ok(Ok(_)) => None,
            Ok(Err(fault)) => {
                // Somebody else's data stays, whatever it is.
                let is_ours = matches!(fault, SuperblockFault::Damaged(_));
                Some(("it is not the superblock that was written".to_owned(), is_ours))
            }
            Err(reason) => Some((reason, true)),
        };
        if let Some((reason, is_ours)) = fault {
            let renewed = is_ours && offset != other && copy_superblock(core, other, offset).await;
            report(core, ("a superblock", offset), reason, renewed);
        }
        budget.spend(core, BLOCK as u64).await;
    }
}

/// Writes the superblock anew from its copy, if that is whole. Returns whether it stands there again.
async fn copy_superblock(core: &Core, from: u64, to: u64) -> bool {
    let Ok(block) = read(core, from, BLOCK).await else { return false };
    if !read_superblock(&block).is_ok_and(|superblock| superblock.id == core.id) {
        return false;
    }
    let copy = Slice::from(core.dma.copy_of(&block).await);
    core.device.write(to, vec![copy]).await.is_ok() && core.device.flush().await.is_ok()
}

async fn check_headers(core: &Core, budget: &mut Budget) {
    let current = core.checkpoints.header.get();
    for copy in 0..2 {
        let offset = checkpoint_offset(current.generation, copy);
        let fault = match read(core, offset, BLOCK).await {
            Ok(block) => match Checkpoint::decode(&block, core.id) {
                Ok(found) if found == current => None,
                Ok(_) => Some("it is not the checkpoint header that was written last".to_owned()),
                Err(malformed) => Some(malformed.0.to_owned()),
            },
            Err(reason) => Some(reason),
        };
        // The slot is written again two headers later, and a header under way can't be told from a damaged one.
        let is_settled = core.checkpoints.header.get() == current && !core.checkpoints.is_running();
        if let Some(reason) = fault.filter(|_| is_settled) {
            // The next one goes to another slot.
            core.checkpoints.request.notify_one();
            report(core, ("a checkpoint header", offset), reason, true);
        }
        budget.spend(core, BLOCK as u64).await;
    }
}

async fn check_maps(core: &Core, budget: &mut Budget) {
    let groups = core.space.borrow().groups() as u64;
    for group in 0..groups {
        let Some((number, slot)) = core.checkpoints.map_of(group) else { return };
        let offset = core.layout.map(group, slot);
        let fault = match read(core, offset, BLOCK).await {
            Ok(page) => match decode_map(&page, group, core.id) {
                Ok((found, _)) if found == number => None,
                Ok(_) => Some("it is not the bitmap that was written last".to_owned()),
                Err(malformed) => Some(malformed.0.to_owned()),
            },
            Err(reason) => Some(reason),
        };
        let is_settled =
            core.checkpoints.map_of(group) == Some((number, slot)) && !core.checkpoints.is_running();
        if let Some(reason) = fault.filter(|_| is_settled) {
            core.space.borrow_mut().mark_dirty(in_memory(group));
            core.checkpoints.request.notify_one();
            report(core, ("the space map", offset), reason, true);
        }
        budget.spend(core, BLOCK as u64).await;
    }
}

/// Compares the batches that a recovery would read. A damaged one is superfluous once a checkpoint has what it says,
/// so one is asked for.
async fn check_log(core: &Core, budget: &mut Budget) {
    let header = core.checkpoints.header.get();
    let (mut position, mut sequence) = (header.log_position, header.log_sequence);
    let mut previous = header.log_previous;
    let end = core.journal.unstable();
    while sequence < end {
        let offset = core.layout.log_offset + position;
        let read = read_batch(core, position).await;
        if core.checkpoints.header.get().number != header.number {
            // The log before the new checkpoint may be overwritten at any time.
            return;
        }
        let fault = match read {
            Ok((batch, _)) if batch.sequence != sequence || batch.previous != previous => {
                "it is not the batch that was written there".to_owned()
            }
            Ok((batch, len)) => {
                (position, previous, sequence) = match batch.kind {
                    BatchKind::Wrap => (0, batch.crc, sequence + 1),
                    BatchKind::Records => ((position + len) % core.layout.log_len, batch.crc, sequence + 1),
                };
                budget.spend(core, len).await;
                continue;
            }
            Err(reason) => reason,
        };
        core.checkpoints.request.notify_one();
        report(core, ("a log batch", offset), fault, true);
        return;
    }
}

/// The batch at a position, and the bytes that it takes.
async fn read_batch(core: &Core, position: u64) -> Result<(crate::format::Batch, u64), String> {
    let damaged = || "it does not match its checksum".to_owned();
    let header = read(core, core.layout.log_offset + position, BLOCK).await?;
    let batch = probe_batch(&header, core.id).ok_or_else(damaged)?;
    if u64::from(batch.len) > BATCH_MAX || position + batch.blocks_len() > core.layout.log_len {
        return Err(damaged());
    }
    debug_assert!(batch.len as usize >= BATCH_HEADER, "shorter ones are no batches");
    let bytes = read(core, core.layout.log_offset + position, batch.len as usize).await?;
    if batch.matches(&bytes) { Ok((batch, batch.blocks_len())) } else { Err(damaged()) }
}
