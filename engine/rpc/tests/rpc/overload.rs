//! More work than there is room for: credits, quotas, and what a server does that is asked for too much.

use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::rc::Rc;
use weir_fabric::sim::Fabric;
use weir_proto::TenantId;
use weir_proto::capability::SystemKey;
use weir_rpc::{Bulk, CallOptions, Keys, Peer, Request, Rpc, RpcConfig};
use weir_runtime::sim::{Node, World};
use weir_runtime::{Handle, Instant, join_all};

/// Takes the server a while.
const WORK: u16 = 0x7001;
/// Membership.
const PING: u16 = 0x7002;
/// Writes to the client's memory until it may not any more.
const SCRIBBLE: u16 = 0x7003;
/// Takes it no time.
const QUICK: u16 = 0x7004;
const PORT: u16 = 31_416;

fn server(world: &World, fabric: &Fabric, name: &str, config: RpcConfig, work: Duration) -> Rc<Rpc> {
    let node = world.node(name);
    let rpc = Rpc::new(node.handle(), fabric.endpoint(&node, Some(PORT)), config);
    let rt = node.handle();
    rpc.serve(
        WORK,
        Rc::new(move |request: Request| {
            let rt = rt.clone();
            async move {
                rt.sleep(work).await;
                Ok(request.body().to_vec())
            }
        }),
    );
    rpc.serve_urgent(PING, Rc::new(|_: Request| async { Ok(Vec::new()) }));
    rpc
}

/// A server `stuck` that takes ten seconds for each request, and one `quick`.
fn stuck_and_quick(world: &World, fabric: &Fabric) -> [Rc<Rpc>; 2] {
    [("stuck", Duration::from_secs(10)), ("quick", Duration::from_micros(100))]
        .map(|(name, work)| server(world, fabric, name, RpcConfig::default(), work))
}

fn client(world: &World, fabric: &Fabric, name: &str, config: RpcConfig) -> (Node, Handle, Rc<Rpc>) {
    let node = world.node(name);
    let rpc = Rpc::new(node.handle(), fabric.endpoint(&node, None), config);
    (node.clone(), node.handle(), rpc)
}

/// Begins a hundred calls with memory to each of these servers, which nobody waits for.
fn lend_to_all(rt: &Handle, rpc: &Rc<Rpc>, names: [&'static str; 3]) {
    for name in names {
        for _ in 0..100 {
            let (inner, rpc) = (rt.clone(), Rc::clone(rpc));
            rt.spawn(async move {
                let memory = rpc.alloc(100).expect("memory");
                let options = CallOptions::within(&inner, Duration::from_secs(30));
                drop(rpc.call(&peer(name), WORK, b"", Some(Bulk::read(&memory)), options).await);
            });
        }
    }
}

/// Makes contact with the target, so that all that is asked for then is asked for at once.
fn meet(world: &World, node: &Node, rt: &Handle, rpc: &Rc<Rpc>) {
    let options = CallOptions::within(rt, Duration::from_secs(5));
    let rpc = Rc::clone(rpc);
    world.block_on(node, async move {
        rpc.call(&peer("target"), PING, b"", None, options).await.expect("contact");
    });
}

fn peer(name: &str) -> Peer {
    Peer::new(name, PORT)
}

/// How evenly something is shared out (Jain): 1 when all have the same, 1/n when one has everything.
fn fairness(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    #[expect(clippy::cast_precision_loss, reason = "a count of some thousands")]
    let count = shares.len() as f64;
    sum * sum / (count * squares)
}

/// The time that this share of the calls took at most.
fn percentile(times: &mut [Duration], share: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * share / 100).min(times.len() - 1)]
}

#[test]
fn ten_thousand_clients_are_all_served_by_one_target_with_bounded_memory() {
    const CLIENTS: usize = 10_000;
    const EACH: usize = 2;
    let world = World::new(41);
    let fabric = Fabric::new(&world);
    // 200 us for a request and 256 at once: 1.28 million a second.
    let config = RpcConfig { running_max: 256, ..RpcConfig::default() };
    let target = server(&world, &fabric, "target", config, Duration::from_micros(200));
    let times: Rc<RefCell<Vec<Duration>>> = Rc::default();
    // What each client had to wait for all its answers.
    let totals: Rc<RefCell<Vec<f64>>> = Rc::default();
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let (_, rt, rpc) = client(&world, &fabric, &format!("c{n}"), RpcConfig::default());
            let (inner, times, totals) = (rt.clone(), Rc::clone(&times), Rc::clone(&totals));
            rt.spawn(async move {
                let start = inner.now();
                for i in 0..EACH {
                    let body = [n.to_le_bytes(), i.to_le_bytes()].concat();
                    let began = inner.now();
                    let options = CallOptions::within(&inner, Duration::from_mins(1));
                    let reply = rpc.call(&peer("target"), WORK, &body, None, options).await.expect("served");
                    assert_eq!(reply[..], body);
                    times.borrow_mut().push(inner.now() - began);
                }
                totals.borrow_mut().push((inner.now() - start).as_secs_f64());
            })
        })
        .collect();
    let most = Rc::new(Cell::new((0u64, 0usize)));
    let observer = world.node("observer");
    let (rt, watched, seen) = (observer.handle(), Rc::clone(&target), Rc::clone(&most));
    let lookout = rt.spawn({
        let rt = rt.clone();
        async move {
            loop {
                let (running, bytes) = seen.get();
                let now = (watched.metrics().running.get(), watched.remembered().1);
                seen.set((running.max(now.0), bytes.max(now.1)));
                rt.sleep(Duration::from_micros(500)).await;
            }
        }
    });
    let began = world.now();
    world.block_on(&observer, async move {
        for task in tasks {
            task.await.expect("no client crashed");
        }
    });
    lookout.abort();
    let took = world.now() - began;
    let mut times = times.take();
    assert_eq!(times.len(), CLIENTS * EACH, "none was lost");
    let metrics = target.metrics();
    assert_eq!(metrics.requests.get(), (CLIENTS * EACH) as u64, "each was executed once");
    assert!(metrics.overloaded.get() > 1000, "there was too much for it: {}", metrics.overloaded.get());
    let (running, bytes) = most.get();
    assert!(running <= 256, "{running} at once");
    assert!(bytes <= CLIENTS * 1024, "{bytes} bytes of replies");
    assert_eq!(target.endpoint().buffers().used(), 0);
    let index = fairness(&totals.take());
    let (half, most_of) = (percentile(&mut times, 50), percentile(&mut times, 99));
    println!(
        "{CLIENTS} clients, {} requests in {took:?}: p50 {half:?}, p99 {most_of:?}, slowest {:?}, fairness index {index:.2}; {} sent away, at most {running} running, {bytes} bytes of replies",
        times.len(),
        times[times.len() - 1],
        metrics.overloaded.get(),
    );
    assert!(index > 0.6, "fairness index {index:.2}");
    // All the work takes 24 ms when none is wasted. Nobody waits for many times that.
    assert!(most_of < Duration::from_secs(1), "p99 {most_of:?}");
}

/// So many clients with one request each, at a server that finishes nothing until then but what is urgent, if it is `pinged`.
/// Returns how many messages it sends away in each second, and how long the last answer takes after that.
fn ask_a_stuck_server(clients: usize, pinged: bool, until: Instant) -> (Vec<u64>, Duration) {
    let world = World::new(51);
    let fabric = Fabric::new(&world);
    let config = RpcConfig { running_max: 64, ..RpcConfig::default() };
    let target = server(&world, &fabric, "target", config, Duration::ZERO);
    let rt = world.node("target").handle();
    target.serve(
        QUICK,
        Rc::new(move |_: Request| {
            let rt = rt.clone();
            async move {
                rt.sleep_until(until).await;
                Ok(Vec::new())
            }
        }),
    );
    let calls: Vec<_> = (0..clients)
        .map(|number| {
            let (_, rt, rpc) = client(&world, &fabric, &format!("c{number}"), RpcConfig::default());
            rt.clone().spawn(async move {
                let options = CallOptions::within(&rt, Duration::from_mins(1));
                rpc.call(&peer("target"), QUICK, b"", None, options).await.expect("served");
            })
        })
        .collect();
    let (node, rt, rpc) = client(&world, &fabric, "member", RpcConfig::default());
    let pings = rt.clone().spawn(async move {
        loop {
            let options = CallOptions::within(&rt, Duration::from_secs(1)).urgent();
            rpc.call(&peer("target"), PING, b"", None, options).await.expect("answered");
            rt.sleep(Duration::from_millis(200)).await;
        }
    });
    if !pinged {
        pings.abort();
    }
    let mut sent_away = Vec::new();
    let mut before = 0;
    while world.now() < until {
        world.run_for(Duration::from_secs(1));
        let all = target.metrics().overloaded.get();
        sent_away.push(all - core::mem::replace(&mut before, all));
    }
    world.block_on(&node, async move {
        for call in calls {
            call.await.expect("no client crashed");
        }
    });
    pings.abort();
    (sent_away, world.now() - until)
}

#[test]
fn a_server_that_is_stuck_is_not_asked_over_and_over() {
    let until = Instant::default() + Duration::from_secs(10);
    for (clients, pinged) in [(80, false), (80, true), (3000, false)] {
        let (sent_away, last) = ask_a_stuck_server(clients, pinged, until);
        println!("{clients} clients are sent away {sent_away:?} times; the last is served after {last:?}");
        // None is sent away for longer than a second.
        let most = clients as u64 * 4 / 3 + 64;
        assert!(sent_away[1..].iter().all(|count| *count <= most), "{clients} clients: {sent_away:?}");
        assert!(last < Duration::from_millis(1100), "{clients} clients: {last:?}");
    }
}

#[test]
fn a_client_that_keeps_to_no_credits_has_its_own_requests_sent_away_and_not_others() {
    let world = World::new(42);
    let fabric = Fabric::new(&world);
    let config = RpcConfig { running_max: 100, running_per_client: 20, ..RpcConfig::default() };
    let target = server(&world, &fabric, "target", config, Duration::from_millis(5));
    let greedy = RpcConfig { credits: 5000, requests_max: 5000, ..RpcConfig::default() };
    let (_, rt, rpc) = client(&world, &fabric, "greedy", greedy);
    let flood = rt.spawn({
        let (rt, rpc) = (rt.clone(), Rc::clone(&rpc));
        async move {
            let options = CallOptions::within(&rt, Duration::from_secs(30));
            let to = peer("target");
            join_all((0..2000).map(|_| rpc.call(&to, WORK, b"flood", None, options))).await.len()
        }
    });
    let (node, rt, polite) = client(&world, &fabric, "polite", RpcConfig::default());
    let slowest = world.block_on(&node, async move {
        let mut slowest = Duration::ZERO;
        for _ in 0..50 {
            let began = rt.now();
            let options = CallOptions::within(&rt, Duration::from_secs(30));
            polite.call(&peer("target"), WORK, b"please", None, options).await.expect("served");
            slowest = slowest.max(rt.now() - began);
        }
        assert_eq!(polite.metrics().overload_hints.get(), 0, "the polite client was never sent away");
        slowest
    });
    assert!(slowest < Duration::from_millis(20), "the polite client waited {slowest:?}");
    assert!(target.metrics().overdrawn.get() > 100, "the greedy one was");
    let observer = world.node("observer");
    assert_eq!(world.block_on(&observer, flood), Ok(2000), "and was served in the end");
}

/// Clients that all send as much as they may, in lockstep, beside one that has a single request under way at a time. Returns
/// the server, and how often the single one was sent away.
fn crowd(seed: u64, flooders: usize, width: usize, config: RpcConfig) -> (Rc<Rpc>, u64) {
    let world = World::new(seed);
    let fabric = Fabric::new(&world);
    let hop = Duration::from_micros(20);
    fabric.configure(|network| (network.latency_min, network.latency_max) = (hop, hop));
    let target = server(&world, &fabric, "target", config, Duration::from_micros(5));
    for n in 0..flooders {
        let greedy = RpcConfig { credits: width, requests_max: width, ..RpcConfig::default() };
        let (_, rt, rpc) = client(&world, &fabric, &format!("f{n}"), greedy);
        rt.clone().spawn(async move {
            let to = peer("target");
            let tasks = (0..width).map(|_| async {
                loop {
                    let options = CallOptions::within(&rt, Duration::from_secs(5));
                    // Whatever comes.
                    let _ = rpc.call(&to, WORK, b"flood", None, options).await;
                }
            });
            let _: Vec<()> = join_all(tasks).await;
        });
    }
    let (node, rt, single) = client(&world, &fabric, "single", RpcConfig::default());
    let sent_away = world.block_on(&node, async move {
        for _ in 0..200 {
            let options = CallOptions::within(&rt, Duration::from_secs(5));
            single.call(&peer("target"), WORK, b"please", None, options).await.expect("served");
        }
        single.metrics().overload_hints.get()
    });
    (target, sent_away)
}

#[test]
fn a_client_with_one_request_is_passed_by_a_few_and_one_of_each_other_client_however_many_they_have() {
    // 32 requests whose workers are awake already, and 8 urgent ones.
    const WOKEN: u64 = 40;
    for seed in 50..54 {
        let (target, sent_away) = crowd(seed, 20, 40, RpcConfig::default());
        let passed = target.metrics().passed_max.get();
        assert!(passed <= WOKEN + 21, "seed {seed}: {passed} requests began before a single one");
        assert!(passed >= 32, "seed {seed}: there were hundreds at once, of which {passed} passed");
        assert_eq!(sent_away, 0, "seed {seed}");
    }
}

#[test]
fn a_client_with_one_request_finds_room_also_where_the_others_want_all_of_it() {
    for flooders in [10, 30] {
        let config = RpcConfig { running_max: 256, ..RpcConfig::default() };
        let (target, sent_away) = crowd(60, flooders, 200, config);
        assert!(target.metrics().overloaded.get() > 1000, "{flooders}: there was no room for all");
        // When all come at once the first ones have more than their share; after that there is a place.
        assert!(sent_away <= 1, "{flooders} clients that want 200 each leave a place: {sent_away}");
    }
}

#[test]
fn membership_gets_through_when_everything_else_is_stuck() {
    let world = World::new(43);
    let fabric = Fabric::new(&world);
    // Room for one client's credits, and not for two clients'.
    let config = RpcConfig { running_max: 44, ..RpcConfig::default() };
    let target = server(&world, &fabric, "target", config, Duration::from_secs(5));
    let (node, rt, rpc) = client(&world, &fabric, "client", RpcConfig::default());
    let (_, other_rt, other) = client(&world, &fabric, "other", RpcConfig::default());
    for (rt, rpc) in [(&rt, &rpc), (&other_rt, &other)] {
        meet(&world, &node, rt, rpc);
        for _ in 0..200 {
            let (inner, rpc) = (rt.clone(), Rc::clone(rpc));
            rt.spawn(async move {
                let options = CallOptions::within(&inner, Duration::from_secs(20));
                // Most of them time out; that is what they are for.
                drop(rpc.call(&peer("target"), WORK, b"", None, options).await);
            });
        }
    }
    world.block_on(&node, async move {
        rt.sleep(Duration::from_millis(100)).await;
        let waiting = rpc.quota().1 + other.quota().1;
        assert!(waiting > 100, "calls wait for credits: {waiting}");
        for _ in 0..20 {
            let began = rt.now();
            let options = CallOptions::within(&rt, Duration::from_secs(1)).urgent();
            rpc.call(&peer("target"), PING, b"", None, options).await.expect("answered");
            assert!(rt.now() - began < Duration::from_millis(1), "after {:?}", rt.now() - began);
            rt.sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(target.metrics().overloaded.get() > 0, "the server had no room meanwhile");
}

#[test]
fn peers_take_turns_when_one_of_them_is_stuck() {
    let world = World::new(44);
    let fabric = Fabric::new(&world);
    let _servers = stuck_and_quick(&world, &fabric);
    let config = RpcConfig { credits: 8, requests_max: 10, ..RpcConfig::default() };
    let (node, rt, rpc) = client(&world, &fabric, "client", config);
    for _ in 0..500 {
        let (inner, rpc) = (rt.clone(), Rc::clone(&rpc));
        rt.spawn(async move {
            let options = CallOptions::within(&inner, Duration::from_secs(30));
            drop(rpc.call(&peer("stuck"), WORK, b"", None, options).await);
        });
    }
    world.block_on(&node, async move {
        rt.sleep(Duration::from_millis(10)).await;
        let began = rt.now();
        let calls = (0..100).map(|_| {
            let options = CallOptions::within(&rt, Duration::from_secs(5));
            let rpc = &rpc;
            async move { rpc.call(&peer("quick"), WORK, b"", None, options).await.expect("served") }
        });
        join_all(calls).await;
        assert!(rt.now() - began < Duration::from_millis(100), "{:?}", rt.now() - began);
        assert_eq!(rpc.quota().0, 8, "the stuck peer has its credits and no more");
    });
}

#[test]
fn a_call_that_rests_between_two_tries_leaves_its_credit_to_others() {
    let world = World::new(47);
    let fabric = Fabric::new(&world);
    let _target = server(&world, &fabric, "target", RpcConfig::default(), Duration::from_micros(100));
    let config = RpcConfig { requests_max: 1, backoff_min: Duration::from_mins(1), ..RpcConfig::default() };
    let (node, rt, rpc) = client(&world, &fabric, "client", config);
    world.block_on(&node, async move {
        let options = CallOptions::within(&rt, Duration::from_secs(5));
        let (nowhere, target) = (peer("nowhere"), peer("target"));
        let vain = rpc.call(&nowhere, WORK, b"", None, options);
        let served = async {
            rt.sleep(Duration::from_secs(2)).await;
            assert_eq!(rpc.quota(), (0, 0));
            rpc.call(&target, WORK, b"", None, options).await.expect("served");
        };
        drop(weir_runtime::race(vain, served).await);
        assert!(rt.now() < Instant::default() + Duration::from_secs(3), "{:?}", rt.now());
    });
}

#[test]
fn exposed_memory_is_bounded_and_who_waits_for_it_gets_it() {
    let world = World::new(45);
    let fabric = Fabric::new(&world);
    let _target = server(&world, &fabric, "target", RpcConfig::default(), Duration::from_millis(1));
    let config = RpcConfig { bulks_max: 6, ..RpcConfig::default() };
    let (node, rt, rpc) = client(&world, &fabric, "client", config);
    let watched = fabric.clone();
    world.block_on(&node, async move {
        let most = Rc::new(Cell::new(0));
        let lookout = rt.spawn({
            let (rt, most) = (rt.clone(), Rc::clone(&most));
            async move {
                loop {
                    most.set(most.get().max(watched.exposed()));
                    rt.sleep(Duration::from_micros(50)).await;
                }
            }
        });
        let calls = (0..40).map(|_| {
            let (rt, rpc) = (rt.clone(), Rc::clone(&rpc));
            async move {
                let memory = rpc.alloc(100).expect("memory");
                let options = CallOptions::within(&rt, Duration::from_secs(10));
                rpc.call(&peer("target"), WORK, b"", Some(Bulk::read(&memory)), options)
                    .await
                    .expect("served");
            }
        });
        join_all(calls).await;
        lookout.abort();
        assert_eq!(most.get(), 3, "one server has no more than what it leaves to others");
        assert_eq!(rpc.bulk_quota(), (0, 0));
    });
    assert_eq!(fabric.exposed(), 0);
}

#[test]
fn calls_with_memory_to_servers_that_are_stuck_leave_room_for_those_to_others() {
    let world = World::new(48);
    let fabric = Fabric::new(&world);
    let _servers = stuck_and_quick(&world, &fabric);
    let slow = Duration::from_secs(10);
    let _more = ["second", "third"].map(|name| server(&world, &fabric, name, RpcConfig::default(), slow));
    let (node, rt, rpc) = client(&world, &fabric, "client", RpcConfig::default());
    lend_to_all(&rt, &rpc, ["stuck", "second", "third"]);
    world.block_on(&node, async move {
        rt.sleep(Duration::from_millis(10)).await;
        let memory = rpc.alloc(100).expect("memory");
        let options = CallOptions::within(&rt, Duration::from_secs(5));
        let served = rpc.call(&peer("quick"), WORK, b"", Some(Bulk::read(&memory)), options).await;
        assert!(served.is_ok(), "{served:?}, of which {:?} have memory", rpc.bulk_quota());
        let stuck = rpc.bulk_quota().0;
        assert!((48..60).contains(&stuck), "{stuck} of 64: none has more than what is left to others");
    });
}

#[test]
fn memory_of_calls_that_were_dropped_counts_as_long_as_it_is_exposed() {
    let world = World::new(50);
    let fabric = Fabric::new(&world);
    let stuck = Duration::from_mins(1);
    let _target = server(&world, &fabric, "target", RpcConfig::default(), stuck);
    let (node, rt, rpc) = client(&world, &fabric, "client", RpcConfig::default());
    meet(&world, &node, &rt, &rpc);
    let (own, client) = (node.clone(), Rc::clone(&rpc));
    let (fabric, target) = (fabric.clone(), world.node("target"));
    world.block_on(&node, async move {
        for round in 0..20 {
            let lent: Vec<_> = (0..32).map(|_| client.alloc(100).expect("memory")).collect();
            let (to, client) = (peer("target"), &client);
            let options = CallOptions::within(&rt, Duration::from_secs(50));
            let calls = lent.iter().map(|memory| {
                let (to, options) = (&to, options);
                async move { client.call(to, WORK, b"", Some(Bulk::read(memory)), options).await }
            });
            drop(rt.timeout(Duration::from_millis(20), join_all(calls)).await);
            if round == 0 {
                // Nobody says that the server is done with it.
                fabric.partition(&[&own], &[&target]);
            }
        }
        let held = client.endpoint().buffers().used() / 4096;
        // As many as one server has credits for.
        assert!((1..=32).contains(&held), "{held} calls have memory exposed");
    });
    world.run_for(Duration::from_mins(1));
    assert_eq!((rpc.bulk_quota(), rpc.endpoint().buffers().used()), ((0, 0), 0));
}

#[test]
fn calls_to_servers_that_are_gone_leave_room_to_others() {
    let world = World::new(49);
    let fabric = Fabric::new(&world);
    // A host that has vanished doesn't say so.
    fabric.configure(|config| config.loss_reported = 0.0);
    let _quick = server(&world, &fabric, "quick", RpcConfig::default(), Duration::from_micros(100));
    let (node, rt, rpc) = client(&world, &fabric, "client", RpcConfig::default());
    lend_to_all(&rt, &rpc, ["one", "two", "three"]);
    world.block_on(&node, async move {
        rt.sleep(Duration::from_secs(2)).await;
        let memory = rpc.alloc(100).expect("memory");
        let options = CallOptions::within(&rt, Duration::from_secs(5));
        let began = rt.now();
        let served = rpc.call(&peer("quick"), WORK, b"", Some(Bulk::read(&memory)), options).await;
        assert!(served.is_ok(), "{served:?}, {:?} have credits", rpc.quota());
        assert!(rt.now() - began < Duration::from_millis(10), "{:?}", rt.now() - began);
        assert_eq!((rpc.quota(), rpc.bulk_quota()), ((0, 0), (0, 0)), "the others wait for contact");
    });
}

/// A server that writes to a client's memory for as long as it may, with clocks this far off. Returns by how much its
/// last write came after the client had given up.
fn last_write(server_skew: i64, client_skew: i64) -> Duration {
    let world = World::new(46);
    let fabric = Fabric::new(&world);
    fabric.configure(|config| config.latency_max = Duration::from_millis(40));
    let node = world.node("target");
    node.set_clock_skew(server_skew);
    let target = Rpc::new(node.handle(), fabric.endpoint(&node, Some(PORT)), RpcConfig::default());
    let written = Rc::new(Cell::new(Instant::default()));
    let (rt, last) = (node.handle(), Rc::clone(&written));
    target.serve(
        SCRIBBLE,
        Rc::new(move |request: Request| {
            let (rt, last) = (rt.clone(), Rc::clone(&last));
            async move {
                let buffer = request.payload(64).await?;
                loop {
                    request.push(0, &buffer, 64).await?;
                    last.set(rt.now());
                    rt.sleep(Duration::from_millis(5)).await;
                }
            }
        }),
    );
    let (home, rt, rpc) = client(&world, &fabric, "client", RpcConfig::default());
    home.set_clock_skew(client_skew);
    let patience = Duration::from_secs(3);
    let gave_up = world.block_on(&home, async move {
        let mut memory = rpc.alloc(64).expect("memory");
        let deadline = rt.now() + patience;
        let bulk = Bulk::write(&mut memory);
        let error = rpc.call(&peer("target"), SCRIBBLE, b"", Some(bulk), CallOptions::until(deadline)).await;
        assert!(error.is_err(), "it never ends by itself");
        rt.sleep(Duration::from_secs(4)).await;
        deadline
    });
    assert!(written.get() > Instant::default() + Duration::from_secs(1), "it did write");
    assert_eq!(target.metrics().running.get(), 0, "and has stopped");
    assert!(target.metrics().bulk_expired.get() > 0 || written.get() < gave_up);
    written.get().saturating_duration_since(gave_up)
}

#[test]
fn no_write_starts_after_the_deadline_however_far_the_clocks_are_apart_within_their_bound() {
    // 0.9 s each way, of the 1 s that clocks may be apart; the grace of 2 s covers that and a piece under way.
    for server_skew in [-900_000_000, 0, 900_000_000] {
        for client_skew in [-50_000_000, 0, 50_000_000] {
            let late = last_write(server_skew, client_skew);
            assert!(
                late < Duration::from_secs(1),
                "server {server_skew}, client {client_skew}: {late:?} late"
            );
        }
    }
}

#[test]
fn requests_that_expired_on_the_way_are_refused_at_unpack_and_touch_nothing() {
    let world = World::new(47);
    let fabric = Fabric::new(&world);
    let target = server(&world, &fabric, "target", RpcConfig::default(), Duration::ZERO);
    let (node, rt, rpc) = client(&world, &fabric, "client", RpcConfig::default());
    let network = fabric.clone();
    world.block_on(&node, async move {
        let warm = CallOptions::within(&rt, Duration::from_secs(5));
        rpc.call(&peer("target"), WORK, b"", None, warm).await.expect("contact");
        // From here on everything takes 300 ms; the call has 100.
        network.configure(|config| {
            (config.latency_min, config.latency_max) =
                (Duration::from_millis(300), Duration::from_millis(300));
        });
        let options = CallOptions::within(&rt, Duration::from_millis(100));
        assert!(rpc.call(&peer("target"), WORK, b"late", None, options).await.is_err());
        rt.sleep(Duration::from_secs(2)).await;
    });
    assert_eq!((target.metrics().expired.get(), target.metrics().requests.get()), (1, 1));
}

#[test]
fn a_tenant_of_many_clients_that_have_stopped_leaves_room_for_anothers_requests() {
    let world = World::new(3);
    let fabric = Fabric::new(&world);
    let key = SystemKey([7; 32]);
    let ours = RpcConfig { keys: Some(Keys::System(key.clone())), running_max: 64, ..RpcConfig::default() };
    let target = server(&world, &fabric, "target", ours, Duration::from_hours(24));
    target.serve(QUICK, Rc::new(|_: Request| async { Ok(Vec::new()) }));
    let of = |tenant| {
        let keys = Keys::Tenant(key.tenant(TenantId(tenant)));
        RpcConfig { keys: Some(keys), ..RpcConfig::default() }
    };
    // As many as there are places, each a client of its own.
    for _ in 0..70 {
        let node = world.node("many");
        let rpc = Rpc::new(node.handle(), fabric.endpoint(&node, None), of(1));
        let rt = node.handle();
        node.handle().spawn(async move {
            let options = CallOptions::within(&rt, Duration::from_hours(24));
            drop(rpc.call(&peer("target"), WORK, b"", None, options).await);
        });
    }
    world.run_for(Duration::from_secs(5));
    let running = target.metrics().running.get();
    assert!((42..=48).contains(&running), "{running}");
    let (node, rt, other) = client(&world, &fabric, "other", of(2));
    world.block_on(&node, async move {
        let options = || CallOptions::within(&rt, Duration::from_secs(1));
        let target = peer("target");
        let calls = (0..100).map(|_| other.call(&target, QUICK, b"", None, options()));
        for call in join_all(calls).await {
            call.expect("it has room");
        }
    });
}
