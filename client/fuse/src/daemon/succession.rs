//! Successors of processes that have ended and whose mounts the broker keeps.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use tonic::Status;

use super::record::Record;
use super::service::{MountService, mounted};
use crate::mountinfo::FILE_SYSTEM_TYPE;
use crate::process::ProcessRecord;

/// Pause after a successor could not take a mount.
const PAUSE: Duration = Duration::from_secs(1);

/// What came of an attempt.
enum Attempt {
    /// There is nothing to be done, or it is done.
    Done,
    /// Later, perhaps.
    Failed(Status),
    /// Never.
    Hopeless(Status),
}

impl MountService {
    /// Goes on with the mounts of a daemon before this one, and has the broker's mounts removed that no record knows.
    pub async fn resume(&self) {
        let Some(brokered) = &self.brokered else { return };
        let records = self.table.records();
        match brokered.kept().await {
            Ok(kept) => {
                let is_known = |target: &PathBuf| records.iter().any(|record| record.spec.target == *target);
                for stray in kept.iter().filter(|target| !is_known(target)) {
                    tracing::warn!(target = %stray.display(), "a mount that was not finished is removed");
                    if let Err(error) = self.detach(stray, UnmountFlags::DETACH).await {
                        tracing::warn!(target = %stray.display(), %error, "it stays");
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "the mount broker is away"),
        }
        for record in &records {
            if record.process.is_alive()
                && let Err(error) = brokered.take(&record.spec.target).await
            {
                tracing::warn!(%error, "no successor could take the mount, should its process end");
            }
            self.watch(record);
        }
        let brokered = brokered.clone();
        tokio::spawn(async move { brokered.give_back().await });
    }

    /// Has a mount taken over when its process ends.
    pub(super) fn watch(&self, record: &Record) {
        if self.brokered.is_none() {
            return;
        }
        let (service, target, process) = (self.clone(), record.spec.target.clone(), record.process);
        tokio::spawn(async move {
            if let Err(error) = process.ended().await {
                tracing::error!(pid = process.pid, %error, "the end of a mount's process can't be seen");
                return;
            }
            service.replace_process(&target, process).await;
        });
    }

    /// Starts successors of a process until one has taken the mount, or the mount is gone.
    async fn replace_process(&self, target: &Path, process: ProcessRecord) {
        let begun = Instant::now();
        loop {
            let (error, is_last) = match self.attempt(target, process).await {
                Attempt::Done => return,
                Attempt::Failed(error) => (error, begun.elapsed() >= self.config.engine_wait),
                Attempt::Hopeless(error) => (error, true),
            };
            if is_last {
                tracing::error!(target = %target.display(), %error, "no successor takes the mount: it ends");
                self.table.give_up(target, process);
                if let Some(brokered) = &self.brokered
                    && let Err(error) = brokered.release(target).await
                {
                    tracing::error!(target = %target.display(), %error, "programs that use it wait for ever");
                }
                return;
            }
            tracing::warn!(target = %target.display(), %error, "no successor has taken the mount yet");
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn attempt(&self, target: &Path, process: ProcessRecord) -> Attempt {
        let (Some(turn), Some(brokered)) = (self.table.turn(target), &self.brokered) else {
            return Attempt::Done;
        };
        let _turn = turn.lock().await;
        let Some(record) = self.table.get(target).filter(|record| record.process == process) else {
            return Attempt::Done;
        };
        match mounted(target) {
            Ok(Some(kind)) if kind == FILE_SYSTEM_TYPE => {}
            Ok(_) => return Attempt::Done,
            Err(error) => return Attempt::Failed(error),
        }
        let begun = Instant::now();
        let descriptors = match brokered.take(target).await {
            Ok(descriptors) => descriptors,
            // With the process that has ended went the last descriptor that anybody had.
            Err(error) if error.code() == tonic::Code::NotFound => return Attempt::Hopeless(error),
            Err(error) => return Attempt::Failed(error),
        };
        match self.launch(record.spec.clone(), record.identity.clone(), Some((descriptors, true))).await {
            Ok(successor) => {
                tracing::info!(target = %target.display(), ended = process.pid, pid = successor.process.pid,
                    took_ms = begun.elapsed().as_millis(), "another process has taken the mount");
                self.watch(&successor);
                Attempt::Done
            }
            Err(error)
                if matches!(error.code(), tonic::Code::FailedPrecondition | tonic::Code::InvalidArgument) =>
            {
                Attempt::Hopeless(error)
            }
            Err(error) => {
                // Its record names the process that has failed.
                let stored = self.table.put(&record);
                stored.map_or_else(
                    |error| Attempt::Hopeless(Status::internal(error.to_string())),
                    |()| Attempt::Failed(error),
                )
            }
        }
    }
}
