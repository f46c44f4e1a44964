//! Endpoints on real networks, through libfabric.
//!
//! One endpoint, with its own domain, address vector and completion queue, belongs to one thread: the library is told
//! so (`FI_THREAD_DOMAIN`, manual progress) and takes no locks that are ever contended.

mod bell;
mod channel;
mod dial;
mod door;
mod endpoint;
mod expose;
#[cfg(feature = "fuzz")]
pub mod files;
mod guard;
pub(crate) mod hang_up;
mod insert;
mod intake;
mod open;
mod ops;
mod peers;
mod post;
mod progress;
mod raw;
#[cfg(feature = "reference")]
pub mod reference;
mod reopen;
mod shared;
mod sleep;
mod stack;
mod stranger;
mod survey;
mod sys;
mod waiting;
mod watch;

#[cfg(feature = "fuzz")]
pub use channel::foreign;
pub use open::{open, usable_keys};
pub use survey::{probe, providers};
