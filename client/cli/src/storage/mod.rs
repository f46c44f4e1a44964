//! Commands for what is stored: pools, containers, files, objects, and the engines as a whole. The room calls connections
//! and output. The arguments name its commands, the crate's root performs them, and `weir dev` applies manifests by them.

pub mod container;
pub mod file_system;
pub mod kv;
pub mod object;
pub mod pool;
pub mod system;
