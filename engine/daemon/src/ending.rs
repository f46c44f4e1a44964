//! How an engine is asked to end: by SIGTERM or SIGINT, from the start of the process on.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use weir_runtime::Handle;

/// How often a step that waits for a device looks whether it is still wanted.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The signals that end an engine. They are kept from when this is made until somebody asks for them: a process with number 1, as in
/// a container, would not even be killed by them before.
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

/// Tells the thread that makes the targets that nobody wants them any more.
#[derive(Clone, Debug, Default)]
pub struct Unwanted(Arc<AtomicBool>);

impl Unwanted {
    /// Says so.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was said.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs a step, and drops it between two transfers, or while one hangs, when it is not wanted any more; `None` then.
pub async fn while_wanted<T>(
    rt: &Handle,
    is_unwanted: &dyn Fn() -> bool,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    loop {
        let step = core::future::poll_fn(|cx| {
            if is_unwanted() { Poll::Ready(None) } else { work.as_mut().poll(cx).map(Some) }
        });
        if let Ok(done) = rt.timeout(LOOK_INTERVAL, step).await {
            return done;
        }
    }
}
