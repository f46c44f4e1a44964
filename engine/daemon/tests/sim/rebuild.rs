//! Engines that are lost and come back get what they missed: histories stay linearizable, and in the end both members of each group
//! have the same.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weir_client::{Container, Pool, Rights};
use weir_layout::{Layout, ObjectClass};
use weir_media::sim::CrashKeeps;
use weir_object::PlantedBug;
use weir_proto::object::{AkeyFetch, Conditions, ListScope, Value};
use weir_proto::pool::TargetState;
use weir_proto::{ContainerId, Epoch, Key, ObjectId};
use weir_store::{ContainerSummary, Shard};

use crate::cluster::Cluster;
use crate::history::History;
use crate::members::{self, SHAPE};
use crate::replicas;
use crate::snapshots::service_rank;
use crate::transactions;
use crate::workload::{self, Mix};

/// Longest time that an engine is away: longer than its lease, so that it goes out of the map in some runs, and not in others.
const AWAY_MAX_US: u64 = 8_000_000;

/// Longest time until the next engine is lost.
const BACK_MAX_US: u64 = 3_000_000;

/// Longest time until who has come back is lost again: until then it may have caught up, or not.
const AGAIN_MAX_US: u64 = 2_500_000;

/// Bytes of a value, how many there are when an engine is lost, and how many come while it is away.
const VALUE: usize = 20_000;
const MANY: u64 = 200;
const FEW: u64 = 10;

/// Longest time that a rebuild takes here.
const REBUILT_MAX: Duration = Duration::from_mins(1);

/// States of all targets in the map of an engine, and whether they are in doubt.
fn states(cluster: &Cluster, rank: u32) -> Vec<(TargetState, bool)> {
    let pool = cluster.target(rank, 0).pools().find("tank").expect("the pool");
    pool.with_map(|map| map.targets.iter().map(|target| (target.state, target.in_doubt)).collect())
}

/// Waits until all targets serve, by the maps of all of them.
pub fn wait_until_whole(cluster: &Cluster) {
    let whole = |rank: u32| states(cluster, rank).iter().all(|state| *state == (TargetState::UpIn, false));
    let mut left = REBUILT_MAX;
    while !(0..cluster.shape.engines).all(whole) {
        let step = Duration::from_millis(100);
        left = left.checked_sub(step).unwrap_or_else(|| {
            panic!("seed {}: no rebuild ends: {:?}", cluster.world.seed(), states(cluster, 0))
        });
        cluster.world.run_for(step);
    }
}

/// Takes a snapshot of the container that clients work in.
fn take_snapshot(cluster: &Cluster) {
    let context = cluster.context(cluster.admin(), Duration::from_secs(10));
    cluster.world.block_on(cluster.admin(), async move {
        let rights = Rights::READ.union(Rights::WRITE);
        let pool = Pool::connect(&context, "tank", rights).await.expect("all engines are up");
        let container = Container::open(&context, &pool, "box", rights).await.expect("it is there");
        container.create_snapshot(&context).await.expect("all engines are up");
    });
}

/// An engine other than the service's is lost, is away for a while, and is there again. Which one.
fn lose_one(cluster: &Cluster, service: u32) -> u32 {
    let victim = replicas::other_engine(cluster, service);
    cluster.crash(victim, CrashKeeps::Any);
    cluster.world.run_for(replicas::below(cluster, AWAY_MAX_US));
    cluster.restart(victim);
    cluster.settle();
    victim
}

/// Engines are lost, are away for a while, and come back, maybe while another one gets what it missed.
fn lose_and_return(cluster: &Cluster, planted: Option<PlantedBug>) -> History {
    let (service, run) = members::begin(cluster, Mix::Slow);
    if cluster.world.rng().below(2) == 0 {
        take_snapshot(cluster);
    }
    for _ in 0..=cluster.world.rng().below(2) {
        lose_one(cluster, service);
        // What starts has no faults.
        planted.inspect(|bug| replicas::plant(cluster, *bug));
        cluster.world.run_for(replicas::below(cluster, BACK_MAX_US));
    }
    wait_until_whole(cluster);
    run.finish(cluster)
}

/// Values of the dkeys of objects, as a target shows them at an epoch.
pub type Shown = BTreeMap<(ObjectId, Key), Vec<u8>>;

/// The snapshots that a target keeps of the container of the pool; `None`: it doesn't know the container.
fn kept(cluster: &Cluster, (rank, index): (u32, u32)) -> Option<Vec<Epoch>> {
    let pool = cluster.target(rank, index as usize).pools().find("tank").expect("the pool");
    let container = pool.containers().first()?.id;
    Some(pool.shard().snapshots(container).expect("it is there"))
}

/// All keys of objects with replicas that a target lists at an epoch, with the values that it fetches.
pub fn shown(cluster: &Cluster, (rank, index): (u32, u32), epoch: Epoch) -> Shown {
    let pool = cluster.target(rank, index as usize).pools().find("tank").expect("the pool");
    let shard = pool.shard().clone();
    cluster.world.block_on(&cluster.engines[rank as usize].node, async move {
        let mut all = Shown::new();
        for ContainerSummary { container, .. } in shard.containers() {
            for object in
                list(&shard, container, (ObjectId { hi: 0, lo: 0 }, ListScope::Objects), epoch).await
            {
                let object = ObjectId::from_bytes(object.try_into().expect("16 bytes"));
                if ObjectClass::of(object).expect("a class").replicas() == 1 {
                    continue;
                }
                for dkey in list(&shard, container, (object, ListScope::Dkeys), epoch).await {
                    let dkey = Key::new(&dkey).expect("a key");
                    all.insert(
                        (object, dkey.clone()),
                        fetch(&shard, container, (object, &dkey), epoch).await,
                    );
                }
            }
        }
        all
    })
}

async fn list(
    shard: &Shard,
    container: ContainerId,
    (object, scope): (ObjectId, ListScope),
    epoch: Epoch,
) -> Vec<Vec<u8>> {
    let (mut all, mut anchor) = (Vec::new(), Vec::new());
    loop {
        let page = shard.list(container, object, &scope, epoch, &anchor, 100, None).await.expect("sound");
        all.extend(page.entries.into_iter().map(|entry| entry.key.clone()));
        match page.next {
            Some(next) => anchor = next,
            None => return all,
        }
    }
}

/// Names and values of all akeys of a dkey.
async fn fetch(
    shard: &Shard,
    container: ContainerId,
    (object, dkey): (ObjectId, &Key),
    epoch: Epoch,
) -> Vec<u8> {
    let mut all = Vec::new();
    for akey in list(shard, container, (object, ListScope::Akeys(dkey.clone())), epoch).await {
        let (value, conditions) = (Value::Single { size: u64::MAX }, Conditions::NONE);
        let wanted = [AkeyFetch { akey: Key::new(&akey).expect("a key"), value, conditions }];
        let found = shard.fetch(container, object, dkey, epoch, conditions, &wanted).await.expect("sound");
        let mut data = vec![0; usize::try_from(found.data_len()).expect("short")];
        found.read(&mut data).await.expect("sound");
        all.extend([akey, data].concat());
    }
    all
}

/// A dkey of which all members of its group don't show the same at an epoch, by the map of an engine.
pub fn difference(cluster: &Cluster, rank: u32, epoch: Epoch) -> Option<String> {
    difference_among(cluster, rank, epoch, true)
}

/// A dkey of which those members of its group that serve don't show the same at an epoch, by the map of an engine. All of them serve where
/// `is_whole` says so.
pub fn difference_among(cluster: &Cluster, rank: u32, epoch: Epoch, is_whole: bool) -> Option<String> {
    let pool = cluster.target(rank, 0).pools().find("tank").expect("the pool");
    let map = pool.with_map(weir_proto::pool::PoolMap::clone);
    let serving = map.targets.iter().filter(|target| target.state.serves());
    let places = serving.map(|target| (target.id, (target.rank.0, target.index.0)));
    let of: BTreeMap<u32, Shown> = places.map(|(id, place)| (id, shown(cluster, place, epoch))).collect();
    let all: BTreeSet<&(ObjectId, Key)> = of.values().flat_map(BTreeMap::keys).collect();
    let differs = |name: &(ObjectId, Key)| {
        let (object, dkey) = name;
        let layout = Layout::of(*object, &map).expect("a class with replicas");
        let group = layout.group(layout.group_index(dkey.hash()));
        let serves = |id: &&u32| is_whole || of.contains_key(id);
        let mut shown = group.iter().filter(serves).map(|id| {
            let missing = || panic!("seed {}: target {id} doesn't serve: {map:?}", cluster.world.seed());
            of.get(id).unwrap_or_else(missing).get(name)
        });
        let first = shown.next().flatten();
        first.is_none() || shown.any(|other| other != first)
    };
    let found = all.iter().find(|name| differs(name));
    found.map(|(object, dkey)| format!("dkey {dkey} of {object} at {epoch}"))
}

/// Checks that all members of all groups show the same at an epoch, by the map of an engine.
pub fn assert_equal_among(cluster: &Cluster, rank: u32, epoch: Epoch) {
    assert_eq!(difference(cluster, rank, epoch), None, "seed {}", cluster.world.seed());
}

/// Checks that no target shows dkeys that are in places of others, by the map of an engine.
pub fn assert_nothing_elsewhere(cluster: &Cluster, rank: u32) {
    let pool = cluster.target(rank, 0).pools().find("tank").expect("the pool");
    let map = pool.with_map(weir_proto::pool::PoolMap::clone);
    for target in map.targets.iter().filter(|target| target.state.serves()) {
        for (object, dkey) in shown(cluster, (target.rank.0, target.index.0), Epoch::MAX).into_keys() {
            let layout = Layout::of(object, &map).expect("a class with replicas");
            let group = layout.group(layout.group_index(dkey.hash()));
            let (seed, id) = (cluster.world.seed(), target.id);
            assert!(group.contains(&id), "seed {seed}: target {id} keeps dkey {dkey} of {object}");
        }
    }
}

fn assert_equal(cluster: &Cluster, epoch: Epoch) {
    assert_equal_among(cluster, 0, epoch);
}

/// What comes back is equal to what stayed, and no reader sees anything odd meanwhile.
pub fn comes_back_whole(cluster: &Cluster) {
    let history = lose_and_return(cluster, None);
    history.check(cluster.world.seed());
    assert_equal(cluster, Epoch::MAX);
    // Every target has the snapshots that were taken before.
    let places = (0..SHAPE.engines).flat_map(|rank| (0..SHAPE.targets).map(move |index| (rank, index)));
    let all: Vec<Vec<Epoch>> = places.filter_map(|place| kept(cluster, place)).collect();
    let snapshots = all.first().expect("clients work in it");
    assert!(all.iter().all(|of_one| of_one == snapshots), "seed {}: {all:?}", cluster.world.seed());
    for epoch in snapshots {
        assert_equal(cluster, *epoch);
    }
}

/// Engines of a pool with redundancy start again, one, two, or all of them, and nobody says so: in the end all is everywhere.
pub fn starts_again_whole(cluster: &Cluster) {
    members::restart_engines(cluster).check(cluster.world.seed());
    wait_until_whole(cluster);
    assert_equal(cluster, Epoch::MAX);
}

/// Longest pause of clients between two transactions: they go on for as long as engines are away and come back.
const PAUSE_MAX_US: u64 = 700_000;

/// Transactions go on while engines are lost and come back: they are serializable, and in the end all members have the same.
pub fn transactions_come_back_whole(cluster: &Cluster) {
    let service = service_rank(cluster, "tank");
    cluster.world.run_for(Duration::from_secs(2));
    let run = transactions::start_with_pauses(cluster, &["RP_2G1", "RP_2G2", "RP_2G1"], PAUSE_MAX_US);
    for _ in 0..=cluster.world.rng().below(2) {
        cluster.world.run_for(replicas::below(cluster, BACK_MAX_US));
        lose_one(cluster, service);
    }
    wait_until_whole(cluster);
    let ledger = run.finish(cluster);
    assert!(ledger.len() > 20, "seed {}: only {} were answered", cluster.world.seed(), ledger.len());
    ledger.check(cluster.world.seed());
    assert_equal(cluster, Epoch::MAX);
}

/// Who comes back is lost again while it gets what it lacks, or just when it has it; then the other ones are, one behind the other.
pub fn is_lost_again_at_any_moment(cluster: &Cluster) {
    let (service, run) = members::begin(cluster, Mix::Slow);
    let victim = lose_one(cluster, service);
    for _ in 0..=cluster.world.rng().below(3) {
        cluster.world.run_for(replicas::below(cluster, AGAIN_MAX_US));
        cluster.crash(victim, CrashKeeps::Any);
        cluster.world.run_for(replicas::below(cluster, BACK_MAX_US / 10));
        cluster.restart(victim);
        cluster.settle();
    }
    wait_until_whole(cluster);
    // What it told of itself before counts no more, and nothing that it alone has goes.
    let other = SHAPE.engines - service - victim;
    cluster.crash(other, CrashKeeps::Any);
    cluster.world.run_for(replicas::below(cluster, AWAY_MAX_US));
    cluster.restart(other);
    cluster.settle();
    wait_until_whole(cluster);
    run.finish(cluster).check(cluster.world.seed());
    assert_equal(cluster, Epoch::MAX);
}

/// Of an engine that was away for seconds only what changed comes.
pub fn only_what_changed_comes(cluster: &Cluster) {
    let service = service_rank(cluster, "tank");
    cluster.world.run_for(Duration::from_secs(2));
    let context = cluster.context(cluster.admin(), Duration::from_secs(30));
    let put = |from: u64, to: u64| {
        let context = context.clone();
        cluster.world.block_on(cluster.admin(), async move {
            let rights = Rights::READ.union(Rights::WRITE);
            let pool = Pool::connect(&context, "tank", rights).await.expect("engines serve");
            let container = Container::open(&context, &pool, "box", rights).await.expect("it is there");
            let oid = members::class().encode(ObjectId { hi: 0, lo: 77 }, weir_client::kind::KV_HASHED);
            let kv = workload::open(&container, oid);
            for key in from..to {
                let value = vec![7; VALUE];
                kv.put(&context, &key.to_le_bytes(), &value, Conditions::NONE).await.expect("engines serve");
            }
        });
    };
    let container = context.clone();
    cluster.world.block_on(cluster.admin(), async move {
        workload::make_container(&container, "tank", "box", 0).await.expect("no faults yet");
    });
    put(0, MANY);
    let victim = replicas::other_engine(cluster, service);
    cluster.crash(victim, CrashKeeps::Everything);
    put(MANY, MANY + FEW);
    cluster.restart(victim);
    cluster.settle();
    wait_until_whole(cluster);
    assert_equal(cluster, Epoch::MAX);
    let came: u64 =
        (0..SHAPE.targets as usize).map(|index| cluster.target(victim, index).io().rebuilt_bytes()).sum();
    let most = FEW * VALUE as u64;
    assert!(came <= most, "seed {}: {came} bytes came, {most} were written", cluster.world.seed());
}

/// What comes of it when each target has a fault. Whether the history, or what members have in the end, shows it.
pub fn shows(cluster: &Cluster, bug: PlantedBug) -> bool {
    let history = lose_and_return(cluster, Some(bug));
    difference(cluster, 0, Epoch::MAX).is_some() || !history.is_linearizable()
}
