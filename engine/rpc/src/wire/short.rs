//! The short header: what nearly all small requests and replies need, in two thirds of the bytes.
//!
//! Between two processes of a node a message travels in cache lines, each of which costs a tenth of a round
//! trip. Fields that are nearly always zero are left out, and some fields are stored as distances from others. A
//! header that doesn't fit is sent in full.

use super::{ClientId, Fields, Header, Kind, Malformed};
use weir_proto::Epoch;

/// First protocol version that has it.
pub const SHORT_VERSION: u16 = 2;

/// Its length in bytes. A request with 64 bytes of body is as long as what `shm` moves in three cache lines, and
/// an empty reply as what it moves in two.
pub const SHORT_LEN: usize = 48;

/// Whole words before the checksum. It covers these and half a word more, which is all of the header before it.
const WORDS: usize = SHORT_LEN / 8 - 1;

/// Bits of a request's number. The rest of its word is the distance to what the client has finished with.
const REQUEST_BITS: u32 = 48;

/// Distance of a request's number to what its client has finished with; 0 in a reply. `None`: there is none.
fn distance(header: &Header) -> Option<u64> {
    match header.kind {
        Kind::Request => header.request.checked_sub(header.acked),
        Kind::Reply => (header.acked == 0).then_some(0),
        Kind::Hello | Kind::HelloReply | Kind::Working => None,
    }
}

impl Header {
    /// Whether the short form says all that this header says.
    #[must_use]
    pub fn fits_short(&self) -> bool {
        let rare = u64::from(self.segments) | self.tenant | u64::from(self.status);
        self.version >= SHORT_VERSION
            && !self.greeting
            && !self.resend
            && rare == 0
            && u16::try_from(self.body_len).is_ok()
            && self.request < 1 << REQUEST_BITS
            && distance(self).is_some_and(|distance| u16::try_from(distance).is_ok())
    }

    /// The words of the short form. Of the last one it returns the half before the checksum.
    pub(super) fn encode_short(&self, first: u64) -> ([u64; WORDS], u32) {
        let lengths = u64::from(self.opcode) | u64::from(self.body_len) << 16;
        let Some(distance) = distance(self) else {
            unreachable!("the short form was taken for {:?}", self.kind)
        };
        debug_assert!(self.fits_short(), "the short form doesn't say all of {self:?}");
        let numbers = distance | self.request << 16;
        let since = if self.kind == Kind::Request { self.epoch.0 } else { 0 };
        let deadline = self.deadline.wrapping_sub(since);
        // From here on fields cross words: the first half of a word is the second half of a field.
        let across = |before: u64, after: u64| before >> 32 | after << 32;
        let words = [
            first,
            lengths | numbers << 32,
            across(numbers, self.client.0),
            across(self.client.0, self.epoch.0),
            across(self.epoch.0, deadline),
        ];
        (words, (deadline >> 32) as u32)
    }
}

/// Decodes a short header, whose flags were checked.
#[inline]
pub(super) fn decode(bytes: &[u8; SHORT_LEN], sealed: bool) -> Result<Header, Malformed> {
    let fields = Fields(bytes);
    if !fields.is_intact::<WORDS>() {
        return Err(Malformed::Checksum);
    }
    let (kind, version) = (Kind::of(bytes[6])?, fields.u16(4));
    let word = fields.u64(12);
    let (distance, request) = (word & u64::from(u16::MAX), word >> 16);
    let (acked, since) = match kind {
        Kind::Request => (request.checked_sub(distance), fields.u64(28)),
        Kind::Reply => ((distance == 0).then_some(0), 0),
        Kind::Hello | Kind::HelloReply | Kind::Working => return Err(Malformed::Field("kind")),
    };
    if version < SHORT_VERSION {
        return Err(Malformed::Field("flags"));
    }
    Ok(Header {
        version,
        kind,
        greeting: false,
        resend: false,
        sealed,
        short: true,
        opcode: fields.u16(8),
        segments: 0,
        body_len: fields.u16(10).into(),
        client: ClientId::read(fields.u64(20))?,
        request,
        deadline: since.wrapping_add(fields.u64(36)),
        epoch: Epoch(fields.u64(28)),
        acked: acked.ok_or(Malformed::Field("acked"))?,
        tenant: 0,
        status: 0,
    })
}
