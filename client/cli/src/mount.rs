//! `mount` and `umount`: a mount by this command itself, without the node's mount daemon. The room calls connections for the
//! attach file. The crate's root performs its commands, and `weir dev` mounts what its manifests name.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use serde_json::json;
use weir_fuse::mountinfo;
use weir_fuse::process::ProcessRecord;
use weir_fuse::report::{FailureKind, Identity, MountFailure, Report};
use weir_fuse::serve;
use weir_fuse::spec::{DEFAULT_THREADS, MountSpec, parse_log, parse_threads};

use crate::connection;
use crate::error::CliError;
use crate::output::{Answer, Output};
use crate::values;

/// How long an unmount waits for the container's handle to be given back: engines that are away may make it longer.
const CLOSE_LIMIT: Duration = Duration::from_secs(30);

/// Mounts a container.
#[derive(Args, Debug, Clone)]
pub struct MountArguments {
    /// Pool, by label or UUID.
    #[arg(value_parser = values::name)]
    pub pool: String,
    /// Container, by label or UUID.
    #[arg(value_parser = values::name)]
    pub container: String,
    /// Existing directory to mount at.
    pub directory: PathBuf,
    /// Refuse every change.
    #[arg(long, visible_alias = "ro")]
    pub read_only: bool,
    /// Serve in this process until it is unmounted or interrupted.
    #[arg(short, long)]
    pub foreground: bool,
    /// Mount options: noatime, nodev, nosuid, noexec, ro, rw, intercept, cache=close-to-open, cache=none, cache=cached[:SECONDS], unsent=MIB.
    #[arg(short = 'o', long = "options", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Group that owns what is created through this mount.
    #[arg(long, default_value_t = 0)]
    pub fs_group: u32,
    /// Threads that serve requests.
    #[arg(long, default_value_t = DEFAULT_THREADS, value_parser = parse_threads)]
    pub threads: usize,
    /// Seconds that an operation waits for an engine that is away before it fails with EIO.
    #[arg(long, default_value_t = 300)]
    pub engine_wait: u64,
    /// Control socket to serve.
    #[arg(long, hide = true)]
    pub control: Option<PathBuf>,
    /// Report to whoever started this process, on standard output.
    #[arg(long, hide = true)]
    pub report: bool,
    /// File that the mount's log goes to; a mount in the background has no other.
    #[arg(long, env = "WEIR_LOG_FILE")]
    pub log_file: Option<PathBuf>,
    /// Log: error, warn, info, debug or trace.
    #[arg(long, env = "WEIR_LOG", default_value = "warn", value_parser = parse_log)]
    pub log: String,
}

/// Unmounts a container.
#[derive(Args, Debug, Clone)]
pub struct UmountArguments {
    /// Directory that a container is mounted at.
    pub directory: PathBuf,
    /// Detach it at once although programs use it.
    #[arg(short, long)]
    pub lazy: bool,
}

/// Mounts a container.
///
/// # Errors
/// When it cannot be mounted.
pub fn mount(
    arguments: &MountArguments,
    named: Option<&Path>,
    patience: Duration,
    output: Output,
) -> Result<Answer, CliError> {
    let attach = connection::find_attach(named)?;
    let attach =
        std::path::absolute(&attach).map_err(|error| CliError::io(attach.display().to_string(), error))?;
    let target = arguments.directory.canonicalize().map_err(|error| {
        CliError::named(format!("directory {} to mount at", arguments.directory.display()), error)
    })?;
    if mountinfo::at(&target)
        .is_ok_and(|found| found.is_some_and(|entry| entry.file_system == mountinfo::FILE_SYSTEM_TYPE))
        && mountinfo::is_connected(&target)
    {
        let message = format!("a container is mounted at {} already: unmount it first", target.display());
        return Err(CliError::Mount(MountFailure::new(FailureKind::FailedPrecondition, message)));
    }
    let spec = MountSpec {
        system: String::new(),
        attach,
        pool: arguments.pool.clone(),
        container: arguments.container.clone(),
        target,
        read_only: arguments.read_only,
        fs_group: arguments.fs_group,
        options: arguments.options.clone(),
        volume: String::new(),
        threads: arguments.threads,
        engine_wait: Duration::from_secs(arguments.engine_wait),
        open_wait: patience,
        tenant: None,
    };
    if arguments.foreground { serve_here(&spec, arguments) } else { start(&spec, arguments, output) }
}

/// Serves the mount in this process.
fn serve_here(spec: &MountSpec, arguments: &MountArguments) -> Result<Answer, CliError> {
    if arguments.report {
        // Started by another process: no signal of its terminal is meant for the mount.
        let _ = rustix::process::setsid();
    }
    serve::init_log(&arguments.log);
    let tell = |report: &Report| {
        if arguments.report {
            use std::io::Write as _;
            let line = serde_json::to_string(report).unwrap_or_default();
            // The parent process may be gone; the mount goes on.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    };
    match serve::run(spec, arguments.control.clone(), None, |identity| {
        tell(&Report::Serving(identity.clone()));
    }) {
        Ok(()) => Ok(Answer::new(serde_json::Value::Null, "")),
        Err(failure) => {
            tell(&Report::Failed(failure.clone()));
            Err(failure.into())
        }
    }
}

/// A process that serves a mount, not yet reporting.
#[must_use]
pub fn command_of(program: &Path, spec: &MountSpec, control: Option<&Path>, log: &str) -> Command {
    let mut command = Command::new(program);
    command.arg("mount").arg("--foreground").arg("--report").arg("--attach").arg(&spec.attach);
    command.arg("--threads").arg(spec.threads.to_string());
    command.arg("--timeout").arg(spec.open_wait.as_secs().to_string());
    command.arg("--engine-wait").arg(spec.engine_wait.as_secs().to_string());
    command.arg("--fs-group").arg(spec.fs_group.to_string()).arg("--log").arg(log);
    if spec.read_only {
        command.arg("--read-only");
    }
    if !spec.options.is_empty() {
        command.arg("--options").arg(spec.options.join(","));
    }
    if let Some(control) = control {
        command.arg("--control").arg(control);
    }
    command.arg(&spec.pool).arg(&spec.container).arg(&spec.target);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// What the first line of a mount's process says.
///
/// # Errors
/// The failure that it reports, or that it said nothing.
pub fn parse_report(line: &str) -> Result<Identity, CliError> {
    match serde_json::from_str(line) {
        Ok(Report::Serving(identity)) => Ok(identity),
        Ok(Report::Failed(failure)) => Err(failure.into()),
        Err(_) => {
            let message = "the mount's process ended before it served; --log-file keeps what it says";
            Err(MountFailure::new(FailureKind::Internal, message).into())
        }
    }
}

/// Starts a process that serves the mount and waits until it does.
fn start(spec: &MountSpec, arguments: &MountArguments, output: Output) -> Result<Answer, CliError> {
    let program = std::env::current_exe().map_err(|error| CliError::io("path of this program", error))?;
    let log = match &arguments.log_file {
        None => Stdio::null(),
        Some(path) => std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|error| CliError::named(path.display().to_string(), error))?
            .into(),
    };
    // Its standard error must not be the caller's: a process that waits for its end would wait for the end of the
    // mount.
    let mut child = command_of(&program, spec, arguments.control.as_deref(), &arguments.log)
        .stderr(log)
        .spawn()
        .map_err(|error| CliError::io(format!("start {}", program.display()), error))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout)
            .read_line(&mut line)
            .map_err(|error| CliError::io("read the mount's report", error))?;
    }
    let identity = parse_report(&line)?;
    if output.verbose {
        eprintln!("client init, pool connect, container open: {} us", identity.open_micros);
    }
    let text = format!("{} mounted at {}\n", spec.source(), spec.target.display());
    let response = json!({
        "target_path": spec.target,
        "pool_uuid": identity.pool_uuid,
        "container_uuid": identity.container_uuid,
        "open_microseconds": identity.open_micros,
        "pid": child.id(),
    });
    Ok(Answer::new(response, text))
}

/// Unmounts a container.
///
/// # Errors
/// When nothing of ours is mounted there, or it is in use.
pub fn unmount(arguments: &UmountArguments) -> Result<Answer, CliError> {
    let given = std::path::absolute(&arguments.directory)
        .map_err(|error| CliError::io(arguments.directory.display().to_string(), error))?;
    let is_ours = |path: &Path| -> Result<bool, CliError> {
        let entry = mountinfo::at(path).map_err(|error| CliError::io("/proc/self/mountinfo", error))?;
        Ok(entry.is_some_and(|entry| entry.file_system == mountinfo::FILE_SYSTEM_TYPE))
    };
    let mut target = given.clone();
    if !is_ours(&target)? {
        // A mount stands where links lead, as `mount` has followed them.
        target = given.canonicalize().unwrap_or(target);
        if !is_ours(&target)? {
            return Err(CliError::NotFound(format!("no container is mounted at {}", given.display())));
        }
    }
    let serving = serving(&target);
    serve::unmount(&target, arguments.lazy).map_err(|error| {
        let busy = error.raw_os_error() == Some(16);
        let kind = if busy { FailureKind::FailedPrecondition } else { FailureKind::Internal };
        let hint = if busy { "; end the programs that use it, or give --lazy" } else { "" };
        MountFailure::new(kind, format!("unmount {}: {error}{hint}", target.display()))
    })?;
    let answer = Answer::done(format!("{} unmounted", target.display()));
    // What is detached goes on for the programs that use it.
    let Some(process) = serving.filter(|_| !arguments.lazy) else { return Ok(answer) };
    let ended = connection::runtime()?.block_on(process.wait_gone(CLOSE_LIMIT)).unwrap_or(false);
    if ended {
        return Ok(answer);
    }
    let text = format!(
        "{} unmounted; process {}, which served it, has not given the container back yet",
        target.display(),
        process.pid
    );
    Ok(Answer::done(text))
}

/// The process that serves a mount, by its arguments: `weir mount` starts it with the target as the last of them, and
/// `weir-mountd` with the whole mount as one of them. Which connection of the kernel belongs to which process can't be asked.
fn serving(target: &Path) -> Option<ProcessRecord> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter(|pid| serves(*pid, target)).find_map(|pid| ProcessRecord::of(pid).ok())
}

fn serves(pid: u32, target: &Path) -> bool {
    let Ok(line) = std::fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    let arguments: Vec<&[u8]> = line.strip_suffix(b"\0").unwrap_or(&line).split(|byte| *byte == 0).collect();
    let is = |text: &[u8]| arguments.contains(&text);
    if is(b"mount") && (is(b"--foreground") || is(b"-f")) {
        return arguments.last().is_some_and(|last| Path::new(OsStr::from_bytes(last)) == target);
    }
    let spec = arguments.windows(2).find_map(|pair| (pair[0] == b"--spec").then_some(pair[1]));
    let spec = spec.filter(|_| is(b"serve")).and_then(|spec| serde_json::from_slice::<MountSpec>(spec).ok());
    spec.is_some_and(|spec| spec.target == target)
}
