//! Many keys: what the metadata of a file of 4 KiB takes (an object, a dkey, an akey, one extent), how long a restart takes with
//! three quarters of the files behind the last checkpoint that there are between two, at most a tenth of all, and whether an index
//! ten times its memory serves. `WEIR_BENCH_KEYS` says how many files.
//!
//! The data of the files is not kept: all are alike, and ten million of them would take 40 GB. What is measured is all
//! that the store itself writes.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use weir_media::file::FileDevice;
use weir_media::{BLOCK, DmaBuf, Slice};
use weir_proto::object::{AkeyUpdate, Conditions, Extent, Value};
use weir_proto::{Epoch, Key, ObjectId};
use weir_runtime::Handle;
use weir_store::{Data, Shard, Store, StoreConfig, UpdateError};

use super::failed;
use super::load::{CONTAINER, POOL, checksums, float, gone, new_store, owner, rate};
use super::tapped::Tapped;
use crate::report::{BenchError, Report};
use crate::restart::{most_resident_mib, resident_mib};

/// Files when nobody says how many.
const FILES: u64 = 200_000;

/// Files among which all else that the process has in memory counts for little.
const MANY: u64 = 10_000_000;

/// Bytes of the device for each file: its data and its metadata with room for a checkpoint, and for the files that come behind
/// those that are counted. Each checkpoint goes to other places, which a sparse file keeps.
const DEVICE_BYTES_EACH: u64 = 6 * 1024;

/// Bytes of the device of few files: on one that is nearly full checkpoints come as soon as half of what is free is wanted by nodes,
/// which isn't what is measured here.
const DEVICE_BYTES_MIN: u64 = 4 << 30;

/// Longer than storing the files takes.
const CHECKPOINT_INTERVAL: Duration = Duration::from_hours(1);

/// Updates in flight at once.
const WIDTH: u64 = 128;

/// Most files that are stored until the store writes a checkpoint by itself, as a part of those that are counted.
const MORE_DIVISOR: u64 = 10;

/// Files stored between two looks whether the store has written a checkpoint by itself.
const STEP: u64 = 512;

/// Part of the files stored from one checkpoint to the end of the next, in percent, after which the store is killed, or where
/// that was too long of this part, and so on.
const KILLED_AT_PERCENT: u64 = 75;

/// How often a shorter part is tried.
const KILL_TRIES: usize = 8;

/// Files whose data is kept, before the kill: an open compares that of the last batch.
const KEPT: u64 = 2 * WIDTH;

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
) -> Result<f64, BenchError> {
    let value = Value::Array { record_size: 1, extents: vec![Extent { index: 0, count: BLOCK as u64 }] };
    let (akey, none) = (Key::new(b"0").map_err(|error| failed("a key", &error))?, Conditions::NONE);
    let refusal: Rc<RefCell<Option<UpdateError>>> = Rc::default();
    let checksums = checksums(&value, data);
    let update = Rc::new([AkeyUpdate { akey, value, conditions: none, checksums }]);
    let stored = rate(handle, numbers.end - numbers.start, WIDTH, |worker| {
        let (shard, data, update) = (shard.clone(), data.clone(), Rc::clone(&update));
        let refusal = Rc::clone(&refusal);
        let numbers = (numbers.start + worker..numbers.end).step_by(usize::try_from(WIDTH).unwrap_or(1));
        async move {
            let dkey = Key::from_u64(1);
            for number in numbers {
                let (epoch, data) = (Epoch(number + 1), Data::Shared(data.clone()));
                let stored =
                    shard.update(CONTAINER, object(number), &dkey, epoch, none, &*update, data).await;
                if let Err(error) = stored {
                    refusal.borrow_mut().get_or_insert(error);
                    return false;
                }
            }
            true
        }
    })
    .await;
    match (stored, refusal.take()) {
        (Some(rate), _) => Ok(rate),
        (None, Some(error)) => Err(failed("storing a file", &error)),
        (None, None) => Err(failed("storing a file", &"a task ended")),
    }
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

/// What is measured, for so many files.
struct Keys<'a> {
    handle: &'a Handle,
    path: &'a Path,
    files: u64,
    data: Slice,
}

impl Keys<'_> {
    fn name(&self, what: &str) -> String {
        format!("store, {} files of 4 KiB: {what}", self.files)
    }

    /// Stores all files with their index in memory, and a checkpoint. Returns the memory that the index takes.
    async fn store(
        &self,
        device: &Rc<Tapped>,
        is_alone: bool,
        report: &mut Report,
    ) -> Result<u64, BenchError> {
        let index_bytes = usize::try_from(self.files).unwrap_or(usize::MAX).saturating_mul(INDEX_BYTES_EACH);
        let config = StoreConfig { index_bytes, ..config() };
        let (store, shard) = new_store(self.handle, Rc::clone(device) as _, config).await?;
        let before = memory(resident_mib)?;
        let rate = store_files(self.handle, &shard, 0..self.files, &self.data).await?;
        store.checkpoint().await.map_err(|error| failed("a checkpoint", &error))?;
        let resident = memory(most_resident_mib)? - before;
        let stats = store.stats();
        let (memory, log, written) = (stats.index.memory, stats.commit.log_written, stats.device.write_bytes);
        let index = store.audit().await.index_blocks * BLOCK as u64;
        let goal = Some("at most 400");
        let each = |bytes: u64| float(bytes) / float(self.files);
        report.figure(&self.name("stored"), rate, "files/s", None);
        report.figure(&self.name("DRAM for each"), each(memory), "B", goal);
        if is_alone {
            let goal = goal.filter(|_| self.files >= MANY);
            report.figure(
                &self.name("resident memory for each, at most"),
                resident / float(self.files),
                "B",
                goal,
            );
        }
        report.figure(&self.name("log for each"), each(log), "B", None);
        report.figure(&self.name("checkpoint for each"), each(index), "B", None);
        report.figure(&self.name("log and checkpoint for each"), each(log + index), "B", goal);
        self.report_written("index in memory", written, self.files, report);
        store.close().await.map_err(|error| failed("close", &error))?;
        Ok(memory)
    }

    /// The row of what the device got, where it didn't get the data.
    fn report_written(&self, how: &str, without_data: u64, files: u64, report: &mut Report) {
        let data = files * BLOCK as u64;
        let name = self.name(&format!("bytes written per byte, all checkpoints with it, {how}"));
        report.figure(&name, float(data + without_data) / float(data), "", None);
    }

    /// Stores more files, with the index in the memory that it has by default, until the store has written a checkpoint by
    /// itself; then as many again, but for a few, and kills it. Returns how many files are behind the last checkpoint.
    async fn kill(&self, device: Rc<Tapped>, report: &mut Report) -> Result<u64, BenchError> {
        let none = || failed("a transfer", &"an operation failed");
        let store = Store::open(self.handle, Rc::clone(&device) as _, &owner(), config()).await;
        let store = store.map_err(|error| failed("open", &error))?;
        let shard = store.pool(POOL).ok_or_else(none)?;
        let (checkpoints, written) = (store.stats().checkpoints, store.stats().device.write_bytes);
        let mut more = 0;
        while store.stats().checkpoints == checkpoints && more < self.files / MORE_DIVISOR {
            let from = self.files + more;
            store_files(self.handle, &shard, from..from + STEP, &self.data).await?;
            more += STEP;
        }
        let is_by_itself = store.stats().checkpoints > checkpoints;
        store.checkpoint().await.map_err(|error| failed("a checkpoint", &error))?;
        let written = store.stats().device.write_bytes - written;
        if is_by_itself {
            self.report_written("default memory for the index", written, more, report);
        }
        let mut from = self.files + more;
        let mut behind = more;
        for left in (0..KILL_TRIES).rev() {
            behind = (behind * KILLED_AT_PERCENT / 100).max(KEPT);
            let (checkpoints, kept) = (store.stats().checkpoints, from + behind - KEPT);
            store_files(self.handle, &shard, from..kept, &self.data).await?;
            device.forget(None);
            store_files(self.handle, &shard, kept..from + behind, &self.data).await?;
            if store.stats().checkpoints == checkpoints {
                break;
            }
            if left == 0 {
                return Err(failed("storing files", &"checkpoints come sooner and sooner"));
            }
            from += behind;
            device.forget(Some(self.data.clone()));
            store.checkpoint().await.map_err(|error| failed("a checkpoint", &error))?;
        }
        // As a kill leaves it: nothing is written any more, but for what was under way.
        let last = Rc::downgrade(&device);
        drop((store, shard, device));
        gone(self.handle, last).await;
        Ok(behind)
    }

    /// Opens the store again after the kill, and closes it.
    async fn restart(&self, behind: u64, report: &mut Report) -> Result<(), BenchError> {
        let opened = open_again(self.handle, self.path, config()).await?;
        report.figure(&self.name("restart after a kill"), opened.seconds, "s", Some("at most 5"));
        let reference = ("files behind the checkpoint", float(behind));
        report.beside(&self.name("records replayed by that"), opened.replayed, "", reference, None);
        opened.store.close().await.map_err(|error| failed("close", &error))
    }

    /// Opens it with a tenth of the index's memory, and looks files up.
    async fn look_up(&self, memory: u64, report: &mut Report) -> Result<(), BenchError> {
        let none = || failed("a transfer", &"an operation failed");
        let index_bytes = usize::try_from(memory).unwrap_or(usize::MAX) / MEMORY_DIVISOR;
        let opened = open_again(self.handle, self.path, StoreConfig { index_bytes, ..config() }).await?;
        report.figure(&self.name("restart after a close"), opened.seconds, "s", Some("at most 5"));
        let shard = opened.store.pool(POOL).ok_or_else(none)?;
        let looked_up = look_up(self.handle, &shard, self.files).await.ok_or_else(none)?;
        let name = self.name("looked up with a tenth of the index in memory");
        report.figure(&name, looked_up, "files/s", None);
        let index = opened.store.stats().index;
        let goal = Some("at most 1.1");
        let limit = ("its limit", float(index.memory_limit));
        report.beside(&self.name("index memory then"), float(index.memory), "B", limit, goal);
        drop(shard);
        opened.store.close().await.map_err(|error| failed("close", &error))
    }
}

/// Adds the rows. That of the process's memory means something where nothing was measured before (`is_alone`).
pub async fn measure(
    handle: &Handle,
    path: &Path,
    is_alone: bool,
    report: &mut Report,
) -> Result<(), BenchError> {
    let asked = std::env::var("WEIR_BENCH_KEYS").ok().and_then(|keys| keys.parse().ok());
    let files: u64 = asked.unwrap_or(FILES).max(2 * KEPT);
    let keys = Keys { handle, path, files, data: Slice::from(DmaBuf::copy_of(&[7; BLOCK])) };
    let inner = sparse(handle, path, (files * DEVICE_BYTES_EACH).max(DEVICE_BYTES_MIN))?;
    let device = Rc::new(Tapped::new(Rc::new(inner)));
    device.forget(Some(keys.data.clone()));
    let memory = keys.store(&device, is_alone, report).await?;
    let behind = keys.kill(device, report).await?;
    keys.restart(behind, report).await?;
    keys.look_up(memory, report).await
}

/// Checkpoints when log or index want one, not by time.
fn config() -> StoreConfig {
    StoreConfig { background: false, checkpoint_interval: CHECKPOINT_INTERVAL, ..StoreConfig::default() }
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
