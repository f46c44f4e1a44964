//! The message format, with a fixed layout and little endian, and the seals that authenticate messages;
//! `docs/reference/wire.md` describes both. It calls nothing of this crate. All rooms above send, receive or
//! name what is defined here.

mod caller;
mod hello;
pub mod seal;
mod segments;
mod short;

pub use caller::Caller;
pub use hello::{decode_nonce, decode_versions, encode_hello, encode_versions};
pub use segments::{SEGMENT_LEN, SEGMENTS_MAX, decode_segments, decode_segments_into, encode_segment};
pub use short::{SHORT_LEN, SHORT_VERSION};

use core::ops::{Deref, Range};
use seal::TAG_LEN;
use weir_fabric::Address;
use weir_proto::Epoch;
use weir_proto::limits::INLINE_MAX;

/// First bytes of every message.
pub const MAGIC: [u8; 4] = *b"WEIR";

/// Length of the full header in bytes.
pub const HEADER_LEN: usize = 72;

/// Largest message: header, greeting, all segments, the largest body and the tag.
pub const MESSAGE_MAX: usize =
    HEADER_LEN + 1 + Address::MAX + SEGMENTS_MAX * SEGMENT_LEN + INLINE_MAX + TAG_LEN;

/// The sender's address follows the header.
const FLAG_GREETING: u8 = 1;
/// The message was sent before under the same request id.
const FLAG_RESEND: u8 = 2;
/// The message ends with an authentication tag.
const FLAG_SEALED: u8 = 4;
/// The header is the short one.
const FLAG_SHORT: u8 = 8;
/// Every flag that is defined for the full header.
const FLAGS: u8 = FLAG_GREETING | FLAG_RESEND | FLAG_SEALED;
/// Every flag that is defined for the short header.
const SHORT_FLAGS: u8 = FLAG_SHORT | FLAG_SEALED;

/// Whole words before the checksum. It covers these and half a word more, which is all of the header before it.
const WORDS: usize = HEADER_LEN / 8 - 1;

/// Identifies one incarnation of a context: as a server, or as a client that calls a server by one name. It is
/// never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ClientId(u64);

impl ClientId {
    /// The id of these bits; 0 becomes 1.
    #[must_use]
    pub fn new(bits: u64) -> Self {
        Self(bits.max(1))
    }

    /// Its bits.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The id that a message carries.
    fn read(bits: u64) -> Result<Self, Malformed> {
        if bits == 0 { Err(Malformed::Field("client")) } else { Ok(Self(bits)) }
    }
}

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// First message to a server: versions and address.
    Hello = 1,
    /// Answer to a hello, or to a request of a version that isn't spoken.
    HelloReply = 2,
    /// A request.
    Request = 3,
    /// A reply.
    Reply = 4,
    /// Answer to a repeat of a request that is being executed. Its reply will come.
    Working = 5,
}

impl Kind {
    fn of(byte: u8) -> Result<Self, Malformed> {
        match byte {
            1 => Ok(Self::Hello),
            2 => Ok(Self::HelloReply),
            3 => Ok(Self::Request),
            4 => Ok(Self::Reply),
            5 => Ok(Self::Working),
            _ => Err(Malformed::Field("kind")),
        }
    }
}

/// The fixed part of a message.
#[expect(clippy::struct_excessive_bools, reason = "flags of the format, each for itself")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Protocol version of this message.
    pub version: u16,
    /// What it is.
    pub kind: Kind,
    /// An address follows the header.
    pub greeting: bool,
    /// It was sent before.
    pub resend: bool,
    /// It ends with an authentication tag.
    pub sealed: bool,
    /// Whether the short form was used or is wanted; see [`Header::fits_short`].
    pub short: bool,
    /// Operation.
    pub opcode: u16,
    /// Number of bulk segments (requests).
    pub segments: u16,
    /// Length of the body in bytes.
    pub body_len: u32,
    /// The client that made the request.
    pub client: ClientId,
    /// Number of the request, by client.
    pub request: u64,
    /// Requests: when the client gives up, in wall nanoseconds. Replies: the server's incarnation.
    pub deadline: u64,
    /// The sender's clock.
    pub epoch: Epoch,
    /// Requests: the client has finished with all lower request ids. Overload replies: pause in nanoseconds.
    pub acked: u64,
    /// Tenant tag.
    pub tenant: u64,
    /// Replies: DER code, 0 for success.
    pub status: u32,
}

/// Where the variable parts of a message are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The sender's address; empty when there is none.
    pub greeting: Range<usize>,
    /// The bulk segments.
    pub segments: Range<usize>,
    /// The body.
    pub body: Range<usize>,
    /// Where the message ends, with its tag.
    pub end: usize,
}

/// Why a message was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Shorter or longer than its header says.
    #[error("a message of {0} bytes does not have the length its header says")]
    Length(usize),
    /// It doesn't begin with the magic bytes.
    #[error("the message does not start with the protocol's magic")]
    Magic,
    /// The header was damaged.
    #[error("the header's checksum does not match")]
    Checksum,
    /// A kind, flag or count that is not defined.
    #[error("field {0} of the header has an undefined value")]
    Field(&'static str),
    /// An impossible segment.
    #[error("bulk segment {0} is invalid")]
    Segment(usize),
}

/// Little-endian fields at fixed places of a header.
struct Fields<'a, const LEN: usize>(&'a [u8; LEN]);

impl<const LEN: usize> Fields<'_, LEN> {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        // Every field is within the header. The compiler sees that, and leaves a single load.
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.0[at..at + N]);
        bytes
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    /// Whether the checksum behind `WORDS` words and half a word is theirs.
    fn is_intact<const WORDS: usize>(&self) -> bool {
        let words: [u64; WORDS] = core::array::from_fn(|at| self.u64(8 * at));
        weir_fabric::crc32c_of_words(&words, self.u32(8 * WORDS)) == self.u32(8 * WORDS + 4)
    }
}

impl Header {
    /// A header of this kind with every other field zero.
    #[must_use]
    pub fn new(kind: Kind, version: u16, client: ClientId, request: u64, epoch: Epoch) -> Self {
        Self {
            version,
            kind,
            greeting: false,
            resend: false,
            sealed: false,
            short: false,
            opcode: 0,
            segments: 0,
            body_len: 0,
            client,
            request,
            deadline: 0,
            epoch,
            acked: 0,
            tenant: 0,
            status: 0,
        }
    }

    /// Sets the length of the body.
    ///
    /// # Panics
    /// When the body is longer than the limit of messages.
    #[inline]
    pub(crate) fn set_body(&mut self, body: &[u8]) {
        assert!(body.len() <= INLINE_MAX, "a body of {} bytes is longer than any message's", body.len());
        #[expect(clippy::cast_possible_truncation, reason = "it is at most INLINE_MAX")]
        let len = body.len() as u32;
        self.body_len = len;
    }

    /// Its bytes, in the short form if `short` is set and that says all of it.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        self.encode_as(self.short && self.fits_short())
    }

    /// Its bytes, in the short form if that says all of it.
    #[must_use]
    #[inline]
    pub fn encode_shortest(&self) -> Encoded {
        self.encode_as(self.fits_short())
    }

    /// Words are assembled before any is stored: a load of a word stalls if its bytes were stored one by one
    /// just before.
    #[inline]
    fn encode_as(&self, short: bool) -> Encoded {
        let first = self.first_word(short);
        if short {
            let (words, last) = self.encode_short(first);
            Encoded::new(&words, last)
        } else {
            self.encode_full(first)
        }
    }

    /// The first word of either form.
    #[inline]
    fn first_word(&self, short: bool) -> u64 {
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let flags = flag(self.greeting, FLAG_GREETING)
            | flag(self.resend, FLAG_RESEND)
            | flag(self.sealed, FLAG_SEALED)
            | flag(short, FLAG_SHORT);
        u64::from(u32::from_le_bytes(MAGIC))
            | u64::from(self.version) << 32
            | (self.kind as u64) << 48
            | u64::from(flags) << 56
    }

    /// Puts together a whole message of this header in short form and a small body. Returns its length. `None`:
    /// it needs the full form, or more room.
    #[inline(always)]
    pub(crate) fn encode_note(&self, body: &[u8], note: &mut [u8; NOTE_MAX]) -> Option<usize> {
        if body.len() > NOTE_MAX - SHORT_LEN || !self.fits_short() {
            return None;
        }
        let (words, last) = self.encode_short(self.first_word(true));
        put_words(note, &words, last);
        note[SHORT_LEN..SHORT_LEN + body.len()].copy_from_slice(body);
        Some(SHORT_LEN + body.len())
    }

    #[inline(never)]
    fn encode_full(&self, first: u64) -> Encoded {
        let lengths =
            u64::from(self.opcode) | u64::from(self.segments) << 16 | u64::from(self.body_len) << 32;
        let Self { client, request, deadline, epoch, acked, tenant, .. } = *self;
        let words = [first, lengths, client.0, request, deadline, epoch.0, acked, tenant];
        Encoded::new(&words, self.status)
    }
}

/// The bytes of a header.
#[derive(Clone, Debug)]
pub struct Encoded {
    bytes: [u8; HEADER_LEN],
    len: usize,
}

impl Encoded {
    /// Words, half a word, and the checksum of all these.
    #[inline]
    fn new<const WORDS: usize>(words: &[u64; WORDS], last: u32) -> Self {
        let mut bytes = [0u8; HEADER_LEN];
        put_words(&mut bytes, words, last);
        Self { bytes, len: 8 * WORDS + 8 }
    }
}

/// Writes words, half a word, and the checksum of all these to the beginning of a message.
#[inline]
fn put_words<const WORDS: usize, const LEN: usize>(bytes: &mut [u8; LEN], words: &[u64; WORDS], last: u32) {
    let sum = weir_fabric::crc32c_of_words(words, last);
    let end = u64::from(last) | u64::from(sum) << 32;
    let (places, _) = bytes.as_chunks_mut::<8>();
    for (place, word) in places.iter_mut().zip(words.iter().chain([&end])) {
        *place = word.to_le_bytes();
    }
}

/// Longest message that is put together in one piece: two cache lines hold a small request.
pub(crate) const NOTE_MAX: usize = 128;

impl Deref for Encoded {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Decodes a message that stands alone.
///
/// # Errors
/// When the message is not exactly what its header says.
pub fn decode(message: &[u8]) -> Result<(Header, Layout), Malformed> {
    let (header, layout) = decode_first(message)?;
    if layout.end == message.len() { Ok((header, layout)) } else { Err(Malformed::Length(message.len())) }
}

/// Decodes the first of several messages. Nothing in it is trusted: every length is checked.
///
/// # Errors
/// When the message is not what its header says.
#[inline(always)]
pub fn decode_first(message: &[u8]) -> Result<(Header, Layout), Malformed> {
    let length = Malformed::Length(message.len());
    let first: &[u8; SHORT_LEN] = message.first_chunk().ok_or(length)?;
    if first[..4] != MAGIC {
        return Err(Malformed::Magic);
    }
    let flags = first[7];
    if flags & FLAG_SHORT != 0 {
        if flags & !SHORT_FLAGS != 0 {
            return Err(Malformed::Field("flags"));
        }
        let header = short::decode(first, flags & FLAG_SEALED != 0)?;
        let body_len = usize::try_from(header.body_len).map_err(|_| length)?;
        // The length has sixteen bits, so that nothing overflows.
        let body = SHORT_LEN..SHORT_LEN + body_len;
        let end = body.end + if header.sealed { TAG_LEN } else { 0 };
        if end > message.len() || body_len > INLINE_MAX {
            return Err(length);
        }
        let nothing = SHORT_LEN..SHORT_LEN;
        return Ok((header, Layout { greeting: nothing.clone(), segments: nothing, body, end }));
    }
    decode_first_full(message)
}

/// Decodes a first message with the full header.
#[inline(never)]
fn decode_first_full(message: &[u8]) -> Result<(Header, Layout), Malformed> {
    let length = Malformed::Length(message.len());
    let header = decode_full(message.first_chunk().ok_or(length)?)?;
    let mut at = HEADER_LEN;
    let greeting = if header.greeting {
        let len = usize::from(*message.get(at).ok_or(length)?);
        if len == 0 || len > Address::MAX {
            return Err(Malformed::Field("greeting"));
        }
        at + 1..at + 1 + len
    } else {
        at..at
    };
    at = greeting.end;
    let segments = at..at + usize::from(header.segments) * SEGMENT_LEN;
    let body_len = usize::try_from(header.body_len).map_err(|_| length)?;
    let body = segments.end..segments.end.checked_add(body_len).ok_or(length)?;
    let tag_len = if header.sealed { TAG_LEN } else { 0 };
    let end = body.end.checked_add(tag_len).ok_or(length)?;
    if end > message.len() || body_len > INLINE_MAX {
        return Err(length);
    }
    Ok((header, Layout { greeting, segments, body, end }))
}

/// Decodes a full header, after its magic bytes.
fn decode_full(bytes: &[u8; HEADER_LEN]) -> Result<Header, Malformed> {
    let fields = Fields(bytes);
    if !fields.is_intact::<WORDS>() {
        return Err(Malformed::Checksum);
    }
    let (kind, flags) = (Kind::of(bytes[6])?, bytes[7]);
    if flags & !FLAGS != 0 {
        return Err(Malformed::Field("flags"));
    }
    let header = Header {
        version: fields.u16(4),
        kind,
        greeting: flags & FLAG_GREETING != 0,
        resend: flags & FLAG_RESEND != 0,
        sealed: flags & FLAG_SEALED != 0,
        short: false,
        opcode: fields.u16(8),
        segments: fields.u16(10),
        body_len: fields.u32(12),
        client: ClientId::read(fields.u64(16))?,
        request: fields.u64(24),
        deadline: fields.u64(32),
        epoch: Epoch(fields.u64(40)),
        acked: fields.u64(48),
        tenant: fields.u64(56),
        status: fields.u32(64),
    };
    if usize::from(header.segments) > SEGMENTS_MAX || (header.segments > 0 && kind != Kind::Request) {
        return Err(Malformed::Field("segments"));
    }
    Ok(header)
}

#[cfg(test)]
mod tests;
