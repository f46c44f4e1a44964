//! A target's store beside raw io_uring on the same file system, on one thread.

use crate::report::{BenchError, Report};
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;
use uuid::Uuid;
use weir_media::file::FileDevice;
use weir_media::{BLOCK, Device, DmaBuf, Slice};
use weir_proto::object::{AkeyFetch, AkeyUpdate, Conditions, Extent, Value};
use weir_proto::{ContainerId, Epoch, Key, ObjectId, PoolId, Rank, TargetIndex};
use weir_runtime::real::Executor;
use weir_runtime::{Handle, join_all};
use weir_store::{Data, FormatOptions, Owner, Shard, Store, StoreConfig};

/// Size of the store's file: the working set with room to spare.
const FILE_BYTES: u64 = 1 << 30;
/// Updates of each size.
const OPERATIONS: u64 = 8192;
/// Updates in flight at once.
const WIDTH: usize = 32;
/// Extents of a mebibyte.
const LARGE: u64 = 256;
/// Large extents in flight at once.
const LARGE_WIDTH: usize = 4;

const CONTAINER: ContainerId = ContainerId(Uuid::from_u128(2));
/// Integer dkeys and a byte array (`DAOS_OT_ARRAY_BYTE`).
const OBJECT: ObjectId = ObjectId { hi: 13 << 56, lo: 1 };

fn failed(what: &str, error: &dyn core::fmt::Display) -> BenchError {
    BenchError::Command { command: what.to_owned(), output: error.to_string() }
}

/// Runs the operations `width` at a time; operations per second.
async fn rate<F: Future<Output = bool>>(
    count: u64,
    width: usize,
    operation: impl Fn(u64) -> F,
) -> Option<f64> {
    let begin = Instant::now();
    let worker = async |worker: u64| {
        let mut all = true;
        for number in (worker..count).step_by(width) {
            all &= operation(number).await;
        }
        all
    };
    let results = join_all((0..width as u64).map(worker)).await;
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let rate = count as f64 / begin.elapsed().as_secs_f64();
    results.into_iter().all(|all| all).then_some(rate)
}

/// The raw device: writes of `len` bytes, each batch of `width` followed by one flush, and reads of them.
async fn raw(device: &dyn Device, count: u64, width: u64, len: usize) -> Option<(f64, f64)> {
    let data = Slice::from(DmaBuf::new(len));
    let begin = Instant::now();
    for batch in 0..count / width {
        let write = |at: u64| device.write((batch * width + at) * len as u64, vec![data.clone()]);
        if join_all((0..width).map(write)).await.iter().any(Result::is_err) || device.flush().await.is_err() {
            return None;
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let writes = count as f64 / begin.elapsed().as_secs_f64();
    let width = usize::try_from(width).unwrap_or(1);
    let reads =
        rate(count, width, async |at| device.read(at * len as u64, DmaBuf::new(len)).await.is_ok()).await?;
    Some((writes, reads))
}

async fn open(handle: &Handle, path: &Path) -> Result<(Rc<Store>, Shard), BenchError> {
    let device: Rc<dyn Device> =
        Rc::new(FileDevice::create(handle, path, FILE_BYTES).map_err(|error| failed("create", &error))?);
    let owner = Owner { system: "bench".to_owned(), rank: Rank(0), target: TargetIndex(0) };
    let options = FormatOptions { owner: owner.clone(), log_bytes: None };
    Store::format(handle, &device, &options).await.map_err(|error| failed("format", &error))?;
    let store = Store::open(handle, device, &owner, StoreConfig::default()).await;
    let store = store.map_err(|error| failed("open", &error))?;
    let size = store.space().capacity;
    let shard = store.create_pool(PoolId(Uuid::from_u128(1)), size).await;
    let shard = shard.map_err(|error| failed("create a pool", &error))?;
    shard.create_container(CONTAINER).await.map_err(|error| failed("create a container", &error))?;
    Ok((store, shard))
}

/// Stores and fetches extents of `len` bytes; updates and fetches per second.
async fn extents(shard: &Shard, first: u64, count: u64, width: usize, len: usize) -> Option<(f64, f64)> {
    let data = Slice::from(DmaBuf::new(len.next_multiple_of(BLOCK))).part(0..len)?;
    let akey = Key::new(b"data").ok()?;
    // As a random order as a multiplication gives: neighbours in time aren't neighbours in the index.
    let dkey = |number: u64| Key::from_u64(first + number.wrapping_mul(0x9e37_79b9) % count);
    let extent = Extent { index: 0, count: len as u64 };
    let value = Value::Array { record_size: 1, extents: vec![extent] };
    let updates = rate(count, width, async |number| {
        let update = AkeyUpdate {
            akey: akey.clone(),
            value: value.clone(),
            conditions: Conditions::NONE,
            checksums: Vec::new(),
        };
        let (epoch, data) = (Epoch(first + number + 1), Data::Shared(data.clone()));
        let none = Conditions::NONE;
        shard.update(CONTAINER, OBJECT, &dkey(number), epoch, none, &[update], data).await.is_ok()
    })
    .await?;
    let fetches = rate(count, width, async |number| {
        let fetch = AkeyFetch { akey: akey.clone(), value: value.clone(), conditions: Conditions::NONE };
        let none = Conditions::NONE;
        let mut into = vec![0; len];
        match shard.fetch(CONTAINER, OBJECT, &dkey(number), Epoch::MAX, none, &[fetch]).await {
            Ok(fetch) => fetch.read(&mut into).await.is_ok(),
            Err(_) => false,
        }
    })
    .await?;
    Some((updates, fetches))
}

/// Measures the store on a file in `scratch`.
///
/// # Errors
/// When the file can't be used or an operation fails.
pub fn measure(scratch: &Path, report: &mut Report) -> Result<(), BenchError> {
    let executor = Executor::new().map_err(|error| failed("start an executor", &error))?;
    let handle = executor.handle();
    let (raw_path, path) = (scratch.join("raw"), scratch.join("store"));
    let result = executor.block_on(async {
        let none = || failed("a transfer", &"an operation failed");
        let device =
            FileDevice::create(&handle, &raw_path, FILE_BYTES).map_err(|error| failed("create", &error))?;
        let raw_small = raw(&device, OPERATIONS, WIDTH as u64, BLOCK).await.ok_or_else(none)?;
        let raw_large = raw(&device, LARGE, LARGE_WIDTH as u64, 1 << 20).await.ok_or_else(none)?;
        drop(device);
        let (store, shard) = open(&handle, &path).await?;
        let tiny = extents(&shard, 1 << 32, OPERATIONS, WIDTH, 64).await.ok_or_else(none)?;
        let written = store.stats().device.write_bytes;
        let small = extents(&shard, 2 << 32, OPERATIONS, WIDTH, BLOCK).await.ok_or_else(none)?;
        let written = store.stats().device.write_bytes - written;
        let large = extents(&shard, 3 << 32, LARGE, LARGE_WIDTH, 1 << 20).await.ok_or_else(none)?;
        report.beside(
            "store: update 64 B, 32 in flight",
            tiny.0,
            "op/s",
            ("raw 4 KiB writes + flush per 32", raw_small.0),
            None,
        );
        report.beside(
            "store: update 4 KiB, 32 in flight",
            small.0,
            "op/s",
            ("raw 4 KiB writes + flush per 32", raw_small.0),
            None,
        );
        report.beside("store: fetch 64 B", tiny.1, "op/s", ("raw 4 KiB reads", raw_small.1), None);
        report.beside("store: fetch 4 KiB", small.1, "op/s", ("raw 4 KiB reads", raw_small.1), None);
        report.beside(
            "store: update 1 MiB",
            large.0,
            "MiB/s",
            ("raw 1 MiB writes + flush per 4", raw_large.0),
            Some("at least 0.95 of raw"),
        );
        report.beside(
            "store: fetch 1 MiB",
            large.1,
            "MiB/s",
            ("raw 1 MiB reads", raw_large.1),
            Some("at least 0.95 of raw"),
        );
        #[expect(clippy::cast_precision_loss, reason = "bytes are far below 2^52")]
        let amplification = written as f64 / (OPERATIONS * BLOCK as u64) as f64;
        report.figure(
            "store: bytes written per byte of 4 KiB updates",
            amplification,
            "",
            Some("at most 1.3"),
        );
        let entries = store.stats().entries.max(1);
        #[expect(clippy::cast_precision_loss, reason = "bytes are far below 2^52")]
        let memory = store.index_memory() as f64 / entries as f64;
        report.figure("store: index memory per entry", memory, "B", None);
        store.close().await.map_err(|error| failed("close", &error))
    });
    for path in [raw_path, path] {
        // Scratch: a file that is left is in the way of nobody but the next run, which reports it.
        let _ = std::fs::remove_file(path);
    }
    result
}
