//! Shutdown of an engine: SIGTERM or SIGINT asks for it, from the start of the process on.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use weir_runtime::Handle;

/// How often a step that waits for a device checks the stop flag.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The signals that end an engine. A signal that arrives after this was made is kept until [`Signals::recv`] is called. Without this, a
/// process with number 1, as in a container, would ignore the signals.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes the signals, within a runtime.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn take() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for one of them.
    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {},
            _ = self.interrupt.recv() => {},
        }
    }
}

/// Tells the thread that makes the targets to stop.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Asks it to stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked to stop.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs a step. Once `is_stopped`, drops the step between two transfers, or while one hangs, and returns `None`.
pub async fn unless_stopped<T>(
    rt: &Handle,
    is_stopped: &dyn Fn() -> bool,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    loop {
        let step = core::future::poll_fn(|cx| {
            if is_stopped() { Poll::Ready(None) } else { work.as_mut().poll(cx).map(Some) }
        });
        if let Ok(done) = rt.timeout(POLL_INTERVAL, step).await {
            return done;
        }
    }
}
