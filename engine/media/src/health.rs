//! How a device is doing: a wrapper that measures every transfer and judges from errors, latencies, transfers that don't
//! end, and what the drive says of itself.
//!
//! States: *normal*; *suspect* after an error or many slow transfers, which ends by itself after a quiet while, while a
//! transfer hangs, and while the drive warns or is worn out; *faulty* after a flush that failed (what was written before may
//! be lost), after many errors (reads of the same place are one), after a transfer that hung for long, or when the drive
//! calls itself unreliable.
//!
//! A faulty device is not used any more: every transfer is refused with [`MediaError::Faulty`], also of background
//! work, so that nothing builds on data that the device may have lost. The device stays faulty as long as it is open,
//! because a fault recurs. The caller that opens devices keeps the record of the fault and repeats it
//! ([`Device::condemn`]) until an operator says that the device was repaired or replaced.
//!
//! Two rules apply to a transfer that hangs. While a store is opened, and in tools, it ends with the same error after
//! [`HUNG`], and the device is faulty: no caller waits for ever. A store that serves bears stalls
//! ([`Device::bear_stalls`]): its transfers wait until they end, since a slow disk, or a host without processor time,
//! loses nothing. Beyond a limit the device counts as faulty until the transfer ends. No other fault ends by itself.

use crate::buffer::{DmaBuf, Slice};
use crate::device::{Device, DeviceStats, IoFuture, MediaError};
use crate::features::Features;
use crate::pool::DmaPool;
use crate::wear::Wear;
use core::cell::RefCell;
use core::ops::Range;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use weir_runtime::{Handle, Instant, nanos};

/// Upper bounds of the buckets of transfer times in microseconds, the last bucket being open: from a read of fast NVMe
/// to a disk in trouble.
pub const MEDIA_BOUNDS_US: [u64; 12] =
    [10, 25, 50, 100, 250, 500, 1_000, 5_000, 25_000, 100_000, 500_000, 2_000_000];

/// A transfer longer than this is slow: hundred times what a disk with heads takes.
const SLOW: Duration = Duration::from_secs(1);

/// A transfer under way for longer than this makes the device suspect: drives retry a bad sector for some seconds.
const HANGING: Duration = Duration::from_secs(10);

/// A transfer under way for this long makes the device faulty, and ends without it, unless stalls are borne: Linux gives a
/// command up after 30 s and tries again.
pub const HUNG: Duration = Duration::from_secs(65);

/// How long a device that bears stalls may take for a transfer before it counts as faulty, unless configured.
pub const STALL_LIMIT: Duration = Duration::from_mins(10);

/// How long errors count against a device, and slow transfers.
pub const ERRORS_COUNT_FOR: Duration = Duration::from_mins(10);

/// Errors within the window that make a device suspect.
const ERRORS_SUSPECT: usize = 1;

/// Errors within the window that make a device faulty; reads of the same bytes that fail are one.
const ERRORS_FAULTY: usize = 8;

/// What is to be done about a faulty device.
pub(crate) const FAULTY_ADVICE: &str =
    "replace the device, or repair it, then say so with `weir system clear-device` and restart the engine";

/// Slow transfers within the window that make a device suspect.
const SLOW_SUSPECT: usize = 8;

/// State of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum DeviceState {
    /// Nothing unusual within the last minutes.
    #[default]
    Normal,
    /// Errors, or slow transfers.
    Suspect,
    /// To be replaced.
    Faulty,
}

impl DeviceState {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Normal, Self::Suspect, Self::Faulty];

    /// Its name in metrics and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Suspect => "suspect",
            Self::Faulty => "faulty",
        }
    }
}

/// What a device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Read,
    Write,
    /// A write that completes when it is stable, or a flush: its failure says that more than itself may be lost.
    Flush,
    /// Work of the device's own, whose time says nothing of its transfers.
    Prepare,
    /// As [`Operation::Prepare`], and made of many reads.
    Search,
}

impl Operation {
    const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Prepare => "preparation",
            Self::Search => "search for data",
        }
    }
}

/// A transfer under way.
#[derive(Debug)]
struct Flight {
    begin: Instant,
    operation: Operation,
    offset: u64,
    len: u64,
    /// The caller that waits for its end.
    waker: Option<Waker>,
    /// It has taken [`HUNG`], and is given up.
    hung: bool,
}

impl core::fmt::Display for Flight {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "a {}", self.operation.name())?;
        if self.len == 0 {
            return Ok(());
        }
        write!(f, " of {} bytes at offset {}", self.len, self.offset)
    }
}

/// A transfer that hangs on a device that bears it: nothing is lost, and what needs it waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Which transfer takes how long.
    pub reason: String,
    /// For how long.
    pub time: Duration,
    /// It takes longer than the limit: the device counts as faulty until it ends.
    pub is_faulty: bool,
}

/// A transfer that failed.
#[derive(Debug)]
struct Failure {
    at: Instant,
    /// The bytes among which some can't be read; `None`: it was no read.
    place: Option<Range<u64>>,
}

impl Failure {
    /// The bytes that this one and a later read have in common, where that tells nothing new of the device.
    fn repeated_by(&self, read: &Range<u64>) -> Option<Range<u64>> {
        let place = self.place.as_ref()?;
        let both = place.start.max(read.start)..place.end.min(read.end);
        (!both.is_empty()).then_some(both)
    }
}

/// Counts of transfer times by bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferTimes {
    /// How many fell at or below each bound of [`MEDIA_BOUNDS_US`] and above the one before; the last is beyond all.
    pub buckets: [u64; MEDIA_BOUNDS_US.len() + 1],
    /// Their sum in nanoseconds.
    pub sum_ns: u64,
}

impl TransferTimes {
    fn record(&mut self, time: Duration) {
        let us = nanos(time).div_ceil(1000);
        self.buckets[MEDIA_BOUNDS_US.partition_point(|bound| *bound < us)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(nanos(time));
    }
}

/// How a device is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceHealth {
    /// Its state.
    pub state: DeviceState,
    /// Why it isn't normal, and what to do when it is faulty; empty when it is normal.
    pub reason: String,
    /// Times of reads.
    pub reads: TransferTimes,
    /// Times of writes.
    pub writes: TransferTimes,
    /// Times of flushes, and of writes that complete when they are stable.
    pub flushes: TransferTimes,
    /// Transfers that took more than a second.
    pub slow: u64,
    /// Transfers that were refused because the device is faulty.
    pub refused: u64,
    /// What the drive counts about itself; `None` where it isn't known.
    pub wear: Option<Wear>,
}

/// The judgement on a device, fed with what happens.
#[derive(Debug, Default)]
struct HealthMonitor {
    reads: TransferTimes,
    writes: TransferTimes,
    flushes: TransferTimes,
    slow: u64,
    refused: u64,
    /// Errors and slow transfers, within the window.
    errors: VecDeque<Failure>,
    slows: VecDeque<Instant>,
    last_error: String,
    /// Why the device is faulty for good.
    fault: Option<String>,
    /// However many errors there are, the rest of the device is wanted.
    bears_errors: bool,
    /// Transfers are waited for however long they take; one beyond this time makes the device faulty until it ends.
    stall_limit: Option<Duration>,
    in_flight: BTreeMap<u64, Flight>,
    serial: u64,
    /// A task looks for transfers that hang.
    guarded: bool,
}

impl HealthMonitor {
    fn begin(&mut self, operation: Operation, (offset, len): (u64, u64), begin: Instant) -> u64 {
        self.serial += 1;
        let flight = Flight { begin, operation, offset, len, waker: None, hung: false };
        self.in_flight.insert(self.serial, flight);
        self.serial
    }

    fn end(&mut self, serial: u64, now: Instant, error: Option<&MediaError>) {
        let Some(Flight { begin, operation, offset, len, .. }) = self.in_flight.remove(&serial) else {
            return;
        };
        let time = now - begin;
        let is_transfer = match operation {
            Operation::Read => Some(&mut self.reads),
            Operation::Write => Some(&mut self.writes),
            Operation::Flush => Some(&mut self.flushes),
            Operation::Prepare | Operation::Search => None,
        }
        .map(|times| times.record(time))
        .is_some();
        if is_transfer && time > SLOW {
            self.slow += 1;
            self.slows.push_back(now);
        }
        // Only what the device did counts: a transfer outside it is the caller's fault.
        let Some(error @ MediaError::Io { .. }) = error else { return };
        let read = (operation == Operation::Read).then(|| offset..offset.saturating_add(len));
        self.note_failure(now, read);
        self.last_error = error.to_string();
        if operation == Operation::Flush {
            self.fault.get_or_insert_with(|| {
                format!("a flush failed, so that writes before it may be lost: {error}")
            });
        } else if self.errors.len() >= ERRORS_FAULTY && !self.bears_errors {
            let count = self.errors.len();
            self.fault.get_or_insert_with(|| {
                format!("{count} transfers failed within 10 minutes, the last: {error}")
            });
        }
    }

    /// One bad sector that is read over and over is no reason to do without all others: bytes that can't be read count once,
    /// from the last time on.
    fn note_failure(&mut self, at: Instant, read: Option<Range<u64>>) {
        self.forget(at);
        let common =
            |read| (0..).zip(&self.errors).find_map(|(i, known)| Some((i, known.repeated_by(read)?)));
        let place = match read.as_ref().and_then(common) {
            Some((known, both)) => {
                self.errors.remove(known);
                Some(both)
            }
            None => read,
        };
        self.errors.push_back(Failure { at, place });
    }

    fn forget(&mut self, now: Instant) {
        let is_over = |at: Instant| now - at > ERRORS_COUNT_FOR;
        while self.errors.pop_front_if(|failure| is_over(failure.at)).is_some() {}
        while self.slows.pop_front_if(|at| is_over(*at)).is_some() {}
    }

    /// The transfer that has been under way for the longest time, and for how long.
    fn oldest(&self, now: Instant) -> Option<(Duration, &Flight)> {
        // It has the lowest number.
        self.in_flight.first_key_value().map(|(_, flight)| (now - flight.begin, flight))
    }

    /// Takes note of the transfers that hang and are given up, and wakes their callers. Returns when to look again;
    /// `None`: nothing is left that could hang.
    fn expire(&mut self, now: Instant) -> (Option<Instant>, Vec<Waker>) {
        // Transfers of a device that is out of use serve no caller.
        let gives_up = self.stall_limit.is_none() || self.fault.is_some();
        let mut told = Vec::new();
        for flight in self.in_flight.values_mut() {
            if now - flight.begin < HUNG {
                return (Some(flight.begin + HUNG), told);
            }
            if !gives_up {
                return (Some(now + HANGING), told);
            }
            flight.hung = true;
            told.extend(flight.waker.take());
        }
        (None, told)
    }

    /// Whether a transfer is given up. Its caller is woken when it is.
    fn hangs(&mut self, serial: u64, waker: &Waker) -> bool {
        let Some(flight) = self.in_flight.get_mut(&serial) else { return false };
        if !flight.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            flight.waker = Some(waker.clone());
        }
        flight.hung
    }

    /// Why the device is faulty for good, if it is.
    fn fault(&mut self, now: Instant) -> Option<String> {
        if self.stall_limit.is_none()
            && let Some((time, flight)) = self.oldest(now).filter(|(time, _)| *time >= HUNG)
        {
            let fault = format!("{flight} did not end within {} s", time.as_secs());
            self.fault.get_or_insert(fault);
        }
        self.fault.clone()
    }

    /// The stall that is borne now.
    fn stall(&self, now: Instant) -> Option<Stall> {
        let limit = self.stall_limit?;
        let (time, flight) = self.oldest(now).filter(|(time, _)| *time >= HANGING)?;
        let reason = format!("{flight} has been under way for {} s", time.as_secs());
        if time < limit {
            return Some(Stall { reason, time, is_faulty: false });
        }
        let reason = format!("{reason}, and the target serves again when it ends");
        Some(Stall { reason, time, is_faulty: true })
    }

    fn judge(&mut self, now: Instant, wear: Option<&Wear>) -> (DeviceState, String) {
        self.forget(now);
        if let Some(fault) = wear.and_then(Wear::fault) {
            self.fault.get_or_insert(fault);
        }
        if let Some(fault) = self.fault(now) {
            return (DeviceState::Faulty, format!("{fault}; {FAULTY_ADVICE}"));
        }
        if let Some(stall) = self.stall(now).filter(|stall| stall.is_faulty) {
            return (DeviceState::Faulty, format!("{}; if it doesn't, {FAULTY_ADVICE}", stall.reason));
        }
        if let Some((time, flight)) = self.oldest(now).filter(|(time, _)| *time >= HANGING) {
            let reason = format!("{flight} has been under way for {} s", time.as_secs());
            return (DeviceState::Suspect, reason);
        }
        if self.errors.len() >= ERRORS_SUSPECT {
            let reason =
                format!("{} failed within 10 minutes, the last: {}", self.errors.len(), self.last_error);
            return (DeviceState::Suspect, reason);
        }
        if self.slows.len() >= SLOW_SUSPECT {
            let reason =
                format!("{} transfers took more than a second each within 10 minutes", self.slows.len());
            return (DeviceState::Suspect, reason);
        }
        match wear.and_then(Wear::suspicion) {
            Some(suspicion) => (DeviceState::Suspect, suspicion),
            None => (DeviceState::Normal, String::new()),
        }
    }
}

fn len_of(data: &[Slice]) -> u64 {
    data.iter().map(|slice| slice.len() as u64).sum()
}

/// A device whose transfers are measured. Clones are the same device.
#[derive(Clone)]
pub struct MonitoredDevice {
    inner: Rc<dyn Device>,
    handle: Handle,
    judge: Rc<RefCell<HealthMonitor>>,
}

impl MonitoredDevice {
    /// Monitors a device from now on.
    #[must_use]
    pub fn new(handle: &Handle, inner: Rc<dyn Device>) -> Self {
        Self { inner, handle: handle.clone(), judge: Rc::default() }
    }

    /// Monitors a device of which everything that can still be read is wanted: errors don't put it out of use. One that doesn't answer
    /// is faulty all the same.
    #[must_use]
    pub fn bearing_errors(handle: &Handle, inner: Rc<dyn Device>) -> Self {
        let monitored = Self::new(handle, inner);
        monitored.judge.borrow_mut().bears_errors = true;
        monitored
    }

    /// The answer to a caller that wants to use a faulty device.
    fn refusal<T: 'static>(&self) -> Option<IoFuture<T>> {
        let reason = self.fault()?;
        self.judge.borrow_mut().refused += 1;
        let device = self.inner.name().to_owned();
        Some(Box::pin(core::future::ready(Err(MediaError::Faulty { device, reason }))))
    }

    /// Begins to measure something.
    fn begin(&self, operation: Operation, range: (u64, u64)) -> Watch {
        let now = self.handle.now();
        let mut judge = self.judge.borrow_mut();
        let serial = judge.begin(operation, range, now);
        if !core::mem::replace(&mut judge.guarded, true) {
            self.handle.spawn(guard(Rc::downgrade(&self.judge), self.handle.clone(), now + HUNG));
        }
        let (judge, inner, handle) = (Rc::clone(&self.judge), Rc::clone(&self.inner), self.handle.clone());
        Watch { judge, inner, handle, serial: Some(serial) }
    }

    /// Begins a transfer, unless the device is faulty, and measures it until it ends, hangs, or its future is dropped.
    fn watch<T: 'static>(
        &self,
        operation: Operation,
        range: (u64, u64),
        transfer: impl FnOnce(&dyn Device) -> IoFuture<T>,
    ) -> IoFuture<T> {
        if let Some(refusal) = self.refusal() {
            return refusal;
        }
        let mut watch = self.begin(operation, range);
        let mut transfer = transfer(&*self.inner);
        Box::pin(async move {
            let result = core::future::poll_fn(|cx| watch.poll(&mut transfer, cx)).await;
            watch.end(result.as_ref().err());
            result
        })
    }
}

/// Ends transfers that hang and are given up, until none is under way.
async fn guard(judge: Weak<RefCell<HealthMonitor>>, handle: Handle, mut next: Instant) {
    loop {
        handle.sleep_until(next).await;
        let Some(judge) = judge.upgrade() else { return };
        let (later, told) = judge.borrow_mut().expire(handle.now());
        told.into_iter().for_each(Waker::wake);
        let Some(later) = later else {
            judge.borrow_mut().guarded = false;
            return;
        };
        next = later;
    }
}

impl core::fmt::Debug for MonitoredDevice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MonitoredDevice").field("device", &self.inner.name()).finish_non_exhaustive()
    }
}

/// The measuring of one transfer.
struct Watch {
    judge: Rc<RefCell<HealthMonitor>>,
    inner: Rc<dyn Device>,
    handle: Handle,
    serial: Option<u64>,
}

impl Watch {
    /// Looks after the transfer. When it hangs, it runs on by itself.
    fn poll<T>(&self, transfer: &mut IoFuture<T>, cx: &mut Context<'_>) -> Poll<Result<T, MediaError>> {
        let polled = Pin::new(transfer).poll(cx);
        let Some(serial) = self.serial.filter(|_| polled.is_pending()) else { return polled };
        let mut judge = self.judge.borrow_mut();
        if !judge.hangs(serial, cx.waker()) {
            return Poll::Pending;
        }
        let device = self.inner.name().to_owned();
        let reason = judge.fault(self.handle.now()).unwrap_or_default();
        Poll::Ready(Err(MediaError::Faulty { device, reason }))
    }

    fn end(&mut self, error: Option<&MediaError>) {
        if let Some(serial) = self.serial.take() {
            self.judge.borrow_mut().end(serial, self.handle.now(), error);
        }
    }
}

impl Drop for Watch {
    /// No caller waits any more: the time of the transfer can't be known.
    fn drop(&mut self) {
        if let Some(serial) = self.serial.take() {
            self.judge.borrow_mut().in_flight.remove(&serial);
        }
    }
}

impl Device for MonitoredDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read(&self, offset: u64, buffer: DmaBuf) -> IoFuture<DmaBuf> {
        self.watch(Operation::Read, (offset, buffer.len() as u64), |device| device.read(offset, buffer))
    }

    fn lend(&self, offset: u64, len: usize) -> Option<Slice> {
        // A caller of a faulty device gets the error from the read.
        if self.fault().is_some() { None } else { self.inner.lend(offset, len) }
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
        self.watch(Operation::Write, (offset, len_of(&data)), |device| device.write(offset, data))
    }

    fn write_stable(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
        self.watch(Operation::Flush, (offset, len_of(&data)), |device| device.write_stable(offset, data))
    }

    fn flush(&self) -> IoFuture<()> {
        self.watch(Operation::Flush, (0, 0), |device| device.flush())
    }

    fn prepare(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.watch(Operation::Prepare, (offset, len), |device| device.prepare(offset, len))
    }

    fn first_data(&self, from: u64) -> IoFuture<Option<u64>> {
        if let Some(refusal) = self.refusal() {
            return refusal;
        }
        let (device, mut search) = (self.clone(), self.inner.first_data(from));
        Box::pin(async move {
            let (mut watch, mut reads) = (device.begin(Operation::Search, (0, 0)), 0);
            loop {
                let looked = core::future::poll_fn(|cx| watch.poll(&mut search, cx));
                if let Ok(found) = device.handle.timeout(HANGING, looked).await {
                    watch.end(found.as_ref().err());
                    return found;
                }
                // A search may take minutes; it hangs when none of its reads ends.
                let before = core::mem::replace(&mut reads, device.inner.stats().reads);
                if before != reads {
                    watch = device.begin(Operation::Search, (0, 0));
                }
            }
        })
    }

    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }

    fn register(&self, pool: &DmaPool) {
        self.inner.register(pool);
    }

    fn features(&self) -> Features {
        self.inner.features()
    }

    fn wear(&self) -> Option<Wear> {
        self.inner.wear()
    }

    fn fault(&self) -> Option<String> {
        self.judge.borrow_mut().fault(self.handle.now())
    }

    fn condemn(&self, reason: &str) {
        self.judge.borrow_mut().fault.get_or_insert_with(|| reason.to_owned());
    }

    fn bear_stalls(&self, limit: Duration) {
        self.judge.borrow_mut().stall_limit = Some(limit);
    }

    fn stall(&self) -> Option<Stall> {
        self.judge.borrow().stall(self.handle.now())
    }

    fn health(&self) -> Option<DeviceHealth> {
        let wear = self.inner.wear();
        let mut judge = self.judge.borrow_mut();
        let (state, reason) = judge.judge(self.handle.now(), wear.as_ref());
        let HealthMonitor { reads, writes, flushes, slow, refused, .. } = *judge;
        Some(DeviceHealth { state, reason, reads, writes, flushes, slow, refused, wear })
    }
}

#[cfg(test)]
mod tests;
