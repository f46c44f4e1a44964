//! Limits and places of the nodes of the index.

use weir_media::BLOCK;

/// Blocks that a node takes at most.
pub const NODE_BLOCKS: u64 = (NODE_BYTES / BLOCK) as u64;

/// Most bytes of a node on the device, its header included: four blocks hold at least two entries of the largest
/// size, and one device read fetches it.
pub const NODE_BYTES: usize = 16 * 1024;

/// Bytes of a node's header on the device (see `page`).
pub const NODE_HEADER: usize = 48;

/// Most bytes of entries in a node.
pub const NODE_MAX: usize = NODE_BYTES - NODE_HEADER;

/// Most bytes of key and value of one entry. With it, a split always gives two nodes within [`NODE_MAX`].
pub const ENTRY_MAX: usize = 6000;

/// Bytes that a branch stores for each child on the device: block, length and checksum.
pub const CHILD_BYTES: usize = 16;

/// What a node is that holds entries.
pub const LEAF: u8 = 0;
/// What a node is that leads to others.
pub const BRANCH: u8 = 1;

/// Place and checksum of a node on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRef {
    /// First block.
    pub block: u64,
    /// Bytes.
    pub len: u32,
    /// Checksum of the bytes.
    pub crc: u32,
}
