//! The bare side: messages, reads and writes through an endpoint without any RPC around them.

use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::rc::{Rc, Weak};
use std::time::Instant;

use weir_fabric::{
    Ability, Access, Address, Endpoint, Exposure, FabricError, Message, PeerId, RemoteRegion, Sink, Source,
};
use weir_fabric::{Options, open};
use weir_runtime::Handle;
use weir_runtime::real::Executor;
use weir_runtime::sync::Notify;

use super::{
    IN_FLIGHT, LARGE, Mode, SMALL, SPAN, START_SECONDS, Server, Side, TRANSFERS, What, failed, rate, touch,
};
use crate::pin::Seats;
use crate::report::BenchError;

fn trouble(error: &FabricError) -> BenchError {
    failed("bare endpoint", error)
}

/// Sends each message back. A message of an unknown sender is its address; the answer is the exposed regions: as many to
/// read as to write, one for each transfer under way, as RPC has them.
struct Echo {
    endpoint: Weak<dyn Endpoint>,
    regions: Vec<RemoteRegion>,
    _exposures: Vec<Exposure>,
}

impl Sink for Echo {
    fn message(&self, message: Message) {
        let Some(endpoint) = self.endpoint.upgrade() else { return };
        match message.source() {
            Source::Peer(peer) => drop(endpoint.send(*peer, 0, &[&message])),
            Source::Address(_) | Source::Unknown => {
                let Some(address) = Address::from_bytes(&message) else { return };
                let Ok(peer) = endpoint.insert(&address) else { return };
                let words = self.regions.iter().flat_map(|region| [region.addr, region.key, region.len]);
                let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
                drop(endpoint.send(peer, 0, &[&bytes]));
            }
        }
    }

    fn send_failed(&self, _peer: PeerId, _context: u64, _error: FabricError) {}
}

/// What a server process of this side keeps. It stays awake while its memory is read, as an RPC server does: the next message
/// would wake it for longer than that took.
pub(super) fn serve(rt: &Handle, endpoint: &Rc<dyn Endpoint>) -> Result<Box<dyn core::any::Any>, BenchError> {
    let mut exposures = Vec::new();
    for access in [Access::Read, Access::Write] {
        for _ in 0..TRANSFERS {
            let buffer = endpoint.buffers().alloc(LARGE).map_err(|error| trouble(&error))?;
            let exposure = endpoint.expose(&buffer, 0..LARGE, access).map_err(|error| trouble(&error))?;
            exposures.push(exposure);
        }
    }
    let regions = exposures.iter().map(Exposure::region).collect();
    let echo = Rc::new(Echo { endpoint: Rc::downgrade(endpoint), regions, _exposures: exposures });
    let weak = Rc::downgrade(&echo);
    endpoint.set_sink(weak);
    Ok(Box::new((echo, Rc::clone(endpoint), rt.attend())))
}

/// Takes what the echo server sends back.
#[derive(Default)]
struct Mirror {
    arrived: Cell<u64>,
    last: RefCell<Vec<u8>>,
    notify: Notify,
}

impl Sink for Mirror {
    fn message(&self, message: Message) {
        self.arrived.set(self.arrived.get() + 1);
        if self.arrived.get() == 1 {
            self.last.replace(message.to_vec());
        }
        self.notify.notify_one();
    }

    fn send_failed(&self, _peer: PeerId, _context: u64, _error: FabricError) {}
}

/// A client of the echo server.
pub(super) struct Bare {
    executor: Executor,
    endpoint: Rc<dyn Endpoint>,
    mirror: Rc<Mirror>,
    to: PeerId,
    /// First those to read, then those to write.
    regions: Vec<RemoteRegion>,
    server: Server,
}

impl Bare {
    /// `delivery`: a write counts as done only when it has arrived.
    pub(super) fn start(provider: &str, delivery: bool) -> Result<Self, BenchError> {
        let server = Server::start(Mode::Bare, provider, Seats::USUAL)?;
        let executor = Executor::new().map_err(|error| failed("executor", &error))?;
        let rt = executor.handle();
        // The provider's own messages, whatever else there is.
        let mut without = vec![Ability::Channels];
        without.extend((!delivery).then_some(Ability::Delivery));
        let options = Options { without, ..Options::near(provider, "127.0.0.1", server.1) };
        let endpoint = open(&rt, &options).map_err(|error| trouble(&error))?;
        touch(&*endpoint).map_err(|error| trouble(&error))?;
        let mirror = Rc::new(Mirror::default());
        let weak = Rc::downgrade(&mirror);
        endpoint.set_sink(weak);
        let to = executor.block_on(async {
            let found = endpoint.resolve("127.0.0.1", server.1).await.map_err(|error| trouble(&error))?;
            let to = endpoint.insert(&found.address).map_err(|error| trouble(&error))?;
            let own = endpoint.address();
            endpoint.send(to, 0, &[own.as_bytes()]).map_err(|error| trouble(&error))?;
            let wait = Duration::from_secs(START_SECONDS);
            rt.timeout(wait, mirror.notify.notified()).await.map_err(|_| BenchError::Deadline {
                what: "the bare server's answer".to_owned(),
                seconds: START_SECONDS,
            })?;
            Ok(to)
        })?;
        let words: Vec<u64> = mirror
            .last
            .borrow()
            .chunks_exact(8)
            .filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)))
            .collect();
        let region = |words: &[u64]| RemoteRegion { addr: words[0], key: words[1], len: words[2] };
        let regions: Vec<RemoteRegion> = words.chunks_exact(3).map(region).collect();
        if regions.len() == 2 * TRANSFERS {
            return Ok(Self { executor, endpoint, mirror, to, regions, server });
        }
        Err(failed("bare server", &"its answer names no regions"))
    }

    /// Microseconds to expose a MiB to peers and withdraw it again.
    pub(super) fn registration(&self) -> Result<f64, BenchError> {
        let buffer = self.endpoint.buffers().alloc(LARGE).map_err(|error| trouble(&error))?;
        let began = Instant::now();
        let mut done = 0u32;
        while began.elapsed() < SPAN {
            drop(self.endpoint.expose(&buffer, 0..LARGE, Access::Read).map_err(|error| trouble(&error))?);
            done += 1;
        }
        Ok(began.elapsed().as_secs_f64() * 1e6 / f64::from(done))
    }

    async fn ping(&self) {
        drop(self.endpoint.send(self.to, 0, &[&[7; SMALL]]));
        self.mirror.notify.notified().await;
    }

    /// Echoes per second with a window of messages in flight.
    async fn echoes(&self, span: Duration) -> f64 {
        let mirror = &self.mirror;
        let first = mirror.arrived.get();
        let mut sent = first;
        let began = Instant::now();
        while began.elapsed() < span {
            while sent - mirror.arrived.get() < IN_FLIGHT as u64 {
                drop(self.endpoint.send(self.to, 0, &[&[7; SMALL]]));
                sent += 1;
            }
            mirror.notify.notified().await;
        }
        let seconds = began.elapsed().as_secs_f64();
        let done = mirror.arrived.get() - first;
        // The last few don't count, but must not count the next time either.
        while mirror.arrived.get() < sent {
            mirror.notify.notified().await;
        }
        u32::try_from(done).map_or(f64::NAN, f64::from) / seconds
    }

    async fn read(&self, worker: usize) {
        if let Ok(mut buffer) = self.endpoint.buffers().alloc(LARGE) {
            drop(self.endpoint.read(self.to, &mut buffer, 0..LARGE, self.regions[worker]).await);
        }
    }

    async fn write(&self, worker: usize) {
        if let Ok(buffer) = self.endpoint.buffers().alloc(LARGE) {
            let region = self.regions[TRANSFERS + worker];
            drop(self.endpoint.write(self.to, &buffer, 0..LARGE, region).await);
        }
    }
}

impl Side for Bare {
    fn server(&self) -> &Server {
        &self.server
    }

    fn sample(&self, what: What, span: Duration) -> Result<f64, BenchError> {
        Ok(self.executor.block_on(async {
            match what {
                What::Alone | What::Beside => rate(span, 1, |_| self.ping()).await,
                What::Together | What::OneWay => self.echoes(span).await,
                What::Read => rate(span, 1, |worker| self.read(worker)).await,
                What::Write => rate(span, 1, |worker| self.write(worker)).await,
                What::AskedRead => {
                    rate(span, 1, |worker| async move {
                        self.ping().await;
                        self.read(worker).await;
                    })
                    .await
                }
                What::AskedWrite => {
                    rate(span, 1, |worker| async move {
                        self.ping().await;
                        self.write(worker).await;
                    })
                    .await
                }
                What::Reads => rate(span, TRANSFERS, |worker| self.read(worker)).await,
                What::Writes => rate(span, TRANSFERS, |worker| self.write(worker)).await,
            }
        }))
    }
}
