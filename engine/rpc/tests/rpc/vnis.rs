//! Tenants on a network that keeps them apart: one server endpoint on a block of virtual networks, clients on one each.

use crate::reverse;

use core::cell::RefCell;
use core::time::Duration;
use reverse::reverse;
use std::rc::{Rc, Weak};
use weir_fabric::sim::Fabric;
use weir_fabric::{
    Access, Address, AuthKey, FabricError, Launch, Message, PeerId, Sink, Source, client_key, server_keys,
};
use weir_proto::TenantId;
use weir_rpc::{Bulk, CallOptions, Peer, Request, Rpc, RpcConfig};
use weir_runtime::sim::{Node, World};

const WHO: u16 = 0x7001;
const REVERSE: u16 = 0x7002;
const PORT: u16 = 31_416;

struct Site {
    world: World,
    fabric: Fabric,
    server: Rc<Rpc>,
}

fn key(vni: u16) -> AuthKey {
    AuthKey { service: 1, vni }
}

/// A server on the VNIs 100 to 103.
fn site(seed: u64) -> Site {
    let world = World::new(seed);
    let fabric = Fabric::new(&world);
    let node = world.node("server");
    let keys = server_keys("1:100:103", &Launch::default(), None).expect("a block");
    let endpoint = fabric.endpoint_with_keys(&node, Some(PORT), &keys);
    assert!(endpoint.capabilities().serves_auth_keys && endpoint.capabilities().source_err);
    let server = Rpc::new(node.handle(), endpoint, RpcConfig::default());
    server
        .serve(WHO, Rc::new(|request: Request| async move { Ok(request.tenant().0.to_le_bytes().to_vec()) }));
    server.serve(REVERSE, Rc::new(reverse));
    Site { world, fabric, server }
}

impl Site {
    fn client(&self, name: &str, key: AuthKey) -> (Node, Rc<Rpc>) {
        let node = self.world.node(name);
        let endpoint = self.fabric.endpoint_with_keys(&node, Some(9), &[key]);
        let rpc = Rpc::new(node.handle(), endpoint, RpcConfig::default());
        (node, rpc)
    }

    /// Whom the server takes the client for; `None` when it doesn't answer.
    fn ask(&self, client: &(Node, Rc<Rpc>)) -> Option<TenantId> {
        let (rt, rpc) = (client.0.handle(), Rc::clone(&client.1));
        self.world.block_on(&client.0, async move {
            let options = CallOptions::within(&rt, Duration::from_secs(3));
            let reply = rpc.call(&Peer::new("server", PORT), WHO, b"", None, options).await.ok()?;
            Some(TenantId(u64::from_le_bytes(reply[..].try_into().ok()?)))
        })
    }
}

#[test]
fn each_client_is_answered_under_its_own_key_and_named_by_it() {
    let site = site(1);
    let clients: Vec<_> = (100..104).map(|vni| site.client(&format!("c{vni}"), key(vni))).collect();
    for round in 0..3 {
        for (vni, client) in (100..).zip(&clients) {
            assert_eq!(site.ask(client), Some(TenantId(vni)), "round {round}");
        }
    }
    assert_eq!(site.server.metrics().impostors.get(), 0);
    assert_eq!(site.fabric.stats().other_network, 0);
}

#[test]
fn a_client_on_another_network_does_not_reach_the_server_at_all() {
    let site = site(2);
    let stranger = site.client("stranger", key(99));
    assert_eq!(site.ask(&stranger), None);
    let keyless = site.world.node("keyless");
    let rpc = Rpc::new(keyless.handle(), site.fabric.endpoint(&keyless, None), RpcConfig::default());
    assert_eq!(site.ask(&(keyless, rpc)), None);
    assert!(site.fabric.stats().other_network > 0, "the server's NIC refused");
    assert_eq!(site.server.metrics().messages_received.get(), 0, "which costs the server nothing");
    let friend = site.client("friend", key(101));
    assert_eq!(site.ask(&friend), Some(TenantId(101)));
}

#[test]
fn a_client_that_comes_back_under_another_key_is_somebody_else() {
    let site = site(3);
    let first = site.client("node", key(100));
    assert_eq!(site.ask(&first), Some(TenantId(100)));
    let before = site.server.endpoint().counters().peers_inserted.get();
    drop(first.1);
    // The same address, another job.
    let second = site.client("node", key(102));
    assert_eq!(site.ask(&second), Some(TenantId(102)));
    let after = site.server.endpoint().counters().peers_inserted.get();
    assert_eq!(after, before + 1, "inserted again under its key");
}

#[test]
fn bulk_moves_through_the_clients_network() {
    let site = site(4);
    let (node, rpc) = site.client("client", key(103));
    let rt = node.handle();
    site.world.block_on(&node, async move {
        let mut source = rpc.alloc(100_000).expect("memory");
        source.iter_mut().zip((0u8..=250).cycle()).for_each(|(byte, value)| *byte = value);
        let mut target = rpc.alloc(100_000).expect("memory");
        let bulk = Bulk::read(&source).and_write(&mut target, 0..100_000);
        let options = CallOptions::within(&rt, Duration::from_secs(5));
        rpc.call(&Peer::new("server", PORT), REVERSE, b"", Some(bulk), options).await.expect("a reply");
        assert!(target.iter().rev().eq(source.iter()));
    });
}

#[derive(Default)]
struct Inbox(RefCell<Vec<Source>>);

impl Sink for Inbox {
    fn message(&self, message: Message) {
        self.0.borrow_mut().push(message.source().clone());
    }

    fn send_failed(&self, _peer: PeerId, _context: u64, _error: FabricError) {}
}

#[test]
fn messages_and_memory_of_one_network_are_out_of_reach_from_another() {
    let site = site(5);
    let open = |name: &str, vni: u16| {
        let node = site.world.node(name);
        let endpoint = site.fabric.endpoint_with_keys(&node, Some(9), &[key(vni)]);
        let inbox = Rc::new(Inbox::default());
        let sink = Rc::downgrade(&inbox) as Weak<dyn Sink>;
        endpoint.set_sink(sink);
        (node, endpoint, inbox)
    };
    let (_, victim, inbox) = open("victim", 100);
    let (home, mallory, _) = open("mallory", 101);
    let mut secret = victim.buffers().alloc(100).expect("memory");
    secret.fill(7);
    let exposure = victim.expose(&secret, 0..100, Access::Read).expect("exposed");
    let mut target = victim.buffers().alloc(100).expect("memory");
    target.fill(7);
    let open_to_writes = victim.expose(&target, 0..100, Access::Write).expect("exposed");
    let writable = open_to_writes.region();
    // Even the right address and the right key are worth nothing from the wrong network.
    let to = mallory.insert(&victim.address()).expect("an address");
    mallory.send(to, 0, &[b"hello"]).expect("accepted");
    // Nor does it help to claim the other network: the NIC has no such key.
    let claimed = mallory.insert(&victim.address().under(key(100))).expect("an address");
    mallory.send(claimed, 0, &[b"hello"]).expect("accepted");
    let region = exposure.region();
    site.world.block_on(&home, async move {
        let mut local = mallory.buffers().alloc(100).expect("memory");
        let stolen = mallory.read(to, &mut local, 0..100, region).await;
        assert!(stolen.is_err(), "{stolen:?}");
        assert!(local.iter().all(|byte| *byte == 0));
        for peer in [to, claimed] {
            let written = mallory.write(peer, &local, 0..100, writable).await;
            assert!(written.is_err(), "{written:?}");
        }
    });
    assert!(target.iter().all(|byte| *byte == 7), "nothing was written");
    // The same by somebody on the victim's network, who has the key as well.
    let (home, friend, _) = open("friend", 100);
    let to = friend.insert(&victim.address()).expect("an address");
    site.world.block_on(&home, async move {
        let local = friend.buffers().alloc(100).expect("memory");
        assert_eq!(friend.write(to, &local, 0..100, writable).await, Ok(()));
    });
    assert!(target.iter().all(|byte| *byte == 0), "on the right network it is written");
    assert!(inbox.0.borrow().is_empty());
    assert!(site.fabric.stats().other_network >= 5);
}

#[test]
fn servers_that_call_each_other_do_so_again_after_one_lost_contact() {
    for seed in 0..10 {
        let world = World::new(seed);
        let fabric = Fabric::new(&world);
        let nodes = ["one", "other"].map(|name| world.node(name));
        let keys = server_keys("1:100:103", &Launch::default(), None).expect("a block");
        let [one, other] = nodes.each_ref().map(|node| {
            let endpoint = fabric.endpoint_with_keys(node, Some(PORT), &keys);
            let rpc = Rpc::new(node.handle(), endpoint, RpcConfig::default());
            rpc.serve(WHO, Rc::new(|_: Request| async { Ok(Vec::new()) }));
            rpc
        });
        let call = |from: usize, rpc: &Rc<Rpc>, to: &'static str, seconds: u64| {
            let (rt, rpc) = (nodes[from].handle(), Rc::clone(rpc));
            world.block_on(&nodes[from], async move {
                let options = CallOptions::within(&rt, Duration::from_secs(seconds));
                rpc.call(&Peer::new(to, PORT), WHO, b"", None, options).await.map(drop)
            })
        };
        call(0, &one, "other", 3).expect("contact");
        call(1, &other, "one", 3).expect("contact");
        // The first loses contact with the other one, which lives.
        fabric.partition_one_way(&nodes[1], &nodes[0]);
        assert!(call(0, &one, "other", 5).is_err(), "seed {seed}");
        fabric.heal();
        call(1, &other, "one", 10).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        call(0, &one, "other", 10).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(one.metrics().impostors.get() + other.metrics().impostors.get(), 0, "seed {seed}");
    }
}

#[test]
fn what_the_launcher_gives_is_what_a_client_uses() {
    let given = |text: &str| Some(text.to_owned());
    let launch = Launch { vnis: given("102,500"), devices: given("cxi0,cxi1"), services: given("1,2") };
    let site = site(6);
    let chosen = client_key("0:0", &launch, Some("cxi0")).expect("given");
    assert_eq!(site.ask(&site.client("job", chosen)), Some(TenantId(102)));
    let other = client_key("0:0:1", &launch, Some("cxi1")).expect("given");
    assert_eq!(site.ask(&site.client("other", other)), None, "a network that the server is not on");
}

#[test]
fn addresses_under_different_keys_differ_and_have_the_same_bytes() {
    let address = Address::from_bytes(b"server:1").expect("short");
    let [one, two] = [1, 2].map(|vni| address.clone().under(key(vni)));
    assert_ne!(one, two);
    assert_eq!((one.as_bytes(), one.auth_key()), (two.as_bytes(), Some(key(1))));
}
