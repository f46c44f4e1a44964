//! Memory for transfers from a pool of bounded size.
//!
//! A pool takes its memory in chunks, never more of them than its limit needs, and hands out parts whose lengths are
//! powers of two (a buddy allocator in each chunk). Because the chunks stay where they are, a device can register them
//! with the kernel, which keeps their pages pinned ([`crate::Device::register`]). They are on huge pages where the
//! system gives them. Parts are handed out from pages that are in use already, so that few pages are touched.

use crate::buffer::{DmaBuf, round_up};
use crate::device::BLOCK;
use core::cell::{Cell, RefCell};
use core::ptr::NonNull;
use core::task::{Poll, Waker};
use std::rc::Rc;
use weir_memory::Mapping;

/// Order of a whole chunk: its length is [`BLOCK`] times two to this power.
const CHUNK_ORDER: u8 = 11;

/// Bytes of a chunk, which is also the largest part that comes from one: 8 MiB, the payload limit of one request.
pub(crate) const CHUNK: usize = BLOCK << CHUNK_ORDER;

/// Blocks of a chunk.
const LEAVES: usize = 1 << CHUNK_ORDER;

/// Bounds the memory of transfers: a caller that asks for more than is left waits.
#[derive(Clone)]
pub struct DmaPool {
    state: Rc<PoolState>,
}

/// Where a pool takes its memory, which is aligned to [`BLOCK`].
#[derive(Clone, Copy)]
pub(crate) struct Source {
    /// Gives this many bytes, initialised with anything; `None` when there are none left.
    pub(crate) take: fn(usize) -> Option<NonNull<u8>>,
    /// Takes back what `take` gave, with the same number of bytes.
    pub(crate) give_back: unsafe fn(NonNull<u8>, usize),
}

/// Mappings of the process's own.
const MAPPED: Source = Source { take: |len| Mapping::new(len).map(Mapping::into_start), give_back: unmap };

/// # Safety
/// `memory` must come from [`MAPPED`] with the same length and must not be used again.
unsafe fn unmap(memory: NonNull<u8>, len: usize) {
    // SAFETY: passed on to the caller.
    drop(unsafe { Mapping::from_start(memory, len) });
}

/// A pool's memory and the callers that wait for it.
pub(crate) struct PoolState {
    source: Source,
    limit: usize,
    used: Cell<usize>,
    chunks: RefCell<Vec<Chunk>>,
    waiting: RefCell<Vec<Waker>>,
    waits: Cell<u64>,
}

/// Contiguous memory, and which parts of it are free.
///
/// The parts form a binary tree whose root, at index 1, is the whole chunk and whose leaves are its blocks. Each node
/// tells the order of the largest free part in it plus one, or zero when nothing in it is free.
struct Chunk {
    source: Source,
    memory: NonNull<u8>,
    largest: Box<[u8]>,
}

/// The order of parts that hold `len` bytes; `None`: larger than a chunk.
fn order_of(len: usize) -> Option<u8> {
    let blocks = len.div_ceil(BLOCK).next_power_of_two();
    u8::try_from(blocks.trailing_zeros()).ok().filter(|order| *order <= CHUNK_ORDER)
}

impl Chunk {
    fn new(source: Source) -> Option<Self> {
        let memory = (source.take)(CHUNK)?;
        let mut largest = vec![0; 2 * LEAVES];
        for (index, order) in largest.iter_mut().enumerate().skip(1) {
            // Nodes 2^d to 2^(d+1)-1 lie d steps below the root.
            *order = CHUNK_ORDER + 1 - u8::try_from(index.ilog2()).unwrap_or(CHUNK_ORDER);
        }
        Some(Self { source, memory, largest: largest.into() })
    }

    /// Takes a part; `None` when none of this order is free.
    fn take(&mut self, order: u8) -> Option<NonNull<u8>> {
        if self.largest[1] <= order {
            return None;
        }
        let mut node = 1;
        for _ in order..CHUNK_ORDER {
            // The fuller half that still has room, so that large parts stay whole.
            let (left, right) = (self.largest[2 * node], self.largest[2 * node + 1]);
            let fits_left = left > order && (left <= right || right <= order);
            node = 2 * node + usize::from(!fits_left);
        }
        self.largest[node] = 0;
        self.update_above(node, order);
        let leaf = (node << order) - LEAVES;
        // SAFETY: `leaf` is below `LEAVES`, so the address lies within the chunk's allocation.
        Some(unsafe { self.memory.add(leaf * BLOCK) })
    }

    /// Takes a part back.
    fn give_back(&mut self, memory: NonNull<u8>, order: u8) {
        let leaf = (memory.addr().get() - self.memory.addr().get()) / BLOCK;
        let node = (LEAVES + leaf) >> order;
        self.largest[node] = order + 1;
        self.update_above(node, order);
    }

    fn update_above(&mut self, mut node: usize, mut order: u8) {
        while node > 1 {
            node /= 2;
            let (left, right) = (self.largest[2 * node], self.largest[2 * node + 1]);
            let whole = order + 1;
            self.largest[node] = if left == whole && right == whole { whole + 1 } else { left.max(right) };
            order += 1;
        }
    }

    fn contains(&self, memory: NonNull<u8>) -> bool {
        let base = self.memory.addr().get();
        (base..base + CHUNK).contains(&memory.addr().get())
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: taken by `Chunk::new` with this length. Buffers keep their pool, and with it this chunk, alive; none is
        // left.
        unsafe { (self.source.give_back)(self.memory, CHUNK) };
    }
}

impl PoolState {
    /// Takes back what [`DmaPool::try_take`] handed out; called once, from the drop of its buffer.
    pub(crate) fn give_back(&self, memory: NonNull<u8>, capacity: usize) {
        self.used.set(self.used.get() - capacity);
        let mut chunks = self.chunks.borrow_mut();
        match (chunks.iter_mut().find(|chunk| chunk.contains(memory)), order_of(capacity)) {
            (Some(chunk), Some(order)) => chunk.give_back(memory, order),
            // SAFETY: memory outside the chunks was taken for this one buffer with this capacity.
            _ => unsafe { (self.source.give_back)(memory, capacity) },
        }
        drop(chunks);
        for waker in self.waiting.take() {
            waker.wake();
        }
    }

    fn chunks_max(&self) -> usize {
        self.limit.div_ceil(CHUNK).max(1)
    }

    fn take(&self, order: u8) -> Option<NonNull<u8>> {
        let mut chunks = self.chunks.borrow_mut();
        if let Some(memory) = chunks.iter_mut().find_map(|chunk| chunk.take(order)) {
            return Some(memory);
        }
        if chunks.len() >= self.chunks_max() {
            return None;
        }
        let mut chunk = Chunk::new(self.source)?;
        let memory = chunk.take(order);
        chunks.push(chunk);
        memory
    }
}

impl DmaPool {
    /// A pool that hands out at most `limit` bytes at once, and holds no more than that rounded up to whole chunks of
    /// 8 MiB.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self::of(limit, MAPPED)
    }

    /// A pool with memory of another kind.
    pub(crate) fn of(limit: usize, source: Source) -> Self {
        let state = PoolState {
            source,
            limit,
            used: Cell::new(0),
            chunks: RefCell::new(Vec::new()),
            waiting: RefCell::new(Vec::new()),
            waits: Cell::new(0),
        };
        Self { state: Rc::new(state) }
    }

    /// Bytes handed out now.
    #[must_use]
    pub fn used(&self) -> usize {
        self.state.used.get()
    }

    /// Bytes the pool holds, handed out or not.
    #[must_use]
    pub fn held(&self) -> usize {
        self.state.chunks.borrow().len() * CHUNK
    }

    /// Most bytes it hands out at once.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.state.limit
    }

    /// How often a caller had to wait for memory.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.state.waits.get()
    }

    /// Memory of `len` bytes rounded up to whole blocks; `None` when the pool's limit is reached, or what is left is in
    /// pieces that are too small. The content is whatever an earlier transfer left. A request beyond the whole limit is
    /// served when nothing else is out.
    #[must_use]
    pub fn try_take(&self, len: usize) -> Option<DmaBuf> {
        let len = round_up(len);
        let order = order_of(len);
        let capacity = order.map_or(len, |order| BLOCK << order);
        let used = self.state.used.get();
        if used > 0 && used.saturating_add(capacity) > self.state.limit {
            return None;
        }
        let memory = match order {
            Some(order) => self.state.take(order)?,
            None => (self.state.source.take)(capacity)?,
        };
        self.state.used.set(used + capacity);
        Some(DmaBuf::of_pool(memory, capacity, len, Rc::clone(&self.state)))
    }

    /// Like [`DmaPool::try_take`], waiting until there is room. Where the system gives the pool no memory, it is of the heap.
    ///
    /// # Panics
    /// When the heap has none either.
    pub async fn take(&self, len: usize) -> DmaBuf {
        let mut has_waited = false;
        core::future::poll_fn(|cx| {
            if let Some(buffer) = self.try_take(len) {
                return Poll::Ready(buffer);
            }
            if self.used() == 0 {
                // Nothing will come back that could be waited for.
                return Poll::Ready(DmaBuf::new(len));
            }
            if !core::mem::replace(&mut has_waited, true) {
                self.state.waits.set(self.state.waits.get() + 1);
            }
            self.state.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Memory with these bytes at its start and zeros behind them, waiting until there is room.
    pub async fn copy_of(&self, bytes: &[u8]) -> DmaBuf {
        let mut buffer = self.take(bytes.len()).await;
        let (start, rest) = buffer.split_at_mut(bytes.len());
        start.copy_from_slice(bytes);
        rest.fill(0);
        buffer
    }

    /// Number of its chunks. It only grows.
    pub(crate) fn chunks(&self) -> usize {
        self.state.chunks.borrow().len()
    }

    /// Begin of a chunk's [`CHUNK`] bytes, which stay valid while the pool lives.
    pub(crate) fn chunk(&self, index: usize) -> Option<NonNull<u8>> {
        self.state.chunks.borrow().get(index).map(|chunk| chunk.memory)
    }
}

impl core::fmt::Debug for DmaPool {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DmaPool").field("limit", &self.state.limit).field("used", &self.used()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::task::Context;
    use weir_runtime::random::Random;

    #[test]
    fn a_pool_hands_out_no_more_than_its_limit_and_reuses_what_returns() {
        let pool = DmaPool::new(4 * BLOCK);
        let first = pool.try_take(3 * BLOCK).expect("an empty pool");
        assert_eq!(first.len(), 3 * BLOCK);
        assert!(pool.try_take(1).is_none(), "a part of four blocks is out");
        let address = first.as_ptr().addr();
        drop(first);
        assert_eq!(pool.used(), 0);
        assert_eq!(pool.try_take(4 * BLOCK).expect("room again").as_ptr().addr(), address);
    }

    #[test]
    fn nobody_waits_for_memory_that_the_system_does_not_give() {
        for len in [BLOCK, 2 * CHUNK] {
            let pool = DmaPool::of(4 * CHUNK, Source { take: |_| None, give_back: |_, _| {} });
            let taken = core::pin::pin!(pool.take(len)).poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(taken, Poll::Ready(buffer) if buffer.len() == len));
            assert_eq!((pool.used(), pool.waits()), (0, 0));
        }
    }

    #[test]
    fn one_request_beyond_the_limit_is_served_alone() {
        for len in [100 * BLOCK, 2 * CHUNK] {
            let pool = DmaPool::new(BLOCK);
            let large = pool.try_take(len).expect("nothing else is out");
            assert_eq!(large.len(), len);
            assert!(pool.try_take(1).is_none());
            drop(large);
            assert!(pool.try_take(1).is_some());
        }
    }

    #[test]
    fn parts_never_overlap_and_the_memory_of_any_sizes_stays_bounded() {
        let pool = DmaPool::new(2 * CHUNK);
        let random = Random::new(7);
        let mut out: Vec<(DmaBuf, u8)> = Vec::new();
        let mut refused = 0;
        for step in 0..20_000u32 {
            let len = usize::try_from(random.between(1, 1 << random.between(12, 21))).expect("small");
            if random.chance(0.55) {
                match pool.try_take(len) {
                    Some(mut buffer) => {
                        let mark = u8::try_from(step % 251).expect("small");
                        let last = buffer.len() - 1;
                        (buffer[0], buffer[last]) = (mark, mark);
                        out.push((buffer, mark));
                    }
                    None => refused += 1,
                }
            } else if !out.is_empty() {
                let index = usize::try_from(random.below(out.len() as u64)).expect("small");
                let (buffer, mark) = out.swap_remove(index);
                assert_eq!((buffer[0], buffer[buffer.len() - 1]), (mark, mark), "another part overlaps");
            }
        }
        assert!(refused > 100 && pool.held() <= 2 * CHUNK, "{refused}, {}", pool.held());
        drop(out);
        assert_eq!(pool.used(), 0);
        let whole = [pool.try_take(CHUNK), pool.try_take(CHUNK)];
        assert!(whole.iter().all(Option::is_some), "what came back is whole again");
    }

    #[test]
    fn who_waits_is_served_when_something_returns() {
        let world = weir_runtime::sim::World::new(1);
        let node = world.node("n");
        let pool = DmaPool::new(BLOCK);
        let first = pool.try_take(1);
        assert!(first.is_some());
        let handle = node.handle();
        let waiting = pool.clone();
        let task = handle.spawn(async move { waiting.take(1).await.len() });
        world.run_for(core::time::Duration::from_millis(1));
        drop(first);
        assert_eq!(world.block_on(&node, task).expect("not aborted"), BLOCK);
        assert_eq!((pool.waits(), pool.limit(), pool.used()), (1, BLOCK, 0));
    }
}
