//! Directories that programs have open and this library lists.
//!
//! A program has the address of a place in a table, by which it is told from a directory that the C library has opened. As with the C
//! library, a program calls for one directory from one thread at a time.

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_long, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering};

use libc::dirent64;
use weir_dfs::DirStream;

use crate::question::Entry;

/// Directories of a process that are open at the same time, at most: further ones the kernel lists.
const DIRECTORIES: usize = 1024;

/// Places of `.` and `..`, which come before the entries.
const DOTS: u64 = 2;

/// A directory.
pub struct Directory {
    /// Which of the mounts that the process has found.
    pub mount: usize,
    /// What was listed.
    pub stream: DirStream,
    /// Its inode number.
    pub inode: u64,
    /// Its path, with the NUL at its end, by which the kernel opens it.
    pub path: Vec<u8>,
    /// Its descriptor, or -1 as long as it has none.
    pub descriptor: c_int,
    entries: Vec<Entry>,
    /// The place of the first of these.
    first: u64,
    place: u64,
    entry: dirent64,
}

impl Directory {
    /// At its beginning.
    pub fn new(mount: usize, (stream, inode): (DirStream, u64), path: Vec<u8>, descriptor: c_int) -> Self {
        let entry = dirent64 { d_ino: 0, d_off: 0, d_reclen: 0, d_type: 0, d_name: [0; 256] };
        Self { mount, stream, inode, path, descriptor, entries: Vec::new(), first: DOTS, place: 0, entry }
    }

    /// The place of the entry that comes next.
    pub const fn place(&self) -> u64 {
        self.place
    }

    /// Goes to a place.
    pub fn go(&mut self, place: u64) {
        if place == 0 {
            // What is there then is listed anew.
            (self.entries, self.first) = (Vec::new(), DOTS);
        }
        self.place = place;
    }

    /// Where the listing goes on, if the next entry has to be listed first.
    pub fn lacks(&self) -> Option<u64> {
        let at = self.place.checked_sub(self.first);
        let is_there = self.place < DOTS || at.is_some_and(|at| at < self.entries.len() as u64);
        (!is_there).then(|| self.place.saturating_sub(DOTS))
    }

    /// What was listed from there on.
    pub fn fill(&mut self, entries: Vec<Entry>) {
        (self.entries, self.first) = (entries, self.place.max(DOTS));
    }

    /// The next entry; NULL at the end.
    pub fn next(&mut self) -> *mut dirent64 {
        let place = self.place;
        match place {
            0 => self.set(b".", self.inode, libc::DT_DIR),
            // The mount numbers it so, too.
            1 => self.set(b"..", self.inode, libc::DT_DIR),
            _ => {
                let index = place.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
                let entries = std::mem::take(&mut self.entries);
                let found = index.and_then(|index| entries.get(index));
                if let Some(Entry { name, inode, kind }) = found {
                    self.set(name, *inode, *kind);
                }
                let is_found = found.is_some();
                self.entries = entries;
                if !is_found {
                    return null_mut();
                }
            }
        }
        &raw mut self.entry
    }

    fn set(&mut self, name: &[u8], inode: u64, kind: u8) {
        self.place += 1;
        let entry = &mut self.entry;
        let length = name.len().min(entry.d_name.len() - 1);
        for (to, byte) in entry.d_name.iter_mut().zip(&name[..length]) {
            *to = byte.cast_signed();
        }
        entry.d_name[length] = 0;
        (entry.d_ino, entry.d_off, entry.d_type) = (inode, self.place.cast_signed(), kind);
        let bytes = core::mem::offset_of!(dirent64, d_name) + length + 1;
        entry.d_reclen = u16::try_from(bytes.next_multiple_of(8)).unwrap_or(u16::MAX);
    }
}

/// A place of the table.
struct Slot {
    is_used: AtomicBool,
    directory: UnsafeCell<Option<Box<Directory>>>,
}

// SAFETY: who has set `is_used`, and so the program that was given the address, is alone with the directory.
unsafe impl Sync for Slot {}

static SLOTS: [Slot; DIRECTORIES] =
    [const { Slot { is_used: AtomicBool::new(false), directory: UnsafeCell::new(None) } }; DIRECTORIES];

/// The first address of the table, and the first one behind it.
pub const fn bounds() -> (*const c_char, *const c_char) {
    let range = SLOTS.as_ptr_range();
    (range.start.cast(), range.end.cast())
}

/// Gives a directory an address. `None`: the table is full.
pub fn enter(directory: Directory) -> Option<*mut c_void> {
    let is_free = |slot: &&Slot| !slot.is_used.swap(true, Ordering::Acquire);
    let slot = SLOTS.iter().find(is_free)?;
    // SAFETY: it was free, and this thread has set that it isn't.
    unsafe { *slot.directory.get() = Some(Box::new(directory)) };
    Some(core::ptr::from_ref(slot).cast_mut().cast())
}

/// The directory of an address.
///
/// # Safety
/// The address is one that [`enter`] has given, was not given to [`leave`], and no other thread uses it now.
pub unsafe fn at<'d>(address: *mut c_void) -> Option<&'d mut Directory> {
    // SAFETY: it is the address of a place of the table.
    let slot = unsafe { &*address.cast::<Slot>() };
    // SAFETY: as the caller says, nobody else uses it.
    unsafe { &mut *slot.directory.get() }.as_deref_mut()
}

/// Takes a directory out. Returns its descriptor, or -1.
///
/// # Safety
/// As [`at`].
pub unsafe fn leave(address: *mut c_void) -> c_int {
    // SAFETY: as above.
    let slot = unsafe { &*address.cast::<Slot>() };
    // SAFETY: as above.
    let directory = unsafe { &mut *slot.directory.get() }.take();
    slot.is_used.store(false, Ordering::Release);
    directory.map_or(-1, |directory| directory.descriptor)
}

/// A place as programs are told it.
pub const fn told(place: u64) -> c_long {
    place.cast_signed()
}
