//! Small requests to one peer share a message of the fabric; a lone one has its own.

use crate::port;

use core::cell::Cell;
use core::time::Duration;
use std::rc::Rc;
use weir_fabric::sim::Fabric;
use weir_fabric::{Options, libfabric, open, tested};
use weir_proto::Epoch;
use weir_proto::capability::SystemKey;
use weir_proto::limits::PROTOCOL_MAX;
use weir_rpc::wire::{Header, Kind};
use weir_rpc::{CallOptions, ClientId, Handler, Keys, Peer, Request, Rpc, RpcConfig, WorkQueue};
use weir_runtime::real::Executor;
use weir_runtime::sim::{Node, World};
use weir_runtime::{LocalBoxFuture, join_all};

const ECHO: u16 = 0x7001;
const PORT: u16 = 31_416;

struct Pair {
    world: World,
    fabric: Fabric,
    home: Node,
    server: Rc<Rpc>,
    client: Rc<Rpc>,
}

fn pair(seed: u64) -> Pair {
    let world = World::new(seed);
    let fabric = Fabric::new(&world);
    let (node, home) = (world.node("server"), world.node("client"));
    let config = RpcConfig { keys: Some(Keys::System(SystemKey([3; 32]))), ..RpcConfig::default() };
    let server = Rpc::new(node.handle(), fabric.endpoint(&node, Some(PORT)), config.clone());
    server.serve(ECHO, Rc::new(|request: Request| async move { Ok(request.body().to_vec()) }));
    let client = Rpc::new(home.handle(), fabric.endpoint(&home, None), config);
    Pair { world, fabric, home, server, client }
}

/// Calls so many at a time, `rounds` times one after another; bodies of this length.
fn talk(pair: &Pair, width: usize, rounds: usize, len: usize) {
    let (rt, rpc) = (pair.home.handle(), Rc::clone(&pair.client));
    pair.world.block_on(&pair.home, async move {
        let to = Peer::new("server", PORT);
        for round in 0..rounds {
            let bodies: Vec<Vec<u8>> =
                (0..width).map(|n| vec![u8::try_from((n + round) % 251).expect("small"); len]).collect();
            let options = CallOptions::within(&rt, Duration::from_mins(1));
            let calls = bodies.iter().map(|body| rpc.call(&to, ECHO, body, None, options));
            for (reply, body) in join_all(calls).await.iter().zip(&bodies) {
                assert_eq!(&reply.as_ref().expect("a reply")[..], &body[..]);
            }
        }
    });
}

/// Messages of the fabric, and messages in them, that the server received.
fn received(pair: &Pair) -> (u64, u64) {
    let fabric = pair.server.endpoint().counters().messages_received.get();
    (fabric, pair.server.metrics().messages_received.get())
}

#[test]
fn a_lone_request_is_a_message_of_its_own() {
    let pair = pair(1);
    talk(&pair, 1, 200, 64);
    let (fabric, messages) = received(&pair);
    assert_eq!((fabric, messages), (201, 201), "with the hello");
}

#[test]
fn requests_that_are_made_together_travel_together_and_large_ones_do_not() {
    let small = pair(2);
    talk(&small, 32, 50, 64);
    let (fabric, messages) = received(&small);
    assert_eq!(messages, 1601);
    assert!(fabric < messages / 4, "{fabric} for {messages}");
    assert_eq!(small.client.metrics().malformed.get() + small.server.metrics().malformed.get(), 0);
    let large = pair(3);
    talk(&large, 32, 5, 10_000);
    let (fabric, messages) = received(&large);
    assert_eq!(fabric, messages);
}

/// Echoes, and counts how many workers were hired for that.
#[derive(Default)]
struct Echo(Cell<u32>);

impl Handler for Echo {
    fn work(self: Rc<Self>, mut queue: WorkQueue) -> LocalBoxFuture<'static, ()> {
        self.0.set(self.0.get() + 1);
        Box::pin(async move {
            while let Some(request) = queue.next().await {
                queue.finish(Ok(request.body().to_vec()));
            }
        })
    }
}

/// A server and a client of one process, which have contact before they begin. Returns how many messages of the fabric the server
/// has received and sent, how many requests and replies were in them, and how many workers it took.
fn talk_for_real(provider: &str, width: usize, rounds: usize) -> ([u64; 2], [u64; 2], u32) {
    let executor = Executor::new().expect("an executor");
    let (rt, port) = (executor.handle(), port::free());
    let rpc = |options: Options| {
        let endpoint = open(&rt, &options).expect("an endpoint");
        Rpc::new(rt.clone(), endpoint, RpcConfig::default())
    };
    let server = rpc(Options::listen(provider, "127.0.0.1", port));
    let echo = Rc::new(Echo::default());
    server.serve(ECHO, Rc::clone(&echo) as Rc<dyn Handler>);
    let client = rpc(Options::near(provider, "127.0.0.1", port));
    let to = Peer::new("127.0.0.1", port);
    executor.block_on(async {
        for width in core::iter::once(1).chain(core::iter::repeat_n(width, rounds)) {
            let options = CallOptions::within(&rt, Duration::from_secs(20));
            let calls = (0..width).map(|_| client.call(&to, ECHO, &[7; 64], None, options));
            join_all(calls).await.iter().for_each(|reply| assert!(reply.is_ok(), "{provider}: {reply:?}"));
        }
    });
    let (fabric, messages) = (server.endpoint().counters(), server.metrics());
    (
        [fabric.messages_received.get(), fabric.messages_sent.get()],
        [messages.messages_received.get(), messages.messages_sent.get()],
        echo.0.get(),
    )
}

#[test]
fn requests_of_one_message_are_answered_in_one_though_each_is_executed_where_it_is_taken_out() {
    for provider in tested().into_iter().filter(|provider| !provider.starts_with("mercury/")) {
        if !libfabric::probe(provider).expect("built in").within_process() {
            continue;
        }
        // Of eight the first one goes out at once, because nothing else is under way then.
        let (fabric, messages, workers) = talk_for_real(provider, 8, 200);
        assert!(messages.iter().all(|count| *count >= 1602), "{provider}: {messages:?}");
        assert!(fabric[0] < messages[0] / 3, "{provider}: {fabric:?} for {messages:?}");
        assert!(fabric[1] <= fabric[0], "{provider}: {fabric:?} for {messages:?}");
        // Requests that wait for their turn have a worker each.
        assert!(workers < 7, "{provider}: {workers} workers");
        let (fabric, messages, _) = talk_for_real(provider, 1, 200);
        assert_eq!(fabric, messages, "{provider}: lone ones");
    }
}

#[test]
fn what_was_sent_together_is_sent_again_when_it_gets_lost_together() {
    for seed in 10..30 {
        let pair = pair(seed);
        pair.fabric.configure(|config| (config.loss, config.duplicate) = (0.2, 0.1));
        talk(&pair, 20, 5, 64);
        assert!(pair.client.metrics().retries.get() > 0, "seed {seed}");
        assert_eq!(pair.server.metrics().requests.get(), 100, "seed {seed}: each was executed once");
    }
}

#[test]
fn what_was_sent_together_is_missed_at_once_though_the_call_that_came_first_has_been_dropped() {
    let pair = pair(40);
    talk(&pair, 1, 1, 5);
    pair.fabric.configure(|config| (config.loss, config.loss_reported) = (1.0, 1.0));
    let (rt, rpc, fabric) = (pair.home.handle(), Rc::clone(&pair.client), pair.fabric.clone());
    let began = rt.now();
    pair.world.block_on(&pair.home, async move {
        let to = Peer::new("server", PORT);
        let options = CallOptions::within(&rt, Duration::from_mins(1));
        let call = |body: &'static [u8]| rpc.call(&to, ECHO, body, None, options);
        // One that goes out alone, and two that share a message; they are lost on the way.
        let gone = async {
            drop(rt.timeout(Duration::from_nanos(100), join_all([call(b"alone"), call(b"first")])).await);
            fabric.configure(|config| config.loss = 0.0);
        };
        let last = async {
            assert_eq!(&call(b"last").await.expect("a reply")[..], b"last");
            assert!(rt.now() - began < Duration::from_millis(100), "after {:?}", rt.now() - began);
        };
        let (gone, last): (LocalBoxFuture<'_, ()>, LocalBoxFuture<'_, ()>) = (Box::pin(gone), Box::pin(last));
        join_all([gone, last]).await;
    });
}

#[test]
fn sealed_messages_of_all_lengths_get_through() {
    // Small ones are put together in one piece.
    let pair = pair(5);
    for len in (0..400).chain([4000]) {
        talk(&pair, 1, 1, len);
    }
    let metrics = [pair.client.metrics(), pair.server.metrics()];
    assert_eq!(metrics.map(|metrics| metrics.unauthenticated.get() + metrics.malformed.get()), [0, 0]);
}

#[test]
fn garbage_behind_a_message_harms_only_itself() {
    let pair = pair(4);
    talk(&pair, 1, 1, 5);
    let vandal = pair.fabric.endpoint(&pair.world.node("vandal"), None);
    let node = pair.world.node("vandal");
    let address = pair.world.block_on(&node, vandal.resolve("server", PORT)).expect("a name").address;
    let to = vandal.insert(&address).expect("an address");
    let header = Header::new(Kind::Request, PROTOCOL_MAX, ClientId::new(5), 1, Epoch(1)).encode();
    for garbage in [&b"WEIR"[..], &[0xff; 500], &header[..50]] {
        vandal.send(to, 0, &[&header, garbage]).expect("accepted");
    }
    pair.world.run_for(Duration::from_millis(10));
    let metrics = pair.server.metrics();
    assert_eq!(
        (metrics.malformed.get(), metrics.unknown_sessions.get()),
        (3, 3),
        "each part counts for itself"
    );
    talk(&pair, 4, 4, 64);
}
