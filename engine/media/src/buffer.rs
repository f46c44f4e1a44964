//! Aligned memory for transfers, from a pool of bounded size.

use crate::device::BLOCK;
use core::cell::{Cell, RefCell};
use core::ops::{Deref, DerefMut, Range};
use core::ptr::NonNull;
use core::task::{Poll, Waker};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::rc::Rc;

/// Smallest buffer the pool keeps for reuse; larger classes double.
const CLASS_MIN: usize = BLOCK;
/// Number of size classes that are kept: 4 KiB to 8 MiB, the payload limit of one request.
const CLASSES: usize = 12;

/// Memory aligned to [`BLOCK`], a whole number of blocks long.
pub struct DmaBuf {
    memory: NonNull<u8>,
    capacity: usize,
    len: usize,
    pool: Option<Rc<PoolState>>,
}

impl DmaBuf {
    /// Zeroed memory outside any pool, `len` rounded up to whole blocks.
    ///
    /// # Panics
    /// When the system is out of memory.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let len = round_up(len);
        Self { memory: allocate(len), capacity: len, len, pool: None }
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
        // SAFETY: `memory` points to `capacity >= len` bytes that were initialised by `alloc_zeroed`, and this value
        // owns them.
        unsafe { core::slice::from_raw_parts(self.memory.as_ptr(), self.len) }
    }
}

impl DerefMut for DmaBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes the access exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len) }
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
        match self.pool.take() {
            Some(pool) => pool.give_back(self.memory, self.capacity),
            // SAFETY: allocated by `allocate` with this capacity and not yet freed.
            None => unsafe { release(self.memory, self.capacity) },
        }
    }
}

fn round_up(len: usize) -> usize {
    len.max(1).next_multiple_of(BLOCK)
}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, BLOCK).expect("lengths stay far below isize::MAX")
}

fn allocate(len: usize) -> NonNull<u8> {
    // SAFETY: the layout's size is at least one block, so not zero.
    let memory = unsafe { alloc_zeroed(layout(len)) };
    NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout(len)))
}

/// # Safety
/// `memory` must come from [`allocate`] with the same length and must not be used again.
unsafe fn release(memory: NonNull<u8>, len: usize) {
    // SAFETY: passed on to the caller.
    unsafe { dealloc(memory.as_ptr(), layout(len)) }
}

/// Bounds the memory of transfers: whoever asks for more than is left waits.
#[derive(Clone)]
pub struct DmaPool {
    state: Rc<PoolState>,
}

struct PoolState {
    limit: usize,
    used: Cell<usize>,
    idle: RefCell<[Vec<NonNull<u8>>; CLASSES]>,
    waiting: RefCell<Vec<Waker>>,
}

/// The size class of a length: its index and its capacity. `None`: larger than any class.
fn class_of(len: usize) -> Option<(usize, usize)> {
    let capacity = len.next_power_of_two().max(CLASS_MIN);
    let index = (capacity / CLASS_MIN).trailing_zeros() as usize;
    (index < CLASSES).then_some((index, capacity))
}

impl PoolState {
    fn give_back(&self, memory: NonNull<u8>, capacity: usize) {
        self.used.set(self.used.get() - capacity);
        match class_of(capacity) {
            Some((class, size)) if size == capacity => self.idle.borrow_mut()[class].push(memory),
            // SAFETY: `give_back` is called once, from the drop of the buffer that owned the memory.
            _ => unsafe { release(memory, capacity) },
        }
        for waker in self.waiting.take() {
            waker.wake();
        }
    }
}

impl Drop for PoolState {
    fn drop(&mut self) {
        for (class, idle) in self.idle.get_mut().iter_mut().enumerate() {
            for memory in idle.drain(..) {
                // SAFETY: idle memory of a class was allocated with the class's capacity and has no other owner.
                unsafe { release(memory, CLASS_MIN << class) };
            }
        }
    }
}

impl DmaPool {
    /// A pool that hands out at most `limit` bytes at once.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let state = PoolState {
            limit,
            used: Cell::new(0),
            idle: RefCell::new(core::array::from_fn(|_| Vec::new())),
            waiting: RefCell::new(Vec::new()),
        };
        Self { state: Rc::new(state) }
    }

    /// Bytes handed out now.
    #[must_use]
    pub fn used(&self) -> usize {
        self.state.used.get()
    }

    /// Memory of `len` bytes rounded up to whole blocks; `None` when the pool's limit is reached. The content is
    /// whatever an earlier transfer left. A request beyond the whole limit is served when nothing else is out.
    #[must_use]
    pub fn try_take(&self, len: usize) -> Option<DmaBuf> {
        let len = round_up(len);
        let (class, capacity) = class_of(len).map_or((None, len), |(class, size)| (Some(class), size));
        let used = self.state.used.get();
        if used > 0 && used.saturating_add(capacity) > self.state.limit {
            return None;
        }
        let idle = class.and_then(|class| self.state.idle.borrow_mut()[class].pop());
        let memory = idle.unwrap_or_else(|| allocate(capacity));
        self.state.used.set(used + capacity);
        Some(DmaBuf { memory, capacity, len, pool: Some(Rc::clone(&self.state)) })
    }

    /// Like [`DmaPool::try_take`], waiting until there is room.
    pub async fn take(&self, len: usize) -> DmaBuf {
        core::future::poll_fn(|cx| {
            if let Some(buffer) = self.try_take(len) {
                return Poll::Ready(buffer);
            }
            self.state.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl core::fmt::Debug for DmaPool {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DmaPool").field("limit", &self.state.limit).field("used", &self.used()).finish()
    }
}

/// Bytes to be written, kept alive by shared ownership: a [`DmaBuf`], or any other memory (registered RMA buffers)
/// behind an `Rc`. Nobody can get `&mut` to the memory through safe code while a slice exists.
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
    fn a_pool_hands_out_no_more_than_its_limit_and_reuses_what_returns() {
        let pool = DmaPool::new(4 * BLOCK);
        let first = pool.try_take(3 * BLOCK).expect("an empty pool");
        assert_eq!(first.len(), 3 * BLOCK);
        assert!(pool.try_take(1).is_none(), "a class of four blocks is out");
        let address = first.as_ptr().addr();
        drop(first);
        assert_eq!(pool.used(), 0);
        assert_eq!(pool.try_take(4 * BLOCK).expect("room again").as_ptr().addr(), address);
    }

    #[test]
    fn one_request_beyond_the_limit_is_served_alone() {
        let pool = DmaPool::new(BLOCK);
        let large = pool.try_take(100 * BLOCK).expect("nothing else is out");
        assert!(pool.try_take(1).is_none());
        drop(large);
        assert!(pool.try_take(1).is_some());
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
