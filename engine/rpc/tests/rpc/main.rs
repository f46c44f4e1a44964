//! Requests, replies and transfers on the simulated fabric and on real providers. What starts itself again as other processes, or
//! counts allocations or instructions of the whole program, is a program of its own.

mod apart;
mod both_ways;
mod clocks;
mod collectives;
mod contact;
mod early;
#[path = "../engines/mod.rs"]
mod engines;
#[path = "../fill/mod.rs"]
mod fill;
mod golden;
mod hostile;
mod membership;
mod misbehaving;
mod names;
mod overload;
mod pacing;
#[path = "../port/mod.rs"]
mod port;
#[path = "../reverse/mod.rs"]
mod reverse;
mod scatter;
mod senders;
mod sharing;
mod simulated;
mod soak;
mod standard;
mod stopping;
mod threads;
mod vnis;
mod withdrawal;
mod withdrawal_real;
#[path = "../tenants"]
mod tenants {
    pub mod attacks;
    pub mod forgery;
    pub mod memory;
    pub mod recorder;
    pub mod stage;
}
