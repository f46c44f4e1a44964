//! A simulated group of engines.

use std::rc::Rc;

use weir_proto::Rank;
use weir_rpc::membership::{Group, Location};
use weir_runtime::sim::{Node, World};

/// Port of each engine.
pub const PORT: u16 = 10_100;

/// The first version of a group of so many engines, and the node of each.
pub fn engines(world: &World, members: u32) -> (Rc<Group>, Vec<Node>) {
    let host = |rank: u32| format!("engine-{rank}");
    let located =
        (0..members).map(|rank| (Rank(rank), Location { host: host(rank).into(), port: PORT, tags: 1 }));
    let group = Group::new(1, located);
    (group, (0..members).map(|rank| world.node(&host(rank))).collect())
}
