//! How a client learns that the pool map has changed.

use core::cell::Cell;
use core::time::Duration;
use std::rc::Rc;

use weir_client::{Conditions, ContainerType, Kv, kind};
use weir_proto::pool::TargetPoolMap;
use weir_proto::{Der, Rank, TargetIndex, opcode};
use weir_rpc::{Request, Status};

use crate::cluster::{Cluster, open_container, properties};
use crate::leaders::play;
use crate::simulated::is_about;

#[test]
fn an_operation_that_needs_a_newer_map_waits_no_longer_than_others() {
    let cluster = Cluster::start(22, 2, 1);
    let (patience, late) = (Duration::from_secs(20), Duration::from_secs(15));
    let context = cluster.context(patience);
    for target in (0..2).flat_map(|rank| cluster.targets(rank)) {
        let clock = context.runtime().clone();
        let stale = move |_: Request| {
            let clock = clock.clone();
            async move {
                clock.sleep(late).await;
                Err(Status::new(Der::STALE, "there is a newer map"))
            }
        };
        target.rpc().serve(opcode::OBJECT_FETCH, Rc::new(stale));
        target.rpc().serve(opcode::POOL_QUERY, Rc::new(|_: Request| core::future::pending()));
        target.rpc().serve(opcode::POOL_MAP, Rc::new(|_: Request| core::future::pending()));
    }
    let waited = cluster.run(async move {
        let container = open_container(&context, properties("map", ContainerType::Object)).await;
        let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("an id");
        let kv = Kv::open(&container, oid).expect("opens");
        let begun = context.runtime().now();
        kv.get(&context, b"a").await.expect_err("nobody gives out the newer map");
        context.runtime().now() - begun
    });
    assert!(is_about(waited, patience), "{waited:?}");
}

#[test]
fn an_operation_is_tried_again_while_nobody_gives_out_a_newer_map() {
    let cluster = Cluster::start(24, 2, 1);
    let context = cluster.context(Duration::from_mins(5));
    let asked = Rc::new(Cell::new(0));
    for target in (0..2).flat_map(|rank| cluster.targets(rank)) {
        let asked = Rc::clone(&asked);
        let stale = move |_: Request| {
            asked.set(asked.get() + 1);
            let der = if asked.get() == 1 { Der::STALE } else { Der::INVAL };
            async move { Err(Status::new(der, "as it was asked before or not")) }
        };
        target.rpc().serve(opcode::OBJECT_FETCH, Rc::new(stale));
        target.rpc().serve(opcode::POOL_QUERY, Rc::new(|_: Request| core::future::pending()));
        target.rpc().serve(opcode::POOL_MAP, Rc::new(|_: Request| core::future::pending()));
    }
    let waited = cluster.run(async move {
        let container = open_container(&context, properties("map", ContainerType::Object)).await;
        let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("an id");
        let kv = Kv::open(&container, oid).expect("opens");
        let begun = context.runtime().now();
        let error = kv.get(&context, b"a").await.expect_err("it is refused the second time");
        assert!(error.is(Der::INVAL), "{error}");
        context.runtime().now() - begun
    });
    // A map is asked for at one engine, then at the service, which may gather figures twice.
    assert!(waited < Duration::from_secs(12), "{waited:?}");
    assert_eq!(asked.get(), 2);
}

#[test]
fn a_newer_map_is_learned_from_any_engine_without_the_pools_service() {
    let cluster = Cluster::start(23, 3, 1);
    let context = cluster.context(Duration::from_secs(20));
    let container = {
        let context = context.clone();
        cluster.run(async move { open_container(&context, properties("map", ContainerType::Object)).await })
    };
    let mut map = container.pool().map().clone();
    map.version += 1;
    let news = TargetPoolMap { pool: container.pool().id(), map };
    // No engine asks itself.
    let engines = [0, 1].map(|rank| play(&cluster, rank, &cluster.client));
    for rank in 0..3 {
        for target in cluster.targets(rank) {
            target.rpc().serve(opcode::POOL_QUERY, Rc::new(|_: Request| core::future::pending()));
        }
    }
    cluster.run(async move {
        let oid = container.new_object_id(&context, kind::KV_HASHED, None).await.expect("an id");
        let kv = Kv::open(&container, oid).expect("opens");
        kv.put(&context, b"a", b"value", Conditions::default()).await.expect("stored");
        for rank in (0..3).map(Rank) {
            let asking = &engines[usize::from(rank == Rank(0))];
            let told = asking.ask::<_, ()>(
                rank,
                TargetIndex(0),
                opcode::TARGET_POOL_MAP,
                &news,
                Duration::from_secs(1),
            );
            told.await.expect("it takes the map");
        }
        let begun = context.runtime().now();
        assert_eq!(kv.get(&context, b"a").await.expect("found").as_deref(), Some(&b"value"[..]));
        assert!(context.runtime().now() - begun < Duration::from_secs(1));
    });
}
