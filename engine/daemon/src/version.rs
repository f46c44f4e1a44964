//! Which build this is.

/// Version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
