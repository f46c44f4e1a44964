//! Entries that no store leaves, which are put into the index as they are.

use super::*;
use crate::format::key::{Path, TransactionTail, transaction};
use crate::format::value::{Blocks, Inline};
use crate::index::fault::{Halt, PageError};
use crate::inspect::Depth;
use crate::log::checkpoint::tests::{POOL, checkpoint, fill, on_a_disk};
use crate::operations::operation::Operation;
use crate::operations::update::Data;
use crate::state::core::Core;
use crate::state::shard::Shard;
use crate::store::Store;
use crate::upkeep::merge::tests::CONTAINER;
use core::ops::ControlFlow;
use weir_media::memory::MemoryDevice;
use weir_proto::object::{AkeyUpdate, Conditions, Value};
use weir_proto::{Epoch, Key, ObjectId, TransactionId};

const SIZE: u64 = 64 << 20;

#[derive(Default)]
struct Told(Vec<Loss>);

impl CopyEvents for Told {
    fn progress(&mut self, _: &CopyProgress) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn loss(&mut self, loss: Loss) -> ControlFlow<()> {
        self.0.push(loss);
        ControlFlow::Continue(())
    }
}

fn put(core: &Core, key: &[u8], value: Vec<u8>) {
    core.commit(&[Change::put(key, value)], None).expect("stored");
}

async fn value_of(core: &Core, key: &[u8]) -> Vec<u8> {
    let found = core.ask(|tree| Ok::<_, Halt<PageError>>(tree.get(key)?));
    found.await.expect("sound").expect("stored")
}

/// The entry of a single value.
fn single(object: u64, epoch: u64) -> Vec<u8> {
    let name = Key::new(b"a").expect("a key");
    Path::object(1, 1, ObjectId { hi: 0, lo: object }).dkey(&name).akey(&name).single(epoch).to_vec()
}

/// A prepared transaction with two values, one of them in blocks.
async fn prepare(shard: &Shard, id: TransactionId, object: u64, epoch: Epoch) {
    let data = vec![9; 6020];
    let akey = |name: &[u8], size| AkeyUpdate {
        akey: Key::new(name).expect("a key"),
        value: Value::Single { size },
        conditions: Conditions::NONE,
        checksums: Vec::new(),
    };
    let update = Operation::Update {
        object: ObjectId { hi: 0, lo: object },
        dkey: Key::from_u64(1),
        conditions: Conditions::NONE,
        akeys: vec![akey(b"small", 20), akey(b"large", 6000)],
        data: Data::Borrowed(&data),
    };
    shard.prepare(CONTAINER, id, epoch, &[update]).await.expect("prepared");
}

/// Copies what a device holds; the copy is sound but for data.
async fn copied(rt: &Handle, from: Rc<dyn Device>) -> (Copied, Vec<Loss>, Rc<Store>) {
    let inspector = Inspector::open(from).await.expect("a store");
    let mut told = Told::default();
    let survey = inspector.survey(&mut told).await.expect("looked at");
    let to: Rc<dyn Device> = Rc::new(MemoryDevice::new(SIZE));
    let config = StoreConfig { background: false, ..StoreConfig::default() };
    let options = CopyOptions { restart: false, config: config.clone() };
    let done = inspector.copy(rt, &survey, &to, &options, &mut told).await.expect("copied");
    let report = Inspector::open(Rc::clone(&to)).await.expect("a store").report(Depth::Everything).await;
    assert!(report.findings.iter().all(|finding| finding.what == "data"), "{:?}", report.findings);
    let store = Store::open(rt, to, &inspector.superblock().owner, config).await.expect("it opens");
    assert_eq!(store.audit().await.problems, [""; 0]);
    (done, told.0, store)
}

#[test]
fn a_prepared_transaction_is_copied_as_a_whole_or_told_of() {
    on_a_disk(async |_, disk, _store, shard| {
        let core = Rc::clone(&shard.core);
        let ids = [1, 2, 3].map(|id| TransactionId(Uuid::from_u128(id)));
        let epoch = Epoch(core.rt.wall_ns() + 1_000_000_000);
        for (id, object) in ids.into_iter().zip([11, 12, 13]) {
            prepare(&shard, id, object, epoch).await;
        }
        // The second one loses a version, the third one its operations.
        for (id, tail) in [(ids[1], TransactionTail::Version(1)), (ids[2], TransactionTail::Operations(0))] {
            let gone = Change::remove(&transaction((1, 1, id), tail));
            core.commit(&[gone], None).expect("removed");
        }
        checkpoint(&core).await;
        core.fail("it is looked at offline");
        let (done, losses, store) = copied(&core.rt, disk.attach(&core.rt)).await;
        let named: std::collections::BTreeSet<_> = losses.iter().map(|loss| loss.transaction).collect();
        assert_eq!(named, [Some(ids[1]), Some(ids[2])].into_iter().collect());
        assert!(losses.iter().all(|loss| loss.kind == LossKind::Entries), "{losses:?}");
        assert_eq!((done.left_out, losses.len()), (4, 4));
        let shard = store.pool(POOL).expect("the pool");
        assert_eq!(shard.undecided(CONTAINER).await.expect("listed"), [(ids[0], epoch)]);
        shard.commit_transaction(CONTAINER, ids[0]).await.expect("committed");
        assert_eq!(store.audit().await.problems, [""; 0]);
    });
}

#[test]
fn entries_that_make_no_sense_or_belong_to_nobody_are_left_out() {
    on_a_disk(async |_, disk, _store, shard| {
        let core = Rc::clone(&shard.core);
        fill(&shard, 0).await;
        let hole = Version { record_size: 0, payload: Payload::Hole }.encode();
        put(&core, &single(7, 5), vec![0, 77]);
        for number in 0..5 {
            let path = Path::object(1, 9, ObjectId { hi: 0, lo: number });
            put(&core, &path.event(4), vec![0]);
        }
        put(&core, &Path::object(6, 1, ObjectId { hi: 0, lo: 1 }).event(4), vec![0]);
        put(&core, &single(8, 6), hole);
        checkpoint(&core).await;
        core.fail("it is looked at offline");
        let (done, losses, _store) = copied(&core.rt, disk.attach(&core.rt)).await;
        assert_eq!((done.left_out, losses.len()), (7, 3), "{losses:?}");
        let text: Vec<String> = losses.iter().map(ToString::to_string).collect();
        for part in [
            "a value is of unknown kind",
            "5 entries of objects of pool 1 container 9",
            "1 entries of objects of pool 6",
        ] {
            assert!(text.iter().any(|loss| loss.contains(part)), "{text:?}");
        }
    });
}

#[test]
fn a_value_in_the_index_that_does_not_match_is_told_of_and_kept() {
    on_a_disk(async |_, disk, _store, shard| {
        let core = Rc::clone(&shard.core);
        let inline = Inline { bytes: b"weir".to_vec(), checksum: Some(1) };
        let value = Version { record_size: 0, payload: Payload::Inline(inline) }.encode();
        put(&core, &single(7, 5), value.clone());
        checkpoint(&core).await;
        core.fail("it is looked at offline");
        let (done, losses, store) = copied(&core.rt, disk.attach(&core.rt)).await;
        assert_eq!((done.damaged_places, done.damaged, losses.len()), (1, 4, 1));
        assert_eq!((losses[0].kind, losses[0].epoch), (LossKind::Data, Some(Epoch(5))));
        assert_eq!(value_of(store.core(), &single(7, 5)).await, value);
    });
}

#[test]
fn values_that_share_blocks_get_blocks_of_their_own() {
    on_a_disk(async |_, disk, _store, shard| {
        let core = Rc::clone(&shard.core);
        fill(&shard, 0).await;
        let (_, large) = crate::log::checkpoint::tests::keys(&core).await;
        let value = value_of(&core, &large[0]).await;
        put(&core, &single(7, 5), value.clone());
        checkpoint(&core).await;
        core.fail("it is looked at offline");
        let (done, losses, store) = copied(&core.rt, disk.attach(&core.rt)).await;
        assert_eq!((done.losses, losses), (0, Vec::new()));
        let blocks = |value: Vec<u8>| -> Blocks {
            match Version::decode(&value).expect("sound").payload {
                Payload::Blocks(blocks) => blocks,
                _ => panic!("not in blocks"),
            }
        };
        let one = blocks(value_of(store.core(), &large[0]).await);
        let other = blocks(value_of(store.core(), &single(7, 5)).await);
        assert!(one.runs != other.runs && one.checksums == other.checksums);
    });
}
