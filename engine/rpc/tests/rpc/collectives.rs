//! Broadcast and reduce over 1,024 members in the simulator: depths and messages of each tree, dead members inside the
//! tree, losses, slow members, other versions of the group.

use crate::engines;

use core::cell::RefCell;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use engines::{PORT, engines};
use weir_fabric::sim::Fabric;
use weir_proto::group::{CollectiveReply, Tree};
use weir_proto::{Der, Rank, codec, opcode};
use weir_rpc::membership::{
    CollectiveError, CollectiveHandler, Collectives, Group, Location, Outcome, PlainCollectives,
    serve_collectives,
};
use weir_rpc::{Request, Rpc, RpcConfig};
use weir_runtime::sim::{Node, World};
use weir_runtime::{Handle, LocalBoxFuture};

/// Sums the ranks, and whatever the argument says.
const SUM: u16 = 1;
/// Like SUM, but takes some seconds.
const SLOW: u16 = 2;
/// Never ends.
const HANGS: u16 = 3;
/// Fails at every tenth rank.
const TENTHS: u16 = 4;

type Executions = Rc<RefCell<BTreeMap<Rank, u32>>>;

struct Sum {
    rt: Handle,
    own: Rank,
    operation: u16,
    executions: Executions,
}

impl CollectiveHandler for Sum {
    fn execute(&self, body: &[u8]) -> LocalBoxFuture<'static, Result<Vec<u8>, Der>> {
        *self.executions.borrow_mut().entry(self.own).or_default() += 1;
        let extra = u64::try_from(body.len()).unwrap_or(0);
        let (rt, own, operation) = (self.rt.clone(), self.own, self.operation);
        Box::pin(async move {
            match operation {
                SLOW => rt.sleep(Duration::from_secs(5)).await,
                HANGS if own.0 % 7 == 3 => core::future::pending().await,
                TENTHS if own.0 % 10 == 0 => return Err(Der::IO),
                _ => {}
            }
            Ok((u64::from(own.0) + extra).to_le_bytes().to_vec())
        })
    }

    fn merge(&self, one: Vec<u8>, other: Vec<u8>) -> Vec<u8> {
        (number(&one) + number(&other)).to_le_bytes().to_vec()
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("a sum has eight bytes"))
}

struct Cluster {
    world: World,
    fabric: Fabric,
    group: Rc<Group>,
    nodes: Vec<Node>,
    live: Vec<Option<(Rc<Rpc>, Rc<Collectives>)>>,
    executions: Executions,
    /// What a membership protocol would say.
    dead: Rc<RefCell<BTreeSet<Rank>>>,
}

impl Cluster {
    fn start(members: u32, seed: u64) -> Self {
        let world = World::new(seed);
        let fabric = Fabric::new(&world);
        let (group, nodes) = engines(&world, members);
        let (executions, dead) = (Executions::default(), Rc::<RefCell<BTreeSet<Rank>>>::default());
        let live = (0..members).zip(&nodes).map(|(rank, node)| {
            let rt = node.handle();
            let rpc = Rpc::new(rt.clone(), fabric.endpoint(node, Some(PORT)), RpcConfig::default());
            rpc.serve(opcode::PING, Rc::new(|_: Request| async { Ok(Vec::new()) }));
            let known = Rc::clone(&dead);
            let is_dead = move |rank: Rank| known.borrow().contains(&rank);
            let transport = PlainCollectives::new(&rt, &rpc, Rc::clone(&group), is_dead);
            let collectives = Collectives::new(&rt, Rank(rank), Rc::clone(&group), transport);
            for operation in [SUM, SLOW, HANGS, TENTHS] {
                let (own, executions) = (Rank(rank), Rc::clone(&executions));
                let handler = Sum { rt: rt.clone(), own, operation, executions };
                collectives.serve(operation, Rc::new(handler));
            }
            serve_collectives(&rpc, &collectives);
            Some((rpc, collectives))
        });
        let live = live.collect();
        Self { world, fabric, group, nodes, live, executions, dead }
    }

    fn crash(&mut self, rank: usize) {
        self.world.crash(&self.nodes[rank]);
        self.live[rank] = None;
    }

    fn call_with(
        &self,
        root: usize,
        operation: u16,
        ranks: Vec<Rank>,
        tree: Tree,
        body: Vec<u8>,
        limit: Duration,
    ) -> Result<Outcome, CollectiveError> {
        self.executions.borrow_mut().clear();
        let (_, collectives) = self.live[root].as_ref().expect("the root is up");
        let collectives = Rc::clone(collectives);
        self.world.block_on(&self.nodes[root], async move {
            collectives.call(operation, &ranks, tree, &body, limit).await
        })
    }

    fn call(&self, root: usize, operation: u16, tree: Tree, limit: Duration) -> Outcome {
        self.call_with(root, operation, self.group.ranks(), tree, Vec::new(), limit).expect("it begins")
    }

    fn assert_once(&self) {
        assert!(self.executions.borrow().values().all(|times| *times == 1), "executed once");
    }
}

fn sum(outcome: &Outcome) -> u64 {
    number(outcome.value.as_ref().expect("somebody answered"))
}

fn unreachable(ranks: &[u32]) -> Vec<(Rank, Der)> {
    ranks.iter().map(|rank| (Rank(*rank), Der::UNREACH)).collect()
}

const TREES: [(Tree, u32); 7] = [
    (Tree::Flat, 1),
    (Tree::Ary(2), 10),
    (Tree::Ary(4), 5),
    (Tree::Ary(32), 2),
    (Tree::Nomial(2), 10),
    (Tree::Nomial(4), 5),
    (Tree::Nomial(32), 2),
];

#[test]
fn every_tree_reaches_a_thousand_members_with_one_request_each_in_its_depth() {
    let cluster = Cluster::start(1024, 1);
    for (tree, depth) in TREES {
        let outcome = cluster.call(17, SUM, tree, Duration::from_secs(30));
        assert!(outcome.is_complete(), "{tree:?}: {:?}", outcome.failed);
        assert_eq!((outcome.executed, sum(&outcome)), (1024, 1023 * 1024 / 2), "{tree:?}");
        assert_eq!((outcome.depth, outcome.messages), (depth, 1023), "{tree:?}");
        cluster.assert_once();
    }
}

#[test]
fn dead_members_inside_the_tree_are_passed_around_and_named() {
    let mut cluster = Cluster::start(256, 2);
    // Interior members of every tree here, a leaf, and two that follow each other.
    let victims = [1, 2, 16, 64, 128, 129, 255];
    for victim in victims {
        cluster.crash(victim as usize);
    }
    let missing: u64 = victims.iter().map(|victim| u64::from(*victim)).sum();
    for (tree, depth) in [(Tree::Flat, 1), (Tree::Ary(4), 4), (Tree::Nomial(2), 8), (Tree::Nomial(4), 4)] {
        let outcome = cluster.call(0, SUM, tree, Duration::from_mins(1));
        assert_eq!(outcome.failed, unreachable(&victims), "{tree:?}");
        assert_eq!((outcome.executed, sum(&outcome)), (249, 255 * 256 / 2 - missing), "{tree:?}");
        assert_eq!(outcome.messages, 255, "{tree:?}: one to each, dead or not");
        assert!(outcome.depth <= depth + 1, "{tree:?}: {} levels", outcome.depth);
        cluster.assert_once();
    }
    // Whom the membership protocol has buried is not even tried.
    cluster.dead.borrow_mut().extend(victims.map(Rank));
    let began = cluster.world.now();
    let outcome = cluster.call(0, SUM, Tree::Nomial(4), Duration::from_mins(1));
    assert_eq!((outcome.executed, outcome.messages), (249, 248));
    assert_eq!(outcome.failed, unreachable(&victims));
    assert!(cluster.world.now() - began < Duration::from_millis(500), "nobody waited for the dead");
}

#[test]
fn a_member_that_dies_while_it_works_is_passed_around_too() {
    let mut cluster = Cluster::start(64, 3);
    // Contacts are made first, so that the crash hits the operation.
    assert!(cluster.call(0, SUM, Tree::Nomial(2), Duration::from_secs(10)).is_complete());
    let (world, node) = (cluster.world.clone(), cluster.nodes[32].clone());
    cluster.world.schedule(Duration::from_secs(2), move || world.crash(&node));
    let outcome = cluster.call(0, SLOW, Tree::Nomial(2), Duration::from_mins(1));
    cluster.live[32] = None;
    assert_eq!(outcome.failed, unreachable(&[32]));
    assert_eq!(outcome.executed, 63, "those below it answered through others");
    cluster.assert_once();
}

#[test]
fn losses_delay_but_neither_repeat_nor_lose_anything() {
    let mut given_up = 0;
    for seed in 0..5 {
        let cluster = Cluster::start(128, 100 + seed);
        cluster.fabric.configure(|config| (config.loss, config.duplicate) = (0.05, 0.02));
        for tree in [Tree::Ary(4), Tree::Nomial(4)] {
            let outcome = cluster.call(5, SUM, tree, Duration::from_mins(2));
            let answered = outcome.executed as usize + outcome.failed.len();
            assert_eq!(answered, 128, "seed {seed}, {tree:?}: everybody is accounted for");
            // A member may be given up when all tries of its life sign get lost; it must be named then.
            let failed: u64 = outcome.failed.iter().map(|(rank, _)| u64::from(rank.0)).sum();
            assert_eq!(sum(&outcome), 127 * 128 / 2 - failed, "seed {seed}, {tree:?}");
            given_up += outcome.failed.len();
            cluster.assert_once();
        }
    }
    // Two tries of a life sign get lost in one of a hundred cases, so that an operation gives up 0.8 of the 128 members.
    assert!(given_up <= 20, "{given_up} members were given up in ten operations");
}

#[test]
fn slow_members_are_waited_for_and_hanging_ones_named_at_the_deadline() {
    let cluster = Cluster::start(64, 4);
    let outcome = cluster.call(0, SLOW, Tree::Nomial(4), Duration::from_secs(30));
    assert!(outcome.is_complete(), "{:?}", outcome.failed);
    let began = cluster.world.now();
    let outcome = cluster.call(0, HANGS, Tree::Nomial(4), Duration::from_secs(10));
    assert!(cluster.world.now() - began <= Duration::from_secs(10));
    let hanging: Vec<_> =
        (0..64).filter(|rank| rank % 7 == 3).map(|rank| (Rank(rank), Der::TIMEDOUT)).collect();
    assert_eq!(outcome.failed, hanging);
    assert_eq!(outcome.executed as usize, 64 - hanging.len());
}

#[test]
fn errors_of_the_operation_are_named_with_their_ranks() {
    let cluster = Cluster::start(40, 5);
    let outcome = cluster.call(1, TENTHS, Tree::Ary(3), Duration::from_secs(10));
    assert_eq!(outcome.failed, [0, 10, 20, 30].map(|rank| (Rank(rank), Der::IO)));
    assert_eq!(outcome.executed, 36);
    // A part of the members, without the root.
    let some: Vec<Rank> = (5..15).map(Rank).collect();
    let limit = Duration::from_secs(10);
    let outcome = cluster.call_with(1, SUM, some, Tree::Nomial(2), vec![0; 3], limit).expect("it begins");
    assert_eq!((outcome.executed, sum(&outcome)), (10, (5..15).sum::<u64>() + 30));
    let unknown = cluster.call_with(1, 99, Vec::new(), Tree::Flat, Vec::new(), limit);
    assert_eq!(unknown, Err(CollectiveError::Unknown(99)));
    let large = cluster.call_with(1, SUM, Vec::new(), Tree::Flat, vec![0; 4097], limit);
    assert_eq!(large, Err(CollectiveError::TooLarge { len: 4097 }));
    let many: Vec<Rank> = (0..20_000).map(Rank).collect();
    let many = cluster.call_with(1, SUM, many, Tree::Flat, Vec::new(), limit);
    assert_eq!(many, Err(CollectiveError::TooMany { members: 19_999 }));
}

#[test]
fn members_with_another_version_of_the_group_refuse_and_are_named() {
    let mut cluster = Cluster::start(16, 6);
    // Rank 8 has heard of a newer list.
    let newer = Group::new(2, [(Rank(8), Location { host: "engine-8".into(), port: PORT, tags: 1 })]);
    let node = &cluster.nodes[8];
    let (rpc, _) = cluster.live[8].take().expect("it is up");
    let transport = PlainCollectives::new(&node.handle(), &rpc, Rc::clone(&newer), |_| false);
    let collectives = Collectives::new(&node.handle(), Rank(8), newer, transport);
    serve_collectives(&rpc, &collectives);
    cluster.live[8] = Some((rpc, collectives));
    let outcome = cluster.call(0, SUM, Tree::Nomial(2), Duration::from_secs(10));
    assert_eq!(outcome.failed, [(Rank(8), Der::GRPVER)]);
    assert_eq!(outcome.executed, 15, "those below it are reached around it");
}

#[test]
fn a_member_that_claims_more_than_there_can_be_harms_only_the_count() {
    let mut cluster = Cluster::start(8, 7);
    let (rpc, collectives) = cluster.live[4].take().expect("it is up");
    rpc.serve(
        opcode::GROUP_COLLECTIVE,
        Rc::new(|_: Request| async {
            let most = CollectiveReply {
                executed: u32::MAX,
                depth: u32::MAX,
                messages: u32::MAX,
                ..Default::default()
            };
            Ok(codec::encode(&most))
        }),
    );
    cluster.live[4] = Some((rpc, collectives));
    let outcome = cluster.call(0, SUM, Tree::Flat, Duration::from_secs(10));
    assert_eq!((outcome.executed, outcome.depth, outcome.messages), (u32::MAX, u32::MAX, u32::MAX));
    assert_eq!(sum(&outcome), 28 - 4);
}
