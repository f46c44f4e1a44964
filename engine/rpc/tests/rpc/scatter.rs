//! Transfers that are scattered on both sides, overlap, and end with the deadline.

use core::time::Duration;
use std::rc::Rc;
use weir_fabric::sim::{Config, Fabric};
use weir_proto::Der;
use weir_rpc::wire::SEGMENTS_MAX;
use weir_rpc::{Bulk, CallOptions, Peer, Request, Rpc, RpcConfig, RpcError, Status};
use weir_runtime::sim::World;

const TURN: u16 = 0x7041;
const STORE: u16 = 0x7042;
const PORT: u16 = 31_419;

fn stage(per_mebibyte: Duration) -> (World, Fabric, Rc<Rpc>) {
    let world = World::new(17);
    let fabric = Fabric::with_config(&world, Config { per_mebibyte, ..Config::default() });
    let node = world.node("server");
    let server = Rpc::new(node.handle(), fabric.endpoint(&node, Some(PORT)), RpcConfig::default());
    (world, fabric, server)
}

/// Pulls everything into three buffers of odd lengths, and pushes them back in another order.
async fn turn(request: Request) -> Result<Vec<u8>, Status> {
    let len = usize::try_from(request.bulk_len()).unwrap_or(0);
    let (one, two) = (len / 3 + 1, len / 3 - 7);
    let three = len - one - two;
    let mut buffers = Vec::new();
    for len in [one, two, three] {
        buffers.push(request.payload(len + 10).await?);
    }
    let [a, b, c] = &mut buffers[..] else { return Err(Status::new(Der::MISC, "three buffers")) };
    request.pull_scattered(0, &mut [(a, 5..5 + one), (b, 0..two), (c, 10..10 + three)]).await?;
    request.push_gathered(0, &[(c, 10..10 + three), (a, 5..5 + one), (b, 0..0), (b, 0..two)]).await?;
    let outside = request.pull_scattered(1, &mut [(a, 5..5 + one), (b, 0..two), (c, 10..10 + three)]).await;
    match outside {
        Err(status) if status.der == Der::INVAL => Ok(Vec::new()),
        other => Err(Status::new(Der::MISC, format!("a byte too many: {other:?}"))),
    }
}

#[test]
fn bytes_are_scattered_and_gathered_on_both_sides() {
    let (world, fabric, server) = stage(Duration::from_micros(100));
    server.serve(TURN, Rc::new(turn));
    let node = world.node("client");
    let (rt, client) =
        (node.handle(), Rpc::new(node.handle(), fabric.endpoint(&node, None), RpcConfig::default()));
    world.block_on(&node, async move {
        const LEN: usize = 3_500_001;
        let bytes: Vec<u8> = (0..LEN).map(|n| (n * 7 + n / 251).to_le_bytes()[0]).collect();
        let mut source = client.alloc(LEN).expect("memory");
        source.copy_from_slice(&bytes);
        let [mut head, mut tail] = [1_000_003, LEN - 1_000_003].map(|len| client.alloc(len).expect("memory"));
        let bulk = Bulk::new()
            .and_read(&source, 0..11)
            .and_read(&source, 11..2_000_000)
            .and_read(&source, 2_000_000..LEN)
            .and_write(&mut head, 0..1_000_003)
            .and_write(&mut tail, 0..LEN - 1_000_003);
        let options = CallOptions::within(&rt, Duration::from_secs(5));
        client.call(&Peer::new("server", PORT), TURN, b"", Some(bulk), options).await.expect("a reply");
        let cut = LEN / 3 + 1 + LEN / 3 - 7;
        let expected: Vec<u8> = bytes[cut..].iter().chain(&bytes[..cut]).copied().collect();
        let got: Vec<u8> = head.iter().chain(tail.iter()).copied().collect();
        assert!(got == expected, "in the order that both sides said");
    });
    assert_eq!(server.endpoint().buffers().used(), 0);
}

#[test]
fn pieces_of_one_request_overlap() {
    // Eight pieces, of which one takes 10 ms.
    const LEN: usize = 8 << 20;
    let took = |transfers_max: usize| {
        let (world, fabric, _) = stage(Duration::from_millis(10));
        let node = world.node("one");
        let config = RpcConfig { transfers_max, ..RpcConfig::default() };
        let server = Rpc::new(node.handle(), fabric.endpoint(&node, Some(PORT)), config);
        server.serve(
            STORE,
            Rc::new(|request: Request| async move {
                let mut buffer = request.payload(LEN).await?;
                request.pull(0, &mut buffer, LEN).await?;
                Ok(Vec::new())
            }),
        );
        let node = world.node("client");
        let rt = node.handle();
        let client = Rpc::new(node.handle(), fabric.endpoint(&node, None), RpcConfig::default());
        let began = world.now();
        world.block_on(&node, async move {
            let source = client.alloc(LEN).expect("memory");
            let options = CallOptions::within(&rt, Duration::from_secs(5));
            let bulk = Some(Bulk::read(&source));
            client.call(&Peer::new("one", PORT), STORE, b"", bulk, options).await.expect("a reply");
        });
        world.now() - began
    };
    let (together, alone) = (took(64), took(1));
    assert!(together < Duration::from_millis(12), "{together:?}");
    assert!(alone > Duration::from_millis(80), "{alone:?}");
}

#[test]
fn memory_in_more_pieces_than_a_request_has_room_for_is_refused_with_their_number() {
    let (world, fabric, _server) = stage(Duration::ZERO);
    let node = world.node("client");
    let (rt, client) =
        (node.handle(), Rpc::new(node.handle(), fabric.endpoint(&node, None), RpcConfig::default()));
    let refused = world.block_on(&node, async move {
        let memory = client.alloc(100).expect("memory");
        let pieces =
            |count: usize| (0..count).fold(Bulk::new(), |bulk, at| bulk.and_read(&memory, at..at + 1));
        let options = || CallOptions::within(&rt, Duration::from_secs(1));
        let to = Peer::new("server", PORT);
        let fits = client.call(&to, STORE, b"", Some(pieces(SEGMENTS_MAX)), options()).await;
        assert_eq!(fits.map(|_| ()).map_err(|error| error.der()), Err(Der::NOSYS), "nobody serves it");
        client.call(&to, STORE, b"", Some(pieces(SEGMENTS_MAX + 1)), options()).await.map(|_| ())
    });
    assert_eq!(refused, Err(RpcError::Scattered { count: 65, max: 64 }));
}

#[test]
fn data_that_comes_after_the_deadline_is_not_used() {
    let (world, fabric, server) = stage(Duration::from_millis(400));
    let stored: Rc<core::cell::Cell<Option<Result<(), Der>>>> = Rc::default();
    let outcome = Rc::clone(&stored);
    server.serve(
        STORE,
        Rc::new(move |request: Request| {
            let outcome = Rc::clone(&outcome);
            async move {
                let mut buffer = request.payload(1 << 20).await?;
                let pulled = request.pull(0, &mut buffer, 1 << 20).await;
                assert!(pulled.is_ok() || buffer.is_empty(), "late data can't get at the buffer any more");
                outcome.set(Some(pulled.clone().map_err(|status| status.der)));
                pulled.map(|()| Vec::new())
            }
        }),
    );
    let node = world.node("client");
    let (rt, client) =
        (node.handle(), Rpc::new(node.handle(), fabric.endpoint(&node, None), RpcConfig::default()));
    world.block_on(&node, async move {
        let source = client.alloc(1 << 20).expect("memory");
        let options = CallOptions::within(&rt, Duration::from_millis(300)).once();
        let call =
            client.call(&Peer::new("server", PORT), STORE, b"", Some(Bulk::read(&source)), options).await;
        assert!(matches!(call, Err(RpcError::TimedOut { .. })), "{call:?}");
        rt.sleep(Duration::from_secs(5)).await;
    });
    assert_eq!(stored.get(), Some(Err(Der::TIMEDOUT)));
    let metrics = server.metrics();
    assert_eq!((metrics.bulk_expired.get(), metrics.replies_held.get(), metrics.running.get()), (1, 1, 0));
    assert_eq!(server.endpoint().buffers().used(), 0);
}
