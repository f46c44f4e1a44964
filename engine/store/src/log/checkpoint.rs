//! Checkpoints: the index and the bitmaps as of one moment, written while the store serves.

mod begin;
#[cfg(test)]
pub(crate) mod tests;

use crate::format::blocks::Run;
use crate::format::codec::Malformed;
use crate::format::maps_checksum;
use crate::format::ring::Ring;
use crate::format::size::in_memory;
use crate::format::{Checkpoint, checkpoint_offset, encode_map};
use crate::index::stored::encode_node;
use crate::index::tree::Node;
use crate::state::core::{Core, add};
use crate::state::pace::{BackgroundWrites, PIECE};
use begin::Frozen;
use core::cell::Cell;
use core::time::Duration;
use std::collections::VecDeque;
use std::rc::Rc;
use weir_media::{BLOCK, MediaError, Slice};
use weir_runtime::{Either, join_all, race};

/// Part of the log's room at its begin that may be used up before a checkpoint has to be written; the same of the room
/// for changed nodes. What is left is for its flushes, and for the next one's begin.
const ROOM_DIVISOR: u64 = 2;

/// Why a checkpoint wasn't written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CheckpointError {
    #[error("no room for {0} blocks of index nodes; delete data")]
    NoSpace(u64),
    #[error(transparent)]
    Media(#[from] MediaError),
    #[error("an index node can't be written: {0}")]
    Node(#[from] Malformed),
    #[error("the store has failed: {0}")]
    Failed(String),
}

/// How often somebody looks whether space has come free that a checkpoint didn't find.
const SPACE_LOOK: Duration = Duration::from_millis(10);

/// Waits until a checkpoint's time has come, or there are more free blocks than the last one `found`, if those were too few.
async fn wait_until_due(core: &Core, found: Option<u64>) {
    let Some(found) = found else { return core.rt.sleep(core.config.checkpoint_interval).await };
    let due = core.rt.now() + core.config.checkpoint_interval;
    while core.space.borrow().free() <= found && core.rt.now() < due {
        core.rt.sleep(SPACE_LOOK).await;
    }
}

/// Writes checkpoints on request, by time, and when the last one found no space and some has come free, until the store stops.
pub(crate) async fn run(core: Rc<Core>) {
    let mut found = None;
    loop {
        let due = wait_until_due(&core, found.take());
        if let Either::Second(()) = race(core.checkpoints.request.notified(), due).await
            && core.tree.borrow().dirty_nodes() == 0
        {
            continue;
        }
        if core.has_failed() {
            return;
        }
        core.checkpoints.running.set(true);
        let result = write(&core).await;
        core.checkpoints.running.set(false);
        add(&core.checkpoints.failures, u64::from(result.is_err()));
        match result {
            // Space comes back with deletes and with what readers hold; log and index wait for it.
            Ok(()) => core.relieve_all_memory().await,
            Err(CheckpointError::NoSpace(_)) => {
                found = Some(core.space.borrow().free());
                // Whoever moves values waits for log and index, too.
                core.space.borrow_mut().release_held();
                core.chores.notify_one();
                core.rt.sleep(SPACE_LOOK).await;
            }
            Err(error) => {
                core.fail(&error.to_string());
                return;
            }
        }
        core.checkpoints.done.notify_waiters();
    }
}

/// Longest wait of a delete for a checkpoint. A device that takes longer is as good as full for it.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(2);

/// Waits until a checkpoint ends, which gives back the places of the nodes that it wrote anew. `false`: there is nothing that
/// it could give back, or it takes too long.
pub(crate) async fn wait_for_room(core: &Core) -> bool {
    if !core.checkpoints.is_running() && core.tree.borrow().dirty_nodes() == 0 {
        return false;
    }
    let done = core.checkpoints.done.notified();
    core.checkpoints.request.notify_one();
    matches!(race(done, core.rt.sleep(ROOM_WAIT_MAX)).await, Either::First(()))
}

/// Writes one checkpoint. Nobody else may be writing one.
pub(crate) async fn write(core: &Rc<Core>) -> Result<(), CheckpointError> {
    if let Some(reason) = core.failure() {
        return Err(CheckpointError::Failed(reason));
    }
    let begin = core.rt.now();
    let mut frozen = begin::freeze(core).await?;
    let progress = CheckpointProgress::new(core, &frozen);
    let nodes = core::mem::take(&mut frozen.nodes);
    let mut bytes = write_nodes(core, nodes, frozen.number, &progress).await?;
    bytes += write_maps(core, &frozen, &progress).await?;
    core.writer.written(frozen.last).await?;
    core.device.flush().await?;
    let root = frozen.root.page.get().ok_or(Malformed("the root has no place"))?;
    let header = Checkpoint {
        generation: core.checkpoints.generation.get() + 1,
        number: frozen.number,
        incarnation: core.journal.incarnation.get(),
        root,
        entries: frozen.entries,
        log_position: frozen.ring.position,
        log_sequence: frozen.ring.sequence,
        log_previous: frozen.ring.previous,
        maps: maps_checksum(&core.checkpoints.maps.borrow()),
        newest: core.newest_epoch(),
        known: frozen.known,
        scrub: core.scrub.position(),
        stable: core.journal.unstable(),
        size: core.layout.size,
        forgotten: core.transactions.borrow().forgotten(),
    };
    write_header(core, header).await?;
    core.journal.ring.borrow_mut().trimmed = frozen.ring.written;
    core.journal.progress.notify_waiters();
    for part in frozen.retired.chunks(begin::SLICE) {
        core.space.borrow_mut().release_nodes(part);
        core.yield_to_io().await;
    }
    let state = &core.checkpoints;
    state.count.set(state.count.get() + 1);
    let time = core.rt.now() - begin;
    state.time.set(state.time.get() + time);
    state.latency.borrow_mut().record(time);
    state.last_ns.set(core.rt.wall_ns());
    state.bytes.set(state.bytes.get() + bytes + 2 * BLOCK as u64);
    Ok(())
}

/// Writes the header of the present checkpoint again under the present incarnation, at open. `known` records of those
/// that the checkpoint has were found in the log; what comes next takes the places of the others.
pub(crate) async fn renew_header(core: &Rc<Core>, known: u64) -> Result<(), MediaError> {
    let generation = core.checkpoints.generation.get() + 1;
    let incarnation = core.journal.incarnation.get();
    let stable = core.journal.unstable();
    // One of an earlier release doesn't say it.
    let size = core.layout.size;
    let present = core.checkpoints.header.get();
    write_header(core, Checkpoint { generation, incarnation, known, stable, size, ..present }).await
}

async fn write_header(core: &Rc<Core>, header: Checkpoint) -> Result<(), MediaError> {
    let bytes = header.encode(core.id);
    let header_copy = Slice::from(core.dma.copy_of(&bytes).await);
    let copies = [0, 1]
        .map(|copy| core.device.write(checkpoint_offset(header.generation, copy), vec![header_copy.clone()]));
    for result in join_all(copies).await {
        result?;
    }
    core.device.flush().await?;
    core.checkpoints.generation.set(header.generation);
    core.checkpoints.header.set(header);
    core.journal.note_evidence(header.stable);
    Ok(())
}

/// How far a checkpoint is, compared with what it makes room for.
struct CheckpointProgress<'a> {
    core: &'a Core,
    /// Bytes that it writes, and those that it has begun to write.
    total: u64,
    begun: Cell<u64>,
    /// Bytes that the log had written, and its room, when the checkpoint began.
    log_written: u64,
    log_room: u64,
}

impl<'a> CheckpointProgress<'a> {
    fn new(core: &'a Core, frozen: &Frozen) -> Self {
        let Ring { len, written, .. } = frozen.ring;
        Self {
            core,
            total: frozen.bytes + (frozen.maps.len() * BLOCK) as u64,
            begun: Cell::new(0),
            log_written: written,
            log_room: len - frozen.ring.used(),
        }
    }

    /// Whether clients would have to wait for it if it went on waiting for them.
    fn is_late(&self) -> bool {
        let journal = &self.core.journal;
        let behind = |grown: u64, room: u64| {
            u128::from(grown) * u128::from(self.total) > u128::from(self.begun.get()) * u128::from(room)
        };
        let logged = journal.ring.borrow().written - self.log_written;
        behind(logged, self.log_room / ROOM_DIVISOR)
            || behind(self.core.dirty_blocks(), self.core.dirty_blocks_max() / ROOM_DIVISOR)
            || journal.is_congested()
    }

    fn begin(&self, bytes: usize) {
        self.begun.set(self.begun.get() + bytes as u64);
    }
}

/// Nodes from the front, with their bytes, that stand one behind the other and make up one piece at most.
fn adjacent(nodes: &VecDeque<(Rc<Node>, Run)>) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0);
    for (_, run) in nodes {
        let len = in_memory(run.bytes());
        let follows = run.block == nodes[0].1.block + (bytes / BLOCK) as u64;
        if count > 0 && (!follows || bytes + len > PIECE) {
            break;
        }
        bytes += len;
        count += 1;
    }
    (count, bytes)
}

/// Writes all nodes, adjacent together, and returns the bytes. What is on the device is let go: a node that changes from then
/// on needn't be copied, and one that has changed already isn't there twice any more.
async fn write_nodes(
    core: &Core,
    mut rest: VecDeque<(Rc<Node>, Run)>,
    number: u64,
    progress: &CheckpointProgress<'_>,
) -> Result<u64, CheckpointError> {
    let mut writes = BackgroundWrites::new(core, || progress.is_late());
    let mut written = 0;
    while let Some(start) = rest.front().map(|(_, run)| run.block) {
        let (count, bytes) = adjacent(&rest);
        let permit = writes.permit(bytes).await?;
        let mut buffer = writes.buffer(bytes).await?;
        let (mut at, mut nodes) = (0, Vec::with_capacity(count));
        for (node, run) in rest.drain(..count) {
            let len = in_memory(run.bytes());
            let page = &mut buffer[at..at + len];
            node.home.page.set(Some(encode_node(&node, run.block, number, core.id, page)?));
            core.tree.borrow().release(&node);
            nodes.push(node);
            at += len;
        }
        progress.begin(bytes);
        // Until it is there, nobody may look for a node on the device.
        writes.write(&permit, core.layout.data(start), buffer, nodes);
        written += bytes as u64;
        core.yield_to_io().await;
    }
    writes.end().await?;
    Ok(written)
}

/// Writes the bitmaps that changed beside their present versions, and returns the bytes.
async fn write_maps(
    core: &Core,
    frozen: &Frozen,
    progress: &CheckpointProgress<'_>,
) -> Result<u64, CheckpointError> {
    let mut writes = BackgroundWrites::new(core, || progress.is_late());
    for part in frozen.maps.chunks(PIECE / BLOCK) {
        let permit = writes.permit(part.len() * BLOCK).await?;
        for (group, bits) in part {
            let mut buffer = writes.buffer(BLOCK).await?;
            buffer.copy_from_slice(&encode_map(*group as u64, frozen.number, bits, core.id));
            let slot = 1 - core.checkpoints.maps.borrow()[*group].1;
            core.checkpoints.maps.borrow_mut()[*group] = (frozen.number, slot);
            writes.write(&permit, core.layout.map(*group as u64, slot), buffer, ());
        }
        progress.begin(part.len() * BLOCK);
        core.yield_to_io().await;
    }
    writes.end().await?;
    Ok((frozen.maps.len() * BLOCK) as u64)
}
