//! Memory for transfers, mapped on huge pages where the system gives them.
//!
//! For a transfer between processes or to a device without a copy, the kernel has to find and pin each page of the
//! memory. On huge pages that is one look-up for 2 MiB instead of 512. The pools of fabric and media take their memory
//! here.
#![expect(unsafe_code, reason = "memory is mapped and unmapped")]

mod spares;

use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::param::page_size;

pub use spares::{Shelf, Spares};

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    safe fn malloc_trim(pad: usize) -> core::ffi::c_int;
}

/// Has the heap of all threads give back to the system what is free, which it otherwise keeps: as much as was in use at the
/// worst moment. Where the C library can't, nothing happens. It takes milliseconds, and what is needed again is touched anew.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    let _ = malloc_trim(0);
}

/// Bytes of a huge page: what one entry of the last but one level of page tables maps, on x86-64 and on arm64 with pages
/// of 4 KiB. Where pages are larger (arm64 has them of 16 and 64 KiB, too) it is some of them.
pub const HUGE: usize = 2 << 20;

/// The bytes of the pages that hold `len` bytes, and of those to take from the system so that they can begin at a multiple
/// of [`HUGE`] when they are that long. `None`: there are none, or more than there are addresses.
fn pages_for(len: usize, page: usize) -> Option<(usize, usize)> {
    let whole = len.checked_next_multiple_of(page).filter(|whole| *whole > 0)?;
    Some((whole, if whole < HUGE { whole } else { whole.checked_add(HUGE - page)? }))
}

/// Whole pages of zeros, unmapped when dropped. The system gives them as they are touched: a huge page at a time where it
/// has one, page by page where it has none, where the administrator forbids them
/// (`/sys/kernel/mm/transparent_hugepage/enabled`), and where the control group has no room for a whole one.
///
/// A process that forks shares them until one of both writes; the kernel then copies page by page, so that the copy is on
/// small pages.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// At least `len` bytes. They begin at a multiple of [`HUGE`] where they are that long, else at a page. `None` when the
    /// system gives none, or none are asked for.
    #[must_use]
    pub fn new(len: usize) -> Option<Self> {
        let (len, taken) = pages_for(len, page_size())?;
        if len < HUGE {
            return Self::of_pages(taken);
        }
        let mapping = Self::of_pages(taken)?.aligned(len);
        // Without huge pages in the kernel it is refused, and plain pages do.
        // SAFETY: within the mapping, and no content changes by this advice.
        let _ = unsafe { madvise(mapping.start.as_ptr().cast(), len, Advice::LinuxHugepage) };
        Some(mapping)
    }

    fn of_pages(len: usize) -> Option<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses an address where nothing is.
        let start = unsafe { mmap_anonymous(null_mut(), len, protection, MapFlags::PRIVATE) }.ok()?;
        Some(Self { start: NonNull::new(start.cast())?, len })
    }

    /// The `len` bytes from the first multiple of [`HUGE`] on, which it has. What is before and behind them is unmapped.
    fn aligned(self, len: usize) -> Self {
        let whole = core::mem::ManuallyDrop::new(self);
        let before = whole.start.addr().get().wrapping_neg() % HUGE;
        // SAFETY: the caller's mapping is longer than `len` by `HUGE` less a page, and `before` no more than that.
        let (start, end) = unsafe { (whole.start.add(before), whole.start.add(before + len)) };
        // SAFETY: the edges of the mapping, which no other code has seen.
        unsafe {
            unmap(whole.start, before);
            unmap(end, whole.len - before - len);
        }
        Self { start, len }
    }

    /// Where it begins. The bytes are initialised, and have no other user as long as the mapping lives.
    #[must_use]
    pub const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes of it, whole pages.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Gives up the mapping: it stays until [`Mapping::from_start`] makes one of it again.
    #[must_use]
    pub fn into_start(self) -> NonNull<u8> {
        core::mem::ManuallyDrop::new(self).start
    }

    /// The mapping of `len` bytes that [`Mapping::into_start`] gave up.
    ///
    /// # Safety
    /// It must have been made with the same length, and be given back once only.
    #[must_use]
    pub unsafe fn from_start(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len: len.next_multiple_of(page_size()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: its own pages, which are not used any more.
        unsafe { unmap(self.start, self.len) };
    }
}

/// Memory that keeps its place wherever its owner goes, so that a device or a network card can fill it while the owner is
/// put away.
///
/// # Safety
/// `place` gives the same bytes each time: initialised, there until the value is dropped, and used meanwhile only
/// through the value.
pub unsafe trait Lasting: 'static {
    /// Where its bytes begin, and how many they are.
    fn place(&mut self) -> (NonNull<u8>, usize);

    /// The bytes.
    fn bytes(&mut self) -> &mut [u8] {
        let (start, len) = self.place();
        // SAFETY: initialised, there as long as the value is, and used by nobody else, as `place` promises.
        unsafe { core::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }
}

// SAFETY: the system gives zeros, the mapping is the value's alone as long as it lives, and stays where it is.
unsafe impl Lasting for Mapping {
    fn place(&mut self) -> (NonNull<u8>, usize) {
        (self.start, self.len)
    }
}

// SAFETY: the bytes are those of the first, which is dropped before the second.
unsafe impl<T: Lasting, K: 'static> Lasting for (T, K) {
    fn place(&mut self) -> (NonNull<u8>, usize) {
        self.0.place()
    }
}

/// # Safety
/// The pages must be the caller's, and not used any more.
unsafe fn unmap(start: NonNull<u8>, len: usize) {
    if len > 0 {
        // SAFETY: passed on to the caller. Failure would mean that they are not mapped, or that the system has no memory to
        // note a gap, and then they stay.
        let _ = unsafe { munmap(start.as_ptr().cast::<c_void>(), len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the process has anything mapped at this address.
    fn is_mapped(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the process's mappings");
        maps.lines().any(|line| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text: &str| usize::from_str_radix(text, 16).expect("an address");
            range.is_some_and(|(start, end)| (number(start)..number(end)).contains(&address))
        })
    }

    /// Held by each test, so that no other one maps anything at an address that was given up.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn whole_pages_of_zeros_are_mapped_where_huge_ones_begin_and_go_again() {
        let _alone = ALONE.lock();
        let page = page_size();
        assert!(Mapping::new(0).is_none() && Mapping::new(usize::MAX - page).is_none());
        for (len, pages) in [(1, page), (HUGE, HUGE), (HUGE + 1, HUGE + page), (3 * HUGE, 3 * HUGE)] {
            let mapping = Mapping::new(len).expect("memory");
            assert_eq!(mapping.len(), pages);
            let start = mapping.start();
            let address = start.addr().get();
            assert!(address.is_multiple_of(if len < HUGE { page } else { HUGE }));
            // SAFETY: the mapping's bytes, used by nobody else.
            let bytes = unsafe { core::slice::from_raw_parts_mut(start.as_ptr(), pages) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes.fill(7);
            let last = address + pages - 1;
            // SAFETY: given up just now, with this length.
            let mapping = unsafe { Mapping::from_start(mapping.into_start(), len) };
            assert!(is_mapped(address) && is_mapped(last));
            drop(mapping);
            assert!(!is_mapped(address) && !is_mapped(last), "{len} bytes stay mapped");
        }
    }

    #[test]
    fn mappings_are_whole_pages_of_whatever_size_the_system_has() {
        for page in [4 << 10, 16 << 10, 64 << 10] {
            for len in [1, page, page + 1, HUGE - 1, HUGE, HUGE + 1, 5 * HUGE + 4096] {
                let (whole, taken) = pages_for(len, page).expect("memory");
                assert!(whole >= len && whole - len < page, "{len} bytes in pages of {page}");
                assert!(whole.is_multiple_of(page) && taken.is_multiple_of(page), "{len}: {whole}, {taken}");
                // Wherever pages begin, a multiple of a huge page is this near.
                assert_eq!(taken - whole, if whole < HUGE { 0 } else { HUGE - page });
            }
            assert_eq!(pages_for(0, page), None);
            assert_eq!(pages_for(usize::MAX - page, page), None);
        }
    }

    #[test]
    fn what_is_not_touched_takes_no_memory() {
        let _alone = ALONE.lock();
        let mapping = Mapping::new(64 * HUGE).expect("addresses");
        // SAFETY: the first byte of the mapping.
        unsafe { mapping.start().write(1) };
        let resident = || {
            let pages = std::fs::read_to_string("/proc/self/statm").expect("the process's memory");
            pages.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number")
                * page_size()
        };
        assert!(resident() < 32 * HUGE, "{} bytes are resident", resident());
    }
}
