//! Entries of the address vector. Servers and clients at one address share an entry.

use super::Context;
use weir_fabric::{Address, PeerId};

impl Context {
    /// The entry of an address, and whether it was added for this.
    pub(crate) fn entry(&self, address: &Address) -> Option<(PeerId, bool)> {
        let before = self.endpoint.counters().peers_inserted.get();
        let peer = self.endpoint.insert(address).ok()?;
        Some((peer, self.endpoint.counters().peers_inserted.get() != before))
    }

    /// Gives up the entry of a server that was not reached, with its stuck connections, and contact by other
    /// names of that address. A client at the address is served by a new entry.
    pub(crate) fn give_up_peer(&self, id: PeerId) {
        let names = self.servers.borrow_mut().leave_all(id);
        for state in names {
            state.set_session(None);
        }
        // A client that was met as the peer of a call, and has never named its address, is where the peer was.
        let clients = self.clients.borrow();
        let address =
            clients.address_at(id).or_else(|| self.endpoint.address_of(id).filter(|_| clients.has(id)));
        drop(clients);
        self.endpoint.remove(id);
        let again = address.and_then(|address| self.endpoint.insert(&address).ok());
        if let Some(again) = again {
            self.clients.borrow_mut().move_all(id, again);
        }
    }

    /// Forgets those of these entries that no client and no session uses.
    pub(crate) fn forget_unused(&self, entries: &[PeerId]) {
        for id in entries {
            if !self.clients.borrow().has(*id) && !self.servers.borrow().has(*id) {
                self.endpoint.forget(*id);
            }
        }
    }
}
