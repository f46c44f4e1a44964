//! An operation on its way from a thread of the program to one of the library, and back.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, Ordering};

use libc::iovec;

use crate::descriptors::Target;
use crate::question::{Beginning, Listing, Question};

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Task {
    /// Reach a mount's engines.
    Reach(u16),
    /// Read at an offset.
    Read(Target, u64),
    /// Write at an offset.
    Write(Target, u64),
    /// Write behind the end.
    Append(Target),
    /// Ask a mount whether its names may be found here.
    Begin(*mut Beginning),
    /// Answer a question on a name.
    Answer(*mut Question<'static>),
    /// List a directory.
    List(*mut Listing<'static>),
}

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// So many bytes; the last of them before this offset.
    Done {
        /// How many.
        bytes: usize,
        /// Where they end.
        end: u64,
    },
    /// An error that the program is to see.
    Refused(i32),
    /// The operation has to go through the kernel.
    Failed,
    /// This once, the operation has to go through the kernel.
    Unfit,
    /// The question lacks the path of the directory where its own path begins.
    Incomplete,
    /// As `Failed`; but a part of it may have been done.
    InDoubt,
}

/// An operation. It stands on the stack of the thread that waits for it.
pub struct Operation {
    /// The next one in the queue.
    pub next: *mut Operation,
    /// What is to be done.
    pub task: Task,
    /// The program's memory.
    pub vectors: *const iovec,
    /// How many pieces of it there are.
    pub count: usize,
    outcome: Outcome,
    /// 1 once the outcome is there.
    done: AtomicU32,
}

impl Operation {
    /// An operation on pieces of memory.
    pub const fn new(task: Task, vectors: *const iovec, count: usize) -> Self {
        Self { next: null_mut(), task, vectors, count, outcome: Outcome::Failed, done: AtomicU32::new(0) }
    }

    /// Waits for its end.
    ///
    /// # Safety
    /// `operation` was given to the queue, and only here is it waited for.
    pub unsafe fn wait(operation: *mut Self) -> Outcome {
        // SAFETY: it stands on this thread's stack; the thread at the other end writes only the outcome, before `done`.
        let done = unsafe { &(*operation).done };
        while done.load(Ordering::Acquire) == 0 {
            futex(done, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, 0);
        }
        // SAFETY: the other end doesn't touch it any more.
        unsafe { (*operation).outcome }
    }

    /// Tells whoever waits how it ended.
    ///
    /// # Safety
    /// `operation` was taken from the queue. It may be gone when this returns.
    pub unsafe fn end(operation: *mut Self, outcome: Outcome) {
        // SAFETY: the thread that waits reads it only once `done` is set.
        unsafe { (*operation).outcome = outcome };
        // SAFETY: it is there until `done` is set; what follows uses the address only, as a name.
        let done = unsafe { &raw const (*operation).done };
        // SAFETY: as above.
        unsafe { &*done }.store(1, Ordering::Release);
        futex(done, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
    }
}

/// Waits at a word that holds `value`, or wakes so many who do.
fn futex(word: *const AtomicU32, what: i32, value: u32) {
    // SAFETY: the kernel looks whether the address can be read. Where the word is gone, a wake-up wakes nobody, or somebody who
    // looks again.
    unsafe { libc::syscall(libc::SYS_futex, word, what, value, null_mut::<libc::timespec>()) };
}
