//! Bodies of hellos and of their replies.

use super::Malformed;
use super::seal::{NONCE_LEN, Nonce};
use core::ops::RangeInclusive;

/// The body of a hello and of its reply: lowest and highest version spoken. This layout, and the first eight bytes
/// of the header, are the same in all versions.
#[must_use]
pub fn encode_versions(versions: &RangeInclusive<u16>) -> [u8; 4] {
    let (low, high) = (versions.start().to_le_bytes(), versions.end().to_le_bytes());
    [low[0], low[1], high[0], high[1]]
}

/// Decodes the body of a hello. Longer bodies are of later versions, whose additions are ignored.
///
/// # Errors
/// When it is too short, or the range is empty.
pub fn decode_versions(body: &[u8]) -> Result<RangeInclusive<u16>, Malformed> {
    let Some([a, b, c, d]) = body.get(..4) else { return Err(Malformed::Length(body.len())) };
    let versions = u16::from_le_bytes([*a, *b])..=u16::from_le_bytes([*c, *d]);
    if versions.is_empty() { Err(Malformed::Field("versions")) } else { Ok(versions) }
}

/// The body of a hello, and of its reply, between sides with keys: versions, then the sender's nonce for the
/// session's key.
#[must_use]
pub fn encode_hello(versions: &RangeInclusive<u16>, nonce: &Nonce) -> [u8; 4 + NONCE_LEN] {
    let mut body = [0; 4 + NONCE_LEN];
    body[..4].copy_from_slice(&encode_versions(versions));
    body[4..].copy_from_slice(nonce);
    body
}

/// The sender's nonce, from the body of a hello or its reply.
#[must_use]
pub fn decode_nonce(body: &[u8]) -> Option<Nonce> {
    body.get(4..4 + NONCE_LEN)?.try_into().ok()
}
