//! Updates whose data goes to the device together.

use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use weir_media::BLOCK;
use weir_media::sim::{CrashKeeps, SimDiskOptions};
use weir_proto::object::Conditions;
use weir_proto::{Epoch, Key};
use weir_runtime::join_all;
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

#[test]
fn updates_whose_shared_write_fails_all_fail_and_their_blocks_are_free_again() {
    let machine = Machine::new(42, DISK);
    let (store, shard) = machine.start(quiet());
    let free = store.space().free;
    machine.disk.set_options(SimDiskOptions { error_probability: 1.0, ..SimDiskOptions::default() });
    assert_eq!(machine.run(store_all(shard.clone(), 1)), 0);
    assert_eq!(store.space().free, free);
    machine.disk.set_options(SimDiskOptions::default());
    assert_eq!(machine.run(store_all(shard, 100)), COUNT as usize);
    let (_store, shard) = reopen(&machine, store);
    machine.run(check_all(shard, None));
}

#[test]
fn an_update_that_is_given_up_leaves_those_it_shares_a_write_with_alone() {
    const GIVEN_UP: u64 = 7;
    let machine = Machine::new(43, DISK);
    let (store, shard) = machine.start(quiet());
    let (free, user, handle) = (store.space().free, shard.clone(), machine.handle());
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
    let taken = (0..COUNT).filter(|number| *number != GIVEN_UP).map(blocks).sum::<u64>();
    assert_eq!(store.space().free, free - taken * BLOCK as u64);
    let (_store, shard) = reopen(&machine, store);
    machine.run(check_all(shard, Some(GIVEN_UP)));
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
    let (transfer_min, transfer_max, flush_min, flush_max) = (transfer, transfer, flush, flush);
    let even =
        SimDiskOptions { transfer_min, transfer_max, flush_min, flush_max, ..SimDiskOptions::default() };
    machine.disk.set_options(even);
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
