//! Aligned memory for transfers.

use crate::device::BLOCK;
use crate::pool::PoolState;
use core::any::Any;
use core::ops::{Deref, DerefMut, Range};
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::rc::Rc;
use weir_memory::Lasting;

/// Memory aligned to [`BLOCK`], a whole number of blocks long.
pub struct DmaBuf {
    memory: NonNull<u8>,
    capacity: usize,
    len: usize,
    backing: Backing,
}

/// Where a buffer's memory goes in the end.
enum Backing {
    Heap,
    Pool(Rc<PoolState>),
    /// Memory of another owner, which stays as long as this is held.
    Lent(#[expect(dead_code, reason = "held for its drop")] Rc<dyn Any>),
}

impl DmaBuf {
    /// A buffer of a pool: `len` of the `capacity` bytes at `memory`, which go back to it in the end.
    pub(crate) fn of_pool(memory: NonNull<u8>, capacity: usize, len: usize, pool: Rc<PoolState>) -> Self {
        Self { memory, capacity, len, backing: Backing::Pool(pool) }
    }

    /// A part of another owner's memory: `len` bytes, whole blocks, at a multiple of [`BLOCK`].
    ///
    /// # Safety
    /// They must be initialised, stay as long as `owner` is held, and be used by no other code as long as the buffer
    /// lives.
    pub(crate) unsafe fn of_owner(memory: NonNull<u8>, len: usize, owner: Rc<dyn Any>) -> Self {
        Self { memory, capacity: len, len, backing: Backing::Lent(owner) }
    }

    /// Zeroed memory outside any pool, `len` rounded up to whole blocks.
    ///
    /// # Panics
    /// When the system is out of memory.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let len = round_up(len);
        Self { memory: allocate(len), capacity: len, len, backing: Backing::Heap }
    }

    /// Zeroed memory with these bytes at its start.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buffer = Self::new(bytes.len());
        buffer[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    /// Shortens the visible length to `len` rounded up to whole blocks; longer than it is has no effect.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(round_up(len));
    }
}

impl Deref for DmaBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `memory` points to `capacity >= len` bytes that are initialised (zeros of `alloc_zeroed` or of a mapping, or as
        // `of_owner` says), and this value owns them.
        unsafe { core::slice::from_raw_parts(self.memory.as_ptr(), self.len) }
    }
}

impl DerefMut for DmaBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes the access exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len) }
    }
}

// SAFETY: the memory stays where it is, is initialised, and has one owner, as in `deref_mut`.
unsafe impl Lasting for DmaBuf {
    fn place(&mut self) -> (NonNull<u8>, usize) {
        (self.memory, self.len)
    }
}

impl AsRef<[u8]> for DmaBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl core::fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DmaBuf").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        match &self.backing {
            Backing::Pool(pool) => pool.give_back(self.memory, self.capacity),
            // SAFETY: allocated by `allocate` with this capacity and not yet freed.
            Backing::Heap => unsafe { release(self.memory, self.capacity) },
            Backing::Lent(_) => {}
        }
    }
}

pub(crate) fn round_up(len: usize) -> usize {
    len.max(1).next_multiple_of(BLOCK)
}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, BLOCK).expect("lengths stay far below isize::MAX")
}

/// Zeroed memory aligned to [`BLOCK`]. The length isn't zero.
pub(crate) fn allocate(len: usize) -> NonNull<u8> {
    // SAFETY: the layout's size is at least one block, so not zero.
    let memory = unsafe { alloc_zeroed(layout(len)) };
    NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout(len)))
}

/// # Safety
/// `memory` must come from [`allocate`] with the same length and must not be used again.
pub(crate) unsafe fn release(memory: NonNull<u8>, len: usize) {
    // SAFETY: passed on to the caller.
    unsafe { dealloc(memory.as_ptr(), layout(len)) }
}

/// Bytes to be written, kept alive by shared ownership: a [`DmaBuf`], or any other memory (registered RMA buffers)
/// behind an `Rc`. Safe code can't get `&mut` to the memory while a slice exists.
#[derive(Clone)]
pub struct Slice {
    owner: Rc<dyn AsRef<[u8]>>,
    start: usize,
    len: usize,
}

impl Slice {
    /// A part of the owner's bytes; `None` when the range is outside them.
    #[must_use]
    pub fn new(owner: Rc<dyn AsRef<[u8]>>, range: Range<usize>) -> Option<Self> {
        (*owner).as_ref().get(range.clone())?;
        Some(Self { owner, start: range.start, len: range.len() })
    }

    /// A part of this slice; `None` when the range is outside it.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Option<Self> {
        self.get(range.clone())?;
        Some(Self { owner: Rc::clone(&self.owner), start: self.start + range.start, len: range.len() })
    }

    /// Whether address and length are multiples of [`BLOCK`], so that a device takes the slice without a copy.
    #[must_use]
    pub fn is_aligned(&self) -> bool {
        self.as_ptr().addr().is_multiple_of(BLOCK) && self.len.is_multiple_of(BLOCK)
    }
}

impl Deref for Slice {
    type Target = [u8];

    /// Empty when the owner has, against its promise, become shorter.
    fn deref(&self) -> &[u8] {
        (*self.owner).as_ref().get(self.start..self.start + self.len).unwrap_or_default()
    }
}

impl From<DmaBuf> for Slice {
    fn from(buffer: DmaBuf) -> Self {
        let len = buffer.len();
        Self { owner: Rc::new(buffer), start: 0, len }
    }
}

impl core::fmt::Debug for Slice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Slice").field("start", &self.start).field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_whole_blocks() {
        let buffer = DmaBuf::copy_of(b"weir");
        assert_eq!(buffer.len(), BLOCK);
        assert!(buffer.as_ptr().addr().is_multiple_of(BLOCK));
        assert_eq!(&buffer[..5], b"weir\0");
    }

    #[test]
    fn slices_stay_inside_their_owner() {
        let slice = Slice::from(DmaBuf::copy_of(b"0123456789"));
        assert!(slice.is_aligned());
        let part = slice.part(2..5).expect("inside");
        assert_eq!(&*part, b"234");
        assert!(part.part(1..4).is_none());
        assert!(!part.is_aligned());
    }
}
