//! A last batch of the log that an open drops because its data isn't there: also at the end of the ring, where it is written
//! together with the mark that the log goes on at the start.

use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use weir_inspect::Depth;
use weir_media::BLOCK;
use weir_media::sim::CrashKeeps;
use weir_runtime::join_all;
use weir_store::Store;

const DISK: u64 = 64 << 20;

/// Bytes of the ring behind the last batch, which has never gone back to the start.
fn left(store: &Store) -> u64 {
    let commit = store.stats().commit;
    commit.log_capacity - commit.log_written
}

/// Fills the ring up to its last block, and leaves nothing of it to be replayed.
pub fn fill(machine: &Machine, store: &Rc<Store>) {
    let opened = Rc::clone(store);
    machine.run(async move {
        let shard = opened.pool(POOL).expect("the pool");
        let mut epoch = 1;
        while left(&opened) > 1 << 20 {
            let puts = (0..100).map(|number| {
                let (shard, value) = (shard.clone(), pattern(number, 3000));
                async move { put(&shard, &format!("f{number}"), "a", epoch, &value).await.expect("stored") }
            });
            join_all(puts.collect::<Vec<_>>()).await;
            epoch += 1;
        }
        while left(&opened) > BLOCK as u64 {
            put(&shard, "small", "a", epoch, b"weir").await.expect("stored");
            epoch += 1;
        }
        opened.checkpoint().await.expect("written");
    });
}

/// Blocks of the disk that hold something else than before, by their offsets.
fn changed(before: &[u8], after: &[u8]) -> Vec<u64> {
    let blocks = (0..).step_by(BLOCK).zip(before.chunks(BLOCK).zip(after.chunks(BLOCK)));
    blocks.filter(|(_, (before, after))| before != after).map(|(offset, _)| offset).collect()
}

/// Stores values in one batch until the power fails before its flush, which comes after so many operations. Returns which
/// blocks that has changed.
fn store_until_the_flush(
    machine: &Machine,
    store: Rc<Store>,
    lens: &'static [usize],
    operations: u64,
) -> Vec<u64> {
    let content = || machine.disk.bytes(0, DISK as usize);
    let before = content();
    machine.disk.halt_at(machine.disk.operations() + operations);
    let opened = Rc::clone(&store);
    let ended = machine.world.try_block_on(&machine.node, Duration::from_secs(1), async move {
        let shard = opened.pool(POOL).expect("the pool");
        let values = lens.iter().map(|len| {
            let shard = shard.clone();
            async move { put(&shard, &format!("w{len}"), "a", 1 << 20, &pattern(1, *len)).await }
        });
        join_all(values.collect::<Vec<_>>()).await
    });
    assert!(ended.is_err() && machine.disk.is_halted());
    drop(store);
    machine.crash(CrashKeeps::Everything);
    changed(&before, &content())
}

/// Stores values in one batch, which goes back to the start of the ring. Of what was written before its flush, the mark at
/// the end of the ring and the data are lost.
fn lose_mark_and_data(machine: &Machine, store: Rc<Store>) {
    // Data, mark and batch come before the flush.
    let changed = store_until_the_flush(machine, store, &[3000, 3001, 4096], 3);
    let [_, _, mark, data] = changed[..] else { panic!("one batch of two blocks") };
    machine.disk.rot(mark, 0);
    machine.disk.rot(data, 0);
}

/// Stores as many values as `later` in one batch behind the one that was dropped.
fn go_on(later: &'static [&'static str]) {
    let machine = Machine::new(1, DISK);
    let (store, _) = machine.start(quiet());
    fill(&machine, &store);
    lose_mark_and_data(&machine, store);
    let store = machine.open(quiet());
    let shard = store.pool(POOL).expect("the pool");
    machine.run(async move {
        for len in [3000, 3001, 4096] {
            let found = get(&shard, &format!("w{len}"), "a", u64::MAX).await.expect("read");
            assert_eq!(found, None, "its batch has no data");
        }
        let puts = later.iter().map(|name| {
            let shard = shard.clone();
            async move { put(&shard, name, "a", 2 << 20, &pattern(2, 3000)).await.expect("stored") }
        });
        join_all(puts.collect::<Vec<_>>()).await;
    });
    drop(store);
    machine.crash(CrashKeeps::Nothing);
    let store = machine.open(quiet());
    assert_eq!(machine.audit(&store).problems, [""; 0]);
    let shard = store.pool(POOL).expect("the pool");
    machine.run(async move {
        for name in later {
            let found = get(&shard, name, "a", u64::MAX).await.expect("read");
            assert!(found == Some(pattern(2, 3000)), "{name} was acknowledged");
        }
    });
}

#[test]
fn the_log_goes_on_behind_a_batch_that_was_dropped_with_the_mark_before_it() {
    // What fits the end of the ring, and what goes back to its start.
    for later in [&["x"][..], &["x", "y"], &["x", "y", "z"]] {
        go_on(later);
    }
}

#[test]
fn a_batch_that_was_dropped_is_not_believed_when_its_data_comes_to_be_there() {
    let machine = Machine::new(2, DISK);
    let (store, _) = machine.start(quiet());
    let changed = store_until_the_flush(&machine, store, &[4096], 2);
    let [_, data] = changed[..] else { panic!("one batch of one block") };
    machine.disk.rot(data, 0);
    // The second time the data is there: somebody has stored the same again, and the power has failed before that was stable.
    for time in 1..=2 {
        let store = machine.open(quiet());
        let shard = store.pool(POOL).expect("the pool");
        machine.run(async move {
            let found = get(&shard, "w4096", "a", u64::MAX).await.expect("read");
            assert!(found.is_none(), "it was never acknowledged, time {time}");
        });
        drop(store);
        machine.crash(CrashKeeps::Nothing);
        machine.disk.rot(data, 0);
    }
}

/// A machine whose last batch was never acknowledged, and the block with its data, which can't be read.
fn with_unreadable_data(seed: u64) -> (Machine, u64) {
    let machine = Machine::new(seed, DISK);
    let (store, _) = machine.start(quiet());
    let changed = store_until_the_flush(&machine, store, &[4096], 2);
    let [_, data] = changed[..] else { panic!("one batch of one block") };
    machine.disk.make_unreadable(data..data + 1);
    (machine, data)
}

/// The value that was stored last.
fn last_value(machine: &Machine, store: &Store) -> Option<Vec<u8>> {
    let shard = store.pool(POOL).expect("the pool");
    machine.run(async move { get(&shard, "w4096", "a", u64::MAX).await.expect("read") })
}

#[test]
fn a_batch_whose_data_can_not_be_read_is_dropped_and_reported() {
    let (machine, data) = with_unreadable_data(3);
    let report = machine.inspect(Depth::Everything);
    assert!(report.is_sound() && report.log.dropped, "{:?}", report.findings);
    assert!(report.findings.iter().any(|finding| (finding.what, finding.offset) == ("data", data)));
    let errors = machine.device().stats().errors;
    let store = machine.open(quiet());
    let errors = machine.device().stats().errors - errors;
    assert!(errors < 5, "{errors} reads failed: a device with eight is put out of use");
    let found = store.scrub().found.into_iter().map(|rot| (rot.location.what, rot.location.offset));
    assert_eq!(found.collect::<Vec<_>>(), [("data", data)]);
    assert_eq!(last_value(&machine, &store), None, "an open can't tell that it was acknowledged");
    // Not even once its data is there.
    drop(store);
    machine.crash(CrashKeeps::Nothing);
    machine.disk.make_readable();
    let store = machine.open(quiet());
    assert_eq!(last_value(&machine, &store), None);
}

#[test]
fn a_batch_whose_data_can_not_be_read_for_a_moment_stays() {
    let (machine, _) = with_unreadable_data(4);
    let (handle, disk) = (machine.handle(), machine.disk.clone());
    let task = machine.handle().spawn(async move {
        handle.sleep(Duration::from_millis(50)).await;
        disk.make_readable();
    });
    let store = machine.open(quiet());
    machine.run(async move { task.await.expect("it ran") });
    assert_eq!(store.scrub().found, []);
    assert_eq!(last_value(&machine, &store), Some(pattern(1, 4096)));
}
