use super::*;
use crate::{Access, FabricError, Message, PeerId, RemoteRegion, Sink, Source};
use core::cell::RefCell;
use std::rc::Weak;

#[derive(Default)]
struct Inbox {
    messages: RefCell<Vec<Message>>,
    failures: RefCell<Vec<(PeerId, u64)>>,
}

impl Sink for Inbox {
    fn message(&self, message: Message) {
        self.messages.borrow_mut().push(message);
    }

    fn send_failed(&self, peer: PeerId, context: u64, _error: FabricError) {
        self.failures.borrow_mut().push((peer, context));
    }
}

struct Pair {
    world: World,
    fabric: Fabric,
    nodes: [Node; 2],
    server: Option<Rc<dyn Endpoint>>,
    client: Rc<dyn Endpoint>,
    server_inbox: Rc<Inbox>,
    client_inbox: Rc<Inbox>,
    to_server: PeerId,
}

fn listen(endpoint: &Rc<dyn Endpoint>) -> Rc<Inbox> {
    let inbox = Rc::new(Inbox::default());
    let weak = Rc::downgrade(&inbox) as Weak<dyn Sink>;
    endpoint.set_sink(weak);
    inbox
}

fn pair(seed: u64) -> Pair {
    let world = World::new(seed);
    let fabric = Fabric::new(&world);
    let nodes = [world.node("client"), world.node("server")];
    let client = fabric.endpoint(&nodes[0], None);
    let server = fabric.endpoint(&nodes[1], Some(7));
    let (client_inbox, server_inbox) = (listen(&client), listen(&server));
    let resolving = client.resolve("server", 7);
    let address = world.block_on(&nodes[0], resolving).expect("a name").address;
    let to_server = client.insert(&address).expect("an address");
    Pair { world, fabric, nodes, server: Some(server), client, server_inbox, client_inbox, to_server }
}

#[test]
fn messages_arrive_whole_and_name_their_sender_once_it_is_inserted() {
    let pair = pair(1);
    pair.client.send(pair.to_server, 1, &[b"one", b" ", b"two"]).expect("accepted");
    pair.world.run_for(Duration::from_millis(1));
    let server = pair.server.as_ref().expect("open");
    assert_eq!(*pair.server_inbox.messages.borrow()[0].source(), Source::Unknown);
    let back = server.insert(&pair.client.address()).expect("an address");
    pair.client.send(pair.to_server, 2, &[b"three"]).expect("accepted");
    pair.world.run_for(Duration::from_millis(1));
    let messages = pair.server_inbox.messages.borrow();
    assert_eq!((&messages[0][..], &messages[1][..]), (&b"one two"[..], &b"three"[..]));
    assert_eq!(*messages[1].source(), Source::Peer(back));
}

#[test]
fn rma_moves_bytes_both_ways_and_checks_key_range_and_direction() {
    let pair = pair(2);
    let server = pair.server.clone().expect("open");
    let client_of_server = server.insert(&pair.client.address()).expect("an address");
    let mut source = pair.client.buffers().alloc(10_000).expect("memory");
    source.iter_mut().zip(0u8..=255).for_each(|(byte, n)| *byte = n);
    let readable = pair.client.expose(&source, 0..10_000, Access::Read).expect("exposed");
    let target = pair.client.buffers().alloc(100).expect("memory");
    let writable = pair.client.expose(&target, 50..100, Access::Write).expect("exposed");
    let (region, write_region) = (readable.region(), writable.region());
    let expected = source[100..300].to_vec();
    let node = pair.nodes[1].clone();
    pair.world.block_on(&node, async move {
        let mut local = server.buffers().alloc(200).expect("memory");
        let part = region.part(100, 200).expect("within");
        server.read(client_of_server, &mut local, 0..200, part).await.expect("read");
        assert_eq!(&local[..], &expected[..]);
        server.write(client_of_server, &local, 0..50, write_region).await.expect("written");
        let denied = |result| matches!(result, Err(FabricError::AccessDenied { .. }));
        assert!(denied(server.write(client_of_server, &local, 0..50, region).await));
        let forged = RemoteRegion { key: region.key ^ 1, ..region };
        assert!(denied(server.read(client_of_server, &mut local, 0..50, forged).await));
        let stretched = RemoteRegion { len: 1 << 20, addr: 9_990, ..region };
        assert!(denied(server.read(client_of_server, &mut local, 0..50, stretched).await));
        let beyond = server.read(client_of_server, &mut local, 0..201, region).await;
        assert!(matches!(beyond, Err(FabricError::OutOfRange { .. })));
    });
    assert_eq!(&target[50..100], &source[100..150]);
    drop(readable);
    assert_eq!(pair.fabric.stats().denied, 3);
}

#[test]
fn a_dropped_exposure_can_not_be_reached_any_more() {
    let pair = pair(3);
    let server = pair.server.clone().expect("open");
    let peer = server.insert(&pair.client.address()).expect("an address");
    let target = pair.client.buffers().alloc(100).expect("memory");
    let exposure = pair.client.expose(&target, 0..100, Access::Write).expect("exposed");
    let region = exposure.region();
    let _hold = exposure.close();
    let node = pair.nodes[1].clone();
    pair.world.block_on(&node, async move {
        let mut local = server.buffers().alloc(100).expect("memory");
        local.fill(9);
        assert!(server.write(peer, &local, 0..100, region).await.is_err());
    });
    assert!(target.iter().all(|byte| *byte == 0));
}

#[test]
fn partitions_stop_messages_and_transfers_until_they_heal() {
    let pair = pair(4);
    pair.fabric.configure(|config| config.loss_reported = 1.0);
    pair.fabric.partition(&[&pair.nodes[0]], &[&pair.nodes[1]]);
    pair.client.send(pair.to_server, 5, &[b"lost"]).expect("accepted");
    pair.world.run_for(Duration::from_millis(1));
    assert!(pair.server_inbox.messages.borrow().is_empty());
    assert_eq!(*pair.client_inbox.failures.borrow(), [(pair.to_server, 5)]);
    pair.fabric.heal();
    pair.client.send(pair.to_server, 6, &[b"through"]).expect("accepted");
    pair.world.run_for(Duration::from_millis(1));
    assert_eq!(pair.server_inbox.messages.borrow().len(), 1);
}

#[test]
fn a_restarted_server_is_reached_at_its_old_address() {
    let mut pair = pair(5);
    pair.world.crash(&pair.nodes[1]);
    pair.server = None;
    pair.client.send(pair.to_server, 1, &[b"into the void"]).expect("accepted");
    pair.world.run_for(Duration::from_millis(1));
    pair.world.restart(&pair.nodes[1]);
    let server = pair.fabric.endpoint(&pair.nodes[1], Some(7));
    let inbox = listen(&server);
    pair.client.send(pair.to_server, 2, &[b"hello"]).expect("accepted");
    pair.world.run_for(Duration::from_millis(1));
    assert_eq!(inbox.messages.borrow().len(), 1);
    assert!(pair.server_inbox.messages.borrow().is_empty());
}

#[test]
fn a_receiver_without_room_makes_senders_wait_and_loses_nothing() {
    let pair = pair(6);
    pair.fabric.configure(|config| config.receive_bytes = 1000);
    for n in 0..20u64 {
        pair.client.send(pair.to_server, n, &[&[0; 100]]).expect("accepted");
    }
    let mut seen = 0;
    for _ in 0..10 {
        pair.world.run_for(Duration::from_millis(10));
        let mut messages = pair.server_inbox.messages.borrow_mut();
        assert!(messages.len() <= 10);
        seen += messages.len();
        messages.clear();
    }
    assert_eq!(seen, 20);
    assert!(pair.fabric.stats().receiver_full > 0);
    assert!(pair.client_inbox.failures.borrow().is_empty());
}

#[test]
fn loss_is_drawn_from_the_seed() {
    let outcome = |seed| {
        let pair = pair(seed);
        pair.fabric.configure(|config| (config.loss, config.duplicate) = (0.3, 0.1));
        for n in 0..100u64 {
            pair.client.send(pair.to_server, n, &[&n.to_le_bytes()]).expect("accepted");
        }
        pair.world.run_for(Duration::from_millis(100));
        let bytes: Vec<u8> = pair.server_inbox.messages.borrow().iter().map(|message| message[0]).collect();
        (pair.fabric.stats(), bytes, pair.world.trace_hash())
    };
    assert_eq!(outcome(7), outcome(7));
    assert_ne!(outcome(7).1, outcome(8).1);
    assert!(outcome(7).0.lost > 10 && outcome(7).0.duplicated > 1);
}

/// What a client learns of the endpoint that is published at a port of the server's node.
fn asked(pair: &Pair, port: u16) -> Result<crate::Found, FabricError> {
    let resolving = pair.client.resolve("server", port);
    pair.world.block_on(&pair.nodes[0], resolving)
}

#[test]
fn published_addresses_are_told_by_living_endpoints_and_used_again_after_their_death() {
    let mut met = 0;
    for seed in 1..=20 {
        let mut pair = pair(seed);
        pair.fabric.configure(|config| config.published = true);
        pair.client = pair.fabric.endpoint(&pair.nodes[0], None);
        let open = |server: u64, port: u16| {
            let endpoint = pair.fabric.endpoint(&pair.nodes[1], Some(port));
            endpoint.introduce(server, None);
            endpoint
        };
        let first = [open(10, 20), open(11, 21)];
        for (endpoint, (server, port)) in first.iter().zip([(10, 20), (11, 21)]) {
            let found = asked(&pair, port).expect("it is told");
            assert_eq!((found.server, &found.address), (Some(server), &endpoint.address()));
            pair.client.insert(&found.address).expect("an address");
        }
        let before = first[1].address();
        assert_ne!(first[0].address(), before);
        assert!(
            matches!(asked(&pair, 22), Err(FabricError::Unpublished { port: 22, .. })),
            "nobody is there"
        );
        pair.fabric.partition_one_way(&pair.nodes[1], &pair.nodes[0]);
        assert!(asked(&pair, 20).is_err(), "answers don't get back");
        pair.fabric.heal();
        pair.world.crash(&pair.nodes[1]);
        assert!(asked(&pair, 20).is_err(), "it is dead");
        pair.world.restart(&pair.nodes[1]);
        let again = pair.fabric.endpoint(&pair.nodes[1], Some(20));
        assert!(asked(&pair, 20).is_err(), "it tells nothing before it serves");
        again.introduce(12, None);
        let found = asked(&pair, 20).expect("it is told");
        assert_eq!((found.server, &found.address), (Some(12), &again.address()));
        met += u32::from(found.address == before);
    }
    assert!(met > 0, "no address was ever used by another endpoint");
}

#[test]
fn a_transfer_ends_when_it_has_landed_also_when_its_peer_was_removed_meanwhile() {
    let pair = pair(9);
    let server = pair.server.as_ref().expect("open");
    let memory = server.buffers().alloc(4096).expect("memory");
    let exposure = server.expose(&memory, 0..4096, Access::Write).expect("exposed");
    let mut buffer = pair.client.buffers().alloc(4096).expect("memory");
    buffer.fill(7);
    let transfer = pair.client.write(pair.to_server, &buffer, 0..4096, exposure.region());
    pair.client.remove(pair.to_server);
    assert_eq!((transfer.outcome(), memory[0]), (None, 0));
    pair.world.run_for(Duration::from_millis(10));
    assert_eq!((transfer.outcome(), memory[0]), (Some(Ok(())), 7));
}
