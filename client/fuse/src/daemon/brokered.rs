//! The mounts that the mount broker has made for this daemon.
//!
//! The daemon has each mount's descriptors, too: a broker that was restarted gets them back from here, and a daemon that was
//! restarted takes them from the broker.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tonic::Status;

use crate::broker::Broker;
use crate::handover::Descriptors;
use crate::spec::MountSpec;

/// How often the broker is asked what it lacks.
const GIVE_PAUSE: Duration = Duration::from_secs(2);

/// Mounts of a broker.
#[derive(Clone, Debug)]
pub struct Brokered {
    broker: Broker,
    held: Arc<Mutex<BTreeMap<PathBuf, Arc<Descriptors>>>>,
}

/// The status of a call that the broker has failed.
fn failed(what: &str, target: &Path, error: &io::Error) -> Status {
    let message = format!("{what} {}: {error}", target.display());
    match error.kind() {
        io::ErrorKind::ResourceBusy => {
            Status::failed_precondition(format!("{message}: end the programs that use it, or unmount lazily"))
        }
        io::ErrorKind::AlreadyExists | io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory => {
            Status::failed_precondition(message)
        }
        io::ErrorKind::StaleNetworkFileHandle => Status::not_found(message),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
            Status::unavailable(format!("{message}: does the mount broker run on this node?"))
        }
        io::ErrorKind::WouldBlock => Status::deadline_exceeded(format!(
            "{message}: it waits for data to be written; are the engines up?"
        )),
        _ => Status::internal(message),
    }
}

impl Brokered {
    /// Mounts of the broker at a socket.
    #[must_use]
    pub fn new(socket: PathBuf) -> Self {
        Self { broker: Broker::new(socket), held: Arc::default() }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Arc<Descriptors>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the broker, on a thread of its own.
    async fn ask<T: Send + 'static>(
        &self,
        what: &str,
        target: &Path,
        question: impl FnOnce(&Broker, &Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        let (broker, path) = (self.broker.clone(), target.to_owned());
        let asked = tokio::task::spawn_blocking(move || question(&broker, &path)).await;
        asked
            .map_err(|error| Status::internal(error.to_string()))?
            .map_err(|error| failed(what, target, &error))
    }

    /// Mounts.
    ///
    /// # Errors
    /// When the target can't be mounted on, or the broker is away.
    pub async fn mount(&self, spec: &MountSpec) -> Result<Arc<Descriptors>, Status> {
        let options = spec.validate().map_err(|error| Status::invalid_argument(error.to_string()))?;
        let flags = [(options.read_only, "ro"), (options.noexec, "noexec")];
        let flags: Vec<&str> = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| *flag).collect();
        let (source, flags) = (spec.source(), flags.join(","));
        let mount = move |broker: &Broker, target: &Path| broker.mount(target, &source, &flags);
        let descriptors = self.ask("mount at", &spec.target, mount).await?;
        Ok(self.hold(&spec.target, descriptors))
    }

    /// The descriptors of a mount.
    ///
    /// # Errors
    /// [`tonic::Code::NotFound`] when the broker doesn't have them either; another one when it is away.
    pub async fn take(&self, target: &Path) -> Result<Arc<Descriptors>, Status> {
        if let Some(descriptors) = self.held().get(target) {
            return Ok(Arc::clone(descriptors));
        }
        let descriptors = self.ask("take the mount at", target, Broker::take).await?;
        Ok(self.hold(target, descriptors))
    }

    fn hold(&self, target: &Path, descriptors: Descriptors) -> Arc<Descriptors> {
        let descriptors = Arc::new(descriptors);
        self.held().insert(target.to_owned(), Arc::clone(&descriptors));
        descriptors
    }

    /// Tells the broker that a mount answers.
    pub async fn ready(&self, target: &Path) {
        if let Err(error) = self.ask("announce", target, Broker::ready).await {
            tracing::warn!(target = %target.display(), %error, "read-ahead stays at the kernel's default");
        }
    }

    /// Removes the mount on top at a path.
    ///
    /// # Errors
    /// When it is in use and not to be detached, or the broker is away.
    pub async fn unmount(&self, target: &Path, detach: bool) -> Result<(), Status> {
        self.ask("unmount", target, move |broker, target| broker.unmount(target, detach)).await?;
        self.held().remove(target);
        Ok(())
    }

    /// Gives up a mount that nobody can serve: programs that wait for it get errors.
    ///
    /// # Errors
    /// When the broker is away.
    pub async fn release(&self, target: &Path) -> Result<(), Status> {
        self.held().remove(target);
        self.ask("release", target, Broker::release).await
    }

    /// Mounts that the broker keeps.
    ///
    /// # Errors
    /// When it is away.
    pub async fn kept(&self) -> Result<Vec<PathBuf>, Status> {
        let list = self.ask("list", Path::new("mounts"), |broker, _| broker.list()).await?;
        Ok(list.into_iter().filter(|mount| mount.is_held).map(|mount| mount.target).collect())
    }

    /// Gives a broker that was restarted its descriptors back, for ever.
    pub async fn give_back(&self) {
        let mut was_away = false;
        loop {
            tokio::time::sleep(GIVE_PAUSE).await;
            let given = self.give_what_lacks().await;
            if let Err(error) = &given
                && !was_away
            {
                tracing::warn!(%error, "the mount broker has not got all descriptors back");
            }
            was_away = given.is_err();
        }
    }

    async fn give_what_lacks(&self) -> Result<(), Status> {
        let list = self.ask("list", Path::new("mounts"), |broker, _| broker.list()).await?;
        for target in list.into_iter().filter(|mount| !mount.is_held).map(|mount| mount.target) {
            let Some(descriptors) = self.held().get(&target).cloned() else { continue };
            let give = move |broker: &Broker, target: &Path| broker.give(target, &descriptors);
            self.ask("give back", &target, give).await?;
            tracing::info!(target = %target.display(), "the mount broker has the mount again");
        }
        Ok(())
    }
}
