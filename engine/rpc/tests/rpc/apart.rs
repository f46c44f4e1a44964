//! Tenants on a network that does not keep them apart: what a client of one tenant tries against another's comes to
//! nothing, on the simulated fabric and on real providers.

use crate::tenants;

use tenants::attacks;
use tenants::memory;
use tenants::stage::Stage;

#[test]
fn on_the_simulated_fabric() {
    attacks::run_all(|| Stage::simulated(31));
}

#[test]
fn on_a_simulated_fabric_that_names_strangers() {
    attacks::run_all(|| Stage::simulated_with_sources(37));
}

#[test]
fn on_tcp() {
    attacks::run_all(|| Stage::real("tcp"));
    attacks::claims_of_addresses_where_nobody_is_cost_others_nothing(&Stage::real("tcp"));
}

#[test]
fn on_shm() {
    attacks::run_all(|| Stage::real("shm"));
    memory::shared_within_a_node_is_one_users(&Stage::real("shm"));
}

#[cfg(feature = "mercury")]
#[test]
fn on_mercury() {
    attacks::run_all(|| Stage::real("mercury/na+sm"));
    attacks::run_all(|| Stage::real("mercury/ofi+tcp"));
}
