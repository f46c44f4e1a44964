//! The service of a pool on its own.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use weir_group::Spread;
use weir_proto::pool::{
    AttributeSetRequest, ContainerCreateRequest, ContainerProperties, ContainerType, PoolTarget,
    SnapshotChange, SnapshotRequest,
};
use weir_proto::{Capability, ContainerId, Der, Rights, TenantId};
use weir_runtime::sim::{Node, World};
use weir_runtime::{LocalBoxFuture, join_all};
use weir_store::Store;

use super::PoolService;
use crate::error::Failed;
use crate::record;
use crate::target::TargetPool;
use crate::target::tests::{POOL, SECRET, lone_pool, pool_of};

const CONTAINER: ContainerId = ContainerId(uuid::Uuid::from_u128(9));

pub(super) fn properties() -> ContainerProperties {
    ContainerProperties {
        label: "box".to_owned(),
        kind: ContainerType::Object,
        quota: 1 << 20,
        object_class: String::new(),
        chunk_size: 0,
        uid: 0,
        gid: 0,
        mode: 0,
        attributes: BTreeMap::new(),
    }
}

/// A service on an engine of its own with one container, and a handle on that.
struct Stage {
    world: World,
    node: Node,
    store: Rc<Store>,
    pool: Rc<TargetPool>,
    service: Rc<PoolService>,
    capability: Capability,
}

/// The service of a pool of these targets on the only engine that there is.
pub(super) fn served_by(
    targets: Vec<PoolTarget>,
    redundancy: u32,
) -> (World, Node, Rc<Store>, Rc<PoolService>, Rc<TargetPool>) {
    let world = World::new(1);
    let node = world.node("engine");
    let (store, engines, pool) = pool_of(&world, &node, targets, redundancy);
    let of = Rc::clone(&pool);
    let service = world.block_on(&node, async move {
        let spread = Spread::start(&engines, |_| false);
        PoolService::open(&of, engines, spread, Rc::default(), None).expect("a new pool")
    });
    (world, node, store, service, pool)
}

fn stage() -> Stage {
    let world = World::new(1);
    let node = world.node("engine");
    let (store, engines, pool) = lone_pool(&world, &node);
    let rights = Rights::READ.union(Rights::WRITE);
    let capability = Capability::issue(&SECRET, TenantId::SYSTEM, POOL, Some(CONTAINER), rights, 5);
    let (container, properties) = (CONTAINER, properties());
    let request =
        ContainerCreateRequest { capability: capability.clone(), container, properties, exclusive: true };
    let of = Rc::clone(&pool);
    let service = world.block_on(&node, async move {
        let spread = Spread::start(&engines, |_| false);
        let service = PoolService::open(&of, engines, spread, Rc::default(), None).expect("a new pool");
        service.create_container(request, true).await.expect("there is none");
        service
    });
    Stage { world, node, store, pool, service, capability }
}

#[test]
fn an_attribute_that_is_named_again_and_again_is_stored_once() {
    let Stage { world, node, store, pool: _pool, service, capability } = stage();
    world.block_on(&node, async move {
        let value = |number: u16| Some(number.to_le_bytes().to_vec().into());
        let many = (0..2000).map(|number| ("a".to_owned(), value(number))).collect();
        let before = store.stats().commit.log_written;
        let set = AttributeSetRequest { capability: capability.clone(), attributes: many };
        service.set_attributes(set, None).await.expect("one attribute");
        let written = store.stats().commit.log_written - before;
        assert!(written <= 4096, "{written} bytes of the log");
        let found = service.get_attributes(&capability, &[]).await.expect("the handle is good");
        assert_eq!(
            found.attributes.into_iter().collect::<Vec<_>>(),
            [("a".to_owned(), value(1999).unwrap())]
        );
        let names = |count: usize| vec!["a".to_owned(); count];
        let found = service.get_attributes(&capability, &names(1024)).await.expect("as many as there may be");
        assert_eq!(found.attributes.len(), 1);
        let refused = service.get_attributes(&capability, &names(1025)).await.map(|_| ());
        assert_eq!(refused.map_err(|error| error.der()), Err(Der::INVAL));
    });
}

#[test]
fn a_store_that_is_closed_is_not_taken_for_a_device_that_failed() {
    let Stage { world, node, store, pool: _pool, service, capability } = stage();
    world.block_on(&node, async move {
        store.close().await.expect("the device is well");
        let refused = service.allocate_oids(&capability, 1 << 30).await.expect_err("nothing can be kept");
        assert!(matches!(refused, Failed::Attributes(_)), "{refused}");
    });
}

#[test]
fn of_two_that_create_a_container_at_once_one_has_made_it() {
    let Stage { world, node, store: _store, pool: _pool, service, capability } = stage();
    world.block_on(&node, async move {
        let request = |id: u128| ContainerCreateRequest {
            capability: capability.clone(),
            container: ContainerId(uuid::Uuid::from_u128(id)),
            properties: ContainerProperties { label: "crate".to_owned(), ..properties() },
            exclusive: false,
        };
        let made = join_all([17, 18].map(|id| service.create_container(request(id), true))).await;
        let made: Vec<_> = made.into_iter().map(|made| made.expect("room")).collect();
        assert_eq!(made[0].it.container, made[1].it.container);
        let existed: Vec<bool> = made.iter().map(|made| made.existed).collect();
        assert!(existed == [false, true] || existed == [true, false], "{existed:?}");
        let repeated = ContainerCreateRequest { container: made[0].it.container, ..request(0) };
        let repeated = service.create_container(repeated, true).await.expect("it is the same");
        assert!(!repeated.existed, "its own request, once more");
    });
}

#[test]
fn a_device_from_an_older_copy_gives_no_object_id_again() {
    let Stage { world, node, store, pool, service, capability } = stage();
    let copy =
        store.pool(POOL).and_then(|shard| shard.attribute(record::SCOPE_CONTAINER, CONTAINER.0.as_bytes()));
    let (of, first) = (Rc::clone(&pool), Rc::clone(&service));
    let handle = capability.clone();
    let given = world.block_on(&node, async move {
        let given = first.allocate_oids(&handle, 1 << 30).await.expect("room").first;
        let older = record::change(record::SCOPE_CONTAINER, CONTAINER.0.as_bytes(), copy);
        of.shard().change_attributes(&[older]).await.expect("it is restored");
        given
    });
    world.run_for(Duration::from_secs(3));
    world.block_on(&node, async move {
        let spread = Spread::start(&service.engines, |_| false);
        let again = PoolService::open(&pool, Rc::clone(&service.engines), spread, Rc::default(), None)
            .expect("it is whole");
        let next = again.allocate_oids(&capability, 1).await.expect("room").first;
        assert!(next >= given + (1 << 30), "{next} of a range from {given} on");
    });
}

#[test]
fn who_waited_behind_the_end_of_a_container_changes_nothing_of_it() {
    let Stage { world, node, store: _store, pool, service, capability } = stage();
    world.block_on(&node, async move {
        let known = service.find("box").expect("it was created");
        let turn = known.turn.acquire().await;
        let attributes = vec![("a".to_owned(), Some(vec![1].into()))];
        let set = AttributeSetRequest { capability: capability.clone(), attributes };
        let snapshot = SnapshotRequest { capability: capability.clone(), change: SnapshotChange::Create };
        // All have found it when the first has its turn.
        let changes: [LocalBoxFuture<'_, Result<(), Failed>>; 6] = [
            Box::pin(async { service.destroy_by_name("box", true, &[]).await.map(drop) }),
            Box::pin(async { service.snapshot(&snapshot, None).await.map(drop) }),
            Box::pin(service.set_attributes(set, None)),
            Box::pin(async { service.allocate_oids(&capability, 5).await.map(drop) }),
            Box::pin(async { service.set_quota_by_name("box", 2 << 20).await.map(drop) }),
            Box::pin(async {
                drop(turn);
                Ok(())
            }),
        ];
        let ends: Vec<_> = join_all(changes).await;
        assert!(ends[0].is_ok() && ends[5].is_ok());
        for end in &ends[1..5] {
            assert_eq!(end.as_ref().map_err(Failed::der), Err(Der::CONT_NONEXIST));
        }
        assert!(record::load_scope(pool.shard(), &record::scope_attributes(CONTAINER)).is_empty());
    });
}
