//! Handles of pools and containers, and the requests about them that pool services answer. The room sends its requests by
//! `operation` and keeps what it learns of pool maps in the context. Programs call it; objects and transactions ask it for newer maps.

mod container;
mod map;
mod pool;

pub use container::{Container, KEEP_EVERY};
pub(crate) use map::LOOK_INTERVAL;
pub use pool::{Pool, PoolSpace};
