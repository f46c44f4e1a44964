//! Polling an endpoint: completions, slabs, and operations that are retried.

use super::channel::{self, Channels};
use super::connect_attempts::ConnectAttempts;
use super::doorbell::Doorbell;
use super::expose::Exposing;
use super::ops::{KeySource, Op, OpId, Ops};
use super::peers::Peers;
use super::raw::{Raw, reason};
use super::receive_queue::{HANDED_MAX, ReceiveQueue};
use super::reopen::RetiredEndpoint;
use super::sleep::Waker;
use super::stale_locks::LockRegion;
use super::watch::{self, Polls, QUESTION, Watch};
use super::{sys, unknown_source};
use crate::counters::{add, raise};
use crate::endpoint::{Message, Options, ReceiveMode, SlabLease, SlabReturns, Source};
use crate::memory::{Access, Memory};
use crate::{Address, BufferPool, Capabilities, FabricCounters, FabricError, PeerId, Sink};
use core::cell::{Cell, OnceCell, RefCell};
use core::ffi::c_void;
use core::time::Duration;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use weir_runtime::{EventSource, Handle, Instant};

/// Completions taken at once. A provider takes in more whenever it is asked, however many completions it holds, and reports
/// them in one order. So it has to be emptied for senders to be served round-robin.
const BATCH: usize = 1024;

/// Room for what the completion queue reports. Kept, because clearing it costs more than reading the queue.
struct Batch {
    entries: Vec<sys::Completion>,
    sources: Vec<u64>,
}

impl Default for Batch {
    fn default() -> Self {
        let (entries, sources) = (vec![sys::Completion::EMPTY; BATCH], vec![sys::FI_ADDR_NOTAVAIL; BATCH]);
        Self { entries, sources }
    }
}

/// Largest message of several parts that is assembled for the provider to copy. Larger ones are assembled in a send buffer
/// even where the provider would copy them, because they are then copied as often.
pub(super) const JOIN_MAX: usize = 512;

/// Largest message that is assembled for a channel: what it holds.
pub(super) const JOIN_BYTES: usize = channel::MESSAGE_MAX;

/// Batches per poll, if one was not all: as many small messages as the slabs hold, of 128 bytes each.
const BATCHES_MAX: usize = 32;

/// Bound of the memory for outgoing messages: thirty-two credits of the largest message for a hundred peers.
const SEND_BYTES_MAX: usize = 64 << 20;

/// Longest sleep while a provider without descriptor has operations in flight that only polling completes.
const DOORBELL_NAP: Duration = Duration::from_millis(1);

pub(super) struct Core {
    pub(super) rt: Handle,
    pub(super) raw: Rc<Raw>,
    pub(super) capabilities: Capabilities,
    pub(super) address: Address,
    pub(super) counters: FabricCounters,
    pub(super) pool: BufferPool,
    pub(super) send_pool: BufferPool,
    /// Memory of small messages that were sent.
    pub(super) send_spare: RefCell<Vec<Rc<Memory>>>,
    /// Where small messages are assembled.
    pub(super) join: RefCell<[u8; JOIN_BYTES]>,
    pub(super) ops: Ops,
    pub(super) keys: KeySource,
    pub(super) exposing: Exposing,
    pub(super) peers: RefCell<Peers>,
    pub(super) connect_attempts: Rc<ConnectAttempts>,
    pub(super) sink: OnceCell<Weak<dyn Sink>>,
    /// What wakes the context, where the completion queue does.
    waker: Option<Waker>,
    pub(super) doorbell: Option<Doorbell>,
    /// Channels to peers of the node.
    pub(super) channels: Channels,
    /// The endpoint's watch over itself, where peers can block its queue.
    pub(super) watch: Option<Watch>,
    /// The lock of its queue's buffers, if it has one that is known.
    pub(super) region: RefCell<Option<Arc<LockRegion>>>,
    /// Polls so far, where the endpoint watches itself.
    polls: Polls,
    /// Something was discarded because the lock was broken: the endpoint has to be checked at once.
    distrusted: Cell<bool>,
    /// The endpoint could not be reopened; the next try is then.
    pub(super) down: Cell<Option<Instant>>,
    /// It was closed for good.
    closed: Cell<bool>,
    /// What reopened endpoints have left behind, oldest first.
    pub(super) retired: RefCell<VecDeque<RetiredEndpoint>>,
    /// Operations that have ended.
    pub(super) ended: Cell<u64>,
    armed: Cell<bool>,
    /// The system has no room for what would wake the context.
    drowsy: Cell<bool>,
    /// Transfers whose peers were not woken yet, on providers with doorbells.
    pub(super) unrung: RefCell<Vec<(PeerId, OpId)>>,
    pub(super) returns: Rc<SlabReturns>,
    batch: Cell<Option<Box<Batch>>>,
    /// Messages beyond those that this turn may hand out.
    pub(super) receive_queue: RefCell<ReceiveQueue>,
    /// Messages handed out in this turn.
    handed: Cell<usize>,
    /// Completions and messages are being handed out.
    pub(super) reaping: Cell<bool>,
    pub(super) posted: Cell<usize>,
    copy_below: usize,
    pub(super) receive: ReceiveMode,
    /// Keeps the slabs' bytes counted: slabs come from a pool of their own.
    _slab_pool: BufferPool,
}

impl Core {
    pub(super) fn new(
        rt: &Handle,
        raw: Rc<Raw>,
        capabilities: Capabilities,
        address: Address,
        doorbell: Option<Doorbell>,
        options: &Options,
    ) -> Result<Rc<Self>, FabricError> {
        let waker = if doorbell.is_none() { Some(Waker::new(&raw, capabilities.wait)?) } else { None };
        let receive = if capabilities.multi_recv { options.receive } else { ReceiveMode::standard() };
        let (slabs, slab_bytes) = receive.shape();
        let slab_pool = BufferPool::new(slabs * slab_bytes);
        // In standard mode a message occupies only its own memory.
        let copies = matches!(receive, ReceiveMode::Multi { .. });
        let user_ids = capabilities.av_user_id;
        let watches = capabilities.shared_queue && capabilities.within_process();
        let region = doorbell.as_ref().filter(|_| watches).and_then(Doorbell::region);
        let exposing = Exposing::new(options.mr_method, capabilities.mr_accounting, options.mr_cache);
        let mut peers = Peers::with_user_ids(user_ids);
        if capabilities.connects() {
            peers.set_connected();
        }
        let core = Rc::new(Self {
            rt: rt.clone(),
            raw,
            capabilities,
            address,
            counters: FabricCounters::default(),
            pool: BufferPool::new(options.buffer_bytes),
            send_pool: BufferPool::new(SEND_BYTES_MAX),
            send_spare: RefCell::default(),
            join: RefCell::new([0; JOIN_BYTES]),
            ops: Ops::default(),
            keys: KeySource::default(),
            exposing,
            peers: RefCell::new(peers),
            connect_attempts: Rc::default(),
            sink: OnceCell::new(),
            waker,
            doorbell,
            channels: Channels::new(rt.now()),
            watch: watches.then(|| Watch::new([rt.random_u64(), rt.random_u64()])),
            region: RefCell::new(region),
            polls: Polls::default(),
            distrusted: Cell::new(false),
            down: Cell::new(None),
            closed: Cell::new(false),
            retired: RefCell::default(),
            ended: Cell::new(0),
            armed: Cell::new(false),
            drowsy: Cell::new(false),
            unrung: RefCell::default(),
            returns: Rc::default(),
            batch: Cell::default(),
            receive_queue: RefCell::default(),
            handed: Cell::new(0),
            reaping: Cell::new(false),
            posted: Cell::new(0),
            copy_below: if copies { options.copy_below.min(slabs - 1) } else { 0 },
            receive,
            _slab_pool: slab_pool.clone(),
        });
        for _ in 0..slabs {
            let slab = slab_pool.alloc(slab_bytes)?;
            core.returns.borrow_mut().push(Rc::clone(slab.memory()));
        }
        Ok(core)
    }

    fn sink(&self) -> Option<Rc<dyn Sink>> {
        self.sink.get().and_then(Weak::upgrade)
    }

    /// Ends an operation with an error.
    pub(super) fn fail(&self, id: OpId, error: FabricError) {
        if let Some(op) = self.ops.take(id) {
            self.tell_failed(op, error);
        }
    }

    /// Tells the initiator of an operation that it has failed.
    pub(super) fn tell_failed(&self, op: Op, error: FabricError) {
        match op {
            Op::Send { peer, context, .. } => {
                add(&self.counters.sends_failed, 1);
                if let Some(sink) = self.sink() {
                    sink.send_failed(peer, context, error);
                }
            }
            Op::Transfer { completer, .. } => {
                add(&self.counters.transfers_failed, 1);
                if let Some(completer) = completer {
                    completer.complete(Err(error));
                }
            }
            Op::Slab(_) => self.posted.set(self.posted.get().saturating_sub(1)),
        }
    }

    /// Takes what has come by channels and from the provider. Returns whether there was anything.
    fn look(&self) -> bool {
        if self.doorbell.as_ref().is_some_and(Doorbell::has_offers) {
            self.answer_offers();
        }
        if self.channels.count() == 0 {
            return self.reap();
        }
        let came = self.take_from_channels();
        if came && !self.is_providers_look() && self.ops.under_way() == 0 {
            return true;
        }
        let reaped = self.reap();
        // Reaping takes a while. What came meanwhile need not wait for the next poll.
        self.take_from_channels() || reaped || came || self.wait_at_channels()
    }

    /// Takes completions, and hands out as many messages as one turn may. Returns whether there was anything.
    fn reap(&self) -> bool {
        let within = self.reaping.replace(true);
        let any = !self.receive_queue.borrow().is_full() && self.reap_batches();
        let any = self.hand_out() || any;
        self.reaping.set(within);
        any
    }

    fn reap_batches(&self) -> bool {
        // Taken out meanwhile, because callbacks may poll again.
        let mut batch = self.batch.take().unwrap_or_default();
        let any = self.reap_into(&mut batch);
        self.batch.set(Some(batch));
        any
    }

    /// Takes completions that may be of an operation started just now: within a node the provider copies before it returns,
    /// and the caller need not go through the executor to learn of it.
    pub(super) fn reap_at_once(&self) {
        if self.doorbell.is_some() && !self.reaping.get() {
            self.reap();
        }
    }

    fn reap_into(&self, batch: &mut Batch) -> bool {
        let mut any = false;
        for _ in 0..BATCHES_MAX {
            let code = self.raw.read_queue(&mut batch.entries, &mut batch.sources);
            if (code > 0 || code == -sys::FI_EAVAIL) && self.is_compromised() {
                self.distrusted.set(true);
                return any;
            }
            if code == -sys::FI_EAVAIL {
                any = true;
                if let Some(failure) = self.raw.read_failure() {
                    self.failed(&failure);
                }
                continue;
            }
            let Ok(count) = usize::try_from(code) else { return any };
            any |= count > 0;
            for (entry, source) in batch.entries.iter().zip(&batch.sources).take(count) {
                // A sink may close the endpoint, and with it what the other entries point to.
                if self.raw.is_stopped() {
                    return true;
                }
                self.completed(entry, *source);
            }
            if count < BATCH {
                return any;
            }
        }
        any
    }

    fn completed(&self, entry: &sys::Completion, source: u64) {
        let Some((id, lease)) = self.ops.find_slab(entry.context) else { return };
        if let Some(lease) = lease {
            // In standard mode a message uses up its buffer. Some providers release a slab with its last message, others
            // with a separate completion.
            let single = matches!(self.receive, ReceiveMode::Standard { .. });
            let buf = if single { lease.memory().as_ptr().cast() } else { entry.buf };
            let has_message = entry.flags & sys::FI_RECV != 0 && !buf.is_null();
            if single || entry.flags & sys::FI_MULTI_RECV != 0 {
                self.released(id);
            }
            if has_message {
                let known =
                    if self.capabilities.source { self.peers.borrow().by_source(source) } else { None };
                let source = known.map_or(Source::Unknown, Source::Peer);
                self.received(lease, buf, entry.len, source);
            }
            return;
        }
        let ended = self.ops.take(id);
        add(&self.ended, 1);
        self.heard_of(ended.as_ref().and_then(Op::peer));
        if let Some(Op::Send { memory, .. }) = ended {
            self.spare(memory);
        } else if let Some(Op::Transfer { access, len, completer, .. }) = ended {
            let (count, bytes) = match access {
                Access::Read => (&self.counters.reads, &self.counters.bytes_read),
                Access::Write => (&self.counters.writes, &self.counters.bytes_written),
            };
            add(count, 1);
            add(bytes, len as u64);
            if let Some(completer) = completer {
                completer.complete(Ok(()));
            }
        }
    }

    /// A peer has taken or sent something, and may take what waits for it.
    #[inline]
    fn heard_of(&self, peer: Option<PeerId>) {
        let nobody_waits = self.peers.borrow().waiting.is_empty();
        if !nobody_waits && let Some(peer) = peer {
            self.peers.borrow_mut().hasten(peer, self.rt.now());
        }
    }

    /// The provider has released a slab. Messages in it may still be held.
    fn released(&self, id: OpId) {
        drop(self.ops.take(id));
        let left = self.posted.get().saturating_sub(1);
        self.posted.set(left);
        if left == 0 {
            add(&self.counters.slabs_run_out, 1);
        }
    }

    fn received(&self, lease: Rc<SlabLease>, buf: *mut c_void, len: u64, source: Source) {
        let start = (buf as usize).checked_sub(lease.memory().as_ptr() as usize);
        let (Some(start), Ok(len)) = (start, usize::try_from(len)) else { return };
        if start.checked_add(len).is_none_or(|end| end > lease.memory().len()) {
            return;
        }
        if len == QUESTION && self.is_own_question(lease.memory().slice(start..start + len)) {
            return;
        }
        add(&self.counters.messages_received, 1);
        add(&self.counters.bytes_received, len as u64);
        self.heard_of(source.peer());
        if source.peer().is_none() {
            add(&self.counters.unknown_sources, 1);
        }
        // Constructed in place: to copy what was just written takes a while.
        let message = |source| {
            if self.posted.get() <= self.copy_below {
                add(&self.counters.slab_copies, 1);
                let bytes = lease.memory().slice(start..start + len).to_vec();
                drop(lease);
                Message::owned(source, bytes, None)
            } else {
                Message::slab(source, lease, start, len)
            }
        };
        if self.handed.get() >= HANDED_MAX || !self.receive_queue.borrow().is_empty() {
            self.keep(source, message);
            return;
        }
        self.handed.set(self.handed.get() + 1);
        if let Some(sink) = self.sink() {
            sink.message(message(source));
        }
    }

    /// Lets a message wait until it can be handed out, unless its sender has too many waiting.
    pub(super) fn keep(&self, source: Source, message: impl FnOnce(Source) -> Message) {
        let mut receive_queue = self.receive_queue.borrow_mut();
        if receive_queue.has_room(&source) {
            receive_queue.push(message(source));
        } else {
            add(&self.counters.intake_dropped, 1);
            tracing::debug!("a message was dropped: its sender has too many waiting here");
        }
        raise(&self.counters.intake_max, receive_queue.len() as u64);
    }

    #[inline]
    pub(super) fn hand_over(&self, message: Message) {
        self.handed.set(self.handed.get() + 1);
        if let Some(sink) = self.sink() {
            sink.message(message);
        }
    }

    /// Hands out waiting messages, as many as one turn may. Returns whether there were any.
    fn hand_out(&self) -> bool {
        if self.receive_queue.borrow().is_empty() {
            return false;
        }
        while self.handed.get() < HANDED_MAX {
            let next = self.receive_queue.borrow_mut().pop();
            let Some(message) = next else { break };
            self.hand_over(message);
        }
        true
    }

    pub(super) fn failed(&self, failure: &sys::Failure) {
        if failure.context.is_null() {
            // A message that the provider copied: it doesn't tell whose.
            add(&self.counters.sends_failed, 1);
            return;
        }
        let Some((id, lease)) = self.ops.find_slab(failure.context) else { return };
        if let Some(lease) = lease {
            let single = matches!(self.receive, ReceiveMode::Standard { .. });
            let buf = if single { lease.memory().as_ptr().cast() } else { failure.buf };
            if single || failure.flags & sys::FI_MULTI_RECV != 0 {
                self.released(id);
            }
            if failure.code == sys::FI_EADDRNOTAVAIL && !buf.is_null() {
                // The network tells under which of the endpoint's keys the message came.
                let source = unknown_source::source(failure, self.raw.key_of(failure.source));
                self.received(lease, buf, failure.len, source);
            }
            return;
        }
        add(&self.ended, 1);
        let code = -i64::from(failure.code);
        let error = if is_contact_loss(code) {
            FabricError::Unreachable { reason: reason(code) }
        } else {
            FabricError::AccessDenied { reason: reason(code) }
        };
        let is_send = self.ops.with(id, |op| matches!(op, Op::Send { .. })) == Some(true);
        let error = if is_send { FabricError::Unreachable { reason: reason(code) } } else { error };
        self.fail(id, error);
    }

    /// The context is awake.
    #[cold]
    fn disarm(&self) {
        match (&self.doorbell, &self.waker) {
            (Some(doorbell), _) => doorbell.disarm(),
            (None, Some(waker)) => waker.disarm(),
            (None, None) => {}
        }
    }

    /// Stops the endpoint; every operation ends with an error.
    pub(super) fn close(&self) {
        // An endpoint that could not be reopened has as much to release.
        if self.closed.replace(true) {
            return;
        }
        self.down.set(None);
        // Nothing uses them again. Those in use end with the endpoint if they are bound to it.
        self.pool.forget_kept();
        self.exposing.forget();
        if let Some(doorbell) = &self.doorbell {
            doorbell.retire();
        }
        self.leave_channels();
        // First the provider releases all memory, then the memory may be freed.
        self.raw.stop();
        drop(self.receive_queue.take());
        for op in self.ops.drain() {
            drop(op);
        }
        self.returns.borrow_mut().clear();
        self.retired.borrow_mut().clear();
    }
}

/// Error numbers that concern the peer, not the operation: connection reset, refused, aborted or timed out, broken pipe, no
/// route, not connected, cancelled by a disconnect.
pub(super) fn is_contact_loss(code: i64) -> bool {
    matches!(-code, 4 | 32 | 100..=104 | 106..=113 | 125)
}

impl EventSource for Core {
    fn poll(&self) -> bool {
        if self.raw.is_stopped() && !self.try_again() {
            return false;
        }
        if self.armed.replace(false) {
            self.disarm();
        }
        self.handed.set(0);
        let progress = self.look();
        if self.doorbell.is_some() && self.polls.are_many() || self.distrusted.take() {
            self.look_after();
        }
        if !self.unrung.borrow().is_empty() {
            self.ring_for_transfers();
        }
        if !self.returns.borrow().is_empty() {
            self.post_slabs();
        }
        let retried = !self.peers.borrow().waiting.is_empty() && self.retry(progress);
        progress || retried
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        if let Some(doorbell) = &self.doorbell {
            return Some(doorbell.fd());
        }
        // The executor asks at registration and at removal, both before the endpoint is closed.
        self.waker.as_ref().filter(|_| !self.raw.is_stopped()).map(Waker::fd)
    }

    fn arm(&self) -> bool {
        if self.raw.is_stopped() {
            return true;
        }
        self.armed.set(true);
        if let Some(waker) = &self.waker {
            self.drowsy.set(waker.arm().is_err());
            return self.raw.trywait();
        }
        if let Some(doorbell) = &self.doorbell {
            doorbell.arm();
        }
        if self.channels.count() > 0 {
            self.tend_channels();
        }
        if self.look() || self.doorbell.is_some() && self.look_after() {
            self.armed.set(false);
            self.disarm();
            return false;
        }
        true
    }

    fn max_sleep(&self) -> Option<Duration> {
        if self.raw.is_stopped() {
            return self.down.get().map(|at| at - self.rt.now());
        }
        let retry = self.peers.borrow().waiting.next().map(|at| at - self.rt.now());
        // With a doorbell provider the peer completes this side's operations in memory, without ringing.
        let nap = (self.doorbell.is_some() && self.ops.under_way() > 0).then_some(DOORBELL_NAP);
        let drowsy = self.drowsy.get().then_some(DOORBELL_NAP);
        let asked = self.watch.as_ref().is_some_and(Watch::is_waiting).then_some(watch::LOOK_EVERY);
        [retry, nap, drowsy, asked].into_iter().flatten().min()
    }
}
