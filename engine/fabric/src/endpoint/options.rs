//! Settings of an endpoint of any transport.

use super::capabilities::{Ability, Protocol};
use super::exposure::MrMethod;
use crate::address::AuthKey;
use crate::memory::POOL_BYTES_DEFAULT;
use crate::naming::Addressing;

/// Largest message: an inline body of 16 KiB with header, greeting and bulk descriptors (18.6 KiB), in whole pages.
pub(crate) const MESSAGE_MAX: usize = 20 << 10;

/// Where an endpoint is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Bind {
    /// On this host address and port: a server. `0.0.0.0` and `::` stand for the address of the default route (a pod's
    /// only one), because an endpoint has to know the one address that peers find it at.
    Listen {
        /// Own address or name.
        host: String,
        /// Port.
        port: u16,
    },
    /// On the local address from which this host is reached: a client of that server.
    Near {
        /// Any server's address or name.
        host: String,
        /// Its port.
        port: u16,
    },
    /// On the local address of the default route: a client.
    Any,
}

/// How receive memory is posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceiveMode {
    /// One buffer for each message, of the largest message's size: for providers without multi-receive, and to
    /// compare.
    Standard {
        /// How many are posted.
        buffers: usize,
    },
    /// Large slabs, each for many messages.
    Multi {
        /// How many, at least two.
        slabs: usize,
        /// Length of each in bytes: holds dozens of the largest messages and thousands of small ones.
        slab_bytes: usize,
    },
}

/// Buffers posted in standard mode (Mercury: 512 requests): 16 MiB.
pub(crate) const STANDARD_BUFFERS: usize = 512;

impl Default for ReceiveMode {
    fn default() -> Self {
        Self::Multi { slabs: 4, slab_bytes: 1 << 20 }
    }
}

impl ReceiveMode {
    /// Slabs of a client, which receives only answers: 1 MiB together, as much as the inline bodies of all
    /// requests that it has in flight by default (64 of 16 KiB).
    #[must_use]
    pub const fn of_client() -> Self {
        Self::Multi { slabs: 4, slab_bytes: 256 << 10 }
    }

    /// Standard receives with the usual number of buffers.
    #[must_use]
    pub const fn standard() -> Self {
        Self::Standard { buffers: STANDARD_BUFFERS }
    }

    /// Number and length of the buffers that are to be posted.
    pub(crate) fn shape(self) -> (usize, usize) {
        match self {
            Self::Standard { buffers } => (buffers.max(1), MESSAGE_MAX.next_power_of_two()),
            Self::Multi { slabs, slab_bytes } => {
                (slabs.max(2), slab_bytes.max(2 * MESSAGE_MAX).next_power_of_two())
            }
        }
    }
}

/// Settings of an endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The provider's name: `tcp`, `shm`, `verbs`, `cxi`, or libfabric's name of a stack of several.
    pub provider: String,
    /// Where to be reached.
    pub bind: Bind,
    /// The NIC, by libfabric's name of its domain: `cxi1`, `mlx5_0`, on `tcp` the network interface. `None`
    /// leaves it to the provider.
    pub device: Option<String>,
    /// Bound of the buffer pool in bytes.
    pub buffer_bytes: usize,
    /// How receive memory is posted.
    pub receive: ReceiveMode,
    /// Messages are copied out of their slab while no more than this many slabs are posted, so that slow requests
    /// can't pin the last ones.
    pub copy_below: usize,
    /// Abilities of the provider that are not used: to avoid a defect of it, and to measure what they are worth.
    pub without: Vec<Ability>,
    /// How memory is registered for peers.
    pub mr_method: MrMethod,
    /// Most registrations that are kept for the next exposure of the same memory; 0 keeps none. Worth it where
    /// registering calls into the kernel. Memory of the application is kept only where the kernel reports when
    /// it is freed or remapped.
    pub mr_cache: usize,
    /// Auth keys. Empty leaves it to the provider; a client has one, a server those of all its clients.
    pub auth_keys: Vec<AuthKey>,
    /// How messages are sent, where the provider has several ways.
    pub protocol: Protocol,
    /// Whether listening endpoints are at the configured port, or at an address that is published there.
    pub addressing: Addressing,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            provider: "tcp".to_owned(),
            bind: Bind::Any,
            device: None,
            buffer_bytes: POOL_BYTES_DEFAULT,
            receive: ReceiveMode::default(),
            copy_below: 1,
            without: Vec::new(),
            mr_method: MrMethod::default(),
            mr_cache: 0,
            auth_keys: Vec::new(),
            protocol: Protocol::Usual,
            addressing: Addressing::ByProvider,
        }
    }
}

impl Options {
    /// A server's endpoint.
    #[must_use]
    pub fn listen(provider: &str, host: &str, port: u16) -> Self {
        let bind = Bind::Listen { host: host.to_owned(), port };
        Self { provider: provider.to_owned(), bind, ..Self::default() }
    }

    /// A client's endpoint, on the interface that leads to this server.
    #[must_use]
    pub fn near(provider: &str, host: &str, port: u16) -> Self {
        let bind = Bind::Near { host: host.to_owned(), port };
        let receive = ReceiveMode::of_client();
        Self { provider: provider.to_owned(), bind, receive, ..Self::default() }
    }
}
