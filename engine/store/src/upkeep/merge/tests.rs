use super::*;
use crate::format::owner::Owner;
use crate::index::extents::STEP_LOOKS;
use crate::operations::operation::Operation;
use crate::operations::update::Data;
use crate::state::config::{FormatOptions, StoreConfig};
use crate::state::shard::Shard;
use crate::store::Store;
use core::ops::ControlFlow;
use core::pin::Pin;
use weir_media::Device;
use weir_media::memory::MemoryDevice;
use weir_proto::chunk::{self, Chunks, Grain};
use weir_proto::object::{AkeyFetch, AkeyUpdate, Conditions, Value};
use weir_proto::{ContainerId, Epoch, Key, ObjectId, PoolId, Rank, TargetIndex, TransactionId};
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
    let data = |extent: &Extent| vec![byte; in_memory(extent.count)];
    let chunks = chunk::chunks(&value, Grain::of([&value])).flat_map(Chunks::ranges);
    let checksums = chunks.map(|range| crc32c(&vec![byte; in_memory(range.end - range.start)])).collect();
    let update = AkeyUpdate { akey: key(b"a"), value, conditions: Conditions::NONE, checksums };
    (update, extents.iter().flat_map(data).collect())
}

/// Fills an extent of the akey "a".
pub(crate) async fn fill(shard: &Shard, epoch: u64, extent: Extent, byte: u8) {
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
    let merged = merge_akey(&shard.core, (shard.number, container, OBJECT), &place, horizon, 0);
    merged.await.expect("merged");
}

/// The bytes of an extent of the akey "a".
pub(crate) async fn shown(shard: &Shard, extent: Extent) -> Vec<u8> {
    let value = Value::Array { record_size: 1, extents: vec![extent] };
    let asked = [AkeyFetch { akey: key(b"a"), value, conditions: Conditions::NONE }];
    let dkey = key(b"d");
    let found = shard.fetch(CONTAINER, OBJECT, &dkey, Epoch::MAX, Conditions::NONE, &asked);
    let found = found.await.expect("found");
    let mut data = vec![0; in_memory(extent.count)];
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
            expected[in_memory(extent.index)..in_memory(extent.end())].fill(2);
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
        shard.aggregate(CONTAINER, Epoch(2 * COUNT)).await.expect("aggregated");
        let left = shard.core.tree.borrow().len();
        assert!(left < 30, "{left} entries are left");
        let expected: Vec<u8> = (0..COUNT + LEN - 1).map(|index| byte(index.min(COUNT - 1))).collect();
        assert!(shown(&shard, Extent { index: 0, count: COUNT + LEN - 1 }).await == expected);
    });
}

/// Stores extents of the akey "a" as if each had come by an update, each of the epoch behind the one before.
fn bury(shard: &Shard, extents: impl Iterator<Item = Extent>) {
    let container = shard.locate(CONTAINER).expect("there");
    let akey = Path::object(shard.number, container, OBJECT).dkey(&key(b"d")).akey(&key(b"a"));
    let change = |(epoch, extent): (u64, Extent)| {
        let bytes = vec![u8::try_from(epoch % 251).expect("a byte"); in_memory(extent.count)];
        let checksum = Some(crc32c(&bytes));
        let payload = Payload::Inline(Inline { bytes, checksum });
        Change::put(&akey.extent(extent, epoch), Version { record_size: 1, payload }.encode())
    };
    let changes: Vec<Change> = (2..).zip(extents).map(change).collect();
    for changes in changes.chunks(256) {
        shard
            .core
            .tree
            .borrow()
            .reach(changes.iter().map(Change::key))
            .expect("all of the index is in memory");
        shard.core.commit(changes, None).expect("sound");
    }
}

#[test]
fn more_than_one_visit_merges_is_merged_by_the_next_one_from_there_on() {
    on_a_shard(async |shard| {
        const COUNT: u64 = (MERGES_MAX as u64 + 16) * 256;
        fill(&shard, 1, Extent { index: 0, count: 1 }, 1).await;
        let before = shard.core.tree.borrow().len();
        bury(&shard, (0..COUNT).map(|index| Extent { index, count: 1 }));
        let container = shard.locate(CONTAINER).expect("there");
        let object = (shard.number, container, OBJECT);
        let passed = shard.core.tree.borrow().visits();
        let ended = crate::upkeep::aggregate::visit_object(&shard.core, object, 0, 2 * COUNT).await;
        assert!(ended.expect("visited"));
        let left = shard.core.tree.borrow().len() - before;
        // The first record was overwritten.
        assert_eq!(left + 1, COUNT - MERGES_MAX as u64 * 255, "one visit merges as much as it may");
        // What was merged isn't looked at again, and others take turns.
        let visits = shard.core.tree.borrow().visits();
        let passed = visits - passed;
        let rest = shard.core.aggregation.borrow_mut().take(0).expect("something is left");
        let crate::state::aggregation::Task::Akey(rest) = rest else { panic!("{rest:?}") };
        crate::upkeep::aggregate::visit_akey(&shard.core, *rest, 2 * COUNT).await.expect("visited");
        let visits = shard.core.tree.borrow().visits() - visits;
        assert!(visits < passed / 2, "{visits} nodes were passed, and {passed} before");
        let left = shard.core.tree.borrow().len() - before;
        assert!(left <= COUNT / 256 + 1, "{left} are left");
        assert!(shard.core.aggregation.borrow().is_empty());
        let expected: Vec<u8> =
            (0..COUNT).map(|index| u8::try_from((index + 2) % 251).expect("a byte")).collect();
        assert!(shown(&shard, Extent { index: 0, count: COUNT }).await == expected);
    });
}

#[test]
fn extents_inside_each_other_are_merged_and_go() {
    on_a_shard(async |shard| {
        const COUNT: u64 = 1500;
        let extent = |at| Extent { index: at, count: 2 * (COUNT - at) };
        for count in [1 << 10, 1 << 8, 1 << 6, 1 << 4, 1 << 2, 1] {
            fill(&shard, 1, Extent { index: 1 << 20, count }, 1).await;
        }
        bury(&shard, (0..COUNT).map(extent));
        shard.aggregate(CONTAINER, Epoch(2 * COUNT)).await.expect("aggregated");
        let left = shard.core.tree.borrow().len();
        assert!(left < 60, "{left} entries are left");
        let byte = |at: u64| u8::try_from((at.min(2 * COUNT - 1 - at) + 2) % 251).expect("a byte");
        let expected: Vec<u8> = (0..2 * COUNT).map(byte).collect();
        assert!(shown(&shard, Extent { index: 0, count: 2 * COUNT }).await == expected);
    });
}

#[test]
fn damaged_parts_hold_up_no_merges_behind_them() {
    on_a_shard(async |shard| {
        const COUNT: u64 = 1000;
        fill(&shard, 1, Extent { index: 0, count: 1 }, 1).await;
        bury(&shard, (0..COUNT).map(|index| Extent { index: 2 * index, count: 2 }));
        alter(&shard, &[7, 7]);
        shard.aggregate(CONTAINER, Epoch(2 * COUNT)).await.expect("aggregated");
        let left = shard.core.tree.borrow().len();
        assert!(left < 300, "{left} entries are left");
        assert_eq!(shard.core.counters.checksum_errors.get(), 1);
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

#[test]
fn what_a_snapshot_stops_is_searched_for_anew() {
    on_a_shard(async |shard| {
        let container = shard.locate(CONTAINER).expect("there");
        let set = |core: &Core, epochs: &[u64]| {
            let mut catalog = core.catalog.borrow_mut();
            let pool = catalog.pools.get_mut(&shard.number).expect("there");
            let container = pool.containers.get_mut(&container).expect("there");
            container.snapshots = Rc::new(epochs.iter().copied().collect());
        };
        for index in 0..8 {
            fill(&shard, 10 + index, Extent { index: 8192 * index, count: 16 << 10 }, 1).await;
        }
        let before = shard.space().used();
        set(&shard.core, &[5]);
        let core = Rc::clone(&shard.core);
        let pool = shard.number;
        let merging = merge(&shard, 100);
        let given_up = async {
            // Once the merged data has its place, and is being written.
            while core.catalog.borrow().pools[&pool].reserved == 0 {
                core.rt.yield_now().await;
            }
            set(&core, &[]);
        };
        let both: [Pin<Box<dyn Future<Output = ()>>>; 2] = [Box::pin(merging), Box::pin(given_up)];
        weir_runtime::join_all(both).await;
        let after = shard.space().used();
        assert!(after < before * 3 / 4, "{after} bytes are used, and {before} before");
    });
}
