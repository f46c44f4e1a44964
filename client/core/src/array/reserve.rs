//! Reserved room for cells that aren't written yet, so that the first write succeeds however full pool and quota are by
//! then.

use weir_layout::Layout;
use weir_proto::Der;
use weir_proto::limits::RESERVED_DKEYS_MAX;
use weir_runtime::join_all;

use super::split::CELLS_END;
use super::{Array, CELLS, Range, dkey_of, name};
use crate::Result;
use crate::error::Error;
use crate::object::{DkeyRuns, Reserved};
use crate::session::Context;

/// Most chunks of a range: all of their dkeys are hashed, which takes some seconds then.
const CHUNKS_MAX: u64 = 1 << 26;

/// What a call has reserved that wasn't before.
#[derive(Debug, Default)]
pub struct Reservation {
    /// Of each part the shard, the first cell and the one behind the last, and the dkeys.
    parts: Vec<(usize, (u64, u64), DkeyRuns)>,
}

/// A part of the chunks of a range, one after the other, shard by shard.
struct ReservedPart {
    /// First chunk, and the one behind the last.
    chunks: (u64, u64),
    /// Of each shard.
    dkeys: Vec<DkeyRuns>,
}

impl Array {
    /// Has the targets keep room for those cells of a range that are holes: for all or none. Nothing is written. The first
    /// write of such a cell takes what is kept for it, a hole, and what cuts the array off or removes it, give it up. `None`: an
    /// engine, or a target, of an earlier release can't, and nothing is kept.
    ///
    /// # Errors
    /// `NOSPACE` when pool or quota have less room, `INVAL` when the range runs past the last cell; or when a shard refuses or
    /// does not answer in time. Room that was kept until then is given up, as far as that can be done.
    pub async fn reserve(&self, context: &Context, range: Range) -> Result<Option<Reservation>> {
        let mut reserved = Reservation::default();
        let kept = self.try_reserve(context, range, &mut reserved).await;
        match kept {
            Ok(true) => Ok(Some(reserved)),
            refused => {
                self.give_up(context, reserved).await;
                refused.map(|_| None)
            }
        }
    }

    /// Gives up what a call has reserved. What can't be reached keeps it until the cells are written or removed.
    pub async fn give_up(&self, context: &Context, reserved: Reservation) {
        let Ok(cells) = name(CELLS) else { return };
        let all = reserved.parts.iter().map(|(shard, (from, below), dkeys)| {
            let (object, records) = (&self.object, self.records(&cells, *from, *below));
            async move { object.release(context, *shard, &records, dkeys).await }
        });
        drop(join_all(all).await);
    }

    async fn try_reserve(&self, context: &Context, range: Range, reserved: &mut Reservation) -> Result<bool> {
        let end = range.index.checked_add(range.count).filter(|end| *end <= CELLS_END);
        let end = end.ok_or_else(|| Error::invalid("reserve", "the range runs past the last cell"))?;
        let chunk_cells = self.attributes.chunk_cells;
        let (first, last) = (range.index / chunk_cells, end.div_ceil(chunk_cells));
        if last - first > CHUNKS_MAX {
            let reason = format!("{} chunks are more than {CHUNKS_MAX}; make chunks larger", last - first);
            return Err(Error::refused("reserve", &self.object, Der::NOSPACE, reason));
        }
        // A client that removes it asks no other shard without.
        self.mark(context).await?;
        let (cells, layout) =
            (name(CELLS)?, self.object.layout(context, &context.map_of(self.object.container().pool()))?);
        let mut next = first;
        while next < last {
            let ReservedPart { chunks, dkeys } = part_of(&layout, next, last);
            let (from, below) =
                (range.index.max(chunks.0 * chunk_cells), end.min(chunks.1.saturating_mul(chunk_cells)));
            let records = self.records(&cells, from, below);
            let shards = dkeys.iter().enumerate().filter(|(_, dkeys)| !dkeys.is_empty());
            let asked = shards.map(|(shard, dkeys)| {
                let (object, records) = (&self.object, records.clone());
                async move { (shard, object.reserve(context, shard, &records, dkeys).await) }
            });
            let mut outcome = Ok(true);
            for (shard, kept) in join_all(asked).await {
                match kept {
                    Ok(Some(fresh)) if fresh.is_empty() => {}
                    Ok(Some(fresh)) => reserved.parts.push((shard, (from, below), fresh)),
                    Ok(None) => outcome = outcome.map(|_| false),
                    Err(error) => outcome = Err(error),
                }
            }
            if !matches!(outcome, Ok(true)) {
                return outcome;
            }
            next = chunks.1;
        }
        Ok(true)
    }

    /// Has all targets give up room that they keep for cells from `from` on, up to `below`.
    pub(super) async fn release(&self, context: &Context, from: u64, below: u64) -> Result<()> {
        let (cells, none) = (name(CELLS)?, DkeyRuns::new());
        let records = self.records(&cells, from, below);
        let shards = 0..self.object.shard_count(context)?;
        let all = shards.map(|shard| self.object.release(context, shard, &records, &none));
        join_all(all).await.into_iter().collect()
    }

    /// Cells as records of dkeys.
    fn records<'a>(&self, cells: &'a weir_proto::Key, from: u64, below: u64) -> Reserved<'a> {
        let chunk_cells = self.attributes.chunk_cells;
        // The last one's chunk, of which all may be meant, rather than the next one.
        let last = below.saturating_sub(1) / chunk_cells;
        Reserved {
            akey: cells,
            size: (self.attributes.cell_size, chunk_cells),
            from: (from / chunk_cells + 1, from % chunk_cells),
            below: (last + 1, below - last * chunk_cells),
        }
    }
}

/// The first chunks of those up to `last` whose dkeys each shard takes in one request.
fn part_of(layout: &Layout, first: u64, last: u64) -> ReservedPart {
    let mut dkeys: Vec<DkeyRuns> = vec![DkeyRuns::new(); layout.group_count()];
    let mut counts = vec![0; layout.group_count()];
    let mut chunk = first;
    while chunk < last {
        let shard = layout.group_index(dkey_of(chunk).hash());
        let Ok(at) = u32::try_from(chunk - first) else { break };
        if counts[shard] == RESERVED_DKEYS_MAX {
            break;
        }
        counts[shard] += 1;
        match dkeys[shard].last_mut() {
            Some((start, count)) if *start + *count == at => *count += 1,
            _ => dkeys[shard].push((at, 1)),
        }
        chunk += 1;
    }
    ReservedPart { chunks: (first, chunk), dkeys }
}
