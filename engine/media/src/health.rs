//! How a device is doing: a wrapper that measures every transfer and judges from errors, latencies, transfers that don't
//! end, and what the drive says of itself.
//!
//! States: *normal*; *suspect* after an error or many slow transfers, which ends by itself after a quiet while, and while
//! the drive warns or is worn out; *faulty* after a flush that failed (what was written before may be lost), after many
//! errors, after a transfer that hung for long, or when the drive calls itself unreliable.
//!
//! A faulty device is not used any more: every transfer is refused with [`MediaError::Faulty`], also of background work, so
//! that nothing builds on what it may have lost. It stays so as long as it is open, because what it did once it does again;
//! whoever opens devices remembers the verdict and repeats it ([`Device::condemn`]) until somebody says that the device was
//! repaired or replaced.

use crate::buffer::{DmaBuf, Slice};
use crate::device::{Device, DeviceStats, IoFuture, MediaError};
use crate::features::Features;
use crate::pool::DmaPool;
use crate::wear::Wear;
use core::cell::RefCell;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use weir_runtime::{Handle, Instant};

/// Upper bounds of the buckets of transfer times in microseconds, the last bucket being open: from a read of fast NVMe
/// to a disk in trouble.
pub const MEDIA_BOUNDS_US: [u64; 12] =
    [10, 25, 50, 100, 250, 500, 1_000, 5_000, 25_000, 100_000, 500_000, 2_000_000];

/// A transfer longer than this is slow: hundred times what a disk with heads takes.
const SLOW: Duration = Duration::from_secs(1);

/// A transfer under way for longer than this makes the device suspect: drives retry a bad sector for some seconds.
const HANGING: Duration = Duration::from_secs(10);

/// A transfer under way for longer than this makes the device faulty: Linux gives a command up after 30 s and tries
/// again.
const HUNG: Duration = Duration::from_secs(65);

/// Events older than this no longer count.
const WINDOW: Duration = Duration::from_mins(10);

/// Errors within the window that make a device suspect.
const ERRORS_SUSPECT: usize = 1;

/// Errors within the window that make a device faulty.
const ERRORS_FAULTY: usize = 8;

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
}

impl Operation {
    const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
        }
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
        let us = u64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX);
        self.buckets[MEDIA_BOUNDS_US.partition_point(|bound| *bound < us)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }
}

/// How a device is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceHealth {
    /// Its state.
    pub state: DeviceState,
    /// Why it isn't normal; empty when it is.
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
struct Judge {
    reads: TransferTimes,
    writes: TransferTimes,
    flushes: TransferTimes,
    slow: u64,
    refused: u64,
    /// When errors and slow transfers happened, within the window.
    errors: VecDeque<Instant>,
    slows: VecDeque<Instant>,
    last_error: String,
    /// Why the device is faulty for good.
    fault: Option<String>,
    in_flight: BTreeMap<u64, (Instant, Operation)>,
    serial: u64,
}

impl Judge {
    fn begin(&mut self, operation: Operation, now: Instant) -> u64 {
        self.serial += 1;
        self.in_flight.insert(self.serial, (now, operation));
        self.serial
    }

    fn end(&mut self, serial: u64, now: Instant, error: Option<&MediaError>) {
        let Some((begin, operation)) = self.in_flight.remove(&serial) else { return };
        let time = now - begin;
        match operation {
            Operation::Read => self.reads.record(time),
            Operation::Write => self.writes.record(time),
            Operation::Flush => self.flushes.record(time),
        }
        if time > SLOW {
            self.slow += 1;
            self.slows.push_back(now);
        }
        // Only what the device did counts: a transfer outside it is the caller's fault.
        let Some(error @ MediaError::Io { .. }) = error else { return };
        self.errors.push_back(now);
        self.last_error = error.to_string();
        self.forget(now);
        if operation == Operation::Flush {
            self.fault.get_or_insert_with(|| {
                format!("a flush failed, so that writes before it may be lost: {error}")
            });
        } else if self.errors.len() >= ERRORS_FAULTY {
            let count = self.errors.len();
            self.fault.get_or_insert_with(|| {
                format!("{count} transfers failed within 10 minutes, the last: {error}")
            });
        }
    }

    fn forget(&mut self, now: Instant) {
        for events in [&mut self.errors, &mut self.slows] {
            while events.front().is_some_and(|at| now - *at > WINDOW) {
                events.pop_front();
            }
        }
    }

    /// The transfer that has been under way for the longest time, and for how long.
    fn oldest(&self, now: Instant) -> Option<(Duration, Operation)> {
        // It has the lowest number.
        self.in_flight.first_key_value().map(|(_, (begin, operation))| (now - *begin, *operation))
    }

    /// Why the device is faulty, if it is.
    fn fault(&mut self, now: Instant) -> Option<String> {
        if let Some((time, operation)) = self.oldest(now).filter(|(time, _)| *time > HUNG) {
            let (name, seconds) = (operation.name(), time.as_secs());
            self.fault.get_or_insert_with(|| format!("a {name} did not end within {seconds} s"));
        }
        let fault = self.fault.as_ref()?;
        Some(format!(
            "{fault}; replace the device, or repair it, then say so with `weir system clear-device` and restart the engine"
        ))
    }

    fn judge(&mut self, now: Instant, wear: Option<&Wear>) -> (DeviceState, String) {
        self.forget(now);
        if let Some(fault) = wear.and_then(Wear::fault) {
            self.fault.get_or_insert(fault);
        }
        if let Some(fault) = self.fault(now) {
            return (DeviceState::Faulty, fault);
        }
        let hanging = self.oldest(now);
        if let Some((time, operation)) = hanging.filter(|(time, _)| *time > HANGING) {
            return (
                DeviceState::Suspect,
                format!("a {} has been under way for {} s", operation.name(), time.as_secs()),
            );
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

/// A device whose transfers are measured.
pub struct Watched {
    inner: Rc<dyn Device>,
    handle: Handle,
    judge: Rc<RefCell<Judge>>,
}

impl Watched {
    /// Watches a device from now on.
    #[must_use]
    pub fn new(handle: &Handle, inner: Rc<dyn Device>) -> Self {
        Self { inner, handle: handle.clone(), judge: Rc::default() }
    }

    /// Begins a transfer, unless the device is faulty, and measures it until it ends or its future is dropped.
    fn watch<T: 'static>(
        &self,
        operation: Operation,
        transfer: impl FnOnce(&dyn Device) -> IoFuture<T>,
    ) -> IoFuture<T> {
        if let Some(reason) = self.fault() {
            self.judge.borrow_mut().refused += 1;
            let device = self.inner.name().to_owned();
            return Box::pin(core::future::ready(Err(MediaError::Faulty { device, reason })));
        }
        let serial = self.judge.borrow_mut().begin(operation, self.handle.now());
        let transfer = transfer(&*self.inner);
        let mut watch =
            Watch { judge: Rc::clone(&self.judge), handle: self.handle.clone(), serial: Some(serial) };
        Box::pin(async move {
            let result = transfer.await;
            watch.end(result.as_ref().err());
            result
        })
    }
}

impl core::fmt::Debug for Watched {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Watched").field("device", &self.inner.name()).finish_non_exhaustive()
    }
}

struct Watch {
    judge: Rc<RefCell<Judge>>,
    handle: Handle,
    serial: Option<u64>,
}

impl Watch {
    fn end(&mut self, error: Option<&MediaError>) {
        if let Some(serial) = self.serial.take() {
            self.judge.borrow_mut().end(serial, self.handle.now(), error);
        }
    }
}

impl Drop for Watch {
    /// Nobody waits any more: what the transfer takes can't be known.
    fn drop(&mut self) {
        if let Some(serial) = self.serial.take() {
            self.judge.borrow_mut().in_flight.remove(&serial);
        }
    }
}

impl Device for Watched {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read(&self, offset: u64, buffer: DmaBuf) -> IoFuture<DmaBuf> {
        self.watch(Operation::Read, |device| device.read(offset, buffer))
    }

    fn lend(&self, offset: u64, len: usize) -> Option<Slice> {
        // Who asks a faulty device is told so by the read.
        if self.fault().is_some() { None } else { self.inner.lend(offset, len) }
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
        self.watch(Operation::Write, |device| device.write(offset, data))
    }

    fn write_stable(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
        self.watch(Operation::Flush, |device| device.write_stable(offset, data))
    }

    fn flush(&self) -> IoFuture<()> {
        self.watch(Operation::Flush, |device| device.flush())
    }

    fn prepare(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.inner.prepare(offset, len)
    }

    fn first_data(&self) -> IoFuture<Option<u64>> {
        self.inner.first_data()
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
        // A reason that was remembered says already what to do.
        let reason = reason.split("; replace the device").next().unwrap_or(reason).to_owned();
        self.judge.borrow_mut().fault.get_or_insert(reason);
    }

    fn health(&self) -> Option<DeviceHealth> {
        let wear = self.inner.wear();
        let mut judge = self.judge.borrow_mut();
        let (state, reason) = judge.judge(self.handle.now(), wear.as_ref());
        let Judge { reads, writes, flushes, slow, refused, .. } = *judge;
        Some(DeviceHealth { state, reason, reads, writes, flushes, slow, refused, wear })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{SimDisk, SimDiskOptions};
    use weir_runtime::sim::{Node, World};

    fn watched(seed: u64, options: SimDiskOptions) -> (World, Node, SimDisk, Rc<Watched>) {
        let world = World::new(seed);
        let node = world.node("n");
        let disk = SimDisk::new("sim", 1 << 20, seed, options);
        let device = Rc::new(Watched::new(&node.handle(), disk.attach(&node.handle())));
        (world, node, disk, device)
    }

    fn health(device: &Watched) -> DeviceHealth {
        device.health().expect("it is watched")
    }

    fn write(world: &World, node: &Node, device: &Rc<Watched>) -> Result<(), MediaError> {
        let device = Rc::clone(device);
        world.block_on(node, async move { device.write(0, vec![DmaBuf::new(4096).into()]).await })
    }

    #[test]
    fn a_healthy_device_is_normal_and_its_times_are_counted() {
        let (world, node, _, device) = watched(1, SimDiskOptions::default());
        write(&world, &node, &device).expect("a healthy disk");
        let flushed = Rc::clone(&device);
        world.block_on(&node, async move { flushed.flush().await }).expect("a healthy disk");
        drop(device.read(0, DmaBuf::new(4096)));
        let found = health(&device);
        assert_eq!((found.state, found.reason.as_str()), (DeviceState::Normal, ""));
        let counts =
            [found.reads, found.writes, found.flushes].map(|times| times.buckets.iter().sum::<u64>());
        assert_eq!(counts, [0, 1, 1], "whose future is dropped isn't counted");
        let range = device.write(5, vec![DmaBuf::new(4096).into()]);
        assert!(world.block_on(&node, range).is_err());
        assert_eq!(health(&device).state, DeviceState::Normal, "the caller's mistake");
    }

    #[test]
    fn errors_make_a_device_suspect_for_a_while_and_many_make_it_faulty_for_good() {
        let failing = SimDiskOptions { error_probability: 1.0, ..SimDiskOptions::default() };
        let (world, node, disk, device) = watched(2, failing.clone());
        assert!(write(&world, &node, &device).is_err());
        let found = health(&device);
        assert!(found.state == DeviceState::Suspect && found.reason.contains("injected fault"), "{found:?}");
        world.run_for(Duration::from_mins(11));
        assert_eq!(health(&device).state, DeviceState::Normal, "it was quiet since");
        for _ in 0..8 {
            assert!(write(&world, &node, &device).is_err());
        }
        assert_eq!(health(&device).state, DeviceState::Faulty);
        disk.set_options(SimDiskOptions::default());
        world.run_for(Duration::from_hours(1));
        let before = disk.operations();
        let refused = write(&world, &node, &device).expect_err("it is out of use");
        assert!(
            matches!(&refused, MediaError::Faulty { reason, .. } if reason.contains("8 transfers failed"))
        );
        let reading = Rc::clone(&device);
        let read = world.block_on(&node, async move { reading.read(0, DmaBuf::new(4096)).await });
        assert!(matches!(read, Err(MediaError::Faulty { .. })));
        assert_eq!(disk.operations(), before, "nothing reaches the disk any more");
        let found = health(&device);
        assert!(
            found.state == DeviceState::Faulty && found.reason.contains("replace the device"),
            "{found:?}"
        );
        assert_eq!(found.refused, 2);
        let condemned = Rc::new(Watched::new(&node.handle(), disk.attach(&node.handle())));
        condemned.condemn(&found.reason);
        assert_eq!(health(&condemned).reason, found.reason, "remembered as it was");
        assert!(matches!(write(&world, &node, &condemned), Err(MediaError::Faulty { .. })));
        let again = Rc::new(Watched::new(&node.handle(), disk.attach(&node.handle())));
        write(&world, &node, &again).expect("opened again, and sound");
        assert_eq!(health(&again).state, DeviceState::Normal);
    }

    #[test]
    fn one_failed_flush_makes_a_device_faulty() {
        let failing = SimDiskOptions { error_probability: 1.0, ..SimDiskOptions::default() };
        let (world, node, _, device) = watched(3, failing);
        let flushed = Rc::clone(&device);
        world.block_on(&node, async move { flushed.flush().await }).expect_err("it fails");
        let found = health(&device);
        assert!(found.state == DeviceState::Faulty && found.reason.contains("may be lost"), "{found:?}");
    }

    #[test]
    fn slow_transfers_and_hanging_ones_are_noticed() {
        let slow = SimDiskOptions {
            stall_probability: 1.0,
            stall: Duration::from_secs(2),
            ..SimDiskOptions::default()
        };
        let (world, node, disk, device) = watched(4, slow);
        for _ in 0..8 {
            write(&world, &node, &device).expect("slow, but sound");
        }
        let found = health(&device);
        assert_eq!((found.state, found.slow), (DeviceState::Suspect, 8), "{found:?}");
        world.run_for(Duration::from_mins(11));
        disk.halt_at(disk.operations());
        let hanging = device.write(0, vec![DmaBuf::new(4096).into()]);
        world.run_for(Duration::from_secs(11));
        let found = health(&device);
        assert!(
            found.state == DeviceState::Suspect && found.reason.contains("under way for 11 s"),
            "{found:?}"
        );
        world.run_for(Duration::from_mins(1));
        assert_eq!(health(&device).state, DeviceState::Faulty);
        drop(hanging);
        assert_eq!(health(&device).state, DeviceState::Faulty);
    }

    /// A device that reports wear.
    struct Worn {
        inner: Rc<dyn Device>,
        wear: core::cell::Cell<Wear>,
    }

    impl Device for Worn {
        fn name(&self) -> &str {
            self.inner.name()
        }

        fn size(&self) -> u64 {
            self.inner.size()
        }

        fn read(&self, offset: u64, buffer: DmaBuf) -> IoFuture<DmaBuf> {
            self.inner.read(offset, buffer)
        }

        fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
            self.inner.write(offset, data)
        }

        fn write_stable(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
            self.inner.write_stable(offset, data)
        }

        fn flush(&self) -> IoFuture<()> {
            self.inner.flush()
        }

        fn prepare(&self, offset: u64, len: u64) -> IoFuture<()> {
            self.inner.prepare(offset, len)
        }

        fn first_data(&self) -> IoFuture<Option<u64>> {
            self.inner.first_data()
        }

        fn stats(&self) -> DeviceStats {
            self.inner.stats()
        }

        fn wear(&self) -> Option<Wear> {
            Some(self.wear.get())
        }
    }

    #[test]
    fn a_drive_that_warns_is_suspect_and_one_that_calls_itself_unreliable_is_not_used() {
        let world = World::new(5);
        let node = world.node("n");
        let disk = SimDisk::new("sim", 1 << 20, 5, SimDiskOptions::default());
        let wear = core::cell::Cell::new(Wear { used: 20, ..Wear::default() });
        let worn = Rc::new(Worn { inner: disk.attach(&node.handle()), wear });
        let device = Rc::new(Watched::new(&node.handle(), Rc::clone(&worn) as Rc<dyn Device>));
        let found = health(&device);
        assert_eq!((found.state, found.wear.map(|wear| wear.used)), (DeviceState::Normal, Some(20)));
        worn.wear.set(Wear { used: 101, ..Wear::default() });
        assert_eq!(health(&device).state, DeviceState::Suspect);
        write(&world, &node, &device).expect("worn out on paper only");
        worn.wear.set(Wear { critical_warning: 4, ..Wear::default() });
        assert_eq!(health(&device).state, DeviceState::Faulty);
        worn.wear.set(Wear::default());
        assert!(matches!(write(&world, &node, &device), Err(MediaError::Faulty { .. })));
    }
}
