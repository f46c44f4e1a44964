//! An index larger than its memory: every operation finds what it needs, memory stays within its bound, an open reads
//! next to nothing, and damage of a node that is read late is an error that says where.

use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use weir_media::sim::CrashKeeps;
use weir_proto::object::{Conditions, KeyQuery, ListScope, PunchScope};
use weir_proto::{Epoch, Key};
use weir_runtime::join_all;
use weir_store::{FetchError, PoolError, Shard, Store, StoreConfig, UpdateError};

const DISK: u64 = 96 << 20;

/// Dkeys of the array, each with an inline extent.
const FILLED: u64 = 4000;

/// Bytes of each: a leaf holds some seven.
const LEN: usize = 2000;

/// A tenth of what the index takes.
const MEMORY: usize = FILLED as usize * LEN / 10;

/// Nodes that operations under way may hold beyond the limit, and those that are dirty.
const SLACK: u64 = 50 * 16 * 1024;

fn small() -> StoreConfig {
    StoreConfig { index_bytes: MEMORY, ..quiet() }
}

async fn fill(shard: &Shard) {
    for part in (0..FILLED).collect::<Vec<u64>>().chunks(50) {
        let writes = part
            .iter()
            .map(|number| async move { write(shard, *number, *number + 1, 0, &pattern(*number, LEN)).await });
        assert!(join_all(writes).await.iter().all(Result::is_ok));
    }
}

/// A closed store with an index ten times its memory.
fn filled(seed: u64) -> Machine {
    let machine = Machine::new(seed, DISK);
    let (store, shard) = machine.start(small());
    let opened = Rc::clone(&store);
    machine.run(async move {
        fill(&shard).await;
        opened.close().await.expect("closed");
    });
    machine
}

fn check_memory(store: &Store) {
    let index = store.stats().index;
    assert!(index.memory <= MEMORY as u64 + SLACK, "{index:?}");
}

#[test]
fn an_open_reads_the_same_few_nodes_however_large_the_index_is() {
    let reads = [0, FILLED].map(|filled_to| {
        let machine = if filled_to == 0 {
            let machine = Machine::new(1, DISK);
            drop(machine.start(small()));
            machine
        } else {
            filled(1)
        };
        let store = machine.open(small());
        let stats = store.stats();
        assert!(stats.index.faults <= 4, "{:?}", stats.index);
        (stats.device.reads, stats.entries)
    });
    assert!(reads[1].1 > 3 * FILLED && reads[1].0 <= reads[0].0 + 8, "reads and entries: {reads:?}");
}

#[test]
fn every_operation_works_on_an_index_ten_times_its_memory() {
    let machine = filled(2);
    let store = machine.open(small());
    let shard = store.pool(POOL).expect("the pool");
    let (user, opened) = (shard.clone(), Rc::clone(&store));
    machine.run(async move {
        for number in (0..FILLED).step_by(7).chain((0..FILLED).rev().step_by(11)) {
            let found = read(&user, number, u64::MAX, 0, LEN as u64).await.expect("read");
            assert!(found.0 == pattern(number, LEN), "value {number}");
            check_memory(&opened);
        }
        let (mut listed, mut anchor) = (Vec::new(), Vec::new());
        loop {
            let (scope, epoch) = (ListScope::Dkeys, Epoch::MAX);
            let page = user.list(CONTAINER, ARRAY, &scope, epoch, &anchor, 500, None).await.expect("a page");
            listed.extend(page.entries.into_iter().map(|entry| entry.key));
            check_memory(&opened);
            match page.next {
                Some(next) => anchor = next,
                None => break,
            }
        }
        let expected = (0..FILLED).map(|number| Key::from_u64(number).as_bytes().to_vec());
        assert!(listed.into_iter().eq(expected));
        // The last dkeys have no records at an early epoch: the search goes back through all of them.
        let query = KeyQuery::Search { max: true, dkey: None, akey: Some(key("data")), extent: true };
        let found = search(&user, CONTAINER, ARRAY, 3, &query, async || {}).await.expect("an answer");
        assert_eq!(found.0.dkey, Some(Key::from_u64(2)));
        check_memory(&opened);
        let step = (0..FILLED).step_by(13).map(|number| {
            let user = user.clone();
            async move { write(&user, number, 10_000 + number, 5, &pattern(number + 1, 300)).await }
        });
        assert!(join_all(step).await.iter().all(Result::is_ok));
        opened.checkpoint().await.expect("a checkpoint");
        check_memory(&opened);
        user.aggregate(CONTAINER, Epoch(20_000)).await.expect("aggregated");
        check_memory(&opened);
        let dkeys = (1000..1200).map(Key::from_u64).collect();
        punch(&user, ARRAY, PunchScope::Dkeys(dkeys), 30_000).await.expect("punched");
        user.aggregate(CONTAINER, Epoch(40_000)).await.expect("aggregated");
    });
    assert_eq!(machine.audit(&store).problems, [""; 0]);
    check_memory(&store);
    assert!(store.stats().index.evictions > 500, "{:?}", store.stats().index);
    drop((store, shard));
    machine.crash(CrashKeeps::Any);
    let store = machine.open(small());
    assert_eq!(machine.audit(&store).problems, [""; 0]);
    let shard = store.pool(POOL).expect("the pool");
    machine.run(async move {
        assert!(read(&shard, 1100, u64::MAX, 0, 10).await.expect("read").1.is_empty());
        let (data, _) = read(&shard, 13, u64::MAX, 0, LEN as u64).await.expect("read");
        let mut expected = pattern(13, LEN);
        expected[5..305].copy_from_slice(&pattern(14, 300));
        assert!(data == expected);
    });
}

#[test]
fn reclaim_of_a_container_works_through_an_index_beyond_its_memory() {
    let machine = filled(3);
    let config = StoreConfig { background: true, ..small() };
    let store = machine.open(config);
    let shard = store.pool(POOL).expect("the pool");
    let user = shard.clone();
    machine.run(async move { user.destroy_container(CONTAINER).await.expect("destroyed") });
    machine.sleep(Duration::from_mins(1));
    assert!(shard.containers().is_empty());
    assert_eq!(shard.space().used(), 0);
    check_memory(&store);
    let opened = Rc::clone(&store);
    machine.run(async move {
        opened.checkpoint().await.expect("a checkpoint");
        opened.checkpoint().await.expect("a checkpoint");
    });
    assert_eq!(machine.audit(&store).problems, [""; 0]);
    assert!(store.space().used < 256 << 10, "{:?}", store.space());
}

#[test]
fn readers_of_cold_nodes_share_one_read_and_an_abandoned_one_blocks_nobody() {
    let machine = filled(4);
    let store = machine.open(small());
    let shard = store.pool(POOL).expect("the pool");
    let opened = Rc::clone(&store);
    let handle = machine.handle();
    machine.run(async move {
        let before = opened.stats().index.faults;
        // The first to ask is gone before its read has ended.
        let first = shard.clone();
        let abandoned = handle.spawn(async move { read(&first, 2000, u64::MAX, 0, 10).await });
        handle.yield_now().await;
        abandoned.abort();
        let reads = join_all((0..20).map(|_| read(&shard, 2000, u64::MAX, 0, LEN as u64))).await;
        assert!(reads.iter().all(|found| found.as_ref().is_ok_and(|found| found.0 == pattern(2000, LEN))));
        let faults = opened.stats().index.faults - before;
        assert!(faults <= 4, "{faults} nodes were read");
    });
}

/// Where the leaf with this value is on the disk.
fn leaf_of(machine: &Machine, number: u64) -> u64 {
    let value = pattern(number, LEN);
    let mut leaf = None;
    for at in 0..DISK / 4096 {
        let block = machine.disk.bytes(at * 4096, 4096);
        if block.starts_with(b"WNOD") {
            leaf = Some(at * 4096);
        }
        let whole = machine.disk.bytes(at * 4096, (4096 * 2).min((DISK - at * 4096) as usize));
        if leaf.is_some_and(|leaf| at * 4096 - leaf < 16_384)
            && whole.windows(64).any(|window| *window == value[..64])
        {
            return leaf.expect("it was found");
        }
    }
    panic!("value {number} is in no leaf");
}

#[test]
fn damage_of_a_node_that_is_read_late_is_reported_with_its_place_and_nothing_else_is_harmed() {
    let machine = filled(5);
    let offset = leaf_of(&machine, 2000);
    machine.disk.rot(offset + 5000, 3);
    let config = StoreConfig { background: true, background_interval: Duration::from_millis(5), ..small() };
    let store = machine.open(config);
    let shard = store.pool(POOL).expect("the pool");
    let opened = Rc::clone(&store);
    machine.run(async move {
        let error = read(&shard, 2000, u64::MAX, 0, 10).await.expect_err("damaged");
        let FetchError::Index { location, reason } = &error else { panic!("{error}") };
        assert_eq!((location.offset, location.what), (offset, "an index node"));
        assert!(reason.contains("checksum") && error.to_string().contains("disk"), "{error}");
        let error = write(&shard, 2000, 50_000, 0, b"new").await.expect_err("damaged");
        let UpdateError::Index { location, .. } = &error else { panic!("{error}") };
        assert_eq!(location.offset, offset);
        let dkeys = PunchScope::Dkeys(vec![Key::from_u64(2000)]);
        let error = shard.punch(CONTAINER, ARRAY, &dkeys, Epoch(50_001), Conditions::NONE).await;
        assert!(matches!(error, Err(UpdateError::Index { .. })));
        let (scope, epoch) = (ListScope::Dkeys, Epoch::MAX);
        let anchor = Key::from_u64(1900);
        let page = shard.list(CONTAINER, ARRAY, &scope, epoch, anchor.as_bytes(), 500, None).await;
        assert!(matches!(page, Err(FetchError::Index { .. })), "{page:?}");
        let error = shard.aggregate(CONTAINER, Epoch(60_000)).await.expect_err("damaged");
        assert!(matches!(&error, PoolError::Index(_)), "{error}");
        // Everything else goes on.
        for number in [0, 1980, 2020, FILLED - 1] {
            let found = read(&shard, number, u64::MAX, 0, LEN as u64).await.expect("read");
            assert!(found.0 == pattern(number, LEN), "value {number}");
        }
        write(&shard, 3000, 50_002, 0, b"new").await.expect("stored");
        opened.checkpoint().await.expect("a checkpoint");
        let audit = opened.audit().await;
        assert!(audit.problems.iter().any(|problem| problem.contains("an index node")), "{audit:?}");
    });
    machine.sleep(Duration::from_secs(10));
    let shard = store.pool(POOL).expect("the pool");
    machine.run(async move {
        write(&shard, 1, 50_003, 0, b"new").await.expect("background work has not stopped the store");
    });
    assert!(store.stats().index.errors >= 5, "{:?}", store.stats().index);
}

#[test]
fn damage_of_a_node_that_is_only_read_ahead_harms_nobody() {
    const EXTENTS: u64 = 100;
    let machine = filled(8);
    let store = machine.open(small());
    let shard = store.pool(POOL).expect("the pool");
    let opened = Rc::clone(&store);
    machine.run(async move {
        for at in 0..EXTENTS {
            let data = pattern(FILLED + at, LEN);
            write(&shard, FILLED, 100_000 + at, at * LEN as u64, &data).await.expect("stored");
        }
        opened.close().await.expect("closed");
    });
    drop(store);
    machine.rot_all(&pattern(FILLED + 40, LEN));
    let store = machine.open(small());
    let shard = store.pool(POOL).expect("the pool");
    machine.run(async move {
        let (data, _) = read(&shard, FILLED, u64::MAX, 0, 30 * LEN as u64).await.expect("it is all there");
        assert!(data.chunks(LEN).zip(FILLED..).all(|(part, number)| part == pattern(number, LEN)));
        let error = read(&shard, FILLED, u64::MAX, 0, 50 * LEN as u64).await.expect_err("damaged");
        assert!(matches!(error, FetchError::Index { .. }), "{error}");
    });
    assert!(store.stats().index.errors > 1, "the damaged leaf wasn't read ahead");
}

#[test]
fn a_read_that_fails_once_is_tried_again_by_the_next_reader() {
    let machine = filled(6);
    let store = machine.open(small());
    let shard = store.pool(POOL).expect("the pool");
    let disk = machine.disk.clone();
    machine.run(async move {
        let broken = weir_media::sim::SimDiskOptions { error_probability: 1.0, ..Default::default() };
        disk.set_options(broken);
        let error = read(&shard, 2000, u64::MAX, 0, 10).await.expect_err("the device fails");
        assert!(matches!(error, FetchError::Media(_)), "{error}");
        disk.set_options(weir_media::sim::SimDiskOptions::default());
        let found = read(&shard, 2000, u64::MAX, 0, LEN as u64).await.expect("read");
        assert!(found.0 == pattern(2000, LEN));
    });
}

#[test]
fn the_same_seed_gives_the_same_faults_and_evictions() {
    let run = || {
        let machine = filled(7);
        let store = machine.open(small());
        let shard = store.pool(POOL).expect("the pool");
        machine.run(async move {
            let reads = (0..FILLED).step_by(3).map(|number| {
                let shard = shard.clone();
                async move { read(&shard, number * 7919 % FILLED, u64::MAX, 0, 10).await }
            });
            assert!(join_all(reads).await.iter().all(Result::is_ok));
        });
        let stats = store.stats();
        (stats.index, machine.device().stats().reads, machine.handle().now())
    };
    assert_eq!(run(), run());
}
