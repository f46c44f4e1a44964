//! Taking requests in and sending replies out.

use crate::accesses::Account;
use crate::bulk::WITHDRAWAL_GRACE;
use crate::clients::{Caller, ServedSession, Stranger};
use crate::desk::{Counter, Handler};
use crate::entries::Finished;
use crate::error::Status;
use crate::metrics::{add, sub};
use crate::replies::{Admission, Others};
use crate::request::Request;
use crate::seal::{Nonce, SealKey};
use crate::session::common_version;
use crate::wire::{self, Header, Kind, Layout};
use crate::{INLINE_MAX, Inner, Standing, local_deadline};
use core::cell::Cell;
use core::num::NonZeroU64;
use core::time::Duration;
use std::rc::Rc;
use weir_fabric::{Address, Message, PeerId, Source};
use weir_proto::hlc::{ClockSkew, SKEW_MAX_NS};
use weir_proto::opcode::REQUEST_WITHDRAW;
use weir_proto::{Der, TenantId};
use weir_runtime::Instant;

/// The body of a reply.
pub type Body = Vec<u8>;

/// When to come again to a server that is starting: opening takes some milliseconds.
const STARTING_PAUSE: Duration = Duration::from_millis(10);

/// When to come again to a server that is stopping: the next one takes some hundred milliseconds to start.
const STOPPING_PAUSE: Duration = Duration::from_millis(50);

/// Part of the room for running requests that is kept for those that were sent away before.
const RETURNERS: usize = 8;

/// How many requests a client may have running for each place that is still free. One client alone then gets four fifths of
/// the room, and one that comes when N others want all of it finds a place up to N = 224 (by default): they leave
/// 1/(4N + 1) of it.
const SHARE: usize = 4;

/// How many requests a tenant may have running for each place that is still free, where tenants are told apart: its clients, of which
/// a process may be as many as it likes, leave a quarter to others.
const TENANT_SHARE: usize = 3;

/// An operation that is served.
pub(crate) struct Served {
    pub(crate) handler: Rc<dyn Handler>,
    /// Who executes its requests.
    pub(crate) counter: Rc<Counter>,
    /// Also when there is no room for others.
    pub(crate) urgent: bool,
    /// See [`crate::Rpc::serve_again`].
    pub(crate) again: bool,
}

impl Served {
    pub(crate) fn new(handler: Rc<dyn Handler>, urgent: bool) -> Self {
        Self { handler, counter: Rc::default(), urgent, again: false }
    }
}

/// Where a message is from, and whose it is.
#[derive(Clone, Copy)]
struct Sender {
    peer: PeerId,
    caller: Caller,
}

/// A request being executed.
pub(crate) struct Running {
    inner: Rc<Inner>,
    task: Rc<Task>,
}

/// What is remembered of a request while it is executed, to answer it. Like the request it stays in one place, which serves
/// later ones, while it goes from hand to hand.
#[derive(Default)]
pub(crate) struct Task {
    caller: Caller,
    request: u64,
    version: u16,
    /// Its accesses to the client's memory, and when they must have ended.
    accesses: Option<(Account, Instant)>,
    /// How many requests had begun when it came, where its client had no other under way.
    lone: Option<u64>,
    /// It is executed also where there is no room.
    urgent: bool,
    finished: Cell<bool>,
}

impl Running {
    /// Counts a request in that was admitted.
    #[inline(always)]
    fn new(inner: Rc<Inner>, caller: Caller, header: &Header, (lone, urgent): (Option<u64>, bool)) -> Self {
        add(&inner.metrics.requests, 1);
        add(&inner.metrics.running, 1);
        let task = inner.spare_tasks.take(|place| {
            place.caller = caller;
            place.request = header.request;
            place.version = header.version;
            place.lone = lone;
            place.urgent = urgent;
            place.finished.set(false);
        });
        Self { inner, task }
    }

    /// It has accesses to the client's memory, which must have ended by then.
    fn watch(&mut self, accesses: Account, until: Instant) {
        // Nobody else has it yet.
        if let Some(task) = Rc::get_mut(&mut self.task) {
            task.accesses = Some((accesses, until));
        }
    }

    /// A worker begins with the request.
    #[inline]
    pub(crate) fn begin(&self) {
        self.inner.begun(self.task.lone, self.is_small());
    }

    /// It has no access to the client's memory.
    pub(crate) fn is_small(&self) -> bool {
        self.task.accesses.is_none()
    }

    /// The request was executed. Its reply waits until nothing is at the client's memory any more.
    #[inline(always)]
    pub(crate) fn finish(self, result: Result<Body, Status>) {
        match &self.task.accesses {
            Some((accesses, until)) if accesses.is_busy() => {
                let held = (accesses.clone(), *until);
                self.finish_later(held, result);
            }
            _ => self.reply(result),
        }
    }

    fn finish_later(self, (accesses, until): (Account, Instant), result: Result<Body, Status>) {
        add(&self.inner.metrics.replies_held, 1);
        let rt = self.inner.rt.clone();
        rt.clone().spawn(async move {
            // The client uses its memory again by then, whatever is said here.
            let _ = rt.timeout_at(until, accesses.idle()).await;
            self.reply(result);
        });
    }

    #[inline(always)]
    fn reply(self, result: Result<Body, Status>) {
        self.task.finished.set(true);
        self.inner.finish(&self.task, result);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let inner = &self.inner;
        sub(&inner.metrics.running, 1);
        inner.load.finished(!self.task.urgent, inner.rt.now());
        if !self.task.finished.get() {
            inner.clients.borrow_mut().forget(self.task.caller, self.task.request);
        }
        // Who holds the last share of its accesses says so to the context.
        let accesses = Rc::get_mut(&mut self.task).and_then(|task| task.accesses.take());
        drop(accesses);
        inner.spare_tasks.keep(&self.task);
    }
}

/// Begins with a request when the wall clock has come near enough to what its client has seen, if that is in time.
async fn hold(mut early: NonZeroU64, running: Running, request: Request) {
    let inner = Rc::clone(&running.inner);
    let (epoch, deadline) = (request.epoch(), request.deadline());
    add(&inner.metrics.requests_early, 1);
    loop {
        inner.rt.sleep_until(deadline.min(inner.rt.now() + Duration::from_nanos(early.get()))).await;
        if inner.rt.now() >= deadline {
            add(&inner.metrics.expired, 1);
            let text = "the request expired before the server's clock had come near enough to its client's";
            return running.finish(Err(Status::new(Der::TIMEDOUT, text)));
        }
        match inner.clock.observe_tenant(epoch, inner.rt.wall_ns()) {
            Ok(None) => break,
            // The wall clock went back meanwhile.
            Ok(Some(more)) => early = more,
            Err(skew) => return running.finish(Err(Status::new(Der::HLC_SYNC, skew.to_string()))),
        }
    }
    // Nothing is served any more when the context has closed meanwhile.
    let served = inner.handlers.borrow().get(request.opcode()).map(Rc::clone);
    if let Some(served) = served {
        inner.queue(served, request.client(), running, request, false);
    }
}

impl Inner {
    /// A hello arrived: say which versions are spoken here.
    pub(crate) fn greeted(&self, header: &Header, message: &Message, layout: &Layout) {
        let theirs = message.get(layout.body.clone()).map(wire::decode_versions);
        let Some(Ok(theirs)) = theirs else {
            add(&self.metrics.malformed, 1);
            return;
        };
        let Some(from) = self.sender(header, message, layout, self.rt.now()) else {
            add(&self.metrics.unknown_senders, 1);
            return;
        };
        if !self.may_answer(from.caller, self.rt.now()) {
            return;
        }
        let Ok(nonce) = self.open_session(from.caller, header, message, layout) else { return };
        let common = common_version(&self.config.versions, &theirs);
        if common.is_none() {
            add(&self.metrics.version_refused, 1);
            tracing::warn!(ours = ?self.config.versions, ?theirs, "a client of another protocol version");
        }
        self.answer_hello(from, header, common, nonce);
    }

    /// Agrees on the session's key with a client whose hello is authentic. Returns this side's part of it.
    fn open_session(
        &self,
        caller: Caller,
        header: &Header,
        message: &Message,
        layout: &Layout,
    ) -> Result<Option<Nonce>, ()> {
        let Some(ring) = &self.ring else { return Ok(None) };
        let theirs = message.get(layout.body.clone()).and_then(wire::decode_nonce);
        let (Some(theirs), Some((key, _))) = (theirs, ring.of(caller.tenant)) else {
            add(&self.metrics.malformed, 1);
            return Err(());
        };
        let ours = self.fresh_nonce();
        let seal = SealKey::of_session(&key, (caller.id, theirs), (self.id, ours));
        let session = ServedSession { seal, hello: header.request, theirs, ours };
        match self.clients.borrow_mut().open(caller, session) {
            Ok(ours) => Ok(Some(ours)),
            Err(Stranger::Replay) => {
                add(&self.metrics.replays_refused, 1);
                Err(())
            }
            Err(_) => {
                add(&self.metrics.impostors, 1);
                Err(())
            }
        }
    }

    fn answer_hello(&self, to: Sender, header: &Header, common: Option<u16>, nonce: Option<Nonce>) {
        let version = common.unwrap_or(*self.config.versions.end());
        let mut reply = Header::new(Kind::HelloReply, version, header.client, header.request, self.epoch());
        let bare = wire::encode_versions(&self.config.versions);
        let whole = nonce.map(|nonce| wire::encode_hello(&self.config.versions, &nonce));
        let body: &[u8] = whole.as_ref().map_or(&bare, |whole| whole);
        reply.body_len = u32::try_from(body.len()).unwrap_or(0);
        reply.deadline = self.id.bits();
        reply.status = if common.is_some() { 0 } else { Der::PROTO.0 };
        self.reply(to, reply, body, self.company());
    }

    /// Requests that are being executed, and whether more have come with the one that is dealt with: their replies may follow in
    /// this moment.
    fn company(&self) -> usize {
        let running = usize::try_from(self.metrics.running.get()).unwrap_or(usize::MAX);
        running.saturating_add(self.more.get().into())
    }

    /// Sends a reply. When that fails the client asks again.
    #[inline(always)]
    fn reply(&self, to: Sender, mut header: Header, body: &[u8], company: usize) {
        add(&self.metrics.replies, 1);
        let key = self.ring.as_ref().and_then(|_| self.clients.borrow().seal(to.caller));
        header.tenant = if key.is_some() { to.caller.tenant.0 } else { 0 };
        if let Err(error) = self.transmit(to.peer, 0, &mut header, &[], &[], body, key.as_ref(), company) {
            add(&self.metrics.sends_failed, 1);
            tracing::debug!(%error, "a reply could not be sent");
        }
    }

    /// Who sent this, as an entry of the address vector: the address in the message where there is one, else what the
    /// provider says, else where this client was last, if the provider can't name it.
    #[inline(always)]
    fn sender(&self, header: &Header, message: &Message, layout: &Layout, now: Instant) -> Option<Sender> {
        // The short way: who says nothing of where it is, and comes from where the provider named it before.
        if let Source::Peer(peer) = message.source()
            && layout.greeting.is_empty()
        {
            let (peer, caller) = (*peer, self.caller(header, *peer));
            if self.clients.borrow_mut().comes_again(caller, peer, now) {
                return Some(Sender { peer, caller });
            }
        }
        self.find_sender(header, message, layout, now)
    }

    /// The long way.
    #[inline(never)]
    fn find_sender(
        &self,
        header: &Header,
        message: &Message,
        layout: &Layout,
        now: Instant,
    ) -> Option<Sender> {
        // Where the network tells tenants apart, its word is the only one: an address in a message has no key.
        let served = self.endpoint.capabilities().serves_auth_keys;
        let greeting = if served { None } else { message.get(layout.greeting.clone()) };
        let greeting = greeting.and_then(Address::from_bytes);
        let (known, address) = match message.source() {
            Source::Peer(peer) => (Some(*peer), greeting),
            Source::Address(address) => {
                // What a client says of where it is stands under its seal. From elsewhere it is a recording: it must not
                // have the client's name stand for the place of whoever plays it.
                let sealed_hello = header.kind == Kind::Hello && self.ring.is_some() && !served;
                let true_there = greeting.as_ref().map_or(!sealed_hello, |said| said == &**address);
                if !true_there {
                    add(&self.metrics.impostors, 1);
                    return None;
                }
                (None, Some(Address::clone(address)))
            }
            Source::Unknown => (None, greeting),
        };
        let inserted = address.as_ref().and_then(|address| self.entry(address));
        // What a message says of its tenant counts only behind a seal.
        let unnamed = || {
            let is_proved = self.ring.is_some() || !self.tells_tenants;
            self.clients.borrow().unnamed(Caller::of(header)).filter(|_| is_proved)
        };
        let peer = inserted.map(|(peer, _)| peer).or(known).or_else(unnamed)?;
        let caller = self.caller(header, peer);
        // A connected provider names a sender that was forgotten by whoever has its place now: of who was never named it says nothing.
        let known = known.filter(|known| *known == peer || self.clients.borrow().is_placed(caller, *known));
        let met = if known.is_some_and(|known| known != peer) {
            Err(Stranger::Impostor)
        } else {
            self.clients.borrow_mut().meet(caller, peer, address.as_ref(), now)
        };
        match met {
            Ok(forgotten) => {
                self.strangers.release(peer);
                if known.is_some() {
                    self.clients.borrow_mut().name(caller);
                }
                self.forget_unused(&forgotten);
                Some(Sender { peer, caller })
            }
            Err(stranger) => {
                // An address that was only claimed leaves nothing behind.
                if let Some((claimed, true)) = inserted {
                    self.endpoint.forget(claimed);
                }
                let counter = match stranger {
                    Stranger::Impostor | Stranger::Replay => &self.metrics.impostors,
                    Stranger::NoRoom => &self.metrics.overloaded,
                };
                add(counter, 1);
                None
            }
        }
    }

    /// Whose message this is: by the seal that it has, else by the network where that tells. Where nobody checks a tenant,
    /// all are one, whatever they say.
    #[inline]
    fn caller(&self, header: &Header, peer: PeerId) -> Caller {
        if self.ring.is_some() {
            return Caller::of(header);
        }
        let key = if self.tells_tenants { self.endpoint.auth_key(peer) } else { None };
        Caller { tenant: TenantId(key.map_or(0, |key| key.vni.into())), id: header.client }
    }

    /// An address's entry in the address vector, and whether it was made for this.
    pub(crate) fn entry(&self, address: &Address) -> Option<(PeerId, bool)> {
        let before = self.endpoint.counters().peers_inserted.get();
        let peer = self.endpoint.insert(address).ok()?;
        Some((peer, self.endpoint.counters().peers_inserted.get() != before))
    }

    /// Answers a request that is not executed. Such answers are not remembered.
    fn refuse(&self, to: Sender, header: &Header, der: Der, pause: Duration, text: &str) {
        let epoch = self.epoch();
        let mut reply = Header::new(Kind::Reply, header.version, header.client, header.request, epoch);
        reply.deadline = self.id.bits();
        reply.status = der.0;
        reply.acked = u64::try_from(pause.as_nanos()).unwrap_or(0);
        reply.body_len = u32::try_from(text.len()).unwrap_or(0);
        self.reply(to, reply, text.as_bytes(), self.company());
    }

    pub(crate) fn refuse_skewed(&self, header: &Header, message: &Message, layout: &Layout, skew: ClockSkew) {
        let Some(from) = self.sender(header, message, layout, self.rt.now()) else { return };
        // A repeat, from a client whose clock has jumped: as below.
        if !self.clients.borrow().is_running(from.caller, header.request) {
            self.reject(from, header, Der::HLC_SYNC, &skew.to_string());
        }
    }

    /// Answers a request that can't be executed, for as long as the client's allowance lasts.
    fn reject(&self, to: Sender, header: &Header, der: Der, text: &str) {
        if self.may_answer(to.caller, self.rt.now()) {
            self.refuse(to, header, der, Duration::ZERO, text);
        }
    }

    fn reject_unserved(&self, to: Sender, header: &Header) {
        if let Some((pause, text)) = self.absence() {
            if self.may_answer(to.caller, self.rt.now()) {
                self.refuse(to, header, Der::OVERLOAD_RETRY, pause, text);
            }
        } else {
            let text = format!("operation {:#06x} is not served here", header.opcode);
            self.reject(to, header, Der::NOSYS, &text);
        }
    }

    /// When to come again for what is not served at the moment, and why; `None`: it never is.
    fn absence(&self) -> Option<(Duration, &'static str)> {
        match self.standing.get() {
            Standing::Serving => None,
            Standing::Starting => Some((STARTING_PAUSE, "the server is starting")),
            Standing::Draining | Standing::Ending => Some((STOPPING_PAUSE, "the server is stopping")),
        }
    }

    /// Whether a request that nobody has begun is begun at all: a server that stops finishes only what it has.
    fn begins(&self, opcode: u16, urgent: bool) -> bool {
        match self.standing.get() {
            Standing::Starting | Standing::Serving => true,
            Standing::Draining => urgent,
            Standing::Ending => opcode == REQUEST_WITHDRAW,
        }
    }

    /// A request arrived, at this time by either clock.
    #[inline(always)]
    pub(crate) fn requested(
        &self,
        header: &Header,
        message: &mut Message,
        layout: &Layout,
        (now, wall_ns): (Instant, u64),
    ) {
        let Some(from) = self.sender(header, message, layout, now) else {
            add(&self.metrics.unknown_senders, 1);
            return;
        };
        let caller = from.caller;
        if !self.config.versions.contains(&header.version) {
            add(&self.metrics.version_refused, 1);
            if self.may_answer(caller, self.rt.now()) {
                self.answer_hello(from, header, None, None);
            }
            return;
        }
        let early = self.note_clock(header, wall_ns);
        let deadline = local_deadline(now, self.no_earlier(wall_ns), header);
        if deadline <= now {
            add(&self.metrics.expired, 1);
            // A repeat: the first one may be at the client's memory, and will answer.
            if !self.clients.borrow().is_running(caller, header.request) {
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
            add(&self.metrics.malformed, 1);
            self.reject(from, header, Der::PROTO, "a bulk segment of the request is invalid");
            return;
        };
        let Some(served) = self.handlers.borrow().get(header.opcode).map(Rc::clone) else {
            self.reject_unserved(from, header);
            return;
        };
        let Some(others) = self.admit(header, from, &served, (now, deadline)) else { return };
        // The context can't be gone while its sink is called.
        let Some(inner) = self.weak.upgrade() else { return };
        let bulk = segments.is_some();
        let lone = (others.client == 0).then(|| self.turns.begun());
        let mut running = Running::new(Rc::clone(&inner), caller, header, (lone, served.urgent));
        let mut request = Request::new(inner, caller, header, message, layout, deadline);
        if let Some(segments) = segments {
            let accesses = Account::open(&running.inner, caller, header.request);
            running.watch(accesses.clone(), deadline + WITHDRAWAL_GRACE);
            self.spare_segments.set(request.lend(segments, accesses));
        }
        // What is urgent ends at once, wherever the clock is, and there may be more of it than has room.
        if let Some(early) = early.filter(|_| !served.urgent) {
            self.rt.spawn(hold(early, running, request));
            return;
        }
        // What moves memory takes longer than its turn, and others may have come.
        self.queue(served, caller, running, request, !bulk);
    }

    /// Puts this clock behind what a request's client has seen. `Some`: its tenant may not push it so far, and the request has to
    /// wait for so long.
    #[inline]
    fn note_clock(&self, header: &Header, wall_ns: u64) -> Option<NonZeroU64> {
        // It is within the bound.
        if self.is_of_tenant(header) {
            return self.clock.observe_tenant(header.epoch, wall_ns).ok().flatten();
        }
        let _ = self.clock.observe(header.epoch, wall_ns);
        None
    }

    /// Places that are free for first requests.
    #[inline(always)]
    fn free_places(&self) -> usize {
        let running = usize::try_from(self.metrics.running.get()).unwrap_or(usize::MAX);
        let max = self.config.running_max;
        (max - max / RETURNERS).saturating_sub(running)
    }

    /// Whether whoever comes with a first request is sent away.
    pub(crate) fn is_full(&self) -> bool {
        self.free_places() == 0
    }

    /// Whether there is room for a request of a client that has `others` under way. The fewer places are free, the fewer it
    /// may have, and its tenant: so clients that want all of them never get them, and who comes with a first request finds one.
    #[inline(always)]
    fn has_room(&self, header: &Header, others: Others) -> bool {
        let running = usize::try_from(self.metrics.running.get()).unwrap_or(usize::MAX);
        let max = self.config.running_max;
        let is_tenants = self.is_of_tenant(header);
        let fits = |free: usize| !is_tenants || others.tenant < TENANT_SHARE * free;
        let free = self.free_places();
        let comes_again = header.resend && others.client == 0 && running < max && fits(max - running);
        others.client < self.config.running_per_client
            && (others.client < SHARE * free && fits(free) || comes_again)
    }

    /// Whether an authentic message is a tenant's, and not the system's own: where the network alone tells, whoever's it is.
    #[inline]
    fn is_of_tenant(&self, header: &Header) -> bool {
        if self.ring.is_some() { TenantId(header.tenant) != TenantId::SYSTEM } else { self.tells_tenants }
    }

    /// Whether to execute a request now, with how many others of its client; if not, it has been answered as far as it can
    /// be.
    #[inline(always)]
    fn admit(
        &self,
        header: &Header,
        from: Sender,
        Served { urgent, again, .. }: &Served,
        (now, deadline): (Instant, Instant),
    ) -> Option<Others> {
        let caller = from.caller;
        // By the client's clock it may be later.
        let until = deadline + Duration::from_nanos(SKEW_MAX_NS);
        let mut clients = self.clients.borrow_mut();
        let (mut admission, others) = clients.begin_among(caller, header.request, header.acked, until);
        if *again && admission == Admission::Forgotten {
            admission = clients.begin_again(caller, header.request);
        }
        drop(clients);
        if admission == Admission::New && !self.begins(header.opcode, *urgent) {
            self.clients.borrow_mut().forget(caller, header.request);
            if self.may_answer(caller, now) {
                self.refuse(from, header, Der::OVERLOAD_RETRY, STOPPING_PAUSE, "the server is stopping");
            }
            return None;
        }
        if admission == Admission::New {
            let within = others.client < self.config.running_per_client;
            if *urgent && within || self.has_room(header, others) {
                return Some(others);
            }
            self.clients.borrow_mut().forget(caller, header.request);
            self.send_away(header, from, others.client, now);
            return None;
        }
        if admission != Admission::Stale && !self.may_answer(caller, now) {
            return None;
        }
        match admission {
            Admission::New => {}
            Admission::Running => {
                add(&self.metrics.repeats_running, 1);
                let epoch = self.epoch();
                let id = header.request;
                let mut sign = Header::new(Kind::Working, header.version, header.client, id, epoch);
                sign.deadline = self.id.bits();
                self.reply(from, sign, &[], self.company());
            }
            Admission::Stale => add(&self.metrics.repeats_stale, 1),
            Admission::Forgotten | Admission::Misplaced => {
                add(&self.metrics.repeats_forgotten, 1);
                let text = "the request was executed, but its reply is not remembered any more";
                self.refuse(from, header, Der::STALE, Duration::ZERO, text);
            }
            Admission::Finished => {
                add(&self.metrics.repeats_answered, 1);
                let clients = self.clients.borrow();
                if let Some(finished) = clients.finished(caller, header.request) {
                    self.answer(from, header.request, header.version, false, finished);
                }
            }
        }
        None
    }

    /// Tells a client when to come again. One that has nothing under way queues with all others like it, the others each for
    /// themselves, so that none is sent away for longer because of somebody else's crowd. Who breaks its credits and
    /// doesn't heed that hears nothing any more.
    fn send_away(&self, header: &Header, to: Sender, others: usize, now: Instant) {
        add(&self.metrics.overloaded, 1);
        let overdrawn = others >= self.config.running_per_client;
        add(&self.metrics.overdrawn, u64::from(overdrawn));
        let running = self.metrics.running.get();
        let pause = if others == 0 {
            self.load.pause(running, now)
        } else {
            let next = |slot: &mut _, busy| self.load.next(slot, (busy, running), now);
            self.clients.borrow_mut().stay_away(to.caller, next)
        };
        if overdrawn && pause.is_none() {
            add(&self.metrics.ignored, 1);
            return;
        }
        let pause = pause.unwrap_or_else(|| self.load.longest());
        self.refuse(to, header, Der::OVERLOAD_RETRY, pause, "");
    }

    /// Whether a message of this client that brings about nothing gets an answer: not, where it had more of those than any
    /// client asks for.
    fn may_answer(&self, caller: Caller, now: Instant) -> bool {
        let may = self.clients.borrow_mut().may_answer(caller, now);
        add(&self.metrics.ignored, u64::from(!may));
        may
    }

    #[inline(always)]
    fn finish(&self, task: &Task, result: Result<Body, Status>) {
        let Task { caller, request, version, .. } = *task;
        if result.is_err() && self.standing.get() == Standing::Ending {
            return self.send_on(caller, request, version);
        }
        // It moves client memory: its reply waits for no other.
        let bulk = task.accesses.is_some();
        let finished = match result {
            Ok(body) if body.len() <= INLINE_MAX => Finished { status: 0, body },
            Ok(body) => {
                let len = body.len();
                let text =
                    format!("the reply of {len} bytes is larger than the inline limit of {INLINE_MAX}");
                Finished { status: Der::OVERFLOW.0, body: text.into_bytes() }
            }
            Err(status) => {
                let mut body = status.message.into_bytes();
                body.truncate(INLINE_MAX);
                // A handler's error must not read as success.
                let code = if status.der.0 == 0 { Der::MISC.0 } else { status.der.0 };
                Finished { status: code, body }
            }
        };
        // The client may have moved while the request ran.
        let peer = self.clients.borrow().peer(caller);
        if let Some(peer) = peer {
            self.answer(Sender { peer, caller }, request, version, bulk, &finished);
        }
        self.clients.borrow_mut().finish(caller, request, finished);
    }

    /// A request has failed while what it needs ends here: its client is to ask again, and finds who comes next.
    fn send_on(&self, caller: Caller, request: u64, version: u16) {
        let peer = self.clients.borrow().peer(caller);
        self.clients.borrow_mut().forget(caller, request);
        if let Some(peer) = peer {
            let header = Header::new(Kind::Reply, version, caller.id, request, self.epoch());
            let to = Sender { peer, caller };
            self.refuse(to, &header, Der::OVERLOAD_RETRY, STOPPING_PAUSE, "the server is stopping");
        }
    }

    /// Sends a finished request's reply; at once, when it tells of moved memory: the client may ask for the next while
    /// others' is moving.
    #[inline(always)]
    fn answer(&self, to: Sender, request: u64, version: u16, bulk: bool, finished: &Finished) {
        let mut header = Header::new(Kind::Reply, version, to.caller.id, request, self.epoch());
        header.deadline = self.id.bits();
        header.status = finished.status;
        header.body_len = u32::try_from(finished.body.len()).unwrap_or(0);
        self.reply(to, header, &finished.body, if bulk { 1 } else { self.company() });
    }
}
