//! One flipped bit anywhere of a store with content: the store opens, but for what holds all of it together; all that isn't hit
//! reads right, and what is hit is an error that names the place. So it is after more was stored, too, and no block is given out
//! that somebody has.

use crate::image::{owner, run as in_world, update_of};
use crate::source::Source;
use core::time::Duration;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::rc::Rc;
use uuid::Uuid;
use weir_inspect::{Depth, Field, Filter, Inspector, Line, Part, Report, Severity};
use weir_media::memory::MemoryDevice;
use weir_media::{BLOCK, Device};
use weir_proto::object::{AkeyFetch, Conditions, Extent, ListScope, PunchScope, Value};
use weir_proto::{ContainerId, Epoch, Key, ObjectId, PoolId};
use weir_runtime::Handle;
use weir_store::{
    Data, FetchError, FormatOptions, OpenError, Shard, Store, StoreConfig, TransactionId, UpdateError,
};

const SIZE: u64 = 32 << 20;
const POOLS: [PoolId; 2] = [PoolId(Uuid::from_u128(0xa1)), PoolId(Uuid::from_u128(0xa2))];
/// Each with the number of its pool.
const CONTAINERS: [(usize, ContainerId); 3] = [
    (0, ContainerId(Uuid::from_u128(0xc1))),
    (0, ContainerId(Uuid::from_u128(0xc2))),
    (1, ContainerId(Uuid::from_u128(0xc3))),
];
const TEXT: ObjectId = ObjectId { hi: 0, lo: 7 };
const ARRAY: ObjectId = ObjectId { hi: 13 << 56, lo: 8 };

/// Values of each container, of which every third is overwritten before the checkpoint, and every fourth behind it.
const VALUES: u64 = 120;
const LENS: [usize; 6] = [9, 400, 3000, 1200, 6000, 40_000];
/// Extents of each container.
const EXTENTS: u64 = 4;
const EXTENT_LEN: u64 = 100_000;
/// An epoch that is kept, and those of what is stored first, before the checkpoint, behind it, and by the test.
const SNAPSHOT: u64 = 500;
const FIRST: u64 = 1;
const SECOND: u64 = 1000;
const THIRD: u64 = 2000;
const FOURTH: u64 = 3000;
/// Values of each container that the test stores: new ones, and some that are there.
const STORED: core::ops::Range<u64> = VALUES - 20..VALUES + 30;

/// Most bytes of a chunk with a checksum of its own.
const CHUNK: u64 = 32 << 10;
/// Longer than a log without anything to write waits before it marks its last batch.
const IDLE: Duration = Duration::from_secs(1);

fn config() -> StoreConfig {
    StoreConfig { background: false, cache_bytes: 0, ..StoreConfig::default() }
}

/// Bytes that tell whose they are.
fn content(container: usize, number: u64, epoch: u64, len: usize) -> Vec<u8> {
    let seed = ((container as u64) << 40) | (number << 20) | epoch;
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(step).collect()
}

/// A number of things that memory holds.
fn in_memory(number: u64) -> usize {
    usize::try_from(number).expect("memory holds them")
}

fn len_of(number: u64) -> usize {
    LENS[in_memory(number % LENS.len() as u64)]
}

/// The epochs at which a value was stored.
fn epochs(number: u64) -> impl Iterator<Item = u64> {
    let all = [(true, FIRST), (number.is_multiple_of(3), SECOND), (number.is_multiple_of(4), THIRD)];
    all.into_iter().filter(|(is, _)| *is).map(move |(_, epoch)| epoch + number % 100)
}

fn text_key(text: &str) -> Key {
    Key::new(text.as_bytes()).expect("a short key")
}

async fn put(shard: &Shard, container: usize, number: u64, epoch: u64) -> Result<Epoch, UpdateError> {
    let bytes = content(container, number, epoch, len_of(number));
    let update = [update_of(&text_key("a"), Value::Single { size: bytes.len() as u64 })];
    let (dkey, none) = (text_key(&format!("d{number}")), Conditions::NONE);
    let id = CONTAINERS[container].1;
    shard.update(id, TEXT, &dkey, Epoch(epoch), none, &update, Data::Borrowed(&bytes)).await
}

async fn write(shard: &Shard, container: usize, number: u64) {
    let bytes = content(container, number, 0, usize::try_from(EXTENT_LEN).expect("small"));
    let extent = Extent { index: number * EXTENT_LEN, count: EXTENT_LEN };
    let update = [update_of(&text_key("a"), Value::Array { record_size: 1, extents: vec![extent] })];
    let (dkey, none, epoch) = (Key::from_u64(number % 2), Conditions::NONE, Epoch(FIRST));
    let id = CONTAINERS[container].1;
    let stored = shard.update(id, ARRAY, &dkey, epoch, none, &update, Data::Borrowed(&bytes)).await;
    stored.expect("a sound store takes it");
}

fn build() -> MemoryDevice {
    let device = MemoryDevice::new(SIZE);
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    in_world(async move |handle: Handle| {
        let options = FormatOptions { owner: owner(), log_bytes: None };
        Store::format(&handle, &disk, &options).await.expect("an empty device");
        let store = Store::open(&handle, disk, &owner(), config()).await.expect("a new store");
        for pool in POOLS {
            store.create_pool(pool, 8 << 20).await.expect("space");
        }
        for (number, (pool, id)) in CONTAINERS.into_iter().enumerate() {
            let shard = store.pool(POOLS[pool]).expect("created");
            shard.create_container(id).await.expect("a container");
            for at in 0..EXTENTS {
                write(&shard, number, at).await;
            }
            for value in 0..VALUES {
                for epoch in epochs(value).filter(|epoch| *epoch < THIRD) {
                    put(&shard, number, value, epoch).await.expect("stored");
                }
            }
            shard.set_snapshots(id, &[Epoch(SNAPSHOT)]).await.expect("kept");
        }
        store.checkpoint().await.expect("written");
        for (number, (pool, id)) in CONTAINERS.into_iter().enumerate() {
            let shard = store.pool(POOLS[pool]).expect("created");
            for value in 0..VALUES {
                for epoch in epochs(value).filter(|epoch| *epoch >= THIRD) {
                    put(&shard, number, value, epoch).await.expect("stored");
                }
            }
            let id_of = TransactionId(Uuid::from_u128(number as u128 + 1));
            shard.abort_transaction(id, id_of).await.expect("aborted");
            let scope = PunchScope::Dkeys(vec![text_key("nobody")]);
            shard.punch(id, TEXT, &scope, Epoch(THIRD), Conditions::NONE).await.expect("punched");
        }
        handle.sleep(IDLE).await;
        // Neither closed nor written anew: the log is needed.
    });
    device
}

/// Where something is that a store needs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    what: &'static str,
    offset: u64,
    len: u64,
    /// Without it there is no store.
    is_decisive: bool,
}

/// A store, and what there is of it.
struct Image {
    device: MemoryDevice,
    /// In kinds, data last.
    places: Vec<Vec<Place>>,
    /// Data that the checkpoint refers to.
    kept: Vec<Place>,
}

fn inspect(device: &MemoryDevice) -> Report {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    in_world(async move |_| Inspector::open(disk).await.expect("a store").report(Depth::Everything).await)
}

fn nodes(device: &MemoryDevice) -> Vec<Line> {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    in_world(async move |_| {
        let store = Inspector::open(disk).await.expect("a store");
        let (filter, mut lines) = (Filter { limit: 10_000, ..Filter::default() }, Vec::new());
        let mut keep = |line| {
            lines.push(line);
            ControlFlow::Continue(())
        };
        store.dump(Part::Nodes, &filter, &mut keep).await.expect("dumped");
        lines
    })
}

fn node_place(line: &Line) -> Place {
    let field = |name: &str| line.iter().find(|(found, _)| *found == name).map(|(_, field)| field.clone());
    let number = |name| if let Some(Field::Number(number)) = field(name) { number } else { 0 };
    let text = |name| if let Some(Field::Text(text)) = field(name) { text } else { String::new() };
    // Keys before those of objects, and of snapshots and transactions behind them, or a branch above all of it.
    let has_other = !text("first").starts_with("05") || !text("last").starts_with("05");
    let is_decisive = text("kind") == "branch" || has_other;
    Place { what: "index node", offset: number("offset"), len: number("bytes"), is_decisive }
}

/// Where a value of several blocks begins on a device.
fn find(device: &MemoryDevice, bytes: &[u8]) -> Place {
    let mut blocks = (0..SIZE).step_by(BLOCK);
    let offset = blocks.find(|at| device.bytes(*at, 64) == bytes[..64]).expect("it is stored");
    Place { what: "data", offset, len: bytes.len() as u64, is_decisive: false }
}

fn image() -> Image {
    let device = build();
    let report = inspect(&device);
    assert_eq!(report.findings, [], "it is sound");
    let region = |name: &str| report.regions.iter().find(|region| region.name == name).expect("it has one");
    let place = |what, offset, len| Place { what, offset, len, is_decisive: false };
    let block = BLOCK as u64;
    let superblocks = vec![place("superblock", 0, block), place("superblock", SIZE - block, block)];
    let headers = (1..5).map(|at| place("checkpoint header", at * block, block)).collect();
    let map = region("space map");
    let maps = vec![place("space map", map.offset, map.len)];
    let log = vec![place("log", report.log.start, report.log.end - report.log.start)];
    assert!(report.log.batches > 50, "{:?}", report.log);
    let nodes: Vec<Place> = nodes(&device).iter().map(node_place).collect();
    assert!(nodes.iter().filter(|node| !node.is_decisive).count() > 10, "{nodes:?}");
    let (mut kept, mut late) = (Vec::new(), Vec::new());
    for container in 0..CONTAINERS.len() {
        let len = usize::try_from(EXTENT_LEN).expect("small");
        kept.extend((0..EXTENTS).map(|number| find(&device, &content(container, number, 0, len))));
        for number in (0..VALUES).filter(|number| len_of(*number) > BLOCK) {
            for epoch in epochs(number) {
                let found = find(&device, &content(container, number, epoch, len_of(number)));
                if epoch < THIRD { kept.push(found) } else { late.push(found) }
            }
        }
    }
    let data = [kept.clone(), late].concat();
    Image { device, places: vec![superblocks, headers, maps, log, nodes, data], kept }
}

pub fn run(input: &[u8]) {
    thread_local! {
        static IMAGE: Rc<Image> = Rc::new(image());
    }
    let (image, mut source) = (IMAGE.with(Rc::clone), Source::new(input));
    let kind = in_memory(source.below(image.places.len() as u64));
    let places = &image.places[kind];
    let place = &places[in_memory(source.below(places.len() as u64))];
    let device = image.device.copy(SIZE);
    // Close to the beginning there is more that matters.
    let reach = if source.chance(64) { place.len.min(256) } else { place.len };
    let (at, bit) = (place.offset + source.below(reach), source.byte() % 8);
    device.flip_bit(at, bit);
    let hit = Hit { place: place.clone(), at };
    if !hit.read(&device, false) {
        return;
    }
    hit.store(&device);
    assert!(hit.read(&device, true), "it opened before");
    hit.judge(&image, &device);
}

/// What is damaged.
struct Hit {
    place: Place,
    at: u64,
}

impl Hit {
    /// Opens the store. `None`: it is one of the places without which there is none.
    async fn open(&self, handle: &Handle, device: &MemoryDevice) -> Option<Rc<Store>> {
        let disk: Rc<dyn Device> = Rc::new(device.clone());
        match Box::pin(Store::open(handle, disk, &owner(), config())).await {
            Ok(store) => Some(store),
            Err(OpenError::Corrupt { location, .. })
                if self.place.is_decisive && location.offset == self.place.offset =>
            {
                None
            }
            Err(error) => panic!("a bit of byte {}, {:?}: {error}", self.at, self.place),
        }
    }

    /// Whether this is how a read of what is hit ends.
    fn explains(&self, error: &FetchError) -> bool {
        match error {
            FetchError::Index { location, .. } => {
                self.place.what == "index node" && location.offset == self.place.offset
            }
            FetchError::Corrupt { location, .. } => {
                let (from, is_data) = (location.offset, self.place.what == "data");
                is_data && (from..from + CHUNK).contains(&self.at)
            }
            _ => false,
        }
    }

    fn judge_read(&self, what: &str, found: Result<Vec<u8>, FetchError>, expected: &[u8]) {
        match found {
            Ok(bytes) => {
                assert!(bytes == expected, "{what} reads wrong: a bit of {}, {:?}", self.at, self.place);
            }
            Err(error) if self.explains(&error) => {}
            Err(error) => panic!("{what}: {error}: a bit of {}, {:?}", self.at, self.place),
        }
    }

    /// Reads everything, at two epochs. `false`: there is no store.
    fn read(&self, device: &MemoryDevice, is_stored: bool) -> bool {
        let (hit, device) = (Self { place: self.place.clone(), at: self.at }, device.clone());
        in_world(async move |handle: Handle| {
            let Some(store) = hit.open(&handle, &device).await else { return false };
            for container in 0..CONTAINERS.len() {
                hit.read_container(&store, container, is_stored).await;
            }
            true
        })
    }

    async fn read_container(&self, store: &Store, container: usize, is_stored: bool) {
        let (pool, id) = CONTAINERS[container];
        let shard = store.pool(POOLS[pool]).expect("pools are there, or the store isn't opened");
        let numbers = if is_stored { 0..STORED.end } else { 0..VALUES };
        for number in numbers {
            let stored = Some(FOURTH + number).filter(|_| is_stored && STORED.contains(&number));
            for at in [SNAPSHOT, u64::MAX] {
                let newest = epochs(number)
                    .filter(|_| number < VALUES)
                    .chain(stored)
                    .filter(|epoch| *epoch <= at)
                    .max();
                let found = fetch(&shard, id, TEXT, &text_key(&format!("d{number}")), at, None).await;
                // What the test couldn't store, because the node is hit, can't be read either.
                let expected =
                    newest.map_or(Vec::new(), |epoch| content(container, number, epoch, len_of(number)));
                self.judge_read(
                    &format!("value {number} of container {container} at {at}"),
                    found,
                    &expected,
                );
            }
        }
        for number in 0..EXTENTS {
            let extent = Extent { index: number * EXTENT_LEN, count: EXTENT_LEN };
            let found = fetch(&shard, id, ARRAY, &Key::from_u64(number % 2), u64::MAX, Some(extent)).await;
            let expected = content(container, number, 0, usize::try_from(EXTENT_LEN).expect("small"));
            self.judge_read(&format!("extent {number} of container {container}"), found, &expected);
        }
        let expected = if is_stored { STORED.end } else { VALUES };
        match list(&shard, id).await {
            Ok(keys) => assert_eq!(keys.len() as u64, expected, "a bit of {}, {:?}", self.at, self.place),
            Err(error) => assert!(self.explains(&error), "{error}: a bit of {}, {:?}", self.at, self.place),
        }
    }

    /// Stores more, and a checkpoint.
    fn store(&self, device: &MemoryDevice) {
        let (hit, device) = (Self { place: self.place.clone(), at: self.at }, device.clone());
        in_world(async move |handle: Handle| {
            let store = hit.open(&handle, &device).await.expect("it was opened before");
            for (container, (pool, _)) in CONTAINERS.into_iter().enumerate() {
                let shard = store.pool(POOLS[pool]).expect("it is there");
                for number in STORED {
                    match put(&shard, container, number, FOURTH + number).await {
                        Ok(_) => {}
                        Err(UpdateError::Index { location, .. })
                            if hit.place.what == "index node" && location.offset == hit.place.offset => {}
                        Err(error) => panic!("{error}: a bit of {}, {:?}", hit.at, hit.place),
                    }
                }
            }
            store.checkpoint().await.expect("there is room");
            let problems = store.audit().await.problems;
            let is_told = |problem: &String| {
                hit.place.what == "index node"
                    && !problem.contains("overlap")
                    && !problem.contains("not marked")
            };
            assert!(problems.iter().all(is_told), "{problems:?}: a bit of {}, {:?}", hit.at, hit.place);
            store.close().await.expect("closed");
        });
    }

    /// Looks whether nothing is wrong but what was hit, and nothing was given away that somebody has.
    fn judge(&self, image: &Image, device: &MemoryDevice) {
        let report = inspect(device);
        let is_lasting = ["index node", "data"].contains(&self.place.what);
        for finding in report.findings.iter().filter(|finding| finding.severity == Severity::Damage) {
            let is_superblock = self.place.what == "superblock" && finding.what.contains("superblock");
            let is_here = (finding.offset..finding.offset + finding.len.max(1)).contains(&self.at);
            assert!(
                is_here && (is_lasting || is_superblock),
                "{finding}: a bit of {}, {:?}",
                self.at,
                self.place
            );
        }
        // What the log alone refers to below a node that is lost is lost with it.
        let kept = if self.place.what == "index node" { &image.kept } else { &image.places[5] };
        for Place { offset, len, .. } in kept {
            let len = in_memory(*len);
            let (before, after) = (image.device.bytes(*offset, len), device.bytes(*offset, len));
            let changed: BTreeSet<u64> = (*offset..)
                .zip(before.iter().zip(&after))
                .filter(|(_, (a, b))| a != b)
                .map(|(at, _)| at)
                .collect();
            let is_hit = |at: &u64| *at == self.at;
            assert!(changed.iter().all(is_hit), "data at byte {offset} was overwritten: {:?}", self.place);
        }
    }
}

async fn fetch(
    shard: &Shard,
    container: ContainerId,
    object: ObjectId,
    dkey: &Key,
    epoch: u64,
    extent: Option<Extent>,
) -> Result<Vec<u8>, FetchError> {
    let value = match extent {
        Some(extent) => Value::Array { record_size: 1, extents: vec![extent] },
        None => Value::Single { size: u64::MAX },
    };
    let akeys = [AkeyFetch { akey: text_key("a"), value, conditions: Conditions::NONE }];
    let fetch = shard.fetch(container, object, dkey, Epoch(epoch), Conditions::NONE, &akeys).await?;
    let mut into = vec![0xee; in_memory(fetch.data_len())];
    fetch.read(&mut into).await?;
    Ok(into)
}

/// The dkeys of the object of text.
async fn list(shard: &Shard, container: ContainerId) -> Result<BTreeSet<Vec<u8>>, FetchError> {
    let (mut keys, mut anchor) = (BTreeSet::new(), Vec::new());
    loop {
        let page = shard.list(container, TEXT, &ListScope::Dkeys, Epoch::MAX, &anchor, 50, None).await?;
        keys.extend(page.entries.into_iter().map(|entry| entry.key));
        match page.next {
            Some(next) => anchor = next,
            None => return Ok(keys),
        }
    }
}
