//! What the store does by itself: aggregation and merging of versions, defragmentation, scrubbing, repair, and reclaim of what was
//! destroyed. Each task goes at the pace that `state::pace` allows beside clients. It calls `operations` and below; only the
//! store starts it.

pub(crate) mod aggregate;
pub(crate) mod chores;
pub(crate) mod defragment;
pub(crate) mod merge;
pub(crate) mod repair;
pub(crate) mod scrub;
pub(crate) mod sweep;
