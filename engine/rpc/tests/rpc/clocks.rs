//! Requests of tenants whose clocks are ahead: what has to wait, waits within its deadline, and takes nobody's room.

use core::cell::Cell;
use core::time::Duration;
use std::rc::Rc;
use weir_fabric::sim::Fabric;
use weir_proto::TenantId;
use weir_proto::capability::SystemKey;
use weir_proto::hlc::LEAD_MAX_NS;
use weir_rpc::{CallOptions, Keys, Peer, Reply, Request, Rpc, RpcConfig, RpcError};
use weir_runtime::join_all;
use weir_runtime::sim::{Node, World};

/// Counts executions.
const COUNT: u16 = 0x7001;
/// Counts them, too, and is urgent.
const URGENT: u16 = 0x7002;
const PORT: u16 = 31_416;
const KEY: SystemKey = SystemKey([7; 32]);

struct Scene {
    world: World,
    fabric: Fabric,
    server: Rc<Rpc>,
    executed: Rc<Cell<usize>>,
}

impl Scene {
    fn new() -> Self {
        let world = World::new(11);
        let fabric = Fabric::new(&world);
        let node = world.node("server");
        let config = RpcConfig { keys: Some(Keys::System(KEY)), ..RpcConfig::default() };
        let server = Rpc::new(node.handle(), fabric.endpoint(&node, Some(PORT)), config);
        let executed = Rc::new(Cell::new(0));
        let count = |executed: &Rc<Cell<usize>>| {
            let executed = Rc::clone(executed);
            Rc::new(move |_: Request| {
                executed.set(executed.get() + 1);
                async { Ok(Vec::new()) }
            })
        };
        server.serve(COUNT, count(&executed));
        server.serve_urgent(URGENT, count(&executed));
        Self { world, fabric, server, executed }
    }

    /// A client whose clock is ahead by as much as may be noted at once, and so many nanoseconds more.
    fn client(&self, name: &str, tenant: u64, more_ns: i64) -> (Node, Rc<Rpc>) {
        let node = self.world.node(name);
        node.set_clock_skew(i64::try_from(LEAD_MAX_NS).expect("small") + more_ns);
        let config =
            RpcConfig { keys: Some(Keys::Tenant(KEY.tenant(TenantId(tenant)))), ..RpcConfig::default() };
        (node.clone(), Rpc::new(node.handle(), self.fabric.endpoint(&node, None), config))
    }

    /// What a call comes to, and how long it takes.
    fn call(&self, (node, rpc): &(Node, Rc<Rpc>), within: Duration) -> (Result<Reply, RpcError>, Duration) {
        let (rt, rpc, began) = (node.handle(), Rc::clone(rpc), self.world.now());
        let options = CallOptions::within(&rt, within);
        let called = self.world.block_on(node, async move {
            rpc.call(&Peer::new("server", PORT), COUNT, b"", None, options).await
        });
        (called, self.world.now() - began)
    }
}

#[test]
fn a_request_whose_clock_is_further_ahead_waits_for_the_rest_and_is_executed_behind_it() {
    let scene = Scene::new();
    for (name, more_ns, waits) in [("near", -50_000_000, false), ("far", 300_000_000, true)] {
        let client = scene.client(name, 1, more_ns);
        let (reply, took) = scene.call(&client, Duration::from_secs(5));
        let lead = reply.expect("executed").epoch().0 - scene.world.node("server").handle().wall_ns();
        assert_eq!(took > Duration::from_millis(290), waits, "{took:?}");
        assert!(took < Duration::from_millis(320), "{took:?}");
        assert!(lead <= LEAD_MAX_NS + 1_000_000, "{name}: the server's clock is {lead} ns ahead");
    }
    assert_eq!(scene.server.metrics().requests_early.get(), 1);
}

#[test]
fn one_that_expires_while_it_waits_is_not_executed() {
    let scene = Scene::new();
    let client = scene.client("client", 1, 400_000_000);
    let (ended, took) = scene.call(&client, Duration::from_millis(100));
    assert!(ended.is_err() && took < Duration::from_millis(200), "{ended:?} after {took:?}");
    scene.world.run_for(Duration::from_secs(2));
    assert_eq!(scene.executed.get(), 0);
    assert_eq!((scene.server.metrics().expired.get(), scene.server.metrics().running.get()), (1, 0));
}

#[test]
fn one_that_waits_when_the_server_closes_is_not_executed() {
    let scene = Scene::new();
    let client = scene.client("client", 1, 400_000_000);
    let (node, rpc) = client;
    let rt = node.handle();
    node.handle().spawn(async move {
        let options = CallOptions::within(&rt, Duration::from_secs(5));
        drop(rpc.call(&Peer::new("server", PORT), COUNT, b"", None, options).await);
    });
    scene.world.run_for(Duration::from_millis(100));
    assert_eq!(scene.server.metrics().running.get(), 1);
    let Scene { world, server, executed, .. } = scene;
    drop(server);
    world.run_for(Duration::from_secs(2));
    assert_eq!(executed.get(), 0);
}

#[test]
fn urgent_requests_wait_for_no_clock_so_that_they_take_no_room() {
    let scene = Scene::new();
    let (node, rpc) = scene.client("client", 1, 400_000_000);
    let rt = node.handle();
    let calls = scene.world.block_on(&node, async move {
        let (peer, options) =
            (Peer::new("server", PORT), CallOptions::within(&rt, Duration::from_millis(200)));
        join_all((0..100).map(|_| rpc.call(&peer, URGENT, b"", None, options))).await
    });
    for call in calls {
        call.expect("executed at once");
    }
    assert_eq!(scene.server.metrics().requests_early.get(), 0);
}
