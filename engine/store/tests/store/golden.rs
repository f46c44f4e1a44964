//! Images that earlier releases wrote: this one opens them and finds everything.

use crate::setup::*;
use std::path::PathBuf;
use std::rc::Rc;
use uuid::Uuid;
use weir_media::Device;
use weir_media::memory::MemoryDevice;
use weir_proto::object::{Extent, PunchScope};
use weir_proto::{ContainerId, Epoch, ObjectId, PoolId};
use weir_store::{AttributeChange, Depth, Inspector, Report, Store};

/// Versions of which there is an image.
const VERSIONS: [u32; 1] = [1];

pub const SIZE: u64 = 16 << 20;
const SECTOR: usize = 512;

const OTHER_POOL: PoolId = PoolId(Uuid::from_u128(0xab));
const SMALL: ContainerId = ContainerId(Uuid::from_u128(0xcd));
const GONE: ContainerId = ContainerId(Uuid::from_u128(0xce));
const LATE: ContainerId = ContainerId(Uuid::from_u128(0xcf));
/// Integer akeys (`DAOS_OT_AKEY_UINT64`).
const INTEGER_AKEYS: ObjectId = ObjectId { hi: 3 << 56, lo: 9 };

fn path(version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/v{version}.sectors"))
}

pub fn load(version: u32) -> MemoryDevice {
    let bytes = std::fs::read(path(version)).expect("the image");
    let device = MemoryDevice::new(SIZE);
    for record in bytes.chunks_exact(4 + SECTOR) {
        let (number, sector) = record.split_at(4);
        let number = u32::from_le_bytes(number.try_into().expect("four bytes"));
        device.overwrite(u64::from(number) * SECTOR as u64, sector);
    }
    device
}

fn save(device: &MemoryDevice, version: u32) {
    let mut bytes = Vec::new();
    for number in 0..SIZE / SECTOR as u64 {
        let sector = device.bytes(number * SECTOR as u64, SECTOR);
        if sector.iter().any(|byte| *byte != 0) {
            bytes.extend(u32::try_from(number).expect("a small device").to_le_bytes());
            bytes.extend(sector);
        }
    }
    let mut file = std::fs::File::create_new(path(version)).expect("an image is never replaced");
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

/// What the image of this release's version holds.
fn write_image(version: u32) {
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
        store.checkpoint().await.expect("written");
        // From here on it stands in the log alone.
        put(&shard, "d2", "a", 30, &value(30, 61)).await.expect("stored");
        put(&shard, "d5", "a", 31, &value(31, 8000)).await.expect("stored");
        write(&shard, 3, 32, 102, &value(32, 10)).await.expect("stored");
        punch(&shard, OBJECT, PunchScope::Dkeys(vec![key("punched")]), 33).await.expect("punched");
        punch(&shard, INTEGER_AKEYS, PunchScope::Object, 34).await.expect("punched");
        shard.create_container(LATE).await.expect("created");
        shard.destroy_container(GONE).await.expect("destroyed");
        shard.change_attributes(&[attribute("short", None)]).await.expect("stored");
    });
    save(&device, version);
}

#[test]
fn images_of_all_versions_are_sound_and_hold_what_was_stored() {
    let newest = *VERSIONS.last().expect("there is one");
    if std::env::var_os("WEIR_WRITE_GOLDEN").is_some() && !path(newest).exists() {
        write_image(newest);
    }
    for version in VERSIONS {
        let device = load(version);
        let report = inspect(&device, Depth::Everything);
        assert_eq!((report.version, report.damages), (version, 0), "{:?}", report.findings);
        assert_eq!(report.owner, owner());
        assert!(report.log.records > 5 && report.checkpoint.is_some_and(|found| found.entries > 30));
        assert_eq!(report.pools.len(), 2);
        on(&device, async |store| {
            let shard = store.pool(POOL).expect("the pool");
            let sizes: Vec<u64> = store.pools().iter().map(|pool| pool.size).collect();
            assert_eq!(sizes, [2 << 20, 1 << 20]);
            for (number, len) in [0, 1, 60, 3000, 4096, 9000, 70_000].into_iter().enumerate() {
                let found = get(&shard, &format!("d{number}"), "a", 25).await.expect("read");
                assert!(
                    found.unwrap_or_default() == value(number as u8, len),
                    "value {number} at the snapshot"
                );
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
        let report = inspect(&device, Depth::Everything);
        assert!(report.is_sound(), "after this release wrote to it: {:?}", report.findings);
    }
}

#[test]
fn there_is_an_image_of_the_version_that_is_written() {
    let machine = Machine::new(1, SIZE);
    machine.format();
    let version = machine.disk.bytes(8, 4);
    assert_eq!(version, VERSIONS.last().expect("there is one").to_le_bytes(), "see tests/golden/README.md");
}
