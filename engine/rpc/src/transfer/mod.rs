//! Records of bulk transfers: the pieces that a transfer is cut into, a server's accesses to each request's memory, and what a client
//! has exposed. It calls admission and the maps, and starts nothing by itself. Requests move pieces by it, calls expose memory.

mod accesses;
mod pieces;

pub(crate) use accesses::{Account, Ledger};
pub(crate) use pieces::{Moving, PIECE_TIME, Piece, Pieces, Places};

use core::time::Duration;
use weir_fabric::Exposure;
use weir_proto::hlc::SKEW_MAX_NS;

/// How long after the deadline exposed memory of a failed call is kept from being used again when nobody says that the
/// server has finished: the server's clock may lag by [`SKEW_MAX_NS`], and it may have started a piece just before the
/// deadline.
pub(crate) const WITHDRAWAL_GRACE: Duration = Duration::from_nanos(SKEW_MAX_NS).saturating_add(PIECE_TIME);

/// What a call has of the memory that it exposes. The lists serve later calls, so that nothing is allocated.
#[derive(Default)]
pub(crate) struct Lists {
    pub(crate) exposures: Vec<Exposure>,
    pub(crate) descriptors: Vec<u8>,
}
