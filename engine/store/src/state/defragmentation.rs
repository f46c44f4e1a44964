//! What defragmentation is at.

use crate::format::blocks::Run;
use crate::index::fault::PageError;
use weir_runtime::Instant;

/// A pass through the index.
#[derive(Debug)]
pub(crate) struct Pass {
    /// Segments to be emptied, in their order.
    pub(crate) victims: Vec<Run>,
    /// Index key where it goes on.
    pub(crate) from: Vec<u8>,
    /// Segment where the search for holes goes on.
    pub(crate) hole: u64,
    /// Empty segments when it began.
    pub(crate) empty: u64,
    /// A node of the index couldn't be read; what lies below it stays where it is.
    pub(crate) damaged: Option<PageError>,
}

/// What defragmentation is at.
#[derive(Debug, Default)]
pub(crate) struct Defragmentation {
    pub(crate) pass: Option<Pass>,
    /// No pass begins before.
    pub(crate) rest_until: Option<Instant>,
}
