//! The index: nodes with right checksums where their parents say, and entries that are nearly right.

use super::entries::{catalog, key, put_varint, value};
use super::transaction;
use crate::image::{base, header, put_u32, put_u64, seal, superblock, u64_at, use_device, write_header};
use crate::source::Source;
use std::collections::BTreeMap;
use weir_media::BLOCK;
use weir_media::memory::MemoryDevice;

/// Bytes of a node before its entries.
const NODE_HEADER: usize = 48;
/// Most bytes of a node.
const NODE_BYTES: usize = 16 * 1024;
/// First block that nodes are put to.
const FIRST_BLOCK: u64 = 850;

/// From this choice on there are whole transactions, too.
const TRANSACTIONS_FROM: u8 = 200;

/// Where a node is.
struct Place {
    low: Vec<u8>,
    block: u64,
    len: u32,
    crc: u32,
}

pub fn run(input: &[u8]) {
    let mut source = Source::new(input);
    let device = base();
    let mut entries: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    if !source.chance(20) {
        entries.extend(catalog());
    }
    let choice = source.byte();
    for _ in 0..choice % 40 {
        let key = key(&mut source);
        let value = value(&mut source, &key);
        entries.insert(key, value);
    }
    for _ in 0..choice.saturating_sub(TRANSACTIONS_FROM) % 4 {
        entries.extend(transaction::prepared(&mut source));
    }
    write_index(&device, entries, &mut source);
    use_device(&device);
}

/// Gives a store these entries in place of its own.
fn write_index(device: &MemoryDevice, entries: BTreeMap<Vec<u8>, Vec<u8>>, source: &mut Source<'_>) {
    let (at, mut block) = header(device);
    let count = if source.chance(20) { source.number() } else { entries.len() as u64 };
    let root = write_tree(device, entries, source);
    put_u64(&mut block, 56, root.block);
    put_u32(&mut block, 64, root.len);
    put_u32(&mut block, 68, root.crc);
    put_u64(&mut block, 72, count);
    seal(&mut block, 8);
    write_header(device, at, &block);
}

/// Puts entries into leaves and, when there are several, a branch above them.
fn write_tree(device: &MemoryDevice, entries: BTreeMap<Vec<u8>, Vec<u8>>, source: &mut Source<'_>) -> Place {
    let mut next = FIRST_BLOCK;
    let mut level = Vec::new();
    let (mut body, mut low, mut before, mut count) = (Vec::new(), Vec::new(), Vec::new(), 0u32);
    for (key, value) in entries {
        let is_full = body.len() + key.len() + value.len() + 10 > NODE_BYTES - NODE_HEADER;
        if is_full || (count > 1 && source.chance(40)) {
            level.push(write_node(device, 0, core::mem::take(&mut body), count, low, &mut next, source));
            (low, before, count) = (key.clone(), Vec::new(), 0);
        }
        put_key(&mut body, &before, &key, source);
        put_varint(&mut body, if source.chance(3) { source.number() } else { value.len() as u64 });
        body.extend(value);
        before = key;
        count += 1;
    }
    level.push(write_node(device, 0, body, count, low, &mut next, source));
    while level.len() > 1 || source.chance(10) {
        let (mut body, mut before, mut count) = (Vec::new(), Vec::new(), 0);
        for (at, child) in level.iter().enumerate() {
            let key = if at == 0 && !source.chance(3) { Vec::new() } else { child.low.clone() };
            put_key(&mut body, &before, &key, source);
            body.extend(if source.chance(6) { source.number() } else { child.block }.to_le_bytes());
            body.extend(child.len.to_le_bytes());
            body.extend(child.crc.to_le_bytes());
            before = key;
            count += 1;
        }
        body.truncate(NODE_BYTES - NODE_HEADER);
        level = vec![write_node(device, 1, body, count, Vec::new(), &mut next, source)];
    }
    level.pop().unwrap_or(Place { low: Vec::new(), block: 0, len: 0, crc: 0 })
}

fn put_key(body: &mut Vec<u8>, before: &[u8], key: &[u8], source: &mut Source<'_>) {
    let shared = before.iter().zip(key).take_while(|(a, b)| a == b).count();
    put_varint(body, if source.chance(3) { source.number() } else { shared as u64 });
    put_varint(body, if source.chance(3) { source.number() } else { (key.len() - shared) as u64 });
    body.extend(&key[shared..]);
}

fn write_node(
    device: &MemoryDevice,
    kind: u8,
    body: Vec<u8>,
    count: u32,
    low: Vec<u8>,
    next: &mut u64,
    source: &mut Source<'_>,
) -> Place {
    let block = superblock(device);
    let len = (NODE_HEADER + body.len()).next_multiple_of(BLOCK).min(NODE_BYTES);
    let mut page = vec![0; NODE_HEADER];
    page[..4].copy_from_slice(b"WNOD");
    put_u64(&mut page, 8, u64_at(&block, 24));
    put_u64(&mut page, 16, if source.chance(6) { source.number() } else { 1 });
    put_u64(&mut page, 24, if source.chance(3) { source.number() } else { *next });
    page[32] = if source.chance(3) { source.byte() } else { kind };
    put_u32(&mut page, 36, if source.chance(6) { source.number32() } else { count });
    page.extend(body);
    page.resize(len, 0);
    let crc = seal(&mut page, 4);
    device.overwrite(u64_at(&block, 160) + *next * BLOCK as u64, &page);
    let place = Place { low, block: *next, len: u32::try_from(len).unwrap_or(0), crc };
    *next += (len / BLOCK) as u64;
    place
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{TEXT_OBJECT, config, owner};
    use std::rc::Rc;
    use weir_media::Device;
    use weir_store::{OpenError, Store};

    #[test]
    fn a_version_in_blocks_that_do_not_exist_is_damage_of_its_node() {
        let device = base();
        // An akey "a" of a dkey "a" with a single value of 9 bytes at epoch 1, in block 2^40.
        let mut key = vec![5, 0, 0, 0, 1, 0, 0, 0, 1];
        key.extend(TEXT_OBJECT.to_bytes());
        key.extend([1, b'a', 0, 0, 1, b'a', 0, 0, 1]);
        key.extend((!1u64).to_be_bytes());
        let mut value = vec![0, 2, 9, 12, 1];
        put_varint(&mut value, 1 << 40);
        value.extend([1, 7, 7, 7, 7]);
        let entries: BTreeMap<_, _> = catalog().into_iter().chain([(key, value)]).collect();
        write_index(&device, entries, &mut Source::new(&[]));
        let disk: Rc<dyn Device> = Rc::new(device.clone());
        crate::image::run(async move |handle| {
            // The index is one leaf, with the pools: nothing of it can be used.
            let opened = Store::open(&handle, disk, &owner(), config()).await;
            let error = opened.expect_err("it is damaged");
            assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
            assert!(error.to_string().contains("blocks outside the data region"), "{error}");
        });
    }
}
