//! Rot in the last batch of the log: what was acknowledged doesn't go without a word once anything on the device tells of it.

use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use weir_inspect::{Depth, Severity};
use weir_media::sim::{CrashKeeps, SimDiskOptions};
use weir_media::{BLOCK, DmaBuf};
use weir_store::{Mark, OpenError, Store, StoreConfig};

const DISK: u64 = 16 << 20;

/// Longer than a log without anything to write waits before it marks its last batch.
const IDLE: Duration = Duration::from_secs(1);

fn value() -> Vec<u8> {
    pattern(77, 700)
}

/// The byte on the disk where the value stands.
fn place_of(machine: &Machine, value: &[u8]) -> u64 {
    let bytes = machine.disk.bytes(0, DISK as usize);
    bytes.windows(value.len()).position(|window| window == value).expect("it is in the log") as u64
}

/// What an open says after bits of the value in the log have flipped, and the damage that an inspection finds.
fn open_rotten(machine: &Machine, value: &[u8]) -> (Result<std::rc::Rc<Store>, OpenError>, usize) {
    let place = place_of(machine, value);
    machine.disk.rot(place + 5, 3);
    machine.disk.rot(place + 9, 4);
    let report = machine.inspect(Depth::Everything);
    let damage = report.findings.iter().filter(|finding| finding.severity == Severity::Damage).count();
    (machine.try_open(quiet()), damage)
}

/// The log batch whose first block this is on is reported.
fn assert_reported((opened, damage): (Result<std::rc::Rc<Store>, OpenError>, usize), place: u64) {
    let Err(OpenError::Corrupt { location, .. }) = opened else { panic!("it is opened without a word") };
    assert_eq!((location.what, location.offset / 4096), ("the log", place / 4096));
    assert!(damage > 0, "an inspection finds nothing");
}

#[test]
fn a_batch_that_was_stable_for_a_while_is_missed() {
    for len in [700, 9000] {
        let machine = Machine::new(61, DISK);
        let (store, shard) = machine.start(quiet());
        let (data, small) = (pattern(9, len), value());
        let (kept, user) = (small.clone(), shard.clone());
        machine.run(async move {
            write(&user, 1, 1, 0, &data).await.expect("stored");
            write(&user, 2, 2, 0, &kept).await.expect("stored");
        });
        let written = store.stats().device.writes;
        machine.sleep(IDLE);
        assert_eq!(store.stats().device.writes, written + 1, "one mark");
        machine.sleep(IDLE);
        assert_eq!(store.stats().device.writes, written + 1, "and no other");
        drop((store, shard));
        machine.crash(CrashKeeps::Nothing);
        let place = place_of(&machine, &small);
        assert_reported(open_rotten(&machine, &small), place);
    }
}

/// What an open says after this has happened to the last batch of a log that says that it was stable.
fn open_marked(rot: impl FnOnce(&Machine, u64)) -> Result<Vec<u8>, OpenError> {
    let machine = Machine::new(61, DISK);
    let (store, shard) = machine.start(quiet());
    machine.run(async move { write(&shard, 2, 2, 0, &value()).await.expect("stored") });
    machine.sleep(IDLE);
    drop(store);
    machine.crash(CrashKeeps::Nothing);
    rot(&machine, place_of(&machine, &value()));
    let told = machine.inspect(Depth::Everything).findings.len();
    let store = machine.try_open(quiet())?;
    assert_eq!((store.scrub().renewed, store.scrub().rotten.len(), told), (1, 0, 1));
    let shard = store.pool(POOL).expect("the pool");
    let found = machine.run(async move {
        store.checkpoint().await.expect("written");
        read(&shard, 2, u64::MAX, 0, 700).await.expect("read").0
    });
    assert_eq!(machine.inspect(Depth::Everything).findings, [], "nobody needs the batch any more");
    Ok(found)
}

#[test]
fn one_flipped_bit_of_a_batch_that_was_stable_is_turned_back_and_more_are_not() {
    for at in [0, 5, 699] {
        for bit in [0, 7] {
            assert_eq!(open_marked(|machine, place| machine.disk.rot(place + at, bit)), Ok(value()));
        }
    }
    for count in 2..6 {
        let spoil = |machine: &Machine, place| {
            (0..count).for_each(|number| machine.disk.rot(place + 31 * number, (number % 8) as u8));
        };
        let refused = open_marked(spoil).expect_err("nobody knows what it was").to_string();
        assert!(refused.contains("weir store check") && refused.contains("weir store copy"), "{refused}");
    }
}

#[test]
fn a_batch_that_an_open_has_found_is_missed_by_the_next_one() {
    let machine = Machine::new(62, DISK);
    let (store, shard) = machine.start(quiet());
    let small = value();
    let kept = small.clone();
    machine.run(async move { write(&shard, 2, 2, 0, &kept).await.expect("stored") });
    drop(store);
    machine.crash(CrashKeeps::Nothing);
    let store = machine.open(quiet());
    let shard = store.pool(POOL).expect("the pool");
    let found = machine.run(async move { read(&shard, 2, u64::MAX, 0, 700).await.expect("read") });
    assert!(found.0 == small, "it was shown");
    drop(store);
    machine.crash(CrashKeeps::Nothing);
    let place = place_of(&machine, &small);
    assert_reported(open_rotten(&machine, &small), place);
}

#[test]
fn data_of_a_batch_that_was_stable_is_reported_to_its_reader() {
    for waits in [true, false] {
        let machine = Machine::new(63, DISK);
        let (store, shard) = machine.start(quiet());
        let large = pattern(5, 9000);
        let kept = large.clone();
        machine.run(async move { write(&shard, 2, 2, 0, &kept).await.expect("stored") });
        if waits {
            machine.sleep(IDLE);
        }
        drop(store);
        machine.crash(CrashKeeps::Nothing);
        if !waits {
            drop(machine.open(quiet()));
            machine.crash(CrashKeeps::Nothing);
        }
        machine.disk.rot(place_of(&machine, &large[..4096]) + 9, 1);
        let store = machine.open(quiet());
        let shard = store.pool(POOL).expect("the pool");
        let found = machine.run(async move { read(&shard, 2, u64::MAX, 0, 9000).await.map(|_| ()) });
        assert!(matches!(found, Err(weir_store::FetchError::Corrupt { .. })), "{found:?}");
    }
}

#[test]
fn nothing_of_a_closed_store_stands_in_the_log_alone() {
    let machine = Machine::new(64, DISK);
    let (store, shard) = machine.start(quiet());
    let small = value();
    let kept = small.clone();
    machine.run(async move {
        write(&shard, 2, 2, 0, &kept).await.expect("stored");
        store.close().await.expect("closed");
    });
    machine.crash(CrashKeeps::Nothing);
    machine.disk.rot(place_of(&machine, &small) + 5, 3);
    let store = machine.open(quiet());
    let shard = store.pool(POOL).expect("the pool");
    let found = machine.run(async move { read(&shard, 2, u64::MAX, 0, 700).await.expect("read") });
    assert!(found.0 == small, "it is in the checkpoint");
}

#[test]
fn a_log_that_is_written_to_all_the_time_has_no_marks() {
    let machine = Machine::new(65, DISK);
    let (store, shard) = machine.start(quiet());
    let handle = machine.handle();
    let before = store.stats();
    machine.run(async move {
        let end = handle.now() + IDLE;
        for epoch in 1.. {
            write(&shard, 1, epoch, 0, &value()).await.expect("stored");
            handle.sleep(Duration::from_millis(10)).await;
            if handle.now() > end {
                break;
            }
        }
    });
    let after = store.stats();
    let (writes, batches) =
        (after.device.writes - before.device.writes, after.commit.batches - before.commit.batches);
    assert!(batches > 50 && after.checkpoints == before.checkpoints, "{batches} batches");
    assert_eq!(writes, batches, "each write is a batch with records");
}

/// A process dies before the flush of a batch, and the power fails while the next one opens the store. Whatever the disk has of
/// the batch then, of its data and of what the open has written: nobody was told of the change, and all others are there.
#[test]
fn an_open_says_of_nothing_that_it_is_stable_before_it_is() {
    let endless = Duration::from_hours(1);
    let slow = SimDiskOptions { flush_min: endless, flush_max: endless, ..SimDiskOptions::default() };
    for seed in 0..60 {
        let machine = Machine::new(seed, DISK);
        let (_store, shard) = machine.start(quiet());
        let user = shard.clone();
        machine.run(async move { write(&user, 1, 1, 0, &value()).await.expect("stored") });
        machine.disk.set_options(slow.clone());
        let last = machine.handle().spawn(async move { write(&shard, 2, 2, 0, &pattern(5, 9000)).await });
        machine.sleep(Duration::from_millis(5));
        machine.world.crash(&machine.node);
        machine.world.restart(&machine.node);
        drop(last);
        machine.disk.set_options(SimDiskOptions::default());
        let (handle, device) = (machine.handle(), machine.device());
        machine.disk.halt_at(machine.disk.operations() + seed % 5);
        let opening = async move { Store::open(&handle, device, &owner(), quiet()).await.map(drop) };
        let opened = machine.world.try_block_on(&machine.node, Duration::from_secs(1), opening);
        assert!(opened.is_err() || seed % 5 == 4, "seed {seed}: it takes four operations");
        machine.crash(CrashKeeps::Any);
        let store = machine.open(quiet());
        let shard = store.pool(POOL).expect("the pool");
        machine.run(async move {
            assert!(read(&shard, 1, u64::MAX, 0, 700).await.expect("read").0 == value());
            let (found, present) = read(&shard, 2, u64::MAX, 0, 9000).await.expect("whole or not there");
            assert!(present.is_empty() || found == pattern(5, 9000), "seed {seed}");
        });
    }
}

/// A store with some changes behind its checkpoint, as its process was killed; how far it was when somebody looked.
fn killed(seed: u64) -> (Machine, Mark) {
    let machine = Machine::new(seed, DISK);
    let (store, shard) = machine.start(quiet());
    machine.run(async move {
        for epoch in 1..=20 {
            write(&shard, epoch, epoch, 0, &pattern(epoch, 700)).await.expect("stored");
        }
    });
    machine.sleep(IDLE);
    let mark = store.mark();
    drop(store);
    machine.crash(CrashKeeps::Everything);
    (machine, mark)
}

fn open_after(machine: &Machine, mark: Mark) -> Result<Rc<Store>, OpenError> {
    machine.try_open(StoreConfig { mark: Some(mark), ..quiet() })
}

#[test]
fn an_end_of_the_log_that_was_zeroed_is_missed_by_who_has_seen_the_store() {
    let (machine, mark) = killed(66);
    let end = machine.inspect(Depth::Everything).log.end;
    let device = machine.device();
    machine.run(async move {
        let zeros = DmaBuf::new(8 * BLOCK);
        device.write(end - 8 * BLOCK as u64, vec![zeros.into()]).await.expect("written");
        device.flush().await.expect("stable");
    });
    let Err(OpenError::Corrupt { location, reason }) = open_after(&machine, mark) else {
        panic!("it is opened without a word")
    };
    assert!(location.what == "the log" && reason.contains("were stable"), "{location}: {reason}");
    // The device alone doesn't tell.
    machine.open(quiet());
}

#[test]
fn a_store_is_what_was_seen_of_it_or_further() {
    let (machine, mark) = killed(67);
    let store = open_after(&machine, mark).expect("it is as it was");
    let later = store.mark();
    assert!(later.generation > mark.generation && later.stable >= mark.stable, "{later:?} after {mark:?}");
    let shard = store.pool(POOL).expect("the pool");
    machine.run(async move {
        for epoch in 1..=20 {
            assert!(read(&shard, epoch, u64::MAX, 0, 700).await.expect("read").0 == pattern(epoch, 700));
        }
        store.close().await.expect("closed");
    });
    open_after(&machine, later).expect("it has gone on");
}

#[test]
fn an_older_state_and_another_store_are_told_from_what_was_seen() {
    let (machine, mark) = killed(68);
    let further = Mark { generation: mark.generation + 5, ..mark };
    let Err(OpenError::Corrupt { location, reason }) = open_after(&machine, further) else {
        panic!("an older state is opened")
    };
    assert!(location.what == "the checkpoint header" && reason.contains("older state"), "{reason}");
    let other = Mark { store: uuid::Uuid::from_u128(1), newest: weir_proto::Epoch(1000), ..mark };
    let refused = open_after(&machine, other).expect_err("a store that lacks what was there");
    assert!(matches!(refused, OpenError::Replaced { expected, .. } if expected == other.store), "{refused}");
    // A copy has another identity, and goes as far.
    open_after(&machine, Mark { newest: weir_proto::Epoch(0), ..other }).expect("it has all");
}
