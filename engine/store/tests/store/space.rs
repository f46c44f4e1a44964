//! Space: full pools, what deletes and aggregation give back, several pools on a target.

use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;
use weir_media::sim::CrashKeeps;
use weir_proto::object::PunchScope;
use weir_proto::{ContainerId, Epoch, PoolId};
use weir_runtime::random::Random;
use weir_store::{PoolError, Shard, Store, StoreConfig, UpdateError};

const DISK: u64 = 32 << 20;

/// A store whose pool has all there is.
fn start(machine: &Machine, config: StoreConfig) -> (Rc<Store>, Shard) {
    machine.format();
    let store = machine.open(config);
    let opened = Rc::clone(&store);
    let shard = machine.run(async move {
        let size = opened.space().capacity;
        let shard = opened.create_pool(POOL, size).await.expect("space");
        shard.create_container(CONTAINER).await.expect("a container");
        shard
    });
    (store, shard)
}

/// Stores values until the pool is full; returns how many fit.
async fn fill(shard: &Shard, first_epoch: u64, len: usize) -> u64 {
    for number in 0.. {
        match put(shard, &format!("f{number}"), "a", first_epoch + number, &pattern(number, len)).await {
            Ok(_) => {}
            Err(error @ UpdateError::NoSpace { .. }) => {
                assert!(error.to_string().contains("delete data or grow the pool"));
                return number;
            }
            Err(error) => panic!("{error}"),
        }
    }
    0
}

#[test]
fn a_full_pool_refuses_updates_takes_deletes_and_recovers() {
    for len in [100, 3000, 4096, 200_000] {
        let machine = Machine::new(len as u64, DISK);
        let (store, shard) = start(&machine, quiet());
        let before = store.space();
        let (fits, epoch) = machine.run({
            let shard = shard.clone();
            async move { (fill(&shard, 1, len).await, 1_000_000) }
        });
        let stored = fits * len as u64;
        // The smallest values take three times their size in keys.
        assert!(stored * 5 >= before.capacity, "only {stored} of {} bytes fit", before.capacity);
        // A full store survives a crash, still reads, and still takes deletes.
        drop((store, shard));
        machine.crash(CrashKeeps::Any);
        let store = machine.open(quiet());
        let shard = store.pool(POOL).expect("the pool");
        let (reader, opened) = (shard.clone(), Rc::clone(&store));
        machine.run(async move {
            for number in (0..fits).step_by(7) {
                let found = get(&reader, &format!("f{number}"), "a", u64::MAX).await.expect("read");
                assert!(found == Some(pattern(number, len)));
            }
            for number in 0..fits {
                let scope = PunchScope::Dkeys(vec![key(&format!("f{number}"))]);
                punch(&reader, OBJECT, scope, epoch + number).await.expect("a delete works when full");
            }
            reader.aggregate(CONTAINER, Epoch(epoch + fits)).await.expect("aggregated");
            opened.checkpoint().await.expect("a checkpoint");
            opened.checkpoint().await.expect("a checkpoint");
        });
        assert_eq!(machine.audit(&store).problems, [""; 0]);
        assert!(shard.space().used() < 4096, "{:?}", shard.space());
        assert!(store.space().used < 1 << 20, "{:?}", store.space());
        let again = machine.run(async move { fill(&shard, 3_000_000, len).await });
        assert!(again * 100 >= fits * 99, "{again} fit again, {fits} did at first");
    }
}

#[test]
fn a_destroyed_container_gives_its_space_back_in_the_background() {
    let machine = Machine::new(2, DISK);
    let (store, shard) = start(&machine, StoreConfig::default());
    let other = ContainerId(Uuid::from_u128(0xdd));
    let user = shard.clone();
    machine.run(async move {
        user.create_container(other).await.expect("a container");
        for number in 0..200 {
            put(&user, &format!("d{number}"), "a", number + 1, &pattern(number, 20_000))
                .await
                .expect("stored");
        }
        assert!(user.space().used() > 200 * 20_000);
        user.destroy_container(CONTAINER).await.expect("destroyed");
        assert!(matches!(put(&user, "x", "a", 900, b"x").await, Err(UpdateError::ContainerDestroying(_))));
        assert!(user.space().containers.iter().any(|container| container.destroying));
    });
    machine.sleep(Duration::from_secs(2));
    assert_eq!(shard.containers().iter().map(|container| container.container).collect::<Vec<_>>(), [other]);
    assert_eq!(shard.space().used(), 0);
    let opened = Rc::clone(&store);
    machine.run(async move {
        opened.checkpoint().await.expect("a checkpoint");
        opened.checkpoint().await.expect("a checkpoint");
    });
    assert!(store.space().used < 64 << 10, "{:?}", store.space());
    // It can be created anew, and nothing of the old one is in it.
    machine.run(async move {
        shard.create_container(CONTAINER).await.expect("a container");
        assert_eq!(get(&shard, "d1", "a", u64::MAX).await, Ok(None));
    });
}

#[test]
fn reclaim_goes_on_after_a_crash() {
    let machine = Machine::new(3, DISK);
    let (store, shard) = start(&machine, quiet());
    machine.run(async move {
        for number in 0..100 {
            put(&shard, &format!("d{number}"), "a", number + 1, &pattern(number, 10_000))
                .await
                .expect("stored");
        }
        shard.destroy_container(CONTAINER).await.expect("destroyed");
    });
    drop(store);
    machine.crash(CrashKeeps::Any);
    let store = machine.open(StoreConfig::default());
    machine.sleep(Duration::from_secs(2));
    let shard = store.pool(POOL).expect("the pool");
    assert!(shard.containers().is_empty());
    assert_eq!(shard.space().used(), 0);
}

#[test]
fn pools_have_their_shares() {
    let machine = Machine::new(4, DISK);
    machine.format();
    let store = machine.open(StoreConfig::default());
    let second = PoolId(Uuid::from_u128(0xbb));
    let user = Rc::clone(&store);
    machine.run(async move {
        let capacity = user.space().capacity;
        let shard = user.create_pool(POOL, 4 << 20).await.expect("space");
        assert!(matches!(user.create_pool(POOL, 5 << 20).await, Err(PoolError::Exists { size, .. }) if size == 4 << 20));
        user.create_pool(POOL, 4 << 20).await.expect("the same again");
        let too_much = user.create_pool(second, capacity).await.expect_err("not that much");
        assert_eq!(too_much, PoolError::NoSpace { pool: second, asked: capacity, free: capacity - (4 << 20) });
        user.create_pool(second, 2 << 20).await.expect("space");
        shard.create_container(CONTAINER).await.expect("a container");
        let first = fill(&shard, 1, 50_000).await;
        assert!(first >= 70, "{first} values in 4 MiB");
        user.resize_pool(POOL, 8 << 20).await.expect("space");
        put(&shard, "more", "a", 500, &pattern(1, 1_000_000)).await.expect("it has grown");
        assert!(matches!(user.resize_pool(POOL, 1 << 20).await, Err(PoolError::InUse { .. })));
        shard.set_quota(CONTAINER, 1 << 20).await.expect("set");
        assert!(matches!(put(&shard, "q", "a", 600, &[1; 9000]).await, Err(UpdateError::Quota { .. })));
        assert_eq!(user.pools().iter().map(|pool| pool.pool).collect::<Vec<_>>(), [POOL, second]);
        user.destroy_pool(POOL).await.expect("destroyed");
        assert!(user.pool(POOL).is_none());
        assert!(matches!(put(&shard, "q", "a", 700, b"x").await, Err(UpdateError::PoolMissing(_))));
        user.destroy_pool(POOL).await.expect("it is gone");
    });
    machine.sleep(Duration::from_secs(3));
    assert_eq!(store.space().assigned, 2 << 20);
    drop(store);
    machine.crash(CrashKeeps::Any);
    let store = machine.open(quiet());
    assert_eq!(store.pools().iter().map(|pool| (pool.pool, pool.used)).collect::<Vec<_>>(), [(second, 0)]);
}

/// Room comes back while something that was overwritten, punched or destroyed isn't gone yet, whoever it belongs to where the
/// pool is short.
#[test]
fn room_is_to_come_until_all_history_from_before_is_gone() {
    let machine = Machine::new(6, DISK);
    let config = StoreConfig { retention: Duration::from_secs(1), ..StoreConfig::default() };
    let (store, shard) = start(&machine, config);
    let other = ContainerId(Uuid::from_u128(0xcd));
    let quota = UpdateError::Quota { container: CONTAINER, quota: 1 };
    let of_pool = UpdateError::NoSpace { pool: POOL, needed: 2, free: 1, size: 9 };
    let (user, handle) = (shard.clone(), machine.handle());
    machine.run(async move {
        let may = |refusal: &UpdateError| user.may_regain_room(refusal, Epoch(handle.wall_ns()));
        handle.sleep(Duration::from_secs(3)).await;
        assert_eq!([may(&quota), may(&of_pool)], [false, false]);
        user.create_container(other).await.expect("a container");
        put(&user, "d", "a", handle.wall_ns(), b"first").await.expect("stored");
        assert_eq!([may(&quota), may(&of_pool)], [false, false], "nothing was overwritten");
        put(&user, "d", "a", handle.wall_ns(), b"second").await.expect("stored");
        let overwritten = Epoch(handle.wall_ns());
        assert_eq!([may(&quota), may(&of_pool)], [true, true]);
        let of_other = UpdateError::Quota { container: other, quota: 1 };
        assert_eq!([may(&of_other), may(&UpdateError::Invalid(String::new()))], [false, false]);
        handle.sleep(Duration::from_millis(500)).await;
        put(&user, "d", "a", handle.wall_ns(), b"third").await.expect("stored");
        assert!(user.may_regain_room(&quota, overwritten));
        handle.sleep(Duration::from_millis(800)).await;
        // Who asks wakes those who look for it.
        let _ = may(&quota);
        handle.sleep(Duration::from_millis(20)).await;
        assert!(!user.may_regain_room(&quota, overwritten), "all from before is gone");
        assert!(may(&quota), "but not what was overwritten since");
        handle.sleep(Duration::from_secs(2)).await;
        assert_eq!([may(&quota), may(&of_pool)], [false, false]);
        user.destroy_container(other).await.expect("destroyed");
        assert_eq!([may(&quota), may(&of_pool)], [false, true]);
        handle.sleep(Duration::from_secs(1)).await;
        assert_eq!([may(&quota), may(&of_pool)], [false, false]);
    });
    drop(store);
}

#[test]
fn background_aggregation_keeps_overwrites_from_piling_up_but_not_snapshots() {
    let machine = Machine::new(5, DISK);
    let config = StoreConfig { retention: Duration::from_secs(1), ..StoreConfig::default() };
    let (store, shard) = start(&machine, config);
    let (user, handle) = (shard.clone(), machine.handle());
    let kept = machine.run(async move {
        let mut kept = 0;
        for round in 0..2000u64 {
            let epoch = handle.wall_ns();
            put(&user, "d", "a", epoch, &pattern(round, 5000)).await.expect("stored");
            write(&user, 1, epoch, round % 7 * 1000, &pattern(round, 3000)).await.expect("stored");
            if round == 700 {
                user.set_snapshots(CONTAINER, &[Epoch(epoch)]).await.expect("set");
                kept = epoch;
            }
            handle.sleep(Duration::from_millis(10)).await;
        }
        kept
    });
    machine.sleep(Duration::from_secs(5));
    let stats = store.stats();
    assert!(stats.aggregated > 3500, "{} versions were dropped", stats.aggregated);
    assert!(stats.entries < 60, "{} entries are left", stats.entries);
    assert!(shard.space().used() < 100 << 10, "{:?}", shard.space());
    machine.run(async move {
        assert!(get(&shard, "d", "a", kept).await == Ok(Some(pattern(700, 5000))));
        assert!(get(&shard, "d", "a", u64::MAX).await == Ok(Some(pattern(1999, 5000))));
        shard.set_snapshots(CONTAINER, &[]).await.expect("set");
    });
    machine.sleep(Duration::from_secs(3));
    assert!(store.stats().entries < 40, "{} entries are left", store.stats().entries);
}

#[test]
fn changes_gather_for_a_part_of_the_retention_unless_space_is_scarce() {
    for is_full in [false, true] {
        let machine = Machine::new(7, DISK);
        let config = StoreConfig { retention: Duration::from_secs(80), ..StoreConfig::default() };
        let (store, shard) = start(&machine, config);
        let handle = machine.handle();
        machine.run(async move {
            for round in 0..2 {
                put(&shard, "d", "a", handle.wall_ns() + round, &pattern(round, 5000)).await.expect("stored");
            }
            if is_full {
                fill(&shard, 10, 60_000).await;
            }
        });
        machine.sleep(Duration::from_secs(85));
        assert_eq!(store.stats().aggregated > 0, is_full);
        machine.sleep(Duration::from_secs(10));
        assert!(store.stats().aggregated > 0);
    }
}

#[test]
fn readers_keep_what_they_read() {
    let machine = Machine::new(6, DISK);
    let (_store, shard) = start(&machine, quiet());
    machine.run(async move {
        let value = pattern(1, 500_000);
        write(&shard, 1, 1, 0, &value).await.expect("stored");
        let dkey = weir_proto::Key::from_u64(1);
        let value_wanted = weir_proto::object::Value::Array {
            record_size: 1,
            extents: vec![weir_proto::object::Extent { index: 0, count: 500_000 }],
        };
        let none = weir_proto::object::Conditions::NONE;
        let wanted =
            [weir_proto::object::AkeyFetch { akey: key("data"), value: value_wanted, conditions: none }];
        let fetch = shard.fetch(CONTAINER, ARRAY, &dkey, Epoch::MAX, none, &wanted).await.expect("found");
        punch(&shard, ARRAY, PunchScope::Object, 2).await.expect("punched");
        shard.aggregate(CONTAINER, Epoch(3)).await.expect("aggregated");
        // The blocks are free, but not given out while the fetch holds them.
        let count = fill(&shard, 10, 60_000).await;
        assert!(count > 100);
        assert!(data_of(fetch).await == Ok(value));
        assert!(put(&shard, "after", "a", 90_000, &pattern(2, 400_000)).await.is_ok());
    });
}

#[test]
fn small_neighbours_are_merged_and_half_hidden_blocks_come_back() {
    let machine = Machine::new(7, DISK);
    let (store, shard) = start(&machine, quiet());
    let mut expected = vec![0; 400_000];
    let mut writes: Vec<(u64, Vec<u8>)> = (0..80).map(|at| (at * 5000, pattern(at, 5000))).collect();
    writes.extend((0..30).map(|at| (at * 11_000 + 7, pattern(at + 100, 3000))));
    for (index, data) in &writes {
        expected[*index as usize..][..data.len()].copy_from_slice(data);
    }
    let user = shard.clone();
    machine.run(async move {
        for (epoch, (index, data)) in (1..).zip(writes) {
            write(&user, 1, epoch, index, &data).await.expect("stored");
        }
        user.aggregate(CONTAINER, Epoch(1000)).await.expect("aggregated");
    });
    let check = async |shard: Shard, expected: Vec<u8>| {
        assert!(read(&shard, 1, u64::MAX, 0, 400_000).await.expect("read").0 == expected);
    };
    assert_eq!(machine.audit(&store).problems, [""; 0]);
    assert!(machine.audit(&store).entries < 12, "{} entries are left", machine.audit(&store).entries);
    assert!(shard.space().data < 450_000, "{:?}", shard.space());
    machine.run(check(shard, expected.clone()));
    drop(store);
    machine.crash(CrashKeeps::Nothing);
    let store = machine.open(quiet());
    assert_eq!(machine.audit(&store).problems, [""; 0]);
    machine.run(check(store.pool(POOL).expect("the pool"), expected));
}

/// Stores values below keys that this gives, and deletes every third of the last ones.
async fn store_and_delete(store: &Store, shard: &Shard, name: impl Fn(u64) -> String, len_max: u64) {
    let random = Random::new(len_max);
    for number in 0..8000 {
        let len = random.between(1, len_max) as usize;
        put(shard, &name(number), "a", number + 1, &pattern(number, len)).await.expect("stored");
        if number > 4000 && number % 3 == 0 {
            let scope = PunchScope::Dkeys(vec![key(&name(number - 4000))]);
            punch(shard, OBJECT, scope, number + 1).await.expect("deleted");
        }
    }
    shard.aggregate(CONTAINER, Epoch(1 << 40)).await.expect("aggregated");
    store.checkpoint().await.expect("a checkpoint");
}

#[test]
fn what_pools_use_is_what_their_store_uses_within_bounds() {
    let spread = |number: u64| format!("{:016x}", (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let in_order = |number: u64| format!("{number:08}");
    for (len_max, is_spread) in [(64, true), (64, false), (3000, true), (9000, false)] {
        let machine = Machine::new(len_max, 256 << 20);
        machine.format();
        let store = machine.open(quiet());
        let opened = Rc::clone(&store);
        machine.run(async move {
            let [mut data, mut metadata] = [0; 2];
            for pool in [POOL, PoolId(Uuid::from_u128(0xab))] {
                let shard = opened.create_pool(pool, 100 << 20).await.expect("space");
                shard.create_container(CONTAINER).await.expect("a container");
                let name = |number| if is_spread { spread(number) } else { in_order(number) };
                store_and_delete(&opened, &shard, name, len_max).await;
                data += shard.space().data;
                metadata += shard.space().metadata;
            }
            let index = opened.space().used - data;
            println!(
                "values up to {len_max} B: {data} B of data, {metadata} B counted for {index} B of index"
            );
            assert!(index <= metadata, "{metadata} B are counted for {index} B of index");
            assert!(metadata * 2 <= index * 5, "{metadata} B are counted for {index} B of index");
        });
    }
}

#[test]
fn a_failed_device_stops_changes_but_not_reads() {
    let machine = Machine::new(8, DISK);
    let (_store, shard) = start(&machine, quiet());
    let (disk, user) = (machine.disk.clone(), shard.clone());
    machine.run(async move {
        put(&user, "d", "a", 1, b"kept").await.expect("stored");
        write(&user, 1, 1, 0, b"other").await.expect("stored");
        let broken = weir_media::sim::SimDiskOptions { error_probability: 1.0, ..Default::default() };
        disk.set_options(broken);
        let error = put(&user, "d", "a", 2, b"lost").await.expect_err("the device fails").to_string();
        assert!(error.contains("injected fault") && error.contains("restart the engine"), "{error}");
        disk.set_options(weir_media::sim::SimDiskOptions::default());
        assert!(matches!(put(&user, "d", "a", 3, b"lost").await, Err(UpdateError::Failed(_))));
        // What the failed change may have touched isn't shown: it could vanish.
        assert!(get(&user, "d", "a", 1).await.is_err());
        assert_eq!(read(&user, 1, u64::MAX, 0, 5).await.expect("read").0, b"other");
    });
    machine.crash(CrashKeeps::Any);
    let store = machine.open(quiet());
    let shard = store.pool(POOL).expect("the pool");
    machine.run(async move {
        assert_eq!(get(&shard, "d", "a", 1).await, Ok(Some(b"kept".to_vec())));
    });
}

#[test]
fn snapshots_are_refused_before_a_full_device_has_no_room_for_deletes() {
    let machine = Machine::new(9, DISK);
    let (store, shard) = start(&machine, quiet());
    let opened = Rc::clone(&store);
    machine.run(async move {
        fill(&shard, 1, 4096).await;
        let mut refused = Ok(());
        for count in (1..100).map(|part| part * 4096) {
            let epochs: Vec<Epoch> = (0..count).map(|number| Epoch((1 << 40) + number)).collect();
            refused = shard.set_snapshots(CONTAINER, &epochs).await;
            if refused.is_err() {
                break;
            }
        }
        assert!(matches!(refused, Err(PoolError::Full(_))), "{refused:?}");
        let another = ContainerId(Uuid::from_u128(0xdd));
        assert!(matches!(shard.create_container(another).await, Err(PoolError::Full(_))));
        opened.checkpoint().await.expect("a checkpoint");
        punch(&shard, OBJECT, PunchScope::Dkeys(vec![key("f1")]), 1 << 50).await.expect("a delete has room");
        shard.set_snapshots(CONTAINER, &[]).await.expect("given up");
    });
    assert_eq!(machine.audit(&store).problems, [""; 0]);
}
