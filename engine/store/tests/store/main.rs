//! The store as its users see it, on simulated, memory and real devices.
//!
//! The tools of `weir-inspect` are tested here, too: they are held to the model, the images and the workloads of these tests, and the
//! other tests look at devices with them.

#![expect(clippy::cast_possible_truncation, reason = "test data is made of the low bits of small numbers")]

mod basics;
mod cache;
mod checksums;
mod closing;
mod copies;
mod copy;
mod crash;
mod damage;
mod defragment;
mod deletes;
mod dropped;
mod evidence;
mod exhaustive;
mod external_buffer;
mod footprint;
mod format;
mod golden;
mod history;
mod holes;
mod inspect;
mod late;
mod long;
mod model;
mod open;
mod operations;
mod pace;
mod paging;
mod pools;
mod quota;
mod real;
mod records;
mod repair;
mod reserve;
mod reuse;
mod scrub;
mod search;
mod setup;
mod sizes;
mod snapshots;
mod space;
mod stalled;
mod together;
mod transactions;
mod turmoil;
mod turns;
