//! Transfers with one client where writes are ordered, and where they are not.

use core::time::Duration;
use std::rc::Rc;
use weir_fabric::Buffer;
use weir_fabric::sim::{Config, Fabric};
use weir_rpc::{Bulk, CallOptions, Peer, Request, Rpc, RpcConfig, RpcError};
use weir_runtime::join_all;
use weir_runtime::sim::World;

const PULL: u16 = 0x7001;
const PUSH: u16 = 0x7002;
const PORT: u16 = 31_416;
const LEN: usize = 1 << 20;

/// How long four requests at a time take that move a MiB each. A MiB takes 100 µs, and all that the network has to carry
/// go side by side.
fn together(ordered_writes: bool, opcode: u16) -> Duration {
    let world = World::new(5);
    let fabric = Fabric::with_config(&world, Config { ordered_writes, ..Config::default() });
    let (server, client) = (world.node("server"), world.node("client"));
    let serving = Rpc::new(server.handle(), fabric.endpoint(&server, Some(PORT)), RpcConfig::default());
    serving.serve(
        PULL,
        Rc::new(|request: Request| async move {
            let mut buffer = request.alloc(LEN)?;
            request.pull(0, &mut buffer, LEN).await?;
            Ok(vec![buffer[LEN - 1]])
        }),
    );
    serving.serve(
        PUSH,
        Rc::new(|request: Request| async move {
            let mut buffer = request.alloc(LEN)?;
            buffer.fill(9);
            request.push(0, &buffer, LEN).await?;
            Ok(vec![9])
        }),
    );
    let (rt, rpc) =
        (client.handle(), Rpc::new(client.handle(), fabric.endpoint(&client, None), RpcConfig::default()));
    world.block_on(&client, async move {
        let to = Peer::new("server", PORT);
        let call = |buffer: Buffer| async {
            let mut buffer = buffer;
            let bulk = if opcode == PULL { Bulk::read(&buffer) } else { Bulk::write(&mut buffer) };
            let options = CallOptions::within(&rt, Duration::from_secs(1));
            let reply = rpc.call(&to, opcode, &[], Some(bulk), options).await?;
            Ok::<_, RpcError>((reply.to_vec(), buffer))
        };
        let buffers = || {
            let mut buffer = rpc.alloc(LEN).expect("memory");
            buffer.fill(if opcode == PULL { 9 } else { 0 });
            buffer
        };
        call(buffers()).await.expect("contact is made");
        let began = rt.now();
        let done = join_all((0..4).map(|_| call(buffers()))).await;
        let took = rt.now() - began;
        for outcome in done {
            let (said, buffer) = outcome.expect("served");
            assert!(said == [9] && buffer.iter().all(|byte| *byte == 9));
        }
        took
    })
}

#[test]
fn ordered_writes_to_a_client_go_one_after_another_and_all_else_side_by_side() {
    let one = Duration::from_micros(100);
    assert!(together(true, PUSH) >= one * 4, "one after another");
    for (ordered, opcode) in [(false, PUSH), (true, PULL), (false, PULL)] {
        let took = together(ordered, opcode);
        assert!(took >= one && took < one * 3, "side by side: {took:?}");
    }
}
