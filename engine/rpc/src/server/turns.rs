//! Whose request begins next.
//!
//! A request that was admitted wakes a worker, which begins it when its task's turn comes. Only a few are woken at a time.
//! What is admitted beyond that waits here in a lane for each client, and the lanes take turns: one request each. So a
//! client with a single request has at most those few and one of each other client before it, however many the others
//! have been admitted with.

use super::running::Running;
use super::{Served, Server};
use crate::metrics::raise;
use crate::request::Request;
use crate::wire::Caller;
use std::rc::Rc;

/// Requests whose workers are awake and that have not begun: what one client has under way with all its credits, so that
/// nothing waits in a lane for a client that is alone.
const WOKEN_MAX: usize = crate::config::CREDITS_DEFAULT;

/// More of these that urgent requests may use: as many as a client's reserve of urgent credits has, of two clients.
const WOKEN_URGENT: usize = 8;

/// A request that waits for its turn.
pub(super) struct Waiting {
    served: Rc<Served>,
    running: Running,
    request: Request,
}

impl Server {
    /// Has an admitted request executed when its client's turn has come; at once, where nobody waits; and in place, where it is
    /// `short` and no worker is about to begin.
    #[inline(always)]
    pub(crate) fn queue(
        &self,
        served: Rc<Served>,
        client: Caller,
        running: Running,
        request: Request,
        short: bool,
    ) {
        let backlog = &self.context.backlog;
        let free = self.waiting.borrow().is_empty() && backlog.woken() < WOKEN_MAX;
        if free || served.urgent && backlog.woken() < WOKEN_MAX + WOKEN_URGENT {
            let in_place = short && backlog.woken() == 0;
            backlog.wake(running.is_small());
            served.workers.take(&self.context.rt, &served.handler, running, request, in_place);
            return;
        }
        self.waiting.borrow_mut().push(client, Waiting { served, running, request });
    }

    /// A request begins, which moves no memory if it is `small`. `lone`: how many had begun when it came, where its client had no
    /// other under way.
    #[inline]
    pub(crate) fn begun(&self, lone: Option<u64>, small: bool) {
        let begun = self.context.backlog.begin(small);
        if let Some(before) = lone {
            raise(&self.context.metrics.passed_max, begun.saturating_sub(before));
        }
        if !self.waiting.borrow().is_empty() {
            self.wake_next();
        }
    }

    /// Gives the next client in turn its worker.
    #[cold]
    fn wake_next(&self) {
        while self.context.backlog.woken() < WOKEN_MAX {
            let next = self.waiting.borrow_mut().pop();
            let Some(Waiting { served, running, request }) = next else { return };
            self.context.backlog.wake(running.is_small());
            served.workers.take(&self.context.rt, &served.handler, running, request, false);
        }
    }
}
