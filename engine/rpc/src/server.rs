//! Taking requests in and sending replies out.

use crate::accesses::Accesses;
use crate::bulk::WITHDRAWAL_GRACE;
use crate::desk::{Counter, Handler};
use crate::error::Status;
use crate::metrics::{add, sub};
use crate::replies::{Admission, Finished, ServedSession, Stranger};
use crate::request::{Asked, Request};
use crate::seal::{Nonce, SealKey};
use crate::session::common_version;
use crate::wire::{self, ClientId, Header, Kind, Layout};
use crate::{INLINE_MAX, Inner, local_deadline};
use core::time::Duration;
use std::rc::Rc;
use weir_fabric::{Address, Message, PeerId, Source};
use weir_proto::hlc::ClockSkew;
use weir_proto::{Der, TenantId};
use weir_runtime::Instant;

/// The body of a reply.
pub type Body = Vec<u8>;

/// When to come again to a server that is starting: opening takes some milliseconds.
const STARTING_PAUSE: Duration = Duration::from_millis(10);

/// Part of the room for running requests that is kept for those that were sent away before.
const RETURNERS: usize = 8;

/// An operation that is served.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) handler: Rc<dyn Handler>,
    /// Who executes its requests.
    pub(crate) counter: Rc<Counter>,
    /// Also when there is no room for others.
    pub(crate) urgent: bool,
}

impl Served {
    pub(crate) fn new(handler: Rc<dyn Handler>, urgent: bool) -> Self {
        Self { handler, counter: Rc::default(), urgent }
    }
}

/// A request being executed.
pub(crate) struct Running {
    inner: Rc<Inner>,
    client: ClientId,
    request: u64,
    version: u16,
    /// Its accesses to the client's memory, and when they must have ended.
    accesses: Option<(Rc<Accesses>, Instant)>,
    /// It moves client memory: its reply waits for no other.
    bulk: bool,
    finished: bool,
}

impl Running {
    /// The request was executed. Its reply waits until nothing is at the client's memory any more.
    pub(crate) fn finish(mut self, result: Result<Body, Status>) {
        let busy = self.accesses.take().filter(|(accesses, _)| accesses.is_busy());
        let Some((accesses, until)) = busy else {
            self.reply(result);
            return;
        };
        add(&self.inner.metrics.replies_held, 1);
        let rt = self.inner.rt.clone();
        rt.clone().spawn(async move {
            // The client uses its memory again by then, whatever is said here.
            let _ = rt.timeout_at(until, accesses.idle()).await;
            self.reply(result);
        });
    }

    fn reply(mut self, result: Result<Body, Status>) {
        self.finished = true;
        self.inner.finish(&self, result);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        sub(&self.inner.metrics.running, 1);
        self.inner.load.finished(self.inner.rt.now());
        if !self.finished {
            self.inner.clients.borrow_mut().forget(self.client, self.request);
        }
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
        let Some(peer) = self.sender(header, message, layout) else {
            add(&self.metrics.unknown_senders, 1);
            return;
        };
        let Ok(nonce) = self.open_session(header, message, layout) else { return };
        let common = common_version(&self.config.versions, &theirs);
        if common.is_none() {
            add(&self.metrics.version_refused, 1);
            tracing::warn!(ours = ?self.config.versions, ?theirs, "a client of another protocol version");
        }
        self.answer_hello(peer, header, common, nonce);
    }

    /// Agrees on the session's key with a client whose hello is authentic. Returns this side's part of it.
    fn open_session(&self, header: &Header, message: &Message, layout: &Layout) -> Result<Option<Nonce>, ()> {
        let Some(ring) = &self.ring else { return Ok(None) };
        let tenant = TenantId(header.tenant);
        let theirs = message.get(layout.body.clone()).and_then(wire::decode_nonce);
        let (Some(theirs), Some((key, _))) = (theirs, ring.of(tenant)) else {
            add(&self.metrics.malformed, 1);
            return Err(());
        };
        let ours = self.fresh_nonce();
        let seal = SealKey::of_session(&key, (header.client, theirs), (self.id, ours));
        let session = ServedSession { tenant, seal, hello: header.request, theirs, ours };
        match self.clients.borrow_mut().open(header.client, session) {
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

    fn answer_hello(&self, peer: PeerId, header: &Header, common: Option<u16>, nonce: Option<Nonce>) {
        let version = common.unwrap_or(*self.config.versions.end());
        let mut reply = Header::new(Kind::HelloReply, version, header.client, header.request, self.epoch());
        let bare = wire::encode_versions(&self.config.versions);
        let whole = nonce.map(|nonce| wire::encode_hello(&self.config.versions, &nonce));
        let body: &[u8] = whole.as_ref().map_or(&bare, |whole| whole);
        reply.body_len = u32::try_from(body.len()).unwrap_or(0);
        reply.deadline = self.id.bits();
        reply.status = if common.is_some() { 0 } else { Der::PROTO.0 };
        self.reply(peer, reply, body, self.company());
    }

    /// Requests that are being executed: their replies may follow in this moment.
    fn company(&self) -> usize {
        usize::try_from(self.metrics.running.get()).unwrap_or(usize::MAX)
    }

    /// Sends a reply. When that fails the client asks again.
    fn reply(&self, peer: PeerId, mut header: Header, body: &[u8], company: usize) {
        add(&self.metrics.replies, 1);
        let session = self.ring.as_ref().and_then(|_| self.clients.borrow().seal(header.client));
        let key = session.as_ref().map(|(_, key)| key);
        header.tenant = session.map_or(0, |(tenant, _)| tenant.0);
        if let Err(error) = self.transmit(peer, 0, &mut header, &[], &[], body, key, company) {
            add(&self.metrics.sends_failed, 1);
            tracing::debug!(%error, "a reply could not be sent");
        }
    }

    /// Who sent this, as an entry of the address vector: the address in the message where there is one, else what the
    /// provider says, else where this client was last, if the provider can't name it.
    fn sender(&self, header: &Header, message: &Message, layout: &Layout) -> Option<PeerId> {
        // The short way: who says nothing of where it is, and comes from where the provider named it before.
        if let Source::Peer(peer) = message.source()
            && layout.greeting.is_empty()
            && self.clients.borrow_mut().comes_again(header.client, *peer, self.rt.now())
        {
            return Some(*peer);
        }
        // Where the network tells tenants apart, its word is the only one: an address in a message has no key.
        let served = self.endpoint.capabilities().auth_keys;
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
        let inserted = address.as_ref().and_then(|address| self.endpoint.insert(address).ok());
        if let (Some(known), Some(inserted)) = (known, inserted)
            && known != inserted
        {
            add(&self.metrics.impostors, 1);
            return None;
        }
        let unnamed = || self.clients.borrow().unnamed(header.client);
        let peer = inserted.or(known).or_else(unnamed)?;
        let met = self.clients.borrow_mut().meet(header.client, peer, address.as_ref(), self.rt.now());
        match met {
            Ok(forgotten) => {
                self.strangers.release(peer);
                if known.is_some() {
                    self.clients.borrow_mut().name(header.client);
                }
                for gone in forgotten.into_iter().filter(|gone| *gone != peer && !self.is_contact(*gone)) {
                    self.endpoint.remove(gone);
                }
                Some(peer)
            }
            Err(Stranger::Impostor | Stranger::Replay) => {
                add(&self.metrics.impostors, 1);
                None
            }
            Err(Stranger::NoRoom) => {
                add(&self.metrics.overloaded, 1);
                None
            }
        }
    }

    /// Answers a request that is not executed. Such answers are not remembered.
    fn refuse(&self, peer: PeerId, header: &Header, der: Der, pause: Duration, text: &str) {
        let epoch = self.epoch();
        let mut reply = Header::new(Kind::Reply, header.version, header.client, header.request, epoch);
        reply.deadline = self.id.bits();
        reply.status = der.0;
        reply.acked = u64::try_from(pause.as_nanos()).unwrap_or(0);
        reply.body_len = u32::try_from(text.len()).unwrap_or(0);
        self.reply(peer, reply, text.as_bytes(), self.company());
    }

    pub(crate) fn refuse_skewed(&self, header: &Header, message: &Message, layout: &Layout, skew: ClockSkew) {
        if let Some(peer) = self.sender(header, message, layout) {
            self.refuse(peer, header, Der::HLC_SYNC, Duration::ZERO, &skew.to_string());
        }
    }

    /// A request arrived.
    pub(crate) fn requested(&self, header: &mut Header, message: Message, layout: &Layout, wall_ns: u64) {
        let Some(peer) = self.sender(header, &message, layout) else {
            add(&self.metrics.unknown_senders, 1);
            return;
        };
        if self.ring.is_none()
            && let Some(key) = self.endpoint.auth_key(peer)
        {
            // The network has checked it; what the message says counts for nothing.
            header.tenant = u64::from(key.vni);
        }
        if !self.config.versions.contains(&header.version) {
            add(&self.metrics.version_refused, 1);
            self.answer_hello(peer, header, None, None);
            return;
        }
        let now = self.rt.now();
        let deadline = local_deadline(now, self.no_earlier(wall_ns), header);
        if deadline <= now {
            add(&self.metrics.expired, 1);
            if self.clients.borrow().is_running(header.client, header.request) {
                // A repeat: the first one may be at the client's memory, and will answer.
                return;
            }
            let text = "the request had expired when it was unpacked";
            self.refuse(peer, header, Der::TIMEDOUT, Duration::ZERO, text);
            return;
        }
        let Ok(segments) = wire::decode_segments(message.get(layout.segments.clone()).unwrap_or_default())
        else {
            add(&self.metrics.malformed, 1);
            self.refuse(peer, header, Der::PROTO, Duration::ZERO, "a bulk segment of the request is invalid");
            return;
        };
        let Some(served) = self.handlers.borrow().get(&header.opcode).cloned() else {
            if self.starting.get() {
                self.refuse(peer, header, Der::OVERLOAD_RETRY, STARTING_PAUSE, "the server is starting");
                return;
            }
            let text = format!("operation {:#06x} is not served here", header.opcode);
            self.refuse(peer, header, Der::NOSYS, Duration::ZERO, &text);
            return;
        };
        if !self.admit(header, peer, served.urgent) {
            return;
        }
        // The context can't be gone while its sink is called.
        let Some(inner) = self.weak.upgrade() else { return };
        add(&self.metrics.requests, 1);
        add(&self.metrics.running, 1);
        let (client, request, version) = (header.client, header.request, header.version);
        let bulk = !segments.is_empty();
        let accesses = bulk.then(|| Accesses::open(&inner, client, request));
        let until = accesses.clone().map(|accesses| (accesses, deadline + WITHDRAWAL_GRACE));
        let inner_of = Rc::clone(&inner);
        let running =
            Running { inner: inner_of, client, request, version, accesses: until, bulk, finished: false };
        let asked = Asked::new(header);
        let request = Request::new(inner, asked, message, layout.body.clone(), segments, deadline, accesses);
        served.counter.take(self, &served.handler, running, request);
    }

    /// Whether to execute a request now; if not, it has been answered as far as it can be.
    fn admit(&self, header: &Header, peer: PeerId, urgent: bool) -> bool {
        let kept = if header.resend { 0 } else { self.config.running_max / RETURNERS };
        let room = u64::try_from(self.config.running_max - kept).unwrap_or(u64::MAX);
        let admission = self.clients.borrow_mut().begin(header.client, header.request, header.acked);
        match admission {
            Admission::New => {
                let overdrawn = self.clients.borrow().running(header.client) > self.config.running_per_client;
                if !overdrawn && (urgent || self.metrics.running.get() < room) {
                    return true;
                }
                add(&self.metrics.overloaded, 1);
                add(&self.metrics.overdrawn, u64::from(overdrawn));
                self.clients.borrow_mut().forget(header.client, header.request);
                let pause = self.load.pause(self.rt.now());
                self.refuse(peer, header, Der::OVERLOAD_RETRY, pause, "");
                false
            }
            Admission::Running => {
                add(&self.metrics.repeats_running, 1);
                let epoch = self.epoch();
                let id = header.request;
                let mut sign = Header::new(Kind::Working, header.version, header.client, id, epoch);
                sign.deadline = self.id.bits();
                self.reply(peer, sign, &[], self.company());
                false
            }
            Admission::Stale => {
                add(&self.metrics.repeats_stale, 1);
                false
            }
            Admission::Forgotten => {
                add(&self.metrics.repeats_forgotten, 1);
                let text = "the request was executed, but its reply is not remembered any more";
                self.refuse(peer, header, Der::STALE, Duration::ZERO, text);
                false
            }
            Admission::Finished => {
                add(&self.metrics.repeats_answered, 1);
                let clients = self.clients.borrow();
                if let Some(finished) = clients.finished(header.client, header.request) {
                    self.answer(peer, header.client, header.request, header.version, false, finished);
                }
                false
            }
        }
    }

    fn finish(&self, running: &Running, result: Result<Body, Status>) {
        let Running { client, request, version, bulk, .. } = *running;
        let result = match result {
            Ok(body) if body.len() > INLINE_MAX => {
                let len = body.len();
                let text =
                    format!("the reply of {len} bytes is larger than the inline limit of {INLINE_MAX}");
                Err(Status::new(Der::OVERFLOW, text))
            }
            other => other,
        };
        let finished = match result {
            Ok(body) => Finished { status: 0, body },
            Err(status) => {
                let mut body = status.message.into_bytes();
                body.truncate(INLINE_MAX);
                // A handler's error must not read as success.
                let code = if status.der.0 == 0 { Der::MISC.0 } else { status.der.0 };
                Finished { status: code, body }
            }
        };
        // The client may have moved while the request ran.
        let peer = self.clients.borrow().peer(client);
        if let Some(peer) = peer {
            self.answer(peer, client, request, version, bulk, &finished);
        }
        self.clients.borrow_mut().finish(client, request, finished);
    }

    /// Sends a finished request's reply; at once, when it tells of moved memory: the client may ask for the next while
    /// others' is moving.
    fn answer(
        &self,
        peer: PeerId,
        client: ClientId,
        request: u64,
        version: u16,
        bulk: bool,
        finished: &Finished,
    ) {
        let mut header = Header::new(Kind::Reply, version, client, request, self.epoch());
        header.deadline = self.id.bits();
        header.status = finished.status;
        header.body_len = u32::try_from(finished.body.len()).unwrap_or(0);
        self.reply(peer, header, &finished.body, if bulk { 1 } else { self.company() });
    }
}
