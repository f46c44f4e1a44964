//! Blocks of the data region: which are in use, and when freed ones can be given out again. The room knows nothing of
//! what the blocks hold. It calls `format`; the state of the store, checkpoints and upkeep call it.

pub(crate) mod deferral;
pub(crate) mod map;
