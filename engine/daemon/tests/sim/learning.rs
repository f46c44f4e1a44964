//! What a target asks the pool service when a container is used on it for the first time.

use std::time::Duration;

use weir_client::{Conditions, Container, Context, Kv, Pool, Rights, kind};

use crate::cluster::{Cluster, Shape};
use crate::workload::make_container;

/// Keys that every target has some of.
const KEYS: u8 = 16;

async fn kv(context: &Context, container: &Container) -> Kv {
    let oid = container.new_object_id(context, kind::KV_HASHED, None).await.expect("an id");
    Kv::open(container, oid).expect("no redundancy")
}

/// Puts into a new container; how long the longest took.
async fn put_all(context: &Context, label: &str) -> Duration {
    let container = make_container(context, "tank", label, 0).await.expect("room");
    let (kv, rt) = (kv(context, &container).await, context.runtime().clone());
    let mut longest = Duration::ZERO;
    for key in 0..KEYS {
        let began = rt.now();
        kv.put(context, &[key], b"value", Conditions::NONE).await.expect("stored");
        longest = longest.max(rt.now() - began);
    }
    longest
}

/// The service forgets targets that ask it for nothing for five minutes, and others have their places then.
pub fn goes_on_at_once_after_a_pause(seed: u64) {
    let cluster = Cluster::start(seed, Shape { engines: 3, targets: 2, clients: 40 });
    cluster.create_pool("tank");
    let context = cluster.context(cluster.admin(), Duration::from_secs(30));
    let first = context.clone();
    let before = cluster.world.block_on(cluster.admin(), async move { put_all(&first, "first").await });
    cluster.world.run_for(Duration::from_mins(6));
    let guests: Vec<_> = cluster
        .clients
        .iter()
        .map(|node| {
            let guest = cluster.context(node, Duration::from_secs(30));
            let asks = guest.clone();
            cluster
                .world
                .block_on(node, async move { Pool::connect(&asks, "tank", Rights::READ).await.map(drop) })
                .expect("connected");
            guest
        })
        .collect();
    let after = cluster.world.block_on(cluster.admin(), async move { put_all(&context, "second").await });
    assert!(after < before * 4, "seed {seed}: {after:?}, {before:?} when all had just met");
    drop(guests);
}

/// A target can't ask for so long that whoever wanted something there has given up.
pub fn does_nothing_for_who_has_given_up(seed: u64) {
    let cluster = Cluster::start(seed, Shape { engines: 2, targets: 1, clients: 1 });
    cluster.create_pool("tank");
    let context = cluster.context(cluster.admin(), Duration::from_secs(8));
    let open = context.clone();
    let kv = cluster.world.block_on(cluster.admin(), async move {
        let container = make_container(&open, "tank", "box", 0).await.expect("room");
        kv(&open, &container).await
    });
    let [one, other] = [0, 1].map(|rank: usize| cluster.engines[rank].node.clone());
    cluster.fabric.partition(&[&one], &[&other]);
    let fabric = cluster.fabric.clone();
    let given_up = Duration::from_secs(8) + Duration::from_millis(seed * 50);
    cluster.world.schedule(given_up, move || fabric.heal());
    let (tries, keys) = (context.clone(), kv.clone());
    let missed: Vec<u8> = cluster.world.block_on(cluster.admin(), async move {
        let puts = (0..KEYS).map(|key| {
            let (context, kv) = (&tries, &keys);
            async move {
                kv.put(context, &[key], b"value", Conditions::NONE).await.err().map(|error| (key, error))
            }
        });
        let failed = weir_runtime::join_all(puts).await.into_iter().flatten();
        failed
            .map(|(key, error)| (key, assert!(error.to_string().contains("has not answered"), "{error}")).0)
            .collect()
    });
    assert!(
        !missed.is_empty() && missed.len() < KEYS.into(),
        "seed {seed}: one target can't ask: {missed:?}"
    );
    cluster.world.run_for(Duration::from_mins(1));
    cluster.world.block_on(cluster.admin(), async move {
        for key in missed {
            let found = kv.get(&context, &[key]).await.expect("all are there");
            assert_eq!(found, None, "seed {seed}: key {key} was given up");
        }
    });
}
