//! Requests and replies that don't fit a message.
//!
//! A request that is longer than a message is pulled from the client's memory. The body of the message is empty then, which no
//! request is by itself. Such a request begins with a handle, which is pulled and checked first: who has none moves no more.
//!
//! When the client offered memory and the reply is longer than a message, it is pushed there: 8 bytes of length,
//! little endian, and the reply behind them. The body of the message is then empty, which no such reply is by itself.

use std::borrow::Cow;

use weir_proto::limits::{INLINE_MAX, SERVICE_REQUEST_MAX};
use weir_proto::{Capability, Der, codec};
use weir_rpc::{Body, Request, Status};

/// Bytes of the length in front of a pushed reply.
const LENGTH_LEN: usize = 8;

/// Bytes at the start of a request within which the handle is that it shows: each of its numbers has ten bytes at most.
const HANDLE_LEN_MAX: usize = 128;

/// The bytes of a request: the body of its message, or what the client offers instead, once `check` has accepted the handle that
/// it begins with.
///
/// # Errors
/// Those of `check`; with `INVAL` when the client offers more than any request may have, with `PROTO` when it begins with no
/// handle, and when the pull fails.
pub(crate) async fn read_request(
    request: &Request,
    check: impl FnOnce(&Capability) -> Result<(), Status>,
) -> Result<Cow<'_, [u8]>, Status> {
    let len = request.bulk_len();
    if !request.body().is_empty() || len == 0 {
        return Ok(Cow::Borrowed(request.body()));
    }
    let size = usize::try_from(len).ok().filter(|size| *size <= SERVICE_REQUEST_MAX);
    let Some(size) = size else {
        let message =
            format!("the request has {len} bytes, more than {SERVICE_REQUEST_MAX}; ask for less at once");
        return Err(Status::new(Der::INVAL, message));
    };
    let head = pull(request, size.min(HANDLE_LEN_MAX)).await?;
    let (shown, _) = codec::decode_prefix::<Capability>(&head)
        .map_err(|error| Status::new(Der::PROTO, error.to_string()))?;
    check(&shown)?;
    Ok(Cow::Owned(pull(request, size).await?))
}

async fn pull(request: &Request, len: usize) -> Result<Vec<u8>, Status> {
    let mut payload = request.payload(len).await?;
    request.pull(0, &mut payload, len).await?;
    Ok(payload.get(..len).unwrap_or_default().to_vec())
}

/// The body of the message that answers `request` with `answer`; pushes the answer when it is long.
///
/// # Errors
/// With `OVERFLOW` when the client offered too little memory, and when the push fails.
pub async fn reply(request: &Request, answer: Vec<u8>) -> Result<Body, Status> {
    if answer.len() <= INLINE_MAX {
        return Ok(answer);
    }
    let needed = LENGTH_LEN + answer.len();
    if request.bulk_room() < needed as u64 {
        let message = format!(
            "the reply needs {needed} bytes of the caller's memory, {} were offered",
            request.bulk_room()
        );
        return Err(Status::new(Der::OVERFLOW, message));
    }
    let mut payload = request.payload(needed).await?;
    payload[..LENGTH_LEN].copy_from_slice(&(answer.len() as u64).to_le_bytes());
    payload[LENGTH_LEN..needed].copy_from_slice(&answer);
    request.push(0, &payload, needed).await?;
    Ok(Vec::new())
}

/// The reply that was pushed to `memory`, when the message's body is empty.
#[must_use]
pub fn read_long_reply(memory: &[u8]) -> Option<&[u8]> {
    let (length, rest) = memory.split_first_chunk::<LENGTH_LEN>()?;
    rest.get(..usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pushed_reply_is_found_and_a_broken_length_is_not_followed() {
        let mut memory = vec![0; 20];
        memory[0] = 3;
        memory[8..11].copy_from_slice(b"abc");
        assert_eq!(read_long_reply(&memory), Some(b"abc".as_slice()));
        memory[0] = 13;
        assert_eq!(read_long_reply(&memory), None);
        memory[..8].fill(0xff);
        assert_eq!(read_long_reply(&memory), None);
        assert_eq!(read_long_reply(&[1, 2]), None);
    }
}
