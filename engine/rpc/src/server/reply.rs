//! Replies and refusals.

use super::admit::STOPPING_PAUSE;
use super::running::Task;
use super::sender::Sender;
use super::{Body, Server, Standing};
use crate::clients::Finished;
use crate::error::Status;
use crate::metrics::add;
use crate::wire::{Caller, Header, Kind, Layout};
use core::time::Duration;
use weir_fabric::Message;
use weir_proto::Der;
use weir_proto::hlc::ClockSkew;
use weir_proto::limits::INLINE_MAX;

impl Server {
    /// Requests that are being executed, and whether more have come with the one that is dealt with: their replies may follow in
    /// this moment.
    pub(super) fn company(&self) -> usize {
        let running = usize::try_from(self.context.metrics.running.get()).unwrap_or(usize::MAX);
        running.saturating_add(self.more.get().into())
    }

    /// Sends a reply. When that fails the client asks again.
    #[inline(always)]
    pub(super) fn reply(&self, to: Sender, mut header: Header, body: &[u8], company: usize) {
        add(&self.context.metrics.replies, 1);
        let key = self.context.ring.as_ref().and_then(|_| self.context.clients.borrow().seal(to.caller));
        header.tenant = if key.is_some() { to.caller.tenant.0 } else { 0 };
        if let Err(error) =
            self.context.transmit(to.peer, 0, &mut header, &[], &[], body, key.as_ref(), company)
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
        reply.acked = u64::try_from(pause.as_nanos()).unwrap_or(0);
        reply.body_len = u32::try_from(text.len()).unwrap_or(0);
        self.reply(to, reply, text.as_bytes(), self.company());
    }

    pub(crate) fn refuse_skewed(&self, header: &Header, message: &Message, layout: &Layout, skew: ClockSkew) {
        let Some(from) = self.sender(header, message, layout, self.context.rt.now()) else { return };
        // A repeat, from a client whose clock has jumped: as below.
        if !self.context.clients.borrow().is_running(from.caller, header.request) {
            self.reject(from, header, Der::HLC_SYNC, &skew.to_string());
        }
    }

    /// Answers a request that can't be executed, for as long as the client's allowance lasts.
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
    pub(super) fn finish(&self, task: &Task, result: Result<Body, Status>) {
        let Task { caller, request, version, .. } = *task;
        if result.is_err() && self.standing.get() == Standing::Ending {
            return self.send_on(caller, request, version);
        }
        // It moves client memory: its reply waits for no other.
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
        // The client may have moved while the request ran.
        let peer = self.context.clients.borrow().peer(caller);
        if let Some(peer) = peer {
            self.answer(Sender { peer, caller }, request, version, bulk, &finished);
        }
        self.context.clients.borrow_mut().finish(caller, request, finished);
    }

    /// A request has failed while what it needs ends here: its client is to ask again, and finds who comes next.
    pub(super) fn send_on(&self, caller: Caller, request: u64, version: u16) {
        let peer = self.context.clients.borrow().peer(caller);
        self.context.clients.borrow_mut().forget(caller, request);
        if let Some(peer) = peer {
            let header = Header::new(Kind::Reply, version, caller.id, request, self.context.epoch());
            let to = Sender { peer, caller };
            self.refuse(to, &header, Der::OVERLOAD_RETRY, STOPPING_PAUSE, "the server is stopping");
        }
    }

    /// Sends a finished request's reply; at once, when it tells of moved memory: the client may ask for the next while
    /// others' is moving.
    #[inline(always)]
    pub(super) fn answer(&self, to: Sender, request: u64, version: u16, bulk: bool, finished: &Finished) {
        let mut header = Header::new(Kind::Reply, version, to.caller.id, request, self.context.epoch());
        header.deadline = self.context.id.bits();
        header.status = finished.status;
        header.body_len = u32::try_from(finished.body.len()).unwrap_or(0);
        self.reply(to, header, &finished.body, if bulk { 1 } else { self.company() });
    }
}
