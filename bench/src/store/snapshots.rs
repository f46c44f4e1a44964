//! Overwrites of a value of which every version is kept: with each step there is one more snapshot, and one more version.

use std::path::Path;
use std::time::{Duration, Instant};

use weir_proto::Epoch;
use weir_runtime::Handle;
use weir_store::StoreConfig;

use super::load::{CONTAINER, Load, float, new_file_store};
use super::{FILE_BYTES, TINY, failed};
use crate::pairs::median;
use crate::report::{BenchError, Report};

/// Snapshots, each followed by an overwrite.
const STEPS: u64 = 20_000;
/// Steps at the begin, and at the end, that are compared.
const COMPARED: usize = 2_000;

/// Microseconds in the middle, and operations in a second.
fn figures(times: &[Duration]) -> (f64, f64) {
    let total: Duration = times.iter().sum();
    (
        median(times.iter().map(|time| time.as_secs_f64() * 1e6)),
        float(times.len() as u64) / total.as_secs_f64(),
    )
}

/// Adds rows that compare the last steps with the first ones.
fn compare(report: &mut Report, what: &str, times: &[Duration], goal: Option<&str>) {
    let (first, last) = (figures(&times[..COMPARED]), figures(&times[times.len() - COMPARED..]));
    let name = |figure: &str| format!("store: {what} behind {STEPS} snapshots{figure}");
    let reference = format!("in the first {COMPARED} steps");
    report.beside(&name(", p50"), last.0, "us", (&reference, first.0), goal);
    report.beside(&name(""), last.1, "op/s", (&reference, first.1), None);
}

/// Adds the rows.
pub async fn measure(handle: &Handle, path: &Path, report: &mut Report) -> Result<(), BenchError> {
    let (store, shard) = new_file_store(handle, path, FILE_BYTES, StoreConfig::default()).await?;
    let load = Load::new(handle, &shard, TINY.first, 1, 1, TINY.len);
    let load = load.ok_or_else(|| failed("a load", &"its data has no memory"))?;
    let (mut snapshots, mut overwrites) = (Vec::new(), Vec::new());
    load.updates(0).await.ok_or_else(|| failed("an update", &"it failed"))?;
    for step in 1..=STEPS {
        let began = Instant::now();
        let kept = shard.add_snapshot(CONTAINER, Epoch(step)).await;
        kept.map_err(|error| failed("a snapshot", &error))?;
        snapshots.push(began.elapsed());
        // At the next epoch.
        let times = load.update_times(step).await.ok_or_else(|| failed("an overwrite", &"it failed"))?;
        overwrites.extend(times);
    }
    compare(report, "overwrite 64 B", &overwrites, Some("<= 1.1"));
    compare(report, "snapshot", &snapshots, None);
    let kept = shard.snapshots(CONTAINER).map_err(|error| failed("snapshots", &error))?.len() as u64;
    report.figure("store: snapshots kept then", float(kept), "", None);
    drop((load, shard));
    store.close().await.map_err(|error| failed("close", &error))
}
