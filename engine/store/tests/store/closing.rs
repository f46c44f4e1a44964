//! A store that is closed under load: each change is acknowledged and there, or refused and not there, and nothing is on its
//! way to the device any more.

use crate::setup::*;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;
use weir_media::sim::SimDiskOptions;
use weir_proto::{Epoch, Key};
use weir_runtime::random::Random;
use weir_runtime::{join_all, race};
use weir_store::{Data, Operation, Shard, StoreConfig, TransactionId, UpdateError};

const WORKERS: u64 = 24;

/// Dkey, epoch and bytes of changes, and whether they were acknowledged.
type Told = Rc<RefCell<Vec<(u64, u64, usize, bool)>>>;

fn value(number: u64, random: u64) -> Vec<u8> {
    // Inline, beside its record, and before it.
    pattern(number, [50, 6000, 200_000][random as usize % 3])
}

/// Stores values until it is refused; which it was told are there, and which not.
async fn work(shard: Shard, worker: u64, (seed, t): (u64, u64), told: Told) {
    let random = Random::new(seed ^ worker);
    for step in 0u64.. {
        let (dkey, epoch) = (worker, t + step * WORKERS + worker);
        let data = value(epoch, random.below(3));
        let stored = if random.below(5) == 0 {
            let id = TransactionId(Uuid::from_u128(u128::from(epoch)));
            let operation = Operation::Update {
                object: ARRAY,
                dkey: Key::from_u64(dkey),
                conditions: weir_proto::object::Conditions::NONE,
                akeys: vec![array("data", 1, &[(0, data.len() as u64)])],
                data: Data::Borrowed(&data),
            };
            match shard.prepare(CONTAINER, id, Epoch(epoch), &[operation]).await {
                Ok(()) => {
                    shard.commit_transaction(CONTAINER, id).await.map(drop).map_err(|error| error.to_string())
                }
                Err(UpdateError::Restart { .. }) => continue,
                Err(error) => Err(error.to_string()),
            }
        } else {
            write(&shard, dkey, epoch, 0, &data).await.map(drop).map_err(|error| error.to_string())
        };
        told.borrow_mut().push((dkey, epoch, data.len(), stored.is_ok()));
        if let Err(reason) = stored {
            assert!(reason.contains("closed"), "{reason}");
            return;
        }
    }
}

#[test]
fn a_close_under_load_leaves_nothing_half() {
    for seed in 0..40 {
        let machine = Machine::new(seed, 128 << 20);
        let config = if seed % 2 == 0 { quiet() } else { StoreConfig::default() };
        let (store, shard) = machine.start(config.clone());
        let told = Rc::new(RefCell::new(Vec::new()));
        let (handle, noted) = (machine.handle(), Rc::clone(&told));
        let opened = Rc::clone(&store);
        let t = handle.wall_ns();
        machine.run(async move {
            let workers = join_all(
                (0..WORKERS).map(|worker| work(shard.clone(), worker, (seed, t), Rc::clone(&noted))),
            );
            let closing = async {
                handle.sleep(Duration::from_micros(200 + Random::new(seed).below(20_000))).await;
                opened.close().await.expect("closed");
                assert_eq!(opened.stats().device.in_flight, 0, "seed {seed}: something is on its way");
            };
            // Everybody is told, one way or the other.
            let both = join_both(workers, closing);
            race(both, handle.sleep(Duration::from_mins(1))).await
        });
        drop(store);
        let told = told.take();
        assert_eq!(told.iter().filter(|(.., stored)| !stored).count() as u64, WORKERS, "seed {seed}");
        let store = machine.open(config);
        assert_eq!(store.stats().replayed_records, 0, "seed {seed}");
        assert_eq!(machine.audit(&store).problems, [""; 0], "seed {seed}");
        let shard = store.pool(POOL).expect("the pool");
        machine.run(async move {
            // Of a transaction whose commit was refused nothing is there either way.
            for (transaction, _) in shard.undecided(CONTAINER).await.expect("the container") {
                shard.abort_transaction(CONTAINER, transaction).await.expect("aborted");
            }
            for (dkey, epoch, len, stored) in told {
                let wanted = pattern(epoch, len);
                let (found, _) = read(&shard, dkey, epoch, 0, len as u64).await.expect("read");
                assert_eq!(found == wanted, stored, "seed {seed}: dkey {dkey} at epoch {epoch}");
            }
        });
    }
}

async fn join_both(one: impl Future, other: impl Future) {
    let both: [std::pin::Pin<Box<dyn Future<Output = ()> + '_>>; 2] =
        [Box::pin(async { drop(one.await) }), Box::pin(async { drop(other.await) })];
    join_all(both).await;
}

#[test]
fn a_close_waits_for_the_data_of_a_change_that_it_refuses() {
    let machine = Machine::new(81, 64 << 20);
    let (store, shard) = machine.start(quiet());
    let (handle, disk, opened) = (machine.handle(), machine.disk.clone(), Rc::clone(&store));
    machine.run(async move {
        let stall = Duration::from_secs(2);
        disk.set_options(SimDiskOptions { stall_probability: 1.0, stall, ..SimDiskOptions::default() });
        let late = handle.spawn(async move { write(&shard, 1, 1, 0, &pattern(1, 200_000)).await });
        handle.sleep(Duration::from_micros(1)).await;
        disk.set_options(SimDiskOptions::default());
        assert!(opened.stats().device.in_flight > 0, "its data is on its way");
        opened.close().await.expect("closed");
        assert_eq!(opened.stats().device.in_flight, 0, "the next open may give its blocks to others");
        assert!(matches!(late.await, Ok(Err(UpdateError::Failed(_)))), "it was refused");
    });
}

#[test]
fn a_close_that_meets_a_checkpoint_leaves_none_under_way() {
    for seed in 0..40 {
        let machine = Machine::new(seed, 64 << 20);
        let (store, shard) = machine.start(quiet());
        let (handle, opened) = (machine.handle(), Rc::clone(&store));
        machine.run(async move {
            for epoch in 1..200 {
                write(&shard, epoch, epoch, 0, &pattern(epoch, 3000)).await.expect("stored");
            }
            let (running, rt) = (Rc::clone(&opened), handle.clone());
            let other = rt.spawn(async move { running.checkpoint().await });
            handle.sleep(Duration::from_micros(Random::new(seed).below(1000))).await;
            opened.close().await.expect("closed");
            assert_eq!(opened.stats().device.in_flight, 0, "seed {seed}: something is on its way");
            drop(other);
        });
    }
}

#[test]
fn who_waits_for_a_store_that_is_dropped_is_told() {
    let machine = Machine::new(82, 64 << 20);
    let (store, shard) = machine.start(quiet());
    let (handle, disk) = (machine.handle(), machine.disk.clone());
    machine.run(async move {
        let stall = Duration::from_secs(2);
        disk.set_options(SimDiskOptions { stall_probability: 1.0, stall, ..SimDiskOptions::default() });
        let writer = shard.clone();
        let late = handle.spawn(async move { write(&writer, 1, 1, 0, &pattern(1, 50)).await });
        handle.sleep(Duration::from_micros(1)).await;
        drop(store);
        let told = handle.timeout(Duration::from_mins(1), late).await.expect("it waits for ever");
        assert!(matches!(told, Ok(Err(UpdateError::Failed(_)))), "{told:?}");
        let read = handle.timeout(Duration::from_mins(1), read(&shard, 1, 1, 0, 50)).await;
        read.expect("it waits for ever").expect_err("what is there may never be durable");
    });
}
