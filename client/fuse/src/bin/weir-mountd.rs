//! The mount daemon of a node.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use weir_fuse::daemon::{self, DEFAULT_ATTACH, DEFAULT_ROOT, DEFAULT_SOCKET, DEFAULT_STATE, DaemonConfig};
use weir_fuse::handover::{self, Handed};
use weir_fuse::report::{FailureKind, MountFailure, Report};
use weir_fuse::serve;
use weir_fuse::spec::{DEFAULT_THREADS, MountSpec, parse_log, parse_threads};

/// Mounts POSIX containers on this node for the CSI node plugin and the weir command line.
#[derive(Parser, Debug)]
#[command(name = "weir-mountd", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    daemon: DaemonArguments,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Serve one mount; started by the daemon.
    #[command(hide = true)]
    Serve {
        /// The mount, as JSON.
        #[arg(long)]
        spec: String,
        /// Control socket to serve.
        #[arg(long)]
        control: PathBuf,
        /// The mount is there already, and its descriptors come through standard input.
        #[arg(long)]
        handed: bool,
    },
}

#[derive(Args, Debug)]
struct DaemonArguments {
    /// Socket of the mount protocol.
    #[arg(long, env = "WEIR_MOUNTD_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Folder for what must survive a restart.
    #[arg(long, env = "WEIR_MOUNTD_STATE", default_value = DEFAULT_STATE)]
    state: PathBuf,
    /// Attach file, or a folder with attach files of several systems. It may appear later.
    #[arg(long, env = "WEIR_ATTACH", default_value = DEFAULT_ATTACH)]
    attach: PathBuf,
    /// Folder below which mounts may be made; may be given several times.
    #[arg(long = "root", default_value = DEFAULT_ROOT)]
    roots: Vec<PathBuf>,
    /// Address of metrics and health, e.g. 0.0.0.0:9811.
    #[arg(long, env = "WEIR_MOUNTD_METRICS")]
    metrics: Option<SocketAddr>,
    /// Threads of each mount.
    #[arg(long, default_value_t = DEFAULT_THREADS, value_parser = parse_threads)]
    threads: usize,
    /// Seconds that an operation waits for an engine that is away before it fails with EIO.
    #[arg(long, default_value_t = 300)]
    engine_wait: u64,
    /// Socket of the mount broker, which mounts for this daemon; without it the daemon mounts, which takes `CAP_SYS_ADMIN`.
    #[arg(long, env = "WEIR_MOUNT_BROKER")]
    broker: Option<PathBuf>,
    /// error, warn, info, debug or trace.
    #[arg(long, env = "WEIR_LOG", default_value = "info", value_parser = parse_log)]
    log: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command {
        Some(Command::Serve { spec, control, handed }) => {
            // First, while this process has one thread.
            let handed = handed.then(handover::take_over).transpose();
            serve::init_log(&std::env::var("WEIR_LOG").unwrap_or_else(|_| "info".into()));
            serve_mount(&spec, control, handed)
        }
        None => {
            serve::init_log(&arguments.daemon.log);
            run_daemon(arguments.daemon)
        }
    }
}

fn run_daemon(arguments: DaemonArguments) -> ExitCode {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            tracing::error!(%error, "the path of this program is not known");
            return ExitCode::FAILURE;
        }
    };
    let config = DaemonConfig {
        socket: arguments.socket,
        state: arguments.state,
        attach: arguments.attach,
        roots: arguments.roots,
        metrics: arguments.metrics,
        program,
        threads: arguments.threads,
        engine_wait: Duration::from_secs(arguments.engine_wait),
        broker: arguments.broker,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.map_err(|error| error.to_string()).and_then(|runtime| {
        let ended = runtime.block_on(daemon::run(config)).map_err(|error| error.to_string());
        // A look at a path that hangs must not keep the daemon from ending.
        runtime.shutdown_background();
        ended
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve_mount(spec: &str, control: PathBuf, handed: std::io::Result<Option<Handed>>) -> ExitCode {
    let report = |report: &Report| {
        let line = serde_json::to_string(report).unwrap_or_default();
        // A daemon that is gone has no use for it, and its successor asks at the control socket.
        let _ = writeln!(std::io::stdout(), "{line}");
    };
    // In a session of its own no signal of the daemon's terminal or service manager reaches it.
    let _ = rustix::process::setsid();
    let spec: MountSpec = match serde_json::from_str(spec) {
        Ok(spec) => spec,
        Err(error) => {
            report(&Report::Failed(MountFailure::new(
                FailureKind::InvalidArgument,
                format!("--spec: {error}"),
            )));
            return ExitCode::FAILURE;
        }
    };
    let handed = match handed {
        Ok(handed) => handed,
        Err(error) => {
            report(&Report::Failed(MountFailure::new(
                FailureKind::Internal,
                format!("take the mount: {error}"),
            )));
            return ExitCode::FAILURE;
        }
    };
    match serve::run(&spec, Some(control), handed, |identity| report(&Report::Serving(identity.clone()))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tracing::error!(target = %spec.target.display(), volume = spec.volume, "{failure}");
            report(&Report::Failed(failure));
            ExitCode::FAILURE
        }
    }
}
