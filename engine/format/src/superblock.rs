//! The superblock: what a device is, whose it is, and where its regions are. Written at format; what it says never changes.

use super::{Layout, VERSION_NEWEST};
use crate::codec::{Decoder, Encode, Malformed, crc32c_without};
use crate::owner::{Owner, SYSTEM_NAME_MAX};
use uuid::Uuid;
use weir_media::BLOCK;
use weir_proto::{Rank, TargetIndex};

const MAGIC: [u8; 8] = *b"WEIRSTOR";

/// Position of the checksum.
const CRC_AT: usize = 12;

/// How many of the 64 bits of the magic may differ for a block to count as a damaged superblock rather than as
/// something else.
const MAGIC_BITS_MAX: u32 = 8;

/// The superblock of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Version of the format.
    pub version: u32,
    /// Features without which the store can't be read.
    pub features: u64,
    /// Identity of the store.
    pub id: Uuid,
    /// Whose data it holds.
    pub owner: Owner,
    /// Wall time of the format, nanoseconds since 1970.
    pub formatted_ns: u64,
    /// Where the regions are.
    pub layout: Layout,
}

/// Begins the block that stands at the start of a device while it is being formatted.
const UNFINISHED_MAGIC: [u8; 8] = *b"WEIRFRMT";

/// Where the mark of a copy has the identity of the store that is copied, and behind it the byte that tells such a mark from that
/// of a format.
const COPIED_AT: usize = 24;
const COPY_AT: usize = COPIED_AT + 16;

/// The first block of a device of this size while it is being formatted.
#[must_use]
pub fn unfinished_format(size: u64) -> Vec<u8> {
    mark(size, None)
}

/// The first block of a device of this size while a store is being copied to it.
#[must_use]
pub fn unfinished_copy(size: u64, copied: Uuid) -> Vec<u8> {
    mark(size, Some(copied))
}

fn mark(size: u64, copied: Option<Uuid>) -> Vec<u8> {
    let mut out = Vec::with_capacity(BLOCK);
    out.extend_from_slice(&UNFINISHED_MAGIC);
    out.put_u32(0);
    out.put_u32(0);
    out.put_u64(size);
    if let Some(copied) = copied {
        out.extend_from_slice(copied.as_bytes());
        out.put_u8(1);
    }
    out.resize(BLOCK, 0);
    let crc = crc32c_without(&out, CRC_AT);
    out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    out
}

/// What an intact or damaged mark says.
fn read_mark(block: &[u8]) -> SuperblockFault {
    let copied = block.get(COPIED_AT..COPY_AT).and_then(|id| Uuid::from_slice(id).ok());
    let stored = Decoder::new(block.get(CRC_AT..).unwrap_or_default()).u32();
    let is_copy = block.get(COPY_AT) == Some(&1) && stored == Ok(crc32c_without(block, CRC_AT));
    match copied.filter(|_| is_copy) {
        Some(copied) => SuperblockFault::UnfinishedCopy(copied),
        None => SuperblockFault::Unfinished,
    }
}

/// Why a block isn't a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuperblockFault {
    /// All zero.
    Blank,
    /// A format was begun and not finished.
    Unfinished,
    /// A copy of the store of this identity was begun and not finished.
    UnfinishedCopy(Uuid),
    /// Something else, by its description.
    Foreign(&'static str),
    /// A superblock that doesn't match its checksum or makes no sense.
    Damaged(&'static str),
}

impl Superblock {
    /// The block that holds it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK);
        out.extend_from_slice(&MAGIC);
        out.put_u32(self.version);
        out.put_u32(0);
        out.put_u64(self.features);
        out.extend_from_slice(self.id.as_bytes());
        out.put_u32(self.owner.rank.0);
        out.put_u32(self.owner.target.0);
        let mut name = [0; SYSTEM_NAME_MAX + 1];
        let len = self.owner.system.len().min(SYSTEM_NAME_MAX);
        name[0] = u8::try_from(len).unwrap_or(0);
        name[1..=len].copy_from_slice(&self.owner.system.as_bytes()[..len]);
        out.extend_from_slice(&name);
        out.put_u64(self.formatted_ns);
        let layout = &self.layout;
        for field in [layout.size, layout.map_offset, layout.groups, layout.log_offset, layout.log_len] {
            out.put_u64(field);
        }
        out.put_u64(layout.data_offset);
        out.put_u64(layout.data_blocks);
        out.resize(BLOCK, 0);
        let crc = crc32c_without(&out, CRC_AT);
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut decoder = Decoder::new(bytes);
        decoder.bytes(MAGIC.len())?;
        let version = decoder.u32()?;
        decoder.u32()?;
        let features = decoder.u64()?;
        let id = Uuid::from_bytes(decoder.array()?);
        let (rank, target) = (Rank(decoder.u32()?), TargetIndex(decoder.u32()?));
        let name: [u8; SYSTEM_NAME_MAX + 1] = decoder.array()?;
        let formatted_ns = decoder.u64()?;
        let layout = Layout {
            size: decoder.u64()?,
            map_offset: decoder.u64()?,
            groups: decoder.u64()?,
            log_offset: decoder.u64()?,
            log_len: decoder.u64()?,
            data_offset: decoder.u64()?,
            data_blocks: decoder.u64()?,
        };
        let system = name.get(1..=usize::from(name[0])).and_then(|name| core::str::from_utf8(name).ok());
        let system = system.ok_or(Malformed("the system name makes no sense"))?.to_owned();
        // The regions of a later version may be others; it is refused by its number.
        if version <= VERSION_NEWEST && !layout.is_sound() {
            return Err(Malformed("the regions overlap or lie outside the device"));
        }
        Ok(Self { version, features, id, owner: Owner { system, rank, target }, formatted_ns, layout })
    }
}

/// Reads a superblock from a block.
///
/// # Errors
/// What the block is instead.
pub fn read_superblock(block: &[u8]) -> Result<Superblock, SuperblockFault> {
    if block.iter().all(|byte| *byte == 0) {
        return Err(SuperblockFault::Blank);
    }
    if block.starts_with(&UNFINISHED_MAGIC) {
        return Err(read_mark(block));
    }
    let magic: u32 = block.iter().zip(&MAGIC).map(|(found, expected)| (found ^ expected).count_ones()).sum();
    if magic > MAGIC_BITS_MAX {
        return Err(SuperblockFault::Foreign(describe(block)));
    }
    let stored = Decoder::new(block.get(CRC_AT..).unwrap_or_default()).u32().unwrap_or(0);
    if magic > 0 || crc32c_without(block, CRC_AT) != stored {
        // What some tools write leaves the first bytes as they were.
        let fault = foreign(block)
            .map_or(SuperblockFault::Damaged("it does not match its checksum"), SuperblockFault::Foreign);
        return Err(fault);
    }
    Superblock::decode(block).map_err(|malformed| SuperblockFault::Damaged(malformed.0))
}

/// Signatures of what is commonly found on devices: position, bytes, name.
const SIGNATURES: [(usize, &[u8], &str); 11] = [
    (1080, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (512, b"LABELONE", "an LVM physical volume"),
    (512, b"EFI PART", "a GPT partition table"),
    (0, b"LUKS", "a LUKS volume"),
    (0, b"SQLite format 3", "an SQLite database"),
    (0, b"\x7fELF", "an ELF program"),
    (0, &[0x1f, 0x8b], "a gzip file"),
    (0, b"PK", "a zip file"),
    (0, b"SPDKBLOB", "an SPDK blobstore"),
    (510, &[0x55, 0xaa], "a partition table or boot sector"),
];

/// A name for the content that a device begins with.
#[must_use]
pub fn describe(start: &[u8]) -> &'static str {
    if start.starts_with(&MAGIC) {
        return "a Weir store";
    }
    if start.starts_with(&UNFINISHED_MAGIC) && matches!(read_mark(start), SuperblockFault::UnfinishedCopy(_))
    {
        return "a copy of a Weir store that was not finished";
    }
    foreign(start).unwrap_or("unknown data")
}

/// A name for it, where it is known and not ours.
fn foreign(start: &[u8]) -> Option<&'static str> {
    let matches =
        |(at, bytes, _): &&(usize, &[u8], &str)| start.get(*at..).is_some_and(|rest| rest.starts_with(bytes));
    SIGNATURES.iter().find(matches).map(|(_, _, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        let owner = Owner { system: "weir".to_owned(), rank: Rank(3), target: TargetIndex(1) };
        let layout = Layout::plan(64 << 20, None).expect("large enough");
        Superblock { version: 1, features: 0, id: Uuid::from_u128(7), owner, formatted_ns: 9, layout }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let block = superblock().encode();
        assert_eq!(read_superblock(&block), Ok(superblock()));
        for bit in 0..BLOCK * 8 {
            let mut damaged = block.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(read_superblock(&damaged), Err(SuperblockFault::Damaged(_))), "bit {bit}");
        }
    }

    #[test]
    fn a_superblock_with_a_partition_table_in_it_is_somebody_elses() {
        let mut block = superblock().encode();
        block[446..462].fill(7);
        block[510..512].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(
            read_superblock(&block),
            Err(SuperblockFault::Foreign("a partition table or boot sector"))
        );
    }

    #[test]
    fn the_mark_of_a_copy_is_told_from_that_of_a_format_and_names_the_store() {
        let id = Uuid::from_u128(9);
        let mark = unfinished_copy(1 << 30, id);
        assert_eq!(read_superblock(&mark), Err(SuperblockFault::UnfinishedCopy(id)));
        assert_eq!(describe(&mark), "a copy of a Weir store that was not finished");
        assert_eq!(read_superblock(&unfinished_format(1 << 30)), Err(SuperblockFault::Unfinished));
        for at in 8..=COPY_AT {
            let mut damaged = mark.clone();
            damaged[at] ^= 4;
            assert_eq!(read_superblock(&damaged), Err(SuperblockFault::Unfinished), "byte {at}");
        }
        assert_eq!(describe(&mark[..30]), "unknown data");
    }

    #[test]
    fn other_content_is_named() {
        assert_eq!(read_superblock(&[0; BLOCK]), Err(SuperblockFault::Blank));
        let mut ext4 = [0; BLOCK];
        ext4[1080..1082].copy_from_slice(&[0x53, 0xef]);
        assert_eq!(
            read_superblock(&ext4),
            Err(SuperblockFault::Foreign("an ext2, ext3 or ext4 file system"))
        );
        assert_eq!(read_superblock(&[7; BLOCK]), Err(SuperblockFault::Foreign("unknown data")));
        assert_eq!(describe(b""), "unknown data");
    }
}
