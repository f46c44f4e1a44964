//! Decisions that were forgotten for want of room: who asks for one isn't told that it was never made, after a restart either.

use super::id;
use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;
use weir_media::sim::CrashKeeps;
use weir_proto::{ContainerId, Epoch};
use weir_runtime::join_all;
use weir_store::{Shard, Store, StoreConfig};

const OTHER: ContainerId = ContainerId(Uuid::from_u128(0xcd));

/// More decisions than are kept.
const MANY: u128 = 65 * 1024;

/// How long decisions are kept.
const KEPT: Duration = Duration::from_mins(5);

/// Decides a transaction, and then so many of another container that it is forgotten. Returns when it was decided.
fn decide_many(machine: &Machine, shard: &Shard) -> u64 {
    let (user, handle) = (shard.clone(), machine.handle());
    let decided = machine.run(async move {
        user.create_container(OTHER).await.expect("a container");
        user.abort_transaction(CONTAINER, id(1)).await.expect("aborted");
        let decided = handle.wall_ns();
        handle.sleep(Duration::from_secs(2)).await;
        for first in (0..MANY).step_by(1024) {
            let aborts = (first..first + 1024).map(|number| user.abort_transaction(OTHER, id(number)));
            assert!(join_all(aborts.collect::<Vec<_>>()).await.iter().all(Result::is_ok));
        }
        decided
    });
    // Background work looks for something to do now and then.
    machine.sleep(Duration::from_secs(70));
    let user = shard.clone();
    assert_eq!(machine.run(async move { user.decision(CONTAINER, id(1)).await }), Ok(None), "forgotten");
    decided
}

/// Destroys the other container, so that fewer decisions are left than are kept.
fn destroy_other(machine: &Machine, store: &Rc<Store>, shard: Shard) {
    machine.run(async move { shard.destroy_container(OTHER).await.expect("destroyed") });
    while store.stats().reclaimed < 64 * 1024 {
        machine.sleep(Duration::from_secs(1));
    }
}

/// Checks what is known after restarts on a disk of this size, with checkpoints so often.
fn restart(disk: u64, checkpoint_interval: Duration) {
    let machine = Machine::new(7, disk);
    let (store, shard) = machine.start(StoreConfig { checkpoint_interval, ..StoreConfig::default() });
    let before = store.stats().checkpoints;
    let decided = decide_many(&machine, &shard);
    assert!(shard.may_have_forgotten(Epoch(decided)));
    destroy_other(&machine, &store, shard);
    let checkpoints = store.stats().checkpoints - before;
    assert_eq!(checkpoints == 0, checkpoint_interval > KEPT, "{checkpoints} checkpoints");
    drop(store);
    for closes in [true, false] {
        machine.crash(CrashKeeps::Nothing);
        let store = machine.open(quiet());
        let (shard, now) = (store.pool(POOL).expect("the pool"), machine.handle().wall_ns());
        assert!(now < decided + KEPT.as_nanos() as u64, "it isn't forgotten for its age");
        assert!(shard.may_have_forgotten(Epoch(decided)), "closes: {closes}");
        assert!(!shard.may_have_forgotten(Epoch(now + 2_000_000_000)), "closes: {closes}");
        if closes {
            machine.run(async move { store.close().await.expect("closed") });
        }
    }
}

#[test]
fn a_decision_is_known_to_be_forgotten_after_a_restart_too() {
    // By the checkpoint, and by the log, which holds everything.
    restart(64 << 20, Duration::from_secs(10));
    restart(1 << 30, 2 * KEPT);
}

#[test]
fn decisions_that_went_with_their_container_do_not_count_as_forgotten() {
    let machine = Machine::new(8, 64 << 20);
    let config = StoreConfig { checkpoint_interval: 2 * KEPT, ..StoreConfig::default() };
    let (store, shard) = machine.start(config);
    let (checkpoints, handle) = (store.stats().checkpoints, machine.handle());
    let decided = machine.run(async move {
        shard.create_container(OTHER).await.expect("a container");
        for number in 0..50 {
            shard.abort_transaction(OTHER, id(number)).await.expect("aborted");
        }
        let decided = handle.wall_ns();
        shard.destroy_container(OTHER).await.expect("destroyed");
        handle.sleep(Duration::from_secs(2)).await;
        decided
    });
    assert!(store.stats().reclaimed > 50 && store.stats().checkpoints == checkpoints);
    drop(store);
    machine.crash(CrashKeeps::Nothing);
    let store = machine.open(quiet());
    assert!(store.stats().replayed_records > 50);
    let shard = store.pool(POOL).expect("the pool");
    assert!(!shard.may_have_forgotten(Epoch(decided)), "nobody asks for these, and no others are missing");
}
