//! The fast path of a call: contact stands, a credit is free, and a reply comes.
//!
//! It is one future without an inner wait: what a client spends on a small request bounds its rate. Anything
//! else is left to the slow path ([`super`]), which continues from where this one stopped.

use super::{CallArgs, RequestGuard, RequestSpec};
use crate::admission::{Class, Permit};
use crate::contact::{PeerState, Session};
use crate::context::Context;
use crate::reply::{Reply, ReplyAuth};
use core::pin::Pin;
use core::task::{Context as TaskContext, Poll};
use std::rc::Rc;
use weir_fabric::FabricError;
use weir_proto::limits::INLINE_MAX;
use weir_proto::opcode::REQUEST_WITHDRAW;
use weir_runtime::Instant;

/// A request that was sent, or could not be.
pub(crate) struct Sent<'a> {
    pub(crate) guard: RequestGuard<'a>,
    pub(crate) session: Rc<Session>,
    pub(crate) credit: Permit,
    /// The deadline on the wall clock.
    pub(crate) wall_deadline: u64,
    /// When it was sent.
    pub(crate) at: Instant,
    /// Why it could not be sent.
    pub(crate) refused: Option<Box<FabricError>>,
}

impl<'a> Sent<'a> {
    /// A request that can be sent now: contact stands, a credit is free, and `extra` returns something.
    #[inline]
    pub(crate) fn begin<L>(
        args: &CallArgs<'a>,
        extra: impl FnOnce(&Context, &PeerState, Class) -> Option<L>,
    ) -> Option<(L, Self)> {
        let CallArgs { context, to, opcode, body, options, .. } = *args;
        let (now, wall) = context.rt.times();
        // Withdrawals take no credit.
        if opcode == REQUEST_WITHDRAW || body.len() > INLINE_MAX || now >= options.deadline {
            return None;
        }
        let state = context.peer_state(to);
        let session = state.session()?;
        let class = Class::of(options.priority);
        let extra = extra(context, &state, class)?;
        let credit = context.requests.try_acquire(state.place.lane(), class)?;
        let RequestSpec { wall_deadline, .. } = RequestSpec::new(context, opcode, body, options, (now, wall));
        let guard = RequestGuard::new(context, state);
        Some((extra, Self { guard, session, credit, wall_deadline, at: now, refused: None }))
    }

    /// Sends it and expects the answer. `waiting`: whose waker to use, if it is known. `send` has one caller, so
    /// that it is inlined.
    #[inline]
    pub(crate) fn post(
        &mut self,
        args: &CallArgs<'a>,
        waiting: Option<&TaskContext<'_>>,
        send: impl FnOnce(&Self, &RequestSpec<'_>) -> Result<(), FabricError>,
    ) {
        let CallArgs { context, opcode, body, options, .. } = *args;
        let spec = RequestSpec { opcode, body, options, wall_deadline: self.wall_deadline };
        let due = spec.due(self.at, self.guard.state.first_wait(self.at, context.config.attempt_min));
        let proof = || ReplyAuth::Session(Rc::clone(&self.session));
        context.expect(self.guard.id, self.session.id, &self.guard.state, proof, due, waiting);
        self.refused = send(self, &spec).err().map(Box::new);
    }
}

/// A call on the fast path. It ends with the reply, or with the request that got none: `None` if nothing was
/// sent.
pub(crate) struct FastPath<'a> {
    args: &'a CallArgs<'a>,
    sent: Option<Sent<'a>>,
}

impl<'a> FastPath<'a> {
    #[inline]
    pub(crate) fn new(args: &'a CallArgs<'a>) -> Self {
        Self { args, sent: None }
    }
}

impl<'a> Future for FastPath<'a> {
    type Output = Result<Reply, Option<Sent<'a>>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Some(sent) = &this.sent {
            return match sent.guard.poll_reply(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Some(reply)) => Poll::Ready(Ok(reply)),
                Poll::Ready(None) => Poll::Ready(Err(this.sent.take())),
            };
        }
        this.sent = Sent::begin(this.args, |_, _, _| Some(())).map(|((), sent)| sent);
        if let Some(sent) = &mut this.sent {
            let context = this.args.context;
            sent.post(this.args, Some(cx), |sent, spec| {
                context.post(&sent.guard, &sent.session, spec, None, false, sent.at)
            });
        }
        match &this.sent {
            Some(Sent { refused: None, .. }) => Poll::Pending,
            _ => Poll::Ready(Err(this.sent.take())),
        }
    }
}
