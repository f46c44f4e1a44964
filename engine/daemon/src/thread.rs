//! A target on a thread of its own.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use weir_fabric::{Addressing, AuthKey, FabricError, MrMethod, Options, Protocol, ReceiveMode};
use weir_group::EngineKeys;
use weir_media::Device;
use weir_media::MediaError;
use weir_media::health::MonitoredDevice;
use weir_proto::group::GroupList;
use weir_proto::probe::ProbeListener;
use weir_rpc::membership::swim::SwimConfig;
use weir_runtime::real::{Executor, Remote};
use weir_runtime::sync::Gate;
use weir_runtime::{Either, race};
use weir_store::{Owner, StoreConfig};

use crate::data_directory;
use crate::fault_record::{FaultFile, FaultRecord};
use crate::last_seen::{LastSeenFile, last_seen_path};
use crate::map_backup::MapBackupFile;
use crate::target::{StartError, Target, TargetContext};
use crate::tenants::TenantFile;

thread_local! {
    /// The target of this thread, for messages of other threads.
    static CURRENT: RefCell<Option<Rc<Target>>> = const { RefCell::new(None) };
    /// Opens when the thread is to end.
    static STOP: Gate = Gate::new();
}

/// The target that this thread serves, if it serves already.
pub fn current() -> Option<Rc<Target>> {
    CURRENT.with_borrow(Clone::clone)
}

/// What a target's thread needs to start.
#[derive(Clone)]
pub struct Settings {
    /// Whose data it serves.
    pub owner: Owner,
    /// Its file.
    pub path: PathBuf,
    /// libfabric provider.
    pub provider: String,
    /// How receive memory is posted.
    pub receive: ReceiveMode,
    /// Auth keys of its endpoint, where the provider has such.
    pub auth_keys: Vec<AuthKey>,
    /// The NIC that it is on; none leaves it to the provider.
    pub nic: Option<String>,
    /// How memory is registered for peers.
    pub mr_method: MrMethod,
    /// How messages are sent.
    pub protocol: Protocol,
    /// Where its address is known from.
    pub addressing: Addressing,
    /// Address its endpoint is bound to.
    pub listen: String,
    /// Its port.
    pub port: u16,
    /// Every engine.
    pub engines: GroupList,
    /// Times of the membership protocol.
    pub membership: SwimConfig,
    /// The engine's data directory.
    pub data: PathBuf,
    /// The key that engines and clients share, and the one that engines have for themselves.
    pub keys: EngineKeys,
    /// Start of the process, seconds since 1970.
    pub started: u64,
    /// How its store behaves.
    pub store: StoreConfig,
    /// The least part of its time that it works for rebuilds where there are any, above 0 and up to 1.
    pub rebuild_floor: f64,
    /// Where else the engine is measured.
    pub probes: Vec<ProbeListener>,
    /// The processor to stay on.
    pub processor: Option<usize>,
}

/// Why a target's thread ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum ThreadError {
    /// The system gives no thread or executor.
    #[error("target {target} can't start: {source}")]
    System {
        /// The target.
        target: u32,
        /// The reason.
        source: std::io::Error,
    },
    /// Its endpoint.
    #[error("target {target} can't listen at {listen}:{port} with provider {provider}: {source}")]
    Fabric {
        /// The target.
        target: u32,
        /// Address.
        listen: String,
        /// Port.
        port: u16,
        /// Provider.
        provider: String,
        /// The reason.
        source: FabricError,
    },
    /// Its file.
    #[error("target {target}: {source}")]
    Media {
        /// The target.
        target: u32,
        /// The reason.
        source: MediaError,
    },
    /// Its store or services.
    #[error("target {target}: {source}")]
    Start {
        /// The target.
        target: u32,
        /// The reason.
        source: StartError,
    },
    /// Its last checkpoint.
    #[error(
        "target {target} stopped without a last checkpoint: {reason}; the next start recovers from its log"
    )]
    Stop {
        /// The target.
        target: u32,
        /// The reason.
        reason: String,
    },
    /// A defect.
    #[error("target {target} panicked; its thread is gone")]
    Panicked {
        /// The target.
        target: u32,
    },
}

/// What a target's thread reports.
pub enum Event {
    /// It serves.
    Serving(u32),
    /// It has ended.
    Ended(u32, Result<(), ThreadError>),
}

/// A running target's thread.
pub struct TargetThread {
    /// The door to its executor.
    pub remote: Remote,
    thread: JoinHandle<()>,
}

impl TargetThread {
    /// Starts a target. What becomes of it is told through `events`.
    ///
    /// # Errors
    /// When there is no thread or executor to be had.
    pub fn start(settings: Settings, events: impl Fn(Event) + Send + 'static) -> Result<Self, ThreadError> {
        let target = settings.owner.target.0;
        let (sender, receiver) = mpsc::channel();
        let name = format!("target-{target}");
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let run = std::panic::AssertUnwindSafe(|| run(settings, &sender, &events));
            let ended = std::panic::catch_unwind(run).unwrap_or(Err(ThreadError::Panicked { target }));
            events(Event::Ended(target, ended));
        });
        let thread = thread.map_err(|source| ThreadError::System { target, source })?;
        let started = receiver.recv().unwrap_or_else(|_| Err(std::io::Error::other("the thread ended")));
        let remote = started.map_err(|source| ThreadError::System { target, source })?;
        Ok(Self { remote, thread })
    }

    /// Asks the target to finish. Its end is told through the events.
    pub fn stop(&self) {
        if self.remote.spawn(Box::new(|_| STOP.with(Gate::open))).is_err() {
            tracing::debug!("a target's executor has ended already");
        }
    }

    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

fn run(
    settings: Settings,
    started: &mpsc::Sender<std::io::Result<Remote>>,
    events: &impl Fn(Event),
) -> Result<(), ThreadError> {
    let target = settings.owner.target.0;
    if let Some(processor) = settings.processor {
        pin(processor);
    }
    let executor = match Executor::new() {
        Ok(executor) => executor,
        Err(source) => {
            let text = source.to_string();
            // The starter waits for this message.
            drop(started.send(Err(source)));
            return Err(ThreadError::System { target, source: std::io::Error::other(text) });
        }
    };
    drop(started.send(Ok(executor.remote())));
    executor.block_on(serve(&executor, settings, events))
}

async fn serve(executor: &Executor, settings: Settings, events: &impl Fn(Event)) -> Result<(), ThreadError> {
    let target = settings.owner.target.0;
    let stop = STOP.with(Clone::clone);
    // A recovery may take long. One that is broken off costs nothing: what was acknowledged is on the device.
    let served = match race(stop.wait(), Box::pin(start(executor, settings))).await {
        Either::First(()) => {
            tracing::info!(target, "the target was stopped before it served");
            return Ok(());
        }
        Either::Second(served) => served?,
    };
    CURRENT.set(Some(Rc::clone(&served)));
    events(Event::Serving(target));
    stop.wait().await;
    CURRENT.take();
    served.stop().await.map_err(|error| ThreadError::Stop { target, reason: error.to_string() })
}

/// Opens the target's device and endpoint, and has it serve.
async fn start(executor: &Executor, settings: Settings) -> Result<Rc<Target>, ThreadError> {
    let target = settings.owner.target.0;
    let rt = executor.handle();
    let fault_record: Rc<dyn FaultRecord> =
        Rc::new(FaultFile::new(data_directory::fault_path(&settings.path)));
    let last_seen = Rc::new(LastSeenFile::new(last_seen_path(&settings.path)));
    let map_backup = Rc::new(MapBackupFile::new(settings.path.clone()));
    let device = match data_directory::open(&rt, target, &settings.path).await {
        Ok(device) => {
            tracing::info!(device = device.name(), size = device.size(), features = %device.features(), "device opened");
            let monitored: Rc<dyn Device> = Rc::new(MonitoredDevice::new(&rt, device));
            Ok(monitored)
        }
        // Another program uses it: this engine may be there already.
        Err(source @ MediaError::Busy { .. }) => return Err(ThreadError::Media { target, source }),
        // The engine's other targets must not miss it.
        Err(error) => Err(error.to_string()),
    };
    let (listen, port, provider) = (settings.listen, settings.port, settings.provider);
    let (receive, auth_keys, mr_method) = (settings.receive, settings.auth_keys, settings.mr_method);
    let (protocol, nic, addressing) = (settings.protocol, settings.nic, settings.addressing);
    let options = Options {
        receive,
        auth_keys,
        device: nic,
        mr_method,
        protocol,
        addressing,
        ..Options::listen(&provider, &listen, port)
    };
    let endpoint = weir_fabric::open(&rt, &options);
    let endpoint = endpoint.map_err(|source| ThreadError::Fabric {
        target,
        listen,
        port,
        provider: provider.clone(),
        source,
    })?;
    let context = TargetContext {
        rt,
        endpoint,
        device,
        fault_record,
        last_seen,
        map_backup,
        tenants: Rc::new(TenantFile::new(&settings.data)),
        owner: settings.owner,
        store: settings.store,
        engines: settings.engines,
        membership: settings.membership,
        keys: settings.keys,
        provider,
        started: settings.started,
    };
    let served = Target::start(context).await.map_err(|source| ThreadError::Start { target, source })?;
    served.io().set_rebuild_floor(settings.rebuild_floor);
    weir_probe::announce(served.rpc(), &settings.probes);
    Ok(served)
}

/// Keeps the calling thread on one processor. When that is not allowed it runs unpinned.
fn pin(processor: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(processor, %error, "a target's thread could not be pinned");
    }
}

/// Processors for `targets` threads, when this process has been given processors of its own (fewer than the machine
/// has) and enough of them. On shared processors the kernel knows better where a thread should run.
pub fn own_processors(targets: u32) -> Vec<Option<usize>> {
    let every = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let mine = rustix::thread::sched_getaffinity(None).ok();
    let mine: Vec<usize> = mine.map_or_else(Vec::new, |set| {
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect()
    });
    let count = usize::try_from(targets).unwrap_or(usize::MAX);
    let exclusive = mine.len() < processors_in(&every) && mine.len() >= count;
    (0..count).map(|index| if exclusive { mine.get(index).copied() } else { None }).collect()
}

/// How many processors a list like "0-3,8" names.
fn processors_in(list: &str) -> usize {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        Some(high.parse::<usize>().ok()?.saturating_sub(low.parse().ok()?) + 1)
    });
    ranges.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        for (list, count) in [("0-3,8\n", 5), ("0", 1), ("", 0), ("x-y", 0)] {
            assert_eq!(processors_in(list), count, "{list}");
        }
    }

    #[test]
    fn shared_processors_are_not_pinned_to() {
        assert_eq!(own_processors(100_000).iter().flatten().count(), 0);
    }
}
