//! Group commit: records that are ready together share one write and one flush.
//!
//! One batch is in flight at a time. A batch is written only after the flush of the one before, so that a valid
//! batch behind an invalid one means damage, not a crash; and one flush covers both the batch and the data extents
//! that its records refer to, because recovery checks those of the last batch before it believes in it. It begins when
//! the device has all of that. A batch whose records refer to no data extents goes to stable media by itself, in one
//! operation of the device.

use crate::format::edit_buffer::EditBuffer;
use crate::format::key::ObjectKey;
use crate::format::record::encode_record;
use crate::format::ring::Ring;
use crate::format::{BATCH_HEADER, Batch, BatchKind, batch_header, seal_batch};
use crate::state::core::Core;
use crate::state::stats::LatencyHistogram;
use crate::state::writer::READY_BYTES;
use crate::versions::latest_records::LatestRecords;
use core::cell::{Cell, RefCell};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::VecDeque;
use std::rc::Rc;
use weir_media::{BLOCK, BRIEF_MAX, DmaBuf, MediaError};
use weir_runtime::nanos;
use weir_runtime::sync::Notify;
use weir_runtime::{JoinHandle, race};

/// Bytes of records after which a batch takes no more: enough for full bandwidth, short enough for the last one in.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Room that a batch has for records at first: dozens of small ones.
const BATCH_ROOM: usize = 8 << 10;

/// Bytes of data extents after which a batch takes no more records: recovery reads those of the last batch.
const BATCH_DATA_MAX: u64 = 64 << 20;

/// Bytes of records that may wait; beyond it updates wait before they begin.
const PENDING_BYTES_MAX: usize = 4 << 20;

/// A batch waits for updates that are writing their data for at most this part of the time that a batch takes: what
/// the wait can cost is less than what they would lose by missing it.
const GATHER_DIVISOR: u64 = 2;

/// Longest such wait, on slow devices, and of large values for each other: as long as these are written, the device has to
/// do, and a flush in between takes from it what it might write. With four of a mebibyte in flight on the disk of a
/// virtual machine one flush for all leaves 0.98 to 1.00 of what writes and flushes alone reach, one for each 0.88 to 0.98.
const GATHER_MAX: Duration = Duration::from_millis(2);

/// Longest time that records wait which nobody waits for: those of background work don't begin a batch but go with the
/// next one. What they free is free that much later.
const UNWANTED_MAX: Duration = Duration::from_millis(5);

/// How long a log with nothing to write waits before it marks its last batch as stable: far longer than a client that waits
/// for each of its updates, or a batch on a slow disk, takes to come again.
pub(crate) const MARK_AFTER: Duration = Duration::from_millis(100);

/// The ring is prepared for writing this far ahead of the next batch, in steps of as much: a batch or more, and far
/// less than what a log holds.
const PREPARE_STEP: u64 = 1 << 20;

#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    records: u64,
    /// Number of the last record.
    last: u64,
    /// Bytes of data extents that the records refer to.
    data: u64,
    /// Records among them that don't refer to large values.
    has_small: bool,
}

/// The queue of the log.
pub(crate) struct Journal {
    pending: RefCell<VecDeque<Pending>>,
    /// Bytes of the records that are pending.
    pending_bytes: Cell<usize>,
    /// Memory for the records of the next batch.
    spare: Cell<Vec<u8>>,
    /// Number of the last record that was appended.
    last: Cell<u64>,
    /// Number of the last record that went into a batch with a place in the ring.
    placed: Cell<u64>,
    /// Number of the last record that is durable.
    durable: Cell<u64>,
    /// Number of the first batch that may not be stable.
    unstable: Cell<u64>,
    /// Something on the device besides them says of the batches with lower numbers that they are stable.
    evident: Cell<u64>,
    /// The last batch is to be marked as stable.
    marks: Cell<bool>,
    /// A batch has become stable.
    settled: Notify,
    /// Number of the last record that somebody waits for.
    wanted: Cell<u64>,
    pub(crate) ring: RefCell<Ring>,
    preparation: RefCell<Preparation>,
    pub(crate) incarnation: Cell<u64>,
    /// Somebody waits for something that is pending, or a batch is full.
    work: Notify,
    /// Something was written or trimmed, or the store failed.
    pub(crate) progress: Notify,
    waiting: RefCell<Vec<(u64, Waker)>>,
    /// Memory for those of them that are woken.
    ready: Cell<Vec<(u64, Waker)>>,
    latest: RefCell<LatestRecords>,
    /// Updates that are writing their data and will commit when it is there.
    staging: Cell<u32>,
    /// The last of them has committed.
    staged: Notify,
    /// A record has come that isn't that of a large value.
    small: Notify,
    /// Mean time of a batch, in nanoseconds, the newer ones counting more.
    mean_ns: Cell<u64>,
    pub(crate) records: Cell<u64>,
    pub(crate) batches: Cell<u64>,
    pub(crate) written: Cell<u64>,
    pub(crate) latency: RefCell<LatencyHistogram>,
}

impl Journal {
    pub(crate) fn new(ring: Ring, incarnation: u64) -> Self {
        Self {
            pending: RefCell::default(),
            pending_bytes: Cell::new(0),
            spare: Cell::default(),
            last: Cell::new(0),
            placed: Cell::new(0),
            durable: Cell::new(0),
            unstable: Cell::new(ring.sequence),
            evident: Cell::new(ring.sequence),
            marks: Cell::new(false),
            settled: Notify::new(),
            wanted: Cell::new(0),
            preparation: RefCell::new(Preparation { next: ring.position, running: None }),
            ring: RefCell::new(ring),
            incarnation: Cell::new(incarnation),
            work: Notify::new(),
            progress: Notify::new(),
            waiting: RefCell::default(),
            ready: Cell::default(),
            latest: RefCell::default(),
            staging: Cell::new(0),
            staged: Notify::new(),
            small: Notify::new(),
            mean_ns: Cell::new(0),
            records: Cell::new(0),
            batches: Cell::new(0),
            written: Cell::new(0),
            latency: RefCell::default(),
        }
    }

    /// Has the queue's task end, where the store is stopped and nothing is pending.
    pub(crate) fn end(&self) {
        self.work.notify_one();
    }

    /// Number that the next record gets.
    pub(crate) fn next(&self) -> u64 {
        self.last.get() + 1
    }

    pub(crate) fn last(&self) -> u64 {
        self.last.get()
    }

    pub(crate) fn durable(&self) -> u64 {
        self.durable.get()
    }

    /// Number of the first batch that may not be stable: it, a mark among them, may be on its way.
    pub(crate) fn unstable(&self) -> u64 {
        self.unstable.get()
    }

    /// All batches that have a place in the ring are stable.
    pub(crate) fn set_stable(&self) {
        self.unstable.set(self.ring.borrow().sequence);
    }

    /// Something that was just written says that batches of numbers below this one are stable.
    pub(crate) fn note_evidence(&self, stable: u64) {
        self.evident.set(self.evident.get().max(stable));
    }

    /// Whether nothing but the last batch itself tells that it was stable.
    fn is_unmarked(&self) -> bool {
        self.evident.get() < self.unstable.get() && self.ring.borrow().used() > 0
    }

    /// Records that wait for a place in the ring.
    pub(crate) fn unplaced(&self) -> u64 {
        self.last.get() - self.placed.get()
    }

    /// Records that aren't durable.
    pub(crate) fn depth(&self) -> u64 {
        self.last.get() - self.durable.get()
    }

    /// Whether clients wait for the log, or soon will.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_wanted() || self.staging.get() > 0
    }

    /// Whether somebody waits for a record.
    fn is_wanted(&self) -> bool {
        self.wanted.get() > self.durable.get()
    }

    /// Whether there is a whole batch.
    fn is_full(&self) -> bool {
        self.pending.borrow().front().is_some_and(|batch| batch.bytes.len() >= BATCH_BYTES_MAX)
    }

    /// Waits until the next batch is worth beginning: somebody waits for a record, or one has waited long enough.
    async fn next_work(&self, core: &Core) {
        if self.is_wanted() || self.is_full() {
            return;
        }
        if self.depth() == 0 {
            self.work.notified().await;
        }
        let longest = core.rt.sleep(UNWANTED_MAX);
        let wanted = async {
            while self.depth() > 0 && !self.is_wanted() && !self.is_full() {
                self.work.notified().await;
            }
        };
        race(wanted, longest).await;
    }

    /// Whether updates have to wait before they begin.
    pub(crate) fn is_congested(&self) -> bool {
        self.pending_bytes.get() > PENDING_BYTES_MAX
    }

    /// A batch with room for records.
    #[inline(never)]
    fn empty_batch(&self) -> Pending {
        let mut bytes = self.spare.take();
        bytes.reserve(BATCH_ROOM);
        Pending { bytes, ..Pending::default() }
    }

    /// Queues a record, whose changes are in the index already.
    pub(crate) fn append(&self, buffer: &EditBuffer, data: u64, objects: &[ObjectKey]) -> u64 {
        let number = self.next();
        self.last.set(number);
        let mut pending = self.pending.borrow_mut();
        let full = |last: &Pending| last.bytes.len() >= BATCH_BYTES_MAX || last.data + data > BATCH_DATA_MAX;
        if pending.back().is_none_or(full) {
            pending.push_back(self.empty_batch());
        }
        let batch = pending.back_mut().expect("invariant: there is one that isn't full");
        debug_assert!(batch.last < number, "records have ascending numbers");
        let before = batch.bytes.len();
        encode_record(buffer, &mut batch.bytes);
        self.pending_bytes.set(self.pending_bytes.get() + batch.bytes.len() - before);
        batch.records += 1;
        batch.last = number;
        batch.data += data;
        let is_full = batch.bytes.len() >= BATCH_BYTES_MAX;
        if data < READY_BYTES as u64 && !batch.has_small {
            batch.has_small = true;
            self.small.notify_waiters();
        }
        for object in objects {
            self.latest.borrow_mut().note(*object, number);
        }
        drop(pending);
        if is_full || number == self.durable.get() + 1 {
            self.work.notify_one();
        }
        number
    }

    /// Announces a record that will come once its data is written.
    pub(crate) fn begin_staging(&self) {
        self.staging.set(self.staging.get() + 1);
    }

    /// The announced record has come, or won't.
    pub(crate) fn end_staging(&self) {
        self.staging.set(self.staging.get().checked_sub(1).expect("invariant: a record is announced first"));
        if self.staging.get() == 0 {
            self.staged.notify_waiters();
        }
    }

    /// Waits a little for updates that are nearly there, so that they share the next flush instead of waiting for the
    /// one behind it. Large values wait longer for each other, and nothing small for them.
    async fn gather(&self, core: &Core) {
        // Those who were just woken may have more.
        core.rt.yield_now().await;
        if self.staging.get() == 0 {
            return;
        }
        if self.pending.borrow().iter().all(|batch| !batch.has_small) {
            let others = race(self.staged.notified(), self.small.notified());
            race(others, core.rt.sleep(GATHER_MAX)).await;
        } else {
            let longest = Duration::from_nanos(self.mean_ns.get() / GATHER_DIVISOR).min(GATHER_MAX);
            race(self.staged.notified(), core.rt.sleep(longest)).await;
        }
    }

    /// Whether batches take so little time that to sleep in between costs more than it spares.
    fn is_brief(&self) -> bool {
        let mean = Duration::from_nanos(self.mean_ns.get());
        !mean.is_zero() && mean < BRIEF_MAX
    }

    /// A batch that began before large data was there (`is_ahead`) tells nothing of others.
    fn note_time(&self, time: Duration, is_ahead: bool) {
        self.latency.borrow_mut().record(time);
        if is_ahead {
            return;
        }
        let time = nanos(time);
        let mean = self.mean_ns.get();
        self.mean_ns.set(if mean == 0 { time } else { mean - mean / 8 + time / 8 });
    }

    /// The record that must be durable before a reader may see this object.
    pub(crate) fn latest_record(&self, object: &ObjectKey) -> u64 {
        self.latest.borrow().newest(object)
    }

    /// Takes the next batch and its place in the ring. `None`: nothing is pending, or there is no room.
    fn take(&self, core: &Core) -> Option<Placed> {
        let mut pending = self.pending.borrow_mut();
        let placed = self.place(core, &pending.front()?.bytes)?;
        let mut batch = pending.pop_front()?;
        self.pending_bytes.set(self.pending_bytes.get() - batch.bytes.len());
        batch.bytes.clear();
        batch.bytes.shrink_to(BATCH_ROOM);
        self.spare.set(batch.bytes);
        debug_assert!(self.placed.get() < batch.last, "batches are placed in the order of their records");
        self.placed.set(batch.last);
        core.writer.note_batch(batch.has_small);
        Some(Placed { last: batch.last, records: batch.records, data: batch.data, ..placed })
    }

    /// A batch without records, which says that the one before it was stable. `None`: nobody has asked for it, something
    /// else says so meanwhile or soon will, or there is no room.
    fn take_mark(&self, core: &Core) -> Option<Placed> {
        let is_due = self.marks.replace(false) && self.depth() == 0 && self.is_unmarked();
        if is_due { self.place(core, &[]) } else { None }
    }

    /// Gives a batch of these records its place in the ring.
    fn place(&self, core: &Core, bytes: &[u8]) -> Option<Placed> {
        let store = core.id;
        let ring = &mut *self.ring.borrow_mut();
        let len = BATCH_HEADER + bytes.len();
        let padded = (len as u64).next_multiple_of(BLOCK as u64);
        if !ring.has_room(padded) {
            return None;
        }
        // The log doesn't wait for a pool that its clients fill; one batch at a time may be more than the pool has.
        let memory = |len| core.dma.try_take(len).unwrap_or_else(|| DmaBuf::new(len));
        let header = |ring: &Ring, kind, len: usize| Batch {
            kind,
            sequence: ring.sequence,
            incarnation: self.incarnation.get(),
            previous: ring.previous,
            len: u32::try_from(len).expect("invariant: a batch has at most BATCH_MAX bytes"),
            crc: 0,
        };
        let skip = ring.skip(padded);
        let mut wrap = None;
        if skip > 0 {
            let mut buffer = memory(BLOCK);
            buffer[BATCH_HEADER..].fill(0);
            buffer[..BATCH_HEADER]
                .copy_from_slice(&batch_header(&header(ring, BatchKind::Wrap, BATCH_HEADER), store));
            ring.previous = seal_batch(&mut buffer[..BATCH_HEADER]);
            wrap = Some((ring.position, buffer));
            ring.advance(skip);
        }
        let mut buffer = memory(len);
        buffer[len..].fill(0);
        buffer[..BATCH_HEADER].copy_from_slice(&batch_header(&header(ring, BatchKind::Records, len), store));
        buffer[BATCH_HEADER..len].copy_from_slice(bytes);
        let crc = seal_batch(&mut buffer[..len]);
        let position = ring.position;
        ring.previous = crc;
        ring.advance(padded);
        Some(Placed { wrap, position, buffer, last: self.last.get(), records: 0, data: 0 })
    }

    /// Whether a record is durable, once it is, or the store has failed first.
    pub(crate) fn poll_durable(&self, core: &Core, record: u64, cx: &Context<'_>) -> Poll<bool> {
        if self.durable.get() >= record {
            return Poll::Ready(true);
        }
        if core.has_failed() {
            return Poll::Ready(false);
        }
        if record > self.wanted.get() {
            // Who has begun to wait for another one has said so already.
            if !self.is_wanted() {
                self.work.notify_one();
            }
            self.wanted.set(record);
        }
        self.waiting.borrow_mut().push((record, cx.waker().clone()));
        Poll::Pending
    }

    fn set_durable(&self, record: u64) {
        debug_assert!(
            self.durable.get() <= record && record <= self.placed.get(),
            "record {record} is durable"
        );
        self.durable.set(record);
        self.latest.borrow_mut().forget(record);
    }

    /// Wakes those whose record is durable, or everybody.
    pub(crate) fn wake(&self, everybody: bool) {
        let (durable, mut ready) = (self.durable.get(), self.ready.take());
        let mut waiting = self.waiting.borrow_mut();
        let is_ready = |record: u64| everybody || record <= durable;
        if waiting.iter().all(|(record, _)| is_ready(*record)) {
            core::mem::swap(&mut *waiting, &mut ready);
        } else {
            ready.extend(waiting.extract_if(.., |(record, _)| is_ready(*record)));
        }
        drop(waiting);
        for (_, waker) in ready.drain(..) {
            waker.wake();
        }
        self.ready.set(ready);
        self.progress.notify_waiters();
    }
}

struct Placed {
    /// Marks that the log goes on at the start of the ring.
    wrap: Option<(u64, DmaBuf)>,
    position: u64,
    buffer: DmaBuf,
    last: u64,
    records: u64,
    /// Bytes of data extents that the records refer to.
    data: u64,
}

/// How far the ring ahead of the next batch is prepared (see `Device::prepare`).
struct Preparation {
    /// Where the next step begins.
    next: u64,
    /// The range of a step under way, and its task.
    running: Option<(core::ops::Range<u64>, JoinHandle<()>)>,
}

/// Begins the next step of the ring's preparation when the log comes near its end.
fn prepare_ahead(core: &Rc<Core>) {
    let (position, len) = {
        let ring = core.journal.ring.borrow();
        (ring.position, ring.len)
    };
    let mut preparation = core.journal.preparation.borrow_mut();
    if preparation.running.is_some() {
        return;
    }
    if preparation.next < position || preparation.next > position + 2 * PREPARE_STEP {
        // The log has overtaken it, or begun again at the start of the ring.
        preparation.next = position;
    }
    let step = preparation.next..(preparation.next + PREPARE_STEP).min(len);
    if step.start >= position + PREPARE_STEP || step.is_empty() {
        return;
    }
    preparation.next = step.end;
    let begun = core.device.prepare(core.layout.log_offset + step.start, step.end - step.start);
    let task = core.rt.spawn({
        let core = Rc::clone(core);
        async move {
            // A fault that matters meets the batch itself.
            let _ = begun.await;
            core.journal.preparation.borrow_mut().running = None;
        }
    });
    preparation.running = Some((step, task));
}

/// Waits until no preparation is under way where a batch goes.
pub(crate) async fn await_preparation(core: &Core, batch: core::ops::Range<u64>) {
    let running = {
        let mut preparation = core.journal.preparation.borrow_mut();
        let meets =
            |(step, _): &mut (core::ops::Range<u64>, _)| step.start < batch.end && batch.start < step.end;
        preparation.running.take_if(meets)
    };
    if let Some((_, task)) = running {
        // Its end is all that matters.
        let _ = task.await;
    }
}

/// Writes batches until the store closes or fails.
pub(crate) async fn run(core: Rc<Core>) {
    loop {
        core.journal.next_work(&core).await;
        if core.journal.depth() > 0 {
            core.journal.gather(&core).await;
        }
        let placed = core.journal.take(&core).or_else(|| core.journal.take_mark(&core));
        let Some(placed) = placed else {
            if core.is_stopped() && core.journal.depth() == 0 {
                return;
            }
            if core.journal.depth() > 0 {
                // The ring is full: a checkpoint makes room.
                let progress = core.journal.progress.notified();
                core.checkpoints.request.notify_one();
                progress.await;
            }
            if core.has_failed() {
                return;
            }
            continue;
        };
        let (last, records, len) = (placed.last, placed.records, placed.buffer.len() as u64);
        let is_ahead = core.writer.awaits_large(last);
        let begin = core.rt.now();
        await_preparation(&core, placed.position..placed.position + len).await;
        if let Some((end, _)) = &placed.wrap {
            await_preparation(&core, *end..end + BLOCK as u64).await;
        }
        if let Err(error) = write(&core, placed).await {
            core.fail(&error.to_string());
            return;
        }
        let journal = &core.journal;
        journal.written.set(journal.written.get() + len);
        journal.set_durable(last);
        journal.set_stable();
        if records > 0 {
            journal.note_time(core.rt.now() - begin, is_ahead);
            journal.records.set(journal.records.get() + records);
            journal.batches.set(journal.batches.get() + 1);
            journal.note_evidence(journal.unstable() - 1);
            journal.settled.notify_one();
        } else {
            // Of a mark nothing is lost.
            journal.note_evidence(journal.unstable());
        }
        core.space.borrow_mut().settle(last);
        journal.wake(false);
        prepare_ahead(&core);
        core.request_checkpoint_if_due();
    }
}

/// Has the last batch marked as stable when nothing follows it for a while: a batch that is damaged can be told from one that
/// a crash tore by what was written behind it.
pub(crate) async fn mark(core: Rc<Core>) {
    let journal = &core.journal;
    while !core.has_failed() {
        if !journal.is_unmarked() {
            journal.settled.notified().await;
        }
        let stable = journal.unstable();
        core.rt.sleep(MARK_AFTER).await;
        if journal.unstable() == stable && journal.depth() == 0 {
            journal.marks.set(true);
            journal.work.notify_one();
        }
    }
}

/// Writes a batch and makes it stable, together with the data that its records refer to.
async fn write(core: &Core, placed: Placed) -> Result<(), MediaError> {
    let offset = core.layout.log_offset;
    let batch = (offset + placed.position, vec![placed.buffer.into()]);
    if placed.wrap.is_none() && placed.data == 0 {
        return core.device.write_stable(batch.0, batch.1).await;
    }
    // The data and the flush go their ways without this thread, which meets their ends awake if they come soon.
    let attend = || core.journal.is_brief().then(|| core.rt.attend());
    let attention = if core.writer.awaits_large(placed.last) { None } else { attend() };
    let wrap = placed.wrap.map(|(end, buffer)| core.device.write(offset + end, vec![buffer.into()]));
    let batch = core.device.write(batch.0, batch.1);
    if let Some(wrap) = wrap {
        wrap.await?;
    }
    batch.await?;
    core.writer.written(placed.last).await?;
    let _attention = attention.or_else(attend);
    core.device.flush().await
}
