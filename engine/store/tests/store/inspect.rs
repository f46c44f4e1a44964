//! The offline inspector: a sound store is called sound, any damage is found and named with its place, and nothing that
//! stands on a device makes it fail.

use crate::golden::{IMAGES, inspect, load, value, version_of};
use crate::setup::*;
use std::rc::Rc;
use weir_inspect::{Depth, Dumped, Field, Filter, InspectError, Inspector, Part, Report, Severity};
use weir_media::Device;
use weir_media::memory::MemoryDevice;
use weir_media::sim::CrashKeeps;
use weir_proto::PoolId;
use weir_proto::object::PunchScope;
use weir_runtime::random::Random;
use weir_store::Store;

const SIZE: u64 = 16 << 20;

/// A store with values of many sizes, the last of them in the log alone.
fn filled() -> MemoryDevice {
    let device = MemoryDevice::new(SIZE);
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(3, async move |handle| {
        Store::format(&handle, &disk, &format_options()).await.expect("an empty device");
        let store = Store::open(&handle, disk, &owner(), quiet()).await.expect("a new store");
        let shard = store.create_pool(POOL, 4 << 20).await.expect("space");
        shard.create_container(CONTAINER).await.expect("a container");
        for number in 0..600u64 {
            let len = [10, 300, 2000, 5000, 70_000][number as usize % if number < 20 { 5 } else { 3 }];
            put(&shard, &format!("d{number}"), "a", number + 1, &pattern(number, len)).await.expect("stored");
        }
        store.checkpoint().await.expect("written");
        for number in 0..20u64 {
            put(&shard, &format!("d{number}"), "a", number + 1000, &pattern(number, 6000))
                .await
                .expect("stored");
        }
        punch(&shard, OBJECT, PunchScope::Dkeys(vec![key("d7")]), 2000).await.expect("punched");
    });
    device
}

fn open(device: &MemoryDevice) -> Result<Report, InspectError> {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(4, async move |_| Ok(Inspector::open(disk).await?.report(Depth::Everything).await))
}

#[test]
fn a_store_with_a_log_is_sound_and_described() {
    let device = filled();
    let before = device.stats().writes;
    let report = inspect(&device, Depth::Everything);
    assert_eq!(report.findings, []);
    let (index, data) = (report.index.expect("walked"), report.data.expect("walked"));
    assert!(index.levels >= 2 && index.nodes > 20 && index.entries > 1800, "{index:?}");
    assert_eq!((data.extents, data.damaged), (28, 0));
    assert!(report.log.batches >= 21 && !report.log.dropped, "{:?}", report.log);
    let container = report.pools[0].containers[0];
    assert_eq!((report.pools[0].id, container.id), (POOL, CONTAINER));
    assert!(container.data_bytes > 0 && container.entry_bytes > 0);
    let outline = inspect(&device, Depth::Outline);
    assert_eq!((outline.pools, outline.index, outline.data), (report.pools, None, None));
    assert_eq!(device.stats().writes, before, "nothing is written");
}

#[test]
fn what_a_crash_leaves_behind_is_sound() {
    for seed in 0..12 {
        let machine = Machine::new(seed, SIZE);
        let (_store, shard) = machine.start(quiet());
        machine.disk.halt_at(40 + seed * 7);
        let world = &machine.world;
        let outcome = world.try_block_on(&machine.node, std::time::Duration::from_secs(20), async move {
            for number in 0..100u64 {
                let len = [10, 3000, 9000][number as usize % 3];
                let _ =
                    put(&shard, &format!("d{}", number % 30), "a", number + 1, &pattern(number, len)).await;
            }
        });
        assert!(outcome.is_err(), "the disk has stopped");
        machine.crash(CrashKeeps::Any);
        let report = machine.inspect(Depth::Everything);
        assert!(report.is_sound(), "seed {seed}: {:?}", report.findings);
        machine.open(quiet());
    }
}

/// Bits whose loss nothing can tell: padding that holds no information.
fn is_padding(device: &MemoryDevice, offset: u64) -> bool {
    device.bytes(offset, 1) == [0]
}

#[test]
fn a_flipped_bit_is_found_and_named_with_its_place() {
    let device = filled();
    let random = Random::new(11);
    let outline = inspect(&device, Depth::Outline);
    let log = outline.regions.iter().find(|region| region.name == "log ring").expect("a log");
    let used: Vec<u64> =
        (0..SIZE / 4096).filter(|at| device.bytes(at * 4096, 4096).iter().any(|byte| *byte != 0)).collect();
    let (mut found, mut tried) = (0, 0);
    for _ in 0..250 {
        let block = used[random.below(used.len() as u64) as usize];
        let offset = block * 4096 + random.below(4096);
        let is_old_log = (log.offset..log.offset + log.len).contains(&offset) && offset < outline.log.start;
        if is_padding(&device, offset) || is_old_log {
            continue;
        }
        tried += 1;
        let damaged = device.copy(SIZE);
        damaged.flip_bit(offset, random.below(8) as u8);
        match open(&damaged) {
            Ok(report) => {
                // A node or data extent that is no longer referred to is nobody's.
                let near = report.findings.iter().any(|finding| {
                    finding.offset <= offset && offset < finding.offset + finding.len.max(4096)
                });
                let named = near || report.findings.iter().any(|finding| finding.what == "log batch");
                assert!(named || report.findings.is_empty(), "byte {offset}: {:?}", report.findings);
                found += u32::from(named);
            }
            Err(error) => panic!("byte {offset}: {error}"),
        }
    }
    assert!(tried > 60 && found * 10 > tried * 8, "{found} of {tried} flips were found");
}

fn dump(device: &MemoryDevice, part: Part) -> Vec<weir_inspect::Line> {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(7, async move |_| {
        let store = Inspector::open(disk).await.expect("a store");
        dumped_by(&store, part, &Filter { limit: 10_000, ..Filter::default() }).await.expect("dumped").0
    })
}

fn number(line: &weir_inspect::Line, name: &str) -> u64 {
    match line.iter().find(|(found, _)| *found == name) {
        Some((_, Field::Number(number))) => *number,
        other => panic!("no {name}: {other:?}"),
    }
}

#[test]
fn golden_images_are_inspected_checked_and_dumped_and_so_are_damaged_copies() {
    for image in IMAGES {
        let device = load(image);
        let report = inspect(&device, Depth::Everything);
        assert_eq!((report.version, report.damages), (version_of(image), 0), "{:?}", report.findings);
        let entries = dump(&device, Part::Entries);
        let shows = |text: &str| entries.iter().any(|line| format!("{line:?}").contains(text));
        assert!(shows("punched") && shows("hole") && shows("inline") && shows("blocks"));
        assert_eq!(shows("transaction"), version_of(image) > 1);
        for part in [Part::Log, Part::Map, Part::Bytes { offset: 0 }] {
            assert!(!dump(&device, part).is_empty());
        }
        let is_named = |offset: u64, what: &str| {
            let damaged = device.copy(SIZE);
            damaged.flip_bit(offset, 3);
            let report = inspect(&damaged, Depth::Everything);
            let near = |finding: &weir_inspect::Finding| {
                finding.what == what
                    && finding.offset <= offset
                    && offset < finding.offset + finding.len.max(4096)
            };
            for part in [Part::Entries, Part::Nodes, Part::Log, Part::Map] {
                dump(&damaged, part);
            }
            report.findings.into_iter().find(near)
        };
        let nodes = dump(&device, Part::Nodes);
        for node in nodes.iter().step_by(nodes.len().div_ceil(6)) {
            assert!(is_named(number(node, "offset") + 60, "index node").is_some(), "{node:?}");
        }
        assert!(is_named(130, "superblock").is_some());
        let Some(large) = (version_of(image) > 1).then(|| value(4, 40_000)) else { continue };
        // Its third block, because smaller values begin alike.
        let block =
            (0..SIZE / 4096).map(|at| at * 4096).find(|at| device.bytes(*at, 4096) == large[8192..12_288]);
        let finding =
            is_named(block.expect("data of a prepared transaction") + 5, "data").expect("it is found");
        assert!(finding.subject.is_some_and(|subject| subject.contains("transaction")));
    }
}

#[test]
fn a_damaged_leaf_costs_its_own_entries_only() {
    let device = filled();
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    let nodes = run(5, async move |_| {
        let store = Inspector::open(disk).await.expect("a store");
        let filter = Filter { limit: 1000, ..Filter::default() };
        dumped_by(&store, Part::Nodes, &filter).await.expect("dumped").0
    });
    let leaf =
        nodes.iter().rfind(|line| line.contains(&("kind", Field::Text("leaf".to_owned())))).expect("a leaf");
    let (offset, entries) = (number(leaf, "offset"), number(leaf, "entries"));
    let whole = inspect(&device, Depth::Everything).index.expect("walked");
    device.flip_bit(offset + 100, 2);
    let report = inspect(&device, Depth::Everything);
    let index = report.index.expect("walked");
    assert_eq!((index.lost_nodes, index.entries), (1, whole.entries - entries));
    let finding = &report.findings[0];
    assert_eq!((finding.severity, finding.what, finding.offset), (Severity::Damage, "index node", offset));
    assert!(finding.reason.contains("checksum"), "{finding}");
}

#[test]
fn damaged_data_is_named_with_its_piece_and_its_owner() {
    let device = filled();
    let value = pattern(4, 70_000);
    let place = (0..SIZE / 4096).map(|at| at * 4096).find(|at| device.bytes(*at, 64) == value[..64]);
    let place = place.expect("the data");
    // A newer version stands in the log; this one is history that a reader can still ask for.
    device.flip_bit(place + 40_000, 1);
    let report = inspect(&device, Depth::Everything);
    let named = |report: &Report| report.findings.iter().find(|finding| finding.what == "data").cloned();
    let finding = named(&report).expect("it is found");
    assert_eq!((finding.offset, finding.len), (place + 32_768, 32_768));
    let subject = finding.subject.as_deref().unwrap_or_default();
    assert!(subject.contains("dkey \"d4\"") && subject.contains("epoch 5"), "{subject}");
    let shallow = inspect(&device, Depth::Metadata);
    assert_eq!(named(&shallow), None, "metadata alone was asked for");
}

#[test]
fn devices_without_a_store_are_told_apart() {
    let reason = |device: &MemoryDevice| open(device).expect_err("no store").to_string();
    assert!(reason(&MemoryDevice::new(SIZE)).contains("all zero"));
    let foreign = MemoryDevice::new(SIZE);
    foreign.overwrite(0, b"LUKS");
    assert!(reason(&foreign).contains("a LUKS volume"));
    let device = filled();
    device.overwrite(0, b"LUKS");
    let report = open(&device).expect("the copy is intact");
    assert_eq!((report.findings[0].what, report.findings[0].offset), ("superblock", 0));
    device.overwrite(SIZE - 4000, b"x");
    device.overwrite(0, b"WEIRSTOX");
    assert!(matches!(open(&device), Err(InspectError::Superblocks { .. })));
    let cut = filled().copy(SIZE / 2);
    let report = open(&cut).expect("the first superblock is intact");
    assert!(report.findings.iter().any(|finding| finding.what == "device" && finding.offset == SIZE / 2));
    assert!(matches!(open(&MemoryDevice::new(4096)), Err(InspectError::NoStore { .. })));
}

#[test]
fn random_bytes_anywhere_never_stop_an_inspection() {
    let device = filled();
    let random = Random::new(12);
    for round in 0..150 {
        let damaged = device.copy(SIZE);
        for _ in 0..=random.below(6) {
            let offset = random.below(SIZE / 512) * 512;
            let noise = pattern(random.below(1 << 40), random.below(6000) as usize);
            damaged.overwrite(offset.min(SIZE - 6000), &noise);
        }
        let parts =
            [Part::Map, Part::Log, Part::Nodes, Part::Entries, Part::Bytes { offset: random.below(SIZE) }];
        let (part, disk) = (parts[round % parts.len()], Rc::new(damaged.clone()));
        run(13, async move |_| {
            let disk: Rc<dyn Device> = disk;
            if let Ok(store) = Inspector::open(disk).await {
                let _ = dumped_by(&store, part, &Filter { limit: 300, ..Filter::default() }).await;
            }
        });
        if let Ok(report) = open(&damaged) {
            assert!(
                report.damages as usize + report.notes as usize >= report.findings.len(),
                "round {round}"
            );
        }
    }
}

#[test]
fn a_dump_shows_the_recovered_state_a_page_at_a_time() {
    let device = filled();
    let dump = |part, filter: Filter| {
        let disk: Rc<dyn Device> = Rc::new(device.clone());
        run(6, async move |_| {
            dumped_by(&Inspector::open(disk).await.expect("a store"), part, &filter).await.expect("dumped")
        })
    };
    let (all, dumped) = dump(Part::Entries, Filter { limit: usize::MAX, ..Filter::default() });
    assert_eq!(dumped, Dumped::default());
    let text = |line: &weir_inspect::Line| format!("{line:?}");
    assert!(
        all.iter().any(|line| text(line).contains("punched") && text(line).contains("d7")),
        "the log counts"
    );
    let mut paged = Vec::new();
    let mut from = Vec::new();
    loop {
        let (lines, dumped) = dump(Part::Entries, Filter { limit: 100, from, ..Filter::default() });
        assert!(lines.len() <= 100 && dumped.more == dumped.next.is_some());
        paged.extend(lines);
        let Some(next) = dumped.next else { break };
        from = next;
    }
    assert_eq!(paged, all);
    let only = Filter {
        pool: Some(POOL),
        container: Some(CONTAINER),
        object: Some(OBJECT),
        limit: 9999,
        ..Filter::default()
    };
    let (objects, _) = dump(Part::Entries, only.clone());
    assert!(objects.len() > 1800 && objects.len() < all.len());
    assert!(dump(Part::Entries, Filter { object: Some(ARRAY), ..only }).0.is_empty());
    assert!(dump(Part::Log, Filter { limit: 500, ..Filter::default() }).0.len() > 60);
    let (map, _) = dump(Part::Map, Filter { limit: 500, ..Filter::default() });
    assert!(!map.is_empty());
    let (bytes, _) = dump(Part::Bytes { offset: 4 }, Filter { limit: 2, ..Filter::default() });
    assert!(text(&bytes[0]).contains("5745495253544f52") && bytes.len() == 2, "{bytes:?}");
}

fn everything() -> Filter {
    Filter { limit: usize::MAX, ..Filter::default() }
}

fn try_dump(
    device: &MemoryDevice,
    part: Part,
    filter: Filter,
) -> Result<(Vec<weir_inspect::Line>, Dumped), InspectError> {
    let disk: Rc<dyn Device> = Rc::new(device.clone());
    run(9, async move |_| dumped_by(&Inspector::open(disk).await.expect("a store"), part, &filter).await)
}

/// A copy with a bit flipped.
fn flipped(device: &MemoryDevice, offset: u64) -> MemoryDevice {
    let damaged = device.copy(SIZE);
    damaged.flip_bit(offset, 1);
    damaged
}

#[test]
fn a_dump_goes_around_a_damaged_node_and_names_it() {
    let device = filled();
    let (whole, _) = try_dump(&device, Part::Entries, everything()).expect("dumped");
    let (nodes, _) = try_dump(&device, Part::Nodes, everything()).expect("dumped");
    let leaves = nodes.iter().map(|line| number(line, "level")).max().expect("nodes");
    let mut of_leaves = nodes.iter().filter(|line| number(line, "level") == leaves);
    let first = number(of_leaves.next().expect("a leaf"), "offset");
    let last = number(of_leaves.next_back().expect("another leaf"), "offset");
    let damaged = flipped(&device, first + 100);
    let (rest, dumped) = try_dump(&damaged, Part::Entries, everything()).expect("the rest");
    assert!(!rest.is_empty() && rest.len() < whole.len() && rest.iter().all(|line| whole.contains(line)));
    let found: Vec<(&str, u64)> = dumped.findings.iter().map(|one| (one.what, one.offset)).collect();
    assert_eq!((dumped.damages, found), (1, vec![("index node", first)]));
    let (rest, dumped) = try_dump(&damaged, Part::Nodes, everything()).expect("the rest");
    assert_eq!((rest.len(), dumped.damages), (nodes.len() - 1, 1));
    // Pools and containers stand in the first leaf.
    let absent = Filter { pool: Some(PoolId(uuid::Uuid::nil())), ..everything() };
    let refused = try_dump(&damaged, Part::Entries, absent.clone());
    assert!(matches!(refused, Err(InspectError::NotLeft { damages: 1, .. })), "{refused:?}");
    let damaged = flipped(&device, last + 100);
    let refused = try_dump(&damaged, Part::Entries, absent);
    assert!(matches!(refused, Err(InspectError::NotThere { .. })), "{refused:?}");
    // The ranges of keys of a pool's entries meet the same leaf.
    let named = Filter { pool: Some(POOL), ..everything() };
    let (_, dumped) = try_dump(&damaged, Part::Entries, named).expect("the rest");
    assert_eq!(dumped.damages, 1, "{:?}", dumped.findings);
}

#[test]
fn a_dump_names_a_damaged_batch_and_lost_checkpoint_headers() {
    let device = filled();
    let (lines, _) = try_dump(&device, Part::Log, everything()).expect("dumped");
    let batches: Vec<u64> =
        lines.iter().filter(|line| line[0].0 == "offset").map(|line| number(line, "offset")).collect();
    let half = batches[batches.len() / 2];
    // One bit would be turned back.
    let torn = flipped(&flipped(&device, half + 70), half + 80);
    for part in [Part::Log, Part::Entries] {
        let (rest, dumped) = try_dump(&torn, part, everything()).expect("the rest");
        assert!(!rest.is_empty(), "{part:?}");
        assert_eq!((dumped.damages, dumped.findings[0].what), (1, "log batch"), "{part:?}");
    }
    let blank = device.copy(SIZE);
    for byte in 4096..5 * 4096 {
        blank.flip_bit(byte, 0);
    }
    for part in [Part::Entries, Part::Nodes, Part::Log] {
        let (rest, dumped) = try_dump(&blank, part, everything()).expect("nothing");
        assert_eq!((rest.len(), dumped.damages), (0, 1), "{part:?}: {:?}", dumped.findings);
    }
}

#[test]
fn a_dump_of_the_space_map_goes_on_behind_what_is_unreadable() {
    // Three groups of blocks.
    let machine = Machine::new(10, 300 << 20);
    machine.start(quiet());
    let report = machine.inspect(Depth::Outline);
    let map = report.regions.iter().find(|region| region.name == "space map").expect("a map");
    let (first, last) = (map.offset, map.offset + map.len - 8192);
    machine.disk.make_unreadable(first..first + 1);
    machine.disk.make_unreadable(last..last + 1);
    let device = machine.device();
    let (_, dumped) = machine.run(async move {
        let store = Inspector::open(device).await.expect("a store");
        dumped_by(&store, Part::Map, &everything()).await.expect("the rest")
    });
    let found: Vec<u64> = dumped.findings.iter().map(|one| one.offset).collect();
    assert_eq!(found, [first, last]);
}

#[test]
fn a_dump_of_bytes_goes_on_behind_what_is_unreadable() {
    let machine = Machine::new(11, SIZE);
    machine.start(quiet());
    machine.disk.make_unreadable(8 * 4096 + 5..8 * 4096 + 6);
    let from = 7 * 4096 + 4000;
    let dump = |limit| {
        let device = machine.device();
        machine.run(async move {
            let store = Inspector::open(device).await.expect("a store");
            let filter = Filter { limit, ..everything() };
            dumped_by(&store, Part::Bytes { offset: from }, &filter).await.expect("the rest")
        })
    };
    let (lines, dumped) = dump(300);
    let offsets: Vec<u64> = lines.iter().map(|line| number(line, "offset")).collect();
    assert_eq!(
        offsets[..8],
        [from, from + 16, from + 32, from + 48, from + 64, from + 80, 8 * 4096, 9 * 4096]
    );
    assert_eq!((number(&lines[6], "unreadable"), lines.len()), (4096, 300));
    assert_eq!((dumped.damages, dumped.findings[0].offset, dumped.more), (1, 8 * 4096, true));
    // What found no room isn't told of.
    let (lines, dumped) = dump(6);
    assert_eq!((lines.len(), dumped.damages, dumped.more), (6, 0, true));
}
