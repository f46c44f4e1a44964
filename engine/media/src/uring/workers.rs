//! Placement of the kernel's workers: threads that execute what can't be begun at once, above all flushes.

use io_uring::{IoUring, cqueue, squeue};

/// The processors of the calling thread, if it keeps to one.
fn only_processor() -> Option<libc::cpu_set_t> {
    // SAFETY: a set of processors is a number of bits, all of which may be 0.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: the set is as long as is said, and 0 is the calling thread.
    let known = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) } == 0;
    // SAFETY: it only counts the bits.
    (known && unsafe { libc::CPU_COUNT(&set) } == 1).then_some(set)
}

/// Keeps the workers of a thread that keeps to one processor on that, where it meets the disk's interrupts or doesn't: a worker on
/// another one has to be woken there for each flush, which takes 20 to 50 µs of a virtual machine, and waits for a time slice
/// when that processor is busy. Where the thread may run anywhere, so may they.
pub(super) fn keep_near<S: squeue::EntryMarker, C: cqueue::EntryMarker>(ring: &IoUring<S, C>) {
    if let Some(processor) = only_processor() {
        // A kernel before 5.14 doesn't know how; its workers run where it likes.
        let _ = ring.submitter().register_iowq_aff(&processor);
    }
}
