//! One mount's process: opens the container, mounts it, and serves requests until the file system is unmounted.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fuser::{Session, SessionACL};
use rustix::mount::{MountFlags, UnmountFlags};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use weir_client::{Attach, Container, Context, Pool, Rights};
use weir_dfs::{Dfs, Lease};

use crate::filesystem::{Shared, WeirFs, begin_lease, resume_lease};
use crate::handle_keepalive::HandleKeepalive;
use crate::handover::{Handed, Seat};
use crate::kept::{Inherited, Kept, KeptLease};
use crate::metrics::Snapshot;
use crate::mountinfo::{self, FILE_SYSTEM_TYPE};
use crate::report::{FailureKind, Identity, MountFailure, State};
use crate::session;
use crate::spec::{MountOptions, MountSpec};

/// How long the last users may take after the mount was detached by a signal.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// How long giving the handles back may take: less than the daemon waits for the process of an unmounted file system.
const CLOSE_LIMIT: Duration = Duration::from_secs(3);

/// Pause after the control socket could not accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often what the heap has free is given back to the system: so seldom that a busy mount doesn't feel it.
const HEAP_PAUSE: Duration = Duration::from_secs(10);

/// Read-ahead of the mount in KiB: two requests of the largest size, so that one is under way while the other is used.
const READ_AHEAD_KIB: u32 = 2048;

/// Starts logging to standard error. A level that cannot be parsed means `info`. A second call does nothing.
pub fn init_log(level: &str) {
    let filter = tracing_subscriber::EnvFilter::try_new(level).unwrap_or_else(|_| "info".into());
    // fuser complains of every answer to an interrupt whose request was answered meanwhile, which is no fault.
    let filter = match "fuser::reply=off".parse() {
        Ok(quiet) => filter.add_directive(quiet),
        Err(_) => filter,
    };
    // The reader of standard error may go away before the mount does; complaints about that would end the process.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        .log_internal_errors(false)
        .try_init();
}

/// A mount that the broker has made, and what a process before this one has left of it.
struct Device {
    fuse: OwnedFd,
    seat: Option<Seat>,
}

/// How a mount's process ends.
#[derive(PartialEq, Eq)]
enum End {
    /// The mount is gone.
    Unmounted,
    /// The mount stays, for a successor.
    Left,
}

/// Serves a mount until it is unmounted or the process is told to end. `ready` is called once the file system answers at
/// its target. With `handed`, the mount is there already; told to end, this process leaves it to a successor.
///
/// # Errors
/// When it cannot be mounted.
pub fn run(
    spec: &MountSpec,
    control: Option<PathBuf>,
    handed: Option<Handed>,
    ready: impl FnOnce(&Identity),
) -> Result<(), MountFailure> {
    let started = Instant::now();
    let mut inherited = Inherited::default();
    let (mut device, mut kept) = (None, None);
    if let Some(Handed { device: fuse, memory, seat }) = handed {
        let opened = if seat.is_some() {
            Kept::resume(memory)
        } else {
            Kept::begin(memory).map(|kept| (kept, Inherited::default()))
        };
        let opened = opened.map_err(|error| MountFailure::new(FailureKind::FailedPrecondition, error))?;
        (kept, inherited) = (Some(opened.0), opened.1);
        device = Some(Device { fuse, seat });
    }
    let mut options =
        spec.validate().map_err(|error| MountFailure::new(FailureKind::InvalidArgument, error))?;
    options.read_only |= spec.read_only;
    let attach = Attach::load(Some(&spec.attach)).map_err(|error| {
        MountFailure::new(FailureKind::Unavailable, format!("{error}; is a StorageCluster up?"))
    })?;
    let opened = open(spec, &attach, (options, inherited.lease), started)?;
    let handles =
        [Some(opened.dfs.container().clone()), opened.writable.clone().filter(|_| options.read_only)];
    let all = handles.iter().flatten().cloned().collect();
    let keeper = HandleKeepalive::start(&attach, all).map_err(|error| {
        MountFailure::new(FailureKind::Internal, format!("start the thread that keeps handles: {error}"))
    })?;
    let Opened { dfs, identity, writable, lease } = opened;
    let shared = Arc::new(Shared::new(dfs, attach.clone(), options, spec, kept));
    shared.inherit(inherited).map_err(|fault| {
        let what = format!("what the process before this one has left: errno {}", fault.errno());
        MountFailure::new(FailureKind::FailedPrecondition, what)
    })?;
    let served = serve(spec, control, (&shared, device, options), (identity, writable, lease), ready);
    drop(keeper);
    if !matches!(served, Ok(End::Left)) {
        give_back(&attach, handles.iter().flatten());
    }
    served.map(drop)
}

/// An open container.
struct Opened {
    dfs: Dfs,
    identity: Identity,
    /// A handle that allows writing, for the lease; `None` where a read-only mount can't have one.
    writable: Option<Container>,
    lease: Option<Lease>,
}

/// Serves an open container, as [`run`].
fn serve(
    spec: &MountSpec,
    control: Option<PathBuf>,
    (shared, device, options): (&Arc<Shared>, Option<Device>, MountOptions),
    (identity, writable, lease): (Identity, Option<Container>, Option<Lease>),
    ready: impl FnOnce(&Identity),
) -> Result<End, MountFailure> {
    let is_brokered = device.is_some();
    shared.start_writeback().map_err(|error| {
        MountFailure::new(FailureKind::Internal, format!("start the thread that sends writes: {error}"))
    })?;
    let keeper = writable.map(|container| shared.start_lease(container, lease)).transpose();
    let keeper = keeper.map_err(|error| {
        MountFailure::new(FailureKind::Internal, format!("start the thread that renews the lease: {error}"))
    })?;
    let session = match device {
        Some(device) => attach_session(spec, device, shared)?,
        None => mount(spec, options, shared)?,
    };
    shared.set_notifier(session.notifier());
    if !is_brokered {
        raise_read_ahead(&spec.target);
    }
    let (ended, mut end) = tokio::sync::oneshot::channel();
    let served = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("session".into()).spawn(move || {
        let outcome = session.run();
        served.threads.finish();
        // The other end is gone only when the process ends anyway.
        let _ = ended.send(outcome);
        // As long as this process holds the device, the kernel makes programs that use the mount wait.
        served.forget_notifier();
    });
    thread.map_err(|error| {
        MountFailure::new(FailureKind::Internal, format!("start the session's thread: {error}"))
    })?;
    // A process that waits for an answer of its own can't be killed, and as long as the broker has the device, nothing else ends
    // the wait.
    if !is_brokered && let Err(error) = std::fs::metadata(&spec.target) {
        let _ = unmount(&spec.target, true);
        let error = end.try_recv().ok().and_then(Result::err).unwrap_or(error);
        return Err(MountFailure::new(
            FailureKind::Unavailable,
            format!("{} was mounted but is not served: {error}", spec.target.display()),
        ));
    }
    // Before the mount is announced, so that a first question is answered.
    let control = control.and_then(|path| listen(&path));
    tracing::info!(target = %spec.target.display(), pool = spec.pool, container = spec.container,
        open_micros = identity.open_micros, "serving");
    ready(&identity);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        MountFailure::new(FailureKind::Internal, format!("start the asynchronous runtime: {error}"))
    })?;
    let outcome = runtime.block_on(watch((spec, is_brokered), control, shared, identity, end));
    runtime.shutdown_background();
    shared.settle_all();
    match keeper {
        // Its successor goes on with the lease.
        Some(keeper) if matches!(outcome, Ok(End::Left)) => std::mem::forget(keeper),
        Some(keeper) => keeper.end(),
        None => {}
    }
    outcome
}

/// A session on a mount that the broker has made.
fn attach_session(
    spec: &MountSpec,
    Device { fuse, seat }: Device,
    shared: &Arc<Shared>,
) -> Result<Session<WeirFs>, MountFailure> {
    let mut config = session_config(shared);
    // Requests that were read from a descriptor of this process alone would fail with its end.
    config.clone_fd = false;
    let filesystem = WeirFs::new(Arc::clone(shared));
    let session = match seat {
        None => session::begin(filesystem, fuse, config),
        Some(seat) => session::succeed(filesystem, &fuse, seat, config),
    };
    session.map_err(|error| {
        let text = format!("mount at {}: FUSE session: {error}", spec.target.display());
        MountFailure::new(FailureKind::FailedPrecondition, text)
    })
}

fn session_config(shared: &Shared) -> fuser::Config {
    let mut config = fuser::Config::default();
    config.acl = SessionACL::All;
    config.n_threads = Some(shared.threads.session_threads());
    config.clone_fd = true;
    config
}

/// Gives handles of the container and its pool back: a container with open handles cannot be destroyed without force.
fn give_back<'c>(attach: &Attach, handles: impl Iterator<Item = &'c Container>) {
    let closed = Context::real(attach).and_then(|context| {
        context.set_deadline(CLOSE_LIMIT);
        context.block_on(async {
            for container in handles {
                container.close(&context).await?;
                container.pool().disconnect(&context).await?;
            }
            Ok(())
        })
    });
    if let Err(error) = closed {
        tracing::warn!(%error, "the container's handle stays open at its pool service");
    }
}

/// Connects to the pool and opens the container as a file system.
fn open(
    spec: &MountSpec,
    attach: &Attach,
    (options, before): (MountOptions, Option<KeptLease>),
    started: Instant,
) -> Result<Opened, MountFailure> {
    let context = Context::real(attach).map_err(|error| client_failure(&error))?;
    context.set_deadline(spec.open_wait);
    let opened_endpoint = started.elapsed();
    let rights = if options.read_only { Rights::READ } else { Rights::READ.union(Rights::WRITE) };
    let opened = context.block_on(async {
        let pool =
            Pool::connect(&context, &spec.pool, rights).await.map_err(|error| client_failure(&error))?;
        let container = Container::open(&context, &pool, &spec.container, rights)
            .await
            .map_err(|error| client_failure(&error))?;
        let open_micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let writable = if options.read_only {
            writable(&context, spec, &container).await.ok()
        } else {
            Some(container.clone())
        };
        let dfs = match mount_root(&context, &container, spec, options).await {
            Ok(dfs) => dfs,
            Err(error) => {
                // Why it can't be mounted is what counts.
                let _ = container.close(&context).await;
                if let Some(writable) = writable.filter(|_| options.read_only) {
                    let _ = writable.close(&context).await;
                }
                return Err(dfs_failure(&error));
            }
        };
        let lease = match (&writable, before) {
            (Some(writable), Some(before)) => resume_lease(&context, writable, before).await,
            (Some(writable), None) => begin_lease(&context, writable, !options.read_only).await,
            (None, _) => Err(weir_dfs::Error::ReadOnly),
        };
        let lease = lease
            .inspect_err(
                |error| tracing::warn!(%error, "files that others remove while they are open here are lost"),
            )
            .ok();
        let identity = Identity {
            pool_uuid: pool.id().to_string(),
            container_uuid: container.id().to_string(),
            pool_label: pool.label().to_owned(),
            container_label: container.properties().label.clone(),
            mounted_unix_seconds: unix_seconds(),
            open_micros,
        };
        Ok::<_, MountFailure>(Opened { dfs, identity, writable, lease })
    });
    if let Ok(Opened { identity, .. }) = &opened {
        tracing::debug!(
            endpoint_micros = opened_endpoint.as_micros(),
            open_micros = identity.open_micros,
            "opened"
        );
    }
    opened
}

/// A handle of the container that allows writing, for what a read-only mount itself has to store.
async fn writable(
    context: &Context,
    spec: &MountSpec,
    container: &Container,
) -> weir_client::Result<Container> {
    let rights = Rights::READ.union(Rights::WRITE);
    let pool = Pool::connect(context, &spec.pool, rights).await?;
    Container::open(context, &pool, &container.id().to_string(), rights).await
}

/// The container's file system, with its root directory in the hands of the mount's group.
async fn mount_root(
    context: &Context,
    container: &Container,
    spec: &MountSpec,
    options: MountOptions,
) -> Result<Dfs, weir_dfs::Error> {
    let dfs = Dfs::mount(context, container).await?;
    crate::filesystem::give_root_to_group(context, &dfs, spec.fs_group, options.read_only).await?;
    Ok(dfs)
}

fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn client_failure(error: &weir_client::Error) -> MountFailure {
    MountFailure::of(error.der(), error)
}

fn dfs_failure(error: &weir_dfs::Error) -> MountFailure {
    match error {
        weir_dfs::Error::Client(error) => client_failure(error),
        weir_dfs::Error::NotPosix(_) | weir_dfs::Error::Invalid(_) => {
            MountFailure::new(FailureKind::FailedPrecondition, error)
        }
        _ => MountFailure::new(FailureKind::Internal, error),
    }
}

/// Mounts. Root opens `/dev/fuse`, hands the descriptor to `mount(2)` and serves requests from it; an ordinary user does so through
/// `fusermount3`.
fn mount(
    spec: &MountSpec,
    options: MountOptions,
    shared: &Arc<Shared>,
) -> Result<Session<WeirFs>, MountFailure> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        MountFailure::new(
            FailureKind::FailedPrecondition,
            format!("mount at {}: {what}: {error}", spec.target.display()),
        )
    };
    let mut config = session_config(shared);
    let filesystem = WeirFs::new(Arc::clone(shared));
    if !rustix::process::geteuid().is_root() {
        // An ordinary user mounts through fusermount3.
        config.mount_options = unprivileged_options(spec, options);
        config.acl = SessionACL::Owner;
        return Session::new(filesystem, &spec.target, &config)
            .map_err(|error| failed("fusermount3", &error));
    }
    let device = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .map_err(|error| failed("/dev/fuse (is the fuse module loaded?)", &error))?;
    let root = std::fs::metadata(&spec.target).map_err(|error| failed("target", &error))?;
    if !root.is_dir() {
        return Err(failed("target", &"it is not a directory"));
    }
    let data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions,allow_other",
        device.as_raw_fd(),
        root.permissions().mode() & 0o170_000,
        root.uid(),
        root.gid(),
    );
    let data = CString::new(data).map_err(|error| failed("options", &error))?;
    // Set-user-id programs and device files of a volume that others write to are never honoured.
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME;
    if options.noexec {
        flags |= MountFlags::NOEXEC;
    }
    if options.read_only {
        flags |= MountFlags::RDONLY;
    }
    rustix::mount::mount(spec.source(), &spec.target, FILE_SYSTEM_TYPE, flags, Some(data.as_c_str()))
        .map_err(|error| failed("mount(2)", &error))?;
    let session = Session::from_fd(filesystem, OwnedFd::from(device), config.acl, config);
    session.map_err(|error| {
        let _ = unmount(&spec.target, true);
        failed("FUSE handshake", &error)
    })
}

fn unprivileged_options(spec: &MountSpec, options: MountOptions) -> Vec<fuser::MountOption> {
    use fuser::MountOption;
    let mut list = vec![
        MountOption::FSName(spec.source()),
        MountOption::Subtype("weir".into()),
        MountOption::DefaultPermissions,
        MountOption::NoAtime,
    ];
    list.push(if options.read_only { MountOption::RO } else { MountOption::RW });
    if options.noexec {
        list.push(MountOption::NoExec);
    }
    list
}

/// Removes a mount: of root by itself, of an ordinary user through fusermount3.
///
/// # Errors
/// When it is in use (unless lazy) or not there.
pub fn unmount(target: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    if rustix::process::geteuid().is_root() {
        return Ok(rustix::mount::unmount(target, flags | UnmountFlags::NOFOLLOW)?);
    }
    let mut command = std::process::Command::new("fusermount3");
    command.arg("-u").arg("-q");
    if lazy {
        command.arg("-z");
    }
    if command.arg("--").arg(target).status()?.success() {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

/// The kernel grants FUSE file systems 128 KiB of read-ahead, less than one request may carry.
fn raise_read_ahead(target: &Path) {
    if let Ok(Some(entry)) = mountinfo::at(target) {
        let path = format!("/sys/class/bdi/{}/read_ahead_kb", entry.device);
        if let Err(error) = std::fs::write(&path, READ_AHEAD_KIB.to_string()) {
            tracing::debug!(path, %error, "read-ahead stays at the kernel's default");
        }
    }
}

/// Waits for the end of the session, answers at the control socket, and unmounts on a signal.
async fn watch(
    (spec, is_brokered): (&MountSpec, bool),
    control: Option<std::os::unix::net::UnixListener>,
    shared: &Arc<Shared>,
    identity: Identity,
    mut end: tokio::sync::oneshot::Receiver<io::Result<()>>,
) -> Result<End, MountFailure> {
    let internal =
        |what: &str, error: io::Error| MountFailure::new(FailureKind::Internal, format!("{what}: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| internal("watch signals", error))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| internal("watch signals", error))?;
    let answer = answer_control(control, shared, &identity);
    let spare = spare_memory(shared);
    tokio::pin!(answer, spare);
    let outcome = loop {
        tokio::select! {
            outcome = &mut end => break outcome,
            () = &mut answer => continue,
            () = &mut spare => continue,
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if is_brokered {
            return Ok(End::Left);
        }
        leave(spec, &mut end).await;
        return Ok(End::Unmounted);
    };
    tracing::info!(target = %spec.target.display(), "the file system is unmounted");
    match outcome {
        Ok(Ok(())) => Ok(End::Unmounted),
        Ok(Err(error)) => Err(internal("FUSE session", error)),
        Err(_) => Err(MountFailure::new(FailureKind::Internal, "the FUSE session ended without a word")),
    }
}

/// Gives memory back that requests have used, for ever.
async fn spare_memory(shared: &Shared) {
    let mut answered = 0;
    loop {
        tokio::time::sleep(HEAP_PAUSE).await;
        let now = shared.metrics.requests();
        if now != answered {
            weir_memory::trim_heap();
        }
        answered = now;
    }
}

/// Unmounts on a signal: cleanly when no process uses the mount, else by detaching it and giving its users a moment.
async fn leave(spec: &MountSpec, end: &mut tokio::sync::oneshot::Receiver<io::Result<()>>) {
    let target = spec.target.clone();
    let unmounted = tokio::task::spawn_blocking(move || match unmount(&target, false) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            tracing::warn!(target = %target.display(), "still in use: detached");
            unmount(&target, true)
        }
        other => other,
    });
    match tokio::time::timeout(DRAIN_LIMIT, unmounted).await {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(error))) => tracing::warn!(target = %spec.target.display(), %error, "unmount"),
        _ => tracing::warn!(target = %spec.target.display(), "unmounting takes too long; ending anyway"),
    }
    if tokio::time::timeout(DRAIN_LIMIT, end).await.is_err() {
        tracing::warn!(target = %spec.target.display(), "users of the detached mount will get errors");
    }
}

/// Makes the control socket. Without it the mount works, and its daemon says that it does not answer.
fn listen(path: &Path) -> Option<std::os::unix::net::UnixListener> {
    // A predecessor of the same mount may have left its socket.
    let _ = std::fs::remove_file(path);
    let listener = std::os::unix::net::UnixListener::bind(path)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    listener.inspect_err(|error| tracing::error!(path = %path.display(), %error, "control socket")).ok()
}

/// Serves the control socket for ever; without one, never returns.
async fn answer_control(
    control: Option<std::os::unix::net::UnixListener>,
    shared: &Arc<Shared>,
    identity: &Identity,
) {
    let listener = control.and_then(|listener| {
        UnixListener::from_std(listener).inspect_err(|error| tracing::error!(%error, "control socket")).ok()
    });
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: the next attempt needs one to be closed first.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let state = State {
            identity: identity.clone(),
            trouble: shared.trouble(),
            metrics: Snapshot {
                unsent_bytes: shared.writeback.bytes(),
                waiting_requests: shared.threads.waiting() as u64,
                overflow_threads: shared.threads.overflow_threads() as u64,
                name_readers: u64::from(shared.direct.readers()),
                ..shared.metrics.snapshot()
            },
        };
        let text = serde_json::to_vec(&state).unwrap_or_default();
        // A daemon that does not read within its limit asks again.
        let _ = tokio::time::timeout(DRAIN_LIMIT, stream.write_all(&text)).await;
    }
}
