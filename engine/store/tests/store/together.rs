//! Updates whose data goes to the device together.

use crate::setup::*;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weir_media::BLOCK;
use weir_media::sim::{CrashKeeps, SimDiskOptions};
use weir_proto::object::Conditions;
use weir_proto::{Epoch, Key};
use weir_runtime::{Handle, join_all};
use weir_store::{Data, Shard, Store, UpdateError};

const DISK: u64 = 32 << 20;
const COUNT: u64 = 24;

/// One to three blocks, the last one not full.
fn value(number: u64) -> Vec<u8> {
    pattern(number, BLOCK * (1 + number as usize % 3) + number as usize)
}

fn blocks(number: u64) -> u64 {
    value(number).len().div_ceil(BLOCK) as u64
}

/// Begins all updates in one turn; how many were stored.
async fn store_all(shard: Shard, epoch: u64) -> usize {
    let writes = (0..COUNT).map(|number| {
        let shard = shard.clone();
        async move { write(&shard, number, epoch + number, 0, &value(number)).await.is_ok() }
    });
    join_all(writes).await.into_iter().filter(|stored| *stored).count()
}

async fn check_all(shard: Shard, without: Option<u64>) {
    for number in (0..COUNT).filter(|number| Some(*number) != without) {
        let wanted = value(number);
        let (found, _) = read(&shard, number, u64::MAX, 0, wanted.len() as u64).await.expect("read");
        assert!(found == wanted, "value {number} is not what was stored");
    }
}

fn reopen(machine: &Machine, store: Rc<Store>) -> (Rc<Store>, Shard) {
    drop(store);
    machine.crash(CrashKeeps::Nothing);
    let store = machine.open(quiet());
    assert_eq!(machine.audit(&store).problems, [""; 0]);
    let shard = store.pool(POOL).expect("the pool");
    (store, shard)
}

#[test]
fn updates_that_begin_together_take_few_writes_and_are_there_after_a_crash() {
    let machine = Machine::new(41, DISK);
    let (store, shard) = machine.start(quiet());
    let before = store.stats().device;
    assert_eq!(machine.run(store_all(shard, 1)), COUNT as usize);
    let after = store.stats().device;
    let writes = after.writes - before.writes;
    let data = (0..COUNT).map(blocks).sum::<u64>() * BLOCK as u64;
    // Of the data in transfers of 64 KiB and more but for the last one, and of the log.
    assert!(writes <= data / (64 << 10) + 2, "{COUNT} updates took {writes} writes");
    assert!(after.write_bytes - before.write_bytes >= data, "the data takes {data} bytes");
    let (_store, shard) = reopen(&machine, store);
    machine.run(check_all(shard, None));
}

/// A disk whose transfers and flushes all take the same time.
fn even(transfer: Duration, flush: Duration) -> SimDiskOptions {
    let (transfer_min, transfer_max, flush_min, flush_max) = (transfer, transfer, flush, flush);
    SimDiskOptions { transfer_min, transfer_max, flush_min, flush_max, ..SimDiskOptions::default() }
}

#[test]
fn updates_whose_shared_write_fails_all_fail_and_leave_nothing_behind() {
    let machine = Machine::new(42, DISK);
    let (store, shard) = machine.start(quiet());
    let free = store.space().free;
    machine.disk.set_options(SimDiskOptions { error_probability: 1.0, ..SimDiskOptions::default() });
    assert_eq!(machine.run(store_all(shard.clone(), 1)), 0);
    machine.disk.set_options(SimDiskOptions::default());
    // Their records are in the index, and nothing else may become durable with them.
    assert_eq!(machine.run(store_all(shard, 100)), 0);
    let opened = Rc::clone(&store);
    assert!(machine.run(async move { opened.checkpoint().await }).is_err());
    let (store, shard) = reopen(&machine, store);
    assert_eq!(store.space().free, free);
    let user = shard.clone();
    machine.run(async move {
        for number in 0..COUNT {
            let (_, present) = read(&user, number, u64::MAX, 0, 10).await.expect("read");
            assert!(present.is_empty(), "value {number} was refused");
        }
    });
    assert_eq!(machine.run(store_all(shard, 200)), COUNT as usize);
    let (_store, shard) = reopen(&machine, store);
    machine.run(check_all(shard, None));
}

#[test]
fn a_shared_write_that_fails_before_its_updates_commit_leaves_the_store_as_it_was() {
    let machine = Machine::new(46, DISK);
    let (store, shard) = machine.start(quiet());
    let free = store.space().free;
    machine.disk.set_options(SimDiskOptions { error_probability: 1.0, ..SimDiskOptions::default() });
    let (user, data) = (shard.clone(), pattern(1, 100_000));
    machine.run(async move { assert!(write(&user, 1, 1, 0, &data).await.is_err()) });
    assert_eq!(store.space().free, free);
    machine.disk.set_options(SimDiskOptions::default());
    assert_eq!(machine.run(store_all(shard, 100)), COUNT as usize);
    let (_store, shard) = reopen(&machine, store);
    machine.run(check_all(shard, None));
}

#[test]
fn a_record_is_written_beside_its_data_and_both_share_a_flush() {
    let machine = Machine::new(47, DISK);
    let (store, shard) = machine.start(quiet());
    let (transfer, flush) = (Duration::from_millis(1), Duration::from_micros(10));
    machine.disk.set_options(even(transfer, flush));
    let (handle, before) = (machine.handle(), store.stats().device);
    let took = machine.run(async move {
        let begin = handle.now();
        write(&shard, 1, 1, 0, &pattern(1, BLOCK)).await.expect("stored");
        handle.now() - begin
    });
    let after = store.stats().device;
    assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (2, 1));
    assert!(took < transfer + transfer / 2, "{took:?}");
}

/// A disk on which one transfer in five takes much longer than all that a checkpoint does.
fn stalling() -> SimDiskOptions {
    let stall = Duration::from_millis(300);
    SimDiskOptions { stall_probability: 0.2, stall, ..SimDiskOptions::default() }
}

#[test]
fn what_was_acknowledged_beside_a_stalled_transfer_is_there_after_a_crash() {
    for seed in 0..60 {
        let machine = Machine::new(seed, DISK);
        let (store, shard) = machine.start(quiet());
        machine.disk.set_options(stalling());
        assert_eq!(machine.run(store_all(shard, 1)), COUNT as usize);
        let (_store, shard) = reopen(&machine, store);
        machine.run(check_all(shard, None));
    }
}

#[test]
fn a_checkpoint_has_no_record_whose_data_the_device_lacks() {
    let mut early = 0;
    for seed in 0..60 {
        let machine = Machine::new(seed, DISK);
        let (store, shard) = machine.start(quiet());
        machine.disk.set_options(stalling());
        let (opened, handle) = (Rc::clone(&store), machine.handle());
        let acknowledged = machine.run(async move {
            let update = handle.spawn(async move { write(&shard, 1, 1, 0, &value(1)).await });
            handle.yield_now().await;
            opened.checkpoint().await.expect("a healthy disk");
            update.is_finished()
        });
        early += u32::from(!acknowledged);
        // It reads the index against the space map, and a value that isn't there is no value.
        let (_store, shard) = reopen(&machine, store);
        let (found, present) = machine.run(async move {
            read(&shard, 1, u64::MAX, 0, value(1).len() as u64).await.expect("what was stored, or nothing")
        });
        assert!(found == value(1) || (present.is_empty() && !acknowledged), "seed {seed}");
    }
    assert!(early > 0, "every update was acknowledged before its checkpoint was written");
}

#[test]
fn background_work_waits_for_data_that_is_on_the_way() {
    for seed in 0..40 {
        let machine = Machine::new(seed, DISK);
        let (store, shard) = machine.start(quiet());
        machine.disk.set_options(stalling());
        let (user, handle) = (shard.clone(), machine.handle());
        machine.run(async move {
            let pieces = (0..4u64).map(|at| {
                let shard = user.clone();
                handle.spawn(async move {
                    let piece = pattern(at, BLOCK);
                    match write(&shard, 1, 1 + at, at * 4096, &piece).await {
                        // Later ones were merged before it came.
                        Err(UpdateError::Aggregated { .. }) => {
                            write(&shard, 1, 100 + at, at * 4096, &piece).await
                        }
                        done => done,
                    }
                })
            });
            let pieces: Vec<_> = pieces.collect();
            handle.yield_now().await;
            user.aggregate(CONTAINER, Epoch(100)).await.expect("aggregated");
            assert!(join_all(pieces).await.into_iter().all(|stored| matches!(stored, Ok(Ok(_)))));
        });
        assert_eq!(store.stats().checksum_errors, 0, "seed {seed}");
        let wanted = (0..4).map(|at| pattern(at, BLOCK)).collect::<Vec<_>>().concat();
        let (found, _) =
            machine.run(async move { read(&shard, 1, u64::MAX, 0, 4 * BLOCK as u64).await.expect("read") });
        assert!(found == wanted, "seed {seed}");
    }
}

#[test]
fn an_update_that_is_given_up_leaves_those_it_shares_a_write_with_alone() {
    const GIVEN_UP: u64 = 7;
    let machine = Machine::new(43, DISK);
    let (store, shard) = machine.start(quiet());
    let (user, handle) = (shard.clone(), machine.handle());
    machine.run(async move {
        let tasks: Vec<_> = (0..COUNT)
            .map(|number| {
                let shard = user.clone();
                handle
                    .spawn(async move { write(&shard, number, 1 + number, 0, &value(number)).await.is_ok() })
            })
            .collect();
        // Shorter than any write.
        handle.sleep(Duration::from_micros(5)).await;
        tasks[GIVEN_UP as usize].abort();
        for (number, task) in (0..COUNT).zip(tasks) {
            assert_eq!(task.await == Ok(true), number != GIVEN_UP, "update {number}");
        }
    });
    let (_store, shard) = reopen(&machine, store);
    let user = shard.clone();
    machine.run(check_all(shard, Some(GIVEN_UP)));
    // Nobody was told whether it is there: it is, as a whole, or it isn't.
    let (found, present) = machine.run(async move {
        read(&user, GIVEN_UP, u64::MAX, 0, value(GIVEN_UP).len() as u64).await.expect("read")
    });
    assert!(present.is_empty() || found == value(GIVEN_UP));
}

#[test]
fn a_large_update_that_is_refused_keeps_its_blocks_until_the_device_is_done_with_them() {
    let machine = Machine::new(44, DISK);
    let (store, shard) = machine.start(quiet());
    let (free, handle, seen, user) = (store.space().free, machine.handle(), Rc::clone(&store), shard.clone());
    let value = pattern(1, 300_000);
    let expected = value.clone();
    machine.run(async move {
        let mut wrong = summed(array("data", 1, &[(0, value.len() as u64)]), &value);
        *wrong.checksums.last_mut().expect("many chunks") ^= 1;
        let (dkey, data) = (Key::from_u64(1), Data::Borrowed(&value));
        let refused = user.update(CONTAINER, ARRAY, &dkey, Epoch(1), Conditions::NONE, &[wrong], data).await;
        assert!(matches!(refused, Err(UpdateError::Checksum { .. })), "{refused:?}");
        assert!(seen.space().free < free, "the device may still be writing to them");
        handle.sleep(Duration::from_secs(1)).await;
        assert_eq!(seen.space().free, free);
        write(&user, 1, 2, 0, &value).await.expect("stored");
        assert!(write(&user, 2, 3, 0, &value).await.is_ok());
    });
    let (_store, shard) = reopen(&machine, store);
    machine.run(async move {
        for dkey in [1, 2] {
            let (found, _) = read(&shard, dkey, u64::MAX, 0, expected.len() as u64).await.expect("read");
            assert!(found == expected);
        }
    });
}

#[test]
fn large_values_share_a_flush_and_nothing_small_waits_for_them() {
    let machine = Machine::new(45, DISK);
    let (store, shard) = machine.start(quiet());
    let large = |shard: &Shard, number: u64| {
        let shard = shard.clone();
        async move { write(&shard, number, 1 + number, 0, &pattern(number, 100_000)).await.is_ok() }
    };
    let before = store.stats();
    let all: Vec<_> = (0..4).map(|number| large(&shard, number)).collect();
    assert_eq!(machine.run(join_all(all)), [true; 4]);
    let after = store.stats();
    assert_eq!(after.device.flushes - before.device.flushes, 1);
    assert_eq!(after.commit.batches - before.commit.batches, 1);
    let (transfer, flush) = (Duration::from_millis(1), Duration::from_micros(10));
    machine.disk.set_options(even(transfer, flush));
    let handle = machine.handle();
    machine.run(async move {
        // One behind the other, so that another one is always being written.
        let tasks: Vec<_> = (0..8u32)
            .map(|number| {
                let (late, update) = (handle.clone(), large(&shard, 10 + u64::from(number)));
                handle.spawn(async move {
                    late.sleep(Duration::from_micros(900) * number).await;
                    update.await
                })
            })
            .collect();
        // The first large one is on the disk, and its record waits.
        handle.sleep(Duration::from_micros(1200)).await;
        let begin = handle.now();
        write(&shard, 30, 100, 0, b"small").await.expect("stored");
        let took = handle.now() - begin;
        assert!(took < transfer + transfer / 2, "{took:?}");
        assert!(join_all(tasks).await.into_iter().all(|stored| stored == Ok(true)));
    });
}

/// Bytes of a large value.
const LARGE: usize = 100_000;

/// Large values one by one, until they commit while their data is on the way.
async fn store_some_large(shard: &Shard) {
    for number in 0..8 {
        write(shard, number, 1 + number, 0, &pattern(number, LARGE)).await.expect("stored");
    }
}

/// How long a value of so many bytes takes to be stored.
async fn time_of(handle: &Handle, shard: &Shard, epoch: u64, len: usize) -> Duration {
    let begin = handle.now();
    write(shard, epoch, epoch, 0, &pattern(epoch, len)).await.expect("stored");
    handle.now() - begin
}

#[test]
fn a_record_is_written_beside_large_data_unless_others_waited_for_the_log_lately() {
    let machine = Machine::new(48, DISK);
    let (store, shard) = machine.start(quiet());
    let user = shard.clone();
    machine.run(async move { store_some_large(&user).await });
    let (transfer, flush) = (Duration::from_millis(1), Duration::from_micros(10));
    machine.disk.set_options(even(transfer, flush));
    let (handle, before) = (machine.handle(), store.stats().device);
    let (user, seen) = (shard.clone(), Rc::clone(&store));
    machine.run(async move {
        let took = time_of(&handle, &user, 50, LARGE).await;
        assert!(took < transfer + transfer / 2, "{took:?}");
        let after = seen.stats().device;
        assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (2, 1));
        time_of(&handle, &user, 51, 10).await;
        let took = time_of(&handle, &user, 52, LARGE).await;
        assert!(took >= transfer * 2, "what is small would wait for its data: {took:?}");
        for epoch in 60..64 {
            time_of(&handle, &user, epoch, LARGE).await;
        }
        let (late, writer) = (handle.clone(), user.clone());
        let large = handle.spawn(async move { time_of(&late, &writer, 70, LARGE).await });
        handle.sleep(transfer / 2).await;
        // Of the same object.
        read(&user, 50, u64::MAX, 0, 10).await.expect("read");
        assert!(large.await.expect("it runs to its end") < transfer + transfer / 2);
        let took = time_of(&handle, &user, 71, LARGE).await;
        assert!(took >= transfer * 2, "a reader would wait for its data: {took:?}");
    });
    let (_store, shard) = reopen(&machine, store);
    machine.run(async move {
        for number in [50, 52] {
            let (found, _) = read(&shard, number, u64::MAX, 0, LARGE as u64).await.expect("read");
            assert!(found == pattern(number, LARGE));
        }
    });
}

#[test]
fn large_values_are_there_after_a_power_failure_if_they_were_acknowledged_and_else_as_a_whole_or_not() {
    let (mut open, mut early) = (0, 0);
    for seed in 0..120 {
        let machine = Machine::new(seed, DISK);
        let (store, shard) = machine.start(quiet());
        let user = shard.clone();
        machine.run(async move { store_some_large(&user).await });
        if seed % 2 == 0 {
            machine.disk.set_options(stalling());
        }
        let (handle, opened) = (machine.handle(), Rc::clone(&store));
        let stored = machine.run(async move {
            let tasks: Vec<_> = (0..8u64)
                .map(|number| {
                    let (shard, late) = (shard.clone(), handle.clone());
                    let update = async move {
                        late.sleep(Duration::from_micros(50 * (number % 3))).await;
                        write(&shard, 20 + number, 20 + number, 0, &pattern(20 + number, LARGE)).await.is_ok()
                    };
                    handle.spawn(update)
                })
                .collect();
            if seed % 3 == 0 {
                // What it stores of the index has its data.
                opened.checkpoint().await.expect("a healthy disk");
            }
            handle.sleep(Duration::from_micros(40 * (seed % 30))).await;
            tasks.iter().map(weir_runtime::JoinHandle::is_finished).collect::<Vec<_>>()
        });
        let keeps = [CrashKeeps::Nothing, CrashKeeps::Everything, CrashKeeps::Any][seed as usize % 3];
        drop(store);
        machine.crash(keeps);
        let store = machine.open(quiet());
        assert_eq!(machine.audit(&store).problems, [""; 0], "seed {seed}");
        let shard = store.pool(POOL).expect("the pool");
        let there = machine.run(async move {
            let mut there = Vec::new();
            for number in 20..28 {
                let (found, present) =
                    read(&shard, number, u64::MAX, 0, LARGE as u64).await.expect("a value or nothing");
                assert!(present.is_empty() || found == pattern(number, LARGE), "seed {seed}");
                there.push(!present.is_empty());
            }
            there
        });
        for (stored, there) in stored.into_iter().zip(there) {
            assert!(there || !stored, "seed {seed}: an acknowledged value is lost");
            open += u32::from(!stored);
            early += u32::from(!stored && there);
        }
    }
    assert!(open > 0 && early > 0, "{open} of them were open, {early} of these are there");
}

#[test]
fn large_data_that_fails_behind_its_record_is_written_again() {
    for errs_on in [false, true] {
        let machine = Machine::new(49, DISK);
        let (store, shard) = machine.start(quiet());
        let user = shard.clone();
        machine.run(async move { store_some_large(&user).await });
        machine.disk.set_options(SimDiskOptions { error_probability: 1.0, ..SimDiskOptions::default() });
        let (disk, user) = (machine.disk.clone(), shard.clone());
        let stored = machine.run(async move {
            let value = pattern(20, LARGE);
            let update = [summed(array("data", 1, &[(0, LARGE as u64)]), &value)];
            let asked = Cell::new(0);
            let clock = || {
                // It is asked again when the update commits: its data is on the way then, and its record isn't.
                if asked.replace(asked.get() + 1) > 0 && !errs_on {
                    disk.set_options(SimDiskOptions::default());
                }
                Epoch(20)
            };
            let (dkey, none, data) = (Key::from_u64(20), Conditions::NONE, Data::Borrowed(&value));
            user.update_by_clock(CONTAINER, ARRAY, &dkey, &clock, none, &update, data, &|_| Vec::new())
                .await
                .is_ok()
        });
        assert_eq!(stored, !errs_on);
        if !errs_on {
            assert_eq!(store.stats().device.errors, 1, "one transfer failed");
        }
        machine.disk.set_options(SimDiskOptions::default());
        let (_store, shard) = reopen(&machine, store);
        machine.run(async move {
            let (found, present) = read(&shard, 20, u64::MAX, 0, LARGE as u64).await.expect("read");
            assert_eq!(present.is_empty(), errs_on);
            assert!(errs_on || found == pattern(20, LARGE));
        });
    }
}
