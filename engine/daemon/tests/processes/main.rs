//! Engines as they run in production: processes on loopback, libfabric's tcp provider, files with `O_DIRECT`, gRPC with
//! mutual TLS. They are killed under load, asked for nonsense and given data that isn't theirs.

mod data;
mod devices;
mod ending;
mod hostile;
mod kill;
mod limits;
mod lost;
mod management;
mod membership;
#[cfg(feature = "mercury")]
mod mercury;
mod published;
mod revocation;
mod roles;
#[cfg(feature = "spdk")]
mod spdk;
mod system;
mod tenants;
