//! The store on real files through io_uring with `O_DIRECT`.

use crate::setup::*;
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use weir_media::file::FileDevice;
use weir_media::memory::MemoryDevice;
use weir_media::{Device, DmaBuf, Slice};
use weir_proto::object::{Conditions, PunchScope};
use weir_proto::{Epoch, Key};
use weir_runtime::real::Executor;
use weir_runtime::{Handle, join_all};
use weir_store::{Data, OpenError, Shard, Store, StoreConfig};

const SIZE: u64 = 128 << 20;

fn directory() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("weir-store")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a scratch directory")
}

fn device(handle: &Handle, path: &Path) -> Rc<dyn Device> {
    let device =
        if path.exists() { FileDevice::open(handle, path) } else { FileDevice::create(handle, path, SIZE) };
    Rc::new(device.expect("a file"))
}

async fn create(handle: &Handle, path: &Path) -> (Rc<Store>, Shard) {
    let file = device(handle, path);
    let error =
        Store::open(handle, Rc::clone(&file), &owner(), quiet()).await.expect_err("nothing there yet");
    assert!(matches!(error, OpenError::Blank { .. }));
    Store::format(handle, &file, &format_options()).await.expect("an empty file");
    let store = Store::open(handle, file, &owner(), quiet()).await.expect("a new store");
    let shard = store.create_pool(POOL, store.space().capacity).await.expect("space");
    shard.create_container(CONTAINER).await.expect("a container");
    (store, shard)
}

/// Dkeys that are overwritten and aggregated while another task counts its turns.
const OVERWRITTEN: u64 = 500;

#[test]
fn others_run_between_the_steps_of_aggregation() {
    let executor = Executor::new().expect("an executor");
    let handle = executor.handle();
    executor.block_on(async {
        let disk: Rc<dyn Device> = Rc::new(MemoryDevice::new(64 << 20));
        Store::format(&handle, &disk, &format_options()).await.expect("an empty device");
        let store = Store::open(&handle, disk, &owner(), quiet()).await.expect("a new store");
        let shard = store.create_pool(POOL, store.space().capacity).await.expect("space");
        shard.create_container(CONTAINER).await.expect("a container");
        for round in [1, 2] {
            let writes =
                (0..OVERWRITTEN).map(|dkey| write(&shard, dkey, round * OVERWRITTEN + dkey, 0, &[7; 100]));
            for written in writes.collect::<Vec<_>>() {
                written.await.expect("stored");
            }
        }
        let turns = Rc::new(Cell::new(0u64));
        let (count, other) = (Rc::clone(&turns), handle.clone());
        let counting = handle.spawn(async move {
            loop {
                other.yield_now().await;
                count.set(count.get() + 1);
            }
        });
        shard.aggregate(CONTAINER, Epoch(10 * OVERWRITTEN)).await.expect("aggregated");
        counting.abort();
        assert_eq!(store.stats().aggregated, OVERWRITTEN);
        assert!(turns.get() >= OVERWRITTEN, "{} turns while {OVERWRITTEN} dkeys were visited", turns.get());
    });
}

#[test]
fn the_cache_serves_what_was_written_and_what_was_read_and_never_what_was_overwritten() {
    let executor = Executor::new().expect("an executor");
    let handle = executor.handle();
    executor.block_on(async {
        let disk: Rc<dyn Device> = Rc::new(MemoryDevice::new(64 << 20));
        Store::format(&handle, &disk, &format_options()).await.expect("an empty device");
        let config = StoreConfig { cache_bytes: 1 << 20, ..quiet() };
        let owner = owner();
        let open = || Store::open(&handle, Rc::clone(&disk), &owner, config.clone());
        let store = open().await.expect("a new store");
        let shard = store.create_pool(POOL, store.space().capacity).await.expect("space");
        shard.create_container(CONTAINER).await.expect("a container");
        for (epoch, seed) in [(1, 1), (2, 2)] {
            write(&shard, 0, epoch, 0, &pattern(seed, 4096)).await.expect("stored");
        }
        let stats = || (store.stats().cache.hits, store.stats().device.reads);
        let (_, reads) = stats();
        for (epoch, seed) in [(u64::MAX, 2), (1, 1)] {
            let found = read(&shard, 0, epoch, 0, 4096).await.expect("read");
            assert!(found.0 == pattern(seed, 4096), "the version of epoch {epoch}");
        }
        assert_eq!(read(&shard, 0, u64::MAX, 100, 20).await.expect("read").0, pattern(2, 4096)[100..120]);
        assert_eq!(stats(), (3, reads), "all of it came from memory");
        // The blocks of the first version are given out again and again.
        shard.aggregate(CONTAINER, Epoch(2)).await.expect("aggregated");
        for round in 3..600u64 {
            write(&shard, 0, round, 0, &pattern(round, 4096)).await.expect("stored");
            let found = read(&shard, 0, u64::MAX, 0, 4096).await.expect("read");
            assert!(found.0 == pattern(round, 4096), "round {round}");
            if round % 16 == 0 {
                shard.aggregate(CONTAINER, Epoch(round)).await.expect("aggregated");
            }
        }
        assert!(store.stats().cache.bytes <= 1 << 20);
        store.close().await.expect("closed");
        let store = open().await.expect("it opens");
        let shard = store.pool(POOL).expect("the pool");
        for (misses, hits) in [(1, 0), (1, 1)] {
            assert!(read(&shard, 0, u64::MAX, 0, 4096).await.expect("read").0 == pattern(599, 4096));
            assert_eq!((store.stats().cache.misses, store.stats().cache.hits), (misses, hits));
        }
    });
}

#[test]
fn concurrent_updates_share_flushes_and_survive_a_stop_without_goodbye() {
    let (directory, executor) = (directory(), Executor::new().expect("an executor"));
    let (handle, path) = (executor.handle(), directory.path().join("target0"));
    let total = 400u64;
    executor.block_on(async {
        let (store, shard) = create(&handle, &path).await;
        let update = async |number: u64| {
            let len = [64, 1000, 4096, 20_000][number as usize % 4];
            put(&shard, &format!("d{number}"), "a", number + 1, &pattern(number, len)).await
        };
        let results = join_all((0..total).map(update)).await;
        assert!(results.iter().all(Result::is_ok));
        let stats = store.stats();
        assert!(stats.commit.records >= total);
        assert!(stats.commit.batches * 4 < total, "{} batches for {total} updates", stats.commit.batches);
        assert_eq!(stats.commit.latency.count, stats.commit.batches);
        assert_eq!(stats.checkpoints, 0);
        // Not closed: what follows finds the log.
    });
    drop(executor);
    let executor = Executor::new().expect("an executor");
    let handle = executor.handle();
    executor.block_on(async {
        let store =
            Store::open(&handle, device(&handle, &path), &owner(), quiet()).await.expect("it recovers");
        assert!(store.stats().replayed_records >= total);
        let shard = store.pool(POOL).expect("the pool");
        for number in 0..total {
            let len = [64, 1000, 4096, 20_000][number as usize % 4];
            let found = get(&shard, &format!("d{number}"), "a", u64::MAX).await.expect("read");
            assert!(found == Some(pattern(number, len)), "value {number}");
        }
        store.close().await.expect("closed");
    });
}

#[test]
fn a_megabyte_extent_goes_straight_from_shared_memory_to_the_file() {
    let (directory, executor) = (directory(), Executor::new().expect("an executor"));
    let (handle, path) = (executor.handle(), directory.path().join("target0"));
    executor.block_on(async {
        let (store, shard) = create(&handle, &path).await;
        let bytes = pattern(1, 1 << 20);
        let slice = Slice::from(DmaBuf::copy_of(&bytes));
        let before = store.stats().device.write_bytes;
        for number in 0..32u64 {
            let update = [array("data", 1, &[(number << 20, 1 << 20)])];
            let (dkey, none) = (Key::from_u64(number), Conditions::NONE);
            let data = Data::Shared(slice.clone());
            shard
                .update(CONTAINER, ARRAY, &dkey, Epoch(number + 1), none, &update, data)
                .await
                .expect("stored");
        }
        let written = store.stats().device.write_bytes - before;
        // Two steps by which the log of a new file is prepared ahead come on top.
        let most = (32 << 20) + 32 * 8192 + (2 << 20);
        assert!(written < most, "{written} bytes were written for 32 MiB");
        for number in 0..32u64 {
            let (data, present) = read(&shard, number, u64::MAX, number << 20, 1 << 20).await.expect("read");
            assert!(data == bytes && present.len() == 1);
        }
        punch(&shard, ARRAY, PunchScope::Object, 100).await.expect("punched");
        shard.aggregate(CONTAINER, Epoch(101)).await.expect("aggregated");
        assert_eq!(shard.space().data, 0);
        store.close().await.expect("closed");
    });
}
