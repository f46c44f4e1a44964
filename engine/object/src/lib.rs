//! The I/O service of a target.
