//! Addresses that nobody knows beforehand: of providers whose endpoints have no host and port, such as `cxi`, and of
//! others where that is configured.
//!
//! A listening endpoint is opened wherever the provider puts it. At the host and port that the configuration gives it stands
//! a TCP socket, which tells everybody who asks what address the provider gave. Whoever resolves the name of a server asks
//! there, each time contact is made, so that a server which has another address after a restart is found again.
//!
//! An answer is sealed with the key of the asker's tenant, so that only who has the system's key can tell an address. With
//! it comes the id by which the server will answer hellos: addresses are used again, and somebody else may be there by then.

mod ask;
mod record;
mod teller;

pub use record::{ADDRESS_VERSION, ANSWER_MAX, AnswerError, QUESTION_LEN, Question, Told, refusal};

pub(crate) use ask::{Asker, ask};
pub(crate) use teller::Teller;

use crate::address::Address;

/// Where the addresses of listening endpoints come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Addressing {
    /// From what the provider's addresses are: ports where they are hosts and ports or names, else published.
    #[default]
    ByProvider,
    /// An endpoint is at the host and port that the configuration says.
    Ports,
    /// The provider chooses them, and at that host and port it is told which.
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

/// What a name has led to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Where the server is.
    pub address: Address,
    /// The id by which it must answer, where addresses are published: somebody else may be there by now.
    pub server: Option<u64>,
}

impl From<Address> for Found {
    fn from(address: Address) -> Self {
        Self { address, server: None }
    }
}

#[cfg(test)]
mod tests;
