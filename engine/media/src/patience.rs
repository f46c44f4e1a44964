//! Calls of the operating system that last as long as a device keeps them waiting.

use crate::device::MediaError;
use crate::file::open_error;
use crate::health::HUNG;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long the opening of a device may take: what a transfer may.
pub(crate) struct Patience {
    path: PathBuf,
    until: Instant,
}

impl Patience {
    /// Begins now.
    pub(crate) fn with(path: &Path) -> Self {
        Self::of(path, HUNG)
    }

    fn of(path: &Path, limit: Duration) -> Self {
        Self { path: path.to_owned(), until: Instant::now() + limit }
    }

    /// What is left of it.
    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Makes a call on a thread of its own, which is left behind when the call doesn't end in time. What it gives then is
    /// dropped as soon as it ends.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        what: &str,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, MediaError> {
        let (answer, answered) = mpsc::channel();
        let thread = std::thread::Builder::new().name("device-open".to_owned());
        // Nobody listens any more only when it is too late.
        let started = thread.spawn(move || drop(answer.send(call())));
        started.map_err(|error| open_error(&self.path, "opened", format!("no thread for it: {error}")))?;
        answered.recv_timeout(self.left()).map_err(|_| self.over(what))
    }

    /// The error of a device that didn't answer.
    pub(crate) fn over(&self, what: &str) -> MediaError {
        let reason = format!(
            "{what} did not end within {} s: the device does not answer; see the kernel's log, then reset or replace it",
            HUNG.as_secs()
        );
        open_error(&self.path, "opened", reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_never_ends_is_an_error_that_names_device_and_call() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("silent");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo");
        assert!(made.success());
        let patience = Patience::of(&path, Duration::from_millis(5));
        let silent = path.clone();
        let error =
            patience.wait("the first look", move || std::fs::File::open(silent)).expect_err("no writer");
        let text = error.to_string();
        for part in [path.to_str().expect("text"), "the first look did not end", "does not answer"] {
            assert!(text.contains(part), "{text}");
        }
        // The thread is to end with the test.
        drop(std::fs::OpenOptions::new().read(true).write(true).open(&path));
    }

    #[test]
    fn what_a_call_gives_is_handed_on() {
        assert_eq!(Patience::with(Path::new("x")).wait("it", || 7).expect("in time"), 7);
    }
}
