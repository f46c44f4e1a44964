//! What arrives: messages are split and authenticated, requests go to the server, and replies to the calls that
//! wait for them. It calls the server, the context and the records of replies. The endpoint calls it as its
//! sink.

mod authenticity;

use crate::context::TAKEN_MAX;
use crate::metrics::add;
use crate::reply::{Answer, Outcome, Reply};
use crate::server::Server;
use crate::wire::{self, ClientId, Header, Kind, Layout};
use core::ops::Range;
use weir_fabric::{FabricError, Message, PeerId, Sink};
use weir_proto::Der;
use weir_proto::hlc::ClockSkew;

impl Server {
    /// The server still executes a request that was sent again: it is slow, not gone.
    fn still_working(&self, header: &Header) {
        let state = self.context.pending.state(header.request);
        if let Some(state) = state.filter(|state| state.client == header.client) {
            state.heard.set(self.context.rt.now());
        }
    }

    #[inline]
    fn resolve_pending(&self, header: &Header, message: &mut Message, body: Range<usize>) {
        // Where the provider names the sender, it must be the one that the request went to.
        let from = message.source().peer();
        let Header { kind, status, epoch, acked: pause, .. } = *header;
        let server = ClientId::new(header.deadline);
        let outcome = || {
            let message = core::mem::take(message);
            if kind == Kind::Reply && status == 0 {
                Outcome::Reply(Reply { message, body, server, epoch })
            } else {
                Outcome::Answer(Answer { kind, status, server, pause, message, body })
            }
        };
        if !self.context.pending.resolve_with(header.request, Some(header.client), from, outcome) {
            add(&self.context.metrics.stray_replies, 1);
        }
    }

    /// Handles an authentic message whose clock is too far ahead: callers that wait for an answer, there or here, learn
    /// why none comes.
    #[cold]
    fn received_early(&self, header: &Header, message: &Message, layout: &Layout, skew: ClockSkew) {
        add(&self.context.metrics.skew_refused, 1);
        tracing::warn!(%skew, "a message from the future");
        match header.kind {
            Kind::Hello => self.context.notify(header, message, layout, Der::HLC_SYNC),
            Kind::Request => self.refuse_skewed(header, message, layout, skew),
            Kind::HelloReply | Kind::Reply => {
                let (client, from) = (Some(header.client), message.source().peer());
                self.context.pending.resolve_with(header.request, client, from, || Outcome::Early);
            }
            Kind::Working => {}
        }
    }

    /// Handles one message. A handler that keeps it takes it out of `message`.
    #[inline(always)]
    fn received(&self, header: &Header, message: &mut Message, layout: &Layout) {
        // First of all: an unauthenticated message must not even move the clock.
        if !self.context.is_authentic(header, message, layout) {
            return;
        }
        let mut times = self.context.rt.times();
        if header.epoch.check(times.1).is_err() {
            times = self.context.rt.times_anew();
            if let Err(skew) = header.epoch.check(times.1) {
                self.received_early(header, message, layout, skew);
                return;
            }
        }
        let (now, wall_ns) = times;
        // A hello reports no event. A request moves the clock as far as its tenant may.
        if !matches!(header.kind, Kind::Hello | Kind::Request) {
            let _ = self.context.clock.observe(header.epoch, wall_ns);
        }
        match header.kind {
            Kind::Hello => self.greeted(header, message, layout),
            Kind::Request => self.requested(header, message, layout, (now, wall_ns)),
            Kind::Working => self.still_working(header),
            Kind::HelloReply | Kind::Reply => self.resolve_pending(header, message, layout.body.clone()),
        }
    }

    /// Handles all messages in a message of the fabric: small ones to one peer share it.
    fn take_apart(&self, mut message: Message) {
        for _ in 0..TAKEN_MAX {
            add(&self.context.metrics.messages_received, 1);
            // Decoded in place: to copy bytes that were just written takes a while.
            let decoded = wire::decode_first(&message);
            let (header, layout) = match &decoded {
                Ok(decoded) => (&decoded.0, &decoded.1),
                Err(error) => {
                    add(&self.context.metrics.malformed, 1);
                    tracing::debug!(%error, "a malformed message was dropped");
                    return;
                }
            };
            let end = layout.end;
            let is_last = end == message.len();
            self.more.set(!is_last);
            if is_last {
                self.received(header, &mut message, layout);
                return;
            }
            let mut first = message.split_to(end);
            self.received(header, &mut first, layout);
        }
        add(&self.context.metrics.malformed, 1);
        tracing::debug!(len = message.len(), "the rest of a message with too many in it was dropped");
    }
}

impl Sink for Server {
    fn message(&self, message: Message) {
        add(&self.context.metrics.bytes_received, message.len() as u64);
        self.take_apart(message);
        self.more.set(false);
    }

    fn closed(&self) {
        self.close();
    }

    fn send_failed(&self, peer: PeerId, context: u64, error: FabricError) {
        self.context.unsent(peer, context, &error);
    }
}
