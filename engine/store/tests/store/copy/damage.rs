//! Copies of what is damaged.

use super::{Told, copied, copy_to, entries, number};
use crate::setup::*;
use std::rc::Rc;
use weir_inspect::{Copied, CopyError, Depth, Field, Filter, Inspector, Line, Loss, LossKind, Part, Report};
use weir_media::Device;
use weir_media::memory::MemoryDevice;
use weir_media::sim::{SimDisk, SimDiskOptions};
use weir_proto::Key;
use weir_proto::object::Extent;
use weir_runtime::random::Random;
use weir_store::{FetchError, Shard, Store};

pub(super) const SIZE: u64 = 32 << 20;

/// Bytes of the large extent.
const LONG: usize = 200_000;

/// Values of which each leaf of the index has a few.
const MANY: u64 = 400;

fn len_of(number: u64) -> usize {
    [2000, 6000, 50, 9000][(number % 4) as usize]
}

/// A store with its last changes in the log.
pub(super) fn filled() -> MemoryDevice {
    let device = MemoryDevice::new(SIZE);
    let held = device.clone();
    run(3, async move |handle| {
        let disk: Rc<dyn Device> = Rc::new(held);
        Store::format(&handle, &disk, &format_options()).await.expect("empty");
        let store = Store::open(&handle, disk, &owner(), quiet()).await.expect("a new store");
        let shard = store.create_pool(POOL, 16 << 20).await.expect("space");
        shard.create_container(CONTAINER).await.expect("created");
        for number in 0..MANY {
            let value = pattern(number, len_of(number));
            put(&shard, &format!("d{number}"), "a", 2 * number + 2, &value).await.expect("stored");
        }
        write(&shard, 1, 2000, 0, &pattern(1, LONG)).await.expect("stored");
        // Older data below it, which must not show where that is damaged.
        write(&shard, 2, 2002, 0, &pattern(2, LONG)).await.expect("stored");
        write(&shard, 2, 2004, 0, &pattern(3, LONG)).await.expect("stored");
        store.checkpoint().await.expect("written");
        put(&shard, "late", "a", 3000, &pattern(5, 7000)).await.expect("stored");
        put(&shard, "late", "b", 3002, &pattern(6, 70)).await.expect("stored");
    });
    device
}

fn inspected(device: &MemoryDevice) -> Report {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(5, async move |_| Inspector::open(disk).await.expect("a store").report(Depth::Everything).await)
}

pub(super) fn dump(device: &MemoryDevice, part: Part) -> Vec<Line> {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    let filter = Filter { limit: usize::MAX, ..Filter::default() };
    run(6, async move |_| {
        dumped_by(&Inspector::open(disk).await.expect("a store"), part, &filter).await.expect("dumped").0
    })
}

/// The entries that a copy has; nothing is wrong with it but data.
fn entries_of(device: &MemoryDevice) -> Vec<Line> {
    let report = inspected(device);
    assert!(report.findings.iter().all(|finding| finding.what == "data"), "{:?}", report.findings);
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(7, async move |_| entries(disk).await)
}

pub(super) fn copy_of(device: &MemoryDevice) -> (MemoryDevice, Copied, Vec<Loss>) {
    let to = MemoryDevice::new(SIZE);
    let (done, told) = copied(device, &to, false);
    let done = done.expect("copied");
    assert_eq!(done.losses, told.losses.len() as u64);
    (to, done, told.losses)
}

pub(super) fn on<T: 'static>(device: &MemoryDevice, task: impl AsyncFnOnce(Shard) -> T + 'static) -> T {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(8, async move |handle| {
        let store = Store::open(&handle, disk, &owner(), quiet()).await.expect("it opens");
        assert_eq!(store.audit().await.problems, [""; 0]);
        task(store.pool(POOL).expect("the pool")).await
    })
}

/// Where the bytes are that a line of a dump tells of.
fn places(line: &Line) -> u64 {
    let at = line.iter().find(|(name, _)| *name == "at").map(|(_, field)| field.to_string());
    at.and_then(|at| at.split('+').next()?.parse().ok()).expect("a place")
}

fn is_of(line: &Line, name: &str, value: &str) -> bool {
    line.contains(&(name_of(name), Field::Text(value.to_owned())))
}

/// A name that lives as long as those in lines.
fn name_of(name: &str) -> &'static str {
    ["entry", "dkey", "akey", "epoch"].into_iter().find(|known| *known == name).expect("a known name")
}

#[test]
fn a_rotten_block_is_told_of_and_stays_rotten() {
    let device = filled();
    let lines = dump(&device, Part::Entries);
    let dkey = Key::from_u64(2).to_string();
    let extents: Vec<&Line> =
        lines.iter().filter(|line| is_of(line, "entry", "extent") && is_of(line, "dkey", &dkey)).collect();
    let newest = extents.iter().find(|line| number(line, "epoch") == 2004).expect("an extent");
    let bad = places(newest) + 100_001;
    device.flip_bit(bad, 3);
    let (to, done, losses) = copy_of(&device);
    assert_eq!(losses.len(), 1, "{losses:?}");
    let loss = &losses[0];
    assert_eq!((loss.kind, loss.pool, loss.container), (LossKind::Data, Some(POOL), Some(CONTAINER)));
    assert_eq!((loss.object, loss.dkey.clone()), (Some(ARRAY), Some(Key::from_u64(2))));
    assert!(loss.offset <= bad && bad < loss.offset + loss.len && loss.epoch.is_some_and(|at| at.0 == 2004));
    assert!(loss.records.is_some_and(|part| (part.index..part.index + part.count).contains(&100_001)));
    assert!(loss.to_string().contains("does not match its checksum"), "{loss}");
    assert_eq!((done.damaged, done.left_out, done.lost_nodes), (loss.len, 0, 0));
    assert_eq!(entries_of(&to), entries_of(&filled()));
    let part = loss.records.expect("some");
    on(&to, async move |shard| {
        let error = read(&shard, 2, u64::MAX, 0, LONG as u64).await.expect_err("damaged");
        assert!(matches!(error, FetchError::Corrupt { .. }), "{error}");
        let error = read(&shard, 2, u64::MAX, part.index, 1).await.expect_err("damaged");
        assert!(matches!(error, FetchError::Corrupt { .. }), "{error}");
        // What is beside it is whole, and so is what was there before.
        let (data, _) = read(&shard, 2, u64::MAX, 0, part.index).await.expect("read");
        assert!(data == pattern(3, LONG)[..part.index as usize]);
        let (data, _) = read(&shard, 2, 2003, 0, LONG as u64).await.expect("read");
        assert!(data == pattern(2, LONG));
        assert_eq!(get(&shard, "late", "a", u64::MAX).await.expect("read"), Some(pattern(5, 7000)));
    });
}

/// Reads all values, and compares them. Returns how many can't be read.
async fn compare_values(shard: &Shard, may_be_missing: bool) -> u64 {
    let mut damaged = 0;
    for number in 0..MANY {
        match get(shard, &format!("d{number}"), "a", u64::MAX).await {
            Ok(Some(found)) => assert!(found == pattern(number, len_of(number)), "value {number}"),
            Ok(None) => assert!(may_be_missing, "value {number} is missing"),
            Err(FetchError::Corrupt { .. }) => damaged += 1,
            Err(error) => panic!("{error}"),
        }
    }
    damaged
}

#[test]
fn a_rotten_node_leaves_out_its_entries_and_is_told_with_their_keys() {
    let device = filled();
    let nodes = dump(&device, Part::Nodes);
    let leaves = nodes.iter().map(|line| number(line, "level")).max().expect("nodes");
    let leaves: Vec<&Line> = nodes.iter().filter(|line| number(line, "level") == leaves).collect();
    let whole = entries_of(&copy_of(&device).0);
    for leaf in [leaves[leaves.len() / 3], leaves[leaves.len() - 1]] {
        let damaged = device.copy(SIZE);
        damaged.flip_bit(number(leaf, "offset") + 77, 1);
        let (to, done, losses) = copy_of(&damaged);
        let [loss] = &losses[..] else { panic!("{losses:?}") };
        assert_eq!((loss.kind, loss.what, done.lost_nodes), (LossKind::Entries, "index node", 1));
        assert_eq!(loss.offset, number(leaf, "offset"));
        let subject = loss.subject.as_deref().expect("a range");
        assert!(subject.contains("the entries from objects pool 1 container 1 object"), "{subject}");
        let found = entries_of(&to);
        assert!(found.len() < whole.len() && found.iter().all(|line| whole.contains(line)));
        assert_eq!(found.len() as u64 + number(leaf, "entries"), whole.len() as u64);
        on(&to, async |shard| {
            assert_eq!(compare_values(&shard, true).await, 0);
            assert_eq!(get(&shard, "late", "b", u64::MAX).await.expect("read"), Some(pattern(6, 70)));
            put(&shard, "d1", "a", 5000, b"new").await.expect("it takes changes");
        });
    }
}

#[test]
fn without_the_node_of_its_pools_a_store_has_nothing_that_could_be_copied() {
    let device = filled();
    let nodes = dump(&device, Part::Nodes);
    let leaves = nodes.iter().map(|line| number(line, "level")).max().expect("nodes");
    let first = nodes.iter().find(|line| number(line, "level") == leaves).expect("a leaf");
    device.flip_bit(number(first, "offset") + 77, 1);
    let (to, done, losses) = copy_of(&device);
    assert!(done.left_out > MANY && losses.len() > 1 && losses.len() < 6, "{losses:?}");
    let text: Vec<String> = losses.iter().map(ToString::to_string).collect();
    assert!(text.iter().any(|loss| loss.contains("entries of objects of pool 1 container 1")), "{text:?}");
    assert_eq!(entries_of(&to), Vec::<Line>::new());
}

/// Stores more, each with a batch of its own, and returns where these are.
fn add_batches(device: &MemoryDevice, dkeys: core::ops::Range<u64>) -> Vec<u64> {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(9, async move |handle| {
        let store = Store::open(&handle, disk, &owner(), quiet()).await.expect("it opens");
        let shard = store.pool(POOL).expect("the pool");
        for number in dkeys {
            put(&shard, &format!("e{number}"), "a", 4000 + 2 * number, &pattern(number, 70))
                .await
                .expect("stored");
        }
    });
    let log = dump(device, Part::Log);
    log.iter().filter(|line| line[0].0 == "offset").map(|line| number(line, "offset")).collect()
}

#[test]
fn what_stands_before_and_behind_a_rotten_batch_of_the_log_is_there() {
    const ADDED: u64 = 9;
    let device = filled();
    let batches = add_batches(&device, 0..ADDED);
    // Batch by batch, without the last one, and several at once.
    let first = batches.len() as u64 - ADDED;
    let of_one = (0..ADDED - 1).map(|number| number..number + 1);
    for lost in of_one.chain([2..5, 0..ADDED - 1]) {
        let damaged = device.copy(SIZE);
        for number in lost.clone() {
            let place = batches[(first + number) as usize];
            damaged.flip_bit(place + 80, 1);
            damaged.flip_bit(place + 81, 3);
            // Not even its header is whole.
            damaged.flip_bit(place + 17, 3);
        }
        let (to, done, losses) = copy_of(&damaged);
        let [loss] = &losses[..] else { panic!("{losses:?}") };
        assert_eq!((loss.kind, loss.what, done.left_out), (LossKind::Entries, "log batch", 0));
        assert_eq!(loss.offset, batches[(first + lost.start) as usize]);
        on(&to, async move |shard| {
            assert_eq!(compare_values(&shard, false).await, 0);
            assert_eq!(get(&shard, "late", "a", u64::MAX).await.expect("read"), Some(pattern(5, 7000)));
            for number in 0..ADDED {
                let found = get(&shard, &format!("e{number}"), "a", u64::MAX).await.expect("read");
                let expected = (!lost.contains(&number)).then(|| pattern(number, 70));
                assert_eq!(found, expected, "value {number} where {lost:?} are lost");
            }
        });
    }
    // Of one bit nothing is lost.
    device.flip_bit(batches[first as usize] + 80, 1);
    let (to, done, losses) = copy_of(&device);
    assert_eq!((losses, done.mended.len()), (vec![], 1));
    on(&to, async move |shard| {
        for number in 0..ADDED {
            let found = get(&shard, &format!("e{number}"), "a", u64::MAX).await.expect("read");
            assert_eq!(found, Some(pattern(number, 70)));
        }
    });
}

#[test]
fn a_rotten_superblock_is_mended_by_the_copy() {
    let device = filled();
    let whole = entries_of(&device);
    for offset in [30, 4096 + 50, SIZE - 4096 + 30] {
        let damaged = device.copy(SIZE);
        damaged.flip_bit(offset, 2);
        let (to, done, losses) = copy_of(&damaged);
        assert_eq!(losses, []);
        assert!(
            done.mended.iter().any(|finding| finding.offset == offset / 4096 * 4096),
            "{:?}",
            done.mended
        );
        assert_eq!(entries_of(&to), whole);
        assert_eq!(inspected(&to).findings, []);
    }
}

#[test]
fn without_a_checkpoint_header_there_is_nothing_to_copy() {
    let device = filled();
    (1..5).for_each(|block| device.flip_bit(block * 4096 + 60, 1));
    let to = MemoryDevice::new(SIZE);
    let (done, _) = copied(&device, &to, false);
    assert!(matches!(done, Err(CopyError::NoIndex { .. })), "{done:?}");
    assert!(to.bytes(0, SIZE as usize).iter().all(|byte| *byte == 0), "something was written");
}

#[test]
fn bits_that_flip_anywhere_never_give_wrong_data() {
    let (device, random) = (filled(), Random::new(77));
    let used: Vec<u64> =
        (0..SIZE / 4096).filter(|at| device.bytes(at * 4096, 4096).iter().any(|byte| *byte != 0)).collect();
    for round in 0..40 {
        let damaged = device.copy(SIZE);
        for _ in 0..=random.below(5) {
            let block = used[random.below(used.len() as u64) as usize];
            damaged.flip_bit(block * 4096 + random.below(4096), random.below(8) as u8);
        }
        let (to, done, losses) = copy_of(&damaged);
        let is_short = losses.iter().any(|loss| loss.kind == LossKind::Entries);
        if losses.iter().all(|loss| loss.what != "index node") {
            assert_eq!(done.left_out, 0, "round {round}");
        }
        entries_of(&to);
        let data = losses.iter().filter(|loss| loss.kind == LossKind::Data).count() as u64;
        if done.left_out > 0 {
            continue;
        }
        let damaged = on(&to, async move |shard| compare_values(&shard, is_short).await);
        assert!(damaged <= data, "round {round}: {damaged} of {losses:?}");
    }
}

#[test]
fn noise_anywhere_never_stops_a_copy() {
    let (device, random) = (filled(), Random::new(12));
    for _ in 0..60 {
        let damaged = device.copy(SIZE);
        for _ in 0..=random.below(6) {
            let noise = pattern(random.below(1 << 40), random.below(6000) as usize);
            damaged.overwrite((random.below(SIZE / 512) * 512).min(SIZE - 6000), &noise);
        }
        let disk: Rc<dyn Device> = Rc::new(damaged);
        run(13, async move |handle| {
            let Ok(inspector) = Inspector::open(disk).await else { return };
            let (mut told, to) = (Told::default(), Rc::new(MemoryDevice::new(SIZE)) as Rc<dyn Device>);
            let Ok(survey) = inspector.survey(&mut told).await else { return };
            let options = weir_inspect::CopyOptions { restart: false, config: quiet() };
            let done = inspector.copy(&handle, &survey, &to, &options, &mut told).await.expect("copied");
            assert_eq!(done.losses, told.losses.len() as u64);
            let report = Inspector::open(to).await.expect("a store").report(Depth::Everything).await;
            assert!(report.findings.iter().all(|one| one.what == "data"), "{:?}", report.findings);
        });
    }
}

/// A disk with what is on a device.
fn disk_of(device: &MemoryDevice, machine: &Machine) {
    let (disk, content) = (machine.device(), device.bytes(0, SIZE as usize));
    machine.run(async move {
        let buffer = weir_media::DmaBuf::copy_of(&content);
        disk.write(0, vec![buffer.into()]).await.expect("written");
        disk.flush().await.expect("stable");
    });
}

#[test]
fn what_can_not_be_read_is_lost_and_nothing_beside_it() {
    let device = filled();
    let lines = dump(&device, Part::Entries);
    let dkey = Key::from_u64(1).to_string();
    let extent = lines
        .iter()
        .find(|line| is_of(line, "entry", "extent") && is_of(line, "dkey", &dkey))
        .expect("an extent");
    let machine = Machine::new(31, SIZE);
    disk_of(&device, &machine);
    // In the second of its blocks, and in a dozen of others: more than put a device out of use.
    let bad = places(extent) + 5000;
    machine.disk.make_unreadable(bad..bad + 1);
    let values: Vec<&Line> = lines
        .iter()
        .filter(|line| is_of(line, "entry", "value") && line.iter().any(|(name, _)| *name == "at"))
        .collect();
    for line in values.iter().take(12) {
        machine.disk.make_unreadable(places(line)..places(line) + 1);
    }
    let disk = SimDisk::new("copy", SIZE, 32, SimDiskOptions::default());
    let (handle, from, to) = (machine.handle(), machine.device(), disk.attach(&machine.handle()));
    let losses = machine.run(async move {
        let mut told = Told::default();
        let done =
            copy_to(&handle, (from, Rc::clone(&to)), (false, quiet()), &mut told).await.expect("copied");
        assert_eq!(done.lost_nodes, 0);
        let store = Store::open(&handle, to, &owner(), quiet()).await.expect("it opens");
        let shard = store.pool(POOL).expect("the pool");
        assert_eq!(compare_values(&shard, false).await, 12);
        let error = read(&shard, 1, u64::MAX, 5000, 1).await.expect_err("damaged");
        assert!(matches!(error, FetchError::Corrupt { .. }), "{error}");
        let (data, _) = read(&shard, 1, u64::MAX, 100_000, 100_000).await.expect("read");
        assert!(data == pattern(1, LONG)[100_000..]);
        told.losses
    });
    assert_eq!(losses.len(), 13, "{losses:?}");
    assert!(losses.iter().all(|loss| loss.reason.contains("injected fault")), "{losses:?}");
    let of_extent = losses.iter().find(|loss| loss.object == Some(ARRAY)).expect("told");
    let Extent { index, count } = of_extent.records.expect("records");
    assert!(index <= 5000 && 5000 < index + count && count <= 40_000, "{of_extent}");
}

#[test]
fn zeros_that_can_not_be_read_do_not_become_good_data() {
    let machine = Machine::new(33, SIZE);
    let (store, shard) = machine.start(quiet());
    machine.run(async move {
        write(&shard, 1, 2, 0, &[0; 4096]).await.expect("stored");
        store.close().await.expect("closed");
    });
    let report = machine.inspect(Depth::Outline);
    let data = report.regions.iter().find(|region| region.name == "data region").expect("one");
    let device = machine.device();
    let line = machine.run(async move {
        let store = Inspector::open(device).await.expect("a store");
        let filter = Filter { limit: usize::MAX, ..Filter::default() };
        dumped_by(&store, Part::Entries, &filter).await.expect("dumped").0
    });
    let extent = line.iter().find(|line| is_of(line, "entry", "extent")).expect("one");
    assert!(places(extent) >= data.offset);
    machine.disk.make_unreadable(places(extent)..places(extent) + 1);
    let disk = SimDisk::new("copy", SIZE, 34, SimDiskOptions::default());
    let (handle, from, to) = (machine.handle(), machine.device(), disk.attach(&machine.handle()));
    machine.run(async move {
        let mut told = Told::default();
        copy_to(&handle, (from, Rc::clone(&to)), (false, quiet()), &mut told).await.expect("copied");
        assert_eq!(told.losses.len(), 1);
        let store = Store::open(&handle, to, &owner(), quiet()).await.expect("it opens");
        let shard = store.pool(POOL).expect("the pool");
        let error = read(&shard, 1, u64::MAX, 0, 4096).await.expect_err("damaged");
        assert!(matches!(error, FetchError::Corrupt { .. }), "{error}");
    });
}

#[test]
fn what_is_read_wrong_once_is_read_again() {
    let device = filled();
    let machine = Machine::new(35, SIZE);
    disk_of(&device, &machine);
    let lines = dump(&device, Part::Entries);
    let values = lines.iter().filter(|line| line.iter().any(|(name, _)| *name == "at"));
    values.step_by(7).for_each(|line| machine.disk.misread(places(line) + 9, 3));
    let error_probability = 0.05;
    machine.disk.set_options(SimDiskOptions { error_probability, ..SimDiskOptions::default() });
    let disk = SimDisk::new("copy", SIZE, 36, SimDiskOptions::default());
    let (handle, from, to) = (machine.handle(), machine.device(), disk.attach(&machine.handle()));
    let (losses, found) = machine.run(async move {
        let mut told = Told::default();
        copy_to(&handle, (from, Rc::clone(&to)), (false, quiet()), &mut told).await.expect("copied");
        (told.losses, entries(to).await)
    });
    assert_eq!(losses, []);
    assert_eq!(found, entries_of(&device));
}

/// Copies a store from a simulated disk, to which something happens before it is looked at, and again before it is copied.
pub(super) fn copied_amid(
    device: &MemoryDevice,
    seed: u64,
    before: impl FnOnce(&SimDisk),
    between: impl FnOnce(&SimDisk) + 'static,
) -> Result<Copied, CopyError> {
    let machine = Machine::new(seed, SIZE);
    disk_of(device, &machine);
    before(&machine.disk);
    let disk = SimDisk::new("copy", SIZE, seed + 1, SimDiskOptions::default());
    let (handle, from, to) = (machine.handle(), machine.device(), disk.attach(&machine.handle()));
    let changing = machine.disk.clone();
    machine.run(async move {
        let inspector = Inspector::open(from).await.expect("a store");
        let mut told = Told::default();
        let survey = inspector.survey(&mut told).await.expect("looked at");
        between(&changing);
        let options = weir_inspect::CopyOptions { restart: false, config: quiet() };
        inspector.copy(&handle, &survey, &to, &options, &mut told).await
    })
}

#[test]
fn a_device_that_goes_away_is_not_taken_for_one_that_has_lost_everything() {
    let done = copied_amid(&filled(), 37, |_| (), |disk| disk.make_unreadable(0..SIZE));
    assert!(matches!(done, Err(CopyError::Source { .. })), "{done:?}");
}
