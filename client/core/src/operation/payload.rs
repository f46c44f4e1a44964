//! The data of a request: inline, in registered memory, or in memory of the caller.

use core::cell::RefCell;

use weir_fabric::Buffer;
use weir_proto::limits::INLINE_MAX;
use weir_rpc::Bulk;

use super::scatter;
use crate::session::Context;

/// Data that belongs to a request.
pub(crate) enum Payload<'a> {
    /// None.
    None,
    /// Goes to the engine.
    Send {
        /// The bytes.
        pieces: &'a [&'a [u8]],
        /// How many.
        len: u64,
    },
    /// Comes from the engine, straight to memory of the caller.
    Deliver(RefCell<Vec<Buffer>>),
    /// Comes from the engine.
    Receive {
        /// Most bytes that may come.
        len: u64,
        /// Descriptors in the reply, which take room beside inline data.
        descriptors: usize,
    },
    /// The reply itself may be longer than a message: it then comes to memory, behind its length.
    LongReply {
        /// Bytes of that memory.
        room: usize,
        /// The request, when it is longer than a message, which is empty then: the engine fetches it from here.
        request: &'a [u8],
    },
}

/// Bytes of the length in front of a reply that came to memory, little endian.
pub(crate) const LENGTH_LEN: usize = 8;

/// Room for the replies of the pool service: a pool map of 40 000 targets, or 3000 containers.
pub(crate) const SERVICE_REPLY: usize = 1 << 20;

/// Room that one descriptor of a fetch reply takes at most: two integers of 10 bytes, a checksum of 5, a size of 10.
const DESCRIPTOR_LEN: usize = 36;

/// Payloads from this size on go from and to the caller's memory directly, if it may be lent: below, copying costs less
/// than making the memory known to the network card.
pub(crate) const LEND_MIN: u64 = 64 * 1024;

/// Pieces of memory that one request may name.
pub(crate) const LEND_PIECES_MAX: usize = 64;

/// Largest request with its data in the message to an engine that is short of room: above it the engine fetches the data. It is
/// the threshold above which the cxi provider itself makes a rendezvous.
pub(crate) const SHORT_INLINE_MAX: usize = 2048;

/// A request's bytes and its memory for RMA.
#[derive(Default)]
pub(crate) struct OutgoingRequest {
    /// Body with inline data behind it, when there is any.
    joined: Option<Vec<u8>>,
    memory: Option<Buffer>,
    /// A request that is too long for a message.
    request: Option<Buffer>,
    /// Memory of the caller that the engine reads or writes.
    lent: Vec<Buffer>,
}

impl OutgoingRequest {
    /// Packs a request, with its data behind the body where both together are at most `inline_max` bytes.
    pub(crate) fn pack(context: &Context, body: &[u8], payload: &Payload<'_>, inline_max: usize) -> Self {
        match payload {
            Payload::None => Self::default(),
            Payload::Deliver(lent) => Self { lent: lent.take(), ..Self::default() },
            Payload::Send { pieces, len } => {
                let len = usize::try_from(*len).unwrap_or(usize::MAX);
                if body.len().saturating_add(len) <= inline_max {
                    let mut joined = Vec::with_capacity(body.len() + len);
                    joined.extend_from_slice(body);
                    scatter::gather(pieces, &mut joined);
                    return Self { joined: Some(joined), ..Self::default() };
                }
                if let Some(lender) = context.lender()
                    && len as u64 >= LEND_MIN
                    && pieces.len() <= LEND_PIECES_MAX
                {
                    let lent = pieces.iter().map(|piece| lender.source(piece)).collect();
                    return Self { lent, ..Self::default() };
                }
                Self { memory: Some(gathered(context, pieces, len)), ..Self::default() }
            }
            Payload::Receive { len, descriptors } => {
                let len = usize::try_from(*len).unwrap_or(usize::MAX);
                let inline = len.saturating_add((descriptors + 1) * DESCRIPTOR_LEN) <= INLINE_MAX;
                let memory = if inline { None } else { Some(allocate(context, len)) };
                Self { memory, ..Self::default() }
            }
            Payload::LongReply { room, request } => {
                let mut memory = Buffer::passing(*room).unwrap_or_else(|| allocate(context, *room));
                // What an earlier use left there must not pass for a reply.
                memory[..LENGTH_LEN].fill(0);
                let request = (!request.is_empty()).then(|| gathered(context, &[request], request.len()));
                Self { memory: Some(memory), request, ..Self::default() }
            }
        }
    }

    /// Whether the engine is to read or write memory of this side.
    pub(crate) fn is_bulk(&self) -> bool {
        self.memory.is_some() || !self.lent.is_empty()
    }

    pub(crate) fn parts<'p>(
        &'p mut self,
        body: &'p [u8],
        payload: &Payload<'_>,
    ) -> (&'p [u8], Option<Bulk<'p>>) {
        let bytes = self.joined.as_deref().unwrap_or(body);
        let inward = !matches!(payload, Payload::Send { .. } | Payload::None);
        let mut bulk =
            self.memory.as_mut().map(|memory| if inward { Bulk::write(memory) } else { Bulk::read(memory) });
        if let Some(request) = &self.request {
            bulk = Some(bulk.unwrap_or_default().and_read(request, 0..request.len()));
        }
        for lent in &mut self.lent {
            let (so_far, whole) = (bulk.take().unwrap_or_default(), 0..lent.len());
            bulk = Some(if inward { so_far.and_write(lent, whole) } else { so_far.and_read(lent, whole) });
        }
        (bytes, bulk)
    }

    /// Returns lent memory to its payload, for another try.
    pub(crate) fn give_back(self, payload: &Payload<'_>) {
        if let Payload::Deliver(lent) = payload {
            lent.replace(self.lent);
        }
    }

    pub(crate) fn into_received(self, payload: &Payload<'_>) -> Option<Buffer> {
        if matches!(payload, Payload::Receive { .. } | Payload::LongReply { .. }) {
            self.memory
        } else {
            None
        }
    }
}

/// Registered memory with a copy of `len` bytes.
fn gathered(context: &Context, pieces: &[&[u8]], len: usize) -> Buffer {
    let mut memory = allocate(context, len);
    let mut at = 0;
    for piece in pieces {
        memory[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
    memory
}

/// Registered memory from the pool, or, when that is used up, memory that is registered for this request alone.
fn allocate(context: &Context, len: usize) -> Buffer {
    let mut buffer = context.rpc().alloc(len).unwrap_or_else(|_| Buffer::from_vec(vec![0; len]));
    buffer.set_len(len);
    buffer
}
