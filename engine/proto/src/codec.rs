//! The encoding of message bodies, and how messages grow.
//!
//! A message grows at its end: what a later release adds is a tail behind what earlier ones know. An earlier release ignores
//! the tail ([`decode_message`]); a later one that gets a message without it takes the tail's default
//! ([`decode_with_tail`]). So each side has to give what the other doesn't send its meaning of before. Fields, variants and
//! their order never change: what can't be said by a tail is a message of its own, or another form that a side
//! sends only where the [version](crate::limits::PROTOCOL_MAX) that both speak has it. A body with data behind it
//! ([`decode_prefix`]) has no room for a tail.

use serde::{Serialize, de::DeserializeOwned};

/// A body that does not decode.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the body of {bytes} bytes is not a {what}: {source}")]
pub struct DecodeError {
    /// Name of the type that was expected.
    pub what: &'static str,
    /// Length of the body.
    pub bytes: usize,
    /// What the decoder met.
    pub source: postcard::Error,
}

impl DecodeError {
    /// Whether the bytes end too early: more of them may be a message.
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        matches!(self.source, postcard::Error::DeserializeUnexpectedEnd)
    }
}

/// Encodes a message body.
///
/// # Panics
/// Never for the types of this crate: encoding to memory fails only for types that refuse to be serialized.
#[must_use]
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).expect("the types of this crate serialize to memory")
}

/// Encodes a message body that has grown: `tail` is what a release that knows only `T` ignores.
///
/// # Panics
/// As [`encode`].
#[must_use]
pub fn encode_with_tail<T: Serialize + ?Sized, Tail: Serialize>(value: &T, tail: &Tail) -> Vec<u8> {
    postcard::to_extend(tail, encode(value)).expect("the types of this crate serialize to memory")
}

/// Decodes a message body; what a later release has put behind it is ignored.
///
/// # Errors
/// When the bytes do not start with a `T`.
pub fn decode_message<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    decode_prefix(bytes).map(|(value, _)| value)
}

/// Decodes a message body that has grown. The tail of a release that knows only `T` is the default.
///
/// # Errors
/// When the bytes do not start with a `T`, or something else than a `Tail` follows it.
pub fn decode_with_tail<T: DeserializeOwned, Tail: DeserializeOwned + Default>(
    bytes: &[u8],
) -> Result<(T, Tail), DecodeError> {
    let (value, rest) = decode_prefix(bytes)?;
    let tail = if rest.is_empty() { Tail::default() } else { decode_message(rest)? };
    Ok((value, tail))
}

/// Decodes a record: bytes left over are an error.
///
/// # Errors
/// When the bytes are not exactly one `T`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let error = |source| DecodeError { what: core::any::type_name::<T>(), bytes: bytes.len(), source };
    match postcard::take_from_bytes::<T>(bytes) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err(error(postcard::Error::DeserializeBadEncoding)),
        Err(source) => Err(error(source)),
    }
}

/// Decodes a value at the start of `bytes` and returns what follows it: a header with inline data behind.
///
/// # Errors
/// When the bytes do not start with a `T`.
pub fn decode_prefix<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), DecodeError> {
    postcard::take_from_bytes::<T>(bytes).map_err(|source| DecodeError {
        what: core::any::type_name::<T>(),
        bytes: bytes.len(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What has grown twice: the first form, and the tails of two later ones.
    type First = (u32, String);
    type Second = (bool, u16);
    type Third = ((bool, u16), Vec<u8>);

    fn first() -> First {
        (7, "seven".to_owned())
    }

    #[test]
    fn a_message_that_has_grown_is_read_by_earlier_and_later_releases() {
        let bytes = encode_with_tail(&first(), &((true, 300_u16), vec![1_u8, 2]));
        assert_eq!(decode_message::<First>(&bytes).expect("a message"), first());
        assert_eq!(decode_with_tail::<First, Second>(&bytes).expect("both"), (first(), (true, 300)));
        let whole = (first(), ((true, 300), vec![1, 2]));
        assert_eq!(decode_with_tail::<First, Third>(&bytes).expect("all three"), whole);
    }

    #[test]
    fn a_message_without_a_tail_has_the_default_one() {
        let bytes = encode(&first());
        assert_eq!(decode_with_tail::<First, Second>(&bytes).expect("a message"), (first(), (false, 0)));
        assert!(decode::<First>(&encode_with_tail(&first(), &1_u8)).is_err(), "a record has no tail");
    }

    #[test]
    fn a_cut_message_or_tail_is_an_error() {
        let bytes = encode_with_tail(&first(), &(true, 300_u16));
        let whole = encode(&first()).len();
        for len in 0..bytes.len() {
            let read = decode_with_tail::<First, Second>(&bytes[..len]);
            assert_eq!(read.is_ok(), len == whole, "{len} of {} bytes", bytes.len());
        }
    }
}
