//! Power failures and failing transfers on a disk of which single transfers take long, so that records, checkpoints and
//! background work overtake the data of updates all the time.

use crate::setup::*;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use weir_media::BLOCK;
use weir_media::sim::{CrashKeeps, SimDiskOptions};
use weir_proto::Epoch;
use weir_proto::object::PunchScope;
use weir_runtime::random::Random;
use weir_runtime::{Handle, join_all};
use weir_store::{Shard, Store, StoreConfig};

const DISK: u64 = 24 << 20;
const DKEYS: usize = 12;
/// Power cycles of a disk.
const CYCLES: u64 = 4;

/// The epoch of a dkey's value; `None` when it is punched, or was never there.
type Seen = Option<u64>;

#[derive(Default)]
struct Record {
    /// What each dkey had since it was last looked at, the newest change last.
    history: [Vec<Seen>; DKEYS],
    /// Which of that was acknowledged last; what is behind it, nobody was told.
    acknowledged: [usize; DKEYS],
    epoch: u64,
    stored: u64,
}

fn value(epoch: u64) -> Vec<u8> {
    pattern(epoch, BLOCK * (1 + epoch as usize % 3) - epoch as usize % 100)
}

fn name(dkey: usize) -> String {
    format!("k{dkey}")
}

/// What a dkey has must be what was acknowledged when the question began, or newer. Returns whether there is an answer.
async fn check(shard: &Shard, record: &RefCell<Record>, dkey: usize, place: &str) -> bool {
    let from = record.borrow().acknowledged[dkey];
    let Ok(found) = get(shard, &name(dkey), "a", u64::MAX).await else { return false };
    let record = record.borrow();
    let mut may_be = record.history[dkey][from..].iter();
    assert!(may_be.any(|seen| seen.map(value) == found), "{place}: dkey {dkey}");
    true
}

async fn store(shard: &Shard, dkey: usize, epoch: u64, twice: bool) -> bool {
    let (dkey, value) = (name(dkey), value(epoch));
    let once = || async { put(shard, &dkey, "a", epoch, &value).await.is_ok() };
    if twice {
        // The second takes the place of the first, whose data may be on the way.
        return join_all([once(), once()]).await == [true; 2];
    }
    once().await
}

async fn work(shard: Shard, record: Rc<RefCell<Record>>, random: Random, dkey: usize, healthy: bool) {
    loop {
        let epoch = {
            let mut record = record.borrow_mut();
            record.epoch += 1;
            record.epoch
        };
        let seen = (random.below(8) > 0).then_some(epoch);
        record.borrow_mut().history[dkey].push(seen);
        let stored = if seen.is_none() {
            punch(&shard, OBJECT, PunchScope::Dkeys(vec![key(&name(dkey))]), epoch).await.is_ok()
        } else {
            store(&shard, dkey, epoch, random.below(4) == 0).await
        };
        if !stored {
            assert!(!healthy, "dkey {dkey} can't be stored");
            return;
        }
        {
            let mut record = record.borrow_mut();
            record.acknowledged[dkey] = record.history[dkey].len() - 1;
            record.stored += 1;
        }
        for dkey in [dkey, random.below(DKEYS as u64) as usize] {
            assert!(check(&shard, &record, dkey, "while it changes").await || !healthy, "a healthy disk");
        }
    }
}

async fn background(handle: Handle, store: Rc<Store>, shard: Shard, record: Rc<RefCell<Record>>) {
    loop {
        handle.sleep(Duration::from_micros(700)).await;
        let newest = Epoch(record.borrow().epoch);
        if shard.aggregate(CONTAINER, newest).await.is_err() || store.checkpoint().await.is_err() {
            return;
        }
        let _ = store.defragment().await;
    }
}

/// Works until the power fails, several times over. Returns how many changes were stored.
fn live(seed: u64, error_probability: f64) -> u64 {
    let machine = Machine::new(seed, DISK);
    drop(machine.start(quiet()));
    let record = Record { history: core::array::from_fn(|_| vec![None]), ..Record::default() };
    let record = Rc::new(RefCell::new(record));
    let random = Random::new(seed);
    let config = || StoreConfig { cache_bytes: 0, ..quiet() };
    for cycle in 0..CYCLES {
        machine.disk.set_options(SimDiskOptions::default());
        let store = machine.open(config());
        assert_eq!(machine.audit(&store).problems, [""; 0], "seed {seed}, cycle {cycle}");
        let shard = store.pool(POOL).expect("the pool");
        let (user, noted) = (shard.clone(), Rc::clone(&record));
        machine.run(async move {
            for dkey in 0..DKEYS {
                let place = format!("seed {seed}, cycle {cycle}");
                assert!(check(&user, &noted, dkey, &place).await, "{place}: dkey {dkey} is damaged");
                // Whatever has become of it, it stays so.
                let found = get(&user, &name(dkey), "a", u64::MAX).await.expect("read");
                let record = &mut *noted.borrow_mut();
                let history = &mut record.history[dkey];
                history.drain(..record.acknowledged[dkey]);
                history.retain(|change| change.map(value) == found);
                history.truncate(1);
                record.acknowledged[dkey] = 0;
            }
        });
        let (stall_probability, stall) = (0.2, Duration::from_millis(3));
        machine.disk.set_options(SimDiskOptions {
            stall_probability,
            stall,
            error_probability,
            ..SimDiskOptions::default()
        });
        let time = Duration::from_micros(random.between(500, 40_000));
        let (handle, opened, record) = (machine.handle(), Rc::clone(&store), Rc::clone(&record));
        let seeds: Vec<u64> = (0..DKEYS as u64).map(|dkey| seed ^ (cycle << 20) ^ (dkey << 32)).collect();
        let _ = machine.world.try_block_on(&machine.node, time, async move {
            handle.spawn(background(handle.clone(), opened, shard.clone(), Rc::clone(&record)));
            let healthy = error_probability == 0.0;
            let workers = seeds.into_iter().enumerate().map(|(dkey, seed)| {
                work(shard.clone(), Rc::clone(&record), Random::new(seed), dkey, healthy)
            });
            join_all(workers.collect::<Vec<_>>()).await;
        });
        assert!(error_probability > 0.0 || store.stats().checksum_errors == 0, "seed {seed}, cycle {cycle}");
        drop(store);
        machine.crash(CrashKeeps::Any);
    }
    record.borrow().stored
}

#[test]
fn what_was_acknowledged_is_there_when_all_overtakes_the_data() {
    let stored: u64 = (0..40).map(|seed| live(seed, 0.0)).sum();
    assert!(stored > 1000, "only {stored} changes");
}

#[test]
fn what_was_acknowledged_is_there_when_transfers_fail_behind_their_records() {
    let stored: u64 = (0..60).map(|seed| live(1000 + seed, 0.01)).sum();
    assert!(stored > 500, "only {stored} changes");
}
