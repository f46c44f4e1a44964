//! Checkpoint headers and the space map: wrong fields and bits under right checksums.

use super::entries::key;
use crate::image::{base, header, put_u32, put_u64, seal, superblock, u64_at, use_device, write_header};
use crate::source::Source;
use weir_media::BLOCK;

/// Places of the fields: identity, generation, number, incarnation, root, entries, position, sequence, …
const FIELDS: [usize; 17] = [16, 32, 40, 48, 56, 64, 68, 72, 80, 88, 96, 100, 104, 112, 120, 128, 192];

/// Place and length of the key where a pass of the scrubber goes on.
const SCRUB_KEY: (usize, usize) = (128, 64);

pub fn run(input: &[u8]) {
    let mut source = Source::new(input);
    let device = base();
    let (at, mut block) = header(&device);
    for _ in 0..source.below(3) {
        let field = source.pick(&FIELDS);
        if source.chance(100) {
            put_u32(&mut block, field, source.number32());
        } else {
            let old = if source.chance(128) { u64_at(&block, field) } else { 0 };
            put_u64(&mut block, field, old.wrapping_add(source.number()));
        }
    }
    if source.chance(40) {
        let mut key = key(&mut source);
        key.resize(SCRUB_KEY.1, 0);
        block[SCRUB_KEY.0..][..SCRUB_KEY.1].copy_from_slice(&key);
    }
    if source.chance(128) {
        let map = u64_at(&superblock(&device), 128) + source.below(2) * BLOCK as u64;
        let mut page = device.bytes(map, BLOCK);
        for _ in 0..source.below(4) {
            let byte = usize::try_from(source.below(BLOCK as u64 - 8)).unwrap_or(0);
            let byte = if source.chance(128) { byte % 64 } else { byte };
            put_u64(&mut page, byte, source.number());
        }
        seal(&mut page, 4);
        device.overwrite(map, &page);
        if source.chance(128) {
            // The checksum over the numbers of all bitmaps: there is one group.
            let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &page[16..24]);
            put_u32(&mut block, 100, u32::try_from(crc & 0xffff_ffff).unwrap_or(0));
        }
    }
    if !source.chance(20) {
        seal(&mut block, 8);
    }
    if source.chance(60) {
        device.overwrite(at, &block);
    } else {
        write_header(&device, at, &block);
    }
    use_device(&device);
}
