//! What a call needs before it is sent: contact, and a credit.

use super::{Asked, Course, Next};
use crate::admission::{Class, Permit};
use crate::contact::{PeerState, Session};
use crate::error::RpcError;
use std::rc::Rc;
use weir_runtime::Elapsed;

impl Asked<'_> {
    /// Makes contact where there is none, or ends at the deadline. Who waits for that has neither a credit nor memory exposed: a
    /// server that is gone must not use up what calls to others need.
    pub(super) async fn meet(&self, state: &Rc<PeerState>, course: &mut Course<'_>) -> Result<(), RpcError> {
        let deadline = self.options.deadline;
        while state.session().is_none() {
            match course.contact(state, deadline).await {
                Err(Next::Again(pause, why)) => {
                    course.last = why;
                    course.rest(pause, deadline).await;
                }
                Err(Next::Failed(error)) => return Err(error),
                Ok(_) | Err(Next::Look(_)) => return Ok(()),
            }
            if self.context.rt.now() >= deadline {
                let reason = core::mem::take(&mut course.last).into_owned();
                return Err(RpcError::Unreachable { peer: self.to.clone(), reason });
            }
        }
        Ok(())
    }

    /// Contact, made anew where it was lost, and a credit, which nobody has who waits for contact or rests.
    pub(super) async fn be_ready(
        &self,
        state: &Rc<PeerState>,
        course: &Course<'_>,
        credit: &mut Option<Permit>,
    ) -> Result<Rc<Session>, Next> {
        let deadline = self.options.deadline;
        let session = if let Some(session) = state.session() {
            session
        } else {
            drop(credit.take());
            course.contact(state, deadline).await?
        };
        if credit.is_none() {
            let class = Class::of(self.options.priority).again();
            let waited = self.context.credit(state, self.opcode, class, deadline).await;
            *credit = waited.map_err(|Elapsed| {
                let (peer, opcode, tries) = (self.to.clone(), self.opcode, course.tries);
                let (waited, last) =
                    (self.context.rt.now() - course.start, "waiting for a credit".to_owned());
                Next::Failed(RpcError::TimedOut { peer, opcode, waited, tries, last })
            })?;
        }
        Ok(session)
    }
}
