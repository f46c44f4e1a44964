//! Named addresses.

use core::fmt;
use std::rc::Rc;

/// A server by host name and port. The name is resolved when contact is made, and again after contact was lost, so
/// that a server which comes back under another address is found. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    host: Rc<str>,
    port: u16,
}

impl Peer {
    /// The server that listens at this host and port. Under simulation the host is the node's name.
    #[must_use]
    pub fn new(host: &str, port: u16) -> Self {
        Self { host: host.into(), port }
    }

    /// Its host name.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
