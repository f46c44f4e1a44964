//! Where an array has data and where it has holes.

use std::collections::VecDeque;

use weir_proto::limits::RUNS_MAX;
use weir_proto::object::RunsReply;
use weir_runtime::join_all;

use super::{Array, CELLS, dkey_of, name};
use crate::Result;
use crate::session::Context;

/// The real cells of one shard, from some cell on, as they are asked for.
struct Stream {
    shard: usize,
    /// First cell and the one behind the last of each run, counted from the array's start.
    runs: VecDeque<(u64, u64)>,
    /// Dkey and cell of its chunk to go on at.
    next: Option<(u64, u64)>,
}

impl Array {
    /// The first real cell from `from` on. `None` when there is none; `from` itself where an engine can't tell.
    ///
    /// # Errors
    /// When a shard refuses or does not answer in time.
    pub async fn next_real(&self, context: &Context, from: u64) -> Result<Option<u64>> {
        let firsts = (0..self.object.shard_count(context)?).map(|shard| async move {
            let mut stream = self.stream(shard, from);
            if self.advance(context, &mut stream, 1, from).await?.is_none() {
                return Ok(Some(from));
            }
            Ok(stream.runs.front().map(|(start, _)| *start))
        });
        let firsts: Result<Vec<Option<u64>>> = join_all(firsts).await.into_iter().collect();
        Ok(firsts?.into_iter().flatten().min())
    }

    /// The first cell from `from` on that isn't real, which may be that behind the last one. `None` where an engine can't
    /// tell.
    ///
    /// # Errors
    /// When a shard refuses or does not answer in time.
    pub async fn next_hole(&self, context: &Context, from: u64) -> Result<Option<u64>> {
        let layout = self.object.layout(context, &context.map_of(self.object.container().pool()))?;
        let mut streams: Vec<Stream> =
            (0..layout.group_count()).map(|shard| self.stream(shard, from)).collect();
        let mut at = from;
        loop {
            let dkey = dkey_of(at / self.attributes.chunk_cells);
            let Some(stream) = streams.get_mut(layout.group_index(dkey.hash())) else { return Ok(Some(at)) };
            if self.advance(context, stream, RUNS_MAX, at).await?.is_none() {
                return Ok(None);
            }
            match stream.runs.front() {
                Some((start, end)) if *start <= at => at = *end,
                _ => return Ok(Some(at)),
            }
        }
    }

    fn stream(&self, shard: usize, from: u64) -> Stream {
        let chunk_cells = self.attributes.chunk_cells;
        let next = (from / chunk_cells + 1, from % chunk_cells);
        Stream { shard, runs: VecDeque::new(), next: Some(next) }
    }

    /// Drops runs that end at `at` or before, and asks for more until there is another or the shard has none. `None`: it
    /// can't tell.
    async fn advance(
        &self,
        context: &Context,
        stream: &mut Stream,
        limit: u32,
        at: u64,
    ) -> Result<Option<()>> {
        let (cells, chunk_cells) = (name(CELLS)?, self.attributes.chunk_cells);
        loop {
            while stream.runs.pop_front_if(|(_, end)| *end <= at).is_some() {}
            let Some(from) = stream.next.filter(|_| stream.runs.is_empty()) else { return Ok(Some(())) };
            let found = self.object.runs(context, stream.shard, &cells, from, chunk_cells, limit).await?;
            let Some(RunsReply { runs, next }) = found else { return Ok(None) };
            stream.next = next;
            stream.runs.extend(runs.iter().filter_map(|(dkey, run)| {
                let start = dkey.checked_sub(1)?.checked_mul(chunk_cells)?;
                Some((start.checked_add(run.index)?, start.checked_add(run.end())?))
            }));
        }
    }
}
