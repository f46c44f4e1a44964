//! Memory that is shared with other processes.
#![expect(unsafe_code, reason = "words in memory that is shared with other processes")]

use core::ffi::c_void;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Length of a page in bytes.
pub(super) const PAGE: usize = 4096;

/// The beginning of a file, used by words: every process uses them atomically.
pub(super) struct Shared {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: the mapping has no single owner, and its content is used atomically.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps whole pages, `len` bytes of them. The file must be at least that long, and stay so.
    pub(super) fn map(file: &OwnedFd, len: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of pages that the file has.
        let start =
            unsafe { rustix::mm::mmap(core::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, len })
    }

    /// One of its words.
    ///
    /// # Panics
    /// When it is not in the mapping.
    pub(super) fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at < self.len / size_of::<AtomicU32>(), "beyond the mapping");
        // SAFETY: the mapping is page-aligned, lives as long as `self`, and the word is within it.
        unsafe { self.start.cast::<AtomicU32>().add(at).as_ref() }
    }

    /// Long words in a row, from the one with this number on.
    ///
    /// # Panics
    /// When they are not in the mapping.
    #[inline]
    pub(super) fn longs<const COUNT: usize>(&self, at: usize) -> &[AtomicU64; COUNT] {
        let end = at.checked_add(COUNT);
        assert!(end.is_some_and(|end| end <= self.len / size_of::<AtomicU64>()), "beyond the mapping");
        // SAFETY: the mapping is page-aligned, lives as long as `self`, and the words are within it.
        unsafe { self.start.cast::<AtomicU64>().add(at).cast::<[AtomicU64; COUNT]>().as_ref() }
    }

    /// Where it is mapped.
    pub(super) fn start(&self) -> *mut c_void {
        self.start.as_ptr()
    }
}

/// Long words in a row of a mapping, which lives as long as they are used: looked up once.
pub(super) struct Longs<const COUNT: usize> {
    start: NonNull<[AtomicU64; COUNT]>,
    _shared: Rc<Shared>,
}

impl<const COUNT: usize> Longs<COUNT> {
    /// Those from the one with this number on.
    ///
    /// # Panics
    /// When they are not in the mapping.
    pub(super) fn new(shared: Rc<Shared>, at: usize) -> Self {
        Self { start: NonNull::from(shared.longs::<COUNT>(at)), _shared: shared }
    }
}

impl<const COUNT: usize> Deref for Longs<COUNT> {
    type Target = [AtomicU64; COUNT];

    #[inline]
    fn deref(&self) -> &Self::Target {
        // SAFETY: they are within the mapping, which lives as long as `self`, and every process uses them atomically.
        unsafe { self.start.as_ref() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; failure would mean that it is not mapped.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.len) };
    }
}
