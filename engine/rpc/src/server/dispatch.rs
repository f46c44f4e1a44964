//! Which admitted request begins next.
//!
//! An admitted request wakes a worker, which begins it when its task runs. Only a few workers are woken at a
//! time. Further requests wait in a queue for each client, and these queues are served round-robin. So a client
//! with a single request has at most those few, and one of each other client, before it.

use super::running::Running;
use super::{Served, Server};
use crate::metrics::raise;
use crate::request::Request;
use crate::wire::Caller;
use std::rc::Rc;

/// Most requests whose workers are awake and that have not begun: all credits of one client, so that nothing
/// waits for a client that is alone.
const WOKEN_MAX: usize = crate::config::CREDITS_DEFAULT;

/// Further ones for urgent requests: the urgent reserves of two clients.
const WOKEN_URGENT: usize = 8;

/// A request that waits for a worker.
pub(super) struct Waiting {
    served: Rc<Served>,
    running: Running,
    request: Request,
}

impl Server {
    /// Executes an admitted request: at once if no request waits, else in its client's turn. It runs on this
    /// stack if it is `short` and no other worker is about to begin.
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

    /// A request begins. `small`: it moves no client memory. `lone`: how many had begun when it came, if its
    /// client had no other in flight.
    #[inline]
    pub(crate) fn begun(&self, lone: Option<u64>, small: bool) {
        let begun = self.context.backlog.begin(small);
        if let Some(before) = lone {
            debug_assert!(before <= begun, "the count of begun requests went back");
            raise(&self.context.metrics.passed_max, begun - before);
        }
        if !self.waiting.borrow().is_empty() {
            self.wake_next();
        }
    }

    /// Wakes workers for the requests that are next.
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
