//! What a tenant may use over all its pools: bytes that are held, and how fast its clients go.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use weir_client::{Conditions, Context, Kv, ObjectClass, kind};
use weir_management::v1;
use weir_media::sim::CrashKeeps;
use weir_proto::Der;

use crate::cluster::{Cluster, SHARE_BYTES, Shape};
use crate::workload::{self, MIB, make_container};

/// Three engines keep the list of pools, and two of them have a pool of the tenant each.
pub const POOLS: Shape = Shape { engines: 3, targets: 1, clients: 0 };

/// One pool on all of them.
pub const SPREAD: Shape = Shape { engines: 3, targets: 2, clients: 3 };

const TENANT: u64 = 7;

const QUOTA_MIB: u64 = 18;

/// Requests a second.
const OPERATIONS: u64 = 600;

/// Bytes a second.
const BANDWIDTH: u64 = 24 << 20;

/// How long it is measured how fast clients go.
const MEASURED: Duration = Duration::from_secs(6);

/// Tasks of each client.
const TASKS: u64 = 8;

fn limit(cluster: &Cluster, limits: v1::TenantLimits) -> v1::TenantSetLimitsResponse {
    let request = v1::TenantSetLimitsRequest { tenant: TENANT, limits: Some(limits) };
    let answer: v1::TenantSetLimitsResponse =
        cluster.manage(1, "Tenants/SetLimits", &request).expect("all engines are up");
    assert_eq!(answer.limits, Some(limits));
    answer
}

fn limit_bytes(cluster: &Cluster, mib: u64) -> v1::TenantSetLimitsResponse {
    limit(cluster, v1::TenantLimits { bytes: mib << 20, ..v1::TenantLimits::default() })
}

/// What the tenant's pools hold and may hold, together.
fn uses(cluster: &Cluster) -> (u64, u64) {
    // Figures are at most a second old.
    cluster.world.run_for(Duration::from_secs(2));
    let request = v1::TenantQueryLimitsRequest { tenant: TENANT };
    let answer: v1::TenantQueryLimitsResponse =
        cluster.manage(0, "Tenants/QueryLimits", &request).expect("all engines are up");
    assert!(answer.pools.iter().all(|pool| pool.answered), "{answer:?}");
    let sum = |of: fn(&v1::TenantPoolUse) -> u64| answer.pools.iter().map(of).sum();
    (sum(|pool| pool.used_bytes), answer.pools.iter().filter_map(|pool| pool.share_bytes).sum())
}

fn create_pool(cluster: &Cluster, label: &str, ranks: Vec<u32>) {
    let targets = u64::from(cluster.shape.targets) * ranks.len() as u64;
    let request = v1::PoolCreateRequest {
        tenant: TENANT,
        ranks,
        size_bytes: targets * SHARE_BYTES,
        ..cluster.pool_request(label)
    };
    let created: v1::PoolCreateResponse = cluster.manage(0, "Pools/Create", &request).expect("room");
    assert_eq!(created.pool.expect("an answer").state(), v1::PoolState::Ready);
}

/// A key-value object of a new container of a pool.
fn object(cluster: &Cluster, context: &Context, pool: &'static str, class: ObjectClass) -> Kv {
    let context = context.clone();
    cluster.world.block_on(cluster.admin(), async move {
        let container =
            make_container(&context, pool, "box", 0).await.expect("a container holds nothing yet");
        let oid = container.new_object_id(&context, kind::KV_HASHED, Some(class)).await.expect("an id");
        Kv::open(&container, oid).expect("a class without redundancy")
    })
}

fn fill(cluster: &Cluster, context: &Context, kv: &Kv, first: u64) -> u64 {
    let (context, kv) = (context.clone(), kv.clone());
    let (taken, error) =
        cluster.world.block_on(cluster.admin(), async move { workload::fill(&context, &kv, first).await });
    assert!(error.is(Der::NOSPACE), "{taken} MiB: {error}");
    taken
}

/// Pools hold what their tenant may hold and no more, whichever of them is written to. What one gives up others get.
pub fn are_kept_over_pools(cluster: &Cluster) {
    let context = cluster.context(cluster.admin(), Duration::from_secs(20));
    create_pool(cluster, "first", vec![0]);
    let first = object(cluster, &context, "first", ObjectClass::S1);
    // Before there is a quota, targets may hold as much as they want.
    let (own, kv) = (context.clone(), first.clone());
    cluster.world.block_on(cluster.admin(), async move {
        for number in 0..4_u64 {
            kv.put(&own, &number.to_le_bytes(), &vec![7; MIB], Conditions::NONE).await.expect("no quota yet");
        }
    });
    let answer = limit_bytes(cluster, QUOTA_MIB);
    assert!(answer.pools.iter().all(|pool| pool.answered && pool.share_bytes.is_some()), "{answer:?}");
    // A pool that is made under a quota begins with nothing.
    create_pool(cluster, "second", vec![1]);
    let second = object(cluster, &context, "second", ObjectClass::S1);
    let in_first = 4 + fill(cluster, &context, &first, 4);
    assert!((QUOTA_MIB - 2..=QUOTA_MIB).contains(&in_first), "{in_first} MiB");
    assert!(fill(cluster, &context, &second, 0) <= 1, "the other pool has all of it");
    let (used, shared) = uses(cluster);
    assert!(used <= QUOTA_MIB << 20 && shared <= QUOTA_MIB << 20, "{used} of {shared} bytes");

    limit_bytes(cluster, QUOTA_MIB + 6);
    cluster.world.run_for(Duration::from_secs(1));
    let in_second = fill(cluster, &context, &second, 1);
    assert!((4..=7).contains(&in_second), "{in_second} MiB more of 6");
    let (used, shared) = uses(cluster);
    assert!(used <= (QUOTA_MIB + 6) << 20 && shared <= (QUOTA_MIB + 6) << 20, "{used} of {shared} bytes");

    // What goes in one pool is room for another.
    let (own, from, to) = (context.clone(), first.clone(), second.clone());
    cluster.world.block_on(cluster.admin(), async move {
        workload::empty(&own, &from, in_first).await;
        workload::wait_for_room(&own, &to).await;
    });

    // A quota may be less than what is held: that stays, and nothing comes.
    limit_bytes(cluster, 2);
    cluster.world.run_for(Duration::from_secs(1));
    assert_eq!(fill(cluster, &context, &second, 50), 0);
    limit_bytes(cluster, 0);
    cluster.world.run_for(Duration::from_secs(1));
    let (own, kv) = (context, second);
    cluster.world.block_on(cluster.admin(), async move {
        kv.put(&own, b"more", &vec![7; MIB], Conditions::NONE).await.expect("there is no quota");
    });
    assert_eq!(uses(cluster).1, 0, "no pool has a share");
}

/// Engines die and come back, those that keep the list of pools and those that hold pools: the tenant never holds more than it may,
/// and in the end as much.
pub fn outlive_engines(cluster: &Cluster) {
    let context = cluster.context(cluster.admin(), Duration::from_secs(20));
    let pools = [("first", 0), ("second", 1)];
    let objects = pools.map(|(label, rank)| {
        create_pool(cluster, label, vec![rank]);
        object(cluster, &context, label, ObjectClass::S1)
    });
    limit_bytes(cluster, QUOTA_MIB);
    let mut next = 0;
    for _ in 0..4 {
        let victim = u32::try_from(cluster.world.rng().below(3)).expect("three engines");
        let (own, kvs, number) = (context.clone(), objects.clone(), next);
        // It dies somewhere in here.
        let writing = cluster.admin().handle().spawn(async move {
            for (at, kv) in kvs.iter().enumerate() {
                let key = (number + at as u64).to_le_bytes();
                // Who is away takes nothing.
                drop(kv.put(&own, &key, &vec![7; 2 * MIB], Conditions::NONE).await);
            }
        });
        next += 2;
        cluster.world.run_for(Duration::from_millis(cluster.world.rng().below(30)));
        cluster.crash(victim, CrashKeeps::Everything);
        cluster.world.run_for(Duration::from_secs(4));
        cluster.restart(victim);
        cluster.settle();
        cluster.world.run_for(Duration::from_secs(20));
        drop(writing);
        let (used, shared) = uses(cluster);
        assert!(used <= QUOTA_MIB << 20 && shared <= QUOTA_MIB << 20, "{used} of {shared} bytes");
    }
    for kv in &objects {
        fill(cluster, &context, kv, 1000);
    }
    let (used, shared) = uses(cluster);
    assert!(used <= QUOTA_MIB << 20 && shared <= QUOTA_MIB << 20, "{used} of {shared} bytes");
    assert!(used > (QUOTA_MIB - 3) << 20, "{used} of {QUOTA_MIB} MiB");
}

/// Requests and bytes that the targets have counted so far of a pool.
fn counted(cluster: &Cluster, pool: &str) -> (u64, u64) {
    let mut sum = (0, 0);
    for rank in 0..cluster.shape.engines {
        for index in 0..cluster.shape.targets {
            let pools = cluster.target(rank, index as usize).pools().clone();
            for container in pools.find(pool).expect("it is everywhere").containers() {
                let (written, read) = container.counters.bytes();
                sum.0 += container.counters.operations().iter().sum::<u64>();
                sum.1 += written + read;
            }
        }
    }
    sum
}

/// How much of both comes in a while, a second.
fn rates(cluster: &Cluster, pool: &str, time: Duration) -> (u64, u64) {
    let before = counted(cluster, pool);
    cluster.world.run_for(time);
    let after = counted(cluster, pool);
    let ms = u64::try_from(time.as_millis()).expect("short");
    let rate = |before: u64, after: u64| (after - before) * 1000 / ms;
    (rate(before.0, after.0), rate(before.1, after.1))
}

/// The engine that answers for the list of pools.
fn keeper(cluster: &Cluster) -> u32 {
    let pools = Rc::clone(cluster.target(0, 0).pools());
    let engine = &cluster.engines[0].node;
    cluster.world.block_on(engine, async move { pools.find_keeper().await.expect("one does").0 })
}

/// Within a tenth of what is allowed.
fn assert_near(rate: u64, limit: u64, what: &str) {
    assert!((limit / 10 * 9..=limit / 10 * 11).contains(&rate), "{what}: {rate} a second of {limit}");
}

/// Clients have tasks that read an object of their own over and over, until they are told to stop.
fn read_on(cluster: &Cluster, class: ObjectClass, bytes: usize, clients: usize) -> Rc<Cell<bool>> {
    let goes_on = Rc::new(Cell::new(true));
    for (client, node) in cluster.clients.iter().enumerate().take(clients) {
        let context = cluster.context(node, Duration::from_secs(20));
        let own = context.clone();
        let kv = cluster.world.block_on(node, async move {
            let container = make_container(&own, "tank", "box", 0).await.expect("room");
            let oid = container.new_object_id(&own, kind::KV_HASHED, Some(class)).await.expect("an id");
            let kv = Kv::open(&container, oid).expect("a class without redundancy");
            for key in 0..TASKS {
                kv.put(&own, &key.to_le_bytes(), &vec![9; bytes], Conditions::NONE).await.expect("room");
            }
            kv
        });
        for key in 0..TASKS {
            let (context, kv, goes_on) = (context.clone(), kv.clone(), Rc::clone(&goes_on));
            node.handle().spawn(async move {
                while goes_on.get() {
                    let found = kv.get(&context, &key.to_le_bytes()).await;
                    let found = found.unwrap_or_else(|error| panic!("client {client}: {error}"));
                    assert_eq!(found.map(|value| value.len()), Some(bytes));
                }
            });
        }
    }
    goes_on
}

/// All clients of a tenant together go as fast as it may, and others as fast as they can; wherever the load is.
pub fn share_rates(cluster: &Cluster) {
    create_pool(cluster, "tank", (0..cluster.shape.engines).collect());
    let spread = read_on(cluster, ObjectClass::SX, 100, cluster.clients.len());
    let (operations, _) = rates(cluster, "tank", Duration::from_millis(100));
    assert!(operations > 3 * OPERATIONS, "{operations} a second without a limit");
    spread.set(false);
    limit(cluster, v1::TenantLimits { operations_per_second: OPERATIONS, ..v1::TenantLimits::default() });
    // Targets ask again by then.
    cluster.world.run_for(Duration::from_secs(6));
    let spread = read_on(cluster, ObjectClass::SX, 100, cluster.clients.len());
    cluster.world.run_for(Duration::from_secs(1));
    let (operations, _) = rates(cluster, "tank", MEASURED);
    assert_near(operations, OPERATIONS, "requests on all targets");

    // The load goes to a few targets.
    spread.set(false);
    cluster.world.run_for(Duration::from_secs(2));
    let narrow = read_on(cluster, ObjectClass::S1, 100, 1);
    cluster.world.run_for(Duration::from_secs(1));
    let (operations, _) = rates(cluster, "tank", MEASURED);
    assert_near(operations, OPERATIONS, "requests on one target");
    narrow.set(false);

    let limits = v1::TenantLimits { bytes_per_second: BANDWIDTH, ..v1::TenantLimits::default() };
    limit(cluster, limits);
    cluster.world.run_for(Duration::from_secs(6));
    let large = read_on(cluster, ObjectClass::SX, 256 << 10, cluster.clients.len());
    cluster.world.run_for(Duration::from_secs(6));
    let (_, bytes) = rates(cluster, "tank", MEASURED);
    assert_near(bytes, BANDWIDTH, "bytes");

    // Whoever answers for the list of pools, targets go on.
    let keeper = keeper(cluster);
    cluster.crash(keeper, CrashKeeps::Everything);
    cluster.world.run_for(Duration::from_secs(3));
    cluster.restart(keeper);
    cluster.settle();
    cluster.world.run_for(Duration::from_secs(8));
    let (_, bytes) = rates(cluster, "tank", MEASURED);
    assert_near(bytes, BANDWIDTH, "bytes after another engine keeps the list");
    large.set(false);
    limit(cluster, v1::TenantLimits::default());
    cluster.world.run_for(Duration::from_secs(2));
}
