//! A disk in virtual time, with everything that disks do to data.
//!
//! Writes go to a volatile cache. A flush makes those stable that had completed when it began. A crash keeps, for
//! each sector of [`SECTOR`] bytes, either its stable content or any one of the contents that were written to it
//! since, each sector by itself: writes tear and reorder. Everything is drawn from one seed.

use crate::buffer::{DmaBuf, Slice};
use crate::device::{Device, DeviceStats, IoFuture, MediaError, check_transfer};
use crate::memory::Content;
use core::cell::RefCell;
use core::ops::Range;
use core::time::Duration;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use weir_runtime::random::Random;
use weir_runtime::{Handle, Instant, nanos};

/// What a disk writes atomically, in bytes: the smallest logical block of today's disks.
pub const SECTOR: usize = 512;

/// How a simulated disk behaves.
#[derive(Clone, Debug)]
pub struct SimDiskOptions {
    /// Shortest time of a read or write.
    pub transfer_min: Duration,
    /// Longest time of a read or write that doesn't stall.
    pub transfer_max: Duration,
    /// Shortest time of a flush.
    pub flush_min: Duration,
    /// Longest time of a flush that doesn't stall.
    pub flush_max: Duration,
    /// How probable it is that an operation stalls.
    pub stall_probability: f64,
    /// How long it stalls then.
    pub stall: Duration,
    /// How probable it is that a read, write or flush fails.
    pub error_probability: f64,
    /// Bytes that are read or written in a second, one transfer after another; 0: none waits for another one.
    pub bytes_per_second: u64,
}

impl Default for SimDiskOptions {
    /// A healthy NVMe disk.
    fn default() -> Self {
        Self {
            transfer_min: Duration::from_micros(10),
            transfer_max: Duration::from_micros(200),
            flush_min: Duration::from_micros(50),
            flush_max: Duration::from_micros(500),
            stall_probability: 0.0,
            stall: Duration::from_millis(300),
            error_probability: 0.0,
            bytes_per_second: 0,
        }
    }
}

/// What a crash keeps of the sectors that were not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashKeeps {
    /// None of them.
    Nothing,
    /// All of them in their newest content.
    Everything,
    /// Each one's content drawn by itself.
    Any,
}

/// A write that a crash may keep.
struct Unflushed {
    id: u64,
    offset: u64,
    data: Vec<u8>,
}

struct State {
    stable: Content,
    /// What reads see: stable content and completed writes.
    current: Content,
    in_flight: Vec<Unflushed>,
    /// In the order of completion.
    completed: Vec<Unflushed>,
    /// The newest write of each sector that is stable, by offset: older ones, failed ones among them, can't come back.
    settled: HashMap<u64, u64>,
    serial: u64,
    /// Counts crashes: devices of an earlier power cycle are dead.
    power_cycle: u64,
    /// Writes and flushes begun.
    operations: u64,
    /// The disk stops before the operation of this number.
    halt_at: Option<u64>,
    halted: bool,
    /// Bytes that can't be read.
    unreadable: Vec<Range<u64>>,
    /// Bytes that can't be written.
    unwritable: Vec<Range<u64>>,
    /// Bits that the next read of their byte gets flipped.
    misread: Vec<(u64, u8)>,
    /// When the last transfer of those that wait for each other ends.
    busy_until: Instant,
    stats: DeviceStats,
}

/// The disk itself. It outlives its node: take a [`Device`] for each start of the node from [`SimDisk::attach`], and
/// call [`SimDisk::crash`] with the node's crash. Clones are the same disk.
#[derive(Clone)]
pub struct SimDisk {
    state: Rc<RefCell<State>>,
    random: Rc<Random>,
    options: Rc<RefCell<SimDiskOptions>>,
    name: Rc<str>,
    size: u64,
}

impl SimDisk {
    /// An empty disk of `size` bytes.
    #[must_use]
    pub fn new(name: &str, size: u64, seed: u64, options: SimDiskOptions) -> Self {
        let state = State {
            stable: Content::default(),
            current: Content::default(),
            in_flight: Vec::new(),
            completed: Vec::new(),
            settled: HashMap::new(),
            serial: 0,
            power_cycle: 0,
            operations: 0,
            halt_at: None,
            halted: false,
            unreadable: Vec::new(),
            unwritable: Vec::new(),
            misread: Vec::new(),
            busy_until: Instant::from_nanos(0),
            stats: DeviceStats::default(),
        };
        Self {
            state: Rc::new(RefCell::new(state)),
            random: Rc::new(Random::new(seed)),
            options: Rc::new(RefCell::new(options)),
            name: name.into(),
            size: size - size % crate::BLOCK as u64,
        }
    }

    /// The disk as a device of a node that has started.
    #[must_use]
    pub fn attach(&self, handle: &Handle) -> Rc<dyn Device> {
        let power_cycle = self.state.borrow().power_cycle;
        Rc::new(SimDevice { disk: self.clone(), handle: handle.clone(), power_cycle })
    }

    /// Changes the behaviour from now on.
    pub fn set_options(&self, options: SimDiskOptions) {
        *self.options.borrow_mut() = options;
    }

    /// Writes and flushes that were begun since the last crash.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.state.borrow().operations
    }

    /// Stops the disk before the write or flush number `operation` (0 is the first since the last crash): it and
    /// everything later, reads too, never completes. [`SimDisk::crash`] ends the stop.
    pub fn halt_at(&self, operation: u64) {
        self.state.borrow_mut().halt_at = Some(operation);
    }

    /// Stops the disk now, for reads and searches too.
    pub fn halt(&self) {
        self.state.borrow_mut().halted = true;
    }

    /// Whether the disk has stopped.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.state.borrow().halted
    }

    /// Power failure.
    pub fn crash(&self, keeps: CrashKeeps) {
        let state = &mut *self.state.borrow_mut();
        let mut versions: BTreeMap<u64, Vec<[u8; SECTOR]>> = BTreeMap::new();
        for write in state.completed.drain(..).chain(state.in_flight.drain(..)) {
            for (at, bytes) in (0u64..).zip(write.data.chunks_exact(SECTOR)) {
                let mut sector = [0; SECTOR];
                sector.copy_from_slice(bytes);
                let offset = write.offset + at * SECTOR as u64;
                if state.settled.get(&offset).is_none_or(|settled| *settled < write.id) {
                    versions.entry(offset).or_default().push(sector);
                }
            }
        }
        // Skewed crashes find more than even ones: nearly all kept, or nearly all lost.
        let keep = [0.05, 0.5, 0.95][usize::try_from(self.random.below(3)).unwrap_or(0)];
        for (offset, contents) in versions {
            let chosen = match keeps {
                CrashKeeps::Everything => contents.last(),
                CrashKeeps::Any if self.random.chance(keep) => {
                    contents.get(usize::try_from(self.random.below(contents.len() as u64)).unwrap_or(0))
                }
                CrashKeeps::Any | CrashKeeps::Nothing => None,
            };
            if let Some(sector) = chosen {
                state.stable.write(offset, sector);
            }
        }
        state.current = state.stable.clone();
        state.power_cycle += 1;
        state.operations = 0;
        state.halt_at = None;
        state.halted = false;
        state.stats.in_flight = 0;
    }

    /// Flips one bit of the stable content.
    pub fn rot(&self, offset: u64, bit: u8) {
        let state = &mut *self.state.borrow_mut();
        state.stable.flip_bit(offset, bit);
        state.current.flip_bit(offset, bit);
    }

    /// Flips one bit in the result of the next read of this byte; the content stays. Called twice, this affects the
    /// next two reads.
    pub fn misread(&self, offset: u64, bit: u8) {
        self.state.borrow_mut().misread.push((offset, bit));
    }

    /// Reads that touch these bytes fail from now on.
    pub fn make_unreadable(&self, bytes: Range<u64>) {
        self.state.borrow_mut().unreadable.push(bytes);
    }

    /// All can be read again.
    pub fn make_readable(&self) {
        self.state.borrow_mut().unreadable.clear();
    }

    /// Writes that touch these bytes fail from now on.
    pub fn make_unwritable(&self, bytes: Range<u64>) {
        self.state.borrow_mut().unwritable.push(bytes);
    }

    /// All can be written again.
    pub fn make_writable(&self) {
        self.state.borrow_mut().unwritable.clear();
    }

    /// The bytes a read would see.
    #[must_use]
    pub fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.state.borrow().current.read(offset, &mut bytes);
        bytes
    }

    fn delay(&self, min: Duration, max: Duration) -> Duration {
        let options = self.options.borrow();
        let stall =
            if self.random.chance(options.stall_probability) { options.stall } else { Duration::ZERO };
        Duration::from_nanos(self.random.between(nanos(min), nanos(max))) + stall
    }

    fn transfer_delay(&self) -> Duration {
        let (min, max) = {
            let options = self.options.borrow();
            (options.transfer_min, options.transfer_max)
        };
        self.delay(min, max)
    }

    /// Time of a write that goes past the cache: a transfer and what a flush of it takes.
    fn stable_delay(&self) -> Duration {
        let (min, max) = {
            let options = self.options.borrow();
            (options.flush_min, options.flush_max)
        };
        self.transfer_delay() + self.delay(min, max)
    }

    /// Time until a transfer ends that begins now, behind those before it.
    fn queue_delay(&self, now: Instant, len: usize) -> Duration {
        let rate = self.options.borrow().bytes_per_second;
        let took = (len as u64).saturating_mul(1_000_000_000).checked_div(rate);
        let Some(took) = took.map(Duration::from_nanos) else { return Duration::ZERO };
        let busy = &mut self.state.borrow_mut().busy_until;
        *busy = now.max(*busy) + took;
        busy.saturating_duration_since(now)
    }

    fn fails(&self) -> bool {
        let probability = self.options.borrow().error_probability;
        probability > 0.0 && self.random.chance(probability)
    }
}

/// Whether a transfer touches any of these bytes.
fn touches(ranges: &[Range<u64>], offset: u64, len: u64) -> bool {
    ranges.iter().any(|bytes| bytes.start < offset + len && offset < bytes.end)
}

impl State {
    /// Counts a write or flush; `false` when the disk has stopped.
    fn begin(&mut self) -> bool {
        self.halted |= self.halt_at == Some(self.operations);
        self.operations += u64::from(!self.halted);
        !self.halted
    }

    /// Alters what was read from `offset` on as was said.
    fn alter(&mut self, offset: u64, read: &mut [u8]) {
        let within = |(at, _): &(u64, u8)| (offset..offset + read.len() as u64).contains(at);
        let Some(found) = self.misread.iter().position(within) else { return };
        let (at, bit) = self.misread.remove(found);
        if let Some(byte) = usize::try_from(at - offset).ok().and_then(|at| read.get_mut(at)) {
            *byte ^= 1 << (bit & 7);
        }
    }

    /// Makes a completed write stable.
    fn settle(&mut self, write: &Unflushed) {
        for (offset, sector) in (write.offset..).step_by(SECTOR).zip(write.data.chunks(SECTOR)) {
            let settled = self.settled.entry(offset).or_default();
            if *settled < write.id {
                *settled = write.id;
                self.stable.write(offset, sector);
            }
        }
    }
}

/// The disk as one power cycle of a node sees it.
struct SimDevice {
    disk: SimDisk,
    handle: Handle,
    power_cycle: u64,
}

impl SimDevice {
    fn closed(&self) -> MediaError {
        MediaError::Closed { device: self.disk.name.to_string() }
    }

    fn failed(&self, operation: &'static str, offset: u64, len: u64) -> MediaError {
        let reason = "injected fault".to_owned();
        MediaError::Io { device: self.disk.name.to_string(), operation, offset, len, reason }
    }

    fn is_current(&self) -> bool {
        self.disk.state.borrow().power_cycle == self.power_cycle
    }

    /// Runs `finish` after the delay, also when the returned future is dropped. It doesn't run after a crash, nor
    /// once the disk has stopped.
    fn after<T: 'static>(
        &self,
        delay: Duration,
        finish: impl FnOnce(&mut State) -> Result<T, MediaError> + 'static,
    ) -> IoFuture<T> {
        let (disk, handle, cycle) = (self.disk.clone(), self.handle.clone(), self.power_cycle);
        disk.state.borrow_mut().stats.in_flight += 1;
        let task = self.handle.spawn(async move {
            handle.sleep(delay).await;
            if disk.is_halted() {
                core::future::pending::<()>().await;
            }
            let state = &mut *disk.state.borrow_mut();
            if state.power_cycle != cycle {
                return Err(MediaError::Closed { device: disk.name.to_string() });
            }
            state.stats.in_flight -= 1;
            let result = finish(state);
            state.stats.errors += u64::from(result.is_err());
            result
        });
        let closed = self.closed();
        Box::pin(async move { task.await.unwrap_or(Err(closed)) })
    }

    fn check(&self, offset: u64, len: usize) -> Result<(), MediaError> {
        check_transfer(&self.disk.name, self.disk.size, offset, len as u64)?;
        if self.is_current() { Ok(()) } else { Err(self.closed()) }
    }

    fn start_write(&self, offset: u64, data: &[Slice], stable: bool) -> IoFuture<()> {
        let bytes: Vec<u8> = data.iter().map(|slice| &**slice).collect::<Vec<_>>().concat();
        let len = bytes.len() as u64;
        let queued = self.disk.queue_delay(self.handle.now(), bytes.len());
        if let Err(error) = self.check(offset, bytes.len()) {
            return Box::pin(core::future::ready(Err(error)));
        }
        let id = {
            let state = &mut *self.disk.state.borrow_mut();
            if !state.begin() {
                return Box::pin(core::future::pending());
            }
            state.serial += 1;
            state.in_flight.push(Unflushed { id: state.serial, offset, data: bytes });
            state.serial
        };
        let fails = self.disk.fails() || touches(&self.disk.state.borrow().unwritable, offset, len);
        let error = fails.then(|| self.failed("write", offset, len));
        let delay = if stable { self.disk.stable_delay() } else { self.disk.transfer_delay() };
        self.after(queued + delay, move |state| {
            // A failed write stays in flight: whatever part of it may or may not reach the media.
            if let Some(error) = error {
                return Err(error);
            }
            if let Some(at) = state.in_flight.iter().position(|write| write.id == id) {
                let write = state.in_flight.remove(at);
                state.current.write(write.offset, &write.data);
                if stable {
                    state.settle(&write);
                } else {
                    state.completed.push(write);
                }
            }
            state.stats.writes += 1;
            state.stats.write_bytes += len;
            Ok(())
        })
    }
}

impl Device for SimDevice {
    fn name(&self) -> &str {
        &self.disk.name
    }

    fn size(&self) -> u64 {
        self.disk.size
    }

    fn read(&self, offset: u64, mut buffer: DmaBuf) -> IoFuture<DmaBuf> {
        let len = buffer.len();
        if let Err(error) = self.check(offset, len) {
            return Box::pin(core::future::ready(Err(error)));
        }
        let fails = self.disk.fails() || touches(&self.disk.state.borrow().unreadable, offset, len as u64);
        let error = fails.then(|| self.failed("read", offset, len as u64));
        let queued = self.disk.queue_delay(self.handle.now(), len);
        self.after(queued + self.disk.transfer_delay(), move |state| {
            if let Some(error) = error {
                return Err(error);
            }
            state.current.read(offset, &mut buffer);
            state.alter(offset, &mut buffer);
            state.stats.reads += 1;
            state.stats.read_bytes += len as u64;
            Ok(buffer)
        })
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
        self.start_write(offset, &data, false)
    }

    fn write_stable(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
        self.start_write(offset, &data, true)
    }

    fn prepare(&self, _: u64, _: u64) -> IoFuture<()> {
        Box::pin(core::future::ready(Ok(())))
    }

    fn flush(&self) -> IoFuture<()> {
        if !self.is_current() {
            return Box::pin(core::future::ready(Err(self.closed())));
        }
        let covered: Vec<u64> = {
            let state = &mut *self.disk.state.borrow_mut();
            if !state.begin() {
                return Box::pin(core::future::pending());
            }
            state.completed.iter().map(|write| write.id).collect()
        };
        let (min, max) = {
            let options = self.disk.options.borrow();
            (options.flush_min, options.flush_max)
        };
        let error = self.disk.fails().then(|| self.failed("flush", 0, 0));
        self.after(self.disk.delay(min, max), move |state| {
            if let Some(error) = error {
                return Err(error);
            }
            let settled = state.completed.extract_if(.., |write| covered.contains(&write.id));
            for write in settled.collect::<Vec<_>>() {
                state.settle(&write);
            }
            state.stats.flushes += 1;
            Ok(())
        })
    }

    fn first_data(&self, from: u64) -> IoFuture<Option<u64>> {
        let state = self.disk.state.borrow();
        if state.halted {
            return Box::pin(core::future::pending());
        }
        Box::pin(core::future::ready(Ok(state.current.first_data(from))))
    }

    fn stats(&self) -> DeviceStats {
        self.disk.state.borrow().stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_runtime::sim::World;

    fn block(byte: u8) -> Vec<Slice> {
        vec![DmaBuf::copy_of(&[byte; 4096]).into()]
    }

    fn world(seed: u64) -> (World, SimDisk, Rc<dyn Device>) {
        let world = World::new(seed);
        let disk = SimDisk::new("sim", 1 << 20, seed, SimDiskOptions::default());
        let device = disk.attach(&world.node("n").handle());
        (world, disk, device)
    }

    #[test]
    fn transfers_of_a_slow_disk_wait_for_each_other() {
        let (world, disk, device) = world(1);
        let none = Duration::ZERO;
        let (transfer_min, transfer_max, bytes_per_second) = (none, none, 4_096_000);
        disk.set_options(SimDiskOptions {
            transfer_min,
            transfer_max,
            bytes_per_second,
            ..SimDiskOptions::default()
        });
        let engine = world.node("n");
        let rt = engine.handle();
        let waited = world.block_on(&engine, async move {
            let began = rt.now();
            let (first, second) = (device.write(0, block(1)), device.write(4096, block(2)));
            second.await.expect("a healthy disk");
            first.await.expect("a healthy disk");
            rt.now() - began
        });
        // Tasks take some nanoseconds each time they go on.
        assert!((2000..2010).contains(&waited.as_micros()), "{waited:?}");
    }

    #[test]
    fn a_flush_makes_stable_what_had_completed_before_it() {
        let (world, disk, device) = world(1);
        let node = world.node("n");
        world.block_on(&node, async move {
            device.write(0, block(1)).await.expect("a healthy disk");
            device.flush().await.expect("a healthy disk");
            device.write(0, block(2)).await.expect("a healthy disk");
            device.write(4096, block(3)).await.expect("a healthy disk");
        });
        assert_eq!(disk.bytes(0, 1), [2]);
        disk.crash(CrashKeeps::Nothing);
        assert_eq!(disk.bytes(0, 1), [1]);
        assert_eq!(disk.bytes(4096, 1), [0]);
    }

    #[test]
    fn a_stable_write_survives_a_crash_and_older_writes_to_its_place_do_not_come_back() {
        for keeps in [CrashKeeps::Nothing, CrashKeeps::Everything, CrashKeeps::Any] {
            let (world, disk, device) = world(5);
            let node = world.node("n");
            world.block_on(&node, async move {
                device.write(0, block(1)).await.expect("a healthy disk");
                device.write(4096, block(1)).await.expect("a healthy disk");
                device.write_stable(0, block(2)).await.expect("a healthy disk");
            });
            disk.crash(keeps);
            assert_eq!(disk.bytes(0, 4096), [2; 4096]);
        }
    }

    #[test]
    fn a_failed_write_does_not_come_back_over_a_later_one_that_is_stable() {
        for seed in 0..30 {
            let (world, disk, device) = world(seed);
            let node = world.node("n");
            let broken = SimDiskOptions { error_probability: 1.0, ..SimDiskOptions::default() };
            let options = disk.clone();
            world.block_on(&node, async move {
                options.set_options(broken);
                assert!(device.write(0, block(1)).await.is_err());
                options.set_options(SimDiskOptions::default());
                device.write(0, block(2)).await.expect("a healthy disk");
                device.flush().await.expect("a healthy disk");
            });
            disk.crash(CrashKeeps::Any);
            assert_eq!(disk.bytes(0, 4096), [2; 4096]);
        }
    }

    #[test]
    fn a_crash_tears_unflushed_writes_by_sectors_and_nothing_else() {
        let mut torn = 0;
        for seed in 0..50 {
            let (world, disk, device) = world(seed);
            let node = world.node("n");
            world.block_on(&node, async move {
                device.write(0, block(1)).await.expect("a healthy disk");
                device.flush().await.expect("a healthy disk");
                device.write(0, block(2)).await.expect("a healthy disk");
            });
            disk.crash(CrashKeeps::Any);
            let bytes = disk.bytes(0, 4096);
            for sector in bytes.chunks(SECTOR) {
                assert!(sector.iter().all(|byte| *byte == 1) || sector.iter().all(|byte| *byte == 2));
            }
            torn += u32::from(bytes.contains(&1) && bytes.contains(&2));
        }
        assert!(torn > 10, "only {torn} of 50 crashes tore the write");
    }

    #[test]
    fn what_is_made_unreadable_or_unwritable_fails_and_nothing_beside_it() {
        let (world, disk, device) = world(5);
        disk.make_unreadable(8192..8193);
        disk.make_unwritable(4096..4097);
        let node = world.node("n");
        world.block_on(&node, async move {
            for (offset, is_readable) in [(0, true), (4096, true), (8192, false), (12288, true)] {
                assert_eq!(device.read(offset, DmaBuf::new(4096)).await.is_ok(), is_readable, "{offset}");
                let written = device.write(offset, vec![DmaBuf::new(4096).into()]).await;
                assert_eq!(written.is_ok(), offset != 4096, "{offset}");
            }
            disk.make_readable();
            disk.make_writable();
            assert!(device.read(8192, DmaBuf::new(4096)).await.is_ok());
            assert!(device.write(4096, vec![DmaBuf::new(4096).into()]).await.is_ok());
        });
    }

    #[test]
    fn a_misread_bit_is_flipped_for_one_reader_and_stays_on_the_disk() {
        let (world, disk, device) = world(6);
        for _ in 0..2 {
            disk.misread(4097, 3);
        }
        let node = world.node("n");
        world.block_on(&node, async move {
            for (offset, expected) in [(0, 0), (4096, 8), (4096, 8), (4096, 0)] {
                let read = device.read(offset, DmaBuf::new(4096)).await.expect("a healthy disk");
                assert_eq!(read[1], expected, "{offset}");
            }
        });
        assert_eq!(disk.bytes(4097, 1), [0]);
    }

    #[test]
    fn a_halted_disk_completes_nothing_until_it_crashes() {
        let (world, disk, device) = world(3);
        let node = world.node("n");
        disk.halt_at(1);
        let outcome = world.try_block_on(&node, Duration::from_secs(10), async move {
            device.write(0, block(1)).await.expect("before the stop");
            device.flush().await
        });
        assert!(outcome.is_err());
        assert!(disk.is_halted());
        disk.crash(CrashKeeps::Everything);
        assert_eq!(disk.bytes(0, 1), [1]);
    }

    #[test]
    fn a_device_of_an_earlier_power_cycle_is_dead() {
        let (world, disk, device) = world(4);
        disk.crash(CrashKeeps::Any);
        let node = world.node("n");
        let error = world.block_on(&node, async move { device.flush().await });
        assert!(matches!(error, Err(MediaError::Closed { .. })));
    }
}
