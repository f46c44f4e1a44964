//! What one RPC context is, as client and as server: its endpoint, settings, clock and counters, and the records of the rooms below.
//! It sends messages, and calls all rooms that keep records. Calls, requests and the server have one context, and do their
//! work by it.

mod keys;
mod outbox;
mod peers;
mod transmit;

pub(crate) use keys::{Ring, Strangers, strangers_max};
pub(crate) use outbox::TAKEN_MAX;

use crate::admission::{Backlog, Payloads, Quota};
use crate::clients::{Clients, Parts};
use crate::config::{DOORBELL_CREDITS_MAX, RpcConfig};
use crate::contact::{PeerState, Servers};
use crate::metrics::RpcMetrics;
use crate::reply::{Pending, Proof};
use crate::transfer::{Ledger, Lists, Moving};
use crate::wire::ClientId;
use core::cell::{Cell, RefCell};
use core::task::{Context as TaskContext, Poll};
use outbox::Outbox;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use weir_fabric::{Endpoint, PeerId, Wait};
use weir_memory::{Shelf, Spares};
use weir_proto::{Clock, Epoch};
use weir_runtime::sync::Semaphore;
use weir_runtime::{Handle, Instant};

/// Part of the room for running requests that is kept for those that were sent away before.
const RETURNERS: usize = 8;

/// What calls, requests and the server of one context share.
pub(crate) struct Context {
    weak: Weak<Self>,
    pub(crate) rt: Handle,
    pub(crate) endpoint: Rc<dyn Endpoint>,
    pub(crate) config: RpcConfig,
    pub(crate) id: ClientId,
    pub(crate) ring: Option<Ring>,
    pub(crate) strangers: Strangers,
    /// The network keeps tenants apart, and says whose a message is.
    pub(crate) tells_tenants: bool,
    pub(crate) clock: Rc<Clock>,
    pub(crate) metrics: RpcMetrics,
    next_request: Cell<u64>,
    pub(crate) pending: Pending,
    pub(crate) outbox: Outbox,
    pub(crate) servers: RefCell<Servers>,
    pub(crate) clients: RefCell<Clients>,
    /// Where requests were that have ended.
    pub(crate) spare_requests: Spares<Parts>,
    pub(crate) transfers: Semaphore,
    pub(crate) payloads: Payloads,
    pub(crate) accesses: Rc<Ledger>,
    pub(crate) spare_lists: Shelf<Lists>,
    /// Lists of pieces that move, of transfers that were several.
    pub(crate) spare_moving: Shelf<VecDeque<Moving>>,
    pub(crate) requests: Quota,
    pub(crate) bulks: Quota,
    pub(crate) backlog: Backlog,
}

impl Context {
    /// A context on this endpoint. The numbers are secret, and place what is waited for and what clients name.
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
            ring: config.keys.clone().map(Ring::new),
            strangers: Strangers::default(),
            tells_tenants,
            clock,
            metrics: RpcMetrics::default(),
            next_request: Cell::new(1),
            pending: Pending::new(pending),
            outbox: Outbox::default(),
            servers: RefCell::default(),
            clients: RefCell::new(Clients::new(config.reply_cache_bytes, seed)),
            spare_requests: Spares::default(),
            transfers: Semaphore::new(config.transfers_max),
            payloads: Payloads::new(endpoint.buffers().limit(), tells_tenants || config.keys.is_some(), seed),
            accesses: Rc::new(Ledger::new(seed)),
            spare_lists: Shelf::default(),
            spare_moving: Shelf::default(),
            requests: Quota::new(credits, config.requests_max),
            // Who has no credit left need not expose anything yet: a server that is stuck leaves room for others.
            bulks: Quota::leaving_room(credits.min(config.bulks_max), config.bulks_max),
            backlog: Backlog::default(),
            rt,
            endpoint,
            config,
        })
    }

    /// Calls that wait hear that it is over.
    pub(crate) fn close(&self) {
        self.pending.close();
        self.outbox.close();
    }

    /// Itself, for what goes on in the background.
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

    /// This wall time in nanoseconds, or what the hybrid clock has if that is later: never behind what any message said that moved it.
    pub(crate) fn no_earlier(&self, wall_ns: u64) -> u64 {
        self.clock.latest().wall_ns().max(wall_ns)
    }

    /// Requests that are being executed.
    #[inline(always)]
    pub(crate) fn running(&self) -> usize {
        usize::try_from(self.metrics.running.get()).unwrap_or(usize::MAX)
    }

    /// Places that are free for first requests.
    #[inline(always)]
    pub(crate) fn free_places(&self) -> usize {
        let max = self.config.running_max;
        (max - max / RETURNERS).saturating_sub(self.running())
    }

    /// Whether whoever comes with a first request is sent away.
    pub(crate) fn is_full(&self) -> bool {
        self.free_places() == 0
    }

    /// Expects the answer to a request until it is due, anew when it was expected before. `proof` makes what shows that it is
    /// genuine where that stays. `waiting`: who is to be woken, where that is known already.
    #[inline]
    pub(crate) fn expect(
        &self,
        request: u64,
        peer: PeerId,
        state: &Rc<PeerState>,
        proof: impl FnOnce() -> Proof,
        due: Instant,
        waiting: Option<&TaskContext<'_>>,
    ) {
        if !self.pending.is_watched() {
            self.start_watch();
        }
        self.pending.expect(request, peer, state, proof, due, waiting);
    }

    /// Starts the task that looks after waits which are due.
    fn start_watch(&self) {
        let weak: Weak<Self> = self.weak.clone();
        let mut sleep = None;
        self.rt.spawn(core::future::poll_fn(move |cx| {
            let Some(context) = weak.upgrade() else { return Poll::Ready(()) };
            context.pending.poll_watch(&context.rt, &mut sleep, cx)
        }));
    }
}
