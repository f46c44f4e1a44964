//! Calls of the operating system with a deadline: a device may delay them for any time.

use crate::device::MediaError;
use crate::file::open_error;
use crate::health::HUNG;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// How long the opening of a device may take, or a step of its creation: what a transfer may.
pub(crate) struct OpenDeadline {
    path: PathBuf,
    operation: &'static str,
    until: Instant,
}

impl OpenDeadline {
    /// Begins now, with the opening of a device.
    pub(crate) fn with(path: &Path) -> Self {
        Self::of(path, "opened", HUNG)
    }

    /// Begins now, with a step of a device's creation.
    pub(crate) fn with_creation(path: &Path) -> Self {
        Self::of(path, "created", HUNG)
    }

    fn of(path: &Path, operation: &'static str, limit: Duration) -> Self {
        Self { path: path.to_owned(), operation, until: Instant::now() + limit }
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
        // The receiver is gone only when it is too late.
        let started = thread.spawn(move || drop(answer.send(call())));
        started
            .map_err(|error| open_error(&self.path, self.operation, format!("no thread for it: {error}")))?;
        answered.recv_timeout(self.left()).map_err(|_| self.over(what))
    }

    /// The error of a device that didn't answer.
    pub(crate) fn over(&self, what: &str) -> MediaError {
        let reason = format!(
            "{what} did not end within {} s: the device does not answer; see the kernel's log, then reset or replace it",
            HUNG.as_secs()
        );
        open_error(&self.path, self.operation, reason)
    }
}

/// Makes a call on a thread of its own, so that the executor doesn't wait for it. A caller that stops waiting leaves
/// the thread behind. The result is dropped then as soon as the call ends.
///
/// # Errors
/// When there is no thread for it, or the call panics.
pub(crate) async fn apart<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (answer, answered) = mpsc::channel();
    let waiting = Arc::new(Mutex::new(None::<Waker>));
    let told = Arc::clone(&waiting);
    std::thread::Builder::new().name("device-call".to_owned()).spawn(move || {
        let _wake = Wake(told);
        // A local of its own, which goes before the other one does.
        let answer = answer;
        // The receiver is gone only when it is too late.
        drop(answer.send(call()));
    })?;
    poll_fn(|context| {
        // A caller that comes to the answer later finds the waker.
        *waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
        match answered.try_recv() {
            Ok(value) => Poll::Ready(Ok(value)),
            Err(mpsc::TryRecvError::Empty) => Poll::Pending,
            Err(mpsc::TryRecvError::Disconnected) => Poll::Ready(Err(io::Error::other("the call panicked"))),
        }
    })
    .await
}

/// Wakes the waiting caller when the thread ends, however it ends.
struct Wake(Arc<Mutex<Option<Waker>>>);

impl Drop for Wake {
    fn drop(&mut self) {
        let waker = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_runtime::real::Executor;

    use super::*;

    #[test]
    fn a_call_that_never_ends_is_an_error_that_names_device_and_call() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("silent");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo");
        assert!(made.success());
        for operation in ["opened", "created"] {
            let patience = OpenDeadline::of(&path, operation, Duration::from_millis(5));
            let silent = path.clone();
            let error =
                patience.wait("the first look", move || std::fs::File::open(silent)).expect_err("no writer");
            let text = error.to_string();
            let path = path.to_str().expect("text");
            for part in [path, operation, "the first look did not end", "does not answer"] {
                assert!(text.contains(part), "{text}");
            }
        }
        // The thread is to end with the test.
        drop(std::fs::OpenOptions::new().read(true).write(true).open(&path));
    }

    /// Far longer than a call takes that another task ends, which a held executor never runs.
    const HELD: Duration = Duration::from_secs(10);

    #[test]
    fn an_executor_goes_on_while_a_call_is_held_up() {
        let executor = Executor::new().expect("an executor");
        let rt = executor.handle();
        let ended = executor.block_on(async move {
            let (end, held) = mpsc::channel::<()>();
            rt.spawn(async move { end.send(()).expect("it waits") });
            apart(move || held.recv_timeout(HELD)).await
        });
        assert_eq!(ended.expect("a thread"), Ok(()), "the executor waited for the call");
    }

    #[test]
    fn who_gives_up_a_call_that_is_held_up_leaves_it_behind() {
        let executor = Executor::new().expect("an executor");
        let rt = executor.handle();
        let (end, held) = mpsc::channel::<()>();
        let given_up = executor
            .block_on(async move { rt.timeout(Duration::from_millis(1), apart(move || held.recv())).await });
        assert!(given_up.is_err(), "nobody ends it");
        end.send(()).expect("it still waits");
    }

    #[test]
    fn a_call_that_panics_is_an_error() {
        let executor = Executor::new().expect("an executor");
        let error = executor.block_on(apart(|| assert_eq!(1, 2, "as it is to be"))).expect_err("no answer");
        assert!(error.to_string().contains("panicked"), "{error}");
    }

    #[test]
    fn what_a_call_gives_is_handed_on() {
        assert_eq!(OpenDeadline::with(Path::new("x")).wait("it", || 7).expect("in time"), 7);
    }
}
