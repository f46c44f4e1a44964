//! What servers of several tests do with the memory that a client exposes to them.

use weir_rpc::{Body, Request, Status};

/// Pulls the client's bytes and pushes them back in reverse order.
pub async fn reverse(request: Request) -> Result<Body, Status> {
    let len = usize::try_from(request.bulk_len()).expect("small");
    let mut buffer = request.payload(len).await?;
    request.pull(0, &mut buffer, len).await?;
    buffer.reverse();
    request.push(0, &buffer, len).await?;
    Ok(Vec::new())
}
