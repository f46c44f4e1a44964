//! Devices that turn faulty, and come back.

use std::time::Duration;

use weir_client::{Conditions, Container, Context, Der, Kv, ObjectClass, kind};
use weir_management::v1;
use weir_media::health::{ERRORS_COUNT_FOR, STALL_LIMIT};
use weir_media::sim::{CrashKeeps, SimDiskOptions};

use crate::cluster::Cluster;
use crate::workload::make_container;

/// Keys, enough that each of four targets has some.
pub const KEYS: u64 = 64;

/// Engine and target whose device turns faulty.
const VICTIM: (u32, u32) = (1, 1);

/// Longest time until the engines' reports tell of it.
pub const NOTICED: Duration = Duration::from_secs(10);

/// Stores a value under every key; what was stored, and the errors.
pub async fn put_all(context: &Context, kv: &Kv, value: u64) -> (Vec<u64>, Vec<weir_client::Error>) {
    let (mut stored, mut errors) = (Vec::new(), Vec::new());
    for key in 0..KEYS {
        match kv.put(context, &key.to_le_bytes(), &value.to_le_bytes(), Conditions::NONE).await {
            Ok(()) => stored.push(key),
            Err(error) => errors.push(error),
        }
    }
    (stored, errors)
}

fn message_of(cluster: &Cluster, rank: u32) -> String {
    let request = v1::SystemQueryRequest::default();
    let reply: v1::SystemQueryResponse = cluster.manage(0, "System/Query", &request).expect("engine 0 is up");
    let state = reply.engines.into_iter().find(|engine| engine.rank == rank).expect("every engine is listed");
    state.message
}

pub fn map_version(cluster: &Cluster, pool: &str) -> (u32, Vec<(u32, u32)>, v1::PoolState) {
    let request = v1::PoolQueryRequest { pool: pool.to_owned() };
    let reply: v1::PoolQueryResponse = cluster.manage(0, "Pools/Query", &request).expect("its service is up");
    let pool = reply.pool.expect("an answer");
    let down = pool.down_targets.iter().map(|down| (down.rank, down.target)).collect();
    (pool.map_version, down, pool.state())
}

/// Crashes and restarts the engine of the victim.
fn restart(cluster: &Cluster) {
    cluster.crash(VICTIM.0, CrashKeeps::Everything);
    cluster.world.run_for(Duration::from_millis(100));
    cluster.restart(VICTIM.0);
    cluster.settle();
    cluster.world.run_for(NOTICED);
}

/// Says that the victim's device is good, and that of a target which doesn't exist.
fn clear(cluster: &Cluster) {
    let clear = v1::ClearDeviceRequest { rank: VICTIM.0, target: VICTIM.1 };
    for was_faulty in [true, false] {
        let cleared: v1::ClearDeviceResponse =
            cluster.manage(0, "System/ClearDevice", &clear).expect("engine 1 is up");
        assert_eq!(cleared.was_faulty, was_faulty);
    }
    let nobody = v1::ClearDeviceRequest { rank: VICTIM.0, target: 7 };
    let refused = cluster.manage::<_, v1::ClearDeviceResponse>(0, "System/ClearDevice", &nobody);
    assert_eq!(refused.expect_err("no such target").der, Der::NONEXIST);
}

/// Stores values through a new object, which is laid out on targets in service.
pub async fn use_new_object(context: &Context, container: &Container, class: Option<ObjectClass>) {
    let oid = container.new_object_id(context, kind::KV_HASHED, class).await.expect("an id");
    let kv = Kv::open(container, oid).expect("a class without redundancy");
    let (stored, errors) = put_all(context, &kv, 9).await;
    assert!(stored.len() as u64 == KEYS, "{class:?}: {errors:?}");
}

/// A lower quota needs every target's promise to hold no more; why the victim makes none is told.
fn keep_the_quota(cluster: &Cluster, pool: &str) {
    let request = v1::ContainerSetQuotaRequest {
        pool: pool.to_owned(),
        container: "box".to_owned(),
        quota_bytes: 1 << 30,
    };
    let refused = cluster.manage::<_, v1::ContainerSetQuotaResponse>(0, "Containers/SetQuota", &request);
    let refused = refused.expect_err("one target can't promise it").message;
    assert!(refused.contains("target 1 of rank 1 refused"), "it answers: {refused}");
}

/// A target whose device fails is out of service, also when the device seems well again and after a restart; the pool map says
/// so, new objects are laid out on others, and all others serve on. When an operator has said that the device is good,
/// and the engine has restarted, it's back with everything that it had acknowledged.
pub fn turn_faulty_and_come_back(cluster: &Cluster, pool: &str) {
    let context = cluster.context(cluster.admin(), Duration::from_secs(5));
    let name = pool.to_owned();
    assert_eq!(map_version(cluster, pool), (1, Vec::new(), v1::PoolState::Ready));
    let (kv, container, context, lost) = cluster.world.block_on(cluster.admin(), {
        let disk = cluster.disk(VICTIM);
        async move {
            let container = make_container(&context, &name, "box", 0).await.expect("room");
            let class = Some(ObjectClass::SX);
            let oid = container.new_object_id(&context, kind::KV_HASHED, class).await.expect("an id");
            let kv = Kv::open(&container, oid).expect("a class without redundancy");
            let (stored, errors) = put_all(&context, &kv, 1).await;
            assert!(stored.len() as u64 == KEYS, "{errors:?}");
            disk.set_options(SimDiskOptions { error_probability: 1.0, ..SimDiskOptions::default() });
            put_all(&context, &kv, 2).await;
            disk.set_options(SimDiskOptions::default());
            // It seems well again, and isn't trusted.
            let (stored, errors) = put_all(&context, &kv, 3).await;
            let lost: Vec<u64> = (0..KEYS).filter(|key| !stored.contains(key)).collect();
            assert!(!lost.is_empty() && !stored.is_empty(), "{} stored", stored.len());
            for error in &errors {
                let text = error.to_string();
                let names_it =
                    text.contains("target 1 of rank 1 is out of service") && text.contains("pool tank");
                assert!(error.is(Der::NVME_IO) && names_it && text.contains("replace the device"), "{text}");
            }
            let read = kv.get(&context, &lost[0].to_le_bytes()).await.expect_err("nor read from");
            assert!(read.to_string().contains("out of service"), "{read}");
            let read = kv.get(&context, &stored[0].to_le_bytes()).await.expect("another target");
            assert_eq!(read, Some(3_u64.to_le_bytes().to_vec()));
            (kv, container, context, lost)
        }
    });
    cluster.world.run_for(NOTICED);
    let message = message_of(cluster, VICTIM.0);
    assert!(message.contains("target 1: out of service, because its device is faulty"), "{message}");
    assert_eq!(message_of(cluster, 0), "", "the other engine is well");
    assert_eq!(map_version(cluster, pool), (2, vec![VICTIM], v1::PoolState::Degraded));
    keep_the_quota(cluster, pool);
    let (known, box_, first) = (context.clone(), container.clone(), lost[0]);
    let held = kv.clone();
    cluster.world.block_on(cluster.admin(), async move {
        // Placed anew, without asking the target.
        let read = held.get(&known, &first.to_le_bytes()).await.expect_err("its map says so");
        assert!(read.is(Der::NVME_IO) && read.to_string().contains("weir system clear-device 1 1"), "{read}");
        let before = known.traffic().requests;
        held.get(&known, &first.to_le_bytes()).await.expect_err("and again");
        assert_eq!(known.traffic().requests, before, "nobody is asked");
        for class in [None, Some(ObjectClass::SX), Some(ObjectClass::S1)] {
            use_new_object(&known, &box_, class).await;
        }
    });
    restart(cluster);
    let message = message_of(cluster, VICTIM.0);
    assert!(message.contains("target 1: out of service"), "it is remembered: {message}");
    assert_eq!(map_version(cluster, pool), (2, vec![VICTIM], v1::PoolState::Degraded));
    clear(cluster);
    restart(cluster);
    assert_eq!(message_of(cluster, VICTIM.0), "", "the device is opened anew");
    assert_eq!(map_version(cluster, pool), (3, Vec::new(), v1::PoolState::Ready));
    cluster.world.block_on(cluster.admin(), async move {
        for key in lost {
            let found = kv.get(&context, &key.to_le_bytes()).await.expect("back in service");
            let value = found.map(|bytes| bytes[0]);
            // What was under way when the device failed may have reached it.
            assert!(matches!(value, Some(1 | 2)), "key {key}: {value:?}");
        }
        let (stored, errors) = put_all(&context, &kv, 4).await;
        assert!(stored.len() as u64 == KEYS, "{errors:?}");
    });
}

/// From now on what the victim's disk is asked for takes so long.
fn stall(cluster: &Cluster, stall: Duration) {
    cluster.disk(VICTIM).set_options(SimDiskOptions {
        stall_probability: 1.0,
        stall,
        ..SimDiskOptions::default()
    });
}

/// Makes an object on all targets, with a value under every key.
fn fill(cluster: &Cluster, pool: &str) -> Kv {
    let (context, name) = (cluster.context(cluster.admin(), Duration::from_secs(5)), pool.to_owned());
    cluster.world.block_on(cluster.admin(), async move {
        let container = make_container(&context, &name, "box", 0).await.expect("room");
        let class = Some(ObjectClass::SX);
        let oid = container.new_object_id(&context, kind::KV_HASHED, class).await.expect("an id");
        let kv = Kv::open(&container, oid).expect("a class without redundancy");
        let (stored, errors) = put_all(&context, &kv, 1).await;
        assert!(stored.len() as u64 == KEYS, "{errors:?}");
        kv
    })
}

/// Has the victim's disk take so long for one batch of the log, while clients with this patience change every key. What they
/// have changed after that, and the errors.
fn change_all_meanwhile(
    cluster: &Cluster,
    kv: &Kv,
    time: Duration,
    patience: Duration,
) -> weir_runtime::JoinHandle<(Vec<u64>, Vec<weir_client::Error>)> {
    let (context, kv) = (cluster.context(cluster.admin(), patience), kv.clone());
    stall(cluster, time);
    let changing = cluster.admin().handle().spawn(async move { put_all(&context, &kv, 2).await });
    cluster.world.run_for(Duration::from_secs(1));
    cluster.disk(VICTIM).set_options(SimDiskOptions::default());
    changing
}

/// A disk that takes four minutes for a flush keeps its clients waiting, and nothing else: the target is suspect meanwhile, all
/// that was asked of it is done in the end, and it serves on without a restart.
pub fn wait_for_a_slow_flush(cluster: &Cluster, pool: &str) {
    let kv = fill(cluster, pool);
    let changing = change_all_meanwhile(cluster, &kv, Duration::from_mins(4), Duration::from_mins(10));
    cluster.world.run_for(Duration::from_mins(3));
    let message = message_of(cluster, VICTIM.0);
    assert!(message.contains("target 1: the device is suspect: a "), "{message}");
    assert!(message.contains("has been under way for 18"), "{message}");
    // Who comes meanwhile is asked to come again.
    let (hasty, held) = (cluster.context(cluster.admin(), Duration::from_secs(5)), kv.clone());
    let errors = cluster.world.block_on(cluster.admin(), async move { put_all(&hasty, &held, 3).await.1 });
    assert!(!errors.is_empty());
    for error in &errors {
        let text = error.to_string();
        assert!(text.contains("target 1 of rank 1 waits for its device: a "), "{text}");
    }
    let (stored, errors) = cluster.world.block_on(cluster.admin(), changing).expect("it isn't aborted");
    assert!(stored.len() as u64 == KEYS, "{errors:?}");
    assert_eq!(
        map_version(cluster, pool),
        (1, Vec::new(), v1::PoolState::Ready),
        "it never was out of service"
    );
    assert!(!cluster.is_marked(VICTIM));
    cluster.world.run_for(ERRORS_COUNT_FOR + NOTICED);
    assert_eq!(message_of(cluster, VICTIM.0), "");
    serve(cluster, &kv);
}

/// Every key can be changed, and read.
fn serve(cluster: &Cluster, kv: &Kv) {
    let (context, kv) = (cluster.context(cluster.admin(), Duration::from_secs(5)), kv.clone());
    cluster.world.block_on(cluster.admin(), async move {
        let (stored, errors) = put_all(&context, &kv, 4).await;
        assert!(stored.len() as u64 == KEYS, "{errors:?}");
        for key in 0..KEYS {
            let found = kv.get(&context, &key.to_le_bytes()).await.expect("it serves");
            assert_eq!(found, Some(4_u64.to_le_bytes().to_vec()), "key {key}");
        }
    });
}

/// A disk that takes longer than the limit for a flush is out of service until it ends, and back then without a restart.
pub fn come_back_from_a_long_stall(cluster: &Cluster, pool: &str) {
    let kv = fill(cluster, pool);
    let changing = change_all_meanwhile(cluster, &kv, Duration::from_mins(14), Duration::from_mins(30));
    cluster.world.run_for(STALL_LIMIT + NOTICED);
    let message = message_of(cluster, VICTIM.0);
    assert!(
        message.contains("target 1: out of service") && message.contains("serves again when it ends"),
        "{message}"
    );
    assert_eq!(map_version(cluster, pool), (2, vec![VICTIM], v1::PoolState::Degraded));
    assert!(cluster.is_marked(VICTIM), "a restart doesn't touch the device");
    let (_, errors) = cluster.world.block_on(cluster.admin(), changing).expect("it isn't aborted");
    for error in &errors {
        assert!(error.is(Der::NVME_IO), "{error}");
    }
    cluster.world.run_for(Duration::from_mins(5));
    assert_eq!(map_version(cluster, pool), (3, Vec::new(), v1::PoolState::Ready));
    assert!(!cluster.is_marked(VICTIM));
    serve(cluster, &kv);
    restart(cluster);
    serve(cluster, &kv);
}
