//! Overwrites of a value of which every version is kept: with each step there is one more snapshot, and one more version. Epochs
//! are those of the clock, so that aggregation follows as it does behind clients.

use std::path::Path;
use std::time::{Duration, Instant};

use weir_proto::Epoch;
use weir_runtime::Handle;
use weir_store::StoreConfig;

use super::load::{CONTAINER, Load, float, new_file_store};
use super::{FILE_BYTES, TINY, failed, floor, used_file};
use crate::pairs::{median, p99};
use crate::report::{BenchError, Report};

/// Snapshots, each followed by an overwrite.
const STEPS: u64 = 20_000;
/// Steps at the begin, and at the end, that are compared.
const COMPARED: usize = 2_000;

/// How long steps took, in microseconds, and how many there are in a second.
struct Figures {
    p50: f64,
    p99: f64,
    rate: f64,
}

impl Figures {
    fn of(times: &[Duration]) -> Self {
        let total: Duration = times.iter().sum();
        let each = || times.iter().map(|time| time.as_secs_f64() * 1e6);
        Self { p50: median(each()), p99: p99(each()), rate: float(times.len() as u64) / total.as_secs_f64() }
    }
}

/// Adds rows that compare the last steps with the first ones. Each is measured by writes of the bare disk that took turns with
/// it, which is another disk from one minute to the next.
fn compare(report: &mut Report, what: &str, times: &[Duration], raw: &[Duration], goal: Option<&str>) {
    let ends =
        |times: &[Duration]| (Figures::of(&times[..COMPARED]), Figures::of(&times[times.len() - COMPARED..]));
    let ((first, last), raw) = (ends(times), ends(raw));
    let name = |figure: &str| format!("store: {what} behind {STEPS} snapshots{figure}");
    let reference = format!("in the first {COMPARED} steps");
    report.beside(&name(", p50"), last.p50, "us", (&reference, first.p50), None);
    report.beside(&name(", p99"), last.p99, "us", (&reference, first.p99), None);
    report.beside(&name(""), last.rate, "op/s", (&reference, first.rate), None);
    let of_raw = (last.p50 / raw.1.p50, first.p50 / raw.0.p50);
    report.beside(&name(", p50 of raw writes"), of_raw.0, "times", (&reference, of_raw.1), goal);
    let of_raw = (last.p99 / raw.1.p99, first.p99 / raw.0.p99);
    report.beside(&name(", p99 of raw writes"), of_raw.0, "times", (&reference, of_raw.1), None);
}

/// Adds the rows.
pub async fn measure(
    handle: &Handle,
    [raw_path, path]: [&Path; 2],
    report: &mut Report,
) -> Result<(), BenchError> {
    let raw = used_file(handle, raw_path, FILE_BYTES).await?;
    let (store, shard) = new_file_store(handle, path, FILE_BYTES, StoreConfig::default()).await?;
    let load = Load::new(handle, &shard, TINY.first, 1, 1, TINY.len);
    let load = load.ok_or_else(|| failed("a load", &"its data has no memory"))?;
    let (mut snapshots, mut overwrites, mut writes) = (Vec::new(), Vec::new(), Vec::new());
    load.updates().await.ok_or_else(|| failed("an update", &"it failed"))?;
    for _ in 0..STEPS {
        let (began, now) = (Instant::now(), handle.wall_ns());
        let kept = shard.add_snapshot(CONTAINER, Epoch(now)).await;
        kept.map_err(|error| failed("a snapshot", &error))?;
        snapshots.push(began.elapsed());
        // At a later epoch.
        let times = load.update_times().await.ok_or_else(|| failed("an overwrite", &"it failed"))?;
        overwrites.extend(times);
        let began = Instant::now();
        floor(&raw, TINY.len, 1).await.ok_or_else(|| failed("a raw write", &"it failed"))?;
        writes.push(began.elapsed());
    }
    compare(report, "overwrite 64 B", &overwrites, &writes, Some("<= 1.1"));
    compare(report, "snapshot", &snapshots, &writes, None);
    let kept = shard.snapshots(CONTAINER).map_err(|error| failed("snapshots", &error))?.len() as u64;
    report.figure("store: snapshots kept then", float(kept), "", None);
    drop((load, shard));
    store.close().await.map_err(|error| failed("close", &error))
}
