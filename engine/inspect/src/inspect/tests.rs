//! Stores on a simulated disk, which are looked at when nobody has them open any more.

use super::*;
use crate::inspect::{Entries, Met};
use weir_media::sim::{SimDisk, SimDiskOptions};
use weir_proto::object::{AkeyUpdate, Conditions, Value};
use weir_proto::{ContainerId, Epoch, Key, ObjectId, PoolId, Rank, TargetIndex};
use weir_runtime::Handle;
use weir_runtime::sim::World;
use weir_store::{Data, FormatOptions, Owner, Shard, Store, StoreConfig};

/// Values that are stored in the index: seven fill a node.
const SMALL: u64 = 700;
/// Values that are stored in blocks.
const LARGE: u64 = 60;

pub(crate) const POOL: PoolId = PoolId(uuid::Uuid::from_u128(2));
pub(crate) const CONTAINER: ContainerId = ContainerId(uuid::Uuid::from_u128(1));

/// Background work is off.
pub(crate) fn quiet() -> StoreConfig {
    StoreConfig { background: false, ..StoreConfig::default() }
}

/// Runs something on a disk with a new store that has a container.
pub(crate) fn on_a_disk(test: impl AsyncFnOnce(Handle, SimDisk, Rc<Store>, Shard) + 'static) {
    let world = World::new(1);
    let node = world.node("engine-0");
    let disk = SimDisk::new("disk", 64 << 20, 1, SimDiskOptions::default());
    let handle = node.handle();
    world.block_on(&node, async move {
        let device: Rc<dyn Device> = disk.attach(&handle);
        let owner = Owner { system: "weir".to_owned(), rank: Rank(1), target: TargetIndex(0) };
        let options = FormatOptions { owner: owner.clone(), log_bytes: None };
        Store::format(&handle, &device, &options).await.expect("empty");
        let store = Store::open(&handle, device, &owner, quiet()).await.expect("it opens");
        let shard = store.create_pool(POOL, 16 << 20).await.expect("space");
        shard.create_container(CONTAINER).await.expect("created");
        test(handle, disk, store, shard).await;
    });
}

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

/// All entries with their values.
pub(crate) async fn entries(inspector: &Inspector) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut all, mut findings) = (Vec::new(), Findings::default());
    let mut overlay = inspector.read_log(&mut findings).await.1;
    let mut entries = Entries::new(inspector, &mut overlay, &[], None).await;
    while let Some(met) = entries.next(&mut findings).await {
        match met {
            Met::Entry { key, value, .. } => all.push((key, value)),
            Met::Lost(lost) => panic!("{}", lost.reason),
        }
    }
    all
}
