//! Superblocks: wrong fields under right checksums, and blocks that are something else.

use crate::image::{SIZE, base, put_u32, put_u64, seal, superblock, u64_at, use_device};
use crate::source::Source;
use weir_media::BLOCK;

/// Places of the fields.
const FIELDS: [usize; 14] = [8, 16, 24, 40, 44, 48, 112, 120, 128, 136, 144, 152, 160, 168];

pub fn run(input: &[u8]) {
    let mut source = Source::new(input);
    let device = base();
    let mut block = superblock(&device);
    for _ in 0..source.below(4) {
        let at = source.pick(&FIELDS);
        if source.chance(100) {
            put_u32(&mut block, at, source.number32());
        } else if source.chance(200) {
            // Near what is there.
            let old = u64_at(&block, at);
            put_u64(&mut block, at, old.wrapping_add(source.number()).wrapping_sub(source.number()));
        } else {
            put_u64(&mut block, at, source.number());
        }
    }
    if source.chance(30) {
        let bytes = source.bytes(200);
        let at = usize::try_from(source.below(BLOCK as u64 - 200)).unwrap_or(0);
        block[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    if !source.chance(20) {
        seal(&mut block, 12);
    }
    if !source.chance(60) {
        device.overwrite(0, &block);
    }
    if !source.chance(100) {
        device.overwrite(SIZE - BLOCK as u64, &block);
    }
    let device = if source.chance(30) { device.copy(source.below(SIZE)) } else { device };
    if device.bytes(0, 1).is_empty() || weir_media::Device::size(&device) == 0 {
        return;
    }
    use_device(&device);
}
