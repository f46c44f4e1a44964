//! Merging: neighbouring parts of extents, as they are visible at the horizon, become one extent.
//!
//! Small writes and partial overwrites leave many versions, each with an index entry, some with blocks of which only
//! a part is visible. The merged extent carries the newest epoch of its parts: no snapshot lies between them, and
//! readers at epochs before the horizon are those of snapshots.

use crate::aggregate::{ChoreError, REMOVALS_MAX, snapshots_of};
use crate::checksum::of_chunks;
use crate::codec::crc32c;
use crate::error::FetchError;
use crate::extents::{ALL_RECORDS, Gathering, STEP_LOOKS, Stored, Visible, is_hole, paint};
use crate::fetch::hold_blocks;
use crate::incarnation::{Life, life};
use crate::journal::ObjectKey;
use crate::key::{self, Path, PoolNumber};
use crate::pace::{PIECE, read_blocks_behind};
use crate::paging::{Fault, Halt, Still};
use crate::read::copy_inline;
use crate::record::Change;
use crate::space::{Purpose, RUNS_MAX, Run};
use crate::state::{Core, add};
use crate::tree::{ENTRY_MAX, Tree};
use crate::update::{Reservation, VERSION_OVERHEAD};
use crate::value::{Blocks, Event, Inline, Kind, Payload, Version, is_regular};
use smallvec::SmallVec;
use std::rc::Rc;
use weir_media::BLOCK;
use weir_proto::chunk::{self, Chunks, Grain};
use weir_proto::object::Extent;

/// Fewest parts that are worth a merge.
const PARTS_MIN: usize = 4;

/// Mean bytes of a part above which rewriting costs more than the parts do: sixteen blocks.
const PART_BYTES_MAX: u64 = 64 << 10;

/// Most parts of one merge: what a file chunk of 1 MiB consists of that was written in blocks. That they are still there
/// is found out in one step, some 100 µs.
const PARTS_MAX: usize = 256;

/// Merges of one akey in one visit: bounds how long others wait for theirs.
const MERGES_MAX: usize = 64;

/// Looks at the index for one window of records, beyond which very many extents reach over its first one.
const WINDOW_LOOKS: usize = 16 * 1024;

/// Looks beyond that in one visit of an akey: some 100 ms of work, in steps. Where extents lie on top of each other deeper
/// than this, the visit's merges end before them.
const DEEP_LOOKS: usize = 512 * 1024;

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
    let (mut from, mut merges, mut deep) = (0, 0, DEEP_LOOKS);
    while from < ALL_RECORDS.end() && merges < MERGES_MAX {
        let guard = hold_blocks(core);
        let Some(floor) = newest_snapshot(core, object, horizon) else { return Ok(()) };
        let ground = Ground { core, object, place, floor, horizon };
        let Some(window) = ground.window(from, &mut deep).await? else { return Ok(()) };
        let (plan, behind) = plan(&window, floor);
        if let Some(plan) = plan {
            if !ground.merge(&plan).await? {
                return Ok(());
            }
            // Who waits for room must not hold any.
            drop(guard);
            core.admit().await?;
            if !ground.remove_rest(&plan).await? {
                return Ok(());
            }
            merges += 1;
        }
        from = behind;
        core.turn().await;
        core.breathe().await;
    }
    Ok(())
}

/// The newest snapshot up to the horizon; 0 when there is none. `None`: the container is gone.
fn newest_snapshot(core: &Core, object: ObjectKey, horizon: u64) -> Option<u64> {
    Some(snapshots_of(core, object)?.range(..=horizon).next_back().copied().unwrap_or(0))
}

/// The life of an akey at an epoch.
pub(crate) fn akey_life(tree: &Tree, place: &Place, epoch: u64) -> Result<Life, Fault> {
    place.iter().try_fold(Life::ALWAYS, |above, path| life(tree, path, above, epoch))
}

/// What a range of records shows at the horizon.
struct Window {
    range: Extent,
    record_size: u32,
    stored: SmallVec<[Stored; 1]>,
}

/// What a merge relies on.
struct Ground<'a> {
    core: &'a Rc<Core>,
    object: ObjectKey,
    place: &'a Place,
    /// The newest snapshot up to the horizon.
    floor: u64,
    horizon: u64,
}

impl Ground<'_> {
    /// Whether no snapshot was made since.
    fn holds(&self) -> bool {
        newest_snapshot(self.core, self.object, self.horizon) == Some(self.floor)
    }

    /// What the records from one on show at one moment, found step by step. A prepared transaction may be committed
    /// meanwhile, at an epoch before the horizon: a window has all of it or nothing. In what has nothing of it all epochs
    /// are older, since nobody writes below a dkey that a transaction holds. `None`: it isn't an array, or there is too much
    /// of it on top of each other; `deep` looks are left for that.
    async fn window(&self, from: u64, deep: &mut usize) -> Result<Option<Window>, ChoreError> {
        let still = Still::new(self.core, &self.core.tree.borrow());
        let life = still.ask(|tree| Ok::<_, Halt<ChoreError>>(akey_life(tree, self.place, self.horizon)?));
        let life = life.await?;
        let Some((Kind::Array, record_size @ 1.., classes)) = life.array_or_single() else { return Ok(None) };
        let rest = Extent { index: from, count: ALL_RECORDS.end() - from };
        let mut gathering = Gathering::new(rest, classes, STEP_LOOKS);
        let mut usual = WINDOW_LOOKS;
        loop {
            let step = still.ask(|tree| {
                let mut left = STEP_LOOKS;
                let has_ended = gathering.step(tree, &self.place[2], life, self.horizon, &mut left)?;
                Ok::<_, Halt<ChoreError>>((has_ended, STEP_LOOKS - left))
            });
            let (has_ended, looks) = step.await?;
            if has_ended {
                let range = gathering.range();
                return Ok(Some(Window { range, record_size, stored: gathering.found }));
            }
            let beyond = looks.saturating_sub(usual);
            usual = usual.saturating_sub(looks);
            if beyond > *deep {
                return Ok(None);
            }
            *deep -= beyond;
            self.core.turn().await;
            self.core.breathe().await;
        }
    }

    /// Makes a merge. Returns `false` when it can't be made.
    async fn merge(&self, plan: &Plan) -> Result<bool, ChoreError> {
        let Self { core, object, place, .. } = *self;
        // Damaged parts stay as they are: a reader is told where.
        let Some(parts) = read_parts(core, plan).await else { return Ok(false) };
        let Some((payload, reservation)) = store(core, object, &place[2], plan, parts).await? else {
            return Ok(false);
        };
        let changes = core.ask(|tree| {
            let changes = self.changes(tree, plan, payload.clone())?;
            tree.reach(changes.iter().flatten().map(Change::key))?;
            Ok::<_, Halt<ChoreError>>(changes)
        });
        let changes = changes.await?;
        let Some(changes) = changes.filter(|_| self.holds()) else { return Ok(false) };
        core.commit(&changes, None)?;
        if let Some(mut reservation) = reservation {
            reservation.keep();
        }
        Ok(true)
    }

    /// Removes what a merge has replaced beyond what went with its own record: nobody sees it any more. Returns `false` when
    /// the next pass has to do it.
    async fn remove_rest(&self, plan: &Plan) -> Result<bool, ChoreError> {
        let core = self.core;
        for stored in plan.replaced.chunks(REMOVALS_MAX).skip(1) {
            core.breathe().await;
            core.admit().await?;
            let changes: Vec<Change> = stored.iter().map(|stored| self.removal(stored)).collect();
            let way =
                core.ask(|tree| Ok::<_, Halt<ChoreError>>(tree.reach(changes.iter().map(Change::key))?));
            way.await?;
            if !self.holds() {
                return Ok(false);
            }
            core.commit(&changes, None)?;
        }
        Ok(true)
    }

    fn removal(&self, stored: &Stored) -> Change {
        Change::remove(&self.place[2].extent(stored.extent, stored.epoch))
    }

    /// The changes that put the merged extent in the place of its parts. `None`: something has changed meanwhile.
    fn changes(&self, tree: &Tree, plan: &Plan, payload: Payload) -> Result<Option<Vec<Change>>, Fault> {
        let akey = &self.place[2];
        // What more it replaces is removed by its key alone.
        let replaced = plan.replaced.iter().take(REMOVALS_MAX);
        for stored in plan.parts.iter().map(|(_, stored)| stored).chain(replaced) {
            if tree.get(&akey.extent(stored.extent, stored.epoch))?.as_ref() != Some(&stored.value) {
                return Ok(None);
            }
        }
        let life = akey_life(tree, self.place, self.horizon)?;
        let Some((at, Event::Akey { kind, record_size, classes })) = life.event.filter(|_| life.exists)
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
        changes.extend(plan.replaced.iter().take(REMOVALS_MAX).map(|stored| self.removal(stored)));
        Ok(Some(changes))
    }
}

/// The first run of parts in a window that is worth a merge, and where to go on.
fn plan(window: &Window, floor: u64) -> (Option<Plan>, u64) {
    let Window { range, record_size, stored } = window;
    let size = u64::from(*record_size);
    let step = chunk::part_records(*record_size);
    let worth = |run: &[Visible]| {
        let records: u64 = run.iter().map(|part| part.extent.count).sum();
        run.len() >= PARTS_MIN && records * size / run.len() as u64 <= PART_BYTES_MAX
    };
    let mut run = Vec::<Visible>::new();
    for part in paint(stored, *range) {
        let version = &stored[part.stored];
        let usable = !is_hole(&version.value) && version.epoch > floor;
        // Parts that reach over a boundary belong to extents that were cut there already, or to one large record.
        let joins = run.last().is_none_or(|last| {
            last.extent.end() == part.extent.index
                && last.extent.index / step == (part.extent.end() - 1) / step
        });
        if !(usable && joins && run.len() < PARTS_MAX) {
            if worth(&run) {
                break;
            }
            run.clear();
        }
        if usable {
            run.push(part);
        }
    }
    if worth(&run) {
        let plan = Plan::new(window, &run, floor);
        let end = plan.extent.end();
        return (Some(plan), end);
    }
    // A run that the window has cut short begins the next one.
    let cut = run.first().filter(|first| first.extent.index > range.index);
    let cut = cut.filter(|_| run.last().is_some_and(|last| last.extent.end() == range.end()));
    (None, cut.map_or(range.end(), |first| first.extent.index))
}

impl Plan {
    /// Of a run of parts.
    fn new(window: &Window, run: &[Visible], floor: u64) -> Self {
        let stored = &window.stored;
        let first = run[0].extent.index;
        let extent = Extent { index: first, count: run[run.len() - 1].extent.end() - first };
        let inside = |found: &&Stored| {
            extent.index <= found.extent.index && found.extent.end() <= extent.end() && found.epoch > floor
        };
        let replaced = stored.iter().filter(inside).filter(|found| !is_hole(&found.value)).cloned().collect();
        let epoch = run.iter().map(|part| stored[part.stored].epoch).max().unwrap_or(0);
        let parts = run.iter().map(|part| (part.extent, stored[part.stored].clone())).collect();
        Self { extent, epoch, record_size: window.record_size, parts, replaced }
    }
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

/// Reads all parts. `None`: some of the data is damaged or can't be read, which is counted.
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::config::{FormatOptions, Owner, StoreConfig};
    use crate::intents::TransactionId;
    use crate::shard::Shard;
    use crate::store::Store;
    use crate::transaction::Operation;
    use crate::update::Data;
    use core::ops::ControlFlow;
    use weir_media::Device;
    use weir_media::memory::MemoryDevice;
    use weir_proto::object::{AkeyFetch, AkeyUpdate, Conditions, Value};
    use weir_proto::{ContainerId, Epoch, Key, ObjectId, PoolId, Rank, TargetIndex};
    use weir_runtime::sim::World;

    pub(crate) const CONTAINER: ContainerId = ContainerId(uuid::Uuid::from_u128(1));
    const OBJECT: ObjectId = ObjectId { hi: 0, lo: 1 };

    /// Runs something on a shard of a new store in memory.
    pub(crate) fn on_a_shard(test: impl AsyncFnOnce(Shard) + 'static) {
        let world = World::new(1);
        let node = world.node("engine-0");
        let handle = node.handle();
        world.block_on(&node, async move {
            let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(64 << 20));
            let owner = Owner { system: "weir".to_owned(), rank: Rank(1), target: TargetIndex(0) };
            let options = FormatOptions { owner: owner.clone(), log_bytes: None };
            Store::format(&handle, &device, &options).await.expect("empty");
            let config = StoreConfig { background: false, cache_bytes: 1 << 20, ..StoreConfig::default() };
            let store = Store::open(&handle, device, &owner, config).await.expect("it opens");
            let shard = store.create_pool(PoolId(uuid::Uuid::from_u128(2)), 32 << 20).await.expect("space");
            shard.create_container(CONTAINER).await.expect("created");
            test(shard).await;
        });
    }

    /// Flips a bit of a value in the index that ends with these bytes.
    pub(crate) fn alter(shard: &Shard, tail: &[u8]) {
        let mut tree = shard.core.tree.borrow_mut();
        let found = tree.scan(&[key::OBJECT], |key, value| {
            if value.ends_with(tail) {
                ControlFlow::Break((key.to_vec(), value.to_vec()))
            } else {
                ControlFlow::Continue(())
            }
        });
        let (key, mut value) = found.expect("in memory").expect("stored");
        *value.last_mut().expect("not empty") ^= 4;
        tree.put(&key, &value).expect("in memory");
    }

    fn key(name: &[u8]) -> Key {
        Key::new(name).expect("a key")
    }

    /// The update that fills extents of the akey "a" with bytes.
    fn filling(extents: &[Extent], byte: u8) -> (AkeyUpdate, Vec<u8>) {
        let value = Value::Array { record_size: 1, extents: extents.to_vec() };
        let data = |extent: &Extent| vec![byte; small(extent.count)];
        let checksums = extents.iter().map(|extent| crc32c(&data(extent))).collect();
        let update = AkeyUpdate { akey: key(b"a"), value, conditions: Conditions::NONE, checksums };
        (update, extents.iter().flat_map(data).collect())
    }

    /// Fills an extent of the akey "a".
    async fn fill(shard: &Shard, epoch: u64, extent: Extent, byte: u8) {
        let (update, data) = filling(&[extent], byte);
        let (dkey, update, data) = (key(b"d"), [update], Data::Borrowed(&data));
        let stored = shard.update(CONTAINER, OBJECT, &dkey, Epoch(epoch), Conditions::NONE, &update, data);
        stored.await.expect("stored");
    }

    /// Merges the akey "a".
    async fn merge(shard: &Shard, horizon: u64) {
        let container = shard.locate(CONTAINER).expect("there");
        let object = Path::object(shard.number, container, OBJECT);
        let dkey = object.dkey(&key(b"d"));
        let place = [object, dkey.clone(), dkey.akey(&key(b"a"))];
        let merged = merge_akey(&shard.core, (shard.number, container, OBJECT), &place, horizon);
        merged.await.expect("merged");
    }

    /// The bytes of an extent of the akey "a".
    async fn shown(shard: &Shard, extent: Extent) -> Vec<u8> {
        let value = Value::Array { record_size: 1, extents: vec![extent] };
        let asked = [AkeyFetch { akey: key(b"a"), value, conditions: Conditions::NONE }];
        let dkey = key(b"d");
        let found = shard.fetch(CONTAINER, OBJECT, &dkey, Epoch::MAX, Conditions::NONE, &asked);
        let found = found.await.expect("found");
        let mut data = vec![0; small(extent.count)];
        found.read(&mut data).await.expect("read");
        data
    }

    #[test]
    fn what_is_committed_while_a_window_is_gathered_is_in_it_as_a_whole_or_not_at_all() {
        on_a_shard(async |shard| {
            // More short extents than one step looks at, and then longer ones.
            for index in 0..STEP_LOOKS as u64 + 88 {
                fill(&shard, 1 + index, Extent { index, count: 1 }, 1).await;
            }
            fill(&shard, 900, Extent { index: 2000, count: 8 }, 1).await;
            let id = TransactionId(uuid::Uuid::from_u128(7));
            let extents = [Extent { index: 10, count: 1 }, Extent { index: 16, count: 8 }];
            let (update, data) = filling(&extents, 2);
            let prepared = Operation::Update {
                object: OBJECT,
                dkey: key(b"d"),
                conditions: Conditions::NONE,
                akeys: vec![update],
                data: Data::Borrowed(&data),
            };
            let epoch = shard.core.rt.wall_ns() + 1000;
            shard.prepare(CONTAINER, id, Epoch(epoch), &[prepared]).await.expect("prepared");
            let other = shard.clone();
            let commit = shard.core.rt.spawn(async move { other.commit_transaction(CONTAINER, id).await });
            let before = shard.core.tree.borrow().len();
            merge(&shard, epoch + 1000).await;
            commit.await.expect("not aborted").expect("committed");
            assert!(shard.core.tree.borrow().len() < before, "nothing was merged");
            let mut expected = vec![1; 600];
            for extent in extents {
                expected[small(extent.index)..small(extent.end())].fill(2);
            }
            assert!(shown(&shard, Extent { index: 0, count: 600 }).await == expected);
        });
    }

    #[test]
    fn extents_that_begin_one_behind_the_other_are_merged() {
        on_a_shard(async |shard| {
            const COUNT: u64 = 2000;
            const LEN: u64 = 256;
            let byte = |number: u64| u8::try_from(number % 251).expect("a byte");
            // More of them reach into a record than one window takes in.
            for index in 0..COUNT {
                fill(&shard, 1 + index, Extent { index, count: LEN }, byte(index)).await;
            }
            for _ in 0..2 {
                shard.aggregate(CONTAINER, Epoch(2 * COUNT)).await.expect("aggregated");
            }
            let left = shard.core.tree.borrow().len();
            assert!(left < COUNT / 4, "{left} entries are left");
            let expected: Vec<u8> = (0..COUNT + LEN - 1).map(|index| byte(index.min(COUNT - 1))).collect();
            assert!(shown(&shard, Extent { index: 0, count: COUNT + LEN - 1 }).await == expected);
        });
    }

    fn piece(number: u64) -> [u8; 10] {
        [u8::try_from(number).expect("few"); 10]
    }

    #[test]
    fn a_part_that_was_altered_in_memory_is_counted_and_nothing_is_merged() {
        on_a_shard(async |shard| {
            let (object, dkey) = (OBJECT, key(b"d"));
            for number in 0..8 {
                // Each hides the end of the one before: of that, a part is asked for.
                let extents = vec![Extent { index: number * 8, count: 10 }];
                let value = Value::Array { record_size: 1, extents };
                let (akey, checksums) = (key(b"a"), vec![crc32c(&piece(number))]);
                let update = [AkeyUpdate { akey, value, conditions: Conditions::NONE, checksums }];
                let (epoch, data) = (Epoch(1 + number), piece(number));
                let data = Data::Borrowed(&data);
                let stored = shard.update(CONTAINER, object, &dkey, epoch, Conditions::NONE, &update, data);
                stored.await.expect("stored");
            }
            alter(&shard, &piece(5));
            let before = shard.core.tree.borrow().len();
            shard.aggregate(CONTAINER, Epoch(100)).await.expect("aggregated");
            assert_eq!(shard.core.counters.checksum_errors.get(), 1);
            assert_eq!(shard.core.tree.borrow().len(), before);
        });
    }
}
