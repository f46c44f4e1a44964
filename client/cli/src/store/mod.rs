//! `store` commands: a target's file or device, offline. The room calls output and the store's offline tools, no engine. The
//! arguments name its commands; the crate's root performs them.

mod copy;
mod dump;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use clap::Subcommand;
use rustix::fs::{Access, access};
use rustix::io::Errno;
use serde_json::{Value, json};
use weir_inspect::{Depth, Finding, InspectError, Inspector, Report};
use weir_media::MediaError;
use weir_media::health::MonitoredDevice;
use weir_runtime::real::Executor;

use crate::error::CliError;
use crate::output::{Answer, Output, fields, table};
use crate::values::Size;
use copy::CopyArguments;
use dump::DumpArguments;

/// Most damaged places that an error names.
const PLACES_MAX: usize = 8;

/// Looks at a target's file or device without an engine, and never writes to it; copies it to another one.
#[derive(Subcommand, Debug, Clone)]
pub enum StoreCommand {
    /// Show what a store is: owner, regions, checkpoint, log, pools.
    Inspect {
        /// File or block device of a target.
        device: PathBuf,
    },
    /// Check everything of a store; exit code 9 when something is damaged.
    Check {
        /// File or block device of a target.
        device: PathBuf,
        /// Leave out the data extents: check metadata alone.
        #[arg(long)]
        metadata_only: bool,
    },
    /// Print what is in a store, line by line.
    Dump(DumpArguments),
    /// Copy a store to another file or device, which takes its place; exit code 9 when something of it was lost.
    Copy(CopyArguments),
}

/// Performs a store command.
///
/// # Errors
/// When the device can't be read or holds no store.
pub fn run(command: StoreCommand, output: Output) -> Result<Answer, CliError> {
    match command {
        StoreCommand::Inspect { device } => report(&device, Depth::Outline),
        StoreCommand::Check { device, metadata_only } => {
            report(&device, if metadata_only { Depth::Metadata } else { Depth::Everything })
        }
        StoreCommand::Dump(arguments) => dump::dump(&arguments, output),
        StoreCommand::Copy(arguments) => copy::copy(&arguments, output),
    }
}

/// Works on a store with an executor of its own.
fn with_store<T>(
    path: &Path,
    work: impl AsyncFnOnce(Inspector) -> Result<T, InspectError>,
) -> Result<T, CliError> {
    let executor = Executor::new().map_err(|error| CliError::io("start an executor", error))?;
    let rt = executor.handle();
    let device = weir_media::open_read_only(&rt, path).map_err(|error| open_error(path, &error))?;
    // A device that doesn't answer is an error. Of one that can't be read in many places the rest is looked at.
    let device = Rc::new(MonitoredDevice::bearing_errors(&rt, device));
    executor.block_on(async { work(Inspector::open(device).await?).await }).map_err(CliError::from)
}

fn open_error(path: &Path, error: &MediaError) -> CliError {
    let Ok(about) = std::fs::metadata(path) else { return CliError::NotFound(error.to_string()) };
    let (shown, len) = (path.display(), about.len());
    if about.is_file() && len < weir_media::BLOCK as u64 {
        return CliError::NotFound(format!("{shown} holds no store: {len} bytes are less than a block"));
    }
    // An engine would have to write, too.
    if access(path, Access::READ_OK) == Err(Errno::ACCESS) {
        return CliError::Device(format!("{shown}: can't be opened: this user needs read permission"));
    }
    match error {
        MediaError::Busy { .. } => CliError::Busy(error.to_string()),
        _ => CliError::Device(error.to_string()),
    }
}

impl From<InspectError> for CliError {
    fn from(error: InspectError) -> Self {
        match &error {
            InspectError::NoStore { .. } | InspectError::NotThere { .. } => Self::NotFound(error.to_string()),
            InspectError::NotLeft { damages, findings, .. } => {
                Self::Damaged(format!("{error}:{}", places(*damages, findings)))
            }
            InspectError::Superblocks { .. } => Self::Damaged(error.to_string()),
            InspectError::Beyond { .. } => Self::Usage(format!("--offset: {error}")),
            InspectError::Version { .. } => Self::Device(error.to_string()),
        }
    }
}

/// Damaged places, one a line, until the reader stops reading.
fn places(damages: u64, findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { what, offset, len, reason, .. } in findings.iter().take(PLACES_MAX) {
        let _ = write!(text, "\n  {what} at byte {offset} ({len} bytes): {reason}");
    }
    let more = damages.saturating_sub(findings.len().min(PLACES_MAX) as u64);
    if more > 0 {
        let _ = write!(text, "\n  … and {more} more: `weir store check` lists them");
    }
    text
}

fn report(path: &Path, depth: Depth) -> Result<Answer, CliError> {
    let report = with_store(path, async |store| Ok(store.report(depth).await))?;
    let answer = Answer::new(as_json(&report), as_text(&report));
    if report.is_sound() {
        return Ok(answer);
    }
    let failure = format!(
        "{} is damaged in {} places; restore what they hold from a backup, or look closer with `weir store dump`",
        report.device, report.damages
    );
    Ok(answer.but(CliError::Damaged(failure)))
}

fn depth_name(depth: Depth) -> &'static str {
    match depth {
        Depth::Outline => "outline",
        Depth::Metadata => "metadata",
        Depth::Everything => "everything",
    }
}

fn as_json(report: &Report) -> Value {
    let copies = report
        .copies
        .iter()
        .map(|copy| json!({"what": copy.what, "offset": copy.offset, "fault": copy.fault}));
    let regions = report
        .regions
        .iter()
        .map(|region| json!({"name": region.name, "offset": region.offset, "bytes": region.len}));
    let checkpoint = report.checkpoint.map(|found| {
        json!({
            "generation": found.generation, "number": found.number, "incarnation": found.incarnation,
            "root": found.root, "entries": found.entries, "newest_epoch": found.newest_epoch,
        })
    });
    let log = report.log;
    let index = report.index.map(|index| {
        json!({
            "levels": index.levels, "nodes": index.nodes, "bytes": index.bytes, "entries": index.entries,
            "lost_nodes": index.lost_nodes,
        })
    });
    let data = report.data.map(|data| {
        json!({
            "extents": data.extents, "bytes": data.bytes, "pieces_checked": data.checked,
            "pieces_damaged": data.damaged,
        })
    });
    json!({
        "device": report.device,
        "size": report.size,
        "version": report.version,
        "features": report.features,
        "id": report.id,
        "system": report.owner.system,
        "rank": report.owner.rank.0,
        "target": report.owner.target.0,
        "formatted_ns": report.formatted_ns,
        "depth": depth_name(report.depth),
        "sound": report.is_sound(),
        "damages": report.damages,
        "notes": report.notes,
        "findings": report.findings.iter().map(finding_json).collect::<Vec<_>>(),
        "regions": regions.collect::<Vec<_>>(),
        "copies": copies.collect::<Vec<_>>(),
        "checkpoint": checkpoint,
        "log": {
            "capacity": log.capacity, "start": log.start, "end": log.end, "sequence": log.sequence,
            "batches": log.batches, "records": log.records, "changes": log.changes, "bytes": log.bytes,
            "last_batch_dropped": log.dropped,
        },
        "blocks": {
            "total": report.blocks.total, "marked": report.blocks.marked,
            "unreadable_groups": report.blocks.unreadable_groups,
        },
        "pools": pools_json(report),
        "index": index,
        "data": data,
    })
}

fn finding_json(finding: &Finding) -> Value {
    json!({
        "severity": finding.severity.name(), "what": finding.what, "offset": finding.offset, "bytes": finding.len,
        "subject": finding.subject, "reason": finding.reason,
    })
}

fn pools_json(report: &Report) -> Vec<Value> {
    let pool = |pool: &weir_inspect::PoolReport| {
        let containers = pool.containers.iter().map(|container| {
            json!({
                "number": container.number, "id": container.id.0, "quota": container.quota,
                "destroyed": container.destroyed, "snapshots": container.snapshots,
                "data_bytes": container.data_bytes, "entry_bytes": container.entry_bytes,
            })
        });
        json!({
            "number": pool.number, "id": pool.id.0, "size": pool.size, "destroyed": pool.destroyed,
            "containers": containers.collect::<Vec<_>>(),
        })
    };
    report.pools.iter().map(pool).collect()
}

fn as_text(report: &Report) -> String {
    let size = |bytes: u64| Size(bytes).to_string();
    let mut pairs = vec![
        ("Device", report.device.clone()),
        ("Size", size(report.size)),
        ("Format version", report.version.to_string()),
        ("Store", report.id.to_string()),
        ("Owner", report.owner.to_string()),
    ];
    pairs.push(match &report.checkpoint {
        Some(found) => ("Checkpoint", format!("number {}, {} entries", found.number, found.entries)),
        None => ("Checkpoint", "none is readable".to_owned()),
    });
    let log = report.log;
    pairs.push((
        "Log",
        format!(
            "{} batches, {} records, {} of {}",
            log.batches,
            log.records,
            size(log.bytes),
            size(log.capacity)
        ),
    ));
    let used = report.blocks.marked.saturating_mul(weir_media::BLOCK as u64);
    let total = report.blocks.total.saturating_mul(weir_media::BLOCK as u64);
    pairs.push(("Space used", format!("{} of {}", size(used), size(total))));
    if let Some(index) = report.index {
        pairs.push((
            "Index",
            format!(
                "{} levels, {} nodes, {} entries, {}",
                index.levels,
                index.nodes,
                index.entries,
                size(index.bytes)
            ),
        ));
    }
    if let Some(data) = report.data {
        let checked = if report.depth == Depth::Everything {
            format!(", {} pieces compared", data.checked)
        } else {
            ", not read".to_owned()
        };
        pairs.push(("Data extents", format!("{}, {}{checked}", data.extents, size(data.bytes))));
    }
    let mut text = fields(&pairs);
    let mut rows = vec![["Region", "Offset", "Bytes"].map(str::to_owned).to_vec()];
    rows.extend(
        report
            .regions
            .iter()
            .map(|region| vec![region.name.to_owned(), region.offset.to_string(), region.len.to_string()]),
    );
    text += "\n";
    text += &table(&rows);
    text += &pools_text(report);
    text += &findings_text(report);
    text
}

fn pools_text(report: &Report) -> String {
    if report.pools.is_empty() {
        return String::new();
    }
    let mut rows = vec![
        ["Pool", "Container", "Size or quota", "Data", "Entries", "Snapshots"].map(str::to_owned).to_vec(),
    ];
    let state = |destroyed: bool| if destroyed { " (destroyed)" } else { "" };
    for pool in &report.pools {
        rows.push(vec![
            format!("{}{}", pool.id, state(pool.destroyed)),
            String::new(),
            Size(pool.size).to_string(),
        ]);
        for container in &pool.containers {
            rows.push(vec![
                String::new(),
                format!("{}{}", container.id, state(container.destroyed)),
                if container.quota == 0 { "none".to_owned() } else { Size(container.quota).to_string() },
                Size(container.data_bytes).to_string(),
                Size(container.entry_bytes).to_string(),
                container.snapshots.to_string(),
            ]);
        }
    }
    format!("\n{}", table(&rows))
}

fn findings_text(report: &Report) -> String {
    let mut text = String::from("\n");
    for finding in &report.findings {
        let _ = writeln!(text, "{finding}");
    }
    let kept = report.findings.len() as u64;
    if report.damages + report.notes > kept {
        let _ = writeln!(text, "… and {} more", report.damages + report.notes - kept);
    }
    let verdict = match (report.is_sound(), report.depth) {
        (true, Depth::Everything) => "sound: all metadata and data match their checksums and each other",
        (true, Depth::Metadata) => "sound: all metadata matches its checksums and itself; data was not read",
        (true, Depth::Outline) => "no damage met; `weir store check` looks at everything",
        (false, _) => "damaged",
    };
    text + verdict + "\n"
}
