//! Keys and values of the index, nearly right.

use super::transaction;
use crate::image::{ARRAY_OBJECT, CONTAINER, POOL, TEXT_OBJECT};
use crate::source::Source;
use weir_proto::ObjectId;

/// Longest key and value of an entry together.
const ENTRY_MAX: usize = 6000;

/// From this choice on a key is one of a transaction: a sixth of all.
const TRANSACTIONS_FROM: u8 = 214;

/// LEB128.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

fn put_escaped(out: &mut Vec<u8>, text: &[u8]) {
    for byte in text {
        out.push(*byte);
        if *byte == 0 {
            out.push(0xff);
        }
    }
    out.extend_from_slice(&[0, 0]);
}

fn small(source: &mut Source<'_>) -> u32 {
    if source.chance(30) { source.number32() } else { 1 + u32::from(source.byte() % 2) }
}

fn epoch(source: &mut Source<'_>) -> u64 {
    if source.chance(200) { 1 + source.below(100) } else { source.number() }
}

/// What is drawn for the key of a reservation.
const RESERVATIONS: u8 = 7;

/// Bytes of an object's path, and what a reservation has behind it.
const OBJECT_LEN: usize = 25;
const RESERVED: u8 = 2;

/// A key; its first byte tells what kind of value belongs to it.
pub fn key(source: &mut Source<'_>) -> Vec<u8> {
    if source.chance(6) {
        return source.bytes(40);
    }
    let kind = match source.byte() {
        TRANSACTIONS_FROM.. => return transaction::key(source),
        RESERVATIONS => return reservation_key(source),
        choice => [5, 1, 2, 3, 4, 5, 6, 5, 5, 5, 5, 5][usize::from(choice) % 12],
    };
    let mut key = vec![kind];
    key.extend(small(source).to_be_bytes());
    match kind {
        2 | 3 => key.extend(small(source).to_be_bytes()),
        4 => {
            put_escaped(&mut key, &source.bytes(4));
            put_escaped(&mut key, &source.bytes(4));
            key.extend([0, source.byte() % 4]);
        }
        6 => {
            key.extend(small(source).to_be_bytes());
            key.extend(epoch(source).to_be_bytes());
        }
        5 => object_key(source, &mut key),
        _ => {}
    }
    if source.chance(6) {
        key.extend(source.bytes(6));
    }
    key
}

/// The key of a reservation.
fn reservation_key(source: &mut Source<'_>) -> Vec<u8> {
    let object = source.pick(&[ARRAY_OBJECT, TEXT_OBJECT]);
    let mut key =
        [&[5, 0, 0, 0, 1][..], &small(source).to_be_bytes(), &object.to_bytes(), &[RESERVED]].concat();
    key.extend(source.below(4).to_be_bytes());
    key.push(1);
    put_escaped(&mut key, &[b'a' + source.byte() % 3]);
    key.extend(if source.chance(20) { source.number() } else { u64::MAX }.to_be_bytes());
    key
}

fn object_key(source: &mut Source<'_>, key: &mut Vec<u8>) {
    key.extend(small(source).to_be_bytes());
    let integer_akeys = ObjectId { hi: 3 << 56, lo: 1 };
    let object = source.pick(&[TEXT_OBJECT, ARRAY_OBJECT, integer_akeys, ObjectId { hi: 4 << 56, lo: 2 }]);
    key.extend(object.to_bytes());
    for kinds in [[13, 4], [3, 4]] {
        let integer = kinds.contains(&object.kind());
        if source.chance(60) {
            key.push(0);
            key.extend((!epoch(source)).to_be_bytes());
            return;
        }
        key.push(1);
        if integer {
            key.extend(source.below(4).to_be_bytes());
        } else {
            let text = if source.chance(20) { source.bytes(60) } else { vec![b'a' + source.byte() % 3] };
            put_escaped(key, &text);
        }
    }
    match source.pick(&[2, 1, 0]) {
        0 => key.push(0),
        1 => key.push(1),
        _ => {
            let (index, count) =
                (source.number(), if source.chance(200) { 1 + source.below(300) } else { source.number() });
            let class = if source.chance(10) {
                source.byte()
            } else {
                u8::try_from(count.max(1).ilog2() / 2).unwrap_or(0)
            };
            key.extend([2, class]);
            key.extend(index.to_be_bytes());
            key.extend(count.to_be_bytes());
        }
    }
    key.extend((!epoch(source)).to_be_bytes());
}

/// A value that may belong to a key.
pub fn value(source: &mut Source<'_>, key: &[u8]) -> Vec<u8> {
    if source.chance(6) {
        return source.bytes(100);
    }
    let mut out = Vec::new();
    match key.first() {
        Some(1) => {
            out.extend(POOL.0.as_bytes());
            out.extend(if source.chance(128) { source.number() } else { 2 << 20 }.to_le_bytes());
            out.extend(small(source).to_le_bytes());
            out.push(source.byte() % 2);
        }
        Some(2) => {
            out.extend(CONTAINER.0.as_bytes());
            out.extend(if source.chance(128) { source.number() } else { 0 }.to_le_bytes());
            out.push(source.byte() % 2);
        }
        Some(3) => {
            out.extend(source.number().to_le_bytes());
            out.extend(source.number().to_le_bytes());
        }
        Some(4) => out = source.bytes(300),
        Some(6) => {}
        Some(&transaction::KIND) => out = transaction::value(source, key),
        _ => object_value(source, key, &mut out),
    }
    out.truncate(ENTRY_MAX.saturating_sub(key.len()));
    out
}

fn object_value(source: &mut Source<'_>, key: &[u8], out: &mut Vec<u8>) {
    if key.get(OBJECT_LEN) == Some(&RESERVED) {
        for _ in 0..2 + 2 * source.below(4) {
            put_varint(out, if source.chance(20) { source.number() } else { 1 + source.below(5000) });
        }
        return;
    }
    // What stands 26 bytes before the end of a key tells an extent, 9 before it an incarnation.
    let tag = |back: usize| key.len().checked_sub(back).and_then(|at| key.get(at)).copied();
    let is_extent = tag(26) == Some(2) && key.len() > 60;
    if !is_extent && tag(9) == Some(0) {
        let kind = source.pick(&[1, 2, 3, 4, 0]);
        out.push(kind);
        match kind {
            1 => out.extend(epoch(source).to_le_bytes()),
            3 | 4 => {
                put_varint(out, if source.chance(200) { 1 + source.below(16) } else { source.number() });
                put_varint(out, if source.chance(200) { 0xffff } else { source.number() });
            }
            _ => {}
        }
        return;
    }
    let count =
        key.len().checked_sub(16).and_then(|at| key.get(at..at + 8)).and_then(|count| count.try_into().ok());
    version(source, is_extent.then(|| count.map_or(1, u64::from_be_bytes)), out);
}

/// A version of a single value, or of an extent of so many records.
pub fn version(source: &mut Source<'_>, extent: Option<u64>, out: &mut Vec<u8>) {
    let (is_extent, count) = (extent.is_some(), extent.unwrap_or(1));
    let record_size = if is_extent { 1 + source.below(16) } else { 0 };
    put_varint(out, if source.chance(10) { source.number() } else { record_size });
    let len = count.saturating_mul(record_size);
    match source.pick(&[1, 2, 0]) {
        0 => out.push(0),
        1 => {
            if source.chance(128) {
                out.push(3);
                out.extend(source.number32().to_le_bytes());
            } else {
                out.push(1);
            }
            let len = if is_extent && !source.chance(20) { len.min(5000) } else { source.below(300) };
            out.resize(out.len() + usize::try_from(len).unwrap_or(0), source.byte());
        }
        _ => {
            let len = if is_extent && !source.chance(20) { len } else { source.number() };
            blocks(source, len, out);
        }
    }
}

fn blocks(source: &mut Source<'_>, len: u64, out: &mut Vec<u8>) {
    let pieces =
        if source.chance(128) { chunks_by_shift(source, len, out) } else { chunks_cut(source, len, out) };
    let total = len.div_ceil(4096).min(2048);
    let mut left = if source.chance(20) { source.below(20) } else { total };
    let mut runs = Vec::new();
    while left > 0 && runs.len() < 300 {
        let count = if source.chance(60) { 1 + source.below(left) } else { left };
        let block = if source.chance(10) { source.number() } else { source.below(800) };
        runs.push((block, count));
        left -= count;
    }
    put_varint(out, if source.chance(6) { source.number() } else { runs.len() as u64 });
    for (block, count) in runs {
        put_varint(out, block);
        put_varint(out, if source.chance(4) { source.number() } else { count });
    }
    for _ in 0..pieces.min(300) {
        out.extend(source.number32().to_le_bytes());
    }
}

/// Chunks of a power of two. Returns how many checksums they have.
fn chunks_by_shift(source: &mut Source<'_>, len: u64, out: &mut Vec<u8>) -> u64 {
    out.push(2);
    put_varint(out, len);
    let shift = if source.chance(20) {
        source.byte()
    } else if len <= 65_536 {
        12
    } else {
        15
    };
    out.push(shift);
    len.checked_shr(shift.into()).unwrap_or(0).saturating_add(1)
}

/// Chunks that begin and end somewhere. Returns how many checksums they have.
fn chunks_cut(source: &mut Source<'_>, len: u64, out: &mut Vec<u8>) -> u64 {
    let step = if source.chance(20) { source.number() } else { 2048 + source.below(2049) };
    let first = if source.chance(20) { source.number() } else { 1 + source.below(step.max(1)) };
    out.push(4);
    put_varint(out, len);
    put_varint(out, first);
    put_varint(out, step);
    len.saturating_sub(first).div_ceil(step.max(1)).saturating_add(1)
}

/// The entries of a pool and a container, under which the others are found.
pub fn catalog() -> [(Vec<u8>, Vec<u8>); 2] {
    let mut pool = POOL.0.as_bytes().to_vec();
    pool.extend((2u64 << 20).to_le_bytes());
    pool.extend([3, 0, 0, 0, 0]);
    let mut container = CONTAINER.0.as_bytes().to_vec();
    container.extend([0; 9]);
    [(vec![1, 0, 0, 0, 1], pool), (vec![2, 0, 0, 0, 1, 0, 0, 0, 1], container)]
}
