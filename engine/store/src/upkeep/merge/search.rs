//! The search for parts of an akey that are worth a merge.

use super::akey_existence;
use crate::format::value::Kind;
use crate::index::extents::{ALL_RECORDS, STEP_LOOKS};
use crate::index::fault::{Fault, Halt};
use crate::index::tree::Tree;
use crate::state::aggregation::AkeyPaths;
use crate::state::core::Core;
use crate::state::paging::Still;
use crate::upkeep::aggregate::ChoreError;
use crate::upkeep::sweep::{Next, Shown, Surface};
use std::rc::Rc;
use weir_proto::chunk;

/// Fewest parts that are worth a merge.
const PARTS_MIN: usize = 4;

/// Mean bytes of a part above which rewriting costs more than the parts do: sixteen blocks.
const PART_BYTES_MAX: u64 = 64 << 10;

/// Most parts of one merge: what a file chunk of 1 MiB consists of that was written in blocks. That they are still there
/// is found out in one step, some 100 µs.
pub(super) const PARTS_MAX: usize = 256;

/// Looks at one state of the index, beyond which a search goes on in the present one.
const STILL_LOOKS: usize = 16 * 1024;

/// So many times as long as it took to find out what its first record shows a search goes on in any case: to begin once
/// more takes as much.
const BEGINS: usize = 4;

/// Parts one behind the other that may become one.
struct Run {
    record_size: u32,
    parts: Vec<Shown>,
}

impl Run {
    /// Whether a part continues the last one's extent or stands behind it in the same piece of an object. Parts that reach
    /// over a boundary belong to extents that were cut there already, or to one large record.
    fn joins(&self, shown: &Shown) -> bool {
        let step = chunk::part_records(self.record_size);
        let joins = |last: &Shown| {
            last.part.end() == shown.part.index && last.part.index / step == (shown.part.end() - 1) / step
        };
        self.parts.last().is_none_or(joins)
    }

    fn is_worth_it(&self) -> bool {
        let records: u64 = self.parts.iter().map(|shown| shown.part.count).sum();
        self.parts.len() >= PARTS_MIN
            && records * u64::from(self.record_size) / self.parts.len() as u64 <= PART_BYTES_MAX
    }

    /// Takes the next part. Returns the run that has come to its end before it, if that is worth a merge.
    fn take(&mut self, shown: Shown) -> Option<Vec<Shown>> {
        let continued = self.parts.last_mut().filter(|last| {
            (last.extent, last.epoch, last.part.end()) == (shown.extent, shown.epoch, shown.part.index)
        });
        if let Some(last) = continued {
            last.part.count += shown.part.count;
            return None;
        }
        if !shown.is_hole && self.joins(&shown) && self.parts.len() < PARTS_MAX {
            self.parts.push(shown);
            return None;
        }
        let ended = self.end();
        self.parts.extend(Some(shown).filter(|shown| !shown.is_hole));
        ended
    }

    /// The run, if it is worth a merge. The next one begins behind it.
    fn end(&mut self) -> Option<Vec<Shown>> {
        let is_worth_it = self.is_worth_it();
        let parts = core::mem::take(&mut self.parts);
        is_worth_it.then_some(parts)
    }
}

/// What a step comes to.
enum Step {
    /// Parts that are worth a merge.
    Run(Vec<Shown>),
    More,
    /// It goes on in another search.
    Broken,
    End,
}

/// A search at one moment. A prepared transaction may be committed meanwhile, at an epoch before the horizon: the search sees
/// all of it or nothing. In what has nothing of it all epochs are older, since nobody writes below a dkey that a transaction
/// holds.
pub(super) struct Search {
    still: Still,
    surface: Surface,
    /// Nothing older than this, the newest snapshot, is merged.
    pub(super) floor: u64,
    /// Where it has begun.
    begin: u64,
    run: Run,
    /// Looks at the index.
    pub(super) looks: usize,
    /// Those that it took to find out what the first record shows.
    begun: Option<usize>,
    /// It goes on from here in another search; behind all records there is nothing left.
    over: Option<u64>,
}

impl Search {
    /// From a record on. `None`: it isn't an array.
    pub(super) async fn new(
        core: &Rc<Core>,
        place: &AkeyPaths,
        (floor, horizon): (u64, u64),
        from: u64,
    ) -> Result<Option<Self>, ChoreError> {
        let still = Still::new(core, &core.tree.borrow());
        let existence = still.ask(|tree| Ok::<_, Halt<ChoreError>>(akey_existence(tree, place, horizon)?));
        let existence = existence.await?;
        let Some((Kind::Array, record_size @ 1.., _)) = existence.array_or_single() else { return Ok(None) };
        // What a snapshot shows isn't touched: it is as good as a gap.
        let epochs = existence.low.max(floor.saturating_add(1))..=horizon;
        let surface = Surface::new(place[2].clone(), epochs, from);
        let run = Run { record_size, parts: Vec::new() };
        Ok(Some(Self { still, surface, floor, begin: from, run, looks: 0, begun: None, over: None }))
    }

    /// Bytes of a record.
    pub(super) fn record_size(&self) -> u32 {
        self.run.record_size
    }

    /// Looks that a visit may take at least, if it may take `most` otherwise.
    pub(super) fn limit(&self, most: usize) -> usize {
        most.max(BEGINS.saturating_mul(self.begun.unwrap_or(self.looks)))
    }

    /// Whether it is worth while to go on in the same state of the index.
    pub(super) fn is_worth_keeping(&self) -> bool {
        self.over.is_none() && self.begun.is_some_and(|looks| looks > STEP_LOOKS)
    }

    /// Where another search goes on; `None`: there is nothing left.
    pub(super) fn place(&self) -> Option<u64> {
        let place = self.over.unwrap_or_else(|| self.here());
        Some(place).filter(|place| *place < ALL_RECORDS.end())
    }

    fn here(&self) -> u64 {
        let first = self.run.parts.first().map(|shown| shown.part.index);
        // A run that takes a whole search goes on behind what is known of it, or it would never end.
        first.filter(|first| *first > self.begin).unwrap_or(self.surface.at())
    }

    /// The next parts that are worth a merge. `None`: there are none before the search has come to its end, or has gone on for
    /// long enough.
    pub(super) async fn next(&mut self, core: &Core) -> Result<Option<Vec<Shown>>, ChoreError> {
        while self.over.is_none() {
            let Self { still, surface, run, begun, looks, .. } = self;
            let step = still.ask(|tree| {
                let mut left = STEP_LOOKS;
                let step = step(tree, surface, run, &mut left)?;
                Ok::<_, Halt<ChoreError>>((step, STEP_LOOKS - left))
            });
            let (step, taken) = step.await?;
            *looks += taken;
            if begun.is_none() && surface.at() > self.begin {
                *begun = Some(*looks);
            }
            let is_spent = begun.is_some() && *looks > self.limit(STILL_LOOKS);
            match step {
                Step::Run(parts) => return Ok(Some(parts)),
                Step::More if !is_spent => {}
                Step::More | Step::Broken => {
                    self.over = Some(self.here());
                    let first = self.run.parts.first().map(|shown| shown.part.index);
                    // Otherwise it begins the next one.
                    if first.is_some_and(|first| first <= self.begin) {
                        return Ok(self.run.end());
                    }
                }
                Step::End => {
                    self.over = Some(ALL_RECORDS.end());
                    return Ok(self.run.end());
                }
            }
            core.yield_to_io().await;
            core.yield_slice().await;
        }
        Ok(None)
    }
}

/// Looks further.
fn step(tree: &Tree, surface: &mut Surface, run: &mut Run, looks: &mut usize) -> Result<Step, Fault> {
    loop {
        match surface.next(tree, looks)? {
            Next::Part(shown) => {
                if let Some(ended) = run.take(shown) {
                    return Ok(Step::Run(ended));
                }
            }
            Next::Later => return Ok(Step::More),
            Next::Unknown => return Ok(Step::Broken),
            Next::End => return Ok(Step::End),
        }
    }
}
