//! The pace of background work: how much of it happens at a time, and how it makes way for clients.
//!
//! Clients share thread and device with checkpoints, aggregation, defragmentation and the scrubber. Their requests wait
//! for whatever background work has begun, so it is begun in small amounts: a *slice* of index nodes before the
//! executor looks at the device again, and few bytes of transfers under way. While clients wait for the log, a transfer
//! is begun only behind each of its batches. Then the log's next flush finds little in the device's cache that isn't
//! the log's own, and the last flush of a checkpoint finds next to nothing.
//!
//! What must not wait isn't held up: a checkpoint that is behind the growth of the log, aggregation when space runs short.

use crate::format::checksum::join;
use crate::format::size::in_memory;
use crate::format::value::Blocks;
use crate::state::core::Core;
use crate::state::error::FetchError;
use crate::state::read::{Comparison, read_blocks};
use core::cell::Cell;
use core::time::Duration;
use std::collections::VecDeque;
use std::rc::Rc;
use weir_media::{DmaBuf, IoFuture, MediaError};
use weir_proto::chunk::Chunks;
use weir_proto::object::Extent;
use weir_runtime::race;
use weir_runtime::sync::Notify;

/// Bytes of one background transfer: what a device moves in the time of a flush, and four index nodes, which take some
/// 40 µs to encode.
pub(crate) const PIECE: usize = 64 << 10;

/// Most bytes of background transfers under way while clients wait: two transfers, so that the device's queue isn't
/// empty between them.
pub(crate) const BUSY_BYTES_MAX: usize = 2 * PIECE;

/// Most bytes of them under way at any time: enough for a device's full rate, and a client who comes meanwhile waits a
/// fraction of a millisecond.
pub(crate) const BYTES_MAX: usize = 8 * PIECE;

/// Index nodes that background work passes before others run: some 100 µs.
const SLICE_NODES: u64 = 256;

/// What a step of background work costs beside the nodes that it passes, in nodes: its record, mostly.
const STEP_NODES: u64 = 8;

/// Slices of rest behind one of work while clients are there, so that they have four fifths of the thread.
const REST_SLICES: u32 = 4;

/// Part of the data region that is free, or else background work doesn't wait for clients: it makes room for them.
const SCARCE_DIVISOR: u64 = 16;

/// Longest wait for a batch of the log. Devices that are slower than this are slow for clients, too.
const BATCH_WAIT_MAX: Duration = Duration::from_millis(5);

/// Shortest time that lets the executor turn: look at devices, fire timers, run what is ready.
const TURN: Duration = Duration::from_nanos(1);

/// What background work has under way.
#[derive(Default)]
pub(crate) struct Pace {
    bytes: Rc<Cell<usize>>,
    /// Some of it has ended.
    ended: Notify,
    /// Nodes that questions had passed when the slice began.
    begin: Cell<u64>,
    /// Steps since then.
    steps: Cell<u64>,
}

/// The right to transfer so many bytes as background work, until it is dropped.
pub(crate) struct TransferPermit {
    bytes: usize,
    under_way: Rc<Cell<usize>>,
    ended: Notify,
}

impl Drop for TransferPermit {
    fn drop(&mut self) {
        self.under_way.set(self.under_way.get() - self.bytes);
        self.ended.notify_waiters();
    }
}

impl Pace {
    fn has_way(&self, bytes: usize, bound: usize) -> bool {
        self.bytes.get() == 0 || self.bytes.get() + bytes <= bound
    }

    /// Waits until nothing of it is under way.
    pub(crate) async fn rest(&self) {
        while self.bytes.get() > 0 {
            self.ended.notified().await;
        }
    }

    fn pass(&self, bytes: usize) -> TransferPermit {
        self.bytes.set(self.bytes.get() + bytes);
        TransferPermit { bytes, under_way: Rc::clone(&self.bytes), ended: self.ended.clone() }
    }
}

impl Core {
    /// Lets the executor turn once. To yield is less: it lets tasks run that are ready, and no completion comes in.
    pub(crate) async fn yield_to_io(&self) {
        self.rt.sleep(TURN).await;
    }

    /// Between two steps of background work that goes through the index. When a slice is used up, others run, and for
    /// longer when there are clients among them.
    pub(crate) async fn yield_slice(&self) {
        let pace = &self.pace;
        pace.steps.set(pace.steps.get() + 1);
        let passed = self.tree.borrow().visits() - pace.begin.get();
        if passed + pace.steps.get() * STEP_NODES < SLICE_NODES {
            return;
        }
        let asked = self.tree.borrow().tick();
        self.rt.sleep(self.config.slice).await;
        if self.tree.borrow().tick() != asked && !self.is_space_scarce() {
            self.rt.sleep(self.config.slice * (REST_SLICES - 1)).await;
        }
        pace.begin.set(self.tree.borrow().visits());
        pace.steps.set(0);
    }

    /// Whether so little of the device is free that aggregation comes first.
    pub(crate) fn is_space_scarce(&self) -> bool {
        self.space.borrow().free() < self.layout.data_blocks / SCARCE_DIVISOR
    }

    /// Waits until a background transfer of this many bytes may begin. What is longer than the bound goes alone.
    pub(crate) async fn acquire_transfer(&self, bytes: usize) -> TransferPermit {
        let bound = self.bound(self.is_space_scarce());
        self.acquire_transfer_within(bytes, bound).await
    }

    /// Most bytes under way for what is asked at this moment. What is `pressed` doesn't wait for clients.
    fn bound(&self, pressed: bool) -> usize {
        if self.journal.is_busy() && !pressed { BUSY_BYTES_MAX } else { BYTES_MAX }
    }

    async fn acquire_transfer_within(&self, bytes: usize, bound: usize) -> TransferPermit {
        if bound == BUSY_BYTES_MAX {
            race(self.journal.progress.notified(), self.rt.sleep(BATCH_WAIT_MAX)).await;
        }
        while !self.pace.has_way(bytes, bound) {
            self.pace.ended.notified().await;
        }
        self.pace.pass(bytes)
    }

    /// Reads a piece as background work.
    pub(crate) async fn read_behind(&self, offset: u64, len: usize) -> Result<DmaBuf, MediaError> {
        let permit = self.acquire_transfer(len).await;
        let read = self.device.read(offset, self.dma.take(len).await).await;
        drop(permit);
        read
    }
}

/// Where the piece of a value ends that begins at a byte: between chunks, since each is read and checked as a whole. That
/// is before the chunk in which [`PIECE`] is reached, or behind it if the piece begins in this chunk.
fn cut(chunks: Chunks, at: u64) -> u64 {
    let end = (at / PIECE as u64 + 1) * PIECE as u64;
    if end >= chunks.len() {
        return chunks.len();
    }
    let chunk = chunks.range(chunks.at(end));
    if chunk.start > at { chunk.start } else { chunk.end }
}

/// Reads bytes of a value as background work, as [`read_blocks`] does, piece by piece. Returns their checksum.
pub(crate) async fn read_blocks_behind(
    core: &Core,
    blocks: &Blocks,
    from: u64,
    extent: Option<Extent>,
    into: &mut [u8],
) -> Result<u32, FetchError> {
    // The index may be ahead of the device: nobody has waited yet for the record that it has the value from.
    core.writer.written(core.journal.last()).await?;
    let (mut at, mut rest, mut sum) = (from, into, 0);
    while !rest.is_empty() {
        // What lies scattered has to be read as a whole for each piece of it.
        let left = if blocks.runs.len() > 1 { usize::MAX } else { in_memory(cut(blocks.chunks, at) - at) };
        let (piece, after) = rest.split_at_mut(left.min(rest.len()));
        let permit = core.acquire_transfer(piece.len()).await;
        let of_piece = read_blocks(core, blocks, at, extent, piece, Some(Comparison::Here)).await?;
        drop(permit);
        sum = join(sum, of_piece, piece.len() as u64);
        at += piece.len() as u64;
        rest = after;
        core.yield_to_io().await;
    }
    Ok(sum)
}

/// Background writes, several under way at once, each with what is to be kept until it has ended.
pub(crate) struct BackgroundWrites<'a, P, K> {
    core: &'a Core,
    pressed: P,
    writes: VecDeque<(Rc<TransferPermit>, IoFuture<()>, K)>,
}

impl<'a, P: Fn() -> bool, K> BackgroundWrites<'a, P, K> {
    /// Writes that don't wait for clients while `pressed` says so.
    pub(crate) fn new(core: &'a Core, pressed: P) -> Self {
        Self { core, pressed, writes: VecDeque::new() }
    }

    /// Waits for the permit to begin writes of this many bytes.
    pub(crate) async fn permit(&mut self, bytes: usize) -> Result<Rc<TransferPermit>, MediaError> {
        let bound = self.core.bound((self.pressed)());
        // Nobody else waits for the ends of these.
        while !self.core.pace.has_way(bytes, bound) && self.end_first().await? {}
        Ok(Rc::new(self.core.acquire_transfer_within(bytes, bound).await))
    }

    /// Memory for a write, whose content is anything.
    pub(crate) async fn buffer(&mut self, bytes: usize) -> Result<DmaBuf, MediaError> {
        loop {
            if let Some(buffer) = self.core.dma.try_take(bytes) {
                return Ok(buffer);
            }
            // It may be these that have all the memory.
            if !self.end_first().await? {
                return Ok(self.core.dma.take(bytes).await);
            }
        }
    }

    /// Begins a write, one of those that the permit is for.
    pub(crate) fn write(&mut self, permit: &Rc<TransferPermit>, offset: u64, buffer: DmaBuf, kept: K) {
        let write = self.core.device.write(offset, vec![buffer.into()]);
        self.writes.push_back((Rc::clone(permit), write, kept));
    }

    async fn end_first(&mut self) -> Result<bool, MediaError> {
        let Some((permit, write, kept)) = self.writes.pop_front() else { return Ok(false) };
        write.await?;
        drop((permit, kept));
        Ok(true)
    }

    /// Waits until all writes have ended.
    pub(crate) async fn end(mut self) -> Result<(), MediaError> {
        while self.end_first().await? {}
        Ok(())
    }
}
