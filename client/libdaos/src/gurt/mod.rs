//! libgurt: hash tables, and what DAOS's macros for memory and messages call.

mod environment;
mod hash;
mod hashing;
mod memory;
mod messages;
