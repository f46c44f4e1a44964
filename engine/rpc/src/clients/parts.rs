//! What is kept of a request while it is executed.

use crate::transfer::Account;
use crate::wire::{Caller, Header};
use core::ops::Range;
use weir_fabric::{Access, Message, RemoteRegion};
use weir_proto::Epoch;
use weir_runtime::Instant;

/// What a request is made of. It is handed on half a dozen times from where it arrives to its handler, and stays in one
/// place meanwhile; that place serves later requests, so that none is allocated.
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) header: Asked,
    pub(crate) message: Message,
    pub(crate) body: Range<usize>,
    pub(crate) segments: Vec<(RemoteRegion, Access)>,
    pub(crate) deadline: Instant,
    /// Its accesses to the client's memory, where it has exposed any.
    pub(crate) accesses: Option<Account>,
}

/// What a handler may want to know of a request's header.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Asked {
    pub(crate) caller: Caller,
    pub(crate) request: u64,
    pub(crate) acked: u64,
    pub(crate) epoch: Epoch,
    pub(crate) opcode: u16,
}

impl Asked {
    #[inline]
    pub(crate) fn new(caller: Caller, header: &Header) -> Self {
        let Header { request, acked, epoch, opcode, .. } = *header;
        Self { caller, request, acked, epoch, opcode }
    }
}
