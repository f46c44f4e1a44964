//! Learning that the application has unmapped, moved or discarded memory that is registered.
//!
//! The kernel reports it through a `userfaultfd`, which needs no privilege: `UFFD_USER_MODE_ONLY`, and a registration
//! for write protection that is never used, so that no fault of the application ever waits for this process. A thread
//! that unmaps, remaps or discards watched pages waits until the event has been read, by a thread of this module. That
//! reading thread must not touch the allocator: it could be made to wait for itself.
//!
//! Two checks together make a look-up exact. A page of our own is asked for a change that changes nothing: the kernel
//! refuses (`EAGAIN`) from before any watched page goes until the event of that has been read. And the count of events
//! is odd from before one is read until it is in the list. So a look-up that finds the first in order and the second
//! unchanged knows that nothing has happened to the memory, even where other threads map and unmap at the same time.
#![expect(unsafe_code, reason = "userfaultfd is an interface of ioctls")]

use core::ffi::c_void;
use core::ops::Range;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU64, Ordering};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, read};
use rustix::ioctl::{Opcode, Updater, ioctl};
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, userfaultfd};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::PAGE;

/// Events that are remembered. A caller that has not looked for longer than this takes everything for changed.
const EVENTS_KEPT: usize = 1024;

/// How often it is asked whether a change is over before that counts as unknown. One takes some microseconds.
const CALM_TRIES: usize = 8;

/// `_IOWR(0xAA, number, size)` of `linux/userfaultfd.h`.
const fn opcode(number: Opcode, size: Opcode) -> Opcode {
    3 << 30 | size << 16 | 0xaa << 8 | number
}

#[repr(C)]
#[derive(Default)]
struct Api {
    version: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Default)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Default)]
struct WriteProtect {
    start: u64,
    len: u64,
    mode: u64,
}

const UFFDIO_API: Opcode = opcode(0x3f, 24);
const UFFDIO_REGISTER: Opcode = opcode(0, 32);
const UFFDIO_WRITEPROTECT: Opcode = opcode(6, 24);
const _: () =
    assert!(size_of::<Api>() == 24 && size_of::<Register>() == 32 && size_of::<WriteProtect>() == 24);
/// Version of the interface.
const UFFD_API: u64 = 0xaa;
/// `PAGEFAULT_FLAG_WP`, `EVENT_REMAP`, `EVENT_REMOVE`, `EVENT_UNMAP`.
const FEATURES: u64 = 1 | 1 << 2 | 1 << 3 | 1 << 6;
/// `UFFDIO_REGISTER_MODE_WP`.
const MODE_WP: u64 = 1 << 1;
/// `UFFDIO_WRITEPROTECT_MODE_DONTWAKE`, and no protection.
const MODE_NOTHING: u64 = 1 << 1;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
/// `struct uffd_msg`.
const EVENT_BYTES: usize = 32;

/// Watches memory of this process.
pub(crate) struct Monitor {
    fd: OwnedFd,
    /// The page that is asked whether a change is under way.
    probe: u64,
    /// Twice the number of events, plus one while one is being read.
    count: AtomicU64,
    /// The last events, by number modulo the length. Allocated once.
    events: Mutex<Box<[(usize, usize)]>>,
}

/// Which events had been read at some moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EventPosition(u64);

impl Monitor {
    /// The process's monitor; `None` where the kernel or a seccomp profile doesn't let it have one.
    pub(crate) fn get() -> Option<&'static Self> {
        static MONITOR: OnceLock<Option<&'static Monitor>> = OnceLock::new();
        *MONITOR.get_or_init(|| match Self::start() {
            Ok(monitor) => Some(monitor),
            Err(error) => {
                tracing::info!(%error, "memory can't be watched; registrations of applications' memory are not cached");
                None
            }
        })
    }

    fn start() -> Result<&'static Self, std::io::Error> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // The flag for user mode only, which rustix does not name.
        let flags = flags | UserfaultfdFlags::from_bits_retain(1);
        // SAFETY: the descriptor is used for events only; no page is ever filled or protected through it.
        let fd = unsafe { userfaultfd(flags) }?;
        let mut api = Api { version: UFFD_API, features: FEATURES, ioctls: 0 };
        // SAFETY: the operand is the structure that this operation takes.
        unsafe { ioctl(&fd, Updater::<UFFDIO_API, Api>::new(&mut api)) }?;
        // SAFETY: a new mapping, which has no other owner and is never unmapped.
        let page = unsafe {
            mmap_anonymous(null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        let monitor = Box::leak(Box::new(Self {
            fd,
            probe: page as u64,
            count: AtomicU64::new(0),
            events: Mutex::new(vec![(0, 0); EVENTS_KEPT].into_boxed_slice()),
        }));
        monitor.register(monitor.probe, PAGE as u64)?;
        // The first look-up must find something that can be asked.
        if !monitor.is_calm() {
            return Err(std::io::Error::other("userfaultfd does not answer"));
        }
        let reader: &'static Self = monitor;
        std::thread::Builder::new().name("weir-memory".to_owned()).spawn(move || reader.listen())?;
        Ok(monitor)
    }

    fn register(&self, start: u64, len: u64) -> Result<(), Errno> {
        let mut request = Register { start, len, mode: MODE_WP, ioctls: 0 };
        // SAFETY: the operand is the structure that this operation takes.
        unsafe { ioctl(&self.fd, Updater::<UFFDIO_REGISTER, Register>::new(&mut request)) }
    }

    /// Takes note of events for ever.
    fn listen(&self) {
        let mut message = [0u8; EVENT_BYTES];
        loop {
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
            if poll(&mut fds, None).is_err() {
                continue;
            }
            let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            self.count.fetch_add(1, Ordering::SeqCst);
            let read = read(&self.fd, &mut message);
            let number = self.count.load(Ordering::SeqCst) >> 1;
            let word = |at: usize| {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(&message[at..at + 8]);
                usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX)
            };
            let range = match (read, message[0]) {
                (Ok(EVENT_BYTES), EVENT_UNMAP | EVENT_REMOVE) => Some((word(8), word(16))),
                (Ok(EVENT_BYTES), EVENT_REMAP) => Some((word(8), word(8).saturating_add(word(24)))),
                _ => None,
            };
            if let Some(range) = range {
                let at = usize::try_from(number).unwrap_or(0) % EVENTS_KEPT;
                events[at] = range;
                self.count.fetch_add(1, Ordering::SeqCst);
            } else {
                self.count.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Whether no watched page is going just now.
    fn is_calm(&self) -> bool {
        (0..CALM_TRIES).any(|tried| {
            if tried > 0 {
                std::thread::yield_now();
            }
            self.ask()
        })
    }

    fn ask(&self) -> bool {
        let mut request = WriteProtect { start: self.probe, len: PAGE as u64, mode: MODE_NOTHING };
        // SAFETY: the operand is the structure that this operation takes, and the page is our own.
        unsafe { ioctl(&self.fd, Updater::<UFFDIO_WRITEPROTECT, WriteProtect>::new(&mut request)) }.is_ok()
    }

    /// Watches the pages of a range from now on. `None`: the kernel can't watch this kind of memory, or a change is
    /// under way; then nothing about it may be kept.
    pub(crate) fn watch(&self, range: &Range<usize>) -> Option<EventPosition> {
        let start = range.start / PAGE * PAGE;
        let end = range.end.checked_next_multiple_of(PAGE)?;
        // Pages of libraries and the like can be told apart by this call alone.
        self.register(start as u64, (end - start) as u64).ok()?;
        let count = self.count.load(Ordering::SeqCst);
        (count.is_multiple_of(2) && self.is_calm()).then_some(EventPosition(count))
    }

    /// Whether nothing has happened to a range since. `stamp` moves forward if so.
    pub(crate) fn is_untouched(&self, range: &Range<usize>, stamp: &mut EventPosition) -> bool {
        if !self.is_calm() {
            return false;
        }
        let count = self.count.load(Ordering::SeqCst);
        if count == stamp.0 {
            return true;
        }
        // Waits for the event that is being read.
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let (from, to) = (stamp.0 >> 1, self.count.load(Ordering::SeqCst) >> 1);
        if to - from > EVENTS_KEPT as u64 {
            return false;
        }
        let touches = |number: u64| {
            let (start, end) = events[usize::try_from(number).unwrap_or(0) % EVENTS_KEPT];
            start < range.end && range.start < end
        };
        let untouched = !(from..to).any(touches);
        if untouched {
            *stamp = EventPosition(to << 1);
        }
        untouched
    }
}

/// The address of memory, as ranges are counted here.
pub(crate) fn address_range(ptr: NonNull<u8>, len: usize) -> Range<usize> {
    let start = ptr.as_ptr().cast::<c_void>() as usize;
    start..start.saturating_add(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{Advice, MremapFlags, madvise, mremap, munmap};

    /// Tests that change mappings take turns: what one does is under way for the others too.
    static TURN: Mutex<()> = Mutex::new(());

    fn map(at: *mut c_void, len: usize) -> *mut c_void {
        let fixed = if at.is_null() { MapFlags::empty() } else { MapFlags::FIXED };
        // SAFETY: a mapping of the test's own, or over one.
        let made =
            unsafe { mmap_anonymous(at, len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | fixed) };
        let made = made.expect("memory");
        // SAFETY: just mapped.
        unsafe { core::ptr::write_bytes(made.cast::<u8>(), 1, len) };
        made
    }

    type Change = fn(*mut c_void);

    fn unmap(at: *mut c_void) {
        // SAFETY: the test's own pages, which nothing refers to.
        unsafe { munmap(at, 2 * PAGE) }.expect("unmapped");
    }

    fn discard(at: *mut c_void) {
        // SAFETY: the test's own pages, which nothing refers to.
        unsafe { madvise(at, 2 * PAGE, Advice::LinuxDontNeed) }.expect("discarded");
    }

    fn replace(at: *mut c_void) {
        assert_eq!(map(at, 2 * PAGE), at);
    }

    fn shift(at: *mut c_void) {
        // SAFETY: the test's own pages, which nothing refers to.
        let moved = unsafe { mremap(at, 2 * PAGE, 32 * PAGE, MremapFlags::MAYMOVE) };
        assert_ne!(moved.expect("moved"), at);
    }

    /// Does something to 16 watched pages; whether that was noticed for all of them, and for the last four alone.
    fn noticed(change: impl FnOnce(*mut c_void)) -> Option<(bool, bool)> {
        let monitor = Monitor::get()?;
        let memory = map(null_mut(), 16 * PAGE);
        let range = address_range(NonNull::new(memory.cast()).expect("not null"), 16 * PAGE);
        let stamp = monitor.watch(&range).expect("anonymous memory can be watched");
        assert!(monitor.is_untouched(&range, &mut { stamp }), "before");
        change(memory);
        let tail = range.end - 4 * PAGE..range.end;
        Some((!monitor.is_untouched(&range, &mut { stamp }), !monitor.is_untouched(&tail, &mut { stamp })))
    }

    #[test]
    fn whatever_takes_pages_away_is_noticed_for_the_memory_that_had_them_and_for_no_other() {
        let _turn = TURN.lock();
        let changes: [(&str, Change); 4] =
            [("unmapped", unmap), ("discarded", discard), ("replaced", replace), ("moved", shift)];
        for (name, change) in changes {
            let Some(seen) = noticed(change) else {
                eprintln!("this machine gives no userfaultfd: nothing is cached here");
                return;
            };
            assert_eq!(seen, (true, false), "{name}");
        }
        let written = noticed(|at| {
            // SAFETY: mapped.
            unsafe { core::ptr::write_bytes(at.cast::<u8>(), 9, 16 * PAGE) };
        });
        assert!(written.is_none_or(|seen| seen == (false, false)), "writing changes no mapping");
    }

    #[test]
    fn who_has_not_looked_for_long_takes_everything_for_changed() {
        let _turn = TURN.lock();
        let Some(monitor) = Monitor::get() else { return };
        let memory = map(null_mut(), PAGE);
        let range = address_range(NonNull::new(memory.cast()).expect("not null"), PAGE);
        let mut old = monitor.watch(&range).expect("watched");
        let other = map(null_mut(), PAGE);
        let watched = address_range(NonNull::new(other.cast()).expect("not null"), PAGE);
        assert!(monitor.watch(&watched).is_some());
        for _ in 0..=EVENTS_KEPT {
            // SAFETY: the test's own page.
            unsafe { madvise(other, PAGE, Advice::LinuxDontNeed) }.expect("discarded");
        }
        assert!(!monitor.is_untouched(&range, &mut old));
    }
}
