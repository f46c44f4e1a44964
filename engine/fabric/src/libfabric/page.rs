//! A page of memory that is shared with other processes.
#![expect(unsafe_code, reason = "words in memory that is shared with other processes")]

use core::ffi::c_void;
use core::sync::atomic::AtomicU32;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::OwnedFd;

/// Its length in bytes.
pub(super) const PAGE: usize = 4096;

/// The first page of a file.
pub(super) struct Page {
    address: *mut c_void,
}

// SAFETY: the mapping belongs to nobody in particular, and what is in it is used atomically.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Maps it. The file must be at least that long.
    pub(super) fn map(file: &OwnedFd) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of one page of a file that is that long.
        let address =
            unsafe { rustix::mm::mmap(core::ptr::null_mut(), PAGE, protection, MapFlags::SHARED, file, 0)? };
        Ok(Self { address })
    }

    /// One of its words.
    ///
    /// # Panics
    /// When it is not in the page.
    pub(super) fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at < PAGE / size_of::<AtomicU32>(), "beyond the page");
        // SAFETY: the mapping is page-aligned and lives as long as `self`; every process uses its words atomically.
        unsafe { &*self.address.cast::<AtomicU32>().add(at) }
    }

    /// Where it is mapped.
    pub(super) fn start(&self) -> *mut c_void {
        self.address
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; failure would mean that it is not mapped.
        let _ = unsafe { rustix::mm::munmap(self.address, PAGE) };
    }
}
