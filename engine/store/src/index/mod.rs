//! The index: an ordered copy-on-write tree of bytes, and the questions that need nothing but the tree. They are when an
//! object or key exists, and which extents are visible at an epoch. It calls `format`; everything above asks it.

pub(crate) mod cache;
pub(crate) mod existence;
pub(crate) mod extents;
pub(crate) mod fault;
pub(crate) mod stored;
pub(crate) mod tree;
