//! An engine with more requests than it may execute at once is busy, not dead.

use std::rc::Rc;
use std::time::Duration;

use weir_client::{Conditions, Kv, kind};
use weir_media::sim::SimDiskOptions;
use weir_proto::Rank;
use weir_proto::group::MemberState;

use crate::cluster::Cluster;
use crate::workload::make_container;

/// Requests that each client wants to have under way: all its credits at one engine, and some for the others.
const WIDTH: u64 = 64;

/// The engine whose disk stalls.
const BUSY: u32 = 0;

/// Clients write with all their credits while one engine's disk takes seconds for everything. It answers no more than
/// that it is overloaded, and its probes.
pub fn probes_are_answered(cluster: &Cluster) {
    let seed = cluster.world.seed();
    let context = cluster.context(cluster.admin(), Duration::from_secs(10));
    let (container, oid) = cluster.world.block_on(cluster.admin(), async move {
        let container = make_container(&context, "tank", "box", 0).await.expect("nothing is wrong yet");
        let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("nothing is wrong");
        // Every target learns of the container before a disk stalls; learning takes several records.
        let kv = Kv::open(&container, oid).expect("no redundancy");
        for key in 0..WIDTH {
            let put = kv.put(&context, &key.to_le_bytes(), b"value", Conditions::NONE).await;
            put.expect("nothing is wrong");
        }
        (container, oid)
    });
    cluster.world.run_for(Duration::from_secs(10));
    let stall = Duration::from_secs(5);
    let slow = SimDiskOptions { stall_probability: 1.0, stall, ..SimDiskOptions::default() };
    cluster.set_disks(BUSY, &slow);
    for (client, node) in (0u64..).zip(cluster.clients.iter()) {
        let context = Rc::new(cluster.context(node, Duration::from_mins(5)));
        for number in 0..WIDTH {
            let (context, kv) = (Rc::clone(&context), Kv::open(&container, oid).expect("no redundancy"));
            node.handle().spawn(async move {
                for round in 0u64.. {
                    let key = [client, number, round].map(u64::to_le_bytes).concat();
                    if kv.put(&context, &key, b"value", Conditions::NONE).await.is_err() {
                        return;
                    }
                }
            });
        }
    }
    cluster.world.run_for(Duration::from_secs(5));
    let busy = cluster.target(BUSY, 0);
    let before = busy.rpc().metrics().overloaded.get();
    for _ in 0..40 {
        cluster.world.run_for(Duration::from_secs(1));
        for viewer in 1..cluster.shape.engines {
            let other = cluster.target(viewer, 0);
            let membership = other.membership().expect("target 0 has it");
            let (believed, stats) = (membership.state(Rank(BUSY)), membership.stats());
            assert_eq!(
                believed,
                MemberState::Alive,
                "seed {seed}: rank {viewer} holds it dead or suspects it"
            );
            assert_eq!((stats.deaths, stats.probes_failed), (0, 0), "seed {seed}: rank {viewer}");
        }
    }
    assert!(busy.rpc().metrics().overloaded.get() > before, "seed {seed}: it had room for everything");
}
