//! Single-threaded async executor with a real and a simulated implementation.
//!
//! A [`Handle`] is the only door to time, randomness and tasks. Code that takes all three from a handle runs
//! unchanged on a core of its own ([`real::Executor`]) and, with many nodes in one process, under virtual time and
//! one seed ([`sim::World`]).
//!
//! Everything is `Rc` and `!Send`: a context (target thread, client thread, simulated node) shares nothing.

pub mod combine;
mod handle;
mod instant;
pub mod random;
mod reading;
pub mod real;
pub mod sim;
pub mod sync;
mod task;
mod timer;
mod waker;

pub use combine::{Either, join_all, race};
pub use handle::{
    Aborted, Attention, Elapsed, EventSource, Handle, JoinHandle, NoSources, Sleep, SourceId, TaskName,
    YieldNow,
};
pub use instant::{Instant, nanos};

/// A boxed future of one thread.
pub type LocalBoxFuture<'a, T> = core::pin::Pin<Box<dyn Future<Output = T> + 'a>>;
