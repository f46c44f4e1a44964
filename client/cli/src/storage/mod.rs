//! Commands for what is stored: pools, containers, files, objects, and the engines as a whole. The room calls connections
//! and output. The arguments name its commands, the crate's root performs them, and `weir dev` applies manifests by them.

pub mod container;
mod copy;
pub mod file_system;
pub mod kv;
mod listing;
pub mod object;
mod objects;
pub mod pool;
pub mod property;
pub mod redundancy;
mod scan;
pub mod system;
pub mod targets;
mod tree;
