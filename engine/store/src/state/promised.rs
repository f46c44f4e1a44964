//! Room that is promised to leaders of groups of replicas, for copies.

use crate::state::core::Core;
use weir_media::BLOCK;

/// Part of the reserve that copies leave free which were promised room: more than what deletes leave.
const COPY_DIVISOR: u64 = 2;

impl Core {
    /// Whether what was promised room may take this many more blocks. Where more nodes have changed since, it takes those that
    /// updates leave: who has promised room can't refuse.
    pub(crate) fn has_blocks_for_copy(&self, blocks: u64) -> bool {
        let kept = self.awaited_blocks() + self.prepared_blocks();
        self.space.borrow_mut().has_room(blocks, self.reserve_blocks() / COPY_DIVISOR, kept)
    }

    /// Bytes of the device that may still be promised.
    pub(crate) fn promisable_bytes(&self) -> u64 {
        let kept = self.awaited_blocks() + self.prepared_blocks() + self.reserve_blocks();
        let free = self.space.borrow().free().saturating_sub(kept) * BLOCK as u64;
        if self.has_blocks(0) { free.saturating_sub(self.catalog.borrow().promised()) } else { 0 }
    }
}
