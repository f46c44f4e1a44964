//! Replaying the log after the checkpoint.
//!
//! The log ends at the first batch that isn't intact. Since a batch was written only after the one before was
//! durable, an intact batch behind the end means that an acknowledged one was damaged, and so does a checkpoint header that
//! tells of it: the store is then not opened.
//! The last intact batch may be one whose flush never completed, so the data extents it refers to are checked, and
//! without them it is dropped: nothing on the device says that it was acknowledged.

use crate::format::codec::Malformed;
use crate::format::key;
use crate::format::record::{Change, Records};
use crate::format::ring::Ring;
use crate::format::size::in_memory;
use crate::format::{BATCH_HEADER, BATCH_MAX, Batch, BatchKind, batch_header, probe_batch, seal_batch};
use crate::log::recover::Opening;
use crate::log::tail;
use crate::state::core::{Core, add};
use crate::state::error::OpenError;
use crate::state::paging::check_entry;
use core::ops::Range;
use std::rc::Rc;
use weir_media::{BLOCK, Device, DmaBuf, MediaError};

/// Bytes read at once.
const WINDOW: u64 = 1 << 20;

/// Changes whose index nodes are brought into memory together.
const REACH_CHANGES: usize = 256;

/// The log ring through a window.
pub(crate) struct Reader<'a> {
    device: &'a Rc<dyn Device>,
    offset: u64,
    len: u64,
    window: Option<(u64, DmaBuf)>,
    /// Windows that can't be read as a whole: of what lies there only what is asked for is read.
    spoilt: Vec<Range<u64>>,
}

impl Reader<'_> {
    /// Bytes of the ring from `position`, up to its end at most.
    pub(crate) async fn bytes(&mut self, position: u64, len: u64) -> Result<&[u8], OpenError> {
        let len = len.min(self.len - position).next_multiple_of(BLOCK as u64);
        let held = self.window.as_ref().is_some_and(|(start, window)| {
            *start <= position && position + len <= start + window.len() as u64
        });
        if !held {
            self.window = Some((position, self.read_window(position, len).await?));
        }
        let (start, window) = self.window.as_ref().expect("invariant: it holds what is asked for");
        let from = in_memory(position - start);
        Ok(&window[from..from + in_memory(len)])
    }

    /// Reads so many bytes, and more where that can be read.
    async fn read_window(&mut self, position: u64, len: u64) -> Result<DmaBuf, MediaError> {
        let wide = len.max(WINDOW).min(self.len - position);
        if wide > len && !self.spoilt.iter().any(|window| window.contains(&position)) {
            match self.read(position, wide).await {
                Err(MediaError::Io { .. }) => self.spoilt.push(position..position + wide),
                done => return done,
            }
        }
        self.read(position, len).await
    }

    async fn read(&self, position: u64, len: u64) -> Result<DmaBuf, MediaError> {
        let buffer = DmaBuf::new(in_memory(len));
        self.device.read(self.offset + position, buffer).await
    }

    /// The intact batch at a position with its records, if it is one that is wanted by its header: behind any other may lie
    /// what can't be read.
    pub(crate) async fn batch(
        &mut self,
        position: u64,
        store: uuid::Uuid,
        is_wanted: impl Fn(&Batch) -> bool,
    ) -> Result<Option<(Batch, Vec<u8>)>, OpenError> {
        let header = self.bytes(position, BLOCK as u64).await?;
        let Some(batch) = probe_batch(header, store).filter(is_wanted) else { return Ok(None) };
        if u64::from(batch.len) > BATCH_MAX || position + batch.blocks_len() > self.len {
            return Ok(None);
        }
        let bytes = self.bytes(position, u64::from(batch.len)).await?;
        let intact = batch.matches(bytes);
        Ok(intact.then(|| (batch, bytes[BATCH_HEADER..batch.len as usize].to_vec())))
    }
}

/// The batch before the present position, not yet applied.
struct Held {
    records: Records,
    sequence: u64,
    /// Where it is in the ring.
    position: u64,
    /// The ring as it was before it.
    before: Ring,
}

/// Replays the log into `core` and leaves its ring behind the last batch. A batch that is dropped is overwritten; the caller
/// makes that stable before anything else is stored. Returns how many of the records that the checkpoint has already were
/// there.
pub(crate) async fn replay(opening: &Opening<'_>, core: &Rc<Core>) -> Result<u64, OpenError> {
    let layout = core.layout;
    let (offset, len) = (layout.log_offset, layout.log_len);
    let mut reader = Reader { device: &core.device, offset, len, window: None, spoilt: Vec::new() };
    let mut incarnation = 0;
    let known = core.checkpoints.header.get().known;
    let mut left = known;
    let mut held: Option<Held> = None;
    // The ring as it was before a mark that is lost.
    let mut unmarked = None;
    loop {
        let ring = *core.journal.ring.borrow();
        let incarnations = incarnation..=core.journal.incarnation.get();
        let fits = |batch: &Batch| ring.goes_on_with(batch) && incarnations.contains(&batch.incarnation);
        let mut found = reader.batch(ring.position, core.id, fits).await?;
        if found.is_none() {
            if let Some(previous) = lost_wrap(core, &mut reader).await? {
                skip_lost_wrap(core, previous);
                unmarked = Some(ring);
                continue;
            }
            found = tail::turn_back(core, &mut reader, fits).await?;
        }
        let Some((batch, bytes)) = found else { break };
        incarnation = batch.incarnation;
        if let Some(Held { records, .. }) = held.take() {
            apply(opening, core, &records, ring.position, &mut left).await?;
        }
        let records = Records::decode(bytes).map_err(|malformed| {
            opening.corrupt("a log batch", layout.log_offset + ring.position, malformed.0)
        })?;
        let state = &mut *core.journal.ring.borrow_mut();
        state.previous = batch.crc;
        match batch.kind {
            BatchKind::Records => {
                state.advance(batch.blocks_len());
                // A batch that is dropped takes the lost mark along: what comes next is of another incarnation, of which
                // that mark can't be told.
                let before = unmarked.take().unwrap_or(ring);
                let (sequence, position) = (ring.sequence, ring.position);
                held = Some(Held { records, sequence, position, before });
            }
            BatchKind::Wrap => state.advance(layout.log_len - ring.position),
        }
    }
    tail::check(opening, core, &mut reader).await?;
    let Some(Held { records, sequence, position, before }) = held else { return Ok(known - left) };
    // Data of a batch that was stable is damaged, if it is: its readers are told.
    if sequence < stable_before(core) || tail::has_its_data(core, &records).await? {
        apply(opening, core, &records, before.position, &mut left).await?;
    } else {
        // Whoever stores the same again may bring its data to the same blocks, and a later open would believe in it then.
        core.device.write(layout.log_offset + position, vec![DmaBuf::new(BLOCK).into()]).await?;
        *core.journal.ring.borrow_mut() = before;
    }
    Ok(known - left)
}

/// The log's batches of lower numbers were stable, as the checkpoint header says, or who has seen the store.
pub(crate) fn stable_before(core: &Core) -> u64 {
    let seen = crate::state::mark::stable_by(core.config.mark.as_ref(), core.id);
    seen.max(core.checkpoints.header.get().stable)
}

/// Applies the records of a batch that ends at `position` of the ring, but for the first `known` ones, which it counts
/// down: a record that is applied to a state with later ones would undo parts of them.
async fn apply(
    opening: &Opening<'_>,
    core: &Core,
    records: &Records,
    position: u64,
    known: &mut u64,
) -> Result<(), OpenError> {
    let skipped = records.len().min(in_memory(*known));
    *known -= skipped as u64;
    add(&core.counters.replayed, (records.len() - skipped) as u64);
    let mut changes = records.changes(skipped);
    loop {
        let mut part: Vec<Change> = changes.by_ref().take(REACH_CHANGES).collect();
        if part.is_empty() {
            return Ok(());
        }
        core.reach_replayed(&mut part).await?;
        for change in &part {
            apply_checked(core, change).map_err(|malformed| {
                opening.corrupt("a log batch", core.layout.log_offset + position, malformed.0)
            })?;
        }
        core.tidy(&part);
        core.relieve_memory();
    }
}

fn apply_checked(core: &Core, change: &Change) -> Result<u64, Malformed> {
    match change {
        Change::Put { key, value } => drop(check_entry(&core.space.borrow(), key, value)?),
        Change::Remove { key } if key.first() == Some(&key::TRANSACTION) => {
            core.note_forgotten(core::slice::from_ref(key));
        }
        Change::Remove { .. } => {}
    }
    core.apply(change, None)
}

/// The batch that marks the end of the ring is written together with the one at the start, so a crash may keep only
/// the latter. It holds nothing: when the chain of checksums fits over it, the log goes on. Returns its checksum.
async fn lost_wrap(core: &Core, reader: &mut Reader<'_>) -> Result<Option<u32>, OpenError> {
    let ring = *core.journal.ring.borrow();
    if ring.position == 0 {
        return Ok(None);
    }
    let is_next = |batch: &Batch| Some(batch.sequence) == ring.sequence.checked_add(1);
    let Some((next, _)) = reader.batch(0, core.id, is_next).await? else { return Ok(None) };
    let wrap = Batch {
        kind: BatchKind::Wrap,
        sequence: ring.sequence,
        incarnation: next.incarnation,
        previous: ring.previous,
        len: u32::try_from(BATCH_HEADER).expect("invariant: a header is short"),
        crc: 0,
    };
    let crc = seal_batch(&mut batch_header(&wrap, core.id));
    Ok((crc == next.previous).then_some(crc))
}

fn skip_lost_wrap(core: &Core, crc: u32) {
    let state = &mut *core.journal.ring.borrow_mut();
    let skipped = state.len - state.position;
    state.previous = crc;
    state.advance(skipped);
}
