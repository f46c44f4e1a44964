//! Record sizes of arrays that had nothing but holes first: what was read before their first record came is read again.

use crate::setup::*;
use std::rc::Rc;
use weir_media::sim::CrashKeeps;
use weir_proto::Epoch;
use weir_proto::object::{AkeyFetch, Conditions, Extent, PunchScope, Value};
use weir_store::{Data, FetchError, Shard, UpdateError};

const RANGE: (u64, u64) = (0, 10);

/// Stores records of this size, or makes holes.
async fn store(shard: &Shard, record_size: u32, epoch: u64) -> Result<Epoch, UpdateError> {
    let data = pattern(epoch, RANGE.1 as usize * record_size as usize);
    let update = [array("a", record_size, &[RANGE])];
    let data = Data::Borrowed(&data);
    shard.update(CONTAINER, OBJECT, &key("d"), Epoch(epoch), Conditions::NONE, &update, data).await
}

/// Record size and bytes that a fetch gives that asks for records of a size; `None`: it is refused for that.
async fn fetch(shard: &Shard, record_size: u32, epoch: u64) -> Option<(u64, u64)> {
    let value = Value::Array { record_size, extents: vec![Extent { index: RANGE.0, count: RANGE.1 }] };
    let asked = [AkeyFetch { akey: key("a"), value, conditions: Conditions::NONE }];
    let found = shard.fetch(CONTAINER, OBJECT, &key("d"), Epoch(epoch), Conditions::NONE, &asked).await;
    match found {
        Ok(found) => Some((found.akeys()[0].fetched.size, found.akeys()[0].len)),
        Err(FetchError::RecordSize { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// What fetches give that ask for no size, the right one and two others.
async fn fetch_all(shard: &Shard, epoch: u64) -> [Option<(u64, u64)>; 4] {
    let mut found = [None; 4];
    for (found, record_size) in found.iter_mut().zip([0, 8, 1, 100]) {
        *found = fetch(shard, record_size, epoch).await;
    }
    found
}

const HOLES: [Option<(u64, u64)>; 4] = [Some((0, 0)); 4];
const RECORDS: [Option<(u64, u64)>; 4] = [Some((8, 0)), Some((8, 80)), None, None];

#[test]
fn the_first_records_change_nothing_that_is_read_at_epochs_before_them() {
    let machine = Machine::new(4711, 64 << 20);
    let (opened, shard) = machine.start(quiet());
    machine.run(async move {
        store(&shard, 0, 10).await.expect("holes");
        shard.add_snapshot(CONTAINER, Epoch(15)).await.expect("a snapshot");
        store(&shard, 8, 20).await.expect("records");
        // More classes of lengths don't take anything back, nor do holes.
        let more = [array("a", 8, &[(100, 1)])];
        let data = Data::Borrowed(&[7; 8]);
        let at = Epoch(22);
        shard
            .update(CONTAINER, OBJECT, &key("d"), at, Conditions::NONE, &more, data)
            .await
            .expect("a record");
        store(&shard, 0, 12).await.expect("holes that come late");
        for epoch in [10, 12, 15, 19] {
            assert_eq!(fetch_all(&shard, epoch).await, HOLES, "at {epoch}");
        }
        for epoch in [20, 21, 22, u64::MAX] {
            assert_eq!(fetch_all(&shard, epoch).await, RECORDS, "at {epoch}");
        }
        let other = store(&shard, 4, 30).await;
        assert!(matches!(other, Err(UpdateError::RecordSize { stored: 8, given: 4, .. })), "{other:?}");
        shard.aggregate(CONTAINER, Epoch(30)).await.expect("aggregated");
    });
    drop(opened);
    machine.crash(CrashKeeps::Nothing);
    let opened = machine.open(quiet());
    let shard = opened.pool(POOL).expect("the pool");
    machine.run(async move {
        assert_eq!(fetch_all(&shard, 15).await, HOLES);
        assert_eq!(fetch_all(&shard, u64::MAX).await, RECORDS);
    });
    assert_eq!(machine.audit(&opened).problems, [""; 0]);
}

#[test]
fn first_records_that_come_late_have_the_size_of_those_that_were_there() {
    let machine = Machine::new(4712, 64 << 20);
    let (opened, shard) = machine.start(cramped());
    let opened = Rc::clone(&opened);
    machine.run(async move {
        store(&shard, 0, 10).await.expect("holes");
        store(&shard, 8, 30).await.expect("records");
        let other = store(&shard, 4, 20).await;
        assert!(matches!(other, Err(UpdateError::RecordSize { stored: 8, given: 4, .. })), "{other:?}");
        assert_eq!(fetch_all(&shard, 20).await, HOLES);
        store(&shard, 8, 25).await.expect("records of the same size");
        assert_eq!(fetch_all(&shard, 24).await, HOLES);
        assert_eq!(fetch_all(&shard, 25).await, RECORDS);
        // Those of another life have nothing to do with it.
        store(&shard, 0, 40).await.expect("holes");
        for (epoch, scope) in [
            (50, PunchScope::Akeys(key("d"), vec![key("a")])),
            (70, PunchScope::Dkeys(vec![key("d")])),
            (90, PunchScope::Object),
        ] {
            punch(&shard, OBJECT, scope, epoch).await.expect("punched");
            store(&shard, 0, epoch + 2).await.expect("holes");
            punch(&shard, OBJECT, PunchScope::Object, epoch + 10).await.expect("punched");
            store(&shard, 4, epoch + 12).await.expect("records");
            store(&shard, 100, epoch + 5).await.expect("records of a life that has ended");
            assert_eq!(fetch(&shard, 100, epoch + 4).await, Some((0, 0)));
            assert_eq!(fetch(&shard, 100, epoch + 6).await, Some((100, 1000)));
            assert_eq!(fetch(&shard, 4, epoch + 12).await, Some((4, 40)));
        }
        assert_eq!(opened.audit().await.problems, [""; 0]);
    });
}
