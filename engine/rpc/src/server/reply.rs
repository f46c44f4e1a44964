//! Replies and refusals.

use super::admit::STOPPING_PAUSE;
use super::running::RunningRecord;
use super::sender::Sender;
use super::{Body, Phase, Server};
use crate::admission::PAUSE_MAX;
use crate::clients::Finished;
use crate::error::Status;
use crate::metrics::add;
use crate::wire::{Caller, Header, Kind, Layout};
use core::time::Duration;
use weir_fabric::Message;
use weir_proto::Der;
use weir_proto::hlc::ClockSkew;
use weir_proto::limits::INLINE_MAX;
use weir_runtime::nanos;

impl Server {
    /// Requests in flight, and one more if others came with the present one: their replies may follow at once.
    pub(super) fn in_flight(&self) -> usize {
        self.context.running() + usize::from(self.more.get())
    }

    /// Sends a reply. If that fails the client repeats the request.
    #[inline(always)]
    pub(super) fn reply(&self, to: Sender, mut header: Header, body: &[u8], in_flight: usize) {
        add(&self.context.metrics.replies, 1);
        let key = self.context.ring.as_ref().and_then(|_| self.context.clients.borrow().seal(to.caller));
        header.tenant = if key.is_some() { to.caller.tenant.0 } else { 0 };
        if let Err(error) =
            self.context.transmit(to.peer, 0, &mut header, &[], &[], body, key.as_ref(), in_flight)
        {
            add(&self.context.metrics.sends_failed, 1);
            tracing::debug!(%error, "a reply could not be sent");
        }
    }

    /// Answers a request that is not executed. Such answers are not remembered.
    pub(super) fn refuse(&self, to: Sender, header: &Header, der: Der, pause: Duration, text: &str) {
        let epoch = self.context.epoch();
        let mut reply = Header::new(Kind::Reply, header.version, header.client, header.request, epoch);
        reply.deadline = self.context.id.bits();
        reply.status = der.0;
        assert!(pause <= PAUSE_MAX, "clients believe no pause of {pause:?}");
        reply.acked = nanos(pause);
        reply.set_body(text.as_bytes());
        self.reply(to, reply, text.as_bytes(), self.in_flight());
    }

    pub(crate) fn refuse_skewed(&self, header: &Header, message: &Message, layout: &Layout, skew: ClockSkew) {
        let Some(from) = self.sender(header, message, layout, self.context.rt.now()) else { return };
        // A repeat, from a client whose clock has jumped: the first execution answers.
        if !self.context.clients.borrow().is_running(from.caller, header.request) {
            self.reject(from, header, Der::HLC_SYNC, &skew.to_string());
        }
    }

    /// Answers a request that can't be executed, within the client's allowance.
    pub(super) fn reject(&self, to: Sender, header: &Header, der: Der, text: &str) {
        if self.may_answer(to.caller, self.context.rt.now()) {
            self.refuse(to, header, der, Duration::ZERO, text);
        }
    }

    pub(super) fn reject_unserved(&self, to: Sender, header: &Header) {
        if let Some((pause, text)) = self.absence() {
            if self.may_answer(to.caller, self.context.rt.now()) {
                self.refuse(to, header, Der::OVERLOAD_RETRY, pause, text);
            }
        } else {
            let text = format!("operation {:#06x} is not served here", header.opcode);
            self.reject(to, header, Der::NOSYS, &text);
        }
    }

    #[inline(always)]
    pub(super) fn finish(&self, task: &RunningRecord, result: Result<Body, Status>) {
        let RunningRecord { caller, request, version, .. } = *task;
        if result.is_err() && self.phase.get() == Phase::Ending {
            return self.retry_elsewhere(caller, request, version);
        }
        // The request moves client memory: its reply waits for no other.
        let bulk = task.accesses.is_some();
        let finished = match result {
            Ok(body) if body.len() <= INLINE_MAX => Finished { status: 0, body },
            Ok(body) => {
                let len = body.len();
                let text =
                    format!("the reply of {len} bytes is larger than the inline limit of {INLINE_MAX}");
                Finished { status: Der::OVERFLOW.0, body: text.into_bytes() }
            }
            Err(status) => {
                let mut body = status.message.into_bytes();
                body.truncate(INLINE_MAX);
                // A handler's error must not read as success.
                let code = if status.der.0 == 0 { Der::MISC.0 } else { status.der.0 };
                Finished { status: code, body }
            }
        };
        // The client may have moved meanwhile.
        let peer = self.context.clients.borrow().peer(caller);
        if let Some(peer) = peer {
            self.answer(Sender { peer, caller }, request, version, bulk, &finished);
        }
        self.context.clients.borrow_mut().finish(caller, request, finished);
    }

    /// A request failed because the server ends. Its client is told to repeat it, which reaches the next server.
    pub(super) fn retry_elsewhere(&self, caller: Caller, request: u64, version: u16) {
        let peer = self.context.clients.borrow().peer(caller);
        self.context.clients.borrow_mut().forget(caller, request);
        if let Some(peer) = peer {
            let header = Header::new(Kind::Reply, version, caller.id, request, self.context.epoch());
            let to = Sender { peer, caller };
            self.refuse(to, &header, Der::OVERLOAD_RETRY, STOPPING_PAUSE, "the server is stopping");
        }
    }

    /// Sends the reply of a finished request. If it moved client memory, the reply is not coalesced: the client
    /// may send its next request while others' transfers run.
    #[inline(always)]
    pub(super) fn answer(&self, to: Sender, request: u64, version: u16, bulk: bool, finished: &Finished) {
        let mut header = Header::new(Kind::Reply, version, to.caller.id, request, self.context.epoch());
        header.deadline = self.context.id.bits();
        header.status = finished.status;
        header.set_body(&finished.body);
        self.reply(to, header, &finished.body, if bulk { 1 } else { self.in_flight() });
    }
}
