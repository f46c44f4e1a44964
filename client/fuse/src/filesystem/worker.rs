//! State that all threads share that serve requests, and the context that each has of its own.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use fuser::{Errno, INodeNo, Notifier};
use weir_client::{Attach, Context};
use weir_dfs::Dfs;

use crate::kept::Kept;
use crate::metrics::{Metrics, Operation, errno_name};
use crate::spec::{Cache, MountOptions, MountSpec};

use super::direct::DirectAccess;
use super::handles::Handles;
use super::inodes::Inodes;
use super::leases::Leased;
use super::libraries::Libraries;
use super::name_changes::NameChanges;
use super::repeats::Repeats;
use super::retries::Retries;
use super::threads::Threads;
use super::writeback::Writeback;

/// A request that takes longer than this counts as waiting for an engine. A large write to a busy disk takes less.
const SLOW: Duration = Duration::from_secs(5);

/// Log lines about one errno come at most this often.
const LOG_PAUSE: Duration = Duration::from_secs(5);

/// Why a request failed.
#[derive(Debug)]
pub enum Fault {
    /// This errno, and nothing to add.
    Errno(i32),
    /// A failed file-system operation.
    Dfs(weir_dfs::Error),
}

impl From<weir_dfs::Error> for Fault {
    fn from(error: weir_dfs::Error) -> Self {
        Self::Dfs(error)
    }
}

impl Fault {
    /// The errno that the application sees. An engine that stayed away longer than the mount waits is an I/O error.
    pub(crate) fn errno(&self) -> i32 {
        match self {
            Self::Errno(errno) => *errno,
            Self::Dfs(weir_dfs::Error::Client(error)) if is_of_time(error) => libc::EIO,
            Self::Dfs(error) => error.errno(),
        }
    }
}

/// Whether an operation was given up because its time was over.
const fn is_of_time(error: &weir_client::Error) -> bool {
    matches!(error, weir_client::Error::Unavailable { .. } | weir_client::Error::Restarted { .. })
}

/// Result of serving a request.
pub type Served<T> = Result<T, Fault>;

/// State of a mount, shared by its threads.
#[derive(Debug)]
pub struct Shared {
    /// The file system.
    pub dfs: Dfs,
    /// Inodes that the kernel knows.
    pub inodes: Inodes,
    /// Open files and directories.
    pub handles: Handles,
    /// Counters.
    pub metrics: Metrics,
    /// Caching.
    pub cache: Cache,
    /// Names that are being changed from here.
    pub name_changes: NameChanges,
    /// Changes of names that the process before this one may have executed.
    pub repeats: Repeats,
    /// Changes that the engines don't have yet.
    pub writeback: Writeback,
    /// Opens that the kernel tries again.
    pub retries: Retries,
    /// The mount's lease.
    pub leased: Leased,
    /// Access to files that doesn't pass this process.
    pub direct: DirectAccess,
    /// What programs pass this process with.
    pub libraries: Libraries,
    /// The threads that serve requests.
    pub threads: Arc<Threads>,
    /// What a successor of this process finds, if one may come.
    pub kept: Option<Arc<Kept>>,
    attach: Attach,
    engine_wait: Duration,
    notifier: RwLock<Option<Notifier>>,
    logged: Mutex<HashMap<i32, (Option<Instant>, u64)>>,
    last_loss: Mutex<Option<(Instant, String)>>,
}

thread_local! {
    static CONTEXT: RefCell<Option<Context>> = const { RefCell::new(None) };
}

/// Gives back what the calling thread has for requests.
pub(super) fn drop_context() {
    drop(CONTEXT.take());
}

impl Shared {
    /// State of a fresh mount. With a memory file, a successor of this process can go on.
    #[must_use]
    pub(crate) fn new(
        dfs: Dfs,
        attach: Attach,
        options: MountOptions,
        spec: &MountSpec,
        kept: Option<Kept>,
    ) -> Self {
        let kept = kept.map(Arc::new);
        Self {
            inodes: Inodes::new(dfs.root().clone(), kept.clone()),
            handles: Handles::new(kept.clone()),
            repeats: Repeats::new(kept.clone()),
            kept,
            metrics: Metrics::default(),
            cache: options.cache,
            name_changes: NameChanges::default(),
            writeback: Writeback::new(options.unsent),
            retries: Retries::default(),
            leased: Leased::default(),
            direct: DirectAccess::new(&dfs, spec, options.intercept),
            libraries: if options.intercept { Libraries::find() } else { Libraries::default() },
            threads: Arc::new(Threads::new(spec.threads)),
            attach,
            engine_wait: spec.engine_wait,
            notifier: RwLock::default(),
            logged: Mutex::default(),
            last_loss: Mutex::default(),
            dfs,
        }
    }

    /// Sets the way to tell the kernel about changes.
    pub(crate) fn set_notifier(&self, notifier: Notifier) {
        *self.notifier.write().unwrap_or_else(PoisonError::into_inner) = Some(notifier);
    }

    /// Gives it up, and with it the kernel's device.
    pub(crate) fn forget_notifier(&self) {
        *self.notifier.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// How long the kernel may use attributes and entries.
    pub(crate) fn cache_life(&self) -> Duration {
        self.cache.life()
    }

    /// How long the kernel may go by that there is no entry of a name; `None`: not at all.
    pub(crate) const fn missing_life(&self) -> Option<Duration> {
        match self.cache {
            Cache::Cached(life) => Some(life),
            Cache::CloseToOpen | Cache::None => None,
        }
    }

    /// Makes the kernel ask for the attributes of an inode again. Data is left alone: dropping it here could wait for
    /// reads that wait for this very thread.
    pub(crate) fn expire_attributes(&self, number: u64) {
        if let Some(notifier) = &*self.notifier.read().unwrap_or_else(PoisonError::into_inner) {
            // It may not know the inode any more; then there is nothing to expire.
            let _ = notifier.inval_inode(INodeNo(number), -1, 0);
        }
    }

    /// Serves a request on the calling thread's context, counts it, and logs what an application would not expect.
    pub(crate) fn serve<T>(
        &self,
        operation: Operation,
        work: impl FnOnce(&Context) -> Served<T>,
    ) -> Result<T, Errno> {
        let begun = Instant::now();
        let admitted = self.leased.admit(self.engine_wait);
        let served = admitted.and_then(|()| self.with_context(work));
        let errno = served.as_ref().err().map(Fault::errno);
        self.metrics.answered(operation, begun.elapsed(), errno);
        served.map_err(|fault| {
            self.log(operation, &fault, begun.elapsed());
            Errno::from_i32(fault.errno())
        })
    }

    pub(crate) fn with_context<T>(&self, work: impl FnOnce(&Context) -> Served<T>) -> Served<T> {
        let context = CONTEXT.with(|held| {
            let mut held = held.borrow_mut();
            if held.is_none() {
                let context = Context::real(&self.attach).map_err(weir_dfs::Error::from)?;
                context.set_deadline(self.engine_wait);
                *held = Some(context);
            }
            held.clone().ok_or(Fault::Errno(libc::EIO))
        })?;
        work(&context)
    }

    pub(crate) fn log(&self, operation: Operation, fault: &Fault, took: Duration) {
        let Fault::Dfs(error) = fault else { return };
        let errno = fault.errno();
        if matches!(error, weir_dfs::Error::Client(error) if is_of_time(error)) {
            let mut last = self.last_loss.lock().unwrap_or_else(PoisonError::into_inner);
            *last = Some((Instant::now(), error.to_string()));
        }
        if !matches!(error, weir_dfs::Error::Client(_) | weir_dfs::Error::Corrupt { .. }) {
            tracing::debug!(operation = operation.name(), errno, %error, "refused");
            return;
        }
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let entry = logged.entry(errno).or_default();
        if entry.0.is_some_and(|last| now.duration_since(last) < LOG_PAUSE) {
            entry.1 += 1;
            return;
        }
        let suppressed = std::mem::take(&mut entry.1);
        entry.0 = Some(now);
        tracing::warn!(
            operation = operation.name(),
            errno = errno_name(errno),
            took_ms = took.as_millis(),
            suppressed,
            "{error}"
        );
    }

    /// Why I/O waits or fails now; empty while it does neither.
    pub(crate) fn trouble(&self) -> String {
        if self.leased.is_fenced() {
            return "another client grants locks now, which this mount did before: mount again".to_owned();
        }
        let waiting = self.threads.waits(SLOW);
        let last = self.last_loss.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let last = last.filter(|(when, _)| is_recent(when.elapsed(), self.engine_wait)).map(|(_, what)| what);
        match (waiting.iter().max(), last) {
            (Some(longest), last) => {
                let (count, seconds) = (waiting.len(), longest.as_secs());
                let before = last.map(|what| format!("; before: {what}")).unwrap_or_default();
                format!("{count} requests wait for engines, the longest for {seconds} s{before}")
            }
            (None, _) => String::new(),
        }
    }
}

/// Whether the loss of an engine this long ago may concern requests that wait now, each at most this long.
fn is_recent(ago: Duration, engine_wait: Duration) -> bool {
    ago / 2 < engine_wait.max(SLOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_told_for_twice_the_longest_wait_however_long_that_is() {
        let seconds = Duration::from_secs;
        assert!(is_recent(seconds(599), seconds(300)) && !is_recent(seconds(600), seconds(300)));
        assert!(is_recent(seconds(9), seconds(1)) && !is_recent(seconds(10), seconds(1)));
        assert!(is_recent(seconds(1 << 40), Duration::MAX));
    }

    #[test]
    fn an_engine_that_stays_away_is_an_io_error_and_a_full_pool_is_not() {
        let unavailable = weir_client::Error::Unavailable {
            operation: "update",
            subject: "object 1.2".into(),
            server: "engine 2".into(),
            waited: Duration::from_mins(5),
            cause: "connection refused".into(),
        };
        assert_eq!(Fault::Dfs(unavailable.into()).errno(), libc::EIO);
        let full = |der| weir_client::Error::Refused {
            operation: "update",
            subject: "object 1.2".into(),
            der,
            message: "full".into(),
        };
        assert_eq!(Fault::Dfs(full(weir_client::Der::NOSPACE).into()).errno(), libc::ENOSPC);
        assert_eq!(Fault::Dfs(full(weir_client::Der::QUOTA_LIMIT).into()).errno(), libc::EDQUOT);
        assert_eq!(Fault::Dfs(weir_dfs::Error::Stale("f".into())).errno(), libc::ESTALE);
    }
}
