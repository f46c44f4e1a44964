//! Replies that don't fit a message.
//!
//! When the caller offered memory and the reply is longer than a message, it is pushed there: 8 bytes of length,
//! little endian, and the reply behind them. The body of the message is then empty, which no such reply is by itself.

use weir_proto::Der;
use weir_proto::limits::INLINE_MAX;
use weir_rpc::{Body, Request, Status};

/// Bytes of the length in front of a pushed reply.
pub(crate) const LENGTH_LEN: usize = 8;

/// The body of the message that answers `request` with `answer`; pushes the answer when it is long.
///
/// # Errors
/// With `OVERFLOW` when the caller offered too little memory, and when the push fails.
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
pub(crate) fn read_long_reply(memory: &[u8]) -> Option<&[u8]> {
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
