//! One io_uring instance as an event source: submission in batches, completions to futures.

use crate::buffer::{DmaBuf, Slice};
use crate::device::DeviceStats;
use core::cell::{Cell, RefCell};
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use io_uring::{IoUring, opcode, squeue, types};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use weir_runtime::EventSource;

/// Entries of the submission ring. What doesn't fit waits in memory; a device queue is rarely deeper.
const RING_ENTRIES: u32 = 256;

/// A transfer with the memory it uses.
pub(crate) enum Transfer {
    /// Fills the buffer.
    Read { offset: u64, buffer: DmaBuf },
    /// Writes the slices one behind the other; with `stable` it completes when they are on stable media.
    Write { offset: u64, data: Vec<Slice>, stable: bool },
    /// `fdatasync`.
    Flush,
}

type Outcome = (Transfer, io::Result<()>);

/// Where the future of a transfer finds its outcome.
#[derive(Default)]
struct Cellar {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

/// A transfer that the ring owns until the kernel is done with its memory.
struct InFlight {
    /// Keeps the descriptor open.
    file: Rc<OwnedFd>,
    transfer: Transfer,
    /// What `IORING_OP_WRITEV` reads; the heap block doesn't move when this struct does.
    vectors: Box<[libc::iovec]>,
    len: usize,
    target: Rc<RefCell<Cellar>>,
}

/// The ring. Dropping it waits for what is in flight.
pub(crate) struct Ring {
    uring: RefCell<IoUring>,
    slots: RefCell<Vec<Option<InFlight>>>,
    free: RefCell<Vec<usize>>,
    /// Slots that wait for room in the submission ring.
    backlog: RefCell<VecDeque<usize>>,
    /// Entries in the submission ring that the kernel hasn't been told of.
    unsubmitted: Cell<usize>,
    stats: Cell<DeviceStats>,
    /// The descriptor that the kernel keeps for the ring, as its file 0.
    registered: RefCell<Option<Rc<OwnedFd>>>,
}

/// The outcome of a transfer. Dropping it lets the transfer run on.
pub(crate) struct Pending(Rc<RefCell<Cellar>>);

impl Future for Pending {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut cellar = self.0.borrow_mut();
        if let Some(outcome) = cellar.outcome.take() {
            return Poll::Ready(outcome);
        }
        cellar.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Ring {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            uring: RefCell::new(IoUring::new(RING_ENTRIES)?),
            slots: RefCell::default(),
            free: RefCell::default(),
            backlog: RefCell::default(),
            unsubmitted: Cell::new(0),
            stats: Cell::default(),
            registered: RefCell::default(),
        })
    }

    /// Has the kernel keep a descriptor for the ring, so that it doesn't take and drop a reference for each transfer.
    /// Where it refuses, transfers name the descriptor itself; returns whether it didn't.
    pub(crate) fn register(&self, file: &Rc<OwnedFd>) -> bool {
        let is_kept = self.uring.borrow().submitter().register_files(&[file.as_raw_fd()]).is_ok();
        if is_kept {
            *self.registered.borrow_mut() = Some(Rc::clone(file));
        }
        is_kept
    }

    pub(crate) fn stats(&self) -> DeviceStats {
        self.stats.get()
    }

    fn count(&self, change: impl FnOnce(&mut DeviceStats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }

    /// Queues a transfer; the kernel learns of it with the executor's next turn, together with its neighbours.
    pub(crate) fn start(&self, file: &Rc<OwnedFd>, transfer: Transfer) -> Pending {
        let target = Rc::new(RefCell::new(Cellar::default()));
        let (vectors, len) = match &transfer {
            Transfer::Read { buffer, .. } => (Box::default(), buffer.len()),
            Transfer::Write { data, .. } => {
                let vector = |slice: &Slice| libc::iovec {
                    iov_base: slice.as_ptr().cast_mut().cast(),
                    iov_len: slice.len(),
                };
                (data.iter().map(vector).collect(), data.iter().map(|slice| slice.len()).sum())
            }
            Transfer::Flush => (Box::default(), 0),
        };
        let entry = InFlight { file: Rc::clone(file), transfer, vectors, len, target: Rc::clone(&target) };
        let slot = self.free.borrow_mut().pop().unwrap_or_else(|| {
            let mut slots = self.slots.borrow_mut();
            slots.push(None);
            slots.len() - 1
        });
        self.slots.borrow_mut()[slot] = Some(entry);
        self.backlog.borrow_mut().push_back(slot);
        self.count(|stats| stats.in_flight += 1);
        Pending(target)
    }

    /// Moves waiting transfers to the submission ring and tells the kernel. Returns whether it did anything.
    fn submit(&self) -> bool {
        let mut progress = false;
        loop {
            let moved = self.fill_submission_ring();
            if self.unsubmitted.get() == 0 {
                return progress;
            }
            match self.uring.borrow().submit() {
                Ok(count) => {
                    self.unsubmitted.set(self.unsubmitted.get().saturating_sub(count));
                    progress |= count > 0;
                    if count == 0 || self.backlog.borrow().is_empty() {
                        return progress;
                    }
                }
                // EBUSY: completions must be taken first; EAGAIN: the kernel lacks memory; EINTR: a signal. All are
                // tried again at the next turn.
                Err(_) => return progress || moved,
            }
        }
    }

    fn fill_submission_ring(&self) -> bool {
        let mut ring = self.uring.borrow_mut();
        let mut queue = ring.submission();
        let mut slots = self.slots.borrow_mut();
        let mut backlog = self.backlog.borrow_mut();
        let registered = self.registered.borrow();
        let mut moved = false;
        while let Some(slot) = backlog.front().copied() {
            let Some(entry) = slots[slot].as_mut() else {
                backlog.pop_front();
                continue;
            };
            let is_kept = registered.as_ref().is_some_and(|file| Rc::ptr_eq(file, &entry.file));
            let request = entry.request(is_kept).user_data(slot as u64);
            // SAFETY: the entry's buffers, vectors and descriptor are owned by `slots` and stay in place until the
            // completion of this request has been taken (`finish`), or the ring has been drained (`drop`).
            if unsafe { queue.push(&request) }.is_err() {
                break;
            }
            backlog.pop_front();
            self.unsubmitted.set(self.unsubmitted.get() + 1);
            moved = true;
        }
        moved
    }

    fn reap(&self) -> bool {
        let mut done = Vec::new();
        {
            let mut ring = self.uring.borrow_mut();
            done.extend(ring.completion().map(|entry| (entry.user_data(), entry.result())));
        }
        let progress = !done.is_empty();
        for (slot, result) in done {
            self.finish(usize::try_from(slot).unwrap_or(usize::MAX), result);
        }
        progress
    }

    fn finish(&self, slot: usize, result: i32) {
        // The kernel couldn't take it at that moment, or a signal came in between: it has had no effect.
        if result == -libc::EAGAIN || result == -libc::EINTR {
            self.backlog.borrow_mut().push_back(slot);
            return;
        }
        let Some(entry) = self.slots.borrow_mut().get_mut(slot).and_then(Option::take) else { return };
        self.free.borrow_mut().push(slot);
        let result = match usize::try_from(result) {
            Err(_) => Err(io::Error::from_raw_os_error(-result)),
            Ok(moved) if moved == entry.len => Ok(()),
            Ok(moved) => {
                Err(io::Error::other(format!("only {moved} of {} bytes were transferred", entry.len)))
            }
        };
        self.count(|stats| {
            stats.in_flight -= 1;
            let bytes = entry.len as u64;
            match (&result, &entry.transfer) {
                (Err(_), transfer) => {
                    stats.errors += 1;
                    match transfer {
                        Transfer::Read { .. } => stats.read_errors += 1,
                        Transfer::Write { .. } => stats.write_errors += 1,
                        Transfer::Flush => stats.flush_errors += 1,
                    }
                }
                (Ok(()), Transfer::Read { .. }) => {
                    stats.reads += 1;
                    stats.read_bytes += bytes;
                }
                (Ok(()), Transfer::Write { .. }) => {
                    stats.writes += 1;
                    stats.write_bytes += bytes;
                }
                (Ok(()), Transfer::Flush) => stats.flushes += 1,
            }
        });
        let mut transfer = entry.transfer;
        if let Transfer::Write { data, .. } = &mut transfer {
            // Whoever waits for this memory may be the one who will look at the outcome only afterwards.
            data.clear();
        }
        let waker = {
            let mut cellar = entry.target.borrow_mut();
            cellar.outcome = Some((transfer, result));
            cellar.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn is_idle(&self) -> bool {
        self.free.borrow().len() == self.slots.borrow().len()
    }
}

impl InFlight {
    /// The entry for the submission ring; with `is_kept` it names the ring's file 0.
    fn request(&mut self, is_kept: bool) -> squeue::Entry {
        let fd = types::Fd(if is_kept { 0 } else { self.file.as_raw_fd() });
        let request = match &mut self.transfer {
            Transfer::Read { offset, buffer } => {
                let len = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
                opcode::Read::new(fd, buffer.as_mut_ptr(), len).offset(*offset).build()
            }
            Transfer::Write { offset, stable, .. } => {
                let count = u32::try_from(self.vectors.len()).unwrap_or(u32::MAX);
                let flags = if *stable { libc::RWF_DSYNC } else { 0 };
                opcode::Writev::new(fd, self.vectors.as_ptr(), count).offset(*offset).rw_flags(flags).build()
            }
            Transfer::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        };
        if is_kept { request.flags(squeue::Flags::FIXED_FILE) } else { request }
    }
}

/// An idle ring that doesn't wait costs the executor one look at two shared words.
impl EventSource for Ring {
    fn poll(&self) -> bool {
        let submitted = self.submit();
        self.reap() | submitted
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        let fd = self.uring.borrow().as_raw_fd();
        // SAFETY: the descriptor belongs to `self.uring`, which is never replaced and lives as long as `self`.
        Some(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    fn arm(&self) -> bool {
        self.submit();
        let ready = !self.uring.borrow_mut().completion().is_empty();
        !ready && self.backlog.borrow().is_empty() && self.unsubmitted.get() == 0
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Writes that were begun run to their end, and the kernel must be done with all memory before it is freed.
        while !self.is_idle() {
            self.fill_submission_ring();
            let waited = self.uring.borrow().submit_and_wait(1);
            self.unsubmitted.set(0);
            self.reap();
            if waited.is_err_and(|error| {
                !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
            }) {
                // The kernel can't be waited for: leaking the memory is the only safe way out.
                core::mem::forget(core::mem::take(&mut *self.slots.borrow_mut()));
                return;
            }
        }
        // The kernel takes a ring apart some time after it was closed; the file and its lock are to be free now. When
        // it can't give the file back at once, it does so then.
        if self.registered.get_mut().take().is_some() {
            let _ = self.uring.get_mut().submitter().unregister_files();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_runtime::real::Executor;

    #[test]
    fn transfers_work_with_a_registered_descriptor_and_without() {
        let executor = Executor::new().expect("an executor");
        for is_registered in [true, false] {
            let file = tempfile::tempfile().expect("a file");
            let file = Rc::new(OwnedFd::from(file));
            let ring = Rc::new(Ring::new().expect("a ring"));
            if is_registered {
                assert!(ring.register(&file), "the kernel keeps one descriptor");
                assert!(!ring.register(&file), "and no second table");
            }
            let source =
                executor.handle().add_source(Rc::clone(&ring) as Rc<dyn EventSource>).expect("a source");
            let mut data = DmaBuf::new(4096);
            data.fill(7);
            let write = Transfer::Write { offset: 0, data: vec![data.into()], stable: true };
            let written = executor.block_on(ring.start(&file, write));
            assert!(written.1.is_ok());
            let read = Transfer::Read { offset: 0, buffer: DmaBuf::new(4096) };
            let (read, outcome) = executor.block_on(ring.start(&file, read));
            assert!(outcome.is_ok());
            assert!(matches!(read, Transfer::Read { buffer, .. } if buffer.iter().all(|byte| *byte == 7)));
            assert!(executor.block_on(ring.start(&file, Transfer::Flush)).1.is_ok());
            executor.handle().remove_source(source);
        }
    }
}
