//! Data of an update that doesn't go inline: its blocks, and the way to the device.

use crate::format::blocks::{RUNS_MAX, Runs};
use crate::format::checksum::Checksums;
use crate::format::size::in_memory;
use crate::format::value::{Blocks, Payload};
use crate::operations::update::{Data, Request};
use crate::space::map::Purpose;
use crate::state::core::Core;
use crate::state::error::UpdateError;
use crate::state::piece::{WritePiece, bytes_in_blocks};
use crate::state::reservation::Reservation;
use crate::state::shard::Shard;
use crate::state::writer::{Part, Parts, READY_BYTES, Slices, Writing, take_front};
use core::ops::Range;
use std::rc::Rc;
use weir_media::{BLOCK, DmaBuf, MediaError};
use weir_proto::ContainerId;

/// Bytes that are compared with their checksums before others run, some 50 µs, and the rest of the piece that is under way:
/// a single value is one piece, of up to 8 MiB.
const SEAL_BYTES: usize = 512 << 10;

/// Whether so much data is given to the device before it is compared with its checksums.
pub(crate) const fn is_large(in_blocks: usize) -> bool {
    in_blocks >= READY_BYTES
}

/// Where the data of an update is that doesn't go inline.
pub(super) enum Stored {
    /// On the device.
    Written(Reservation),
    /// Being written.
    Writing(Writing),
}

impl Stored {
    /// Why it could not be written.
    pub(super) fn error(&self) -> Option<MediaError> {
        match self {
            Self::Written(_) => None,
            Self::Writing(writing) => writing.error(),
        }
    }

    /// A record refers to it.
    pub(super) fn commit(self, record: u64) {
        match self {
            Self::Written(mut reservation) => reservation.keep(),
            Self::Writing(writing) => writing.commit(record),
        }
    }
}

/// Announces to the log that an update is writing its data.
pub(crate) struct Staging(Rc<Core>);

impl Staging {
    pub(crate) fn new(core: &Rc<Core>) -> Self {
        core.journal.begin_staging();
        Self(Rc::clone(core))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.0.journal.end_staging();
    }
}

/// Memory for what has to be copied of a piece of data: so many bytes, rounded up to whole blocks.
type Memory<'a> = &'a mut dyn FnMut(usize) -> Option<DmaBuf>;

/// Block-aligned memory with these bytes of the data, zeros up to the next whole block. `None`: `memory` gave none.
fn slices(data: &Data<'_>, range: Range<usize>, memory: Memory<'_>) -> Option<Slices> {
    let mut slices = Slices::new();
    let mut rest = range.clone();
    if let Data::Shared(slice) = data {
        let whole = range.len() - range.len() % BLOCK;
        let head = slice.part(range.start..range.start + whole);
        if let Some(head) = head.filter(|head| whole > 0 && head.is_aligned()) {
            slices.push(head);
            rest.start += whole;
        }
    }
    if !rest.is_empty() {
        let len = rest.len();
        let mut copy = memory(len)?;
        copy[..len].copy_from_slice(&data.bytes()[rest]);
        copy[len..].fill(0);
        slices.push(copy.into());
    }
    Some(slices)
}

/// As [`slices`], of the first piece that goes to blocks.
fn first_slices(pieces: &[WritePiece], data: &Data<'_>, memory: Memory<'_>) -> Option<Slices> {
    let first = pieces.iter().find(|piece| piece.in_blocks);
    first.map_or_else(|| Some(Slices::new()), |piece| slices(data, piece.data.clone(), memory))
}

impl Shard {
    /// Takes blocks for the pieces that need them.
    fn hold_blocks(
        &self,
        id: ContainerId,
        request: &Request<'_>,
        pieces: &mut [WritePiece],
    ) -> Result<Reservation, UpdateError> {
        let bytes = bytes_in_blocks(pieces);
        // The rest is counted as used already.
        let taken = bytes.saturating_sub(request.covered);
        self.check_space((id, request.container), request.quota, (taken, 0, bytes / BLOCK as u64))?;
        let mut reservation = Reservation::of_runs(&self.core, self.number, Runs::new());
        for piece in pieces.iter_mut().filter(|piece| piece.in_blocks) {
            let count = piece.padded() / BLOCK as u64;
            let runs = self.core.space.borrow_mut().allocate(count, Purpose::Data, RUNS_MAX);
            let runs = runs.ok_or_else(|| UpdateError::Fragmented(request.dkey.clone()))?;
            reservation.extend(&runs);
            piece.payload =
                Payload::Blocks(Blocks { chunks: piece.chunks, runs, checksums: Checksums::new() });
            piece.describe();
        }
        reservation.take(taken);
        Ok(reservation)
    }

    /// What goes to blocks, of which `first` is that of the first piece.
    fn stage(&self, pieces: &[WritePiece], data: &Data<'_>, first: Slices) -> Parts {
        let mut parts = Parts::new();
        let (bytes, mut first) = (data.bytes(), Some(first));
        // Behind the first piece an update may hold some of the pool: those that hold some would wait for each other.
        let mut memory = |len| Some(self.core.dma.try_take(len).unwrap_or_else(|| DmaBuf::new(len)));
        for piece in pieces {
            let range = piece.data.clone();
            let Payload::Blocks(blocks) = &piece.payload else { continue };
            match (blocks.lone(), blocks.runs.as_slice()) {
                (Some(lone), _) => {
                    self.core.cache.insert(lone.block, lone.checksum, &bytes[range.clone()]);
                }
                // Of what is large the checksums aren't known yet.
                (None, [run]) if run.count == 1 => self.core.cache.forget(run.block),
                (None, _) => {}
            }
            let slices = first.take().or_else(|| slices(data, range, &mut memory));
            let mut slices = slices.expect("invariant: this memory is always given");
            if let [run] = blocks.runs.as_slice() {
                parts.push(Part { offset: self.core.layout.data(run.block), slices });
                continue;
            }
            for run in &blocks.runs {
                let slices = take_front(&mut slices, in_memory(run.bytes()));
                parts.push(Part { offset: self.core.layout.data(run.block), slices });
            }
        }
        parts
    }

    /// Begins to write what doesn't go inline; the first piece of that is in `first`.
    fn begin_blocks(
        &self,
        container: ContainerId,
        request: &Request<'_>,
        pieces: &mut [WritePiece],
        (data, first): (&Data<'_>, Slices),
    ) -> Result<Writing, UpdateError> {
        if let Some(reason) = self.core.refusal() {
            return Err(UpdateError::Failed(reason));
        }
        let held = self.hold_blocks(container, request, pieces)?;
        let parts = self.stage(pieces, data, first);
        Ok(self.core.writer.begin(&self.core, held, parts))
    }

    /// As [`Shard::write_blocks`], of what isn't large and needn't wait for memory. `None`: it has to.
    pub(super) fn write_blocks_now(
        &self,
        container: ContainerId,
        request: &Request<'_>,
        pieces: &mut [WritePiece],
        data: &Data<'_>,
    ) -> Result<Option<Writing>, UpdateError> {
        match first_slices(pieces, data, &mut |len| self.core.dma.try_take(len)) {
            Some(first) => self.begin_blocks(container, request, pieces, (data, first)).map(Some),
            None => Ok(None),
        }
    }

    /// Begins to write what doesn't go inline. Large data is compared with its checksums while the device has it already, and
    /// others run in between: nothing refers to the blocks yet, which stay reserved until the device is done with them,
    /// whatever comes of the update.
    pub(crate) async fn write_blocks(
        &self,
        container: ContainerId,
        request: &Request<'_>,
        pieces: &mut [WritePiece],
        data: &Data<'_>,
    ) -> Result<Writing, UpdateError> {
        let (dma, mut needed) = (&self.core.dma, 0);
        let first = first_slices(pieces, data, &mut |len| {
            needed = len;
            dma.try_take(len)
        });
        let first = if let Some(first) = first {
            first
        } else {
            let mut memory = Some(dma.take(needed).await);
            first_slices(pieces, data, &mut |_| memory.take())
                .expect("invariant: one piece needs memory once")
        };
        let writing = self.begin_blocks(container, request, pieces, (data, first))?;
        let in_blocks = pieces.iter().filter(|piece| piece.in_blocks).map(|piece| piece.data.len());
        if is_large(in_blocks.sum()) {
            let (regular_only, mut sealed) = (!self.core.keeps_all_checksums(), 0);
            for piece in pieces {
                if sealed >= SEAL_BYTES {
                    self.core.yield_to_io().await;
                    sealed = 0;
                }
                request.seal(piece, data.bytes(), regular_only)?;
                sealed += piece.data.len();
                piece.describe();
            }
        }
        Ok(writing)
    }
}
