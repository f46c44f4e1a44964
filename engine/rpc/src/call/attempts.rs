//! The tries of one call: what came of each, and what to do next.

use super::connect::CLOCKS_APART;
use super::{MaybeExposed, RequestGuard, RequestSpec};
use crate::admission::PAUSE_MAX;
use crate::config::Retry;
use crate::contact::{PeerState, Session};
use crate::context::Context;
use crate::error::{RpcError, Status};
use crate::metrics::add;
use crate::reply::{Answer, AnswerKind, NoAnswer, Outcome, ReplyAuth};
use crate::wire::{ClientId, Kind};
use core::time::Duration;
use std::borrow::Cow;
use std::rc::Rc;
use weir_fabric::FabricError;
use weir_proto::Der;
use weir_runtime::Instant;

/// Consecutive tries without any answer after which contact counts as lost.
const SILENT_TRIES_MAX: u32 = 2;

/// What to do after a try.
pub(super) enum NextStep {
    Failed(RpcError),
    /// Try again after this pause; `None`: after the exponential backoff.
    Again(Option<Duration>, Cow<'static, str>),
    /// Try again after finding out whether the server has moved.
    Look(Rc<Session>),
}

/// The state of a call's tries.
pub(super) struct Attempts<'a> {
    pub(super) context: &'a Context,
    pub(super) tries: u32,
    /// Consecutive tries without an answer, and when the first of them began.
    pub(super) silent: (u32, Instant),
    /// The server's incarnation of the last answer that was not a reply.
    pub(super) spoke: Option<ClientId>,
    pub(super) wait: Duration,
    pub(super) backoff: Duration,
    pub(super) last: Cow<'static, str>,
    pub(super) start: Instant,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(context: &'a Context, start: Instant) -> Self {
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

    /// Waits before the next try. A waiting call holds no credit, and is among the first when it asks for one
    /// again. It returns at the deadline, when the call ends.
    pub(super) async fn rest(&mut self, pause: Option<Duration>, deadline: Instant) {
        let context = self.context;
        if let Some(pause) = pause {
            context.pause_as_told(pause, deadline).await;
        } else {
            let pause = self.backoff;
            self.backoff = (pause * 2).min(context.config.backoff_max);
            context.pause(pause, deadline).await;
        }
    }

    /// Makes contact, or says what to do without.
    pub(super) async fn contact(
        &self,
        state: &Rc<PeerState>,
        deadline: Instant,
    ) -> Result<Rc<Session>, NextStep> {
        self.context.connect(state, deadline).await.map_err(|error| match error {
            RpcError::Version { .. } | RpcError::Denied { .. } | RpcError::Closed => NextStep::Failed(error),
            error => NextStep::Again(None, error.into_reason().into()),
        })
    }

    /// Finds out whether a silent server has moved. At the deadline this goes on in the background. Returns the
    /// time.
    pub(super) async fn look(
        &mut self,
        state: &Rc<PeerState>,
        session: &Rc<Session>,
        deadline: Instant,
    ) -> Instant {
        let rt = &self.context.rt;
        let look = self.context.check_whether_moved(state, session);
        if rt.now() >= deadline {
            drop(rt.spawn(look));
        } else if rt.timeout_at(deadline, look).await.is_ok() && !state.stands(session) {
            // The next try goes to another address.
            self.silent.0 = 0;
        }
        rt.now()
    }

    /// Begins a try: sends the request and expects its answer.
    pub(super) fn begin(
        &mut self,
        session: Rc<Session>,
        guard: &RequestGuard<'_>,
        spec: &RequestSpec<'_>,
        exposed: &MaybeExposed<'_, '_>,
        now: Instant,
    ) -> Result<Rc<Session>, NextStep> {
        let (context, state, exposed) = (self.context, &guard.state, exposed.0.as_ref());
        if self.silent.0 == 0 {
            self.silent.1 = now;
        }
        let due = spec.due(now, self.wait);
        context.expect(guard.id, session.id, state, || ReplyAuth::Session(Rc::clone(&session)), due, None);
        if let Err(error) = context.post_with_memory(guard, &session, spec, exposed, self.tries > 0, now) {
            return Err(self.refused(state, &session, error));
        }
        if self.tries > 0 {
            add(&context.metrics.retries, 1);
        }
        self.tries += 1;
        Ok(session)
    }

    /// What to do when a request could not be sent.
    pub(super) fn refused(&self, state: &PeerState, session: &Rc<Session>, error: FabricError) -> NextStep {
        match error {
            FabricError::UnknownPeer | FabricError::NoBuffers { .. } | FabricError::Unreachable { .. } => {
                self.context.disconnect(state, session);
                NextStep::Again(None, error.to_string().into())
            }
            error => NextStep::Failed(error.into()),
        }
    }

    /// Ends a try that got something else than a reply, or nothing.
    #[inline(never)]
    pub(super) fn end(
        &mut self,
        state: &PeerState,
        session: &Rc<Session>,
        spec: &RequestSpec<'_>,
        request: u64,
        arrived: Result<AnswerKind, NoAnswer>,
    ) -> NextStep {
        let (context, retry) = (self.context, spec.options.retry);
        match arrived.and_then(|_| context.pending.take(request).ok_or(NoAnswer::Closed)) {
            Ok(Outcome::Answer(answer)) => {
                state.heard.set(context.rt.now());
                self.silent.0 = 0;
                self.spoke = Some(answer.server);
                self.judge(state, session, &answer)
            }
            Ok(Outcome::Notice(_)) => {
                // The server has restarted, or has forgotten this client. It executed nothing of this try.
                state.heard.set(context.rt.now());
                self.silent.0 = 0;
                context.disconnect(state, session);
                if retry == Retry::Never && self.tries > 1 {
                    return Self::broken(state, Retry::Never, "the server doesn't know this client any more");
                }
                NextStep::Again(Some(Duration::ZERO), "the server doesn't know this client any more".into())
            }
            Ok(Outcome::Early) => {
                // The server may have executed the request. Clocks are corrected at some time, so that later
                // tries may succeed.
                state.heard.set(context.rt.now());
                self.silent.0 = 0;
                Self::broken(state, retry, CLOCKS_APART)
            }
            Ok(Outcome::Failed(error)) => {
                context.disconnect(state, session);
                Self::broken(state, retry, &error.to_string())
            }
            // Replies are taken from where they are.
            Ok(Outcome::Reply(_)) | Err(NoAnswer::Closed) => NextStep::Failed(RpcError::Closed),
            Err(NoAnswer::Late) => {
                self.wait = (self.wait * 2).min(context.config.attempt_max);
                self.silent.0 += 1;
                // Answers to other calls show that the server lives and is slow. Tries are counted anew.
                if state.heard.get() > self.silent.1 {
                    self.silent.0 = 0;
                } else if self.silent.0 >= SILENT_TRIES_MAX {
                    self.silent.0 = 0;
                    self.wait = self.wait.max(context.config.attempt_min);
                    context.disconnect(state, session);
                } else if session.is_told {
                    return NextStep::Look(Rc::clone(session));
                }
                NextStep::Again(Some(Duration::ZERO), "no answer".into())
            }
        }
    }

    pub(super) fn broken(state: &PeerState, retry: Retry, reason: &str) -> NextStep {
        match retry {
            Retry::Idempotent => NextStep::Again(None, reason.to_owned().into()),
            Retry::Never => NextStep::Failed(RpcError::Unreachable {
                peer: state.peer.clone(),
                reason: format!("{reason}; whether the request was executed is unknown"),
            }),
        }
    }

    /// What to do after an answer that is not a reply.
    pub(super) fn judge(&self, state: &PeerState, session: &Rc<Session>, answer: &Answer) -> NextStep {
        let Answer { kind, status, pause, message, body, .. } = answer;
        if *kind == Kind::HelloReply {
            // Another incarnation answers, which doesn't speak this version. A new hello agrees on one.
            self.context.disconnect(state, session);
            return NextStep::Again(None, "the server's protocol version changed".into());
        }
        let der = Der(*status);
        if der == Der::OVERLOAD_RETRY {
            add(&self.context.metrics.overload_hints, 1);
            let pause = Duration::from_nanos(*pause).min(PAUSE_MAX);
            return NextStep::Again(Some(pause), "the server is overloaded".into());
        }
        let text = &message[body.clone()];
        NextStep::Failed(RpcError::Remote(Status::new(der, String::from_utf8_lossy(text))))
    }
}
