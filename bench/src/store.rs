//! A target's store beside raw io_uring and beside other storage libraries on the same file system, on one thread.

use crate::references::{self, Own};
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

/// The extents of the load: their keys and what an akey of them holds.
struct Load {
    akey: Key,
    value: Value,
    first: u64,
    count: u64,
}

impl Load {
    fn new(first: u64, count: u64, len: usize) -> Option<Self> {
        let extent = Extent { index: 0, count: len as u64 };
        let value = Value::Array { record_size: 1, extents: vec![extent] };
        Some(Self { akey: Key::new(b"data").ok()?, value, first, count })
    }

    /// As a random order as a multiplication gives: neighbours in time aren't neighbours in the index.
    fn dkey(&self, number: u64) -> Key {
        Key::from_u64(self.first + number.wrapping_mul(0x9e37_79b9) % self.count)
    }
}

/// Stores extents of `len` bytes; updates per second.
async fn updates(shard: &Shard, first: u64, count: u64, width: usize, len: usize) -> Option<f64> {
    let data = Slice::from(DmaBuf::new(len.next_multiple_of(BLOCK))).part(0..len)?;
    let load = Load::new(first, count, len)?;
    rate(count, width, async |number| {
        let (akey, value) = (load.akey.clone(), load.value.clone());
        let update = AkeyUpdate { akey, value, conditions: Conditions::NONE, checksums: Vec::new() };
        let (epoch, data) = (Epoch(first + number + 1), Data::Shared(data.clone()));
        let none = Conditions::NONE;
        shard.update(CONTAINER, OBJECT, &load.dkey(number), epoch, none, &[update], data).await.is_ok()
    })
    .await
}

/// Fetches what [`updates`] stored; fetches per second.
async fn fetches(shard: &Shard, first: u64, count: u64, width: usize, len: usize) -> Option<f64> {
    let load = Load::new(first, count, len)?;
    rate(count, width, async |number| {
        let (akey, value) = (load.akey.clone(), load.value.clone());
        let fetch = AkeyFetch { akey, value, conditions: Conditions::NONE };
        let none = Conditions::NONE;
        let mut into = vec![0; len];
        match shard.fetch(CONTAINER, OBJECT, &load.dkey(number), Epoch::MAX, none, &[fetch]).await {
            Ok(fetch) => fetch.read(&mut into).await.is_ok(),
            Err(_) => false,
        }
    })
    .await
}

/// What an operation costs beside time.
struct Cost {
    cpu_us: f64,
    writes: f64,
    bytes: f64,
    flushes: f64,
}

/// What the store's counters and the thread's clock say now.
fn costs(store: &Store) -> [f64; 4] {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let device = store.stats().device;
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let float = |count: u64| count as f64;
    let nanoseconds = float(u64::try_from(time.tv_nsec).unwrap_or(0));
    let cpu = float(u64::try_from(time.tv_sec).unwrap_or(0)) * 1e6 + nanoseconds / 1e3;
    [cpu, float(device.writes), float(device.write_bytes), float(device.flushes)]
}

impl Cost {
    /// Per operation, between two looks.
    fn between(before: [f64; 4], after: [f64; 4], operations: f64) -> Self {
        let each = |at: usize| (after[at] - before[at]) / operations;
        Self { cpu_us: each(0), writes: each(1), bytes: each(2), flushes: each(3) }
    }
}

/// Time that 99 of 100 updates of 4 KiB stay below, 32 in flight, in microseconds.
async fn p99_us(shard: &Shard, first: u64) -> Option<f64> {
    let times = core::cell::RefCell::new(Vec::new());
    let data = Slice::from(DmaBuf::new(BLOCK));
    let load = Load::new(first, OPERATIONS, BLOCK)?;
    rate(OPERATIONS, WIDTH, async |number| {
        let (akey, value) = (load.akey.clone(), load.value.clone());
        let update = AkeyUpdate { akey, value, conditions: Conditions::NONE, checksums: Vec::new() };
        let dkey = load.dkey(number);
        let (epoch, data) = (Epoch(first + number + 1), Data::Shared(data.clone()));
        let begin = Instant::now();
        let stored = shard.update(CONTAINER, OBJECT, &dkey, epoch, Conditions::NONE, &[update], data).await;
        times.borrow_mut().push(begin.elapsed());
        stored.is_ok()
    })
    .await?;
    let mut times = times.into_inner();
    times.sort_unstable();
    Some(times.get(times.len() * 99 / 100)?.as_secs_f64() * 1e6)
}

/// Checkpoints one behind the other, until dropped.
async fn keep_checkpointing(store: Rc<Store>, handle: Handle) {
    while store.checkpoint().await.is_ok() {
        handle.yield_now().await;
    }
}

/// Latencies of updates while nothing else runs, and while checkpoints do.
async fn latencies(
    handle: &Handle,
    store: &Rc<Store>,
    shard: &Shard,
    report: &mut Report,
) -> Result<(), BenchError> {
    let none = || failed("a transfer", &"an operation failed");
    // Warm: the first updates make the index grow.
    p99_us(shard, 4 << 32).await.ok_or_else(none)?;
    let idle = p99_us(shard, 5 << 32).await.ok_or_else(none)?;
    let checkpoints = store.stats().checkpoints;
    let task = handle.spawn(keep_checkpointing(Rc::clone(store), handle.clone()));
    let busy = p99_us(shard, 6 << 32).await;
    task.abort();
    let busy = busy.ok_or_else(none)?;
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let count = (store.stats().checkpoints - checkpoints) as f64;
    let goal = Some("at most 2");
    report.beside(
        "store: p99 of 4 KiB updates during checkpoints",
        busy,
        "us",
        ("p99 while idle", idle),
        goal,
    );
    report.figure("store: checkpoints during that", count, "", None);
    Ok(())
}

/// The rows of updates and fetches beside the raw device.
fn report_raw(
    report: &mut Report,
    raw: [(f64, f64); 2],
    tiny: (f64, f64),
    small: (f64, f64),
    large: (f64, f64),
) {
    let [raw_small, raw_large] = raw;
    let (writes, reads) =
        (("raw 4 KiB writes + flush per 32", raw_small.0), ("raw 4 KiB reads", raw_small.1));
    report.beside("store: update 64 B, 32 in flight", tiny.0, "op/s", writes, None);
    report.beside("store: update 4 KiB, 32 in flight", small.0, "op/s", writes, None);
    report.beside("store: fetch 64 B", tiny.1, "op/s", reads, None);
    report.beside("store: fetch 4 KiB", small.1, "op/s", reads, None);
    let goal = Some("at least 0.95 of raw");
    let writes = ("raw 1 MiB writes + flush per 4", raw_large.0);
    report.beside("store: update 1 MiB", large.0, "MiB/s", writes, goal);
    report.beside("store: fetch 1 MiB", large.1, "MiB/s", ("raw 1 MiB reads", raw_large.1), goal);
}

fn report_cost(report: &mut Report, size: &str, cost: &Cost, bytes: f64) {
    let goal = (size == "4 KiB").then_some("at most 1.3");
    report.figure(&format!("store: bytes written per byte of {size} updates"), cost.bytes / bytes, "", goal);
    report.figure(&format!("store: device writes per {size} update"), cost.writes, "", None);
    report.figure(&format!("store: device flushes per {size} update"), cost.flushes, "", None);
    report.figure(&format!("store: CPU per {size} update"), cost.cpu_us, "us", None);
}

/// Measures the store on a file in `scratch`, beside the raw device and, when their program was built, beside other
/// libraries.
///
/// # Errors
/// When the file can't be used or an operation fails.
pub fn measure(scratch: &Path, references: &Path, report: &mut Report) -> Result<(), BenchError> {
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
        #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
        let operations = OPERATIONS as f64;
        let before = costs(&store);
        let (tiny_updates, between) =
            (updates(&shard, 1 << 32, OPERATIONS, WIDTH, 64).await.ok_or_else(none)?, costs(&store));
        report_cost(report, "64 B", &Cost::between(before, between, operations), 64.0);
        let tiny = (tiny_updates, fetches(&shard, 1 << 32, OPERATIONS, WIDTH, 64).await.ok_or_else(none)?);
        let before = costs(&store);
        let (small_updates, between) =
            (updates(&shard, 2 << 32, OPERATIONS, WIDTH, BLOCK).await.ok_or_else(none)?, costs(&store));
        report_cost(report, "4 KiB", &Cost::between(before, between, operations), 4096.0);
        let small =
            (small_updates, fetches(&shard, 2 << 32, OPERATIONS, WIDTH, BLOCK).await.ok_or_else(none)?);
        let large = (
            updates(&shard, 3 << 32, LARGE, LARGE_WIDTH, 1 << 20).await.ok_or_else(none)?,
            fetches(&shard, 3 << 32, LARGE, LARGE_WIDTH, 1 << 20).await.ok_or_else(none)?,
        );
        report_raw(report, [raw_small, raw_large], tiny, small, large);
        latencies(&handle, &store, &shard, report).await?;
        let entries = store.stats().entries.max(1);
        #[expect(clippy::cast_precision_loss, reason = "bytes are far below 2^52")]
        let memory = store.index_memory() as f64 / entries as f64;
        report.figure("store: index memory per entry", memory, "B", None);
        store.close().await.map_err(|error| failed("close", &error))?;
        let own = |value_bytes, (updates, fetches)| Own { value_bytes, updates, fetches };
        Ok([own(64, tiny), own(BLOCK, small)])
    });
    for path in [raw_path, path] {
        // Scratch: a file that is left is in the way of nobody but the next run, which reports it.
        let _ = std::fs::remove_file(path);
    }
    let own = result?;
    match references::run(references, scratch, OPERATIONS, WIDTH, &[64, BLOCK])? {
        Some(libraries) => references::compare(report, &own, &libraries),
        None => eprintln!("{} was not built: other libraries are not measured", references.display()),
    }
    Ok(())
}
