//! A POSIX container as a FUSE file system.
//!
//! The kernel's requests come to several threads at once; each owns a client context and answers a request before it
//! takes the next, so no data changes hands between threads while engines answer; `threads` says what becomes of
//! requests when they don't. What the threads share, tables of inodes and handles, is behind locks that are never held
//! across a request to an engine.
//!
//! Writes are gathered for each open file and brought to the engines in large pieces; `close` and `fsync` return when
//! all of them are on stable media. Names are made, changed and removed at once.

mod attributes;
mod data;
mod directories;
mod dispatch;
mod gathering;
mod handles;
mod inodes;
mod leases;
mod name_changes;
mod names;
mod order;
mod pump;
mod reads;
mod retries;
mod runs;
mod threads;
mod worker;
mod writeback;
mod xattrs;

use std::sync::Arc;
use std::time::Duration;

use fuser::Generation;

pub use attributes::give_root_to_group;
pub use leases::{LeaseKeeper, begin as begin_lease};
pub use worker::Shared;

/// Inode numbers are never used again, so one generation is enough.
const GENERATION: Generation = Generation(0);

fn entry_life(shared: &Shared) -> Duration {
    shared.cache_life()
}

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
