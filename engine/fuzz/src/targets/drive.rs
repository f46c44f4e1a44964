//! Pages that an NVMe drive answers with: what a namespace and its controller are, and what the drive counts about itself.

use crate::source::Source;
use weir_media::Wear;
use weir_media::nvme::identity;

/// Bytes of the pages of Identify, and of the log.
const IDENTIFY_BYTES: usize = 4096;
const LOG_BYTES: usize = 512;

/// Most bytes that a command may move by itself.
const COMMAND_MAX: usize = 256 << 10;

pub fn run(input: &[u8]) {
    let mut source = Source::new(input);
    let mut space = vec![0; IDENTIFY_BYTES];
    let mut controller = vec![b' '; IDENTIFY_BYTES];
    let format = u8::try_from(source.below(64)).unwrap_or(0);
    let (blocks, shift, metadata) = (source.number(), source.byte(), source.number32().to_le_bytes());
    space[..8]
        .copy_from_slice(&(if source.chance(200) { blocks.max(1) >> 16 } else { blocks }).to_le_bytes());
    // The low four bits of the format's number, and two more above the fifth.
    space[26] = format & 0x0f | (format & 0x30) << 1;
    let at = 128 + 4 * usize::from(format);
    if source.chance(60) {
        space[at..at + 2].copy_from_slice(&metadata[..2]);
    }
    space[at + 2] = if source.chance(60) { shift } else { 9 + shift % 4 };
    (controller[77], controller[525]) = (source.byte(), source.byte());
    let (serial, model) = (source.bytes(20), source.bytes(40));
    controller[4..4 + serial.len()].copy_from_slice(&serial);
    controller[24..24 + model.len()].copy_from_slice(&model);
    let number = source.number32();
    let spoiled = spoil(&mut source, &mut space) | spoil(&mut source, &mut controller);
    match identity(number, &space, &controller) {
        Ok(found) => {
            assert_eq!(found.namespace, number);
            assert!((9..=12).contains(&found.block_shift) && found.blocks > 0, "{found:?}");
            let (block, most) = (1usize << found.block_shift, found.bytes_max);
            assert!(most >= block && most <= COMMAND_MAX && most % block == 0, "commands of {most} bytes");
            assert!(found.blocks.checked_mul(block as u64).is_some(), "more bytes than can be counted");
            assert!(found.model.chars().count() <= 40 && found.serial.chars().count() <= 20);
        }
        Err(reason) => {
            assert!(spoiled || !is_plain(&space, at), "a plain namespace is refused: {reason}");
        }
    }
    log(&mut source);
}

/// Whether a namespace has blocks, without metadata, of a length that is used, and no more than can be counted.
fn is_plain(space: &[u8], at: usize) -> bool {
    let blocks = u64::from_le_bytes(space[..8].try_into().unwrap_or_default());
    let shift = space[at + 2];
    let is_counted = || blocks.checked_mul(1 << shift).is_some();
    space[at..at + 2] == [0, 0] && (9..=12).contains(&shift) && blocks > 0 && is_counted()
}

/// Alters or shortens a page, now and then. Returns whether it did.
fn spoil(source: &mut Source<'_>, page: &mut Vec<u8>) -> bool {
    let spoils = source.chance(40);
    if spoils && source.chance(128) {
        page.truncate(usize::try_from(source.below(page.len() as u64)).unwrap_or(0));
    } else if spoils {
        let at = usize::try_from(source.below(page.len() as u64)).unwrap_or(0);
        page[at] = source.byte();
    }
    spoils
}

fn log(source: &mut Source<'_>) {
    let mut page = vec![0; LOG_BYTES];
    for at in [0, 1, 2, 3, 4, 5] {
        page[at] = source.byte();
    }
    let counters = [32, 48, 128, 144, 160].map(|at| {
        let number = source.number();
        page[at..at + 8].copy_from_slice(&number.to_le_bytes());
        number
    });
    if source.chance(30) {
        page.truncate(usize::try_from(source.below(LOG_BYTES as u64 + 1)).unwrap_or(0));
    }
    let Some(wear) = Wear::parse(&page) else {
        assert!(page.len() < LOG_BYTES, "a whole page is not read");
        return;
    };
    let seen = [wear.power_on_hours, wear.unsafe_shutdowns, wear.media_errors];
    assert_eq!(seen, counters[2..], "what was written is read");
    assert!(wear.read_bytes >= counters[0] && wear.written_bytes >= counters[1], "units are more than bytes");
    // A drive that is to be replaced is one to look after, too.
    assert!(wear.fault().is_none() || wear.suspicion().is_some(), "{wear:?}");
    assert_eq!(wear.critical_warning == 0 && wear.used < 100, wear.suspicion().is_none(), "{wear:?}");
}
