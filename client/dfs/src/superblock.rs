//! The superblock: what makes a container a file system.

use serde::{Deserialize, Serialize};
use weir_proto::ObjectId;

use crate::{Error, Result};

/// First word of every superblock (daos-api §1.4).
const MAGIC: u64 = 0xda05_df50_da05_df50;

/// Version of the layout.
const LAYOUT: u32 = 1;

/// User bits of `hi` that reserved objects carry; object ids from the allocator have none there.
const RESERVED: u64 = 1;

/// Object that holds the superblock and the root directory's inode record.
pub(crate) const SUPERBLOCK_OID: ObjectId = ObjectId { hi: RESERVED, lo: 0 };

/// The root directory.
pub(crate) const ROOT_OID: ObjectId = ObjectId { hi: RESERVED, lo: 1 };

/// Leases of clients, and the right to grant locks.
pub(crate) const CLIENTS_OID: ObjectId = ObjectId { hi: RESERVED, lo: 2 };

/// Content without a name that clients may have open.
pub(crate) const ORPHANS_OID: ObjectId = ObjectId { hi: RESERVED, lo: 3 };

/// User bits of `hi` of the object of an inode with hard links, which has the inode's `lo`.
pub(crate) const LINKED: u64 = 2;

/// The superblock's dkey, under which the root's inode record stands too.
pub(crate) const SUPERBLOCK_NAME: &[u8] = b"superblock";

/// The superblock's akey.
pub(crate) const SUPERBLOCK_KEY: &[u8] = b"s";

/// What a file system was made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Superblock {
    magic: u64,
    layout: u32,
    /// Bytes of a file in one dkey, for new files.
    pub chunk_size: u64,
    /// Object class of new files (`daos_oclass_id_t`).
    pub file_class: u32,
    /// Object class of directories.
    pub directory_class: u32,
}

impl Superblock {
    pub(crate) fn new(chunk_size: u64, file_class: u32, directory_class: u32) -> Self {
        Self { magic: MAGIC, layout: LAYOUT, chunk_size, file_class, directory_class }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        weir_proto::codec::encode(self)
    }

    pub(crate) fn decode(bytes: &[u8], container: &str) -> Result<Self> {
        let corrupt = |reason: String| Error::Corrupt {
            object: format!("superblock of container {container}"),
            reason,
        };
        let block: Self = weir_proto::codec::decode(bytes).map_err(|error| corrupt(error.to_string()))?;
        if block.magic != MAGIC {
            return Err(corrupt("it has another magic number".into()));
        }
        if block.layout != LAYOUT {
            return Err(corrupt(format!("it has layout {}, this client reads {LAYOUT}", block.layout)));
        }
        if block.chunk_size == 0 {
            return Err(corrupt("its chunk size is 0".into()));
        }
        Ok(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_superblock_of_this_layout_is_read() {
        let block = Superblock::new(1 << 20, 3, 4);
        assert_eq!(Superblock::decode(&block.encode(), "c").expect("reads"), block);
        let newer = Superblock { layout: LAYOUT + 1, ..block };
        let other = Superblock { magic: 7, ..block };
        for bad in [newer.encode(), other.encode(), Vec::new()] {
            assert!(matches!(Superblock::decode(&bad, "c"), Err(Error::Corrupt { .. })));
        }
    }
}
