//! Names of servers.

use super::session::PeerState;
use crate::wire::ClientId;
use core::cell::RefCell;
use core::fmt;
use core::hash::{Hash, Hasher};
use std::rc::{Rc, Weak};

/// A server by host name and port. The name is resolved when contact is made, and again after contact was lost,
/// so that a server is found that restarts at another address. Cheap to clone.
#[derive(Clone)]
pub struct Peer(Rc<Name>);

struct Name {
    host: Box<str>,
    port: u16,
    /// The state that the context had for it which asked last, so that it isn't looked up by name each time.
    known: RefCell<(u64, Weak<PeerState>)>,
}

impl Peer {
    /// The server that listens at this host and port. Under simulation the host is the node's name.
    #[must_use]
    pub fn new(host: &str, port: u16) -> Self {
        Self(Rc::new(Name { host: host.into(), port, known: RefCell::new((0, Weak::new())) }))
    }

    /// Its host name.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.0.host
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.0.port
    }

    /// A context's state for it, if that context asked last.
    pub(crate) fn known(&self, context: ClientId) -> Option<Rc<PeerState>> {
        let known = self.0.known.borrow();
        if known.0 == context.bits() { known.1.upgrade() } else { None }
    }

    /// Notes a context's state for it.
    pub(crate) fn learn(&self, context: ClientId, state: &Rc<PeerState>) {
        self.0.known.replace((context.bits(), Rc::downgrade(state)));
    }

    fn key(&self) -> (&str, u16) {
        (&self.0.host, self.0.port)
    }
}

impl PartialEq for Peer {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Peer {}

impl PartialOrd for Peer {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Peer {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl Hash for Peer {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host().contains(':') {
            write!(f, "[{}]:{}", self.host(), self.port())
        } else {
            write!(f, "{}:{}", self.host(), self.port())
        }
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
