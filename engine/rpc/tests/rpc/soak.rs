//! Many requests with random faults: at the end nothing is left of them. `make soak-rpc` runs the long form, ten million
//! (`WEIR_SOAK_REQUESTS`), from another seed on with `WEIR_SOAK_SEED`.

use crate::reverse;

use core::cell::Cell;
use core::time::Duration;
use reverse::reverse;
use std::rc::Rc;
use weir_fabric::sim::{Config, Fabric, MrCosts, MrModel, Nic, NicConfig, ReceiveMode};
use weir_fabric::{AuthKey, MrMethod};
use weir_proto::capability::SystemKey;
use weir_proto::{Der, TenantId};
use weir_rpc::{Bulk, CallOptions, Keys, Peer, Request, Rpc, RpcConfig, Status};
use weir_runtime::Handle;
use weir_runtime::random::Random;
use weir_runtime::sim::{Node, World};

const ECHO: u16 = 0x7001;
const REVERSE: u16 = 0x7002;
const SLOW: u16 = 0x7003;
const REFUSE: u16 = 0x7004;
const BACK: u16 = 0x7005;
const PORT: u16 = 31_416;
const KEY: SystemKey = SystemKey([8; 32]);

/// Requests of the short form.
const REQUESTS_DEFAULT: u64 = 9_000;

/// Requests of one world at most: long runs are made of many, each with its own seed.
const REQUESTS_PER_WORLD: u64 = 20_000;

/// Worlds that differ by more than chance: each way in which memory is registered, with and without virtual networks.
const KINDS: u64 = 2 * METHODS.len() as u64;

/// How memory is registered, and whether ending a registration cuts accesses off: all in which nothing stays exposed.
const METHODS: [(MrMethod, bool); 3] =
    [(MrMethod::Uncached, true), (MrMethod::Uncached, false), (MrMethod::MatchEvents, false)];

/// Slabs that a server posts, small enough to be used up many times.
const SLABS: u32 = 4;

/// A server, and the NIC that it receives through.
struct Server {
    rpc: Rc<Rpc>,
    nic: Rc<Nic>,
}

/// The networks of the clients, where there are any.
fn networks(seed: u64) -> Vec<AuthKey> {
    let vnis = if seed.is_multiple_of(2) { 100..104 } else { 0..0 };
    vnis.map(|vni| AuthKey { service: 1, vni }).collect()
}

fn serve(fabric: &Fabric, node: &Node, networks: &[AuthKey]) -> Server {
    let nic = Nic::new(NicConfig::default());
    let slabs = ReceiveMode::Multi { slabs: SLABS, slab_bytes: 64 << 10 };
    let endpoint = fabric.endpoint_behind(&nic, slabs, node, Some(PORT), networks);
    let keys = Some(Keys::System(KEY));
    let config = RpcConfig { keys, running_max: 64, reply_cache_bytes: 1 << 20, ..RpcConfig::default() };
    let rpc = Rpc::new(node.handle(), endpoint, config);
    rpc.serve(ECHO, Rc::new(|request: Request| async move { Ok(request.body().to_vec()) }));
    rpc.serve(REVERSE, Rc::new(reverse));
    let rt = node.handle();
    rpc.serve(
        SLOW,
        Rc::new(move |_: Request| {
            let rt = rt.clone();
            async move {
                rt.sleep(Duration::from_millis(rt.random_u64() % 50)).await;
                Ok(Vec::new())
            }
        }),
    );
    // Asks its client something, who accepts nobody's key but its own: each time contact fails, in the middle of whatever
    // else is done for that client.
    let (own, rt) = (Rc::downgrade(&rpc), node.handle());
    rpc.serve(
        BACK,
        Rc::new(move |request: Request| {
            let (own, rt) = (own.clone(), rt.clone());
            async move {
                let asked = Peer::new(&String::from_utf8_lossy(request.body()), PORT);
                let options = CallOptions::within(&rt, Duration::from_millis(100));
                if let Some(rpc) = own.upgrade() {
                    assert!(rpc.call(&asked, ECHO, b"", None, options).await.is_err());
                }
                Ok(Vec::new())
            }
        }),
    );
    rpc.serve(REFUSE, Rc::new(|_: Request| async { Err(Status::new(Der::BUSY, "always")) }));
    Server { rpc, nic }
}

/// One call of a random kind, perhaps dropped before it ends. Returns whether it was answered.
async fn one(rt: &Handle, rpc: &Rpc, name: &str) -> bool {
    let to = Peer::new("server", PORT);
    let patience = Duration::from_millis(1 + rt.random_u64() % 3000);
    let options = CallOptions::within(rt, patience);
    let options = if rt.random_u64().is_multiple_of(8) { options.once() } else { options };
    let kind = rt.random_u64() % 10;
    let cut = Duration::from_micros(rt.random_u64() % 20_000);
    let work = async {
        match kind {
            0 | 1 => {
                let len = 1 + usize::try_from(rt.random_u64() % 20_000).expect("small");
                let (Ok(mut source), Ok(mut target)) = (rpc.alloc(len), rpc.alloc(len)) else { return false };
                source.iter_mut().zip((0u8..=250).cycle()).for_each(|(byte, value)| *byte = value);
                let bulk = Bulk::new()
                    .and_read(&source, 0..len / 2)
                    .and_read(&source, len / 2..len)
                    .and_write(&mut target, 0..len);
                let answered = rpc.call(&to, REVERSE, b"", Some(bulk), options).await.is_ok();
                assert!(!answered || target.iter().rev().eq(source.iter()), "what came back is wrong");
                answered
            }
            2 => rpc.call(&to, SLOW, b"", None, options).await.is_ok(),
            4 => rpc.call(&to, BACK, name.as_bytes(), None, options).await.is_ok(),
            3 => rpc.call(&to, REFUSE, b"", None, options).await.is_err(),
            _ => {
                let body = rt.random_u64().to_le_bytes();
                let reply = rpc.call(&to, ECHO, &body, None, options).await;
                assert!(reply.as_ref().is_ok_and(|reply| reply[..] == body) || reply.is_err());
                reply.is_ok()
            }
        }
    };
    if kind == 9 || kind == 0 && cut.as_micros().is_multiple_of(2) {
        rt.timeout(cut, work).await.unwrap_or(false)
    } else {
        work.await
    }
}

/// Faults that come and go while the world lasts: loss, duplication, slowness, partitions, crashes.
fn trouble(
    world: &World,
    fabric: &Fabric,
    node: &Node,
    running: &Rc<Cell<Option<Server>>>,
    (random, seed): (&Rc<Random>, u64),
) {
    let after = Duration::from_millis(20 + random.below(300));
    let (world_of, fabric, node) = (world.clone(), fabric.clone(), node.clone());
    let (running, random) = (Rc::clone(running), Rc::clone(random));
    world.schedule(after, move || {
        let chosen = world_of.node(&format!("client-{}", random.below(4)));
        match random.below(7) {
            0 => fabric.configure(|config| config.loss = 0.1),
            1 => fabric.configure(|config| config.duplicate = 0.1),
            2 => fabric.configure(|config| config.latency_max = Duration::from_millis(30)),
            3 if random.chance(0.3) => {
                world_of.crash(&node);
                drop(running.take());
                world_of.restart(&node);
                running.set(Some(serve(&fabric, &node, &networks(seed))));
            }
            4 => {
                fabric.partition(&[&chosen], &[&node]);
            }
            // Within the bound for clocks, and beyond it.
            5 if random.chance(0.3) => {
                let ahead = i64::try_from(random.below(2_000_000_000)).expect("small");
                chosen.set_clock_skew(ahead - 500_000_000);
            }
            _ => {
                fabric.heal();
                chosen.set_clock_skew(0);
                fabric.configure(|config| {
                    (config.loss, config.duplicate) = (0.0, 0.0);
                    config.latency_max = Duration::from_micros(20);
                });
            }
        }
        trouble(&world_of, &fabric, &node, &running, (&random, seed));
    });
}

/// Returns how many requests were answered.
fn soak(seed: u64, requests: u64) -> u64 {
    let world = World::new(seed);
    let (method, revokes) = METHODS[usize::try_from(seed % METHODS.len() as u64).expect("small")];
    let mr = MrModel { method, revokes, costs: MrCosts::default() };
    let transfer_timeout = Duration::from_millis(200);
    let fabric = Fabric::with_config(&world, Config { mr, transfer_timeout, ..Config::default() });
    let (node, networks) = (world.node("server"), networks(seed));
    let running = Rc::new(Cell::new(Some(serve(&fabric, &node, &networks))));
    let random = Rc::new(Random::new(seed));
    trouble(&world, &fabric, &node, &running, (&random, seed));
    let keys = Some(Keys::Tenant(KEY.tenant(TenantId(5))));
    let clients: Vec<_> = (0..4)
        .map(|n| {
            let home = world.node(&format!("client-{n}"));
            let config =
                RpcConfig { keys: keys.clone(), credits: 8, requests_max: 12, ..RpcConfig::default() };
            let own = networks.get(n..=n).unwrap_or_default();
            let rpc = Rpc::new(home.handle(), fabric.endpoint_with_keys(&home, Some(PORT), own), config);
            (home, rpc)
        })
        .collect();
    let (left, answered) = (Rc::new(Cell::new(requests)), Rc::new(Cell::new(0u64)));
    let tasks: Vec<_> = clients
        .iter()
        .flat_map(|(home, rpc)| (0..16).map(move |_| (home, Rc::clone(rpc))))
        .map(|(home, rpc)| {
            let (rt, name) = (home.handle(), home.name());
            let (inner, left, answered) = (rt.clone(), Rc::clone(&left), Rc::clone(&answered));
            rt.spawn(async move {
                while left.get() > 0 {
                    left.set(left.get() - 1);
                    let got = one(&inner, &rpc, &name).await;
                    answered.set(answered.get() + u64::from(got));
                }
            })
        })
        .collect();
    let observer = world.node("observer");
    world.block_on(&observer, async move {
        for task in tasks {
            task.await.expect("no client crashed");
        }
    });
    fabric.heal();
    // Longer than any grace time, and than the longest call.
    world.run_for(Duration::from_secs(20));
    assert_eq!(fabric.exposed(), 0, "seed {seed}: registrations");
    for (_, rpc) in &clients {
        assert_eq!(rpc.in_flight(), 0, "seed {seed}: handles");
        assert_eq!(rpc.quota(), (0, 0), "seed {seed}: credits");
        assert_eq!(rpc.bulk_quota(), (0, 0), "seed {seed}: leave to expose memory");
        assert_eq!(rpc.endpoint().buffers().used(), 0, "seed {seed}: client memory");
        assert_eq!(rpc.metrics().impostors.get(), 0);
    }
    let Server { rpc: server, nic } = running.take().expect("it runs");
    assert_eq!(nic.posted(), SLABS, "seed {seed}: slabs");
    assert_eq!(server.metrics().running.get(), 0, "seed {seed}: requests that never end");
    assert_eq!(server.endpoint().buffers().used(), 0, "seed {seed}: server memory");
    let counters = server.endpoint().counters();
    let peers = counters.peers_inserted.get() - counters.peers_removed.get();
    assert!(peers <= 4, "seed {seed}: {peers} entries of the address vector");
    let (known, bytes) = server.remembered();
    assert!(known <= 4 && bytes <= 1 << 20, "seed {seed}: {known} clients, {bytes} bytes of replies");
    answered.get()
}

#[test]
fn nothing_is_left_of_requests_with_random_faults() {
    let setting = |name, default| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    };
    let requests: u64 = setting("WEIR_SOAK_REQUESTS", REQUESTS_DEFAULT);
    let first: u64 = setting("WEIR_SOAK_SEED", 1);
    let (mut left, mut answered, mut seed) = (requests, 0, first);
    while left > 0 {
        let now = left.min(requests.div_ceil(KINDS)).min(REQUESTS_PER_WORLD);
        answered += soak(seed, now);
        left -= now;
        seed += 1;
    }
    println!("{answered} of {requests} requests were answered; seeds {first} to {}", seed - 1);
    assert!(answered > requests / 2, "{answered} of {requests}: the faults left nothing to look at");
}
