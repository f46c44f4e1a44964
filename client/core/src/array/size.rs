//! The end of an array, and moving it.

use std::sync::atomic::Ordering;

use weir_proto::object::{Conditions, Extent};
use weir_proto::{Epoch, Key};
use weir_runtime::join_all;

use super::split::CELLS_END;
use super::{Array, CELLS, End, dkey_of, name};
use crate::Result;
use crate::object::{AkeyRead, AkeyWrite, Anchor, ExtremeKey, Measured};
use crate::session::Context;
use crate::transaction::{Restarts, Transaction};

/// Cell of the first chunk that, when it is real, says that later chunks may exist. Above every chunk, below bit 63,
/// which is reserved.
pub(super) const MARK: u64 = 1 << 62;

/// Where an array ends, and how much of it is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Measure {
    /// Number of cells up to the last real one.
    pub size: u64,
    /// Epoch of the newest change.
    pub epoch: Epoch,
    /// Cells that are real, at most `size`. Of an array with more chunks and extents than a shard counts for one request,
    /// what lies behind those counted is taken to be like them. All of it where an engine can't count.
    pub real: u64,
}

impl Array {
    /// Number of cells up to the last real one.
    ///
    /// # Errors
    /// When a shard refuses or does not answer in time.
    pub async fn size(&self, context: &Context) -> Result<u64> {
        Ok(self.size_and_epoch(context).await?.0)
    }

    /// Number of cells up to the last real one, and the epoch of the newest change.
    ///
    /// # Errors
    /// When a shard refuses or does not answer in time.
    pub async fn size_and_epoch(&self, context: &Context) -> Result<(u64, Epoch)> {
        let measure = self.ends(context, false).await?;
        Ok((measure.size, measure.epoch))
    }

    /// Where the array ends, when it changed last, and how many of its cells are real. As many requests as
    /// [`Array::size_and_epoch`].
    ///
    /// # Errors
    /// When a shard refuses or does not answer in time.
    pub async fn measure(&self, context: &Context) -> Result<Measure> {
        self.ends(context, true).await
    }

    async fn ends(&self, context: &Context, counts: bool) -> Result<Measure> {
        if let End::Marked(marked) = &self.end
            && !marked.load(Ordering::Relaxed)
        {
            let first = self.last_of(context, Some(&dkey_of(0)), counts).await?;
            let size = first.last.extent.map_or(0, |(extent, _)| extent.end());
            if size <= self.attributes.chunk_cells {
                let real = real_cells(&first.counts, size, 1);
                return Ok(Measure { size, epoch: first.last.max_epoch, real });
            }
            marked.store(true, Ordering::Relaxed);
        }
        let all = self.last_of(context, None, counts).await?;
        let size = self.scan(context, &all.last).await?;
        let real = real_cells(&all.counts, size, size.div_ceil(self.attributes.chunk_cells));
        Ok(Measure { size, epoch: all.last.max_epoch, real })
    }

    /// The last cell of a chunk, or of the last chunk, and how many cells are real if they are to be counted.
    async fn last_of(&self, context: &Context, dkey: Option<&Key>, counts: bool) -> Result<Measured> {
        let cells = name(CELLS)?;
        if counts {
            return self.object.measure(context, dkey, &cells, self.attributes.chunk_cells).await;
        }
        let last = self.object.extreme_key(context, true, dkey, Some(&cells), true).await?;
        Ok(Measured { last, counts: Vec::new() })
    }

    async fn scan(&self, context: &Context, last: &ExtremeKey) -> Result<u64> {
        let number = last.dkey.as_ref().and_then(Key::to_u64).unwrap_or(0);
        match (number.checked_sub(1), last.extent) {
            (None, _) => Ok(0),
            (Some(chunk), Some((extent, _))) if extent.end() <= self.attributes.chunk_cells => {
                Ok(chunk * self.attributes.chunk_cells + extent.end())
            }
            // The last chunk was punched empty, or the record found is the mark: look at each chunk, last first.
            _ => self.scan_chunks(context).await,
        }
    }

    async fn scan_chunks(&self, context: &Context) -> Result<u64> {
        let shards = 0..self.object.shard_count(context)?;
        let mut chunks = Vec::new();
        for found in join_all(shards.map(|shard| self.object.shard_dkeys(context, shard))).await {
            chunks.extend(found?.iter().filter_map(Key::to_u64).filter_map(|number| number.checked_sub(1)));
        }
        chunks.sort_unstable();
        for chunk in chunks.into_iter().rev() {
            let end = self.end_of_chunk(context, chunk).await?;
            if end > 0 {
                return Ok(chunk * self.attributes.chunk_cells + end);
            }
        }
        Ok(0)
    }

    /// End of the last real cell of a chunk, without the mark.
    async fn end_of_chunk(&self, context: &Context, chunk: u64) -> Result<u64> {
        let (dkey, cells) = (dkey_of(chunk), name(CELLS)?);
        let last = self.object.extreme_key(context, true, Some(&dkey), Some(&cells), true).await?;
        let end = last.extent.map_or(0, |(extent, _)| extent.end());
        if end <= self.attributes.chunk_cells {
            return Ok(end);
        }
        let mut end = 0;
        let mut anchor = Anchor::START;
        while !anchor.is_end() {
            let limit = weir_proto::limits::LIST_KEYS_MAX;
            let page = self.object.list_extents(context, &dkey, &cells, &anchor, limit).await?;
            let ends = page.entries.iter().filter_map(|entry| entry.extent).map(|(extent, ..)| extent.end());
            end = ends.filter(|end| *end <= self.attributes.chunk_cells).fold(end, u64::max);
            anchor = page.next;
        }
        Ok(end)
    }

    /// Makes it known that chunks after the first may exist, before they do.
    pub(super) async fn mark(&self, context: &Context) -> Result<()> {
        let End::Marked(marked) = &self.end else { return Ok(()) };
        if marked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let extent = Extent { index: MARK, count: 1 };
        let write = AkeyWrite::array(name(CELLS)?, self.attributes.cell_size, vec![extent], vec![&[1]]);
        self.object.update(context, &dkey_of(0), Conditions::NONE, &[write]).await?;
        marked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Cuts the array off or lengthens it: afterwards it has `size` cells, of which those that were not there
    /// read as zeros.
    ///
    /// Not atomic: a concurrent write of another client may be cut off or may lengthen the array again.
    ///
    /// # Errors
    /// As [`Array::write`].
    pub async fn set_size(&self, context: &Context, size: u64) -> Result<()> {
        let before = self.size_before(context, size).await?;
        // Room may be kept behind the end.
        let may_have_reserved = matches!(&self.end, End::Marked(marked) if marked.load(Ordering::Relaxed));
        if before >= size && may_have_reserved {
            self.release(context, size, CELLS_END).await?;
        }
        if before == size {
            return Ok(());
        }
        if before > size {
            self.cut_off(context, size, before).await?;
        }
        if size > 0 { self.make_real(context, size - 1).await } else { Ok(()) }
    }

    /// How many cells it has, which is to have `size`: what that takes is known before there are any.
    async fn size_before(&self, context: &Context, size: u64) -> Result<u64> {
        if size > self.attributes.chunk_cells {
            self.mark(context).await?;
        }
        Ok(self.size_and_epoch(context).await?.0)
    }

    /// Lengthens the array, so that it has at least `size` cells. Nothing that others write at the same time is cut off.
    /// Returns how many it has then.
    ///
    /// # Errors
    /// As [`Array::write`].
    pub async fn lengthen(&self, context: &Context, size: u64) -> Result<u64> {
        let before = self.size_before(context, size).await?;
        if before < size {
            self.make_real(context, size - 1).await?;
        }
        Ok(before.max(size))
    }

    /// Removes every cell from `size` on, of `before`.
    async fn cut_off(&self, context: &Context, size: u64, before: u64) -> Result<()> {
        let chunk_cells = self.attributes.chunk_cells;
        let boundary = size / chunk_cells;
        if before > chunk_cells {
            self.remove_chunks(context, &|chunk| chunk > boundary).await?;
        }
        // The boundary chunk keeps its dkey, which may be the first and carry the mark.
        let within = size % chunk_cells;
        let extent = Extent { index: within, count: chunk_cells - within };
        self.punch_extent(context, boundary, extent).await
    }

    /// Removes those of the array's chunks, but for the first, which carries the mark.
    pub(super) async fn remove_chunks(&self, context: &Context, gone: &dyn Fn(u64) -> bool) -> Result<()> {
        let is_gone = |dkey: &Key| {
            dkey.to_u64()
                .and_then(|number| number.checked_sub(1))
                .is_some_and(|chunk| chunk > 0 && gone(chunk))
        };
        let all = (0..self.object.shard_count(context)?).map(|shard| async move {
            let mut dkeys = self.object.shard_dkeys(context, shard).await?;
            dkeys.retain(is_gone);
            self.object.punch_dkeys(context, Conditions::NONE, &dkeys).await
        });
        join_all(all).await.into_iter().collect()
    }

    /// Writes a zero to a cell that is a hole, so that the array reaches it. What others write to it at the same time stays.
    async fn make_real(&self, context: &Context, cell: u64) -> Result<()> {
        let mut restarts = Restarts::new(context);
        loop {
            match self.try_make_real(context, cell).await {
                Err(error) => restarts.again(context, error).await?,
                done => return done,
            }
        }
    }

    async fn try_make_real(&self, context: &Context, cell: u64) -> Result<()> {
        let mut transaction = Transaction::begin(context, self.object.container());
        let chunk_cells = self.attributes.chunk_cells;
        let (dkey, cells) = (dkey_of(cell / chunk_cells), name(CELLS)?);
        let extent = Extent { index: cell % chunk_cells, count: 1 };
        let mut found = vec![0; self.attributes.cell_size as usize];
        let mut reads =
            [AkeyRead::array(cells.clone(), self.attributes.cell_size, vec![extent], vec![&mut found])];
        let view = transaction.view(&self.object);
        let outcome = view.fetch(context, &dkey, Conditions::NONE, &mut reads).await?;
        if outcome.first().is_some_and(|found| !found.present.is_empty()) {
            return Ok(());
        }
        let zeros = vec![0; self.attributes.cell_size as usize];
        let write = AkeyWrite::array(cells, self.attributes.cell_size, vec![extent], vec![&zeros]);
        transaction.update(&self.object, &dkey, Conditions::NONE, &[write])?;
        transaction.commit(context).await.map(drop)
    }
}

impl Array {
    /// Removes all cells of an array that is not used any more. An array that never left its first chunk is queried and
    /// removed on one shard only.
    ///
    /// # Errors
    /// When a shard refuses or does not answer in time.
    pub async fn discard(&self, context: &Context) -> Result<()> {
        if let End::Marked(_) = &self.end {
            let (dkey, cells) = (dkey_of(0), name(CELLS)?);
            let first = self.object.extreme_key(context, true, Some(&dkey), Some(&cells), true).await?;
            let end = first.extent.map_or(0, |(extent, _)| extent.end());
            if end == 0 {
                return Ok(());
            }
            if end <= self.attributes.chunk_cells {
                return self.object.punch_dkeys(context, Conditions::NONE, &[dkey]).await;
            }
        }
        self.object.punch(context).await
    }
}

/// Real cells of an array of so many cells and chunks, from what shards have counted.
fn real_cells(counts: &[Option<(u64, Option<u64>)>], size: u64, chunks: u64) -> u64 {
    let of_shard = |count: &Option<(u64, Option<u64>)>| {
        let (real, stopped) = (*count)?;
        // Chunks before the one whose number less one is the dkey at which counting ended.
        Some(match stopped {
            Some(dkey) if dkey > 1 && dkey - 1 < chunks => {
                let all = u128::from(real) * u128::from(chunks) / u128::from(dkey - 1);
                u64::try_from(all).unwrap_or(u64::MAX)
            }
            Some(_) => size,
            None => real,
        })
    };
    let real: Option<u64> =
        counts.iter().try_fold(0_u64, |sum, count| Some(sum.saturating_add(of_shard(count)?)));
    real.map_or(size, |real| real.min(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_counted_is_taken_to_be_like_what_is() {
        assert_eq!(real_cells(&[Some((5, None)), Some((7, None))], 100, 10), 12);
        // Half of the chunks were counted.
        assert_eq!(real_cells(&[Some((20, Some(6))), Some((7, None))], 100, 10), 47);
        assert_eq!(real_cells(&[Some((20, Some(2)))], 100, 10), 100);
        assert_eq!(real_cells(&[Some((3, Some(1)))], 100, 10), 100);
        assert_eq!(real_cells(&[Some((3, None)), None], 100, 10), 100);
    }
}
