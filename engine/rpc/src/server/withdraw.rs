//! Withdrawals: a client has given a request up and needs its memory back.

use super::Body;
use crate::error::Status;
use crate::request::Request;
use weir_proto::Der;
use weir_runtime::{Elapsed, Handle};

/// Answers when no access to the memory of the withdrawn request is in flight, and none will begin.
pub(crate) async fn withdraw(request: Request) -> Result<Body, Status> {
    let Ok(number) = <[u8; 8]>::try_from(request.body()).map(u64::from_le_bytes) else {
        let text = format!(
            "a withdrawal has a body of {} bytes; it is the number of a request",
            request.body().len()
        );
        return Err(Status::new(Der::PROTO, text));
    };
    let context = request.context();
    let client = request.client();
    context.clients.borrow_mut().bar(client, number);
    let Some(accesses) = context.accesses.get(client, number) else { return Ok(Body::new()) };
    accesses.withdraw();
    let rt: &Handle = &context.rt;
    match rt.timeout_at(request.deadline(), accesses.idle()).await {
        Ok(()) => Ok(Body::new()),
        Err(Elapsed) => {
            Err(Status::new(Der::TIMEDOUT, "an access to the request's memory is still under way"))
        }
    }
}
