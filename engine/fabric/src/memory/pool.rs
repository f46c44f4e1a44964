//! A bounded pool of page-aligned memory in size classes of powers of two.

use super::region::Regions;
use super::{Buffer, Chunk, Memory, PAGE};
use crate::error::FabricError;
use core::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_memory::HUGE;

/// Default bound of a pool: eight of the largest payloads (8 MiB each) in flight.
pub const POOL_BYTES_DEFAULT: usize = 64 << 20;

/// Size classes from one page up: 4 KiB … 16 MiB, twice the largest payload of one request. Larger buffers are
/// allocated and freed singly.
const CLASSES: usize = 13;

pub(crate) struct PoolInner {
    limit: usize,
    /// Bytes handed out.
    used: Cell<usize>,
    /// Bytes that lie in `free`.
    cached: Cell<usize>,
    free: RefCell<[Vec<Rc<Memory>>; CLASSES]>,
    /// Where it takes memory for more than messages, unless it is on plain pages.
    regions: Option<Regions>,
}

/// Page-aligned buffers, bounded in total. Cheap to clone: clones are the same pool.
#[derive(Clone)]
pub struct BufferPool {
    inner: Rc<PoolInner>,
}

/// The class that serves this length, and its size in bytes.
fn class(len: usize) -> Option<(usize, usize)> {
    let size = len.max(PAGE).checked_next_power_of_two()?;
    let class = (size.trailing_zeros() - PAGE.trailing_zeros()) as usize;
    (class < CLASSES).then_some((class, size))
}

impl BufferPool {
    /// A pool that hands out and keeps at most `limit` bytes. Buffers large enough for RMA are on huge pages,
    /// which take no more than the limit, too; when these are fragmented the rest is on plain pages.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self::of(limit, Some(Regions::within(limit)))
    }

    /// The same on plain pages, for many pools that each hold little.
    #[must_use]
    pub(crate) fn of_plain_pages(limit: usize) -> Self {
        Self::of(limit, None)
    }

    fn of(limit: usize, regions: Option<Regions>) -> Self {
        let free = RefCell::new(core::array::from_fn(|_| Vec::new()));
        let (used, cached) = (Cell::new(0), Cell::new(0));
        Self { inner: Rc::new(PoolInner { limit, used, cached, free, regions }) }
    }

    /// A buffer of exactly this length. Its content is undefined (zero, or what an earlier user left).
    ///
    /// # Errors
    /// When the pool's limit would be passed, or the system has no memory.
    pub fn alloc(&self, len: usize) -> Result<Buffer, FabricError> {
        let inner = &self.inner;
        let none = || FabricError::NoBuffers { wanted: len, used: inner.used.get(), limit: inner.limit };
        let (class, size) = match class(len) {
            Some((class, size)) => (Some(class), size),
            None => (None, len.checked_next_multiple_of(PAGE).ok_or_else(none)?),
        };
        if size > inner.limit - inner.used.get().min(inner.limit) {
            return Err(none());
        }
        let cached = class.and_then(|class| inner.free.borrow_mut()[class].pop());
        let memory = if let Some(memory) = cached {
            inner.cached.set(inner.cached.get() - size);
            memory
        } else {
            inner.trim(size);
            Memory::pooled(inner.fresh(size).ok_or_else(none)?, Rc::downgrade(inner))
        };
        inner.used.set(inner.used.get() + size);
        Ok(Buffer::new(memory, len))
    }

    /// Gives unused memory back to the system.
    pub fn rest(&self) {
        self.inner.trim(self.inner.limit);
    }

    /// Bytes handed out now.
    #[must_use]
    pub fn used(&self) -> usize {
        self.inner.used.get()
    }

    /// The bound in bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.inner.limit
    }
}

impl BufferPool {
    /// Ends the registrations of unused memory.
    pub(crate) fn forget_kept(&self) {
        self.inner.free.borrow().iter().flatten().for_each(|memory| memory.forget_kept());
    }
}

impl PoolInner {
    /// Memory from the system; `None` when it has none left.
    fn fresh(&self, size: usize) -> Option<Chunk> {
        let Some(regions) = &self.regions else { return Chunk::allocate(size) };
        if size > HUGE {
            return Chunk::map(size);
        }
        regions.take(size).map(Chunk::of).or_else(|| Chunk::allocate(size))
    }

    /// Frees cached memory, largest first, until `more` bytes can be allocated within the limit.
    fn trim(&self, more: usize) {
        let over = |this: &Self| this.used.get() + this.cached.get() + more > this.limit;
        for class in (0..CLASSES).rev() {
            while over(self) {
                let Some(memory) = self.free.borrow_mut()[class].pop() else { break };
                self.cached.set(self.cached.get() - memory.len());
                memory.free();
            }
        }
    }

    /// Takes back unused memory.
    pub(crate) fn give_back(&self, memory: Rc<Memory>) {
        let size = memory.len();
        self.used.set(self.used.get().saturating_sub(size));
        match class(size).filter(|(_, whole)| *whole == size) {
            Some((class, _)) => {
                self.cached.set(self.cached.get() + size);
                self.free.borrow_mut()[class].push(memory);
            }
            None => memory.free(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_memory::Lasting;

    #[test]
    fn the_limit_holds_and_freed_memory_serves_again() {
        let pool = BufferPool::new(64 << 10);
        let first = pool.alloc(40_000).expect("within the limit");
        assert_eq!((first.len(), first.capacity(), pool.used()), (40_000, 65_536, 65_536));
        assert!(matches!(pool.alloc(1), Err(FabricError::NoBuffers { wanted: 1, .. })));
        drop(first);
        let small: Vec<_> = (0..16).map(|_| pool.alloc(1).expect("sixteen pages")).collect();
        assert!(pool.alloc(1).is_err());
        drop(small);
        assert_eq!(pool.used(), 0);
        assert!(pool.alloc(60_000).is_ok());
    }

    #[test]
    fn buffers_for_rma_share_huge_pages_which_go_when_others_need_the_room() {
        let pool = BufferPool::new(2 * HUGE);
        let bytes = |pool: &BufferPool| pool.inner.regions.as_ref().map(Regions::bytes);
        let small = pool.alloc(PAGE).expect("within the limit");
        assert_eq!(bytes(&pool), Some(0), "messages are on plain pages");
        let large = [HUGE / 2, HUGE / 4, HUGE / 4].map(|len| pool.alloc(len).expect("within the limit"));
        assert_eq!((bytes(&pool), pool.used()), (Some(HUGE), HUGE + PAGE));
        drop((small, large));
        assert_eq!((bytes(&pool), pool.used()), (Some(HUGE), 0), "kept for the next ones");
        let mut whole = pool.alloc(2 * HUGE).expect("nobody has anything");
        assert_eq!(bytes(&pool), Some(0));
        pool.rest();
        whole.fill(7);
        assert_eq!(pool.used(), 2 * HUGE, "what is in use stays");
        drop(pool.alloc(1).expect_err("it is full"));
        drop(whole);
        let half = pool.alloc(HUGE).expect("nobody has anything");
        drop(half);
        assert_eq!(bytes(&pool), Some(HUGE));
        pool.rest();
        assert_eq!((bytes(&pool), pool.inner.cached.get()), (Some(0), 0));
        drop(pool);
        let plain = BufferPool::of_plain_pages(2 * HUGE);
        assert!(plain.alloc(HUGE).is_ok() && plain.alloc(2 * HUGE).is_ok());
        assert_eq!(bytes(&plain), None);
    }

    #[test]
    fn what_finds_no_room_on_huge_pages_is_on_plain_ones() {
        let pool = BufferPool::new(HUGE);
        let parts: Vec<_> = (0..16).map(|_| pool.alloc(HUGE / 16).expect("within the limit")).collect();
        // Every other one is freed, for a larger one that fits into none of the gaps.
        let kept: Vec<_> = parts.into_iter().step_by(2).collect();
        let mut large = pool.alloc(HUGE / 2).expect("half of the limit is free");
        large.fill(7);
        assert_eq!((pool.used(), kept.len()), (HUGE, 8));
    }

    #[test]
    fn buffers_are_page_aligned_and_a_hold_keeps_memory_out_of_the_pool() {
        let pool = BufferPool::new(PAGE);
        let buffer = pool.alloc(10).expect("one page");
        assert_eq!(buffer.as_ptr() as usize % PAGE, 0);
        let hold = buffer.hold();
        drop(buffer);
        assert!(pool.alloc(10).is_err(), "still held");
        drop(hold);
        assert!(pool.alloc(10).is_ok());
    }

    #[test]
    fn what_a_device_is_lent_of_a_buffer_is_all_of_it_wherever_the_buffer_goes() {
        let pool = BufferPool::new(64 << 10);
        let mut buffer = pool.alloc(5000).expect("within the limit");
        let (start, len) = buffer.place();
        assert_eq!((start.as_ptr().cast_const(), len), (buffer.as_ptr(), 8192));
        let mut moved = Box::new((buffer, pool.alloc(10).expect("within the limit")));
        moved.bytes().fill(7);
        assert_eq!(moved.place(), (start, len));
        moved.0.set_len(len);
        assert!(moved.0.len() == len && moved.0.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn lengths_beyond_the_classes_are_served_singly_and_absurd_ones_refused() {
        let pool = BufferPool::new(64 << 20);
        let large = pool.alloc((20 << 20) + 1).expect("within the limit");
        assert_eq!(large.capacity(), (20 << 20) + PAGE);
        assert!(pool.alloc(usize::MAX).is_err());
        drop(large);
        assert_eq!(pool.used(), 0);
    }
}
