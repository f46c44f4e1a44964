//! The client's side: one call, from contact and credit to the reply, and the memory that it exposes. It calls
//! the context, which sends, and the records of contact, replies and transfers. Users of the crate call it
//! through [`crate::Rpc`].

mod attempts;
mod bulk;
mod connect;
mod fast_path;
mod ready;

pub use bulk::Bulk;

use crate::admission::{Class, LaneId, Permit, Quota};
use crate::config::{CallOptions, Retry};
use crate::contact::{Peer, PeerState, Session};
use crate::context::Context;
use crate::error::RpcError;
use crate::metrics::add;
use crate::reply::{AnswerKind, Reply, Wait};
use crate::wire::{ClientId, Header, Kind};
use attempts::{Attempts, NextStep};
use bulk::Exposed;
use core::cell::Cell;
use core::pin::Pin;
use core::task::{Context as TaskContext, Poll};
use core::time::Duration;
use fast_path::{FastPath, Sent};
use std::rc::Rc;
use weir_fabric::FabricError;
use weir_proto::limits::INLINE_MAX;
use weir_proto::opcode::REQUEST_WITHDRAW;
use weir_runtime::{Elapsed, Instant};

/// The request id of a call. It counts as outstanding until this is dropped.
pub(crate) struct RequestGuard<'a> {
    context: &'a Context,
    pub(crate) state: Rc<PeerState>,
    pub(crate) id: u64,
    /// Its reply was taken; nothing more is expected.
    answered: Cell<bool>,
}

impl<'a> RequestGuard<'a> {
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

    /// Takes the reply if it has come. `None`: [`RequestGuard::wait`] returns at once with what came instead.
    #[inline]
    pub(crate) fn poll_reply(&self, cx: &TaskContext<'_>) -> Poll<Option<Reply>> {
        let polled = self.context.pending.poll_reply(&self.context.rt, self.id, cx);
        if let Poll::Ready(Some(_)) = polled {
            self.state.heard.set(self.context.rt.now());
            self.answered.set(true);
        }
        polled
    }

    /// A reply has come. Returns what [`Exposed::settle`] does.
    fn replied(&self, exposed: &mut MaybeExposed<'_, '_>) -> bool {
        self.state.heard.set(self.context.rt.now());
        exposed.0.as_mut().is_none_or(|exposed| exposed.settle(self.context.pending.replied_by(self.id)))
    }

    /// Takes the reply that has come.
    fn take_reply(&self) -> Result<Reply, RpcError> {
        self.answered.set(true);
        // It is there, and no other call takes it.
        self.context.pending.take_reply(self.id).ok_or(RpcError::Closed)
    }
}

impl Drop for RequestGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.state.outstanding.borrow_mut().end(self.id);
        if !self.answered.get() {
            self.context.pending.forget(self.id);
        }
    }
}

/// What every try of a call sends.
pub(crate) struct RequestSpec<'a> {
    pub(crate) opcode: u16,
    pub(crate) body: &'a [u8],
    pub(crate) options: CallOptions,
    /// The deadline on the wall clock.
    pub(crate) wall_deadline: u64,
}

impl<'a> RequestSpec<'a> {
    /// For a call that is made at this time, by the monotonic and by the wall clock.
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

    /// When a try that starts now and waits this long counts as lost.
    #[inline]
    pub(crate) fn due(&self, now: Instant, wait: Duration) -> Instant {
        match self.options.retry {
            Retry::Idempotent => self.options.deadline.min(now + wait),
            Retry::Never => self.options.deadline,
        }
    }
}

/// The memory that a call exposes, if it does.
struct MaybeExposed<'a, 'b: 'a>(Option<Exposed<'a, 'b>>);

impl<'a, 'b: 'a> MaybeExposed<'a, 'b> {
    /// Exposes the memory, if there is any and permission for it.
    #[inline]
    fn expose(
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

    /// See [`Exposed::close_and_wait`]. Gives the credit back first. Boxed, because few calls end with this.
    fn close_and_wait(&mut self, credit: Option<Permit>) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
        drop(credit);
        let exposed = self.0.take();
        Box::pin(async move {
            if let Some(exposed) = exposed {
                exposed.close_and_wait().await;
            }
        })
    }

    /// The same for a call whose reply has come and is taken last.
    async fn finish_answered(mut self, sent: Sent<'_>) -> Result<Reply, RpcError> {
        let Sent { guard, credit, .. } = sent;
        self.close_and_wait(Some(credit)).await;
        guard.take_reply()
    }

    /// The call has failed; `by`: the incarnation of the server that refused it, if one did. Gives the credit
    /// back first. See [`Exposed::withdraw`] if another incarnation may access the memory. Boxed, because few
    /// calls end with this.
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

/// Whether this error is the server's statement that it doesn't execute the request. The answer to a hello is not: it
/// comes from another incarnation than the one that had the request, or from any process.
fn is_refusal(error: &RpcError) -> bool {
    matches!(error, RpcError::Remote(_))
}

/// Counts how calls end. Calls that the context makes for itself are not counted.
struct EndCounter<'a>(Option<&'a Context>);

impl EndCounter<'_> {
    /// A call has failed.
    fn failed(&self, error: RpcError) -> RpcError {
        if let Some(context) = self.0 {
            add(&context.metrics.calls_failed, 1);
            add(&context.metrics.timeouts, u64::from(matches!(error, RpcError::TimedOut { .. })));
        }
        error
    }
}

/// The arguments of a call.
pub(crate) struct CallArgs<'a> {
    pub(crate) context: &'a Rc<Context>,
    pub(crate) to: &'a Peer,
    pub(crate) opcode: u16,
    pub(crate) body: &'a [u8],
    pub(crate) options: CallOptions,
    tally: EndCounter<'a>,
    /// Set when a call fails that was sent more than once.
    resent: Option<&'a Cell<bool>>,
}

/// A counted call. It takes the fast path first, or that of calls with memory.
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
        let args = CallArgs { context, to, opcode, body, options, tally: EndCounter(Some(context)), resent };
        if let Some(bulk) = bulk.as_mut().filter(|bulk| !bulk.is_empty()) {
            return args.run_with_memory(bulk).await;
        }
        // Boxed: the future is moved to where it is awaited, and the slow path is most of its size.
        match FastPath::new(&args).await {
            Ok(reply) => Ok(reply),
            Err(Some(sent)) => Box::pin(args.resume(sent, MaybeExposed(None))).await,
            Err(None) => Box::pin(args.run(None)).await,
        }
    }
}

/// A call that the context makes for itself.
pub(crate) async fn call_uncounted(
    context: &Rc<Context>,
    to: &Peer,
    opcode: u16,
    body: &[u8],
    options: CallOptions,
) -> Result<Reply, RpcError> {
    CallArgs { context, to, opcode, body, options, tally: EndCounter(None), resent: None }.run(None).await
}

impl CallArgs<'_> {
    /// The slow path, from the beginning.
    #[expect(clippy::manual_async_fn, reason = "an async fn keeps its arguments beside what becomes of them")]
    fn run(&self, bulk: Option<&mut Bulk<'_>>) -> impl Future<Output = Result<Reply, RpcError>> {
        async move {
            let context = self.context;
            let start = context.rt.now();
            if self.body.len() > INLINE_MAX {
                return Err(self.tally.failed(RpcError::TooLarge { len: self.body.len(), max: INLINE_MAX }));
            }
            let state = context.peer_state(self.to);
            let mut attempts = Attempts::new(context, start);
            self.wait_for_contact(&state, &mut attempts).await.map_err(|error| self.tally.failed(error))?;
            let class = Class::of(self.options.priority);
            let permits =
                context.permits(&state, self.opcode, class, self.options.deadline, bulk.is_some()).await;
            let (exposing, credit) =
                permits.map_err(|waited_for| self.timed_out(start, 0, waited_for.to_owned()))?;
            let guard = RequestGuard::new(context, state);
            let mut exposed = MaybeExposed(None);
            let outcome =
                exposed.expose(context, &guard.state, guard.id, bulk.zip(exposing), self.options.deadline);
            outcome.map_err(|error| self.tally.failed(error))?;
            let spec = RequestSpec::new(context, self.opcode, self.body, self.options, context.rt.times());
            self.attempt_all(&guard, &spec, &mut exposed, credit, &mut attempts, None).await
        }
    }

    /// A call that exposes memory. Nearly each finds contact, permission and a credit at once, and gets a reply.
    /// That is not boxed, so that it allocates nothing. Anything else is left to the slow path.
    #[expect(clippy::manual_async_fn, reason = "an async fn keeps its arguments beside what becomes of them")]
    fn run_with_memory(&self, bulk: &mut Bulk<'_>) -> impl Future<Output = Result<Reply, RpcError>> {
        async move {
            let begun = Sent::begin(self, |context, state, class| {
                context.bulks.try_acquire(state.bulk_place.lane(), class)
            });
            let Some((exposing, mut sent)) = begun else { return Box::pin(self.run(Some(bulk))).await };
            let (mut exposed, RequestGuard { state, id, .. }) = (MaybeExposed(None), &sent.guard);
            let outcome =
                exposed.expose(self.context, state, *id, Some((bulk, exposing)), self.options.deadline);
            outcome.map_err(|error| self.tally.failed(error))?;
            sent.post(self, None, |sent, spec| {
                let Sent { guard, session, at, .. } = sent;
                self.context.post_with_memory(guard, session, spec, exposed.0.as_ref(), false, *at)
            });
            if sent.refused.is_some() || sent.guard.wait().await != Ok(AnswerKind::Reply) {
                return Box::pin(self.resume(sent, exposed)).await;
            }
            if sent.guard.replied(&mut exposed) {
                return sent.guard.take_reply();
            }
            Box::pin(exposed.finish_answered(sent)).await
        }
    }

    /// The slow path, after a first try that was made and has no reply.
    async fn resume(&self, sent: Sent<'_>, exposed: MaybeExposed<'_, '_>) -> Result<Reply, RpcError> {
        let Sent { guard, session, credit, wall_deadline, at, refused } = sent;
        // Dropped before the guard: the accesses to the memory end before the request does.
        let mut exposed = exposed;
        let spec = RequestSpec { opcode: self.opcode, body: self.body, options: self.options, wall_deadline };
        let mut attempts = Attempts::new(self.context, at);
        attempts.silent.1 = at;
        attempts.wait = guard.state.first_wait(at, attempts.wait);
        let first = if let Some(error) = refused {
            Err(attempts.refused(&guard.state, &session, *error))
        } else {
            attempts.tries = 1;
            Ok(session)
        };
        self.attempt_all(&guard, &spec, &mut exposed, Some(credit), &mut attempts, Some(first)).await
    }

    /// Tries until there is a reply, or the deadline. `first`: the outcome of a try that was made. The reply is
    /// moved only once: the wait says that it has come, and it is taken last.
    async fn attempt_all(
        &self,
        guard: &RequestGuard<'_>,
        spec: &RequestSpec<'_>,
        exposed: &mut MaybeExposed<'_, '_>,
        mut credit: Option<Permit>,
        attempts: &mut Attempts<'_>,
        mut first: Option<Result<Rc<Session>, NextStep>>,
    ) -> Result<Reply, RpcError> {
        let (context, state, tally) = (self.context, &guard.state, &self.tally);
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
                        let made = Box::pin(self.prepare(state, attempts, &mut credit)).await;
                        now = context.rt.now();
                        made
                    };
                    session.and_then(|session| attempts.begin(session, guard, spec, exposed, now))
                }
            };
            let next = match tried {
                Ok(session) => match guard.wait().await {
                    Ok(AnswerKind::Reply) => {
                        if !guard.replied(exposed) {
                            exposed.close_and_wait(credit).await;
                        }
                        return guard.take_reply();
                    }
                    arrived => attempts.end(state, &session, spec, guard.id, arrived),
                },
                Err(next) => next,
            };
            match next {
                NextStep::Failed(error) => {
                    self.note(attempts);
                    exposed.give_up(attempts.spoke.filter(|_| is_refusal(&error)), credit).await;
                    return Err(tally.failed(error));
                }
                NextStep::Look(session) => {
                    attempts.last = "no answer".into();
                    now = Box::pin(attempts.look(state, &session, deadline)).await;
                }
                NextStep::Again(pause, why) => {
                    attempts.last = why;
                    if pause != Some(Duration::ZERO) {
                        drop(credit.take());
                        Box::pin(attempts.rest(pause, deadline)).await;
                    }
                    now = context.rt.now();
                }
            }
        }
        self.note(attempts);
        exposed.give_up(None, credit).await;
        Err(match (attempts.tries, core::mem::take(&mut attempts.last).into_owned()) {
            (0, reason) => tally.failed(RpcError::Unreachable { peer: self.to.clone(), reason }),
            (tries, last) => self.timed_out(attempts.start, tries, last),
        })
    }

    /// Notes whether a failing call was sent more than once.
    fn note(&self, attempts: &Attempts<'_>) {
        if let Some(resent) = self.resent.filter(|_| attempts.tries > 1) {
            resent.set(true);
        }
    }

    fn timed_out(&self, start: Instant, tries: u32, last: String) -> RpcError {
        let (peer, waited) = (self.to.clone(), self.context.rt.now() - start);
        self.tally.failed(RpcError::TimedOut { peer, opcode: self.opcode, waited, tries, last })
    }
}

impl Context {
    /// Sends a request on a session.
    #[inline]
    pub(crate) fn post(
        &self,
        guard: &RequestGuard<'_>,
        session: &Session,
        spec: &RequestSpec<'_>,
        exposed: Option<&Exposed<'_, '_>>,
        resend: bool,
        now: Instant,
    ) -> Result<(), FabricError> {
        let state = &guard.state;
        let mut header = Header::new(Kind::Request, session.version, state.client, guard.id, self.epoch());
        header.resend = resend;
        header.greeting = resend || self.config.greet_always || state.wants_greeting(now);
        header.opcode = spec.opcode;
        header.segments = exposed.map_or(0, Exposed::count);
        header.set_body(spec.body);
        header.deadline = spec.wall_deadline;
        header.acked = state.acked(guard.id);
        header.tenant = self.ring.as_ref().map_or(0, |ring| ring.tenant().0);
        let address = header.greeting.then(|| self.endpoint.address());
        let greeting = address.as_ref().map_or(&[][..], |address| address.as_bytes());
        let key = session.key.as_ref();
        let in_flight = state.outstanding.borrow().len();
        let segments = exposed.map_or(&[][..], Exposed::descriptors);
        self.transmit(session.id, guard.id, &mut header, greeting, segments, spec.body, key, in_flight)
    }

    /// The same with the exposed memory, if any, which the server knows from then on. Not inlined:
    /// [`Context::post`] is then inlined into the path of small requests alone, which saves 70 instructions
    /// there.
    #[inline(never)]
    fn post_with_memory(
        &self,
        guard: &RequestGuard<'_>,
        session: &Session,
        spec: &RequestSpec<'_>,
        exposed: Option<&Exposed<'_, '_>>,
        resend: bool,
        now: Instant,
    ) -> Result<(), FabricError> {
        self.post(guard, session, spec, exposed, resend, now)?;
        if let Some(exposed) = exposed {
            exposed.sent_to(session.server);
        }
        Ok(())
    }

    /// Waits for permission to expose memory, if the call has some, and for a credit. `Err` says which of them
    /// it waited for until the deadline.
    async fn permits(
        &self,
        state: &PeerState,
        opcode: u16,
        class: Class,
        deadline: Instant,
        has_memory: bool,
    ) -> Result<(Option<Permit>, Option<Permit>), &'static str> {
        let mut exposing = None;
        if has_memory {
            let permits = self.acquire(&self.bulks, state.bulk_place.lane(), class, deadline).await;
            exposing = Some(permits.map_err(|Elapsed| "waiting for leave to expose memory")?);
        }
        let credit = self.credit(state, opcode, class, deadline).await;
        Ok((exposing, credit.map_err(|Elapsed| "waiting for a credit")?))
    }

    /// Waits for a credit. Withdrawals need none: they are answered at once, and those to one server, which may
    /// be dead, must not use up what calls to others need.
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
        self.acquire(&self.requests, state.place.lane(), class, deadline).await.map(Some)
    }

    /// Waits for a permit of a quota.
    async fn acquire(
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
