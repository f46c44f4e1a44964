//! Peers that speak the protocol's letter but not its spirit: every field random, behind a valid checksum.

use core::time::Duration;
use std::rc::{Rc, Weak};
use weir_fabric::sim::Fabric;
use weir_fabric::{Access, Address, Endpoint, FabricError, Message, PeerId, RemoteRegion, Sink, Source};
use weir_proto::Epoch;
use weir_rpc::wire::{self, Header, Kind};
use weir_rpc::{Bulk, CallOptions, ClientId, Peer, Request, Rpc, RpcConfig};
use weir_runtime::random::Random;
use weir_runtime::sim::World;

const ECHO: u16 = 0x7001;
const PULL: u16 = 0x7002;
const PORT: u16 = 31_416;

fn any_kind(random: &Random) -> Kind {
    let kinds = [Kind::Hello, Kind::HelloReply, Kind::Request, Kind::Reply, Kind::Working];
    kinds[usize::try_from(random.below(5)).expect("small")]
}

/// A well-formed message with random content; now and then with plausible values, to get further in.
fn hostile(random: &Random, clock: u64, known: u64) -> Vec<u8> {
    let pick = |plausible: u64| if random.chance(0.5) { plausible } else { random.next_u64() };
    let short = |bound: u64| usize::try_from(random.below(bound)).expect("small");
    let small = |value: u64| u16::try_from(value & 0xffff).expect("masked");
    let epoch = Epoch(pick(clock));
    let mut header =
        Header::new(any_kind(random), small(pick(1)), ClientId::new(pick(known)), pick(3), epoch);
    header.opcode = small(pick(u64::from(PULL)));
    header.deadline = pick(clock + 10_000_000_000);
    header.acked = pick(1);
    header.tenant = random.next_u64();
    header.status = u32::try_from(pick(0) & 0xffff_ffff).expect("masked");
    header.resend = random.chance(0.5);
    let brief = random.chance(0.3);
    if brief {
        // Such as the short form is for.
        (header.version, header.resend, header.tenant, header.status) = (2, false, 0, 0);
        header.request &= (1 << 48) - 1;
        let least = if header.kind == Kind::Request { header.request } else { 0 };
        header.acked = least.saturating_sub(random.below(1 << 17));
    }
    let greeting: Vec<u8> =
        (0..if brief { 0 } else { short(40) }).map(|_| random.next_u64().to_le_bytes()[0]).collect();
    header.greeting = !greeting.is_empty();
    let count = if header.kind == Kind::Request && !brief { short(5) } else { 0 };
    header.segments = u16::try_from(count).expect("small");
    let segments: Vec<u8> = (0..count)
        .flat_map(|_| {
            let region = RemoteRegion { addr: pick(0), key: random.next_u64(), len: pick(100) };
            wire::encode_segment(region, if random.chance(0.5) { Access::Read } else { Access::Write })
        })
        .collect();
    let body: Vec<u8> = (0..short(300)).map(|_| random.next_u64().to_le_bytes()[0]).collect();
    header.body_len = u32::try_from(body.len()).expect("small");
    let length = [u8::try_from(greeting.len()).expect("small")];
    let length: &[u8] = if header.greeting { &length } else { &[] };
    header.short = header.fits_short();
    [&header.encode()[..], length, &greeting, &segments, &body].concat()
}

fn serve(rpc: &Rpc) {
    rpc.serve(ECHO, Rc::new(|request: Request| async move { Ok(request.body().to_vec()) }));
    rpc.serve(
        PULL,
        Rc::new(|request: Request| async move {
            let len = usize::try_from(request.bulk_len().min(1 << 20)).expect("bounded");
            let mut buffer = request.payload(len).await?;
            request.pull(0, &mut buffer, len).await?;
            Ok(Vec::new())
        }),
    );
}

#[test]
fn a_server_outlives_clients_that_send_well_formed_nonsense() {
    for seed in 0..30 {
        let world = World::new(seed);
        let fabric = Fabric::new(&world);
        let (node, friend) = (world.node("server"), world.node("friend"));
        let server = Rpc::new(node.handle(), fabric.endpoint(&node, Some(PORT)), RpcConfig::default());
        serve(&server);
        let rpc = Rpc::new(friend.handle(), fabric.endpoint(&friend, None), RpcConfig::default());
        let vandal = fabric.endpoint(&world.node("vandal"), None);
        let to = vandal.insert(&Address::from_bytes(b"server:31416").expect("short")).expect("an address");
        let random = Random::new(seed);
        let rt = friend.handle();
        let victim = rpc.id().bits();
        world.block_on(&friend, async move {
            for round in 0..20u8 {
                // From the second round on. Before that, a client's id is known to nobody else.
                for n in 0..50 * u64::from(round.min(1)) {
                    let bytes = hostile(&random, rt.wall_ns(), victim);
                    vandal.send(to, n, &[&bytes]).expect("accepted");
                }
                let options = CallOptions::within(&rt, Duration::from_secs(30));
                let peer = Peer::new("server", PORT);
                let reply = rpc.call(&peer, ECHO, &[round], None, options).await;
                match reply {
                    Ok(reply) => assert_eq!(reply[..], [round], "seed {seed}"),
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
        });
        world.run_for(Duration::from_mins(1));
        assert_eq!(server.metrics().running.get(), 0, "seed {seed}: a request never ended");
        assert!(server.metrics().impostors.get() > 0, "seed {seed}: somebody used the other client's id");
        assert_eq!(server.endpoint().buffers().used(), 0, "seed {seed}: memory leaked");
    }
}

/// Answers everything with well-formed nonsense, some of it to the right request.
struct LyingServer {
    endpoint: Weak<dyn Endpoint>,
    random: Random,
    clock: u64,
}

impl Sink for LyingServer {
    fn message(&self, message: Message) {
        let (Some(endpoint), Ok((asked, layout))) = (self.endpoint.upgrade(), wire::decode(&message)) else {
            return;
        };
        let greeting = Address::from_bytes(&message[layout.greeting]);
        let peer = match message.source() {
            Source::Peer(peer) => *peer,
            _ => match greeting.and_then(|address| endpoint.insert(&address).ok()) {
                Some(peer) => peer,
                None => return,
            },
        };
        for n in 0..5 {
            let mut bytes = hostile(&self.random, self.clock, asked.client.bits());
            if self.random.chance(0.7)
                && let Ok((mut header, layout)) = wire::decode(&bytes)
            {
                // To the right request of the right client.
                (header.client, header.request) = (asked.client, asked.request);
                let rest = bytes.split_off(layout.greeting.start.min(wire::HEADER_LEN));
                bytes = [&header.encode()[..], &rest].concat();
            }
            drop(endpoint.send(peer, n, &[&bytes]));
        }
    }

    fn send_failed(&self, _peer: PeerId, _context: u64, _error: FabricError) {}
}

#[test]
fn a_client_of_a_lying_server_ends_with_an_answer_or_an_error_by_its_deadline() {
    for seed in 0..60 {
        let world = World::new(seed);
        let fabric = Fabric::new(&world);
        let (node, home) = (world.node("server"), world.node("client"));
        let endpoint = fabric.endpoint(&node, Some(PORT));
        let clock = node.handle().wall_ns();
        let liar =
            Rc::new(LyingServer { endpoint: Rc::downgrade(&endpoint), random: Random::new(seed), clock });
        let sink: Weak<LyingServer> = Rc::downgrade(&liar);
        endpoint.set_sink(sink);
        let rpc = Rpc::new(home.handle(), fabric.endpoint(&home, None), RpcConfig::default());
        let rt = home.handle();
        let client = Rc::clone(&rpc);
        world.block_on(&home, async move {
            for _ in 0..10 {
                let mut buffer = client.alloc(1000).expect("memory");
                let deadline = rt.now() + Duration::from_secs(5);
                let peer = Peer::new("server", PORT);
                let bulk = Bulk::write(&mut buffer);
                // Whatever comes is fine, as long as it comes.
                let _ = client.call(&peer, ECHO, b"truth?", Some(bulk), CallOptions::until(deadline)).await;
                assert!(
                    rt.now() <= deadline + Duration::from_secs(1),
                    "seed {seed}: {:?}",
                    rt.now() - deadline
                );
            }
            rt.sleep(Duration::from_mins(1)).await;
        });
        assert_eq!(rpc.endpoint().buffers().used(), 0, "seed {seed}: memory leaked");
    }
}

/// A hello or a request that claims to come from somewhere else.
fn claiming(kind: Kind, client: ClientId, number: u64, clock: u64) -> Vec<u8> {
    let mut header = Header::new(kind, 1, client, number, Epoch(clock));
    (header.greeting, header.opcode, header.deadline) = (true, ECHO, clock + 10_000_000_000);
    let body = if kind == Kind::Hello { wire::encode_versions(&(1..=2)).to_vec() } else { Vec::new() };
    header.body_len = u32::try_from(body.len()).expect("small");
    let address = format!("elsewhere-{number}:{number}");
    let length = [u8::try_from(address.len()).expect("short")];
    [&header.encode()[..], &length, address.as_bytes(), &body].concat()
}

#[test]
fn addresses_that_are_only_claimed_leave_no_entry_behind() {
    let world = World::new(5);
    let fabric = Fabric::new(&world);
    let (node, friend, home) = (world.node("server"), world.node("friend"), world.node("vandal"));
    let server = Rpc::new(node.handle(), fabric.endpoint(&node, Some(PORT)), RpcConfig::default());
    serve(&server);
    let rpc = Rpc::new(friend.handle(), fabric.endpoint(&friend, None), RpcConfig::default());
    let vandal = fabric.endpoint(&home, None);
    let to = vandal.insert(&Address::from_bytes(b"server:31416").expect("short")).expect("an address");
    let rt = friend.handle();
    let known = || {
        let counters = server.endpoint().counters();
        counters.peers_inserted.get() - counters.peers_removed.get()
    };
    let (client, body) = (Rc::clone(&rpc), b"still served");
    let call = async move {
        let options = CallOptions::within(&rt, Duration::from_secs(30));
        client.call(&Peer::new("server", PORT), ECHO, body, None, options).await.map(|reply| reply.to_vec())
    };
    assert_eq!(world.block_on(&friend, call).expect("a reply"), body);
    let clock = home.handle().wall_ns();
    // First as nobody whom the server knows, in the name of somebody else; then as a sender that it knows.
    let own = ClientId::new(77);
    let mut hello = Header::new(Kind::Hello, 1, own, 1, Epoch(clock));
    (hello.greeting, hello.body_len) = (true, 4);
    let address = vandal.address();
    let length = [u8::try_from(address.as_bytes().len()).expect("short")];
    let hello = [&hello.encode()[..], &length, address.as_bytes(), &wire::encode_versions(&(1..=2))].concat();
    for (round, client) in [rpc.id(), own].into_iter().enumerate() {
        if client == own {
            vandal.send(to, 0, &[&hello]).expect("accepted");
            world.run_for(Duration::from_millis(1));
        }
        let before = known();
        for number in 2..500 {
            let kind = if number % 2 == 0 { Kind::Hello } else { Kind::Request };
            vandal.send(to, number, &[&claiming(kind, client, number, clock)]).expect("accepted");
        }
        world.run_for(Duration::from_millis(10));
        assert_eq!(known(), before, "round {round}");
        assert!(
            server.metrics().impostors.get() >= 498 * (round as u64 + 1),
            "round {round}: each was counted"
        );
    }
    let rt = friend.handle();
    let call = async move {
        let options = CallOptions::within(&rt, Duration::from_secs(30));
        rpc.call(&Peer::new("server", PORT), ECHO, body, None, options).await.map(|reply| reply.to_vec())
    };
    assert_eq!(world.block_on(&friend, call).expect("a reply"), body);
}
