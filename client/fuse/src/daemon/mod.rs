//! `weir-mountd`: serves the mount protocol on a unix socket and keeps one process per mount.
//!
//! Everything that must survive a restart of the daemon is in its state folder: a record of each mount with the
//! identity of its process. A daemon that starts takes over the mounts whose processes still run, and reports the
//! others as dead until they are mounted again or unmounted. Where the mount broker makes the mounts, the daemon needs no
//! privilege, and a mount outlives its process: another one takes it.

mod attachments;
mod brokered;
mod child;
mod credentials;
mod record;
mod service;
mod succession;
mod table;

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;

use weir_management::{Page, serve_pages};

use crate::v1::mounts_server::MountsServer;

pub use attachments::Attachments;
pub use record::Record;
pub use table::Table;

/// Content type of the exposition format that [`crate::metrics`] writes.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Where the daemon serves by default (mount protocol).
pub const DEFAULT_SOCKET: &str = "/var/lib/weir/mountd/mountd.sock";

/// Where the daemon keeps its records by default.
pub const DEFAULT_STATE: &str = "/var/lib/weir/mountd";

/// Where the attach file, or a folder of them, lies by default.
pub const DEFAULT_ATTACH: &str = "/etc/weir/client/client.json";

/// Folder below which the daemon mounts by default: where the kubelet keeps volumes.
pub const DEFAULT_ROOT: &str = "/var/lib/kubelet";

/// How long calls under way may take to finish when the daemon is told to end. Less than the 30 s that Kubernetes grants.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(20);

/// How the daemon is set up.
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// Socket of the mount protocol.
    pub socket: PathBuf,
    /// State folder.
    pub state: PathBuf,
    /// Attach file, or a folder that holds attach files.
    pub attach: PathBuf,
    /// Folders below which targets must lie.
    pub roots: Vec<PathBuf>,
    /// Where to serve metrics and health, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// The program that serves one mount: `weir-mountd` itself.
    pub program: PathBuf,
    /// Threads of each mount.
    pub threads: usize,
    /// How long an operation waits for an engine that is away.
    pub engine_wait: Duration,
    /// Socket of the mount broker; none mounts without it.
    pub broker: Option<PathBuf>,
}

/// The daemon cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The state folder cannot be used.
    #[error("state folder {path}: {source}")]
    State {
        /// The folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Another daemon serves the socket.
    #[error("another mount daemon serves {0}: stop it first, or give another --socket")]
    AlreadyServed(PathBuf),
    /// The socket cannot be made.
    #[error("socket {path}: {source}")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The server ended by itself.
    #[error("serving the mount protocol: {0}")]
    Serve(#[from] tonic::transport::Error),
    /// Signals cannot be watched.
    #[error("watching signals: {0}")]
    Signals(io::Error),
}

/// Runs the daemon until it is told to end. Its mounts go on.
///
/// # Errors
/// When it cannot start, or the server fails.
pub async fn run(config: DaemonConfig) -> Result<(), DaemonError> {
    let state = |source| DaemonError::State { path: config.state.clone(), source };
    let table = Arc::new(Table::open(&config.state, config.broker.is_some()).map_err(state)?);
    let listener = listen(&config.socket).await?;
    let (adopted, dead) = table.census();
    tracing::info!(socket = %config.socket.display(), adopted, dead, "mount daemon serves");
    let metrics_address = config.metrics;
    let service = service::MountService::new(config, Arc::clone(&table));
    service.resume().await;
    let local = tokio::task::LocalSet::new();
    if let Some(address) = metrics_address {
        let table = Arc::clone(&table);
        local.spawn_local(async move {
            match TcpListener::bind(address).await {
                Ok(listener) => {
                    tracing::info!(%address, "serving metrics and health");
                    serve_pages(listener, move |path| page(path, Arc::clone(&table))).await;
                }
                Err(error) => tracing::error!(%address, %error, "metrics are not served: is the port taken?"),
            }
        });
    }
    let mut terminate = signal(SignalKind::terminate()).map_err(DaemonError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(DaemonError::Signals)?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let served = tonic::transport::Server::builder()
        .add_service(MountsServer::new(service))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async {
            let _ = stopped.await;
        });
    let watch = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("mount daemon ends; its mounts go on");
        drop(stop);
        tokio::time::sleep(SHUTDOWN_LIMIT).await;
    };
    local
        .run_until(async {
            tokio::select! {
                served = served => served.map_err(DaemonError::Serve),
                () = watch => Ok(()),
            }
        })
        .await
}

async fn page(path: String, table: Arc<Table>) -> Page {
    match path.as_str() {
        "/metrics" => {
            let body = crate::metrics::render(&table.metrics().await);
            Page { status: 200, kind: METRICS_TYPE, body }
        }
        "/healthz" | "/readyz" => Page::text(200, "ok\n"),
        _ => Page::text(404, "there are /metrics, /healthz and /readyz\n"),
    }
}

/// Makes the socket, mode 0600. One that a daemon left behind is replaced; one that is served is not.
async fn listen(path: &Path) -> Result<UnixListener, DaemonError> {
    let failed = |source| DaemonError::Socket { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    if UnixStream::connect(path).await.is_ok() {
        return Err(DaemonError::AlreadyServed(path.to_owned()));
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    // No other user gets through even in the moment between bind and chmod: the state folder is private.
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}
