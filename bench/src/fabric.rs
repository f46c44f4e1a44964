//! The RPC layer beside the bare fabric: the same provider, the same two processes, the same run.
//!
//! The bare reference sends and reads through an endpoint without any RPC, the raw one is a loop over libfabric without
//! anything of Weir's; `fi_pingpong`, libfabric's own loop, is another one where the library's build has it. Client and
//! server have a core each, where there are two. The sides take turns of some milliseconds, each going first as often as the
//! other, and a ratio is the median of the ratios of neighbouring turns: what else the machine does meets both. Whoever's
//! turn it isn't is stopped: one that naps takes the core away a thousand times a second.

mod bare;
mod cores;
mod flood;
#[cfg(feature = "mercury")]
mod mercury;
mod raw;
pub mod requests;
mod threads;

pub use flood::flood;
pub use threads::talk;

use core::cell::Cell;
use core::time::Duration;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use weir_fabric::{Ability, Endpoint, FabricError, Options, open};
use weir_runtime::join_all;
use weir_runtime::real::Executor;

use crate::pairs::{self, Pairs};
use crate::pin::{self, Seats};
use crate::report::{BenchError, Report};

/// Bytes of a small request.
const SMALL: usize = 64;
/// Bytes of a bulk transfer: the MiB in "MiB/s" below.
pub const LARGE: usize = 1 << 20;
/// Requests in flight in the rate rows: as Mercury's published figures have it.
const IN_FLIGHT: usize = 16;
/// Transfers under way in the rows of several: a lone write counts as done when it is in the system's buffers, so that
/// bare ones overlap by themselves.
const TRANSFERS: usize = 4;
/// Transfers under way beside small requests: more than a server reads of one client at once.
const CROWD: usize = 16;
/// Time for one turn of one side: some dozen transfers on the slowest provider, and too short for the machine to become
/// another one between neighbours.
const SPAN: Duration = Duration::from_millis(20);
/// Time at the beginning of a turn that doesn't count: the server is woken, and caches are filled.
const WARM_UP: Duration = Duration::from_millis(5);
/// Turns of each side for each row.
const TURNS: usize = 21;
/// Longest wait for the server to start.
const START_SECONDS: u64 = 10;

/// What a server process serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Rpc,
    /// With authenticated messages.
    Sealed,
    Bare,
    /// libfabric, without anything of ours.
    Raw,
    /// Mercury, without anything of ours.
    #[cfg(feature = "mercury")]
    Mercury,
    /// The same, awake as long as there is work.
    #[cfg(feature = "mercury")]
    MercuryBusy,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Rpc => "rpc",
            Self::Sealed => "sealed",
            Self::Bare => "bare",
            Self::Raw => "raw",
            #[cfg(feature = "mercury")]
            Self::Mercury => "mercury",
            #[cfg(feature = "mercury")]
            Self::MercuryBusy => "mercury-busy",
        }
    }
}

/// What is repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// Small ones, one after another.
    Alone,
    /// Small ones, [`IN_FLIGHT`] at a time.
    Together,
    /// The same, without answers where there are sides that can do without.
    OneWay,
    /// A MiB of client memory to the server.
    Read,
    /// A MiB to client memory.
    Write,
    /// A small one, and then a MiB of client memory: what a request for the transfer takes, and its answer. A request is
    /// nothing else anyway.
    AskedRead,
    /// The same to client memory.
    AskedWrite,
    /// The same, [`TRANSFERS`] at a time.
    Reads,
    /// The same, [`TRANSFERS`] at a time.
    Writes,
    /// Small ones, one after another, while the server reads [`CROWD`] MiB of client memory.
    Beside,
}

/// One of those that are compared: a client with a server process of its own.
trait Side {
    /// Operations per second in this time.
    fn sample(&self, what: What, span: Duration) -> Result<f64, BenchError>;

    /// Its server, which is at rest between this side's turns.
    fn server(&self) -> &Server;

    /// The core that its client has.
    fn core(&self) -> usize {
        Seats::USUAL.client
    }

    /// Operations per second in one turn.
    fn turn(&self, what: What) -> Result<f64, BenchError> {
        pin::pin(self.core());
        self.server().wake()?;
        let rate = self.sample(what, WARM_UP).and_then(|_| self.sample(what, SPAN));
        let rested = self.server().rest();
        pin::pin(Seats::USUAL.client);
        rested.and(rate)
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
    // One that is stopped notices nothing else.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| failed("fabric server", &error))?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    #[cfg(feature = "mercury")]
    if mode.starts_with(Mode::Mercury.name()) {
        return mercury::serve(provider, mode == Mode::MercuryBusy.name());
    }
    if mode == Mode::Raw.name() {
        return raw::serve(provider);
    }
    let executor = Executor::new().map_err(|error| failed("executor", &error))?;
    let rt = executor.handle();
    let endpoint = open(&rt, &Options::listen(provider, "127.0.0.1", port))
        .map_err(|error| failed("fabric server", &error))?;
    touch(&*endpoint).map_err(|error| failed("fabric server", &error))?;
    let _kept: Box<dyn core::any::Any> = if mode == Mode::Bare.name() {
        bare::serve(&rt, &endpoint)?
    } else {
        Box::new(requests::serve(rt, endpoint, mode == Mode::Sealed.name()))
    };
    println!("ready");
    std::io::stdout().flush().map_err(|error| failed("fabric server", &error))?;
    executor.block_on(core::future::pending())
}

/// Writes to the memory that transfers are going to take from the endpoint's pool. What nobody has written to is a single
/// page of zeros for the kernel, which stays in the nearest cache, and copies of it are no transfers.
fn touch(endpoint: &dyn Endpoint) -> Result<(), FabricError> {
    let buffers: Result<Vec<_>, _> = (0..2 * TRANSFERS).map(|_| endpoint.buffers().alloc(LARGE)).collect();
    buffers?.iter_mut().for_each(|buffer| buffer.fill(7));
    Ok(())
}

/// A server process; killed when dropped.
struct Server(Child, u16);

impl Server {
    fn start(mode: Mode, provider: &str, seats: Seats) -> Result<Self, BenchError> {
        Self::start_named(mode, provider, seats).map(|(server, _)| server)
    }

    /// A server, and what it says of where it is.
    fn start_named(mode: Mode, provider: &str, seats: Seats) -> Result<(Self, String), BenchError> {
        let error = |error: std::io::Error| failed("fabric server", &error);
        let port = free_port()?;
        pin::pin(seats.server);
        let child = Command::new(std::env::current_exe().map_err(error)?)
            .args(["--serve-fabric", &format!("{}:{provider}:{port}", mode.name())])
            .stdout(Stdio::piped())
            .spawn();
        pin::pin(Seats::USUAL.client);
        let mut child = child.map_err(error)?;
        let output = child.stdout.take();
        let server = Self(child, port);
        let mut line = String::new();
        let began = Instant::now();
        if let Some(output) = output {
            BufReader::new(output).read_line(&mut line).map_err(error)?;
        }
        if let Some(address) = line.trim().strip_prefix("ready")
            && began.elapsed().as_secs() < START_SECONDS
        {
            return Ok((server, address.trim().to_owned()));
        }
        Err(BenchError::Deadline { what: format!("the {provider} server's start"), seconds: START_SECONDS })
    }

    /// Stops the process, until it is woken.
    fn rest(&self) -> Result<(), BenchError> {
        self.tell(Signal::STOP)
    }

    /// Lets one that was stopped go on.
    fn wake(&self) -> Result<(), BenchError> {
        self.tell(Signal::CONT)
    }

    fn tell(&self, signal: Signal) -> Result<(), BenchError> {
        let told = kill_process(Pid::from_child(&self.0), signal);
        told.map_err(|error| failed("the fabric server's process", &error))
    }

    /// Waits for one that was told to end.
    fn leave(&mut self) {
        let began = Instant::now();
        while began.elapsed().as_secs() < START_SECONDS && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Operations per second of something that is repeated for this time, `width` at a time.
async fn rate<F, Fut>(span: Duration, width: usize, operation: F) -> f64
where
    F: Fn(usize) -> Fut,
    Fut: Future<Output = ()>,
{
    let began = Instant::now();
    let done = Cell::new(0u32);
    let (operation, done) = (&operation, &done);
    let workers = (0..width).map(|worker| async move {
        while began.elapsed() < span {
            operation(worker).await;
            done.set(done.get() + 1);
        }
    });
    join_all(workers).await;
    f64::from(done.get()) / began.elapsed().as_secs_f64()
}

/// What two sides that take turns gave.
fn pairs(side: &dyn Side, reference: &dyn Side, what: What) -> Result<Pairs, BenchError> {
    let mut pairs = Pairs::default();
    take_turns(&mut pairs, (side, reference), what, TURNS)?;
    Ok(pairs)
}

/// Adds so many turns of two sides.
fn take_turns(
    pairs: &mut Pairs,
    (side, reference): (&dyn Side, &dyn Side),
    what: What,
    turns: usize,
) -> Result<(), BenchError> {
    for turn in 0..turns {
        let mut sides = [side, reference];
        sides.rotate_left(turn % 2);
        let mut rates = [sides[0].turn(what)?, sides[1].turn(what)?];
        rates.rotate_left(turn % 2);
        pairs.add(rates[0], rates[1]);
    }
    Ok(())
}

/// Whether a provider is libfabric's, not one of Mercury's: only of those something is aimed at.
fn is_native(provider: &str) -> bool {
    !provider.contains('/')
}

/// Round trips per second of libfabric's own ping-pong, where its build installed it and it knows the provider.
fn pingpong(provider: &str) -> Option<f64> {
    if !is_native(provider) {
        return None;
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    let builds = std::fs::read_dir(cache.join("weir")).ok()?;
    let program = builds
        .filter_map(|entry| Some(entry.ok()?.path().join("bin/fi_pingpong")))
        .find(|program| program.is_file())?;
    let arguments = ["-p", provider, "-e", "rdm", "-S", "64", "-I", "20000"];
    pin::pin(Seats::USUAL.server);
    let server = Command::new(&program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    pin::pin(Seats::USUAL.client);
    let mut server = server.ok()?;
    // It takes no word from us when it listens.
    std::thread::sleep(Duration::from_millis(300));
    let output = Command::new(&program).args(arguments).arg("127.0.0.1").output().ok();
    let _ = server.kill();
    let _ = server.wait();
    let text = String::from_utf8(output?.stdout).ok()?;
    let one_way: f64 = text.lines().last()?.split_whitespace().nth(6)?.parse().ok()?;
    Some(1e6 / (2.0 * one_way))
}

/// Measures small requests beside bare messages on one provider.
fn measure_small(report: &mut Report, provider: &str) -> Result<(), BenchError> {
    let bare = bare::Bare::start(provider, false)?;
    let plain = requests::Requests::start(provider, Mode::Rpc, Seats::USUAL)?;
    let sealed = requests::Requests::start(provider, Mode::Sealed, Seats::USUAL)?;
    let name = |what: &str| format!("fabric {provider}: {what}");
    let goal = |text: &'static str| is_native(provider).then_some(text);
    let alone = pairs(&plain, &bare, What::Alone)?;
    cores::measure(report, provider);
    alone.time(report, &name("RPC 64 B, round trip"), "bare endpoint", goal("<= 1.3"));
    if let Some(pingpong) = pingpong(provider) {
        let reference = ("fi_pingpong", 1e6 / pingpong);
        report.beside(&name("RPC 64 B, beside fi_pingpong"), 1e6 / alone.own(), "us", reference, None);
    }
    let together = pairs(&plain, &bare, What::Together)?;
    together.rate(report, &name("RPC 64 B, 16 in flight"), "op/s", "bare echoes", goal(">= 0.7"));
    if raw::has(provider) {
        beside_raw(report, provider, &plain)?;
    }
    if weir_fabric::libfabric::probe(provider).is_ok_and(|found| found.channels) {
        let queued =
            requests::Requests::start_without(provider, Mode::Rpc, Seats::USUAL, &[Ability::Channels])?;
        let alone = pairs(&queued, &bare, What::Alone)?;
        alone.time(report, &name("RPC 64 B, no channel, round trip"), "bare endpoint", None);
        let together = pairs(&queued, &bare, What::Together)?;
        together.rate(report, &name("RPC 64 B, no channel, 16 in flight"), "op/s", "bare echoes", None);
    }
    let alone = pairs(&sealed, &plain, What::Alone)?;
    alone.time(report, &name("authenticated 64 B, round trip"), "not authenticated", None);
    let together = pairs(&sealed, &plain, What::Together)?;
    together.rate(report, &name("authenticated 64 B, 16 in flight"), "op/s", "not authenticated", None);
    Ok(())
}

/// Measures small requests beside libfabric's messages.
fn beside_raw(report: &mut Report, provider: &str, plain: &requests::Requests) -> Result<(), BenchError> {
    let raw = raw::Raw::start(provider)?;
    let name = |what: &str| format!("fabric {provider}: RPC 64 B, {what}");
    let (alone, together) = (pairs(plain, &raw, What::Alone)?, pairs(plain, &raw, What::Together)?);
    alone.time(report, &name("round trip / raw"), "raw libfabric", Some("<= 1.3"));
    together.rate(report, &name("16 in flight / raw"), "op/s", "raw echoes", Some(">= 0.7"));
    let stream = pairs(plain, &raw, What::OneWay)?;
    stream.rate(report, &name("16 in flight / raw, one way"), "op/s", "raw messages", None);
    Ok(())
}

/// What a transfer is measured beside.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    /// Writes that were sent count as done.
    Sent,
    /// Only those that have arrived do.
    Arrived,
    /// libfabric alone, and writes that have arrived.
    Raw,
}

/// Rows of transfers: what, its name, what it is beside, and whether something is aimed at.
const BULK: [(What, &str, Beside, &str, bool); 12] = {
    use Beside::{Arrived, Raw, Sent};
    [
        (What::Read, "1 MiB client to server", Sent, "bare read", true),
        (What::Write, "1 MiB server to client", Arrived, "bare write that has arrived", true),
        (What::Write, "1 MiB server to client, sent", Sent, "bare write that was sent", false),
        (What::AskedRead, "1 MiB client to server, asked", Sent, "bare round trip and read", false),
        (What::AskedWrite, "1 MiB server to client, asked", Arrived, "bare round trip and write", false),
        (What::Reads, "1 MiB client to server, 4 in flight", Sent, "bare reads", true),
        (What::Writes, "1 MiB server to client, 4 in flight", Arrived, "bare writes that have arrived", true),
        (What::Writes, "1 MiB server to client, 4 in flight, sent", Sent, "bare writes that were sent", true),
        (What::Read, "1 MiB client to server / raw", Raw, "raw read", true),
        (What::Write, "1 MiB server to client / raw", Raw, "raw write that has arrived", true),
        (What::Reads, "1 MiB client to server, 4 in flight / raw", Raw, "raw reads", true),
        (
            What::Writes,
            "1 MiB server to client, 4 in flight / raw",
            Raw,
            "raw writes that have arrived",
            true,
        ),
    ]
};

/// Times that all sides are started anew for the rows of transfers. Where the system happens to put a process' memory
/// decides how much of it stays in the processor's cache, and by a third how fast it is copied.
const PLACEMENTS: usize = 7;

/// Turns of each side for each row with the memory that it has.
const TURNS_PLACED: usize = 5;

/// Measures transfers of a MiB beside bare reads and writes on one provider. A reply says that the data has arrived, so
/// that the writes beside it have to have arrived too before they count as done; those that need not are the second
/// reference. The bare client copies itself, the RPC client has its server do so: both on the same core, because cores are
/// not equally fast on machines that are shared.
fn measure_bulk(report: &mut Report, provider: &str) -> Result<(), BenchError> {
    let rows = BULK.into_iter().filter(|row| row.2 != Beside::Raw || raw::has(provider));
    let mut rows: Vec<_> = rows.map(|row| (row, Pairs::default())).collect();
    let mut registration = Vec::new();
    for _ in 0..PLACEMENTS {
        let plain = requests::Requests::start(provider, Mode::Rpc, Seats::CROSSED)?;
        let sent = bare::Bare::start(provider, false)?;
        let arrived = bare::Bare::start(provider, true)?;
        let raw = if raw::has(provider) { Some(raw::Raw::start(provider)?) } else { None };
        for ((what, _, beside, ..), pairs) in &mut rows {
            let reference: &dyn Side = match (&*beside, &raw) {
                (Beside::Sent, _) => &sent,
                (Beside::Raw, Some(raw)) => raw,
                (Beside::Arrived | Beside::Raw, _) => &arrived,
            };
            take_turns(pairs, (&plain, reference), *what, TURNS_PLACED)?;
        }
        registration.push(sent.registration()?);
    }
    let name = |what: &str| format!("fabric {provider}: {what}");
    for ((_, row, _, reference, aimed), pairs) in rows {
        let goal = (aimed && is_native(provider)).then_some(">= 0.95");
        pairs.rate(report, &name(row), "MiB/s", reference, goal);
    }
    let side = requests::Requests::start(provider, Mode::Rpc, Seats::USUAL)?;
    let mut beside = Pairs::default();
    for _ in 0..TURNS {
        beside.add(side.turn(What::Beside)?, side.turn(What::Alone)?);
    }
    beside.time(report, &name("RPC 64 B beside 16 MiB to the server"), "alone", None);
    let goal = is_native(provider).then_some("<= 2");
    report.figure(&name("1 MiB exposed and withdrawn"), pairs::median(registration), "us", goal);
    Ok(())
}

/// Measures RPC beside the bare fabric on these providers. `only` names the parts to be measured; all of them when it is
/// empty.
pub fn measure(report: &mut Report, providers: &[String], only: &[String]) -> Result<(), BenchError> {
    let wanted = |part: &str| only.is_empty() || only.iter().any(|name| name == part);
    pin::pin(Seats::USUAL.client);
    let result = providers.iter().try_for_each(|provider| {
        if wanted("small") {
            measure_small(report, provider)?;
        }
        if wanted("bulk") {
            measure_bulk(report, provider)?;
        }
        #[cfg(feature = "mercury")]
        if wanted("mercury") {
            mercury::measure(report, provider)?;
        }
        if wanted("flood") {
            flood::measure(report, provider)?;
        }
        if wanted("threads") {
            // Threads and their processes choose their cores themselves.
            pin::release();
            threads::measure(report, provider)?;
            pin::pin(Seats::USUAL.client);
        }
        Ok(())
    });
    pin::release();
    result
}
