//! The format's description is right: a reader that knows nothing but `docs/reference/format.md`, whose tables it takes the
//! places of all fields from, reads the golden image byte by byte and finds what is in it.

use crate::golden::{IMAGES, SIZE, has_later, load, value, version_of};
use crate::setup::*;
use std::collections::BTreeMap;
use std::path::PathBuf;
use weir_media::memory::MemoryDevice;

const BLOCK: u64 = 4096;

/// Fields of a section's first table, by place: length (0: to the end) and text.
struct Table(BTreeMap<usize, (usize, String)>);

fn table(section: &str) -> Table {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/format.md");
    let text = std::fs::read_to_string(page).expect("the page");
    let after = text.split(&format!("\n## {section}\n")).nth(1).expect("the section");
    let rows = after.lines().skip_while(|line| !line.starts_with("| at ")).skip(2);
    let fields = rows.take_while(|line| line.starts_with('|')).map(|line| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let mut number = || cells.next().and_then(|cell| cell.parse().ok()).unwrap_or(0);
        let (at, len) = (number(), number());
        (at, (len, cells.next().expect("a text").to_owned()))
    });
    Table(fields.collect())
}

impl Table {
    fn find(&self, text: &str) -> (usize, usize) {
        let mut found = self.0.iter().filter(|(_, (_, field))| field.starts_with(text));
        let (at, (len, _)) = found.next().unwrap_or_else(|| panic!("no field \"{text}\""));
        assert!(found.next().is_none(), "\"{text}\" is said twice");
        (*at, *len)
    }

    fn bytes<'a>(&self, page: &'a [u8], text: &str) -> &'a [u8] {
        let (at, len) = self.find(text);
        &page[at..if len == 0 { page.len() } else { at + len }]
    }

    fn number(&self, page: &[u8], text: &str) -> u64 {
        let mut bytes = [0; 8];
        let field = self.bytes(page, text);
        bytes[..field.len()].copy_from_slice(field);
        u64::from_le_bytes(bytes)
    }

    /// Compares the magic that the table names, and the checksum of `covered` with its own four bytes as zeros.
    fn check(&self, page: &[u8], covered: usize) {
        let magic = self.0[&0].1.split('`').nth(1).expect("a magic");
        assert!(page.starts_with(magic.as_bytes()), "{magic}");
        // The first one is its own.
        let at = *self.0.iter().find(|(_, (_, field))| field.starts_with("checksum of")).expect("one").0;
        let mut bytes = page[..covered].to_vec();
        bytes[at..at + 4].fill(0);
        assert_eq!(crc(&bytes).to_le_bytes(), page[at..at + 4], "{magic}");
    }

    /// Whatever the table doesn't name is zero, up to `end`.
    fn check_rest(&self, page: &[u8], end: usize) {
        let is_named = |byte: &usize| {
            self.0.iter().any(|(at, (len, _))| (*at..at + len).contains(byte) || (*len == 0 && byte >= at))
        };
        let stray = (0..end).find(|byte| page[*byte] != 0 && !is_named(byte));
        assert_eq!(stray, None, "a byte that no field has");
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    fn little(&mut self, len: usize) -> u64 {
        self.take(len).iter().rev().fold(0, |value, byte| (value << 8) | u64::from(*byte))
    }

    fn big(&mut self, len: usize) -> u64 {
        self.take(len).iter().fold(0, |value, byte| (value << 8) | u64::from(*byte))
    }

    fn varint(&mut self) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = self.take(1)[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }

    /// esc(t), without what was put between.
    fn text(&mut self) -> Vec<u8> {
        let mut text = Vec::new();
        loop {
            match (self.take(1)[0], self.0.first()) {
                (0, Some(0)) => {
                    self.take(1);
                    return text;
                }
                (0, Some(0xff)) => {
                    self.take(1);
                    text.push(0);
                }
                (byte, _) => text.push(byte),
            }
        }
    }
}

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// All that is where the superblock and the checkpoint say.
struct Image {
    device: MemoryDevice,
    superblock: Vec<u8>,
    checkpoint: Vec<u8>,
}

impl Image {
    fn open(image: &str) -> Self {
        let device = load(image);
        let (fields, superblock) = (table("Superblock"), device.bytes(0, 4096));
        fields.check(&superblock, 4096);
        fields.check_rest(&superblock, 4096);
        assert_eq!(device.bytes(SIZE - BLOCK, 4096), superblock, "its copy");
        let header = table("Checkpoint header");
        let slots = (1..5).map(|slot| device.bytes(slot * BLOCK, 4096));
        let checkpoint = slots.max_by_key(|page| header.number(page, "generation")).expect("four");
        header.check(&checkpoint, 4096);
        header.check_rest(&checkpoint, 4096);
        let generation = header.number(&checkpoint, "generation");
        for copy in 0..2 {
            assert_eq!(device.bytes((1 + generation % 2 * 2 + copy) * BLOCK, 4096), checkpoint);
        }
        let id = fields.bytes(&superblock, "identity");
        assert_eq!(header.bytes(&checkpoint, "identity"), id);
        Self { device, superblock, checkpoint }
    }

    fn place(&self, field: &str) -> u64 {
        table("Superblock").number(&self.superblock, field)
    }

    fn header(&self, field: &str) -> u64 {
        table("Checkpoint header").number(&self.checkpoint, field)
    }

    fn id(&self) -> Vec<u8> {
        table("Superblock").bytes(&self.superblock, "identity").to_vec()
    }

    /// Whether the space map says that a block is in use.
    fn maps(&self) -> Vec<Vec<u8>> {
        let (fields, groups) = (table("Space map"), self.place("number of groups"));
        let mut numbers = Vec::new();
        let maps = (0..groups).map(|group| {
            let slots = (0..2)
                .map(|slot| self.device.bytes(self.place("`map_offset`") + (group * 2 + slot) * BLOCK, 4096));
            let counts = |page: &Vec<u8>| {
                page.starts_with(b"WMAP")
                    && fields.number(page, "number of the checkpoint")
                        <= self.header("number of the checkpoint")
            };
            let page =
                slots.filter(counts).max_by_key(|page| fields.number(page, "number of the checkpoint"));
            let page = page.expect("a bitmap");
            fields.check(&page, 4096);
            assert_eq!(fields.bytes(&page, "first 8 bytes"), &self.id()[..8]);
            assert_eq!(fields.number(&page, "number of the group"), group);
            numbers.extend(fields.number(&page, "number of the checkpoint").to_le_bytes());
            fields.bytes(&page, "one bit per block").to_vec()
        });
        let maps = maps.collect();
        assert_eq!(u64::from(crc(&numbers)), self.header("checksum over the numbers"));
        maps
    }

    /// Entries below a node; `used` gets its blocks.
    fn walk(
        &self,
        (block, len, checksum): (u64, u64, u64),
        entries: &mut Entries,
        used: &mut Vec<(u64, u64)>,
    ) {
        let fields = table("Index nodes");
        let page = self.device.bytes(self.place("`data_offset`") + block * BLOCK, len as usize);
        fields.check(&page, page.len());
        assert_eq!(fields.number(&page, "checksum of"), checksum);
        assert_eq!(fields.bytes(&page, "first 8 bytes"), &self.id()[..8]);
        assert_eq!(fields.number(&page, "its own first block"), block);
        used.push((block, len / BLOCK));
        let (body, _) = fields.find("entries in ascending order");
        let (mut reader, mut key): (_, Vec<u8>) = (Reader(&page[body..]), Vec::new());
        for _ in 0..fields.number(&page, "number of entries") {
            let (shared, rest) = (reader.varint() as usize, reader.varint() as usize);
            let before = key.clone();
            key.truncate(shared);
            key.extend(reader.take(rest));
            assert!(before.is_empty() || key > before, "ascending");
            if fields.number(&page, "0 leaf, 1 branch") == 0 {
                let len = reader.varint() as usize;
                assert!(entries.insert(key.clone(), reader.take(len).to_vec()).is_none());
            } else {
                let child = (reader.little(8), reader.little(4), reader.little(4));
                self.walk(child, entries, used);
            }
        }
        assert!(reader.0.iter().all(|byte| *byte == 0), "zeros behind the entries");
    }

    /// The data of a version, compared with its checksums; `used` gets its blocks.
    fn data(&self, version: &[u8], used: &mut Vec<(u64, u64)>) -> Option<Vec<u8>> {
        let mut reader = Reader(version);
        reader.varint();
        match reader.little(1) {
            0 => None,
            1 => Some(reader.0.to_vec()),
            3 => {
                assert_eq!(reader.little(4), u64::from(crc(reader.0)));
                Some(reader.0.to_vec())
            }
            tag @ (2 | 4) => {
                let len = reader.varint() as usize;
                let (first, step) = if tag == 2 {
                    let chunk = 1 << reader.little(1);
                    (chunk, chunk)
                } else {
                    (reader.varint() as usize, reader.varint() as usize)
                };
                let mut data = Vec::new();
                for _ in 0..reader.varint() {
                    let (block, count) = (reader.varint(), reader.varint());
                    let offset = self.place("`data_offset`") + block * BLOCK;
                    data.extend(self.device.bytes(offset, (count * BLOCK) as usize));
                    used.push((block, count));
                }
                assert!(data[len..].iter().all(|byte| *byte == 0), "zeros behind the data");
                data.truncate(len);
                let (head, rest) = data.split_at(first.min(len));
                let chunks = core::iter::once(head).chain(rest.chunks(step));
                let checksums: Vec<u64> = chunks.map(|chunk| u64::from(crc(chunk))).collect();
                assert!(
                    checksums.iter().all(|checksum| reader.little(4) == *checksum) && reader.0.is_empty()
                );
                Some(data)
            }
            tag => panic!("tag {tag}"),
        }
    }

    /// Applies the records of the log, all behind the checkpoint; returns the number of batches.
    fn replay(&self, entries: &mut Entries) -> u64 {
        let fields = table("Log");
        let mut position = self.header("byte position");
        let (mut number, mut before) =
            (self.header("number of the batch"), self.header("checksum of the batch"));
        let (mut known, mut batches) = (self.header("records at the start"), 0);
        loop {
            let offset = self.place("`log_offset`") + position;
            let page = self.device.bytes(offset, 4096);
            if !page.starts_with(b"WLOG") || fields.number(&page, "number of the batch") != number {
                return batches;
            }
            let len = fields.number(&page, "bytes of header and records");
            let batch = self.device.bytes(offset, len as usize);
            fields.check(&batch, batch.len());
            assert_eq!(fields.bytes(&batch, "last 8 bytes"), &self.id()[8..]);
            assert_eq!(fields.number(&batch, "checksum of the batch before"), before);
            assert_eq!(fields.number(&batch, "0 records, 1"), 0, "this log doesn't go round");
            let (body, _) = fields.find("records");
            let mut records = Reader(&batch[body..]);
            while !records.0.is_empty() {
                let len = records.varint() as usize;
                let record = records.take(len);
                known = known.checked_sub(1).unwrap_or_else(|| {
                    apply(record, entries);
                    0
                });
            }
            (before, number) = (fields.number(&batch, "checksum of header"), number + 1);
            position += len.next_multiple_of(BLOCK);
            batches += 1;
        }
    }
}

/// Applies a record.
fn apply(record: &[u8], entries: &mut Entries) {
    let mut reader = Reader(record);
    let mut key = Vec::new();
    for _ in 0..reader.varint() {
        let is_set = reader.little(1) == 1;
        let (shared, rest) = (reader.varint() as usize, reader.varint() as usize);
        key.truncate(shared);
        key.extend(reader.take(rest));
        if is_set {
            let len = reader.varint() as usize;
            entries.insert(key.clone(), reader.take(len).to_vec());
        } else {
            entries.remove(&key);
        }
    }
    assert!(reader.0.is_empty(), "a record is read to its end");
}

#[test]
fn a_reader_written_from_the_description_finds_everything_in_the_golden_images() {
    for image in IMAGES {
        read_image(image);
    }
}

/// What a checkpoint header says beside where the checkpoint is, and a log beside its records. Earlier ones of the version don't.
fn check_later(image: &Image, is_later: bool) {
    let stable = image.header("log batches of lower numbers");
    assert_eq!(stable > 0, is_later);
    assert_eq!(image.header("device size in bytes"), if is_later { SIZE } else { 0 });
    assert_eq!(image.header("newest wall time of decisions") > 0, is_later);
}

fn read_image(name: &str) {
    let (image, version) = (Image::open(name), version_of(name));
    check_later(&image, has_later(name));
    assert_eq!(
        (image.place("format version"), image.place("features"), image.place("device size")),
        (u64::from(version), 0, SIZE)
    );
    assert_eq!((image.place("rank"), image.place("index of the target")), (1, 0));
    let name = table("Superblock").bytes(&image.superblock, "system name");
    assert!(name.starts_with(b"weir\0") && image.place("length of the system name") == 4);
    let (mut entries, mut used) = (Entries::new(), Vec::new());
    let root = ["root node: first block", "root node: length", "root node: checksum"]
        .map(|field| image.header(field));
    image.walk((root[0], root[1], root[2]), &mut entries, &mut used);
    assert_eq!(entries.len() as u64, image.header("number of index entries"));
    let is_version = |key: &[u8]| match key[0] {
        5 => matches!(tail(key), Some(Tail::Single(..) | Tail::Extent(..))),
        // Behind kind, pool, container and id: a version that a prepared transaction stores.
        7 => key[25] == 1,
        _ => false,
    };
    assert_eq!(entries.keys().any(|key| key[0] == 7), version > 1);
    for (_, value) in entries.iter().filter(|(key, _)| is_version(key)) {
        image.data(value, &mut used);
    }
    // The space map has exactly the blocks that nodes and values take.
    let maps = image.maps();
    let bits: u64 = maps.iter().flatten().map(|byte| u64::from(byte.count_ones())).sum();
    assert_eq!(bits, used.iter().map(|(_, count)| count).sum::<u64>());
    for block in used.iter().flat_map(|(block, count)| *block..block + count) {
        let (group, bit) = (block / 32_512, block % 32_512);
        assert!(maps[group as usize][bit as usize / 8] & (1 << (bit % 8)) != 0, "block {block}");
    }
    assert!(image.replay(&mut entries) > 5);
    // Pools: UUID, size, number of the next container, destroyed.
    let pool = &entries[[1, 0, 0, 0, 1].as_slice()];
    let mut reader = Reader(pool);
    assert_eq!((reader.take(16), reader.little(8)), (POOL.0.as_bytes().as_slice(), 2 << 20));
    assert_eq!((reader.little(4), reader.little(1), reader.0.len()), (5, 0, 0));
    // Single values of the golden image by dkey and epoch.
    let mut found = BTreeMap::new();
    for (key, version) in entries.iter().filter(|(key, _)| key[0] == 5) {
        if let Some(Tail::Single(dkey, epoch)) = tail(key) {
            found.insert((dkey, epoch), image.data(version, &mut Vec::new()).unwrap_or_default());
        }
    }
    for (number, len) in [0usize, 1, 60, 3000, 4096, 9000, 70_000].into_iter().enumerate() {
        let stored = &found[&(format!("d{number}").into_bytes(), 10 + number as u64)];
        assert!(*stored == value(number as u8, len), "value {number}");
    }
    assert!(found[&(b"d2".to_vec(), 30)] == value(30, 61), "from the log");
    let extents = entries.keys().filter(|key| key[0] == 5).filter_map(|key| match tail(key) {
        Some(Tail::Extent(index, count, epoch)) => Some((index, count, epoch)),
        _ => None,
    });
    let mut expected = vec![(90_000, 3, 21), (102, 10, 32), (100, 5000, 20)];
    if version > 1 {
        expected.extend([(1500, 100, 3001), (1001, 4000, 2002)]);
    }
    let mut extents: Vec<_> = extents.collect();
    extents.sort_unstable();
    expected.sort_unstable();
    assert_eq!(extents, expected);
    check_reservations(&entries, version);
}

/// Finds by dkey which records of it room is kept for.
fn check_reservations(entries: &Entries, version: u32) {
    let reservations = entries.iter().filter(|(key, _)| key[0] == 5 && key[25] == 2);
    let found: Vec<_> = reservations
        .map(|(key, value)| {
            let mut reader = Reader(&key[26..]);
            let dkey = reader.big(8);
            assert_eq!((reader.little(1), reader.text(), !reader.big(8)), (1, b"reserved".to_vec(), 0));
            assert!(reader.0.is_empty());
            let mut reader = Reader(value);
            let (record_size, bytes, run) =
                (reader.varint(), reader.varint(), (reader.varint(), reader.varint()));
            assert!(record_size == 1 && bytes > run.1 && reader.0.is_empty());
            (dkey, run)
        })
        .collect();
    let expected = [(20, (5, 19_995)), (21, (0, 20_000)), (22, (5, 19_995))];
    assert_eq!(found, if version > 2 { &expected[..] } else { &[] });
}

#[derive(Debug)]
enum Tail {
    Single(Vec<u8>, u64),
    Extent(u64, u64, u64),
}

/// What an object's entry is, if it is a version.
fn tail(key: &[u8]) -> Option<Tail> {
    let mut reader = Reader(&key[9..]);
    let kind = reader.big(8) >> 56;
    reader.take(8);
    let text = |reader: &mut Reader<'_>, integer: bool| {
        if integer { reader.take(8).to_vec() } else { reader.text() }
    };
    (reader.little(1) == 1).then_some(())?;
    let dkey = text(&mut reader, [2, 4, 9, 11, 12, 13].contains(&kind));
    (reader.little(1) == 1).then_some(())?;
    text(&mut reader, [3, 4].contains(&kind));
    let tail = match reader.little(1) {
        0 => return None,
        1 => Tail::Single(dkey, !reader.big(8)),
        2 => {
            let class = reader.little(1);
            let (index, count) = (reader.big(8), reader.big(8));
            assert_eq!(class, u64::from(count.ilog2() / 2));
            Tail::Extent(index, count, !reader.big(8))
        }
        other => panic!("kind {other}"),
    };
    assert!(reader.0.is_empty());
    Some(tail)
}
