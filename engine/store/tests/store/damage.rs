//! Damage of a leaf: background work passes over it, and does the rest; so does an open.

use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use weir_inspect::Depth;
use weir_media::Device;
use weir_media::health::{DeviceState, MonitoredDevice};
use weir_media::sim::CrashKeeps;
use weir_proto::object::{AkeyFetch, Conditions, Value};
use weir_proto::{ContainerId, Epoch, ObjectId};
use weir_store::{
    Data, FetchError, OpenError, PoolError, Shard, Store, StoreConfig, TransactionError, TransactionId,
    UpdateError,
};

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
    let device: Rc<dyn Device> = Rc::new(MonitoredDevice::new(&handle, machine.device()));
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

/// The newest value of an object.
async fn newest(shard: &Shard, container: ContainerId, number: u64) -> Result<Vec<u8>, FetchError> {
    let akey =
        AkeyFetch { akey: key("a"), value: Value::Single { size: u64::MAX }, conditions: Conditions::NONE };
    let object = ObjectId { hi: 0, lo: number };
    let fetch = shard.fetch(container, object, &key("d"), Epoch::MAX, Conditions::NONE, &[akey]).await?;
    data_of(fetch).await
}

/// Objects of the first container that are overwritten once more: few enough that no checkpoint is needed for it.
const LATE: core::ops::RangeInclusive<u64> = OBJECTS / 2 - 20..=OBJECTS / 2 + 20;

/// Epoch of the last value of an object.
fn last_epoch(container: ContainerId, number: u64) -> u64 {
    if container == CONTAINER && LATE.contains(&number) { 10_000 + number } else { 2 * number + 1 }
}

/// The objects of the first container that can't be read. All others have their newest values.
fn unreadable(machine: &Machine, store: &Rc<Store>) -> Vec<u64> {
    let shard = store.pool(POOL).expect("the pool");
    machine.run(async move {
        let mut lost = Vec::new();
        for container in [CONTAINER, OTHER] {
            for number in 1..=OBJECTS {
                match newest(&shard, container, number).await {
                    Ok(found) => {
                        let expected = value(container, last_epoch(container, number));
                        assert!(found == expected, "object {number} of {container}");
                    }
                    Err(FetchError::Index { location, .. }) if container == CONTAINER => {
                        assert_eq!(location.what, "an index node");
                        lost.push(number);
                    }
                    Err(error) => panic!("object {number} of {container}: {error}"),
                }
            }
        }
        lost
    })
}

/// A store that was killed after some objects were overwritten, with nothing of that in its checkpoint.
fn overwritten(seed: u64) -> Machine {
    let machine = filled(seed);
    let store = machine.open(quiet());
    let (shard, before) = (store.pool(POOL).expect("the pool"), store.stats().checkpoints);
    machine.run(async move {
        for number in LATE {
            store_value(&shard, CONTAINER, number, last_epoch(CONTAINER, number)).await;
        }
    });
    assert_eq!(store.stats().checkpoints, before, "a checkpoint came in between");
    drop(store);
    machine.crash(CrashKeeps::Everything);
    machine
}

#[test]
fn an_open_goes_on_without_a_leaf_that_the_log_changes() {
    let machine = overwritten(7);
    machine.rot_all(&value(CONTAINER, OBJECTS));
    let store = machine.open(config(false));
    let found = store.scrub().found;
    assert!(found.len() == 1 && found[0].location.what == "an index node", "{found:?}");
    let place = found[0].location.offset;
    let lost = unreadable(&machine, &store);
    assert!((1..=NEAR).contains(&(lost.len() as u64)) && lost.contains(&(OBJECTS / 2)), "{lost:?}");
    // Nobody writes there either, and everybody elsewhere.
    let (user, first) = (store.pool(POOL).expect("the pool"), lost[0]);
    machine.run(async move {
        let (bytes, none) = (value(CONTAINER, 1), Conditions::NONE);
        let (object, update) = (ObjectId { hi: 0, lo: first }, [single("a", &bytes)]);
        let data = Data::Borrowed(&bytes[..]);
        let refused = user.update(CONTAINER, object, &key("d"), Epoch(90_000), none, &update, data).await;
        assert!(matches!(refused, Err(UpdateError::Index { .. })), "{refused:?}");
        store_value(&user, CONTAINER, OBJECTS + 1, 1).await;
    });
    let opened = Rc::clone(&store);
    machine.run(async move { opened.close().await.expect("closed") });
    drop(store);
    // What was dropped of the log is missed for good, even if the leaf is as it was.
    for is_whole in [false, true] {
        if is_whole {
            machine.rot_all(&{
                let mut flipped = value(CONTAINER, OBJECTS);
                flipped[0] ^= 1 << 3;
                flipped
            });
        }
        let store = machine.open(config(false));
        assert_eq!(unreadable(&machine, &store), lost);
        let findings = machine.inspect(Depth::Everything).findings;
        assert!(
            findings.iter().all(|finding| finding.offset == place) && !findings.is_empty(),
            "{findings:?}"
        );
    }
}

#[test]
fn an_open_does_not_go_on_without_what_a_device_refuses_that_refuses_everything() {
    let machine = overwritten(8);
    machine.lose_all(&value(CONTAINER, OBJECTS));
    let store = machine.open(config(false));
    let lost = unreadable_by_device(&machine, &store);
    assert!((1..=NEAR).contains(&lost), "{lost} are lost");
    drop(store);
    let machine = overwritten(9);
    let size = machine.device().size();
    machine.disk.make_unreadable(8 << 20..size);
    let refused = machine.try_open(config(false));
    assert!(matches!(refused, Err(OpenError::Media(_))), "{:?}", refused.err());
    machine.disk.make_readable();
    assert_eq!(unreadable(&machine, &machine.open(config(false))), [0; 0]);
}

/// How many objects of the first container the device doesn't give.
fn unreadable_by_device(machine: &Machine, store: &Rc<Store>) -> u64 {
    let shard = store.pool(POOL).expect("the pool");
    machine.run(async move {
        let mut lost = 0;
        for number in 1..=OBJECTS {
            match newest(&shard, CONTAINER, number).await {
                Ok(found) => {
                    assert!(found == value(CONTAINER, last_epoch(CONTAINER, number)), "object {number}");
                }
                Err(FetchError::Index { .. } | FetchError::Media(_)) => lost += 1,
                Err(error) => panic!("object {number}: {error}"),
            }
        }
        lost
    })
}

const DECISIONS: u64 = 2000;

fn decided(container: ContainerId, number: u64) -> TransactionId {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&pattern(number + if container == OTHER { 1 << 30 } else { 0 }, 16));
    TransactionId(uuid::Uuid::from_bytes(bytes))
}

/// A closed store with decisions of transactions in these containers, of which one leaf in the midst is damaged.
fn undecided(seed: u64, containers: &'static [ContainerId], damaged: ContainerId) -> Machine {
    let machine = filled(seed);
    let store = machine.open(config(false));
    let shard = store.pool(POOL).expect("the pool");
    machine.run(async move {
        for container in containers {
            for number in 0..DECISIONS {
                shard.abort_transaction(*container, decided(*container, number)).await.expect("aborted");
            }
        }
        if containers.len() == 1 {
            shard.destroy_container(OTHER).await.expect("destroyed");
        }
        store.close().await.expect("closed");
    });
    machine.rot_all(&decided(damaged, DECISIONS / 2).0.as_bytes()[4..]);
    machine
}

#[test]
fn a_container_of_whose_transactions_some_are_lost_is_shut_and_the_others_serve() {
    for (damaged, sound) in [(CONTAINER, OTHER), (OTHER, CONTAINER)] {
        let machine = undecided(10, &[CONTAINER, OTHER], damaged);
        let store = machine.open(config(true));
        let shard = store.pool(POOL).expect("the pool");
        let opened = Rc::clone(&store);
        machine.run(async move {
            let error = newest(&shard, damaged, 5).await.expect_err("it may have been overwritten");
            assert!(matches!(&error, FetchError::Index { .. }), "{error}");
            let id = decided(damaged, 3);
            let error = shard.decision(damaged, id).await.expect_err("it isn't known");
            assert!(matches!(&error, TransactionError::Index { .. }), "{error}");
            assert!(shard.commit_transaction(damaged, id).await.is_err());
            for error in [
                shard.create_container(damaged).await.expect_err("it is there"),
                shard.snapshots(damaged).expect_err("there may be some"),
                shard.aggregate(damaged, Epoch(1 << 20)).await.expect_err("a snapshot may keep it"),
            ] {
                assert!(matches!(&error, PoolError::Index(reason) if reason.contains("is shut")), "{error}");
            }
            assert!(shard.has_container(damaged) && shard.has_container(sound));
            for number in 1..=OBJECTS {
                let found = newest(&shard, sound, number).await.expect("nothing of it is lost");
                assert!(found == value(sound, 2 * number + 1));
            }
            assert_eq!(shard.abort_transaction(sound, decided(sound, 3)).await, Ok(()));
            store_value(&shard, sound, 3, 90_000).await;
            opened.checkpoint().await.expect("written");
        });
        // Background work does what is to be done of the others, and nothing of it.
        machine.sleep(Duration::from_mins(1));
        assert_eq!(store.stats().aggregated, OBJECTS + 1);
        let shard = store.pool(POOL).expect("the pool");
        machine.run(async move {
            shard.destroy_container(damaged).await.expect("destroyed");
            shard.create_container(damaged).await.expect("another one");
            store_value(&shard, damaged, 1, 3).await;
            assert!(newest(&shard, damaged, 1).await.expect("stored") == value(damaged, 3));
        });
    }
}

#[test]
fn a_store_without_a_container_that_serves_is_not_opened() {
    let machine = undecided(11, &[CONTAINER], CONTAINER);
    let Err(OpenError::Corrupt { location, .. }) = machine.try_open(config(false)) else {
        panic!("there is nothing to serve")
    };
    assert_eq!(location.what, "an index node");
}
