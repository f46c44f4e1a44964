//! Memory for payloads: bounded, and waited for within a request's deadline.

use weir_proto::Der;
use weir_rpc::{Buffer, Request, Rpc, Status};
use weir_runtime::Handle;
use weir_runtime::sync::{Permit, Semaphore};

/// Unit of the bound in bytes: the smallest piece that the fabric's pool hands out.
const UNIT: usize = 4096;

/// Part of the fabric's pool that payloads may take; the rest is for messages.
const SHARE: (usize, usize) = (3, 4);

/// Bounds the memory of payloads in flight.
pub struct PayloadMemory {
    units: Semaphore,
    limit: usize,
}

/// A payload's memory. Returns to the bound when dropped.
pub struct Payload {
    // Dropped in this order: the memory is back in its pool before others may ask for it.
    pub buffer: Buffer,
    permit: Permit,
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Payload {
    /// Its memory, and what is to be held as long as that is.
    pub fn into_parts(self) -> (Buffer, Permit) {
        (self.buffer, self.permit)
    }
}

impl PayloadMemory {
    pub fn new(rpc: &Rpc) -> Self {
        let limit = rpc.endpoint().buffers().limit() / UNIT * SHARE.0 / SHARE.1;
        Self { units: Semaphore::new(limit), limit }
    }

    /// Memory of `len` bytes for a request.
    pub async fn take(&self, rt: &Handle, request: &Request, len: usize) -> Result<Payload, Status> {
        // The pool hands out powers of two.
        let units = (len.max(UNIT).next_power_of_two() / UNIT).min(self.limit);
        let none = |_| Status::new(Der::NOMEM, "no memory for the payload was free in time; try again");
        let permit = rt.timeout_at(request.deadline(), self.units.acquire_many(units)).await.map_err(none)?;
        let closing = |_| Status::new(Der::SHUTDOWN, "the engine is stopping");
        Ok(Payload { permit: permit.map_err(closing)?, buffer: request.alloc(len)? })
    }
}
