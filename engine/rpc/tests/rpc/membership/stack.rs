//! Membership over the whole RPC stack: simulated fabric, contacts, credits, deadlines.

use core::time::Duration;
use std::rc::Rc;

use crate::engines::{PORT, engines};
use weir_fabric::sim::Fabric;
use weir_proto::capability::SystemKey;
use weir_proto::group::MemberState;
use weir_proto::{Epoch, Rank, TenantId};
use weir_rpc::membership::swim::SwimConfig;
use weir_rpc::membership::{Group, Membership, RpcTransport, serve_membership};
use weir_rpc::{CallOptions, Keys, Request, Rpc, RpcConfig};
use weir_runtime::Handle;
use weir_runtime::sim::{Node, World};

/// Answered with nothing but the clock.
const TIME: u16 = 0x7001;

struct Member {
    node: Node,
    /// What makes it take part; nothing while it is down.
    live: Option<(Rc<Rpc>, Rc<Membership>)>,
}

struct Cluster {
    world: World,
    fabric: Fabric,
    group: Rc<Group>,
    members: Vec<Member>,
    keys: Option<Keys>,
}

impl Cluster {
    fn start(members: u32, seed: u64) -> Self {
        Self::start_with(None, &vec![0; members as usize], seed)
    }

    /// With keys, and wall clocks that are off by so many nanoseconds each.
    fn start_with(keys: Option<Keys>, skews: &[i64], seed: u64) -> Self {
        let world = World::new(seed);
        let fabric = Fabric::new(&world);
        let (group, nodes) = engines(&world, u32::try_from(skews.len()).expect("few"));
        let members = nodes.into_iter().map(|node| Member { node, live: None }).collect();
        let mut cluster = Self { world, fabric, group, members, keys };
        for (rank, skew) in skews.iter().enumerate() {
            cluster.members[rank].node.set_clock_skew(*skew);
            cluster.boot(rank);
        }
        cluster
    }

    fn boot(&mut self, rank: usize) {
        let node = &self.members[rank].node;
        let rt = node.handle();
        let config = RpcConfig { keys: self.keys.clone(), ..RpcConfig::default() };
        let rpc = Rpc::new(rt.clone(), self.fabric.endpoint(node, Some(PORT)), config);
        rpc.serve(TIME, Rc::new(|_: Request| async { Ok(Vec::new()) }));
        let transport = RpcTransport::new(rt.clone(), &rpc, Rc::clone(&self.group));
        let own = Rank(u32::try_from(rank).expect("few"));
        let membership = Membership::start(&rt, own, &self.group.ranks(), SwimConfig::default(), transport);
        serve_membership(&rpc, &membership);
        self.members[rank].live = Some((rpc, membership));
    }

    fn crash(&mut self, rank: usize) {
        self.world.crash(&self.members[rank].node);
        self.members[rank].live = None;
    }

    fn agree(&self, state: MemberState, meant: impl Fn(usize) -> bool) -> bool {
        let ranks = (0..self.members.len()).filter(|rank| meant(*rank));
        let ranks: Vec<Rank> = ranks.map(|rank| Rank(u32::try_from(rank).expect("few"))).collect();
        let live = self.members.iter().filter_map(|member| member.live.as_ref());
        live.into_iter().all(|(_, membership)| ranks.iter().all(|rank| membership.state(*rank) == state))
    }

    fn wait(&self, limit: Duration, state: MemberState, meant: impl Fn(usize) -> bool) -> Option<Duration> {
        let began = self.world.now();
        while self.world.now() - began < limit {
            self.world.run_for(Duration::from_millis(100));
            if self.agree(state, &meant) {
                return Some(self.world.now() - began);
            }
        }
        None
    }
}

fn crash_and_return(members: u32, loss: f64, seed: u64) {
    let mut cluster = Cluster::start(members, seed);
    let met = cluster.wait(Duration::from_mins(1), MemberState::Alive, |_| true);
    let met = met.unwrap_or_else(|| panic!("seed {seed}: they don't get to know each other"));
    cluster.fabric.configure(|config| config.loss = loss);
    cluster.crash(1);
    let dead = cluster.wait(Duration::from_secs(8), MemberState::Dead, |rank| rank == 1);
    let dead = dead.unwrap_or_else(|| panic!("seed {seed}: the dead one is not known to all after 8 s"));
    assert!(cluster.agree(MemberState::Alive, |rank| rank != 1), "seed {seed}: a living one is not alive");
    cluster.world.restart(&cluster.members[1].node);
    cluster.boot(1);
    let back = cluster.wait(Duration::from_secs(20), MemberState::Alive, |_| true);
    let back = back.unwrap_or_else(|| panic!("seed {seed}: the restarted one is not seen"));
    println!(
        "{members} engines, loss {loss}: met after {met:?}, dead known after {dead:?}, back after {back:?}"
    );
}

#[test]
fn a_crash_and_a_return_are_known_to_all_over_the_whole_stack() {
    for (members, loss, seed) in [(2, 0.0, 1), (3, 0.0, 2), (3, 0.05, 3), (32, 0.0, 4), (32, 0.05, 5)] {
        crash_and_return(members, loss, seed);
    }
}

#[test]
fn hundreds_of_engines_over_the_whole_stack_agree_on_a_crash() {
    crash_and_return(super::setting("WEIR_SWIM_STACK", 200), 0.0, 6);
}

#[test]
fn an_engine_that_leaves_is_known_to_have_left_at_once() {
    let cluster = Cluster::start(8, 7);
    cluster.wait(Duration::from_secs(20), MemberState::Alive, |_| true).expect("they meet");
    let (_, leaver) = cluster.members[3].live.as_ref().expect("it is up");
    let leaver = Rc::clone(leaver);
    cluster.world.block_on(&cluster.members[3].node, async move { leaver.leave().await });
    let known = cluster.wait(Duration::from_secs(3), MemberState::Dead, |rank| rank == 3);
    assert!(known.is_some(), "news, not a failed probe, tells them");
}

/// A tenant's client whose wall clock is off by so many nanoseconds.
fn client(cluster: &Cluster, (name, tenant, skew): (&str, u64, i64), key: &SystemKey) -> (Node, Rc<Rpc>) {
    let node = cluster.world.node(name);
    node.set_clock_skew(skew);
    let keys = Some(Keys::Tenant(key.tenant(TenantId(tenant))));
    let config = RpcConfig { keys, ..RpcConfig::default() };
    (node.clone(), Rpc::new(node.handle(), cluster.fabric.endpoint(&node, None), config))
}

#[test]
fn a_clients_clock_that_is_as_fast_as_can_be_parts_neither_engines_nor_clients_whose_clocks_differ() {
    let key = SystemKey([7; 32]);
    let skews = [0, -5_000_000, -10_000_000, -10_000_000];
    let cluster = Cluster::start_with(Some(Keys::System(key.clone())), &skews, 5);
    cluster.wait(Duration::from_mins(1), MemberState::Alive, |_| true).expect("they meet");
    let peers = [0, 3].map(|rank| cluster.group.peer(Rank(rank), 0).expect("a member"));
    let within = |rt: &Handle| CallOptions::within(rt, Duration::from_secs(1));
    let (node, mallory) = client(&cluster, ("mallory", 9, 999_500_000), &key);
    let (rt, fast) = (node.handle(), peers[0].clone());
    node.handle().spawn(async move {
        loop {
            // Also what isn't served has a clock.
            for opcode in [TIME, 0x7fff] {
                drop(mallory.call(&fast, opcode, b"", None, within(&rt)).await);
            }
            rt.sleep(Duration::from_millis(1)).await;
        }
    });
    cluster.world.run_for(Duration::from_secs(40));
    assert!(cluster.agree(MemberState::Alive, |_| true), "all engines live, and hear each other");
    let pushed = cluster.members[0].live.as_ref().expect("it is up").0.metrics().requests_early.get();
    assert!(pushed > 10, "{pushed} requests came too early");
    let (node, friend) = client(&cluster, ("friend", 8, -20_000_000), &key);
    let rt = node.handle();
    cluster.world.block_on(&node, async move {
        let mut last = Epoch::ZERO;
        for round in 0..40 {
            let reply = friend.call(&peers[round % 2], TIME, b"", None, within(&rt)).await.expect("answered");
            assert!(reply.epoch() > last, "what was heard from one engine is before what another one does");
            last = reply.epoch();
        }
    });
}
