//! weir-engine: configuration, wiring, management and metrics.
//!
//! An engine is one process: a thread with its own executor, endpoint and store for each target, and one thread for
//! management and metrics, which talks to targets by messages. [`target::Target`] is the same code on real threads
//! and in a simulated world.

pub mod config;
mod convert;
pub mod data;
mod devices;
mod durable;
mod ending;
pub mod engine;
mod grpc;
pub mod management;
mod membership;
mod metrics;
mod process;
pub mod shelter;
pub mod snapshot;
#[cfg(feature = "spdk")]
mod spdk;
pub mod target;
mod thread;
pub mod verdict;
mod waiting;
pub mod witness;

/// Version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
