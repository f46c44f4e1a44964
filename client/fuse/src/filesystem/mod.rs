//! A POSIX container as a FUSE file system.
//!
//! Several threads take requests of the kernel. Each thread owns a client context and answers a request before it takes
//! the next, so that no data moves between threads while engines answer; `threads` says what happens to requests when
//! engines don't answer. The threads share tables of inodes and handles, behind locks that are never held across a
//! request to an engine.
//!
//! Writes are gathered for each open file and sent to the engines in large blocks; `close` and `fsync` return when all
//! of them are on stable media. Names are made, changed and removed at once.

mod attributes;
mod copy;
mod data;
mod direct;
mod directories;
mod dispatch;
mod gathering;
mod handles;
mod inodes;
mod leases;
mod libraries;
mod name_changes;
mod names;
mod order;
mod pages;
mod pump;
mod reads;
mod repeats;
mod retries;
mod runs;
mod takeover;
mod threads;
mod worker;
mod writeback;
mod xattrs;

use std::sync::Arc;

use fuser::Generation;

pub use attributes::give_root_to_group;
pub use leases::{LeaseKeeper, begin as begin_lease, resume as resume_lease};
pub use worker::Shared;

/// Inode numbers are never used again, so one generation is enough.
const GENERATION: Generation = Generation(0);

/// The file system of one mount.
#[derive(Debug)]
pub struct WeirFs {
    shared: Arc<Shared>,
}

impl WeirFs {
    /// A file system over the state of a mount.
    #[must_use]
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}
