//! Fetches and aggregation of akeys with so many versions that others have to run in between.

use crate::setup::*;
use std::cell::Cell;
use std::time::Duration;
use weir_proto::object::{AkeyFetch, Conditions, Extent, PunchScope, Value};
use weir_proto::{Epoch, Key};
use weir_runtime::{Either, Handle, race};
use weir_store::{Data, Fetch, FetchError, Shard, StoreConfig};

const DISK: u64 = 256 << 20;

/// Extents of one update.
const BATCH: u64 = 1000;

/// Index entries that a fetch looks at in one turn unless it is configured.
const LOOKS: u64 = 1024;

/// Stores extents of one record each, every `stride` records.
async fn fill(shard: &Shard, count: u64, stride: u64) -> Vec<u8> {
    let data = pattern(1, count as usize);
    for (batch, part) in (0..).zip(data.chunks(BATCH as usize)) {
        let extents: Vec<(u64, u64)> =
            (0..part.len() as u64).map(|at| ((batch * BATCH + at) * stride, 1)).collect();
        let update = [summed_at(batch, array("data", 1, &extents), part)];
        let (dkey, epoch) = (Key::from_u64(0), Epoch(1 + batch));
        shard
            .update(CONTAINER, ARRAY, &dkey, epoch, Conditions::NONE, &update, Data::Borrowed(part))
            .await
            .expect("stored");
    }
    data
}

fn asked(record_size: u32, index: u64, count: u64) -> AkeyFetch {
    let value = Value::Array { record_size, extents: vec![Extent { index, count }] };
    AkeyFetch { akey: key("data"), value, conditions: Conditions::NONE }
}

async fn fetch(shard: &Shard, epoch: u64, akey: &AkeyFetch) -> Result<Fetch, FetchError> {
    let (dkey, akeys) = (Key::from_u64(0), core::slice::from_ref(akey));
    shard.fetch(CONTAINER, ARRAY, &dkey, Epoch(epoch), Conditions::NONE, akeys).await
}

/// Runs something while somebody else takes every turn that is left. Returns how many those were.
pub async fn beside<T>(
    rt: &Handle,
    work: impl Future<Output = T>,
    mut each: impl AsyncFnMut(u64),
) -> (T, u64) {
    let turns = Cell::new(0);
    let other = async {
        loop {
            each(turns.get()).await;
            turns.set(turns.get() + 1);
            rt.sleep(Duration::from_nanos(1)).await;
        }
    };
    let other = async {
        let () = other.await;
    };
    match race(work, other).await {
        Either::First(done) => (done, turns.get()),
        Either::Second(()) => unreachable!("it goes on for ever"),
    }
}

#[test]
fn a_fetch_of_many_extents_lets_others_run_and_shows_the_moment_of_its_begin() {
    const COUNT: u64 = 200_000;
    let machine = Machine::new(61, DISK);
    let (_store, shard) = machine.start(quiet());
    let rt = machine.handle();
    machine.run(async move {
        let data = fill(&shard, COUNT, 1).await;
        let akey = asked(1, 0, COUNT);
        let mut writes = Vec::new();
        let (found, turns) = beside(&rt, fetch(&shard, u64::MAX, &akey), async |turn| {
            // It overwrites what the fetch has yet to come to, and what it has passed.
            let (shard, index) = (shard.clone(), (turn * 7919) % COUNT);
            writes.push(rt.spawn(async move { write(&shard, 0, 1_000_000 + turn, index, b"!").await }));
        })
        .await;
        let found = found.expect("found");
        assert!(turns >= COUNT / LOOKS, "only {turns} turns were left to others");
        for write in writes {
            write.await.expect("not aborted").expect("stored");
        }
        assert_eq!(found.akeys()[0].fetched.present, [Extent { index: 0, count: COUNT }]);
        let mut into = vec![0xee; COUNT as usize];
        let (sums, turns) = beside(&rt, found.read_summed(&[akey], &mut into), async |_| {}).await;
        assert!(turns >= COUNT / LOOKS, "only {turns} turns were left to others");
        assert!(into == data, "it isn't what was there at the begin");
        assert_eq!(sums.expect("read").concat(), [crc(&data)]);
        into.fill(0);
        found.read(&mut into).await.expect("read");
        assert!(into == data);
    });
}

#[test]
fn a_question_for_what_is_present_of_all_records_lets_others_run() {
    const COUNT: u64 = 50_000;
    let machine = Machine::new(62, DISK);
    let (_store, shard) = machine.start(cramped());
    let rt = machine.handle();
    machine.run(async move {
        fill(&shard, COUNT, 1).await;
        let akey = asked(0, 0, 1 << 62);
        let (found, turns) = beside(&rt, fetch(&shard, u64::MAX, &akey), async |_| {}).await;
        let found = found.expect("found");
        assert!(turns >= COUNT / LOOKS, "only {turns} turns were left to others");
        assert_eq!((found.data_len(), found.akeys()[0].fetched.size), (0, 1));
        assert_eq!(found.akeys()[0].fetched.present, [Extent { index: 0, count: COUNT }]);
    });
}

#[test]
fn what_no_reply_can_name_is_refused_and_the_rest_is_found() {
    let machine = Machine::new(63, DISK);
    let (_store, shard) = machine.start(quiet());
    machine.run(async move {
        let data = fill(&shard, 20_000, 3).await;
        for record_size in [0, 1] {
            let found = fetch(&shard, u64::MAX, &asked(record_size, 0, 60_000)).await;
            assert!(matches!(found, Err(FetchError::Scattered { .. })), "{found:?}");
        }
        let akey = asked(1, 3000, 24_000);
        let found = fetch(&shard, u64::MAX, &akey).await.expect("found");
        assert_eq!(found.akeys()[0].fetched.present.len(), 8000);
        let mut into = vec![0xee; 24_000];
        let sums = found.read_summed(&[akey], &mut into).await.expect("read");
        let expected: Vec<u8> = data[1000..9000].iter().flat_map(|byte| [*byte, 0, 0]).collect();
        assert!(into == expected);
        assert_eq!(sums.concat(), [crc(&expected)]);
    });
}

#[test]
fn holes_upon_holes_are_passed_in_steps() {
    const COUNT: u64 = 5000;
    let machine = Machine::new(64, DISK);
    let (_store, shard) = machine.start(quiet());
    let rt = machine.handle();
    machine.run(async move {
        write(&shard, 0, 1, COUNT + 10, b"seen").await.expect("stored");
        for index in 0..COUNT {
            let update = [array("data", 0, &[(index, (1 << 40) + index)])];
            let (dkey, epoch) = (Key::from_u64(0), Epoch(10 + index));
            let stored =
                shard.update(CONTAINER, ARRAY, &dkey, epoch, Conditions::NONE, &update, Data::Borrowed(&[]));
            stored.await.expect("stored");
        }
        write(&shard, 0, 1_000_000, COUNT + 11, b"!").await.expect("stored");
        let akey = asked(1, COUNT + 10, 4);
        let (found, turns) = beside(&rt, fetch(&shard, u64::MAX, &akey), async |_| {}).await;
        let found = found.expect("found");
        assert!(turns >= COUNT / LOOKS, "only {turns} turns were left to others");
        assert_eq!(data_of(found).await.expect("read"), b"\0!\0\0");
        let found = fetch(&shard, 5, &akey).await.expect("found");
        assert_eq!(data_of(found).await.expect("read"), b"seen");
    });
}

#[test]
fn aggregation_of_an_array_that_was_overwritten_and_punched_lets_others_run() {
    const COUNT: u64 = 12_000;
    let machine = Machine::new(65, DISK);
    let config = StoreConfig { index_bytes: 2 << 20, ..quiet() };
    let (store, shard) = machine.start(config);
    let rt = machine.handle();
    machine.run(async move {
        let old = fill(&shard, COUNT, 2).await;
        shard.add_snapshot(CONTAINER, Epoch(1000)).await.expect("stored");
        for at in 0..2000 {
            write(&shard, 0, 2000 + at, at * 2, b"new").await.expect("stored");
        }
        let akey = asked(1, 0, 3000);
        let newest = data_of(fetch(&shard, u64::MAX, &akey).await.expect("found")).await.expect("read");
        let before = store.stats().aggregated;
        let aggregation = beside(&rt, shard.aggregate(CONTAINER, Epoch(100_000)), async |turn| {
            // A reader of the snapshot sees the same at any time.
            let index = (turn * 97) % 2900;
            let found = fetch(&shard, 1000, &asked(1, index, 100)).await.expect("found");
            let found = data_of(found).await.expect("read");
            let wanted = (index..index + 100).map(|at| if at % 2 == 0 { old[at as usize / 2] } else { 0 });
            assert!(found.iter().copied().eq(wanted), "records from {index} on");
        });
        let (done, turns) = Box::pin(aggregation).await;
        done.expect("aggregated");
        let again = data_of(fetch(&shard, u64::MAX, &akey).await.expect("found")).await.expect("read");
        assert!(again == newest, "the newest state has changed");
        assert!(turns >= COUNT / LOOKS, "only {turns} turns were left to others");
        let gone = store.stats().aggregated - before;
        assert!(gone < 100, "{gone} are seen by nobody, but the snapshot sees most");
        let scope = PunchScope::Dkeys(vec![Key::from_u64(0)]);
        punch(&shard, ARRAY, scope, 200_000).await.expect("punched");
        shard.set_snapshots(CONTAINER, &[]).await.expect("stored");
        shard.aggregate(CONTAINER, Epoch(300_000)).await.expect("aggregated");
        let gone = store.stats().aggregated - before;
        assert!(gone >= COUNT, "{gone} entries went");
    });
}
