//! Polling an endpoint: messages, completed operations, and operations that never complete.
#![expect(unsafe_code, reason = "Mercury's descriptor is borrowed; operations under way are stopped")]

use super::ops::{Fate, Kind, Op, Ops};
use super::peers::Peers;
use super::raw::{Arrived, Code, Raw, reason};
use super::sys::{self, Event};
use crate::counters::add;
use crate::endpoint::{Message, Source};
use crate::libfabric::hang_up::cut_off;
use crate::memory::{Access, Memory};
use crate::mercury_wire::fragments::{Assembly, Head};
use crate::mercury_wire::names::Name;
use crate::{Address, BufferPool, Capabilities, FabricCounters, FabricError, Sink};
use core::cell::{Cell, OnceCell, RefCell};
use core::time::Duration;
use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::rc::{Rc, Weak};
use weir_runtime::{EventSource, Handle, Instant};

/// Events taken at once.
const BATCH: usize = 64;

/// Batches per poll: bounds how long tasks wait for their turn.
const BATCHES_MAX: usize = 4;

/// How often operations that wait are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Sleep while Mercury says that there is work and can't do any: a peer's queue is full, a connection is being made.
const STALL_NAP: Duration = Duration::from_millis(1);

/// Polls in vain before that sleep.
const STALL_POLLS: u32 = 4;

/// Time in which what the network has of an operation fails after its connection was shut down.
const HANG_UP_TIME: Duration = Duration::from_millis(500);

/// Messages kept that come before there is a sink.
const EARLY_MAX: usize = 512;

/// Time for what is under way when the endpoint closes: a reply that was just sent gets out.
const DRAIN: Duration = Duration::from_millis(20);

/// Time until what was stopped at closing must have ended.
const STOP_MAX: Duration = Duration::from_secs(1);

/// `HG_PERMISSION` and `HG_ACCESS`, and what the plugins say of memory that can't be reached: bad address, protocol
/// error, input or output error.
const REFUSALS: [Code; 5] = [1, 6, 7, 12, 22];

/// Own memory that peers may access.
pub(super) struct Exposed {
    pub(super) memory: Weak<Memory>,
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) access: Access,
}

pub(super) struct Core {
    pub(super) rt: Handle,
    pub(super) raw: Rc<Raw>,
    pub(super) capabilities: Capabilities,
    pub(super) name: Name,
    pub(super) address: Address,
    pub(super) counters: FabricCounters,
    pub(super) pool: BufferPool,
    pub(super) ops: Ops,
    pub(super) peers: RefCell<Peers>,
    pub(super) sink: OnceCell<Weak<dyn Sink>>,
    /// By key: what an endpoint's transfers to itself are checked against.
    pub(super) exposed: RefCell<HashMap<u64, Exposed>>,
    /// Bytes of a message in one request.
    pub(super) fragment: usize,
    /// Names no senders.
    pub(super) hide: bool,
    pub(super) next_message: Cell<u32>,
    fd: i32,
    assembly: RefCell<Assembly>,
    early: RefCell<Vec<Message>>,
    batch: Cell<Option<Box<[Event; BATCH]>>>,
    polling: Cell<bool>,
    closing: Cell<bool>,
    stalled: Cell<u32>,
    looked: Cell<Instant>,
}

/// What a transfer or message failed with.
pub(super) fn explain(code: Code) -> FabricError {
    if REFUSALS.contains(&code) {
        FabricError::AccessDenied { reason: reason(code) }
    } else {
        FabricError::Unreachable { reason: reason(code) }
    }
}

/// What an endpoint is made of.
pub(super) struct Parts {
    pub(super) raw: Rc<Raw>,
    pub(super) capabilities: Capabilities,
    pub(super) name: Name,
    pub(super) address: Address,
    pub(super) pool: BufferPool,
    pub(super) fragment: usize,
    pub(super) hide: bool,
    pub(super) fd: i32,
}

impl Core {
    pub(super) fn new(rt: &Handle, parts: Parts) -> Rc<Self> {
        Rc::new(Self {
            rt: rt.clone(),
            raw: parts.raw,
            capabilities: parts.capabilities,
            name: parts.name,
            address: parts.address,
            counters: FabricCounters::default(),
            pool: parts.pool,
            ops: Ops::default(),
            peers: RefCell::default(),
            sink: OnceCell::new(),
            exposed: RefCell::default(),
            fragment: parts.fragment,
            hide: parts.hide,
            next_message: Cell::new(0),
            fd: parts.fd,
            assembly: RefCell::default(),
            early: RefCell::default(),
            batch: Cell::default(),
            polling: Cell::new(false),
            closing: Cell::new(false),
            stalled: Cell::new(0),
            looked: Cell::default(),
        })
    }

    fn sink(&self) -> Option<Rc<dyn Sink>> {
        self.sink.get().and_then(Weak::upgrade)
    }

    /// Takes what has happened. Returns whether there was anything.
    fn reap(&self) -> bool {
        let mut batch = self.batch.take().unwrap_or_else(|| Box::new([Event::EMPTY; BATCH]));
        let mut any = false;
        for _ in 0..BATCHES_MAX {
            let count = self.raw.poll(&mut batch[..]);
            for event in batch.iter().take(count) {
                self.happened(event);
            }
            any |= count > 0;
            if count < BATCH || self.closing.get() {
                break;
            }
        }
        self.batch.set(Some(batch));
        any
    }

    fn happened(&self, event: &Event) {
        match event.kind {
            sys::EVENT_MESSAGE => {
                // Released also when no caller wants it any more.
                let arrived = Arrived::of(event);
                let message =
                    if self.closing.get() { None } else { self.received(event.source, arrived.bytes()) };
                drop(arrived);
                if let Some(message) = message {
                    self.deliver(message);
                }
            }
            sys::EVENT_SENT | sys::EVENT_MOVED => self.ended(event.token, event.status),
            _ => {}
        }
    }

    /// The message of a request, when it is whole.
    fn received(&self, number: u64, bytes: &[u8]) -> Option<Message> {
        let (head, body) = Head::decode(bytes)?;
        let bytes = if head.count == 1 {
            body.to_vec()
        } else {
            let most = self.capabilities.max_message;
            self.assembly.borrow_mut().take(number, head, body, most)?
        };
        // Mercury has an address for every sender, but over TCP it is what the sender claims: no better than a
        // greeting.
        let known = if self.hide { None } else { self.peers.borrow().by_number(number) };
        let source = known.map_or(Source::Unknown, Source::Peer);
        add(&self.counters.messages_received, 1);
        add(&self.counters.bytes_received, bytes.len() as u64);
        if known.is_none() {
            add(&self.counters.unknown_sources, 1);
        }
        Some(Message::owned(source, bytes, None))
    }

    fn deliver(&self, message: Message) {
        if self.sink.get().is_none() {
            let early = &mut *self.early.borrow_mut();
            if early.len() < EARLY_MAX {
                early.push(message);
            }
        } else if let Some(sink) = self.sink() {
            sink.message(message);
        }
    }

    /// Ends an operation.
    fn ended(&self, token: u64, status: Code) {
        let Some(op) = self.ops.take(token) else { return };
        match op.kind {
            Kind::Send { .. } if status == 0 => {}
            Kind::Send { context, .. } => {
                add(&self.counters.sends_failed, 1);
                if let Some(sink) = self.sink().filter(|_| !self.closing.get()) {
                    sink.send_failed(op.peer, context, FabricError::Unreachable { reason: reason(status) });
                }
            }
            Kind::Transfer { access, len, completer, .. } => {
                let (count, bytes) = match access {
                    Access::Read => (&self.counters.reads, &self.counters.bytes_read),
                    Access::Write => (&self.counters.writes, &self.counters.bytes_written),
                };
                if status == 0 {
                    add(count, 1);
                    add(bytes, len as u64);
                } else {
                    add(&self.counters.transfers_failed, 1);
                }
                if let Some(completer) = completer {
                    completer.complete(if status == 0 { Ok(()) } else { Err(explain(status)) });
                }
            }
        }
    }

    /// Gives up operations that no caller waits for, that have waited too long, or whose peer is gone; their events
    /// tell.
    ///
    /// Mercury takes an operation that the network has, and that fails after it was cancelled, for one that has ended
    /// already, and never says so. So first the connection goes, which ends what the network has; what is still there
    /// a while later waits in Mercury's own queue, and can be cancelled.
    fn give_up(&self) {
        let now = self.rt.now();
        if self.ops.len() == 0 || now - self.looked.get() < LOOK_EVERY {
            return;
        }
        self.looked.set(now);
        let mut silent = HashSet::new();
        let peers = self.peers.borrow();
        self.ops.for_each(|op| match op.fate {
            Fate::Wanted => {
                let peer = peers.get(op.peer);
                let late = now - op.since > op.patience();
                if late || peer.as_ref().is_none_or(|peer| peer.is_dead(now)) {
                    op.fate = Fate::Doomed(now);
                    silent.extend(peer.and_then(|peer| peer.name.socket()));
                }
            }
            Fate::Doomed(since) if self.raw.is_sm() || now - since > HANG_UP_TIME => self.cancel(op),
            Fate::Doomed(_) | Fate::Cancelled => {}
        });
        drop(peers);
        for socket in silent {
            cut_off(socket);
        }
    }

    fn cancel(&self, op: &mut Op) {
        op.fate = Fate::Cancelled;
        match op.kind {
            // SAFETY: the operation is in the table, so its event has not been listed.
            Kind::Send { handle, .. } => unsafe { self.raw.cancel(handle) },
            // SAFETY: likewise.
            Kind::Transfer { under_way, .. } => unsafe { self.raw.stop_move(under_way) },
        }
    }

    /// Stops the endpoint; every operation ends with an error. When it is called from within a poll, at its end.
    pub(super) fn close(&self) {
        self.closing.set(true);
        if !self.polling.get() {
            self.close_now();
        }
    }

    /// Polls until nothing is under way, or for so long.
    fn drain(&self, time: Duration) {
        let until = self.rt.now() + time;
        while self.ops.len() > 0 && self.rt.now() < until {
            if !self.reap() {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    fn close_now(&self) {
        if !self.raw.is_open() {
            return;
        }
        self.early.borrow_mut().clear();
        self.drain(DRAIN);
        if self.ops.len() > 0 {
            for socket in self.peers.borrow().all().iter().filter_map(|peer| peer.name.socket()) {
                cut_off(socket);
            }
            self.drain(HANG_UP_TIME);
            self.ops.for_each(|op| self.cancel(op));
            self.drain(STOP_MAX);
        }
        let left = self.ops.drain();
        if left.is_empty() {
            if let Err(code) = self.raw.close() {
                tracing::warn!(reason = reason(code), "Mercury could not be ended; its memory stays");
            }
        } else {
            // Mercury may still write to their memory: neither goes any more.
            tracing::warn!(operations = left.len(), "Mercury holds on to operations; their memory stays");
            self.raw.abandon();
            core::mem::forget(left);
        }
    }
}

impl EventSource for Core {
    fn poll(&self) -> bool {
        if self.closing.get() || self.polling.get() {
            return false;
        }
        self.polling.set(true);
        let mut any = false;
        if self.sink.get().is_some() {
            for message in self.early.take() {
                any = true;
                self.deliver(message);
            }
        }
        any |= self.reap();
        if any {
            self.stalled.set(0);
        }
        self.give_up();
        self.polling.set(false);
        if self.closing.get() {
            self.close_now();
        }
        any
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor belongs to the context, which is open as long as the endpoint, and the executor asks
        // for it at registration and at removal, both before the endpoint is closed.
        self.raw.is_open().then(|| unsafe { BorrowedFd::borrow_raw(self.fd) })
    }

    fn arm(&self) -> bool {
        if self.closing.get() || !self.raw.is_ready() {
            return true;
        }
        // Mercury has something to try again; when that has come to nothing some times, later is soon enough.
        let stalled = self.stalled.get().saturating_add(1);
        self.stalled.set(stalled);
        stalled > STALL_POLLS
    }

    fn max_sleep(&self) -> Option<Duration> {
        if self.closing.get() {
            return None;
        }
        if self.stalled.get() > STALL_POLLS {
            return Some(STALL_NAP);
        }
        (self.ops.len() > 0).then_some(LOOK_EVERY)
    }
}
