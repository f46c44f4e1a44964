//! Stores to be damaged, and the damage done to them. Offsets are those of `docs/reference/format.md`.

use core::ops::ControlFlow;
use core::time::Duration;
use std::rc::Rc;
use uuid::Uuid;
use weir_inspect::{
    Copied, CopyError, CopyEvents, CopyOptions, CopyProgress, Depth, InspectError, Inspector, Loss, Report,
};
use weir_media::memory::MemoryDevice;
use weir_media::{BLOCK, Device};
use weir_proto::object::{AkeyFetch, AkeyUpdate, Conditions, Extent, KeyQuery, ListScope, PunchScope, Value};
use weir_proto::{ContainerId, Epoch, Key, ObjectId, PoolId, Rank, TargetIndex};
use weir_runtime::Handle;
use weir_runtime::sim::World;
use weir_store::{
    AttributeChange, Data, Decision, FormatOptions, OpenError, Operation, Owner, Shard, Store, StoreConfig,
    TransactionId,
};

/// Bytes of the devices.
pub const SIZE: u64 = 16 << 20;

/// Bytes of devices that they are copied to: more than they may seem to hold, in nearly all cases.
const COPY_SIZE: u64 = 4 * SIZE;

/// The pool of the base image.
pub const POOL: PoolId = PoolId(Uuid::from_u128(0xaa));
/// Its container.
pub const CONTAINER: ContainerId = ContainerId(Uuid::from_u128(0xcc));
/// An object with keys of any form.
pub const TEXT_OBJECT: ObjectId = ObjectId { hi: 0, lo: 7 };
/// An object with integer dkeys.
pub const ARRAY_OBJECT: ObjectId = ObjectId { hi: 13 << 56, lo: 8 };

/// Longest virtual time that opening and using a store may take.
const USE_LIMIT: Duration = Duration::from_mins(10);

/// Objects, dkeys and akeys that are looked at in a store.
const LOOKS_MAX: u32 = 12;

/// Whose the devices are.
#[must_use]
pub fn owner() -> Owner {
    Owner { system: "fuzz".to_owned(), rank: Rank(1), target: TargetIndex(0) }
}

/// Bytes of the cache: two sets of values, which push each other out.
const CACHE_BYTES: usize = 40 << 10;

/// Background work is off: it would only repeat what is asked for by name.
#[must_use]
pub fn config() -> StoreConfig {
    StoreConfig { background: false, cache_bytes: CACHE_BYTES, ..StoreConfig::default() }
}

/// Runs something on a node of a world of its own.
///
/// # Panics
/// When it doesn't end.
pub fn run<T: 'static>(task: impl AsyncFnOnce(Handle) -> T + 'static) -> T {
    let world = World::new(1);
    let node = world.node("engine-0");
    let handle = node.handle();
    let done = world.try_block_on(&node, USE_LIMIT, async move { task(handle).await });
    done.unwrap_or_else(|_| panic!("it waits for something that never happens"))
}

/// An update of one akey.
#[must_use]
pub fn update_of(akey: &Key, value: Value) -> AkeyUpdate {
    AkeyUpdate { akey: akey.clone(), value, conditions: Conditions::NONE, checksums: Vec::new() }
}

async fn store_value(shard: &Shard, object: ObjectId, dkey: &Key, epoch: u64, value: Value, bytes: &[u8]) {
    let akey = Key::new(b"a").unwrap_or_else(|_| Key::from_u64(0));
    let (none, update) = (Conditions::NONE, [update_of(&akey, value)]);
    let stored =
        shard.update(CONTAINER, object, dkey, Epoch(epoch), none, &update, Data::Borrowed(bytes)).await;
    stored.expect("a sound store takes it");
}

/// Transactions of the base image: one awaits its decision, one is committed, one aborted.
pub const TRANSACTIONS: [TransactionId; 3] =
    [TransactionId(Uuid::from_u128(1)), TransactionId(Uuid::from_u128(2)), TransactionId(Uuid::from_u128(3))];

async fn store_transactions(handle: &Handle, shard: &Shard) {
    let none = Conditions::NONE;
    for (id, number) in TRANSACTIONS.into_iter().zip(4..) {
        let dkey = Key::new(format!("t{number}").as_bytes()).expect("a key");
        let akeys = [(&b"a"[..], 6000), (b"b", 100)]
            .map(|(akey, size)| update_of(&Key::new(akey).expect("a key"), Value::Single { size }));
        let (data, gone) = (vec![5; 6100], PunchScope::Dkeys(vec![Key::from_u64(number)]));
        let operations = [
            Operation::Update {
                object: TEXT_OBJECT,
                dkey,
                conditions: none,
                akeys: akeys.to_vec(),
                data: Data::Borrowed(&data),
            },
            Operation::Punch { object: ARRAY_OBJECT, scope: gone, conditions: none },
        ];
        let epoch = Epoch(handle.wall_ns());
        shard.prepare(CONTAINER, id, epoch, &operations).await.expect("nobody else writes that");
    }
    let [_, committed, aborted] = TRANSACTIONS;
    shard.commit_transaction(CONTAINER, committed).await.expect("it is prepared");
    shard.abort_transaction(CONTAINER, aborted).await.expect("it is prepared");
}

fn build() -> MemoryDevice {
    let device = MemoryDevice::new(SIZE);
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(async move |handle| {
        let options = FormatOptions { owner: owner(), log_bytes: None };
        Store::format(&handle, &disk, &options).await.expect("an empty device");
        let store = Store::open(&handle, disk, &owner(), config()).await.expect("a new store");
        let shard = store.create_pool(POOL, 2 << 20).await.expect("space");
        shard.create_container(CONTAINER).await.expect("a container");
        for number in 0..40u64 {
            let len = [0, 5, 200, 3000, 5000, 70_000][usize::try_from(number % 6).unwrap_or(0)];
            let bytes = vec![u8::try_from(number).unwrap_or(0) | 1; len];
            let dkey = Key::new(format!("d{number}").as_bytes()).expect("a key");
            let value = Value::Single { size: bytes.len() as u64 };
            store_value(&shard, TEXT_OBJECT, &dkey, number + 1, value, &bytes).await;
            let extent = Extent { index: number * 50, count: 100 };
            let value = Value::Array { record_size: 8, extents: vec![extent] };
            store_value(&shard, ARRAY_OBJECT, &Key::from_u64(number % 5), number + 1, value, &[7; 800]).await;
        }
        let scope = PunchScope::Dkeys(vec![Key::from_u64(3)]);
        shard.punch(CONTAINER, ARRAY_OBJECT, &scope, Epoch(60), Conditions::NONE).await.expect("punched");
        shard.set_snapshots(CONTAINER, &[Epoch(20)]).await.expect("kept");
        let attribute =
            AttributeChange { scope: b"s".to_vec(), name: b"n".to_vec(), value: Some(vec![1; 4000]) };
        shard.change_attributes(&[attribute]).await.expect("stored");
        store_transactions(&handle, &shard).await;
        store.close().await.expect("closed");
    });
    device
}

/// A copy of a sound store that was closed.
#[must_use]
pub fn base() -> MemoryDevice {
    thread_local! {
        static BASE: MemoryDevice = build();
    }
    BASE.with(|base| base.copy(SIZE))
}

/// CRC-32C with the checksum's own four bytes as zeros.
#[must_use]
pub fn checksum(bytes: &[u8], field: usize) -> u32 {
    let mut bytes = bytes.to_vec();
    bytes[field..field + 4].fill(0);
    crc32c(&bytes)
}

/// CRC-32C.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes);
    u32::try_from(crc & 0xffff_ffff).unwrap_or(0)
}

/// Puts the right checksum into a structure.
pub fn seal(bytes: &mut [u8], field: usize) -> u32 {
    let crc = checksum(bytes, field);
    bytes[field..field + 4].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// A little-endian number of eight bytes.
#[must_use]
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Writes a little-endian number of eight bytes.
pub fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Writes a little-endian number of four bytes.
pub fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// The first superblock.
#[must_use]
pub fn superblock(device: &MemoryDevice) -> Vec<u8> {
    device.bytes(0, BLOCK)
}

/// Offset and content of the newest checkpoint header.
#[must_use]
pub fn header(device: &MemoryDevice) -> (u64, Vec<u8>) {
    let headers = (1..5).map(|at| (at * BLOCK as u64, device.bytes(at * BLOCK as u64, BLOCK)));
    let sealed = headers.filter(|(_, block)| block.starts_with(b"WEIRCKPT"));
    sealed.max_by_key(|(_, block)| u64_at(block, 32)).unwrap_or((BLOCK as u64, vec![0; BLOCK]))
}

/// Writes a checkpoint header to both copies of its slot.
pub fn write_header(device: &MemoryDevice, at: u64, header: &[u8]) {
    let first = if (at / BLOCK as u64).is_multiple_of(2) { at - BLOCK as u64 } else { at };
    device.overwrite(first, header);
    device.overwrite(first + BLOCK as u64, header);
}

/// Inspects a device, copies it, opens it and uses what is there. Asserts that inspector and store agree on what is sound, that
/// a copy is a sound store but for the data that it is told to lack, and that a sound store is still one afterwards.
///
/// # Panics
/// When something doesn't hold: that is what is looked for.
pub fn use_device(device: &MemoryDevice) {
    let report = inspect(device);
    if let Ok(report) = &report {
        copy_device(device, report);
    }
    let opened = open_and_use(device);
    match (&report, &opened) {
        // The inspector looks at anybody's store.
        (Ok(_), Err(OpenError::WrongOwner { .. })) => {}
        (Ok(report), Err(error)) => {
            assert!(!report.is_sound(), "the inspector calls sound what doesn't open: {error}");
        }
        (Err(error), Ok(())) => panic!("it opens, but can't be inspected: {error}"),
        _ => {}
    }
    if let (Ok(before), Ok(())) = (report, opened)
        && before.damages + before.notes == 0
    {
        let after = inspect(device).expect("it was one before");
        assert!(after.is_sound(), "using a sound store left damage: {:?}", after.findings);
    }
}

fn inspect(device: &MemoryDevice) -> Result<Report, InspectError> {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(async move |_| Ok(Inspector::open(disk).await?.report(Depth::Everything).await))
}

/// Keeps what a copy has lost.
#[derive(Default)]
struct Losses(Vec<String>);

impl CopyEvents for Losses {
    fn progress(&mut self, _progress: &CopyProgress) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn loss(&mut self, loss: Loss) -> ControlFlow<()> {
        self.0.push(loss.to_string());
        ControlFlow::Continue(())
    }
}

/// Copies a store to an empty device. Whatever the store is, the copy is one that opens.
fn copy_device(device: &MemoryDevice, report: &Report) {
    let (from, to): (Rc<dyn Device>, _) = (Rc::new(device.clone()), MemoryDevice::new(COPY_SIZE));
    let target: Rc<dyn Device> = Rc::new(to.clone());
    let copied: Result<(Copied, Vec<String>), CopyError> = run(async move |handle| {
        let inspector = Inspector::open(from).await.expect("it was inspected");
        let (mut losses, options) = (Losses::default(), CopyOptions { restart: false, config: config() });
        let survey = inspector.survey(&mut losses).await?;
        let copied = Box::pin(inspector.copy(&handle, &survey, &target, &options, &mut losses)).await?;
        Ok((copied, losses.0))
    });
    let (copied, told) = match copied {
        Ok(copied) => copied,
        Err(error) => {
            // Pools may be said to have anything, and a store may be nobody's.
            let refused = match error {
                CopyError::NoIndex { .. } => !report.is_sound(),
                CopyError::TooSmall { .. } => true,
                CopyError::Format(_) => report.owner.system.is_empty(),
                _ => false,
            };
            return assert!(refused, "it isn't copied: {error}");
        }
    };
    assert!(told.len() as u64 <= copied.losses, "{} losses were told of {}", told.len(), copied.losses);
    // Of a last batch that an open drops nothing tells whether it was acknowledged.
    let is_doubtful = report.log.dropped || report.findings.iter().any(|finding| finding.what == "log batch");
    assert!(
        copied.is_whole() || !report.is_sound() || is_doubtful,
        "a sound store has lost something: {told:?}"
    );
    let found = inspect(&to).expect("the copy is a store");
    let is_told = copied.damaged_places > 0 && found.findings.iter().all(|finding| finding.what == "data");
    assert!(found.is_sound() || is_told, "the copy is damaged: {:?}, {copied:?}", found.findings);
    run(async move |handle| {
        let disk: Rc<dyn Device> = Rc::new(to);
        let store =
            Box::pin(Store::open(&handle, disk, &found.owner, config())).await.expect("the copy opens");
        store.close().await.expect("closed");
    });
}

fn open_and_use(device: &MemoryDevice) -> Result<(), OpenError> {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(async move |handle| {
        let store = Box::pin(Store::open(&handle, disk, &owner(), config())).await?;
        for pool in store.pools().into_iter().take(3) {
            let Some(shard) = store.pool(pool.pool) else { continue };
            let _ = (shard.space(), shard.attributes(b"s", b"", 10));
            for container in shard.containers().into_iter().take(3) {
                Box::pin(use_container(&shard, container.container)).await;
            }
        }
        let _ = (store.stats(), store.audit().await, store.index_memory());
        let _ = store.checkpoint().await;
        let _ = store.close().await;
        Ok(())
    })
}

/// Reads and changes what is in a container. Every answer will do; only its end is asked for.
pub async fn use_container(shard: &Shard, container: ContainerId) {
    let none = Conditions::NONE;
    let any = ObjectId { hi: 0, lo: 0 };
    let _ = shard.snapshots(container);
    use_transactions(shard, container).await;
    let Ok(objects) = shard.list(container, any, &ListScope::Objects, Epoch::MAX, &[], LOOKS_MAX, None).await
    else {
        return;
    };
    for listed in objects.entries {
        let Ok(bytes) = <[u8; 16]>::try_from(listed.key.as_slice()) else { continue };
        let object = ObjectId::from_bytes(bytes);
        let _ = shard.query_key(container, object, Epoch::MAX, &KeyQuery::Epoch, &[]).await;
        let search = KeyQuery::Search { max: true, dkey: None, akey: None, extent: true };
        let _ = shard.query_key(container, object, Epoch::MAX, &search, &[]).await;
        let dkeys = shard.list(container, object, &ListScope::Dkeys, Epoch::MAX, &[], LOOKS_MAX, None).await;
        for dkey in dkeys.into_iter().flat_map(|page| page.entries) {
            let Ok(dkey) = Key::new(&dkey.key) else { continue };
            Box::pin(use_dkey(shard, container, object, &dkey)).await;
        }
        let _ = shard.aggregate(container, Epoch(30)).await;
        let _ = shard.punch(container, object, &PunchScope::Object, Epoch(1 << 62), none).await;
    }
}

/// Decides what is prepared: every other transaction is committed, the rest is given up, and all of it is asked for.
async fn use_transactions(shard: &Shard, container: ContainerId) {
    let undecided = shard.undecided(container).await.unwrap_or_default();
    for (number, (id, epoch)) in undecided.into_iter().enumerate() {
        let _ = shard.may_have_forgotten(epoch);
        if number % 2 == 1 {
            let _ = shard.abort_transaction(container, id).await;
        } else if let Ok(epoch) = shard.commit_transaction(container, id).await {
            let decision = shard.decision(container, id).await;
            assert_eq!(decision.ok().flatten(), Some(Decision::Committed(epoch)), "it was committed");
        }
    }
    for id in TRANSACTIONS {
        let _ = shard.decision(container, id).await;
    }
}

async fn use_dkey(shard: &Shard, container: ContainerId, object: ObjectId, dkey: &Key) {
    let (none, scope) = (Conditions::NONE, ListScope::Akeys(dkey.clone()));
    let akeys = shard.list(container, object, &scope, Epoch::MAX, &[], LOOKS_MAX, None).await;
    for akey in akeys.into_iter().flat_map(|page| page.entries) {
        let Ok(akey) = Key::new(&akey.key) else { continue };
        let scope = ListScope::Extents(dkey.clone(), akey.clone());
        let _ = shard.list(container, object, &scope, Epoch::MAX, &[], LOOKS_MAX, None).await;
        let extents = vec![Extent { index: 0, count: 3000 }];
        for value in
            [Value::Single { size: 1 << 20 }, Value::Array { record_size: 8, extents: extents.clone() }]
        {
            let akeys = [AkeyFetch { akey: akey.clone(), value, conditions: none }];
            for epoch in [Epoch(15), Epoch::MAX] {
                if let Ok(fetch) = shard.fetch(container, object, dkey, epoch, none, &akeys).await {
                    let mut into = vec![0; usize::try_from(fetch.data_len()).unwrap_or(0)];
                    let _ = fetch.read(&mut into).await;
                }
            }
        }
        let bytes = vec![9; 24_000];
        let updates = [update_of(&akey, Value::Array { record_size: 8, extents })];
        let epoch = Epoch(1 << 61);
        let _ = shard.update(container, object, dkey, epoch, none, &updates, Data::Borrowed(&bytes)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_image_is_sound_and_its_parts_are_where_they_are_looked_for() {
        let device = base();
        let report = inspect(&device).expect("a store");
        assert_eq!(report.findings, []);
        let (at, header) = header(&device);
        assert_eq!(checksum(&header, 8).to_le_bytes(), header[8..12]);
        assert_eq!(Some(u64_at(&header, 32)), report.checkpoint.map(|found| found.generation));
        assert!((1..5).contains(&(at / BLOCK as u64)));
        assert_eq!(u64_at(&superblock(&device), 120), SIZE);
        use_device(&device);
    }
}
