//! The record of a request while it is executed.

use crate::transfer::AccessHandle;
use crate::wire::{Caller, Header};
use core::ops::Range;
use weir_fabric::{Access, Message, RemoteRegion};
use weir_proto::Epoch;
use weir_runtime::Instant;

/// What a request consists of. A request passes through half a dozen functions from arrival to its handler, so
/// that the record stays in one place. Later requests reuse the place, so that none is allocated.
#[derive(Default)]
pub(crate) struct RequestRecord {
    pub(crate) header: RequestInfo,
    pub(crate) message: Message,
    pub(crate) body: Range<usize>,
    pub(crate) segments: Vec<(RemoteRegion, Access)>,
    pub(crate) deadline: Instant,
    /// Its accesses to the client's memory, if the client has exposed any.
    pub(crate) accesses: Option<AccessHandle>,
}

/// The part of a request's header that handlers may ask for.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct RequestInfo {
    pub(crate) caller: Caller,
    pub(crate) request: u64,
    pub(crate) acked: u64,
    pub(crate) epoch: Epoch,
    pub(crate) opcode: u16,
}

impl RequestInfo {
    #[inline]
    pub(crate) fn new(caller: Caller, header: &Header) -> Self {
        let Header { request, acked, epoch, opcode, .. } = *header;
        Self { caller, request, acked, epoch, opcode }
    }
}
