//! Images that earlier releases wrote: this one opens them and finds everything.

use crate::setup::*;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;
use weir_inspect::{Depth, Inspector, Report};
use weir_media::Device;
use weir_media::memory::MemoryDevice;
use weir_proto::object::{Conditions, Extent, PunchScope};
use weir_proto::{ContainerId, Epoch, Key, ObjectId, PoolId};
use weir_runtime::{Handle, join_all};
use weir_store::{
    AttributeChange, Data, Decision, Operation, RecordRange, Shard, Store, StoreConfig, TransactionId,
};

/// The images: each is named by its format's version, and those with fields that came within a version by a second number.
pub const IMAGES: [&str; 4] = ["1", "2", "2.1", "3"];

/// The format's version of an image.
pub fn version_of(image: &str) -> u32 {
    image.split('.').next().and_then(|version| version.parse().ok()).expect("a version")
}

/// Whether an image has what [`write_more`] writes.
fn has_more(image: &str) -> bool {
    version_of(image) >= 2
}

/// Whether an image has what [`write_later`] writes.
pub fn has_later(image: &str) -> bool {
    !["1", "2"].contains(&image)
}

/// Whether an image has what [`reserve`] keeps.
fn has_reserved(image: &str) -> bool {
    version_of(image) >= 3
}

pub const SIZE: u64 = 16 << 20;
const SECTOR: usize = 512;

const OTHER_POOL: PoolId = PoolId(Uuid::from_u128(0xab));
const SMALL: ContainerId = ContainerId(Uuid::from_u128(0xcd));
const GONE: ContainerId = ContainerId(Uuid::from_u128(0xce));
const LATE: ContainerId = ContainerId(Uuid::from_u128(0xcf));
/// Integer akeys (`DAOS_OT_AKEY_UINT64`).
const INTEGER_AKEYS: ObjectId = ObjectId { hi: 3 << 56, lo: 9 };

fn path(image: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/v{image}.sectors"))
}

pub fn load(image: &str) -> MemoryDevice {
    let bytes = std::fs::read(path(image)).expect("the image");
    let device = MemoryDevice::new(SIZE);
    for record in bytes.chunks_exact(4 + SECTOR) {
        let (number, sector) = record.split_at(4);
        let number = u32::from_le_bytes(number.try_into().expect("four bytes"));
        device.overwrite(u64::from(number) * SECTOR as u64, sector);
    }
    device
}

fn save(device: &MemoryDevice, image: &str) {
    let mut bytes = Vec::new();
    for number in 0..SIZE / SECTOR as u64 {
        let sector = device.bytes(number * SECTOR as u64, SECTOR);
        if sector.iter().any(|byte| *byte != 0) {
            bytes.extend(u32::try_from(number).expect("a small device").to_le_bytes());
            bytes.extend(sector);
        }
    }
    let mut file = std::fs::File::create_new(path(image)).expect("an image is never replaced");
    std::io::Write::write_all(&mut file, &bytes).expect("written");
}

/// A value whose bytes are mostly zero, so that the image stays small, but differ from each other.
pub fn value(seed: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (number, byte) in bytes.iter_mut().step_by(3000).enumerate() {
        *byte = seed ^ (number as u8) | 1;
    }
    bytes
}

fn on<T: 'static>(device: &MemoryDevice, task: impl AsyncFnOnce(Rc<Store>) -> T + 'static) -> T {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(77, async move |handle| {
        let store = Store::open(&handle, disk, &owner(), quiet()).await.expect("it opens");
        task(store).await
    })
}

pub fn inspect(device: &MemoryDevice, depth: Depth) -> Report {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(78, async move |_| Inspector::open(disk).await.expect("a store").report(depth).await)
}

/// Keys whose entries fill several nodes, so that a small memory can't hold them.
const MANY: ObjectId = ObjectId { hi: 0, lo: 11 };
const MANY_KEYS: u64 = 900;
/// What transactions write.
const SHARED: ObjectId = ObjectId { hi: 0, lo: 12 };
/// Every kind of punch.
const PUNCHED: ObjectId = ObjectId { hi: 0, lo: 13 };

const fn transaction(number: u128) -> TransactionId {
    TransactionId(Uuid::from_u128(0x7a00 + number))
}

async fn put_to(
    shard: &Shard,
    container: ContainerId,
    object: ObjectId,
    dkey: &str,
    epoch: u64,
    value: &[u8],
) {
    let update = [summed_at(epoch, single("a", value), value)];
    let (dkey, data) = (key(dkey), Data::Borrowed(value));
    shard
        .update(container, object, &dkey, Epoch(epoch), Conditions::NONE, &update, data)
        .await
        .expect("stored");
}

async fn get_from(
    shard: &Shard,
    container: ContainerId,
    object: ObjectId,
    (dkey, akey): (&str, &str),
    epoch: u64,
) -> Option<Vec<u8>> {
    let value = weir_proto::object::Value::Single { size: u64::MAX };
    let asked = [weir_proto::object::AkeyFetch { akey: key(akey), value, conditions: Conditions::NONE }];
    let fetch = shard.fetch(container, object, &key(dkey), Epoch(epoch), Conditions::NONE, &asked).await;
    let fetch = fetch.expect("found");
    let is_there = fetch.akeys()[0].fetched.size > 0;
    let mut data = vec![0xee; fetch.data_len() as usize];
    let sums = fetch.read_summed(&asked, &mut data).await.expect("read");
    assert!(!is_there || sums.concat() == [crc(&data)]);
    is_there.then_some(data)
}

fn many(number: u64) -> Vec<u8> {
    format!("value {number} {}", "x".repeat(number as usize % 50)).into_bytes()
}

/// A transaction that stores a small and a large value and removes a dkey, all named after it.
async fn prepare(shard: &Shard, number: u8, epoch: u64) {
    let (small, large, dkey) = (value(number, 50), value(number, 40_000), format!("t{number}"));
    let update = |akey: &str, value: &[u8]| summed(single(akey, value), value);
    let operation = |akey: &str, data| Operation::Update {
        object: SHARED,
        dkey: key(&dkey),
        conditions: Conditions::NONE,
        akeys: vec![update(akey, data)],
        data: Data::Borrowed(data),
    };
    let operations = [
        operation("small", &small),
        operation("large", &large),
        Operation::Punch {
            object: SHARED,
            scope: PunchScope::Dkeys(vec![key(&format!("old{number}"))]),
            conditions: Conditions::NONE,
        },
    ];
    shard.prepare(CONTAINER, transaction(number.into()), Epoch(epoch), &operations).await.expect("prepared");
}

/// Prepared transactions and decisions, data in a second pool, punches at every level, chunks that begin anywhere, and
/// an index of many nodes, some of which later checkpoints have replaced.
async fn write_more(handle: &Handle, device: &MemoryDevice) {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    let store = Store::open(handle, disk, &owner(), quiet()).await.expect("it opens");
    let shard = store.pool(POOL).expect("the pool");
    let other = store.pool(OTHER_POOL).expect("the pool");
    other.create_container(CONTAINER).await.expect("created");
    for (number, len) in [0, 60, 5000, 70_000].into_iter().enumerate() {
        let epoch = 40 + number as u64;
        put_to(&other, CONTAINER, OBJECT, &format!("d{number}"), epoch, &value(number as u8, len)).await;
    }
    other.set_snapshots(CONTAINER, &[Epoch(41), Epoch(43)]).await.expect("kept");
    let values: Vec<(String, Vec<u8>)> =
        (0..MANY_KEYS).map(|number| (format!("m{number}"), many(number))).collect();
    // At once, so that they share a few batches of the log and the image stays small.
    join_all(
        (100..)
            .zip(&values)
            .map(|(epoch, (dkey, value))| put_to(&shard, CONTAINER, MANY, dkey, epoch, value)),
    )
    .await;
    for dkey in ["akey", "hole", "value", "dkey"] {
        put_to(&shard, CONTAINER, PUNCHED, dkey, 2000, b"before").await;
    }
    let records = value(7, 12_000);
    let written = summed(array("data", 3, &[(1001, 4000)]), &records);
    let dkey = Key::from_u64(9);
    shard
        .update(CONTAINER, ARRAY, &dkey, Epoch(2002), Conditions::NONE, &[written], Data::Borrowed(&records))
        .await
        .expect("stored");
    let now = handle.wall_ns();
    for number in 1..=4u8 {
        put_to(&shard, CONTAINER, SHARED, &format!("old{number}"), 2003, b"there").await;
        prepare(&shard, number, now + 1000 + u64::from(number)).await;
    }
    shard.commit_transaction(CONTAINER, transaction(1)).await.expect("committed");
    shard.abort_transaction(CONTAINER, transaction(2)).await.expect("aborted");
    store.checkpoint().await.expect("written");
    put_to(&shard, CONTAINER, MANY, "m450", 3000, b"in a node of a later checkpoint").await;
    store.checkpoint().await.expect("written");
    prepare(&shard, 5, now + 2000).await;
    shard.commit_transaction(CONTAINER, transaction(3)).await.expect("committed");
    let hole = array("data", 0, &[(1500, 100)]);
    let none = Data::Borrowed(b"");
    shard
        .update(CONTAINER, ARRAY, &dkey, Epoch(3001), Conditions::NONE, &[hole], none)
        .await
        .expect("stored");
    let akeys = PunchScope::Akeys(key("akey"), vec![key("a")]);
    punch(&shard, PUNCHED, akeys, 3002).await.expect("punched");
    put_to(&shard, CONTAINER, PUNCHED, "value", 3003, b"").await;
    punch(&shard, PUNCHED, PunchScope::Dkeys(vec![key("dkey")]), 3004).await.expect("punched");
}

/// Decisions of transactions that are forgotten, a log behind a checkpoint that says what of it was stable, and a batch without
/// records, which says that of the last one.
async fn write_later(handle: &Handle, device: &MemoryDevice) {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    // History stays: nothing is as old as this.
    let config = StoreConfig { background: true, retention: Duration::MAX, ..StoreConfig::default() };
    let store = Store::open(handle, disk, &owner(), config).await.expect("it opens");
    let shard = store.pool(POOL).expect("the pool");
    let began = Epoch(handle.wall_ns());
    handle.sleep(Duration::from_mins(6)).await;
    assert!(shard.may_have_forgotten(began) && shard.undecided(CONTAINER).await.expect("found").len() == 2);
    store.checkpoint().await.expect("written");
    for number in 0..LATER_VALUES {
        put_to(&shard, CONTAINER, OBJECT, &format!("l{number}"), 4000 + number, &many(number)).await;
    }
    // Longer than the log waits with its mark, and shorter than until the next checkpoint.
    handle.sleep(Duration::from_millis(300)).await;
}

/// Keeps room in some dkeys. Returns those of which nothing was reserved.
async fn reserve(shard: &Shard, dkeys: Range<u64>) -> Vec<Range<u64>> {
    let akey = key("reserved");
    let range = RecordRange { object: ARRAY, akey: &akey, from: (dkeys.start, 5), below: (dkeys.end, 0) };
    shard.reserve(CONTAINER, &range, (1, 20_000), &[dkeys]).await.expect("there is room")
}

/// What [`write_later`] stores.
const LATER_VALUES: u64 = 8;

async fn find_later(shard: &Shard) {
    for number in 0..LATER_VALUES {
        let found = get_from(shard, CONTAINER, OBJECT, (&format!("l{number}"), "a"), u64::MAX).await;
        assert!(found == Some(many(number)), "value {number}");
    }
}

/// What [`write_more`] wrote, found by a store whose memory holds only a part of the index.
async fn find_more(handle: &Handle, device: &MemoryDevice, is_later: bool) {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    let store = Store::open(handle, disk, &owner(), cramped()).await.expect("it opens");
    let shard = store.pool(POOL).expect("the pool");
    let other = store.pool(OTHER_POOL).expect("the pool");
    for (number, len) in [0, 60, 5000, 70_000].into_iter().enumerate() {
        let found = get_from(&other, CONTAINER, OBJECT, (&format!("d{number}"), "a"), u64::MAX).await;
        assert!(found.unwrap_or_default() == value(number as u8, len), "value {number}");
    }
    assert_eq!(other.snapshots(CONTAINER).expect("found"), [Epoch(41), Epoch(43)]);
    for number in 0..MANY_KEYS {
        let found = get_from(&shard, CONTAINER, MANY, (&format!("m{number}"), "a"), 2000).await;
        assert!(found == Some(many(number)), "key {number}");
    }
    let newest = get_from(&shard, CONTAINER, MANY, ("m450", "a"), u64::MAX).await;
    assert_eq!(newest.as_deref(), Some(&b"in a node of a later checkpoint"[..]));
    assert!(store.stats().index.faults > 10, "nodes come and go: {:?}", store.stats().index);
    for (dkey, is_there) in [("akey", false), ("hole", true), ("value", false), ("dkey", false)] {
        for (epoch, is_there) in [(3001, true), (u64::MAX, is_there)] {
            let found = get_from(&shard, CONTAINER, PUNCHED, (dkey, "a"), epoch).await;
            assert_eq!(found.is_some(), is_there, "{dkey} at {epoch}");
        }
    }
    let dkey = Key::from_u64(9);
    let asked = array("data", 3, &[(1001, 4000)]);
    let asked = [weir_proto::object::AkeyFetch {
        akey: asked.akey,
        value: asked.value,
        conditions: asked.conditions,
    }];
    let fetch =
        shard.fetch(CONTAINER, ARRAY, &dkey, Epoch::MAX, Conditions::NONE, &asked).await.expect("found");
    let present = [Extent { index: 1001, count: 499 }, Extent { index: 1600, count: 3401 }];
    assert_eq!(fetch.akeys()[0].fetched.present, present);
    let mut data = vec![0xee; 12_000];
    let sums = fetch.read_summed(&asked, &mut data).await.expect("read");
    let mut expected = value(7, 12_000);
    expected[499 * 3..599 * 3].fill(0);
    assert!(data == expected && sums.concat() == [crc(&data)]);
    drop(fetch);
    let undecided = shard.undecided(CONTAINER).await.expect("found");
    assert_eq!(undecided.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [transaction(4), transaction(5)]);
    for (number, committed) in [(1, Some(true)), (2, Some(false)), (3, Some(true)), (4, None)] {
        let decision = shard.decision(CONTAINER, transaction(number)).await.expect("found");
        let found = decision.map(|decision| matches!(decision, Decision::Committed(_)));
        assert_eq!(found, committed.filter(|_| !is_later), "{number}");
    }
    shard.commit_transaction(CONTAINER, transaction(4)).await.expect("committed");
    shard.abort_transaction(CONTAINER, transaction(5)).await.expect("aborted");
    for (number, is_there) in [(1, true), (2, false), (3, true), (4, true), (5, false)] {
        let dkey = format!("t{number}");
        for (akey, len) in [("small", 50), ("large", 40_000)] {
            let found = get_from(&shard, CONTAINER, SHARED, (&dkey, akey), u64::MAX).await;
            assert!(found == is_there.then(|| value(number, len)), "{akey} of {dkey}");
        }
        let old = get_from(&shard, CONTAINER, SHARED, (&format!("old{number}"), "a"), u64::MAX).await;
        assert_eq!(old.is_some(), number < 5 && !is_there, "old{number}");
    }
    assert_eq!(store.audit().await.problems, Vec::<String>::new());
    store.close().await.expect("closed");
}

/// What this release's image holds.
fn write_image(image: &str) {
    let device = MemoryDevice::new(SIZE);
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(76, async move |handle| Store::format(&handle, &disk, &format_options()).await).expect("empty");
    on(&device, async |store| {
        let shard = store.create_pool(POOL, 2 << 20).await.expect("space");
        store.create_pool(OTHER_POOL, 1 << 20).await.expect("space");
        for container in [CONTAINER, SMALL, GONE] {
            shard.create_container(container).await.expect("created");
        }
        shard.set_quota(SMALL, 123_456).await.expect("set");
        let attribute = |name: &str, value: Option<Vec<u8>>| AttributeChange {
            scope: b"scope".to_vec(),
            name: name.as_bytes().to_vec(),
            value,
        };
        let changes = [attribute("short", Some(b"v".to_vec())), attribute("long", Some(value(5, 7000)))];
        shard.change_attributes(&changes).await.expect("stored");
        for (number, len) in [0, 1, 60, 3000, 4096, 9000, 70_000].into_iter().enumerate() {
            let (dkey, epoch) = (format!("d{number}"), 10 + number as u64);
            put(&shard, &dkey, "a", epoch, &value(number as u8, len)).await.expect("stored");
        }
        write(&shard, 3, 20, 100, &value(20, 5000)).await.expect("stored");
        write(&shard, 3, 21, 90_000, b"end").await.expect("stored");
        shard.set_snapshots(CONTAINER, &[Epoch(25)]).await.expect("kept");
        let update = [single("00000042", b"integer")];
        let (dkey, conditions) = (key("d"), weir_proto::object::Conditions::NONE);
        let data = weir_store::Data::Borrowed(b"integer");
        shard
            .update(CONTAINER, INTEGER_AKEYS, &dkey, Epoch(22), conditions, &update, data)
            .await
            .expect("stored");
        put(&shard, "punched", "a", 23, b"before").await.expect("stored");
        reserve(&shard, 20..22).await;
        store.checkpoint().await.expect("written");
        // From here on it stands in the log alone.
        reserve(&shard, 22..23).await;
        put(&shard, "d2", "a", 30, &value(30, 61)).await.expect("stored");
        put(&shard, "d5", "a", 31, &value(31, 8000)).await.expect("stored");
        write(&shard, 3, 32, 102, &value(32, 10)).await.expect("stored");
        punch(&shard, OBJECT, PunchScope::Dkeys(vec![key("punched")]), 33).await.expect("punched");
        punch(&shard, INTEGER_AKEYS, PunchScope::Object, 34).await.expect("punched");
        shard.create_container(LATE).await.expect("created");
        shard.destroy_container(GONE).await.expect("destroyed");
        shard.change_attributes(&[attribute("short", None)]).await.expect("stored");
    });
    let written = device.clone();
    run(79, async move |handle| write_more(&handle, &written).await);
    let written = device.clone();
    run(81, async move |handle| write_later(&handle, &written).await);
    save(&device, image);
}

#[test]
fn images_of_all_versions_are_sound_and_hold_what_was_stored() {
    let newest = IMAGES.last().expect("there is one");
    if std::env::var_os("WEIR_WRITE_GOLDEN").is_some() && !path(newest).exists() {
        write_image(newest);
    }
    for image in IMAGES {
        let device = load(image);
        let report = inspect(&device, Depth::Everything);
        assert_eq!((report.version, report.damages), (version_of(image), 0), "{:?}", report.findings);
        assert_eq!(report.owner, owner());
        assert!(report.log.records > 5 && report.checkpoint.is_some_and(|found| found.entries > 30));
        assert_eq!(report.pools.len(), 2);
        find_all(image, &device);
    }
}

/// Finds all that an image holds, and lets the store go on.
pub fn find_all(image: &'static str, device: &MemoryDevice) {
    if has_more(image) {
        let (held, is_later) = (device.clone(), has_later(image));
        run(80, async move |handle| find_more(&handle, &held, is_later).await);
    }
    on(device, async move |store| {
        let shard = store.pool(POOL).expect("the pool");
        if has_later(image) {
            find_later(&shard).await;
        }
        if has_reserved(image) {
            let kept = shard.space().reserved;
            assert!(kept > 3 * 20_000, "{kept} bytes");
            for dkeys in [20..22, 22..23] {
                assert_eq!(reserve(&shard, dkeys).await, [], "it is kept already");
            }
            assert_eq!(shard.space().reserved, kept);
        } else {
            assert_eq!(shard.space().reserved, 0);
        }
        let sizes: Vec<u64> = store.pools().iter().map(|pool| pool.size).collect();
        assert_eq!(sizes, [2 << 20, 1 << 20]);
        for (number, len) in [0, 1, 60, 3000, 4096, 9000, 70_000].into_iter().enumerate() {
            let found = get(&shard, &format!("d{number}"), "a", 25).await.expect("read");
            assert!(found.unwrap_or_default() == value(number as u8, len), "value {number} at the snapshot");
        }
        let newest = get(&shard, "d2", "a", u64::MAX).await.expect("read");
        assert!(newest == Some(value(30, 61)), "the newest value is the log's");
        assert!(get(&shard, "d5", "a", u64::MAX).await.expect("read") == Some(value(31, 8000)));
        assert_eq!(get(&shard, "punched", "a", 32).await.expect("read").as_deref(), Some(&b"before"[..]));
        assert_eq!(get(&shard, "punched", "a", 33).await.expect("read"), None);
        let mut expected = value(20, 5000);
        expected[2..12].copy_from_slice(&value(32, 10));
        let (data, present) = read(&shard, 3, u64::MAX, 100, 6000).await.expect("read");
        assert_eq!(present, [Extent { index: 100, count: 5000 }]);
        assert!(data[..5000] == expected && data[5000..].iter().all(|byte| *byte == 0));
        let (data, _) = read(&shard, 3, u64::MAX, 90_000, 3).await.expect("read");
        assert_eq!(data, b"end");
        assert_eq!(shard.max_epoch(CONTAINER, INTEGER_AKEYS).await.expect("found"), Epoch(34));
        assert_eq!(shard.snapshots(CONTAINER).expect("found"), [Epoch(25)]);
        assert_eq!(shard.attribute(b"scope", b"short"), None);
        assert!(shard.attribute(b"scope", b"long") == Some(value(5, 7000)));
        let quota =
            |id| shard.containers().iter().find(|found| found.container == id).map(|found| found.quota);
        assert_eq!((quota(SMALL), quota(LATE)), (Some(123_456), Some(0)));
        assert!(!shard.has_container(GONE));
        assert_eq!(store.audit().await.problems, Vec::<String>::new());
        put(&shard, "new", "a", 50, b"by this release").await.expect("it takes changes");
        store.close().await.expect("closed");
    });
    let report = inspect(device, Depth::Everything);
    assert!(report.is_sound(), "after this release wrote to it: {:?}", report.findings);
}

#[test]
fn there_is_an_image_of_the_version_that_is_written() {
    let machine = Machine::new(1, SIZE);
    machine.format();
    let version = machine.disk.bytes(8, 4);
    assert_eq!(
        version,
        version_of(IMAGES.last().expect("there is one")).to_le_bytes(),
        "see tests/golden/README.md"
    );
}
