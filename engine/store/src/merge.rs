//! Merging: neighbouring parts of extents, as they are visible at the horizon, become one extent.
//!
//! Small writes and partial overwrites leave many versions, each with an index entry, some with blocks of which only
//! a part is visible. The merged extent carries the newest epoch of its parts: no snapshot lies between them, and
//! readers at epochs before the horizon are those of snapshots.

use crate::aggregate::{ChoreError, snapshots_of};
use crate::checksum::of_chunks;
use crate::codec::crc32c;
use crate::extents::{STEP_LOOKS, Stored, first_versions, is_hole, paint};
use crate::fetch::hold_blocks;
use crate::incarnation::{Life, life};
use crate::journal::ObjectKey;
use crate::key::{self, KeyBytes, Path, PoolNumber};
use crate::pace::{PIECE, read_blocks_behind};
use crate::paging::{Fault, Halt};
use crate::read::copy_inline;
use crate::record::Change;
use crate::space::{Purpose, RUNS_MAX, Run};
use crate::state::{Core, add};
use crate::tree::{ENTRY_MAX, Tree};
use crate::update::{Reservation, VERSION_OVERHEAD};
use crate::value::{Blocks, Event, Inline, Kind, Payload, Version, is_regular};
use std::collections::BTreeSet;
use std::rc::Rc;
use weir_media::BLOCK;
use weir_proto::chunk::{self, Chunks, Grain};
use weir_proto::object::Extent;

/// Fewest parts that are worth a merge.
const PARTS_MIN: usize = 4;

/// Mean bytes of a part above which rewriting costs more than the parts do: sixteen blocks.
const PART_BYTES_MAX: u64 = 64 << 10;

/// Merges of one akey in one visit: bounds how long others wait for theirs.
const MERGES_MAX: usize = 16;

/// All records that can be named.
const ALL_RECORDS: Extent = Extent { index: 0, count: 1 << 63 };

/// A merge to be done.
struct Plan {
    /// What the parts become.
    extent: Extent,
    epoch: u64,
    record_size: u32,
    /// Parts in their order, with what they are parts of.
    parts: Vec<(Extent, Stored)>,
    /// Stored extents that the merged one replaces.
    replaced: Vec<Stored>,
}

/// The place of an akey: object, dkey, akey.
pub(crate) type Place = [Path; 3];

/// Merges what is worth it of an akey.
pub(crate) async fn merge_akey(
    core: &Rc<Core>,
    object: ObjectKey,
    place: &Place,
    horizon: u64,
) -> Result<(), ChoreError> {
    let mut from = 0;
    for _ in 0..MERGES_MAX {
        let guard = hold_blocks(core);
        let Some(floor) = newest_snapshot(core, object, horizon) else { return Ok(()) };
        let Some(plan) = next_plan(core, place, floor, horizon, &mut from).await? else { return Ok(()) };
        // Damaged parts stay as they are: a reader is told where.
        let Some(parts) = read_parts(core, &plan).await else { return Ok(()) };
        let Some((payload, reservation)) = store(core, object, &place[2], &plan, parts).await? else {
            return Ok(());
        };
        let changes = core.ask(|tree| {
            let changes = changes(tree, place, &plan, payload.clone(), horizon)?;
            tree.reach(changes.iter().flatten().map(Change::key))?;
            Ok::<_, Halt<ChoreError>>(changes)
        });
        let changes = changes.await?;
        if newest_snapshot(core, object, horizon) != Some(floor) {
            return Ok(());
        }
        let Some(changes) = changes else { return Ok(()) };
        core.commit(&changes, None)?;
        if let Some(mut reservation) = reservation {
            reservation.keep();
        }
        drop(guard);
        core.admit().await?;
    }
    Ok(())
}

/// The newest snapshot up to the horizon; 0 when there is none. `None`: the container is gone.
fn newest_snapshot(core: &Core, object: ObjectKey, horizon: u64) -> Option<u64> {
    Some(snapshots_of(core, object)?.range(..=horizon).next_back().copied().unwrap_or(0))
}

fn akey_life(tree: &Tree, place: &Place, horizon: u64) -> Result<Life, Fault> {
    place.iter().try_fold(Life::ALWAYS, |above, path| life(tree, path, above, horizon))
}

/// Finds the next run of parts that is worth a merge, step by step. `from` goes on behind it.
async fn next_plan(
    core: &Rc<Core>,
    place: &Place,
    floor: u64,
    horizon: u64,
    from: &mut u64,
) -> Result<Option<Plan>, ChoreError> {
    while *from < ALL_RECORDS.end() {
        let start = *from;
        let step = core.ask(|tree| Ok::<_, Halt<ChoreError>>(plan(tree, place, floor, horizon, start)?));
        let Some((plan, end)) = step.await? else { return Ok(None) };
        *from = end;
        if plan.is_some() {
            return Ok(plan);
        }
        core.turn().await;
        core.breathe().await;
    }
    Ok(None)
}

/// Finds the first run of parts that is worth a merge in the next step from a record on, and where to go on. `None`: it
/// isn't an array.
fn plan(
    tree: &Tree,
    place: &Place,
    floor: u64,
    horizon: u64,
    from: u64,
) -> Result<Option<(Option<Plan>, u64)>, Fault> {
    let life = akey_life(tree, place, horizon)?;
    let Some((Kind::Array, record_size @ 1.., classes)) = life.array_or_single() else { return Ok(None) };
    let rest = Extent { index: from, count: ALL_RECORDS.end() - from };
    let (stored, end) = first_versions(tree, &place[2], life, horizon, rest, classes, STEP_LOOKS)?;
    let range = Extent { index: from, count: end - from };
    if stored.len() < PARTS_MIN {
        return Ok(Some((None, end)));
    }
    let size = u64::from(record_size);
    let step = chunk::part_records(record_size);
    let mut run: Vec<(Extent, usize)> = Vec::new();
    let worth = |run: &[(Extent, usize)]| {
        let records: u64 = run.iter().map(|(extent, _)| extent.count).sum();
        run.len() >= PARTS_MIN && records * size / run.len() as u64 <= PART_BYTES_MAX
    };
    for part in paint(&stored, range) {
        let version = &stored[part.stored];
        let usable = !is_hole(&version.value) && version.epoch > floor;
        // Parts that reach over a boundary belong to extents that were cut there already, or to one large record.
        let joins = run.last().is_some_and(|(last, _)| {
            last.end() == part.extent.index && last.index / step == (part.extent.end() - 1) / step
        });
        if !(usable && (run.is_empty() || joins)) {
            if worth(&run) {
                break;
            }
            run.clear();
        }
        if usable {
            run.push((part.extent, part.stored));
        }
    }
    if !worth(&run) {
        // A run that the step has cut short begins the next one.
        let cut = run.first().filter(|(first, _)| first.index > from);
        let cut = cut.filter(|_| run.last().is_some_and(|(last, _)| last.end() == end));
        return Ok(Some((None, cut.map_or(end, |(first, _)| first.index))));
    }
    let first = run[0].0.index;
    let extent = Extent { index: first, count: run[run.len() - 1].0.end() - first };
    let inside = |found: &&Stored| {
        extent.index <= found.extent.index && found.extent.end() <= extent.end() && found.epoch > floor
    };
    let replaced = stored.iter().filter(inside).filter(|found| !is_hole(&found.value)).cloned().collect();
    let epoch = run.iter().map(|(_, at)| stored[*at].epoch).max().unwrap_or(0);
    let parts = run.into_iter().map(|(part, at)| (part, stored[at].clone())).collect();
    Ok(Some((Some(Plan { extent, epoch, record_size, parts, replaced }), extent.end())))
}

fn small(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
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
            let Some((part, after)) = rest.split_at_checked(*len) else { return false };
            rest = after;
            crc32c(part) == *sum
        })
    }
}

/// Reads all parts. `None`: some of the data is damaged or can't be read.
async fn read_parts(core: &Core, plan: &Plan) -> Option<Parts> {
    let size = u64::from(plan.record_size);
    let mut bytes = vec![0; small(plan.extent.count * size)];
    let (mut rest, mut sums) = (bytes.as_mut_slice(), Vec::new());
    for (part, stored) in &plan.parts {
        let (into, after) = rest.split_at_mut(small(part.count * size));
        rest = after;
        let from = (part.index - stored.extent.index) * size;
        let len = into.len();
        let sum = match Version::decode(&stored.value).ok()?.payload {
            Payload::Hole => return None,
            Payload::Inline(inline) => copy_inline(inline.summed(), from, Some(*part), into, true).ok()?,
            Payload::Blocks(blocks) => {
                read_blocks_behind(core, &blocks, from, Some(*part), into).await.ok()?
            }
        };
        sums.push((len, sum));
    }
    Some(Parts { bytes, sums })
}

/// Writes the merged data. Its checksums are computed first, and then the data is compared with those of its parts a
/// last time: no byte is without a checksum in between. `None`: it was altered in memory, or there is no room, which
/// deletes will make.
async fn store(
    core: &Rc<Core>,
    object: ObjectKey,
    akey: &Path,
    plan: &Plan,
    parts: Parts,
) -> Result<Option<(Payload, Option<Reservation>)>, String> {
    let len = parts.bytes.len() as u64;
    let mut chunks = Chunks::of_part(plan.extent, plan.record_size, Grain::Fine);
    if !core.keeps_all_checksums() && !is_regular(chunks) {
        chunks = Chunks::of_single(len, Grain::Fine);
    }
    let checksums = of_chunks(chunks, &parts.bytes);
    if !parts.are_intact() {
        add(&core.counters.checksum_errors, 1);
        return Ok(None);
    }
    let bytes = parts.bytes;
    let key_len = akey.extent(plan.extent, plan.epoch).len();
    if bytes.len() < core.config.inline_max() && key_len + VERSION_OVERHEAD + bytes.len() <= ENTRY_MAX {
        let checksum = checksums.first().copied().filter(|_| core.keeps_all_checksums());
        return Ok(Some((Payload::Inline(Inline { bytes, checksum }), None)));
    }
    let count = len.div_ceil(BLOCK as u64);
    let free = core.catalog.borrow().pools.get(&object.0).map_or(0, crate::catalog::Pool::free);
    if !core.has_blocks(count) || free < count * BLOCK as u64 {
        return Ok(None);
    }
    let Some(runs) = core.space.borrow_mut().allocate(count, Purpose::Data, RUNS_MAX) else {
        return Ok(None);
    };
    let blocks = Blocks { chunks, runs, checksums };
    let reservation = write_data(core, object.0, &blocks.runs, bytes).await?;
    Ok(Some((Payload::Blocks(blocks), Some(reservation))))
}

/// Writes data to blocks that were allocated for it, as background work. `Err`: the device failed.
pub(crate) async fn write_data(
    core: &Rc<Core>,
    pool: PoolNumber,
    runs: &[Run],
    bytes: Vec<u8>,
) -> Result<Reservation, String> {
    let reservation = Reservation::of_runs(core, pool, runs.into());
    let (core_of_task, runs) = (Rc::clone(core), runs.to_vec());
    // The task owns the blocks until the device is done with them, even when nobody waits any more.
    let task = core.rt.spawn(async move {
        write_runs(&core_of_task, &runs, &bytes).await?;
        Ok::<_, weir_media::MediaError>(reservation)
    });
    task.await.map_err(|aborted| aborted.to_string())?.map_err(|error| error.to_string())
}

async fn write_runs(core: &Core, runs: &[Run], bytes: &[u8]) -> Result<(), weir_media::MediaError> {
    let mut rest = bytes;
    for run in runs {
        let (part, after) = rest.split_at(small(run.bytes()).min(rest.len()));
        let begin = core.layout.data(run.block);
        for (offset, piece) in (begin..).step_by(PIECE).zip(part.chunks(PIECE)) {
            let passage = core.make_way(piece.len()).await;
            core.device.write(offset, vec![core.dma.copy_of(piece).await.into()]).await?;
            drop(passage);
        }
        rest = after;
    }
    Ok(())
}

/// The changes that put the merged extent in the place of its parts. `None`: something has changed meanwhile.
fn changes(
    tree: &Tree,
    place: &Place,
    plan: &Plan,
    payload: Payload,
    horizon: u64,
) -> Result<Option<Vec<Change>>, Fault> {
    let akey = &place[2];
    let involved = plan.parts.iter().map(|(_, stored)| stored).chain(&plan.replaced);
    let key_of = |stored: &Stored| akey.extent(stored.extent, stored.epoch);
    let mut unchanged = true;
    for stored in involved {
        unchanged = unchanged && tree.get(&key_of(stored))?.as_ref() == Some(&stored.value);
    }
    let life = akey_life(tree, place, horizon)?;
    let Some((at, Event::Akey { kind, record_size, classes })) = life.event.filter(|_| life.exists) else {
        return Ok(None);
    };
    if record_size != plan.record_size || !unchanged {
        return Ok(None);
    }
    let merged = akey.extent(plan.extent, plan.epoch);
    let value = Version { record_size, payload }.encode();
    if merged.len() + value.len() > ENTRY_MAX || tree.get(&merged)?.is_some() {
        return Ok(None);
    }
    let mut changes = Vec::new();
    let class = 1 << key::length_class(plan.extent.count);
    if classes & class == 0 {
        let event = Event::Akey { kind, record_size, classes: classes | class };
        changes.push(Change::put(&akey.event(at), event.encode()));
    }
    changes.push(Change::put(&merged, value));
    let replaced: BTreeSet<KeyBytes> = plan.replaced.iter().map(key_of).collect();
    changes.extend(replaced.into_iter().map(|key| Change::remove(&key)));
    Ok(Some(changes))
}
