//! Contact with servers that take long to answer, and with those that are gone when they are asked after a pause.

use core::cell::Cell;
use core::time::Duration;
use std::rc::Rc;
use weir_fabric::sim::Fabric;
use weir_proto::TenantId;
use weir_proto::capability::SystemKey;
use weir_rpc::{CallOptions, Keys, Peer, Reply, Request, Rpc, RpcConfig, RpcError};
use weir_runtime::sim::{Node, World};
use weir_runtime::{Handle, join_all};

const COUNT: u16 = 0x7001;
const SLOW: u16 = 0x7002;
const PORT: u16 = 31_420;
const KEY: SystemKey = SystemKey([9; 32]);

/// How long callers wait, as those of `weir kv put` do.
const PATIENCE: Duration = Duration::from_secs(30);

fn guest(world: &World, fabric: &Fabric, name: &str) -> (Node, Rc<Rpc>) {
    let node = world.node(name);
    let config = RpcConfig { keys: Some(Keys::Tenant(KEY.tenant(TenantId(5)))), ..RpcConfig::default() };
    let rpc = Rpc::new(node.handle(), fabric.endpoint(&node, None), config);
    (node, rpc)
}

struct Stage {
    world: World,
    fabric: Fabric,
    host: Node,
    node: Node,
    client: Rc<Rpc>,
    executed: Rc<Cell<u32>>,
}

impl Stage {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let fabric = Fabric::new(&world);
        let host = world.node("host");
        fabric.alias("server", &host);
        // What is lost is lost without a word.
        fabric.configure(|config| config.loss_reported = 0.0);
        let (node, client) = guest(&world, &fabric, "client");
        Self { world, fabric, host, node, client, executed: Rc::default() }
    }

    fn serve(&self, node: &Node) -> Rc<Rpc> {
        let config = RpcConfig { keys: Some(Keys::System(KEY)), ..RpcConfig::default() };
        let server = Rpc::new(node.handle(), self.fabric.endpoint(node, Some(PORT)), config);
        let executed = Rc::clone(&self.executed);
        server.serve(
            COUNT,
            Rc::new(move |_: Request| {
                executed.set(executed.get() + 1);
                async { Ok(Vec::new()) }
            }),
        );
        server
    }

    /// From now on every message takes half of this.
    fn take(&self, round_trip: Duration) {
        self.fabric.configure(|config| {
            (config.latency_min, config.latency_max) = (round_trip / 2, round_trip / 2);
        });
    }

    /// Makes calls side by side. What became of them, and how long they took.
    fn call(&self, count: usize) -> (Vec<Result<(), RpcError>>, Duration) {
        let (rpc, rt) = (Rc::clone(&self.client), self.node.handle());
        self.world.block_on(&self.node, async move {
            let began = rt.now();
            let all = join_all((0..count).map(|_| ask(&rpc, &rt))).await;
            (all.into_iter().map(|one| one.map(drop)).collect(), rt.now() - began)
        })
    }
}

async fn ask(rpc: &Rpc, rt: &Handle) -> Result<Reply, RpcError> {
    rpc.call(&Peer::new("server", PORT), COUNT, b"", None, CallOptions::within(rt, PATIENCE)).await
}

/// An engine that many clients keep busy, or whose host has more to do than processors.
#[test]
fn a_server_whose_answers_take_seconds_is_reached_and_what_it_has_executed_is_answered() {
    for (seed, round_trip) in [(1, 1200), (2, 2000), (3, 3000), (4, 3900)] {
        for was_fast in [false, true] {
            let stage = Stage::new(seed);
            let _server = stage.serve(&stage.host);
            let before = usize::from(was_fast);
            stage.call(before);
            stage.take(Duration::from_millis(round_trip));
            let (answers, took) = stage.call(20);
            assert!(answers.iter().all(Result::is_ok), "{round_trip} ms, {was_fast}: {answers:?}");
            assert_eq!(stage.executed.get() as usize, before + 20, "{round_trip} ms, {was_fast}");
            // A hello, a request, and what it takes to learn how long to wait.
            assert!(took < Duration::from_millis(4 * round_trip), "{round_trip} ms, {was_fast}: {took:?}");
        }
    }
}

/// The host of a server that was asked minutes ago has vanished, and another one has its name.
#[test]
fn a_server_that_is_gone_when_it_is_asked_after_a_pause_is_found_out_soon() {
    for seed in 1..20 {
        let stage = Stage::new(seed);
        let gone = stage.serve(&stage.host);
        stage.call(1);
        let other = stage.world.node("other");
        stage.world.crash(&stage.host);
        drop(gone);
        stage.fabric.alias("server", &other);
        let _server = stage.serve(&other);
        stage.world.run_for(Duration::from_mins(2));
        let sent = stage.client.metrics().messages_sent.get();
        let (answers, took) = stage.call(50);
        assert!(answers.iter().all(Result::is_ok), "seed {seed}: {answers:?}");
        assert!(took < Duration::from_millis(400), "seed {seed}: {took:?}");
        let sent = stage.client.metrics().messages_sent.get() - sent;
        assert!(sent <= 3 * 50 + 1, "seed {seed}: {sent} messages: two in vain for each, one hello");
        assert_eq!(stage.executed.get(), 51, "seed {seed}");
    }
}

/// A target that asks the pool service once in a while: the service has forgotten it, and clients without end have come since, one of
/// which has its place in the address vector.
#[test]
fn a_client_that_was_forgotten_is_served_at_once_however_many_come_meanwhile() {
    for seed in 40..60 {
        let stage = Stage::new(seed);
        let _server = stage.serve(&stage.host);
        stage.call(1);
        stage.world.run_for(Duration::from_mins(6));
        let many: Vec<_> =
            (0..50).map(|n| guest(&stage.world, &stage.fabric, &format!("guest-{n}"))).collect();
        let began = stage.node.handle().now();
        for (n, (node, guest)) in (0..).zip(&many) {
            let (guest, rt) = (Rc::clone(guest), node.handle());
            let pause = Duration::from_millis(40 * n);
            node.handle().spawn(async move {
                rt.sleep(pause).await;
                ask(&guest, &rt).await.expect("an answer");
            });
        }
        stage.world.run_for(Duration::from_millis(300));
        let (answers, took) = stage.call(1);
        assert!(answers[0].is_ok(), "seed {seed}: {answers:?}");
        assert!(took < Duration::from_millis(1), "seed {seed}: {took:?}, begun after {began:?}");
        stage.world.run_for(Duration::from_secs(5));
        assert_eq!(stage.executed.get(), 52, "seed {seed}: each once");
    }
}

/// A server that has no room for replies: whoever asks again is told what became of the request by who has executed it.
#[test]
fn a_repeat_whose_reply_is_not_remembered_is_for_a_handler_that_knows() {
    for again in [true, false] {
        let stage = Stage::new(70);
        let keys = Some(Keys::System(KEY));
        let config = RpcConfig { keys, reply_cache_bytes: 0, ..RpcConfig::default() };
        let server = Rpc::new(stage.host.handle(), stage.fabric.endpoint(&stage.host, Some(PORT)), config);
        let seen = Rc::clone(&stage.executed);
        let (fabric, host, node) = (stage.fabric.clone(), stage.host.clone(), stage.node.clone());
        let handler = move |_: Request| {
            seen.set(seen.get() + 1);
            // The first reply gets lost.
            if seen.get() == 1 {
                fabric.partition_one_way(&host, &node);
            } else {
                fabric.heal();
            }
            async { Ok(Vec::new()) }
        };
        if again {
            server.serve_again(COUNT, Rc::new(handler));
        } else {
            server.serve(COUNT, Rc::new(handler));
        }
        let fabric = stage.fabric.clone();
        stage.world.schedule(Duration::from_millis(100), move || fabric.heal());
        let (answers, _) = stage.call(1);
        assert_eq!(answers[0].is_ok(), again, "{answers:?}");
        assert_eq!(stage.executed.get(), 1 + u32::from(again));
        assert_eq!(server.metrics().repeats_forgotten.get(), u64::from(!again));
    }
}

/// A request that takes its time is not taken for one that nobody has got, however long the server was silent before.
#[test]
fn a_server_that_was_forgotten_by_nobody_keeps_its_contact_after_a_pause() {
    let stage = Stage::new(30);
    let server = stage.serve(&stage.host);
    let rt = stage.host.handle();
    server.serve(
        SLOW,
        Rc::new(move |_: Request| {
            let rt = rt.clone();
            async move {
                rt.sleep(Duration::from_secs(3)).await;
                Ok(Vec::new())
            }
        }),
    );
    stage.call(1);
    stage.world.run_for(Duration::from_mins(2));
    let (rpc, rt) = (Rc::clone(&stage.client), stage.node.handle());
    let answer = stage.world.block_on(&stage.node, async move {
        rpc.call(&Peer::new("server", PORT), SLOW, b"", None, CallOptions::within(&rt, PATIENCE)).await
    });
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!(stage.client.metrics().disconnects.get(), 0);
}
