//! File systems, against engines in the simulator.

mod appends;
#[path = "../../../core/tests/cluster/mod.rs"]
mod cluster;
#[path = "../model/mod.rs"]
mod model;
mod order;
mod replicas;
mod simulated;
mod together;
