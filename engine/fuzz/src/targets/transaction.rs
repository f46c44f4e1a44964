//! Entries of transactions, nearly right: operations, the versions that they store, decisions.

use super::entries::{put_varint, version};
use crate::image::{ARRAY_OBJECT, TEXT_OBJECT};
use crate::source::Source;
use weir_proto::ObjectId;

/// Kind of the entries.
pub const KIND: u8 = 7;

/// What tells the entry of a transaction, in its key.
pub const TAIL: usize = 25;

/// Bytes of operations in one entry.
const PIECE: usize = 4096;

/// What the key of a transaction's entries begins with: one of those in the image, or another one.
fn place(source: &mut Source<'_>) -> Vec<u8> {
    let mut key = vec![KIND, 0, 0, 0, 1, 0, 0, 0, 1];
    if source.chance(10) {
        let at = 1 + usize::from(source.byte() % 8);
        key[at] = source.byte();
    }
    key.extend(u128::from(source.below(4)).to_be_bytes());
    key
}

/// The key of one entry.
pub fn key(source: &mut Source<'_>) -> Vec<u8> {
    let mut key = place(source);
    match source.pick(&[0, 1, 2, 3]) {
        0 => key.extend([0, 0, if source.chance(60) { source.byte() } else { 0 }]),
        1 => {
            key.push(1);
            key.extend(
                if source.chance(20) { source.number32() } else { source.byte().into() }.to_be_bytes(),
            );
        }
        2 => key.push(2),
        _ => key.push(source.byte()),
    }
    key
}

/// A value for a key.
pub fn value(source: &mut Source<'_>, key: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match key.get(TAIL) {
        Some(0) => {
            out = operations(source, &mut Vec::new());
            out.truncate(PIECE);
        }
        Some(1) => {
            let count = source.chance(128).then(|| 1 + source.below(300));
            version(source, count, &mut out);
        }
        _ => {
            out.push(if source.chance(10) { source.byte() } else { source.byte() % 2 });
            out.extend(epoch(source).to_le_bytes());
            out.extend(source.number().to_le_bytes());
        }
    }
    out
}

/// All entries of a prepared transaction.
pub fn prepared(source: &mut Source<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let place = place(source);
    let mut slots = Vec::new();
    let mut operations = operations(source, &mut slots);
    if source.chance(10) {
        let len = usize::try_from(source.below(operations.len() as u64)).unwrap_or(0);
        operations.truncate(len);
    }
    let mut entries = Vec::new();
    let cut = if source.chance(60) { 1 + source.below(PIECE as u64) } else { PIECE as u64 };
    for (number, piece) in (0u16..).zip(operations.chunks(usize::try_from(cut).unwrap_or(PIECE))) {
        let tail = [&[0][..], &number.to_be_bytes()].concat();
        entries.push(([&place[..], &tail].concat(), piece.to_vec()));
    }
    for (number, count) in (0u32..).zip(slots) {
        if source.chance(4) {
            continue;
        }
        let mut value = Vec::new();
        version(source, count, &mut value);
        value.truncate(PIECE);
        entries.push(([&place[..], &[1], &number.to_be_bytes()].concat(), value));
    }
    if source.chance(10) {
        let key = [&place[..], &[2]].concat();
        let decision = value(source, &key);
        entries.push((key, decision));
    }
    entries
}

fn epoch(source: &mut Source<'_>) -> u64 {
    if source.chance(40) { source.number() } else { 30 + source.below(100) }
}

/// Operations as they are stored; what goes where each of their versions does is added to `slots`: records of an extent.
fn operations(source: &mut Source<'_>, slots: &mut Vec<Option<u64>>) -> Vec<u8> {
    let mut body = epoch(source).to_le_bytes().to_vec();
    let count = 1 + source.below(4);
    put_varint(&mut body, if source.chance(6) { source.number() } else { count });
    for _ in 0..count {
        if source.chance(80) {
            punch(source, &mut body);
        } else {
            update(source, slots, &mut body);
        }
    }
    let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut out = if source.chance(6) { source.number32() } else { len }.to_le_bytes().to_vec();
    out.extend(body);
    out
}

fn object(source: &mut Source<'_>) -> ObjectId {
    source.pick(&[
        TEXT_OBJECT,
        ARRAY_OBJECT,
        ObjectId { hi: 3 << 56, lo: 1 },
        ObjectId { hi: 4 << 56, lo: 2 },
    ])
}

fn put_key(source: &mut Source<'_>, body: &mut Vec<u8>) {
    let key = match source.byte() % 16 {
        0 => source.bytes(1100),
        1..4 => vec![b'a' + source.byte() % 3],
        // Such a key every object has.
        _ => source.below(4).to_be_bytes().to_vec(),
    };
    put_varint(body, if source.chance(4) { source.number() } else { key.len() as u64 });
    body.extend(key);
}

fn put_keys(source: &mut Source<'_>, body: &mut Vec<u8>) {
    let count = source.below(4);
    put_varint(body, if source.chance(6) { source.number() } else { count });
    for _ in 0..count {
        put_key(source, body);
    }
}

fn punch(source: &mut Source<'_>, body: &mut Vec<u8>) {
    body.push(if source.chance(6) { source.byte() } else { 2 });
    body.extend(object(source).to_bytes());
    let kind = source.byte() % 3;
    body.push(if source.chance(6) { source.byte() } else { kind });
    if kind == 2 {
        put_key(source, body);
    }
    if kind > 0 {
        put_keys(source, body);
    }
}

fn update(source: &mut Source<'_>, slots: &mut Vec<Option<u64>>, body: &mut Vec<u8>) {
    body.push(1);
    body.extend(object(source).to_bytes());
    put_key(source, body);
    let akeys: Vec<bool> = (0..=source.below(3)).map(|_| source.chance(128)).collect();
    put_varint(body, if source.chance(6) { source.number() } else { akeys.len() as u64 });
    for is_array in &akeys {
        put_key(source, body);
        let record_size = u64::from(*is_array) * 9;
        put_varint(body, if source.chance(10) { source.number() } else { record_size });
    }
    let mut versions: Vec<u64> = (0..source.below(5)).map(|_| source.below(akeys.len() as u64)).collect();
    if !source.chance(6) {
        versions.sort_unstable();
    }
    put_varint(body, if source.chance(6) { source.number() } else { versions.len() as u64 });
    for akey in versions {
        put_varint(body, if source.chance(6) { source.number() } else { akey });
        let is_array = akeys.get(usize::try_from(akey).unwrap_or(0)) == Some(&true);
        put_varint(body, if source.chance(10) { source.number() } else { u64::from(is_array) * 8 });
        let count = u64::from(is_array) * (1 + source.below(300));
        let count = if source.chance(10) { source.number() } else { count };
        put_varint(body, count);
        if count > 0 {
            put_varint(body, if source.chance(60) { source.number() } else { source.below(5000) });
        }
        slots.push((count > 0).then_some(count));
    }
}
