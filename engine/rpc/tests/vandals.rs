//! Peers without manners as real processes on real providers: this program starts itself again as the server and as
//! the vandals. They stop reading, flood, or are killed in the middle of a flood, a transfer or an answer; a well-behaved client
//! beside them gets its answers, and the server keeps nothing of theirs.
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
use rustix::process::{Pid, Signal, getpid};
use weir_fabric::{Options, libfabric, open};
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
/// buffer pool (64 MiB), requests that run (16 MiB) or wait to be handed out (16 MiB), and some for what the allocator doesn't give back.
const GROWTH_MAX: u64 = 256 << 20;

/// Clients in each process that floods.
const FLOODERS_EACH: usize = 4;

/// Processes that flood.
const FLOODERS: usize = 2;

/// Requests that may begin before the only one of a client: those whose workers are awake (32, and 8 urgent ones), and one of
/// each other client, the one that asks for the state among them.
const PASSED_MAX: u64 = 32 + 8 + (FLOODERS * FLOODERS_EACH) as u64 + 1;

/// Messages that may wait to be handed out: 1024 of each client, and what has come of some before they are known.
const INTAKE_MAX: u64 = 1024 * ((FLOODERS * FLOODERS_EACH) as u64 + 2);

/// Flooders that are killed one after another: on `shm` one in some tens blocks the server's queue or has its lock.
const KILLS: u32 = 40;

/// Large answers, more than `shm` has room for that have not ended (1,024).
const ANSWERS: usize = 1500;

/// How long a flood lasts: longer than it is looked at.
const FLOOD: Duration = Duration::from_secs(6);

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
                let (metrics, counters) = (rpc.metrics(), rpc.endpoint().counters());
                let kept = u64::try_from(rpc.remembered().1).expect("small");
                let words = [
                    resident(),
                    used,
                    metrics.running.get(),
                    metrics.requests.get(),
                    metrics.passed_max.get(),
                    counters.intake_max.get(),
                    kept,
                    metrics.overdrawn.get(),
                    metrics.ignored.get(),
                    counters.reopened.get(),
                ];
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
    passed_max: u64,
    intake_max: u64,
    kept: u64,
    overdrawn: u64,
    ignored: u64,
    reopened: u64,
}

/// How long a process has waited for a processor so far, where the system tells.
fn starved(pid: Pid) -> Duration {
    let text =
        std::fs::read_to_string(format!("/proc/{}/schedstat", pid.as_raw_nonzero())).unwrap_or_default();
    let nanos = text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    Duration::from_nanos(nanos)
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
        self.waits(span, getpid()).into_iter().map(|(wait, _)| wait).max().unwrap_or_default()
    }

    /// Gets answers for this long, and tells how long each took, and for how much of that this process or the server's
    /// waited for a processor.
    fn waits(&self, span: Duration, server: Pid) -> Vec<(Duration, Duration)> {
        let (began, mut waits) = (Instant::now(), Vec::new());
        let both = || starved(getpid()) + starved(server);
        while began.elapsed() < span {
            let (asked, starved) = (Instant::now(), both());
            let options = CallOptions::within(&self.rt, PATIENCE);
            let reply = self.executor.block_on(self.rpc.call(&self.to, ECHO, &[7; 600], None, options));
            assert_eq!(&reply.expect("an answer")[..], &[7; 600]);
            waits.push((asked.elapsed(), both().saturating_sub(starved)));
            self.executor.block_on(self.rt.sleep(Duration::from_millis(2)));
        }
        waits
    }

    /// Has memory moved so many times; the longest took this.
    fn moves(&self, count: u32) -> Duration {
        let mut longest = Duration::ZERO;
        for _ in 0..count {
            let asked = Instant::now();
            let source = self.rpc.alloc(1 << 20).expect("memory");
            let mut target = self.rpc.alloc(1 << 20).expect("memory");
            let bulk = Bulk::read(&source).and_write(&mut target, 0..1 << 20);
            let options = CallOptions::within(&self.rt, PATIENCE);
            let reply = self.executor.block_on(self.rpc.call(&self.to, REVERSE, &[], Some(bulk), options));
            reply.expect("an answer");
            longest = longest.max(asked.elapsed());
        }
        longest
    }

    fn state(&self) -> State {
        let options = CallOptions::within(&self.rt, PATIENCE);
        let reply = self.executor.block_on(self.rpc.call(&self.to, STATE, &[], None, options));
        let reply = reply.expect("an answer");
        let word = |at: usize| u64::from_le_bytes(reply[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
        State {
            resident: word(0),
            buffers: word(1),
            running: word(2),
            requests: word(3),
            passed_max: word(4),
            intake_max: word(5),
            kept: word(6),
            overdrawn: word(7),
            ignored: word(8),
            reopened: word(9),
        }
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

/// As many requests as it likes: more than a server executes of one client. It ends by itself, unless it is killed.
fn flood(provider: &str, port: u16) {
    let config = RpcConfig { credits: 4096, requests_max: 4096, ..RpcConfig::default() };
    let client = Client::new(provider, port);
    let rpcs: Vec<Rc<Rpc>> = (0..FLOODERS_EACH)
        .map(|_| {
            let endpoint = open(&client.rt, &Options::near(provider, "127.0.0.1", port));
            Rpc::new(client.rt.clone(), endpoint.expect("an endpoint"), config.clone())
        })
        .collect();
    say_ready();
    client.executor.block_on(async {
        let workers = rpcs.iter().flat_map(|rpc| core::iter::repeat_n(rpc, 1024)).map(|rpc| async {
            loop {
                let options = CallOptions::within(&client.rt, Duration::from_secs(20));
                // Whatever comes.
                let _ = rpc.call(&client.to, ECHO, &[1; 500], None, options).await;
            }
        });
        let flooding = client.rt.timeout(FLOOD, join_all::<_>(workers));
        let ended: Result<Vec<()>, _> = flooding.await;
        assert!(ended.is_err(), "the workers never end");
    });
}

/// Has its memory read and written all the time.
fn mover(provider: &str, port: u16) -> ! {
    let client = Client::new(provider, port);
    client.go_on(Duration::ZERO);
    say_ready();
    client.pester(REVERSE, 4, &[], 4 << 20)
}

/// Has many small pieces of its memory moved at once.
fn carrier(provider: &str, port: u16) -> ! {
    let client = Client::new(provider, port);
    client.go_on(Duration::ZERO);
    say_ready();
    client.pester(REVERSE, 32, &[], 64 << 10)
}

fn clients_that_stop_in_a_transfer(provider: &str) {
    let port = port::free();
    let _server = Process::start("serve", provider, port);
    let friend = Client::new(provider, port);
    friend.go_on(Duration::from_millis(100));
    let vandals: Vec<Process> = (0..4).map(|_| Process::start("carrier", provider, port)).collect();
    friend.go_on(Duration::from_millis(500));
    for vandal in &vandals {
        vandal.signal(Signal::STOP);
    }
    let longest = friend.moves(20);
    drop(vandals);
    friend.wait_until_clean();
    print!(" longest transfer {longest:?};");
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
    let server = Process::start("serve", provider, port);
    let friend = Client::new(provider, port);
    friend.go_on(Duration::from_millis(100));
    let before = friend.state();
    let vandals: Vec<Process> = (0..FLOODERS).map(|_| Process::start("flood", provider, port)).collect();
    let mut waits = friend.waits(Duration::from_secs(3), server.id());
    waits.sort_unstable();
    let (half, (longest, _)) = (waits[waits.len() / 2].0, waits[waits.len() - 1]);
    let own = waits.iter().map(|(wait, starved)| wait.saturating_sub(*starved)).max().unwrap_or_default();
    let during = friend.state();
    let grown = during.resident.saturating_sub(before.resident);
    assert!(grown < GROWTH_MAX, "the server grew by {grown} bytes: {during:?}");
    assert!(during.requests > before.requests + 1000, "the flood really came: {during:?}");
    // Counts, which don't depend on who had a processor when.
    assert!(during.passed_max <= PASSED_MAX, "too many requests began before a single one: {during:?}");
    assert!(during.intake_max <= INTAKE_MAX, "too many messages waited: {during:?}");
    assert!(during.kept <= 64 << 20, "too many replies are kept: {during:?}");
    // Mercury brings messages no faster than they are executed: a client hardly ever has more under way than it may.
    let throttled = provider.starts_with("mercury/");
    assert!(throttled || during.overdrawn > 0, "clients broke their credits: {during:?}");
    vandals.into_iter().for_each(Process::wait);
    friend.wait_until_clean();
    print!(
        " half of {} answers within {half:?}, all within {longest:?}, or {own:?} without what friend and server waited for a processor, beside {} requests and {} that were sent away, {} of them unanswered; at most {} requests began before a single one, {} messages waited, {} MiB of replies are kept, server grew by {} MiB;",
        waits.len(),
        during.requests - before.requests,
        during.overdrawn,
        during.ignored,
        during.passed_max,
        during.intake_max,
        during.kept >> 20,
        grown >> 20
    );
}

/// Whether a process that is killed in the wrong moment can block this provider for good, as the reference says.
fn is_defenceless(provider: &str) -> bool {
    let defenceless = libfabric::probe(provider).map(|found| found.shared_queue && !found.within_process());
    // What Mercury does about it is its own.
    let defenceless = defenceless.unwrap_or(true);
    if defenceless {
        print!(" the provider can't be helped;");
    }
    defenceless
}

fn clients_that_are_killed_while_they_flood(provider: &str) {
    if is_defenceless(provider) {
        return;
    }
    let port = port::free();
    let server = Process::start("serve", provider, port);
    let friend = Client::new(provider, port);
    let mut longest = friend.go_on(Duration::from_millis(100));
    let mut kills = 0;
    // Once the server has survived a few, more say nothing new.
    while kills < KILLS && friend.state().reopened < 3 {
        let vandal = Process::start("flood", provider, port);
        std::thread::sleep(Duration::from_millis(u64::from(10 + kills * 37 % 90)));
        vandal.kill();
        kills += 1;
        longest = longest.max(friend.go_on(Duration::from_millis(50)));
    }
    let reopened = friend.state().reopened;
    drop(server);
    print!(
        " longest answer {longest:?} while {kills} were killed; the server opened its endpoint anew {reopened} times;"
    );
}

fn clients_that_die_with_answers_on_their_way(provider: &str) {
    if is_defenceless(provider) {
        return;
    }
    let port = port::free();
    let _server = Process::start("serve", provider, port);
    let friend = Client::new(provider, port);
    let vandals: Vec<Process> = (0..3).map(|_| Process::start("chatter", provider, port)).collect();
    friend.go_on(Duration::from_millis(300));
    for vandal in &vandals {
        vandal.signal(Signal::STOP);
    }
    // What they asked is answered, and not taken.
    friend.go_on(Duration::from_millis(300));
    vandals.into_iter().for_each(Process::kill);
    let mut longest = Duration::ZERO;
    for _ in 0..ANSWERS {
        let asked = Instant::now();
        let options = CallOptions::within(&friend.rt, PATIENCE);
        let reply = friend.rpc.call(&friend.to, ECHO, &[5; 12_000], None, options);
        assert_eq!(friend.executor.block_on(reply).expect("an answer").len(), 12_000);
        longest = longest.max(asked.elapsed());
    }
    friend.wait_until_clean();
    let reopened = friend.state().reopened;
    print!(
        " longest of {ANSWERS} large answers {longest:?}; the server opened its endpoint anew {reopened} times;"
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
            "carrier" => carrier(provider, port),
            "mover" => mover(provider, port),
            _ => panic!("no such role: {role}"),
        }
        return;
    }
    play(&[
        ("clients that stop in a transfer", clients_that_stop_in_a_transfer),
        ("clients that stop reading", clients_that_stop_reading),
        ("clients that flood", clients_that_flood),
        ("clients that are killed while they flood", clients_that_are_killed_while_they_flood),
        ("clients that die with answers on their way", clients_that_die_with_answers_on_their_way),
        ("clients that die in a transfer", clients_that_die_in_a_transfer),
    ]);
}
