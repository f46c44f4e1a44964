//! Engines and clients that speak Mercury to each other.

use std::time::Duration;

use weir_fabric::Addressing;

use crate::kill::kill_under_load;
use crate::system::System;

/// Kills over each protocol: each engine more than once.
const KILLS: u32 = 7;

#[test]
fn acknowledged_writes_survive_kill_nine_over_mercury_on_tcp() {
    kill_under_load(
        System::start_by(("mercury/ofi+tcp", Addressing::ByProvider), 3, 2),
        KILLS,
        Duration::ZERO,
    );
}

#[test]
fn acknowledged_writes_survive_kill_nine_over_mercury_in_shared_memory() {
    kill_under_load(System::start_by(("mercury/na+sm", Addressing::ByProvider), 3, 2), KILLS, Duration::ZERO);
}
