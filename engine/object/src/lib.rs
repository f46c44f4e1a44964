//! The I/O service of a target.
//!
//! A request is decoded, checked (handle, pool map, limits), given an epoch of the target's clock and handed to the
//! store; its data comes and goes inline or by RMA that this side drives. What is acknowledged is on stable media.

mod admission;
mod groups;
mod operations;
mod rebuild;
mod repair;
mod repeats;
mod replication;
mod service;
mod succession;
mod transaction;
mod unsettled;

pub use admission::{BOUNDS_US, IoMetrics, LatencyCounts};
pub use rebuild::{REBUILD_FLOOR_DEFAULT, RebuildProgress};
pub use service::IoService;
#[doc(hidden)]
pub use unsettled::PlantedBug;
