//! The experiments for real: one server thread (figure 5), or one server process of several (figure 4), client processes on
//! loopback, requests over the whole RPC layer.

use core::cell::Cell;
use core::time::Duration;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use weir_fabric::{Ability, Options, ReceiveMode, open};
use weir_rpc::{CallOptions, Peer, Request, Rpc, RpcConfig};
use weir_runtime::join_all;
use weir_runtime::real::Executor;

use super::{Receive, publish};
use crate::drawing::Series;
use crate::fabric::{failed, free_port};
use crate::report::{BenchError, Report};

/// Operation that answers with nothing.
const EMPTY: u16 = 0x7f11;
/// Operation that answers with the server's counters.
const COUNTERS: u16 = 0x7f12;

/// Client processes. Beyond some dozens a small machine measures its scheduler.
const CLIENTS: [u32; 5] = [1, 2, 4, 8, 16];
/// Threads of the server process of figure 4: as many as a small machine has cores, and twice as many.
const THREADS: [usize; 2] = [2, 4];
/// Client processes that ask those.
const CLIENTS_OF_MANY: [u32; 3] = [4, 8, 16];
/// Requests that a client has under way.
const IN_FLIGHT: usize = 16;
/// Bytes of a request.
const SMALL: usize = 64;
/// Time for each measurement.
const SPAN: Duration = Duration::from_millis(1500);

/// Splits `mode:provider:port,port,...`: each server thread has a port.
fn parts(arguments: &str) -> Result<(&str, &str, Vec<u16>), BenchError> {
    let wrong = || failed("receive process", &format!("{arguments} is not mode:provider:port,..."));
    let mut fields = arguments.split(':');
    let (Some(mode), Some(provider), Some(ports)) = (fields.next(), fields.next(), fields.next()) else {
        return Err(wrong());
    };
    let ports = ports.split(',').map(|port| port.parse().map_err(|_| wrong()));
    Ok((mode, provider, ports.collect::<Result<_, _>>()?))
}

fn say(line: &str) -> Result<(), BenchError> {
    println!("{line}");
    std::io::stdout().flush().map_err(|error| failed("receive process", &error))
}

/// Runs as the server: `arguments` is `mode:provider:port,...`. Ends when it is killed.
pub fn serve(arguments: &str) -> Result<(), BenchError> {
    let (mode, provider, ports) = parts(arguments)?;
    let (ready, served) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for port in &ports {
            let ready = ready.clone();
            scope.spawn(move || {
                if let Err(error) = serve_at(mode, provider, *port, &ready) {
                    // Nobody is told any more once another thread has failed.
                    let _ = ready.send(Err(error));
                }
            });
        }
        for _ in &ports {
            served.recv().map_err(|error| failed("receive server", &error))??;
        }
        say("ready")
    })
}

/// One thread of the server, with an endpoint of its own.
fn serve_at(
    mode: &str,
    provider: &str,
    port: u16,
    ready: &Sender<Result<(), BenchError>>,
) -> Result<(), BenchError> {
    let executor = Executor::new().map_err(|error| failed("executor", &error))?;
    let rt = executor.handle();
    let standard = mode == Receive::Standard.name();
    let receive = if standard { ReceiveMode::standard() } else { ReceiveMode::default() };
    // What is compared is how the provider's messages are received.
    let without = vec![Ability::Channels];
    let options = Options { receive, without, ..Options::listen(provider, "127.0.0.1", port) };
    let endpoint = open(&rt, &options).map_err(|error| failed("receive server", &error))?;
    let rpc = Rpc::new(rt, Rc::clone(&endpoint), RpcConfig::default());
    rpc.serve(EMPTY, Rc::new(|_: Request| async { Ok(Vec::new()) }));
    rpc.serve(
        COUNTERS,
        Rc::new(move |_: Request| {
            let counters = endpoint.counters();
            let words =
                [counters.messages_received.get(), counters.slab_posts.get(), counters.slab_copies.get()];
            async move { Ok(words.into_iter().flat_map(u64::to_le_bytes).collect()) }
        }),
    );
    ready.send(Ok(())).map_err(|error| failed("receive server", &error))?;
    executor.block_on(core::future::pending())
}

/// Runs as a client: `arguments` is `mode:provider:port,...`. Says "ready", waits for a line, and then says how many
/// requests it had answered within the span. It asks the server's threads by turns.
pub fn client(arguments: &str) -> Result<(), BenchError> {
    let (_, provider, ports) = parts(arguments)?;
    let executor = Executor::new().map_err(|error| failed("executor", &error))?;
    let rt = executor.handle();
    let near = ports.first().copied().unwrap_or_default();
    let endpoint = open(&rt, &Options::near(provider, "127.0.0.1", near))
        .map_err(|error| failed("receive client", &error))?;
    let rpc = Rpc::new(rt.clone(), endpoint, RpcConfig::default());
    let peers: Vec<Peer> = ports.iter().map(|port| Peer::new("127.0.0.1", *port)).collect();
    let turn = Cell::new(0);
    let ask = || {
        let to = &peers[turn.replace((turn.get() + 1) % peers.len())];
        rpc.call(to, EMPTY, &[7; SMALL], None, CallOptions::within(&rt, Duration::from_secs(30)))
    };
    for _ in &peers {
        executor.block_on(ask()).map_err(|error| failed("receive client", &error))?;
    }
    say("ready")?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(|error| failed("receive client", &error))?;
    let (began, done) = (Instant::now(), Cell::new(0u64));
    let trouble = Cell::new(None);
    let workers = (0..IN_FLIGHT).map(|_| async {
        while began.elapsed() < SPAN {
            match ask().await {
                Ok(_) => done.set(done.get() + 1),
                Err(error) => return trouble.set(Some(error)),
            }
        }
    });
    executor.block_on(join_all(workers));
    match trouble.take() {
        Some(error) => Err(failed("receive client", &error)),
        None => say(&done.get().to_string()),
    }
}

/// A process of this experiment; killed when dropped.
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(role: &str, arguments: &str) -> Result<Self, BenchError> {
        let error = |error: std::io::Error| failed("receive process", &error);
        let mut child = Command::new(std::env::current_exe().map_err(error)?)
            .args([role, arguments])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(error)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = output.ok_or_else(|| failed("receive process", &"no output"))?;
        let mut process = Self { child, input, output: BufReader::new(output) };
        let line = process.line()?;
        if line == "ready" { Ok(process) } else { Err(failed("receive process", &line)) }
    }

    fn line(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(|error| failed("receive process", &error))?;
        Ok(line.trim().to_owned())
    }

    fn go(&mut self) -> Result<(), BenchError> {
        let input = self.input.as_mut().ok_or_else(|| failed("receive process", &"no input"))?;
        input.write_all(b"go\n").map_err(|error| failed("receive process", &error))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A run: requests per second over all clients, and buffers posted for each thousand messages.
fn run(provider: &str, receive: Receive, threads: usize, clients: u32) -> Result<(f64, f64), BenchError> {
    let ports = (0..threads).map(|_| free_port()).collect::<Result<Vec<_>, _>>()?;
    let listed: Vec<String> = ports.iter().map(u16::to_string).collect();
    let arguments = format!("{}:{provider}:{}", receive.name(), listed.join(","));
    let _server = Process::start("--serve-receive", &arguments)?;
    let processes = (0..clients).map(|_| Process::start("--receive-client", &arguments));
    let mut processes = processes.collect::<Result<Vec<_>, _>>()?;
    processes.iter_mut().try_for_each(Process::go)?;
    let mut answered = 0.0;
    for process in &mut processes {
        let line = process.line()?;
        answered += line.parse::<f64>().map_err(|_| failed("receive client", &line))?;
    }
    let mut counted = (0.0, 0.0);
    for port in ports {
        let more = counters(provider, port)?;
        counted = (counted.0 + more.0, counted.1 + more.1);
    }
    Ok((answered / SPAN.as_secs_f64(), counted.1 / counted.0 * 1000.0))
}

/// Messages that a server received, and buffers that it posted for them.
fn counters(provider: &str, port: u16) -> Result<(f64, f64), BenchError> {
    let executor = Executor::new().map_err(|error| failed("executor", &error))?;
    let rt = executor.handle();
    let endpoint = open(&rt, &Options::near(provider, "127.0.0.1", port))
        .map_err(|error| failed("receive client", &error))?;
    let rpc = Rpc::new(rt.clone(), endpoint, RpcConfig::default());
    let options = CallOptions::within(&rt, Duration::from_secs(10));
    let reply = executor
        .block_on(rpc.call(&Peer::new("127.0.0.1", port), COUNTERS, &[], None, options))
        .map_err(|error| failed("receive server", &error))?;
    let words: Vec<u64> =
        reply.chunks_exact(8).filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?))).collect();
    #[expect(clippy::cast_precision_loss, reason = "some millions")]
    match words[..] {
        [messages, posts, _] => Ok((messages as f64, posts as f64)),
        _ => Err(failed("receive server", &"an answer of another length")),
    }
}

/// A line of a figure: a mode, by the number of client processes.
fn line(
    provider: &str,
    receive: Receive,
    threads: usize,
    clients: &[u32],
    name: String,
) -> Result<Series, BenchError> {
    let mut points = Vec::new();
    for clients in clients {
        let (rate, posts) = run(provider, receive, threads, *clients)?;
        println!(
            "{provider}, {}, {threads} server threads, {clients} clients: {rate:.0} op/s, {posts:.1} posts per 1000 messages",
            receive.name()
        );
        points.push((f64::from(*clients), rate));
    }
    Ok(Series { name, points })
}

/// Compares both modes with so many server threads where most clients ask, the lines of which are the last two.
fn compare(report: &mut Report, provider: &str, threads: usize, lines: &[Series]) {
    let [.., standard, multi] = lines else { return };
    let most = |line: &Series| line.points.last().copied().unwrap_or_default();
    let ((clients, rate), (_, reference)) = (most(multi), most(standard));
    let several = if threads == 1 { String::new() } else { format!("{threads} server threads, ") };
    let name = format!("receive {provider}: multi-recv, {several}{clients} client processes");
    report.beside(&name, rate, "op/s", ("standard", reference), None);
}

/// Measures both modes on every provider that needs no special hardware.
pub fn measure(report: &mut Report, folder: &Path) -> Result<(), BenchError> {
    let (across, up) = ("client processes", "requests per second");
    for provider in ["tcp", "shm"] {
        let mut lines = Vec::new();
        for receive in Receive::BOTH {
            lines.push(line(provider, receive, 1, &CLIENTS, receive.name().to_owned())?);
        }
        compare(report, provider, 1, &lines);
        let title = format!("This machine, {provider}: one server thread (figure 5)");
        publish(&title, across, up, lines, &folder.join(format!("receive-{provider}.svg")))?;
        let mut lines = Vec::new();
        for threads in THREADS {
            for receive in Receive::BOTH {
                let name = format!("{}, {threads} threads", receive.name());
                lines.push(line(provider, receive, threads, &CLIENTS_OF_MANY, name)?);
            }
            compare(report, provider, threads, &lines);
        }
        let title = format!("This machine, {provider}: a server process of several threads (figure 4)");
        publish(&title, across, up, lines, &folder.join(format!("receive-threads-{provider}.svg")))?;
    }
    Ok(())
}
