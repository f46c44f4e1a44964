//! Putting messages together and sending them.

use super::Context;
use super::coalescing::Coalescer;
use crate::metrics::add;
use crate::reply::Outcome;
use crate::wire::seal::{SealKey, TAG_LEN};
use crate::wire::{HEADER_LEN, Header, NOTE_MAX};
use weir_fabric::{Address, FabricError, PeerId};

const _: () = assert!(Address::MAX <= u8::MAX as usize, "one byte says how long an address is");

/// Longest body of a sealed message that is put together in one piece: with header and tag, at most four cache
/// lines.
const SEALED_BODY_MAX: usize = 256 - HEADER_LEN - TAG_LEN;

impl Context {
    /// Sends one message: header, greeting, segments, body, and the tag if there is a key. `request`: the
    /// request that learns when the message did not get through, 0 for none. `in_flight`: requests in flight
    /// with the peer, this one included. If there are others, more messages to the peer may follow at once, and
    /// share a message of the fabric.
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
        in_flight: usize,
    ) -> Result<(), FabricError> {
        header.sealed = key.is_some();
        let is_bare = greeting.is_empty() && segments.is_empty();
        if let Some(key) = key.filter(|_| is_bare && body.len() <= SEALED_BODY_MAX) {
            return self.transmit_sealed(to, request, header, body, key, in_flight);
        }
        if key.is_none() && is_bare {
            let mut note = [0; NOTE_MAX];
            if let Some(note) = header.encode_note(body, &mut note).and_then(|len| note.get(..len)) {
                return self.dispatch(to, request, &[note], note.len(), in_flight);
            }
        }
        let head = header.encode_shortest();
        self.transmit_all(to, request, [&head, greeting, segments, body], key, in_flight)
    }

    /// Sends a sealed message of a header and a small body. It is put together once, for the hash and for the
    /// provider's copy.
    #[inline(never)]
    fn transmit_sealed(
        &self,
        to: PeerId,
        request: u64,
        header: &Header,
        body: &[u8],
        key: &SealKey,
        in_flight: usize,
    ) -> Result<(), FabricError> {
        let head = header.encode_shortest();
        let mut whole = [0; HEADER_LEN + SEALED_BODY_MAX + TAG_LEN];
        let (sealed, len) = (head.len() + body.len(), head.len() + body.len() + TAG_LEN);
        whole[..head.len()].copy_from_slice(&head);
        whole[head.len()..sealed].copy_from_slice(body);
        let tag = key.tag(&[&whole[..sealed]]);
        whole[sealed..len].copy_from_slice(&tag);
        self.dispatch(to, request, &[&whole[..len]], len, in_flight)
    }

    /// Sends any other message.
    #[inline(never)]
    fn transmit_all(
        &self,
        to: PeerId,
        request: u64,
        [head, greeting, segments, body]: [&[u8]; 4],
        key: Option<&SealKey>,
        in_flight: usize,
    ) -> Result<(), FabricError> {
        assert!(greeting.len() <= Address::MAX, "an own address of {} bytes", greeting.len());
        #[expect(clippy::cast_possible_truncation, reason = "it is at most Address::MAX")]
        let length = [greeting.len() as u8];
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
        self.dispatch(to, request, &parts[..count], len, in_flight)
    }

    /// Hands a message of this length to the fabric, or to a batch.
    #[inline(always)]
    fn dispatch(
        &self,
        to: PeerId,
        request: u64,
        parts: &[&[u8]],
        len: usize,
        in_flight: usize,
    ) -> Result<(), FabricError> {
        add(&self.metrics.messages_sent, 1);
        add(&self.metrics.bytes_sent, len as u64);
        if Coalescer::takes(len) && (in_flight > 1 || self.coalescer.has(to)) {
            self.share(to, request, parts, len, in_flight);
            return Ok(());
        }
        self.endpoint.send(to, request, parts)
    }

    /// A message to a peer did not get through. If it was a request, which may have ended meanwhile, all requests to
    /// that peer fail. A lost reply has no effect here.
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
