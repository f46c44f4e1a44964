//! The RPC layer beside the bare fabric: the same provider, the same two processes, the same run.
//!
//! The bare reference sends and reads through an endpoint without any RPC; `fi_pingpong`, libfabric's own loop, is a
//! second reference where the library's build has it.

use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::{Rc, Weak};
use std::time::Instant;

use weir_fabric::libfabric::{Options, open};
use weir_fabric::{
    Access, Address, Endpoint, Exposure, FabricError, Message, PeerId, RemoteRegion, Sink, Source,
};
use weir_proto::capability::SystemKey;
use weir_rpc::{Bulk, CallOptions, Keys, Peer, Request, Rpc, RpcConfig};
use weir_runtime::real::Executor;
use weir_runtime::sync::Notify;
use weir_runtime::{Handle, join_all};

use crate::report::{BenchError, Report};

/// Operation that answers with nothing.
const EMPTY: u16 = 0x7f01;
/// Operation that pulls all client memory.
const PULL: u16 = 0x7f02;
/// Operation that pushes to all client memory.
const PUSH: u16 = 0x7f03;

/// Bytes of a small request.
const SMALL: usize = 64;
/// Bytes of a bulk transfer: the MiB in "MiB/s" below.
const LARGE: usize = 1 << 20;
/// Requests in flight in the rate rows: as Mercury's published figures have it.
const IN_FLIGHT: usize = 16;
/// Transfers under way in the rows of several: a lone write counts as done when it is in the system's buffers, so that
/// bare ones overlap by themselves.
const TRANSFERS: usize = 4;
/// Time for each measurement.
const SPAN: Duration = Duration::from_millis(1500);
/// Longest wait for the server to start.
const START_SECONDS: u64 = 10;

/// What a server process serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Rpc,
    /// With authenticated messages.
    Sealed,
    Bare,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Rpc => "rpc",
            Self::Sealed => "sealed",
            Self::Bare => "bare",
        }
    }
}

/// What went wrong with a part of a measurement.
pub(crate) fn failed(command: &str, output: &dyn core::fmt::Display) -> BenchError {
    BenchError::Command { command: command.to_owned(), output: output.to_string() }
}

/// A port that nobody uses at the moment.
pub(crate) fn free_port() -> Result<u16, BenchError> {
    let wrong = |error: std::io::Error| failed("a free port", &error);
    let socket = std::net::TcpListener::bind("127.0.0.1:0").map_err(wrong)?;
    Ok(socket.local_addr().map_err(wrong)?.port())
}

/// Runs as the server: `arguments` is `mode:provider:port`. Ends when it is killed.
pub fn serve(arguments: &str) -> Result<(), BenchError> {
    let wrong = || failed("fabric server", &format!("{arguments} is not mode:provider:port"));
    let mut parts = arguments.split(':');
    let (Some(mode), Some(provider), Some(port)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(wrong());
    };
    let port: u16 = port.parse().map_err(|_| wrong())?;
    let executor = Executor::new().map_err(|error| failed("executor", &error))?;
    let rt = executor.handle();
    let endpoint = open(&rt, &Options::listen(provider, "127.0.0.1", port))
        .map_err(|error| failed("fabric server", &error))?;
    let _kept: Box<dyn core::any::Any> = if mode == Mode::Bare.name() {
        Box::new(serve_bare(&endpoint)?)
    } else {
        Box::new(serve_rpc(rt, endpoint, mode == Mode::Sealed.name()))
    };
    println!("ready");
    std::io::stdout().flush().map_err(|error| failed("fabric server", &error))?;
    executor.block_on(core::future::pending())
}

/// Settings of either side.
fn settings(sealed: bool) -> RpcConfig {
    RpcConfig { keys: sealed.then_some(Keys::System(SystemKey([7; 32]))), ..RpcConfig::default() }
}

fn serve_rpc(rt: Handle, endpoint: Rc<dyn Endpoint>, sealed: bool) -> Rc<Rpc> {
    let rpc = Rpc::new(rt, endpoint, settings(sealed));
    rpc.serve(EMPTY, Rc::new(|_: Request| async { Ok(Vec::new()) }));
    rpc.serve(
        PULL,
        Rc::new(|request: Request| async move {
            let len = usize::try_from(request.bulk_len()).unwrap_or(0);
            let mut buffer = request.alloc(len)?;
            request.pull(0, &mut buffer, len).await?;
            Ok(Vec::new())
        }),
    );
    rpc.serve(
        PUSH,
        Rc::new(|request: Request| async move {
            let len = usize::try_from(request.bulk_room()).unwrap_or(0);
            let buffer = request.alloc(len)?;
            request.push(0, &buffer, len).await?;
            Ok(Vec::new())
        }),
    );
    rpc
}

/// Sends each message back. A message of an unknown sender is its address; the answer is the exposed region.
struct Echo {
    endpoint: Weak<dyn Endpoint>,
    regions: [RemoteRegion; 2],
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

fn serve_bare(endpoint: &Rc<dyn Endpoint>) -> Result<(Rc<Echo>, Rc<dyn Endpoint>), BenchError> {
    let bare = |error: FabricError| failed("bare endpoint", &error);
    let mut exposures = Vec::new();
    for access in [Access::Read, Access::Write] {
        let buffer = endpoint.buffers().alloc(LARGE).map_err(bare)?;
        exposures.push(endpoint.expose(&buffer, 0..LARGE, access).map_err(bare)?);
    }
    let regions = [exposures[0].region(), exposures[1].region()];
    let echo = Rc::new(Echo { endpoint: Rc::downgrade(endpoint), regions, _exposures: exposures });
    let weak = Rc::downgrade(&echo);
    endpoint.set_sink(weak);
    Ok((echo, Rc::clone(endpoint)))
}

/// A server process; killed when dropped.
struct Server(Child, u16);

impl Server {
    fn start(mode: Mode, provider: &str) -> Result<Self, BenchError> {
        let error = |error: std::io::Error| failed("fabric server", &error);
        let port = free_port()?;
        let mut child = Command::new(std::env::current_exe().map_err(error)?)
            .args(["--serve-fabric", &format!("{}:{provider}:{port}", mode.name())])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(error)?;
        let output = child.stdout.take();
        let server = Self(child, port);
        let mut line = String::new();
        let began = Instant::now();
        if let Some(output) = output {
            BufReader::new(output).read_line(&mut line).map_err(error)?;
        }
        if line.trim() == "ready" && began.elapsed().as_secs() < START_SECONDS {
            return Ok(server);
        }
        Err(BenchError::Deadline { what: format!("the {provider} server's start"), seconds: START_SECONDS })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Operations per second of something that is repeated for the span, `width` at a time.
async fn rate<F, Fut>(width: usize, operation: F) -> f64
where
    F: Fn() -> Fut,
    Fut: Future<Output = ()>,
{
    let began = Instant::now();
    let done = Cell::new(0u32);
    let workers = (0..width).map(|_| async {
        while began.elapsed() < SPAN {
            operation().await;
            done.set(done.get() + 1);
        }
    });
    join_all(workers).await;
    f64::from(done.get()) / began.elapsed().as_secs_f64()
}

/// Requests per second with many in flight, each made by a task of its own.
async fn rate_of_tasks(rt: &Handle, rpc: &Rc<Rpc>, to: &Peer) -> f64 {
    let began = Instant::now();
    let done = Rc::new(Cell::new(0u32));
    let tasks: Vec<_> = (0..IN_FLIGHT)
        .map(|_| {
            let (inner, rpc, to, done) = (rt.clone(), Rc::clone(rpc), to.clone(), Rc::clone(&done));
            rt.spawn(async move {
                while began.elapsed() < SPAN {
                    let options = CallOptions::within(&inner, Duration::from_secs(10));
                    if rpc.call(&to, EMPTY, &[7; SMALL], None, options).await.is_ok() {
                        done.set(done.get() + 1);
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        // A task that was aborted has counted what it did.
        let _ = task.await;
    }
    f64::from(done.get()) / began.elapsed().as_secs_f64()
}

/// Figures of one provider: operations per second.
struct Figures {
    one: f64,
    many: f64,
    read: f64,
    write: f64,
    /// The same with [`TRANSFERS`] under way.
    reads: f64,
    writes: f64,
}

fn measure_rpc(provider: &str, mode: Mode) -> Result<Figures, BenchError> {
    let server = Server::start(mode, provider)?;
    let executor = Executor::new().map_err(|error| failed("executor", &error))?;
    let rt = executor.handle();
    let endpoint = open(&rt, &Options::near(provider, "127.0.0.1", server.1))
        .map_err(|error| failed("endpoint", &error))?;
    let rpc = Rpc::new(rt.clone(), endpoint, settings(mode == Mode::Sealed));
    let to = Peer::new("127.0.0.1", server.1);
    let trouble = RefCell::new(None);
    let call = |opcode: u16, large: bool, write: bool| {
        let (rpc, to, rt, trouble) = (&rpc, &to, &rt, &trouble);
        async move {
            let options = CallOptions::within(rt, Duration::from_secs(10));
            let mut buffer = if large { rpc.alloc(LARGE).ok() } else { None };
            let bulk =
                buffer.as_mut().map(|buffer| if write { Bulk::write(buffer) } else { Bulk::read(buffer) });
            if let Err(error) = rpc.call(to, opcode, &[7; SMALL], bulk, options).await {
                trouble.borrow_mut().get_or_insert(error);
            }
        }
    };
    let figures = executor.block_on(async {
        call(EMPTY, false, false).await;
        Figures {
            one: rate(1, || call(EMPTY, false, false)).await,
            many: rate_of_tasks(&rt, &rpc, &to).await,
            read: rate(1, || call(PULL, true, false)).await,
            write: rate(1, || call(PUSH, true, true)).await,
            reads: rate(TRANSFERS, || call(PULL, true, false)).await,
            writes: rate(TRANSFERS, || call(PUSH, true, true)).await,
        }
    });
    let trouble = trouble.borrow_mut().take();
    trouble.map_or(Ok(figures), |error| Err(failed("RPC", &error)))
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

fn measure_bare(provider: &str) -> Result<Figures, BenchError> {
    let bare = |error: FabricError| failed("bare endpoint", &error);
    let server = Server::start(Mode::Bare, provider)?;
    let executor = Executor::new().map_err(|error| failed("executor", &error))?;
    let rt = executor.handle();
    let endpoint = open(&rt, &Options::near(provider, "127.0.0.1", server.1)).map_err(bare)?;
    let mirror = Rc::new(Mirror::default());
    let weak = Rc::downgrade(&mirror);
    endpoint.set_sink(weak);
    executor.block_on(async {
        let address = endpoint.resolve("127.0.0.1", server.1).await.map_err(bare)?;
        let to = endpoint.insert(&address).map_err(bare)?;
        endpoint.send(to, 0, &[endpoint.address().as_bytes()]).map_err(bare)?;
        let wait = Duration::from_secs(START_SECONDS);
        rt.timeout(wait, mirror.notify.notified()).await.map_err(|_| BenchError::Deadline {
            what: "the bare server's answer".to_owned(),
            seconds: START_SECONDS,
        })?;
        let words: Vec<u64> = mirror
            .last
            .borrow()
            .chunks_exact(8)
            .filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)))
            .collect();
        let region = |at: usize| RemoteRegion { addr: words[at], key: words[at + 1], len: words[at + 2] };
        let ping = || async {
            drop(endpoint.send(to, 0, &[&[7; SMALL]]));
            mirror.notify.notified().await;
        };
        let buffer = RefCell::new(endpoint.buffers().alloc(LARGE).map_err(bare)?);
        Ok(Figures {
            one: rate(1, ping).await,
            many: rate_bare(&endpoint, to, &mirror).await,
            read: rate(1, || {
                let transfer = endpoint.read(to, &mut buffer.borrow_mut(), 0..LARGE, region(0));
                async { drop(transfer.await) }
            })
            .await,
            write: rate(1, || {
                let transfer = endpoint.write(to, &buffer.borrow(), 0..LARGE, region(3));
                async { drop(transfer.await) }
            })
            .await,
            reads: rate(TRANSFERS, || async {
                if let Ok(mut buffer) = endpoint.buffers().alloc(LARGE) {
                    drop(endpoint.read(to, &mut buffer, 0..LARGE, region(0)).await);
                }
            })
            .await,
            writes: rate(TRANSFERS, || async {
                if let Ok(buffer) = endpoint.buffers().alloc(LARGE) {
                    drop(endpoint.write(to, &buffer, 0..LARGE, region(3)).await);
                }
            })
            .await,
        })
    })
}

/// Echoes per second with a window of messages in flight.
async fn rate_bare(endpoint: &Rc<dyn Endpoint>, to: PeerId, mirror: &Rc<Mirror>) -> f64 {
    let first = mirror.arrived.get();
    let mut sent = first;
    let began = Instant::now();
    while began.elapsed() < SPAN {
        while sent - mirror.arrived.get() < IN_FLIGHT as u64 {
            drop(endpoint.send(to, 0, &[&[7; SMALL]]));
            sent += 1;
        }
        mirror.notify.notified().await;
    }
    let seconds = began.elapsed().as_secs_f64();
    // The last few that are still under way don't count.
    u32::try_from(mirror.arrived.get() - first).map_or(f64::NAN, f64::from) / seconds
}

/// Round trips per second of libfabric's own ping-pong, where its build installed it.
fn pingpong(provider: &str) -> Option<f64> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    let builds = std::fs::read_dir(cache.join("weir")).ok()?;
    let program = builds
        .filter_map(|entry| Some(entry.ok()?.path().join("bin/fi_pingpong")))
        .find(|program| program.is_file())?;
    let arguments = ["-p", provider, "-e", "rdm", "-S", "64", "-I", "20000"];
    let mut server =
        Command::new(&program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    // It takes no word from us when it listens.
    std::thread::sleep(Duration::from_millis(300));
    let output = Command::new(&program).args(arguments).arg("127.0.0.1").output().ok();
    let _ = server.kill();
    let _ = server.wait();
    let text = String::from_utf8(output?.stdout).ok()?;
    let one_way: f64 = text.lines().last()?.split_whitespace().nth(6)?.parse().ok()?;
    Some(1e6 / (2.0 * one_way))
}

/// Measures RPC beside the bare fabric on every provider that needs no special hardware.
pub fn measure(report: &mut Report) -> Result<(), BenchError> {
    for provider in ["tcp", "shm"] {
        let bare = measure_bare(provider)?;
        let rpc = measure_rpc(provider, Mode::Rpc)?;
        let sealed = measure_rpc(provider, Mode::Sealed)?;
        let name = |what: &str| format!("fabric {provider}: {what}");
        let round_trip = (1e6 / rpc.one, ("bare endpoint", 1e6 / bare.one));
        report.beside(&name("RPC 64 B, round trip"), round_trip.0, "us", round_trip.1, Some("<= 1.3"));
        if let Some(pingpong) = pingpong(provider) {
            let reference = ("fi_pingpong", 1e6 / pingpong);
            report.beside(&name("RPC 64 B, beside fi_pingpong"), 1e6 / rpc.one, "us", reference, None);
        }
        let many = name("RPC 64 B, 16 in flight");
        report.beside(&many, rpc.many, "op/s", ("bare echoes", bare.many), Some(">= 0.7"));
        let plain = (1e6 / rpc.one, rpc.many);
        report.beside(
            &name("authenticated 64 B, round trip"),
            1e6 / sealed.one,
            "us",
            ("not authenticated", plain.0),
            None,
        );
        report.beside(
            &name("authenticated 64 B, 16 in flight"),
            sealed.many,
            "op/s",
            ("not authenticated", plain.1),
            None,
        );
        // Each operation moves one MiB; a bare one has no request and reply around it.
        report.beside(
            &name("1 MiB client to server"),
            rpc.read,
            "MiB/s",
            ("bare read", bare.read),
            Some(">= 0.95"),
        );
        report.beside(&name("1 MiB server to client"), rpc.write, "MiB/s", ("bare write", bare.write), None);
        report.beside(
            &name("1 MiB client to server, 4 in flight"),
            rpc.reads,
            "MiB/s",
            ("bare reads", bare.reads),
            Some(">= 0.95"),
        );
        report.beside(
            &name("1 MiB server to client, 4 in flight"),
            rpc.writes,
            "MiB/s",
            ("bare writes", bare.writes),
            Some(">= 0.95"),
        );
    }
    Ok(())
}
