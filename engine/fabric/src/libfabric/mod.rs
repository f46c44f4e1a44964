//! Endpoints on real networks, through libfabric.
//!
//! One endpoint, with its own domain, address vector and completion queue, belongs to one thread: the library is told
//! so (`FI_THREAD_DOMAIN`, manual progress) and takes no locks that are ever contended.

mod channel;
mod connect_attempts;
mod connection_limit;
mod doorbell;
mod endpoint;
mod expose;
#[cfg(feature = "fuzz")]
pub mod files;
pub(crate) mod hang_up;
mod insert;
mod open;
mod ops;
mod peers;
mod post;
mod progress;
mod provider_facts;
mod provider_names;
mod raw;
mod receive_queue;
#[cfg(feature = "reference")]
pub mod reference;
mod reopen;
mod retry_queue;
mod shared;
mod sleep;
mod stale_locks;
mod sys;
mod unknown_source;
mod watch;

#[cfg(feature = "fuzz")]
pub use channel::foreign;
pub use open::{open, usable_keys};
pub use provider_facts::{probe, providers};
