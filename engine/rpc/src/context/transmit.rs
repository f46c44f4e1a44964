//! Putting messages together and sending them.

use super::Context;
use super::outbox::Outbox;
use crate::metrics::add;
use crate::reply::Outcome;
use crate::wire::seal::{SealKey, TAG_LEN};
use crate::wire::{HEADER_LEN, Header, NOTE_MAX};
use weir_fabric::{FabricError, PeerId};

/// Longest body of a sealed message that is put together in one piece: with header and tag it is four cache lines at most.
const SEALED_BODY_MAX: usize = 256 - HEADER_LEN - TAG_LEN;

impl Context {
    /// Sends one message: header, greeting, segments, body, and the tag where there is a key. `request`: who is told when it did not get
    /// through, 0 for nobody. `company`: how many requests
    /// are under way with it, itself among them. If there are others, more messages to the same peer may follow in this
    /// moment, and share a message of the fabric.
    #[expect(clippy::too_many_arguments, reason = "the parts of a message")]
    #[inline(always)]
    pub(crate) fn transmit(
        &self,
        to: PeerId,
        request: u64,
        header: &mut Header,
        greeting: &[u8],
        segments: &[u8],
        body: &[u8],
        key: Option<&SealKey>,
        company: usize,
    ) -> Result<(), FabricError> {
        header.sealed = key.is_some();
        let is_bare = greeting.is_empty() && segments.is_empty();
        if let Some(key) = key.filter(|_| is_bare && body.len() <= SEALED_BODY_MAX) {
            return self.transmit_sealed(to, request, header, body, key, company);
        }
        if key.is_none() && is_bare {
            let mut note = [0; NOTE_MAX];
            if let Some(note) = header.encode_note(body, &mut note).and_then(|len| note.get(..len)) {
                return self.dispatch(to, request, &[note], note.len(), company);
            }
        }
        let head = header.encode_shortest();
        self.transmit_all(to, request, [&head, greeting, segments, body], key, company)
    }

    /// Sends a sealed message of a header and a small body, which is put together once: for the hash, and for whoever copies it.
    #[inline(never)]
    fn transmit_sealed(
        &self,
        to: PeerId,
        request: u64,
        header: &Header,
        body: &[u8],
        key: &SealKey,
        company: usize,
    ) -> Result<(), FabricError> {
        let head = header.encode_shortest();
        let mut whole = [0; HEADER_LEN + SEALED_BODY_MAX + TAG_LEN];
        let (sealed, len) = (head.len() + body.len(), head.len() + body.len() + TAG_LEN);
        whole[..head.len()].copy_from_slice(&head);
        whole[head.len()..sealed].copy_from_slice(body);
        let tag = key.tag(&[&whole[..sealed]]);
        whole[sealed..len].copy_from_slice(&tag);
        self.dispatch(to, request, &[&whole[..len]], len, company)
    }

    /// Sends a message that is more than a header and a small body.
    #[inline(never)]
    fn transmit_all(
        &self,
        to: PeerId,
        request: u64,
        [head, greeting, segments, body]: [&[u8]; 4],
        key: Option<&SealKey>,
        company: usize,
    ) -> Result<(), FabricError> {
        let length = [u8::try_from(greeting.len()).unwrap_or(0)];
        let length: &[u8] = if greeting.is_empty() { &[] } else { &length };
        let tag = key.map(|key| key.tag(&[head, length, greeting, segments, body]));
        let tag: &[u8] = tag.as_ref().map_or(&[], |tag| tag);
        let (mut parts, mut count, mut len): ([&[u8]; 6], _, _) = ([&[]; 6], 0, 0);
        for part in [head, length, greeting, segments, body, tag].into_iter().filter(|part| !part.is_empty())
        {
            parts[count] = part;
            count += 1;
            len += part.len();
        }
        self.dispatch(to, request, &parts[..count], len, company)
    }

    /// Gives a message of this length to the fabric, or to others that share one.
    #[inline(always)]
    fn dispatch(
        &self,
        to: PeerId,
        request: u64,
        parts: &[&[u8]],
        len: usize,
        company: usize,
    ) -> Result<(), FabricError> {
        add(&self.metrics.messages_sent, 1);
        add(&self.metrics.bytes_sent, len as u64);
        if Outbox::takes(len) && (company > 1 || self.outbox.has(to)) {
            self.share(to, request, parts, len, company);
            return Ok(());
        }
        self.endpoint.send(to, request, parts)
    }

    /// What was sent to a peer did not get through: a request, which may have ended meanwhile, with all that was sent with it,
    /// or replies, of which nobody hears here.
    pub(crate) fn unsent(&self, peer: PeerId, request: u64, error: &FabricError) {
        add(&self.metrics.sends_failed, 1);
        if request == 0 {
            return;
        }
        for sent in self.pending.asked_of(peer) {
            self.pending.resolve_with(sent, None, None, || Outcome::Failed(error.clone()));
        }
    }
}
