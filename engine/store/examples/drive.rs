//! A store on a real drive, step by step, as `e2e/nvme` tests it: `drive STEP DEVICE [NUMBER]`.
//!
//! * `describe`: says what the device is, what of io_uring it uses and what the drive counts about itself;
//! * `format`: makes a store, unless there is anything on the device;
//! * `load FIRST`: stores values from that number on until it is killed, and prints up to where they are durable;
//! * `verify END`: reads the last values before that number back and compares them;
//! * `transfers`: writes and reads at the device's end, unless a store is there, with each set of io_uring's features, and
//!   prints rates and system calls.

use core::time::Duration;
use std::cell::Cell;
use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

use uuid::Uuid;
use weir_media::file::FileDevice;
use weir_media::nvme::{NvmeDevice, is_namespace};
use weir_media::{BLOCK, Device, DmaPool, Features, MediaError};
use weir_proto::object::{AkeyFetch, AkeyUpdate, Conditions, Extent, Value};
use weir_proto::{ContainerId, Epoch, Key, ObjectId, PoolId, Rank, TargetIndex};
use weir_runtime::real::Executor;
use weir_runtime::{Handle, join_all};
use weir_store::{Data, FormatOptions, Owner, Shard, Store, StoreConfig};

type Failure = Box<dyn std::error::Error>;

const POOL: PoolId = PoolId(Uuid::from_u128(1));
const CONTAINER: ContainerId = ContainerId(Uuid::from_u128(2));
/// Integer dkeys and a byte array (`DAOS_OT_ARRAY_BYTE`).
const OBJECT: ObjectId = ObjectId { hi: 13 << 56, lo: 1 };
/// Lengths of the values in turn: in the log, one block, some blocks, and more than one command of a drive moves.
const LENGTHS: [usize; 4] = [64, 4096, 20_000, 600_000];
/// Updates in flight.
const WIDTH: u64 = 16;
/// Values that are overwritten again and again, so that the device doesn't fill up.
const KEYS: u64 = 64;
/// Longest wait for a drive's health log: emulated drives answer in milliseconds.
const LOG_WAIT: Duration = Duration::from_secs(10);
/// Transfers of one measurement, and how many of them are in flight.
const TRANSFERS: u64 = 2048;
const DEPTH: u64 = 32;

fn owner() -> Owner {
    Owner { system: "drives".to_owned(), rank: Rank(0), target: TargetIndex(0) }
}

fn say(line: impl Display) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// The bytes of a value.
fn pattern(number: u64) -> Vec<u8> {
    let len = LENGTHS[usize::try_from(number).unwrap_or(0) % LENGTHS.len()];
    (0..len as u64)
        .map(|at| (number.wrapping_mul(31) ^ at.wrapping_mul(0x9e37_79b9) >> 7).to_le_bytes()[0])
        .collect()
}

fn value(number: u64) -> (Key, Value) {
    let extents = vec![Extent { index: 0, count: pattern(number).len() as u64 }];
    (Key::from_u64(number % KEYS), Value::Array { record_size: 1, extents })
}

async fn open(handle: &Handle, path: &Path) -> Result<(Rc<Store>, Shard), Failure> {
    let store =
        Store::open(handle, weir_media::open(handle, path)?, &owner(), StoreConfig::default()).await?;
    if let Some(shard) = store.pool(POOL) {
        return Ok((store, shard));
    }
    let shard = store.create_pool(POOL, store.space().capacity).await?;
    shard.create_container(CONTAINER).await?;
    Ok((store, shard))
}

async fn describe(handle: &Handle, path: &Path) -> Result<(), Failure> {
    let device = weir_media::open(handle, path)?;
    say(format_args!("{}: {} bytes, uses {}", device.name(), device.size(), device.features()))?;
    if is_namespace(path) {
        drop(device);
        let drive = NvmeDevice::open(handle, path)?;
        let (model, serial) = drive.drive();
        say(format_args!("drive {model}, serial {serial}, blocks of {} bytes", drive.logical_block()))?;
        return wear(handle, &drive).await;
    }
    wear(handle, &*device).await
}

async fn wear(handle: &Handle, device: &dyn Device) -> Result<(), Failure> {
    let until = handle.now() + LOG_WAIT;
    while device.wear().is_none() && handle.now() < until {
        handle.sleep(Duration::from_millis(10)).await;
    }
    let wear = device.wear().ok_or("the drive's health log could not be read")?;
    say(format_args!(
        "health log: warning {:#x}, {} K, {} % used, {} % spare, {} media errors, {} bytes written",
        wear.critical_warning, wear.temperature, wear.used, wear.spare, wear.media_errors, wear.written_bytes
    ))
}

async fn format(handle: &Handle, path: &Path) -> Result<(), Failure> {
    let device = weir_media::open(handle, path)?;
    Store::format(handle, &device, &FormatOptions { owner: owner(), log_bytes: None }).await?;
    say("formatted")
}

async fn load(handle: &Handle, path: &Path, start: u64) -> Result<(), Failure> {
    let (_store, shard) = open(handle, path).await?;
    let (akey, newest) = (Key::new(b"data")?, Cell::new(0));
    // Aggregation goes behind the clock.
    let clock = || {
        newest.set(handle.wall_ns().max(newest.get() + 1));
        Epoch(newest.get())
    };
    for first in (start..).step_by(usize::try_from(WIDTH)?) {
        let updates = join_all((first..first + WIDTH).map(async |number| {
            let ((dkey, value), data) = (value(number), pattern(number));
            let update =
                AkeyUpdate { akey: akey.clone(), value, conditions: Conditions::NONE, checksums: Vec::new() };
            let (none, data) = (Conditions::NONE, Data::Borrowed(&data));
            shard
                .update_by_clock(CONTAINER, OBJECT, &dkey, &clock, none, &[update], data, &|_| Vec::new())
                .await
        }));
        for result in updates.await {
            result?;
        }
        say(first + WIDTH)?;
    }
    Ok(())
}

async fn verify(handle: &Handle, path: &Path, end: u64) -> Result<(), Failure> {
    let begin = Instant::now();
    let (store, shard) = open(handle, path).await?;
    let stats = store.stats();
    say(format_args!(
        "recovered in {} ms, {} records replayed",
        begin.elapsed().as_millis(),
        stats.replayed_records
    ))?;
    let akey = Key::new(b"data")?;
    for number in end.saturating_sub(KEYS)..end {
        let (dkey, value) = value(number);
        let fetch = AkeyFetch { akey: akey.clone(), value, conditions: Conditions::NONE };
        let none = Conditions::NONE;
        let found = shard.fetch(CONTAINER, OBJECT, &dkey, Epoch::MAX, none, &[fetch]).await?;
        // The key's newest value that was told to be durable, or the one after, which was under way.
        let wanted = [pattern(number), pattern(number + KEYS)];
        let mut bytes = vec![0; wanted[0].len()];
        found.read(&mut bytes).await?;
        if !wanted.contains(&bytes) {
            return Err(format!("value {number} is not what was stored").into());
        }
    }
    store.close().await?;
    say(format_args!("verified {} values", end.min(KEYS)))
}

fn open_with(handle: &Handle, path: &Path, wanted: Features) -> Result<Rc<dyn Device>, MediaError> {
    if is_namespace(path) {
        return Ok(Rc::new(NvmeDevice::open_with(handle, path, wanted)?));
    }
    Ok(Rc::new(FileDevice::open_with(handle, path, wanted)?))
}

/// Runs transfers with a constant number in flight; transfers a second and system calls for each.
async fn rate(
    device: &dyn Device,
    count: u64,
    depth: u64,
    transfer: impl AsyncFn(u64) -> Result<(), MediaError>,
) -> Result<String, Failure> {
    let (begin, before) = (Instant::now(), device.stats());
    let next = Cell::new(0);
    let worker = async || {
        while next.get() < count {
            let number = next.replace(next.get() + 1);
            transfer(number).await?;
        }
        Ok::<_, MediaError>(())
    };
    for result in join_all((0..depth).map(|_| worker())).await {
        result?;
    }
    let (seconds, calls) = (begin.elapsed().as_secs_f64(), device.stats().calls - before.calls);
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let (rate, each) = (count as f64 / seconds, calls as f64 / count as f64);
    Ok(format!("{rate:.0}/s with {each:.2} system calls each"))
}

async fn transfers(handle: &Handle, path: &Path) -> Result<(), Failure> {
    let sets = [
        Features::NONE,
        Features::FILES.with(Features::COOPERATIVE),
        Features::FILES.with(Features::BUFFERS).with(Features::COOPERATIVE),
        Features::FILES.with(Features::BUFFERS).with(Features::DEFERRED),
        Features::DEFAULT,
    ];
    for wanted in sets {
        let device = open_with(handle, path, wanted)?;
        if device.read(0, weir_media::DmaBuf::new(BLOCK)).await?.iter().any(|byte| *byte != 0) {
            return Err("there is something on the device".into());
        }
        let pool = DmaPool::new(8 << 20);
        device.register(&pool);
        let base = device.size() / 2;
        let offset = |number: u64, len: usize| base + number * len as u64 % (base - base % len as u64);
        for depth in [1, DEPTH] {
            let count = TRANSFERS.min(depth * 256);
            let written = rate(&*device, count, depth, async |number| {
                let mut buffer = pool.take(BLOCK).await;
                buffer[..8].copy_from_slice(&number.to_le_bytes());
                device.write(offset(number, BLOCK), vec![buffer.into()]).await
            });
            let written = written.await?;
            device.flush().await?;
            let wrong = Cell::new(0);
            let read = rate(&*device, count, depth, async |number| {
                let buffer = device.read(offset(number, BLOCK), pool.take(BLOCK).await).await?;
                wrong.set(wrong.get() + u64::from(buffer[..8] != number.to_le_bytes()));
                Ok(())
            });
            let read = read.await?;
            if wrong.get() > 0 {
                return Err(format!("{} blocks are not what was written", wrong.get()).into());
            }
            say(format_args!(
                "4 KiB, {depth} in flight: writes {written}; reads {read}; {}",
                device.features()
            ))?;
        }
        let large = 1 << 20;
        let mut buffer = pool.take(large).await;
        buffer.fill(0xa5);
        device.write_stable(base, vec![buffer.into()]).await?;
        let back = device.read(base, pool.take(large).await).await?;
        if back.iter().any(|byte| *byte != 0xa5) {
            return Err("a mebibyte is not what was written".into());
        }
        let blank = weir_media::DmaBuf::new(large);
        device.write(base, vec![blank.into()]).await?;
    }
    say("transfers verified")
}

async fn step(handle: &Handle, arguments: &[String]) -> Result<(), Failure> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["describe", path] => describe(handle, Path::new(path)).await,
        ["format", path] => format(handle, Path::new(path)).await,
        ["load", path, first] => load(handle, Path::new(path), first.parse()?).await,
        ["verify", path, count] => verify(handle, Path::new(path), count.parse()?).await,
        ["transfers", path] => transfers(handle, Path::new(path)).await,
        _ => Err("usage: drive describe|format|load|verify|transfers DEVICE [NUMBER]".into()),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let executor = match Executor::new() {
        Ok(executor) => executor,
        Err(error) => {
            eprintln!("drive: {error}");
            return ExitCode::FAILURE;
        }
    };
    match executor.block_on(step(&executor.handle(), &arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("drive: {error}");
            ExitCode::FAILURE
        }
    }
}
