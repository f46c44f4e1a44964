//! Devices that turn faulty, and come back.

use std::time::Duration;

use weir_client::{Conditions, Context, Der, Kv, ObjectClass, kind};
use weir_management::v1;
use weir_media::sim::{CrashKeeps, SimDiskOptions};

use crate::cluster::Cluster;
use crate::workload::make_container;

/// Keys, enough that each of four targets has some.
const KEYS: u64 = 64;

/// Engine and target whose device turns faulty.
const VICTIM: (u32, u32) = (1, 1);

/// Longest time until the engines' reports tell of it.
const NOTICED: Duration = Duration::from_secs(10);

/// Stores a value under every key; what was stored, and the errors.
async fn put_all(context: &Context, kv: &Kv, value: u64) -> (Vec<u64>, Vec<weir_client::Error>) {
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

/// A target whose device fails is out of service, also when the device seems well again, and all others serve on. After
/// a restart with a sound device it's back, with everything that it had acknowledged.
pub fn turn_faulty_and_come_back(cluster: &Cluster, pool: &str) {
    let context = cluster.context(cluster.admin(), Duration::from_secs(5));
    let name = pool.to_owned();
    let (kv, context, lost) = cluster.world.block_on(cluster.admin(), {
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
                let names_it = text.contains("target 1 of rank 1 is out of service");
                assert!(error.is(Der::NVME_IO) && names_it && text.contains("replace the device"), "{text}");
            }
            let read = kv.get(&context, &lost[0].to_le_bytes()).await.expect_err("nor read from");
            assert!(read.to_string().contains("out of service"), "{read}");
            let read = kv.get(&context, &stored[0].to_le_bytes()).await.expect("another target");
            assert_eq!(read, Some(3_u64.to_le_bytes().to_vec()));
            (kv, context, lost)
        }
    });
    cluster.world.run_for(NOTICED);
    let message = message_of(cluster, VICTIM.0);
    assert!(message.contains("target 1: out of service, because its device is faulty"), "{message}");
    assert_eq!(message_of(cluster, 0), "", "the other engine is well");
    cluster.crash(VICTIM.0, CrashKeeps::Everything);
    cluster.world.run_for(Duration::from_millis(100));
    cluster.restart(VICTIM.0);
    cluster.settle();
    cluster.world.run_for(NOTICED);
    assert_eq!(message_of(cluster, VICTIM.0), "", "the device is opened anew");
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
