//! Many keys: what the metadata of a file of 4 KiB takes (an object, a dkey, an akey, one extent), how long a restart
//! takes, and whether an index ten times its memory serves. `WEIR_BENCH_KEYS` says how many files.
//!
//! The data of the files is not kept: all are alike, and ten million of them would take 40 GB. What is measured is all
//! that the store itself writes.

use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use weir_media::file::FileDevice;
use weir_media::{BLOCK, DmaBuf, Slice};
use weir_proto::object::{AkeyUpdate, Conditions, Extent, Value};
use weir_proto::{Epoch, Key, ObjectId};
use weir_runtime::Handle;
use weir_store::{Data, Shard, Store, StoreConfig};

use super::failed;
use super::load::{CONTAINER, POOL, float, new_store, owner, rate};
use super::tapped::Tapped;
use crate::report::{BenchError, Report};
use crate::restart::{most_resident_mib, resident_mib};

/// Files when nobody says how many.
const FILES: u64 = 200_000;

/// Files among which all else that the process has in memory counts for little.
const MANY: u64 = 10_000_000;

/// Bytes of the device for each file: its data and its metadata with room for a checkpoint.
const DEVICE_BYTES_EACH: u64 = 6 * 1024;

/// Longer than storing the files takes.
const CHECKPOINT_INTERVAL: Duration = Duration::from_hours(1);

/// Updates in flight at once.
const WIDTH: u64 = 128;

/// Updates behind the last checkpoint when the store is killed: what the log keeps between two checkpoints at most
/// would be some hundred thousand.
const BEHIND_CHECKPOINT: u64 = 20_000;

/// Memory that the index may take for each file while they are stored: the goal.
const INDEX_BYTES_EACH: usize = 400;

/// Part of the index that has room in memory when it is opened again.
const MEMORY_DIVISOR: usize = 10;

/// Files looked up in the index that is larger than its memory.
const LOOKED_UP: u64 = 20_000;

/// As hashed object ids come: in no order.
const fn object(number: u64) -> ObjectId {
    ObjectId { hi: 13 << 56 | 1 << 48, lo: number.wrapping_mul(0x9e37_79b9_7f4a_7c15) }
}

/// Stores the files of a range of numbers; how many in a second.
async fn store_files(
    handle: &Handle,
    shard: &Shard,
    numbers: core::ops::Range<u64>,
    data: &Slice,
) -> Option<f64> {
    let value = Value::Array { record_size: 1, extents: vec![Extent { index: 0, count: BLOCK as u64 }] };
    let (akey, none) = (Key::new(b"0").ok()?, Conditions::NONE);
    let update = Rc::new([AkeyUpdate { akey, value, conditions: none, checksums: Vec::new() }]);
    rate(handle, numbers.end - numbers.start, WIDTH, |worker| {
        let (shard, data, update) = (shard.clone(), data.clone(), Rc::clone(&update));
        let numbers = (numbers.start + worker..numbers.end).step_by(usize::try_from(WIDTH).unwrap_or(1));
        async move {
            let dkey = Key::from_u64(1);
            for number in numbers {
                let (epoch, data) = (Epoch(number + 1), Data::Shared(data.clone()));
                let stored =
                    shard.update(CONTAINER, object(number), &dkey, epoch, none, &*update, data).await;
                if stored.is_err() {
                    return false;
                }
            }
            true
        }
    })
    .await
}

/// Looks files up in no order; how many in a second.
async fn look_up(handle: &Handle, shard: &Shard, files: u64) -> Option<f64> {
    let akey = Key::new(b"0").ok()?;
    // A record size of 0 asks for sizes, not for data.
    let value = Value::Array { record_size: 0, extents: vec![Extent { index: 0, count: BLOCK as u64 }] };
    let fetch = Rc::new([weir_proto::object::AkeyFetch { akey, value, conditions: Conditions::NONE }]);
    rate(handle, LOOKED_UP, WIDTH, |worker| {
        let (shard, fetch) = (shard.clone(), Rc::clone(&fetch));
        async move {
            let (dkey, none) = (Key::from_u64(1), Conditions::NONE);
            for at in (worker..LOOKED_UP).step_by(usize::try_from(WIDTH).unwrap_or(1)) {
                let object = object(at.wrapping_mul(0x9e37_79b9) % files);
                let found = shard.fetch(CONTAINER, object, &dkey, Epoch::MAX, none, &*fetch).await;
                let sizes = found.map(|found| found.akeys()[0].fetched.size);
                if sizes != Ok(1) {
                    return false;
                }
            }
            true
        }
    })
    .await
}

/// A sparse file: what is never written takes no space.
pub fn sparse(handle: &Handle, path: &Path, bytes: u64) -> Result<FileDevice, BenchError> {
    let file = std::fs::File::create_new(path).map_err(BenchError::file("create", path))?;
    file.set_len(bytes.next_multiple_of(BLOCK as u64)).map_err(BenchError::file("grow", path))?;
    FileDevice::open(handle, path).map_err(|error| failed("open", &error))
}

/// Memory of this process, in bytes: now, or the most that it had.
fn memory(mib: fn(i32) -> Result<f64, BenchError>) -> Result<f64, BenchError> {
    let pid = i32::try_from(std::process::id()).map_err(|error| failed("a process id", &error))?;
    Ok(mib(pid)? * float(1 << 20))
}

/// Adds the rows. That of the process's memory means something where nothing was measured before (`is_alone`).
pub async fn measure(
    handle: &Handle,
    path: &Path,
    is_alone: bool,
    report: &mut Report,
) -> Result<(), BenchError> {
    let none = || failed("a transfer", &"an operation failed");
    let asked = std::env::var("WEIR_BENCH_KEYS").ok().and_then(|keys| keys.parse().ok());
    let files: u64 = asked.unwrap_or(FILES).max(2 * BEHIND_CHECKPOINT);
    let data = Slice::from(DmaBuf::copy_of(&[7; BLOCK]));
    let inner = sparse(handle, path, (files * DEVICE_BYTES_EACH).max(1 << 28))?;
    let device = Rc::new(Tapped::new(Rc::new(inner)));
    device.forget(Some(data.clone()));
    // Checkpoints when the log wants one, not by time: each puts changed nodes to new places, which a sparse file keeps.
    let index_bytes = usize::try_from(files).unwrap_or(usize::MAX).saturating_mul(INDEX_BYTES_EACH);
    let config = StoreConfig { index_bytes, checkpoint_interval: CHECKPOINT_INTERVAL, ..config_of_open() };
    let (store, shard) = new_store(handle, Rc::clone(&device) as _, config.clone()).await?;
    let early = files - BEHIND_CHECKPOINT;
    let resident_before = memory(resident_mib)?;
    let stored = store_files(handle, &shard, 0..early, &data).await.ok_or_else(none)?;
    store.checkpoint().await.map_err(|error| failed("a checkpoint", &error))?;
    device.forget(None);
    store_files(handle, &shard, early..files, &data).await.ok_or_else(none)?;
    let resident = memory(most_resident_mib)? - resident_before;
    let stats = store.stats();
    let (memory, log) = (stats.index.memory, stats.commit.log_written);
    let goal = Some("at most 400");
    let each = |bytes: u64| float(bytes) / float(files);
    let name = |what: &str| format!("store, {files} files of 4 KiB: {what}");
    report.figure(&name("stored"), stored, "files/s", None);
    report.figure(&name("DRAM for each"), each(memory), "B", goal);
    if is_alone {
        let goal = goal.filter(|_| files >= MANY);
        report.figure(&name("resident memory for each, at most"), resident / float(files), "B", goal);
    }
    report.figure(&name("log for each"), each(log), "B", None);
    // As a kill leaves it: nothing is written any more.
    drop((store, shard, device));
    let opened = open_again(handle, path, config).await?;
    report.figure(&name("restart after a kill"), opened.seconds, "s", Some("at most 5"));
    report.figure(&name("records replayed by that"), opened.replayed, "", None);
    let index = opened.store.audit().await.index_blocks * BLOCK as u64;
    report.figure(&name("checkpoint for each"), each(index), "B", None);
    report.figure(&name("log and checkpoint for each"), each(log + index), "B", goal);
    opened.store.close().await.map_err(|error| failed("close", &error))?;
    drop(opened);
    let index_bytes = usize::try_from(memory).unwrap_or(usize::MAX) / MEMORY_DIVISOR;
    let opened = open_again(handle, path, StoreConfig { index_bytes, ..config_of_open() }).await?;
    report.figure(&name("restart after a close"), opened.seconds, "s", Some("at most 5"));
    let shard = opened.store.pool(POOL).ok_or_else(none)?;
    let looked_up = look_up(handle, &shard, files).await.ok_or_else(none)?;
    report.figure(&name("looked up with a tenth of the index in memory"), looked_up, "files/s", None);
    let index = opened.store.stats().index;
    let goal = Some("at most 1.1");
    let limit = ("its limit", float(index.memory_limit));
    report.beside(&name("index memory then"), float(index.memory), "B", limit, goal);
    drop(shard);
    opened.store.close().await.map_err(|error| failed("close", &error))
}

fn config_of_open() -> StoreConfig {
    StoreConfig { background: false, ..StoreConfig::default() }
}

/// A store that was opened again.
pub struct Opened {
    pub store: Rc<Store>,
    pub seconds: f64,
    pub replayed: f64,
}

pub async fn open_again(handle: &Handle, path: &Path, config: StoreConfig) -> Result<Opened, BenchError> {
    let device = FileDevice::open(handle, path).map_err(|error| failed("open", &error))?;
    let begin = Instant::now();
    let store = Store::open(handle, Rc::new(device), &owner(), config).await;
    let store = store.map_err(|error| failed("open", &error))?;
    let seconds = begin.elapsed().as_secs_f64();
    let replayed = float(store.stats().replayed_records);
    Ok(Opened { store, seconds, replayed })
}
