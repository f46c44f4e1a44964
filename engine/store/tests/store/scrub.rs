//! The scrubber on a simulated disk that rots: every place is found and named, nothing sound is called rotten while the
//! store changes, and the rate is kept.

use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;
use weir_media::Device;
use weir_media::health::MonitoredDevice;
use weir_media::sim::SimDiskOptions;
use weir_proto::object::{Conditions, PunchScope};
use weir_proto::{Epoch, ObjectId};
use weir_runtime::random::Random;
use weir_store::{
    Data, FetchError, Operation, ScrubConfig, ScrubReport, Shard, Store, StoreConfig, TransactionId,
};

const SIZE: u64 = 24 << 20;

/// Fast enough for several passes in a few seconds of virtual time.
fn scrubbing() -> StoreConfig {
    let scrub = ScrubConfig { bytes_per_second: 256 << 20, interval: Duration::from_secs(2) };
    StoreConfig { scrub: Some(scrub), ..quiet() }
}

/// Lets passes go on until `count` of them have begun and ended from now on.
fn passes(machine: &Machine, store: &Store, count: u64) -> ScrubReport {
    let wanted = store.scrub().passes + count;
    for _ in 0..200 {
        machine.sleep(Duration::from_millis(500));
        if store.scrub().passes >= wanted {
            return store.scrub();
        }
    }
    panic!("{:?} after a long time", store.scrub());
}

fn fill(machine: &Machine, shard: &weir_store::Shard, count: u64) {
    let shard = shard.clone();
    machine.run(async move {
        for number in 0..count {
            let len = len_of(number);
            put(&shard, &format!("d{number}"), "a", number + 1, &pattern(number, len)).await.expect("stored");
        }
    });
}

/// Bytes of value `number` that [`fill`] stores.
fn len_of(number: u64) -> usize {
    if number < 80 { [100, 2000, 5000, 70_000][number as usize % 4] } else { 1500 }
}

fn write_checkpoint(machine: &Machine, store: &Rc<Store>) {
    let store = Rc::clone(store);
    machine.run(async move { store.checkpoint().await.expect("written") });
}

/// First bytes of the blocks that begin with these.
fn blocks(machine: &Machine, bytes: &[u8]) -> Vec<u64> {
    let places = (0..SIZE / 4096).map(|at| at * 4096);
    places.filter(|at| machine.disk.bytes(*at, bytes.len()) == bytes).collect()
}

fn find(machine: &Machine, bytes: &[u8]) -> u64 {
    *blocks(machine, bytes).first().expect("the data")
}

#[test]
fn rot_in_data_is_found_by_pool_and_never_returned() {
    let machine = Machine::new(21, SIZE);
    let (store, shard) = machine.start(scrubbing());
    fill(&machine, &shard, 80);
    write_checkpoint(&machine, &store);
    assert_eq!(passes(&machine, &store, 2).rotten.len(), 0);
    let value = pattern(3, 70_000);
    let place = find(&machine, &value[..64]);
    machine.disk.rot(place + 40_000, 5);
    let report = passes(&machine, &store, 2);
    assert_eq!(report.rotten.get(&Some(POOL)), Some(&1), "{report:?}");
    let rot = &report.found[0];
    assert_eq!((rot.location.offset, rot.len, rot.location.what), (place + 32_768, 32_768, "data"));
    let subject = rot.subject.as_deref().unwrap_or_default();
    assert!(subject.contains("dkey \"d3\"") && subject.contains("epoch 4"), "{rot}");
    assert_eq!(store.stats().checksum_errors, 1);
    let reader = shard.clone();
    let fetched = machine.run(async move { get(&reader, "d3", "a", u64::MAX).await });
    assert!(matches!(fetched, Err(FetchError::Corrupt { .. })), "{fetched:?}");
    // Known rot isn't counted again, and what is overwritten is no longer anybody's.
    let again = passes(&machine, &store, 2);
    assert_eq!(again.rotten, report.rotten);
    let writer = shard.clone();
    machine.run(async move {
        put(&writer, "d3", "a", 500, &pattern(9, 70_000)).await.expect("stored");
        assert_eq!(get(&writer, "d3", "a", u64::MAX).await.expect("read"), Some(pattern(9, 70_000)));
    });
}

#[test]
fn rot_in_metadata_is_found_wherever_it_is() {
    let machine = Machine::new(22, SIZE);
    let config = StoreConfig { checkpoint_interval: Duration::from_hours(1), ..scrubbing() };
    let (store, shard) = machine.start(config.clone());
    fill(&machine, &shard, 600);
    write_checkpoint(&machine, &store);
    drop((store, shard));
    // What is below the containers is on the device only, then.
    machine.crash(weir_media::sim::CrashKeeps::Nothing);
    let store = machine.open(config);
    let nodes = blocks(&machine, b"WNOD");
    assert!(nodes.len() > 10);
    let headers: Vec<u64> = (1..5).map(|at| at * 4096).collect();
    // Both superblocks are read; of bitmaps and headers the slots that count: one bitmap, one of the copies of a header, behind
    // which there is a newer one soon.
    for (what, places, read) in [
        ("a superblock", vec![0, SIZE - 4096], 2),
        ("the space map", blocks(&machine, b"WMAP"), 1),
        ("a checkpoint header", headers, 1),
    ] {
        for place in &places {
            machine.disk.rot(place + 70, 1);
        }
        let report = passes(&machine, &store, 2);
        let is_named = |place: &&u64| {
            report.found.iter().any(|rot| rot.location.offset == **place && rot.location.what == what)
        };
        assert_eq!(places.iter().filter(is_named).count(), read, "{what} at {places:?}: {report:?}");
        for place in &places {
            machine.disk.rot(place + 70, 1);
        }
    }
    // Leaves that are rotten are named one by one. They are nowhere else, and whoever wants what is there is told.
    let renewed = passes(&machine, &store, 2).renewed;
    let leaf = nodes[nodes.len() / 2];
    machine.disk.rot(leaf + 60, 3);
    let report = passes(&machine, &store, 2);
    let named = |offset| report.found.iter().any(|rot| rot.location.offset == offset && !rot.renewed);
    assert!(named(leaf) && report.renewed == renewed, "{leaf}: {report:?}");
    let reader = store.pool(POOL).expect("the pool");
    let lost = machine.run(async move {
        let mut lost = 0;
        for number in 0..600 {
            let found = get(&reader, &format!("d{number}"), "a", u64::MAX).await;
            lost += u64::from(matches!(found, Err(FetchError::Index { .. })));
        }
        lost
    });
    assert!((1..100).contains(&lost), "{lost}");
}

/// What is damaged on the device while the store has it in memory, or in another copy, is whole before the next open: which would
/// fail otherwise, or lose what only the damaged place says.
#[test]
fn metadata_that_rots_while_the_store_has_it_is_written_anew() {
    let machine = Machine::new(24, SIZE);
    let config = StoreConfig { checkpoint_interval: Duration::from_hours(1), ..scrubbing() };
    let (store, shard) = machine.start(config.clone());
    fill(&machine, &shard, 600);
    let keeper = shard.clone();
    machine.run(async move { keeper.add_snapshot(CONTAINER, Epoch(70)).await.expect("taken") });
    let mut all = 0;
    for what in ["superblock", "copy of it", "maps", "headers", "nodes"] {
        write_checkpoint(&machine, &store);
        let places = match what {
            "superblock" => vec![0],
            "copy of it" => vec![SIZE - 4096],
            "maps" => blocks(&machine, b"WMAP"),
            "headers" => (1..5).map(|at| at * 4096).collect(),
            _ => blocks(&machine, b"WNOD"),
        };
        for place in places {
            machine.disk.rot(place + 70, 1);
        }
        let report = passes(&machine, &store, 2);
        assert!(report.renewed > all && report.rotten.is_empty(), "{what}: {report:?}");
        all = report.renewed;
    }
    drop((store, shard));
    machine.crash(weir_media::sim::CrashKeeps::Nothing);
    let store = machine.open(config);
    let shard = store.pool(POOL).expect("the pool");
    let reader = shard.clone();
    machine.run(async move {
        assert_eq!(reader.snapshots(CONTAINER).expect("the container"), [Epoch(70)]);
        for number in (0..600u64).step_by(7) {
            let len = len_of(number);
            let found = get(&reader, &format!("d{number}"), "a", u64::MAX).await.expect("read");
            assert!(found == Some(pattern(number, len)), "value {number}");
        }
    });
    assert_eq!(machine.audit(&store).problems, [""; 0]);
    assert_eq!(passes(&machine, &store, 2).found, [], "nothing of it is left");
}

/// Room for a few nodes of the index.
fn with_little_memory() -> StoreConfig {
    StoreConfig {
        checkpoint_interval: Duration::from_hours(1),
        index_bytes: 256 << 10,
        cache_bytes: 0,
        ..scrubbing()
    }
}

/// Brings most nodes of the index out of memory, and has all of them rot on the device: the scrubber writes those anew that stay.
/// The pool's shard after a crash.
fn after_rot(machine: &Machine, store: Rc<Store>, shard: Shard) -> Shard {
    write_checkpoint(machine, &store);
    let reader = shard.clone();
    machine.run(async move {
        for number in 80..2_000u64 {
            get(&reader, &format!("d{number}"), "a", u64::MAX).await.expect("read");
        }
    });
    assert!(store.stats().index.evictions > 100, "{:?}", store.stats());
    for place in blocks(machine, b"WNOD") {
        machine.disk.rot(place + 70, 1);
    }
    let report = passes(machine, &store, 2);
    assert!(report.renewed > 2 && report.rotten.get(&None) > Some(&10), "{report:?}");
    drop((store, shard));
    machine.crash(weir_media::sim::CrashKeeps::Nothing);
    machine.open(with_little_memory()).pool(POOL).expect("the pool")
}

#[test]
fn what_an_open_needs_is_written_anew_however_small_the_memory() {
    let machine = Machine::new(29, SIZE);
    let (store, shard) = machine.start(with_little_memory());
    let taken: Vec<Epoch> = (1..=300).map(Epoch).collect();
    let (keeper, wanted) = (shard.clone(), taken.clone());
    machine.run(async move { keeper.set_snapshots(CONTAINER, &wanted).await.expect("taken") });
    fill(&machine, &shard, 2_000);
    let shard = after_rot(&machine, store, shard);
    assert_eq!(shard.snapshots(CONTAINER).expect("the container"), taken);
}

#[test]
fn transactions_and_decisions_outlast_rot_however_small_the_memory() {
    const PREPARED: u64 = 60;
    // They fill leaves of their own.
    const DECIDED: u128 = 2000;
    let decided = |number| TransactionId(Uuid::from_u128((1 << 100) + number));
    let machine = Machine::new(30, SIZE);
    let (store, shard) = machine.start(with_little_memory());
    fill(&machine, &shard, 2_000);
    let (user, handle) = (shard.clone(), machine.handle());
    machine.run(async move {
        for number in 0..PREPARED {
            let value = pattern(number, 1000);
            let operation = Operation::Update {
                object: ObjectId { hi: 0, lo: 1000 + number },
                dkey: key("d"),
                conditions: Conditions::NONE,
                akeys: vec![single("a", &value)],
                data: Data::Borrowed(&value),
            };
            let id = TransactionId(Uuid::from_u128(u128::from(number)));
            user.prepare(CONTAINER, id, Epoch(handle.wall_ns()), &[operation]).await.expect("prepared");
        }
        for number in 0..DECIDED {
            user.abort_transaction(CONTAINER, decided(number)).await.expect("decided");
        }
    });
    let shard = after_rot(&machine, store, shard);
    let user = shard.clone();
    let undecided = machine.run(async move { user.undecided(CONTAINER).await.expect("told") });
    assert_eq!(undecided.len() as u64, PREPARED);
    machine.run(async move {
        for number in 0..DECIDED {
            assert!(shard.decision(CONTAINER, decided(number)).await.expect("told").is_some(), "{number}");
        }
    });
}

#[test]
fn metadata_that_rots_while_the_store_changes_costs_nothing() {
    let mut renewed = 0;
    for seed in 50..62 {
        let machine = Machine::new(seed, SIZE);
        let config = StoreConfig { checkpoint_interval: Duration::from_millis(20), ..scrubbing() };
        let (store, shard) = machine.start(config.clone());
        let random = Random::new(seed);
        let mut newest = std::collections::BTreeMap::new();
        for round in 0..30 {
            let writes: Vec<(u64, u64, usize)> = (0..40)
                .map(|at| {
                    (random.below(400), round * 100 + at + 1, [100, 1500, 2500][random.below(3) as usize])
                })
                .collect();
            newest.extend(writes.iter().map(|(number, epoch, len)| (*number, (*epoch, *len))));
            let (user, handle) = (shard.clone(), machine.handle());
            let writing = machine.handle().spawn(async move {
                for (number, epoch, len) in writes {
                    put(&user, &format!("d{number}"), "a", epoch, &pattern(epoch, len))
                        .await
                        .expect("stored");
                    handle.sleep(Duration::from_millis(2)).await;
                }
            });
            machine.sleep(Duration::from_millis(random.below(60)));
            let nodes = blocks(&machine, b"WNOD");
            for _ in 0..4 {
                machine.disk.rot(nodes[random.below(nodes.len() as u64) as usize] + 60, 3);
            }
            machine.run(writing).expect("it ends");
        }
        let report = passes(&machine, &store, 3);
        assert!(report.rotten.is_empty(), "seed {seed}: {report:?}");
        renewed += report.renewed;
        drop((store, shard));
        machine.crash(weir_media::sim::CrashKeeps::Nothing);
        let store = machine.open(config);
        let reader = store.pool(POOL).expect("the pool");
        machine.run(async move {
            for (number, (epoch, len)) in newest {
                let found = get(&reader, &format!("d{number}"), "a", u64::MAX).await.expect("read");
                assert!(found == Some(pattern(epoch, len)), "seed {seed}, value {number}");
            }
        });
        assert_eq!(machine.audit(&store).problems, [""; 0], "seed {seed}");
        assert_eq!(passes(&machine, &store, 2).found, [], "seed {seed}: nothing of it is left");
    }
    assert!(renewed > 10, "{renewed}");
}

/// What there are two of, or an older one of, does without the one that the device can't read.
#[test]
fn one_place_that_cannot_be_read_keeps_no_store_from_opening() {
    let machine = Machine::new(26, SIZE);
    let (store, shard) = machine.start(quiet());
    fill(&machine, &shard, 100);
    write_checkpoint(&machine, &store);
    drop((store, shard));
    for place in [0, SIZE - 4096, 4096, 8192, 12_288, 16_384].into_iter().chain(blocks(&machine, b"WMAP")) {
        machine.crash(weir_media::sim::CrashKeeps::Nothing);
        let content = machine.disk.bytes(place, 4096);
        machine.disk.make_unreadable(place..place + 4096);
        let handle = machine.handle();
        let device = machine.device();
        let opened = machine.run(async move { Store::open(&handle, device, &owner(), quiet()).await });
        let is_map = content.starts_with(b"WMAP");
        match opened {
            Ok(store) => assert_eq!(machine.audit(&store).problems, [""; 0], "{place}"),
            // Of the bitmaps one is the newest.
            Err(error) => assert!(is_map && error.to_string().contains("space map"), "{place}: {error}"),
        }
        machine.disk.make_readable();
    }
}

/// A superblock that is somebody else's by now stays: it may be what they have of value.
#[test]
fn what_somebody_else_wrote_over_a_superblock_is_not_written_over() {
    let machine = Machine::new(25, SIZE);
    let (store, _shard) = machine.start(scrubbing());
    let theirs = [&b"LABELONE"[..], &[0x5a; 4088]].concat();
    let device = machine.device();
    let written = theirs.clone();
    machine.run(async move {
        let block = weir_media::DmaBuf::copy_of(&written);
        device.write(0, vec![block.into()]).await.expect("written");
        device.flush().await.expect("flushed");
    });
    let report = passes(&machine, &store, 2);
    assert_eq!((report.rotten.get(&None), report.renewed), (Some(&1), 0), "{report:?}");
    assert!(machine.disk.bytes(0, 4096) == theirs);
}

#[test]
fn a_damaged_log_is_made_superfluous_by_a_checkpoint() {
    let machine = Machine::new(23, SIZE);
    let (store, shard) = machine.start(scrubbing());
    fill(&machine, &shard, 30);
    let batch = blocks(&machine, b"WLOG")[12];
    machine.disk.rot(batch + 80, 2);
    let report = passes(&machine, &store, 2);
    assert!(report.found.iter().any(|rot| rot.location.what == "a log batch"), "{report:?}");
    assert!(store.stats().checkpoints > 0, "one was asked for");
    drop(store);
    machine.crash(weir_media::sim::CrashKeeps::Nothing);
    let store = machine.open(quiet());
    let shard = store.pool(POOL).expect("the pool");
    machine.run(async move {
        for number in 0..30u64 {
            let len = len_of(number);
            let found = get(&shard, &format!("d{number}"), "a", u64::MAX).await.expect("read");
            assert!(found == Some(pattern(number, len)), "value {number}");
        }
    });
}

#[test]
fn nothing_sound_is_called_rotten_while_the_store_changes() {
    for seed in 30..36 {
        let machine = Machine::new(seed, SIZE);
        let config = StoreConfig {
            background: true,
            retention: Duration::ZERO,
            checkpoint_interval: Duration::from_millis(20),
            ..scrubbing()
        };
        let (store, shard) = machine.start(config);
        let handle = machine.handle();
        machine.run(async move {
            let random = Random::new(seed);
            for number in 1..1500u64 {
                let dkey = format!("d{}", random.below(60));
                let len = [100, 3000, 6000, 40_000][random.below(4) as usize];
                if random.below(10) == 0 {
                    let scope = PunchScope::Dkeys(vec![key(&dkey)]);
                    let _ = punch(&shard, OBJECT, scope, handle.wall_ns()).await;
                } else {
                    let epoch = handle.wall_ns();
                    put(&shard, &dkey, "a", epoch, &pattern(number, len)).await.expect("stored");
                }
                if number % 50 == 0 {
                    shard.aggregate(CONTAINER, Epoch(handle.wall_ns())).await.expect("aggregated");
                    handle.sleep(Duration::from_millis(5)).await;
                }
            }
        });
        let report = passes(&machine, &store, 1);
        assert!(report.passes >= 1 && report.bytes > 100_000, "{report:?}");
        assert_eq!(report.found, [], "seed {seed}");
        assert_eq!(store.stats().checksum_errors, 0);
    }
}

#[test]
fn the_rate_is_kept() {
    let machine = Machine::new(40, SIZE);
    let scrub = ScrubConfig { bytes_per_second: 100_000, interval: Duration::from_secs(2) };
    let (store, shard) = machine.start(StoreConfig { scrub: Some(scrub), ..quiet() });
    fill(&machine, &shard, 80);
    write_checkpoint(&machine, &store);
    let before = store.scrub().bytes;
    machine.sleep(Duration::from_secs(10));
    let read = store.scrub().bytes - before;
    assert!((500_000..1_200_000).contains(&read), "{read} bytes in 10 s");
}

/// Values in a known order, and the bytes that one pass over them reads.
fn filled_for_slow_passes(machine: &Machine) -> u64 {
    let (store, shard) = machine.start(scrubbing());
    fill(machine, &shard, 80);
    write_checkpoint(machine, &store);
    passes(machine, &store, 2);
    let before = passes(machine, &store, 1).bytes;
    passes(machine, &store, 1).bytes - before
}

#[test]
fn a_pass_goes_on_after_a_restart_where_it_was() {
    let machine = Machine::new(41, SIZE);
    let whole = filled_for_slow_passes(&machine);
    machine.crash(weir_media::sim::CrashKeeps::Nothing);
    let scrub = ScrubConfig { bytes_per_second: whole / 20, interval: Duration::from_secs(2) };
    let config = StoreConfig { scrub: Some(scrub), ..quiet() };
    let mut read = 0;
    let mut restarts = 0;
    // Restarted every six seconds, a pass of twenty would never come to its end if it began anew.
    let store = loop {
        let store = machine.open(config.clone());
        machine.sleep(Duration::from_secs(8));
        let report = store.scrub();
        read += report.bytes;
        if report.passes > 0 {
            break store;
        }
        write_checkpoint(&machine, &store);
        drop(store);
        machine.crash(weir_media::sim::CrashKeeps::Nothing);
        restarts += 1;
        assert!(restarts < 12, "{read} bytes of {whole} were read without an end");
    };
    assert!(restarts > 1 && read < whole * 2, "{read} bytes of {whole} were read in {restarts} restarts");
    assert_eq!(store.scrub().found, []);
}

#[test]
fn a_restart_does_not_bring_the_next_pass_nearer() {
    let machine = Machine::new(42, SIZE);
    let scrub = ScrubConfig { bytes_per_second: 256 << 20, interval: Duration::from_hours(2) };
    let config = StoreConfig { scrub: Some(scrub), ..quiet() };
    let (store, shard) = machine.start(config.clone());
    fill(&machine, &shard, 20);
    machine.sleep(Duration::from_mins(10));
    assert_eq!(store.scrub().passes, 1);
    drop((store, shard));
    machine.crash(weir_media::sim::CrashKeeps::Nothing);
    let store = machine.open(config);
    machine.sleep(Duration::from_mins(90));
    assert_eq!((store.scrub().passes, store.scrub().bytes), (0, 0));
    machine.sleep(Duration::from_mins(30));
    assert_eq!(store.scrub().passes, 1);
}

#[test]
fn aggregation_compares_what_it_merges_and_leaves_damage_where_it_is() {
    let machine = Machine::new(43, SIZE);
    let (store, shard) = machine.start(quiet());
    let user = shard.clone();
    machine.run(async move {
        for number in 0..16u64 {
            write(&user, 1, number + 1, number * 5000, &pattern(number, 5000)).await.expect("stored");
        }
    });
    let place = find(&machine, &pattern(9, 5000)[..4096]);
    machine.disk.rot(place + 4500, 2);
    machine.run(async move {
        shard.aggregate(CONTAINER, Epoch(100)).await.expect("aggregated");
        for number in 0..16u64 {
            let found = read(&shard, 1, u64::MAX, number * 5000, 5000).await;
            if number == 9 {
                let Err(FetchError::Corrupt { location, .. }) = found else { panic!("{found:?}") };
                // Chunks end at records that are multiples of 4096, and this part begins 56 records before one.
                assert_eq!(location.offset, place + 56 + 4096);
            } else {
                assert!(found.expect("sound").0 == pattern(number, 5000), "part {number}");
            }
        }
    });
    assert!(store.stats().checksum_errors > 0);
    assert_eq!(machine.audit(&store).problems, [""; 0]);
}

#[test]
fn a_mark_at_the_end_of_the_log_that_is_on_its_way_is_not_called_rotten() {
    let machine = Machine::new(27, 64 << 20);
    let config = StoreConfig { checkpoint_interval: Duration::from_hours(1), ..scrubbing() };
    let (store, shard) = machine.start(config);
    crate::dropped::fill(&machine, &store);
    // More than the last block of the ring takes: a mark, and a batch at the start.
    let stall = Duration::from_secs(20);
    machine.disk.set_options(SimDiskOptions { stall_probability: 1.0, stall, ..SimDiskOptions::default() });
    let user = shard.clone();
    let late = machine.handle().spawn(async move { put(&user, "x", "a", 1 << 20, &pattern(1, 4090)).await });
    machine.sleep(Duration::from_millis(1));
    machine.disk.set_options(SimDiskOptions::default());
    let report = passes(&machine, &store, 2);
    assert!(report.rotten.is_empty(), "{report:?}");
    machine.run(late).expect("it ends").expect("stored");
    assert!(passes(&machine, &store, 2).rotten.is_empty());
}

#[test]
fn a_device_that_is_out_of_use_is_not_called_rotten() {
    let machine = Machine::new(28, SIZE);
    drop(machine.start(quiet()));
    let handle = machine.handle();
    let device: Rc<dyn Device> = Rc::new(MonitoredDevice::new(&handle, machine.device()));
    let store = machine.run(async move { Store::open(&handle, device, &owner(), scrubbing()).await });
    let store = store.expect("it opens");
    store.condemn_device("a test says so");
    machine.sleep(Duration::from_secs(10));
    let report = store.scrub();
    assert!(report.rotten.is_empty() && report.passes == 0, "{report:?}");
}
