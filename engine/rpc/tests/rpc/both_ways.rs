//! Two engines that are each other's clients, at one address each: what becomes of one's contact as a client must not harm
//! what it does as a server.

use crate::fill;

use core::time::Duration;
use fill::fill;
use std::rc::Rc;
use weir_fabric::sim::{Config, Fabric};
use weir_rpc::{Bulk, CallOptions, Peer, Request, Rpc, RpcConfig};
use weir_runtime::sim::World;

const PUSH: u16 = 0x7021;
const ECHO: u16 = 0x7022;
const PORT: u16 = 31_418;
/// Six pieces, of which two move at a time.
const LEN: usize = 6 << 20;

#[test]
fn contact_that_a_server_loses_with_its_client_ends_no_transfer_to_it() {
    for seed in 0..20 {
        let world = World::new(seed);
        let config = Config { per_mebibyte: Duration::from_millis(800), ..Config::default() };
        let fabric = Fabric::with_config(&world, config);
        let nodes = [world.node("one"), world.node("other")];
        let [one, other] = [0, 1].map(|at: usize| {
            let config = RpcConfig { transfers_max: 2, ..RpcConfig::default() };
            let rpc = Rpc::new(nodes[at].handle(), fabric.endpoint(&nodes[at], Some(PORT)), config);
            rpc.serve(ECHO, Rc::new(|_: Request| async { Ok(Vec::new()) }));
            rpc.serve(PUSH, Rc::new(|request| fill(request, 9)));
            rpc
        });
        let rt = nodes[0].handle();
        let server = Rc::clone(&one);
        rt.clone().spawn(async move {
            // Its hello gets there, and no answer comes back.
            rt.sleep(Duration::from_millis(200)).await;
            let options = CallOptions::within(&rt, Duration::from_millis(2500));
            let asked = server.call(&Peer::new("other", PORT), ECHO, b"", None, options).await;
            assert!(asked.is_err(), "seed {seed}");
        });
        let (rt, cut, client) = (nodes[1].handle(), fabric.clone(), Rc::clone(&other));
        let [near, far] = [nodes[1].clone(), nodes[0].clone()];
        let timer = rt.clone();
        rt.spawn(async move {
            timer.sleep(Duration::from_millis(100)).await;
            cut.partition_one_way(&near, &far);
            timer.sleep(Duration::from_secs(3)).await;
            cut.heal();
        });
        let rt = nodes[1].handle();
        world.block_on(&nodes[1], async move {
            let mut buffer = client.alloc(LEN).expect("memory");
            let options = CallOptions::within(&rt, Duration::from_secs(20));
            let to = Peer::new("one", PORT);
            let reply = client.call(&to, PUSH, b"", Some(Bulk::write(&mut buffer)), options).await;
            assert!(reply.is_ok(), "seed {seed}: {reply:?}");
            assert!(buffer.iter().all(|byte| *byte == 9), "seed {seed}");
        });
        assert_eq!(one.metrics().requests.get(), 1, "seed {seed}: executed once");
    }
}
