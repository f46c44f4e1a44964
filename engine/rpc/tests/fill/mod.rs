//! What servers of several tests do with the memory that a client lets them write to.

use weir_rpc::{Body, Request, Status};

/// Fills the client's memory with a byte.
pub async fn fill(request: Request, byte: u8) -> Result<Body, Status> {
    let len = usize::try_from(request.bulk_room()).expect("small");
    let mut buffer = request.payload(len).await?;
    buffer.fill(byte);
    request.push(0, &buffer, len).await?;
    Ok(Vec::new())
}
