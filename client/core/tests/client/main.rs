//! The client, against engines in the simulator and on loopback.

#[path = "../cluster/mod.rs"]
mod cluster;
mod damage;
#[path = "../loopback/mod.rs"]
mod engines;
mod leaders;
mod loopback;
mod repeats;
mod reserve;
mod simulated;
mod transactions;
