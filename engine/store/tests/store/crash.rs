//! Power failures after every single write and flush of a workload: what was acknowledged is there, whatever was kept
//! of the sectors that weren't flushed; what wasn't acknowledged is there as a whole or not at all.

use crate::model::{AKEYS, Change, DKEYS, Model};
use crate::setup::*;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use weir_media::sim::CrashKeeps;
use weir_runtime::random::Random;
use weir_runtime::{Handle, join_all};
use weir_store::{AttributeChange, Shard, Store, StoreConfig};

const DISK: u64 = 24 << 20;

/// What a workload has done, seen from outside.
#[derive(Default)]
struct Record {
    acknowledged: Model,
    /// Begun and not acknowledged.
    open: Vec<(u64, Change)>,
    next_epoch: u64,
    /// Values of attributes that were acknowledged, by name.
    attributes: Vec<(String, Vec<u8>)>,
    /// Attributes whose change was begun.
    open_attributes: Vec<(String, Vec<u8>)>,
}

fn draw(random: &Random, dkey: u8) -> Change {
    let akey = random.below(u64::from(AKEYS)) as u8;
    let len = if random.below(3) == 0 { random.between(4096, 9000) } else { random.between(1, 300) } as usize;
    match random.below(10) {
        0 => Change::PunchDkey { dkey },
        1 => Change::PunchAkey { dkey, akey },
        _ if akey < 2 => Change::Put { dkey, akey, len },
        2 => Change::Hole { dkey, akey, index: random.below(500), count: random.between(1, 600) },
        _ => Change::Write { dkey, akey, index: random.below(2000), len },
    }
}

/// One worker for each dkey, so that changes in flight don't meet; one more changes attributes.
async fn work(
    handle: Handle,
    shard: Shard,
    store: Rc<Store>,
    record: Rc<RefCell<Record>>,
    seed: u64,
    steps: u64,
    bulk: u64,
) {
    let workers = (0..DKEYS).map(|dkey| {
        let (shard, record, store) = (shard.clone(), Rc::clone(&record), Rc::clone(&store));
        async move {
            let random = Random::new(seed ^ (u64::from(dkey) << 32));
            for step in 0..steps {
                let change = draw(&random, dkey);
                let epoch = {
                    let mut record = record.borrow_mut();
                    record.next_epoch += 1;
                    let epoch = record.next_epoch;
                    record.open.push((epoch, change.clone()));
                    epoch
                };
                change.apply(&shard, epoch).await.expect("a healthy disk");
                if bulk > 0 {
                    check_bulk(&shard, random.below(bulk)).await;
                }
                {
                    let mut record = record.borrow_mut();
                    record.open.retain(|(open, _)| *open != epoch);
                    record.acknowledged.add(epoch, change);
                }
                if dkey == 0 && step % 4 == 3 {
                    store.checkpoint().await.expect("a healthy disk");
                }
            }
        }
    });
    let attributes = handle.spawn(change_attributes(shard.clone(), Rc::clone(&record), seed, steps));
    join_all(workers).await;
    attributes.await.expect("it runs to its end");
}

async fn change_attributes(shard: Shard, record: Rc<RefCell<Record>>, seed: u64, steps: u64) {
    let random = Random::new(seed ^ 0xa77);
    for step in 0..steps {
        let name = format!("n{}", random.below(3));
        let value = pattern(step ^ seed, random.between(1, 9000) as usize);
        let change = AttributeChange {
            scope: Vec::new(),
            name: name.clone().into_bytes(),
            value: Some(value.clone()),
        };
        record.borrow_mut().open_attributes = vec![(name.clone(), value.clone())];
        shard.change_attributes(&[change]).await.expect("a healthy disk");
        let mut record = record.borrow_mut();
        record.open_attributes.clear();
        record.attributes.retain(|(other, _)| *other != name);
        record.attributes.push((name, value));
    }
}

fn bulk_value(number: u64) -> Vec<u8> {
    pattern(number, 2500 + number as usize)
}

/// Fills many index nodes of another object.
async fn store_bulk(shard: &Shard, bulk: u64) {
    for number in 0..bulk {
        write(shard, number, number + 1, 0, &bulk_value(number)).await.expect("a healthy disk");
    }
}

async fn check_bulk(shard: &Shard, number: u64) {
    let value = bulk_value(number);
    let found = read(shard, number, u64::MAX, 0, value.len() as u64).await.expect("read");
    assert!(found.0 == value, "value {number} has changed");
}

/// How a workload is run.
#[derive(Clone, Copy)]
struct Setting {
    config: fn() -> StoreConfig,
    /// Values beside those that change, so that the index has many nodes.
    bulk: u64,
}

const ROOMY: Setting = Setting { config: quiet, bulk: 0 };
const CRAMPED: Setting = Setting { config: cramped, bulk: 40 };

/// Compares the recovered state with what was acknowledged, after finding out which open changes made it.
async fn check(shard: &Shard, record: &Record, seed: u64, at: u64) {
    let mut model = record.acknowledged.clone();
    let mut open = record.open.clone();
    open.sort_by_key(|(epoch, _)| *epoch);
    for (epoch, change) in open {
        // Each open change is on a dkey of its own, so the question is settled change by change.
        let without = model.clone();
        model.add(epoch, change);
        if model.check(shard, epoch).await.is_err() {
            model = without;
        }
    }
    for epoch in model.epochs().into_iter().chain([u64::MAX]) {
        let checked = model.check(shard, epoch).await;
        assert!(checked.is_ok(), "seed {seed}, halt at {at}: {checked:?}");
    }
    for (name, value) in &record.attributes {
        let found = shard.attribute(b"", name.as_bytes());
        let newer =
            record.open_attributes.iter().any(|(open, value)| open == name && found.as_ref() == Some(value));
        assert!(newer || found.as_ref() == Some(value), "seed {seed}, halt at {at}: attribute {name}");
    }
}

/// Runs the workload up to a device operation, cuts the power, recovers and checks; then once more with what is left.
/// Returns whether the power was cut before the workload's end.
fn crash_at(setting: Setting, seed: u64, at: u64, steps: u64, keeps: CrashKeeps) -> bool {
    let machine = Machine::new(seed, DISK);
    let Setting { config, bulk } = setting;
    let (store, shard) = machine.start(config());
    let filled = shard.clone();
    machine.run(async move { store_bulk(&filled, bulk).await });
    let record = Rc::new(RefCell::new(Record::default()));
    machine.disk.halt_at(machine.disk.operations() + at);
    let workload = work(machine.handle(), shard, Rc::clone(&store), Rc::clone(&record), seed, steps, bulk);
    let finished = machine.world.try_block_on(&machine.node, Duration::from_mins(10), workload).is_ok();
    drop(store);
    machine.crash(keeps);
    for round in 0..2 {
        let store = machine.open(config());
        assert_eq!(machine.audit(&store).problems, [""; 0], "seed {seed}, halt at {at}");
        let shard = store.pool(POOL).unwrap_or_else(|| panic!("seed {seed}, halt at {at}: the pool is lost"));
        let mut before = record.take();
        before = machine.run(async move {
            check(&shard, &before, seed, at).await;
            for number in 0..bulk {
                check_bulk(&shard, number).await;
            }
            // A recovered store takes changes; they survive the next failure.
            let epoch = 1_000_000 + round;
            let change = Change::Put { dkey: 0, akey: 0, len: 5000 };
            change.apply(&shard, epoch).await.expect("a recovered store");
            for (epoch, change) in core::mem::take(&mut before.open) {
                before.acknowledged.add(epoch, change);
                if before.acknowledged.check(&shard, epoch).await.is_err() {
                    before.acknowledged.remove(epoch);
                }
            }
            before.acknowledged.add(epoch, change);
            before
        });
        record.replace(before);
        drop(store);
        machine.crash(keeps);
    }
    !finished
}

#[test]
fn every_halt_of_a_workload_recovers_what_was_acknowledged() {
    let mut cuts = 0;
    for (seed, keeps) in [(1, CrashKeeps::Nothing), (2, CrashKeeps::Everything), (3, CrashKeeps::Any)] {
        let mut at = 0;
        while crash_at(ROOMY, seed, at, 8, keeps) {
            at += 1;
        }
        cuts += at;
    }
    assert!(cuts > 90, "the workload has only {cuts} writes and flushes");
}

#[test]
fn random_halts_of_many_workloads_recover_what_was_acknowledged() {
    for seed in 100..300 {
        let random = Random::new(seed);
        crash_at(ROOMY, seed, random.below(60), 8, CrashKeeps::Any);
    }
}

#[test]
fn halts_with_an_index_beyond_its_memory_recover_what_was_acknowledged() {
    let mut at = 0;
    while crash_at(CRAMPED, 10, at, 8, CrashKeeps::Any) {
        at += 3;
    }
    assert!(at > 50, "the workload has only {at} writes and flushes");
    for seed in 300..330 {
        let random = Random::new(seed);
        crash_at(CRAMPED, seed, random.below(200), 8, CrashKeeps::Any);
    }
}

/// Changes large attributes until the log has gone round its ring several times, with the power cut somewhere.
fn crash_in_ring(seed: u64, at: u64) {
    let machine = Machine::new(seed, DISK);
    let (store, shard) = machine.start(quiet());
    let acknowledged = Rc::new(RefCell::new((0u64, Vec::new())));
    machine.disk.halt_at(machine.disk.operations() + at);
    let noted = Rc::clone(&acknowledged);
    let outcome = machine.world.try_block_on(&machine.node, Duration::from_mins(10), async move {
        let random = Random::new(seed);
        for step in 1..=160u64 {
            let value = pattern(seed ^ step, random.between(1000, 300_000) as usize);
            let name = format!("n{}", step % 5).into_bytes();
            let change = AttributeChange { scope: Vec::new(), name, value: Some(value.clone()) };
            noted.borrow_mut().1.push((step, value));
            shard.change_attributes(&[change]).await.expect("a healthy disk");
            noted.borrow_mut().0 = step;
        }
    });
    let written = store.stats().commit.log_written;
    assert!(outcome.is_err() || written > 2 * (8 << 20), "the log wrote only {written} bytes");
    drop(store);
    machine.crash(CrashKeeps::Any);
    let store = machine.open(quiet());
    let shard = store.pool(POOL).expect("the pool");
    let (last, values) = &*acknowledged.borrow();
    for name in 0..5u64 {
        let found = shard.attribute(b"", format!("n{name}").as_bytes());
        let newest = values.iter().rfind(|(step, _)| step % 5 == name && step <= last);
        let open = values.iter().find(|(step, _)| step % 5 == name && step > last);
        let fits = |entry: Option<&(u64, Vec<u8>)>| entry.map(|(_, value)| value) == found.as_ref();
        assert!(
            fits(newest) || (open.is_some() && fits(open)),
            "seed {seed}, halt at {at}: attribute n{name}"
        );
    }
}

#[test]
fn halts_while_the_log_goes_round_its_ring_recover_what_was_acknowledged() {
    for seed in 500..560 {
        crash_in_ring(seed, Random::new(seed).below(480));
    }
    crash_in_ring(560, 100_000);
}

/// Changes two large attributes together, several times at once while checkpoints are written, with the power cut
/// somewhere: whatever survives, they are of the same change.
fn crash_beside_checkpoints(seed: u64, at: u64) -> bool {
    let machine = Machine::new(seed, 64 << 20);
    let (store, shard) = machine.start(quiet());
    machine.disk.halt_at(machine.disk.operations() + at);
    let opened = Rc::clone(&store);
    let finished = machine.world.try_block_on(&machine.node, Duration::from_mins(10), async move {
        for round in 0..2u64 {
            let changes = (0..5u64).map(|number| {
                let value = Some(pattern(round * 5 + number, 500_000));
                let shard = shard.clone();
                async move {
                    let of = |name: &str| AttributeChange {
                        scope: Vec::new(),
                        name: name.as_bytes().to_vec(),
                        value: value.clone(),
                    };
                    shard.change_attributes(&[of("x"), of("y")]).await.expect("a healthy disk");
                }
            });
            weir_runtime::race(join_all(changes), opened.checkpoint()).await;
            opened.checkpoint().await.expect("a healthy disk");
        }
    });
    drop(store);
    machine.crash(CrashKeeps::Any);
    for _ in 0..2 {
        let store = machine.open(quiet());
        assert_eq!(machine.audit(&store).problems, [""; 0], "seed {seed}, halt at {at}");
        let shard = store.pool(POOL).expect("the pool");
        let [x, y] = ["x", "y"].map(|name| shard.attribute(b"", name.as_bytes()));
        assert!(x == y, "seed {seed}, halt at {at}: a change is there by half");
        // What the recovered store takes is there after the next failure, too.
        let last = pattern(seed, 1000);
        let kept = machine.run(async move {
            let change =
                AttributeChange { scope: Vec::new(), name: b"last".to_vec(), value: Some(last.clone()) };
            shard.change_attributes(&[change]).await.expect("a recovered store");
            last
        });
        drop(store);
        machine.crash(CrashKeeps::Nothing);
        let store = machine.open(quiet());
        let shard = store.pool(POOL).expect("the pool");
        assert!(shard.attribute(b"", b"last") == Some(kept), "seed {seed}, halt at {at}: a change is lost");
        drop((store, shard));
        machine.crash(CrashKeeps::Nothing);
    }
    finished.is_err()
}

#[test]
fn halts_while_records_wait_beside_a_checkpoint_leave_no_change_by_half() {
    for seed in 900..904 {
        // Together they halt everywhere.
        let mut at = seed - 900;
        while crash_beside_checkpoints(seed, at) {
            at += 4;
        }
        assert!(at > 15, "only {at} operations");
    }
}

/// Overwrites an array in small pieces, and aggregates with the power cut somewhere.
fn crash_in_aggregation(seed: u64, at: u64) -> bool {
    let machine = Machine::new(seed, DISK);
    let (store, shard) = machine.start(quiet());
    let random = Random::new(seed);
    let mut expected = vec![0; 60_000];
    let writes: Vec<(u64, Vec<u8>)> = (0..60)
        .map(|number| (random.below(50_000), pattern(seed ^ number, random.between(1, 9000) as usize)))
        .collect();
    for (index, data) in &writes {
        expected[*index as usize..][..data.len()].copy_from_slice(data);
    }
    let user = shard.clone();
    machine.run(async move {
        for (epoch, (index, data)) in (1..).zip(writes) {
            write(&user, 1, epoch, index, &data).await.expect("stored");
        }
    });
    machine.disk.halt_at(machine.disk.operations() + at);
    let finished = machine.world.try_block_on(&machine.node, Duration::from_mins(10), async move {
        shard.aggregate(CONTAINER, weir_proto::Epoch(1000)).await.expect("a healthy disk");
        // What aggregation freed is given out again.
        for epoch in 2000..2020 {
            write(&shard, 2, epoch, 0, &pattern(epoch, 20_000)).await.expect("stored");
        }
    });
    drop(store);
    machine.crash(CrashKeeps::Any);
    let store = machine.open(quiet());
    assert_eq!(machine.audit(&store).problems, [""; 0], "seed {seed}, halt at {at}");
    let shard = store.pool(POOL).expect("the pool");
    machine.run(async move {
        let (found, _) = read(&shard, 1, u64::MAX, 0, 60_000).await.expect("read");
        assert!(found == expected, "seed {seed}, halt at {at}: the array has changed");
    });
    finished.is_err()
}

#[test]
fn halts_during_aggregation_lose_nothing() {
    for seed in 700..730 {
        let mut at = 0;
        while crash_in_aggregation(seed, at) {
            at += 7;
        }
        assert!(at > 14, "aggregation wrote too little to be cut short");
    }
}
