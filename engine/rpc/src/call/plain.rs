//! The way of nearly every call: there is contact and a credit, and a reply comes.
//!
//! It is one future without a wait inside, because what a client does for a small request bounds how many it makes. Whatever
//! else happens is left to the long way ([`super`]), which goes on from where this one has got to.

use super::{Asked, Letter, Ticket};
use crate::admission::{Class, Permit};
use crate::contact::{PeerState, Session};
use crate::context::Context;
use crate::reply::{Proof, Reply};
use core::pin::Pin;
use core::task::{Context as TaskContext, Poll};
use std::rc::Rc;
use weir_fabric::FabricError;
use weir_proto::limits::INLINE_MAX;
use weir_proto::opcode::REQUEST_WITHDRAW;
use weir_runtime::Instant;

/// A request that was sent.
pub(crate) struct Sent<'a> {
    pub(crate) ticket: Ticket<'a>,
    pub(crate) session: Rc<Session>,
    pub(crate) credit: Permit,
    /// The deadline on the wall clock.
    pub(crate) wall_deadline: u64,
    /// When it was.
    pub(crate) at: Instant,
    /// Why it could not be.
    pub(crate) refused: Option<Box<FabricError>>,
}

impl<'a> Sent<'a> {
    /// A request that can be sent now: there is contact and a credit, and whatever `leave` takes beside.
    #[inline]
    pub(crate) fn begin<L>(
        asked: &Asked<'a>,
        leave: impl FnOnce(&Context, &PeerState, Class) -> Option<L>,
    ) -> Option<(L, Self)> {
        let Asked { context, to, opcode, body, options, .. } = *asked;
        let (now, wall) = context.rt.times();
        // Withdrawals take no credit.
        if opcode == REQUEST_WITHDRAW || body.len() > INLINE_MAX || now >= options.deadline {
            return None;
        }
        let state = context.peer_state(to);
        let session = state.session()?;
        let class = Class::of(options.priority);
        let leave = leave(context, &state, class)?;
        let credit = context.requests.try_acquire(state.place.lane(), class)?;
        let Letter { wall_deadline, .. } = Letter::new(context, opcode, body, options, (now, wall));
        let ticket = Ticket::new(context, state);
        Some((leave, Self { ticket, session, credit, wall_deadline, at: now, refused: None }))
    }

    /// Has it sent, and expects the answer. `waiting`: who is to be woken, where that is known. `send` is of one caller, so that
    /// all of this is put where it is called.
    #[inline]
    pub(crate) fn post(
        &mut self,
        asked: &Asked<'a>,
        waiting: Option<&TaskContext<'_>>,
        send: impl FnOnce(&Self, &Letter<'_>) -> Result<(), FabricError>,
    ) {
        let Asked { context, opcode, body, options, .. } = *asked;
        let letter = Letter { opcode, body, options, wall_deadline: self.wall_deadline };
        let due = letter.due(self.at, self.ticket.state.first_wait(self.at, context.config.attempt_min));
        let proof = || Proof::Session(Rc::clone(&self.session));
        context.expect(self.ticket.id, self.session.id, &self.ticket.state, proof, due, waiting);
        self.refused = send(self, &letter).err().map(Box::new);
    }
}

/// A call that is made. It ends with the reply, or with how far it has got without: `None` where nothing was sent.
pub(crate) struct Plain<'a> {
    asked: &'a Asked<'a>,
    sent: Option<Sent<'a>>,
}

impl<'a> Plain<'a> {
    #[inline]
    pub(crate) fn new(asked: &'a Asked<'a>) -> Self {
        Self { asked, sent: None }
    }
}

impl<'a> Future for Plain<'a> {
    type Output = Result<Reply, Option<Sent<'a>>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Some(sent) = &this.sent {
            return match sent.ticket.poll_reply(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Some(reply)) => Poll::Ready(Ok(reply)),
                Poll::Ready(None) => Poll::Ready(Err(this.sent.take())),
            };
        }
        this.sent = Sent::begin(this.asked, |_, _, _| Some(())).map(|((), sent)| sent);
        if let Some(sent) = &mut this.sent {
            let context = this.asked.context;
            sent.post(this.asked, Some(cx), |sent, letter| {
                context.post(&sent.ticket, &sent.session, letter, None, false, sent.at)
            });
        }
        match &this.sent {
            Some(Sent { refused: None, .. }) => Poll::Pending,
            _ => Poll::Ready(Err(this.sent.take())),
        }
    }
}
