//! One io_uring instance as an event source: submission in batches, completions to futures.
//!
//! All transfers that begin between two turns of the executor are submitted in one system call. The same call takes
//! completions. The [`Wire`] decides how a transfer is put into an entry of the ring: plain reads and writes of a file
//! ([`crate::file`]), or commands for an NVMe drive ([`crate::nvme`]).

mod regions;
mod stable;
mod transfer;
mod workers;

use crate::device::DeviceStats;
use crate::features::Features;
use crate::health::HUNG;
use crate::pool::DmaPool;
use core::cell::{Cell, RefCell};
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use io_uring::{EnterFlags, IoUring, cqueue, squeue};
use regions::Regions;
use stable::StableWriteChoice;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;
use transfer::InFlight;
pub(crate) use transfer::{Action, Descriptor, PartMax, Request, Transfer};
use weir_runtime::EventSource;

/// Entries of the submission ring. What doesn't fit waits in memory; a device queue is rarely deeper.
const RING_ENTRIES: u32 = 256;

/// Entries of the completion ring, and most transfers that the kernel is told of at once, so that it never overflows.
const COMPLETIONS: u32 = 4 * RING_ENTRIES;

/// A transfer from this many bytes on is told to the kernel at once instead of at the executor's next turn: the device
/// is busy with it for tens of microseconds, which it would otherwise begin after all that is computed meanwhile, and the
/// call is less than a tenth of what it takes the kernel to begin it.
const AT_ONCE_MIN: usize = 64 << 10;

/// Longest sleep while polled transfers are under way, whose end no descriptor tells: what a read of fast NVMe takes. The
/// executor looks without sleeping for a while before.
pub(crate) const POLLED_SLEEP: Duration = Duration::from_micros(20);

/// Longest wait of a ring that goes for what is in flight: a healthy device ends its transfers in milliseconds, and drives
/// retry a bad sector for some seconds.
const GOING_MAX: Duration = Duration::from_secs(10);

/// How transfers are put into entries of a ring, and completions understood.
pub(crate) trait Wire {
    /// Size of the ring's entries.
    type Submission: squeue::EntryMarker;
    /// Size of the ring's completions.
    type Completion: cqueue::EntryMarker;

    /// The entry of a request. A request of one vector is named by the memory, not by the vector.
    fn submission(&self, request: &Request<'_>) -> Self::Submission;

    /// Slot and result code.
    fn completion(completion: &Self::Completion) -> (u64, i32);

    /// Most that a request moves.
    fn part_max(&self) -> PartMax {
        PartMax { bytes: usize::MAX, vectors: usize::MAX }
    }

    /// Whether a write and a flush behind it are as good as a stable write, and take less time now and then.
    fn may_flush_writes(&self) -> bool {
        false
    }

    /// What a non-negative result code says of a transfer of `len` bytes; 0: of a part of one.
    fn outcome(result: i32, len: usize) -> io::Result<()>;
}

type Outcome = (Transfer, io::Result<()>);

/// Where the future of a transfer finds its outcome.
#[derive(Default)]
struct CompletionSlot {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

/// The ring. Dropping it waits for what is in flight, but not long for a device that doesn't answer.
pub(crate) struct Ring<W: Wire> {
    wire: W,
    uring: RefCell<IoUring<W::Submission, W::Completion>>,
    slots: RefCell<Vec<Option<InFlight>>>,
    free: RefCell<Vec<usize>>,
    /// Slots that wait for room in the submission ring.
    backlog: RefCell<VecDeque<usize>>,
    /// Entries in the submission ring that the kernel hasn't been told of.
    unsubmitted: Cell<usize>,
    /// Entries that were put into the submission ring and haven't completed.
    under_way: Cell<usize>,
    stats: Cell<DeviceStats>,
    features: Cell<Features>,
    /// The descriptor that the kernel keeps for the ring, as its file 0.
    registered: RefCell<Option<Rc<OwnedFd>>>,
    regions: RefCell<Regions>,
    ways: StableWriteChoice,
    /// A transfer doesn't end, and is not waited for any more.
    given_up: Cell<bool>,
    /// What tells a sleeping thread of deferred completions: the ring's own descriptor doesn't.
    event: Option<Event>,
}

/// An event descriptor that the kernel writes to when there is something to ask the ring for.
struct Event {
    fd: OwnedFd,
    is_armed: Cell<bool>,
}

impl Event {
    /// Registers a new one with the ring.
    fn new<S: squeue::EntryMarker, C: cqueue::EntryMarker>(ring: &IoUring<S, C>) -> io::Result<Self> {
        // SAFETY: a plain system call.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just given this descriptor to us alone.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        ring.submitter().register_eventfd(fd.as_raw_fd())?;
        Ok(Self { fd, is_armed: Cell::new(true) })
    }

    /// Takes notice of what it told, and has it tell nothing until it is armed.
    fn disarm<E: cqueue::EntryMarker>(&self, completions: &cqueue::CompletionQueue<'_, E>) {
        if !self.is_armed.replace(false) {
            return;
        }
        completions.disable_eventfd();
        let mut told = 0u64;
        // SAFETY: the descriptor is open, and eight bytes is what an event descriptor writes. That it has told nothing
        // is the only error.
        unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut told).cast(), size_of::<u64>()) };
    }

    fn arm<E: cqueue::EntryMarker>(&self, completions: &mut cqueue::CompletionQueue<'_, E>) {
        completions.enable_eventfd();
        self.is_armed.set(true);
    }
}

/// The outcome of a transfer. Dropping it lets the transfer run on.
pub(crate) struct Pending {
    slot: Rc<RefCell<CompletionSlot>>,
    is_brief: bool,
}

impl Pending {
    /// Whether it will come so soon that it is worth staying awake for.
    pub(crate) fn is_brief(&self) -> bool {
        self.is_brief
    }

    /// Whether the transfer went well, when it has ended.
    pub(crate) fn taken(&self) -> Option<io::Result<()>> {
        self.slot.borrow_mut().outcome.take().map(|(_, result)| result)
    }
}

impl Future for Pending {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut slot = self.slot.borrow_mut();
        if let Some(outcome) = slot.outcome.take() {
            return Poll::Ready(outcome);
        }
        slot.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

fn build<W: Wire>(features: Features) -> io::Result<IoUring<W::Submission, W::Completion>> {
    let mut builder = IoUring::<W::Submission, W::Completion>::builder();
    builder.setup_cqsize(COMPLETIONS);
    if features.has(Features::DEFERRED) {
        builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    } else if features.has(Features::COOPERATIVE) {
        builder.setup_single_issuer().setup_coop_taskrun().setup_taskrun_flag();
    }
    if features.has(Features::POLLED) {
        builder.setup_iopoll();
    }
    builder.build(RING_ENTRIES)
}

impl<W: Wire> Ring<W> {
    /// A ring for the calling thread with what of `wanted` the kernel has; it fails when there is no io_uring. Without
    /// poll queues a polled ring's transfers fail, which the caller has to find out.
    pub(crate) fn new(wire: W, file: &Rc<OwnedFd>, wanted: Features) -> io::Result<Self> {
        let mut features =
            if wanted.has(Features::DEFERRED) { wanted.without(Features::COOPERATIVE) } else { wanted };
        let uring = build::<W>(features).or_else(|_| {
            features = features.without(Features::DEFERRED.with(Features::COOPERATIVE));
            build::<W>(features)
        })?;
        workers::keep_near(&uring);
        let event = if features.has(Features::DEFERRED) { Some(Event::new(&uring)?) } else { None };
        let mut registered = None;
        // A kernel or container that refuses costs a little time for each transfer, nothing else.
        if features.has(Features::FILES) {
            match uring.submitter().register_files(&[file.as_raw_fd()]) {
                Ok(()) => registered = Some(Rc::clone(file)),
                Err(_) => features = features.without(Features::FILES),
            }
        }
        if features.has(Features::BUFFERS)
            && uring.submitter().register_buffers_sparse(regions::REGIONS_MAX).is_err()
        {
            features = features.without(Features::BUFFERS);
        }
        Ok(Self {
            wire,
            uring: RefCell::new(uring),
            slots: RefCell::default(),
            free: RefCell::default(),
            backlog: RefCell::default(),
            unsubmitted: Cell::new(0),
            under_way: Cell::new(0),
            stats: Cell::default(),
            features: Cell::new(features),
            registered: RefCell::new(registered),
            regions: RefCell::default(),
            ways: StableWriteChoice::default(),
            given_up: Cell::new(false),
            event,
        })
    }

    /// What it uses of io_uring.
    pub(crate) fn features(&self) -> Features {
        self.features.get()
    }

    /// Has the kernel keep the pool's pages at hand.
    pub(crate) fn register(&self, pool: &DmaPool) {
        if self.features().has(Features::BUFFERS) {
            self.regions.borrow_mut().add(pool);
        }
    }

    pub(crate) fn stats(&self) -> DeviceStats {
        self.stats.get()
    }

    fn count(&self, change: impl FnOnce(&mut DeviceStats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }

    /// Queues a transfer; the kernel learns of it with the executor's next turn, together with its neighbours, or at once
    /// when it is a large one.
    pub(crate) fn start(&self, file: &Rc<OwnedFd>, transfer: Transfer) -> Pending {
        let target = Rc::new(RefCell::new(CompletionSlot::default()));
        let mut entry = InFlight::new(file, transfer, self.wire.part_max(), &target);
        let mut is_brief = false;
        if self.wire.may_flush_writes() && entry.is_stable_write() {
            let way = self.ways.choose(entry.len);
            is_brief = self.ways.is_brief(way, entry.len);
            entry.way = Some((way, Instant::now()));
        }
        let is_large = entry.len >= AT_ONCE_MIN;
        let slot = self.free.borrow_mut().pop().unwrap_or_else(|| {
            let mut slots = self.slots.borrow_mut();
            slots.push(None);
            slots.len() - 1
        });
        self.slots.borrow_mut()[slot] = Some(entry);
        self.backlog.borrow_mut().push_back(slot);
        self.count(|stats| stats.in_flight += 1);
        if is_large {
            self.submit();
        }
        Pending { slot: target, is_brief }
    }

    fn fill_submission_ring(&self) {
        let mut ring = self.uring.borrow_mut();
        let mut backlog = self.backlog.borrow_mut();
        if backlog.is_empty() {
            return;
        }
        if self.regions.borrow_mut().follow(&ring.submitter()).is_err() {
            // Its memory is beyond what this process may lock; what is registered stays so.
            self.features.set(self.features().without(Features::BUFFERS));
        }
        let mut queue = ring.submission();
        let mut slots = self.slots.borrow_mut();
        let registered = self.registered.borrow();
        let regions = self.regions.borrow();
        while let Some(slot) = backlog.front().copied().filter(|_| self.has_room()) {
            let Some(entry) = &mut slots[slot] else {
                backlog.pop_front();
                continue;
            };
            let is_kept = registered.as_ref().is_some_and(|file| Rc::ptr_eq(file, &entry.file));
            let descriptor =
                if is_kept { Descriptor::Registered(0) } else { Descriptor::Plain(entry.file.as_raw_fd()) };
            let Some(mut request) = entry.next(descriptor, slot as u64) else {
                backlog.pop_front();
                continue;
            };
            if let [vector] = request.vectors {
                request.region = regions.of(vector);
            }
            let submission = self.wire.submission(&request);
            // SAFETY: the entry's buffers, vectors and descriptor are owned by `slots` and stay in place until the
            // completion of this request has been taken (`finish`), or the ring has been drained (`drop`).
            if unsafe { queue.push(&submission) }.is_err() {
                break;
            }
            entry.begin();
            self.unsubmitted.set(self.unsubmitted.get() + 1);
            self.under_way.set(self.under_way.get() + 1);
        }
    }

    /// Whether the kernel can be told of one more transfer.
    fn has_room(&self) -> bool {
        self.under_way.get() < COMPLETIONS as usize
    }

    /// Whether completions come forth only when the kernel is asked for them.
    fn must_ask(&self) -> bool {
        let features = self.features();
        // A thread that polls without system calls would wait for the next tick of the clock to interrupt it.
        let is_left_alone = features.has(Features::DEFERRED) || features.has(Features::COOPERATIVE);
        (features.has(Features::POLLED) && self.under_way.get() > self.unsubmitted.get())
            || (is_left_alone && self.uring.borrow_mut().submission().taskrun())
    }

    /// As [`Ring::enter`]. EBUSY: completions must be taken first; EAGAIN: the kernel lacks memory; EINTR: a signal. All are
    /// tried again at the next turn.
    fn submit(&self) -> bool {
        self.enter().unwrap_or(false)
    }

    /// Moves waiting transfers to the submission ring, tells the kernel, and has it bring forth completions, all in
    /// one call as long as the ring has room. Returns whether the kernel took anything.
    fn enter(&self) -> io::Result<bool> {
        let mut progress = false;
        loop {
            self.fill_submission_ring();
            let count = self.unsubmitted.get();
            if count == 0 && !self.must_ask() {
                return Ok(progress);
            }
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            self.count(|stats| stats.calls += 1);
            let ring = self.uring.borrow();
            // SAFETY: the entries that the kernel takes were pushed by `fill_submission_ring`; no argument is passed.
            let entered = unsafe {
                ring.submitter().enter::<libc::sigset_t>(count, 0, EnterFlags::GETEVENTS.bits(), None)
            };
            let taken = match entered {
                Ok(taken) => taken.min(self.unsubmitted.get()),
                Err(error) if !progress => return Err(error),
                Err(_) => 0,
            };
            self.unsubmitted.set(self.unsubmitted.get() - taken);
            progress |= taken > 0;
            if taken == 0 || self.backlog.borrow().is_empty() || !self.has_room() {
                return Ok(progress);
            }
        }
    }

    fn reap(&self) -> bool {
        let mut done = Vec::new();
        {
            let mut ring = self.uring.borrow_mut();
            done.extend(ring.completion().map(|entry| W::completion(&entry)));
        }
        let progress = !done.is_empty();
        for (slot, result) in done {
            self.finish(usize::try_from(slot).unwrap_or(usize::MAX), result);
        }
        progress
    }

    fn finish(&self, slot: usize, result: i32) {
        self.under_way.set(self.under_way.get().saturating_sub(1));
        let mut entry = {
            let mut slots = self.slots.borrow_mut();
            let Some(place) = slots.get_mut(slot) else { return };
            if !place.as_mut().is_some_and(|entry| entry.end(result, W::outcome)) {
                return;
            }
            if place.as_mut().is_some_and(|entry| entry.repeats(HUNG) || entry.flushes()) {
                self.backlog.borrow_mut().push_back(slot);
                return;
            }
            let Some(entry) = place.take() else { return };
            entry
        };
        self.free.borrow_mut().push(slot);
        let result = entry.result();
        if let (Ok(()), Some((way, begun))) = (&result, entry.way) {
            self.ways.note(way, entry.len, begun.elapsed());
        }
        self.count(|stats| {
            stats.end(&entry.transfer, entry.len as u64, result.is_ok());
            stats.flushes += if result.is_ok() { entry.flushes_made() } else { 0 };
        });
        let mut transfer = entry.transfer;
        if let Transfer::Write { data, .. } = &mut transfer {
            // The task that waits for this memory may be the one that looks at the outcome only afterwards.
            data.clear();
        }
        let waker = {
            let mut slot = entry.target.borrow_mut();
            slot.outcome = Some((transfer, result));
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn is_idle(&self) -> bool {
        self.free.borrow().len() == self.slots.borrow().len()
    }

    /// Waits, without the executor, until nothing is in flight. Fails when the kernel refuses, and when no transfer ends for
    /// `limit`; what is in flight then stays so.
    pub(crate) fn drain(&self, limit: Duration) -> io::Result<()> {
        let (mut last, mut left) = (Instant::now(), self.stats().in_flight);
        while !self.is_idle() {
            let entered = self.enter();
            self.reap();
            match entered {
                Err(error)
                    if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) =>
                {
                    return Err(error);
                }
                _ => {}
            }
            let before = core::mem::replace(&mut left, self.stats().in_flight);
            if left < before {
                last = Instant::now();
            } else if last.elapsed() >= limit {
                self.given_up.set(true);
                let reason = format!("no transfer ended within {} s", limit.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
            } else {
                std::thread::sleep(POLLED_SLEEP);
            }
        }
        Ok(())
    }
}

impl DeviceStats {
    /// The sum of two rings of one device.
    pub(crate) fn and(mut self, other: &Self) -> Self {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.write_bytes += other.write_bytes;
        self.flushes += other.flushes;
        self.errors += other.errors;
        self.read_errors += other.read_errors;
        self.write_errors += other.write_errors;
        self.flush_errors += other.flush_errors;
        self.in_flight += other.in_flight;
        self.calls += other.calls;
        self
    }

    /// Counts the end of a transfer.
    pub(crate) fn end(&mut self, transfer: &Transfer, bytes: u64, is_ok: bool) {
        self.in_flight -= 1;
        self.errors += u64::from(!is_ok);
        let (done, failed, moved) = match transfer {
            Transfer::Read { .. } => (&mut self.reads, &mut self.read_errors, Some(&mut self.read_bytes)),
            Transfer::Write { .. } => (&mut self.writes, &mut self.write_errors, Some(&mut self.write_bytes)),
            Transfer::Flush => (&mut self.flushes, &mut self.flush_errors, None),
        };
        if is_ok {
            *done += 1;
            if let Some(moved) = moved {
                *moved += bytes;
            }
        } else {
            *failed += 1;
        }
    }
}

/// An idle ring that doesn't wait costs the executor one look at two shared words.
impl<W: Wire> EventSource for Ring<W> {
    fn poll(&self) -> bool {
        if let Some(event) = &self.event {
            event.disarm(&self.uring.borrow_mut().completion());
        }
        let submitted = self.submit();
        let reaped = self.reap();
        if reaped && !self.backlog.borrow().is_empty() {
            // Writes that are to be flushed don't wait for what is computed in this turn.
            self.submit();
        }
        reaped | submitted
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        let ring = self.uring.borrow().as_raw_fd();
        let fd = self.event.as_ref().map_or(ring, |event| event.fd.as_raw_fd());
        // SAFETY: the descriptor belongs to `self.uring` or `self.event`, which are never replaced and live as long as `self`.
        Some(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    fn arm(&self) -> bool {
        if let Some(event) = &self.event {
            event.arm(&mut self.uring.borrow_mut().completion());
        }
        // What came before it was armed is asked for here.
        self.submit();
        let ready = !self.uring.borrow_mut().completion().is_empty();
        let waits = !self.backlog.borrow().is_empty() && self.has_room();
        !ready && !waits && self.unsubmitted.get() == 0
    }

    fn max_sleep(&self) -> Option<Duration> {
        (self.features().has(Features::POLLED) && self.under_way.get() > 0).then_some(POLLED_SLEEP)
    }
}

impl<W: Wire> Drop for Ring<W> {
    fn drop(&mut self) {
        // Writes that were begun run to their end, and the kernel must be done with all memory before it is freed.
        if self.given_up.get() || self.drain(GOING_MAX).is_err() {
            // The kernel can't be waited for: leaking the memory is the only safe way out.
            core::mem::forget(core::mem::take(&mut *self.slots.borrow_mut()));
            core::mem::forget(core::mem::take(&mut *self.regions.borrow_mut()));
            return;
        }
        // The kernel takes a ring apart some time after it was closed; the file and its lock are to be free now. When
        // it can't give the file back at once, it does so then.
        if self.registered.get_mut().take().is_some() {
            let _ = self.uring.get_mut().submitter().unregister_files();
        }
    }
}

#[cfg(test)]
mod tests;
