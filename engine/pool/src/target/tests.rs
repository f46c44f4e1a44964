//! One pool on the only engine that there is, and changes of it that come together.

use core::task::{Context, Waker};
use std::rc::Rc;
use std::time::Duration;

use weir_fabric::sim::Fabric;
use weir_group::{EngineKeys, Engines};
use weir_media::memory::MemoryDevice;
use weir_proto::capability::{EngineKey, PoolSecret, SystemKey};
use weir_proto::group::EngineInfo;
use weir_proto::pool::{PoolMap, PoolTarget, TargetContainerState};
use weir_proto::{ContainerId, Epoch, PoolId, Rank, TargetIndex, TenantId};
use weir_rpc::{Rpc, RpcConfig};
use weir_runtime::sim::{Node, World};
use weir_runtime::{Handle, Instant, LocalBoxFuture, join_all};
use weir_store::{FormatOptions, Owner, Store, StoreConfig};

use super::{TargetContainer, TargetPool};
use crate::record::{self, NAME_POOL, PoolRecord, SCOPE_TARGET};

pub(crate) const POOL: PoolId = PoolId(uuid::Uuid::from_u128(7));
pub(crate) const SECRET: PoolSecret = PoolSecret([3; 32]);

async fn store(rt: &Handle) -> Rc<Store> {
    let owner = Owner { system: "weir".to_owned(), rank: Rank(0), target: TargetIndex(0) };
    let device: Rc<dyn weir_media::Device> = Rc::new(MemoryDevice::new(64 << 20));
    let options = FormatOptions { owner: owner.clone(), log_bytes: None };
    Store::format(rt, &device, &options).await.expect("an empty device");
    Store::open(rt, device, &owner, StoreConfig::default()).await.expect("it was formatted")
}

/// A pool of no targets on the only engine that there is.
pub(crate) fn lone_pool(world: &World, node: &Node) -> (Rc<Store>, Rc<Engines>, Rc<TargetPool>) {
    pool_of(world, node, Vec::new(), 0)
}

/// A pool of these targets on the only engine that there is.
pub(crate) fn pool_of(
    world: &World,
    node: &Node,
    targets: Vec<PoolTarget>,
    redundancy: u32,
) -> (Rc<Store>, Rc<Engines>, Rc<TargetPool>) {
    let (endpoint, rt) = (Fabric::new(world).endpoint(node, Some(100)), node.handle());
    world.block_on(node, async move {
        let rpc = Rpc::new(rt.clone(), endpoint, RpcConfig::default());
        let info = EngineInfo {
            rank: Rank(0),
            host: "engine".to_owned(),
            fabric_port: 100,
            targets: 1,
            management: String::new(),
        };
        let own = (Rank(0), TargetIndex(0));
        let keys = EngineKeys { system: SystemKey([1; 32]), engines: EngineKey([2; 32]) };
        let engines = Engines::new(rt.clone(), rpc, keys, own, vec![info].into());
        let engines = engines.expect("a good list");
        let record = PoolRecord {
            pool: POOL,
            label: "tank".to_owned(),
            secret: SECRET,
            size: 16 << 20,
            service: Rank(0),
            map: PoolMap::new(1, targets),
            object_class: "SX".to_owned(),
            tenant: TenantId::SYSTEM,
            redundancy,
        };
        let store = store(&rt).await;
        let shard = store.create_pool(POOL, 16 << 20).await.expect("there is room");
        let pool = TargetPool::new(record, shard, Rc::clone(&engines), Rc::default(), None);
        (store, engines, pool)
    })
}

#[test]
fn what_a_service_says_later_counts_though_what_it_said_before_is_held_up() {
    const CONTAINER: ContainerId = ContainerId(uuid::Uuid::from_u128(9));
    let world = World::new(1);
    let node = world.node("engine");
    let (_store, engines, pool) = lone_pool(&world, &node);
    world.block_on(&node, async move {
        pool.shard.create_container(CONTAINER).await.expect("there is none");
        let known = Rc::new(TargetContainer::new(CONTAINER, "box".to_owned(), None));
        pool.containers.borrow_mut().insert(CONTAINER, known);
        let state = |snapshots: &[u64]| TargetContainerState {
            pool: POOL,
            container: CONTAINER,
            label: "box".to_owned(),
            grant: None,
            snapshots: snapshots.iter().copied().map(Epoch).collect(),
        };
        let context = &mut Context::from_waker(Waker::noop());
        // So much waits for the log that changes are held up.
        let value = Some(vec![7; 500_000]);
        let long = |name: u8| [record::change(b"long", &[name], value.clone())];
        let many: Vec<_> = (0..12).map(long).collect();
        let mut many: Vec<_> = many.iter().map(|one| Box::pin(pool.shard.change_attributes(one))).collect();
        assert!(many.iter_mut().all(|one| one.as_mut().poll(context).is_pending()));
        let mut earlier = Box::pin(pool.set_container(state(&[1])));
        assert!(earlier.as_mut().poll(context).is_pending());
        engines.runtime().sleep(Duration::from_secs(1)).await;
        let later = Box::pin(pool.set_container(state(&[1, 2])));
        assert!(join_all([later, earlier]).await.iter().all(Result::is_ok));
        assert_eq!(pool.shard.snapshots(CONTAINER).expect("it is there"), [Epoch(1), Epoch(2)]);
    });
}

#[test]
fn a_map_and_a_size_that_come_together_are_both_stored() {
    let world = World::new(1);
    let node = world.node("engine");
    let (_store, _engines, pool) = lone_pool(&world, &node);
    world.block_on(&node, async move {
        let map = PoolMap::new(2, Vec::new());
        let changes: [LocalBoxFuture<'_, _>; 2] =
            [Box::pin(pool.set_map(map)), Box::pin(pool.set_size(32 << 20))];
        assert!(join_all(changes).await.iter().all(Result::is_ok));
        let stored = pool.shard.attribute(SCOPE_TARGET, NAME_POOL).expect("the record");
        let stored: PoolRecord = record::decode(POOL, &stored).expect("it is whole");
        assert_eq!((stored.map.version, stored.size), (2, 32 << 20));
        assert_eq!(stored, *pool.record.borrow());
    });
}

/// A change of a few bytes was refused although the quota had megabytes, since a reservation of more than that was refused before.
#[test]
fn a_refused_grant_refuses_none_for_less() {
    let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
    let container = TargetContainer::new(ContainerId(uuid::Uuid::from_u128(8)), "box".to_owned(), Some(0));
    assert!(!container.is_refused(1000, at(0)), "nothing was refused");
    container.note_refusal(1000, at(500));
    assert!(container.is_refused(1000, at(499)) && container.is_refused(1001, at(0)));
    assert!(!container.is_refused(999, at(0)), "there may be room for less");
    assert!(!container.is_refused(1000, at(500)), "the pause is over");
    container.note_refusal(10, at(700));
    assert!(container.is_refused(10, at(600)) && container.is_refused(1000, at(600)));
}
