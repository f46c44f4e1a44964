//! The mount protocol's service.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use tonic::{Code, Request, Response, Status};

use super::attachments::Attachments;
use super::brokered::Brokered;
use super::credentials::Credentials;
use super::record::{Record, control_socket};
use super::table::{MOUNTS_MAX, Table};
use super::{DaemonConfig, child};
use crate::handover::Descriptors;
use crate::mountinfo::{self, FILE_SYSTEM_TYPE};
use crate::report::{FailureKind, Identity, MountFailure};
use crate::spec::{DEFAULT_OPEN_WAIT, MountSpec};
use crate::v1::mounts_server::Mounts;
use crate::v1::{
    ListRequest, ListResponse, MountInfo, MountRequest, MountResponse, UnmountRequest, UnmountResponse,
};

/// How long a mount may take from the start of its process to a file system that answers. The kubelet gives up a call
/// after two minutes; this leaves time to undo what was begun.
const MOUNT_LIMIT: Duration = Duration::from_secs(90);

/// How long a look at a path may take. It can lie on a file system that hangs.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// How long an unmount waits for the kernel to write back what is dirty.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(100);

/// How long an unmounted file system's process may take to end: it ends its lease and gives its handles back, 3 s each while
/// engines are away. It ends later by itself when another mount of the same file system (e.g. a bind mount of a pod) still
/// has users.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Serves [`Mounts`].
#[derive(Clone, Debug)]
pub struct MountService {
    pub(super) config: Arc<DaemonConfig>,
    attachments: Attachments,
    pub(super) table: Arc<Table>,
    pub(super) brokered: Option<Brokered>,
}

impl MountService {
    /// A service over a table of mounts.
    #[must_use]
    pub fn new(config: DaemonConfig, table: Arc<Table>) -> Self {
        let attachments = Attachments::new(config.attach.clone());
        let brokered = config.broker.clone().map(Brokered::new);
        Self { config: Arc::new(config), attachments, table, brokered }
    }

    /// What is asked for, and the credentials that came with it. The attach file is not known yet.
    fn spec(&self, request: MountRequest) -> Result<(MountSpec, Option<Credentials>), Status> {
        let credentials = request
            .credentials
            .as_ref()
            .map(|given| Credentials::of(given, &request.system))
            .transpose()
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let spec = MountSpec {
            system: request.system,
            attach: PathBuf::new(),
            pool: request.pool,
            container: request.container,
            target: request.target_path.into(),
            read_only: request.read_only,
            fs_group: request.fs_group,
            options: request.options,
            volume: request.volume,
            threads: self.config.threads,
            engine_wait: self.config.engine_wait,
            open_wait: DEFAULT_OPEN_WAIT,
            tenant: credentials.as_ref().map(Credentials::tenant),
        };
        spec.validate().map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok((spec, credentials))
    }

    /// Mounts, holding the turn of the path. A mount that was made with credentials is made again with them.
    async fn mount_in_turn(
        &self,
        mut spec: MountSpec,
        mut credentials: Option<Credentials>,
    ) -> Result<MountInfo, Status> {
        let folder = self.table.folder_of(&spec.target);
        if let Some(record) = self.table.get(&spec.target) {
            if let (None, Some(tenant)) = (&credentials, record.spec.tenant) {
                spec.tenant = Some(tenant);
                if record.spec.same_mount(&spec) {
                    let kept = Credentials::load(&folder, tenant);
                    credentials = Some(
                        kept.map_err(|error| internal("read the credentials of", &spec.target, &error))?,
                    );
                }
            }
            if self.table.awaits_successor(&record) {
                return Err(Status::unavailable(format!(
                    "process {} of the mount at {} has ended, and another one is taking it: try again",
                    record.process.pid,
                    spec.target.display()
                )));
            }
            if self.stands(&record).await? {
                if !record.spec.same_mount(&spec) {
                    return Err(Status::already_exists(format!(
                        "{} is a mount of container \"{}\" of pool \"{}\" with other options or group: unmount it first",
                        spec.target.display(),
                        record.spec.container,
                        record.spec.pool,
                    )));
                }
                keep(&folder, credentials.as_ref(), &spec.target)?;
                return Ok(self.table.describe(&record).await);
            }
            self.forget(&record).await?;
        }
        self.check_target(&spec.target).await?;
        spec.tenant = credentials.as_ref().map(Credentials::tenant);
        spec.attach = match keep(&folder, credentials.as_ref(), &spec.target)? {
            Some(attach) => attach,
            None => self.attachments.find(&spec.system).map_err(MountFailure::status)?,
        };
        self.start(spec).await
    }

    /// Whether a recorded mount is there and connected.
    async fn stands(&self, record: &Record) -> Result<bool, Status> {
        let ours = mounted(&record.spec.target)?.is_some_and(|kind| kind == FILE_SYSTEM_TYPE);
        Ok(ours && record.process.is_alive() && self.connected(&record.spec.target).await?)
    }

    /// Clears away a mount that no longer works.
    async fn forget(&self, record: &Record) -> Result<(), Status> {
        let target = &record.spec.target;
        tracing::warn!(target = %target.display(), volume = record.spec.volume, "replacing a dead mount");
        while mounted(target)?.is_some_and(|kind| kind == FILE_SYSTEM_TYPE) && !self.connected(target).await?
        {
            self.detach(target, UnmountFlags::DETACH).await?;
        }
        self.table.remove(target).map_err(|error| internal("remove the record of", target, &error))
    }

    /// Refuses a target that cannot be mounted on, and clears a dead mount of ours that no record knows.
    async fn check_target(&self, target: &Path) -> Result<(), Status> {
        while let Some(kind) = mounted(target)? {
            if kind != FILE_SYSTEM_TYPE {
                return Err(Status::failed_precondition(format!(
                    "{} is a mount of type {kind} already: unmount it first",
                    target.display()
                )));
            }
            if self.connected(target).await? {
                return Err(Status::failed_precondition(format!(
                    "{} is a mount of another weir-mountd or weir command: unmount it there first",
                    target.display()
                )));
            }
            self.detach(target, UnmountFlags::DETACH).await?;
        }
        let path = target.to_owned();
        let roots = self.config.roots.clone();
        let look = move || -> Result<(), MountFailure> {
            let refuse = |reason: String| MountFailure::new(FailureKind::FailedPrecondition, reason);
            let real =
                path.canonicalize().map_err(|error| refuse(format!("target {}: {error}", path.display())))?;
            if !real.is_dir() {
                return Err(refuse(format!("target {} is not a directory", path.display())));
            }
            let below = |root: &PathBuf| {
                root.canonicalize().is_ok_and(|root| real.starts_with(&root) && real != root)
            };
            if roots.iter().any(below) {
                return Ok(());
            }
            let roots: Vec<String> = roots.iter().map(|root| root.display().to_string()).collect();
            Err(refuse(format!("target {} is not below {}", path.display(), roots.join(" or "))))
        };
        bounded("look at", target, look).await?.map_err(MountFailure::status)
    }

    /// Starts the process of a mount and waits until it serves.
    async fn start(&self, spec: MountSpec) -> Result<MountInfo, Status> {
        let target = spec.target.clone();
        let handed = match &self.brokered {
            Some(brokered) => Some((brokered.mount(&spec).await?, false)),
            None => None,
        };
        match self.launch(spec, None, handed).await {
            Ok(record) => {
                let spec = &record.spec;
                tracing::info!(target = %target.display(), pool = spec.pool, container = spec.container,
                    volume = spec.volume, pid = record.process.pid, "mounted");
                self.watch(&record);
                Ok(self.table.describe(&record).await)
            }
            Err(error) => {
                // Its failure is what counts.
                let _ = self.detach(&target, UnmountFlags::DETACH).await;
                Err(error)
            }
        }
    }

    /// Starts a process for a mount and waits until it serves. With an identity, it takes the mount from one that has ended.
    pub(super) async fn launch(
        &self,
        spec: MountSpec,
        before: Option<Identity>,
        handed: Option<(Arc<Descriptors>, bool)>,
    ) -> Result<Record, Status> {
        let target = spec.target.clone();
        let folder = self.table.folder_of(&target);
        std::fs::create_dir_all(&folder).map_err(|error| internal("make the folder of", &target, &error))?;
        let given = handed.as_ref().map(|(descriptors, succeeds)| (&**descriptors, *succeeds));
        let started = child::spawn(&self.config.program, &spec, &control_socket(&folder), given)
            .map_err(MountFailure::status)?;
        let process = started.process;
        let mut record = Record { spec, process, identity: before };
        let stored = self.table.put(&record);
        let outcome = match stored {
            Err(error) => Err(internal("write the record of", &target, &error)),
            Ok(()) => match tokio::time::timeout(MOUNT_LIMIT, started.report()).await {
                Ok(Ok(identity)) => Ok(identity),
                Ok(Err(failure)) => Err(failure.status()),
                Err(_) => Err(Status::deadline_exceeded(format!(
                    "mounting {} took longer than {} s and was undone; are the engines up?",
                    target.display(),
                    MOUNT_LIMIT.as_secs()
                ))),
            },
        };
        let outcome = outcome.and_then(|identity| {
            record.identity.get_or_insert(identity);
            self.table.put(&record).map_err(|error| internal("write the record of", &target, &error))
        });
        if let Err(error) = outcome {
            let _ = process.signal(Signal::TERM);
            if !process.wait_gone(END_LIMIT).await.unwrap_or(false) {
                let _ = process.signal(Signal::KILL);
            }
            return Err(error);
        }
        if let Some(brokered) = &self.brokered {
            brokered.ready(&target).await;
        }
        Ok(record)
    }

    /// Whether the mount at a path answers. With a broker it does as long as its process runs; it is not looked at: a process
    /// that waits for an answer can't be killed, and this one has to end before another can give that answer.
    async fn connected(&self, target: &Path) -> Result<bool, Status> {
        if self.brokered.is_some() {
            return Ok(self.table.get(target).is_some_and(|record| record.process.is_alive()));
        }
        connected(target).await
    }

    /// Takes one mount away from a path. A path that is not mounted is fine.
    pub(super) async fn detach(&self, target: &Path, flags: UnmountFlags) -> Result<(), Status> {
        match &self.brokered {
            Some(brokered) => brokered.unmount(target, flags.contains(UnmountFlags::DETACH)).await,
            None => detach(target.to_owned(), flags).await,
        }
    }

    /// Unmounts, holding the turn of the path.
    async fn unmount_in_turn(&self, target: PathBuf, lazy: bool) -> Result<(), Status> {
        let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        if let Some(record) = self.table.get(&target).filter(|record| self.table.awaits_successor(record)) {
            // It has what programs have written and engines don't have yet.
            return Err(Status::unavailable(format!(
                "process {} of the mount at {} has ended, and another one is taking it: try again",
                record.process.pid,
                target.display()
            )));
        }
        while mounted(&target)?.is_some_and(|kind| kind == FILE_SYSTEM_TYPE) {
            // A dead mount has nothing to flush, and its users get errors either way.
            let dead = !self.connected(&target).await?;
            self.detach(&target, if dead { UnmountFlags::DETACH } else { flags }).await?;
        }
        if let Some(record) = self.table.get(&target) {
            if !lazy && !record.process.wait_gone(END_LIMIT).await.unwrap_or(true) {
                tracing::info!(target = %target.display(), pid = record.process.pid,
                    "unmounted here; its process serves other mounts of the same file system until they are gone");
            }
            tracing::info!(target = %target.display(), volume = record.spec.volume, lazy, "unmounted");
        }
        self.table.remove(&target).map_err(|error| internal("remove the record of", &target, &error))
    }
}

#[tonic::async_trait]
impl Mounts for MountService {
    async fn mount(&self, request: Request<MountRequest>) -> Result<Response<MountResponse>, Status> {
        let (spec, credentials) = self.spec(request.into_inner())?;
        let service = self.clone();
        // In a task of its own: a caller that gives up leaves a finished mount, not half a one.
        let work = tokio::spawn(async move {
            let target = spec.target.clone();
            let Some(turn) = service.table.turn(&target) else {
                return Err(Status::resource_exhausted(format!(
                    "this node serves {MOUNTS_MAX} mounts already: unmount one, or use another node"
                )));
            };
            let _turn = turn.lock().await;
            let mounted = service.mount_in_turn(spec, credentials).await;
            if mounted.is_err() && service.table.get(&target).is_none_or(|record| record.identity.is_none()) {
                let _ = service.table.remove(&target);
            }
            mounted
        });
        let mount = work.await.map_err(|error| Status::internal(error.to_string()))??;
        Ok(Response::new(MountResponse { mount: Some(mount) }))
    }

    async fn unmount(&self, request: Request<UnmountRequest>) -> Result<Response<UnmountResponse>, Status> {
        let UnmountRequest { target_path, lazy } = request.into_inner();
        let target = PathBuf::from(target_path);
        if !crate::spec::is_plain_absolute(&target) {
            return Err(Status::invalid_argument(crate::spec::InvalidSpec::Target(target).to_string()));
        }
        if self.table.get(&target).is_none() && mounted(&target)?.is_none_or(|kind| kind != FILE_SYSTEM_TYPE)
        {
            return Ok(Response::new(UnmountResponse {}));
        }
        let service = self.clone();
        let work = tokio::spawn(async move {
            let Some(turn) = service.table.turn(&target) else {
                return Err(Status::resource_exhausted("too many paths are worked on: try again"));
            };
            let _turn = turn.lock().await;
            service.unmount_in_turn(target, lazy).await
        });
        work.await.map_err(|error| Status::internal(error.to_string()))??;
        Ok(Response::new(UnmountResponse {}))
    }

    async fn list(&self, _: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        Ok(Response::new(ListResponse { mounts: self.table.list().await }))
    }
}

/// Keeps credentials in a mount's folder, and returns their attach file.
fn keep(folder: &Path, credentials: Option<&Credentials>, target: &Path) -> Result<Option<PathBuf>, Status> {
    let stored = credentials.map(|credentials| credentials.store(folder)).transpose();
    stored.map_err(|error| internal("write the credentials of", target, &error))
}

/// Type of the file system mounted at exactly this path.
pub(super) fn mounted(target: &Path) -> Result<Option<String>, Status> {
    let entry = mountinfo::at(target).map_err(|error| internal("look for mounts at", target, &error))?;
    Ok(entry.map(|entry| entry.file_system))
}

/// Whether the mount at a path answers. One that takes too long is connected: its engines are away.
async fn connected(target: &Path) -> Result<bool, Status> {
    let path = target.to_owned();
    match bounded("look at", target, move || mountinfo::is_connected(&path)).await {
        Err(error) if error.code() == Code::Unavailable => Ok(true),
        answer => answer,
    }
}

/// Runs a blocking look at a path with a limit.
async fn bounded<T: Send + 'static>(
    what: &str,
    target: &Path,
    look: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    match tokio::time::timeout(LOOK_LIMIT, tokio::task::spawn_blocking(look)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Status::internal(error.to_string())),
        Err(_) => Err(Status::unavailable(format!(
            "{what} {}: no answer within {} s; does a file system above it hang?",
            target.display(),
            LOOK_LIMIT.as_secs()
        ))),
    }
}

/// Takes one mount away from a path. A path that is not mounted is fine.
async fn detach(target: PathBuf, flags: UnmountFlags) -> Result<(), Status> {
    let path = target.clone();
    let work =
        tokio::task::spawn_blocking(move || rustix::mount::unmount(&path, flags | UnmountFlags::NOFOLLOW));
    match tokio::time::timeout(UNMOUNT_LIMIT, work).await {
        Ok(Ok(Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT))) => Ok(()),
        Ok(Ok(Err(rustix::io::Errno::BUSY))) => Err(Status::failed_precondition(format!(
            "{} is in use: end the programs that use it, or unmount lazily",
            target.display()
        ))),
        Ok(Ok(Err(error))) => Err(internal("unmount", &target, &error.into())),
        Ok(Err(error)) => Err(Status::internal(error.to_string())),
        Err(_) => Err(Status::deadline_exceeded(format!(
            "unmounting {} waits for data to be written; are the engines up?",
            target.display()
        ))),
    }
}

fn internal(what: &str, target: &Path, error: &io::Error) -> Status {
    Status::internal(format!("{what} {}: {error}", target.display()))
}
