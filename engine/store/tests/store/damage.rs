//! Damage of a leaf: background work passes over it, and does the rest.

use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use weir_media::Device;
use weir_media::health::{DeviceState, Watched};
use weir_proto::object::Conditions;
use weir_proto::{ContainerId, Epoch, ObjectId};
use weir_store::{Data, PoolError, Shard, Store, StoreConfig, TransactionId};

const DISK: u64 = 64 << 20;

/// Objects with a value each, which has been overwritten once.
const OBJECTS: u64 = 400;

/// Bytes of a value: a leaf has some seven.
const LEN: usize = 2000;

/// Objects that one leaf may concern.
const NEAR: u64 = 10;

const OTHER: ContainerId = ContainerId(uuid::Uuid::from_u128(0xdd));

fn config(background: bool) -> StoreConfig {
    let retention = Duration::from_millis(1);
    StoreConfig { background, index_bytes: 256 << 10, retention, ..StoreConfig::default() }
}

fn value(container: ContainerId, epoch: u64) -> Vec<u8> {
    pattern(if container == OTHER { 1 << 20 } else { 0 } + epoch, LEN)
}

async fn store_value(shard: &Shard, container: ContainerId, number: u64, epoch: u64) {
    let (value, none) = (value(container, epoch), Conditions::NONE);
    let (object, update) = (ObjectId { hi: 0, lo: number }, [single("a", &value)]);
    let data = Data::Borrowed(&value);
    shard.update(container, object, &key("d"), Epoch(epoch), none, &update, data).await.expect("stored");
}

/// A closed store with the objects in two containers. A leaf in the midst of those of the first is damaged.
fn damaged(seed: u64) -> Machine {
    let machine = filled(seed);
    machine.rot_all(&value(CONTAINER, OBJECTS));
    machine
}

/// A closed store with the objects in two containers.
fn filled(seed: u64) -> Machine {
    let machine = Machine::new(seed, DISK);
    let (opened, shard) = machine.start(config(false));
    machine.run(async move {
        shard.create_container(OTHER).await.expect("created");
        for container in [CONTAINER, OTHER] {
            for number in 1..=OBJECTS {
                store_value(&shard, container, number, 2 * number).await;
                store_value(&shard, container, number, 2 * number + 1).await;
            }
        }
        opened.close().await.expect("closed");
    });
    machine
}

#[test]
fn aggregation_of_a_container_passes_over_a_damaged_leaf() {
    let machine = damaged(1);
    let store = machine.open(config(false));
    let shard = store.pool(POOL).expect("the pool");
    let opened = Rc::clone(&store);
    machine.run(async move {
        let error = shard.aggregate(CONTAINER, Epoch(1 << 20)).await.expect_err("a leaf is damaged");
        assert!(matches!(&error, PoolError::Index(_)), "{error}");
        let removed = opened.stats().aggregated;
        assert!((OBJECTS - NEAR..OBJECTS).contains(&removed), "{removed} of {OBJECTS} were removed");
    });
}

#[test]
fn background_aggregation_passes_over_a_damaged_leaf() {
    let machine = damaged(2);
    let store = machine.open(config(true));
    machine.sleep(Duration::from_mins(1));
    let removed = store.stats().aggregated;
    assert!(
        (2 * OBJECTS - NEAR..2 * OBJECTS).contains(&removed),
        "{removed} of {OBJECTS} twice were removed"
    );
}

#[test]
fn reclaim_passes_over_a_damaged_leaf() {
    let machine = damaged(3);
    let store = machine.open(config(true));
    let shard = store.pool(POOL).expect("the pool");
    let user = shard.clone();
    let before = shard.space().used();
    machine.run(async move {
        user.destroy_container(CONTAINER).await.expect("destroyed");
        user.destroy_container(OTHER).await.expect("destroyed");
    });
    machine.sleep(Duration::from_mins(1));
    let left = shard.containers();
    assert!(left.len() == 1 && left[0].container == CONTAINER && left[0].destroying, "{left:?}");
    assert!(shard.space().used() < before / 20, "{} of {before} bytes are left", shard.space().used());
    // Neither can a pool that has it be reclaimed as a whole, which holds up nobody.
    let opened = Rc::clone(&store);
    machine.run(async move {
        opened.destroy_pool(POOL).await.expect("destroyed");
        let pool = opened.create_pool(POOL, 4 << 20).await.expect("created");
        pool.create_container(OTHER).await.expect("created");
        pool.destroy_container(OTHER).await.expect("destroyed");
    });
    machine.sleep(Duration::from_mins(1));
    assert!(store.pool(POOL).expect("the pool").containers().is_empty());
}

#[test]
fn what_reclaim_can_not_read_it_does_not_ask_for_again() {
    let machine = filled(4);
    let store = machine.open(config(true));
    let shard = store.pool(POOL).expect("the pool");
    machine.lose_all(&value(CONTAINER, OBJECTS));
    let user = shard.clone();
    machine.run(async move { user.destroy_container(CONTAINER).await.expect("destroyed") });
    machine.sleep(Duration::from_mins(20));
    assert!(shard.containers().iter().any(|left| left.container == CONTAINER && left.destroying));
    let errors = machine.device().stats().errors;
    assert!((1..5).contains(&errors), "{errors} reads failed");
}

#[test]
fn a_leaf_that_can_not_be_read_does_not_put_the_device_out_of_use() {
    let machine = filled(6);
    machine.lose_all(&value(CONTAINER, OBJECTS));
    let handle = machine.handle();
    let device: Rc<dyn Device> = Rc::new(Watched::new(&handle, machine.device()));
    let watched = Rc::clone(&device);
    let store = machine.run(async move { Store::open(&handle, watched, &owner(), config(true)).await });
    let store = store.expect("it opens");
    for round in 1..=20 {
        machine.sleep(Duration::from_secs(30));
        let health = device.health().expect("it is watched");
        assert_eq!(health.state, DeviceState::Suspect, "after {} s: {}", round * 30, health.reason);
    }
    let errors = device.stats().errors;
    assert!(errors > 8, "only {errors} reads failed");
    let removed = store.stats().aggregated;
    assert!(removed > 2 * OBJECTS - NEAR, "{removed} of {OBJECTS} twice were removed");
}

#[test]
fn decisions_in_a_damaged_leaf_hold_up_neither_others_nor_aggregation() {
    const DECISIONS: u64 = 2000;
    let id = |number: u64| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&pattern(number, 16));
        TransactionId(uuid::Uuid::from_bytes(bytes))
    };
    for is_unreadable in [false, true] {
        let machine = filled(5);
        let store = machine.open(config(true));
        let shard = store.pool(POOL).expect("the pool");
        let user = shard.clone();
        machine.run(async move {
            for number in 0..DECISIONS {
                user.abort_transaction(CONTAINER, id(number)).await.expect("aborted");
            }
        });
        // Checkpoints write them, and others need the memory.
        let (user, opened) = (shard.clone(), Rc::clone(&store));
        machine.run(async move {
            opened.checkpoint().await.expect("written");
            for number in 1..=OBJECTS {
                store_value(&user, CONTAINER, number, 10_000 + number).await;
            }
        });
        // Keys of a leaf are without their common start.
        let tail = &id(DECISIONS / 2).0.as_bytes()[4..].to_vec();
        if is_unreadable {
            machine.lose_all(tail);
        } else {
            machine.rot_all(tail);
        }
        machine.sleep(Duration::from_mins(20));
        let before = store.stats().aggregated;
        machine.run(async move {
            for number in 0..DECISIONS {
                assert_eq!(shard.decision(CONTAINER, id(number)).await, Ok(None), "decision {number}");
            }
            for number in 1..=OBJECTS {
                store_value(&shard, CONTAINER, number, 20_000 + number).await;
            }
        });
        machine.sleep(Duration::from_mins(1));
        let removed = store.stats().aggregated - before;
        assert_eq!(removed, OBJECTS, "background work goes on");
        let errors = store.stats().index.errors + machine.device().stats().errors;
        assert_eq!(errors, 0, "decisions stay in memory");
    }
}
