//! Requests that are being executed.

use super::{Body, Server};
use crate::error::Status;
use crate::metrics::{add, sub};
use crate::request::Request;
use crate::transfer::AccessHandle;
use crate::wire::{Caller, Header};
use core::cell::Cell;
use core::num::NonZeroU64;
use core::time::Duration;
use std::rc::Rc;
use weir_proto::Der;
use weir_runtime::Instant;

/// A request being executed.
pub(crate) struct Running {
    server: Rc<Server>,
    task: Rc<RunningRecord>,
}

/// What answering a request needs. Like the request's record it stays in one place, which later requests reuse.
#[derive(Default)]
pub(crate) struct RunningRecord {
    pub(super) caller: Caller,
    pub(super) request: u64,
    pub(super) version: u16,
    /// Its accesses to the client's memory, and when they must have ended.
    pub(super) accesses: Option<(AccessHandle, Instant)>,
    /// How many requests had begun when it came, if its client had no other in flight.
    pub(super) lone: Option<u64>,
    /// It was admitted without regard to room.
    pub(super) urgent: bool,
    pub(super) finished: Cell<bool>,
}

impl Running {
    /// Counts an admitted request.
    #[inline(always)]
    pub(super) fn new(
        server: Rc<Server>,
        caller: Caller,
        header: &Header,
        (lone, urgent): (Option<u64>, bool),
    ) -> Self {
        add(&server.context.metrics.requests, 1);
        add(&server.context.metrics.running, 1);
        let task = server.spare_tasks.take(|place| {
            place.caller = caller;
            place.request = header.request;
            place.version = header.version;
            place.lone = lone;
            place.urgent = urgent;
            place.finished.set(false);
        });
        Self { server, task }
    }

    /// The request has accesses to the client's memory, which must have ended by `until`.
    pub(super) fn watch(&mut self, accesses: AccessHandle, until: Instant) {
        // It has no other owner yet.
        if let Some(task) = Rc::get_mut(&mut self.task) {
            task.accesses = Some((accesses, until));
        }
    }

    /// A worker begins the request.
    #[inline]
    pub(crate) fn begin(&self) {
        self.server.begun(self.task.lone, self.is_small());
    }

    /// Whether the request moves no client memory.
    pub(crate) fn is_small(&self) -> bool {
        self.task.accesses.is_none()
    }

    /// The request was executed. Its reply waits until no access to the client's memory is in flight.
    #[inline(always)]
    pub(crate) fn finish(self, result: Result<Body, Status>) {
        match &self.task.accesses {
            Some((accesses, until)) if accesses.is_busy() => {
                let held = (accesses.clone(), *until);
                self.finish_later(held, result);
            }
            _ => self.reply(result),
        }
    }

    fn finish_later(self, (accesses, until): (AccessHandle, Instant), result: Result<Body, Status>) {
        add(&self.server.context.metrics.replies_held, 1);
        let rt = self.server.context.rt.clone();
        rt.clone().spawn(async move {
            // From then on the client uses its memory again, whatever the reply says.
            let _ = rt.timeout_at(until, accesses.idle()).await;
            self.reply(result);
        });
    }

    #[inline(always)]
    fn reply(self, result: Result<Body, Status>) {
        self.task.finished.set(true);
        self.server.finish(&self.task, result);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Server { context, load, spare_tasks, .. } = &*self.server;
        sub(&context.metrics.running, 1);
        load.finished(!self.task.urgent, context.rt.now());
        if !self.task.finished.get() {
            context.clients.borrow_mut().forget(self.task.caller, self.task.request);
        }
        // Dropping the last handle removes the request from the access table.
        let accesses = Rc::get_mut(&mut self.task).and_then(|task| task.accesses.take());
        drop(accesses);
        spare_tasks.keep(&self.task);
    }
}

/// Begins a request when the wall clock has come near enough to its epoch, unless its deadline passes before.
pub(super) async fn hold(mut early: NonZeroU64, running: Running, request: Request) {
    let server = Rc::clone(&running.server);
    let context = Rc::clone(&server.context);
    let (epoch, deadline) = (request.epoch(), request.deadline());
    add(&context.metrics.requests_early, 1);
    loop {
        context.rt.sleep_until(deadline.min(context.rt.now() + Duration::from_nanos(early.get()))).await;
        if context.rt.now() >= deadline {
            add(&context.metrics.expired, 1);
            let text = "the request expired before the server's clock had come near enough to its client's";
            return running.finish(Err(Status::new(Der::TIMEDOUT, text)));
        }
        match context.clock.observe_tenant(epoch, context.rt.wall_ns()) {
            Ok(None) => break,
            // The wall clock went back meanwhile.
            Ok(Some(more)) => early = more,
            Err(skew) => return running.finish(Err(Status::new(Der::HLC_SYNC, skew.to_string()))),
        }
    }
    // If the context closed meanwhile, nothing is served.
    let operation = server.handlers.borrow().get(request.opcode()).map(Rc::clone);
    if let Some(operation) = operation {
        server.queue(operation, request.client(), running, request, false);
    }
}
