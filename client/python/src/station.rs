//! The workers of a process: a thread with a client context for each attach file in use.
//!
//! A forked child has no copy of its parent's threads, and must leave their endpoints alone. So the workers belong to one process id;
//! another process makes new ones, and leaks what it has inherited.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use core::time::Duration;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use pyo3::prelude::*;
use weir_client::{Attach, Context};
use weir_runtime::Handle;
use weir_runtime::real::Remote;
use weir_runtime::sync::Notify;

use crate::failure::Failure;

/// How often a call that waits looks whether the user has interrupted it.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);

thread_local! {
    /// What a worker's thread has.
    static WORKER: RefCell<Option<(Context, Notify)>> = const { RefCell::new(None) };
}

/// A thread that reaches one system.
struct Worker {
    remote: Remote,
    thread: JoinHandle<()>,
}

/// The workers of one process, by attach file.
struct Workers {
    process: u32,
    all: Mutex<HashMap<Option<String>, Worker>>,
}

/// Those of this process, or of one that it was forked from. Never freed.
static WORKERS: AtomicPtr<Workers> = AtomicPtr::new(null_mut());

impl Workers {
    fn here() -> &'static Self {
        let process = std::process::id();
        loop {
            let found = WORKERS.load(Ordering::Acquire);
            // SAFETY: the pointer is null or comes from `Box::into_raw` below, and what it points at is never freed.
            if let Some(workers) = unsafe { found.as_ref() }
                && workers.process == process
            {
                return workers;
            }
            let made = Box::into_raw(Box::new(Self { process, all: Mutex::default() }));
            if WORKERS.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: it comes from `Box::into_raw`, and nobody else has seen it.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Option<String>, Worker>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn start(attach: Option<&str>) -> Result<Worker, Failure> {
    let attach = Attach::load(attach.map(Path::new)).map_err(weir_client::Error::from)?;
    let (ready, waits) = mpsc::channel();
    let thread = std::thread::Builder::new().name("weir-client".into()).spawn(move || serve(&attach, &ready));
    let thread = thread.map_err(|error| Failure::Worker(format!("no thread for the client: {error}")))?;
    let remote = waits.recv().map_err(|_| ended())??;
    Ok(Worker { remote, thread })
}

/// The thread of a worker.
fn serve(attach: &Attach, ready: &mpsc::Sender<Result<Remote, Failure>>) {
    let context = Context::real(attach).map_err(Failure::from);
    let opened = context.and_then(|context| {
        let remote = context.remote().ok_or_else(ended)?;
        Ok((context, remote))
    });
    // Who started the worker waits for this.
    match opened {
        Err(failure) => drop(ready.send(Err(failure))),
        Ok((context, remote)) => {
            let stop = Notify::new();
            WORKER.set(Some((context.clone(), stop.clone())));
            drop(ready.send(Ok(remote)));
            context.block_on(stop.notified());
            WORKER.set(None);
        }
    }
}

fn ended() -> Failure {
    Failure::Worker("the client's thread has ended".into())
}

/// The way to the worker of an attach file, which is started at its first use.
fn worker_of(attach: Option<&str>) -> Result<Remote, Failure> {
    let mut all = Workers::here().lock();
    let key = attach.map(str::to_owned);
    if let Some(worker) = all.get(&key) {
        return Ok(worker.remote.clone());
    }
    let worker = start(attach)?;
    let remote = worker.remote.clone();
    all.insert(key, worker);
    Ok(remote)
}

/// Runs an operation on the worker of an attach file, and waits for it without the interpreter's lock. An interrupted wait leaves the
/// operation to its end.
pub fn run<T, F>(py: Python<'_>, attach: Option<&str>, work: F) -> PyResult<T>
where
    T: Send + 'static,
    F: AsyncFnOnce(Context) -> Result<T, Failure> + Send + 'static,
{
    let (done, waits) = mpsc::channel();
    let attach = attach.map(str::to_owned);
    let job = Box::new(move |runtime: &Handle| {
        let context = WORKER.with_borrow(|worker| worker.as_ref().map(|(context, _)| context.clone()));
        if let Some(context) = context {
            runtime.spawn(async move {
                // Nobody waits any more where the user has interrupted.
                let _ = done.send(work(context).await);
            });
        }
    });
    py.detach(move || worker_of(attach.as_deref())?.spawn(job).map_err(|_| ended()))?;
    let waits = Mutex::new(waits);
    loop {
        let received = py.detach(|| {
            let waits = waits.lock().unwrap_or_else(PoisonError::into_inner);
            waits.recv_timeout(SIGNALS_EVERY)
        });
        match received {
            Ok(result) => return Ok(result?),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => return Err(ended().into()),
        }
    }
}

/// Ends the workers of this process; later calls start new ones.
#[pyfunction]
pub fn stop(py: Python<'_>) {
    py.detach(|| {
        for (_, worker) in core::mem::take(&mut *Workers::here().lock()) {
            let stop = |_: &Handle| {
                if let Some((_, stop)) = WORKER.with_borrow(Clone::clone) {
                    stop.notify_one();
                }
            };
            if worker.remote.spawn(Box::new(stop)).is_ok() {
                // What it panicked with it has said.
                drop(worker.thread.join());
            }
        }
    });
}
