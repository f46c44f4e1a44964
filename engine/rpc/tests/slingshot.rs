//! Requests on a test double of Slingshot's provider: one server endpoint on several virtual networks, clients on one each.

#[path = "../../fabric/tests/provider/mod.rs"]
mod provider;

mod port;
mod reverse;

use core::time::Duration;
use provider::is_loaded;
use reverse::reverse;
use std::rc::Rc;
use weir_fabric::{AuthKey, Options, open};
use weir_proto::TenantId;
use weir_proto::capability::SystemKey;
use weir_rpc::{Bulk, CallOptions, Keys, Peer, Request, Rpc, RpcConfig};
use weir_runtime::join_all;
use weir_runtime::real::Executor;

/// Names the tenant that the server takes the client for.
const WHO: u16 = 0x7001;
const REVERSE: u16 = 0x7002;
/// Takes longer than any client waits, with its memory exposed.
const STALL: u16 = 0x7003;

fn keys(vnis: &[u16]) -> Vec<AuthKey> {
    vnis.iter().map(|vni| AuthKey { service: 1, vni: *vni }).collect()
}

/// The key of the system whose messages are sealed.
const KEY: SystemKey = SystemKey([7; 32]);

struct Site {
    executor: Executor,
    server: Rc<Rpc>,
    port: u16,
}

impl Site {
    fn new(vnis: &[u16]) -> Self {
        let executor = Executor::new().expect("an executor");
        let port = port::free();
        let server = Self::serve(&executor, vnis, port, RpcConfig::default());
        Self { executor, server, port }
    }

    /// The same for clients that seal what they send.
    fn sealed(vnis: &[u16]) -> Self {
        let executor = Executor::new().expect("an executor");
        let port = port::free();
        let config = RpcConfig { keys: Some(Keys::System(KEY)), ..RpcConfig::default() };
        let server = Self::serve(&executor, vnis, port, config);
        Self { executor, server, port }
    }

    fn serve(executor: &Executor, vnis: &[u16], port: u16, config: RpcConfig) -> Rc<Rpc> {
        let rt = executor.handle();
        let options = Options { auth_keys: keys(vnis), ..Options::listen("cxi", "127.0.0.1", port) };
        let endpoint = open(&rt, &options).expect("an endpoint");
        let server = Rpc::new(rt.clone(), endpoint, config);
        let tenant = |request: Request| async move { Ok(request.tenant().0.to_le_bytes().to_vec()) };
        server.serve(WHO, Rc::new(tenant));
        server.serve(REVERSE, Rc::new(reverse));
        let stall = move |_: Request| {
            let rt = rt.clone();
            async move {
                rt.sleep(Duration::from_mins(1)).await;
                Ok(Vec::new())
            }
        };
        server.serve(STALL, Rc::new(stall));
        server
    }

    fn client(&self, vnis: &[u16]) -> Rc<Rpc> {
        self.client_of(vnis, RpcConfig::default())
    }

    fn client_of(&self, vnis: &[u16], config: RpcConfig) -> Rc<Rpc> {
        let rt = self.executor.handle();
        let options = Options { auth_keys: keys(vnis), ..Options::near("cxi", "127.0.0.1", self.port) };
        let endpoint = open(&rt, &options).expect("an endpoint");
        Rpc::new(rt, endpoint, config)
    }

    fn options(&self, seconds: u64) -> CallOptions {
        CallOptions::within(&self.executor.handle(), Duration::from_secs(seconds))
    }

    /// Whom the server takes the client for; `None` when it doesn't answer.
    async fn ask(&self, client: &Rpc, seconds: u64) -> Option<TenantId> {
        let peer = Peer::new("127.0.0.1", self.port);
        let reply = client.call(&peer, WHO, b"", None, self.options(seconds)).await.ok()?;
        Some(TenantId(u64::from_le_bytes(reply[..].try_into().ok()?)))
    }
}

#[test]
fn each_client_is_answered_under_its_own_key_and_named_by_it() {
    if !is_loaded("each_client_is_answered_under_its_own_key_and_named_by_it", &[]) {
        return;
    }
    let vnis = [100, 101, 102, 103];
    let site = Site::new(&vnis);
    let clients = vnis.map(|vni| site.client(&[vni]));
    site.executor.block_on(async {
        for round in 0..3 {
            let asked = clients.iter().map(|client| site.ask(client, 10));
            let tenants = join_all(asked).await;
            assert!(tenants.iter().zip(&vnis).all(|(tenant, vni)| *tenant == Some(TenantId((*vni).into()))));
            let inserted = site.server.endpoint().counters().peers_inserted.get();
            assert_eq!(inserted, 4, "round {round}: each once, from its first message");
        }
    });
    assert_eq!(site.server.metrics().impostors.get(), 0);
    assert_eq!(site.server.metrics().unknown_senders.get(), 0);
}

#[test]
fn memory_moves_through_the_network_of_each_client() {
    if !is_loaded("memory_moves_through_the_network_of_each_client", &[]) {
        return;
    }
    for vnis in [&[100, 101][..], &[100], &[]] {
        let site = Site::new(vnis);
        let clients: Vec<_> = vnis.iter().map(|vni| site.client(&[*vni])).collect();
        let clients = if clients.is_empty() { vec![site.client(&[])] } else { clients };
        site.executor.block_on(async {
            for client in &clients {
                let mut source = client.alloc(3_000_000).expect("memory");
                source.iter_mut().zip((0u8..=250).cycle()).for_each(|(byte, value)| *byte = value);
                let mut target = client.alloc(3_000_000).expect("memory");
                let bulk = Bulk::read(&source).and_write(&mut target, 0..3_000_000);
                let peer = Peer::new("127.0.0.1", site.port);
                client.call(&peer, REVERSE, b"", Some(bulk), site.options(20)).await.expect("a reply");
                assert!(target.iter().rev().eq(source.iter()));
            }
        });
    }
}

#[test]
fn a_client_that_comes_back_under_another_key_is_somebody_else() {
    if !is_loaded("a_client_that_comes_back_under_another_key_is_somebody_else", &[]) {
        return;
    }
    let site = Site::new(&[100, 102]);
    let first = site.client(&[100]);
    let before = first.endpoint().address();
    assert_eq!(site.executor.block_on(site.ask(&first, 10)), Some(TenantId(100)));
    drop(first);
    let second = site.client(&[102]);
    assert_eq!(second.endpoint().address(), before);
    assert_eq!(site.executor.block_on(site.ask(&second, 10)), Some(TenantId(102)));
    assert_eq!(site.server.endpoint().counters().peers_inserted.get(), 2, "inserted again under its key");
    assert_eq!(site.server.metrics().impostors.get(), 0);
}

#[test]
fn a_client_on_another_network_does_not_reach_the_server_at_all() {
    if !is_loaded("a_client_on_another_network_does_not_reach_the_server_at_all", &[]) {
        return;
    }
    let site = Site::new(&[100, 101]);
    // At the server's own address in its network, it talks to itself; beside somebody else, to nobody.
    let [itself, other] = [(); 2].map(|()| site.client(&[99]));
    assert_eq!(itself.endpoint().address(), site.server.endpoint().address());
    for stranger in [itself, other] {
        assert_eq!(site.executor.block_on(site.ask(&stranger, 3)), None);
        assert_eq!(site.server.metrics().messages_received.get(), 0, "which costs the server nothing");
    }
    let friend = site.client(&[101]);
    assert_eq!(site.executor.block_on(site.ask(&friend, 10)), Some(TenantId(101)));
}

#[test]
fn servers_call_each_other_on_the_first_of_their_networks() {
    if !is_loaded("servers_call_each_other_on_the_first_of_their_networks", &[]) {
        return;
    }
    let site = Site::new(&[100, 101]);
    let port = port::free();
    let other = Site::serve(&site.executor, &[100, 101], port, RpcConfig::default());
    site.executor.block_on(async {
        assert_eq!(site.ask(&other, 10).await, Some(TenantId(100)));
        let reply = site.server.call(&Peer::new("127.0.0.1", port), WHO, b"", None, site.options(10)).await;
        assert_eq!(reply.expect("an answer")[..], 100u64.to_le_bytes());
    });
    assert_eq!(site.server.metrics().impostors.get() + other.metrics().impostors.get(), 0);
}

#[test]
fn a_client_may_end_while_its_memory_is_exposed() {
    if !is_loaded("a_client_may_end_while_its_memory_is_exposed", &[]) {
        return;
    }
    let site = Site::new(&[100]);
    let client = site.client(&[100]);
    site.executor.block_on(async {
        let memory = client.alloc(100_000).expect("memory");
        let peer = Peer::new("127.0.0.1", site.port);
        let call = client.call(&peer, STALL, b"", Some(Bulk::read(&memory)), site.options(30));
        let ended = site.executor.handle().timeout(Duration::from_millis(300), call).await;
        assert!(ended.is_err(), "it is still under way");
    });
    drop(client);
}

#[test]
fn a_seal_names_the_tenant_whatever_network_it_comes_through() {
    if !is_loaded("a_seal_names_the_tenant_whatever_network_it_comes_through", &[]) {
        return;
    }
    let site = Site::sealed(&[100, 101]);
    let of = |tenant: u64| RpcConfig {
        keys: Some(Keys::Tenant(KEY.tenant(TenantId(tenant)))),
        ..RpcConfig::default()
    };
    // All at the same address, one after the other in each network.
    for (vni, tenant) in [(100, 5), (101, 5), (101, 6), (100, 6)] {
        let client = site.client_of(&[vni], of(tenant));
        for _ in 0..2 {
            assert_eq!(site.executor.block_on(site.ask(&client, 10)), Some(TenantId(tenant)));
        }
    }
    let keyless = site.client(&[100]);
    assert_eq!(site.executor.block_on(site.ask(&keyless, 2)), None);
}
