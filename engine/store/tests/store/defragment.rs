//! Defragmentation: holes between values become room for long extents; nothing is lost by it, whenever the power fails,
//! and damage is not sealed in.

use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use weir_media::sim::CrashKeeps;
use weir_proto::Epoch;
use weir_proto::object::PunchScope;
use weir_runtime::random::Random;
use weir_store::{FetchError, PoolError, Shard, Store, StoreConfig};

const DISK: u64 = 40 << 20;

/// Bytes of a value: three blocks, so that a segment holds many.
fn value(number: u64) -> Vec<u8> {
    pattern(number, 9000 + (number % 3) as usize * 1000)
}

fn name(number: u64) -> String {
    format!("f{number}")
}

/// A store that was filled with small values, most of which are gone: every segment has something in it. Returns the
/// numbers of those that are left.
fn scattered(machine: &Machine, config: StoreConfig, seed: u64) -> (Rc<Store>, Shard, Vec<u64>) {
    machine.format();
    let store = machine.open(config);
    let (opened, random) = (Rc::clone(&store), Random::new(seed));
    let handle = machine.handle();
    let (shard, left) = machine.run(async move {
        let shard = opened.create_pool(POOL, opened.space().capacity).await.expect("space");
        shard.create_container(CONTAINER).await.expect("a container");
        let count = opened.space().capacity * 9 / 10 / 12_288;
        for number in 0..count {
            put(&shard, &name(number), "a", handle.wall_ns(), &value(number)).await.expect("stored");
        }
        let (left, gone): (Vec<u64>, Vec<u64>) = (0..count).partition(|_| random.below(5) == 0);
        for number in gone {
            let scope = PunchScope::Dkeys(vec![key(&name(number))]);
            punch(&shard, OBJECT, scope, handle.wall_ns()).await.expect("punched");
        }
        shard.aggregate(CONTAINER, Epoch(handle.wall_ns())).await.expect("aggregated");
        (shard, left)
    });
    (store, shard, left)
}

async fn check_left(shard: &Shard, left: &[u64]) {
    for number in left {
        let found = get(shard, &name(*number), "a", u64::MAX).await.expect("read");
        assert!(found == Some(value(*number)), "value {number}");
    }
}

#[test]
fn holes_become_room_for_long_extents() {
    let machine = Machine::new(1, DISK);
    let (store, shard, left) = scattered(&machine, quiet(), 1);
    let before = machine.audit(&store);
    assert!(before.segments.1 * 5 < before.segments.0, "not scattered: {before:?}");
    let space = (store.space(), shard.space());
    let opened = Rc::clone(&store);
    let moved = machine.run(async move { opened.defragment().await }).expect("a healthy disk");
    let after = machine.audit(&store);
    assert_eq!(after.problems, [""; 0]);
    assert!(moved > 100 && after.segments.1 * 10 > after.segments.0 * 6, "{moved} moved: {after:?}");
    assert_eq!(after.data_blocks, before.data_blocks, "nobody has more or less than before");
    // A checkpoint in between gives places of index nodes back.
    assert!(store.space().used <= space.0.used, "{:?}, before {:?}", store.space(), space.0);
    assert_eq!(shard.space().data, space.1.data);
    let opened = Rc::clone(&store);
    let reads = machine.run(async move {
        check_left(&shard, &left).await;
        // An extent of the full length is in one piece: one read fetches it.
        put(&shard, "long", "a", 1 << 62, &pattern(7, 1 << 20)).await.expect("stored");
        let before = opened.stats().device.reads;
        assert!(get(&shard, "long", "a", u64::MAX).await == Ok(Some(pattern(7, 1 << 20))));
        let reads = opened.stats().device.reads - before;
        assert_eq!(opened.defragment().await, Ok(0), "nothing is left to be gained");
        reads
    });
    assert_eq!(reads, 1);
}

/// How many values of a block find room, after defragmentation was begun and given up, or without.
fn room(gives_up: bool) -> u64 {
    let machine = Machine::new(3, DISK);
    let (store, shard, _) = scattered(&machine, quiet(), 3);
    let handle = machine.handle();
    machine.run(async move {
        if gives_up {
            let begun = handle.timeout(Duration::from_millis(20), store.defragment()).await;
            assert!(begun.is_err() && store.stats().relocated > 0, "it is at it");
        }
        let mut stored = 0;
        while put(&shard, &format!("g{stored}"), "a", 1 << 62, &pattern(stored, 4096)).await.is_ok() {
            stored += 1;
        }
        stored
    })
}

#[test]
fn defragmentation_that_is_given_up_keeps_no_room_from_others() {
    let (given_up, untouched) = (room(true), room(false));
    assert!(given_up * 20 > untouched * 19, "{given_up} values found room, {untouched} without");
}

#[test]
fn background_work_defragments_when_room_runs_short() {
    let machine = Machine::new(2, DISK);
    let config = StoreConfig { retention: Duration::from_secs(1), ..StoreConfig::default() };
    let (store, shard, left) = scattered(&machine, config, 2);
    machine.sleep(Duration::from_mins(3));
    let audit = machine.audit(&store);
    assert_eq!(audit.problems, [""; 0]);
    assert!(store.stats().relocated > 10 && audit.segments.1 * 8 >= audit.segments.0, "{audit:?}");
    // With room there is nothing to do.
    let moved = store.stats().relocated;
    machine.sleep(Duration::from_mins(5));
    assert_eq!(store.stats().relocated, moved);
    machine.run(async move { check_left(&shard, &left).await });
}

/// Cuts the power in the middle of defragmentation. Returns whether it was before the end.
fn crash_at(seed: u64, at: u64) -> bool {
    let machine = Machine::new(seed, 24 << 20);
    let (store, _shard, left) = scattered(&machine, quiet(), seed);
    machine.disk.halt_at(machine.disk.operations() + at);
    let opened = Rc::clone(&store);
    let finished = machine.world.try_block_on(&machine.node, Duration::from_mins(10), async move {
        opened.defragment().await.expect("a healthy disk");
        // What was freed is given out again.
        let shard = opened.pool(POOL).expect("the pool");
        for number in 0..20 {
            put(&shard, "new", "a", (1 << 62) + number, &pattern(number, 300_000)).await.expect("stored");
        }
    });
    drop(store);
    machine.crash(CrashKeeps::Any);
    let store = machine.open(quiet());
    assert_eq!(machine.audit(&store).problems, [""; 0], "seed {seed}, halt at {at}");
    let shard = store.pool(POOL).expect("the pool");
    machine.run(async move { check_left(&shard, &left).await });
    finished.is_err()
}

#[test]
fn halts_during_defragmentation_lose_nothing() {
    for seed in 50..54 {
        let mut at = seed % 7;
        while crash_at(seed, at) {
            at += 41;
        }
        assert!(at > 80, "only {at} operations");
    }
}

#[test]
fn what_is_damaged_stays_where_it_is_and_is_still_reported() {
    let machine = Machine::new(3, DISK);
    let (store, shard, left) = scattered(&machine, quiet(), 3);
    let place = |number: u64| {
        let value = value(number);
        let found = (0..DISK / 4096).find(|at| machine.disk.bytes(at * 4096, 4096) == value[..4096]);
        found.expect("the data") * 4096
    };
    let damaged: Vec<(u64, u64)> = left.iter().map(|number| (*number, place(*number))).take(60).collect();
    for (number, place) in &damaged {
        machine.disk.rot(place + 5000, (number % 8) as u8);
    }
    let opened = Rc::clone(&store);
    machine.run(async move { opened.defragment().await }).expect("a healthy disk");
    assert!(store.stats().relocated > 50, "others were moved");
    machine.run(async move {
        for (number, place) in damaged {
            let found = get(&shard, &name(number), "a", u64::MAX).await;
            let Err(FetchError::Corrupt { location, .. }) = found else {
                panic!("value {number}: {found:?}")
            };
            assert_eq!(location.offset, place + 4096);
        }
    });
}

#[test]
fn what_lies_behind_a_damaged_node_is_moved() {
    let machine = Machine::new(4, DISK);
    let (store, shard, left) = scattered(&machine, quiet(), 4);
    let (mut names, marker): (Vec<String>, _) = (left.into_iter().map(name).collect(), pattern(77, 60));
    names.sort();
    let (sixth, lost, handle) = (names.len() / 6, marker.clone(), machine.handle());
    machine.run(async move {
        put(&shard, &names[sixth], "b", handle.wall_ns(), &marker).await.expect("stored");
        store.close().await.expect("closed");
    });
    machine.rot_all(&lost);
    let store = machine.open(cramped());
    let opened = Rc::clone(&store);
    let error =
        machine.run(async move { opened.defragment().await }).expect_err("a part of the index is damaged");
    assert!(matches!(error, PoolError::Index(_)), "{error}");
    let moved = store.stats().relocated;
    assert!(moved > 20, "{moved} values were moved");
}
