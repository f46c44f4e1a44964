//! Addresses of endpoints, and the auth keys that endpoints have on networks with tenants. It calls nothing of
//! this crate. All rooms above name peers by what is here.

mod auth_key;

pub use auth_key::{
    AUTH_KEYS_MAX, AuthKey, AuthKeyError, Launch, client_key, configured_client_key, configured_device,
    configured_server_keys, server_keys,
};

use core::fmt;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest address of any provider here: a `sockaddr_un`-sized name. Bounds what a hello may carry.
pub(crate) const ADDRESS_MAX: usize = 128;

/// An endpoint's address in the provider's format, with the auth key under which it was met on networks with
/// keys. The same endpoint under another key is another peer. Only the provider's bytes travel in messages.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Address(#[serde(with = "serde_bytes")] Vec<u8>, #[serde(skip)] Option<AuthKey>);

impl Address {
    /// Largest length in bytes.
    pub const MAX: usize = ADDRESS_MAX;

    /// Takes provider bytes as an address; `None` when they are none or too many.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        (!bytes.is_empty() && bytes.len() <= ADDRESS_MAX).then(|| Self(bytes.to_vec(), None))
    }

    /// The same address as it is met under an auth key.
    #[must_use]
    pub fn under(self, key: AuthKey) -> Self {
        Self(self.0, Some(key))
    }

    /// How an endpoint that serves several keys knows this address, if not by itself: an address that was found
    /// by name is met under the first of the keys. So endpoints with the same keys agree on their peers.
    pub(crate) fn named_under(&self, first: Option<AuthKey>) -> Option<Self> {
        first.filter(|_| self.1.is_none()).map(|key| self.clone().under(key))
    }

    /// The auth key that it was met under.
    #[must_use]
    pub fn auth_key(&self) -> Option<AuthKey> {
        self.1
    }

    /// The provider's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The socket address, when it is one (`sockaddr_in`, `sockaddr_in6` as Linux lays them out).
    #[must_use]
    pub fn socket(&self) -> Option<std::net::SocketAddr> {
        /// `AF_INET` on Linux.
        const INET: u16 = 2;
        /// `AF_INET6` on Linux.
        const INET6: u16 = 10;
        let family = u16::from_ne_bytes(self.0.get(0..2)?.try_into().ok()?);
        let port = u16::from_be_bytes(self.0.get(2..4)?.try_into().ok()?);
        let ip = match (family, self.0.len()) {
            (INET, 16) => IpAddr::from(<[u8; 4]>::try_from(self.0.get(4..8)?).ok()?),
            (INET6, 28) => IpAddr::from(<[u8; 16]>::try_from(self.0.get(8..24)?).ok()?),
            _ => return None,
        };
        Some(std::net::SocketAddr::new(ip, port))
    }

    /// The bytes of a socket address as Linux lays them out.
    #[must_use]
    pub fn from_socket(address: std::net::SocketAddr) -> Self {
        let port = address.port().to_be_bytes();
        let v4 = |ip: Ipv4Addr| {
            let mut bytes = vec![0u8; 16];
            bytes[0..2].copy_from_slice(&2u16.to_ne_bytes());
            bytes[2..4].copy_from_slice(&port);
            bytes[4..8].copy_from_slice(&ip.octets());
            bytes
        };
        let v6 = |ip: Ipv6Addr| {
            let mut bytes = vec![0u8; 28];
            bytes[0..2].copy_from_slice(&10u16.to_ne_bytes());
            bytes[2..4].copy_from_slice(&port);
            bytes[8..24].copy_from_slice(&ip.octets());
            bytes
        };
        let bytes = match address.ip() {
            IpAddr::V4(ip) => v4(ip),
            IpAddr::V6(ip) => v6(ip),
        };
        Self(bytes, None)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(socket) = self.socket() {
            return socket.fmt(f);
        }
        let text = self.0.split(|byte| *byte == 0).next().unwrap_or_default();
        if !text.is_empty() && text.iter().all(u8::is_ascii_graphic) {
            return f.write_str(&String::from_utf8_lossy(text));
        }
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A peer that this endpoint knows: an index of its address vector.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_addresses_survive_the_round_trip_and_read_as_host_and_port() {
        for text in ["127.0.0.1:31416", "[fe80::1]:9"] {
            let socket: std::net::SocketAddr = text.parse().expect("a socket address");
            let address = Address::from_socket(socket);
            assert_eq!(address.socket(), Some(socket));
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn other_bytes_are_no_socket_address_and_still_print() {
        let name = Address::from_bytes(b"fi_shm://7\0").expect("short enough");
        assert_eq!((name.socket(), name.to_string()), (None, "fi_shm://7".to_owned()));
        assert_eq!(Address::from_bytes(&[255, 1]).expect("short enough").to_string(), "ff01");
        assert_eq!(Address::from_bytes(&[]), None);
        assert_eq!(Address::from_bytes(&[1; ADDRESS_MAX + 1]), None);
    }
}
