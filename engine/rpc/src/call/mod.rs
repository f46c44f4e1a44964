//! The client's side: one call, from contact and credit to the reply, and the memory that it exposes. It calls the context, which
//! sends, and the records of contact, replies and transfers. Users of the crate call it by [`crate::Rpc`].

mod bulk;
mod connect;
mod plain;
mod ready;

pub use bulk::Bulk;

use crate::admission::{Class, LaneId, PAUSE_MAX, Permit, Quota};
use crate::config::{CallOptions, Retry};
use crate::contact::{Peer, PeerState, Session};
use crate::context::Context;
use crate::error::{RpcError, Status};
use crate::metrics::add;
use crate::reply::{Answer, Arrived, NoAnswer, Outcome, Proof, Reply, Wait};
use crate::wire::{ClientId, Header, Kind};
use bulk::Exposed;
use connect::CLOCKS_APART;
use core::cell::Cell;
use core::pin::Pin;
use core::task::{Context as TaskContext, Poll};
use core::time::Duration;
use plain::{Plain, Sent};
use std::borrow::Cow;
use std::rc::Rc;
use weir_fabric::FabricError;
use weir_proto::Der;
use weir_proto::limits::INLINE_MAX;
use weir_proto::opcode::REQUEST_WITHDRAW;
use weir_runtime::{Elapsed, Instant};

/// Tries without any answer after which contact counts as lost.
const SILENT_TRIES_MAX: u32 = 2;

/// The request id of a call; it counts as unfinished until this is dropped.
pub(crate) struct Ticket<'a> {
    context: &'a Context,
    pub(crate) state: Rc<PeerState>,
    pub(crate) id: u64,
    /// Its reply was taken, and nothing more is expected.
    answered: Cell<bool>,
}

impl<'a> Ticket<'a> {
    #[inline]
    pub(crate) fn new(context: &'a Context, state: Rc<PeerState>) -> Self {
        let id = context.take_request();
        state.outstanding.borrow_mut().begin(id);
        Self { context, state, id, answered: Cell::new(false) }
    }

    /// Waits for the answer.
    fn wait(&self) -> Wait<'_> {
        self.context.pending.wait(&self.context.rt, self.id)
    }

    /// Takes the reply when it has come. `None`: [`Ticket::wait`] tells at once what has come in its place.
    #[inline]
    pub(crate) fn poll_reply(&self, cx: &TaskContext<'_>) -> Poll<Option<Reply>> {
        let polled = self.context.pending.poll_reply(&self.context.rt, self.id, cx);
        if let Poll::Ready(Some(_)) = polled {
            self.state.heard.set(self.context.rt.now());
            self.answered.set(true);
        }
        polled
    }

    /// A reply has come. For what is returned see [`Exposed::settle`].
    fn replied(&self, exposed: &mut Lent<'_, '_>) -> bool {
        self.state.heard.set(self.context.rt.now());
        exposed.0.as_mut().is_none_or(|exposed| exposed.settle(self.context.pending.replied_by(self.id)))
    }

    /// Takes the reply that has come.
    fn take_reply(&self) -> Result<Reply, RpcError> {
        self.answered.set(true);
        // It is there: nobody else takes it.
        self.context.pending.take_reply(self.id).ok_or(RpcError::Closed)
    }
}

impl Drop for Ticket<'_> {
    #[inline]
    fn drop(&mut self) {
        self.state.outstanding.borrow_mut().end(self.id);
        if !self.answered.get() {
            self.context.pending.forget(self.id);
        }
    }
}

/// What goes out on every try of a call.
pub(crate) struct Letter<'a> {
    pub(crate) opcode: u16,
    pub(crate) body: &'a [u8],
    pub(crate) options: CallOptions,
    /// The deadline on the wall clock.
    pub(crate) wall_deadline: u64,
}

impl<'a> Letter<'a> {
    /// What goes out of a call that is made at this time by either clock.
    #[inline]
    pub(crate) fn new(
        context: &Context,
        opcode: u16,
        body: &'a [u8],
        options: CallOptions,
        (now, wall): (Instant, u64),
    ) -> Self {
        let wall_deadline = context.no_earlier(wall).saturating_add(options.deadline.nanos_since(now));
        Self { opcode, body, options, wall_deadline }
    }

    /// When a try that is made now counts as lost, of one that waits for so long.
    #[inline]
    pub(crate) fn due(&self, now: Instant, wait: Duration) -> Instant {
        match self.options.retry {
            Retry::Idempotent => self.options.deadline.min(now + wait),
            Retry::Never => self.options.deadline,
        }
    }
}

/// The memory that a call exposes, where it does.
struct Lent<'a, 'b: 'a>(Option<Exposed<'a, 'b>>);

impl<'a, 'b: 'a> Lent<'a, 'b> {
    /// Exposes memory, where there is any, with leave to do so.
    #[inline]
    fn lend(
        &mut self,
        context: &'a Rc<Context>,
        state: &Rc<PeerState>,
        request: u64,
        bulk: Option<(&'a mut Bulk<'b>, Permit)>,
        deadline: Instant,
    ) -> Result<(), RpcError> {
        if let Some(bulk) = bulk {
            self.0 = Some(Exposed::new(context, state, request, bulk, deadline)?);
        }
        Ok(())
    }

    /// See [`Exposed::outlast`]; that takes no credit. Boxed, because hardly any call ends with this.
    fn outlast(&mut self, credit: Option<Permit>) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
        drop(credit);
        let exposed = self.0.take();
        Box::pin(async move {
            if let Some(exposed) = exposed {
                exposed.outlast().await;
            }
        })
    }

    /// The same of a call whose reply has come, which is taken last.
    async fn outlast_answered(mut self, sent: Sent<'_>) -> Result<Reply, RpcError> {
        let Sent { ticket, credit, .. } = sent;
        self.outlast(Some(credit)).await;
        ticket.take_reply()
    }

    /// The call has failed, refused by this incarnation of the server, if any. See [`Exposed::withdraw`] for where one may be at
    /// the memory; that takes no credit. Boxed, because hardly any call ends with this.
    fn give_up(
        &mut self,
        by: Option<ClientId>,
        credit: Option<Permit>,
    ) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
        drop(credit);
        let exposed = self.0.take();
        Box::pin(async move {
            if let Some(mut exposed) = exposed
                && !exposed.settle(by)
            {
                exposed.withdraw().await;
            }
        })
    }
}

/// What to do after a try.
enum Next {
    Failed(RpcError),
    /// Try again after a pause; `None`: after the growing one.
    Again(Option<Duration>, Cow<'static, str>),
    /// Try again, once it is known whether the server has moved.
    Look(Rc<Session>),
}

/// Whether an error is the server's word that it is not at the request. What is said to a hello is not: it is of another
/// incarnation than had the request before, or of anybody.
fn is_refusal(error: &RpcError) -> bool {
    matches!(error, RpcError::Remote(_))
}

/// Counts how calls end. One that this context makes for itself is not counted.
struct Tally<'a>(Option<&'a Context>);

impl Tally<'_> {
    /// A call has failed.
    fn failed(&self, error: RpcError) -> RpcError {
        if let Some(context) = self.0 {
            add(&context.metrics.calls_failed, 1);
            add(&context.metrics.timeouts, u64::from(matches!(error, RpcError::TimedOut { .. })));
        }
        error
    }
}

/// What a call asks for.
pub(crate) struct Asked<'a> {
    pub(crate) context: &'a Rc<Context>,
    pub(crate) to: &'a Peer,
    pub(crate) opcode: u16,
    pub(crate) body: &'a [u8],
    pub(crate) options: CallOptions,
    tally: Tally<'a>,
    /// Set when a call fails that was sent more than once.
    resent: Option<&'a Cell<bool>>,
}

/// A call that is counted. It goes the plain way first, or the one like it of those that lend memory.
#[inline]
#[expect(clippy::manual_async_fn, reason = "an async fn copies its arguments once more when it begins")]
pub(crate) fn call(
    context: &Rc<Context>,
    to: &Peer,
    opcode: u16,
    body: &[u8],
    mut bulk: Option<Bulk<'_>>,
    options: CallOptions,
    resent: Option<&Cell<bool>>,
) -> impl Future<Output = Result<Reply, RpcError>> {
    async move {
        add(&context.metrics.calls, 1);
        let asked = Asked { context, to, opcode, body, options, tally: Tally(Some(context)), resent };
        if let Some(bulk) = bulk.as_mut().filter(|bulk| !bulk.is_empty()) {
            return asked.lend(bulk).await;
        }
        // Boxed: a call is moved to where it is awaited, and what hardly any call needs is most of it.
        match Plain::new(&asked).await {
            Ok(reply) => Ok(reply),
            Err(Some(sent)) => Box::pin(asked.go_on(sent, Lent(None))).await,
            Err(None) => Box::pin(asked.go(None)).await,
        }
    }
}

/// A call that this context makes for itself.
pub(crate) async fn call_uncounted(
    context: &Rc<Context>,
    to: &Peer,
    opcode: u16,
    body: &[u8],
    options: CallOptions,
) -> Result<Reply, RpcError> {
    Asked { context, to, opcode, body, options, tally: Tally(None), resent: None }.go(None).await
}

impl Asked<'_> {
    /// From the beginning.
    #[expect(clippy::manual_async_fn, reason = "an async fn keeps its arguments beside what becomes of them")]
    fn go(&self, bulk: Option<&mut Bulk<'_>>) -> impl Future<Output = Result<Reply, RpcError>> {
        async move {
            let context = self.context;
            let start = context.rt.now();
            if self.body.len() > INLINE_MAX {
                return Err(self.tally.failed(RpcError::TooLarge { len: self.body.len(), max: INLINE_MAX }));
            }
            let state = context.peer_state(self.to);
            let mut course = Course::new(context, start);
            self.meet(&state, &mut course).await.map_err(|error| self.tally.failed(error))?;
            let class = Class::of(self.options.priority);
            let leave =
                context.leave(&state, self.opcode, class, self.options.deadline, bulk.is_some()).await;
            let (exposing, credit) =
                leave.map_err(|waited_for| self.timed_out(start, 0, waited_for.to_owned()))?;
            let ticket = Ticket::new(context, state);
            let mut exposed = Lent(None);
            let lent =
                exposed.lend(context, &ticket.state, ticket.id, bulk.zip(exposing), self.options.deadline);
            lent.map_err(|error| self.tally.failed(error))?;
            let letter = Letter::new(context, self.opcode, self.body, self.options, context.rt.times());
            self.attempt_all(&ticket, &letter, &mut exposed, credit, &mut course, None).await
        }
    }

    /// A call that lends memory. Nearly each has contact, leave and a credit at once, and gets a reply: none of that is boxed, so
    /// that nothing is allocated for it. Whatever else happens is left to the long way.
    #[expect(clippy::manual_async_fn, reason = "an async fn keeps its arguments beside what becomes of them")]
    fn lend(&self, bulk: &mut Bulk<'_>) -> impl Future<Output = Result<Reply, RpcError>> {
        async move {
            let begun = Sent::begin(self, |context, state, class| {
                context.bulks.try_acquire(state.bulk_place.lane(), class)
            });
            let Some((exposing, mut sent)) = begun else { return Box::pin(self.go(Some(bulk))).await };
            let (mut exposed, Ticket { state, id, .. }) = (Lent(None), &sent.ticket);
            let lent = exposed.lend(self.context, state, *id, Some((bulk, exposing)), self.options.deadline);
            lent.map_err(|error| self.tally.failed(error))?;
            sent.post(self, None, |sent, letter| {
                let Sent { ticket, session, at, .. } = sent;
                self.context.post_lent(ticket, session, letter, exposed.0.as_ref(), false, *at)
            });
            if sent.refused.is_some() || sent.ticket.wait().await != Ok(Arrived::Reply) {
                return Box::pin(self.go_on(sent, exposed)).await;
            }
            if sent.ticket.replied(&mut exposed) {
                return sent.ticket.take_reply();
            }
            Box::pin(exposed.outlast_answered(sent)).await
        }
    }

    /// From the first try on, which was made and has no reply.
    async fn go_on(&self, sent: Sent<'_>, exposed: Lent<'_, '_>) -> Result<Reply, RpcError> {
        let Sent { ticket, session, credit, wall_deadline, at, refused } = sent;
        // Dropped before the ticket, as everywhere: the memory's accesses have ended before the request has.
        let mut exposed = exposed;
        let letter = Letter { opcode: self.opcode, body: self.body, options: self.options, wall_deadline };
        let mut course = Course::new(self.context, at);
        course.silent.1 = at;
        course.wait = ticket.state.first_wait(at, course.wait);
        let first = if let Some(error) = refused {
            Err(course.refused(&ticket.state, &session, *error))
        } else {
            course.tries = 1;
            Ok(session)
        };
        self.attempt_all(&ticket, &letter, &mut exposed, Some(credit), &mut course, Some(first)).await
    }

    /// Tries until there is a reply, or the deadline. `first`: what came of a try that was made. The reply moves only once on
    /// its way to the caller: who waits is told that it has come, and takes it last.
    async fn attempt_all(
        &self,
        ticket: &Ticket<'_>,
        letter: &Letter<'_>,
        exposed: &mut Lent<'_, '_>,
        mut credit: Option<Permit>,
        course: &mut Course<'_>,
        mut first: Option<Result<Rc<Session>, Next>>,
    ) -> Result<Reply, RpcError> {
        let (context, state, tally) = (self.context, &ticket.state, &self.tally);
        let deadline = self.options.deadline;
        let mut now = context.rt.now();
        loop {
            let tried = match first.take() {
                Some(first) => first,
                None if now >= deadline => break,
                None => {
                    let session = if let Some(session) = state.session().filter(|_| credit.is_some()) {
                        Ok(session)
                    } else {
                        let made = Box::pin(self.be_ready(state, course, &mut credit)).await;
                        now = context.rt.now();
                        made
                    };
                    session.and_then(|session| course.begin(session, ticket, letter, exposed, now))
                }
            };
            let next = match tried {
                Ok(session) => match ticket.wait().await {
                    Ok(Arrived::Reply) => {
                        if !ticket.replied(exposed) {
                            exposed.outlast(credit).await;
                        }
                        return ticket.take_reply();
                    }
                    arrived => course.end(state, &session, letter, ticket.id, arrived),
                },
                Err(next) => next,
            };
            match next {
                Next::Failed(error) => {
                    self.note(course);
                    exposed.give_up(course.spoke.filter(|_| is_refusal(&error)), credit).await;
                    return Err(tally.failed(error));
                }
                Next::Look(session) => {
                    course.last = "no answer".into();
                    now = Box::pin(course.look(state, &session, deadline)).await;
                }
                Next::Again(pause, why) => {
                    course.last = why;
                    if pause != Some(Duration::ZERO) {
                        drop(credit.take());
                        Box::pin(course.rest(pause, deadline)).await;
                    }
                    now = context.rt.now();
                }
            }
        }
        self.note(course);
        exposed.give_up(None, credit).await;
        Err(match (course.tries, core::mem::take(&mut course.last).into_owned()) {
            (0, reason) => tally.failed(RpcError::Unreachable { peer: self.to.clone(), reason }),
            (tries, last) => self.timed_out(course.start, tries, last),
        })
    }

    /// Says whether a call that fails was sent more than once.
    fn note(&self, course: &Course<'_>) {
        if let Some(resent) = self.resent.filter(|_| course.tries > 1) {
            resent.set(true);
        }
    }

    fn timed_out(&self, start: Instant, tries: u32, last: String) -> RpcError {
        let (peer, waited) = (self.to.clone(), self.context.rt.now() - start);
        self.tally.failed(RpcError::TimedOut { peer, opcode: self.opcode, waited, tries, last })
    }
}

impl Context {
    /// Sends a request to the server that there is contact with.
    #[inline]
    pub(crate) fn post(
        &self,
        ticket: &Ticket<'_>,
        session: &Session,
        letter: &Letter<'_>,
        exposed: Option<&Exposed<'_, '_>>,
        resend: bool,
        now: Instant,
    ) -> Result<(), FabricError> {
        let state = &ticket.state;
        let mut header = Header::new(Kind::Request, session.version, state.client, ticket.id, self.epoch());
        header.resend = resend;
        header.greeting = resend || self.config.greet_always || state.wants_greeting(now);
        header.opcode = letter.opcode;
        header.segments = exposed.map_or(0, Exposed::count);
        header.body_len = u32::try_from(letter.body.len()).unwrap_or(0);
        header.deadline = letter.wall_deadline;
        header.acked = state.acked(ticket.id);
        header.tenant = self.ring.as_ref().map_or(0, |ring| ring.tenant().0);
        let address = header.greeting.then(|| self.endpoint.address());
        let greeting = address.as_ref().map_or(&[][..], |address| address.as_bytes());
        let key = session.key.as_ref();
        let company = state.outstanding.borrow().len();
        let segments = exposed.map_or(&[][..], Exposed::descriptors);
        self.transmit(session.id, ticket.id, &mut header, greeting, segments, letter.body, key, company)
    }

    /// The same with the memory that is lent, if any, which the server has seen from then on. Not inlined, so that the way of small
    /// requests has [`Context::post`] to itself: in a call of its own that takes them 70 instructions more.
    #[inline(never)]
    fn post_lent(
        &self,
        ticket: &Ticket<'_>,
        session: &Session,
        letter: &Letter<'_>,
        exposed: Option<&Exposed<'_, '_>>,
        resend: bool,
        now: Instant,
    ) -> Result<(), FabricError> {
        self.post(ticket, session, letter, exposed, resend, now)?;
        if let Some(exposed) = exposed {
            exposed.sent_to(session.server);
        }
        Ok(())
    }

    /// Waits for leave to expose memory, where the call has some, and then to send the request: `Err` says for which of them
    /// until the deadline.
    async fn leave(
        &self,
        state: &PeerState,
        opcode: u16,
        class: Class,
        deadline: Instant,
        has_memory: bool,
    ) -> Result<(Option<Permit>, Option<Permit>), &'static str> {
        let mut exposing = None;
        if has_memory {
            let leave = self.turn(&self.bulks, state.bulk_place.lane(), class, deadline).await;
            exposing = Some(leave.map_err(|Elapsed| "waiting for leave to expose memory")?);
        }
        let credit = self.credit(state, opcode, class, deadline).await;
        Ok((exposing, credit.map_err(|Elapsed| "waiting for a credit")?))
    }

    /// Waits for leave to send a request. Withdrawals need none: they are answered at once, and made for calls that have
    /// ended; those to one server, which may be dead, must not use up what calls to others need.
    async fn credit(
        &self,
        state: &PeerState,
        opcode: u16,
        class: Class,
        deadline: Instant,
    ) -> Result<Option<Permit>, Elapsed> {
        if opcode == REQUEST_WITHDRAW {
            return Ok(None);
        }
        self.turn(&self.requests, state.place.lane(), class, deadline).await.map(Some)
    }

    /// Waits for a turn in a quota.
    async fn turn(
        &self,
        quota: &Quota,
        lane: LaneId,
        class: Class,
        deadline: Instant,
    ) -> Result<Permit, Elapsed> {
        let mut turn = quota.acquire(lane, class);
        if let Some(permit) = turn.ready() {
            return Ok(permit);
        }
        add(&self.metrics.queued, 1);
        self.rt.timeout_at(deadline, turn).await
    }
}

/// How the tries of one call are going.
struct Course<'a> {
    context: &'a Context,
    tries: u32,
    /// Tries in a row without an answer, and when the first of them began.
    silent: (u32, Instant),
    /// The incarnation of the server that has answered last, though not with a reply.
    spoke: Option<ClientId>,
    wait: Duration,
    backoff: Duration,
    last: Cow<'static, str>,
    start: Instant,
}

impl<'a> Course<'a> {
    fn new(context: &'a Context, start: Instant) -> Self {
        let config = &context.config;
        let last = Cow::Borrowed("no contact was made");
        Self {
            context,
            start,
            tries: 0,
            silent: (0, Instant::default()),
            spoke: None,
            wait: config.attempt_min,
            backoff: config.backoff_min,
            last,
        }
    }

    /// Waits before the next try. Whoever waits takes no credit from others, and is among the first when it comes back;
    /// without one at the deadline, when the call ends by itself.
    async fn rest(&mut self, pause: Option<Duration>, deadline: Instant) {
        let context = self.context;
        if let Some(pause) = pause {
            context.stay_away(pause, deadline).await;
        } else {
            let pause = self.backoff;
            self.backoff = (pause * 2).min(context.config.backoff_max);
            context.pause(pause, deadline).await;
        }
    }

    /// Makes contact, or says what to do without.
    async fn contact(&self, state: &Rc<PeerState>, deadline: Instant) -> Result<Rc<Session>, Next> {
        self.context.connect(state, deadline).await.map_err(|error| match error {
            RpcError::Version { .. } | RpcError::Denied { .. } | RpcError::Closed => Next::Failed(error),
            error => Next::Again(None, error.into_reason().into()),
        })
    }

    /// Finds out whether a silent server has moved; in the background when the call is over. When it is now.
    async fn look(&mut self, state: &Rc<PeerState>, session: &Rc<Session>, deadline: Instant) -> Instant {
        let rt = &self.context.rt;
        let look = self.context.look_for(state, session);
        if rt.now() >= deadline {
            drop(rt.spawn(look));
        } else if rt.timeout_at(deadline, look).await.is_ok() && !state.stands(session) {
            // What comes now goes elsewhere.
            self.silent.0 = 0;
        }
        rt.now()
    }

    /// Begins a try: sends the request, from when on its answer is expected.
    fn begin(
        &mut self,
        session: Rc<Session>,
        ticket: &Ticket<'_>,
        letter: &Letter<'_>,
        exposed: &Lent<'_, '_>,
        now: Instant,
    ) -> Result<Rc<Session>, Next> {
        let (context, state, exposed) = (self.context, &ticket.state, exposed.0.as_ref());
        if self.silent.0 == 0 {
            self.silent.1 = now;
        }
        let due = letter.due(now, self.wait);
        context.expect(ticket.id, session.id, state, || Proof::Session(Rc::clone(&session)), due, None);
        if let Err(error) = context.post_lent(ticket, &session, letter, exposed, self.tries > 0, now) {
            return Err(self.refused(state, &session, error));
        }
        if self.tries > 0 {
            add(&context.metrics.retries, 1);
        }
        self.tries += 1;
        Ok(session)
    }

    /// What to do when a request could not be sent.
    fn refused(&self, state: &PeerState, session: &Rc<Session>, error: FabricError) -> Next {
        match error {
            FabricError::UnknownPeer | FabricError::NoBuffers { .. } | FabricError::Unreachable { .. } => {
                self.context.disconnect(state, session);
                Next::Again(None, error.to_string().into())
            }
            error => Next::Failed(error.into()),
        }
    }

    /// Ends a try when something else has arrived than a reply, or nothing.
    #[inline(never)]
    fn end(
        &mut self,
        state: &PeerState,
        session: &Rc<Session>,
        letter: &Letter<'_>,
        request: u64,
        arrived: Result<Arrived, NoAnswer>,
    ) -> Next {
        let (context, retry) = (self.context, letter.options.retry);
        match arrived.and_then(|_| context.pending.take(request).ok_or(NoAnswer::Closed)) {
            Ok(Outcome::Answer(answer)) => {
                state.heard.set(context.rt.now());
                self.silent.0 = 0;
                self.spoke = Some(answer.server);
                self.judge(state, session, &answer)
            }
            Ok(Outcome::Notice(_)) => {
                // The server has restarted, or has forgotten this client: it executed nothing of this try.
                state.heard.set(context.rt.now());
                self.silent.0 = 0;
                context.disconnect(state, session);
                if retry == Retry::Never && self.tries > 1 {
                    return Self::broken(state, Retry::Never, "the server doesn't know this client any more");
                }
                Next::Again(Some(Duration::ZERO), "the server doesn't know this client any more".into())
            }
            Ok(Outcome::Early) => {
                // It is there, and may have executed the request. Other calls may be luckier: clocks are set right again.
                state.heard.set(context.rt.now());
                self.silent.0 = 0;
                Self::broken(state, retry, CLOCKS_APART)
            }
            Ok(Outcome::Failed(error)) => {
                context.disconnect(state, session);
                Self::broken(state, retry, &error.to_string())
            }
            // A reply is taken where it is.
            Ok(Outcome::Reply(_)) | Err(NoAnswer::Closed) => Next::Failed(RpcError::Closed),
            Err(NoAnswer::Late) => {
                self.wait = (self.wait * 2).min(context.config.attempt_max);
                self.silent.0 += 1;
                // Answers to other calls show that the server is there and only slow; tries are counted anew then.
                if state.heard.get() > self.silent.1 {
                    self.silent.0 = 0;
                } else if self.silent.0 >= SILENT_TRIES_MAX {
                    self.silent.0 = 0;
                    self.wait = self.wait.max(context.config.attempt_min);
                    context.disconnect(state, session);
                } else if session.is_told {
                    return Next::Look(Rc::clone(session));
                }
                Next::Again(Some(Duration::ZERO), "no answer".into())
            }
        }
    }

    fn broken(state: &PeerState, retry: Retry, reason: &str) -> Next {
        match retry {
            Retry::Idempotent => Next::Again(None, reason.to_owned().into()),
            Retry::Never => Next::Failed(RpcError::Unreachable {
                peer: state.peer.clone(),
                reason: format!("{reason}; whether the request was executed is unknown"),
            }),
        }
    }

    /// What to do after an answer that is no reply.
    fn judge(&self, state: &PeerState, session: &Rc<Session>, answer: &Answer) -> Next {
        let Answer { kind, status, pause, message, body, .. } = answer;
        if *kind == Kind::HelloReply {
            // Another incarnation answers that doesn't speak this version: agree on one anew.
            self.context.disconnect(state, session);
            return Next::Again(None, "the server's protocol version changed".into());
        }
        let der = Der(*status);
        if der == Der::OVERLOAD_RETRY {
            add(&self.context.metrics.overload_hints, 1);
            let pause = Duration::from_nanos(*pause).min(PAUSE_MAX);
            return Next::Again(Some(pause), "the server is overloaded".into());
        }
        let text = message.get(body.clone()).unwrap_or_default();
        Next::Failed(RpcError::Remote(Status::new(der, String::from_utf8_lossy(text))))
    }
}
