//! Records of bulk transfers: the fragments of a transfer, a server's accesses to each request's memory, and
//! what a client has exposed. It calls admission and the maps, and starts nothing by itself. Requests move
//! fragments by it, calls expose memory.

mod accesses;
mod fragments;

pub(crate) use accesses::{AccessHandle, AccessTable};
pub(crate) use fragments::{FRAGMENT_TIME, Fragment, Fragments, MovingFragment, TransferSlots};

use core::time::Duration;
use weir_fabric::Exposure;
use weir_proto::hlc::SKEW_MAX_NS;

/// How long after its deadline the exposed memory of a failed call is kept from reuse, if no answer says that the
/// server has finished: the server's clock may lag by [`SKEW_MAX_NS`], and it may have started a fragment just before
/// the deadline.
pub(crate) const WITHDRAWAL_GRACE: Duration = Duration::from_nanos(SKEW_MAX_NS).saturating_add(FRAGMENT_TIME);

/// The exposures of a call and their descriptors. Later calls reuse the lists, so that nothing is allocated.
#[derive(Default)]
pub(crate) struct ExposureLists {
    pub(crate) exposures: Vec<Exposure>,
    pub(crate) descriptors: Vec<u8>,
}
