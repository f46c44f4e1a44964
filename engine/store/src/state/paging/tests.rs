use super::*;
use crate::format::record::Change;
use crate::log::checkpoint::tests::{POOL, checkpoint, fill, keys, on_a_disk, open, owner};
use crate::state::config::StoreConfig;
use crate::state::error::{FetchError, OpenError, PoolError};
use crate::state::shard::Shard;
use crate::store::Store;
use crate::upkeep::merge::tests::CONTAINER;
use weir_media::Device;
use weir_proto::object::{AkeyFetch, Conditions, Value};
use weir_proto::{Epoch, Key, ObjectId};

/// Ways in which an entry of an object makes no sense: its key's tail, its value.
const SENSELESS: [(&[u8], &[u8]); 5] = [
    // A single value of unknown kind, one cut short, and one in blocks that no device has.
    (&[], &[0, 99]),
    (&[], &[0, 2]),
    (&[], &[0, 2, 8, 12, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 1, 0, 0, 0, 0]),
    // A key with bytes behind its end.
    (&[1], &[0, 1, 7]),
    // An extent in another length class than its length says.
    (&[2, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], &[1, 1, 7]),
];

/// The dkey below which it is, in a node that has only what is the objects'.
const PLACE: u64 = 350;

/// A version of the store, with another tail and value.
async fn senseless(core: &Core, (tail, value): (&[u8], &[u8])) -> Change {
    let (small, _) = keys(core).await;
    let mut key = small[usize::try_from(PLACE).expect("small")].clone();
    if tail.len() > 1 {
        key.truncate(key.len() - 9);
    }
    key.extend_from_slice(tail);
    Change::put(&key, value.to_vec())
}

async fn fetch(shard: &Shard, dkey: u64) -> Result<u64, FetchError> {
    let (akey, value) = (Key::new(b"a").expect("a key"), Value::Single { size: 1 << 20 });
    let request = [AkeyFetch { akey, value, conditions: Conditions::NONE }];
    let (object, dkey) = (ObjectId { hi: 0, lo: 1 }, Key::from_u64(dkey));
    let fetched = shard.fetch(CONTAINER, object, &dkey, Epoch(1 << 40), Conditions::NONE, &request).await;
    fetched.map(|fetched| fetched.akeys()[0].len)
}

#[test]
fn an_entry_without_sense_is_damage_of_its_node_and_of_nothing_else() {
    for how in SENSELESS {
        on_a_disk(async move |handle, disk, store, shard| {
            let core = &shard.core;
            // With something to aggregate, in other nodes.
            fill(&shard, 0).await;
            fill(&shard, 1).await;
            let Change::Put { key, value } = senseless(core, how).await else { panic!("not an entry") };
            core.tree.borrow_mut().put(&key, &value).expect("in memory");
            checkpoint(core).await;
            store.close().await.expect("a healthy disk");
            drop((store, shard));

            let store = open(&handle, &disk).await;
            let shard = store.pool(POOL).expect("the pool");
            let refusal = fetch(&shard, PLACE).await.expect_err("nobody can say what is there");
            assert!(refusal.to_string().contains("an index node"), "{how:?}: {refusal}");
            assert_eq!(fetch(&shard, 600).await, Ok(2000), "{how:?}");
            let aggregated = shard.aggregate(CONTAINER, Epoch(1 << 40)).await;
            assert!(matches!(aggregated, Err(PoolError::Index(_))), "{how:?}: {aggregated:?}");
            fill(&shard, 2).await;
            assert_eq!(shard.failure(), None, "{how:?}");
            assert!(
                store.audit().await.problems.iter().any(|problem| problem.contains("damaged")),
                "{how:?}"
            );
        });
    }
}

#[test]
fn a_log_with_an_entry_without_sense_is_not_replayed() {
    for how in SENSELESS {
        on_a_disk(async move |handle, disk, store, shard| {
            fill(&shard, 0).await;
            let (core, mut buffer) = (&shard.core, shard.core.take_edit_buffer());
            buffer.extend(&[senseless(core, how).await]);
            let record = core.journal.append(&buffer, 0, &[]);
            core.make_durable(record).await.expect("a healthy disk");
            // The last batch is dropped when the blocks that it refers to don't hold its data.
            fill(&shard, 1).await;
            drop((store, shard));
            let device: Rc<dyn Device> = disk.attach(&handle);
            let opened = Store::open(&handle, device, &owner(), StoreConfig::default()).await;
            let Err(refusal) = opened else { panic!("{how:?} is not what a store writes") };
            assert!(matches!(&refusal, OpenError::Corrupt { .. }), "{how:?}: {refusal}");
            assert!(refusal.to_string().contains("a log batch"), "{how:?}: {refusal}");
        });
    }
}
