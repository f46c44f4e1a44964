//! What a call needs before it is sent: contact and a credit.

use super::CallArgs;
use super::attempts::{Attempts, NextStep};
use crate::admission::{Class, Permit};
use crate::contact::{PeerState, Session};
use crate::error::RpcError;
use std::rc::Rc;
use weir_runtime::Elapsed;

impl CallArgs<'_> {
    /// Waits for contact, until the deadline. A waiting call holds no credit and exposes no memory: a server
    /// that is gone must not use up what calls to others need.
    pub(super) async fn wait_for_contact(
        &self,
        state: &Rc<PeerState>,
        attempts: &mut Attempts<'_>,
    ) -> Result<(), RpcError> {
        let deadline = self.options.deadline;
        while state.session().is_none() {
            match attempts.contact(state, deadline).await {
                Err(NextStep::Again(pause, why)) => {
                    attempts.last = why;
                    attempts.rest(pause, deadline).await;
                }
                Err(NextStep::Failed(error)) => return Err(error),
                Ok(_) | Err(NextStep::Look(_)) => return Ok(()),
            }
            if self.context.rt.now() >= deadline {
                let reason = core::mem::take(&mut attempts.last).into_owned();
                return Err(RpcError::Unreachable { peer: self.to.clone(), reason });
            }
        }
        Ok(())
    }

    /// A session, opened anew if contact was lost, and a credit. No call holds a credit while it waits for
    /// contact or pauses.
    pub(super) async fn prepare(
        &self,
        state: &Rc<PeerState>,
        attempts: &Attempts<'_>,
        credit: &mut Option<Permit>,
    ) -> Result<Rc<Session>, NextStep> {
        let deadline = self.options.deadline;
        let session = if let Some(session) = state.session() {
            session
        } else {
            drop(credit.take());
            attempts.contact(state, deadline).await?
        };
        if credit.is_none() {
            let class = Class::of(self.options.priority).again();
            let waited = self.context.credit(state, self.opcode, class, deadline).await;
            *credit = waited.map_err(|Elapsed| {
                let (peer, opcode, tries) = (self.to.clone(), self.opcode, attempts.tries);
                let (waited, last) =
                    (self.context.rt.now() - attempts.start, "waiting for a credit".to_owned());
                NextStep::Failed(RpcError::TimedOut { peer, opcode, waited, tries, last })
            })?;
        }
        Ok(session)
    }
}
