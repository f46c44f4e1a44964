//! RPC between real processes on real providers: this program starts itself again as the server.
//!
//! Each scenario runs on every provider that needs no hardware. It prints a line for each and fails with the first that fails.

mod port;
mod process;
mod reverse;

use core::cell::Cell;
use core::time::Duration;
use std::io::Write;
use std::rc::Rc;
use std::time::Instant;

use process::{Process, play, say_ready};
use reverse::reverse;
use rustix::process::Signal;
use weir_fabric::{Options, open};
use weir_rpc::{Bulk, CallOptions, Peer, Request, Rpc, RpcConfig};
use weir_runtime::real::Executor;
use weir_runtime::{EventSource, Handle};

const ECHO: u16 = 0x7001;
const REVERSE: u16 = 0x7002;
const USAGE: u16 = 0x7003;
const PULL: u16 = 0x7004;
const PULLED: u16 = 0x7005;
const STAND: u16 = 0x7006;
const MEBIBYTE: usize = 1 << 20;

/// Longer than clocks may differ.
const STANDSTILL: Duration = Duration::from_millis(1300);

/// A server process.
struct Server {
    process: Process,
    port: u16,
}

impl Server {
    /// Starts a server on this port and waits until it serves.
    fn start(provider: &str, port: u16) -> Self {
        Self { process: Process::start("serve", provider, port), port }
    }

    fn peer(&self) -> Peer {
        Peer::new("127.0.0.1", self.port)
    }

    fn kill(self) {
        self.process.kill();
    }
}

/// CPU time of this process so far, and its voluntary context switches (sleeps that ended).
fn usage() -> (u64, u64) {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let cpu =
        u64::try_from(clock.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(clock.tv_nsec).unwrap_or(0);
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).expect("present");
    let switches = line.split_whitespace().last().and_then(|n| n.parse().ok()).expect("a number");
    (cpu, switches)
}

/// Has the process stand still between two looks at its queue, as one does that is stopped or whose machine is moved.
struct Standing {
    /// So many looks later.
    after: Cell<Option<u32>>,
}

/// By then there is nothing to do any more, and the clock has been read for the looks to come.
const LOOKS: u32 = 5;

impl EventSource for Standing {
    fn poll(&self) -> bool {
        if self.after.get() == Some(0) {
            std::thread::sleep(STANDSTILL);
        }
        self.after.set(self.after.get().and_then(|looks| looks.checked_sub(1)));
        false
    }

    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn arm(&self) -> bool {
        self.after.get().is_none()
    }
}

fn serve(provider: &str, port: u16) {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    // Before the endpoint's, so that it is looked at after the standstill.
    let standing = Rc::new(Standing { after: Cell::new(None) });
    executor.add_source(Rc::clone(&standing) as Rc<dyn EventSource>).expect("a source");
    let endpoint = open(&rt, &Options::listen(provider, "127.0.0.1", port)).expect("an endpoint");
    let rpc = Rpc::new(rt, endpoint, RpcConfig::default());
    rpc.serve(ECHO, Rc::new(|request: Request| async move { Ok(request.body().to_vec()) }));
    rpc.serve(REVERSE, Rc::new(reverse));
    rpc.serve(
        USAGE,
        Rc::new(|_: Request| async move {
            let (cpu, switches) = usage();
            Ok([cpu.to_le_bytes(), switches.to_le_bytes()].concat())
        }),
    );
    rpc.serve(
        STAND,
        Rc::new(move |_: Request| {
            standing.after.set(Some(LOOKS));
            async { Ok(Vec::new()) }
        }),
    );
    serve_transfers(&rpc);
    say_ready();
    executor.block_on(core::future::pending::<()>());
}

/// Serves transfers, and how many have ended.
fn serve_transfers(rpc: &Rpc) {
    let pulled = Rc::new(Cell::new(0u64));
    let count = Rc::clone(&pulled);
    rpc.serve(
        PULL,
        Rc::new(move |request: Request| {
            let count = Rc::clone(&count);
            async move {
                let mut buffer = request.payload(MEBIBYTE).await?;
                request.pull(0, &mut buffer, MEBIBYTE).await?;
                count.set(count.get() + 1);
                Ok(Vec::new())
            }
        }),
    );
    rpc.serve(
        PULLED,
        Rc::new(move |_: Request| {
            let pulled = pulled.get();
            async move { Ok(pulled.to_le_bytes().to_vec()) }
        }),
    );
}

struct Client {
    executor: Executor,
    rt: Handle,
    rpc: Rc<Rpc>,
}

impl Client {
    fn new(provider: &str, port: u16) -> Self {
        let executor = Executor::new().expect("an executor");
        let rt = executor.handle();
        let endpoint = open(&rt, &Options::near(provider, "127.0.0.1", port)).expect("an endpoint");
        let rpc = Rpc::new(rt.clone(), endpoint, RpcConfig::default());
        Self { executor, rt, rpc }
    }

    /// No request was sent again but of calls that took as long as a client waits, of which the longest took so long: on a
    /// processor that is emulated, some do.
    fn has_lost_nothing(&self, longest: Duration) {
        let retries = self.rpc.metrics().retries.get();
        assert!(
            retries == 0 || longest >= RpcConfig::default().attempt_min,
            "{retries} got lost: {longest:?}"
        );
    }

    fn echo(&self, to: &Peer, body: &[u8], seconds: u64) {
        let options = CallOptions::within(&self.rt, Duration::from_secs(seconds));
        let reply = self.executor.block_on(self.rpc.call(to, ECHO, body, None, options));
        assert_eq!(&reply.expect("a reply")[..], body);
    }
}

fn echoes_of_every_size(provider: &str) {
    let server = Server::start(provider, port::free());
    let client = Client::new(provider, server.port);
    for len in [0, 1, 64, 127, 128, 129, 1000, 4000, 4096, 4200, 10_000, weir_rpc::INLINE_MAX] {
        let body: Vec<u8> = (0..len).map(|n| n.to_le_bytes()[0]).collect();
        client.echo(&server.peer(), &body, 10);
    }
    let began = Instant::now();
    for _ in 0..2000 {
        client.echo(&server.peer(), &[7; 64], 10);
    }
    print!(" {:.1} us per round trip;", began.elapsed().as_secs_f64() * 1e6 / 2000.0);
}

fn many_at_once(provider: &str) {
    let server = Server::start(provider, port::free());
    let client = Client::new(provider, server.port);
    let to = server.peer();
    let mut longest = Duration::ZERO;
    client.executor.block_on(async {
        for round in 0..20u8 {
            let began = Instant::now();
            let options = CallOptions::within(&client.rt, Duration::from_secs(20));
            let bodies: Vec<Vec<u8>> = (0..200u8).map(|n| vec![n ^ round; 20 * usize::from(n)]).collect();
            let calls = bodies.iter().map(|body| client.rpc.call(&to, ECHO, body, None, options));
            let replies = weir_runtime::join_all(calls).await;
            for (reply, body) in replies.iter().zip(&bodies) {
                assert_eq!(&reply.as_ref().expect("a reply")[..], body);
            }
            longest = longest.max(began.elapsed());
        }
    });
    client.has_lost_nothing(longest);
}

fn bulk_both_ways(provider: &str) {
    let server = Server::start(provider, port::free());
    let client = Client::new(provider, server.port);
    let to = server.peer();
    let mut longest = Duration::ZERO;
    for len in [1usize, 100, 5000, 1 << 20, (3 << 20) + 17] {
        let mut source = client.rpc.alloc(len).expect("memory");
        let mut seed = 12_345u32;
        for byte in source.iter_mut() {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = seed.to_le_bytes()[3];
        }
        let mut target = client.rpc.alloc(len).expect("memory");
        // And memory that the pool doesn't own.
        let mut own = weir_rpc::Buffer::from_vec(vec![0; len]);
        for target in [&mut target, &mut own] {
            let bulk = Bulk::read(&source).and_write(target, 0..len);
            let options = CallOptions::within(&client.rt, Duration::from_secs(20));
            let call = client.rpc.call(&to, REVERSE, b"", Some(bulk), options);
            let began = Instant::now();
            client.executor.block_on(call).expect("a reply");
            longest = longest.max(began.elapsed());
            assert!(target.iter().rev().eq(source.iter()), "{len} bytes came back reversed");
        }
    }
    client.has_lost_nothing(longest);
}

fn the_server_is_killed_and_comes_back(provider: &str) {
    let port = port::free();
    let mut server = Server::start(provider, port);
    let client = Client::new(provider, port);
    let mut longest = Duration::ZERO;
    for round in 0..5u8 {
        client.echo(&server.peer(), &[round; 100], 10);
        server.kill();
        server = Server::start(provider, port);
        let began = Instant::now();
        client.echo(&server.peer(), &[round; 5000], 20);
        longest = longest.max(began.elapsed());
    }
    print!(" idle client was back after at most {longest:?};");
    // Now with requests under way while it is down.
    let to = server.peer();
    let began = Instant::now();
    let options = CallOptions::within(&client.rt, Duration::from_secs(30));
    let body = vec![9; 3000];
    client.executor.block_on(async {
        let calls = (0..8).map(|_| client.rpc.call(&to, ECHO, &body, None, options));
        let calls = weir_runtime::join_all(calls);
        // Blocking this thread is what an application does; the server dies while nothing is polled.
        server.kill();
        let replies = client.rt.spawn({
            let (rt, provider) = (client.rt.clone(), provider.to_owned());
            async move {
                rt.sleep(Duration::from_millis(700)).await;
                Server::start(&provider, port)
            }
        });
        for reply in calls.await {
            assert_eq!(&reply.expect("a reply")[..], &body[..]);
        }
        drop(replies.await);
    });
    print!(" busy client went on after {:?};", began.elapsed());
}

/// A server that hangs looks like a host that vanished: its connections stand, and nothing answers.
fn the_server_hangs_and_goes_on(provider: &str) {
    let server = Server::start(provider, port::free());
    let client = Client::new(provider, server.port);
    client.echo(&server.peer(), b"before", 10);
    server.process.signal(Signal::STOP);
    let to = server.peer();
    let began = Instant::now();
    let options = CallOptions::within(&client.rt, Duration::from_secs(30));
    let body = vec![5; 2000];
    client.executor.block_on(async {
        let resume = client.rt.spawn({
            let rt = client.rt.clone();
            async move {
                rt.sleep(Duration::from_secs(4)).await;
                server.process.signal(Signal::CONT);
                server
            }
        });
        let calls = (0..4).map(|_| client.rpc.call(&to, ECHO, &body, None, options));
        for reply in weir_runtime::join_all(calls).await {
            assert_eq!(&reply.expect("a reply")[..], &body[..]);
        }
        drop(resume.await.expect("not aborted"));
    });
    assert!(client.rpc.metrics().disconnects.get() > 0, "the contact was given up meanwhile");
    print!(" went on after {:?};", began.elapsed());
}

fn a_server_that_stood_still_blames_nobody_for_it(provider: &str) {
    let server = Server::start(provider, port::free());
    let client = Client::new(provider, server.port);
    let to = server.peer();
    client.echo(&to, b"before", 10);
    let requests = [(STAND, Duration::ZERO), (ECHO, STANDSTILL.mul_f32(0.9))];
    let calls = requests.map(|(opcode, after)| {
        let (client, to) = (&client, &to);
        async move {
            client.rt.sleep(after).await;
            let options = CallOptions::within(&client.rt, 10 * STANDSTILL);
            client.rpc.call(to, opcode, b"", None, options).await
        }
    });
    for reply in client.executor.block_on(weir_runtime::join_all(calls)) {
        drop(reply.expect("an answer"));
    }
}

fn a_dead_server_is_reported_at_the_deadline(provider: &str) {
    let port = port::free();
    let server = Server::start(provider, port);
    let client = Client::new(provider, port);
    client.echo(&server.peer(), b"alive", 10);
    let to = server.peer();
    server.kill();
    let began = Instant::now();
    let options = CallOptions::within(&client.rt, Duration::from_secs(2));
    let mut buffer = client.rpc.alloc(1 << 20).expect("memory");
    let call = client.rpc.call(&to, REVERSE, b"", Some(Bulk::write(&mut buffer)), options);
    let error = client.executor.block_on(call).expect_err("nobody answers");
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(20), "{took:?}: {error}");
    print!(" \"{error}\";");
}

fn an_idle_server_sleeps(provider: &str) {
    let server = Server::start(provider, port::free());
    let client = Client::new(provider, server.port);
    let to = server.peer();
    client.echo(&to, b"", 10);
    let ask = || {
        let options = CallOptions::within(&client.rt, Duration::from_secs(10));
        let reply =
            client.executor.block_on(client.rpc.call(&to, USAGE, b"", None, options)).expect("a reply");
        let word = |at: usize| u64::from_le_bytes(reply[at..at + 8].try_into().expect("eight bytes"));
        (word(0), word(8))
    };
    let pause = Duration::from_secs(2);
    let look = || {
        let (before, own) = (ask(), usage());
        client.executor.block_on(client.rt.sleep(pause));
        let own_cpu = usage().0 - own.0;
        let after = ask();
        (Duration::from_nanos(after.0 - before.0), Duration::from_nanos(own_cpu), after.1 - before.1)
    };
    let sleeps = |seen: &(Duration, Duration, u64)| seen.0.max(seen.1) < pause / 100 && seen.2 < 50;
    // A processor that is emulated has moments in which everything takes long.
    let mut looks = vec![look()];
    while looks.len() < 3 && !looks.iter().any(sleeps) {
        looks.push(look());
    }
    let (cpu, own_cpu, woke) = looks[looks.len() - 1];
    print!(" server: {cpu:?} and {woke} wake-ups in 2 s, client: {own_cpu:?};");
    assert!(looks.iter().any(sleeps), "server, client, and wake-ups of the server in {pause:?}: {looks:?}");
}

/// Bytes that no libfabric sent, straight to the server's port and (shm) to its doorbell.
fn garbage_on_the_port_harms_nobody(provider: &str) {
    let server = Server::start(provider, port::free());
    let client = Client::new(provider, server.port);
    client.echo(&server.peer(), b"before", 10);
    if provider.ends_with("tcp") {
        let mut vandals = Vec::new();
        for round in 0..50u32 {
            let mut vandal = std::net::TcpStream::connect(("127.0.0.1", server.port)).expect("it listens");
            let bytes: Vec<u8> = (0..round * 40).map(|n| (n * 31 + round).to_le_bytes()[0]).collect();
            // The server may hang up on it at any point.
            let _ = vandal.write_all(&bytes);
            vandals.push(vandal);
        }
    }
    let endpoint = client.rpc.endpoint();
    client.executor.block_on(async {
        let address = endpoint.resolve("127.0.0.1", server.port).await.expect("it listens").address;
        let to = endpoint.insert(&address).expect("an address");
        for round in 0..200u64 {
            let mut bytes = vec![round.to_le_bytes()[0]; usize::try_from(round * 17).expect("small")];
            if bytes.len() > 8 {
                bytes[..8].copy_from_slice(b"WEIR\x01\x00\x03\x00");
            }
            endpoint.send(to, 0, &[&bytes]).expect("accepted");
        }
    });
    client.echo(&server.peer(), b"after", 10);
}

/// It is made behind sixteen transfers that take turns, or of which two move at once.
fn a_small_request_goes_before_transfers_that_have_not_begun(provider: &str) {
    if provider == "mercury/na+sm" {
        // Mercury's own progress copies all that was asked for before it hands out the next message.
        return;
    }
    let server = Server::start(provider, port::free());
    let client = Client::new(provider, server.port);
    let to = &server.peer();
    client.echo(to, &[], 10);
    client.executor.block_on(async {
        let buffers: Vec<_> = (0..16).map(|_| client.rpc.alloc(MEBIBYTE).expect("memory")).collect();
        let call = |opcode, buffer| {
            let bulk = Option::map(buffer, Bulk::read);
            client.rpc.call(to, opcode, &[], bulk, CallOptions::within(&client.rt, Duration::from_secs(20)))
        };
        let count = |reply: &[u8]| u64::from_le_bytes(reply.try_into().expect("a number"));
        let mut before = Vec::new();
        for _ in 0..20 {
            let begin = count(&call(PULLED, None).await.expect("a reply"));
            let large = buffers.iter().map(|buffer| call(PULL, Some(buffer)));
            let replies = weir_runtime::join_all(large.chain([call(PULLED, None)])).await;
            assert!(replies.iter().all(Result::is_ok), "all were served");
            before.push(
                count(replies.last().and_then(|reply| reply.as_deref().ok()).expect("a reply")) - begin,
            );
        }
        // Who loses its processor while it sends comes late.
        let early = before.iter().filter(|pulled| **pulled <= 4).count();
        assert!(early >= 10, "transfers that had ended: {before:?}");
    });
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, mode, provider, port] = &arguments[..]
        && mode == "serve"
    {
        serve(provider, port.parse().expect("a port"));
        return;
    }
    play(&[
        ("echoes of every size", echoes_of_every_size),
        ("many at once", many_at_once),
        ("bulk both ways", bulk_both_ways),
        (
            "a small request goes before transfers that have not begun",
            a_small_request_goes_before_transfers_that_have_not_begun,
        ),
        ("the server is killed and comes back", the_server_is_killed_and_comes_back),
        ("the server hangs and goes on", the_server_hangs_and_goes_on),
        ("a server that stood still blames nobody for it", a_server_that_stood_still_blames_nobody_for_it),
        ("a dead server is reported at the deadline", a_dead_server_is_reported_at_the_deadline),
        ("an idle server sleeps", an_idle_server_sleeps),
        ("garbage on the port harms nobody", garbage_on_the_port_harms_nobody),
    ]);
}
