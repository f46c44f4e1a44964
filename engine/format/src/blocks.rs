//! Blocks of the data region that a value takes.

use crate::node::PageRef;
use smallvec::SmallVec;
use weir_media::BLOCK;

/// Most runs that one value may be scattered over: bounds the size of its index entry. A device that is more
/// fragmented than this counts as full.
pub const RUNS_MAX: usize = 256;

/// Contiguous blocks of the data region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first one, counted from the start of the data region.
    pub block: u64,
    /// How many.
    pub count: u64,
}

impl Run {
    /// How many bytes they are.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.count * BLOCK as u64
    }

    /// Whether it has blocks, and all of them lie inside a region of this many.
    #[must_use]
    pub fn is_inside(self, blocks: u64) -> bool {
        self.count > 0 && self.block.checked_add(self.count).is_some_and(|end| end <= blocks)
    }
}

/// Where a value is. Most are in one piece.
pub type Runs = SmallVec<[Run; 1]>;

impl From<PageRef> for Run {
    fn from(page: PageRef) -> Self {
        Self { block: page.block, count: u64::from(page.len).div_ceil(BLOCK as u64) }
    }
}
