//! Snapshots while engines die and are away: what is listed is whole, and what isn't is kept by nobody for long.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use weir_client::{AkeyRead, AkeyWrite, Conditions, Container, Context, Der, Epoch, Key, Object, kind};
use weir_management::v1;
use weir_media::sim::{CrashKeeps, SimDiskOptions};
use weir_proto::ContainerId;

use crate::cluster::{Cluster, Shape};
use crate::workload::make_container;

const SHAPE: Shape = Shape { engines: 2, targets: 2, clients: 1 };

const KEYS: u64 = 16;

/// Longer than aggregation leaves versions alone, and than a service waits until it tells targets again.
const SETTLED: Duration = Duration::from_secs(15);

/// Rank of a pool's service, and the other one.
pub fn service_of(cluster: &Cluster, pool: &str) -> (u32, u32) {
    let service = service_rank(cluster, pool);
    (service, 1 - service)
}

/// The rank of a pool's service.
pub fn service_rank(cluster: &Cluster, pool: &str) -> u32 {
    let request = v1::PoolQueryRequest { pool: pool.to_owned() };
    let answer: v1::PoolQueryResponse = cluster.manage(0, "Pools/Query", &request).expect("engines are up");
    answer.pool.expect("an answer").service_ranks[0]
}

/// A container with an object whose keys lie on all targets.
fn fill(cluster: &Cluster) -> (Context, Container, Object) {
    let context = cluster.context(cluster.admin(), Duration::from_secs(20));
    cluster.world.block_on(cluster.admin(), async move {
        let container = make_container(&context, "tank", "box", 0).await.expect("room");
        let oid = container.new_object_id(&context, kind::MULTI_HASHED, None).await.expect("an id");
        let object = Object::open(&container, oid).expect("a class without redundancy");
        write(&context, &object, 0).await;
        (context, container, object)
    })
}

/// Writes every key, as far as its engine is there. Returns how many were written.
async fn write(context: &Context, object: &Object, round: u64) -> u64 {
    let akey = Key::new(b"v").expect("short");
    let mut written = 0;
    for key in 0..KEYS {
        let bytes = (round * 1000 + key).to_le_bytes();
        let write = [AkeyWrite::single(akey.clone(), &bytes)];
        let update = object.update(context, &Key::from_u64(key), Conditions::NONE, &write).await;
        written += u64::from(update.is_ok());
    }
    written
}

async fn check(context: &Context, object: &Object, epoch: Epoch, seed: u64) {
    let (akey, past) = (Key::new(b"v").expect("short"), object.at(epoch));
    for key in 0..KEYS {
        let mut bytes = [0xff; 8];
        let mut read = [AkeyRead::single(akey.clone(), &mut bytes)];
        let fetched = past.fetch(context, &Key::from_u64(key), Conditions::NONE, &mut read).await;
        fetched.expect("engines are back");
        assert_eq!(u64::from_le_bytes(bytes), key, "seed {seed}: key {key} of a listed snapshot");
    }
}

/// Epochs that any target keeps of a container.
fn kept(cluster: &Cluster, container: ContainerId) -> Vec<Epoch> {
    let mut all = Vec::new();
    for (rank, index) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let target = cluster.target(rank, index);
        let store = target.store();
        let shards = store.pools().into_iter().filter_map(|pool| store.pool(pool.pool));
        all.extend(shards.filter_map(|shard| shard.snapshots(container).ok()).flatten());
    }
    all
}

/// An engine dies while a snapshot is taken. What was written before goes on being overwritten on the other one.
pub fn are_whole_or_refused(seed: u64) {
    let cluster = Cluster::start(seed, SHAPE);
    cluster.create_pool("tank");
    let (context, container, object) = fill(&cluster);
    let (service, other) = service_of(&cluster, "tank");
    let victim = if seed.is_multiple_of(4) { other } else { service };
    // So that it often dies between what it writes down and what it tells.
    let flush = Duration::from_millis(2);
    let slow = SimDiskOptions { flush_min: flush, flush_max: flush, ..SimDiskOptions::default() };
    cluster.set_disks(service, &slow);
    let taken = Rc::new(Cell::new(false));
    cluster.clients[0].handle().spawn({
        let (container, taken) = (container.clone(), Rc::clone(&taken));
        let context = cluster.context(&cluster.clients[0], Duration::from_millis(40));
        async move { taken.set(container.create_snapshot(&context).await.is_ok()) }
    });
    cluster.world.run_for(Duration::from_micros(cluster.world.rng().below(14_000)));
    if seed.is_multiple_of(2) {
        // It dies between asking the other one and telling it.
        let nodes = [service, other].map(|rank| &cluster.engines[rank as usize].node);
        cluster.fabric.partition(&nodes[..1], &nodes[1..]);
        cluster.world.run_for(Duration::from_millis(50));
    }
    let acknowledged = taken.get();
    cluster.crash(victim, CrashKeeps::Nothing);
    cluster.fabric.heal();
    cluster.world.run_for(Duration::from_millis(50));
    let hasty = cluster.context(cluster.admin(), Duration::from_millis(500));
    let again = object.clone();
    let written = cluster.world.block_on(cluster.admin(), async move { write(&hasty, &again, 1).await });
    assert!((1..KEYS).contains(&written), "seed {seed}: {written} keys are on the other engine");
    cluster.world.run_for(SETTLED);
    cluster.restart(victim);
    cluster.settle();
    cluster.world.run_for(SETTLED);
    let of = container.clone();
    let listed = cluster.world.block_on(cluster.admin(), async move {
        let listed = of.snapshots(&context).await.expect("engines are back");
        for epoch in &listed {
            check(&context, &object, *epoch, seed).await;
        }
        listed
    });
    assert!(listed.len() <= 1 && (!acknowledged || listed.len() == 1), "seed {seed}: {listed:?}");
    let kept = kept(&cluster, container.id());
    assert!(
        kept.iter().all(|epoch| listed.contains(epoch)),
        "seed {seed}: {kept:?} are kept, {listed:?} listed"
    );
}

/// A snapshot is removed while an engine is away, which forgets it when it is back; and none is taken.
pub fn go_while_an_engine_is_away(seed: u64) {
    let cluster = Cluster::start(seed, SHAPE);
    cluster.create_pool("tank");
    let (context, container, object) = fill(&cluster);
    let (service, other) = service_of(&cluster, "tank");
    let of = container.clone();
    let (context, epoch) = cluster.world.block_on(cluster.admin(), async move {
        let epoch = of.create_snapshot(&context).await.expect("engines are up");
        check(&context, &object, epoch, seed).await;
        (context, epoch)
    });
    assert_eq!(kept(&cluster, container.id()).len(), 4, "seed {seed}: every target has data");
    cluster.crash(other, CrashKeeps::Everything);
    let of = container.clone();
    cluster.world.block_on(cluster.admin(), async move {
        let refused = of.create_snapshot(&context).await.expect_err("an engine with data is away");
        assert!(refused.is(Der::TIMEDOUT), "seed {seed}: {refused}");
        of.destroy_snapshot(&context, epoch).await.expect("the service is up");
        assert_eq!(of.snapshots(&context).await.expect("the service is up"), []);
    });
    if seed.is_multiple_of(2) {
        cluster.crash(service, CrashKeeps::Nothing);
        cluster.restart(service);
    }
    cluster.restart(other);
    cluster.settle();
    cluster.world.run_for(SETTLED);
    assert_eq!(kept(&cluster, container.id()), [], "seed {seed}");
}

/// The device of the service fails while a snapshot is taken, perhaps with the write that lists it. What is listed then, if
/// anything is, is listed after a restart, too. Whether the service couldn't tell.
pub fn are_listed_or_not_when_the_device_fails(seed: u64) -> bool {
    let cluster = Cluster::start(seed, SHAPE);
    cluster.create_pool("tank");
    let (context, container, _) = fill(&cluster);
    let (service, _) = service_of(&cluster, "tank");
    // So that the device often fails between what is written and that it is stable.
    let flush = Duration::from_millis(2);
    let slow = SimDiskOptions { flush_min: flush, flush_max: flush, ..SimDiskOptions::default() };
    cluster.disk((service, 0)).set_options(slow.clone());
    let taken = Rc::new(Cell::new(false));
    cluster.clients[0].handle().spawn({
        let (container, taken) = (container.clone(), Rc::clone(&taken));
        let context = cluster.context(&cluster.clients[0], Duration::from_secs(5));
        async move { taken.set(container.create_snapshot(&context).await.is_ok()) }
    });
    cluster.world.run_for(Duration::from_micros(cluster.world.rng().below(14_000)));
    cluster.disk((service, 0)).set_options(SimDiskOptions { error_probability: 1.0, ..slow });
    cluster.world.run_for(Duration::from_secs(6));
    let list = |context: Context| {
        let of = container.clone();
        cluster.world.block_on(cluster.admin(), async move { of.snapshots(&context).await })
    };
    let before = list(context.clone());
    cluster.disk((service, 0)).set_options(SimDiskOptions::default());
    let clear = v1::ClearDeviceRequest { rank: service, target: 0 };
    let _: v1::ClearDeviceResponse = cluster.manage(service, "System/ClearDevice", &clear).expect("it is up");
    let keeps = if seed.is_multiple_of(2) { CrashKeeps::Everything } else { CrashKeeps::Nothing };
    cluster.crash(service, keeps);
    cluster.restart(service);
    cluster.settle();
    cluster.world.run_for(SETTLED);
    let after = list(context.clone()).expect("the device is well");
    if let Ok(before) = &before {
        assert_eq!(before, &after, "seed {seed}: {keeps:?}");
    }
    assert!(after.len() <= 1 && (!taken.get() || after.len() == 1), "seed {seed}: {after:?}");
    let kept = kept(&cluster, container.id());
    assert!(
        kept.iter().all(|epoch| after.contains(epoch)),
        "seed {seed}: {kept:?} are kept, {after:?} listed"
    );
    before.is_err_and(|error| error.to_string().contains("failed with the device"))
}
