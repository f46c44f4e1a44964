//! The mount daemon: POSIX containers as FUSE file systems.
//!
//! [`filesystem`] translates FUSE requests into calls of [`weir_dfs`]; [`serve`] is one mount's process; [`daemon`]
//! is `weir-mountd`, which starts and watches one such process per volume, so that a fault of one mount touches no
//! other.

mod broker;
pub mod daemon;
pub mod filesystem;
mod handle_keepalive;
pub mod handover;
mod kept;
pub mod metrics;
pub mod mountinfo;
pub mod process;
pub mod report;
pub mod serve;
mod session;
pub mod spec;

#[expect(missing_docs, reason = "documented in the protocol definition")]
#[allow(clippy::all, clippy::pedantic, clippy::allow_attributes_without_reason, reason = "generated code")]
pub mod v1;
