//! A target's store beside raw io_uring and beside other storage libraries on the same file system, on one thread.

mod backlog;
mod counts;
mod keys;
mod large;
mod latency;
mod libraries;
mod load;
mod memory;
mod snapshots;
mod tapped;
mod turns;

pub use counts::run as count;

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use weir_media::file::FileDevice;
use weir_media::{BLOCK, Device, DmaBuf, DmaPool, Slice};
use weir_runtime::real::Executor;
use weir_runtime::{Handle, join_all};
use weir_store::{Shard, Store, StoreConfig};

use self::load::{Load, float, new_store, rate};
use crate::pin;
use crate::report::{BenchError, Report};

/// Size of the store's file: the working set, and all that overwrites leave behind until aggregation has come by.
const FILE_BYTES: u64 = 3 << 30;
/// Extents that are stored before updates are measured, and fetched. Other libraries have as many.
const OPERATIONS: u64 = 8192;
/// Updates of 64 B that are measured, a third of a second of them: neither what is touched for the first time nor one stall
/// of the disk decides.
const TINY_UPDATES: u64 = 8 * OPERATIONS;
/// Rounds of fetches over what was stored, behind one that isn't counted.
const ROUNDS: u64 = 16;
/// Room for all values of 4 KiB, 32 MiB, and as much again for those that compete for a place.
const CACHE_BYTES: usize = 64 << 20;
/// Updates in flight at once.
const WIDTH: u64 = 32;
/// Cores that are tried for the thread that is measured.
const SEATS_MAX: usize = 16;
/// How often each of them is: the disk is slower now and then.
const SEAT_ROUNDS: usize = 3;
/// Batches of updates by which they are compared.
const SEAT_BATCHES: u64 = 128;

fn failed(what: &str, error: &dyn core::fmt::Display) -> BenchError {
    BenchError::Command { command: what.to_owned(), output: error.to_string() }
}

/// Memory for what is read from a raw device, of the kind that a store has for its own: on huge pages, and kept at hand by
/// the kernel.
fn read_memory(device: &Rc<dyn Device>) -> DmaPool {
    let pool = DmaPool::new(StoreConfig::default().dma_bytes);
    device.register(&pool);
    pool
}

/// The raw device: transfers of `len` bytes, `width` in flight.
struct Raw<'a> {
    handle: &'a Handle,
    device: &'a Rc<dyn Device>,
    /// Gives memory of `len` bytes to read to.
    memory: &'a dyn Fn() -> Option<DmaBuf>,
    width: u64,
    len: usize,
}

impl Raw<'_> {
    /// Writes `count` times from the block of number `begin` on, each batch of `width` followed by one flush; writes per
    /// second. What is written lies where a store's updates do: on huge pages that the kernel doesn't keep at hand.
    async fn writes(&self, begin: u64, count: u64) -> Option<f64> {
        let mut data = DmaPool::new(self.len).take(self.len).await;
        data.fill(0);
        let data = Slice::from(data);
        let started = Instant::now();
        for batch in 0..count / self.width {
            let first = begin + batch * self.width;
            let write = |at: u64| self.device.write((first + at) * self.len as u64, vec![data.clone()]);
            let written = join_all((0..self.width).map(write)).await;
            if written.iter().any(Result::is_err) || self.device.flush().await.is_err() {
                return None;
            }
        }
        Some(float(count) / started.elapsed().as_secs_f64())
    }

    /// Reads what lies at these places, `rounds` times, whoever of `width` workers comes to which; reads per second. What was
    /// read is looked at, where that is wanted: its checksum is computed.
    async fn reads(&self, places: &Rc<[u64]>, rounds: u64, looks: bool) -> Option<f64> {
        let buffers = (0..self.width).map(|_| (self.memory)()).collect::<Option<Vec<_>>>()?;
        let buffers = Rc::new(RefCell::new(buffers));
        let (next, count) = (Rc::new(Cell::new(0)), places.len() * usize::try_from(rounds).ok()?);
        rate(self.handle, count as u64, self.width, |_| {
            let (device, buffers) = (Rc::clone(self.device), Rc::clone(&buffers));
            let (next, places) = (Rc::clone(&next), Rc::clone(places));
            async move {
                let Some(mut buffer) = buffers.borrow_mut().pop() else { return false };
                while next.get() < count {
                    let place = places[next.replace(next.get() + 1) % places.len()];
                    match device.read(place, buffer).await {
                        Ok(read) => buffer = read,
                        Err(_) => return false,
                    }
                    if looks {
                        black_box(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &buffer));
                    }
                }
                true
            }
        })
        .await
    }
}

/// Bytes that are prepared at once.
const PREPARED: u64 = 1 << 20;

/// A new file that has been written once, as that of a store that has been in use for a while has: on the first write to
/// a block a file system notes in its journal that it is in use, which belongs to its own figures, and to nobody's here.
async fn used_file(handle: &Handle, path: &Path, bytes: u64) -> Result<Rc<dyn Device>, BenchError> {
    let device = FileDevice::create(handle, path, bytes).map_err(|error| failed("create", &error))?;
    for offset in (0..bytes).step_by(usize::try_from(PREPARED).unwrap_or(1)) {
        device.prepare(offset, PREPARED).await.map_err(|error| failed("prepare", &error))?;
    }
    device.flush().await.map_err(|error| failed("flush", &error))?;
    Ok(Rc::new(device))
}

/// The most updates of `len` bytes in a second that any store could make durable here, 32 together: their bytes alone, one
/// behind the other, in one write and one flush, so many times.
async fn floor(device: &Rc<dyn Device>, len: usize, batches: u64) -> Option<f64> {
    let data = Slice::from(DmaBuf::new(usize::try_from(WIDTH).ok()? * len));
    let bytes = data.len() as u64;
    let begin = Instant::now();
    for batch in 0..batches {
        device.write(batch * bytes, vec![data.clone()]).await.ok()?;
        device.flush().await.ok()?;
    }
    Some(float(batches * WIDTH) / begin.elapsed().as_secs_f64())
}

/// Does something on a thread of its own: the kernel's workers for it, which keep the processors of their beginning, end with it.
fn apart<T: Send>(work: impl FnOnce(&Executor) -> Option<T> + Send) -> Option<T> {
    std::thread::scope(|scope| scope.spawn(|| work(&Executor::new().ok()?)).join()).ok()?
}

/// What [`floor`] is from a core.
fn floor_from(seat: usize, path: &Path) -> Option<f64> {
    apart(|executor| {
        pin::pin(seat);
        let device: Rc<dyn Device> = Rc::new(FileDevice::open(&executor.handle(), path).ok()?);
        executor.block_on(floor(&device, TINY.len, SEAT_BATCHES))
    })
}

/// Binds this thread to the core from which the disk makes most updates of this file durable, as an operator would a target's,
/// and returns how many, and how many from the worst core: where one core takes all of the disk's interrupts, a thread elsewhere has
/// to be woken from there each time. Otherwise chance would decide. The libraries run where the system puts them. The core comes last.
fn take_seat(path: &Path) -> Option<(f64, f64, usize)> {
    let mut seats = vec![0.0_f64; pin::count().min(SEATS_MAX)];
    for _ in 0..SEAT_ROUNDS {
        for (at, best) in seats.iter_mut().enumerate() {
            *best = best.max(floor_from(at, path)?);
        }
    }
    let worst = seats.iter().copied().fold(f64::INFINITY, f64::min);
    let (at, best) = seats.into_iter().enumerate().max_by(|(_, one), (_, other)| one.total_cmp(other))?;
    pin::pin(at);
    Some((best, worst, at))
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

/// What the device gets for each byte of updates of so many. What is small takes whole blocks of the log.
fn report_bytes(report: &mut Report, of: &str, cost: &Cost, len: usize) {
    let goal = (len == BLOCK).then_some("at most 1.3");
    let name = format!("store: bytes written per byte of {of}");
    report.figure(&name, cost.bytes / float(len as u64), "", goal);
}

fn report_cost(report: &mut Report, size: &str, cost: &Cost, bytes: usize) {
    report_bytes(report, &format!("{size} updates"), cost, bytes);
    report.figure(&format!("store: device writes per {size} update"), cost.writes, "", None);
    report.figure(&format!("store: device flushes per {size} update"), cost.flushes, "", None);
    report.figure(&format!("store: CPU per {size} update"), cost.cpu_us, "us", None);
}

/// A size of extents that is measured.
struct Size {
    name: &'static str,
    first: u64,
    /// Extents that are fetched.
    count: u64,
    /// Updates that are measured, of dkeys of their own behind those, once the others are stored.
    updates: u64,
    /// Updates of a turn beside another library.
    turn: u64,
    /// Of what was stored first, how many are overwritten in such a turn, drawn at random.
    overwritten: u64,
    width: u64,
    len: usize,
    /// Rounds of fetches before those that are counted.
    warm_up: u64,
    rounds: u64,
}

const TINY: Size = Size {
    name: "64 B",
    first: 1 << 32,
    count: OPERATIONS,
    updates: TINY_UPDATES,
    turn: 4096,
    overwritten: 4096,
    width: WIDTH,
    len: 64,
    warm_up: 1,
    rounds: ROUNDS,
};
const SMALL: Size = Size {
    name: "4 KiB",
    first: 2 << 32,
    updates: OPERATIONS,
    turn: 2048,
    overwritten: 2048,
    len: BLOCK,
    ..TINY
};

/// Updates and fetches of one size in a second, with a row for what an update costs. The small updates that count come behind
/// others and the fetches: the store is warm then, as it is in use.
async fn rates(
    handle: &Handle,
    store: &Store,
    shard: &Shard,
    size: &Size,
    report: &mut Report,
) -> Result<(f64, f64), BenchError> {
    let none = || failed("a transfer", &"an operation failed");
    let load = |first, count| Load::new(handle, shard, first, count, size.width, size.len).ok_or_else(none);
    let stored = load(size.first, size.count)?;
    stored.updates().await.ok_or_else(none)?;
    stored.fetches(size.warm_up).await.ok_or_else(none)?;
    let fetches = stored.fetches(size.rounds).await.ok_or_else(none)?;
    let measured = load(size.first + size.count, size.updates)?;
    let checkpoint = async || store.checkpoint().await.map_err(|error| failed("a checkpoint", &error));
    checkpoint().await?;
    let before = costs(store);
    let updates = measured.updates().await.ok_or_else(none)?;
    let cost = Cost::between(before, costs(store), float(size.updates));
    report_cost(report, size.name, &cost, size.len);
    checkpoint().await?;
    let cost = Cost::between(before, costs(store), float(size.updates));
    report_bytes(report, &format!("{} updates and the checkpoint behind them", size.name), &cost, size.len);
    Ok((updates, fetches))
}

/// The rows of updates and fetches beside the raw device. Returns that, and the core that this thread sits on.
async fn beside_raw(
    handle: &Handle,
    [raw_path, path]: [&Path; 2],
    report: &mut Report,
) -> Result<(Rc<dyn Device>, usize), BenchError> {
    let none = || failed("a transfer", &"an operation failed");
    apart(|executor| executor.block_on(used_file(&executor.handle(), raw_path, FILE_BYTES)).ok().map(drop))
        .ok_or_else(|| failed("prepare", &raw_path.display()))?;
    let (best, worst, seat) = take_seat(raw_path).ok_or_else(none)?;
    let device: Rc<dyn Device> =
        Rc::new(FileDevice::open(handle, raw_path).map_err(|error| failed("open", &error))?);
    let pool = read_memory(&device);
    let seats = ("raw: from the best core", best);
    report.beside("raw: 32 in one write and one flush, from the worst core", worst, "op/s", seats, None);
    let (store, shard) =
        new_store(handle, used_file(handle, path, FILE_BYTES).await?, StoreConfig::default()).await?;
    let memory = || pool.try_take(BLOCK);
    let raw = Raw { handle, device: &device, memory: &memory, width: WIDTH, len: BLOCK };
    let raw_writes = raw.writes(0, OPERATIONS).await.ok_or_else(none)?;
    let places: Rc<[u64]> = (0..OPERATIONS).map(|number| number * BLOCK as u64).collect();
    let raw_reads = raw.reads(&places, 1, false).await.ok_or_else(none)?;
    let tiny = rates(handle, &store, &shard, &TINY, report).await?;
    let small = rates(handle, &store, &shard, &SMALL, report).await?;
    let (writes, reads) = (("raw 4 KiB writes + flush per 32", raw_writes), ("raw 4 KiB reads", raw_reads));
    report.beside("store: update 64 B, 32 in flight", tiny.0, "op/s", writes, None);
    report.beside("store: update 4 KiB, 32 in flight", small.0, "op/s", writes, None);
    report.beside("store: fetch 64 B", tiny.1, "op/s", reads, None);
    report.beside("store: fetch 4 KiB", small.1, "op/s", reads, None);
    let memory = float(store.index_memory() as u64) / float(store.stats().entries.max(1));
    report.figure("store: index memory per entry", memory, "B", None);
    store.close().await.map_err(|error| failed("close", &error))?;
    drop((store, shard));
    let cached = cached_fetches(handle, path).await?;
    report.beside("store: fetch 4 KiB, cached", cached, "op/s", ("from the device", small.1), None);
    Ok((device, seat))
}

/// Small updates and fetches: beside the raw device, and beside other libraries where their program was built.
async fn small(
    handle: &Handle,
    [raw, path]: [&Path; 2],
    [program, scratch]: [&Path; 2],
    report: &mut Report,
) -> Result<(), BenchError> {
    let (raw, seat) = beside_raw(handle, [raw, path], report).await?;
    if !program.exists() {
        eprintln!("{} was not built: other libraries are not measured", program.display());
        return Ok(());
    }
    let sides = libraries::Sides { handle, path, raw: &raw, seat, program, scratch };
    libraries::measure(&sides, &[&TINY, &SMALL], report).await
}

/// Fetches of 4 KiB in a second by a store with room for all of them in memory.
async fn cached_fetches(handle: &Handle, path: &Path) -> Result<f64, BenchError> {
    let none = || failed("a transfer", &"an operation failed");
    let device = FileDevice::open(handle, path).map_err(|error| failed("open", &error))?;
    let config = StoreConfig { cache_bytes: CACHE_BYTES, ..StoreConfig::default() };
    let store = Store::open(handle, Rc::new(device), &load::owner(), config).await;
    let store = store.map_err(|error| failed("open", &error))?;
    let shard = store.pool(load::POOL).ok_or_else(none)?;
    let load =
        Load::new(handle, &shard, SMALL.first, SMALL.count, SMALL.width, SMALL.len).ok_or_else(none)?;
    load.fetches(SMALL.warm_up).await.ok_or_else(none)?;
    let rate = load.fetches(SMALL.rounds).await.ok_or_else(none)?;
    drop(shard);
    store.close().await.map_err(|error| failed("close", &error))?;
    Ok(rate)
}

/// A file that is gone when the run is over, however it ends.
struct Scratch(std::path::PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left is in the way of nobody but the next run, which reports it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Measures the store on a file in `scratch`, beside the raw device and, when their program was built, beside other
/// libraries. `only` names the parts to be measured; all of them when it is empty.
///
/// # Errors
/// When the file can't be used or an operation fails.
pub fn measure(
    scratch: &Path,
    references: &Path,
    only: &[String],
    report: &mut Report,
) -> Result<(), BenchError> {
    let wanted = |part: &str| only.is_empty() || only.iter().any(|only| only == part);
    let executor = Executor::new().map_err(|error| failed("start an executor", &error))?;
    let handle = executor.handle();
    let file = |name: &str| Scratch(scratch.join(name));
    if wanted("rates") {
        let (raw, store) = (file("raw"), file("store"));
        let done = executor.block_on(small(&handle, [&raw.0, &store.0], [references, scratch], report));
        pin::release();
        done?;
    }
    if wanted("large") {
        let (raw, store) = (file("raw-large"), file("store-large"));
        executor.block_on(large::measure(&handle, [&raw.0, &store.0], report))?;
    }
    if wanted("latency") {
        let store = file("store-latency");
        executor.block_on(latency::measure(&handle, &store.0, report))?;
    }
    if wanted("memory") {
        executor.block_on(memory::measure(&handle, report))?;
    }
    if wanted("keys") {
        let store = file("store-keys");
        // What others have used and given back in this process would hide what it takes.
        let is_alone = only.len() == 1;
        executor.block_on(keys::measure(&handle, &store.0, is_alone, report))?;
    }
    if wanted("backlog") {
        let store = file("store-backlog");
        executor.block_on(backlog::measure(&handle, &store.0, report))?;
    }
    if wanted("snapshots") {
        let (raw, store) = (file("store-snapshots-raw"), file("store-snapshots"));
        executor.block_on(snapshots::measure(&handle, [&raw.0, &store.0], report))?;
    }
    if wanted("counts") {
        counts::measure(report);
    }
    Ok(())
}
