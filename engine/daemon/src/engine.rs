//! The engine's process: targets on their threads, management and metrics on this one.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tonic::transport::Server;
use weir_fabric::{Options, libfabric};
use weir_group::EngineKeys;
use weir_management::v1::containers_server::ContainersServer;
use weir_management::v1::pools_server::PoolsServer;
use weir_management::v1::system_server::SystemServer;
use weir_management::v1::tenants_server::TenantsServer;
use weir_management::{Page, RotatingServer, TlsError, incoming, serve_pages};
use weir_probe::{Listener, ListenerError};
use weir_runtime::real::Remote;
use weir_store::StoreConfig;

use crate::VERSION;
use crate::config::{Config, SpdkConfig};
use crate::data_directory::{DataDirectory, DataError};
use crate::grpc::{Bridge, Methods};
use crate::metrics::{Figures, render};
use crate::process::{self, ProcessFigures};
use crate::shutdown::{Signals, StopFlag};
use crate::snapshot::{self, TargetFigures};
use crate::thread::{self, Event, Settings, TargetThread, ThreadError};
use crate::wait_log::{self, NOTICE_INTERVAL};

/// Longest time from SIGTERM to the end: half of the grace that pods of engines have. What isn't in a checkpoint by
/// then is recovered from the log.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Longest wait for the thread that prepares the targets to leave off what it does: it does between two transfers. The end of the
/// process breaks off what it waits for longer, such as an open; that is no more than a crash.
const LEAVE_OFF_LIMIT: Duration = Duration::from_secs(5);

/// Longest wait for a target's figures: a scrape has ten seconds by default.
const FIGURES_LIMIT: Duration = Duration::from_secs(5);

/// Silence of a management connection after which its peer is asked for a sign of life, and longest wait for that.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_LIMIT: Duration = Duration::from_secs(10);

/// Content type of the exposition format that the metrics library writes.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Why an engine ends.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Its data directory.
    #[error(transparent)]
    Data(#[from] DataError),
    /// SPDK.
    #[cfg(feature = "spdk")]
    #[error(transparent)]
    Spdk(#[from] crate::spdk::SpdkError),
    /// Its certificates.
    #[error("TLS of the management service: {0}")]
    Tls(#[from] TlsError),
    /// An address it can't have.
    #[error("{service} can't listen at {address}: {source}; is another engine running there?")]
    Listen {
        /// "management" or "metrics".
        service: &'static str,
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: std::io::Error,
    },
    /// A target.
    #[error(transparent)]
    Target(Box<ThreadError>),
    /// What answers measurements.
    #[error("{0}; remove it from `probes`, or give it a port that is free")]
    Probe(#[from] ListenerError),
    /// A defect.
    #[error("the thread that prepares the targets panicked; nothing is served")]
    Prepare,
    /// The runtime.
    #[error("the management thread can't start: {0}")]
    Runtime(std::io::Error),
    /// The gRPC server.
    #[error("the management service failed: {0}")]
    Server(#[from] tonic::transport::Error),
    /// It didn't end in time.
    #[error("targets did not stop within {STOP_LIMIT:?}; the next start recovers from their logs")]
    StopLimit,
}

impl From<ThreadError> for EngineError {
    fn from(error: ThreadError) -> Self {
        Self::Target(Box::new(error))
    }
}

/// Runs an engine until it is asked to end (SIGTERM, SIGINT) or fails.
///
/// # Errors
/// Says why it can't start or had to end.
pub fn run(config: &Config) -> Result<(), EngineError> {
    let started = SystemTime::now();
    process::raise_files();
    let layout = DataDirectory {
        folder: config.data.clone(),
        system: config.system.clone(),
        rank: config.rank,
        targets: config.targets,
        size: config.target_size,
        devices: config.devices.clone(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(EngineError::Runtime)?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let mut signals = Signals::take().map_err(EngineError::Runtime)?;
        let tls = RotatingServer::load(config.tls.clone())?;
        // Probes are answered while targets are made and recover, and a port that is taken is found before data is touched.
        let metrics = listen("metrics", config.metrics_listen).await?;
        let management = listen("management", config.management_listen).await?;
        let page = Rc::new(MetricsSource::new(config, started));
        let (made, spdk, stop) = (layout.clone(), config.spdk.clone(), StopFlag::default());
        let is_stopped = stop.clone();
        let work = serve_during(metrics, &page, move || prepare(spdk.as_ref(), &made, &is_stopped));
        let folder = config.data.display();
        let say = |waited: Duration| {
            tracing::warn!("the targets in {folder} are still being prepared, {} s", waited.as_secs());
        };
        let work = wait_log::on_other_thread(NOTICE_INTERVAL, say, work);
        if unless_ended(signals.recv(), &stop, LEAVE_OFF_LIMIT, work).await?.is_none() {
            tracing::info!("engine has stopped before its targets were made");
            return Ok(());
        }
        let mut engine = Engine::start(config, &layout, &page)?;
        engine.run(management, tls, config, signals).await
    })
}

/// Starts SPDK where it is used, and makes the targets' files at first start.
fn prepare(spdk: Option<&SpdkConfig>, layout: &DataDirectory, stop: &StopFlag) -> Result<(), EngineError> {
    #[cfg(feature = "spdk")]
    spdk.map_or(Ok(()), crate::spdk::run)?;
    #[cfg(not(feature = "spdk"))]
    let _ = spdk;
    Ok(layout.prepare(&|| stop.is_set())?)
}

/// Waits until the targets are prepared, or the engine is asked to end; `None` then, once they are left off or `limit` is over.
async fn unless_ended<T>(
    asked: impl Future<Output = ()>,
    stop: &StopFlag,
    limit: Duration,
    work: impl Future<Output = Result<T, EngineError>>,
) -> Result<Option<T>, EngineError> {
    let mut work = pin!(work);
    tokio::select! {
        biased;
        () = asked => {}
        done = &mut work => return done.map(Some),
    }
    tracing::info!("engine is stopping before its targets are made");
    stop.set();
    match tokio::time::timeout(limit, work).await {
        Ok(Err(error)) if !matches!(error, EngineError::Data(DataError::Stopped)) => Err(error),
        Ok(_) => Ok(None),
        Err(_) => {
            tracing::warn!("a device keeps the targets' preparation waiting; it is broken off");
            Ok(None)
        }
    }
}

/// Answers probes and scrapes from now on, and does something meanwhile that may keep its thread waiting for devices.
async fn serve_during<T: Send + 'static>(
    listener: TcpListener,
    page: &Rc<MetricsSource>,
    work: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
) -> Result<T, EngineError> {
    let source = Rc::clone(page);
    tokio::task::spawn_local(serve_pages(listener, move |path| {
        let source = Rc::clone(&source);
        async move { source.answer(&path).await }
    }));
    let (answer, answered) = tokio::sync::oneshot::channel();
    // The waiting task lives as long as the process.
    let thread =
        std::thread::Builder::new().name("prepare".to_owned()).spawn(move || drop(answer.send(work())));
    thread.map_err(EngineError::Runtime)?;
    answered.await.unwrap_or_else(|_| Err(EngineError::Prepare))
}

async fn listen(service: &'static str, address: SocketAddr) -> Result<TcpListener, EngineError> {
    TcpListener::bind(address).await.map_err(|source| EngineError::Listen { service, address, source })
}

/// How a target is, for probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Health {
    Starting,
    Serving,
    Ended,
}

type Healths = Arc<Mutex<Vec<Health>>>;

struct Engine {
    /// End when the engine does.
    _probes: Vec<Listener>,
    targets: Vec<TargetThread>,
    events: mpsc::UnboundedReceiver<Event>,
    healths: Healths,
    methods: Methods,
}

impl Engine {
    fn start(config: &Config, layout: &DataDirectory, page: &MetricsSource) -> Result<Self, EngineError> {
        let (sender, events) = mpsc::unbounded_channel();
        let since = page.started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let count = usize::try_from(config.targets).unwrap_or(0);
        let mut targets = Vec::with_capacity(count);
        let auth_keys = libfabric::usable_keys(&config.provider, config.auth_keys.clone());
        let probes = probes(config)?;
        for (target, processor) in (0..config.targets).zip(thread::own_processors(config.targets)) {
            let settings = Settings {
                owner: layout.owner(target),
                path: layout.path(target),
                provider: config.provider.clone(),
                receive: config.receive,
                auth_keys: auth_keys.clone(),
                nic: config.device.clone(),
                mr_method: config.mr_method,
                protocol: config.protocol,
                addressing: config.addressing,
                listen: config.listen.clone(),
                probes: config.probes.clone(),
                // Checked with the configuration: ports end before 65536.
                port: config.fabric_port + u16::try_from(target).unwrap_or(0),
                engines: config.engines.clone(),
                membership: config.membership,
                keys: EngineKeys { system: config.system_key.clone(), engines: config.engine_key.clone() },
                data: config.data.clone(),
                started: since,
                store: StoreConfig {
                    scrub: config.scrub,
                    stall_limit: Some(config.stall_limit),
                    // Checked with the configuration; more than an address space holds means all there is.
                    index_bytes: usize::try_from(config.index_memory).unwrap_or(usize::MAX),
                    cache_bytes: usize::try_from(config.cache_memory / u64::from(config.targets.max(1)))
                        .unwrap_or(usize::MAX),
                    ..StoreConfig::default()
                },
                rebuild_floor: config.rebuild_floor,
                processor,
            };
            let sender = sender.clone();
            // The receiver is gone only when the process is ending.
            targets.push(TargetThread::start(settings, move |event| drop(sender.send(event)))?);
        }
        *page.remotes.borrow_mut() = targets.iter().map(|target| target.remote.clone()).collect();
        let (healths, methods) = (Arc::clone(&page.healths), Arc::clone(&page.methods));
        Ok(Self { _probes: probes, targets, events, healths, methods })
    }

    fn set_health(&self, target: u32, health: Health) {
        let mut healths = self.healths.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = usize::try_from(target).ok().and_then(|target| healths.get_mut(target)) {
            *entry = health;
        }
    }

    /// Says which targets don't serve yet: one that waits for a file of the data directory can't say so itself.
    fn say_who_starts(&self, config: &Config, waited: Duration) {
        let healths = self.healths.lock().unwrap_or_else(PoisonError::into_inner);
        let starting = (0..).zip(healths.iter()).filter(|(_, health)| **health == Health::Starting);
        let targets: Vec<String> = starting.map(|(target, _): (u32, _)| target.to_string()).collect();
        let (targets, folder, seconds) = (targets.join(", "), config.data.display(), waited.as_secs());
        tracing::warn!(
            targets,
            "targets still start, {seconds} s; they wait for their devices or for {folder}"
        );
    }

    async fn run(
        &mut self,
        listener: TcpListener,
        tls: RotatingServer,
        config: &Config,
        mut signals: Signals,
    ) -> Result<(), EngineError> {
        let (stop, mut stopped) = watch::channel(false);
        let first = self.targets.first().map(|target| target.remote.clone());
        let Some(first) = first else { return Err(EngineError::StopLimit) };
        let bridge = Bridge::new(first, Arc::clone(&self.methods));
        let server = Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_LIMIT))
            .add_service(SystemServer::new(bridge.clone()))
            .add_service(PoolsServer::new(bridge.clone()))
            .add_service(ContainersServer::new(bridge.clone()))
            .add_service(TenantsServer::new(bridge))
            .serve_with_incoming_shutdown(incoming(listener, tls), async move {
                // The sender lives as long as the engine runs.
                drop(stopped.wait_for(|stop| *stop).await);
            });
        let mut server = tokio::task::spawn_local(server);
        let mut serving = 0;
        let begin = tokio::time::Instant::now();
        let mut notices = tokio::time::interval_at(begin + NOTICE_INTERVAL, NOTICE_INTERVAL);
        let ended = loop {
            tokio::select! {
                () = signals.recv() => break Ok(()),
                _ = notices.tick(), if serving < self.targets.len() => self.say_who_starts(config, begin.elapsed()),
                ended = &mut server => break match ended {
                    Ok(Ok(())) | Err(_) => Ok(()),
                    Ok(Err(error)) => Err(EngineError::Server(error)),
                },
                event = self.events.recv() => match event {
                    Some(Event::Serving(target)) => {
                        self.set_health(target, Health::Serving);
                        serving += 1;
                        if serving == self.targets.len() {
                            tracing::info!(
                                version = VERSION, system = config.system, rank = %config.rank,
                                targets = serving, "engine is ready"
                            );
                        }
                    }
                    Some(Event::Ended(target, ended)) => {
                        self.set_health(target, Health::Ended);
                        break Err(ended.err().unwrap_or(ThreadError::Panicked { target }).into());
                    }
                    None => break Err(EngineError::StopLimit),
                },
            }
        };
        tracing::info!("engine is stopping");
        // No new requests; answers to those under way are still sent while targets stop.
        stop.send_replace(true);
        let stopped = tokio::time::timeout(STOP_LIMIT, self.stop_targets()).await;
        ended?;
        stopped.map_err(|_| EngineError::StopLimit)??;
        tracing::info!("engine has stopped");
        Ok(())
    }

    async fn stop_targets(&mut self) -> Result<(), EngineError> {
        for target in &self.targets {
            target.stop();
        }
        let mut outcome = Ok(());
        while self.targets.iter().any(|target| !target.is_finished()) {
            match tokio::time::timeout(Duration::from_millis(100), self.events.recv()).await {
                Ok(Some(Event::Ended(target, ended))) => {
                    self.set_health(target, Health::Ended);
                    if let Err(error) = ended {
                        tracing::error!(%error, "a target did not stop cleanly");
                        outcome = Err(error.into());
                    }
                }
                Ok(None) => break,
                _ => {}
            }
        }
        outcome
    }
}

/// Answers measurements by the providers that the configuration lists.
fn probes(config: &Config) -> Result<Vec<Listener>, ListenerError> {
    let started = config.probes.iter().map(|probe| {
        let auth_keys = libfabric::usable_keys(&probe.provider, config.auth_keys.clone());
        let listen = Options::listen(&probe.provider, &config.listen, probe.port);
        let options = Options { auth_keys, receive: config.receive, mr_method: config.mr_method, ..listen };
        let listener = Listener::start(options, config.system_key.clone())?;
        tracing::info!(provider = probe.provider, port = probe.port, "measurements are answered");
        Ok(listener)
    });
    started.collect()
}

/// What the metrics port answers from.
struct MetricsSource {
    /// The targets' threads; none before they are started.
    remotes: RefCell<Vec<Remote>>,
    healths: Healths,
    methods: Methods,
    rank: u32,
    provider: String,
    started: SystemTime,
}

impl MetricsSource {
    fn new(config: &Config, started: SystemTime) -> Self {
        Self::of(config.rank.0, &config.provider, config.targets, started)
    }

    fn of(rank: u32, provider: &str, targets: u32, started: SystemTime) -> Self {
        let count = usize::try_from(targets).unwrap_or(0);
        Self {
            remotes: RefCell::default(),
            healths: Arc::new(Mutex::new(vec![Health::Starting; count])),
            methods: Methods::default(),
            rank,
            provider: provider.to_owned(),
            started,
        }
    }

    async fn answer(&self, path: &str) -> Page {
        match path {
            "/metrics" => self.metrics().await,
            "/healthz" => self.probe(|health| health != Health::Ended, "a target's thread has ended"),
            "/readyz" => self.probe(|health| health == Health::Serving, "a target does not serve yet"),
            _ => Page::text(404, "there are /metrics, /healthz and /readyz\n"),
        }
    }

    fn healths(&self) -> Vec<Health> {
        self.healths.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn probe(&self, good: impl Fn(Health) -> bool, otherwise: &str) -> Page {
        if self.healths().into_iter().all(good) {
            return Page::text(200, "ok\n");
        }
        Page::text(503, format!("{otherwise}: {:?}\n", self.healths()))
    }

    async fn metrics(&self) -> Page {
        let asked: Vec<_> = self.remotes.borrow().iter().map(figures_of).collect();
        let mut targets = Vec::with_capacity(asked.len());
        for answer in asked {
            targets.push(tokio::time::timeout(FIGURES_LIMIT, answer).await.ok().flatten());
        }
        let figures = Figures {
            rank: self.rank,
            provider: self.provider.clone(),
            process: ProcessFigures::read(self.started),
            targets,
            methods: self.methods.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        };
        match render(figures) {
            Ok(body) => Page { status: 200, kind: METRICS_TYPE, body },
            Err(error) => Page::text(503, format!("metrics can't be written: {error}\n")),
        }
    }
}

/// Asks a target for its figures; the answer is `None` while it doesn't serve.
fn figures_of(remote: &Remote) -> impl Future<Output = Option<TargetFigures>> + use<> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let job = move |rt: &weir_runtime::Handle| {
        let Some(target) = thread::current() else { return };
        rt.spawn(async move {
            // A scraper that has gone away needs no answer.
            drop(sender.send(snapshot::take(&target).await));
        });
    };
    let asked = remote.spawn(Box::new(job));
    async move {
        asked.ok()?;
        receiver.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    /// Longer than an answer takes that comes at all.
    const UNANSWERED: Duration = Duration::from_secs(10);

    /// The status line of the answer to a GET request.
    fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(UNANSWERED))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: engine\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.lines().next().unwrap_or_default().to_owned())
    }

    #[test]
    fn probes_are_answered_while_targets_are_made() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let asked = tokio::task::LocalSet::new().block_on(&runtime, async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("it has one");
            let page = Rc::new(MetricsSource::of(0, "tcp", 2, SystemTime::now()));
            // Targets are made for as long as it takes to ask.
            let work = move || Ok(["/healthz", "/readyz", "/metrics"].map(|path| get(address, path)));
            serve_during(listener, &page, work).await
        });
        let answers = asked.expect("they are made").map(|answer| answer.expect("an answer"));
        assert_eq!(answers, ["HTTP/1.1 200 OK", "HTTP/1.1 503 Service Unavailable", "HTTP/1.1 200 OK"]);
    }

    #[test]
    fn targets_are_left_off_when_the_engine_is_to_end() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (left, is_left) = std::sync::mpsc::channel();
        let ended = tokio::task::LocalSet::new().block_on(&runtime, async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let page = Rc::new(MetricsSource::of(0, "tcp", 1, SystemTime::now()));
            let stop = StopFlag::default();
            let (is_stopped, (begun, has_begun)) = (stop.clone(), tokio::sync::oneshot::channel());
            // Targets are made until the stop flag is set.
            let work = serve_during(listener, &page, move || {
                begun.send(()).expect("the engine waits");
                while !is_stopped.is_set() {
                    std::thread::yield_now();
                }
                left.send(()).expect("the test waits");
                Err::<(), _>(DataError::Stopped.into())
            });
            unless_ended(async { drop(has_begun.await) }, &stop, UNANSWERED, work).await
        });
        assert!(matches!(ended, Ok(None)), "{ended:?}");
        is_left.try_recv().expect("it was waited for");
    }

    #[test]
    fn an_engine_that_is_to_end_does_not_wait_for_a_device_that_never_answers() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (answer, answered) = std::sync::mpsc::channel();
        let stop = StopFlag::default();
        let ended = tokio::task::LocalSet::new().block_on(&runtime, async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let page = Rc::new(MetricsSource::of(0, "tcp", 1, SystemTime::now()));
            let work = serve_during(listener, &page, move || Ok(answered.recv().is_ok()));
            let ended = unless_ended(core::future::ready(()), &stop, Duration::from_millis(1), work);
            tokio::time::timeout(UNANSWERED, ended).await
        });
        assert!(matches!(ended, Ok(Ok(None))) && stop.is_set(), "{ended:?}");
        // The thread ends with the test.
        let _ = answer.send(());
    }

    #[test]
    fn a_defect_in_making_targets_ends_the_engine() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let ended: Result<(), _> = tokio::task::LocalSet::new().block_on(&runtime, async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let page = Rc::new(MetricsSource::of(0, "tcp", 1, SystemTime::now()));
            serve_during(listener, &page, || panic!("as it is to be")).await
        });
        assert!(matches!(ended, Err(EngineError::Prepare)));
    }
}
