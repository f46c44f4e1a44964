//! Memory for the payload of a request.

use crate::admission::MemoryShare;
use crate::context::Context;
use crate::error::Status;
use crate::transfer::AccessHandle;
use crate::wire::Caller;
use core::ops::{Deref, DerefMut};
use weir_fabric::Buffer;
use weir_proto::Der;
use weir_runtime::{Elapsed, Instant};

/// Memory for a request's payload. It counts as taken until it is dropped and all transfers have ended that use
/// it.
pub struct Payload {
    // Dropped in this order: the memory is back in its pool before others are granted some.
    buffer: Buffer,
    room: PayloadShare,
}

/// The part of the bound that a payload takes.
pub struct PayloadShare {
    share: Option<MemoryShare>,
    accesses: Option<AccessHandle>,
}

impl Deref for Payload {
    type Target = Buffer;

    fn deref(&self) -> &Buffer {
        &self.buffer
    }
}

impl DerefMut for Payload {
    fn deref_mut(&mut self) -> &mut Buffer {
        &mut self.buffer
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Payload {
    /// The memory, and what has to be held as long as the memory is.
    #[must_use]
    pub fn into_parts(self) -> (Buffer, PayloadShare) {
        (self.buffer, self.room)
    }
}

impl Drop for PayloadShare {
    fn drop(&mut self) {
        if let (Some(share), Some(accesses)) = (self.share.take(), &self.accesses)
            && accesses.is_busy()
        {
            accesses.keep(share);
        }
    }
}

/// Waits for memory of `len` bytes for a request.
pub(super) async fn take(
    context: &Context,
    caller: Caller,
    accesses: Option<AccessHandle>,
    (len, deadline): (usize, Instant),
) -> Result<Payload, Status> {
    let share = context.payloads.share(&context.rt, caller, (len, deadline)).await;
    let none = |Elapsed| Status::new(Der::NOMEM, "no memory for the payload was free in time; try again");
    let room = PayloadShare { share: Some(share.map_err(none)?), accesses };
    Ok(Payload { room, buffer: context.endpoint.buffers().alloc(len)? })
}
