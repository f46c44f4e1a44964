//! weir-engine: configuration, wiring, management and metrics.
//!
//! An engine is one process: a thread with its own executor, endpoint and store for each target, and one thread for
//! management and metrics, which talks to targets by messages. [`target::Target`] is the same code on real threads
//! and in a simulated world.

pub mod config;
mod convert;
pub mod data_directory;
mod devices;
mod durable;
pub mod engine;
pub mod fault_record;
mod grpc;
pub mod last_seen;
pub mod management;
pub mod map_backup;
mod membership;
mod metrics;
mod process;
mod shutdown;
pub mod snapshot;
#[cfg(feature = "spdk")]
mod spdk;
pub mod target;
mod tenant_view;
pub mod tenants;
mod thread;
mod version;
mod wait_log;

pub use version::VERSION;
