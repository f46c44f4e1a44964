//! Versions that are damaged on the device, and are written anew with data from elsewhere.

use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use weir_media::sim::CrashKeeps;
use weir_proto::history::VersionName;
use weir_proto::{Epoch, Key};
use weir_store::{DamagedVersion, RepairOutcome, Shard, UpdateError};

const SIZE: u64 = 24 << 20;

/// Bytes of the value that is damaged: three chunks.
const LEN: usize = 70_000;

/// Versions of a dkey that are damaged.
fn damaged_in(machine: &Machine, shard: &Shard, dkey: &str) -> Vec<VersionName> {
    let (shard, dkey) = (shard.clone(), key(dkey));
    machine.run(async move { shard.damaged_versions(CONTAINER, (OBJECT, &dkey)).await.expect("read") })
}

fn damaged(machine: &Machine, shard: &Shard, name: &VersionName) -> Option<DamagedVersion> {
    let (shard, name) = (shard.clone(), name.clone());
    machine.run(async move { shard.damaged_version(&name).await.expect("read") })
}

fn repair(machine: &Machine, shard: &Shard, damaged: DamagedVersion) -> Result<RepairOutcome, UpdateError> {
    let shard = shard.clone();
    machine.run(async move { shard.repair_version(damaged).await })
}

fn shown(machine: &Machine, shard: &Shard, akey: &'static str, epoch: u64) -> Option<Vec<u8>> {
    let shard = shard.clone();
    machine.run(async move { get(&shard, "d", akey, epoch).await.expect("sound") })
}

/// First byte of the only place of some bytes on the disk.
fn place_of(machine: &Machine, bytes: &[u8]) -> u64 {
    let places = (0..SIZE / 4096).map(|at| at * 4096);
    let found: Vec<u64> = places.filter(|at| machine.disk.bytes(*at, 64) == bytes[..64]).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}

#[test]
fn a_damaged_version_is_written_anew_by_data_that_matches_its_checksums_and_by_no_other() {
    for seed in 0..3 {
        let machine = Machine::new(40 + seed, SIZE);
        let (store, shard) = machine.start(quiet());
        let (value, newer) = (pattern(3, LEN), pattern(4, LEN));
        let (writer, values) = (shard.clone(), (value.clone(), newer.clone()));
        machine.run(async move {
            put(&writer, "d", "a", 5, &values.0).await.expect("stored");
            put(&writer, "d", "a", 6, &values.1).await.expect("stored");
            put(&writer, "d", "b", 7, &pattern(5, 3000)).await.expect("stored");
            put(&writer, "e", "a", 8, &pattern(6, LEN)).await.expect("stored");
        });
        assert_eq!(damaged_in(&machine, &shard, "d"), []);
        // In its second chunk: a bit, or nothing can be read there.
        let place = place_of(&machine, &value) + 40_000;
        if seed == 2 {
            machine.disk.make_unreadable(place..place + 1);
        } else {
            machine.disk.rot(place, 5);
        }
        let names = damaged_in(&machine, &shard, "d");
        let [name] = &names[..] else { panic!("{names:?}") };
        assert_eq!((&name.dkey, &name.akey, name.extent, name.epoch), (&key("d"), &key("a"), None, Epoch(5)));
        assert_eq!(damaged_in(&machine, &shard, "e"), []);
        let found = damaged(&machine, &shard, name).expect("it is damaged");
        // Another value, one that is shorter, and one that is damaged at the same place.
        let (mut other, mut altered) = (found.clone(), value.clone());
        altered[40_000] ^= 1;
        for wrong in [&newer[..], &value[1..]] {
            other.take(wrong);
            assert!(other == found, "seed {seed}");
        }
        other.take(&altered);
        assert!(!other.is_whole(), "seed {seed}");
        let refused = repair(&machine, &shard, other);
        assert!(matches!(refused, Err(UpdateError::Invalid(_))), "{refused:?}");
        // What is damaged elsewhere doesn't matter.
        let (mut whole, mut elsewhere) = (found.clone(), value.clone());
        elsewhere[LEN - 1] ^= 1;
        whole.take(&elsewhere);
        assert!(whole.is_whole());
        let free = store.space().free;
        machine.disk.make_unwritable(0..u64::MAX);
        assert_eq!(
            repair(&machine, &shard, whole.clone()).expect("the store goes on"),
            RepairOutcome::NoRoom
        );
        assert_eq!(store.space().free, free, "what was reserved");
        machine.disk.make_writable();
        assert_eq!(repair(&machine, &shard, whole.clone()).expect("written"), RepairOutcome::Repaired);
        assert_eq!(repair(&machine, &shard, whole).expect("looked at"), RepairOutcome::Changed);
        assert_eq!((damaged_in(&machine, &shard, "d"), damaged(&machine, &shard, name)), (Vec::new(), None));
        drop((store, shard));
        machine.crash(CrashKeeps::Nothing);
        let store = machine.open(quiet());
        let shard = store.pool(POOL).expect("the pool");
        assert!(shown(&machine, &shard, "a", 5) == Some(value), "seed {seed}: the damaged one");
        assert!(shown(&machine, &shard, "a", 6) == Some(newer), "seed {seed}: the one behind it");
        assert_eq!(machine.audit(&store).problems, [""; 0]);
    }
}

#[test]
fn a_crash_amid_a_repair_leaves_the_damaged_version_or_the_whole_one() {
    let mut outcomes = [0, 0];
    for step in 0..40 {
        let machine = Machine::new(60 + step, SIZE);
        let (store, shard) = machine.start(quiet());
        let value = pattern(3, LEN);
        let (writer, stored) = (shard.clone(), value.clone());
        let checkpointed = Rc::clone(&store);
        machine.run(async move {
            put(&writer, "d", "a", 5, &stored).await.expect("stored");
            // An open takes a damaged value of the last record for one that wasn't written to its end.
            checkpointed.checkpoint().await.expect("written");
        });
        machine.disk.rot(place_of(&machine, &value) + 40_000, 5);
        let names = damaged_in(&machine, &shard, "d");
        let mut whole = damaged(&machine, &shard, &names[0]).expect("it is damaged");
        whole.take(&value);
        let repairing = shard.clone();
        let handle = machine.handle();
        handle.spawn(async move { repairing.repair_version(whole).await });
        machine.sleep(Duration::from_micros(step * 50));
        drop((store, shard));
        machine.crash(CrashKeeps::Any);
        let store = machine.open(quiet());
        let shard = store.pool(POOL).expect("the pool");
        let left = damaged_in(&machine, &shard, "d");
        outcomes[usize::from(left.is_empty())] += 1;
        if left.is_empty() {
            assert!(shown(&machine, &shard, "a", 5) == Some(value), "step {step}");
        } else {
            assert_eq!(left, names, "step {step}");
        }
        assert_eq!(machine.audit(&store).problems, [""; 0], "step {step}");
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

#[test]
fn the_data_of_a_version_is_given_also_where_it_was_merged_with_others() {
    let machine = Machine::new(50, SIZE);
    let (_store, shard) = machine.start(quiet());
    let (first, second, given) = (pattern(1, 5000), pattern(2, 5000), shard.clone());
    let name = |epoch: u64, index| VersionName {
        container: CONTAINER,
        object: ARRAY,
        dkey: Key::from_u64(1),
        akey: key("data"),
        extent: Some(weir_proto::object::Extent { index, count: 5000 }),
        epoch: Epoch(epoch),
    };
    machine.run(async move {
        write(&given, 1, 2, 0, &first).await.expect("stored");
        write(&given, 1, 3, 5000, &second).await.expect("stored");
        for is_merged in [false, true] {
            if is_merged {
                given.aggregate(CONTAINER, Epoch(100)).await.expect("aggregated");
            }
            for (name, data) in [(name(2, 0), &first), (name(3, 5000), &second)] {
                assert!(given.version_data(&name, 5000).await.expect("read") == *data, "{is_merged}: {name}");
            }
            assert_eq!(given.version_data(&name(3, 7000), 5000).await.expect("read"), []);
        }
    });
}
