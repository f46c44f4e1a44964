//! `weir store copy`.

use std::fmt::Write as _;
use std::fs::Metadata;
use std::io::{IsTerminal, Write as _};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use weir_inspect::{
    Copied, CopyError, CopyEvents, CopyOptions, CopyProgress, CopyStage, Inspector, Loss, Survey,
};
use weir_media::file::FileDevice;
use weir_media::health::MonitoredDevice;
use weir_media::{Device, MediaError};
use weir_runtime::Handle;
use weir_runtime::real::Executor;
use weir_store::StoreConfig;

use super::{finding_json, open_error};
use crate::connection::runtime;
use crate::error::CliError;
use crate::output::{Answer, Output, Stream, fields};
use crate::values::Size;

/// How often it is shown how far a copy is.
const SHOWN_EVERY: Duration = Duration::from_millis(250);

/// Memory of the copy's index: entries come in the order of their keys, so that nothing but its latest nodes is needed.
const INDEX_BYTES: usize = 256 << 20;

/// What ends a line that stood at the end of another one: back to its start, and nothing behind.
const CLEAR: &str = "\r\x1b[K";

/// What is copied.
#[derive(Args, Debug, Clone)]
pub struct CopyArguments {
    /// File or block device of the target that is to be replaced; it is only read.
    from: PathBuf,
    /// File or block device that takes its place: an empty one, or a file that is created.
    to: PathBuf,
    /// Size of the file that is created, e.g. 4TiB [default: that of FROM].
    #[arg(long)]
    size: Option<Size>,
    /// Begin a copy again that was not finished: what there is of it on TO is overwritten.
    #[arg(long)]
    restart: bool,
}

/// Copies a target's store to another file or device.
///
/// # Errors
/// When it can't be copied. Of one that is damaged what is left is copied.
pub fn copy(arguments: &CopyArguments, output: Output) -> Result<Answer, CliError> {
    let CopyArguments { from, to, size, restart } = arguments;
    check_apart(from, to)?;
    let executor = Executor::new().map_err(|error| CliError::io("start an executor", error))?;
    let rt = executor.handle();
    let source = weir_media::open_read_only(&rt, from).map_err(|error| open_error(from, &error))?;
    let source: Rc<dyn Device> = Rc::new(MonitoredDevice::bearing_errors(&rt, source));
    let mut events = Events::new(output, stop_on_signals()?);
    let device = Rc::clone(&source);
    let inspector = executor.block_on(Inspector::open(device))?;
    let survey = executor.block_on(inspector.survey(&mut events));
    events.clear();
    let survey = survey.map_err(|error| failure(&error))?;
    let target = open_target(&rt, to, *size, (source.size(), &survey))?;
    let config = StoreConfig { index_bytes: INDEX_BYTES, ..StoreConfig::default() };
    let options = CopyOptions { restart: *restart, config };
    let copied = executor.block_on(inspector.copy(&rt, &survey, &target, &options, &mut events));
    events.clear();
    let stream = events.stream;
    match copied {
        Ok(copied) => finish(stream, &copied, (source.name(), target.name(), target.size())),
        Err(error) if stream.has_begun() => {
            // Why the copy failed is more than why that can't be written.
            let _ = stream.end(&[("copied", Value::Null)]);
            Ok(Answer::streamed(String::new()).but(failure(&error)))
        }
        Err(error) => Err(failure(&error)),
    }
}

fn finish(stream: Stream, copied: &Copied, names: (&str, &str, u64)) -> Result<Answer, CliError> {
    let (_, to, _) = names;
    let is_read = stream.end(&[("copied", as_json(copied, names))]).map_err(|error| {
        let finished = format!("{to} has the copy, which is finished, but what is to be said of it could not all be written: {error}");
        match copied.losses {
            0 => CliError::Device(format!("{finished}. Everything is there")),
            losses => CliError::Damaged(format!(
                "{finished}. It has lost something in {losses} places; `weir store check` names damaged data, but not what is missing"
            )),
        }
    })?;
    let answer = Answer::streamed(if is_read { as_text(copied, names) } else { String::new() });
    if copied.is_whole() {
        return Ok(answer);
    }
    let (from, ..) = names;
    let missing = if copied.losses > copied.damaged_places {
        "; entries of the index are missing: what they said is as if it had never been, so that older data may show in its place"
    } else {
        ""
    };
    Ok(answer.but(CliError::Damaged(format!(
        "{to} has all that could be read of {from}, which has lost something in {} places{missing}. Restore what was there from a backup",
        copied.losses
    ))))
}

fn failure(error: &CopyError) -> CliError {
    match error {
        CopyError::NoIndex { .. } | CopyError::Crowded { .. } => CliError::Damaged(error.to_string()),
        CopyError::TooSmall { .. } => CliError::NoSpace(error.to_string()),
        CopyError::UnfinishedCopy { .. } => CliError::Busy(error.to_string()),
        _ => CliError::Device(error.to_string()),
    }
}

/// Refuses to copy something to itself, under whatever name.
fn check_apart(from: &Path, to: &Path) -> Result<(), CliError> {
    let is_same = |one: &Metadata, other: &Metadata| {
        let device = |of: &Metadata| of.file_type().is_block_device() || of.file_type().is_char_device();
        (one.dev(), one.ino()) == (other.dev(), other.ino())
            || (device(one) && device(other) && one.rdev() == other.rdev())
    };
    match (std::fs::metadata(from), std::fs::metadata(to)) {
        (Ok(one), Ok(other)) if is_same(&one, &other) => Err(CliError::Usage(format!(
            "{} and {} are the same: give another file or device to copy to",
            from.display(),
            to.display()
        ))),
        _ => Ok(()),
    }
}

/// Opens what is copied to; a file that isn't there is created, when it is known to be large enough.
fn open_target(
    rt: &Handle,
    to: &Path,
    size: Option<Size>,
    (from_size, survey): (u64, &Survey),
) -> Result<Rc<dyn Device>, CliError> {
    let shown = to.display().to_string();
    let open_failed = |error: &MediaError| match error {
        MediaError::Busy { .. } => CliError::Busy(error.to_string()),
        _ => CliError::Device(error.to_string()),
    };
    // An empty file is what is left of one whose creation was interrupted.
    if std::fs::metadata(to).is_ok_and(|found| found.is_file() && found.len() == 0) {
        std::fs::remove_file(to)
            .map_err(|error| CliError::io(format!("remove the empty file {shown}"), error))?;
    }
    let device: Rc<dyn Device> = if to.exists() || weir_media::spdk_name(to).is_some() {
        let device = weir_media::open(rt, to).map_err(|error| open_failed(&error))?;
        if let Some(Size(size)) = size.filter(|Size(size)| *size != device.size()) {
            return Err(CliError::Usage(format!(
                "--size: {shown} is there already and has {} bytes, not {size}; leave --size out, or name a file that is to be created",
                device.size()
            )));
        }
        device
    } else {
        let size = size.map_or(from_size, |Size(size)| size);
        survey.check_room(&shown, size).map_err(|error| failure(&error))?;
        Rc::new(FileDevice::create(rt, to, size).map_err(|error| open_failed(&error))?)
    };
    survey.check_room(&shown, device.size()).map_err(|error| failure(&error))?;
    Ok(Rc::new(MonitoredDevice::new(rt, device)))
}

/// Whether a signal has asked for the end. The second one ends the program at once: the device may not answer.
fn stop_on_signals() -> Result<Arc<AtomicBool>, CliError> {
    let stopped = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&stopped);
    let failed = |error| CliError::io("watch signals", error);
    let runtime = runtime()?;
    let (mut interrupt, mut terminate) = {
        let _context = runtime.enter();
        let watch = |kind| signal(kind).map_err(failed);
        (watch(SignalKind::interrupt())?, watch(SignalKind::terminate())?)
    };
    let watching = move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if noted.swap(true, Ordering::Relaxed) {
                    std::process::exit(i32::from(crate::error::exit::FAILURE));
                }
            }
        });
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watching).map_err(failed)?;
    Ok(stopped)
}

/// Prints losses as they are met, and shows on a terminal how far the copy is.
struct Events {
    stream: Stream,
    stopped: Arc<AtomicBool>,
    /// Whether standard error is a terminal.
    shows: bool,
    /// When it was shown last, and whether it still stands there.
    shown: Option<Instant>,
    stands: bool,
    /// When data began to be copied.
    begin: Option<Instant>,
}

impl Events {
    fn new(output: Output, stopped: Arc<AtomicBool>) -> Self {
        let (stream, shows) = (Stream::new(output), std::io::stderr().is_terminal());
        Self { stream, stopped, shows, shown: None, stands: false, begin: None }
    }

    fn flow(&self) -> ControlFlow<()> {
        if self.stopped.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Takes away what stands there.
    fn clear(&mut self) {
        if core::mem::take(&mut self.stands) {
            let _ = write!(std::io::stderr(), "{CLEAR}");
        }
    }
}

impl CopyEvents for Events {
    fn progress(&mut self, progress: &CopyProgress) -> ControlFlow<()> {
        let now = Instant::now();
        if progress.stage == CopyStage::Copy {
            self.begin.get_or_insert(now);
        }
        let is_due = self.shown.is_none_or(|shown| now - shown >= SHOWN_EVERY);
        if self.shows && (is_due || progress.stage == CopyStage::End) {
            let since = self.begin.map_or(Duration::ZERO, |begin| now - begin);
            let _ = write!(std::io::stderr(), "{CLEAR}{}", progress_text(progress, since));
            (self.shown, self.stands) = (Some(now), true);
        }
        self.flow()
    }

    fn loss(&mut self, loss: Loss) -> ControlFlow<()> {
        self.clear();
        // The reader of the losses may go away: the copy is what was asked for.
        let _ = self.stream.push(|| loss.to_string(), || loss_json(&loss));
        self.flow()
    }
}

fn progress_text(progress: &CopyProgress, since: Duration) -> String {
    let CopyProgress { stage, entries, entries_total, bytes, bytes_total } = *progress;
    match stage {
        CopyStage::Survey => format!("reading the index: {entries} of about {entries_total} entries"),
        CopyStage::End => "writing the last checkpoint".to_owned(),
        CopyStage::Copy => {
            // Entries count as if they had some bytes of data: there may be nothing else.
            let (done, all) = (weight(entries, bytes), weight(entries_total, bytes_total).max(1));
            let percent = done.saturating_mul(100) / all;
            let rate = u128::from(bytes) * 1000 / since.as_millis().max(1);
            let left = since.as_millis() * u128::from(all.saturating_sub(done)) / u128::from(done.max(1));
            format!(
                "{percent:3} %  {} of {}  {entries} entries  {}/s  {} left",
                Size(bytes),
                Size(bytes_total),
                Size(u64::try_from(rate).unwrap_or(u64::MAX)),
                time_text(Duration::from_millis(u64::try_from(left).unwrap_or(u64::MAX)))
            )
        }
    }
}

/// What entries and data have to do with the time that they take.
fn weight(entries: u64, bytes: u64) -> u64 {
    bytes.saturating_add(entries.saturating_mul(1024))
}

fn time_text(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

fn loss_json(loss: &Loss) -> Value {
    let range = |range: Option<weir_proto::object::Extent>| {
        range.map(|range| json!({"first": range.index, "count": range.count}))
    };
    json!({
        "kind": loss.kind.name(), "what": loss.what, "offset": loss.offset, "bytes": loss.len,
        "pool": loss.pool.map(|id| id.0), "container": loss.container.map(|id| id.0),
        "object": loss.object.map(|id| id.to_string()),
        "dkey": loss.dkey.as_ref().map(ToString::to_string), "akey": loss.akey.as_ref().map(ToString::to_string),
        "records": range(loss.records), "bytes_of_value": range(loss.bytes), "epoch": loss.epoch.map(|epoch| epoch.0),
        "transaction": loss.transaction.map(|id| id.to_string()), "subject": loss.subject, "reason": loss.reason,
    })
}

fn as_json(copied: &Copied, (from, to, size): (&str, &str, u64)) -> Value {
    json!({
        "from": {"device": from, "id": copied.from},
        "to": {"device": to, "id": copied.id, "size": size},
        "whole": copied.is_whole(), "losses": copied.losses, "entries": copied.entries, "data_bytes": copied.data,
        "damaged_places": copied.damaged_places, "damaged_bytes": copied.damaged, "lost_nodes": copied.lost_nodes,
        "left_out": copied.left_out, "mended": copied.mended.iter().map(finding_json).collect::<Vec<_>>(),
    })
}

fn as_text(copied: &Copied, (from, to, size): (&str, &str, u64)) -> String {
    let mut text = fields(&[
        ("From", format!("{from}, store {}", copied.from)),
        ("To", format!("{to} ({}), store {}", Size(size), copied.id)),
        ("Copied", format!("{} entries, {} of data", copied.entries, Size(copied.data))),
    ]);
    for finding in &copied.mended {
        let _ = writeln!(text, "not in the copy: {finding}");
    }
    if copied.damaged_places > 0 {
        let _ = writeln!(
            text,
            "damaged: {} of data in {} places; reads of it fail, as before",
            Size(copied.damaged),
            copied.damaged_places
        );
    }
    let others = copied.losses - copied.damaged_places;
    if others > 0 {
        let _ = writeln!(
            text,
            "MISSING: entries in {others} places ({} nodes of the index lost, {} entries left out)",
            copied.lost_nodes, copied.left_out
        );
    }
    let verdict = if copied.is_whole() {
        "whole: all that an open finds was compared and is there\n"
    } else {
        "damaged\n"
    };
    text + verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_how_far_a_copy_is_and_how_long_it_takes() {
        let (entries, entries_total) = (0, 0);
        let (stage, bytes, bytes_total) = (CopyStage::Copy, 1 << 30, 4 << 30);
        let progress = CopyProgress { stage, entries, entries_total, bytes, bytes_total };
        let text = progress_text(&progress, Duration::from_secs(1300));
        assert_eq!(text, " 25 %  1.0 GiB of 4.0 GiB  0 entries  806.6 KiB/s  1:05:00 left");
        let nothing = CopyProgress { bytes: 0, bytes_total: 0, ..progress };
        assert!(progress_text(&nothing, Duration::ZERO).starts_with("  0 %"), "an empty store");
        assert_eq!(time_text(Duration::from_secs(61)), "1:01");
    }
}
