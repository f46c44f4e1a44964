//! Tenants whose clients the network keeps apart: engines on a block of virtual networks, each client on one.

use std::time::Duration;

use weir_client::{Attach, Conditions, Context, ContextOptions, Der, Error, Kv, Pool, Rights, kind};
use weir_fabric::AuthKey;
use weir_management::v1;
use weir_proto::TenantId;
use weir_runtime::sim::Node;

use crate::cluster::{Cluster, KEY, SHARE_BYTES, Shape};
use crate::workload::make_container;

/// Virtual networks of the engines.
pub fn block() -> Vec<AuthKey> {
    (100..104).map(|vni| AuthKey { service: 1, vni }).collect()
}

/// How long a client tries.
const PATIENCE: Duration = Duration::from_secs(10);

/// A client of a tenant on a virtual network.
fn client(cluster: &Cluster, name: &str, tenant: u64, vni: u16) -> (Node, Context) {
    let node = cluster.world.node(name);
    let endpoint = cluster.fabric.endpoint_with_keys(&node, None, &[AuthKey { service: 1, vni }]);
    let attach = Attach { key: KEY.tenant(TenantId(tenant)), ..cluster.attach() };
    let options = ContextOptions { deadline: PATIENCE, uid: 1000, gid: 1000, node: None };
    let context = Context::sim(node.handle(), endpoint, &attach, options);
    (node, context)
}

/// A pool of a tenant, on one engine: a disk has room for one.
fn create_pool(cluster: &Cluster, label: &str, tenant: u64, rank: u32) {
    let request = v1::PoolCreateRequest {
        tenant,
        ranks: vec![rank],
        size_bytes: SHARE_BYTES,
        ..cluster.pool_request(label)
    };
    let created: v1::PoolCreateResponse = cluster.manage(0, "Pools/Create", &request).expect("room");
    assert_eq!(created.pool.expect("an answer").state(), v1::PoolState::Ready);
}

/// Writes and reads a key of a new container of a pool.
fn works(cluster: &Cluster, (node, context): &(Node, Context), pool: &'static str) {
    let context = context.clone();
    cluster.world.block_on(node, async move {
        let container = make_container(&context, pool, "box", 0).await.expect("its own pool");
        let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("an id");
        let kv = Kv::open(&container, oid).expect("no redundancy");
        // Inline, and moved by the engine through the client's network.
        for value in [vec![7; 100], vec![8; 60_000]] {
            kv.put(&context, b"key", &value, Conditions::NONE).await.expect("written");
            assert_eq!(kv.get(&context, b"key").await.expect("read"), Some(value));
        }
    });
}

fn connects(cluster: &Cluster, (node, context): &(Node, Context), pool: &'static str) -> Result<(), Error> {
    let context = context.clone();
    cluster.world.block_on(node, async move { Pool::connect(&context, pool, Rights::READ).await.map(drop) })
}

pub fn are_kept_apart(seed: u64, published: bool) {
    let shape = Shape { engines: 2, targets: 1, clients: 0 };
    let cluster = Cluster::start_on(seed, shape, block(), published);
    create_pool(&cluster, "first", 1, 0);
    create_pool(&cluster, "second", 2, 1);
    let (first, second) = (client(&cluster, "one", 1, 100), client(&cluster, "two", 2, 101));
    works(&cluster, &first, "first");
    works(&cluster, &second, "second");
    for (who, pool) in [(&first, "second"), (&second, "first")] {
        let error = connects(&cluster, who, pool).expect_err("another tenant's");
        assert_eq!(error.der(), Der::NO_PERM, "seed {seed}, {pool}: {error}");
    }
    assert_eq!(cluster.fabric.stats().other_network, 0, "seed {seed}: everybody is on the engines' networks");

    // With the right key, but from a network that the engines are not on.
    let outside = client(&cluster, "outside", 1, 99);
    let received = cluster.target(0, 0).rpc().metrics().messages_received.get();
    assert!(connects(&cluster, &outside, "first").is_err(), "seed {seed}");
    assert!(cluster.fabric.stats().other_network > 0, "seed {seed}: the engines' NICs refused");
    let more = cluster.target(0, 0).rpc().metrics().messages_received.get() - received;
    // The engines talk to each other meanwhile: a probe and news a second, both ways.
    assert!(more < 20 * PATIENCE.as_secs(), "seed {seed}: {more} messages");
    // Without any.
    let node = cluster.world.node("keyless");
    let keyless = (node.clone(), cluster.context(&node, PATIENCE));
    assert!(connects(&cluster, &keyless, "first").is_err(), "seed {seed}");
    works_still(&cluster, &first);

    // A job that comes to the node of an earlier one, on another network.
    drop((first, outside));
    let again = client(&cluster, "one", 1, 103);
    works_still(&cluster, &again);
    let error = connects(&cluster, &again, "second").expect_err("another tenant's");
    assert_eq!(error.der(), Der::NO_PERM, "seed {seed}: {error}");
}

fn works_still(cluster: &Cluster, who: &(Node, Context)) {
    let outcome = connects(cluster, who, "first");
    assert!(outcome.is_ok(), "seed {}: {outcome:?}", cluster.world.seed());
}
