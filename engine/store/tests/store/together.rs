//! Updates whose data goes to the device together.

use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use weir_media::BLOCK;
use weir_media::sim::{CrashKeeps, SimDiskOptions};
use weir_runtime::join_all;
use weir_store::{Shard, Store};

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
    assert!(writes <= 4, "{COUNT} updates took {writes} writes");
    let data = (0..COUNT).map(blocks).sum::<u64>() * BLOCK as u64;
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
