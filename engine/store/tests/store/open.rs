//! Devices that aren't what they should be: each is refused with an error that says what, where and what to do, and
//! is left as it was.

use crate::setup::*;
use std::rc::Rc;
use std::time::Duration;
use weir_inspect::{Depth, Field, Filter, Inspector, Line, Part, Severity};
use weir_media::Device;
use weir_media::memory::MemoryDevice;
use weir_media::sim::CrashKeeps;
use weir_proto::object::{AkeyFetch, Conditions, Value};
use weir_proto::{Epoch, Rank, TargetIndex};
use weir_runtime::random::Random;
use weir_store::{FetchError, FormatError, FormatOptions, OpenError, Owner, Store, UpdateError};

const SIZE: u64 = 16 << 20;

fn format(device: &MemoryDevice) -> Result<(), FormatError> {
    let device: Rc<dyn Device> = Rc::new(device.clone());
    run(1, async move |handle| Store::format(&handle, &device, &format_options()).await).map(|_| ())
}

fn open_as(device: &MemoryDevice, owner: Owner) -> Result<(), OpenError> {
    let device: Rc<dyn Device> = Rc::new(device.clone());
    run(2, async move |handle| Store::open(&handle, device, &owner, quiet()).await.map(drop))
}

fn open(device: &MemoryDevice) -> Result<(), OpenError> {
    open_as(device, owner())
}

fn formatted() -> MemoryDevice {
    let device = MemoryDevice::new(SIZE);
    format(&device).expect("an empty device");
    device
}

#[test]
fn a_format_refuses_any_content_and_changes_nothing() {
    for (offset, bytes, found) in [
        (1080, b"\x53\xef".as_slice(), "an ext2, ext3 or ext4 file system"),
        (0, b"XFSB", "an XFS file system"),
        (512, b"LABELONE", "an LVM physical volume"),
        (512, b"EFI PART", "a GPT partition table"),
        (0, b"LUKS\xba\xbe", "a LUKS volume"),
        (0, b"SPDKBLOB", "an SPDK blobstore"),
        (0, b"\x1f\x8b", "a gzip file"),
        (510, b"\x55\xaa", "a partition table or boot sector"),
        (SIZE - 1, b"x", "unknown data behind a start of zeros"),
        (SIZE / 2 + 1, b"\x01", "unknown data behind a start of zeros"),
    ] {
        let device = MemoryDevice::new(SIZE);
        device.overwrite(offset, bytes);
        let error = format(&device).expect_err("there is content");
        let expected = FormatError::NotEmpty { device: "memory".to_owned(), offset, found };
        assert_eq!(error, expected);
        assert_eq!(device.stats().writes, 0);
        assert!(error.to_string().contains("left untouched"));
    }
    let again = format(&formatted()).expect_err("a store");
    assert!(matches!(again, FormatError::NotEmpty { found: "a Weir store", .. }));
    assert!(matches!(format(&MemoryDevice::new(1 << 20)), Err(FormatError::TooSmall { .. })));
}

#[test]
fn devices_are_formatted_and_opened_where_the_bitmaps_take_what_the_last_of_them_would_be_of() {
    // The region of bitmaps has room for one more, or two, than there are groups of blocks then.
    for (size, log_bytes) in [(141_586_432, Some(8 << 20)), (80 << 30, None), (1_920_383_410_176, None)] {
        let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(size));
        let problems = run(1, async move |handle| {
            let options = FormatOptions { log_bytes, ..format_options() };
            Store::format(&handle, &device, &options).await.expect("an empty device");
            let store = Store::open(&handle, device, &owner(), quiet()).await.expect("it opens");
            store.checkpoint().await.expect("written");
            store.audit().await.problems
        });
        assert_eq!(problems, [""; 0], "{size} bytes");
    }
}

#[test]
fn an_interrupted_format_is_recognised_and_can_be_done_again() {
    let whole = formatted();
    let device = MemoryDevice::new(SIZE);
    // As after the first write of a format, with some of the rest.
    let machine = Machine::new(5, SIZE);
    machine.disk.halt_at(5);
    let (handle, disk) = (machine.handle(), machine.device());
    let halted = machine.world.try_block_on(&machine.node, Duration::from_secs(9), async move {
        Store::format(&handle, &disk, &format_options()).await
    });
    assert!(halted.is_err());
    machine.crash(CrashKeeps::Everything);
    let error = machine.try_open(quiet()).expect_err("not finished");
    assert!(matches!(error, OpenError::Unfinished { .. }) && error.is_unformatted());
    machine.format();
    machine.open(quiet());
    // The same content without the mark is foreign.
    device.overwrite(5 * 4096, &whole.bytes(5 * 4096, 4096));
    assert!(matches!(format(&device), Err(FormatError::NotEmpty { .. })));
}

/// Devices as a format leaves them when the power ends after any number of operations.
fn interrupted() -> Vec<MemoryDevice> {
    let mut devices = Vec::new();
    for operations in 2.. {
        for (seed, keeps) in [(5, CrashKeeps::Everything), (6, CrashKeeps::Any), (7, CrashKeeps::Any)] {
            let machine = Machine::new(seed, SIZE);
            machine.disk.halt_at(operations);
            let (handle, disk) = (machine.handle(), machine.device());
            let format = async move { Store::format(&handle, &disk, &format_options()).await };
            if machine.world.try_block_on(&machine.node, Duration::from_secs(9), format).is_ok() {
                return devices;
            }
            machine.crash(keeps);
            let device = MemoryDevice::new(SIZE);
            device.overwrite(0, &machine.disk.bytes(0, SIZE as usize));
            if device.bytes(0, 8) == b"WEIRFRMT" {
                devices.push(device);
            }
        }
    }
    devices
}

#[test]
fn behind_the_mark_of_a_format_only_what_that_has_left_is_written_over() {
    const BACKUP: u64 = SIZE - 512;
    let devices = interrupted();
    assert!(devices.len() > 15, "only {} interrupted formats", devices.len());
    for device in devices {
        // A RAID's superblock, tables, and data in the map, the log, the first block of data, behind it and at the very end.
        for offset in
            [4096, 3 * 4096 + 17, 5 * 4096 + 900, 6 * 4096, 9 * 4096, SIZE / 2, SIZE - (7 << 20), BACKUP]
        {
            let theirs = device.copy(SIZE);
            theirs.overwrite(offset, b"\xfc\x4e\x2b\xa9");
            let error = format(&theirs).expect_err("there is content");
            let expected = "data behind the mark of a format that was interrupted";
            assert!(
                matches!(error, FormatError::NotEmpty { offset: at, found, .. }
                    if at / 4096 == offset / 4096 && found == expected),
                "{offset}: {error}"
            );
            assert_eq!(theirs.stats().writes, 0);
        }
        format(&device).expect("all of it is ours");
        open(&device).expect("formatted");
    }
}

#[test]
fn wrong_devices_are_told_apart() {
    let blank = open(&MemoryDevice::new(SIZE)).expect_err("blank");
    assert!(matches!(blank, OpenError::Blank { .. }) && blank.is_unformatted());
    let foreign = MemoryDevice::new(SIZE);
    foreign.overwrite(1080, b"\x53\xef");
    let error = open(&foreign).expect_err("foreign");
    assert!(
        matches!(error, OpenError::Foreign { found: "an ext2, ext3 or ext4 file system", .. }),
        "{error}"
    );
    let other = Owner { system: "weir".to_owned(), rank: Rank(2), target: TargetIndex(0) };
    let error = open_as(&formatted(), other).expect_err("another rank").to_string();
    assert!(error.contains("rank 1") && error.contains("rank 2"), "{error}");
    let truncated = formatted().copy(SIZE - 8192);
    let error = open(&truncated).expect_err("truncated");
    assert!(matches!(error, OpenError::Truncated { formatted: SIZE, .. }), "{error}");
}

#[test]
fn superblocks_stand_in_for_each_other_unless_somebody_overwrote_one() {
    let device = formatted();
    device.flip_bit(100, 3);
    open(&device).expect("the copy is intact");
    device.flip_bit(SIZE - 4000, 1);
    let error = open(&device).expect_err("both are damaged");
    assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
    let device = formatted();
    device.overwrite(0, &[0; 4096]);
    let error = open(&device).expect_err("wiped");
    assert!(matches!(error, OpenError::Overwritten { found: "zeros", .. }), "{error}");
    device.overwrite(0, b"LUKS");
    assert!(matches!(open(&device), Err(OpenError::Overwritten { found: "a LUKS volume", .. })));
    device.overwrite(SIZE - 4096, &[0; 4096]);
    assert!(matches!(open(&device), Err(OpenError::Foreign { found: "a LUKS volume", .. })));
    // A wiped device isn't blank: what is behind keeps a format from it.
    device.overwrite(0, &[0; 4096]);
    assert!(matches!(open(&device), Err(OpenError::Blank { .. })));
    assert!(matches!(format(&device), Err(FormatError::NotEmpty { .. })));
}

#[test]
fn the_copy_of_the_superblock_is_found_where_the_device_ended_when_it_was_formatted() {
    let grown = formatted().copy(2 * SIZE + 8192);
    grown.flip_bit(100, 3);
    open(&grown).expect("the copy is intact");
    let report = crate::golden::inspect(&grown, Depth::Everything);
    let places: Vec<_> = report.copies[..2].iter().map(|copy| (copy.offset, copy.fault.is_none())).collect();
    assert_eq!(places, [(0, false), (SIZE - 4096, true)]);
    // Any of the checkpoint headers says where it is.
    for lost in 1..4 {
        grown.overwrite(lost * 4096, &[0xff; 4096]);
        open(&grown.copy(2 * SIZE)).expect("a header is intact");
    }
    let wiped = grown.copy(2 * SIZE);
    wiped.overwrite(0, &[0; 4096]);
    let error = open(&wiped).expect_err("wiped");
    assert!(matches!(error, OpenError::Overwritten { found: "zeros", copy, .. } if copy == SIZE - 4096));
    grown.overwrite(4 * 4096, &[0xff; 4096]);
    let error = open(&grown).expect_err("nothing says where it is").to_string();
    assert!(error.contains("if the device has grown since it was formatted"), "{error}");
}

/// Changes the superblocks' version or features as a later release would write them.
fn with_field(at: u64, byte: u8) -> MemoryDevice {
    let device = formatted();
    for offset in [0, SIZE - 4096] {
        let mut block = device.bytes(offset, 4096);
        block[at as usize] = byte;
        block[12..16].fill(0);
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &block) as u32;
        block[12..16].copy_from_slice(&crc.to_le_bytes());
        device.overwrite(offset, &block);
    }
    device
}

#[test]
fn later_versions_and_unknown_features_are_named() {
    let error = open(&with_field(8, 9)).expect_err("a later version");
    assert!(matches!(error, OpenError::Version { found: 9, oldest: 1, newest: 3, .. }), "{error}");
    assert!(error.to_string().contains("Run the release that wrote it"));
    let error = open(&with_field(17, 4)).expect_err("a feature");
    assert!(matches!(error, OpenError::Features { unknown: 0x400, .. }), "{error}");
}

/// A closed store with values of many sizes.
fn filled(checkpointed: bool) -> MemoryDevice {
    let device = formatted();
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(3, async move |handle| {
        let store = Store::open(&handle, disk, &owner(), quiet()).await.expect("a new store");
        let shard = store.create_pool(POOL, 4 << 20).await.expect("space");
        shard.create_container(CONTAINER).await.expect("a container");
        for number in 0..120u64 {
            let len = [10, 300, 5000, 70_000][number as usize % 4];
            put(&shard, &format!("d{number}"), "a", number + 1, &pattern(number, len)).await.expect("stored");
        }
        if checkpointed {
            store.close().await.expect("closed");
        }
    });
    device
}

/// Reads everything: `Ok` when all is right or damage was reported, and how many reports there were; one for a store that isn't
/// opened.
fn examine(device: &MemoryDevice) -> Result<u32, String> {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(4, async move |handle| {
        let store = match Store::open(&handle, disk, &owner(), quiet()).await {
            Ok(store) => store,
            Err(OpenError::Corrupt { .. }) => return Ok(1),
            Err(error) => return Err(error.to_string()),
        };
        let Some(shard) = store.pool(POOL) else { return Err("the pool is gone".to_owned()) };
        let mut reports = 0;
        for number in 0..120u64 {
            let len = [10, 300, 5000, 70_000][number as usize % 4];
            match get(&shard, &format!("d{number}"), "a", u64::MAX).await {
                Ok(Some(data)) if data == pattern(number, len) => {}
                Err(FetchError::Corrupt { .. } | FetchError::Index { .. }) => reports += 1,
                other => {
                    return Err(format!(
                        "value {number}: {:?}",
                        other.map(|data| data.map(|data| data.len()))
                    ));
                }
            }
        }
        Ok(reports)
    })
}

/// Bytes of each kind that a closed store needs, as ranges: nothing else of it counts.
fn needed(device: &MemoryDevice) -> Vec<(&'static str, u64, u64)> {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    let (report, nodes) = run(5, async move |_| {
        let store = Inspector::open(disk).await.expect("a store");
        let filter = Filter { limit: 1000, ..Filter::default() };
        let nodes = dumped_by(&store, Part::Nodes, &filter).await.expect("dumped").0;
        (store.report(Depth::Everything).await, nodes)
    });
    assert_eq!(report.findings, []);
    let number = |line: &Line, name: &str| match line.iter().find(|(found, _)| *found == name) {
        Some((_, Field::Number(number))) => *number,
        other => panic!("no {name}: {other:?}"),
    };
    let generation = report.checkpoint.expect("closed").generation;
    let header = 4096 * (1 + generation % 2 * 2);
    let mut places = vec![
        ("superblock", 0, 4096),
        ("copy of the superblock", SIZE - 4096, 4096),
        ("checkpoint header", header, 4096),
        ("checkpoint header", header + 4096, 4096),
    ];
    let map = |at: &u64| device.bytes(at * 4096, 4).as_slice() == b"WMAP";
    let newest = (0..SIZE / 4096).filter(map).max_by_key(|at| {
        u64::from_le_bytes(device.bytes(at * 4096 + 16, 8).try_into().expect("eight bytes"))
    });
    places.push(("space map", newest.expect("a bitmap") * 4096, 4096));
    places.extend(nodes.iter().map(|node| ("index node", number(node, "offset"), number(node, "bytes"))));
    for value in (0..120u64).filter(|number| number % 4 > 1) {
        let bytes = pattern(value, [10, 300, 5000, 70_000][value as usize % 4]);
        let found = (0..SIZE / 4096).map(|at| at * 4096).find(|at| device.bytes(*at, 64) == bytes[..64]);
        places.push(("data", found.expect("stored"), bytes.len() as u64));
    }
    places
}

#[test]
fn no_flipped_bit_anywhere_is_returned_as_data_and_each_that_counts_is_found_and_named() {
    let device = filled(true);
    assert_eq!(examine(&device.copy(SIZE)), Ok(0));
    let random = Random::new(9);
    let places = needed(&device);
    // Each field of each kind of structure, and some of what is behind.
    let mut flips: Vec<(&str, u64)> = Vec::new();
    for (number, (what, offset, len)) in places.iter().enumerate() {
        let is_first = places[..number].iter().all(|(other, ..)| other != what);
        let from = flips.len();
        flips.extend((0..if is_first { 200 } else { 0 }).step_by(3).map(|at| (*what, offset + at)));
        flips.extend((0..4).map(|_| (*what, offset + random.below(*len))));
        assert!(flips[from..].iter().all(|(_, at)| at < &(offset + len)));
    }
    for (what, offset) in &flips {
        let damaged = device.copy(SIZE);
        damaged.flip_bit(*offset, random.below(8) as u8);
        let found = crate::golden::inspect(&damaged, Depth::Everything).findings;
        let named = found.iter().any(|finding| {
            finding.what == *what
                && finding.offset <= *offset
                && *offset < finding.offset + finding.len.max(4096)
        });
        assert!(named, "a bit of byte {offset}, {what}: {found:?}");
        match examine(&damaged) {
            Ok(reports) => assert!(reports == 0 || *what != "space map", "a bit of byte {offset}, {what}"),
            Err(error) => panic!("a bit of byte {offset}, {what}: {error}"),
        }
    }
    assert!(flips.len() > 600, "only {} flips", flips.len());
    // Whatever else is not zero: what was there before, the log, paddings.
    let used: Vec<u64> =
        (0..SIZE / 512).filter(|at| device.bytes(at * 512, 512).iter().any(|byte| *byte != 0)).collect();
    for _ in 0..200 {
        let damaged = device.copy(SIZE);
        let offset = used[random.below(used.len() as u64) as usize] * 512 + random.below(512);
        damaged.flip_bit(offset, random.below(8) as u8);
        if let Err(error) = examine(&damaged) {
            panic!("a bit of byte {offset}: {error}");
        }
    }
}

/// Blocks of a device where a batch of the log begins.
fn batches(device: &MemoryDevice) -> Vec<u64> {
    (0..SIZE / 4096).filter(|at| device.bytes(at * 4096, 4).as_slice() == b"WLOG").collect()
}

#[test]
fn one_flipped_bit_of_a_batch_that_others_follow_is_turned_back() {
    let device = filled(false);
    let blocks = batches(&device);
    assert!(blocks.len() > 100);
    // Each field of a header, what is not used of it, and records; and the same place of all of them.
    let len = u64::from(u32::from_le_bytes(device.bytes(blocks[7] * 4096 + 36, 4).try_into().expect("four")));
    let of_one = (0..len).map(|at| (blocks[7], at));
    let of_all = blocks[..blocks.len() - 1].iter().map(|block| (*block, 70));
    for (block, at) in of_one.chain(of_all) {
        let (damaged, place) = (device.copy(SIZE), block * 4096 + at);
        damaged.flip_bit(place, (at % 8) as u8);
        let noted = crate::golden::inspect(&damaged, Depth::Everything).findings;
        assert!(
            noted.len() == 1 && noted[0].severity == Severity::Note && noted[0].offset == place,
            "byte {place}: {noted:?}"
        );
        assert_eq!(opened(&damaged), (vec![("the log", place)], true), "byte {place}");
        assert_eq!(examine(&damaged), Ok(0), "byte {place}");
    }
    assert_eq!(examine(&device), Ok(0));
}

#[test]
fn a_damaged_log_is_not_opened_unless_it_is_the_very_end() {
    let device = filled(false);
    let blocks = batches(&device);
    for at in &blocks[..blocks.len() - 1] {
        let damaged = device.copy(SIZE);
        damaged.flip_bit(at * 4096 + 70, 5);
        damaged.flip_bit(at * 4096 + 20, 1);
        assert_eq!(examine(&damaged), Ok(1), "the batch at block {at}");
    }
}

/// Breaks both bitmaps of the only group.
fn break_map(device: &MemoryDevice) {
    let maps: Vec<u64> = (0..SIZE / 4096).filter(|at| device.bytes(at * 4096, 4) == b"WMAP").collect();
    assert!((1..3).contains(&maps.len()), "{maps:?}");
    for at in maps {
        device.flip_bit(at * 4096 + 1000, 2);
    }
}

/// Stores more than what was there takes, after what an open has found out about blocks, and looks whether all of it is right, and
/// the store sound for who comes next. Returns what was reported as rotten.
fn examine_map(device: &MemoryDevice) -> Vec<weir_store::Rot> {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    let found = run(4, async move |handle| {
        let store =
            Store::open(&handle, disk, &owner(), quiet()).await.expect("the index says what is in use");
        let shard = store.pool(POOL).expect("a pool");
        for number in 200..215u64 {
            put(&shard, &format!("d{number}"), "a", number, &pattern(number, 70_000)).await.expect("room");
        }
        assert_eq!(store.audit().await.problems, [""; 0]);
        let found = store.scrub().found;
        store.close().await.expect("closed");
        found
    });
    assert_eq!(
        crate::golden::inspect(device, Depth::Everything).findings,
        [],
        "the next checkpoint has all of it"
    );
    assert_eq!(examine(device), Ok(0));
    found
}

#[test]
fn a_damaged_space_map_is_found_out_from_the_index() {
    for is_closed in [true, false] {
        let device = filled(is_closed);
        break_map(&device);
        assert!(!crate::golden::inspect(&device, Depth::Everything).is_sound());
        let found = examine_map(&device);
        assert!(
            found.len() == 1 && found[0].location.what == "the space map" && found[0].renewed,
            "{found:?}"
        );
        assert!(found[0].to_string().contains("found out from the index"), "{}", found[0]);
    }
    // The newest bitmap alone: an older one, which is whole, would give out what was stored since.
    let device = filled(true);
    let (_, newest, _) =
        needed(&device).into_iter().find(|(what, ..)| *what == "space map").expect("a bitmap");
    for lost in [vec![0; 4096], vec![0xff; 4096]] {
        let damaged = device.copy(SIZE);
        damaged.overwrite(newest, &lost);
        assert_eq!(examine_map(&damaged).len(), 1);
    }
}

#[test]
fn what_an_index_that_is_damaged_too_leaves_open_is_not_given_out() {
    let device = filled(true);
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(4, async move |handle| {
        let store = Store::open(&handle, disk, &owner(), quiet()).await.expect("it is sound");
        let shard = store.pool(POOL).expect("a pool");
        for number in 0..200u64 {
            put(&shard, &format!("c{number}"), "a", 1000 + number, &pattern(number, 500))
                .await
                .expect("room");
        }
        store.close().await.expect("closed");
    });
    let nodes: Vec<_> = needed(&device).into_iter().filter(|(what, ..)| *what == "index node").collect();
    assert!(nodes.len() > 5, "{nodes:?}");
    // The last ones have transactions, too, of which there are none.
    let (_, leaf, _) = nodes[nodes.len() - 2];
    break_map(&device);
    device.flip_bit(leaf + 100, 1);
    let before = device.copy(SIZE);
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    let found = run(4, async move |handle| {
        let store = Store::open(&handle, disk, &owner(), quiet()).await.expect("the rest serves");
        assert_eq!(store.space().free, 0, "there is one group");
        let shard = store.pool(POOL).expect("a pool");
        let refused = put(&shard, "d1", "a", 500, &pattern(1, 70_000)).await;
        assert!(matches!(refused, Err(UpdateError::NoSpace { .. })), "{refused:?}");
        store.scrub().found
    });
    assert!(found.iter().any(|rot| rot.location.offset == leaf && !rot.renewed), "{found:?}");
    let told = found.iter().find(|rot| rot.location.what == "the space map").expect("told of").to_string();
    assert!(
        told.contains("bytes that may belong to what lies below") && told.contains("weir store copy"),
        "{told}"
    );
    // What is below the leaf is where it was.
    let data = crate::golden::inspect(&before, Depth::Outline).regions;
    let data = data.iter().find(|region| region.name == "data region").expect("it has one").offset;
    let is_node = |at: u64| before.bytes(at, 4) == b"WNOD" || device.bytes(at, 4) == b"WNOD";
    for at in (data..SIZE - 4096).step_by(4096).filter(|at| !is_node(*at)) {
        assert!(before.bytes(at, 4096) == device.bytes(at, 4096), "byte {at}");
    }
    assert!(examine(&device).is_ok_and(|reports| (1..120).contains(&reports)), "{:?}", examine(&device));
}

/// Places that an open reports as rotten, and whether the value that was stored last is there.
fn opened(device: &MemoryDevice) -> (Vec<(&'static str, u64)>, bool) {
    let disk: Rc<dyn Device> = Rc::new(device.copy(SIZE));
    run(4, async move |handle| {
        let store = Store::open(&handle, disk, &owner(), quiet()).await.expect("nothing stable is damaged");
        let shard = store.pool(POOL).expect("a pool");
        let last = get(&shard, "d119", "a", u64::MAX).await.expect("no damage within it");
        let found = store.scrub().found.into_iter().map(|rot| (rot.location.what, rot.location.offset));
        (found.collect(), last.is_some())
    })
}

#[test]
fn a_batch_is_not_dropped_for_a_checkpoint_header_that_is_lost() {
    let device = formatted();
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(3, async move |handle| {
        let store = Store::open(&handle, disk, &owner(), quiet()).await.expect("a new store");
        store.create_pool(POOL, 4 << 20).await.expect("space");
    });
    assert_eq!(batches(&device).len(), 1);
    // Both copies of the header that the open has written: an older one would do, but for the batch.
    for copy in [3, 4] {
        device.flip_bit(copy * 4096 + 40, 1);
    }
    let disk: Rc<dyn Device> = Rc::new(device);
    let error = run(4, async move |handle| Store::open(&handle, disk, &owner(), quiet()).await.map(drop));
    assert!(matches!(&error, Err(OpenError::Corrupt { .. })), "{error:?}");
}

#[test]
fn a_flipped_bit_at_the_very_end_of_the_log_is_reported_and_a_torn_end_is_not() {
    let device = filled(false);
    assert_eq!(opened(&device), (vec![], true));
    let last = *batches(&device).last().expect("a batch") * 4096;
    let len = u32::from_le_bytes(device.bytes(last + 36, 4).try_into().expect("four bytes"));
    // Each field of the header, what is not used of it, and the record.
    for at in (0..u64::from(len)).chain([u64::from(len)]) {
        let damaged = device.copy(SIZE);
        damaged.flip_bit(last + at, (at % 8) as u8);
        let inside = at < u64::from(len);
        let found = if inside { vec![("the log", last + at)] } else { vec![] };
        assert_eq!(opened(&damaged), (found, !inside), "byte {at} of {len}");
        let findings = crate::golden::inspect(&damaged, Depth::Everything).findings;
        let noted = findings.iter().any(|finding| finding.what == "log batch" && finding.offset == last + at);
        assert_eq!(noted, inside, "byte {at} of {len}: {findings:?}");
        damaged.flip_bit(last + 60, 1);
        assert_eq!(opened(&damaged).0.len(), usize::from(!inside), "two bits");
    }
    // Data that it refers to.
    let value = pattern(119, 70_000);
    let start =
        (0..SIZE / 4096).find(|at| device.bytes(at * 4096, 64) == value[..64]).expect("the data") * 4096;
    for at in [0, 40_001, 69_999] {
        let damaged = device.copy(SIZE);
        damaged.flip_bit(start + at, 3);
        assert_eq!(opened(&damaged), (vec![("data", start + at)], false));
    }
    let torn = device.copy(SIZE);
    torn.flip_bit(start, 3);
    torn.flip_bit(start + 50_000, 3);
    assert_eq!(opened(&torn), (vec![], false));
}

#[test]
fn a_log_that_can_not_be_read_behind_its_end_is_reported_and_opened() {
    let machine = Machine::new(7, 64 << 20);
    let (store, shard) = machine.start(quiet());
    let close = |store: Rc<Store>| {
        machine.run(async move { store.close().await.expect("closed") });
    };
    machine.run(async move { put(&shard, "d", "a", 5, b"weir").await.expect("stored") });
    close(store);
    let inspect = || machine.inspect(Depth::Everything);
    let errors = || machine.device().stats().errors;
    let outline = inspect();
    let log = outline.regions.iter().find(|region| region.name == "log ring").expect("a log").offset;
    let noted = |report: &weir_inspect::Report| {
        report.findings.iter().map(|finding| (finding.what, finding.offset)).collect::<Vec<_>>()
    };
    // Close to the end, as far behind it as a batch may be, and two of them.
    for ahead in [vec![4096], vec![512 << 10], vec![2 << 20], vec![2 << 20, 4 << 20], vec![8192, 12_288]] {
        let end = inspect().log.end;
        let places: Vec<u64> = ahead.iter().map(|ahead| end + ahead).collect();
        for place in &places {
            machine.disk.make_unreadable(*place..place + 1);
        }
        let report = inspect();
        assert!(report.is_sound(), "{:?}", report.findings);
        assert_eq!(noted(&report), places.iter().map(|place| ("log", *place)).collect::<Vec<_>>());
        let before = errors();
        let store = machine.open(quiet());
        let errors = errors() - before;
        assert!(errors <= 4, "{errors} reads failed: a device with eight is put out of use");
        let found = store.scrub().found.into_iter().map(|rot| (rot.location.what, rot.location.offset));
        let told: Vec<_> = places.iter().map(|place| ("the log", *place)).collect();
        assert_eq!(found.collect::<Vec<_>>(), told);
        let shard = store.pool(POOL).expect("the pool");
        let value = machine.run(async move { get(&shard, "d", "a", u64::MAX).await });
        assert_eq!(value, Ok(Some(b"weir".to_vec())));
        close(store);
        machine.disk.make_readable();
    }
    // What would come next may have been acknowledged, and where the ring begins, what comes then; a third block is too much.
    let end = inspect().log.end;
    for (places, damaged) in
        [(vec![end], end), (vec![log], log), ((1..=16).map(|n| end + n * 4096).collect(), end + 12_288)]
    {
        for place in &places {
            machine.disk.make_unreadable(*place..place + 1);
        }
        let report = inspect();
        assert!(
            !report.is_sound() && noted(&report).last() == Some(&("log", damaged)),
            "{:?}",
            report.findings
        );
        let before = errors();
        let refused = machine.try_open(quiet());
        assert!(matches!(refused, Err(OpenError::Media(_))), "{:?}", refused.err());
        assert!(errors() - before < 8, "the device is put out of use");
        machine.disk.make_readable();
    }
}

#[test]
fn a_damaged_batch_whose_acknowledgement_can_not_be_read_is_not_dropped() {
    let machine = Machine::new(8, 64 << 20);
    let (store, shard) = machine.start(quiet());
    machine.run(async move { put(&shard, "d", "a", 5, b"weir").await.expect("stored") });
    // The mark that says so comes later.
    machine.world.run_for(Duration::from_millis(500));
    drop(store);
    machine.crash(CrashKeeps::Everything);
    let inspect = || machine.inspect(Depth::Everything);
    let end = inspect().log.end;
    let (batch, mark) = (end - 8192, end - 4096);
    machine.disk.rot(batch + 100, 0);
    machine.disk.make_unreadable(mark..mark + 1);
    let report = inspect();
    assert!(!report.is_sound() && report.log.end == batch, "{:?}", report.findings);
    let refused = machine.try_open(quiet());
    assert!(matches!(refused, Err(OpenError::Media(_))), "{:?}", refused.err());
}

#[test]
fn overwritten_data_is_reported_with_its_place() {
    let machine = Machine::new(6, 24 << 20);
    let (_store, shard) = machine.start(quiet());
    let disk = machine.disk.clone();
    machine.run(async move {
        let value = pattern(8, 1 << 20);
        put(&shard, "d", "a", 1, &value).await.expect("stored");
        let start =
            (0..(24u64 << 20) / 4096).find(|at| disk.bytes(at * 4096, 64) == value[..64]).expect("the data");
        disk.rot(start * 4096 + 500_000, 0);
        let error = get(&shard, "d", "a", u64::MAX).await.expect_err("damaged");
        let FetchError::Corrupt { location, .. } = &error else { panic!("{error}") };
        assert_eq!(location.offset, start * 4096 + (500_000 >> 15 << 15));
        assert!(error.to_string().contains("disk"));
        // The rest of the value can still be read.
        let akey =
            AkeyFetch { akey: key("a"), value: Value::Single { size: 4096 }, conditions: Conditions::NONE };
        let fetch = shard
            .fetch(CONTAINER, OBJECT, &key("d"), Epoch::MAX, Conditions::NONE, &[akey])
            .await
            .expect("found");
        assert_eq!(data_of(fetch).await.as_deref(), Ok(&value[..4096]));
    });
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(SIZE));
    let nameless = FormatOptions { owner: Owner { system: String::new(), ..owner() }, log_bytes: None };
    let error = run(1, async move |handle| Store::format(&handle, &device, &nameless).await);
    assert!(matches!(error, Err(FormatError::SystemName(_))));
}
