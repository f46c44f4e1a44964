//! One call, from credit to reply.

use crate::bulk::{Bulk, Exposed};
use crate::config::{CallOptions, Priority, Retry};
use crate::error::{RpcError, Status};
use crate::load::PAUSE_MAX;
use crate::metrics::add;
use crate::peer::Peer;
use crate::pending::{Arrived, NoAnswer, Wait};
use crate::proof::Proof;
use crate::quota::{Class, LaneId, Permit, Quota};
use crate::session::{PeerState, Session};
use crate::wire::{ClientId, Header, Kind};
use crate::{Answer, INLINE_MAX, Inner, Outcome, Reply};
use core::cell::Cell;
use core::pin::Pin;
use core::time::Duration;
use std::borrow::Cow;
use std::rc::Rc;
use weir_fabric::FabricError;
use weir_proto::Der;
use weir_proto::opcode::REQUEST_WITHDRAW;
use weir_runtime::{Elapsed, Instant};

/// Tries without any answer after which contact counts as lost.
const SILENT_TRIES_MAX: u32 = 2;

/// The request id of a call; it counts as unfinished until this is dropped.
struct Ticket<'a> {
    inner: &'a Inner,
    state: &'a PeerState,
    id: u64,
    /// Its reply was taken, and nothing more is expected.
    answered: Cell<bool>,
}

impl<'a> Ticket<'a> {
    fn new(inner: &'a Inner, state: &'a PeerState) -> Self {
        let id = inner.next_request.get();
        inner.next_request.set(id + 1);
        state.outstanding.borrow_mut().begin(id);
        Self { inner, state, id, answered: Cell::new(false) }
    }

    /// Waits for the answer.
    fn wait(&self) -> Wait<'_> {
        self.inner.pending.wait(self.inner, self.id)
    }

    /// A reply has come. For what is returned see [`Exposed::settle`].
    fn replied(&self, exposed: &mut Lent<'_>) -> bool {
        self.state.heard.set(self.inner.rt.now());
        exposed.0.as_mut().is_none_or(|exposed| exposed.settle(self.inner.pending.replied_by(self.id)))
    }

    /// Takes the reply that has come.
    fn take_reply(&self) -> Result<Reply, RpcError> {
        self.answered.set(true);
        // It is there: nobody else takes it.
        self.inner.pending.take_reply(self.id).ok_or(RpcError::Closed)
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.state.outstanding.borrow_mut().end(self.id);
        if !self.answered.get() {
            self.inner.pending.forget(self.id);
        }
    }
}

/// What goes out on every try of a call.
struct Letter<'a> {
    opcode: u16,
    body: &'a [u8],
    options: CallOptions,
    /// The deadline on the wall clock.
    wall_deadline: u64,
}

/// The memory that a call exposes, where it does.
struct Lent<'a>(Option<Exposed<'a>>);

impl<'a> Lent<'a> {
    /// Exposes memory, where there is any.
    #[inline]
    fn lend(
        &mut self,
        inner: &'a Rc<Inner>,
        state: &'a Rc<PeerState>,
        request: u64,
        bulk: Option<Bulk<'a>>,
        deadline: Instant,
    ) -> Result<(), FabricError> {
        if let Some(bulk) = bulk {
            self.0 = Some(Exposed::new(inner, state, request, bulk, deadline)?);
        }
        Ok(())
    }

    /// See [`Exposed::outlast`]; that takes no credit. Boxed, because hardly any call ends with this.
    fn outlast(self, credit: Option<Permit>) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
        drop(credit);
        Box::pin(async move {
            if let Some(exposed) = self.0 {
                exposed.outlast().await;
            }
        })
    }

    /// The call has failed, refused by this incarnation of the server, if any. See [`Exposed::withdraw`] for where one may be at
    /// the memory; that takes no credit.
    async fn give_up(self, by: Option<ClientId>, credit: Option<Permit>) {
        drop(credit);
        if let Some(mut exposed) = self.0
            && !exposed.settle(by)
        {
            exposed.withdraw().await;
        }
    }
}

/// What to do after a try.
enum Next {
    Failed(RpcError),
    /// Try again after a pause; `None`: after the growing one.
    Again(Option<Duration>, Cow<'static, str>),
}

/// Whether an error is the server's word that it is not at the request. What is said to a hello is not: it is of another
/// incarnation than had the request before, or of anybody.
fn is_refusal(error: &RpcError) -> bool {
    matches!(error, RpcError::Remote(_))
}

/// Counts how calls end. One that this context makes for itself is not counted.
struct Tally<'a>(Option<&'a Inner>);

impl Tally<'_> {
    /// A call has failed.
    fn failed(&self, error: RpcError) -> RpcError {
        if let Some(inner) = self.0 {
            add(&inner.metrics.calls_failed, 1);
            add(&inner.metrics.timeouts, u64::from(matches!(error, RpcError::TimedOut { .. })));
        }
        error
    }
}

/// A call that is counted.
pub(crate) fn call(
    inner: &Rc<Inner>,
    to: &Peer,
    opcode: u16,
    body: &[u8],
    bulk: Option<Bulk<'_>>,
    options: CallOptions,
) -> impl Future<Output = Result<Reply, RpcError>> {
    add(&inner.metrics.calls, 1);
    attempt_all(inner, to, opcode, body, bulk, options, Tally(Some(inner)))
}

/// A call that this context makes for itself.
pub(crate) fn call_uncounted(
    inner: &Rc<Inner>,
    to: &Peer,
    opcode: u16,
    body: &[u8],
    options: CallOptions,
) -> impl Future<Output = Result<Reply, RpcError>> {
    attempt_all(inner, to, opcode, body, None, options, Tally(None))
}

/// The reply moves only once on its way to the caller: who waits is told that it has come, and takes it last.
#[expect(clippy::manual_async_fn, reason = "an async fn copies its arguments once more when it begins")]
fn attempt_all(
    inner: &Rc<Inner>,
    to: &Peer,
    opcode: u16,
    body: &[u8],
    bulk: Option<Bulk<'_>>,
    options: CallOptions,
    tally: Tally<'_>,
) -> impl Future<Output = Result<Reply, RpcError>> {
    async move {
        let (start, mut wall) = inner.rt.times();
        let (mut now, deadline) = (start, options.deadline);
        if body.len() > INLINE_MAX {
            return Err(tally.failed(RpcError::TooLarge { len: body.len(), max: INLINE_MAX }));
        }
        let state = inner.peer_state(to);
        let timed_out = |tries: u32, last: String| {
            let waited = inner.rt.now() - start;
            tally.failed(RpcError::TimedOut { peer: to.clone(), opcode, waited, tries, last })
        };
        let class = if options.priority == Priority::Urgent { Class::Urgent } else { Class::Normal };
        let bulk = bulk.filter(|bulk| !bulk.is_empty());
        // Nearly always there is a credit, and no memory.
        let at_once = bulk.is_none() && opcode != REQUEST_WITHDRAW;
        let mut credit = if at_once { inner.requests.try_acquire(state.place.lane(), class) } else { None };
        let mut _exposing = None;
        if credit.is_none() {
            let leave = inner.leave(&state, opcode, class, deadline, bulk.is_some()).await;
            (_exposing, credit) = leave.map_err(|waited_for| timed_out(0, waited_for.to_owned()))?;
            (now, wall) = inner.rt.times();
        }
        let ticket = Ticket::new(inner, &state);
        let mut exposed = Lent(None);
        exposed.lend(inner, &state, ticket.id, bulk, deadline).map_err(|error| tally.failed(error.into()))?;
        let wall_deadline = inner.no_earlier(wall).saturating_add(deadline.nanos_since(now));
        let letter = Letter { opcode, body, options, wall_deadline };
        let mut course = Course::new(inner);
        while now < deadline {
            let session = if let Some(session) = state.session() {
                Ok(session)
            } else {
                let made = course.contact(&state, deadline).await;
                now = inner.rt.now();
                made
            };
            let begin = |session| course.begin(&state, session, &ticket, &letter, &exposed, now);
            let next = match session.and_then(begin) {
                Ok(session) => match ticket.wait().await {
                    Ok(Arrived::Reply) => {
                        if !ticket.replied(&mut exposed) {
                            exposed.outlast(credit).await;
                        }
                        return ticket.take_reply();
                    }
                    arrived => course.end(&state, &session, &letter, ticket.id, arrived),
                },
                Err(next) => next,
            };
            match next {
                Next::Failed(error) => {
                    exposed.give_up(course.spoke.filter(|_| is_refusal(&error)), credit).await;
                    return Err(tally.failed(error));
                }
                Next::Again(pause, why) => {
                    course.last = why;
                    if pause != Some(Duration::ZERO) {
                        drop(credit.take());
                        course.rest(pause, deadline).await;
                        credit = inner.credit(&state, opcode, class.again(), deadline).await.unwrap_or(None);
                    }
                    now = inner.rt.now();
                }
            }
        }
        exposed.give_up(None, credit).await;
        Err(match (course.tries, course.last.into_owned()) {
            (0, reason) => tally.failed(RpcError::Unreachable { peer: to.clone(), reason }),
            (tries, last) => timed_out(tries, last),
        })
    }
}

impl Inner {
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
    inner: &'a Inner,
    tries: u32,
    /// Tries in a row without an answer, and when the first of them began.
    silent: (u32, Instant),
    /// The incarnation of the server that has answered last, though not with a reply.
    spoke: Option<ClientId>,
    wait: Duration,
    backoff: Duration,
    last: Cow<'static, str>,
}

impl<'a> Course<'a> {
    fn new(inner: &'a Inner) -> Self {
        let config = &inner.config;
        let last = Cow::Borrowed("no contact was made");
        Self {
            inner,
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
        let inner = self.inner;
        if let Some(pause) = pause {
            inner.stay_away(pause, deadline).await;
        } else {
            let pause = self.backoff;
            self.backoff = (pause * 2).min(inner.config.backoff_max);
            inner.pause(pause, deadline).await;
        }
    }

    /// Makes contact, or says what to do without.
    async fn contact(&self, state: &Rc<PeerState>, deadline: Instant) -> Result<Rc<Session>, Next> {
        self.inner.connect(state, deadline).await.map_err(|error| match error {
            RpcError::Version { .. } | RpcError::Denied { .. } | RpcError::Closed => Next::Failed(error),
            error => Next::Again(None, error.to_string().into()),
        })
    }

    /// Begins a try: sends the request, from when on its answer is expected.
    fn begin(
        &mut self,
        state: &Rc<PeerState>,
        session: Rc<Session>,
        ticket: &Ticket<'_>,
        letter: &Letter<'_>,
        exposed: &Lent<'_>,
        now: Instant,
    ) -> Result<Rc<Session>, Next> {
        let inner = self.inner;
        if self.silent.0 == 0 {
            self.silent.1 = now;
        }
        let until = match letter.options.retry {
            Retry::Idempotent => letter.options.deadline.min(now + self.wait),
            Retry::Never => letter.options.deadline,
        };
        inner.expect(ticket.id, session.id, state, || Proof::Session(Rc::clone(&session)), until);
        if let Err(error) = self.post(state, &session, ticket, letter, exposed, now) {
            return Err(match error {
                FabricError::UnknownPeer
                | FabricError::NoBuffers { .. }
                | FabricError::Unreachable { .. } => {
                    inner.disconnect(state, &session);
                    Next::Again(None, error.to_string().into())
                }
                error => Next::Failed(error.into()),
            });
        }
        if let Some(exposed) = &exposed.0 {
            exposed.sent_to(session.server);
        }
        if self.tries > 0 {
            add(&inner.metrics.retries, 1);
        }
        self.tries += 1;
        Ok(session)
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
        let (inner, retry) = (self.inner, letter.options.retry);
        match arrived.and_then(|_| inner.pending.take(request).ok_or(NoAnswer::Closed)) {
            Ok(Outcome::Answer(answer)) => {
                state.heard.set(inner.rt.now());
                self.silent.0 = 0;
                self.spoke = Some(answer.server);
                self.judge(state, session, &answer)
            }
            Ok(Outcome::Notice(_)) => {
                // The server has restarted, or has forgotten this client: it executed nothing of this try.
                state.heard.set(inner.rt.now());
                self.silent.0 = 0;
                inner.disconnect(state, session);
                if retry == Retry::Never && self.tries > 1 {
                    return Self::broken(state, Retry::Never, "the server doesn't know this client any more");
                }
                Next::Again(Some(Duration::ZERO), "the server doesn't know this client any more".into())
            }
            Ok(Outcome::Failed(error)) => {
                inner.disconnect(state, session);
                Self::broken(state, retry, &error.to_string())
            }
            // A reply is taken where it is.
            Ok(Outcome::Reply(_)) | Err(NoAnswer::Closed) => Next::Failed(RpcError::Closed),
            Err(NoAnswer::Late) => {
                self.wait = (self.wait * 2).min(inner.config.attempt_max);
                self.silent.0 += 1;
                // Answers to other calls show that the server is there and only slow.
                if self.silent.0 >= SILENT_TRIES_MAX && state.heard.get() <= self.silent.1 {
                    self.silent.0 = 0;
                    inner.disconnect(state, session);
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

    fn post(
        &self,
        state: &PeerState,
        session: &Session,
        ticket: &Ticket<'_>,
        letter: &Letter<'_>,
        exposed: &Lent<'_>,
        now: Instant,
    ) -> Result<(), FabricError> {
        let inner = self.inner;
        let mut header = Header::new(Kind::Request, session.version, state.client, ticket.id, inner.epoch());
        header.resend = self.tries > 0;
        header.greeting = header.resend || inner.config.greet_always || state.wants_greeting(now);
        header.opcode = letter.opcode;
        header.segments = exposed.0.as_ref().map_or(0, Exposed::count);
        header.body_len = u32::try_from(letter.body.len()).unwrap_or(0);
        header.deadline = letter.wall_deadline;
        header.acked = state.acked(ticket.id);
        header.tenant = inner.ring.as_ref().map_or(0, |ring| ring.tenant().0);
        let address = header.greeting.then(|| inner.endpoint.address());
        let greeting = address.as_ref().map_or(&[][..], |address| address.as_bytes());
        let key = session.key.as_ref();
        let company = state.outstanding.borrow().len();
        let segments = exposed.0.as_ref().map_or(&[][..], Exposed::descriptors);
        inner.transmit(session.id, ticket.id, &mut header, greeting, segments, letter.body, key, company)
    }

    /// What to do after an answer that is no reply.
    fn judge(&self, state: &PeerState, session: &Rc<Session>, answer: &Answer) -> Next {
        let Answer { kind, status, pause, message, body, .. } = answer;
        if *kind == Kind::HelloReply {
            // Another incarnation answers that doesn't speak this version: agree on one anew.
            self.inner.disconnect(state, session);
            return Next::Again(None, "the server's protocol version changed".into());
        }
        let der = Der(*status);
        if der == Der::OVERLOAD_RETRY {
            add(&self.inner.metrics.overload_hints, 1);
            let pause = Duration::from_nanos(*pause).min(PAUSE_MAX);
            return Next::Again(Some(pause), "the server is overloaded".into());
        }
        let text = message.get(body.clone()).unwrap_or_default();
        Next::Failed(RpcError::Remote(Status::new(der, String::from_utf8_lossy(text))))
    }
}
