//! What a server that stops begins, finishes and sends away.

use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::rc::Rc;
use weir_fabric::sim::Fabric;
use weir_proto::Der;
use weir_rpc::{CallOptions, Peer, Request, Rpc, RpcConfig, RpcError, Status};
use weir_runtime::sim::{Node, World};
use weir_runtime::{Handle, join_all};

const SHORT: u16 = 0x7001;
const LONG: u16 = 0x7002;
const URGENT: u16 = 0x7003;
const PORT: u16 = 31_416;

/// When the server begins to stop, while a long request is executed, and when it serves again.
const STOPS: Duration = Duration::from_millis(100);
const BACK: Duration = Duration::from_secs(5);

/// What has happened at the server, in order.
type Events = Rc<RefCell<Vec<&'static str>>>;

struct Stage {
    world: World,
    events: Events,
    node: Node,
    server: Rc<Rpc>,
    client: Rc<Rpc>,
}

/// A server whose first long request ends, as `first` says, after two seconds; others succeed.
fn stage(first: Result<(), Der>) -> Stage {
    let world = World::new(17);
    let fabric = Fabric::new(&world);
    let (host, node) = (world.node("server"), world.node("client"));
    let events = Events::default();
    let server = Rpc::new(host.handle(), fabric.endpoint(&host, Some(PORT)), RpcConfig::default());
    let answers = |event: &'static str| {
        let events = Rc::clone(&events);
        move |_: Request| {
            events.borrow_mut().push(event);
            async { Ok(Vec::new()) }
        }
    };
    server.serve(SHORT, Rc::new(answers("short")));
    server.serve_urgent(URGENT, Rc::new(answers("urgent")));
    let (seen, rt, next) = (Rc::clone(&events), host.handle(), Rc::new(Cell::new(first)));
    server.serve(
        LONG,
        Rc::new(move |_: Request| {
            let (seen, rt, result) = (Rc::clone(&seen), rt.clone(), next.replace(Ok(())));
            async move {
                seen.borrow_mut().push("long begins");
                rt.sleep(Duration::from_secs(2)).await;
                seen.borrow_mut().push("long ends");
                result.map(|()| Vec::new()).map_err(|der| Status::new(der, "what it needs has ended"))
            }
        }),
    );
    let client = Rpc::new(node.handle(), fabric.endpoint(&node, None), RpcConfig::default());
    Stage { world, events, node, server, client }
}

impl Stage {
    /// Calls each operation after so many milliseconds, and says what came of it.
    fn call_all(&self, calls: &'static [(u64, u16)]) -> Vec<Result<(), RpcError>> {
        let (rt, client): (Handle, _) = (self.node.handle(), Rc::clone(&self.client));
        self.world.block_on(&self.node, async move {
            join_all(calls.iter().map(|(pause, opcode)| {
                let (rt, client) = (rt.clone(), Rc::clone(&client));
                async move {
                    rt.sleep(Duration::from_millis(*pause)).await;
                    let options = CallOptions::within(&rt, Duration::from_secs(30));
                    client.call(&Peer::new("server", PORT), *opcode, b"", None, options).await.map(drop)
                }
            }))
            .await
        })
    }

    /// Has the server stop and, much later, serve again, as the one that comes after it does.
    fn stop_for_a_while(&self, stop: impl Fn(&Rpc) + 'static) {
        let (server, events, rt) = (Rc::clone(&self.server), Rc::clone(&self.events), self.node.handle());
        self.node.handle().spawn(async move {
            rt.sleep(STOPS).await;
            stop(&server);
            rt.sleep(BACK).await;
            events.borrow_mut().push("back");
            server.set_starting(false);
        });
    }
}

#[test]
fn a_server_that_drains_finishes_what_runs_and_begins_only_what_is_urgent() {
    let stage = stage(Ok(()));
    stage.stop_for_a_while(Rpc::drain);
    let results = stage.call_all(&[(0, LONG), (200, SHORT), (300, URGENT)]);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(*stage.events.borrow(), ["long begins", "urgent", "long ends", "back", "short"]);
    let metrics = stage.server.metrics();
    assert!(metrics.repeats_running.get() > 0, "the long one was asked for again, and went on");
    assert!(stage.client.metrics().overload_hints.get() > 0, "the short one was told to come again");
}

#[test]
fn a_request_that_fails_as_a_server_ends_comes_again() {
    let stage = stage(Err(Der::BUSY));
    stage.stop_for_a_while(Rpc::turn_away);
    let results = stage.call_all(&[(0, LONG), (200, URGENT)]);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let events = stage.events.borrow();
    let back = events.iter().position(|event| *event == "back").expect("it comes back");
    assert_eq!(events[..back], ["long begins", "long ends"]);
    let mut after = events[back + 1..].to_vec();
    after.sort_unstable();
    assert_eq!(after, ["long begins", "long ends", "urgent"]);
}

#[test]
fn a_request_that_succeeds_as_a_server_ends_is_answered() {
    let stage = stage(Ok(()));
    stage.stop_for_a_while(Rpc::turn_away);
    let results = stage.call_all(&[(0, LONG)]);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(*stage.events.borrow(), ["long begins", "long ends"]);
}
