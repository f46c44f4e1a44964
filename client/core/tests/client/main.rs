//! The client, against engines in the simulator.

#[path = "../cluster/mod.rs"]
mod cluster;
mod damage;
mod leaders;
mod maps;
mod repair;
mod repeats;
mod reserve;
mod simulated;
mod transactions;
