//! What a full server takes, and what goes before what.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use weir_fabric::sim::Fabric;
use weir_proto::capability::{EngineKey, SystemKey};
use weir_proto::group::{EngineInfo, GroupList};
use weir_proto::{Rank, TargetIndex, opcode};
use weir_rpc::{Rpc, RpcConfig};
use weir_runtime::join_all;
use weir_runtime::sim::World;

use super::{EngineKeys, Engines};
use crate::refusal::Refusal;

const PORT: u16 = 100;
const SECOND: Duration = Duration::from_secs(1);
/// Requests that take no part in transactions.
const OTHER: u16 = opcode::TARGET_POOL_QUERY;

fn list(count: u32) -> GroupList {
    let info = |rank| EngineInfo {
        rank: Rank(rank),
        host: format!("engine-{rank}"),
        fabric_port: PORT,
        targets: 1,
        management: String::new(),
    };
    (0..count).map(info).collect::<Vec<_>>().into()
}

fn engines(world: &World, fabric: &Fabric, rank: u32, count: u32, config: RpcConfig) -> Rc<Engines> {
    let node = world.node(&format!("engine-{rank}"));
    let rpc = Rpc::new(node.handle(), fabric.endpoint(&node, Some(PORT)), config);
    let own = (Rank(rank), TargetIndex(0));
    let keys = EngineKeys { system: SystemKey([1; 32]), engines: EngineKey([2; 32]) };
    Engines::new(node.handle(), rpc, keys, own, list(count)).expect("a good list")
}

#[test]
fn a_server_that_is_full_of_those_who_wait_for_a_decision_takes_it() {
    const COUNT: u32 = 40;
    let (world, node) = (World::new(1), "asking");
    let (fabric, node) = (Fabric::new(&world), world.node(node));
    let config = RpcConfig { running_max: 16, ..RpcConfig::default() };
    let full = engines(&world, &fabric, 0, COUNT, config);
    let others: Vec<_> =
        (1..COUNT).map(|rank| engines(&world, &fabric, rank, COUNT, RpcConfig::default())).collect();
    let is_decided = Rc::new(Cell::new(false));
    let (decided, rt) = (Rc::clone(&is_decided), full.rt.clone());
    full.serve(OTHER, move |_, ()| {
        let (decided, rt) = (Rc::clone(&decided), rt.clone());
        async move {
            while !decided.get() {
                rt.sleep(SECOND / 1000).await;
            }
            Ok::<_, Refusal>(())
        }
    });
    full.serve(opcode::TARGET_TRANSACTION_PREPARE, |_, ()| async { Ok::<_, Refusal>(()) });
    full.serve(opcode::TARGET_TRANSACTION_OUTCOME, |_, ()| async { Ok::<_, Refusal>(()) });
    full.serve(opcode::TARGET_TRANSACTION_DECIDE, move |_, ()| {
        is_decided.set(true);
        async { Ok::<_, Refusal>(()) }
    });
    world.block_on(&node, async move {
        let to = (Rank(0), TargetIndex(0));
        let ask = async |from: &Engines, opcode| from.ask::<_, ()>(to.0, to.1, opcode, &(), SECOND).await;
        let waiting: Vec<_> = others
            .iter()
            .map(|other| {
                let from = Rc::clone(other);
                let asked = async move { from.ask::<_, ()>(to.0, to.1, OTHER, &(), 60 * SECOND).await };
                other.rt.spawn(asked)
            })
            .collect();
        others[0].rt.sleep(SECOND).await;
        ask(&others[0], OTHER).await.expect_err("there is no room");
        for opcode in [
            opcode::TARGET_TRANSACTION_PREPARE,
            opcode::TARGET_TRANSACTION_OUTCOME,
            opcode::TARGET_TRANSACTION_DECIDE,
        ] {
            ask(&others[0], opcode).await.expect("others wait for it");
        }
        assert!(join_all(waiting).await.iter().all(|one| matches!(one, Ok(Ok(())))));
    });
}

#[test]
fn a_decision_goes_before_what_waits_to_be_sent_and_begins_something() {
    let world = World::new(2);
    let fabric = Fabric::new(&world);
    let config = RpcConfig { credits: 1, ..RpcConfig::default() };
    let (from, to) =
        (engines(&world, &fabric, 0, 2, config), engines(&world, &fabric, 1, 2, RpcConfig::default()));
    let order: Rc<RefCell<Vec<u16>>> = Rc::default();
    let opcodes = [OTHER, opcode::TARGET_TRANSACTION_DECIDE, opcode::TARGET_TRANSACTION_OUTCOME];
    for opcode in opcodes {
        let (order, rt) = (Rc::clone(&order), to.rt.clone());
        to.serve(opcode, move |_, ()| {
            order.borrow_mut().push(opcode);
            let rt = rt.clone();
            async move {
                rt.sleep(SECOND / 100).await;
                Ok::<_, Refusal>(())
            }
        });
    }
    let node = world.node("asking");
    world.block_on(&node, async move {
        let ask = async |opcode| from.ask::<_, ()>(Rank(1), TargetIndex(0), opcode, &(), SECOND).await;
        let asked = [OTHER, OTHER, OTHER, opcodes[1], opcodes[2]].map(ask);
        assert!(join_all(asked).await.iter().all(Result::is_ok));
    });
    assert_eq!(*order.borrow(), [OTHER, opcodes[1], opcodes[2], OTHER, OTHER]);
}
