//! Replies whose clock is too far ahead for the client to take them.

use core::cell::Cell;
use core::time::Duration;
use std::rc::Rc;
use weir_fabric::sim::Fabric;
use weir_rpc::{CallOptions, Peer, Request, Rpc, RpcConfig};
use weir_runtime::Handle;
use weir_runtime::sim::{Node, World};

const QUICK: u16 = 0x7002;
const SLOW: u16 = 0x7009;
const PORT: u16 = 31_416;
const BEHIND_NS: i64 = -5_000_000_000;

struct Scene {
    world: World,
    fabric: Fabric,
    server: Node,
    home: Node,
    client: Rc<Rpc>,
    /// Quick requests that were executed, by whichever incarnation.
    executed: Rc<Cell<u32>>,
}

impl Scene {
    fn new() -> Self {
        let world = World::new(3);
        let fabric = Fabric::new(&world);
        let (server, home) = (world.node("server"), world.node("client"));
        let client = Rpc::new(home.handle(), fabric.endpoint(&home, None), RpcConfig::default());
        Self { world, fabric, server, home, client, executed: Rc::default() }
    }

    fn serve(&self) -> Rc<Rpc> {
        serve(&self.server, &self.fabric, &self.executed)
    }
}

fn serve(node: &Node, fabric: &Fabric, executed: &Rc<Cell<u32>>) -> Rc<Rpc> {
    let rpc = Rpc::new(node.handle(), fabric.endpoint(node, Some(PORT)), RpcConfig::default());
    let (executed, rt) = (Rc::clone(executed), node.handle());
    rpc.serve(
        QUICK,
        Rc::new(move |request: Request| {
            executed.set(executed.get() + 1);
            async move { Ok(request.body().to_vec()) }
        }),
    );
    rpc.serve(
        SLOW,
        Rc::new(move |request: Request| {
            let rt = rt.clone();
            async move {
                rt.sleep(Duration::from_millis(400)).await;
                Ok(request.body().to_vec())
            }
        }),
    );
    rpc
}

/// A call. How it ended, as text where it failed, and how long it took.
async fn ask(rpc: &Rpc, rt: &Handle, opcode: u16, options: CallOptions) -> (Result<(), String>, Duration) {
    let began = rt.now();
    let result = rpc.call(&Peer::new("server", PORT), opcode, b"body", None, options).await;
    (result.map(drop).map_err(|error| error.to_string()), rt.now() - began)
}

#[test]
fn a_client_whose_clock_is_set_back_far_is_told_so_by_its_next_call_and_served_when_it_is_right_again() {
    let scene = Scene::new();
    let _server = scene.serve();
    let (rpc, rt, clock) = (Rc::clone(&scene.client), scene.home.handle(), scene.home.clone());
    scene.world.block_on(&scene.home, async move {
        let within = || CallOptions::within(&rt, Duration::from_secs(2));
        ask(&rpc, &rt, QUICK, within()).await.0.expect("a reply");
        clock.set_clock_skew(BEHIND_NS);
        let said = ask(&rpc, &rt, QUICK, within()).await.0.expect_err("no reply can be taken");
        assert!(said.contains("synchronise the clocks"), "{said}");
        clock.set_clock_skew(0);
        ask(&rpc, &rt, QUICK, within()).await.0.expect("a reply");
    });
    assert_eq!(scene.executed.get(), 3, "the one without a reply was executed once");
}

#[test]
fn a_request_that_may_be_sent_once_is_not_sent_again_when_its_reply_cannot_be_taken() {
    let scene = Scene::new();
    let first = Rc::new(Cell::new(Some(scene.serve())));
    let second = Rc::new(Cell::new(None));
    let (world, server, gone) = (scene.world.clone(), scene.server.clone(), Rc::clone(&first));
    scene.world.schedule(Duration::from_millis(1500), move || {
        world.crash(&server);
        drop(gone.take());
    });
    let (world, server, home) = (scene.world.clone(), scene.server.clone(), scene.home.clone());
    let (fabric, executed, there) = (scene.fabric.clone(), Rc::clone(&scene.executed), Rc::clone(&second));
    scene.world.schedule(Duration::from_millis(1600), move || {
        world.restart(&server);
        home.set_clock_skew(0);
        there.set(Some(serve(&server, &fabric, &executed)));
    });
    let (rpc, rt, clock) = (Rc::clone(&scene.client), scene.home.handle(), scene.home.clone());
    let (outcome, _) = scene.world.block_on(&scene.home, async move {
        let options = CallOptions::within(&rt, Duration::from_secs(2));
        ask(&rpc, &rt, QUICK, options).await.0.expect("a reply");
        rt.sleep(Duration::from_millis(500)).await;
        clock.set_clock_skew(BEHIND_NS);
        ask(&rpc, &rt, QUICK, CallOptions::within(&rt, Duration::from_secs(10)).once()).await
    });
    let said = outcome.expect_err("no reply was taken");
    assert!(said.contains("synchronise the clocks") && said.contains("unknown"), "{said}");
    scene.world.run_for(Duration::from_secs(5));
    assert_eq!(scene.executed.get(), 2, "with the first one");
}

#[test]
fn one_reply_that_cannot_be_taken_costs_no_other_call_its_own() {
    for once in [true, false] {
        let scene = Scene::new();
        let _server = scene.serve();
        let (rpc, rt, clock) = (Rc::clone(&scene.client), scene.home.handle(), scene.home.clone());
        let (slow, quick) = scene.world.block_on(&scene.home, async move {
            let options = CallOptions::within(&rt, Duration::from_secs(3));
            ask(&rpc, &rt, QUICK, options).await.0.expect("a reply");
            let asking = |opcode, options| {
                let (rpc, rt) = (Rc::clone(&rpc), rt.clone());
                async move { ask(&rpc, &rt, opcode, options).await }
            };
            let slow = rt.spawn(asking(SLOW, if once { options.once() } else { options }));
            rt.sleep(Duration::from_millis(50)).await;
            clock.set_clock_skew(BEHIND_NS);
            let quick = rt.spawn(asking(QUICK, options));
            rt.sleep(Duration::from_millis(50)).await;
            clock.set_clock_skew(0);
            (slow.await.expect("it ran"), quick.await.expect("it ran"))
        });
        assert!(slow.0.is_ok() && slow.1 < Duration::from_millis(410), "{slow:?}, once: {once}");
        assert!(quick.0.is_ok() && quick.1 < Duration::from_secs(1), "{quick:?}");
        assert_eq!(scene.client.metrics().disconnects.get(), 0);
        assert_eq!(scene.executed.get(), 2, "its repeat was not executed");
    }
}

/// Near the bound a hello may pass, and the reply to a request behind it not.
#[test]
fn a_client_whose_clock_is_at_the_edge_keeps_its_contact() {
    for step in 0..40 {
        let scene = Scene::new();
        let server = scene.serve();
        scene.home.set_clock_skew(-1_000_000_000 - step * 10_000);
        let (rpc, rt) = (Rc::clone(&scene.client), scene.home.handle());
        scene.world.block_on(&scene.home, async move {
            let end = rt.now() + Duration::from_secs(1);
            while rt.now() < end {
                // Whether there is a reply is up to chance.
                drop(ask(&rpc, &rt, QUICK, CallOptions::until(end)).await);
            }
        });
        let [caller, told] = [&scene.client, &server].map(|rpc| rpc.metrics());
        assert_eq!(caller.disconnects.get(), 0, "step {step}");
        let tries = caller.connects.get() + caller.retries.get();
        assert!(tries <= told.requests.get() + 200, "{tries} tries at step {step}");
    }
}
