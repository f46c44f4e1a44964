//! Groups of replicas one member of which has no room: changes are refused in time and are nowhere, whoever leads, and go on when
//! something was deleted.

use std::time::Duration;

use weir_client::{Context, Kv, ObjectClass, kind};
use weir_layout::Layout;
use weir_media::sim::CrashKeeps;
use weir_pool::Condition;
use weir_proto::object::Conditions;
use weir_proto::pool::PoolMap;
use weir_proto::{Der, Epoch, ObjectId, Rank, TargetIndex};

use crate::cluster::{Cluster, SHARE_BYTES, Shape};
use crate::rebuild::assert_equal_among;
use crate::replicas::other_engine;
use crate::snapshots::service_rank;
use crate::workload::{self, MIB};

pub const SHAPE: Shape = Shape { engines: 3, targets: 1, clients: 1 };

/// Longest time until who finds no room is told so, and until there is room again: what was deleted is kept for seconds.
const REFUSED_MAX: Duration = Duration::from_secs(10);

/// Objects that write at once.
const WRITERS: u64 = 8;

/// A cluster with a pool that outlasts the loss of an engine.
pub fn start(seed: u64) -> Cluster {
    let cluster = Cluster::start(seed, SHAPE);
    cluster.create_redundant_pool("tank", 1);
    // Each target has a lease.
    cluster.world.run_for(Duration::from_secs(2));
    cluster
}

fn map_of(cluster: &Cluster) -> PoolMap {
    let pools = cluster.target(service_rank(cluster, "tank"), 0).pools().clone();
    pools.find("tank").expect("the pool").with_map(Clone::clone)
}

/// The places of an object's first group, the leader first.
fn places(object: ObjectId, map: &PoolMap) -> Vec<(Rank, TargetIndex)> {
    let layout = Layout::of(object, map).expect("a class that the pool serves");
    let place = |id: u32| map.target(id).map(|target| (target.rank, target.index));
    layout.serving(0, map).filter_map(place).collect()
}

/// An object of a class whose places are like this.
fn object(class: &str, map: &PoolMap, is_wanted: impl Fn(&[(Rank, TargetIndex)]) -> bool) -> ObjectId {
    let class: ObjectClass = class.parse().expect("a registered name");
    let mut all = (1000..2000).map(|lo| class.encode(ObjectId { hi: 0, lo }, kind::KV_HASHED));
    all.find(|object| is_wanted(&places(*object, map))).expect("places are spread")
}

/// A value is refused for want of room, in time.
async fn assert_refused(context: &Context, kv: &Kv, key: &[u8], len: usize) {
    let began = context.runtime().now();
    let put = kv.put(context, key, &vec![3; len], Conditions::NONE).await;
    let error = put.expect_err("a member has no room");
    let waited = context.runtime().now() - began;
    assert!(error.is(Der::NOSPACE) && waited < REFUSED_MAX, "{waited:?}: {error}");
    let found = kv.get(context, key).await.expect("a full pool is readable");
    assert_eq!(found, None, "what was refused is nowhere");
}

/// One member has no room, with and without the lead, and the other one has.
pub fn is_refused_alike(cluster: &Cluster) {
    let map = map_of(cluster);
    let full = map.targets[usize::from(cluster.world.rng().below(2) == 0)].clone();
    let full = (full.rank, full.index);
    let filling = object("S1", &map, |places| places == [full]);
    let led = object("RP_2G1", &map, |places| places[0] == full);
    let followed = object("RP_2G1", &map, |places| places[1] == full);
    let context = cluster.context(cluster.admin(), Duration::from_mins(1));
    cluster.world.block_on(cluster.admin(), async move {
        let container = workload::make_container(&context, "tank", "box", 0).await.expect("room");
        let [filling, led, followed] =
            [filling, led, followed].map(|object| workload::open(&container, object));
        for kv in [&led, &followed] {
            kv.put(&context, b"before", &vec![1; MIB], Conditions::NONE).await.expect("room");
        }
        let (taken, error) = workload::fill(&context, &filling, 0).await;
        assert!(error.is(Der::NOSPACE), "{error}");
        for kv in [&led, &followed, &led, &followed] {
            assert_refused(&context, kv, b"large", MIB).await;
            let before = kv.get(&context, b"before").await.expect("a full pool is readable");
            assert_eq!(before.map(|value| value.len()), Some(MIB));
        }
        // Deletions find room, and make some.
        for kv in [&led, &followed] {
            kv.remove(&context, b"before", Conditions::NONE).await.expect("a full pool lets data go");
        }
        workload::empty(&context, &filling, taken).await;
        for kv in [&led, &followed] {
            workload::wait_for_room(&context, kv).await;
        }
    });
    cluster.world.run_for(Duration::from_secs(1));
    assert_equal_among(cluster, service_rank(cluster, "tank"), Epoch::MAX);
}

/// How the pool is doing, as its service says.
fn health(cluster: &Cluster) -> weir_pool::Health {
    let pools = cluster.target(service_rank(cluster, "tank"), 0).pools().clone();
    let pool = pools.find("tank").expect("the pool").id();
    let service = pools.own_service(pool).expect("it runs there");
    service.health().expect("the pool").expect("it has redundancy")
}

/// An engine comes back to more than it has room for: that is told.
pub fn comes_back_to_no_room(cluster: &Cluster) {
    let victim = other_engine(cluster, service_rank(cluster, "tank"));
    let (map, place) = (map_of(cluster), (Rank(victim), TargetIndex(0)));
    let filling = object("S1", &map, |places| places == [place]);
    let copied = object("RP_2G1", &map, |places| places[1] == place);
    let context = cluster.context(cluster.admin(), Duration::from_mins(1));
    let (own, map_len) = (context.clone(), SHARE_BYTES / MIB as u64);
    let kv = cluster.world.block_on(cluster.admin(), async move {
        let container = workload::make_container(&own, "tank", "box", 0).await.expect("room");
        let filling = workload::open(&container, filling);
        for number in 0..map_len / 2 {
            let (key, value) = (number.to_le_bytes(), vec![7; MIB]);
            filling.put(&own, &key, &value, Conditions::NONE).await.expect("room");
        }
        workload::open(&container, copied)
    });
    cluster.crash(victim, CrashKeeps::Everything);
    cluster.world.run_for(Duration::from_secs(9));
    cluster.world.block_on(cluster.admin(), async move {
        for number in 0..map_len * 5 / 8 {
            let (key, value) = (number.to_le_bytes(), vec![8; MIB]);
            kv.put(&context, &key, &value, Conditions::NONE).await.expect("the other member has room");
        }
    });
    cluster.restart(victim);
    cluster.settle();
    cluster.world.run_for(Duration::from_secs(20));
    let health_now = health(cluster);
    assert_eq!(health_now.condition, Condition::Rebuilding, "seed {}", cluster.world.seed());
    let hindrance = health_now.filling.and_then(|filling| filling.hindrance).expect("it has no room");
    assert!(hindrance.contains("full") && hindrance.contains(&format!("rank {victim}")), "{hindrance}");
}

/// Many write until nothing goes any more, small values and large ones, and transactions: each is told so, all members have the same,
/// and what was deleted makes room again.
pub fn fills_up_together(cluster: &Cluster) {
    let class: ObjectClass = "RP_2G1".parse().expect("a registered name");
    let context = cluster.context(cluster.admin(), Duration::from_mins(1));
    let len = [300, 5000, 70_000, MIB][usize::try_from(cluster.world.rng().below(4)).expect("small")];
    cluster.world.block_on(cluster.admin(), async move {
        let container = workload::make_container(&context, "tank", "box", 0).await.expect("room");
        let objects = (0..WRITERS).map(|lo| class.encode(ObjectId { hi: 0, lo: 3000 + lo }, kind::KV_HASHED));
        let all: Vec<Kv> = objects.map(|object| workload::open(&container, object)).collect();
        let large = all.iter().map(|kv| async { workload::fill(&context, kv, 0).await });
        let large = weir_runtime::join_all(large).await;
        let taken: u64 = large.iter().map(|(taken, _)| taken).sum();
        let most = u64::from(SHAPE.engines) * SHARE_BYTES / MIB as u64 / 2;
        assert!((most / 2..=most).contains(&taken), "{taken} MiB of {most}");
        let small = all.iter().map(|kv| async {
            for number in 0_u64.. {
                let key = [b"small-", &number.to_le_bytes()[..]].concat();
                let began = context.runtime().now();
                if let Err(error) = kv.put(&context, &key, &vec![1; len], Conditions::NONE).await {
                    let waited = context.runtime().now() - began;
                    assert!(waited < REFUSED_MAX, "{waited:?}: {error}");
                    return (number, error);
                }
            }
            unreachable!("the disks are finite")
        });
        let small = weir_runtime::join_all(small).await;
        for (_, error) in large.iter().chain(&small) {
            assert!(error.is(Der::NOSPACE) && error.to_string().contains("tank"), "{error}");
        }
        for (kv, ((large, _), (small, _))) in all.iter().zip(large.iter().zip(&small)) {
            workload::empty(&context, kv, *large).await;
            for number in 0..*small {
                let key = [b"small-", &number.to_le_bytes()[..]].concat();
                kv.remove(&context, &key, Conditions::NONE).await.expect("a full pool lets data go");
            }
        }
        for kv in &all {
            workload::wait_for_room(&context, kv).await;
        }
    });
    cluster.world.run_for(Duration::from_secs(1));
    assert_equal_among(cluster, service_rank(cluster, "tank"), Epoch::MAX);
}
