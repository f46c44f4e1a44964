//! One RPC context, as client and as server: its endpoint, settings, clock and counters, and the records of the
//! rooms below. It sends messages, and calls all rooms that keep records. Calls, requests and the server share
//! one context and work through it.

mod coalescing;
mod keys;
mod peers;
mod transmit;

pub(crate) use coalescing::TAKEN_MAX;
pub(crate) use keys::{KeyRing, UnknownSenders, unknown_senders_max};

use crate::admission::{Backlog, PayloadMemory, Quota};
use crate::clients::{Clients, RequestRecord};
use crate::config::{DOORBELL_CREDITS_MAX, RpcConfig};
use crate::contact::{PeerState, Servers};
use crate::metrics::RpcMetrics;
use crate::reply::{Pending, ReplyAuth};
use crate::transfer::{AccessTable, ExposureLists, MovingFragment};
use crate::wire::ClientId;
use coalescing::Coalescer;
use core::cell::{Cell, RefCell};
use core::task::{Context as TaskContext, Poll};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use weir_fabric::{Endpoint, PeerId, Wait};
use weir_memory::{Shelf, Spares};
use weir_proto::{Clock, Epoch};
use weir_runtime::sync::Semaphore;
use weir_runtime::{Handle, Instant};

/// One part in this many of the room for running requests is kept for clients that were refused before.
const RETURNERS: usize = 8;

/// What calls, requests and the server of one context share.
pub(crate) struct Context {
    weak: Weak<Self>,
    pub(crate) rt: Handle,
    pub(crate) endpoint: Rc<dyn Endpoint>,
    pub(crate) config: RpcConfig,
    pub(crate) id: ClientId,
    pub(crate) ring: Option<KeyRing>,
    pub(crate) strangers: UnknownSenders,
    /// The network keeps tenants apart, and tells the tenant of each message.
    pub(crate) tells_tenants: bool,
    pub(crate) clock: Rc<Clock>,
    pub(crate) metrics: RpcMetrics,
    next_request: Cell<u64>,
    pub(crate) pending: Pending,
    pub(crate) coalescer: Coalescer,
    pub(crate) servers: RefCell<Servers>,
    pub(crate) clients: RefCell<Clients>,
    /// Records of requests that have ended, for reuse.
    pub(crate) spare_requests: Spares<RequestRecord>,
    pub(crate) transfers: Semaphore,
    pub(crate) payloads: PayloadMemory,
    pub(crate) accesses: Rc<AccessTable>,
    pub(crate) spare_lists: Shelf<ExposureLists>,
    /// Lists of fragments in flight, for reuse.
    pub(crate) spare_moving: Shelf<VecDeque<MovingFragment>>,
    pub(crate) requests: Quota,
    pub(crate) bulks: Quota,
    pub(crate) backlog: Backlog,
}

impl Context {
    /// A context on this endpoint. The two secret numbers seed the hash maps.
    pub(crate) fn new(
        rt: Handle,
        endpoint: Rc<dyn Endpoint>,
        config: RpcConfig,
        clock: Rc<Clock>,
        id: ClientId,
        (pending, seed): (u64, u64),
    ) -> Rc<Self> {
        let tells_tenants = endpoint.capabilities().serves_auth_keys;
        let crowded = endpoint.capabilities().wait == Wait::Doorbell;
        let credits = if crowded { config.credits.min(DOORBELL_CREDITS_MAX) } else { config.credits };
        Rc::new_cyclic(|weak: &Weak<Self>| Self {
            weak: weak.clone(),
            id,
            ring: config.keys.clone().map(KeyRing::new),
            strangers: UnknownSenders::default(),
            tells_tenants,
            clock,
            metrics: RpcMetrics::default(),
            next_request: Cell::new(1),
            pending: Pending::new(pending),
            coalescer: Coalescer::default(),
            servers: RefCell::default(),
            clients: RefCell::new(Clients::new(config.reply_cache_bytes, seed)),
            spare_requests: Spares::default(),
            transfers: Semaphore::new(config.transfers_max),
            payloads: PayloadMemory::new(
                endpoint.buffers().limit(),
                tells_tenants || config.keys.is_some(),
                seed,
            ),
            accesses: Rc::new(AccessTable::new(seed)),
            spare_lists: Shelf::default(),
            spare_moving: Shelf::default(),
            requests: Quota::new(credits, config.requests_max),
            // A call without a credit need not expose memory yet: a stuck server leaves room for others.
            bulks: Quota::leaving_room(credits.min(config.bulks_max), config.bulks_max),
            backlog: Backlog::default(),
            rt,
            endpoint,
            config,
        })
    }

    /// Calls that wait fail from now on.
    pub(crate) fn close(&self) {
        self.pending.close();
        self.coalescer.close();
    }

    /// A weak reference to itself, for background tasks.
    pub(crate) fn weak(&self) -> Weak<Self> {
        self.weak.clone()
    }

    /// The number of the next request.
    #[inline]
    pub(crate) fn take_request(&self) -> u64 {
        let request = self.next_request.get();
        self.next_request.set(request + 1);
        request
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.clock.now(self.rt.wall_ns())
    }

    /// This wall time in nanoseconds, or the hybrid clock's if that is later. It is never behind an epoch that
    /// has moved the clock.
    pub(crate) fn no_earlier(&self, wall_ns: u64) -> u64 {
        self.clock.latest().wall_ns().max(wall_ns)
    }

    /// Requests that are being executed.
    #[inline(always)]
    pub(crate) fn running(&self) -> usize {
        const { assert!(usize::BITS >= u64::BITS, "what is counted is in memory") };
        #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
        let running = self.metrics.running.get() as usize;
        running
    }

    /// Free places for first requests.
    #[inline(always)]
    pub(crate) fn free_places(&self) -> usize {
        let max = self.config.running_max;
        (max - max / RETURNERS).saturating_sub(self.running())
    }

    /// Whether first requests are refused.
    pub(crate) fn is_full(&self) -> bool {
        self.free_places() == 0
    }

    /// Expects the answer to a request until it is due. A second call replaces the first. `proof` makes what
    /// authenticates the answer. `waiting`: whose waker to use, if it is known.
    #[inline]
    pub(crate) fn expect(
        &self,
        request: u64,
        peer: PeerId,
        state: &Rc<PeerState>,
        proof: impl FnOnce() -> ReplyAuth,
        due: Instant,
        waiting: Option<&TaskContext<'_>>,
    ) {
        if !self.pending.is_watched() {
            self.start_watch();
        }
        self.pending.expect(request, peer, state, proof, due, waiting);
    }

    /// Starts the task that watches for due waits.
    fn start_watch(&self) {
        let weak: Weak<Self> = self.weak.clone();
        let mut sleep = None;
        self.rt.spawn(core::future::poll_fn(move |cx| {
            let Some(context) = weak.upgrade() else { return Poll::Ready(()) };
            context.pending.poll_watch(&context.rt, &mut sleep, cx)
        }));
    }
}
