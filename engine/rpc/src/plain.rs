//! The way of nearly every call: there is contact and a credit, and a reply comes.
//!
//! It is one future without a wait inside, because what a client does for a small request bounds how many it makes. Whatever
//! else happens is left to the long way ([`crate::call`]), which goes on from where this one has got to.

use crate::call::{Asked, Letter, Ticket};
use crate::proof::Proof;
use crate::quota::{Class, Permit};
use crate::session::Session;
use crate::{INLINE_MAX, Reply};
use core::pin::Pin;
use core::task::{Context, Poll};
use std::rc::Rc;
use weir_fabric::FabricError;
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

    /// Sends the request, where nothing has to be waited for.
    #[inline]
    fn send(&self, cx: &Context<'_>) -> Option<Sent<'a>> {
        let Asked { inner, to, opcode, body, options, .. } = *self.asked;
        let (now, wall) = inner.rt.times();
        // Withdrawals take no credit.
        if opcode == REQUEST_WITHDRAW || body.len() > INLINE_MAX || now >= options.deadline {
            return None;
        }
        let state = inner.peer_state(to);
        let session = state.session()?;
        let credit = inner.requests.try_acquire(state.place.lane(), Class::of(options.priority))?;
        let letter = Letter::new(inner, opcode, body, options, (now, wall));
        let ticket = Ticket::new(inner, state);
        let due = letter.due(now, inner.config.attempt_min);
        let proof = || Proof::Session(Rc::clone(&session));
        inner.expect(ticket.id, session.id, &ticket.state, proof, due, Some(cx));
        let refused = inner.post(&ticket, &session, &letter, None, false, now).err().map(Box::new);
        Some(Sent { ticket, session, credit, wall_deadline: letter.wall_deadline, at: now, refused })
    }
}

impl<'a> Future for Plain<'a> {
    type Output = Result<Reply, Option<Sent<'a>>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Some(sent) = &this.sent {
            return match sent.ticket.poll_reply(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Some(reply)) => Poll::Ready(Ok(reply)),
                Poll::Ready(None) => Poll::Ready(Err(this.sent.take())),
            };
        }
        this.sent = this.send(cx);
        match &this.sent {
            Some(Sent { refused: None, .. }) => Poll::Pending,
            _ => Poll::Ready(Err(this.sent.take())),
        }
    }
}
