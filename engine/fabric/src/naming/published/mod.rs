//! Published addresses, which are not known beforehand: of providers whose endpoints have no host and port, such
//! as `cxi`, and of others where that is configured.
//!
//! A listening endpoint is opened wherever the provider puts it. A TCP socket at the configured host and port tells its
//! address to every querier. A client that resolves the server's name asks there each time it makes contact, so that it
//! finds a server that restarted at another address.
//!
//! An answer is sealed with the key of the querier's tenant, so that only a process with the system's key can
//! publish an address. It contains the id by which the server answers hellos: addresses are reused, and another
//! server may have this one by then.

mod publisher;
mod query;
mod record;

pub use record::{ADDRESS_VERSION, ANSWER_MAX, AnswerError, PublishedAddress, QUERY_LEN, Query, refusal};

pub(crate) use publisher::Publisher;
pub(crate) use query::{Querier, query};

use crate::address::Address;

/// How the addresses of listening endpoints are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Addressing {
    /// As the provider's addresses require: at ports if they are hosts and ports or names, else published.
    #[default]
    ByProvider,
    /// An endpoint is at the configured host and port.
    Ports,
    /// The provider chooses the address, and it is published at the configured host and port.
    Published,
}

impl Addressing {
    /// The one of this name: `ports` or `published`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "ports" => Some(Self::Ports),
            "published" => Some(Self::Published),
            _ => None,
        }
    }

    /// Its name; none where it is left to the provider.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::ByProvider => None,
            Self::Ports => Some("ports"),
            Self::Published => Some("published"),
        }
    }
}

/// The outcome of resolving a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Where the server is.
    pub address: Address,
    /// The id by which the server must answer, if addresses are published: another server may have the address
    /// by then.
    pub server: Option<u64>,
}

impl From<Address> for Found {
    fn from(address: Address) -> Self {
        Self { address, server: None }
    }
}

#[cfg(test)]
mod tests;
