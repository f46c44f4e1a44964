//! How long an open takes after a kill with as many records behind the last checkpoint as the log ever keeps: just before it asks
//! for one, in the default configuration, on a device that is large enough for the largest log that is chosen by itself.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use weir_media::Device;
use weir_runtime::Handle;
use weir_store::{Store, StoreConfig};

use super::keys::{open_again, sparse};
use super::load::{Load, float, gone, new_store};
use super::{TINY, failed};
use crate::report::{BenchError, Report};

/// Size of the device: sixteen times the largest log that is chosen by itself, and more. Most of it is never written.
const DEVICE_BYTES: u64 = 10 << 30;
/// Updates in flight at once: as many as fill the log's batches.
const WIDTH: u64 = 128;
/// Keys, each of which is updated once in a round: a round takes a quarter of a percent of the log.
const KEYS: u64 = 8192;
/// Part of the log, in percent, at which the store is killed: one round before it asks.
const STOP_BEFORE_PERCENT: u64 = 1;
/// Longer than it takes to fill the log: the log is to ask, not the clock.
const CHECKPOINT_INTERVAL: Duration = Duration::from_hours(1);
fn is_short_of(store: &Store, percent: u64) -> bool {
    let log = store.stats().commit;
    log.log_used * 100 < log.log_capacity * percent
}

/// Updates until the log is about to ask for a checkpoint; how many. An update at an epoch that its key already has takes
/// the other's place in the index: that doesn't grow, or it would ask first.
async fn pile_up(store: &Store, load: &Load, percent: u64) -> Result<u64, BenchError> {
    let checkpoints = store.stats().checkpoints;
    let mut updates = 0;
    while is_short_of(store, percent) {
        load.updates().await.ok_or_else(|| failed("a transfer", &"an operation failed"))?;
        updates += load.count;
    }
    if store.stats().checkpoints == checkpoints {
        return Ok(updates);
    }
    Err(failed("filling the log", &"something else has asked for a checkpoint"))
}

/// Adds the rows.
pub async fn measure(handle: &Handle, path: &Path, report: &mut Report) -> Result<(), BenchError> {
    let none = || failed("a transfer", &"an operation failed");
    let config =
        StoreConfig { checkpoint_interval: CHECKPOINT_INTERVAL, background: false, ..StoreConfig::default() };
    let device: Rc<dyn Device> = Rc::new(sparse(handle, path, DEVICE_BYTES)?);
    let last = Rc::downgrade(&device);
    let (store, shard) = new_store(handle, device, config.clone()).await?;
    let load = Load::new(handle, &shard, TINY.first, KEYS, WIDTH, TINY.len).ok_or_else(none)?.behind(0);
    load.updates().await.ok_or_else(none)?;
    store.checkpoint().await.map_err(|error| failed("a checkpoint", &error))?;
    let percent = config.checkpoint_log_percent - STOP_BEFORE_PERCENT;
    let updates = pile_up(&store, &load, percent).await?;
    let log = store.stats().commit.log_used;
    // As a kill leaves it: nothing is written any more, but for what was under way.
    drop((store, shard, load));
    gone(handle, last).await;
    let opened = open_again(handle, path, config).await?;
    let name = |what: &str| format!("store, a full log behind the checkpoint: {what}");
    report.figure(&name("restart after a kill"), opened.seconds, "s", Some("<= 5"));
    report.beside(&name("records replayed"), opened.replayed, "", ("updates", float(updates)), None);
    report.figure(&name("bytes read of the log"), float(log), "B", None);
    opened.store.close().await.map_err(|error| failed("close", &error))
}
