//! Starts the process of a mount and queries its state.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::Command;

use crate::handover::{Descriptors, hand_over, pair};
use crate::process::ProcessRecord;
use crate::report::{FailureKind, Identity, LINE_MAX, MountFailure, Report, State};
use crate::spec::MountSpec;

/// How long a mount's process may take to answer its control socket. It answers from memory.
const STATE_LIMIT: Duration = Duration::from_secs(2);

/// A mount's process that has been started and has not reported yet.
#[derive(Debug)]
pub struct Child {
    /// The process.
    pub process: ProcessRecord,
    output: tokio::process::ChildStdout,
    handle: tokio::process::Child,
}

/// Starts the process of a mount in a session of its own, so that it outlives the daemon. With descriptors, it serves a mount
/// that is there; whether as the successor of another process is said with them.
///
/// # Errors
/// When it cannot be started.
pub fn spawn(
    program: &Path,
    spec: &MountSpec,
    control: &Path,
    handed: Option<(&Descriptors, bool)>,
) -> Result<Child, MountFailure> {
    let failed = |error: std::io::Error| {
        MountFailure::new(
            FailureKind::Internal,
            format!("start {} for {}: {error}", program.display(), spec.target.display()),
        )
    };
    let text = serde_json::to_string(spec).map_err(|error| failed(error.into()))?;
    let mut command = Command::new(program);
    command.arg("serve").arg("--control").arg(control).arg("--spec").arg(text).stdout(Stdio::piped());
    match handed {
        None => command.stdin(Stdio::null()),
        Some((descriptors, succeeds)) => {
            let (ours, theirs) = pair().map_err(failed)?;
            // It stays in the socket until the process reads it.
            hand_over(&ours, descriptors, succeeds).map_err(failed)?;
            command.arg("--handed").stdin(Stdio::from(theirs))
        }
    };
    let mut handle = command.spawn().map_err(failed)?;
    let output = handle.stdout.take().ok_or_else(|| failed(std::io::Error::other("no standard output")))?;
    let pid = handle.id().ok_or_else(|| failed(std::io::Error::other("it has ended")))?;
    let process = ProcessRecord::of(pid).map_err(failed)?;
    Ok(Child { process, output, handle })
}

impl Child {
    /// Waits for the first line of the process, and from then on reaps it in the background.
    ///
    /// # Errors
    /// The failure that it reports; or that it ended without a word.
    pub async fn report(self) -> Result<Identity, MountFailure> {
        let Self { process, output, mut handle } = self;
        let mut line = String::new();
        let mut reader = BufReader::new(output.take(LINE_MAX as u64));
        let read = reader.read_line(&mut line).await;
        tokio::spawn(async move {
            match handle.wait().await {
                Ok(status) if status.success() => tracing::info!(pid = process.pid, "mount process ended"),
                Ok(status) => tracing::error!(pid = process.pid, %status, "mount process ended"),
                Err(error) => {
                    tracing::error!(pid = process.pid, %error, "mount process cannot be waited for");
                }
            }
        });
        let silent = |detail: String| {
            MountFailure::new(
                FailureKind::Internal,
                format!("mount process {} ended before it served{detail}; its log says why", process.pid),
            )
        };
        match read {
            Ok(0) => Err(silent(String::new())),
            Ok(_) => match serde_json::from_str(&line) {
                Ok(Report::Serving(identity)) => Ok(identity),
                Ok(Report::Failed(failure)) => Err(failure),
                Err(error) => Err(silent(format!(" (it said {line:?}: {error})"))),
            },
            Err(error) => Err(silent(format!(": {error}"))),
        }
    }
}

/// Asks a mount's process for its state. None when it does not answer.
pub async fn state(control: PathBuf) -> Option<State> {
    let exchange = async {
        let mut stream = UnixStream::connect(&control).await.ok()?;
        let mut text = String::new();
        (&mut stream).take(LINE_MAX as u64).read_to_string(&mut text).await.ok()?;
        serde_json::from_str(&text).ok()
    };
    tokio::time::timeout(STATE_LIMIT, exchange).await.ok().flatten()
}
