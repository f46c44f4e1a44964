//! Ways to register memory side by side: figures 8, 9 and 10 of "Enhancing RPC on Slingshot for Aurora's DAOS Storage
//! System" in the simulator, and what registering takes on this machine.

mod bulk;
mod real;
mod simulated;
mod times;

pub use real::measure as measure_real;
pub use simulated::measure as measure_simulated;

use weir_fabric::MrMethod;

/// What the paper calls a method.
const fn paper_name(method: MrMethod) -> &'static str {
    match method {
        MrMethod::Uncached => "standard, no cache",
        MrMethod::Optimized => "optimized, no cache",
        MrMethod::Persistent => "optimized, key cache",
        MrMethod::KeyCache => "standard, key cache",
        MrMethod::MatchEvents => "standard, match events",
    }
}
