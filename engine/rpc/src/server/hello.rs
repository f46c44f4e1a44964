//! Answers to hellos: the protocol version, and the session's key.

use super::Server;
use super::sender::Sender;
use crate::clients::{SenderError, ServedSession};
use crate::contact::common_version;
use crate::metrics::add;
use crate::wire::seal::{Nonce, SealKey};
use crate::wire::{self, Caller, Header, Kind, Layout};
use weir_fabric::Message;
use weir_proto::Der;

impl Server {
    /// Answers a hello with the versions that are spoken here.
    pub(crate) fn greeted(&self, header: &Header, message: &Message, layout: &Layout) {
        let theirs = message.get(layout.body.clone()).map(wire::decode_versions);
        let Some(Ok(theirs)) = theirs else {
            add(&self.context.metrics.malformed, 1);
            return;
        };
        let Some(from) = self.sender(header, message, layout, self.context.rt.now()) else {
            add(&self.context.metrics.unknown_senders, 1);
            return;
        };
        if !self.may_answer(from.caller, self.context.rt.now()) {
            return;
        }
        let Ok(nonce) = self.open_session(from.caller, header, message, layout) else { return };
        let common = common_version(&self.context.config.versions, &theirs);
        if common.is_none() {
            add(&self.context.metrics.version_refused, 1);
            tracing::warn!(ours = ?self.context.config.versions, ?theirs, "a client of another protocol version");
        }
        self.answer_hello(from, header, common, nonce);
    }

    /// Agrees on a session key with a client whose hello is authentic. Returns this server's nonce.
    fn open_session(
        &self,
        caller: Caller,
        header: &Header,
        message: &Message,
        layout: &Layout,
    ) -> Result<Option<Nonce>, ()> {
        let Some(ring) = &self.context.ring else { return Ok(None) };
        let theirs = message.get(layout.body.clone()).and_then(wire::decode_nonce);
        let (Some(theirs), Some((key, _))) = (theirs, ring.of(caller.tenant)) else {
            add(&self.context.metrics.malformed, 1);
            return Err(());
        };
        let ours = self.context.fresh_nonce();
        let seal = SealKey::of_session(&key, (caller.id, theirs), (self.context.id, ours));
        let session = ServedSession { seal, hello: header.request, theirs, ours };
        match self.context.clients.borrow_mut().open(caller, session) {
            Ok(ours) => Ok(Some(ours)),
            Err(SenderError::Replay) => {
                add(&self.context.metrics.replays_refused, 1);
                Err(())
            }
            Err(_) => {
                add(&self.context.metrics.impostors, 1);
                Err(())
            }
        }
    }

    pub(super) fn answer_hello(
        &self,
        to: Sender,
        header: &Header,
        common: Option<u16>,
        nonce: Option<Nonce>,
    ) {
        let version = common.unwrap_or(*self.context.config.versions.end());
        let mut reply =
            Header::new(Kind::HelloReply, version, header.client, header.request, self.context.epoch());
        let bare = wire::encode_versions(&self.context.config.versions);
        let whole = nonce.map(|nonce| wire::encode_hello(&self.context.config.versions, &nonce));
        let body: &[u8] = whole.as_ref().map_or(&bare, |whole| whole);
        reply.set_body(body);
        reply.deadline = self.context.id.bits();
        reply.status = if common.is_some() { 0 } else { Der::PROTO.0 };
        self.reply(to, reply, body, self.in_flight());
    }
}
