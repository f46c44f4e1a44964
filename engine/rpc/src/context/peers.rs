//! Entries of the address vector, which servers and clients of one address share.

use super::Context;
use weir_fabric::{Address, PeerId};

impl Context {
    /// An address's entry in the address vector, and whether it was made for this.
    pub(crate) fn entry(&self, address: &Address) -> Option<(PeerId, bool)> {
        let before = self.endpoint.counters().peers_inserted.get();
        let peer = self.endpoint.insert(address).ok()?;
        Some((peer, self.endpoint.counters().peers_inserted.get() != before))
    }

    /// Gives up an entry of the address vector by which a server was not reached, and with it connections that are stuck, and
    /// contact by other names of that address. A client that is there goes on being served, by another entry.
    pub(crate) fn give_up_peer(&self, id: PeerId) {
        let names = self.servers.borrow_mut().leave_all(id);
        for state in names {
            state.set_session(None);
        }
        // A client that was met as the peer of a call, and never by what it said of itself, is where the peer was.
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

    /// Forgets those of these entries of the address vector that no client has, and no contact with a server.
    pub(crate) fn forget_unused(&self, entries: &[PeerId]) {
        for id in entries {
            if !self.clients.borrow().has(*id) && !self.servers.borrow().has(*id) {
                self.endpoint.forget(*id);
            }
        }
    }
}
