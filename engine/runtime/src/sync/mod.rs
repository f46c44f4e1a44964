//! Channels and semaphores of one thread: `Rc` inside, no lock, no atomic.

pub mod mpsc;
mod notify;
pub mod oneshot;
mod semaphore;

pub use notify::{Gate, Notify};
pub use semaphore::{Permit, Semaphore, SemaphoreClosed};
