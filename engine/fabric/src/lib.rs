//! Safe Rust over libfabric, and a simulated fabric behind the same trait.
//!
//! An [`Endpoint`] is one context's access to the network: unexpected messages, and reads and writes of a peer's
//! exposed memory (RMA). The real one is [`libfabric`], the simulated one [`sim`].

mod address;
mod checksum;
pub mod counters;
mod endpoint;
mod error;
pub mod libfabric;
mod memory;
#[cfg(feature = "mercury")]
pub mod mercury;
pub mod mercury_wire;
mod naming;
pub mod sim;
mod transport;

pub use address::{
    AUTH_KEYS_MAX, Address, AuthKey, AuthKeyError, Launch, PeerId, client_key, configured_client_key,
    configured_device, configured_server_keys, server_keys,
};
pub use checksum::crc32c_of_words;
pub use counters::FabricCounters;
pub use endpoint::{
    Ability, Bind, Capabilities, Closed, Ending, Endpoint, Exposure, Gone, Message, MrAccounting, MrMethod,
    MrMode, Offer, Options, Protocol, ReceiveMode, Sink, Source, Transfer, Wait,
};
pub use error::FabricError;
pub use memory::{Access, Buffer, BufferPool, MemoryHold, POOL_BYTES_DEFAULT, RemoteRegion};
pub use naming::{Addressing, Found, published};
pub use transport::{LOOPBACK, open, providers, tested};
