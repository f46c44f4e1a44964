//! A thread that answers measurements and nothing else.

use std::sync::mpsc;
use std::thread::JoinHandle;

use weir_fabric::{FabricError, Options};
use weir_proto::capability::SystemKey;
use weir_rpc::{Keys, Rpc, RpcConfig};
use weir_runtime::real::{Executor, Remote};
use weir_runtime::sync::Gate;

use crate::serve;

thread_local! {
    /// Opened when this thread is to end.
    static STOP: Gate = Gate::new();
}

/// Why there is no listener.
#[derive(Debug, thiserror::Error)]
pub enum ListenerError {
    /// The system gives no thread or executor.
    #[error("measurements by {provider} can't be answered: {source}")]
    System {
        /// The fabric provider.
        provider: String,
        /// The reason.
        source: std::io::Error,
    },
    /// The endpoint.
    #[error(
        "measurements by {provider} can't be answered: {source}; see `weir fabric info` for the providers"
    )]
    Fabric {
        /// The fabric provider.
        provider: String,
        /// The reason.
        source: FabricError,
    },
}

/// Answers measurements until it is dropped. Sleeps while there are none.
pub struct Listener {
    remote: Remote,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens with these options; clients prove themselves with the system's key or one that is derived from it.
    ///
    /// # Errors
    /// When there is no thread, or no endpoint to be had with these options.
    pub fn start(options: Options, key: SystemKey) -> Result<Self, ListenerError> {
        let provider = options.provider.clone();
        let system = |source| ListenerError::System { provider: provider.clone(), source };
        let (started, outcome) = mpsc::channel();
        let thread = std::thread::Builder::new().name("probe".to_owned());
        let thread = thread.spawn(move || run(&options, key, &started)).map_err(system)?;
        let ended = || Err(system(std::io::Error::other("its thread has ended")));
        match outcome.recv().unwrap_or_else(|_| ended()) {
            Ok(remote) => Ok(Self { remote, thread: Some(thread) }),
            Err(error) => {
                // It ends by itself; that it said why is enough.
                let _ = thread.join();
                Err(error)
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A thread that has ended already needs no word.
        let _ = self.remote.spawn(Box::new(|_| STOP.with(Gate::open)));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(options: &Options, key: SystemKey, started: &mpsc::Sender<Result<Remote, ListenerError>>) {
    let provider = options.provider.clone();
    let open = || {
        let executor = Executor::new();
        let executor =
            executor.map_err(|source| ListenerError::System { provider: provider.clone(), source })?;
        let endpoint = weir_fabric::open(&executor.handle(), options)
            .map_err(|source| ListenerError::Fabric { provider: provider.clone(), source })?;
        Ok((executor, endpoint))
    };
    let (executor, endpoint) = match open() {
        Ok(opened) => opened,
        Err(error) => {
            // The starter waits for it.
            let _ = started.send(Err(error));
            return;
        }
    };
    let config = RpcConfig { keys: Some(Keys::System(key)), ..RpcConfig::default() };
    let rpc = Rpc::new(executor.handle(), endpoint, config);
    serve(&rpc);
    if started.send(Ok(executor.remote())).is_ok() {
        let stop = STOP.with(Clone::clone);
        executor.block_on(stop.wait());
    }
}
