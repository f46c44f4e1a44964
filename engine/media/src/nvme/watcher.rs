//! Reads a drive's health log now and then, on a thread of its own: a drive in trouble answers late, and the target's
//! thread must not wait for it.

use super::command::smart_log;
use crate::wear::Wear;
use core::time::Duration;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};

/// How often the log is read. Wear takes months, and media errors are felt in the transfers themselves.
const INTERVAL: Duration = Duration::from_mins(1);

/// The newest log of a drive.
pub(crate) struct Watcher {
    newest: Arc<Mutex<Option<Wear>>>,
    /// Dropping it ends the thread.
    _alive: Option<mpsc::Sender<()>>,
}

impl Watcher {
    /// Reads the log from now on. A device that has none, or doesn't let this process read it, is not asked again.
    pub(crate) fn start(path: &Path) -> Self {
        let newest = Arc::new(Mutex::new(None));
        let shared = Arc::clone(&newest);
        let (alive, ended) = mpsc::channel::<()>();
        let path = path.to_owned();
        let started = std::thread::Builder::new().name("drive-health".to_owned()).spawn(move || {
            // A descriptor of its own: the lock of the device's goes with that alone.
            let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
            let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else { return };
            while let Some(wear) = smart_log(&file).ok().and_then(|page| Wear::parse(&page)) {
                *shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(wear);
                if ended.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
        });
        // Without the thread there is no log; the device works all the same.
        Self { newest, _alive: started.ok().map(|_| alive) }
    }

    /// What was read last.
    pub(crate) fn wear(&self) -> Option<Wear> {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
