//! Memory that the fabric moves data to and from: buffers and their pool, registrations that are kept for the next use,
//! and notifications when the application's memory was freed. It calls nothing of this crate but its errors. Endpoints
//! and all transports use it.
//!
//! A [`Buffer`] owns its bytes exclusively as far as this program goes. Operations in flight hold the memory itself, so
//! that it outlives them, whichever is dropped first.
#![expect(unsafe_code, reason = "raw memory that the network card or another process writes to")]

mod monitor;
mod mr_cache;
mod pool;
mod region;

pub use pool::{BufferPool, POOL_BYTES_DEFAULT};

pub(crate) use monitor::{EventPosition, address_range};
pub(crate) use mr_cache::{CacheKey, Found, MrCache};

use crate::error::FabricError;
use core::any::Any;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut, Range};
use core::ptr::NonNull;
use pool::PoolInner;
use region::Block;
use serde::{Deserialize, Serialize};
use std::alloc::Layout;
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use weir_memory::{Lasting, Mapping};

/// Alignment of pooled memory: the page size, which is what `O_DIRECT` and registration want.
pub(crate) const PAGE: usize = 4096;

/// Where memory comes from, and goes when it is dropped.
enum Backing {
    Heap(NonNull<u8>, Layout),
    Mapped(Mapping),
    Shared(Block),
}

impl Backing {
    fn extent(&self) -> (NonNull<u8>, usize) {
        match self {
            Self::Heap(ptr, layout) => (*ptr, layout.size()),
            Self::Mapped(mapping) => (mapping.start(), mapping.len()),
            Self::Shared(block) => (block.start(), block.len()),
        }
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Self::Heap(ptr, layout) = self {
            // SAFETY: allocated with this layout in `Chunk::allocate`, and freed only here.
            unsafe { std::alloc::dealloc(ptr.as_ptr(), *layout) };
        }
    }
}

/// Registrations of a whole memory for use by this side, where the provider needs such: one for each endpoint that it is used
/// with.
pub(crate) type LocalRegistrations = RefCell<Vec<Box<dyn Any>>>;

/// One allocation of whole pages, initialised once.
pub(crate) struct Chunk {
    backing: Backing,
    /// Lasting registrations for use by this side.
    local: LocalRegistrations,
    /// Registrations for peers that serve again.
    kept: RefCell<Vec<Kept>>,
}

/// A registration for peers, of a part of a memory, that is not in use.
pub(crate) struct Kept {
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) access: Access,
    pub(crate) registration: Box<dyn Any>,
}

/// Registrations that one memory keeps: both directions of a few different ranges.
const KEPT_MAX: usize = 4;

impl Chunk {
    fn new(backing: Backing) -> Self {
        Self { backing, local: LocalRegistrations::default(), kept: RefCell::default() }
    }

    /// Zeroed memory of the heap. `None` when the system has no memory left or the size overflows.
    pub(crate) fn allocate(len: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len.max(1).checked_next_multiple_of(PAGE)?, PAGE).ok()?;
        // SAFETY: the layout's size is not zero.
        let ptr = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Self::new(Backing::Heap(ptr, layout)))
    }

    /// Zeros in huge pages of its own. `None` as above.
    pub(crate) fn map(len: usize) -> Option<Self> {
        Mapping::new(len).map(|mapping| Self::new(Backing::Mapped(mapping)))
    }

    /// A part of a huge page, with anything in it.
    pub(crate) fn of(block: Block) -> Self {
        Self::new(Backing::Shared(block))
    }

    /// Ends the registrations that are kept.
    fn forget_kept(&self) {
        self.kept.borrow_mut().clear();
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // Registrations are closed before their memory goes, which it does behind this.
        self.forget_kept();
        self.local.take();
    }
}

enum Origin {
    Pooled { chunk: Option<Chunk>, pool: Weak<PoolInner> },
    Foreign { local: LocalRegistrations, _keep: Option<Box<dyn Any>> },
}

/// Bytes at a fixed place. Freed, or given back to its pool, when the last user is gone.
pub(crate) struct Memory {
    ptr: NonNull<u8>,
    len: usize,
    origin: Origin,
}

impl Memory {
    pub(crate) fn pooled(chunk: Chunk, pool: Weak<PoolInner>) -> Rc<Self> {
        let (ptr, len) = chunk.backing.extent();
        Rc::new(Self { ptr, len, origin: Origin::Pooled { chunk: Some(chunk), pool } })
    }

    /// Frees pooled memory that is not held and that goes to no pool any more.
    pub(crate) fn free(mut self: Rc<Self>) {
        if let Some(Origin::Pooled { chunk, .. }) = Rc::get_mut(&mut self).map(|memory| &mut memory.origin) {
            drop(chunk.take());
        }
    }

    /// Ends the registrations that it keeps.
    pub(crate) fn forget_kept(&self) {
        if let Origin::Pooled { chunk: Some(chunk), .. } = &self.origin {
            chunk.forget_kept();
        }
    }

    /// The pool that memory with one user comes from.
    fn backing(self: &Rc<Self>) -> Option<Rc<PoolInner>> {
        match &self.origin {
            Origin::Pooled { pool, .. } if Rc::strong_count(self) == 1 => pool.upgrade(),
            Origin::Pooled { .. } | Origin::Foreign { .. } => None,
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self.origin, Origin::Foreign { .. })
    }

    /// The place for registrations that last as long as the memory does.
    pub(crate) fn local(&self) -> Option<&LocalRegistrations> {
        match &self.origin {
            Origin::Pooled { chunk, .. } => chunk.as_ref().map(|chunk| &chunk.local),
            Origin::Foreign { local, .. } => Some(local),
        }
    }

    /// Takes a kept registration of exactly this range that `fits`.
    pub(crate) fn take_kept(
        &self,
        range: (usize, usize, Access),
        fits: impl Fn(&dyn Any) -> bool,
    ) -> Option<Box<dyn Any>> {
        let Origin::Pooled { chunk: Some(chunk), .. } = &self.origin else { return None };
        let mut kept = chunk.kept.borrow_mut();
        let at =
            kept.iter().position(|one| (one.at, one.len, one.access) == range && fits(&*one.registration))?;
        Some(kept.swap_remove(at).registration)
    }

    /// Keeps a registration as long as the memory is allocated, pooled memory's only. What finds no room ends.
    pub(crate) fn keep(&self, range: (usize, usize, Access), registration: Box<dyn Any>) {
        let Origin::Pooled { chunk: Some(chunk), .. } = &self.origin else { return };
        let mut kept = chunk.kept.borrow_mut();
        let (at, len, access) = range;
        if kept.len() >= KEPT_MAX {
            kept.remove(0);
        }
        kept.push(Kept { at, len, access, registration });
    }

    /// Copies bytes out. Panics never: the range is checked by the callers' buffers.
    #[inline]
    pub(crate) fn slice(&self, range: Range<usize>) -> &[u8] {
        let range = range.start.min(self.len)..range.end.min(self.len);
        let len = range.end.saturating_sub(range.start);
        // SAFETY: within the allocation, initialised, and used on this thread only while no operation of this
        // process writes to it (fabric operations run inside this thread's progress calls).
        unsafe { core::slice::from_raw_parts(self.ptr.as_ptr().add(range.start), len) }
    }

    /// Has `fill` write a part of it that was never given out: what was handed out of it before is gone.
    #[inline]
    pub(crate) fn fill(&self, range: Range<usize>, fill: impl FnOnce(&mut [u8])) {
        let range = range.start.min(self.len)..range.end.min(self.len);
        let len = range.end.saturating_sub(range.start);
        // SAFETY: within the allocation, initialised, used on this thread only, and nothing else refers to this part of it.
        fill(unsafe { core::slice::from_raw_parts_mut(self.ptr.as_ptr().add(range.start), len) });
    }

    /// Copies bytes between two memories, which may be the same one.
    pub(crate) fn copy(&self, at: usize, from: &Self, from_at: usize, len: usize) -> bool {
        let fits = |at: usize, memory: &Self| at.checked_add(len).is_some_and(|end| end <= memory.len);
        if !fits(at, self) || !fits(from_at, from) {
            return false;
        }
        // SAFETY: both ranges were just checked; `copy` allows overlap.
        unsafe { core::ptr::copy(from.ptr.as_ptr().add(from_at), self.ptr.as_ptr().add(at), len) };
        true
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Origin::Pooled { chunk, pool } = &mut self.origin
            && let (Some(chunk), Some(owner)) = (chunk.take(), pool.upgrade())
        {
            // What isn't a buffer was its last user.
            owner.give_back(Self::pooled(chunk, core::mem::take(pool)));
        }
    }
}

/// Keeps memory allocated without giving access to it.
#[derive(Clone)]
pub struct MemoryHold {
    _memory: Rc<Memory>,
}

impl MemoryHold {
    pub(crate) fn new(memory: &Rc<Memory>) -> Self {
        Self { _memory: Rc::clone(memory) }
    }
}

/// A piece of memory for data. Not `Clone`: its bytes have one owner.
pub struct Buffer {
    /// Taken by `drop` alone.
    memory: ManuallyDrop<Rc<Memory>>,
    offset: usize,
    len: usize,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: no code uses the field after this.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        if let Some(pool) = memory.backing() {
            pool.give_back(memory);
        }
    }
}

impl Buffer {
    pub(crate) fn new(memory: Rc<Memory>, len: usize) -> Self {
        let len = len.min(memory.len());
        Self { memory: ManuallyDrop::new(memory), offset: 0, len }
    }

    /// A buffer of no bytes.
    #[must_use]
    pub fn empty() -> Self {
        Self::from_vec(Vec::new())
    }

    /// Takes over ordinary memory. It is not page-aligned; providers that need local registration register it for
    /// each use.
    #[must_use]
    pub fn from_vec(mut bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        let ptr = NonNull::new(bytes.as_mut_ptr()).unwrap_or(NonNull::dangling());
        let origin = Origin::Foreign { local: LocalRegistrations::default(), _keep: Some(Box::new(bytes)) };
        Self::new(Rc::new(Memory { ptr, len, origin }), len)
    }

    /// Zeros that no pool keeps, for what is large and rarely filled: the system gives their pages as they are touched, and has them
    /// back with the buffer. `None` when it has no memory left.
    #[must_use]
    pub fn passing(len: usize) -> Option<Self> {
        Chunk::map(len).map(|chunk| Self::new(Memory::pooled(chunk, Weak::new()), len))
    }

    /// Wraps memory of another owner, such as an application's own buffer. A call that exposes such memory returns only
    /// when no peer can touch it any more.
    ///
    /// # Safety
    /// `len` bytes at `ptr` must be initialised and stay valid until the buffer and every operation that was started on
    /// it are gone. No other code may access them while an operation is under way.
    #[must_use]
    pub unsafe fn from_raw(ptr: NonNull<u8>, len: usize) -> Self {
        let origin = Origin::Foreign { local: LocalRegistrations::default(), _keep: None };
        Self::new(Rc::new(Memory { ptr, len, origin }), len)
    }

    /// Like [`Buffer::from_raw`], for memory whose owner can be kept: `keep` is dropped when the last operation on
    /// the memory has ended.
    ///
    /// # Safety
    /// `len` bytes at `ptr` must be initialised and stay valid as long as `keep` is not dropped. No other code may
    /// access them meanwhile.
    #[must_use]
    pub unsafe fn from_owner(ptr: NonNull<u8>, len: usize, keep: Box<dyn Any>) -> Self {
        let origin = Origin::Foreign { local: LocalRegistrations::default(), _keep: Some(keep) };
        Self::new(Rc::new(Memory { ptr, len, origin }), len)
    }

    /// Whether the memory came from a pool (and is page-aligned).
    #[must_use]
    pub fn is_pooled(&self) -> bool {
        !self.memory.is_foreign()
    }

    /// Most bytes that fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.memory.len() - self.offset
    }

    /// Sets how many of its bytes the buffer stands for; what comes into view is older content.
    /// Lengths over the capacity are cut to it.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.capacity());
    }

    /// Keeps the memory allocated after the buffer is gone.
    #[must_use]
    pub fn hold(&self) -> MemoryHold {
        MemoryHold::new(&self.memory)
    }

    pub(crate) fn memory(&self) -> &Rc<Memory> {
        &self.memory
    }

    /// Position in the memory of a part of this buffer.
    pub(crate) fn locate(&self, range: &Range<usize>) -> Result<usize, FabricError> {
        if range.start > range.end || range.end > self.len {
            return Err(FabricError::OutOfRange {
                start: range.start as u64,
                end: range.end as u64,
                len: self.len as u64,
            });
        }
        Ok(self.offset + range.start)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: offset and length are within the memory, which is initialised and lives as long as `self`.
        unsafe { core::slice::from_raw_parts(self.memory.as_ptr().add(self.offset), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; a buffer is not cloned, so no other slice of these bytes exists in this program.
        unsafe { core::slice::from_raw_parts_mut(self.memory.as_ptr().add(self.offset), self.len) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

// SAFETY: the memory stays where it is, is initialised, and has one owner, as `deref_mut` says; so has what `set_len` may bring
// into view.
unsafe impl Lasting for Buffer {
    fn place(&mut self) -> (NonNull<u8>, usize) {
        // SAFETY: the offset is within the memory.
        (unsafe { self.memory.ptr.add(self.offset) }, self.capacity())
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("len", &self.len)
            .field("pooled", &self.is_pooled())
            .finish_non_exhaustive()
    }
}

/// What a peer may do with exposed memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Access {
    /// Read it.
    Read,
    /// Write to it.
    Write,
}

/// Exposed memory as it travels to the peer that will read or write it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RemoteRegion {
    /// Start: a virtual address or an offset, as the exposing provider has it.
    pub addr: u64,
    /// Protection key.
    pub key: u64,
    /// Length in bytes.
    pub len: u64,
}

impl RemoteRegion {
    /// A part of the region; `None` when it is not within it.
    #[must_use]
    pub fn part(&self, offset: u64, len: u64) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then_some(())?;
        Some(Self { addr: self.addr.checked_add(offset)?, key: self.key, len })
    }
}
