//! RPC on the simulated fabric: one server, several clients, every fault the fabric knows.

use crate::reverse;

use core::cell::{Cell, RefCell};
use core::ops::RangeInclusive;
use core::time::Duration;
use reverse::reverse;
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_fabric::sim::Fabric;
use weir_proto::capability::SystemKey;
use weir_proto::{Der, TenantId};
use weir_rpc::{
    Bulk, CallOptions, Keys, PATIENCE_MAX, Peer, Request, Retry, Rpc, RpcConfig, RpcError, Status,
};
use weir_runtime::sim::{Node, World};
use weir_runtime::{Handle, join_all};

const ECHO: u16 = 0x7001;
const COUNT: u16 = 0x7002;
const REVERSE: u16 = 0x7003;
const SLOW: u16 = 0x7004;
const ROOM: u16 = 0x7005;
const LEFT: u16 = 0x7006;
const PORT: u16 = 31_416;

/// Effects that survive the server's crashes: how often each request body was executed.
type Effects = Rc<RefCell<BTreeMap<Vec<u8>, u32>>>;

struct Cluster {
    world: World,
    fabric: Fabric,
    server: Node,
}

impl Cluster {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let fabric = Fabric::new(&world);
        let server = world.node("server");
        Self { world, fabric, server }
    }

    fn serve(&self, effects: &Effects, config: RpcConfig) -> Rc<Rpc> {
        serve(&self.fabric, &self.server, effects, config)
    }

    fn client(&self, name: &str) -> (Node, Handle, Rc<Rpc>) {
        self.client_with(name, RpcConfig::default())
    }

    fn client_with(&self, name: &str, config: RpcConfig) -> (Node, Handle, Rc<Rpc>) {
        let node = self.world.node(name);
        let endpoint = self.fabric.endpoint(&node, None);
        let rpc = Rpc::new(node.handle(), endpoint, config);
        (node.clone(), node.handle(), rpc)
    }
}

#[test]
fn a_server_that_is_starting_is_asked_again_and_one_that_has_started_says_what_it_lacks() {
    let cluster = Cluster::new(11);
    let server = Rpc::new(
        cluster.server.handle(),
        cluster.fabric.endpoint(&cluster.server, Some(PORT)),
        RpcConfig::default(),
    );
    server.set_starting(true);
    let (node, rt, client) = cluster.client("client");
    let late = cluster.server.handle();
    late.clone().spawn(async move {
        late.sleep(Duration::from_millis(300)).await;
        server.serve(ECHO, Rc::new(|request: Request| async move { Ok(request.body().to_vec()) }));
        server.set_starting(false);
        core::future::pending::<()>().await;
    });
    let (echoed, unknown) = cluster.world.block_on(&node, async move {
        let options = || CallOptions::within(&rt, Duration::from_secs(5));
        let echoed = client.call(&peer(), ECHO, b"early", None, options()).await;
        let unknown = client.call(&peer(), 0x7fff, b"", None, options()).await;
        (echoed.map(|reply| reply.to_vec()), unknown.map(|_| ()))
    });
    assert_eq!(echoed.expect("served in the end"), b"early");
    assert!(matches!(unknown, Err(RpcError::Remote(status)) if status.der == Der::NOSYS));
}

fn serve(fabric: &Fabric, node: &Node, effects: &Effects, config: RpcConfig) -> Rc<Rpc> {
    let rt = node.handle();
    let rpc = Rpc::new(rt.clone(), fabric.endpoint(node, Some(PORT)), config);
    rpc.serve(ECHO, Rc::new(|request: Request| async move { Ok(request.body().to_vec()) }));
    let effects = Rc::clone(effects);
    let pause = rt.clone();
    rpc.serve(
        COUNT,
        Rc::new(move |request: Request| {
            let (effects, rt) = (Rc::clone(&effects), pause.clone());
            async move {
                rt.sleep(Duration::from_micros(rt.random_u64() % 2000)).await;
                *effects.borrow_mut().entry(request.body().to_vec()).or_default() += 1;
                Ok(request.body().to_vec())
            }
        }),
    );
    rpc.serve(REVERSE, Rc::new(reverse));
    let slow = rt;
    rpc.serve(
        SLOW,
        Rc::new(move |_: Request| {
            let rt = slow.clone();
            async move {
                rt.sleep(Duration::from_millis(50)).await;
                Err(Status::new(Der::BUSY, "always busy"))
            }
        }),
    );
    rpc
}

/// Settings of a run's two sides: every other run authenticates its messages.
fn settings(seed: u64) -> [RpcConfig; 2] {
    let key = SystemKey([7; 32]);
    let keys = [Keys::System(key.clone()), Keys::Tenant(key.tenant(TenantId(3)))];
    keys.map(|keys| RpcConfig { keys: (seed % 2 == 1).then_some(keys), ..RpcConfig::default() })
}

/// The seeds to run: as many as said, or the one that `WEIR_SIM_SEED` names.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("WEIR_SIM_SEED").map(|seed| seed.parse()) {
        Ok(Ok(seed)) => vec![seed],
        _ => (0..count).collect(),
    }
}

/// How many of something a run of all seeds must show; a single seed need not show any.
fn expected(count: u64) -> u64 {
    if std::env::var_os("WEIR_SIM_SEED").is_some() { 0 } else { count }
}

fn peer() -> Peer {
    Peer::new("server", PORT)
}

#[test]
fn a_request_comes_back_with_its_reply() {
    let cluster = Cluster::new(1);
    let server = cluster.serve(&Effects::default(), RpcConfig::default());
    let (node, rt, rpc) = cluster.client("client");
    let id = server.id();
    cluster.world.block_on(&node, async move {
        let options = CallOptions::within(&rt, Duration::from_secs(1));
        let reply = rpc.call(&peer(), ECHO, b"hello", None, options).await.expect("a reply");
        assert_eq!((&reply[..], reply.server()), (&b"hello"[..], id));
        let refused = rpc.call(&peer(), SLOW, b"", None, options).await;
        assert_eq!(refused.err(), Some(RpcError::Remote(Status::new(Der::BUSY, "always busy"))));
        let unknown = rpc.call(&peer(), 0x7fff, b"", None, options).await;
        assert_eq!(unknown.err().map(|error| error.der()), Some(Der::NOSYS));
        let large = vec![0; weir_rpc::INLINE_MAX + 1];
        let refused = rpc.call(&peer(), ECHO, &large, None, options).await;
        assert!(matches!(refused, Err(RpcError::TooLarge { .. })));
        let whole = rpc.call(&peer(), ECHO, &large[1..], None, options).await.expect("a reply");
        assert_eq!(whole.len(), weir_rpc::INLINE_MAX);
    });
}

#[test]
fn bulk_moves_through_scattered_segments_both_ways() {
    let cluster = Cluster::new(2);
    let _server = cluster.serve(&Effects::default(), RpcConfig::default());
    let (node, rt, rpc) = cluster.client("client");
    cluster.world.block_on(&node, async move {
        let total = 3_000_000;
        let bytes: Vec<u8> = (0..total).map(|n: u32| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
        let mut source = rpc.alloc(bytes.len()).expect("memory");
        source.copy_from_slice(&bytes);
        let mut one = rpc.alloc(1_000_001).expect("memory");
        let mut two = rpc.alloc(2_000_000).expect("memory");
        let bulk = Bulk::new()
            .and_read(&source, 0..7)
            .and_read(&source, 7..2_500_000)
            .and_read(&source, 2_500_000..bytes.len())
            .and_write(&mut one, 1..1_000_001)
            .and_write(&mut two, 0..2_000_000);
        let options = CallOptions::within(&rt, Duration::from_secs(5));
        rpc.call(&peer(), REVERSE, b"", Some(bulk), options).await.expect("a reply");
        let back: Vec<u8> = one[1..].iter().chain(two.iter()).rev().copied().collect();
        assert!(back == bytes, "the reversed bytes came back");
    });
}

#[test]
fn a_request_without_memory_is_given_none_of_an_earlier_one() {
    let cluster = Cluster::new(3);
    let server = cluster.serve(&Effects::default(), RpcConfig::default());
    let room = |request: Request| async move {
        Ok((request.bulk_len() + request.bulk_room()).to_le_bytes().to_vec())
    };
    server.serve(ROOM, Rc::new(room));
    let (node, rt, rpc) = cluster.client("client");
    let rooms = cluster.world.block_on(&node, async move {
        let options = CallOptions::within(&rt, Duration::from_secs(1));
        let memory = rpc.alloc(100).expect("memory");
        let with = rpc.call(&peer(), ROOM, b"", Some(Bulk::read(&memory)), options).await;
        let without = rpc.call(&peer(), ROOM, b"", None, options).await;
        [with, without].map(|reply| reply.map(|reply| reply.to_vec()))
    });
    assert_eq!(rooms, [100u64, 0].map(|room| Ok(room.to_le_bytes().to_vec())));
}

/// Clients count distinct bodies while messages get lost, duplicated and cut off.
fn exactly_once(seed: u64) -> (u64, u64) {
    let cluster = Cluster::new(seed);
    let effects = Effects::default();
    let server = cluster.serve(&effects, settings(seed)[0].clone());
    cluster.fabric.configure(|config| (config.loss, config.duplicate) = (0.1, 0.05));
    let (fabric, world) = (cluster.fabric.clone(), cluster.world.clone());
    let cut = [world.node("client-0"), cluster.server.clone()];
    cluster.world.schedule(Duration::from_millis(5), move || fabric.partition(&[&cut[0]], &[&cut[1]]));
    let fabric = cluster.fabric.clone();
    cluster.world.schedule(Duration::from_millis(1500), move || fabric.heal());
    let clients: Vec<_> =
        (0..3).map(|n| cluster.client_with(&format!("client-{n}"), settings(seed)[1].clone())).collect();
    let tasks: Vec<_> = clients
        .iter()
        .enumerate()
        .map(|(n, (_, rt, rpc))| {
            let (inner, rpc) = (rt.clone(), Rc::clone(rpc));
            rt.spawn(async move {
                let calls = (0..20u8).map(|i| {
                    let (rt, rpc) = (inner.clone(), Rc::clone(&rpc));
                    async move {
                        rt.sleep(Duration::from_micros(rt.random_u64() % 20_000)).await;
                        let body = [u8::try_from(n).expect("few"), i];
                        let options = CallOptions::within(&rt, Duration::from_mins(1));
                        let reply = rpc.call(&peer(), COUNT, &body, None, options).await.expect("a reply");
                        assert_eq!(&reply[..], body);
                    }
                });
                join_all(calls).await;
            })
        })
        .collect();
    let node = cluster.world.node("observer");
    cluster.world.block_on(&node, async move {
        for task in tasks {
            task.await.expect("no client crashed");
        }
    });
    let effects = effects.borrow();
    assert_eq!(effects.len(), 60, "seed {seed}");
    assert!(effects.values().all(|n| *n == 1), "seed {seed}: a request was executed twice");
    let metrics = server.metrics();
    (metrics.repeats_answered.get() + metrics.repeats_running.get(), cluster.world.trace_hash())
}

#[test]
fn every_request_is_executed_exactly_once_under_loss_duplication_and_partition() {
    let mut repeats = 0;
    for seed in seeds(300) {
        repeats += exactly_once(seed).0;
    }
    assert!(repeats >= expected(300), "the faults really made servers see requests again: {repeats}");
}

/// Clients have their memory reversed while messages and transfers get lost; whatever is answered must be right.
fn bulk_survives_faults(seed: u64) -> u64 {
    let cluster = Cluster::new(seed);
    let server = cluster.serve(&Effects::default(), settings(seed)[0].clone());
    cluster.fabric.configure(|config| {
        (config.loss, config.duplicate) = (0.05, 0.05);
        config.transfer_timeout = Duration::from_millis(50);
    });
    let (node, rt, rpc) = cluster.client_with("client", settings(seed)[1].clone());
    let client = Rc::clone(&rpc);
    cluster.world.block_on(&node, async move {
        let calls = (0..10u8).map(|n| {
            let (rt, rpc) = (rt.clone(), Rc::clone(&client));
            async move {
                let len = 6000 + usize::try_from(rt.random_u64() % 20_000).expect("small");
                let mut source = rpc.alloc(len).expect("memory");
                source.iter_mut().zip((0u8..=250).cycle()).for_each(|(byte, at)| *byte = at ^ n);
                let mut target = rpc.alloc(len).expect("memory");
                let bulk = (0..6).fold(Bulk::new(), |bulk, part| {
                    let range = len * part / 6..len * (part + 1) / 6;
                    bulk.and_read(&source, range)
                });
                let bulk = bulk.and_write(&mut target, 0..len);
                let options = CallOptions::within(&rt, Duration::from_mins(1));
                match rpc.call(&peer(), REVERSE, b"", Some(bulk), options).await {
                    Ok(_) => assert!(target.iter().rev().eq(source.iter()), "seed {seed}"),
                    Err(error) => assert_eq!(error.der(), Der::UNREACH, "seed {seed}: {error}"),
                }
            }
        });
        join_all(calls).await;
        rt.sleep(Duration::from_mins(2)).await;
    });
    assert_eq!(rpc.endpoint().buffers().used(), 0, "seed {seed}: client memory leaked");
    assert_eq!(server.endpoint().buffers().used(), 0, "seed {seed}: server memory leaked");
    assert_eq!(server.metrics().running.get(), 0, "seed {seed}: a request never ended");
    server.metrics().bulk_retries.get()
}

#[test]
fn bulk_data_is_right_or_refused_under_faults_and_no_memory_is_lost() {
    let retries: u64 = seeds(80).into_iter().map(bulk_survives_faults).sum();
    assert!(retries >= expected(20), "transfers were really tried again: {retries}");
}

#[test]
fn the_whole_stack_is_deterministic() {
    for seed in [3, 4, 5] {
        assert_eq!(exactly_once(seed), exactly_once(seed));
    }
}

/// A server that crashes again and again while clients call it. Effects may repeat across a restart, but never get
/// lost, and every call ends with a reply.
fn survives_crashes(seed: u64) -> u64 {
    let cluster = Cluster::new(seed);
    let effects = Effects::default();
    let running = Rc::new(RefCell::new(Some(cluster.serve(&effects, settings(seed)[0].clone()))));
    let incarnations = Rc::new(Cell::new(1));
    for crash in 1..=3u64 {
        let (world, node, slot) = (cluster.world.clone(), cluster.server.clone(), Rc::clone(&running));
        let at = Duration::from_millis(crash * 400 + seed % 97);
        cluster.world.schedule(at, move || {
            world.crash(&node);
            slot.borrow_mut().take();
        });
        let (world, node, slot) = (cluster.world.clone(), cluster.server.clone(), Rc::clone(&running));
        let (fabric, effects, count) =
            (cluster.fabric.clone(), Rc::clone(&effects), Rc::clone(&incarnations));
        cluster.world.schedule(at + Duration::from_millis(seed % 200), move || {
            world.restart(&node);
            count.set(count.get() + 1);
            *slot.borrow_mut() = Some(serve(&fabric, &node, &effects, settings(seed)[0].clone()));
        });
    }
    let (node, rt, rpc) = cluster.client_with("client", settings(seed)[1].clone());
    let metrics = Rc::clone(&rpc);
    cluster.world.block_on(&node, async move {
        for n in 0..200u32 {
            rt.sleep(Duration::from_millis(rt.random_u64() % 20)).await;
            let options = CallOptions::within(&rt, Duration::from_secs(30));
            let reply = rpc.call(&peer(), COUNT, &n.to_le_bytes(), None, options).await;
            assert!(reply.is_ok(), "request {n}: {reply:?}");
        }
    });
    let effects = effects.borrow();
    assert_eq!(effects.len(), 200, "seed {seed}: nothing that was answered got lost");
    assert!(effects.values().all(|n| *n <= incarnations.get()), "seed {seed}");
    metrics.metrics().retries.get()
}

#[test]
fn calls_survive_crashes_and_restarts_of_the_server() {
    let retries: u64 = seeds(100).into_iter().map(survives_crashes).sum();
    assert!(retries >= expected(50), "crashes really hit requests: {retries} retries");
}

#[test]
fn a_client_of_another_version_is_told_both_version_ranges() {
    let cluster = Cluster::new(7);
    let server = cluster.serve(&Effects::default(), RpcConfig { versions: 1..=2, ..RpcConfig::default() });
    let config = RpcConfig { versions: 8..=9, ..RpcConfig::default() };
    let (node, rt, rpc) = cluster.client_with("client", config);
    let error = cluster.world.block_on(&node, async move {
        let options = CallOptions::within(&rt, Duration::from_secs(5));
        rpc.call(&peer(), ECHO, b"", None, options).await.err()
    });
    assert_eq!(error, Some(RpcError::Version { peer: peer(), ours: 8..=9, theirs: 1..=2 }));
    let text = error.map(|error| error.to_string()).unwrap_or_default();
    assert_eq!(text, "server:31416 speaks fabric protocol 1 to 2, this side 8 to 9; upgrade the older one");
    assert_eq!(server.metrics().version_refused.get(), 1);
    assert!(cluster.world.now().as_nanos() < 1_000_000_000, "no retries on a version conflict");
}

/// The bytes of one small request and its reply, once there is contact, between sides of these versions.
fn bytes_of_a_request(server: RangeInclusive<u16>, client: RangeInclusive<u16>) -> u64 {
    let cluster = Cluster::new(17);
    let _server = cluster.serve(&Effects::default(), RpcConfig { versions: server, ..RpcConfig::default() });
    let config = RpcConfig { versions: client, ..RpcConfig::default() };
    let (node, rt, rpc) = cluster.client_with("client", config);
    cluster.world.block_on(&node, async move {
        let mut moved = 0;
        for n in 0..2 {
            let bytes = || rpc.metrics().bytes_sent.get() + rpc.metrics().bytes_received.get();
            let before = bytes();
            let options = CallOptions::within(&rt, Duration::from_secs(5));
            let reply = rpc.call(&peer(), COUNT, b"four", None, options).await;
            assert!(reply.is_ok(), "request {n}: {reply:?}");
            moved = bytes() - before;
        }
        assert_eq!(rpc.metrics().retries.get(), 0);
        moved
    })
}

#[test]
fn sides_that_both_know_the_short_header_use_it_and_others_the_full_one() {
    assert_eq!(bytes_of_a_request(1..=2, 1..=2), 2 * (48 + 4));
    assert_eq!(bytes_of_a_request(1..=1, 1..=2), 2 * (72 + 4));
    assert_eq!(bytes_of_a_request(1..=2, 1..=1), 2 * (72 + 4));
}

#[test]
fn a_server_that_comes_back_as_an_older_release_is_talked_to_in_its_version() {
    let cluster = Cluster::new(18);
    let both = || RpcConfig { versions: 1..=2, ..RpcConfig::default() };
    let newer = cluster.serve(&Effects::default(), both());
    let (node, rt, rpc) = cluster.client_with("client", both());
    let (fabric, server) = (cluster.fabric.clone(), cluster.server.clone());
    let older = cluster.world.block_on(&node, async move {
        let options = || CallOptions::within(&rt, Duration::from_secs(10));
        rpc.call(&peer(), COUNT, b"new", None, options()).await.expect("contact is made");
        drop(newer);
        let versions = RpcConfig { versions: 1..=1, ..RpcConfig::default() };
        let older = serve(&fabric, &server, &Effects::default(), versions);
        rpc.call(&peer(), COUNT, b"old", None, options()).await.expect("it answers");
        older
    });
    assert_eq!(older.metrics().requests.get(), 1);
}

#[test]
fn a_call_without_a_server_ends_at_its_deadline_and_says_so() {
    let cluster = Cluster::new(8);
    let (node, rt, rpc) = cluster.client("client");
    let began = cluster.world.now();
    let error = cluster.world.block_on(&node, async move {
        let options = CallOptions::within(&rt, Duration::from_secs(3));
        rpc.call(&peer(), ECHO, b"", None, options).await.err()
    });
    let error = error.expect("nobody is there");
    assert!(matches!(error, RpcError::Unreachable { .. }), "{error:?}");
    assert_eq!(error.to_string().matches("can't be reached").count(), 1, "{error}");
    let took = cluster.world.now() - began;
    assert!(took >= Duration::from_secs(3) && took < Duration::from_millis(3100), "{took:?}");
}

#[test]
fn a_client_that_would_wait_for_ever_is_served_for_a_week_and_a_day_at_most() {
    let cluster = Cluster::new(12);
    let server = cluster.serve(&Effects::default(), RpcConfig::default());
    let rt = cluster.server.handle();
    server.serve(
        LEFT,
        Rc::new(move |request: Request| {
            let left = request.deadline().saturating_duration_since(rt.now());
            async move { Ok(left.as_millis().to_le_bytes().to_vec()) }
        }),
    );
    let (node, rt, rpc) = cluster.client("client");
    let left = cluster.world.block_on(&node, async move {
        let options = CallOptions::within(&rt, Duration::from_hours(24 * 365));
        let reply = rpc.call(&peer(), LEFT, b"", None, options).await.expect("a reply");
        u128::from_le_bytes(reply[..].try_into().expect("a number"))
    });
    let whole = PATIENCE_MAX.as_millis();
    assert!((whole - 100..=whole).contains(&left), "{left} ms");
}

#[test]
fn a_request_that_may_not_be_sent_again_is_not() {
    let cluster = Cluster::new(9);
    let server = cluster.serve(&Effects::default(), RpcConfig::default());
    let (node, rt, rpc) = cluster.client("client");
    let (fabric, inner) = (cluster.fabric.clone(), rt.clone());
    let client = Rc::clone(&rpc);
    let error = cluster.world.block_on(&node, async move {
        let options = CallOptions::within(&inner, Duration::from_secs(5));
        client.call(&peer(), ECHO, b"", None, options).await.expect("contact is made");
        fabric.configure(|config| (config.loss, config.loss_reported) = (1.0, 0.0));
        let options = CallOptions::within(&inner, Duration::from_secs(5)).once();
        assert_eq!(options.retry, Retry::Never);
        client.call(&peer(), COUNT, b"", None, options).await.err()
    });
    assert!(matches!(error, Some(RpcError::TimedOut { tries: 1, .. })), "{error:?}");
    assert_eq!((rpc.metrics().retries.get(), server.metrics().requests.get()), (0, 1));
}

#[test]
fn credits_bound_what_is_in_flight_and_the_rest_waits_its_turn() {
    let cluster = Cluster::new(10);
    let server = cluster.serve(&Effects::default(), RpcConfig::default());
    let config = RpcConfig { credits: 4, ..RpcConfig::default() };
    let (node, rt, rpc) = cluster.client_with("client", config);
    let watch = Rc::clone(&server);
    cluster.world.block_on(&node, async move {
        let most = Rc::new(Cell::new(0));
        let (seen, inner) = (Rc::clone(&most), rt.clone());
        let watcher = rt.spawn(async move {
            loop {
                seen.set(seen.get().max(watch.metrics().running.get()));
                inner.sleep(Duration::from_millis(1)).await;
            }
        });
        let options = CallOptions::within(&rt, Duration::from_secs(30));
        let to = peer();
        let calls = (0..40).map(|_| rpc.call(&to, SLOW, b"", None, options));
        let results = join_all(calls).await;
        watcher.abort();
        assert!(results.iter().all(|result| matches!(result, Err(RpcError::Remote(_)))));
        assert_eq!(most.get(), 4);
    });
}

#[test]
fn the_time_for_an_answer_begins_when_a_request_is_sent_whatever_it_waited_for_before() {
    let cluster = Cluster::new(10);
    let server = cluster.serve(&Effects::default(), RpcConfig::default());
    let way = Duration::from_millis(10);
    cluster.fabric.configure(|config| (config.latency_min, config.latency_max) = (way, way));
    // A way there and back, and half of one; the first call makes contact before it, the second waits for a credit.
    let config = RpcConfig { credits: 1, attempt_min: way * 3, ..RpcConfig::default() };
    let (node, rt, rpc) = cluster.client_with("client", config);
    let client = Rc::clone(&rpc);
    cluster.world.block_on(&node, async move {
        let options = CallOptions::within(&rt, Duration::from_secs(1));
        let to = peer();
        let results = join_all((0..2).map(|_| client.call(&to, ECHO, b"", None, options))).await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    });
    assert_eq!((rpc.metrics().retries.get(), server.metrics().requests.get()), (0, 2));
}

#[test]
fn an_overloaded_server_sends_clients_away_and_serves_them_later() {
    let cluster = Cluster::new(11);
    let config = RpcConfig { running_max: 3, ..RpcConfig::default() };
    let server = cluster.serve(&Effects::default(), config);
    let (node, rt, rpc) = cluster.client("client");
    let client = Rc::clone(&rpc);
    cluster.world.block_on(&node, async move {
        let options = CallOptions::within(&rt, Duration::from_mins(1));
        let to = peer();
        let results = join_all((0..30).map(|_| client.call(&to, SLOW, b"", None, options))).await;
        assert!(results.iter().all(|result| matches!(result, Err(RpcError::Remote(_)))), "{results:?}");
    });
    assert!(server.metrics().overloaded.get() > 0);
    assert_eq!(server.metrics().overloaded.get(), rpc.metrics().overload_hints.get());
    assert_eq!(server.metrics().requests.get(), 30, "each was executed once");
}

#[test]
fn a_crash_and_the_end_of_the_world_free_servers_that_hold_themselves() {
    struct Target {
        rpc: Rc<Rpc>,
    }
    let cluster = Cluster::new(16);
    let start = || {
        let endpoint = cluster.fabric.endpoint(&cluster.server, Some(PORT));
        let target =
            Rc::new(Target { rpc: Rpc::new(cluster.server.handle(), endpoint, RpcConfig::default()) });
        let held = Rc::clone(&target);
        let handler = move |_: Request| {
            let _held = Rc::clone(&held);
            async { Ok(Vec::new()) }
        };
        target.rpc.serve(ECHO, Rc::new(handler));
        Rc::downgrade(&target)
    };
    let first = start();
    assert!(first.upgrade().is_some());
    cluster.world.crash(&cluster.server);
    assert!(first.upgrade().is_none(), "the crash freed the first");
    cluster.world.restart(&cluster.server);
    let second = start();
    assert!(second.upgrade().is_some());
    drop(cluster.world);
    assert!(second.upgrade().is_none(), "the end of the world freed the second");
}

#[test]
fn a_slow_server_is_not_mistaken_for_a_dead_one() {
    let cluster = Cluster::new(15);
    let server = cluster.serve(&Effects::default(), RpcConfig::default());
    let slow = cluster.server.handle();
    server.serve(
        0x7005,
        Rc::new(move |_: Request| {
            let rt = slow.clone();
            async move {
                rt.sleep(Duration::from_secs(20)).await;
                Ok(vec![1])
            }
        }),
    );
    let (node, rt, rpc) = cluster.client("client");
    let client = Rc::clone(&rpc);
    cluster.world.block_on(&node, async move {
        let options = CallOptions::within(&rt, Duration::from_mins(1));
        let began = rt.now();
        client.call(&peer(), 0x7005, b"", None, options).await.expect("a reply, late");
        assert!(rt.now() - began < Duration::from_millis(20_100), "the reply was taken when it came");
    });
    assert_eq!((rpc.metrics().disconnects.get(), server.metrics().requests.get()), (0, 1));
    assert!(server.metrics().repeats_running.get() >= 5);
}

#[test]
fn a_clock_that_is_far_ahead_is_refused_and_a_small_skew_is_not() {
    let keys = Keys::System(SystemKey([5; 32]));
    for keys in [None, Some(keys)] {
        for (skew, works) in
            [(400_000_000, true), (-400_000_000, true), (5_000_000_000, false), (-5_000_000_000, false)]
        {
            let cluster = Cluster::new(12);
            let config = RpcConfig { keys: keys.clone(), ..RpcConfig::default() };
            let server = cluster.serve(&Effects::default(), config.clone());
            let (node, rt, client) = cluster.client_with("client", config);
            node.set_clock_skew(skew);
            let rpc = Rc::clone(&client);
            let result = cluster.world.block_on(&node, async move {
                let options = CallOptions::within(&rt, Duration::from_secs(2));
                rpc.call(&peer(), ECHO, b"", None, options).await.map(drop)
            });
            let told =
                result.as_ref().is_err_and(|error| error.to_string().contains("synchronise the clocks"));
            assert_eq!((result.is_ok(), told), (works, !works), "skew {skew}: {result:?}");
            // Who is behind refuses.
            let refused = [&server, &client].map(|rpc| rpc.metrics().skew_refused.get() > 0);
            assert_eq!(refused, [!works && skew > 0, !works && skew < 0], "skew {skew}");
        }
    }
}

#[test]
fn garbage_on_the_port_is_counted_and_harms_nobody() {
    let cluster = Cluster::new(13);
    let server = cluster.serve(&Effects::default(), RpcConfig::default());
    let vandal = cluster.fabric.endpoint(&cluster.world.node("vandal"), None);
    let resolving = vandal.resolve("server", PORT);
    let node = cluster.world.node("vandal");
    let address = cluster.world.block_on(&node, resolving).expect("a name").address;
    let to = vandal.insert(&address).expect("an address");
    let rng = weir_runtime::random::Random::new(13);
    for n in 0..1000u64 {
        let len = usize::try_from(rng.below(400)).expect("small");
        let mut bytes: Vec<u8> = (0..len).map(|_| rng.next_u64().to_le_bytes()[0]).collect();
        if n % 2 == 0 && len > 8 {
            bytes[..8].copy_from_slice(b"WEIR\x01\x00\x03\x00");
        }
        vandal.send(to, n, &[&bytes]).expect("accepted");
    }
    let (node, rt, rpc) = cluster.client("client");
    cluster.world.block_on(&node, async move {
        rt.sleep(Duration::from_millis(10)).await;
        let options = CallOptions::within(&rt, Duration::from_secs(1));
        rpc.call(&peer(), ECHO, b"still here", None, options).await.expect("a reply");
    });
    assert_eq!(server.metrics().malformed.get(), 1000);
}

#[test]
fn memory_of_a_call_that_timed_out_is_not_used_again_before_the_server_has_given_up() {
    let cluster = Cluster::new(14);
    let _server = cluster.serve(&Effects::default(), RpcConfig::default());
    let (node, rt, rpc) = cluster.client("client");
    let fabric = cluster.fabric.clone();
    let nodes = [node.clone(), cluster.server.clone()];
    cluster.world.block_on(&node, async move {
        let warm = CallOptions::within(&rt, Duration::from_secs(1));
        rpc.call(&peer(), ECHO, b"", None, warm).await.expect("contact is made");
        fabric.partition(&[&nodes[0]], &[&nodes[1]]);
        let mut buffer = rpc.alloc(1 << 20).expect("memory");
        let used = rpc.endpoint().buffers().used();
        let options = CallOptions::within(&rt, Duration::from_secs(1));
        let bulk = Bulk::write(&mut buffer);
        let error = rpc.call(&peer(), REVERSE, b"", Some(bulk), options).await.err();
        assert!(matches!(error, Some(RpcError::TimedOut { .. })), "{error:?}");
        drop(buffer);
        assert_eq!(rpc.endpoint().buffers().used(), used, "the memory stays out of the pool");
        rt.sleep(Duration::from_secs(3)).await;
        assert_eq!(rpc.endpoint().buffers().used(), 0, "and returns to it");
        // Memory that the pool doesn't own comes back to its owner only when it is safe.
        let mut own = weir_rpc::Buffer::from_vec(vec![0; 100]);
        let began = rt.now();
        let options = CallOptions::within(&rt, Duration::from_secs(1));
        // The contact still stands: one request goes out and is lost.
        fabric.heal();
        rpc.call(&peer(), ECHO, b"", None, CallOptions::within(&rt, Duration::from_secs(5)))
            .await
            .expect("healed");
        fabric.partition(&[&nodes[0]], &[&nodes[1]]);
        let bulk = Bulk::write(&mut own);
        let options = CallOptions { deadline: rt.now() + Duration::from_secs(1), ..options };
        let error = rpc.call(&peer(), REVERSE, b"", Some(bulk), options).await.err();
        assert!(matches!(error, Some(RpcError::TimedOut { .. })), "{error:?}");
        assert!(rt.now() - began >= Duration::from_secs(3), "{:?}", rt.now() - began);
    });
}
