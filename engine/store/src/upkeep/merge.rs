//! Merging: neighbouring parts of extents, as they are visible at the horizon, become one extent.
//!
//! Small writes and partial overwrites leave many versions, each with an index entry, some with blocks of which only
//! a part is visible. The merged extent carries the newest epoch of its parts: no snapshot lies between them, and
//! readers at epochs before the horizon are those of snapshots.

mod search;
#[cfg(test)]
pub(crate) mod tests;

use crate::format::blocks::{RUNS_MAX, Run};
use crate::format::checksum::of_chunks;
use crate::format::codec::crc32c;
use crate::format::key::ObjectKey;
use crate::format::key::{self, Path, PoolNumber};
use crate::format::node::ENTRY_MAX;
use crate::format::record::Change;
use crate::format::size::in_memory;
use crate::format::value::{Blocks, Event, Inline, Payload, Version, is_regular};
use crate::index::existence::{Existence, existence};
use crate::index::fault::{Fault, Halt};
use crate::index::tree::{Missing, Tree};
use crate::operations::fetch::hold_blocks;
use crate::operations::update::VERSION_OVERHEAD;
use crate::space::map::Purpose;
use crate::state::aggregation::AkeyPaths;
use crate::state::aggregation::RemainingMerges;
use crate::state::catalog::snapshots_of;
use crate::state::core::{Core, add};
use crate::state::error::FetchError;
use crate::state::pace::{PIECE, read_blocks_behind};
use crate::state::read::copy_inline;
use crate::state::reservation::Reservation;
use crate::upkeep::aggregate::{ChoreError, REMOVALS_MAX};
use crate::upkeep::sweep::Shown;
use search::Search;
use std::rc::Rc;
use weir_media::BLOCK;
use weir_proto::chunk::{Chunks, Grain};
use weir_proto::object::Extent;

/// Merges of one akey in one visit: bounds how long others wait for theirs.
const MERGES_MAX: usize = 64;

/// Looks at the index that one visit of an akey takes for merges: some 100 ms of work, in steps. Where very many extents
/// reach over the record at which it begins it takes more, see [`Search::limit`].
const VISIT_LOOKS: usize = 512 * 1024;

/// A merge to be done.
struct Plan {
    /// What the parts become.
    extent: Extent,
    epoch: u64,
    record_size: u32,
    /// Parts in their order, with the versions that they are parts of.
    parts: Vec<(Shown, Vec<u8>)>,
    /// Stored extents that the merged one replaces.
    replaced: Vec<Replaced>,
}

/// A stored extent and its epoch.
type Replaced = (Extent, u64);

/// What became of a merge.
enum Merged {
    Done,
    /// It can't be made: data is damaged, or something has changed.
    Skipped,
    /// A snapshot was made or given up meanwhile: what is to be merged is another matter now.
    Outdated,
    /// It can't be made at present: there is no room for it, or the device refused it.
    Stuck,
}

/// Merges what is worth it of an akey, from a record on, until it has taken long enough.
pub(crate) async fn merge_akey(
    core: &Rc<Core>,
    object: ObjectKey,
    place: &AkeyPaths,
    horizon: u64,
    from: u64,
) -> Result<RemainingMerges, ChoreError> {
    let mut left = RemainingMerges { from: Some(from), hides: false, is_stuck: false };
    let (mut merges, mut looks, mut kept) = (0, 0, None::<Search>);
    while let Some(from) = left.from.filter(|_| merges < MERGES_MAX) {
        left.from = None;
        let Some(floor) = newest_snapshot(core, object, horizon).filter(|_| may_aggregate(core, object))
        else {
            break;
        };
        let found = match kept.take().filter(|search| search.floor == floor) {
            None => Search::new(core, place, (floor, horizon), from).await?,
            kept => kept,
        };
        let Some(mut search) = found else { break };
        let before = search.looks;
        let run = search.next(core).await?;
        looks += search.looks - before;
        let (mut next, is_over) = (search.place(), looks > search.limit(VISIT_LOOKS));
        let context = MergeContext { core, object, place, floor, horizon, record_size: search.record_size() };
        kept = Some(search).filter(Search::is_worth_keeping);
        if let Some(run) = run {
            match context.merge_run(&run, &mut kept).await? {
                Merged::Done => left.hides |= leaves_some(&run),
                Merged::Skipped => {}
                Merged::Outdated => {
                    // Some of what was replaced may be there still.
                    left.hides = true;
                    next = Some(whole(&run).index);
                    kept = None;
                }
                Merged::Stuck => {
                    left = RemainingMerges { from: Some(whole(&run).index), is_stuck: true, ..left };
                    break;
                }
            }
            merges += 1;
        }
        left.from = next;
        if is_over {
            break;
        }
        core.yield_to_io().await;
        core.yield_slice().await;
    }
    Ok(left)
}

/// The records of parts that lie one behind the other.
fn whole(run: &[Shown]) -> Extent {
    let (first, last) = (run[0].part, run[run.len() - 1].part);
    Extent { index: first.index, count: last.end() - first.index }
}

fn is_inside(inner: Extent, outer: Extent) -> bool {
    outer.index <= inner.index && inner.end() <= outer.end()
}

/// Whether some extents reach beyond their parts that were merged.
fn leaves_some(run: &[Shown]) -> bool {
    let whole = whole(run);
    run.iter().any(|shown| !is_inside(shown.extent, whole))
}

/// The newest snapshot up to the horizon; 0 when there is none. `None`: the container is gone.
fn newest_snapshot(core: &Core, object: ObjectKey, horizon: u64) -> Option<u64> {
    Some(snapshots_of(core, object)?.range(..=horizon).next_back().copied().unwrap_or(0))
}

/// Whether history of an object may go just now.
pub(crate) fn may_aggregate(core: &Core, object: ObjectKey) -> bool {
    core.fills.may_aggregate(object.0, core.rt.now())
}

/// The existence of an akey at an epoch.
pub(crate) fn akey_existence(tree: &Tree, place: &AkeyPaths, epoch: u64) -> Result<Existence, Fault> {
    place.iter().try_fold(Existence::ALWAYS, |above, path| existence(tree, path, above, epoch))
}

/// What a merge relies on.
struct MergeContext<'a> {
    core: &'a Rc<Core>,
    object: ObjectKey,
    place: &'a AkeyPaths,
    /// The newest snapshot up to the horizon.
    floor: u64,
    horizon: u64,
    record_size: u32,
}

impl MergeContext<'_> {
    /// Whether no snapshot was made since.
    fn holds(&self) -> bool {
        may_aggregate(self.core, self.object)
            && newest_snapshot(self.core, self.object, self.horizon) == Some(self.floor)
    }

    /// Merges parts that a search has found, and removes what they replace.
    async fn merge_run(&self, run: &[Shown], kept: &mut Option<Search>) -> Result<Merged, ChoreError> {
        let core = self.core;
        let guard = hold_blocks(core);
        let Some(plan) = self.plan(run).await? else { return Ok(Merged::Skipped) };
        let merged = self.merge(&plan).await?;
        drop(guard);
        if let Merged::Done = merged {
            for replaced in plan.replaced.chunks(REMOVALS_MAX).skip(1) {
                core.yield_slice().await;
                self.admit(kept).await?;
                if !self.remove(replaced).await? {
                    return Ok(Merged::Outdated);
                }
            }
            self.admit(kept).await?;
        }
        Ok(merged)
    }

    /// Waits until there is room for changes. Who waits must not hold any: a search does.
    async fn admit(&self, kept: &mut Option<Search>) -> Result<(), String> {
        if !self.core.has_room() {
            *kept = None;
        }
        self.core.admit().await
    }

    /// What is to be merged, with what is stored of it now. `None`: something has gone.
    async fn plan(&self, run: &[Shown]) -> Result<Option<Plan>, ChoreError> {
        let values = self.core.ask(|tree| {
            let value = |shown: &Shown| tree.get(&self.place[2].extent(shown.extent, shown.epoch));
            let values: Result<Option<Vec<Vec<u8>>>, Missing> = run.iter().map(value).collect();
            Ok::<_, Halt<ChoreError>>(values?)
        });
        Ok(values.await?.map(|values| Plan::new(run, values, self.record_size)))
    }

    /// Makes a merge.
    async fn merge(&self, plan: &Plan) -> Result<Merged, ChoreError> {
        let Self { core, object, place, .. } = *self;
        let count = plan.extent.count * u64::from(plan.record_size);
        if in_memory(count) >= core.config.inline_max()
            && !has_room(core, object.0, count.div_ceil(BLOCK as u64))
        {
            // Nothing is read for nothing.
            return Ok(Merged::Stuck);
        }
        // Damaged parts stay as they are: a reader is told where.
        let Some(parts) = read_parts(core, plan).await else { return Ok(Merged::Skipped) };
        let (payload, reservation) = match store(core, object, &place[2], plan, parts).await? {
            Stored::Done(payload, reservation) => (payload, reservation),
            Stored::Altered => return Ok(Merged::Skipped),
            Stored::NoRoom | Stored::Refused => return Ok(Merged::Stuck),
        };
        let changes = core.ask(|tree| {
            let changes = self.changes(tree, plan, payload.clone())?;
            tree.reach(changes.iter().flatten().map(Change::key))?;
            Ok::<_, Halt<ChoreError>>(changes)
        });
        let Some(changes) = changes.await? else { return Ok(Merged::Skipped) };
        if !self.holds() {
            return Ok(Merged::Outdated);
        }
        // Older parts go with it.
        core.timestamps.note_removal(&object, plan.epoch);
        let key = |shown: &Shown| place[2].extent(shown.extent, shown.epoch).len();
        let merged = plan.parts.iter().map(|(shown, value)| (key(shown), value.as_slice()));
        core.reduce_reclaimable((object.0, object.1), merged)?;
        core.commit(&changes, None)?;
        if let Some(mut reservation) = reservation {
            reservation.keep();
        }
        Ok(Merged::Done)
    }

    /// Removes some of what a merge has replaced beyond what went with its own record: nobody sees it any more. Returns
    /// `false` when that doesn't hold any more.
    async fn remove(&self, replaced: &[Replaced]) -> Result<bool, ChoreError> {
        let core = self.core;
        let changes: Vec<Change> = replaced.iter().map(|replaced| self.removal(replaced)).collect();
        core.ask(|tree| Ok::<_, Halt<ChoreError>>(tree.reach(changes.iter().map(Change::key))?)).await?;
        if !self.holds() {
            return Ok(false);
        }
        core.commit(&changes, None)?;
        Ok(true)
    }

    fn removal(&self, (extent, epoch): &Replaced) -> Change {
        Change::remove(&self.place[2].extent(*extent, *epoch))
    }

    /// The changes that put the merged extent in the place of its parts. `None`: something has changed meanwhile.
    fn changes(&self, tree: &Tree, plan: &Plan, payload: Payload) -> Result<Option<Vec<Change>>, Fault> {
        let akey = &self.place[2];
        for (shown, value) in &plan.parts {
            if tree.get(&akey.extent(shown.extent, shown.epoch))?.as_ref() != Some(value) {
                return Ok(None);
            }
        }
        let existence = akey_existence(tree, self.place, self.horizon)?;
        let Some((at, Event::Akey { kind, record_size, classes })) =
            existence.event.filter(|_| existence.exists)
        else {
            return Ok(None);
        };
        let merged = akey.extent(plan.extent, plan.epoch);
        let value = Version { record_size, payload }.encode();
        let is_new = record_size == plan.record_size && tree.get(&merged)?.is_none();
        if !is_new || merged.len() + value.len() > ENTRY_MAX {
            return Ok(None);
        }
        let mut changes = Vec::new();
        let class = 1 << key::length_class(plan.extent.count);
        if classes & class == 0 {
            let event = Event::Akey { kind, record_size, classes: classes | class };
            changes.push(Change::put(&akey.event(at), event.encode()));
        }
        changes.push(Change::put(&merged, value));
        changes.extend(plan.replaced.iter().take(REMOVALS_MAX).map(|replaced| self.removal(replaced)));
        Ok(Some(changes))
    }
}

impl Plan {
    /// Of a run of parts, each with what is stored of its extent.
    fn new(run: &[Shown], values: Vec<Vec<u8>>, record_size: u32) -> Self {
        let extent = whole(run);
        let epoch = run.iter().map(|shown| shown.epoch).max().expect("invariant: a run has parts");
        let inside = run.iter().filter(|shown| is_inside(shown.extent, extent));
        let mut replaced: Vec<Replaced> = inside.map(|shown| (shown.extent, shown.epoch)).collect();
        // An extent may show several parts.
        replaced.sort_by_key(|(extent, epoch)| (extent.index, extent.count, *epoch));
        replaced.dedup();
        let parts = run.iter().copied().zip(values).collect();
        Self { extent, epoch, record_size, parts, replaced }
    }
}

/// The data of all parts, and the checksum that each part has by those that are stored.
struct Parts {
    bytes: Vec<u8>,
    /// Bytes of each part and their checksum.
    sums: Vec<(usize, u32)>,
}

impl Parts {
    /// Whether the data still is what was stored.
    fn are_intact(&self) -> bool {
        let mut rest = &self.bytes[..];
        self.sums.iter().all(|(len, sum)| {
            let (part, after) = rest.split_at(*len);
            rest = after;
            crc32c(part) == *sum
        })
    }
}

/// Reads all parts. `None`: some of the data is damaged or can't be read, which is counted.
async fn read_parts(core: &Core, plan: &Plan) -> Option<Parts> {
    let size = u64::from(plan.record_size);
    let mut bytes = vec![0; in_memory(plan.extent.count * size)];
    let (mut rest, mut sums) = (bytes.as_mut_slice(), Vec::new());
    for (Shown { part, extent, .. }, value) in &plan.parts {
        let (into, after) = rest.split_at_mut(in_memory(part.count * size));
        rest = after;
        let from = (part.index - extent.index).checked_mul(size)?;
        let len = into.len();
        let sum = match Version::decode(value).ok()?.payload {
            Payload::Hole => return None,
            Payload::Inline(inline) => {
                let copied = copy_inline(inline.summed(), from, Some(*part), into, true);
                let is_altered = matches!(copied, Err(FetchError::Altered { .. }));
                add(&core.counters.checksum_errors, u64::from(is_altered));
                copied.ok()?
            }
            Payload::Blocks(blocks) => {
                read_blocks_behind(core, &blocks, from, Some(*part), into).await.ok()?
            }
        };
        sums.push((len, sum));
    }
    Some(Parts { bytes, sums })
}

/// What became of merged data.
enum Stored {
    Done(Payload, Option<Reservation>),
    /// It was altered in memory.
    Altered,
    /// Deletes will make some.
    NoRoom,
    /// The device couldn't write it.
    Refused,
}

/// Whether device and pool have so many blocks for merged data.
fn has_room(core: &Core, pool: PoolNumber, count: u64) -> bool {
    let free = core.catalog.borrow().pools.get(&pool).map_or(0, crate::state::catalog::Pool::free);
    core.has_blocks(count) && free.saturating_sub(core.prepared_bytes_of(pool)) >= count * BLOCK as u64
}

/// Writes the merged data. Its checksums are computed first, and then the data is compared with those of its parts a
/// last time: no byte is without a checksum in between.
async fn store(
    core: &Rc<Core>,
    object: ObjectKey,
    akey: &Path,
    plan: &Plan,
    parts: Parts,
) -> Result<Stored, String> {
    let len = parts.bytes.len() as u64;
    let mut chunks = Chunks::of_part(plan.extent, plan.record_size, Grain::Fine);
    if !core.keeps_all_checksums() && !is_regular(chunks) {
        chunks = Chunks::of_single(len, Grain::Fine);
    }
    let checksums = of_chunks(chunks, &parts.bytes);
    if !parts.are_intact() {
        add(&core.counters.checksum_errors, 1);
        return Ok(Stored::Altered);
    }
    let bytes = parts.bytes;
    let key_len = akey.extent(plan.extent, plan.epoch).len();
    if bytes.len() < core.config.inline_max() && key_len + VERSION_OVERHEAD + bytes.len() <= ENTRY_MAX {
        let checksum = checksums.first().copied().filter(|_| core.keeps_all_checksums());
        return Ok(Stored::Done(Payload::Inline(Inline { bytes, checksum }), None));
    }
    let count = len.div_ceil(BLOCK as u64);
    if !has_room(core, object.0, count) {
        return Ok(Stored::NoRoom);
    }
    let Some(runs) = core.space.borrow_mut().allocate(count, Purpose::Data, RUNS_MAX) else {
        return Ok(Stored::NoRoom);
    };
    let blocks = Blocks { chunks, runs, checksums };
    let mut reservation = Reservation::of_runs(core, object.0, blocks.runs.clone());
    // What is merged goes only when the merged data is stored: until then both count.
    reservation.take(count * BLOCK as u64);
    let Some(reservation) = write_data(core, reservation, bytes).await? else { return Ok(Stored::Refused) };
    Ok(Stored::Done(Payload::Blocks(blocks), Some(reservation)))
}

/// Writes data to blocks that are reserved for it, as background work. `None`: the device couldn't, which it counts; that harms
/// nobody, since nothing refers to the data yet. `Err`: the store stops.
pub(crate) async fn write_data(
    core: &Rc<Core>,
    reservation: Reservation,
    bytes: Vec<u8>,
) -> Result<Option<Reservation>, String> {
    let (core_of_task, runs) = (Rc::clone(core), reservation.runs().to_vec());
    // The task owns the blocks until the device is done with them, even when nobody waits any more.
    let task = core.rt.spawn(async move {
        write_runs(&core_of_task, &runs, &bytes).await?;
        Ok::<_, weir_media::MediaError>(reservation)
    });
    Ok(task.await.map_err(|aborted| aborted.to_string())?.ok())
}

async fn write_runs(core: &Core, runs: &[Run], bytes: &[u8]) -> Result<(), weir_media::MediaError> {
    let mut rest = bytes;
    for run in runs {
        if run.count == 1 {
            core.cache.forget(run.block);
        }
        let (part, after) = rest.split_at(in_memory(run.bytes()).min(rest.len()));
        let begin = core.layout.data(run.block);
        for (offset, piece) in (begin..).step_by(PIECE).zip(part.chunks(PIECE)) {
            let permit = core.acquire_transfer(piece.len()).await;
            if core.is_stopped() {
                return Err(weir_media::MediaError::Closed { device: core.device.name().to_owned() });
            }
            core.device.write(offset, vec![core.dma.copy_of(piece).await.into()]).await?;
            drop(permit);
        }
        rest = after;
    }
    Ok(())
}
