//! The versioned object store of one target.
