//! The server's side: the sender of a request, whether and when the request is executed, by which worker, and its
//! reply. It calls requests, the context and the records of clients, and asks admission. Received messages come from
//! `receive`; users of the crate register handlers through [`crate::Rpc`].

mod admit;
mod dispatch;
mod hello;
mod reply;
mod running;
mod sender;
mod withdraw;
mod workers;

pub use workers::{Handler, WorkQueue};

use crate::admission::{FairQueue, RetrySchedule};
use crate::context::Context;
use crate::maps::CachedMap;
use crate::metrics::add;
use crate::request::Request;
use crate::transfer::{AccessHandle, WITHDRAWAL_GRACE};
use crate::wire::{self, Header, Layout};
use core::cell::{Cell, RefCell};
use core::num::NonZeroU64;
use core::time::Duration;
use dispatch::Waiting;
use running::{Running, RunningRecord, hold};
use std::rc::{Rc, Weak};
use weir_fabric::{Access, Message, RemoteRegion};
use weir_memory::Spares;
use weir_proto::{Der, TenantId, opcode};
use weir_runtime::Instant;
use workers::WorkerPool;

/// The body of a reply.
pub type Body = Vec<u8>;

/// Longest time for which a server works on a request, whatever deadline its client sets: what a request holds,
/// and what is kept for its repeats, is freed some day. It is longer than the longest deadline of clients, a
/// week, so that no client mistakes it for its own deadline.
pub const PATIENCE_MAX: Duration = Duration::from_hours(8 * 24);

/// An operation that is served.
pub(crate) struct Served {
    pub(crate) handler: Rc<dyn Handler>,
    /// Execute its requests.
    pub(crate) workers: Rc<WorkerPool>,
    /// Its requests are admitted also when there is no room for others.
    pub(crate) urgent: bool,
    /// See [`crate::Rpc::serve_again`].
    pub(crate) again: bool,
}

impl Served {
    pub(crate) fn new(handler: Rc<dyn Handler>, urgent: bool) -> Self {
        Self { handler, workers: Rc::default(), urgent, again: false }
    }
}

/// Which requests a server begins, from its start to its end.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Those whose operations are served already; others follow in a moment.
    Starting,
    /// All.
    #[default]
    Serving,
    /// Urgent ones.
    Draining,
    /// Withdrawals of memory.
    Ending,
}

/// The server of one context.
pub(crate) struct Server {
    weak: Weak<Self>,
    pub(crate) context: Rc<Context>,
    handlers: RefCell<CachedMap<u16, Rc<Served>>>,
    /// The fabric message that is being split has more requests or replies behind the present one.
    pub(crate) more: Cell<bool>,
    /// Its phase between start and end.
    pub(crate) phase: Cell<Phase>,
    spare_tasks: Spares<RunningRecord>,
    /// Capacity for the segments of the next request with memory.
    spare_segments: Cell<Vec<(RemoteRegion, Access)>>,
    load: RetrySchedule,
    waiting: RefCell<FairQueue<Waiting>>,
}

impl Server {
    /// The server of this context. It answers withdrawals. `seed` is secret.
    pub(crate) fn new(context: Rc<Context>, seed: u64) -> Rc<Self> {
        let server = Rc::new_cyclic(|weak: &Weak<Self>| Self {
            weak: weak.clone(),
            context,
            handlers: RefCell::new(CachedMap::new(0)),
            more: Cell::new(false),
            phase: Cell::default(),
            spare_tasks: Spares::default(),
            spare_segments: Cell::default(),
            load: RetrySchedule::default(),
            waiting: RefCell::new(FairQueue::new(seed)),
        });
        server.serve(opcode::REQUEST_WITHDRAW, Served::new(Rc::new(withdraw::withdraw), true));
        server
    }

    /// Answers requests of this operation from now on.
    pub(crate) fn serve(&self, opcode: u16, served: Served) {
        self.handlers.borrow_mut().insert(opcode, Rc::new(served));
    }

    /// The hash of a client's name.
    #[cfg(test)]
    pub(crate) fn hash(&self, client: crate::wire::Caller) -> u64 {
        self.waiting.borrow().hash(client)
    }

    /// Drops the handlers, which often hold the owner of this context, and ends the waits of calls.
    pub(crate) fn close(&self) {
        self.phase.set(Phase::Ending);
        let handlers = self.handlers.replace(CachedMap::new(0));
        for (_, served) in handlers.iter() {
            served.workers.close();
        }
        drop(handlers);
        let waiting = self.waiting.borrow_mut().clear();
        drop(waiting);
        self.context.close();
    }

    /// Handles a request, at this time of the monotonic and the wall clock.
    #[inline(always)]
    pub(crate) fn requested(
        &self,
        header: &Header,
        message: &mut Message,
        layout: &Layout,
        (now, wall_ns): (Instant, u64),
    ) {
        let Some(from) = self.sender(header, message, layout, now) else {
            add(&self.context.metrics.unknown_senders, 1);
            return;
        };
        let caller = from.caller;
        if !self.context.config.versions.contains(&header.version) {
            add(&self.context.metrics.version_refused, 1);
            if self.may_answer(caller, self.context.rt.now()) {
                self.answer_hello(from, header, None, None);
            }
            return;
        }
        let early = self.note_clock(header, wall_ns);
        let deadline = local_deadline(now, self.context.no_earlier(wall_ns), header);
        if deadline <= now {
            add(&self.context.metrics.expired, 1);
            // A repeat: the first execution may access the client's memory, and will answer.
            if !self.context.clients.borrow().is_running(caller, header.request) {
                self.reject(from, header, Der::TIMEDOUT, "the request had expired when it was unpacked");
            }
            return;
        }
        let described = message.get(layout.segments.clone()).filter(|bytes| !bytes.is_empty());
        let segments = described.map(|bytes| {
            let mut segments = self.spare_segments.take();
            wire::decode_segments_into(&mut segments, bytes).map(|()| segments)
        });
        let Ok(segments) = segments.transpose() else {
            add(&self.context.metrics.malformed, 1);
            self.reject(from, header, Der::PROTO, "a bulk segment of the request is invalid");
            return;
        };
        let Some(served) = self.handlers.borrow().get(header.opcode).map(Rc::clone) else {
            self.reject_unserved(from, header);
            return;
        };
        let Some(others) = self.admit(header, from, &served, (now, deadline)) else { return };
        // The server exists while its sink is called.
        let Some(this) = self.weak.upgrade() else { return };
        let context = Rc::clone(&self.context);
        let bulk = segments.is_some();
        let lone = (others.client == 0).then(|| self.context.backlog.begun());
        let mut running = Running::new(this, caller, header, (lone, served.urgent));
        let mut request = Request::new(context, caller, header, message, layout, deadline);
        if let Some(segments) = segments {
            let accesses = AccessHandle::open(&self.context.accesses, caller, header.request);
            running.watch(accesses.clone(), deadline + WITHDRAWAL_GRACE);
            self.spare_segments.set(request.attach_memory(segments, accesses));
        }
        // Urgent requests end at once, whatever the clock says, and there may be more of them than places.
        if let Some(early) = early.filter(|_| !served.urgent) {
            self.context.rt.spawn(hold(early, running, request));
            return;
        }
        // Requests with memory take longer, and others may have come meanwhile: they don't run on this stack.
        self.queue(served, caller, running, request, !bulk);
    }

    /// Moves this clock behind the epoch of a request. `Some`: its tenant may not move the clock so far, and the
    /// request has to wait this long.
    #[inline]
    fn note_clock(&self, header: &Header, wall_ns: u64) -> Option<NonZeroU64> {
        // The skew was checked before.
        if self.is_of_tenant(header) {
            return self.context.clock.observe_tenant(header.epoch, wall_ns).ok().flatten();
        }
        let _ = self.context.clock.observe(header.epoch, wall_ns);
        None
    }

    /// Whether an authentic message is from a tenant, not from the system. Where only the network tells tenants,
    /// all are.
    #[inline]
    fn is_of_tenant(&self, header: &Header) -> bool {
        if self.context.ring.is_some() {
            TenantId(header.tenant) != TenantId::SYSTEM
        } else {
            self.context.tells_tenants
        }
    }
}

/// A deadline of the wall clock, as an instant of the monotonic clock. It is the earlier of what the two sides'
/// clocks say: a server whose wall clock lags must not work past the client's deadline.
fn local_deadline(now: Instant, wall_ns: u64, header: &Header) -> Instant {
    let budget = header.deadline.saturating_sub(header.epoch.wall_ns());
    let left = header.deadline.saturating_sub(wall_ns);
    now.after_nanos(budget.min(left)).min(now + PATIENCE_MAX)
}
