//! Peers without manners as real processes on real providers: this program starts itself again as the server and as
//! the vandals. They stop reading, flood, or are killed in the middle of a transfer; a well-behaved client beside them
//! gets its answers, and the server keeps nothing of theirs.
//!
//! Each scenario runs on every provider that needs no hardware. It prints a line for each and fails with the first that fails.

mod port;
mod process;
mod reverse;

use core::time::Duration;
use std::rc::Rc;
use std::time::Instant;

use process::{Process, play, say_ready};
use reverse::reverse;
use rustix::process::Signal;
use weir_fabric::{Options, open};
use weir_rpc::{Bulk, CallOptions, Peer, Request, Rpc, RpcConfig};
use weir_runtime::real::Executor;
use weir_runtime::{Handle, join_all};

const ECHO: u16 = 0x7001;
const REVERSE: u16 = 0x7002;
const STATE: u16 = 0x7003;

/// Longest answer to the well-behaved client that counts as "goes on": a busy machine has pauses of its own, and on
/// `shm` everybody's messages to a server stand in one queue.
const PATIENCE: Duration = Duration::from_secs(40);

/// Memory that a server may grow by under attack: replies that it keeps (64 MiB), what waits to be sent (64 MiB), the
/// buffer pool (64 MiB), and some.
const GROWTH_MAX: u64 = 256 << 20;

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("readable");
    let pages: u64 = text.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
    pages * u64::try_from(rustix::param::page_size()).expect("small")
}

fn serve(provider: &str, port: u16) {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let endpoint = open(&rt, &Options::listen(provider, "127.0.0.1", port)).expect("an endpoint");
    let rpc = Rpc::new(rt, endpoint, RpcConfig::default());
    rpc.serve(ECHO, Rc::new(|request: Request| async move { Ok(request.body().to_vec()) }));
    rpc.serve(REVERSE, Rc::new(reverse));
    let state = Rc::downgrade(&rpc);
    rpc.serve(
        STATE,
        Rc::new(move |_: Request| {
            let state = state.clone();
            async move {
                let rpc = state.upgrade().expect("it serves");
                let used = u64::try_from(rpc.endpoint().buffers().used()).expect("small");
                let words = [resident(), used, rpc.metrics().running.get(), rpc.metrics().requests.get()];
                Ok(words.into_iter().flat_map(u64::to_le_bytes).collect())
            }
        }),
    );
    say_ready();
    executor.block_on(core::future::pending::<()>());
}

struct Client {
    executor: Executor,
    rt: Handle,
    rpc: Rc<Rpc>,
    to: Peer,
}

#[derive(Debug)]
struct State {
    resident: u64,
    buffers: u64,
    running: u64,
    requests: u64,
}

impl Client {
    fn new(provider: &str, port: u16) -> Self {
        let executor = Executor::new().expect("an executor");
        let rt = executor.handle();
        let endpoint = open(&rt, &Options::near(provider, "127.0.0.1", port)).expect("an endpoint");
        let rpc = Rpc::new(rt.clone(), endpoint, RpcConfig::default());
        Self { executor, rt, rpc, to: Peer::new("127.0.0.1", port) }
    }

    /// Gets answers for this long; the longest took this.
    fn go_on(&self, span: Duration) -> Duration {
        self.waits(span).into_iter().max().unwrap_or_default()
    }

    /// Gets answers for this long, and tells how long each took.
    fn waits(&self, span: Duration) -> Vec<Duration> {
        let (began, mut waits) = (Instant::now(), Vec::new());
        while began.elapsed() < span {
            let asked = Instant::now();
            let options = CallOptions::within(&self.rt, PATIENCE);
            let reply = self.executor.block_on(self.rpc.call(&self.to, ECHO, &[7; 600], None, options));
            assert_eq!(&reply.expect("an answer")[..], &[7; 600]);
            waits.push(asked.elapsed());
            self.executor.block_on(self.rt.sleep(Duration::from_millis(2)));
        }
        waits
    }

    fn state(&self) -> State {
        let options = CallOptions::within(&self.rt, PATIENCE);
        let reply = self.executor.block_on(self.rpc.call(&self.to, STATE, &[], None, options));
        let reply = reply.expect("an answer");
        let word = |at: usize| u64::from_le_bytes(reply[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
        State { resident: word(0), buffers: word(1), running: word(2), requests: word(3) }
    }

    /// Waits until the server has forgotten all that the vandals wanted: only this question runs.
    fn wait_until_clean(&self) {
        let until = Instant::now() + Duration::from_mins(1);
        loop {
            let state = self.state();
            if state.buffers == 0 && state.running <= 1 {
                return;
            }
            assert!(Instant::now() < until, "the server keeps something: {state:?}");
            self.executor.block_on(self.rt.sleep(Duration::from_millis(200)));
        }
    }

    /// Requests without end, as many at a time; never returns.
    fn pester(&self, opcode: u16, width: usize, body: &[u8], memory: usize) -> ! {
        self.executor.block_on(async {
            let workers = (0..width).map(|_| async {
                loop {
                    let options = CallOptions::within(&self.rt, Duration::from_secs(20));
                    if memory == 0 {
                        // Whatever comes.
                        let _ = self.rpc.call(&self.to, opcode, body, None, options).await;
                        continue;
                    }
                    let source = self.rpc.alloc(memory).expect("memory");
                    let mut target = self.rpc.alloc(memory).expect("memory");
                    let bulk = Bulk::read(&source).and_write(&mut target, 0..memory);
                    let _ = self.rpc.call(&self.to, opcode, body, Some(bulk), options).await;
                }
            });
            let _: Vec<()> = join_all(workers).await;
        });
        unreachable!("the workers never end")
    }
}

/// Sends requests and takes answers, until it is stopped by a signal: then it reads no more.
fn chatter(provider: &str, port: u16) -> ! {
    let client = Client::new(provider, port);
    client.go_on(Duration::ZERO);
    say_ready();
    client.pester(ECHO, 32, &[1; 12_000], 0)
}

/// As many requests as it likes: more than a server executes of one client.
fn flood(provider: &str, port: u16) -> ! {
    let config = RpcConfig { credits: 4096, requests_max: 4096, ..RpcConfig::default() };
    let mut client = Client::new(provider, port);
    client.rpc = Rpc::new(
        client.rt.clone(),
        open(&client.rt, &Options::near(provider, "127.0.0.1", port)).expect("an endpoint"),
        config,
    );
    say_ready();
    client.pester(ECHO, 2048, &[1; 500], 0)
}

/// Has its memory read and written all the time.
fn mover(provider: &str, port: u16) -> ! {
    let client = Client::new(provider, port);
    client.go_on(Duration::ZERO);
    say_ready();
    client.pester(REVERSE, 4, &[], 4 << 20)
}

fn clients_that_stop_reading(provider: &str) {
    let port = port::free();
    let _server = Process::start("serve", provider, port);
    let friend = Client::new(provider, port);
    friend.go_on(Duration::from_millis(100));
    let before = friend.state();
    let vandals: Vec<Process> = (0..3).map(|_| Process::start("chatter", provider, port)).collect();
    friend.go_on(Duration::from_millis(300));
    for vandal in &vandals {
        vandal.signal(Signal::STOP);
    }
    let longest = friend.go_on(Duration::from_secs(3));
    let grown = friend.state().resident.saturating_sub(before.resident);
    assert!(grown < GROWTH_MAX, "the server grew by {grown} bytes");
    // One goes on, the others die as they are.
    vandals[0].signal(Signal::CONT);
    friend.go_on(Duration::from_millis(500));
    drop(vandals);
    friend.wait_until_clean();
    print!(" longest answer {longest:?}, server grew by {} MiB;", grown >> 20);
}

fn clients_that_flood(provider: &str) {
    let port = port::free();
    let _server = Process::start("serve", provider, port);
    let friend = Client::new(provider, port);
    friend.go_on(Duration::from_millis(100));
    let before = friend.state();
    let vandals: Vec<Process> = (0..2).map(|_| Process::start("flood", provider, port)).collect();
    let mut waits = friend.waits(Duration::from_secs(3));
    waits.sort_unstable();
    let (half, longest) = (waits[waits.len() / 2], waits[waits.len() - 1]);
    let during = friend.state();
    let grown = during.resident.saturating_sub(before.resident);
    assert!(grown < GROWTH_MAX, "the server grew by {grown} bytes");
    assert!(during.requests > before.requests + 1000, "the flood really came: {during:?}");
    drop(vandals);
    friend.wait_until_clean();
    print!(
        " half of {} answers within {half:?}, all within {longest:?}, beside {} requests, server grew by {} MiB;",
        waits.len(),
        during.requests - before.requests,
        grown >> 20
    );
}

fn clients_that_die_in_a_transfer(provider: &str) {
    let port = port::free();
    let _server = Process::start("serve", provider, port);
    let friend = Client::new(provider, port);
    let mut longest = friend.go_on(Duration::from_millis(100));
    let before = friend.state();
    for round in 0..8 {
        let vandal = Process::start("mover", provider, port);
        std::thread::sleep(Duration::from_millis(60 + 17 * round));
        // With transfers under way.
        vandal.kill();
        longest = longest.max(friend.go_on(Duration::from_millis(200)));
    }
    friend.wait_until_clean();
    let grown = friend.state().resident.saturating_sub(before.resident);
    assert!(grown < GROWTH_MAX, "the server grew by {grown} bytes");
    print!(" longest answer {longest:?}, server grew by {} MiB;", grown >> 20);
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, role, provider, port] = &arguments[..]
        && let Ok(port) = port.parse()
    {
        match role.as_str() {
            "serve" => serve(provider, port),
            "chatter" => chatter(provider, port),
            "flood" => flood(provider, port),
            "mover" => mover(provider, port),
            _ => panic!("no such role: {role}"),
        }
        return;
    }
    play(&[
        ("clients that stop reading", clients_that_stop_reading),
        ("clients that flood", clients_that_flood),
        ("clients that die in a transfer", clients_that_die_in_a_transfer),
    ]);
}
