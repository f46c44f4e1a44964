//! Entries that no store leaves, which are put into the index as they are.

use super::*;
use crate::inspect::Depth;
use crate::inspect::tests::{CONTAINER, POOL, entries, fill, on_a_disk, quiet};
use core::ops::ControlFlow;
use weir_format::key::{Path, TransactionTail, transaction};
use weir_format::value::{Blocks, Inline};
use weir_media::memory::MemoryDevice;
use weir_proto::object::{AkeyUpdate, Conditions, Value};
use weir_proto::{Epoch, Key, ObjectId, TransactionId};
use weir_store::{Data, Operation, Shard, Store};

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

/// A copy of what a device holds, of which these entries are changed besides.
async fn altered(rt: &Handle, from: Rc<dyn Device>, changes: &[Change]) -> Rc<dyn Device> {
    let inspector = Inspector::open(from).await.expect("a store");
    let mut told = Told::default();
    let survey = inspector.survey(&mut told).await.expect("looked at");
    let to: Rc<dyn Device> = Rc::new(MemoryDevice::new(SIZE));
    let options = CopyOptions { restart: false, config: quiet() };
    let begun = Run::begin(&inspector, rt, &survey, &to, &options, &mut told).await;
    let mut run = begun.expect("begun");
    run.all().await.expect("copied");
    for change in changes {
        run.target.put(core::slice::from_ref(change)).await.expect("put");
    }
    run.finish().await.expect("a store");
    to
}

async fn value_of(device: &Rc<dyn Device>, key: &[u8]) -> Vec<u8> {
    let inspector = Inspector::open(Rc::clone(device)).await.expect("a store");
    let all = entries(&inspector).await;
    all.into_iter().find(|(found, _)| found == key).expect("stored").1
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

/// Copies what a device holds; the copy is sound but for data. Returns it with the store on it.
async fn copied(rt: &Handle, from: Rc<dyn Device>) -> (Copied, Vec<Loss>, Rc<dyn Device>, Rc<Store>) {
    let inspector = Inspector::open(from).await.expect("a store");
    let mut told = Told::default();
    let survey = inspector.survey(&mut told).await.expect("looked at");
    let to: Rc<dyn Device> = Rc::new(MemoryDevice::new(SIZE));
    let options = CopyOptions { restart: false, config: quiet() };
    let done = inspector.copy(rt, &survey, &to, &options, &mut told).await.expect("copied");
    let report = Inspector::open(Rc::clone(&to)).await.expect("a store").report(Depth::Everything).await;
    assert!(report.findings.iter().all(|finding| finding.what == "data"), "{:?}", report.findings);
    let opened = Store::open(rt, Rc::clone(&to), &inspector.superblock().owner, quiet()).await;
    let store = opened.expect("it opens");
    assert_eq!(store.audit().await.problems, [""; 0]);
    (done, told.0, to, store)
}

#[test]
fn a_prepared_transaction_is_copied_as_a_whole_or_told_of() {
    on_a_disk(async |rt, disk, store, shard| {
        let ids = [1, 2, 3].map(|id| TransactionId(Uuid::from_u128(id)));
        let epoch = Epoch(rt.wall_ns() + 1_000_000_000);
        for (id, object) in ids.into_iter().zip([11, 12, 13]) {
            prepare(&shard, id, object, epoch).await;
        }
        drop((shard, store));
        // The second one loses a version, the third one its operations.
        let gone = [(ids[1], TransactionTail::Version(1)), (ids[2], TransactionTail::Operations(0))];
        let gone = gone.map(|(id, tail)| Change::remove(&transaction((1, 1, id), tail)));
        let from = altered(&rt, disk.attach(&rt), &gone).await;
        let (done, losses, _, store) = copied(&rt, from).await;
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
    on_a_disk(async |rt, disk, store, shard| {
        fill(&shard, 0).await;
        drop((shard, store));
        let hole = Version { record_size: 0, payload: Payload::Hole }.encode();
        let mut changes = vec![Change::put(&single(7, 5), vec![0, 77])];
        for number in 0..5 {
            let path = Path::object(1, 9, ObjectId { hi: 0, lo: number });
            changes.push(Change::put(&path.event(4), vec![0]));
        }
        changes.push(Change::put(&Path::object(6, 1, ObjectId { hi: 0, lo: 1 }).event(4), vec![0]));
        changes.push(Change::put(&single(8, 6), hole));
        let from = altered(&rt, disk.attach(&rt), &changes).await;
        let (done, losses, ..) = copied(&rt, from).await;
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
    on_a_disk(async |rt, disk, store, shard| {
        drop((shard, store));
        let inline = Inline { bytes: b"weir".to_vec(), checksum: Some(1) };
        let value = Version { record_size: 0, payload: Payload::Inline(inline) }.encode();
        let changes = [Change::put(&single(7, 5), value.clone())];
        let from = altered(&rt, disk.attach(&rt), &changes).await;
        let (done, losses, to, _store) = copied(&rt, from).await;
        assert_eq!((done.damaged_places, done.damaged, losses.len()), (1, 4, 1));
        assert_eq!((losses[0].kind, losses[0].epoch), (LossKind::Data, Some(Epoch(5))));
        assert_eq!(value_of(&to, &single(7, 5)).await, value);
    });
}

#[test]
fn values_that_share_blocks_get_blocks_of_their_own() {
    on_a_disk(async |rt, disk, store, shard| {
        fill(&shard, 0).await;
        drop((shard, store));
        // Two copies of one store have its data in the same blocks.
        let whole = altered(&rt, disk.attach(&rt), &[]).await;
        let all = entries(&Inspector::open(whole).await.expect("a store")).await;
        let is_large =
            |(key, value): &&(Vec<u8>, Vec<u8>)| key::is_version(key) && Version::has_blocks(value);
        let (large, value) = all.iter().find(is_large).expect("some").clone();
        let changes = [Change::put(&single(7, 5), value.clone())];
        let from = altered(&rt, disk.attach(&rt), &changes).await;
        assert_eq!(value_of(&from, &large).await, value);
        let (done, losses, to, _store) = copied(&rt, from).await;
        assert_eq!((done.losses, losses), (0, Vec::new()));
        let blocks = |value: Vec<u8>| -> Blocks {
            match Version::decode(&value).expect("sound").payload {
                Payload::Blocks(blocks) => blocks,
                _ => panic!("not in blocks"),
            }
        };
        let one = blocks(value_of(&to, &large).await);
        let other = blocks(value_of(&to, &single(7, 5)).await);
        assert!(one.runs != other.runs && one.checksums == other.checksums);
    });
}
