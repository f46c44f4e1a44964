//! Servers that a client calls by several names, as resolvers give them, and servers without end.

use core::time::Duration;
use std::rc::Rc;
use weir_fabric::sim::Fabric;
use weir_proto::TenantId;
use weir_proto::capability::SystemKey;
use weir_rpc::{CallOptions, Keys, Peer, Request, Rpc, RpcConfig};
use weir_runtime::join_all;
use weir_runtime::sim::{Node, World};

const ECHO: u16 = 0x7001;
const SLOW: u16 = 0x7002;
const PORT: u16 = 31_419;
const KEY: SystemKey = SystemKey([8; 32]);

fn serve(fabric: &Fabric, node: &Node, keys: Option<Keys>) -> Rc<Rpc> {
    let config = RpcConfig { keys, ..RpcConfig::default() };
    let rpc = Rpc::new(node.handle(), fabric.endpoint(node, Some(PORT)), config);
    rpc.serve(ECHO, Rc::new(|request: Request| async move { Ok(request.body().to_vec()) }));
    let rt = node.handle();
    rpc.serve(
        SLOW,
        Rc::new(move |_: Request| {
            let rt = rt.clone();
            async move {
                rt.sleep(Duration::from_secs(3)).await;
                Ok(Vec::new())
            }
        }),
    );
    rpc
}

struct Stage {
    world: World,
    fabric: Fabric,
    server_node: Node,
    server: Rc<Rpc>,
    node: Node,
    client: Rc<Rpc>,
    names: [Peer; 2],
}

/// A client, and a server with two names.
fn stage(seed: u64, keyed: bool) -> Stage {
    let world = World::new(seed);
    let fabric = Fabric::new(&world);
    let (server_node, node) = (world.node("server"), world.node("client"));
    fabric.alias("alias", &server_node);
    let server = serve(&fabric, &server_node, keyed.then_some(Keys::System(KEY)));
    let keys = keyed.then(|| Keys::Tenant(KEY.tenant(TenantId(5))));
    let config = RpcConfig { keys, ..RpcConfig::default() };
    let client = Rpc::new(node.handle(), fabric.endpoint(&node, None), config);
    let names = ["server", "alias"].map(|name| Peer::new(name, PORT));
    Stage { world, fabric, server_node, server, node, client, names }
}

#[test]
fn calls_by_two_names_of_a_server_by_turns_go_without_a_pause() {
    for keyed in [true, false] {
        let Stage { world, server, node, client, names, .. } = stage(1, keyed);
        let (rt, rpc) = (node.handle(), Rc::clone(&client));
        let took = world.block_on(&node, async move {
            let began = rt.now();
            for n in 0..100u32 {
                for name in &names {
                    let options = CallOptions::within(&rt, Duration::from_secs(30));
                    let reply = rpc.call(name, ECHO, &n.to_le_bytes(), None, options).await;
                    assert_eq!(reply.expect("an answer")[..], n.to_le_bytes());
                }
            }
            rt.now() - began
        });
        // Two hundred round trips of at most 40 us.
        assert!(took < Duration::from_millis(20), "keyed: {keyed}: {took:?}");
        let metrics = client.metrics();
        assert_eq!((metrics.connects.get(), metrics.disconnects.get(), metrics.retries.get()), (2, 0, 0));
        assert_eq!((server.metrics().unauthenticated.get(), server.metrics().requests.get()), (0, 200));
        assert_eq!(client.endpoint().counters().peers_inserted.get(), 1, "one entry for both");
    }
}

#[test]
fn what_is_finished_by_one_name_of_a_server_ends_nothing_that_was_asked_by_another() {
    for (seed, keyed) in [(2, true), (3, false), (4, true), (5, false)] {
        let Stage { world, fabric, server, node, client, names, .. } = stage(seed, keyed);
        let (rt, rpc) = (node.handle(), Rc::clone(&client));
        world.block_on(&node, async move {
            // A request that takes its time, of which the reply gets lost while the other name is busy.
            fabric.configure(|config| (config.loss, config.loss_reported) = (0.2, 0.0));
            let [one, other] = names;
            let (asked, timer) = (Rc::clone(&rpc), rt.clone());
            let many = rt.spawn(async move {
                for n in 0..40u32 {
                    let options = CallOptions::within(&timer, Duration::from_mins(1));
                    let reply = asked.call(&other, ECHO, &n.to_le_bytes(), None, options).await;
                    assert_eq!(reply.expect("an answer")[..], n.to_le_bytes(), "seed {seed}");
                }
            });
            let options = CallOptions::within(&rt, Duration::from_mins(1));
            let slow = join_all((0..8).map(|_| rpc.call(&one, SLOW, b"", None, options))).await;
            assert!(slow.iter().all(Result::is_ok), "seed {seed}: {slow:?}");
            many.await.expect("it ends");
        });
        assert_eq!(server.metrics().repeats_stale.get(), 0, "seed {seed}");
    }
}

#[test]
fn a_server_that_comes_back_is_reached_by_all_its_names() {
    let Stage { world, fabric, server_node, server, node, client, names } = stage(6, true);
    let (rt, inner) = (node.handle(), world.clone());
    world.block_on(&node, async move {
        let mut running = server;
        for round in 0..5u32 {
            for name in &names {
                let options = CallOptions::within(&rt, Duration::from_secs(5));
                let reply = client.call(name, ECHO, &round.to_le_bytes(), None, options).await;
                assert!(reply.is_ok_and(|reply| reply.server() == running.id()), "round {round}, {name}");
            }
            inner.crash(&server_node);
            inner.restart(&server_node);
            running = serve(&fabric, &server_node, Some(Keys::System(KEY)));
        }
    });
}

#[test]
fn a_client_that_meets_thousands_of_servers_forgets_those_that_it_calls_no_more() {
    let Stage { world, fabric, server_node, server, node, client, .. } = stage(7, true);
    let (rt, rpc) = (node.handle(), Rc::clone(&client));
    let many: Vec<Node> = (0..2000).map(|n| world.node(&format!("server-{n}"))).collect();
    let most = world.block_on(&node, async move {
        let mut most = 0;
        for node in &many {
            let other = serve(&fabric, node, Some(Keys::System(KEY)));
            for name in [node, &server_node] {
                let options = CallOptions::within(&rt, Duration::from_secs(5));
                let reply = rpc.call(&Peer::new(&name.name(), PORT), ECHO, b"", None, options).await;
                assert!(reply.is_ok());
            }
            drop(other);
            let counters = rpc.endpoint().counters();
            most = most.max(counters.peers_inserted.get() - counters.peers_removed.get());
            rt.sleep(Duration::from_secs(2)).await;
        }
        most
    });
    assert!(most <= 400, "{most} entries of the address vector");
    assert_eq!(client.metrics().connects.get(), 2001, "contact with the one that it goes on calling stood");
    assert_eq!(server.remembered().0, 1);
}

/// A fabric whose addresses are published, a server's node, and a client with its own.
fn published(seed: u64) -> (World, Fabric, Node, Node, Rc<Rpc>) {
    let world = World::new(seed);
    let fabric = Fabric::new(&world);
    fabric.configure(|config| config.published = true);
    let (server, node) = (world.node("server"), world.node("client"));
    let config = RpcConfig { keys: Some(Keys::Tenant(KEY.tenant(TenantId(5)))), ..RpcConfig::default() };
    let client = Rpc::new(node.handle(), fabric.endpoint(&node, None), config);
    (world, fabric, server, node, client)
}

/// Serves at a port, and answers with that port.
fn serve_port(fabric: &Fabric, node: &Node, port: u16) -> Rc<Rpc> {
    let config = RpcConfig { keys: Some(Keys::System(KEY)), ..RpcConfig::default() };
    let rpc = Rpc::new(node.handle(), fabric.endpoint(node, Some(port)), config);
    rpc.serve(ECHO, Rc::new(move |_: Request| async move { Ok(port.to_le_bytes().to_vec()) }));
    rpc
}

#[test]
fn servers_that_come_back_at_each_others_published_addresses_are_not_mistaken_for_each_other() {
    let mut exchanged = 0;
    for seed in 1..=30 {
        let (world, fabric, server_node, node, client) = published(seed);
        let (rt, inner) = (node.handle(), world.clone());
        exchanged += world.block_on(&node, async move {
            let ports = [PORT, PORT + 1, PORT + 2];
            let (mut running, mut before, mut exchanged) = (Vec::new(), Vec::new(), 0);
            for round in 0..6 {
                inner.crash(&server_node);
                inner.restart(&server_node);
                running.clear();
                running.extend(ports.map(|port| serve_port(&fabric, &server_node, port)));
                let now: Vec<_> = running.iter().map(|rpc: &Rc<Rpc>| rpc.endpoint().address()).collect();
                let elsewhere =
                    |at: usize| now.iter().enumerate().any(|(of, a)| of != at && Some(a) == before.get(at));
                exchanged += (0..ports.len()).filter(|at| elsewhere(*at)).count();
                // Requests to all at once, while contact with all of them is lost.
                let options = CallOptions::within(&rt, Duration::from_secs(20));
                let peers = ports.map(|port| Peer::new("server", port));
                let asked = peers.iter().map(|peer| client.call(peer, ECHO, b"", None, options));
                for ((port, rpc), reply) in ports.iter().zip(&running).zip(join_all(asked).await) {
                    let reply = reply.unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
                    assert_eq!(reply[..], port.to_le_bytes(), "seed {seed}, round {round}");
                    assert_eq!(reply.server(), rpc.id());
                }
                before = now;
            }
            exchanged
        });
    }
    assert!(exchanged > 10, "only {exchanged} servers had another's address");
}

#[test]
fn who_has_the_address_by_the_time_of_the_hello_is_not_mistaken_for_who_had_it_when_it_was_told() {
    for seed in 1..=400 {
        let (world, fabric, server_node, node, client) = published(seed);
        let first = serve_port(&fabric, &server_node, PORT);
        // Query, answer and hello take up to 60 us together.
        let delay = Duration::from_nanos(world.rng().below(60_000));
        let running = Rc::new(core::cell::RefCell::new(vec![first]));
        let (inner, theirs, network) = (world.clone(), Rc::clone(&running), fabric.clone());
        world.schedule(delay, move || {
            inner.crash(&server_node);
            inner.restart(&server_node);
            theirs.replace([PORT + 1, PORT].map(|port| serve_port(&network, &server_node, port)).into());
        });
        let rt = node.handle();
        let reply = world.block_on(&node, async move {
            let options = CallOptions::within(&rt, Duration::from_secs(20));
            client.call(&Peer::new("server", PORT), ECHO, b"", None, options).await
        });
        let reply = reply.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(reply[..], PORT.to_le_bytes(), "seed {seed}");
    }
}

#[test]
fn a_silent_server_that_tells_another_address_by_now_is_gone_over_to_without_waiting_for_it() {
    let mut elsewhere = 0;
    for seed in 1..=20 {
        let world = World::new(seed);
        let fabric = Fabric::new(&world);
        // Nobody is told that there is nobody at an address.
        fabric.configure(|config| (config.published, config.loss_reported) = (true, 0.0));
        let (server_node, node) = (world.node("server"), world.node("client"));
        let config = RpcConfig { keys: Some(Keys::Tenant(KEY.tenant(TenantId(5)))), ..RpcConfig::default() };
        let client = Rpc::new(node.handle(), fabric.endpoint(&node, None), config);
        let (rt, inner) = (node.handle(), world.clone());
        let first = serve_port(&fabric, &server_node, PORT);
        let peer = Peer::new("server", PORT);
        elsewhere += world.block_on(&node, async move {
            let call = |limit| client.call(&peer, ECHO, b"", None, CallOptions::within(&rt, limit));
            let again = |of: &Rc<Rpc>| {
                let before = of.endpoint().address();
                inner.crash(&server_node);
                inner.restart(&server_node);
                let next = serve_port(&fabric, &server_node, PORT);
                let moved = next.endpoint().address() != before;
                (next, moved)
            };
            call(Duration::from_secs(5)).await.expect("it is there");
            let (second, moved) = again(&first);
            let began = rt.now();
            let reply = call(Duration::from_secs(5)).await.expect("it is back");
            assert_eq!(reply.server(), second.id());
            // The first try is silent for half a second; the second one is not waited for.
            assert!(rt.now() - began < Duration::from_millis(700), "seed {seed}: {:?}", rt.now() - began);
            let (third, moved_again) = again(&second);
            // Pings don't wait for a second try.
            let mut pings = 0;
            while call(Duration::from_millis(200)).await.is_err() {
                pings += 1;
                assert!(pings < 5, "seed {seed}: it is never found");
                rt.sleep(Duration::from_millis(800)).await;
            }
            drop(third);
            u32::from(moved) + u32::from(moved_again)
        });
    }
    assert!(elsewhere > 20, "only {elsewhere} servers came back elsewhere");
}
