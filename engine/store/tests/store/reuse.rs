//! Blocks that a batch of the log gives back, after it has taken them itself, are somebody else's as soon as it is durable:
//! what they hold then says nothing about the batch.

use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use weir_media::sim::{CrashKeeps, SimDiskOptions};
use weir_runtime::join_all;
use weir_store::UpdateError;

const LEN: usize = 120_000;

/// On a disk with room for little else, replaces values within the batch that stores them, and goes on in their blocks
/// until the power fails. Returns whether that was before the end.
fn crash_at(seed: u64, at: u64) -> bool {
    let machine = Machine::new(seed, 15 << 20);
    machine.format();
    let store = machine.open(quiet());
    let opened = Rc::clone(&store);
    machine.run(async move {
        let shard = opened.create_pool(POOL, opened.space().capacity).await.expect("space");
        shard.create_container(CONTAINER).await.expect("a container");
        for number in 0.. {
            match put(&shard, &format!("f{number}"), "a", number + 1, &pattern(number, LEN)).await {
                Ok(_) => {}
                Err(UpdateError::NoSpace { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        // Room for some six values.
        for number in 0..6 {
            let scope = weir_proto::object::PunchScope::Dkeys(vec![key(&format!("f{number}"))]);
            punch(&shard, OBJECT, scope, 1000 + number).await.expect("punched");
        }
        shard.aggregate(CONTAINER, weir_proto::Epoch(2000)).await.expect("aggregated");
        opened.checkpoint().await.expect("written");
    });
    // Flushes take so long that what comes meanwhile goes into one batch.
    let slow = Duration::from_millis(20);
    machine.disk.set_options(SimDiskOptions {
        flush_min: slow,
        flush_max: slow,
        ..SimDiskOptions::default()
    });
    machine.disk.halt_at(machine.disk.operations() + at);
    let acknowledged = Rc::new(core::cell::Cell::new(0));
    let (noted, opened) = (Rc::clone(&acknowledged), Rc::clone(&store));
    let finished = machine.world.try_block_on(&machine.node, Duration::from_mins(5), async move {
        let shard = opened.pool(POOL).expect("the pool");
        for round in 1..=12u64 {
            // The same value twice at one epoch: the second takes the place of the first.
            let twice = [0, 1].map(|_| {
                let shard = shard.clone();
                async move { put(&shard, "same", "a", 5000 + round, &pattern(round, LEN)).await }
            });
            let beside = put(&shard, "beside", "a", 9000 + round, b"small");
            let results = weir_runtime::race(join_all(twice), async {
                beside.await.expect("stored");
                core::future::pending::<()>().await;
            });
            if let weir_runtime::Either::First(results) = results.await {
                assert!(results.iter().all(Result::is_ok), "{results:?}");
            }
            noted.set(round);
            shard.aggregate(CONTAINER, weir_proto::Epoch(5000 + round)).await.expect("aggregated");
        }
    });
    drop(store);
    machine.crash(CrashKeeps::Any);
    let store = machine.open(quiet());
    assert_eq!(machine.audit(&store).problems, [""; 0], "seed {seed}, halt at {at}");
    let shard = store.pool(POOL).expect("the pool");
    machine.run(async move {
        let last = acknowledged.get();
        let found =
            get(&shard, "same", "a", u64::MAX).await.unwrap_or_else(|error| panic!("halt at {at}: {error}"));
        let newest = found == Some(pattern(last + 1, LEN));
        assert!(
            newest || last == 0 || found == Some(pattern(last, LEN)),
            "seed {seed}, halt at {at}: round {last}"
        );
    });
    finished.is_err()
}

#[test]
fn a_batch_counts_whatever_has_become_of_blocks_that_it_gave_back() {
    for seed in 0..6 {
        let mut at = seed;
        while crash_at(seed, at) {
            at += 3;
        }
        assert!(at > 30, "only {at} operations");
    }
}
