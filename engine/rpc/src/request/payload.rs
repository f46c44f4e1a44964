//! Memory for what a request moves.

use crate::admission::Share;
use crate::context::Context;
use crate::error::Status;
use crate::transfer::Account;
use crate::wire::Caller;
use core::ops::{Deref, DerefMut};
use weir_fabric::Buffer;
use weir_proto::Der;
use weir_runtime::{Elapsed, Instant};

/// Memory of a request's payload. It counts as taken until it is dropped, and until all transfers have ended that were under way
/// then: these have the memory as long.
pub struct Payload {
    // Dropped in this order: the memory is back in its pool before others may ask for it.
    buffer: Buffer,
    room: Room,
}

/// Part of the bound.
pub struct Room {
    share: Option<Share>,
    accesses: Option<Account>,
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
    /// Its memory, and what is to be held as long as that is.
    #[must_use]
    pub fn into_parts(self) -> (Buffer, Room) {
        (self.buffer, self.room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let (Some(share), Some(accesses)) = (self.share.take(), &self.accesses)
            && accesses.is_busy()
        {
            accesses.keep(share);
        }
    }
}

/// Memory of `len` bytes for a request, once it is its turn.
pub(super) async fn take(
    context: &Context,
    caller: Caller,
    accesses: Option<Account>,
    (len, deadline): (usize, Instant),
) -> Result<Payload, Status> {
    let share = context.payloads.share(&context.rt, caller, (len, deadline)).await;
    let none = |Elapsed| Status::new(Der::NOMEM, "no memory for the payload was free in time; try again");
    let room = Room { share: Some(share.map_err(none)?), accesses };
    Ok(Payload { room, buffer: context.endpoint.buffers().alloc(len)? })
}
