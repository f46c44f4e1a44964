//! Replies find their way whatever the provider tells of senders.

use core::time::Duration;
use std::rc::Rc;
use weir_fabric::sim::{Fabric, UnknownSource};
use weir_rpc::{CallOptions, Peer, Request, Rpc, RpcConfig};
use weir_runtime::sim::World;

const ECHO: u16 = 0x7001;
const PORT: u16 = 31_416;

/// Two clients call, fall silent, call again, and go on after a restart of the server.
fn talk(unknown_source: UnknownSource, loss: f64) -> Rc<Rpc> {
    let world = World::new(21);
    let fabric = Fabric::new(&world);
    fabric.configure(|config| (config.unknown_source, config.loss) = (unknown_source, loss));
    let node = world.node("server");
    let serve = |fabric: &Fabric| {
        let rpc = Rpc::new(node.handle(), fabric.endpoint(&node, Some(PORT)), RpcConfig::default());
        rpc.serve(ECHO, Rc::new(|request: Request| async move { Ok(request.body().to_vec()) }));
        rpc
    };
    let first = serve(&fabric);
    let clients: Vec<_> = ["one", "two"]
        .map(|name| {
            let home = world.node(name);
            let rpc = Rpc::new(home.handle(), fabric.endpoint(&home, None), RpcConfig::default());
            (home, rpc)
        })
        .into();
    let round = |tag: u8| {
        for (home, rpc) in &clients {
            let (rt, rpc, name) = (home.handle(), Rc::clone(rpc), home.name());
            world.block_on(home, async move {
                for n in 0..20u8 {
                    let body = [name.as_bytes(), &[tag, n]].concat();
                    let options = CallOptions::within(&rt, Duration::from_secs(30));
                    let to = Peer::new("server", PORT);
                    let reply = rpc.call(&to, ECHO, &body, None, options).await.expect("a reply");
                    assert_eq!(reply[..], body, "{unknown_source:?}");
                    rt.sleep(Duration::from_millis(u64::from(n % 3) * 4)).await;
                }
            });
        }
    };
    round(1);
    world.crash(&node);
    drop(first);
    world.restart(&node);
    let second = serve(&fabric);
    round(2);
    second
}

#[test]
fn replies_reach_their_clients_with_and_without_the_providers_word_on_senders() {
    for unknown_source in [UnknownSource::Nothing, UnknownSource::Address, UnknownSource::Always] {
        for loss in [0.0, 0.05] {
            let server = talk(unknown_source, loss);
            let unknown = server.endpoint().counters().unknown_sources.get();
            let received = server.endpoint().counters().messages_received.get();
            let never = unknown_source == UnknownSource::Always;
            assert_eq!(unknown == received, never, "{unknown_source:?}: {unknown} of {received}");
            assert_eq!(server.metrics().impostors.get(), 0, "{unknown_source:?}");
            assert_eq!(server.metrics().unknown_senders.get(), 0, "{unknown_source:?}");
        }
    }
}
