//! What becomes of a caller's memory when its call is given up: cancelled, or ended by its deadline while the server's
//! clock lags. Once the memory is free again no late access of the server changes it, by any registration method but
//! those that leave memory exposed; and with those the same check fails.

use crate::fill;

use core::cell::Cell;
use core::task::Poll;
use core::time::Duration;
use fill::fill;
use std::rc::Rc;
use weir_fabric::MrMethod;
use weir_fabric::sim::{Config, Fabric, MrCosts, MrModel};
use weir_proto::Der;
use weir_proto::capability::SystemKey;
use weir_rpc::{Buffer, Bulk, CallOptions, Keys, Peer, Request, Rpc, RpcConfig, RpcError, Status};
use weir_runtime::sim::{Node, World};
use weir_runtime::{Either, Handle, Instant, race};

const PUSH: u16 = 0x7021;
const HASTY: u16 = 0x7022;
const PORT: u16 = 31_417;
/// Bytes of a request's memory: three pieces, of 4 ms each.
const LEN: usize = 3 << 20;
const SERVER_BYTE: u8 = 9;
const OWNER_BYTE: u8 = 7;

/// A provider: its method, and whether ending a registration cuts accesses off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Nic {
    method: MrMethod,
    revokes: bool,
}

/// Such as has no account of its own: the two sides of the request keep it.
const SOFTWARE: Nic = Nic { method: MrMethod::Uncached, revokes: false };
const SAFE: [Nic; 3] = [
    Nic { method: MrMethod::Uncached, revokes: true },
    Nic { method: MrMethod::MatchEvents, revokes: false },
    SOFTWARE,
];
const UNSAFE: [Nic; 2] =
    [Nic { method: MrMethod::KeyCache, revokes: true }, Nic { method: MrMethod::Persistent, revokes: true }];

struct Stage {
    world: World,
    fabric: Fabric,
    server_node: Node,
    node: Node,
    server: Rc<Rpc>,
    client: Rc<Rpc>,
}

fn stage(nic: Nic, seed: u64) -> Stage {
    keyed_stage(nic, seed, None)
}

fn keyed_stage(nic: Nic, seed: u64, keys: Option<Keys>) -> Stage {
    let world = World::new(seed);
    let config = Config {
        per_mebibyte: Duration::from_millis(4),
        mr: MrModel { method: nic.method, revokes: nic.revokes, costs: MrCosts::default() },
        ..Config::default()
    };
    let fabric = Fabric::with_config(&world, config);
    let (server_node, node) = (world.node("server"), world.node("client"));
    let server = Rpc::new(
        server_node.handle(),
        fabric.endpoint(&server_node, Some(PORT)),
        RpcConfig { transfers_max: 2, keys: keys.clone(), ..RpcConfig::default() },
    );
    server.serve(PUSH, Rc::new(|request| fill(request, SERVER_BYTE)));
    let rt = server_node.handle();
    server.serve(
        HASTY,
        Rc::new(move |request: Request| {
            let rt = rt.clone();
            async move {
                let mut buffer = request.payload(LEN).await?;
                buffer.fill(SERVER_BYTE);
                // Gives up in the middle, and answers.
                let patience = rt.sleep(Duration::from_millis(6));
                race(request.push(0, &buffer, LEN), patience).await;
                Err(Status::new(Der::BUSY, "not now"))
            }
        }),
    );
    let config = RpcConfig { keys, ..RpcConfig::default() };
    let client = Rpc::new(node.handle(), fabric.endpoint(&node, None), config);
    Stage { world, fabric, server_node, node, server, client }
}

fn peer() -> Peer {
    Peer::new("server", PORT)
}

/// Another server in place of the one that ran on a node, if any, which ends in the middle of whatever it does.
fn restart(world: &World, fabric: &Fabric, node: &Node, config: RpcConfig) -> Rc<Rpc> {
    world.crash(node);
    world.restart(node);
    Rpc::new(node.handle(), fabric.endpoint(node, Some(PORT)), config)
}

/// Has the memory of a call that has ended for itself as soon as that may be: at once, where the buffer is still there,
/// else when the pool hands it out again. Returns it with how long that took.
async fn reuse(client: &Rc<Rpc>, rt: &weir_runtime::Handle, buffer: Buffer, at: usize) -> (Buffer, Duration) {
    let began = rt.now();
    let mut buffer = buffer;
    while buffer.as_ptr() as usize != at {
        if client.endpoint().buffers().used() == 0 {
            buffer = client.alloc(LEN).expect("memory");
            assert_eq!(buffer.as_ptr() as usize, at, "the pool hands out what it got back");
            break;
        }
        rt.sleep(Duration::from_micros(100)).await;
        assert!(rt.now() - began < Duration::from_secs(20), "the memory is free in the end");
    }
    buffer.fill(OWNER_BYTE);
    (buffer, rt.now() - began)
}

#[derive(Debug)]
struct Seen {
    /// The owner's bytes are as they were left.
    intact: bool,
    /// How long the memory could not be used.
    waited: Duration,
    late_accesses: u64,
    confirmed: u64,
}

/// A call that is dropped after this time.
fn cancelled(nic: Nic, seed: u64, after: Duration) -> Seen {
    let Stage { world, fabric, node, server: _server, client, .. } = stage(nic, seed);
    let rt = node.handle();
    let stats = fabric.clone();
    let metrics = Rc::clone(&client);
    let (intact, waited) = world.block_on(&node, async move {
        let warm = CallOptions::within(&rt, Duration::from_secs(1));
        assert!(client.call(&peer(), 0x7fff, b"", None, warm).await.is_err());
        let mut buffer = client.alloc(LEN).expect("memory");
        buffer.fill(0);
        let at = buffer.as_ptr() as usize;
        let options = CallOptions::within(&rt, Duration::from_secs(5));
        let to = peer();
        let call = client.call(&to, PUSH, b"", Some(Bulk::write(&mut buffer)), options);
        race(call, rt.sleep(after)).await;
        let (buffer, waited) = reuse(&client, &rt, buffer, at).await;
        rt.sleep(Duration::from_secs(10)).await;
        (buffer.iter().all(|byte| *byte == OWNER_BYTE), waited)
    });
    let late_accesses = stats.stats().late_accesses;
    Seen { intact, waited, late_accesses, confirmed: metrics.metrics().withdrawals_confirmed.get() }
}

/// From before the first piece has begun to after the last has ended.
fn moments() -> impl Iterator<Item = Duration> {
    (0..36).map(|n| Duration::from_micros(50 + 400 * n))
}

#[test]
fn after_a_cancelled_call_no_late_access_touches_the_buffer_in_the_safe_modes() {
    for nic in SAFE {
        let runs: Vec<Seen> =
            moments().enumerate().map(|(seed, after)| cancelled(nic, seed as u64, after)).collect();
        for (run, after) in runs.iter().zip(moments()) {
            assert!(run.intact, "{nic:?}, cancelled after {after:?}: {run:?}");
            assert!(
                run.waited < Duration::from_millis(20),
                "{nic:?}, after {after:?}: {run:?}: the server was asked"
            );
        }
        let late: u64 = runs.iter().map(|run| run.late_accesses).sum();
        let confirmed: u64 = runs.iter().map(|run| run.confirmed).sum();
        if nic == SOFTWARE {
            assert_eq!(late, 0, "the server was asked before the registration ended");
            assert!(confirmed > 20, "the server's word counted: {confirmed}");
        } else {
            assert_eq!(confirmed, 0, "{nic:?}: the provider knows by itself");
        }
    }
}

#[test]
fn the_same_check_fails_in_the_modes_that_leave_memory_exposed() {
    for nic in UNSAFE {
        let runs: Vec<Seen> =
            moments().enumerate().map(|(seed, after)| cancelled(nic, seed as u64, after)).collect();
        let harmed = runs.iter().filter(|run| !run.intact).count();
        let late: u64 = runs.iter().map(|run| run.late_accesses).sum();
        assert!(harmed > 20, "{nic:?}: only {harmed} of {} buffers were written to", runs.len());
        assert!(late >= harmed as u64, "{nic:?}: {late}");
        assert!(
            runs.iter().all(|run| run.waited.is_zero()),
            "{nic:?}: nobody waits, which is the point of it"
        );
    }
}

/// Makes contact over a link that is barely alive from then on: a piece takes longer than the deadline leaves. Returns memory
/// for a call, and where it is.
async fn slowly(client: &Rpc, fabric: &Fabric, rt: &Handle) -> (Buffer, usize) {
    let warm = CallOptions::within(rt, Duration::from_secs(1));
    assert!(client.call(&peer(), 0x7fff, b"", None, warm).await.is_err());
    fabric.configure(|config| config.per_mebibyte = Duration::from_millis(400));
    let mut buffer = client.alloc(LEN).expect("memory");
    buffer.fill(0);
    let at = buffer.as_ptr() as usize;
    (buffer, at)
}

/// A call that ends at its deadline, with a server whose clock lags this much.
fn timed_out(nic: Nic, lag_ns: i64) -> (Seen, Rc<Rpc>) {
    let Stage { world, fabric, server_node, node, client, server } = stage(nic, 3);
    server_node.set_clock_skew(-lag_ns);
    let rt = node.handle();
    let (stats, metrics) = (fabric.clone(), Rc::clone(&client));
    let slow = fabric.clone();
    let (intact, waited) = world.block_on(&node, async move {
        let (mut buffer, at) = slowly(&client, &slow, &rt).await;
        let options = CallOptions::within(&rt, Duration::from_millis(300)).once();
        let to = peer();
        let call = client.call(&to, PUSH, b"", Some(Bulk::write(&mut buffer)), options).await;
        assert_eq!(call.map(|_| ()).map_err(|error| error.der()), Err(Der::TIMEDOUT));
        let (buffer, waited) = reuse(&client, &rt, buffer, at).await;
        rt.sleep(Duration::from_secs(10)).await;
        (buffer.iter().all(|byte| *byte == OWNER_BYTE), waited)
    });
    let late_accesses = stats.stats().late_accesses;
    let confirmed = metrics.metrics().withdrawals_confirmed.get();
    (Seen { intact, waited, late_accesses, confirmed }, server)
}

#[test]
fn after_a_deadline_the_buffer_is_safe_too_whatever_the_servers_clock_says() {
    for lag in [-900_000_000, 0, 900_000_000] {
        for nic in SAFE {
            let (seen, server) = timed_out(nic, lag);
            assert!(seen.intact, "{nic:?}, clock {lag} ns behind: {seen:?}");
            assert_eq!(server.metrics().running.get(), 0, "{nic:?}");
        }
        for nic in UNSAFE {
            let (seen, _server) = timed_out(nic, lag);
            assert!(!seen.intact && seen.late_accesses > 0, "{nic:?}, clock {lag} ns behind: {seen:?}");
        }
    }
}

#[test]
fn a_call_past_its_deadline_that_waits_for_the_last_access_has_given_its_credit_back() {
    let nic = Nic { method: MrMethod::MatchEvents, revokes: false };
    let Stage { world, fabric, node, client, server, .. } = stage(nic, 9);
    fabric.configure(|config| config.per_mebibyte = Duration::from_millis(400));
    let rt = node.handle();
    let quota = world.block_on(&node, async move {
        let mut buffer = client.alloc(LEN).expect("memory");
        let options = CallOptions::within(&rt, Duration::from_millis(300)).once();
        let to = peer();
        let call = client.call(&to, PUSH, b"", Some(Bulk::write(&mut buffer)), options);
        let seen = Cell::new((0, 0));
        let look = async {
            for at in [200, 350] {
                rt.sleep_until(Instant::default() + Duration::from_millis(at)).await;
                seen.set((seen.get().1, client.quota().0));
            }
            core::future::pending::<()>().await;
        };
        race(call, look).await;
        assert!(rt.now() > options.deadline + Duration::from_millis(50), "the access went on");
        seen.get()
    });
    assert_eq!(quota, (1, 0));
    drop(server);
}

/// A call that has failed at its deadline waits for what is under way, and is dropped meanwhile.
#[test]
fn a_call_that_is_dropped_while_it_waits_for_the_last_access_gives_no_memory_back_before() {
    for nic in SAFE {
        let Stage { world, fabric, node, client, server, .. } = stage(nic, 13);
        let rt = node.handle();
        let intact = world.block_on(&node, async move {
            let (mut buffer, at) = slowly(&client, &fabric, &rt).await;
            let options = CallOptions::within(&rt, Duration::from_millis(300)).once();
            let to = peer();
            let call = client.call(&to, PUSH, b"", Some(Bulk::write(&mut buffer)), options);
            race(call, rt.sleep(Duration::from_millis(320))).await;
            let (buffer, _) = reuse(&client, &rt, buffer, at).await;
            rt.sleep(Duration::from_secs(10)).await;
            buffer.iter().all(|byte| *byte == OWNER_BYTE)
        });
        assert!(intact, "{nic:?}");
        drop(server);
    }
}

/// A process that is stopped takes in nothing of what is written to its memory, and that goes on when it does.
#[test]
fn a_client_that_has_stood_still_past_its_deadline_asks_before_it_uses_its_memory_again() {
    for nic in SAFE {
        let Stage { world, fabric, node, client, server, .. } = stage(nic, 17);
        let rt = node.handle();
        let (intact, waited) = world.block_on(&node, async move {
            let (mut buffer, at) = slowly(&client, &fabric, &rt).await;
            fabric.configure(|config| config.per_mebibyte = Duration::from_secs(4));
            let options = CallOptions::within(&rt, Duration::from_millis(300));
            let to = peer();
            let mut call = Box::pin(client.call(&to, PUSH, b"", Some(Bulk::write(&mut buffer)), options));
            let begun = core::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending()));
            assert!(begun.await);
            rt.sleep(Duration::from_millis(3500)).await;
            drop(call);
            let (buffer, waited) = reuse(&client, &rt, buffer, at).await;
            rt.sleep(Duration::from_secs(10)).await;
            (buffer.iter().all(|byte| *byte == OWNER_BYTE), waited)
        });
        let ended = Duration::from_millis(500);
        assert!(intact && (nic.revokes || waited >= ended), "{nic:?}: {waited:?}");
        drop(server);
    }
}

#[test]
fn a_server_that_is_gone_can_not_be_asked_and_the_memory_waits_out_the_bound() {
    let Stage { world, fabric, server_node, node, client, server } = stage(SOFTWARE, 4);
    let rt = node.handle();
    let (inner, metrics) = (world.clone(), Rc::clone(&client));
    let waited = world.block_on(&node, async move {
        let mut buffer = client.alloc(LEN).expect("memory");
        let at = buffer.as_ptr() as usize;
        let options = CallOptions::within(&rt, Duration::from_millis(500));
        let to = peer();
        let call = client.call(&to, PUSH, b"", Some(Bulk::write(&mut buffer)), options);
        let gone = async {
            rt.sleep(Duration::from_millis(3)).await;
            inner.crash(&server_node);
            core::future::pending::<()>().await;
        };
        race(call, gone).await;
        reuse(&client, &rt, buffer, at).await.1
    });
    drop((server, fabric));
    assert!((Duration::from_millis(1900)..Duration::from_millis(2600)).contains(&waited), "{waited:?}");
    let metrics = metrics.metrics();
    assert_eq!((metrics.withdrawals_waited.get(), metrics.withdrawals_confirmed.get()), (1, 0));
}

#[test]
fn a_restarted_server_does_not_speak_for_the_one_that_had_the_request() {
    let Stage { world, fabric, server_node, node, client, server } = stage(SOFTWARE, 6);
    let (rt, inner, metrics) = (node.handle(), world.clone(), Rc::clone(&client));
    world.block_on(&node, async move {
        let mut buffer = client.alloc(LEN).expect("memory");
        let at = buffer.as_ptr() as usize;
        let options = CallOptions::within(&rt, Duration::from_millis(500));
        let to = peer();
        let call = client.call(&to, PUSH, b"", Some(Bulk::write(&mut buffer)), options);
        race(call, rt.sleep(Duration::from_millis(3))).await;
        let _again = restart(&inner, &fabric, &server_node, RpcConfig::default());
        reuse(&client, &rt, buffer, at).await;
    });
    drop(server);
    let metrics = metrics.metrics();
    assert_eq!((metrics.withdrawals_waited.get(), metrics.withdrawals_confirmed.get()), (1, 0));
}

/// A call whose server is replaced by `next` while it writes to the call's memory. `next` answers without touching it, and
/// what the first one has under way arrives after that. The call is dropped after `patience`. Returns whether the owner's
/// bytes are as they were left, and how long it took until the memory was the owner's.
fn replaced(nic: Nic, keyed: bool, next: &str, patience: Duration) -> (bool, Duration, Rc<Rpc>) {
    let key = SystemKey([8; 32]);
    let keys = keyed.then_some(Keys::System(key));
    let Stage { world, fabric, server_node, node, client, server } = keyed_stage(nic, 12, keys.clone());
    fabric.configure(|config| config.per_mebibyte = Duration::from_millis(900));
    fabric.alias("name", &server_node);
    let (other, at) = (world.node("other"), node.clone());
    let (rt, inner, metrics, next) = (node.handle(), world.clone(), Rc::clone(&client), next.to_owned());
    let (intact, took) = world.block_on(&node, async move {
        let mut buffer = client.alloc(LEN).expect("memory");
        buffer.fill(0);
        let place = buffer.as_ptr() as usize;
        let options = CallOptions::within(&rt, Duration::from_secs(30));
        let to = Peer::new("name", PORT);
        let began = rt.now();
        let call = client.call(&to, PUSH, b"", Some(Bulk::write(&mut buffer)), options);
        let again = Cell::new(None);
        let replaced = async {
            rt.sleep(Duration::from_millis(300)).await;
            let config = RpcConfig { keys, ..RpcConfig::default() };
            let node = if next == "server" { &server_node } else { &other };
            // Where the other one takes over, the first is cut off from the client's messages only.
            fabric.alias("name", node);
            if next == "other" {
                fabric.partition_one_way(&at, &server_node);
            }
            let rpc = restart(&inner, &fabric, node, config);
            rpc.serve(PUSH, Rc::new(|_: Request| async { Ok(Vec::new()) }));
            again.set(Some(rpc));
            rt.sleep_until(began + patience).await;
        };
        if let Either::First(reply) = race(call, replaced).await {
            assert_eq!(reply.map(|reply| reply.server()).ok(), again.take().map(|rpc| rpc.id()));
        }
        let (buffer, _) = reuse(&client, &rt, buffer, place).await;
        let took = rt.now() - began;
        rt.sleep(Duration::from_secs(10)).await;
        (buffer.iter().all(|byte| *byte == OWNER_BYTE), took)
    });
    drop(server);
    (intact, took, metrics)
}

#[test]
fn a_reply_of_another_incarnation_gives_no_memory_back_that_the_first_one_may_be_at() {
    for nic in SAFE {
        for (keyed, next) in [(true, "server"), (false, "server"), (true, "other")] {
            let (intact, took, client) = replaced(nic, keyed, next, Duration::from_secs(20));
            assert!(intact, "{nic:?}, keyed: {keyed}, {next}");
            assert!(took < Duration::from_secs(3), "{nic:?}, keyed: {keyed}, {next}: {took:?}");
            assert_eq!(client.bulk_quota(), (0, 0));
        }
    }
}

#[test]
fn nor_does_it_when_the_call_is_dropped_while_it_waits_for_what_is_under_way() {
    for nic in SAFE {
        // The reply comes half a second after the request, and what was under way after 0.9 s.
        let (intact, took, client) = replaced(nic, false, "server", Duration::from_millis(700));
        assert!(intact && took < Duration::from_secs(3), "{nic:?}: {took:?}");
        let answered = nic.revokes || client.metrics().withdrawals.get() == 1;
        assert!(answered, "{nic:?}: it had been answered");
    }
}

#[test]
fn a_reply_comes_when_the_last_access_has_ended_though_the_handler_did_not_wait_for_it() {
    for nic in SAFE {
        let Stage { world, fabric, node, server, client, .. } = stage(nic, 7);
        let rt = node.handle();
        let intact = world.block_on(&node, async move {
            let mut buffer = client.alloc(LEN).expect("memory");
            let options = CallOptions::within(&rt, Duration::from_secs(5));
            let reply = client.call(&peer(), HASTY, b"", Some(Bulk::write(&mut buffer)), options).await;
            assert!(matches!(reply, Err(RpcError::Remote(status)) if status.der == Der::BUSY));
            assert_eq!(buffer.len(), LEN, "answered: the caller has its buffer");
            buffer.fill(OWNER_BYTE);
            rt.sleep(Duration::from_secs(1)).await;
            buffer.iter().all(|byte| *byte == OWNER_BYTE)
        });
        assert!(intact, "{nic:?}");
        assert_eq!(server.metrics().replies_held.get(), 1, "{nic:?}");
        assert_eq!(fabric.stats().late_accesses, 0, "{nic:?}");
    }
}

#[test]
fn a_request_that_was_withdrawn_before_it_came_is_not_executed() {
    let Stage { world, fabric, node, server, client, .. } = stage(SOFTWARE, 8);
    let rt = node.handle();
    let metrics = Rc::clone(&server);
    world.block_on(&node, async move {
        let warm = CallOptions::within(&rt, Duration::from_secs(1));
        assert!(client.call(&peer(), 0x7fff, b"", None, warm).await.is_err());
        let before = metrics.metrics().requests.get();
        // Messages overtake each other by up to 20 ms.
        fabric.configure(|config| config.latency_max = Duration::from_millis(20));
        for _ in 0..50 {
            let mut buffer = client.alloc(LEN).expect("memory");
            let at = buffer.as_ptr() as usize;
            let options = CallOptions::within(&rt, Duration::from_secs(5));
            let to = peer();
            let call = client.call(&to, PUSH, b"", Some(Bulk::write(&mut buffer)), options);
            race(call, rt.sleep(Duration::from_micros(1))).await;
            let (buffer, _) = reuse(&client, &rt, buffer, at).await;
            rt.sleep(Duration::from_millis(200)).await;
            assert!(buffer.iter().all(|byte| *byte == OWNER_BYTE));
        }
        let executed = metrics.metrics().requests.get() - before;
        assert!(executed < 95, "some of the 50 came after their withdrawals: {executed} with those");
    });
}

#[test]
fn a_repeat_of_a_client_whose_clock_has_jumped_ends_nothing_that_is_being_executed() {
    let Stage { world, fabric, node, server, client, .. } = stage(SOFTWARE, 10);
    // The request is repeated while its memory is being written to.
    fabric.configure(|config| config.per_mebibyte = Duration::from_millis(400));
    let (rt, jumping) = (node.handle(), node.clone());
    world.block_on(&node, async move {
        let mut buffer = client.alloc(LEN).expect("memory");
        buffer.fill(0);
        let options = CallOptions::within(&rt, Duration::from_secs(5));
        let to = peer();
        let call = client.call(&to, PUSH, b"", Some(Bulk::write(&mut buffer)), options);
        let jump = async {
            rt.sleep(Duration::from_millis(100)).await;
            jumping.set_clock_skew(10_000_000_000);
            core::future::pending::<()>().await;
        };
        let Either::First(reply) = race(call, jump).await else { panic!("the call ends first") };
        reply.expect("the reply to what was being executed");
        assert!(buffer.iter().all(|byte| *byte == SERVER_BYTE));
    });
    assert!(server.metrics().skew_refused.get() > 0, "it was repeated");
}

#[test]
fn a_server_of_another_release_does_not_speak_for_the_one_that_had_the_request() {
    let Stage { world, fabric, server_node, node, client, server } = stage(SOFTWARE, 11);
    let (rt, inner, metrics) = (node.handle(), world.clone(), Rc::clone(&client));
    world.block_on(&node, async move {
        let mut buffer = client.alloc(LEN).expect("memory");
        let at = buffer.as_ptr() as usize;
        let options = CallOptions::within(&rt, Duration::from_secs(5));
        let to = peer();
        let call = client.call(&to, PUSH, b"", Some(Bulk::write(&mut buffer)), options);
        let again = Cell::new(None);
        let replaced = async {
            rt.sleep(Duration::from_millis(3)).await;
            let config = RpcConfig { versions: 90..=91, ..RpcConfig::default() };
            again.set(Some(restart(&inner, &fabric, &server_node, config)));
            core::future::pending::<()>().await;
        };
        let Either::First(reply) = race(call, replaced).await else { panic!("the call ends first") };
        assert!(matches!(reply, Err(RpcError::Version { .. })));
        assert!(rt.now() < options.deadline && buffer.is_empty(), "the memory is kept from use");
        reuse(&client, &rt, buffer, at).await;
        assert!(rt.now() > options.deadline);
    });
    drop(server);
    assert_eq!(metrics.metrics().withdrawals_waited.get(), 1);
}
