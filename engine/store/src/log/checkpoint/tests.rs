use super::begin::{Beginning, SLICE, freeze};
use super::*;
use crate::format::key;
use crate::format::node::NODE_BLOCKS;
use crate::format::owner::Owner;
use crate::format::record::Change;
use crate::format::value::Version;
use crate::index::fault::{Halt, PageError};
use crate::index::tree::{Tree, dirty_nodes};
use crate::operations::update::Data;
use crate::space::map::Purpose;
use crate::state::config::{FormatOptions, StoreConfig};
use crate::state::shard::Shard;
use crate::store::Store;
use crate::upkeep::merge::tests::{CONTAINER, on_a_shard};
use core::cell::RefCell;
use core::ops::ControlFlow;
use std::collections::BTreeMap;
use weir_media::Device;
use weir_media::sim::{CrashKeeps, SimDisk, SimDiskOptions};
use weir_proto::object::{AkeyUpdate, Conditions, Value};
use weir_proto::{Epoch, Key, ObjectId, PoolId, Rank, TargetIndex};
use weir_runtime::Handle;
use weir_runtime::random::Random;
use weir_runtime::sim::World;

/// Entries of the index by their keys.
type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// Values that are stored in the index: seven fill a node.
const SMALL: u64 = 700;
/// Values that are stored in blocks, as many as a node takes.
const LARGE: u64 = 60;
pub(crate) const POOL: PoolId = PoolId(uuid::Uuid::from_u128(2));

/// Stores single values below dkeys of their own; in rounds behind the first only those in blocks.
pub(crate) async fn fill(shard: &Shard, round: u64) {
    let all = SMALL + LARGE;
    for number in if round == 0 { 0..all } else { SMALL..all } {
        let value = vec![7; if number < SMALL { 2000 } else { 16 << 10 }];
        let update = [AkeyUpdate {
            akey: Key::new(b"a").expect("a key"),
            value: Value::Single { size: value.len() as u64 },
            conditions: Conditions::NONE,
            checksums: Vec::new(),
        }];
        let (object, dkey, epoch) =
            (ObjectId { hi: 0, lo: 1 }, Key::from_u64(number), Epoch(round * all + number + 1));
        let data = Data::Borrowed(&value);
        let stored = shard.update(CONTAINER, object, &dkey, epoch, Conditions::NONE, &update, data);
        stored.await.expect("stored");
    }
}

/// All versions in the index.
async fn entries(core: &Core) -> Entries {
    let scan = |tree: &Tree| {
        let mut found = Entries::new();
        tree.scan::<()>(&[key::OBJECT], |key, value| {
            if key::is_version(key) {
                found.insert(key.to_vec(), value.to_vec());
            }
            ControlFlow::Continue(())
        })?;
        Ok::<_, Halt<PageError>>(found)
    };
    core.ask(scan).await.expect("a sound index")
}

/// The keys of versions without blocks, and of those with blocks.
pub(crate) async fn keys(core: &Core) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut small, mut large) = (Vec::new(), Vec::new());
    for (key, value) in entries(core).await {
        if Version::has_blocks(&value) { large.push(key) } else { small.push(key) }
    }
    (small, large)
}

/// The change that gives a version without blocks other bytes.
fn alter(core: &Core, key: &[u8], byte: u8) -> Change {
    let mut value = core.tree.borrow().get(key).expect("in memory").expect("there");
    *value.last_mut().expect("not empty") = byte;
    Change::put(key, value)
}

fn commit(core: &Core, change: &Change) -> u64 {
    core.tree.borrow().reach([change.key()]).expect("in memory");
    core.commit(core::slice::from_ref(change), None).expect("it is taken")
}

/// Gives all these versions other bytes.
fn alter_all(core: &Core, keys: &[Vec<u8>], byte: u8) {
    for key in keys {
        commit(core, &alter(core, key, byte));
    }
}

fn give_back(core: &Core, runs: Vec<Run>) {
    for run in runs {
        core.space.borrow_mut().release(run);
    }
}

/// Takes all free blocks but so many.
fn leave(core: &Core, blocks: u64) -> Vec<Run> {
    let space = &mut *core.space.borrow_mut();
    let count = space.free() - blocks;
    space.allocate(count, Purpose::Index, usize::MAX).expect("all but these").to_vec()
}

/// How many blocks updates may take.
fn room_for_updates(core: &Core) -> usize {
    let counts: Vec<u64> = (0..core.space.borrow().free()).collect();
    counts.partition_point(|count| core.has_blocks(*count))
}

/// Has a checkpoint written and waits for its end.
pub(crate) async fn checkpoint(core: &Core) {
    let done = core.checkpoints.done.notified();
    core.checkpoints.request.notify_one();
    done.await;
}

/// Has nearly all nodes change behind a checkpoint. Returns the keys of what was given other bytes.
async fn change_all(shard: &Shard) -> Vec<Vec<u8>> {
    fill(shard, 0).await;
    checkpoint(&shard.core).await;
    let (small, _) = keys(&shard.core).await;
    alter_all(&shard.core, &small, 1);
    small
}

#[test]
fn a_checkpoint_without_space_is_written_when_some_comes_free() {
    on_a_shard(async |shard| {
        let core = &shard.core;
        let pause = || core.rt.sleep(Duration::from_secs(1));
        let taken = leave(core, 0);
        core.checkpoints.request.notify_one();
        pause().await;
        assert!(core.checkpoints.failures.get() > 0 && core.checkpoints.count.get() == 0);
        give_back(core, taken);
        pause().await;
        assert_eq!(core.checkpoints.count.get(), 1);
    });
}

#[test]
fn a_slice_of_the_begin_of_a_checkpoint_has_few_nodes_and_the_moment_has_none() {
    on_a_shard(async |shard| {
        let core = &shard.core;
        change_all(&shard).await;
        let blocks = || (core.space.borrow().free(), core.space.borrow().live());
        let (before, dirty) = (blocks(), core.tree.borrow().dirty_nodes());
        let room = room_for_updates(core);
        let mut beginning = Beginning::now(core).expect("a moment");
        assert_eq!(room_for_updates(core), room, "nodes have no room any more");
        assert_eq!((blocks(), beginning.placed()), (before, 0));
        assert_eq!(core.tree.borrow().unplaced_nodes(), dirty);
        let (mut slices, mut last) = (0, before);
        let mut is_little = |nodes: usize| {
            let most = nodes as u64 * NODE_BLOCKS;
            let ((free, live), now) = (last, blocks());
            assert!(free.abs_diff(now.0) <= most && live.abs_diff(now.1) <= most, "{last:?}, then {now:?}");
            (slices, last) = (slices + 1, now);
        };
        while beginning.place().expect("room") {
            // Each leaf takes two steps, and branches are few.
            is_little(SLICE / 2);
        }
        let nodes = beginning.placed();
        assert!(nodes > 90 && nodes <= dirty, "{nodes} nodes");
        for part in 0..nodes.div_ceil(SLICE) {
            beginning.mark(part);
            is_little(SLICE);
        }
        while beginning.retire() {
            is_little(SLICE);
        }
        assert!(slices > nodes / SLICE + 1, "{slices} slices");
        let frozen = beginning.end();
        assert_eq!(frozen.nodes.iter().map(|(_, run)| run.bytes()).sum::<u64>(), frozen.bytes);
    });
}

#[test]
fn others_run_between_the_slices_of_a_begin() {
    on_a_shard(async |shard| {
        fill(&shard, 0).await;
        let core = &shard.core;
        let looks = Cell::new(0);
        let others = async {
            loop {
                looks.set(looks.get() + 1);
                core.yield_to_io().await;
            }
        };
        let frozen = race(others, freeze(core)).await;
        let Either::Second(Ok(frozen)) = frozen else { panic!("there is room") };
        assert!(looks.get() > frozen.nodes.len() / SLICE + 2, "{} looks", looks.get());
    });
}

#[test]
fn a_begin_without_room_for_all_nodes_leaves_all_as_it_was() {
    on_a_shard(async |shard| {
        let core = &shard.core;
        let small = change_all(&shard).await;
        let dirty = core.tree.borrow().dirty_nodes();
        let taken = leave(core, dirty as u64 * NODE_BLOCKS * 3 / 4);
        let before =
            (core.space.borrow().free(), core.space.borrow().live(), core.tree.borrow().retired().len());
        for round in 2..6 {
            let mut beginning = Beginning::now(core).expect("a moment");
            assert!(beginning.place().expect("room for these"));
            let unplaced = core.tree.borrow().unplaced_nodes();
            assert_eq!(unplaced + beginning.placed(), dirty);
            alter_all(core, &small, round);
            let error = loop {
                match beginning.place() {
                    Ok(more) => assert!(more, "there is room for all"),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, CheckpointError::NoSpace(_)));
            while beginning.displace() {}
            assert_eq!(core.tree.borrow().unplaced_nodes(), dirty);
            beginning.give_up();
            let tree = core.tree.borrow();
            assert_eq!((tree.dirty_nodes(), tree.unplaced_nodes()), (dirty, 0), "round {round}");
            let homes = tree.retired().iter().filter(|home| home.page.get().is_some()).count();
            assert_eq!((core.space.borrow().free(), core.space.borrow().live(), homes), before);
        }
        give_back(core, taken);
        checkpoint(core).await;
        let present = dirty_nodes(core.tree.borrow().root());
        assert!(present.is_empty(), "{} nodes", present.len());
    });
}

/// A store on a simulated disk, whose checkpoints are written on request.
pub(crate) async fn open(handle: &Handle, disk: &SimDisk) -> Rc<Store> {
    let device: Rc<dyn Device> = disk.attach(handle);
    let interval = Duration::from_secs(1 << 20);
    let config = StoreConfig { background: false, checkpoint_interval: interval, ..StoreConfig::default() };
    Store::open(handle, device, &owner(), config).await.expect("it opens")
}

pub(crate) fn owner() -> Owner {
    Owner { system: "weir".to_owned(), rank: Rank(1), target: TargetIndex(0) }
}

/// A new store with an empty container.
async fn formatted(handle: &Handle, disk: &SimDisk) -> (Rc<Store>, Shard) {
    let device: Rc<dyn Device> = disk.attach(handle);
    let options = FormatOptions { owner: owner(), log_bytes: None };
    Store::format(handle, &device, &options).await.expect("empty");
    let store = open(handle, disk).await;
    let shard = store.create_pool(POOL, 16 << 20).await.expect("space");
    shard.create_container(CONTAINER).await.expect("created");
    (store, shard)
}

/// Runs something on a disk with a new store.
pub(crate) fn on_a_disk(test: impl AsyncFnOnce(Handle, SimDisk, Rc<Store>, Shard) + 'static) {
    let world = World::new(1);
    let node = world.node("engine-0");
    let disk = SimDisk::new("disk", 64 << 20, 1, SimDiskOptions::default());
    let handle = node.handle();
    world.block_on(&node, async move {
        let (store, shard) = formatted(&handle, &disk).await;
        test(handle, disk, store, shard).await;
    });
}

/// A store with values, all in a checkpoint.
async fn filled(handle: &Handle, disk: &SimDisk) -> (Rc<Store>, Shard) {
    let (store, shard) = formatted(handle, disk).await;
    fill(&shard, 0).await;
    checkpoint(&shard.core).await;
    (store, shard)
}

/// The entries that are acknowledged, and the changes that are under way.
#[derive(Default)]
struct Known {
    entries: Entries,
    open: Vec<Change>,
}

impl Known {
    fn make(entries: &mut Entries, change: &Change) {
        match change {
            Change::Put { key, value } => entries.insert(key.clone(), value.clone()),
            Change::Remove { key } => entries.remove(key),
        };
    }

    /// Whether these entries are all that was acknowledged, with a first part of what was under way.
    fn is_in(&self, found: &Entries) -> bool {
        let mut entries = self.entries.clone();
        let is_earlier = self.open.iter().any(|change| {
            let is_it = entries == *found;
            Self::make(&mut entries, change);
            is_it
        });
        is_earlier || entries == *found
    }
}

/// Makes changes durable together.
async fn make(core: &Core, known: &RefCell<Known>, changes: Vec<Change>) {
    known.borrow_mut().open.clone_from(&changes);
    let last = changes.iter().map(|change| commit(core, change)).last().expect("some");
    core.make_durable(last).await.expect("a healthy disk");
    let Known { entries, open } = &mut *known.borrow_mut();
    for change in &changes {
        Known::make(entries, change);
    }
    open.clear();
}

/// Changes versions and removes some with blocks, each durable before the next one.
async fn change(core: Rc<Core>, known: Rc<RefCell<Known>>, seed: u64) {
    let ((small, mut large), random) = (keys(&core).await, Random::new(seed));
    for step in 0..40u8 {
        let change = match large.pop() {
            Some(key) if random.below(2) == 0 => Change::remove(&key),
            _ => {
                let at = usize::try_from(random.below(SMALL)).expect("small");
                alter(&core, &small[at], step)
            }
        };
        make(&core, &known, vec![change]).await;
    }
}

/// Changes a store while checkpoints begin slowly, the first of them without room for all nodes.
async fn begin_slowly((store, shard): (Rc<Store>, Shard), known: Rc<RefCell<Known>>, seed: u64) {
    let core = Rc::clone(&shard.core);
    let (small, _) = keys(&core).await;
    make(&core, &known, small.iter().step_by(5).map(|key| alter(&core, key, 0xee)).collect()).await;
    core.checkpoints.pause.set(Duration::from_micros(300));
    let dirty = core.dirty_blocks();
    // Nodes go wherever something comes free.
    let mut taken = leave(&core, dirty * 3 / 4);
    let changes = core.rt.spawn(change(Rc::clone(&core), known, seed));
    checkpoint(&core).await;
    assert_eq!((core.checkpoints.failures.get(), core.checkpoints.count.get()), (1, 1));
    let mut given = 0;
    while given < dirty / 2 {
        let run = taken.pop().expect("more");
        given += run.count;
        core.space.borrow_mut().release(run);
    }
    checkpoint(&core).await;
    changes.await.expect("a healthy disk");
    give_back(&core, taken);
    checkpoint(&core).await;
    assert_eq!(core.checkpoints.count.get(), 3);
    drop(store);
}

/// Opens what is left and compares it; then once more when all that is free was written to.
async fn recover(handle: Handle, disk: SimDisk, known: Rc<RefCell<Known>>, place: (u64, u64)) {
    let store = open(&handle, &disk).await;
    assert_eq!(store.audit().await.problems, [""; 0], "{place:?}");
    let found = entries(store.core()).await;
    assert!(known.borrow().is_in(&found), "{place:?}: something is lost");
    let shard = store.pool(POOL).expect("the pool");
    for round in 1..6 {
        fill(&shard, round).await;
    }
    let found = entries(store.core()).await;
    store.close().await.expect("a healthy disk");
    let store = open(&handle, &disk).await;
    assert_eq!(store.audit().await.problems, [""; 0], "{place:?}, later");
    assert!(entries(store.core()).await == found, "{place:?}: something is lost later");
}

/// Cuts the power somewhere. Returns whether that was before the end.
fn crash_amid_begin(seed: u64, at: u64) -> bool {
    let world = World::new(seed);
    let node = world.node("engine-0");
    let disk = SimDisk::new("disk", 48 << 20, seed, SimDiskOptions::default());
    let known = Rc::new(RefCell::new(Known::default()));
    let (handle, own, noted) = (node.handle(), disk.clone(), Rc::clone(&known));
    let store = world.block_on(&node, async move {
        let store = filled(&handle, &own).await;
        noted.borrow_mut().entries = entries(store.0.core()).await;
        store
    });
    disk.halt_at(disk.operations() + at);
    let work = begin_slowly(store, Rc::clone(&known), seed);
    let finished = world.try_block_on(&node, Duration::from_mins(1), work);
    world.crash(&node);
    disk.crash(CrashKeeps::Any);
    world.restart(&node);
    world.block_on(&node, recover(node.handle(), disk, known, (seed, at)));
    finished.is_err()
}

#[test]
fn halts_amid_the_begin_of_a_checkpoint_recover_what_was_acknowledged() {
    for seed in 1..4 {
        let mut at = 0;
        while crash_amid_begin(seed, at) {
            at += 1;
        }
        assert!(at > 70, "only {at} operations");
    }
}
