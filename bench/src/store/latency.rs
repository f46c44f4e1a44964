//! How long 4 KiB updates take while nothing else runs, while checkpoints do, and while aggregation does.

use std::path::Path;
use std::rc::Rc;

use weir_media::BLOCK;
use weir_proto::Epoch;
use weir_runtime::Handle;
use weir_store::{Shard, Store, StoreConfig};

use super::load::{CONTAINER, Load, float, new_file_store};
use super::turns::Turns;
use super::{FILE_BYTES, OPERATIONS, WIDTH, failed};
use crate::pairs::p99;
use crate::report::{BenchError, Report};

/// Checkpoints one behind the other, until dropped.
async fn keep_checkpointing(store: Rc<Store>, handle: Handle) {
    while store.checkpoint().await.is_ok() {
        handle.yield_now().await;
    }
}

/// Aggregates all that was overwritten, again and again, until dropped.
async fn keep_aggregating(store: Rc<Store>, shard: Shard, handle: Handle) {
    while shard.aggregate(CONTAINER, Epoch(store.newest_epoch().0)).await.is_ok() {
        handle.yield_now().await;
    }
}

/// Time that 99 of 100 updates stay below, in microseconds.
async fn p99_us(load: &Load) -> Result<f64, BenchError> {
    let times = load.update_times().await.ok_or_else(|| failed("an update", &"it failed"))?;
    Ok(p99(times.into_iter().map(|time| time.as_secs_f64() * 1e6)))
}

/// Adds the rows. All updates overwrite the same extents.
pub async fn measure(handle: &Handle, path: &Path, report: &mut Report) -> Result<(), BenchError> {
    // Nothing runs beside the updates but what is measured.
    let config = StoreConfig { background: false, ..StoreConfig::default() };
    let (store, shard) = new_file_store(handle, path, FILE_BYTES, config).await?;
    let load = Load::new(handle, &shard, 1 << 32, OPERATIONS, WIDTH, BLOCK);
    let load = load.ok_or_else(|| failed("a load", &"its data has no memory"))?;
    // Warm: the first updates make the index grow.
    p99_us(&load).await?;
    let goal = Some("at most 2");
    let turns = Turns::watch(handle)?;
    for what in ["checkpoints", "aggregation"] {
        turns.take();
        let idle = p99_us(&load).await?;
        let (idle_longest, _) = turns.take();
        let before = store.stats();
        let (store_of_task, handle_of_task) = (Rc::clone(&store), handle.clone());
        let task = if what == "checkpoints" {
            handle.spawn(keep_checkpointing(store_of_task, handle_of_task))
        } else {
            handle.spawn(keep_aggregating(store_of_task, shard.clone(), handle_of_task))
        };
        let busy = p99_us(&load).await;
        task.abort();
        let (longest, most) = turns.take();
        let name = format!("store: p99 of 4 KiB updates during {what}");
        report.beside(&name, busy?, "us", ("p99 while idle", idle), goal);
        let name = format!("store: longest CPU time between two looks at the device during {what}");
        report.beside(&name, longest, "us", ("while idle", idle_longest), None);
        let name = format!("store: CPU time that 999 of 1000 looks at it are apart during {what}");
        report.figure(&name, most, "us", None);
        let after = store.stats();
        let (done, unit) = if what == "checkpoints" {
            (after.checkpoints - before.checkpoints, "checkpoints")
        } else {
            (after.aggregated - before.aggregated, "versions")
        };
        report.figure(&format!("store: {what} during that"), float(done), unit, None);
    }
    store.close().await.map_err(|error| failed("close", &error))
}
