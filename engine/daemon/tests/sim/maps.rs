//! Pool maps when it is the device of the pool service's own target that fails.

use std::time::Duration;

use weir_client::{Container, Der, Error, Kv, ObjectClass, Pool, Rights, kind};
use weir_daemon::tenants::ASK_INTERVAL;
use weir_management::v1;
use weir_media::sim::{CrashKeeps, SimDiskOptions};
use weir_proto::ObjectId;

use crate::cluster::{Cluster, Shape};
use crate::devices::{KEYS, NOTICED, map_version, put_all, use_new_object};
use crate::snapshots::service_of;
use crate::workload::make_container;

const SHAPE: Shape = Shape { engines: 2, targets: 2, clients: 1 };

/// Longer than a service waits until it tells engines again what they have missed.
const SETTLED: Duration = Duration::from_secs(15);

/// Longer than a target waits until it repeats what it has to say of its device.
const REPEATED: Duration = Duration::from_mins(1);

const BOTH: Rights = Rights::READ.union(Rights::WRITE);

/// A pool with an object on all of its targets; ranks of its service and of the other engine.
fn stage(seed: u64) -> (Cluster, ObjectId, u32, u32) {
    let cluster = Cluster::start(seed, SHAPE);
    cluster.create_pool("tank");
    let (service, other) = service_of(&cluster, "tank");
    let context = cluster.context(cluster.admin(), Duration::from_secs(5));
    let oid = cluster.world.block_on(cluster.admin(), async move {
        let container = make_container(&context, "tank", "box", 0).await.expect("room");
        container.new_object_id(&context, kind::KV_HASHED, Some(ObjectClass::SX)).await.expect("an id")
    });
    (cluster, oid, service, other)
}

/// What a client that connects now makes of the pool: the map's version, how many keys are stored, and why others aren't.
fn connect_and_store(cluster: &Cluster, oid: ObjectId) -> (u32, u64, Vec<Error>) {
    let context = cluster.context(cluster.admin(), Duration::from_secs(5));
    cluster.world.block_on(cluster.admin(), async move {
        let pool = Pool::connect(&context, "tank", BOTH).await.expect("its service is up");
        let container = Container::open(&context, &pool, "box", BOTH).await.expect("it was created");
        let kv = Kv::open(&container, oid).expect("a class without redundancy");
        let (stored, errors) = put_all(&context, &kv, 1).await;
        (pool.map().version, stored.len() as u64, errors)
    })
}

/// Has a device fail until its target counts as faulty. It seems well afterwards, and isn't trusted.
fn fail(cluster: &Cluster, target: (u32, u32), oid: ObjectId) {
    cluster.disk(target).set_options(SimDiskOptions { error_probability: 1.0, ..SimDiskOptions::default() });
    connect_and_store(cluster, oid);
    cluster.world.run_for(NOTICED);
    cluster.disk(target).set_options(SimDiskOptions::default());
}

fn restart(cluster: &Cluster, rank: u32) {
    cluster.crash(rank, CrashKeeps::Everything);
    cluster.world.run_for(Duration::from_millis(100));
    cluster.restart(rank);
    cluster.settle();
    cluster.world.run_for(SETTLED);
}

pub fn clear_and_restart(cluster: &Cluster, (rank, target): (u32, u32)) {
    let clear = v1::ClearDeviceRequest { rank, target };
    let _: v1::ClearDeviceResponse = cluster.manage(0, "System/ClearDevice", &clear).expect("it is up");
    restart(cluster, rank);
}

/// Checks version and targets that are down, as management and a new client see them.
#[track_caller]
fn check(cluster: &Cluster, oid: ObjectId, version: u32, down: &[(u32, u32)]) {
    let seed = cluster.world.seed();
    let (found, mut named, _) = map_version(cluster, "tank");
    named.sort_unstable();
    let mut down = down.to_vec();
    down.sort_unstable();
    assert_eq!((found, named), (version, down.clone()), "seed {seed}");
    let (given, stored, errors) = connect_and_store(cluster, oid);
    for error in errors {
        assert!(error.is(Der::NVME_IO), "seed {seed}: {error}");
    }
    assert_eq!(given, version, "seed {seed}");
    assert_eq!(stored == KEYS, down.is_empty(), "seed {seed}: {stored} keys stored");
    assert!(stored > 0, "seed {seed}");
}

/// The service's own target fails, then another one: what the service gives out meanwhile holds after its restarts, with the
/// device still out of use and with the device back.
pub fn hold_without_the_device_of_the_service(seed: u64) {
    let (cluster, oid, service, other) = stage(seed);
    let (own, far) = ((service, 0), (other, 1));
    check(&cluster, oid, 1, &[]);
    fail(&cluster, own, oid);
    check(&cluster, oid, 2, &[own]);
    fail(&cluster, far, oid);
    check(&cluster, oid, 3, &[own, far]);
    restart(&cluster, service);
    check(&cluster, oid, 3, &[own, far]);
    clear_and_restart(&cluster, own);
    check(&cluster, oid, 4, &[far]);
    assert_eq!(cluster.backed_up(), 0, "the device has the map");
    let context = cluster.context(cluster.admin(), Duration::from_secs(5));
    cluster.world.block_on(cluster.admin(), async move {
        let pool = Pool::connect(&context, "tank", BOTH).await.expect("its service is up");
        let container = Container::open(&context, &pool, "box", BOTH).await.expect("it was created");
        use_new_object(&context, &container, Some(ObjectClass::S1)).await;
    });
    clear_and_restart(&cluster, far);
    check(&cluster, oid, 5, &[]);
    restart(&cluster, service);
    check(&cluster, oid, 5, &[]);
}

/// A version that can be kept nowhere isn't given out; it is as soon as there is room for it.
pub fn wait_until_they_are_kept(seed: u64) {
    let (cluster, oid, service, other) = stage(seed);
    check(&cluster, oid, 1, &[]);
    cluster.fill_map_backup(true);
    fail(&cluster, (service, 0), oid);
    fail(&cluster, (other, 1), oid);
    let (version, down, _) = map_version(&cluster, "tank");
    assert_eq!((version, down.as_slice()), (1, [].as_slice()), "seed {seed}");
    cluster.fill_map_backup(false);
    cluster.world.run_for(REPEATED);
    check(&cluster, oid, 3, &[(service, 0), (other, 1)]);
    restart(&cluster, service);
    check(&cluster, oid, 3, &[(service, 0), (other, 1)]);
}

/// The service loses the maps in which its own device and another one were down, and is told of the other one again: also when
/// the first attempts are lost, and by a target that knows of no pools since it was started anew.
pub fn are_told_again_of_what_they_lost(seed: u64) {
    let (cluster, oid, service, other) = stage(seed);
    let (own, far) = ((service, 0), (other, 1));
    check(&cluster, oid, 1, &[]);
    fail(&cluster, own, oid);
    fail(&cluster, far, oid);
    check(&cluster, oid, 3, &[own, far]);
    if seed.is_multiple_of(2) {
        restart(&cluster, other);
        check(&cluster, oid, 3, &[own, far]);
    }
    cluster.lose_data_directory(service);
    cluster.crash(service, CrashKeeps::Everything);
    cluster.world.run_for(Duration::from_millis(100));
    cluster.restart(service);
    cluster.settle();
    if seed.is_multiple_of(3) {
        cluster.fabric.configure(|config| config.loss = 0.5);
        cluster.world.run_for(SETTLED);
        cluster.fabric.configure(|config| config.loss = 0.0);
    }
    cluster.world.run_for(REPEATED);
    let (version, _, _) = map_version(&cluster, "tank");
    assert!(version > 3, "seed {seed}: version {version} was given out before");
    check(&cluster, oid, version, &[far]);
    clear_and_restart(&cluster, far);
    check(&cluster, oid, version + 1, &[]);
}

/// A service that can't be reached is told when it can, and asked rarely until then; with the map as it should be nobody asks.
pub fn are_told_rarely_and_until_they_agree(seed: u64) {
    let (cluster, oid, service, other) = stage(seed);
    check(&cluster, oid, 1, &[]);
    let nodes = [service, other].map(|rank| &cluster.engines[rank as usize].node);
    cluster.fabric.partition(&nodes[..1], &nodes[1..]);
    // Beside these calls the target asks its engine for the table of tenants.
    let calls_in = |time: Duration| {
        let calls = || cluster.target(other, 1).rpc().metrics().calls.get();
        let before = calls();
        cluster.world.run_for(time);
        (calls() - before).saturating_sub(time.as_secs() / ASK_INTERVAL.as_secs())
    };
    fail(&cluster, (other, 1), oid);
    let made = calls_in(Duration::from_mins(10));
    assert!((10..30).contains(&made), "seed {seed}: {made} calls in ten minutes");
    cluster.fabric.heal();
    cluster.world.run_for(REPEATED);
    check(&cluster, oid, 2, &[(other, 1)]);
    let made = calls_in(Duration::from_mins(5));
    assert!(made <= 1, "seed {seed}: {made} calls although the map says it");
}
