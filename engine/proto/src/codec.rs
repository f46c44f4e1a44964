//! The encoding of message bodies.

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

/// Encodes a message body.
///
/// # Panics
/// Never for the types of this crate: encoding to memory fails only for types that refuse to be serialized.
#[must_use]
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).expect("the types of this crate serialize to memory")
}

/// Decodes a message body; bytes left over are an error.
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
