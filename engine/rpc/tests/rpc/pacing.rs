//! Transfers with one client where all that goes to it goes in one stream, and where not.

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

/// How long so many requests at a time take that move `len` bytes each. A MiB takes 100 µs, and all that the network has to
/// carry go side by side.
fn together(ordered_writes: bool, opcode: u16, count: usize, len: usize) -> Duration {
    let world = World::new(5);
    let fabric = Fabric::with_config(&world, Config { ordered_writes, ..Config::default() });
    let (server, client) = (world.node("server"), world.node("client"));
    let serving = Rpc::new(server.handle(), fabric.endpoint(&server, Some(PORT)), RpcConfig::default());
    serving.serve(
        PULL,
        Rc::new(|request: Request| async move {
            let len = usize::try_from(request.bulk_len()).expect("small");
            let mut buffer = request.payload(len).await?;
            request.pull(0, &mut buffer, len).await?;
            Ok(vec![buffer[len - 1]])
        }),
    );
    serving.serve(
        PUSH,
        Rc::new(|request: Request| async move {
            let len = usize::try_from(request.bulk_room()).expect("small");
            let mut buffer = request.payload(len).await?;
            buffer.fill(9);
            request.push(0, &buffer, len).await?;
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
            let mut buffer = rpc.alloc(len).expect("memory");
            buffer.fill(if opcode == PULL { 9 } else { 0 });
            buffer
        };
        call(buffers()).await.expect("contact is made");
        let began = rt.now();
        let done = join_all((0..count).map(|_| call(buffers()))).await;
        let took = rt.now() - began;
        for outcome in done {
            let (said, buffer) = outcome.expect("served");
            assert!(said == [9] && buffer.iter().all(|byte| *byte == 9));
        }
        took
    })
}

#[test]
fn transfers_go_side_by_side_where_each_has_a_way_of_its_own() {
    let one = Duration::from_micros(100);
    for opcode in [PUSH, PULL] {
        let took = together(false, opcode, 8, LEN);
        assert!(took >= one && took < one * 3, "side by side: {took:?}");
    }
}

#[test]
fn no_more_moves_at_once_with_a_client_that_has_a_single_stream_than_what_keeps_it_full() {
    let one = Duration::from_micros(100);
    for opcode in [PUSH, PULL] {
        let took = together(true, opcode, 8, LEN);
        assert!(took >= one * 4 && took < one * 6, "two at a time: {took:?}");
        // As many as a client has credits, of as much together as two large ones.
        let took = together(true, opcode, 32, 64 << 10);
        assert!(took < one * 3, "side by side: {took:?}");
    }
}
