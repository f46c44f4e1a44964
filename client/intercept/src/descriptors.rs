//! What is known of each descriptor of the program.
//!
//! A place is written and read without a lock: calls may come from signal handlers, from several threads at once, and from a
//! child that shares the memory. A reader that meets a writer takes nothing for known, and its call goes to the kernel.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use weir_client::ObjectId;

/// Descriptors that are intercepted: those below. A table of a program with more of them would take more memory than it is worth.
const DESCRIPTORS: usize = 1 << 14;

/// All that are intercepted.
pub fn all() -> impl Iterator<Item = c_int> {
    (0..).take(DESCRIPTORS)
}

/// Words of a place.
const WORDS: usize = 6;

/// Why a file of a mount goes through the kernel, beside the errno of the mount.
pub mod reason {
    /// The library can't work in this process.
    pub const NO_SERVICE: u16 = 1000;
    /// The mount's engines can't be reached.
    pub const UNREACHABLE: u16 = 1001;
    /// The program maps it.
    pub const MAPPED: u16 = 1002;
    /// An operation has failed.
    pub const FAILED: u16 = 1003;
}

/// What is known of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// Nothing.
    Nothing,
    /// It is no file of a mount.
    Foreign,
    /// A file that goes through the kernel, for this reason.
    Kernel(u16),
    /// A file that is accessed directly.
    Direct(Target),
}

/// A file that is accessed directly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// Which of the process's mounts it is on.
    pub mount: u16,
    /// In which life of the process that is so: a forked child begins another one.
    pub life: u32,
    /// What the kernel knows it by.
    pub identity: Identity,
    /// The object with its content.
    pub oid: ObjectId,
    /// Bytes of its chunks.
    pub chunk_size: u64,
}

/// Device and inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The device.
    pub device: u64,
    /// The inode on it.
    pub inode: u64,
}

/// Calls and bytes of a descriptor, for the report.
#[derive(Debug, Default)]
pub struct Counts {
    /// Reads that went directly, and their bytes.
    pub reads: [AtomicU64; 2],
    /// Writes that went directly, and their bytes.
    pub writes: [AtomicU64; 2],
    /// Reads and writes that were left to the kernel.
    pub kernel: AtomicU64,
}

/// The place of a descriptor.
struct Place {
    /// Odd while it is written.
    sequence: AtomicU32,
    words: [AtomicU64; WORDS],
    counts: Counts,
}

static PLACES: [Place; DESCRIPTORS] = [const {
    Place {
        sequence: AtomicU32::new(0),
        words: [const { AtomicU64::new(0) }; WORDS],
        counts: Counts {
            reads: [const { AtomicU64::new(0) }; 2],
            writes: [const { AtomicU64::new(0) }; 2],
            kernel: AtomicU64::new(0),
        },
    }
}; DESCRIPTORS];

fn place(fd: c_int) -> Option<&'static Place> {
    PLACES.get(usize::try_from(fd).ok()?)
}

/// What is known of a descriptor. `None`: it isn't intercepted.
pub fn known(fd: c_int) -> Option<Known> {
    let place = place(fd)?;
    let before = place.sequence.load(Ordering::Acquire);
    let words: [u64; WORDS] = core::array::from_fn(|at| place.words[at].load(Ordering::Relaxed));
    fence(Ordering::Acquire);
    if before % 2 != 0 || place.sequence.load(Ordering::Relaxed) != before {
        return None;
    }
    Some(decode(words))
}

/// Notes what is known of a descriptor. A note at the same moment may be lost: then the next call finds out again.
pub fn note(fd: c_int, known: Known) {
    let Some(place) = place(fd) else { return };
    let before = place.sequence.load(Ordering::Relaxed);
    let is_free = before.is_multiple_of(2)
        && place
            .sequence
            .compare_exchange(before, before.wrapping_add(1), Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
    if !is_free {
        return;
    }
    fence(Ordering::Release);
    for (word, value) in place.words.iter().zip(encode(known)) {
        word.store(value, Ordering::Relaxed);
    }
    place.sequence.store(before.wrapping_add(2), Ordering::Release);
}

/// The counts of a descriptor.
pub fn counts(fd: c_int) -> Option<&'static Counts> {
    place(fd).map(|place| &place.counts)
}

fn encode(known: Known) -> [u64; WORDS] {
    match known {
        Known::Nothing => [0; WORDS],
        Known::Foreign => [1, 0, 0, 0, 0, 0],
        Known::Kernel(reason) => [2 | (u64::from(reason) << 16), 0, 0, 0, 0, 0],
        Known::Direct(Target { mount, life, identity, oid, chunk_size }) => {
            let head = 3 | (u64::from(mount) << 16) | (u64::from(life) << 32);
            [head, identity.device, identity.inode, oid.hi, oid.lo, chunk_size]
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the parts of a word")]
fn decode([head, device, inode, hi, lo, chunk_size]: [u64; WORDS]) -> Known {
    match head & 0xffff {
        1 => Known::Foreign,
        2 => Known::Kernel((head >> 16) as u16),
        3 => Known::Direct(Target {
            mount: (head >> 16) as u16,
            life: (head >> 32) as u32,
            identity: Identity { device, inode },
            oid: ObjectId { hi, lo },
            chunk_size,
        }),
        _ => Known::Nothing,
    }
}
