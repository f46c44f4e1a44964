//! Requests that don't fit a message.
//!
//! A request that is longer than a message is pulled from the client's memory. The body of the message is empty then,
//! which no request is by itself. Such a request begins with a handle, which is pulled and checked first: a client
//! without a valid handle has nothing else pulled.

use std::borrow::Cow;

use weir_proto::limits::SERVICE_REQUEST_MAX;
use weir_proto::{Capability, Der, codec};
use weir_rpc::{Request, Status};

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
