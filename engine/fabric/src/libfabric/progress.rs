//! What happens when an endpoint is polled: completions, slabs, operations that are tried again.
#![expect(unsafe_code, reason = "posting memory to libfabric")]

use super::bell::Bell;
use super::open::{MESSAGE_MAX, Options};
use super::ops::{Op, OpId, Ops};
use super::peers::{Peers, RETRY_MAX, WAIT_MAX};
use super::raw::{Posted, Raw, RawTransfer, Registration, failure, reason};
use super::sys;
use crate::counters::add;
use crate::memory::{Access, Memory};
use crate::message::{Message, SlabLease, SlabReturns, Source};
use crate::{Address, BufferPool, Capabilities, FabricCounters, FabricError, PeerId, Sink};
use core::cell::{Cell, OnceCell, RefCell};
use core::ffi::c_void;
use core::time::Duration;
use std::os::fd::BorrowedFd;
use std::rc::{Rc, Weak};
use weir_runtime::{EventSource, Handle};

/// Completions taken at once.
const BATCH: usize = 64;

/// Room for what the completion queue hands out; kept, because clearing it costs more than reading the queue.
struct Batch {
    entries: [sys::Completion; BATCH],
    sources: [u64; BATCH],
}

/// Batches per poll: bounds how long tasks wait for their turn.
const BATCHES_MAX: usize = 4;

/// Bound of the memory for outgoing messages: thirty-two credits of the largest message for a hundred peers.
const SEND_BYTES_MAX: usize = 64 << 20;

/// Stands for `-ETIMEDOUT`: an operation found no room for too long.
const GAVE_UP: i64 = -110;

/// Longest sleep while a provider without descriptor has operations under way that only our polling completes.
const DOORBELL_NAP: Duration = Duration::from_millis(1);

pub(super) struct Core {
    pub(super) rt: Handle,
    pub(super) raw: Rc<Raw>,
    pub(super) capabilities: Capabilities,
    pub(super) address: Address,
    pub(super) counters: FabricCounters,
    pub(super) pool: BufferPool,
    pub(super) send_pool: BufferPool,
    pub(super) ops: Ops,
    pub(super) peers: RefCell<Peers>,
    pub(super) sink: OnceCell<Weak<dyn Sink>>,
    fd: Option<i32>,
    bell: Option<Bell>,
    armed: Cell<bool>,
    returns: Rc<SlabReturns>,
    batch: Cell<Option<Box<Batch>>>,
    posted: Cell<usize>,
    copy_below: usize,
    /// Keeps the slabs' bytes counted; slabs come from a pool of their own.
    _slab_pool: BufferPool,
}

impl Core {
    pub(super) fn new(
        rt: &Handle,
        raw: Rc<Raw>,
        capabilities: Capabilities,
        address: Address,
        bell: Option<Bell>,
        options: &Options,
    ) -> Result<Rc<Self>, FabricError> {
        let fd = if bell.is_none() { Some(raw.wait_fd()?) } else { None };
        let slab_bytes = options.slab_bytes.max(2 * MESSAGE_MAX).next_power_of_two();
        let slab_pool = BufferPool::new(options.slabs.max(2) * slab_bytes);
        let core = Rc::new(Self {
            rt: rt.clone(),
            raw,
            capabilities,
            address,
            counters: FabricCounters::default(),
            pool: BufferPool::new(options.buffer_bytes),
            send_pool: BufferPool::new(SEND_BYTES_MAX),
            ops: Ops::default(),
            peers: RefCell::default(),
            sink: OnceCell::new(),
            fd,
            bell,
            armed: Cell::new(false),
            returns: Rc::default(),
            batch: Cell::default(),
            posted: Cell::new(0),
            copy_below: options.copy_below.min(options.slabs.max(2) - 1),
            _slab_pool: slab_pool.clone(),
        });
        for _ in 0..options.slabs.max(2) {
            let slab = slab_pool.alloc(slab_bytes)?;
            core.returns.borrow_mut().push(Rc::clone(slab.memory()));
        }
        Ok(core)
    }

    fn sink(&self) -> Option<Rc<dyn Sink>> {
        self.sink.get().and_then(Weak::upgrade)
    }

    /// Posts the slabs that nobody holds any more. Until there is a sink, nothing is received.
    pub(super) fn post_slabs(&self) {
        if self.sink.get().is_none() {
            return;
        }
        loop {
            let returned = self.returns.borrow_mut().pop();
            let Some(memory) = returned else { return };
            let lease = SlabLease::new(Rc::clone(&memory), Rc::downgrade(&self.returns));
            let id = self.ops.add(Op::Slab(lease));
            let desc = self.local_desc(&memory);
            // SAFETY: the operation holds the memory and the slot until the provider releases the slab or the
            // endpoint is stopped.
            let posted = unsafe { self.raw.post_slab(&memory, desc, self.ops.context(id)) };
            if posted == Posted::Yes {
                add(&self.counters.slab_posts, 1);
                self.posted.set(self.posted.get() + 1);
            } else {
                // Dropping the lease returns the slab; the next poll tries again.
                drop(self.ops.take(id));
                if let Posted::Failed(code) = posted {
                    tracing::warn!(reason = reason(code), "a receive slab could not be posted");
                }
                return;
            }
        }
    }

    /// The descriptor of local memory, where the provider wants it registered. Null elsewhere.
    pub(super) fn local_desc(&self, memory: &Memory) -> *mut c_void {
        if !self.capabilities.mr.local {
            return core::ptr::null_mut();
        }
        let Some(cell) = memory.registration() else { return core::ptr::null_mut() };
        if cell.get().is_none() {
            // SAFETY: the registration is stored in the memory and closed before it is freed.
            let made = unsafe { self.raw.register(memory, 0, memory.len(), None, self.rt.random_u64()) };
            match made {
                Ok(made) => drop(cell.set(Rc::new(made))),
                Err(code) => tracing::warn!(reason = reason(code), "memory could not be registered"),
            }
        }
        let registration = cell.get().and_then(|made| made.downcast_ref::<Registration>());
        registration.map_or(core::ptr::null_mut(), Registration::desc)
    }

    /// Gives a waiting operation to the provider.
    pub(super) fn post(&self, id: OpId) -> Posted {
        enum Call {
            Send {
                memory: Rc<Memory>,
                len: usize,
                peer: PeerId,
            },
            Transfer {
                access: Access,
                memory: Rc<Memory>,
                at: usize,
                len: usize,
                addr: u64,
                key: u64,
                peer: PeerId,
            },
        }
        let call = self.ops.with(id, |op| match op {
            Op::Slab(_) => None,
            Op::Send { peer, memory, len, .. } => {
                Some(Call::Send { memory: Rc::clone(memory), len: *len, peer: *peer })
            }
            Op::Transfer { peer, access, memory, at, len, remote, .. } => Some(Call::Transfer {
                access: *access,
                memory: Rc::clone(memory),
                at: *at,
                len: *len,
                addr: remote.addr,
                key: remote.key,
                peer: *peer,
            }),
        });
        let cancelled = Posted::Failed(-i64::from(sys::FI_ECANCELED));
        let Some(Some(call)) = call else { return cancelled };
        let context = self.ops.context(id);
        let to = match &call {
            Call::Send { peer, .. } | Call::Transfer { peer, .. } => *peer,
        };
        let Some((fi_addr, ringer)) =
            self.peers.borrow().get(to).map(|peer| (peer.fi_addr, peer.ringer.clone()))
        else {
            return cancelled;
        };
        // SAFETY (both): the operation in the table holds the memory and the slot until its completion or until the
        // endpoint is stopped; ranges were checked when it was added.
        let posted = match call {
            Call::Send { memory, len, .. } => {
                let desc = self.local_desc(&memory);
                // SAFETY: as above.
                unsafe { self.raw.send(&memory, len, desc, fi_addr, context) }
            }
            Call::Transfer { access, memory, at, len, addr, key, .. } => {
                let desc = self.local_desc(&memory);
                let job = RawTransfer { access, memory: &memory, at, len, desc, peer: fi_addr, addr, key };
                // SAFETY: as above.
                unsafe { self.raw.transfer(&job, context) }
            }
        };
        if let Some(ringer) = ringer {
            self.ring(&ringer);
        }
        posted
    }

    /// Wakes a peer that may be asleep. Also after a full queue: only the peer can empty it.
    pub(super) fn ring(&self, ringer: &super::bell::Ringer) {
        if ringer.ring() {
            add(&self.counters.doorbells, 1);
        }
    }

    /// Starts an operation: posts it, or queues it behind others that wait for the peer.
    pub(super) fn start(&self, peer: PeerId, op: Op) -> Result<(), FabricError> {
        let id = self.ops.add(op);
        let behind = self.peers.borrow().get(peer).is_some_and(|peer| !peer.waiting.is_empty());
        let posted = if behind { Posted::Again } else { self.post(id) };
        match posted {
            Posted::Yes => Ok(()),
            Posted::Again => {
                add(&self.counters.eagain, 1);
                self.peers.borrow_mut().wait(peer, id, self.rt.now());
                Ok(())
            }
            Posted::Failed(code) => {
                drop(self.ops.take(id));
                Err(self.refusal(code))
            }
        }
    }

    /// What a negative error number of a post means.
    pub(super) fn refusal(&self, code: i64) -> FabricError {
        if code == -i64::from(sys::FI_ECANCELED) {
            FabricError::Cancelled
        } else if is_contact_loss(code) {
            FabricError::Unreachable { reason: reason(code) }
        } else {
            failure("post", code, self.raw.provider())
        }
    }

    /// Tries waiting operations again whose time has come; all of them when something completed just now.
    fn retry(&self, progress: bool) -> bool {
        let waiting = self.peers.borrow().waiting.clone();
        let now = self.rt.now();
        let mut any = false;
        for id in waiting {
            let due = self.peers.borrow().get(id).is_some_and(|peer| progress || peer.retry_at <= now);
            if due {
                any |= self.retry_peer(id);
            }
        }
        any
    }

    fn retry_peer(&self, id: PeerId) -> bool {
        let mut any = false;
        let now = self.rt.now();
        let dead = self.peers.borrow().get(id).is_some_and(|peer| peer.is_dead(now));
        loop {
            let next = self.peers.borrow().get(id).and_then(|peer| peer.waiting.front().copied());
            let Some((op, since)) = next else {
                let peers = &mut *self.peers.borrow_mut();
                peers.waiting.retain(|waiting| *waiting != id);
                if let Some(peer) = peers.get_mut(id) {
                    peer.reset();
                }
                return any;
            };
            let late = dead || now - since > WAIT_MAX;
            let abandoned = self.ops.with(op, |op| op.is_abandoned()).unwrap_or(true);
            let posted = if late || abandoned { Posted::Failed(GAVE_UP) } else { self.post(op) };
            if posted == Posted::Again {
                if let Some(peer) = self.peers.borrow_mut().get_mut(id) {
                    peer.back_off(self.rt.now());
                }
                return any;
            }
            if let Some(peer) = self.peers.borrow_mut().get_mut(id) {
                peer.waiting.pop_front();
                peer.reset();
            }
            any = true;
            if let Posted::Failed(code) = posted {
                self.fail(op, self.refusal(code));
            }
        }
    }

    /// Ends an operation with an error.
    pub(super) fn fail(&self, id: OpId, error: FabricError) {
        match self.ops.take(id) {
            Some(Op::Send { peer, context, .. }) => {
                add(&self.counters.sends_failed, 1);
                if let Some(sink) = self.sink() {
                    sink.send_failed(peer, context, error);
                }
            }
            Some(Op::Transfer { completer, .. }) => {
                add(&self.counters.transfers_failed, 1);
                if let Some(completer) = completer {
                    completer.complete(Err(error));
                }
            }
            Some(Op::Slab(_)) => self.posted.set(self.posted.get().saturating_sub(1)),
            None => {}
        }
    }

    /// Takes what has completed. Returns whether there was anything.
    fn reap(&self) -> bool {
        // Taken out meanwhile: what is called from here may poll again.
        let mut batch = self.batch.take().unwrap_or_else(|| {
            Box::new(Batch {
                entries: [sys::Completion::EMPTY; BATCH],
                sources: [sys::FI_ADDR_NOTAVAIL; BATCH],
            })
        });
        let any = self.reap_into(&mut batch);
        self.batch.set(Some(batch));
        any
    }

    fn reap_into(&self, batch: &mut Batch) -> bool {
        let mut any = false;
        for _ in 0..BATCHES_MAX {
            let code = self.raw.read_queue(&mut batch.entries, &mut batch.sources);
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
                self.completed(entry, *source);
            }
            if count < BATCH {
                return any;
            }
        }
        any
    }

    fn completed(&self, entry: &sys::Completion, source: u64) {
        let Some(id) = self.ops.find(entry.context) else { return };
        let lease = self.ops.with(id, |op| match op {
            Op::Slab(lease) => Some(Rc::clone(lease)),
            _ => None,
        });
        if let Some(Some(lease)) = lease {
            // Some providers release a slab with its last message, others with a completion of its own.
            let has_message = entry.flags & sys::FI_RECV != 0 && !entry.buf.is_null();
            if entry.flags & sys::FI_MULTI_RECV != 0 {
                self.released(id);
            }
            if has_message {
                let source = match self.peers.borrow().by_fi_addr(source) {
                    Some(peer) => Source::Peer(peer),
                    None => Source::Unknown,
                };
                self.received(lease, entry.buf, entry.len, source);
            }
            return;
        }
        if let Some(Op::Transfer { access, len, completer, .. }) = self.ops.take(id) {
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

    /// The provider has let go of a slab; messages in it may still be held.
    fn released(&self, id: OpId) {
        drop(self.ops.take(id));
        self.posted.set(self.posted.get().saturating_sub(1));
    }

    fn received(&self, lease: Rc<SlabLease>, buf: *mut c_void, len: u64, source: Source) {
        let memory = Rc::clone(lease.memory());
        let start = (buf as usize).checked_sub(memory.as_ptr() as usize);
        let (Some(start), Ok(len)) = (start, usize::try_from(len)) else { return };
        if start.checked_add(len).is_none_or(|end| end > memory.len()) {
            return;
        }
        add(&self.counters.messages_received, 1);
        add(&self.counters.bytes_received, len as u64);
        if !matches!(source, Source::Peer(_)) {
            add(&self.counters.unknown_sources, 1);
        }
        let message = if self.posted.get() <= self.copy_below {
            add(&self.counters.slab_copies, 1);
            let bytes = memory.slice(start..start + len).to_vec();
            drop(lease);
            Message::owned(source, bytes, None)
        } else {
            Message::slab(source, lease, start, len)
        };
        if let Some(sink) = self.sink() {
            sink.message(message);
        }
    }

    fn failed(&self, failure: &sys::Failure) {
        let Some(id) = self.ops.find(failure.context) else { return };
        let lease = self.ops.with(id, |op| match op {
            Op::Slab(lease) => Some(Rc::clone(lease)),
            _ => None,
        });
        if let Some(Some(lease)) = lease {
            if failure.flags & sys::FI_MULTI_RECV != 0 {
                self.released(id);
            }
            if failure.code == sys::FI_EADDRNOTAVAIL && !failure.buf.is_null() {
                // A message of a sender that isn't known; the provider tells its address.
                let len = usize::try_from(failure.address_len).unwrap_or(0);
                let address = failure.address.get(..len).and_then(Address::from_bytes);
                let source = address.map_or(Source::Unknown, Source::Address);
                self.received(lease, failure.buf, failure.len, source);
            }
            return;
        }
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

    /// Stops the endpoint; every operation ends with an error.
    pub(super) fn close(&self) {
        if self.raw.is_stopped() {
            return;
        }
        // First the provider lets go of all memory, then the memory may go.
        self.raw.stop();
        for op in self.ops.drain() {
            drop(op);
        }
        self.returns.borrow_mut().clear();
    }
}

/// Error numbers that mean the peer, not the operation: connection reset, refused, aborted or timed out, broken
/// pipe, no route, not connected, cancelled by a disconnect.
fn is_contact_loss(code: i64) -> bool {
    matches!(-code, 4 | 32 | 100..=104 | 106..=113 | 125)
}

impl EventSource for Core {
    fn poll(&self) -> bool {
        if self.raw.is_stopped() {
            return false;
        }
        if self.armed.replace(false)
            && let Some(bell) = &self.bell
        {
            bell.disarm();
        }
        let progress = self.reap();
        self.post_slabs();
        let retried = !self.peers.borrow().waiting.is_empty() && self.retry(progress);
        progress || retried
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        if let Some(bell) = &self.bell {
            return Some(bell.fd());
        }
        // SAFETY: the descriptor belongs to the completion queue, which is open as long as the endpoint, and the
        // executor asks for it at registration and at removal, both before the endpoint is closed.
        self.fd.filter(|_| !self.raw.is_stopped()).map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    fn arm(&self) -> bool {
        if self.raw.is_stopped() {
            return true;
        }
        match &self.bell {
            None => self.raw.trywait(),
            Some(bell) => {
                bell.arm();
                self.armed.set(true);
                if self.reap() {
                    self.armed.set(false);
                    bell.disarm();
                    return false;
                }
                true
            }
        }
    }

    fn max_sleep(&self) -> Option<Duration> {
        if self.raw.is_stopped() {
            return None;
        }
        let retry = self.peers.borrow().next_retry().map(|at| (at - self.rt.now()).min(RETRY_MAX));
        // The other side of a doorbell provider completes our operations in memory, without ringing.
        let nap = (self.bell.is_some() && self.ops.under_way() > 0).then_some(DOORBELL_NAP);
        match (retry, nap) {
            (Some(retry), Some(nap)) => Some(retry.min(nap)),
            (retry, nap) => retry.or(nap),
        }
    }
}
