//! A read or a write of the program.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use libc::{iovec, off64_t, ssize_t};

use crate::descriptors::{Known, Target, counts};
use crate::identify::{current, give_up};
use crate::original::{Errno, is_inside};
use crate::service::Service;
use crate::submission::{Outcome, Task};

/// Most bytes that the kernel moves in one call.
const BYTES_MAX: usize = 0x7fff_f000;

/// Most pieces of memory that the kernel takes in one call.
const PIECES_MAX: usize = 1024;

/// What a call wants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Read.
    Read,
    /// Write.
    Write,
}

/// Where a call wants it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// At the offset that the kernel has, which moves.
    Shared,
    /// Here.
    At(off64_t),
}

/// Moves data of a file that is accessed directly. `None`: the kernel has to.
///
/// # Safety
/// The pieces are described as `readv` or `writev` asks for.
pub unsafe fn transfer(
    fd: c_int,
    direction: Direction,
    position: Position,
    (vectors, count): (*const iovec, usize),
) -> Option<ssize_t> {
    // What is written to standard error comes from signal handlers, too.
    if is_inside() || fd == libc::STDERR_FILENO {
        return None;
    }
    let mut errno = Errno::keep();
    let target = match current(fd)? {
        Known::Direct(target) => target,
        Known::Kernel(_) => {
            counts(fd)?.kernel.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Known::Foreign | Known::Nothing => return None,
    };
    // SAFETY: as this function's.
    let moved = unsafe { begin(fd, target, direction, position, (vectors, count)) };
    match &moved {
        Some(Err(refused)) => errno.replace(*refused),
        Some(Ok(bytes)) => {
            let counts = counts(fd)?;
            let [calls, sum] = if direction == Direction::Read { &counts.reads } else { &counts.writes };
            calls.fetch_add(1, Ordering::Relaxed);
            sum.fetch_add(*bytes as u64, Ordering::Relaxed);
        }
        None => {
            counts(fd)?.kernel.fetch_add(1, Ordering::Relaxed);
        }
    }
    Some(moved?.map_or(-1, usize::cast_signed))
}

/// Checks what the kernel would check, takes the place, and has the data moved.
///
/// # Safety
/// As [`transfer`].
unsafe fn begin(
    fd: c_int,
    target: Target,
    direction: Direction,
    position: Position,
    (vectors, count): (*const iovec, usize),
) -> Option<Result<usize, i32>> {
    // SAFETY: as this function's.
    let total = unsafe { length(vectors, count) }?;
    // SAFETY: the request takes no argument.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let refused = if direction == Direction::Read { libc::O_WRONLY } else { libc::O_RDONLY };
    if flags < 0 || flags & libc::O_PATH != 0 || flags & libc::O_ACCMODE == refused {
        return None;
    }
    let appends = direction == Direction::Write && flags & libc::O_APPEND != 0;
    let place = Claim::take(fd, position, total, appends)?;
    if direction == Direction::Write && !place.is_allowed(total) {
        place.give_back(fd, 0);
        return None;
    }
    let task = match direction {
        Direction::Read => Task::Read(target, place.offset),
        Direction::Write if appends => Task::Append(target),
        Direction::Write => Task::Write(target, place.offset),
    };
    let outcome = Service::running().map_or(Outcome::Failed, |service| service.run(task, vectors, count));
    match outcome {
        Outcome::Done { bytes, end } => {
            if appends && position == Position::Shared {
                // SAFETY: it takes no memory.
                unsafe { libc::lseek64(fd, end.cast_signed(), libc::SEEK_SET) };
            } else {
                place.give_back(fd, bytes);
            }
            Some(Ok(bytes))
        }
        Outcome::Refused(errno) => {
            place.give_back(fd, 0);
            Some(Err(errno))
        }
        Outcome::InDoubt => {
            place.give_back(fd, 0);
            Some(Err(libc::EIO))
        }
        Outcome::Unfit | Outcome::Incomplete => {
            place.give_back(fd, 0);
            None
        }
        Outcome::Failed => {
            place.give_back(fd, 0);
            give_up(fd, target.identity);
            None
        }
    }
}

/// Bytes of all pieces. `None` where the kernel has to judge, or would do nothing, or less.
///
/// # Safety
/// As [`transfer`].
unsafe fn length(vectors: *const iovec, count: usize) -> Option<usize> {
    if count == 0 || count > PIECES_MAX || vectors.is_null() {
        return None;
    }
    // SAFETY: so many pieces are described there.
    let pieces = unsafe { core::slice::from_raw_parts(vectors, count) };
    let mut total = 0_usize;
    for piece in pieces {
        if piece.iov_base.is_null() && piece.iov_len > 0 {
            return None;
        }
        total = total.checked_add(piece.iov_len)?;
    }
    (1..=BYTES_MAX).contains(&total).then_some(total)
}

/// The place of a transfer. At the shared offset, the kernel has moved that behind the place already: so two who share it never
/// get the same place, in which process ever they are.
struct Claim {
    offset: u64,
    /// So far was the shared offset moved.
    moved: i64,
}

impl Claim {
    fn take(fd: c_int, position: Position, total: usize, appends: bool) -> Option<Self> {
        let length = i64::try_from(total).ok()?;
        match position {
            Position::At(offset) => {
                offset.checked_add(length)?;
                Some(Self { offset: u64::try_from(offset).ok()?, moved: 0 })
            }
            Position::Shared if appends => Some(Self { offset: 0, moved: 0 }),
            Position::Shared => {
                // SAFETY: it takes no memory.
                let end = unsafe { libc::lseek64(fd, length, libc::SEEK_CUR) };
                let offset = u64::try_from(end.checked_sub(length)?).ok()?;
                Some(Self { offset, moved: length })
            }
        }
    }

    /// Moves the shared offset back to behind what was transferred.
    fn give_back(&self, fd: c_int, done: usize) {
        let left = i64::try_from(done).map_or(0, |done| self.moved - done);
        if self.moved > 0 && left > 0 {
            // SAFETY: it takes no memory.
            unsafe { libc::lseek64(fd, -left, libc::SEEK_CUR) };
        }
    }

    /// Whether the process may write files of that size. Where it may not, the kernel sends the signal.
    fn is_allowed(&self, total: usize) -> bool {
        let mut limit = MaybeUninit::<libc::rlimit>::uninit();
        // SAFETY: the place holds what the call writes.
        let limit = unsafe {
            if libc::getrlimit(libc::RLIMIT_FSIZE, limit.as_mut_ptr()) != 0 {
                return false;
            }
            limit.assume_init()
        };
        limit.rlim_cur == libc::RLIM_INFINITY || self.offset.saturating_add(total as u64) <= limit.rlim_cur
    }
}
