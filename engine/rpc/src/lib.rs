//! Requests, replies, bulk transfers, deadlines and retries.
//!
//! One [`Rpc`] serves one context, as client and as server. Bodies up to [`INLINE_MAX`] travel in the message;
//! larger payloads are moved by the server, which reads and writes the client's exposed memory. The message format
//! is documented byte by byte in `docs/reference/wire.md`.

mod accesses;
mod bulk;
mod call;
mod clients;
mod config;
mod desk;
mod entries;
mod error;
pub mod group;
mod id_map;
mod load;
mod metrics;
mod outbox;
mod pace;
mod payload;
mod peer;
mod pending;
mod pieces;
mod plain;
mod proof;
mod quota;
mod recent;
mod register;
mod replies;
mod request;
pub mod seal;
mod server;
mod servers;
mod session;
mod turns;
pub mod wire;

pub use bulk::Bulk;
pub use clients::Caller;
pub use config::{CallOptions, Priority, Retry, RpcConfig};
pub use desk::{Desk, Handler};
pub use error::{RpcError, Status};
pub use metrics::RpcMetrics;
pub use payload::{Payload, Room};
pub use peer::Peer;
pub use request::Request;
pub use seal::Keys;
pub use server::Body;
pub use weir_fabric::{Buffer, FabricError};
pub use weir_proto::limits::INLINE_MAX;
pub use wire::ClientId;

use accesses::Ledger;
use bulk::Lists;
use clients::Clients;
use config::DOORBELL_CREDITS_MAX;
use core::cell::{Cell, RefCell};
use core::ops::{Deref, Range};
use core::time::Duration;
use load::Load;
use metrics::add;
use outbox::Outbox;
use payload::Payloads;
use pending::Pending;
use pieces::Moving;
use proof::{Ring, Strangers};
use quota::Quota;
use register::Register;
use request::Parts;
use seal::{SealKey, TAG_LEN};
use server::{Served, Task};
use servers::Servers;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use turns::Turns;
use weir_fabric::{Access, Endpoint, Message, PeerId, RemoteRegion, Sink, Wait};
use weir_memory::{Shelf, Spares};
use weir_proto::hlc::ClockSkew;
use weir_proto::{Clock, Der, Epoch, opcode};
use weir_runtime::sync::Semaphore;
use weir_runtime::{Handle, Instant};
use wire::{HEADER_LEN, Header, Kind, Layout, NOTE_MAX};

/// Longest time for which a server works on a request, whatever its client says: what a request holds, and what is kept for
/// its repeats, comes back some day. Longer than any client of ours waits, which is a week: whoever is told that time is up
/// may take it for its own.
pub const PATIENCE_MAX: Duration = Duration::from_hours(8 * 24);

/// Longest body of a sealed message that is put together in one piece: with header and tag it is four cache lines at most.
const SEALED_BODY_MAX: usize = 256 - HEADER_LEN - TAG_LEN;

/// What became of a message that expects an answer.
enum Outcome {
    /// A reply that the request was executed.
    Reply(Reply),
    /// Any other one.
    Answer(Answer),
    /// The other side doesn't know this client, it says.
    Notice(Der),
    /// A reply of any kind whose clock is too far ahead: what it says can't be taken.
    Early,
    Failed(FabricError),
}

/// A refusal or hello reply, with what is asked of its header.
struct Answer {
    kind: Kind,
    status: u32,
    server: ClientId,
    /// Overload replies: pause in nanoseconds.
    pause: u64,
    message: Message,
    body: Range<usize>,
}

pub(crate) struct Inner {
    weak: Weak<Self>,
    rt: Handle,
    endpoint: Rc<dyn Endpoint>,
    config: RpcConfig,
    id: ClientId,
    ring: Option<Ring>,
    strangers: Strangers,
    /// The network keeps tenants apart, and says whose a message is.
    tells_tenants: bool,
    clock: Rc<Clock>,
    metrics: RpcMetrics,
    next_request: Cell<u64>,
    pending: Pending,
    outbox: Outbox,
    servers: RefCell<Servers>,
    handlers: RefCell<Register<u16, Rc<Served>>>,
    /// The message of the fabric that is taken apart has more requests, or replies, behind the one that is dealt with.
    more: Cell<bool>,
    /// How far it is from starting to ending.
    standing: Cell<Standing>,
    clients: RefCell<Clients>,
    /// Where requests were that have ended.
    spare_requests: Spares<Parts>,
    spare_tasks: Spares<Task>,
    /// Where the segments of the next request with memory are put, until the request takes them.
    spare_segments: Cell<Vec<(RemoteRegion, Access)>>,
    transfers: Semaphore,
    payloads: Payloads,
    accesses: Ledger,
    spare_lists: Shelf<Lists>,
    /// Lists of pieces that move, of transfers that were several.
    spare_moving: Shelf<VecDeque<Moving>>,
    requests: Quota,
    bulks: Quota,
    load: Load,
    turns: Turns,
}

/// What a server begins, from its start to its end.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum Standing {
    /// What is served by now; more is in a moment.
    Starting,
    /// Everything.
    #[default]
    Serving,
    /// What is urgent.
    Draining,
    /// Withdrawals of memory.
    Ending,
}

/// Requests and replies of one context. It ends, with its handlers' tasks left to finish unheard, when dropped.
pub struct Rpc {
    inner: Rc<Inner>,
}

impl Rpc {
    /// An RPC layer on this endpoint, which it takes over: it becomes the endpoint's sink.
    #[must_use]
    pub fn new(rt: Handle, endpoint: Rc<dyn Endpoint>, config: RpcConfig) -> Rc<Self> {
        Self::with_clock(rt, endpoint, config, Rc::default())
    }

    /// Like [`Rpc::new`], with a clock that the context already uses for its epochs.
    #[must_use]
    pub fn with_clock(
        rt: Handle,
        endpoint: Rc<dyn Endpoint>,
        config: RpcConfig,
        clock: Rc<Clock>,
    ) -> Rc<Self> {
        let id = ClientId::new(rt.random_u64());
        let tells_tenants = endpoint.capabilities().serves_auth_keys;
        let crowded = endpoint.capabilities().wait == Wait::Doorbell;
        let credits = if crowded { config.credits.min(DOORBELL_CREDITS_MAX) } else { config.credits };
        let (pending, seed) = (rt.random_u64(), rt.random_u64());
        let inner = Rc::new_cyclic(|weak: &Weak<Inner>| Inner {
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
            handlers: RefCell::new(Register::new(0)),
            more: Cell::new(false),
            standing: Cell::default(),
            clients: RefCell::new(Clients::new(config.reply_cache_bytes, seed)),
            spare_requests: Spares::default(),
            spare_tasks: Spares::default(),
            spare_segments: Cell::default(),
            transfers: Semaphore::new(config.transfers_max),
            payloads: Payloads::new(endpoint.buffers().limit(), tells_tenants || config.keys.is_some(), seed),
            accesses: Ledger::new(seed),
            spare_lists: Shelf::default(),
            spare_moving: Shelf::default(),
            requests: Quota::new(credits, config.requests_max),
            // Who has no credit left need not expose anything yet: a server that is stuck leaves room for others.
            bulks: Quota::leaving_room(credits.min(config.bulks_max), config.bulks_max),
            load: Load::default(),
            turns: Turns::new(seed),
            rt,
            endpoint,
            config,
        });
        let sink: Weak<Inner> = Rc::downgrade(&inner);
        inner.endpoint.set_sink(sink);
        let rpc = Self { inner };
        rpc.serve_urgent(opcode::REQUEST_WITHDRAW, Rc::new(accesses::withdraw));
        // Last: from here on others may find it.
        rpc.inner.endpoint.introduce(id.bits(), rpc.inner.config.keys.as_ref());
        Rc::new(rpc)
    }

    /// Answers requests of this operation from now on.
    pub fn serve(&self, opcode: u16, handler: Rc<dyn Handler>) {
        self.inner.handlers.borrow_mut().insert(opcode, Rc::new(Served::new(handler, false)));
    }

    /// The same for a handler that knows by itself what it has executed, or to which that is all one: a repeat whose reply is not
    /// remembered any more is given to it once more, instead of being refused.
    pub fn serve_again(&self, opcode: u16, handler: Rc<dyn Handler>) {
        let served = Served { again: true, ..Served::new(handler, false) };
        self.inner.handlers.borrow_mut().insert(opcode, Rc::new(served));
    }

    /// Says whether more operations will be served in a moment: whoever asks for one of those is told to come again
    /// instead of that there is none.
    pub fn set_starting(&self, starting: bool) {
        self.inner.standing.set(if starting { Standing::Starting } else { Standing::Serving });
    }

    /// Begins nothing more for anybody, but for urgent operations, which others wait for who are there already: whoever asks is
    /// told to come again, as to a server that starts.
    pub fn drain(&self) {
        self.inner.standing.set(Standing::Draining);
    }

    /// Begins nothing more but withdrawals. A request that is still executed and fails from now on, as what it needs ends, is to
    /// come again, too.
    pub fn turn_away(&self) {
        self.inner.standing.set(Standing::Ending);
    }

    /// Answers requests of this operation from now on, also when the server is overloaded: for membership, whose
    /// requests are few, small and quickly answered, and for what ends work that was admitted before.
    pub fn serve_urgent(&self, opcode: u16, handler: Rc<dyn Handler>) {
        self.inner.handlers.borrow_mut().insert(opcode, Rc::new(Served::new(handler, true)));
    }

    /// Sends a request and waits for its reply.
    ///
    /// While the deadline lasts it goes on trying: contact is made again after a loss, the name is resolved again,
    /// and a request that may be retried is sent again under the same id, which the server executes once as long as
    /// it lives. The memory of `bulk` is exposed to the server for the duration of the call.
    ///
    /// When the call fails without a reply, or is dropped, the memory is withdrawn and not used again before no access
    /// to it can be under way: because the provider says so, or the server does, or the server must have given up. A
    /// call with memory that is not of the pool fails only then. Otherwise it doesn't wait, and buffers of the pool that
    /// the server might still write to are replaced by empty ones; those that it might read must not be changed, only
    /// dropped. A call that another incarnation of the server answers than the only one that has seen its memory ends when
    /// the accesses that were under way then have ended, a second later at most. With a [`weir_fabric::MrMethod`] that leaves
    /// memory exposed there is no such protection.
    ///
    /// # Errors
    /// See [`RpcError`].
    #[inline]
    pub fn call(
        &self,
        to: &Peer,
        opcode: u16,
        body: &[u8],
        bulk: Option<Bulk<'_>>,
        options: CallOptions,
    ) -> impl Future<Output = Result<Reply, RpcError>> {
        call::call(&self.inner, to, opcode, body, bulk, options, None)
    }

    /// The same; `resent` is set when it fails after it was sent more than once: an earlier try may have been executed, whatever
    /// the last one was answered.
    ///
    /// # Errors
    /// See [`RpcError`].
    #[inline]
    pub fn call_noting(
        &self,
        to: &Peer,
        opcode: u16,
        body: &[u8],
        bulk: Option<Bulk<'_>>,
        options: CallOptions,
        resent: &Cell<bool>,
    ) -> impl Future<Output = Result<Reply, RpcError>> {
        call::call(&self.inner, to, opcode, body, bulk, options, Some(resent))
    }

    /// Page-aligned memory that the fabric can move data to and from.
    ///
    /// # Errors
    /// When the pool is used up.
    pub fn alloc(&self, len: usize) -> Result<Buffer, FabricError> {
        self.inner.endpoint.buffers().alloc(len)
    }

    /// Gives the system back the memory for transfers that lies ready for the next ones.
    pub fn rest(&self) {
        self.inner.endpoint.buffers().rest();
    }

    /// What it has done so far.
    #[must_use]
    pub fn metrics(&self) -> &RpcMetrics {
        &self.inner.metrics
    }

    /// Whether a server has turned messages of this context away of late: then data is better fetched by it than sent in the
    /// message ([`weir_fabric::Endpoint::is_short_of_room`]).
    #[must_use]
    pub fn is_short_of_room(&self, peer: &Peer) -> bool {
        let session = self.inner.peer_state(peer).session();
        session.is_some_and(|session| self.inner.endpoint.is_short_of_room(session.id))
    }

    /// Requests of this context that wait for their replies.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.inner.pending.len()
    }

    /// Requests that have a credit, and those that wait for one.
    #[must_use]
    pub fn quota(&self) -> (usize, usize) {
        (self.inner.requests.used(), self.inner.requests.waiting())
    }

    /// Calls whose memory is exposed, and those that wait for leave to expose it.
    #[must_use]
    pub fn bulk_quota(&self) -> (usize, usize) {
        (self.inner.bulks.used(), self.inner.bulks.waiting())
    }

    /// Clients that this context remembers as a server, and the bytes of replies kept for them.
    #[must_use]
    pub fn remembered(&self) -> (usize, usize) {
        self.inner.clients.borrow().size()
    }

    /// The endpoint underneath: its capabilities, counters and buffers.
    #[must_use]
    pub fn endpoint(&self) -> &Rc<dyn Endpoint> {
        &self.inner.endpoint
    }

    /// The context's hybrid logical clock, which requests and replies move forward.
    #[must_use]
    pub fn clock(&self) -> &Rc<Clock> {
        &self.inner.clock
    }

    /// A fresh epoch of the context's clock.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.inner.epoch()
    }

    /// The id that clients know this context by; new on every start. The server that it calls first knows it by the same,
    /// others by others.
    #[must_use]
    pub fn id(&self) -> ClientId {
        self.inner.id
    }
}

impl Drop for Rpc {
    fn drop(&mut self) {
        self.inner.let_go();
    }
}

/// A successful reply: its body, still in receive memory.
#[derive(Debug)]
pub struct Reply {
    message: Message,
    body: Range<usize>,
    server: ClientId,
    epoch: Epoch,
}

impl Reply {
    /// Which incarnation of the server answered: another one after each of its restarts.
    #[must_use]
    pub fn server(&self) -> ClientId {
        self.server
    }

    /// The server's clock when it answered.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Takes it from where it is, where an empty one is left.
    #[inline]
    fn take(&mut self) -> Self {
        let message = core::mem::take(&mut self.message);
        Self { message, body: self.body.clone(), server: self.server, epoch: self.epoch }
    }
}

impl Deref for Reply {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.message.get(self.body.clone()).unwrap_or_default()
    }
}

impl Inner {
    /// Handlers hold what they serve, often what owns this context; and calls that wait hear that it is over.
    fn let_go(&self) {
        self.standing.set(Standing::Ending);
        let handlers = self.handlers.replace(Register::new(0));
        for (_, served) in handlers.iter() {
            served.counter.close();
        }
        drop(handlers);
        drop(self.turns.close());
        self.pending.close();
        self.outbox.close();
    }

    fn epoch(&self) -> Epoch {
        self.clock.now(self.rt.wall_ns())
    }

    /// This wall time in nanoseconds, or what the hybrid clock has if that is later: never behind what any message said that moved it.
    fn no_earlier(&self, wall_ns: u64) -> u64 {
        self.clock.latest().wall_ns().max(wall_ns)
    }

    /// Sends one message: header, greeting, segments, body, and the tag where there is a key. `company`: how many requests
    /// are under way with it, itself among them. If there are others, more messages to the same peer may follow in this
    /// moment, and share a message of the fabric.
    #[expect(clippy::too_many_arguments, reason = "the parts of a message")]
    #[inline(always)]
    fn transmit(
        &self,
        to: PeerId,
        context: u64,
        header: &mut Header,
        greeting: &[u8],
        segments: &[u8],
        body: &[u8],
        key: Option<&SealKey>,
        company: usize,
    ) -> Result<(), FabricError> {
        header.sealed = key.is_some();
        let is_bare = greeting.is_empty() && segments.is_empty();
        if let Some(key) = key.filter(|_| is_bare && body.len() <= SEALED_BODY_MAX) {
            return self.transmit_sealed(to, context, header, body, key, company);
        }
        if key.is_none() && is_bare {
            let mut note = [0; NOTE_MAX];
            if let Some(note) = header.encode_note(body, &mut note).and_then(|len| note.get(..len)) {
                return self.dispatch(to, context, &[note], note.len(), company);
            }
        }
        let head = header.encode_shortest();
        self.transmit_all(to, context, [&head, greeting, segments, body], key, company)
    }

    /// Sends a sealed message of a header and a small body, which is put together once: for the hash, and for whoever copies it.
    #[inline(never)]
    fn transmit_sealed(
        &self,
        to: PeerId,
        context: u64,
        header: &Header,
        body: &[u8],
        key: &SealKey,
        company: usize,
    ) -> Result<(), FabricError> {
        let head = header.encode_shortest();
        let mut whole = [0; HEADER_LEN + SEALED_BODY_MAX + TAG_LEN];
        let (sealed, len) = (head.len() + body.len(), head.len() + body.len() + TAG_LEN);
        whole[..head.len()].copy_from_slice(&head);
        whole[head.len()..sealed].copy_from_slice(body);
        let tag = key.tag(&[&whole[..sealed]]);
        whole[sealed..len].copy_from_slice(&tag);
        self.dispatch(to, context, &[&whole[..len]], len, company)
    }

    /// Sends a message that is more than a header and a small body.
    #[inline(never)]
    fn transmit_all(
        &self,
        to: PeerId,
        context: u64,
        [head, greeting, segments, body]: [&[u8]; 4],
        key: Option<&SealKey>,
        company: usize,
    ) -> Result<(), FabricError> {
        let length = [u8::try_from(greeting.len()).unwrap_or(0)];
        let length: &[u8] = if greeting.is_empty() { &[] } else { &length };
        let tag = key.map(|key| key.tag(&[head, length, greeting, segments, body]));
        let tag: &[u8] = tag.as_ref().map_or(&[], |tag| tag);
        let (mut parts, mut count, mut len): ([&[u8]; 6], _, _) = ([&[]; 6], 0, 0);
        for part in [head, length, greeting, segments, body, tag].into_iter().filter(|part| !part.is_empty())
        {
            parts[count] = part;
            count += 1;
            len += part.len();
        }
        self.dispatch(to, context, &parts[..count], len, company)
    }

    /// Gives a message of this length to the fabric, or to others that share one.
    #[inline(always)]
    fn dispatch(
        &self,
        to: PeerId,
        context: u64,
        parts: &[&[u8]],
        len: usize,
        company: usize,
    ) -> Result<(), FabricError> {
        add(&self.metrics.messages_sent, 1);
        add(&self.metrics.bytes_sent, len as u64);
        if Outbox::takes(len) && (company > 1 || self.outbox.has(to)) {
            self.share(to, context, parts, len, company);
            return Ok(());
        }
        self.endpoint.send(to, context, parts)
    }

    /// What was sent to a peer did not get through: a request, which may have ended meanwhile, with all that was sent with it,
    /// or replies, of which nobody hears here.
    fn unsent(&self, peer: PeerId, context: u64, error: &FabricError) {
        add(&self.metrics.sends_failed, 1);
        if context == 0 {
            return;
        }
        for request in self.pending.asked_of(peer) {
            self.pending.resolve_with(request, None, None, || Outcome::Failed(error.clone()));
        }
    }

    /// A server is at work on a request that was sent again: it is slow, not gone.
    fn still_working(&self, header: &Header) {
        let state = self.pending.state(header.request);
        if let Some(state) = state.filter(|state| state.client == header.client) {
            state.heard.set(self.rt.now());
        }
    }

    #[inline]
    fn resolve_pending(&self, header: &Header, message: &mut Message, body: Range<usize>) {
        // The answer must come from whom the request went to, where the provider names the sender.
        let from = message.source().peer();
        let Header { kind, status, epoch, acked: pause, .. } = *header;
        let server = ClientId::new(header.deadline);
        let outcome = || {
            let message = core::mem::take(message);
            if kind == Kind::Reply && status == 0 {
                Outcome::Reply(Reply { message, body, server, epoch })
            } else {
                Outcome::Answer(Answer { kind, status, server, pause, message, body })
            }
        };
        if !self.pending.resolve_with(header.request, Some(header.client), from, outcome) {
            add(&self.metrics.stray_replies, 1);
        }
    }

    /// Deals with an authentic message of a clock that is too far ahead: who waits for an answer, there or here, is told why none
    /// comes.
    #[cold]
    fn received_early(&self, header: &Header, message: &Message, layout: &Layout, skew: ClockSkew) {
        add(&self.metrics.skew_refused, 1);
        tracing::warn!(%skew, "a message from the future");
        match header.kind {
            Kind::Hello => self.notify(header, message, layout, Der::HLC_SYNC),
            Kind::Request => self.refuse_skewed(header, message, layout, skew),
            Kind::HelloReply | Kind::Reply => {
                let (client, from) = (Some(header.client), message.source().peer());
                self.pending.resolve_with(header.request, client, from, || Outcome::Early);
            }
            Kind::Working => {}
        }
    }

    /// Deals with one message, which whoever keeps it takes.
    #[inline(always)]
    fn received(&self, header: &Header, message: &mut Message, layout: &Layout) {
        // First of all: an unauthenticated message must not even move the clock.
        if !self.is_authentic(header, message, layout) {
            return;
        }
        let mut times = self.rt.times();
        if header.epoch.check(times.1).is_err() {
            times = self.rt.times_anew();
            if let Err(skew) = header.epoch.check(times.1) {
                self.received_early(header, message, layout, skew);
                return;
            }
        }
        let (now, wall_ns) = times;
        // A hello tells of nothing that has happened. A request moves the clock as far as whose it is allows.
        if !matches!(header.kind, Kind::Hello | Kind::Request) {
            let _ = self.clock.observe(header.epoch, wall_ns);
        }
        match header.kind {
            Kind::Hello => self.greeted(header, message, layout),
            Kind::Request => self.requested(header, message, layout, (now, wall_ns)),
            Kind::Working => self.still_working(header),
            Kind::HelloReply | Kind::Reply => self.resolve_pending(header, message, layout.body.clone()),
        }
    }

    /// Deals with the messages in a message of the fabric, which small ones to one peer share.
    fn take_apart(&self, mut message: Message) {
        for _ in 0..outbox::TAKEN_MAX {
            add(&self.metrics.messages_received, 1);
            // Looked at where it is: what has just been written takes a while to copy.
            let decoded = wire::decode_first(&message);
            let (header, layout) = match &decoded {
                Ok(decoded) => (&decoded.0, &decoded.1),
                Err(error) => {
                    add(&self.metrics.malformed, 1);
                    tracing::debug!(%error, "a malformed message was dropped");
                    return;
                }
            };
            let end = layout.end;
            let is_last = end == message.len();
            self.more.set(!is_last);
            if is_last {
                self.received(header, &mut message, layout);
                return;
            }
            let mut first = message.split_to(end);
            self.received(header, &mut first, layout);
        }
        add(&self.metrics.malformed, 1);
        tracing::debug!(len = message.len(), "the rest of a message with too many in it was dropped");
    }
}

impl Sink for Inner {
    fn message(&self, message: Message) {
        add(&self.metrics.bytes_received, message.len() as u64);
        self.take_apart(message);
        self.more.set(false);
    }

    fn closed(&self) {
        self.let_go();
    }

    fn send_failed(&self, peer: PeerId, context: u64, error: FabricError) {
        self.unsent(peer, context, &error);
    }
}

/// Time from now until a wall-clock deadline, as an instant of the local monotonic clock. It is the earlier of what
/// the two clocks say, so that a server whose wall clock lags does not work past the client's patience.
fn local_deadline(now: Instant, wall_ns: u64, header: &Header) -> Instant {
    let budget = header.deadline.saturating_sub(header.epoch.wall_ns());
    let left = header.deadline.saturating_sub(wall_ns);
    now.after_nanos(budget.min(left)).min(now + PATIENCE_MAX)
}
