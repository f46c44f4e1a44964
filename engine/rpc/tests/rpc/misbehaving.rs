//! Peers that stop reading, flood, send garbage or die in the middle of a transfer, in the simulator: they harm only
//! themselves.

use crate::reverse;

use core::cell::RefCell;
use core::time::Duration;
use std::rc::{Rc, Weak};

use reverse::reverse;
use weir_fabric::sim::Fabric;
use weir_fabric::{Address, Endpoint, FabricError, Gone, Message, PeerId, Sink};
use weir_proto::Epoch;
use weir_proto::limits::PROTOCOL_MAX;
use weir_rpc::wire::{Header, Kind};
use weir_rpc::{Bulk, CallOptions, ClientId, Peer, Request, Rpc, RpcConfig, RpcError};
use weir_runtime::random::Random;
use weir_runtime::sim::{Node, World};
use weir_runtime::{Handle, join_all};

const ECHO: u16 = 0x7001;
const REVERSE: u16 = 0x7002;
const PORT: u16 = 31_416;

/// Bytes that a request has moved, each way.
const LOAD: usize = 64 << 10;

struct Scene {
    world: World,
    fabric: Fabric,
    server: Rc<Rpc>,
    friend: (Node, Rc<Rpc>),
}

impl Scene {
    fn new(seed: u64) -> Self {
        Self::with_config(seed, RpcConfig::default())
    }

    fn with_config(seed: u64, config: RpcConfig) -> Self {
        let world = World::new(seed);
        let fabric = Fabric::new(&world);
        let node = world.node("server");
        let server = Rpc::new(node.handle(), fabric.endpoint(&node, Some(PORT)), config);
        server.serve(ECHO, Rc::new(|request: Request| async move { Ok(request.body().to_vec()) }));
        server.serve(REVERSE, Rc::new(reverse));
        let home = world.node("friend");
        let rpc = Rpc::new(home.handle(), fabric.endpoint(&home, None), RpcConfig::default());
        Self { world, fabric, server, friend: (home, rpc) }
    }

    /// A well-behaved client gets this many answers, each within the limit, whatever goes on beside it.
    fn befriend(&self, rounds: u32, limit: Duration) {
        let (node, rpc) = (self.friend.0.clone(), Rc::clone(&self.friend.1));
        let (rt, seed) = (node.handle(), self.world.seed());
        self.world.block_on(&node, async move {
            for round in 0..rounds {
                let body = [&round.to_le_bytes()[..], &[7; 900]].concat();
                let options = CallOptions::within(&rt, limit);
                let reply = rpc.call(&peer(), ECHO, &body, None, options).await;
                let reply = reply.unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
                assert_eq!(reply[..], body);
                rt.sleep(Duration::from_millis(1)).await;
            }
        });
    }

    /// Nothing is left of what the others did.
    fn assert_clean(&self) {
        self.world.run_for(Duration::from_mins(1));
        let seed = self.world.seed();
        assert_eq!(self.server.metrics().running.get(), 0, "seed {seed}: a request never ended");
        assert_eq!(self.server.endpoint().buffers().used(), 0, "seed {seed}: memory leaked");
        self.befriend(3, Duration::from_secs(1));
    }
}

fn peer() -> Peer {
    Peer::new("server", PORT)
}

/// Keeps every message, and with it the receive memory, for ever.
#[derive(Default)]
struct Hoarder(RefCell<Vec<Message>>);

impl Sink for Hoarder {
    fn message(&self, message: Message) {
        self.0.borrow_mut().push(message);
    }

    fn send_failed(&self, _peer: PeerId, _context: u64, _error: FabricError) {}
}

/// An endpoint without manners, and the server as it knows it.
fn vandal(scene: &Scene, name: &str, sink: &Rc<Hoarder>) -> (Rc<dyn Endpoint>, PeerId) {
    let endpoint = scene.fabric.endpoint(&scene.world.node(name), None);
    let weak: Weak<Hoarder> = Rc::downgrade(sink);
    endpoint.set_sink(weak);
    let to = endpoint.insert(&Address::from_bytes(b"server:31416").expect("short")).expect("an address");
    (endpoint, to)
}

/// A valid request that never acknowledges an answer.
fn request(endpoint: &dyn Endpoint, client: u64, id: u64, wall_ns: u64, body: &[u8]) -> Vec<u8> {
    let mut header = Header::new(Kind::Request, PROTOCOL_MAX, ClientId::new(client), id, Epoch(wall_ns));
    header.opcode = ECHO;
    header.greeting = true;
    header.deadline = wall_ns + 30_000_000_000;
    header.acked = 1;
    header.body_len = u32::try_from(body.len()).expect("small");
    let address = endpoint.address();
    let length = [u8::try_from(address.as_bytes().len()).expect("short")];
    [&header.encode()[..], &length, address.as_bytes(), body].concat()
}

#[test]
fn a_client_that_stops_reading_costs_the_others_nothing() {
    for seed in 0..5 {
        let scene = Scene::new(seed);
        // Room for some dozen of the answers; then the deaf one's memory is full.
        scene.fabric.configure(|config| config.receive_bytes = 256 << 10);
        let hoarder = Rc::new(Hoarder::default());
        let (endpoint, to) = vandal(&scene, "deaf", &hoarder);
        let wall = scene.friend.0.handle().wall_ns();
        for id in 1..=400 {
            endpoint.send(to, id, &[&request(&*endpoint, 99, id, wall, &[5; 8000])]).expect("accepted");
            if id % 40 == 0 {
                scene.befriend(4, Duration::from_millis(100));
            }
        }
        assert!(hoarder.0.borrow().len() < 40, "it has no room for more");
        assert!(scene.fabric.stats().receiver_full > 100, "answers to it found no room");
        scene.assert_clean();
    }
}

#[test]
fn a_client_that_floods_is_answered_or_told_to_wait_and_the_others_get_through() {
    for seed in 0..3 {
        let scene = Scene::new(seed);
        let hoarder = Rc::new(Hoarder::default());
        let (endpoint, to) = vandal(&scene, "flood", &hoarder);
        let wall = scene.friend.0.handle().wall_ns();
        let mut id = 0;
        for _ in 0..20 {
            for _ in 0..2000 {
                id += 1;
                endpoint.send(to, id, &[&request(&*endpoint, 99, id, wall, &[5; 200])]).expect("accepted");
            }
            scene.befriend(3, Duration::from_secs(2));
            hoarder.0.borrow_mut().clear();
        }
        assert!(scene.server.metrics().running.get() <= 1024, "what runs at once is bounded");
        scene.assert_clean();
    }
}

#[test]
fn a_message_with_more_requests_in_it_than_anybody_sends_is_taken_in_part() {
    let scene = Scene::new(8);
    let hoarder = Rc::new(Hoarder::default());
    let (endpoint, to) = vandal(&scene, "stuffer", &hoarder);
    let wall = scene.friend.0.handle().wall_ns();
    let all: Vec<u8> = (1..=100).flat_map(|id| request(&*endpoint, 99, id, wall, &[5; 8])).collect();
    endpoint.send(to, 1, &[&all]).expect("accepted");
    scene.befriend(1, Duration::from_millis(100));
    let metrics = scene.server.metrics();
    // And the friend's.
    assert_eq!((metrics.requests.get(), metrics.malformed.get()), (16 + 1, 1));
}

#[test]
fn a_client_that_heeds_no_answer_gets_no_more_of_them_than_it_has_requests_executed_in_a_second() {
    let scene = Scene::new(7);
    scene.fabric.configure(|config| config.receive_bytes = 64 << 20);
    let hoarder = Rc::new(Hoarder::default());
    let (endpoint, to) = vandal(&scene, "heedless", &hoarder);
    let wall = scene.friend.0.handle().wall_ns();
    // The same requests again and again, each of which was answered long ago.
    for round in 0..600 {
        for id in 1..=100 {
            endpoint.send(to, id, &[&request(&*endpoint, 99, id, wall, &[5; 8])]).expect("accepted");
        }
        scene.befriend(u32::from(round % 50 == 0), Duration::from_millis(100));
    }
    scene.befriend(2, Duration::from_millis(100));
    let metrics = scene.server.metrics();
    let (answered, ignored) = (metrics.repeats_answered.get(), metrics.ignored.get());
    assert!(ignored > 20_000, "{ignored} were not answered");
    assert!(answered < 25_000, "{answered} were: a second's allowance is twenty thousand");
    scene.assert_clean();
}

#[test]
fn a_client_that_sends_bytes_of_no_protocol_is_counted_and_ignored() {
    let scene = Scene::new(1);
    let hoarder = Rc::new(Hoarder::default());
    let (endpoint, to) = vandal(&scene, "garbage", &hoarder);
    let random = Random::new(1);
    for n in 0..3000 {
        let len = usize::try_from(random.below(2000)).expect("small");
        let mut bytes: Vec<u8> = (0..len).map(|_| random.next_u64().to_le_bytes()[0]).collect();
        if random.chance(0.5) && len >= 4 {
            bytes[..4].copy_from_slice(b"WEIR");
        }
        endpoint.send(to, n, &[&bytes]).expect("accepted");
    }
    scene.befriend(10, Duration::from_millis(100));
    assert_eq!(scene.server.metrics().malformed.get(), 3000);
    assert!(hoarder.0.borrow().is_empty(), "garbage gets no answer");
    scene.assert_clean();
}

/// A client whose memory is being reversed crashes at some point of the transfer.
fn dies_in_a_transfer(seed: u64) -> bool {
    let scene = Scene::new(seed);
    scene.fabric.configure(|config| config.transfer_timeout = Duration::from_millis(200));
    let node = scene.world.node("mortal");
    let rt = node.handle();
    let rpc = Rpc::new(rt.clone(), scene.fabric.endpoint(&node, None), RpcConfig::default());
    rt.clone().spawn(async move {
        for _ in 0..100 {
            let source = rpc.alloc(6 << 20).expect("memory");
            let mut target = rpc.alloc(6 << 20).expect("memory");
            let bulk = Bulk::read(&source).and_write(&mut target, 0..6 << 20);
            let options = CallOptions::within(&rt, Duration::from_secs(5));
            // It won't live to see the end of all of them.
            let _ = rpc.call(&peer(), REVERSE, b"", Some(bulk), options).await;
        }
    });
    // Six overlapping pieces of a mebibyte take some 120 µs, each way.
    let delay = Duration::from_micros(scene.world.rng().below(4_000));
    scene.world.run_for(delay);
    let in_the_middle = scene.server.endpoint().buffers().used() > 0;
    scene.world.crash(&node);
    scene.befriend(50, Duration::from_millis(100));
    scene.assert_clean();
    in_the_middle
}

#[test]
fn a_client_that_dies_in_the_middle_of_a_transfer_leaves_nothing_behind() {
    let hit = (0..40).filter(|seed| dies_in_a_transfer(*seed)).count();
    assert!(hit >= 20, "the crash really hit transfers: {hit} of 40");
}

/// Has as much of its memory moved as it has credits for.
fn have_moved(scene: &Scene, name: &str) -> Node {
    let node = scene.world.node(name);
    let rt = node.handle();
    let rpc = Rpc::new(rt.clone(), scene.fabric.endpoint(&node, None), RpcConfig::default());
    for _ in 0..32 {
        let (rpc, rt) = (Rc::clone(&rpc), rt.clone());
        rt.clone().spawn(async move {
            let source = rpc.alloc(LOAD).expect("memory");
            let mut target = rpc.alloc(LOAD).expect("memory");
            let bulk = Bulk::read(&source).and_write(&mut target, 0..LOAD);
            let options = CallOptions::within(&rt, Duration::from_secs(30));
            // It stops before it hears how that ends.
            let _ = rpc.call(&peer(), REVERSE, b"", Some(bulk), options).await;
        });
    }
    node
}

#[test]
fn clients_that_stop_in_the_middle_of_transfers_hold_up_nobody_elses() {
    for seed in 0..5 {
        let scene = Scene::new(seed);
        scene.fabric.configure(|config| {
            config.per_mebibyte = Duration::from_millis(100);
            config.transfer_timeout = Duration::from_secs(40);
        });
        let stopped = ["one", "two", "three"].map(|name| have_moved(&scene, name));
        // Everything that the server moves at once is theirs.
        scene.world.run_for(Duration::from_millis(5));
        let server = scene.world.node("server");
        scene.fabric.partition(&stopped.each_ref(), &[&server]);
        let (node, rpc) = (scene.friend.0.clone(), Rc::clone(&scene.friend.1));
        let rt = node.handle();
        scene.world.block_on(&node, async move {
            let source = rpc.alloc(LOAD).expect("memory");
            let mut target = rpc.alloc(LOAD).expect("memory");
            let bulk = Bulk::read(&source).and_write(&mut target, 0..LOAD);
            let options = CallOptions::within(&rt, Duration::from_secs(5));
            let moved = rpc.call(&peer(), REVERSE, b"", Some(bulk), options).await;
            assert!(moved.is_ok(), "seed {seed}: {moved:?}");
        });
        scene.assert_clean();
    }
}

/// Has `len` bytes reversed within `time`.
async fn have_reversed(rt: &Handle, rpc: &Rpc, len: usize, time: Duration) -> Result<(), RpcError> {
    let source = rpc.alloc(len).expect("memory");
    let mut target = rpc.alloc(len).expect("memory");
    let bulk = Bulk::read(&source).and_write(&mut target, 0..len);
    rpc.call(&peer(), REVERSE, b"", Some(bulk), CallOptions::within(rt, time)).await.map(drop)
}

#[test]
fn what_stopped_clients_hold_counts_until_it_is_free_and_short_payloads_have_room_beside_it() {
    const LONG: usize = 8 << 20;
    let scene = Scene::new(1);
    scene.fabric.configure(|config| {
        config.per_mebibyte = Duration::from_millis(100);
        config.transfer_timeout = Duration::from_secs(40);
    });
    let stopped: Vec<_> = (0..6).map(|number| scene.world.node(&format!("stopped-{number}"))).collect();
    for node in &stopped {
        let rpc = Rpc::new(node.handle(), scene.fabric.endpoint(node, None), RpcConfig::default());
        let rt = node.handle();
        node.handle()
            .spawn(async move { drop(have_reversed(&rt, &rpc, LONG, Duration::from_secs(2)).await) });
    }
    scene.world.run_for(Duration::from_millis(5));
    let server = scene.world.node("server");
    scene.fabric.partition(&stopped.iter().collect::<Vec<_>>(), &[&server]);
    // Their requests have ended, and what they move has not.
    scene.world.run_for(Duration::from_secs(10));
    let (node, rpc) = (scene.friend.0.clone(), Rc::clone(&scene.friend.1));
    let rt = node.handle();
    scene.world.block_on(&node, async move {
        let all = (0..200).map(|_| have_reversed(&rt, &rpc, 64 << 10, Duration::from_secs(20)));
        for short in join_all(all).await {
            short.expect("short payloads have memory of their own");
        }
        have_reversed(&rt, &rpc, LONG, Duration::from_secs(1)).await.expect_err("all of that is taken");
        have_reversed(&rt, &rpc, LONG, Duration::from_mins(1)).await.expect("the transfers have ended");
    });
    scene.assert_clean();
}

#[test]
fn memory_of_transfers_with_a_host_that_has_vanished_comes_back_long_before_the_system_gives_up() {
    let scene = Scene::new(1);
    scene.fabric.configure(|config| {
        config.per_mebibyte = Duration::from_millis(100);
        config.transfer_timeout = Duration::from_mins(15);
    });
    // One request ends before it is known that the host is gone, and one waits for it.
    for (name, patience) in [("short", 2), ("long", 3600)] {
        let node = scene.world.node(name);
        let rpc = Rpc::new(node.handle(), scene.fabric.endpoint(&node, None), RpcConfig::default());
        let rt = node.handle();
        let reversed = async move { have_reversed(&rt, &rpc, 4 << 20, Duration::from_secs(patience)).await };
        node.handle().spawn(async move { drop(reversed.await) });
        scene.world.run_for(Duration::from_millis(5));
        scene.fabric.partition(&[&node], &[&scene.world.node("server")]);
    }
    scene.world.run_for(Duration::from_secs(10));
    assert!(scene.server.endpoint().buffers().used() >= 8 << 20);
    scene.world.run_for(Duration::from_mins(2));
    scene.assert_clean();
}

/// Of processes that hang, or that talk and let nothing end, whose requests end or don't.
fn memory_of_those_who_hang_is_theirs_until_others_wait(stays: Gone, patience: Duration) {
    const LONG: usize = 8 << 20;
    let scene = Scene::new(1);
    scene.fabric.configure(|config| {
        config.per_mebibyte = Duration::from_millis(100);
        config.transfer_timeout = Duration::from_hours(2);
        config.stays = Some(stays);
    });
    let hanging: Vec<_> = (0..6).map(|number| scene.world.node(&format!("hanging-{number}"))).collect();
    for node in &hanging {
        let rpc = Rpc::new(node.handle(), scene.fabric.endpoint(node, None), RpcConfig::default());
        let rt = node.handle();
        let reversed = async move { have_reversed(&rt, &rpc, LONG, patience).await };
        node.handle().spawn(async move { drop(reversed.await) });
    }
    scene.world.run_for(Duration::from_millis(5));
    scene.fabric.partition(&hanging.iter().collect::<Vec<_>>(), &[&scene.world.node("server")]);
    let used = || scene.server.endpoint().buffers().used();
    let held = used();
    // Longer than a client is remembered that has nothing under way.
    scene.world.run_for(Duration::from_mins(10));
    assert!(held >= 5 * LONG && used() == held, "{} of {held} bytes", used());
    let (node, rpc) = (scene.friend.0.clone(), Rc::clone(&scene.friend.1));
    let rt = node.handle();
    scene.world.block_on(&node, async move {
        // By then they have been stuck for longer than anybody is given.
        have_reversed(&rt, &rpc, LONG, Duration::from_mins(1)).await.expect("they were hung up on");
    });
    scene.world.run_for(Duration::from_mins(1));
    assert!(used() < held, "{} of {held} bytes", used());
}

#[test]
fn processes_that_hang_keep_the_memory_of_their_transfers_until_others_wait_for_it() {
    memory_of_those_who_hang_is_theirs_until_others_wait(Gone::Host, Duration::from_secs(2));
    memory_of_those_who_hang_is_theirs_until_others_wait(Gone::Host, Duration::from_hours(1));
}

#[test]
fn processes_that_talk_and_let_no_transfer_end_keep_its_memory_no_longer() {
    memory_of_those_who_hang_is_theirs_until_others_wait(Gone::Process, Duration::from_secs(2));
    memory_of_those_who_hang_is_theirs_until_others_wait(Gone::Process, Duration::from_hours(1));
}

#[test]
fn a_host_is_asked_for_signs_of_life_while_it_is_waited_for_and_no_longer() {
    // Requests that have ended by then, and such as wait.
    for patience in [2, 3600] {
        let scene = Scene::new(1);
        scene.fabric.configure(|config| {
            config.per_mebibyte = Duration::from_millis(100);
            config.transfer_timeout = Duration::from_secs(25);
            config.stays = Some(Gone::Process);
        });
        let node = scene.world.node("stopped");
        let rpc = Rpc::new(node.handle(), scene.fabric.endpoint(&node, None), RpcConfig::default());
        let rt = node.handle();
        let reversed = async move { have_reversed(&rt, &rpc, LOAD, Duration::from_secs(patience)).await };
        node.handle().spawn(async move { drop(reversed.await) });
        scene.world.run_for(Duration::from_millis(5));
        scene.fabric.partition(&[&node], &[&scene.world.node("server")]);
        scene.world.run_for(Duration::from_secs(15));
        assert_eq!(scene.fabric.asked(), 1);
        scene.world.run_for(Duration::from_secs(15));
        assert_eq!(scene.fabric.asked(), 0);
    }
}

#[test]
fn requests_that_are_stuck_with_their_clients_give_their_places_up_when_others_find_none() {
    let config = RpcConfig { running_max: 16, ..RpcConfig::default() };
    let scene = Scene::with_config(1, config);
    scene.fabric.configure(|config| {
        config.per_mebibyte = Duration::from_millis(100);
        config.transfer_timeout = Duration::from_hours(2);
        config.stays = Some(Gone::Process);
    });
    let stuck: Vec<_> = (0..16).map(|number| scene.world.node(&format!("stuck-{number}"))).collect();
    for node in &stuck {
        let rpc = Rpc::new(node.handle(), scene.fabric.endpoint(node, None), RpcConfig::default());
        let rt = node.handle();
        let reversed = async move { have_reversed(&rt, &rpc, LOAD, Duration::from_hours(1)).await };
        node.handle().spawn(async move { drop(reversed.await) });
    }
    scene.world.run_for(Duration::from_millis(3));
    scene.fabric.partition(&stuck.iter().collect::<Vec<_>>(), &[&scene.world.node("server")]);
    assert_eq!(scene.server.metrics().running.get(), 16, "all places, also those of requests that come back");
    scene.befriend(3, Duration::from_mins(2));
}

#[test]
fn a_server_that_dies_in_the_middle_of_a_transfer_leaves_the_client_its_memory() {
    for seed in 0..20 {
        let scene = Scene::new(seed);
        let (node, rpc) = (scene.friend.0.clone(), Rc::clone(&scene.friend.1));
        let (world, server) = (scene.world.clone(), scene.world.node("server"));
        let delay = Duration::from_micros(100 + scene.world.rng().below(2_000));
        scene.world.schedule(delay, move || world.crash(&server));
        let rt = node.handle();
        let client = Rc::clone(&rpc);
        scene.world.block_on(&node, async move {
            let source = client.alloc(6 << 20).expect("memory");
            let mut target = client.alloc(6 << 20).expect("memory");
            let deadline = rt.now() + Duration::from_secs(3);
            let bulk = Bulk::read(&source).and_write(&mut target, 0..6 << 20);
            let ended = client.call(&peer(), REVERSE, b"", Some(bulk), CallOptions::until(deadline)).await;
            assert!(ended.is_err() || rt.now() < deadline, "seed {seed}");
            assert!(rt.now() <= deadline + Duration::from_secs(3), "seed {seed}: it ends by its deadline");
        });
        scene.world.run_for(Duration::from_secs(10));
        assert_eq!(rpc.endpoint().buffers().used(), 0, "seed {seed}: the client's memory is free again");
    }
}
