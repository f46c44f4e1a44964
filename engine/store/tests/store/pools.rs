//! Several pools on a target, online: they shrink to the byte they use, grow, come and go while others are at work.

use crate::setup::*;
use core::pin::Pin;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;
use weir_media::sim::{CrashKeeps, SimDiskOptions};
use weir_proto::object::PunchScope;
use weir_proto::{ContainerId, Epoch, PoolId};
use weir_runtime::{Either, join_all, race};
use weir_store::{PoolError, Shard, Store, StoreConfig, UpdateError};

const DISK: u64 = 64 << 20;

fn pool(number: u64) -> PoolId {
    PoolId(Uuid::from_u128(0x1000 + u128::from(number)))
}

async fn create(store: &Store, id: PoolId, size: u64) -> Shard {
    let shard = store.create_pool(id, size).await.expect("space");
    shard.create_container(CONTAINER).await.expect("a container");
    shard
}

#[test]
fn a_pool_shrinks_to_what_it_uses_and_not_a_byte_further() {
    let machine = Machine::new(1, DISK);
    machine.format();
    let store = machine.open(quiet());
    let target = Rc::clone(&store);
    machine.run(async move {
        let shard = create(&target, POOL, 8 << 20).await;
        for number in 0..40 {
            let value = pattern(number, 50 * (number as usize + 1) * 7);
            put(&shard, &format!("d{number}"), "a", number + 1, &value).await.expect("stored");
        }
        let used = shard.space().used();
        let error = target.resize_pool(POOL, used - 1).await.expect_err("it uses more");
        assert_eq!(error, PoolError::InUse { pool: POOL, asked: used - 1, used });
        target.resize_pool(POOL, used).await.expect("to the byte");
        let space = shard.space();
        assert_eq!((space.total, space.used(), space.free), (used, used, 0));
        // What it gave up is free for others.
        let free = target.space().capacity - target.space().assigned;
        assert_eq!(target.space().assigned, used);
        create(&target, pool(1), free).await;
        let error = put(&shard, "more", "a", 500, b"x").await.expect_err("it is full");
        assert!(matches!(error, UpdateError::NoSpace { free: 0, .. }), "{error}");
        let error = target.resize_pool(POOL, used + 1).await.expect_err("the other has the rest");
        assert_eq!(error, PoolError::NoSpace { pool: POOL, asked: used + 1, free: used });
        // Deletes work, and make room for updates.
        let scope = PunchScope::Dkeys((20..40).map(|number| key(&format!("d{number}"))).collect());
        punch(&shard, OBJECT, scope, 600).await.expect("a delete works when full");
        shard.aggregate(CONTAINER, Epoch(700)).await.expect("aggregated");
        put(&shard, "more", "a", 800, b"x").await.expect("there is room");
        target.destroy_pool(pool(1)).await.expect("destroyed");
    });
    assert_eq!(machine.audit(&store).problems, [""; 0]);
    drop(store);
    machine.crash(CrashKeeps::Any);
    let store = machine.open(StoreConfig::default());
    machine.sleep(Duration::from_secs(2));
    let target = Rc::clone(&store);
    machine.run(async move {
        let shard = target.pool(POOL).expect("the pool");
        target.resize_pool(POOL, target.space().capacity).await.expect("all there is");
        put(&shard, "large", "a", 900, &pattern(1, 8 << 20)).await.expect("it has grown");
        assert_eq!(get(&shard, "d7", "a", u64::MAX).await, Ok(Some(pattern(7, 50 * 8 * 7))));
    });
    assert_eq!(machine.audit(&store).problems, [""; 0]);
}

/// Creates pools one behind the other, resizes them and destroys them with updates under way.
async fn come_and_go(target: Rc<Store>, number: u64) {
    for round in 0..6u64 {
        let id = pool(number * 100 + round);
        let shard = create(&target, id, 2 << 20).await;
        for size in [3u64 << 20, 1 << 20, 2 << 20] {
            let value = pattern(round, 40_000);
            put(&shard, &format!("d{size}"), "a", size + round, &value).await.expect("stored");
            target.resize_pool(id, size).await.expect("space");
        }
        // Updates under way meet the end of their pool: each is stored or says why not.
        let late =
            (0..5u64).map(|late| {
                let shard = shard.clone();
                async move {
                    put(&shard, &format!("late{late}"), "a", (1 << 40) + late, &pattern(late, 30_000)).await
                }
            });
        let both = race(join_all(late.collect::<Vec<_>>()), target.destroy_pool(id)).await;
        if let Either::First(results) = both {
            for result in results {
                let gone =
                    matches!(result, Err(UpdateError::PoolMissing(_) | UpdateError::ContainerMissing(_)));
                assert!(result.is_ok() || gone, "{result:?}");
            }
        }
        target.destroy_pool(id).await.expect("destroyed");
        assert!(target.pool(id).is_none());
    }
}

#[test]
fn pools_come_change_and_go_while_others_are_at_work() {
    let machine = Machine::new(2, DISK);
    machine.format();
    let store = machine.open(StoreConfig::default());
    let (user, handle) = (Rc::clone(&store), machine.handle());
    let kept = machine.run(async move {
        let busy = create(&user, POOL, 8 << 20).await;
        let work = async {
            for number in 0..400u64 {
                let (dkey, value) =
                    (format!("d{}", number % 50), pattern(number, 100 + number as usize * 20));
                put(&busy, &dkey, "a", handle.wall_ns(), &value).await.expect("its own space");
            }
        };
        let mut all: Vec<Pin<Box<dyn Future<Output = ()>>>> = vec![Box::pin(work)];
        for number in 0..6 {
            all.push(Box::pin(come_and_go(Rc::clone(&user), number)));
        }
        join_all(all).await;
        let mut kept = Vec::new();
        for number in 0..50 {
            kept.push(get(&busy, &format!("d{number}"), "a", u64::MAX).await.expect("read"));
        }
        kept
    });
    machine.sleep(Duration::from_secs(5));
    assert_eq!(store.space().assigned, 8 << 20, "all others have gone");
    assert_eq!(machine.audit(&store).problems, [""; 0]);
    drop(store);
    machine.crash(CrashKeeps::Any);
    let store = machine.open(quiet());
    let shard = store.pool(POOL).expect("the pool");
    assert_eq!(store.pools().len(), 1);
    machine.run(async move {
        for (number, value) in kept.into_iter().enumerate() {
            assert!(value.is_some() && get(&shard, &format!("d{number}"), "a", u64::MAX).await == Ok(value));
        }
    });
}

#[test]
fn requests_to_a_pool_that_has_gone_do_not_meet_the_next_one() {
    let machine = Machine::new(3, DISK);
    machine.format();
    let store = machine.open(StoreConfig::default());
    let (target, handle, disk) = (Rc::clone(&store), machine.handle(), machine.disk.clone());
    machine.run(async move {
        let old = create(&target, POOL, 8 << 20).await;
        // Its data takes longer than the pool lives.
        let stall = Duration::from_secs(5);
        disk.set_options(SimDiskOptions { stall_probability: 1.0, stall, ..SimDiskOptions::default() });
        let late = handle.spawn({
            let old = old.clone();
            async move { put(&old, "late", "a", 1, &pattern(1, 300_000)).await }
        });
        handle.sleep(Duration::from_millis(1)).await;
        disk.set_options(SimDiskOptions::default());
        target.destroy_pool(POOL).await.expect("destroyed");
        handle.sleep(Duration::from_secs(2)).await;
        assert_eq!(target.space().assigned, 0, "nothing is left of it");
        let new = create(&target, pool(1), 8 << 20).await;
        let error = old.create_container(ContainerId(Uuid::from_u128(9))).await.expect_err("it has gone");
        assert_eq!(error, PoolError::Missing(POOL));
        let error = late.await.expect("it ends").expect_err("its pool has gone");
        assert!(matches!(error, UpdateError::PoolMissing(POOL)), "{error}");
        assert_eq!((new.containers().len(), new.space().free), (1, new.space().total - new.space().used()));
    });
    assert_eq!(machine.audit(&store).problems, [""; 0]);
}

#[test]
fn updates_that_are_under_way_together_stay_within_the_quota() {
    let machine = Machine::new(4, DISK);
    let (_store, shard) = machine.start(quiet());
    machine.run(async move {
        shard.set_quota(CONTAINER, 1 << 20).await.expect("set");
        let puts = (0..16u64).map(|number| {
            let shard = shard.clone();
            async move { put(&shard, &format!("d{number}"), "a", 1 + number, &pattern(number, 200_000)).await }
        });
        let ended = join_all(puts.collect::<Vec<_>>()).await;
        let stored = ended.iter().filter(|ended| ended.is_ok()).count();
        let refused = ended.iter().filter(|ended| matches!(ended, Err(UpdateError::Quota { .. }))).count();
        assert_eq!((stored, refused), (5, 11));
        let used = shard.containers()[0].used;
        assert!(used <= 1 << 20, "{used} bytes are used");
        assert_eq!(shard.space().free, shard.space().total - shard.space().used());
    });
}
